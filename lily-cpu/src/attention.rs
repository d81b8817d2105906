//! Softmax attention over the KV cache, each key and value read once for all query heads that share its KV head.
//!
//! The keys of a query are taken in spans of [`SPAN`]; each span has its own running maximum, sum and weighted values, and the
//! spans are merged in order. Decode computes the spans in parallel, prefill one after the other: the bits are the same.

use lily_model::AttentionConfig;

use crate::kv::{BLOCK_TOKENS, KvBlock, KvRows, Part};

use crate::norm::rms_norm_in_place;
use crate::rope::RotaryTable;
use crate::simd::math::{exp, sigmoid, zip_in_place};
use crate::simd::{Kernel, LANES, Lanes};

/// Keys of a span: one block of the cache.
pub(crate) const SPAN: usize = BLOCK_TOKENS;
/// Keys of a tile: its keys and values stay in the cache nearest to the core.
const TILE: usize = 32;
/// Rows and keys whose dot products are computed together: eight sums.
const ROWS: usize = 2;
const KEYS: usize = LANES / ROWS;
/// Rows to which values are added together.
const VALUE_ROWS: usize = 4;
/// Query tokens of one task in prefill.
pub(crate) const QUERY_TOKENS: usize = 8;

/// Running softmax of some query rows: maximum, sum of the exponentials, weighted sum of the values.
#[derive(Debug)]
pub(crate) struct Partial {
    max: Vec<f32>,
    sum: Vec<f32>,
    /// `[rows, head_dim]`
    out: Vec<f32>,
    head_dim: usize,
}

impl Partial {
    pub(crate) fn new(rows: usize, head_dim: usize) -> Partial {
        Partial {
            max: vec![f32::NEG_INFINITY; rows],
            sum: vec![0.0; rows],
            out: vec![0.0; rows * head_dim],
            head_dim,
        }
    }

    fn reset(&mut self) {
        self.max.fill(f32::NEG_INFINITY);
        self.sum.fill(0.0);
        self.out.fill(0.0);
    }
}

/// Scratch of one thread.
#[derive(Debug)]
pub(crate) struct AttentionScratch {
    /// Scaled queries of the rows `[rows, head_dim]`; row `token * group + head`.
    queries: Vec<f32>,
    keys: Vec<f32>,
    values: Vec<f32>,
    /// `[rows, TILE]`
    scores: Vec<f32>,
    span: Partial,
    total: Partial,
}

impl AttentionScratch {
    pub(crate) fn new(config: &AttentionConfig) -> AttentionScratch {
        let rows = QUERY_TOKENS * config.heads / config.kv_heads;
        AttentionScratch {
            queries: vec![0.0; rows * config.head_dim],
            keys: vec![0.0; TILE * config.head_dim],
            values: vec![0.0; TILE * config.head_dim],
            scores: vec![0.0; rows * TILE],
            span: Partial::new(rows, config.head_dim),
            total: Partial::new(rows, config.head_dim),
        }
    }
}

/// Normalises and rotates the query and key heads of one row.
pub(crate) struct PrepareRow<'a> {
    pub(crate) config: &'a AttentionConfig,
    /// `[heads, 2, head_dim]`: query and gate.
    pub(crate) queries: &'a mut [f32],
    /// `[kv_heads, head_dim]`
    pub(crate) keys: &'a mut [f32],
    pub(crate) q_norm: &'a [f32],
    pub(crate) k_norm: &'a [f32],
    pub(crate) eps: f32,
    pub(crate) rotary: &'a RotaryTable,
    pub(crate) row: usize,
}

impl Kernel for PrepareRow<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Lanes>(self) {
        let head_dim = self.config.head_dim;
        for head in self.queries.chunks_exact_mut(2 * head_dim) {
            rms_norm_in_place::<V>(&mut head[..head_dim], self.q_norm, self.eps);
            self.rotary.rotate(self.row, head);
        }
        for head in self.keys.chunks_exact_mut(head_dim) {
            rms_norm_in_place::<V>(head, self.k_norm, self.eps);
            self.rotary.rotate(self.row, head);
        }
    }
}

