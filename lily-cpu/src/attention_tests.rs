//! Attention against softmax by its definition, in f64.

use std::sync::Arc;

use super::*;
use crate::KernelSet;
use crate::KvPrecision;
use crate::kv::KvCache;
use crate::shared::SharedMut;
use crate::simd::tests::{self, sets};

/// From -2 to 2.
fn numbers(seed: u64, count: usize) -> Vec<f32> {
    let doubled = tests::numbers(seed, count).into_iter().map(|number| 2.0 * number);
    doubled.collect()
}

struct Case {
    config: AttentionConfig,
    tokens: usize,
    /// `[tokens, heads, 2, head_dim]`
    queries: Vec<f32>,
    /// `[tokens, kv_heads * head_dim]`
    keys: Vec<f32>,
    values: Vec<f32>,
}

impl Case {
    fn new(heads: usize, kv_heads: usize, tokens: usize) -> Case {
        let head_dim = 32;
        Case {
            config: AttentionConfig {
                heads,
                kv_heads,
                head_dim,
                rotary_dim: 8,
                rope_theta: 1e4,
            },
            tokens,
            queries: numbers(1, tokens * heads * 2 * head_dim),
            keys: numbers(2, tokens * kv_heads * head_dim),
            values: numbers(3, tokens * kv_heads * head_dim),
        }
    }

    /// Output of one head of one token by the definition.
    fn reference(&self, token: usize, head: usize) -> Vec<f64> {
        let d = self.config.head_dim;
        let kv_head = head / (self.config.heads / self.config.kv_heads);
        let query = &self.queries[(token * self.config.heads + head) * 2 * d..][..2 * d];
        let row = |all: &[f32], key: usize| all[(key * self.config.kv_heads + kv_head) * d..][..d].to_vec();
        let scores: Vec<f64> = (0..=token)
            .map(|key| {
                let products = query
                    .iter()
                    .zip(row(&self.keys, key))
                    .map(|(&q, k)| f64::from(q) * f64::from(k));
                products.sum::<f64>() / (d as f64).sqrt()
            })
            .collect();
        let max = scores.iter().copied().fold(f64::MIN, f64::max);
        let sum: f64 = scores.iter().map(|score| (score - max).exp()).sum();
        let mut out = vec![0.0; d];
        for (key, score) in scores.iter().enumerate() {
            for (out, value) in out.iter_mut().zip(row(&self.values, key)) {
                *out += (score - max).exp() / sum * f64::from(value);
            }
        }
        let gates = query[d..].iter().map(|&gate| 1.0 / (1.0 + (-f64::from(gate)).exp()));
        out.iter().zip(gates).map(|(out, gate)| out * gate).collect()
    }

    fn queries(&self, first: usize, count: usize, kv_head: usize) -> Queries<'_> {
        let row = 2 * self.config.heads * self.config.head_dim;
        Queries {
            config: &self.config,
            queries: &self.queries[first * row..(first + count) * row],
            position: first,
            kv_head,
        }
    }

    fn prefill(&self, set: KernelSet, blocks: &[Arc<KvBlock>]) -> Vec<f32> {
        let row = self.config.heads * self.config.head_dim;
        let mut out = vec![f32::NAN; self.tokens * row];
        let mut scratch = AttentionScratch::new(&self.config);
        for first in (0..self.tokens).step_by(QUERY_TOKENS) {
            for kv_head in 0..self.config.kv_heads {
                set.run(Attend {
                    queries: self.queries(first, QUERY_TOKENS.min(self.tokens - first), kv_head),
                    blocks,
                    out: SharedMut::new(&mut out),
                    first_row: first,
                    scratch: &mut scratch,
                });
            }
        }
        out
    }

    fn decode(&self, set: KernelSet, blocks: &[Arc<KvBlock>], token: usize) -> Vec<f32> {
        let mut out = vec![f32::NAN; self.config.heads * self.config.head_dim];
        let mut scratch = AttentionScratch::new(&self.config);
        for kv_head in 0..self.config.kv_heads {
            let queries = self.queries(token, 1, kv_head);
            let partials: Vec<Partial> = (0..=token / SPAN)
                .map(|span| {
                    let mut partial = Partial::new(self.config.heads / self.config.kv_heads, self.config.head_dim);
                    set.run(AttendSpan {
                        queries,
                        block: &blocks[span],
                        next: blocks.get(span + 1).map(|next| &**next),
                        span,
                        partial: &mut partial,
                        scratch: &mut scratch,
                    });
                    partial
                })
                .collect();
            set.run(MergeSpans {
                queries,
                partials: &partials,
                out: SharedMut::new(&mut out),
                first_row: 0,
                scratch: &mut scratch,
            });
        }
        out
    }
}

#[test]
fn attention_follows_its_definition_and_decode_is_prefill() {
    for (heads, kv_heads) in [(2, 2), (3, 1), (8, 2), (8, 1)] {
        // Past two spans, and not a whole number of tiles.
        let case = Case::new(heads, kv_heads, 2 * SPAN + 37);
        let row = heads * case.config.head_dim;
        for set in sets() {
            let mut cache = KvCache::new(KvPrecision::F32, kv_heads, case.config.head_dim);
            cache.write(set, 0, &case.keys, &case.values);
            let out = case.prefill(set, cache.blocks());
            for token in [
                0,
                1,
                TILE - 1,
                TILE,
                TILE + 1,
                SPAN - 1,
                SPAN,
                SPAN + 1,
                case.tokens - 1,
            ] {
                for head in 0..heads {
                    let found = &out[token * row + head * case.config.head_dim..][..case.config.head_dim];
                    for (found, expected) in found.iter().zip(case.reference(token, head)) {
                        assert!(
                            (f64::from(*found) - expected).abs() < 2e-6,
                            "token {token}: {found}, expected {expected}"
                        );
                    }
                }
                let decoded = case.decode(set, cache.blocks(), token);
                assert!(
                    decoded == out[token * row..(token + 1) * row],
                    "{} token {token}",
                    set.name()
                );
            }
        }
    }
}

#[test]
fn bf16_blocks_round_keys_and_values_once() {
    let case = Case::new(4, 2, SPAN + 3);
    for set in sets() {
        let mut cache = KvCache::new(KvPrecision::Bf16, 2, case.config.head_dim);
        // In two parts, as two chunks would write them.
        let cut = 100 * 2 * case.config.head_dim;
        cache.write(set, 0, &case.keys[..cut], &case.values[..cut]);
        let shared = cache.clone();
        cache.write(set, 100, &case.keys[cut..], &case.values[cut..]);
        assert_eq!(shared.blocks().len(), 1);
        let round = |x: &[f32]| x.iter().map(|&x| half::bf16::from_f32(x).to_f32()).collect();
        let rounded = Case {
            keys: round(&case.keys),
            values: round(&case.values),
            ..Case::new(4, 2, SPAN + 3)
        };
        let mut exact = KvCache::new(KvPrecision::F32, 2, case.config.head_dim);
        exact.write(set, 0, &rounded.keys, &rounded.values);
        assert!(case.prefill(set, cache.blocks()) == rounded.prefill(set, exact.blocks()));
        assert_eq!(KvCache::bytes(KvPrecision::Bf16, 64, SPAN + 3), 2 * SPAN * 2 * 64 * 2);
    }
}