/// The queries of one task: consecutive rows of one sequence, the heads of one KV head.
#[derive(Clone, Copy)]
pub(crate) struct Queries<'a> {
    pub(crate) config: &'a AttentionConfig,
    /// `[rows, heads, 2, head_dim]`, at most [`QUERY_TOKENS`] rows.
    pub(crate) queries: &'a [f32],
    /// Position of the first row.
    pub(crate) position: usize,
    pub(crate) kv_head: usize,
}

impl Queries<'_> {
    fn group(&self) -> usize {
        self.config.heads / self.config.kv_heads
    }

    fn tokens(&self) -> usize {
        self.queries.len() / (2 * self.config.heads * self.config.head_dim)
    }

    /// Where query (`gate` false) or gate of a head of this task lies.
    fn head(&self, token: usize, head: usize, gate: bool) -> &[f32] {
        let head_dim = self.config.head_dim;
        let head = token * self.config.heads + self.kv_head * self.group() + head;
        &self.queries[(2 * head + usize::from(gate)) * head_dim..][..head_dim]
    }

    fn load<V: Lanes>(&self, scratch: &mut AttentionScratch) {
        let head_dim = self.config.head_dim;
        let scale = V::splat((head_dim as f32).sqrt().recip());
        for token in 0..self.tokens() {
            for head in 0..self.group() {
                let row = token * self.group() + head;
                let to = &mut scratch.queries[row * head_dim..(row + 1) * head_dim];
                zip_in_place::<V>(to, self.head(token, head, false), |_, q| q.mul(scale));
            }
        }
    }
}

/// Attention of all spans, one after the other, then the output gate; prefill.
pub(crate) struct Attend<'a> {
    pub(crate) queries: Queries<'a>,
    pub(crate) blocks: &'a [std::sync::Arc<KvBlock>],
    /// `[rows, heads * head_dim]`; the task's heads are written.
    pub(crate) out: crate::shared::SharedMut<'a, f32>,
    /// Row of `out` of the first query.
    pub(crate) first_row: usize,
    pub(crate) scratch: &'a mut AttentionScratch,
}

impl Kernel for Attend<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Lanes>(self) {
        let Attend {
            queries,
            blocks,
            out,
            first_row,
            scratch,
        } = self;
        queries.load::<V>(scratch);
        scratch.total.reset();
        let end = queries.position + queries.tokens();
        for (span, block) in blocks.iter().enumerate().take(end.div_ceil(SPAN)) {
            attend_span::<V>(&queries, block, blocks.get(span + 1).map(|next| &**next), span, scratch);
            merge::<V>(&scratch.span, &mut scratch.total);
        }
        write_gated::<V>(&queries, &scratch.total, out, first_row);
    }
}

/// Attention of one query token over one span; decode.
pub(crate) struct AttendSpan<'a> {
    pub(crate) queries: Queries<'a>,
    pub(crate) block: &'a KvBlock,
    /// The block of the next span.
    pub(crate) next: Option<&'a KvBlock>,
    pub(crate) span: usize,
    /// Room for `heads / kv_heads` rows.
    pub(crate) partial: &'a mut Partial,
    pub(crate) scratch: &'a mut AttentionScratch,
}

impl Kernel for AttendSpan<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Lanes>(self) {
        self.queries.load::<V>(self.scratch);
        attend_span::<V>(&self.queries, self.block, self.next, self.span, self.scratch);
        let rows = self.queries.group();
        self.partial.max.copy_from_slice(&self.scratch.span.max[..rows]);
        self.partial.sum.copy_from_slice(&self.scratch.span.sum[..rows]);
        self.partial
            .out
            .copy_from_slice(&self.scratch.span.out[..rows * self.partial.head_dim]);
    }
}

/// Merges the spans of one query token and applies the output gate; decode.
pub(crate) struct MergeSpans<'a> {
    pub(crate) queries: Queries<'a>,
    pub(crate) partials: &'a [Partial],
    /// `[rows, heads * head_dim]`; the task's heads are written.
    pub(crate) out: crate::shared::SharedMut<'a, f32>,
    pub(crate) first_row: usize,
    pub(crate) scratch: &'a mut AttentionScratch,
}

impl Kernel for MergeSpans<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Lanes>(self) {
        self.scratch.total.reset();
        for partial in self.partials {
            merge::<V>(partial, &mut self.scratch.total);
        }
        write_gated::<V>(&self.queries, &self.scratch.total, self.out, self.first_row);
    }
}

/// Memory that is asked for line by line while other things are computed.
struct Ahead {
    next: *const u8,
    step: usize,
}

impl Ahead {
    /// The bytes of some rows, in `steps` steps.
    fn new(block: &KvBlock, rows: KvRows, steps: usize) -> Ahead {
        let (next, bytes) = block.place(rows);
        Ahead {
            next,
            step: bytes / steps,
        }
    }

    #[inline(always)]
    fn ask<V: Lanes>(&mut self) {
        V::prefetch(self.next);
        self.next = self.next.wrapping_add(self.step);
    }
}

/// Computes `scratch.span`: the rows in `scratch.queries` over the keys of one span, as far as each row may look. The span that comes
/// after it is in `next`.
#[inline(always)]
fn attend_span<V: Lanes>(
    queries: &Queries<'_>,
    block: &KvBlock,
    next: Option<&KvBlock>,
    span: usize,
    scratch: &mut AttentionScratch,
) {
    let AttentionScratch {
        queries: rows,
        keys,
        values,
        scores,
        span: partial,
        ..
    } = scratch;
    let head_dim = queries.config.head_dim;
    let (group, tokens) = (queries.group(), queries.tokens());
    let row_count = group * tokens;
    partial.reset();
    let span_end = SPAN.min(queries.position + tokens - span * SPAN);
    let part = |part, first, count| KvRows {
        head: queries.kv_head,
        part,
        first,
        count,
        head_dim,
    };
    for first in (0..span_end).step_by(TILE) {
        let count = TILE.min(span_end - first);
        let values_there = part(Part::Values, first, count);
        let fours = count.next_multiple_of(KEYS);
        let mut ahead = Ahead::new(
            block,
            values_there,
            (fours / KEYS) * row_count.div_ceil(ROWS) * (head_dim / LANES),
        );
        let keys = block.rows::<V>(part(Part::Keys, first, fours), keys);
        score_tile::<V>(&rows[..row_count * head_dim], keys, head_dim, scores, &mut ahead);
        for (token, scores) in scores.chunks_exact_mut(group * TILE).take(tokens).enumerate() {
            // Keys of this tile that the token may see: its own and those before.
            let visible = (queries.position + token + 1)
                .saturating_sub(span * SPAN + first)
                .min(count);
            for (head, scores) in scores.chunks_exact_mut(TILE).enumerate() {
                soften::<V>(scores, visible, token * group + head, partial);
            }
        }
        let (block_of_next, first_of_next) = if first + TILE < SPAN {
            (block, first + TILE)
        } else {
            (next.unwrap_or(block), 0)
        };
        let mut ahead = Ahead::new(
            block_of_next,
            part(Part::Keys, first_of_next, TILE),
            count * row_count.div_ceil(VALUE_ROWS) * (head_dim / (2 * LANES)),
        );
        let values = block.rows::<V>(values_there, values);
        add_values::<V>(&scores[..row_count * TILE], values, partial, &mut ahead);
    }
}

/// `scores[row * TILE + key] = rows[row] . keys[key]`
#[inline(always)]
fn score_tile<V: Lanes>(rows: &[f32], keys: &[f32], head_dim: usize, scores: &mut [f32], ahead: &mut Ahead) {
    let row_count = rows.len() / head_dim;
    let row = |row: usize| &rows[row * head_dim..(row + 1) * head_dim];
    for (four, keys) in keys.chunks_exact(KEYS * head_dim).enumerate() {
        for first in (0..row_count).step_by(ROWS) {
            let second = (first + 1).min(row_count - 1);
            let sums = products::<V>([row(first), row(second)], keys, ahead);
            for (row, sums) in [first, second].into_iter().zip(sums.chunks_exact(KEYS)) {
                scores[row * TILE + KEYS * four..][..KEYS].copy_from_slice(sums);
            }
        }
    }
}

/// Dot products of two rows with four keys, row by row: as many sums as an instruction set with sixteen registers holds.
#[inline(always)]
fn products<V: Lanes>(rows: [&[f32]; ROWS], keys: &[f32], ahead: &mut Ahead) -> [f32; ROWS * KEYS] {
    let head_dim = rows[0].len();
    assert!(head_dim.is_multiple_of(LANES) && rows[1].len() == head_dim && keys.len() == KEYS * head_dim);
    let mut sums = [V::zero(); ROWS * KEYS];
    for at in (0..head_dim).step_by(LANES) {
        // SAFETY: `at + LANES` is at most `head_dim`, the length of every row and key.
        unsafe {
            ahead.ask::<V>();
            let rows = rows.map(|row| V::load(row.as_ptr().add(at)));
            for key in 0..KEYS {
                let key_lanes = V::load(keys.as_ptr().add(key * head_dim + at));
                for (row, lanes) in rows.iter().enumerate() {
                    let sum = &mut sums[row * KEYS + key];
                    *sum = key_lanes.mul_add(*lanes, *sum);
                }
            }
        }
    }
    let mut totals = [0.0; ROWS * KEYS];
    // SAFETY: room for eight numbers.
    unsafe { V::sums(sums).store(totals.as_mut_ptr()) };
    totals
}

/// Turns the scores of one row into weights relative to its new maximum, and rescales what the row has gathered so far.
#[inline(always)]
fn soften<V: Lanes>(scores: &mut [f32], visible: usize, row: usize, partial: &mut Partial) {
    assert!(scores.len() == TILE && visible <= TILE);
    if visible == 0 {
        scores.fill(0.0);
        return;
    }
    scores[visible..].fill(f32::NEG_INFINITY);
    // SAFETY: `scores` has `TILE` numbers, a multiple of LANES.
    let load = |scores: &[f32], at: usize| unsafe { V::load(scores.as_ptr().add(at)) };
    let mut max = V::splat(partial.max[row]);
    for at in (0..TILE).step_by(LANES) {
        max = max.max(load(scores, at));
    }
    let max = max.max_lane();
    for at in (0..TILE).step_by(LANES) {
        let weights = exp(load(scores, at).sub(V::splat(max)));
        // SAFETY: as above.
        unsafe { weights.store(scores.as_mut_ptr().add(at)) };
    }
    scores[visible..].fill(0.0);
    let mut sum = V::zero();
    for at in (0..TILE).step_by(LANES) {
        sum = sum.add(load(scores, at));
    }
    let rescale = rescale::<V>(partial.max[row], max);
    partial.max[row] = max;
    partial.sum[row] = partial.sum[row] * rescale + sum.sum();
    if rescale != 1.0 {
        let head_dim = partial.head_dim;
        let out = &mut partial.out[row * head_dim..(row + 1) * head_dim];
        scale_in_place::<V>(out, rescale);
    }
}

/// Factor of what was gathered relative to the maximum `old` when the maximum is `new`.
#[inline(always)]
fn rescale<V: Lanes>(old: f32, new: f32) -> f32 {
    if old == new {
        return 1.0;
    }
    let mut factor = [0.0; LANES];
    // SAFETY: room for eight numbers.
    unsafe { exp(V::splat(old - new)).store(factor.as_mut_ptr()) };
    factor[0]
}

#[inline(always)]
fn scale_in_place<V: Lanes>(x: &mut [f32], factor: f32) {
    assert!(x.len().is_multiple_of(LANES));
    for at in (0..x.len()).step_by(LANES) {
        // SAFETY: `at + LANES` is at most the length.
        unsafe {
            let to = x.as_mut_ptr().add(at);
            V::load(to).mul(V::splat(factor)).store(to);
        }
    }
}

/// `partial.out[row] += sum over keys of weights[row, key] * values[key]`, in the order of the keys.
#[inline(always)]
fn add_values<V: Lanes>(weights: &[f32], values: &[f32], partial: &mut Partial, ahead: &mut Ahead) {
    let head_dim = partial.head_dim;
    let rows = weights.len() / TILE;
    let mut row = 0;
    while row < rows {
        let many = rows - row >= VALUE_ROWS;
        for column in (0..head_dim).step_by(2 * LANES) {
            if many {
                add_values_tile::<V, VALUE_ROWS>(&weights[row * TILE..], values, row, column, partial, ahead);
            } else {
                add_values_tile::<V, 1>(&weights[row * TILE..], values, row, column, partial, ahead);
            }
        }
        row += if many { VALUE_ROWS } else { 1 };
    }
}

/// `R` rows, two vectors of columns.
#[inline(always)]
fn add_values_tile<V: Lanes, const R: usize>(
    weights: &[f32],
    values: &[f32],
    row: usize,
    column: usize,
    partial: &mut Partial,
    ahead: &mut Ahead,
) {
    let head_dim = partial.head_dim;
    let keys = values.len() / head_dim;
    assert!(weights.len() >= R * TILE && keys <= TILE && column + 2 * LANES <= head_dim);
    assert!((row + R) * head_dim <= partial.out.len());
    // SAFETY: the assertions bound every offset below.
    unsafe {
        let out = |r: usize, n: usize| (row + r) * head_dim + column + n * LANES;
        let mut sums: [[V; 2]; R] =
            std::array::from_fn(|r| std::array::from_fn(|n| V::load(partial.out.as_ptr().add(out(r, n)))));
        for key in 0..keys {
            ahead.ask::<V>();
            let from = values.as_ptr().add(key * head_dim + column);
            let value = [V::load(from), V::load(from.add(LANES))];
            for (r, sums) in sums.iter_mut().enumerate() {
                let weight = V::splat(*weights.get_unchecked(r * TILE + key));
                sums[0] = weight.mul_add(value[0], sums[0]);
                sums[1] = weight.mul_add(value[1], sums[1]);
            }
        }
        for (r, sums) in sums.iter().enumerate() {
            for (n, sum) in sums.iter().enumerate() {
                sum.store(partial.out.as_mut_ptr().add(out(r, n)));
            }
        }
    }
}

/// Adds a later span to the total of the spans before it. Rows that see no key of the span stay as they are.
#[inline(always)]
fn merge<V: Lanes>(span: &Partial, total: &mut Partial) {
    let head_dim = span.head_dim;
    for (row, out) in span.out.chunks_exact(head_dim).enumerate() {
        if span.max[row] == f32::NEG_INFINITY {
            continue;
        }
        let max = total.max[row].max(span.max[row]);
        let (before, added) = (rescale::<V>(total.max[row], max), rescale::<V>(span.max[row], max));
        total.max[row] = max;
        total.sum[row] = total.sum[row] * before + span.sum[row] * added;
        let (before, added) = (V::splat(before), V::splat(added));
        zip_in_place::<V>(
            &mut total.out[row * head_dim..(row + 1) * head_dim],
            out,
            |total, span| span.mul_add(added, total.mul(before)),
        );
    }
}

/// `out = total / sum * sigmoid(gate)`
#[inline(always)]
fn write_gated<V: Lanes>(
    queries: &Queries<'_>,
    total: &Partial,
    out: crate::shared::SharedMut<'_, f32>,
    first_row: usize,
) {
    let head_dim = queries.config.head_dim;
    let group = queries.group();
    for token in 0..queries.tokens() {
        for head in 0..group {
            let row = token * group + head;
            let column = (first_row + token) * queries.config.heads + queries.kv_head * group + head;
            // SAFETY: this task alone has these heads of these rows.
            let out = unsafe { out.part(column * head_dim, head_dim) };
            let (scale, total) = (
                V::splat(1.0 / total.sum[row]),
                &total.out[row * head_dim..(row + 1) * head_dim],
            );
            let gate = queries.head(token, head, true);
            for at in (0..head_dim).step_by(LANES) {
                // SAFETY: `at + LANES` is at most `head_dim`, the length of all three.
                unsafe {
                    let gate = sigmoid(V::load(gate.as_ptr().add(at)));
                    V::load(total.as_ptr().add(at))
                        .mul(scale)
                        .mul(gate)
                        .store(out.as_mut_ptr().add(at));
                }
            }
        }
    }
}

#[cfg(test)]
#[path = "attention_tests.rs"]
mod tests;
