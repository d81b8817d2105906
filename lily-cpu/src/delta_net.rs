//! Gated DeltaNet: the short convolution and the gated delta rule.

use std::mem::MaybeUninit;

use lily_model::DeltaNetConfig;

use crate::simd::math::{dot, sigmoid_scalar, silu, softplus_scalar, zip_in_place};
use crate::simd::rows::{One, Rows};
use crate::simd::{Kernel, LANES, Lanes};

/// Added to the sum of squares when q and k are normalised.
const L2_EPS: f32 = 1e-6;
/// Tokens whose normalised q and k are kept in the first-level cache while the blocks of the state pass over them.
const SCAN_TOKENS: usize = 32;
/// Vectors of a block of value columns: the widest block has four.
const WIDE: usize = 4;

/// Value columns of a block of the recurrent state.
pub(crate) fn state_block(value_dim: usize) -> usize {
    if value_dim.is_multiple_of(WIDE * LANES) {
        WIDE * LANES
    } else {
        LANES
    }
}

/// Floats of a thread's scratch for [`Scan`].
pub(crate) fn scan_scratch(config: &DeltaNetConfig) -> usize {
    SCAN_TOKENS * (2 * config.key_dim + config.value_dim)
}

/// The causal convolution with SiLU over some channels, in place over the raw rows of a chunk; the state (the raw rows before
/// the chunk) moves on.
pub(crate) struct Convolve<'a> {
    /// Taps `[conv_kernel, channels]`; the last one multiplies the current token.
    pub(crate) taps: &'a [f32],
    /// Raw rows before the chunk `[conv_kernel - 1, channels]`, oldest first.
    pub(crate) state: *mut f32,
    /// Rows of the chunk `[rows, channels]`.
    pub(crate) rows: *mut f32,
    pub(crate) row_count: usize,
    pub(crate) channels: usize,
    pub(crate) first_channel: usize,
    pub(crate) channel_count: usize,
    pub(crate) kernel: usize,
}

impl Kernel for Convolve<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Lanes>(self) {
        let history = self.kernel - 1;
        assert!(self.taps.len() == self.kernel * self.channels);
        assert!(self.first_channel + self.channel_count <= self.channels && self.channel_count.is_multiple_of(LANES));
        assert!(history < MAX_CONV_KERNEL && self.channel_count <= CONV_CHANNELS);
        let channels = (self.first_channel..self.first_channel + self.channel_count).step_by(LANES);
        // Not filled: a decoded token would pay for all of it.
        let mut newest = [const { MaybeUninit::<[f32; CONV_CHANNELS]>::uninit() }; MAX_CONV_KERNEL - 1];
        // SAFETY: `state` and `rows` have `channels` columns, this task alone has these channels, every row index is below `history` or
        // `row_count`, and `newest` has room for each channel of the task, of which those are read that were written.
        unsafe {
            // Row `index` of the state followed by the chunk.
            let raw = |index: usize| {
                if index < history {
                    self.state.add(index * self.channels)
                } else {
                    self.rows.add((index - history) * self.channels)
                }
            };
            for (age, newest) in newest.iter_mut().enumerate().take(history) {
                let from = raw(self.row_count + age).add(self.first_channel);
                from.copy_to_nonoverlapping(newest.as_mut_ptr().cast(), self.channel_count);
            }
            // Backwards, because a row's inputs are the rows before it; row by row, because a column's numbers are pages apart.
            for row in (0..self.row_count).rev() {
                for channel in channels.clone() {
                    let mut sum = V::zero();
                    for tap in 0..self.kernel {
                        let weight = V::load(self.taps.as_ptr().add(tap * self.channels + channel));
                        sum = weight.mul_add(V::load(raw(row + tap).add(channel)), sum);
                    }
                    silu(sum).store(raw(row + history).add(channel));
                }
            }
            for (age, newest) in newest.iter().enumerate().take(history) {
                let to = self.state.add(age * self.channels + self.first_channel);
                to.copy_from_nonoverlapping(newest.as_ptr().cast(), self.channel_count);
            }
        }
    }
}

/// The most channels that [`Convolve`] takes.
pub(crate) const CONV_CHANNELS: usize = 512;
/// The most taps that [`Convolve`] takes.
pub(crate) const MAX_CONV_KERNEL: usize = 9;

/// The gated delta rule of one value head over a chunk, then the gated norm.
///
/// For each token: `S = g * S; d = beta * (v - S k); S = S + d k^T; o = S q`, then `RMS(o) * norm * silu(z)`.
pub(crate) struct Scan<'a> {
    pub(crate) config: &'a DeltaNetConfig,
    /// Value head.
    pub(crate) head: usize,
    /// Output of the convolution `[rows, conv_channels]`.
    pub(crate) qkv: &'a [f32],
    /// Output gate `[rows, value_heads * value_dim]`.
    pub(crate) z: &'a [f32],
    /// beta before its sigmoid `[rows, value_heads]`.
    pub(crate) b: &'a [f32],
    /// Decay before its softplus `[rows, value_heads]`.
    pub(crate) a: &'a [f32],
    pub(crate) a_log: f32,
    pub(crate) dt_bias: f32,
    /// `[value_dim]`
    pub(crate) norm: &'a [f32],
    pub(crate) eps: f32,
    /// State of the head `[value_dim / block, key_dim, block]` (see [`state_block`]).
    pub(crate) state: &'a mut [f32],
    /// `[rows, value_heads * value_dim]`; this head's columns are written.
    pub(crate) out: crate::shared::SharedMut<'a, f32>,
    /// Row of `out` that belongs to the chunk's first row.
    pub(crate) first_row: usize,
    /// [`scan_scratch`] floats.
    pub(crate) scratch: &'a mut [f32],
}

/// What a token brings to the recurrence.
struct Step<'a> {
    q: &'a [f32],
    k: &'a [f32],
    v: &'a [f32],
    beta: f32,
    decay: f32,
}

impl Kernel for Scan<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Lanes>(self) {
        let config = self.config;
        let (key_dim, value_dim) = (config.key_dim, config.value_dim);
        let channels = config.conv_channels();
        let values = config.value_heads * value_dim;
        let key_head = self.head / (config.value_heads / config.key_heads);
        let rows = self.qkv.len() / channels;
        let (qs, rest) = self.scratch.split_at_mut(SCAN_TOKENS * key_dim);
        let (ks, os) = rest.split_at_mut(SCAN_TOKENS * key_dim);
        let rate = -self.a_log.exp();

        for first in (0..rows).step_by(SCAN_TOKENS) {
            let tokens = SCAN_TOKENS.min(rows - first);
            let mut gates = [(0.0, 0.0); SCAN_TOKENS];
            for token in 0..tokens {
                let row = first + token;
                let qkv = &self.qkv[row * channels..(row + 1) * channels];
                let key_start = config.key_heads * key_dim + key_head * key_dim;
                let q = &qkv[key_head * key_dim..(key_head + 1) * key_dim];
                normalise::<V>(
                    q,
                    (key_dim as f32).sqrt().recip(),
                    &mut qs[token * key_dim..(token + 1) * key_dim],
                );
                normalise::<V>(
                    &qkv[key_start..key_start + key_dim],
                    1.0,
                    &mut ks[token * key_dim..(token + 1) * key_dim],
                );
                let gate = row * config.value_heads + self.head;
                gates[token] = (
                    sigmoid_scalar(self.b[gate]),
                    (rate * softplus_scalar(self.a[gate] + self.dt_bias)).exp(),
                );
            }
            let block = state_block(value_dim);
            for (index, state) in self.state.chunks_exact_mut(key_dim * block).enumerate() {
                for token in 0..tokens {
                    let row = first + token;
                    let v_start =
                        row * channels + 2 * config.key_heads * key_dim + self.head * value_dim + index * block;
                    let step = Step {
                        q: &qs[token * key_dim..(token + 1) * key_dim],
                        k: &ks[token * key_dim..(token + 1) * key_dim],
                        v: &self.qkv[v_start..v_start + block],
                        beta: gates[token].0,
                        decay: gates[token].1,
                    };
                    let out = &mut os[token * value_dim + index * block..][..block];
                    match (block / LANES, V::Rows::ROWS) {
                        (WIDE, 2) => delta_step::<V::Rows, { WIDE / 2 }>(step, state, out),
                        (WIDE, _) => delta_step::<One<V>, WIDE>(step, state, out),
                        _ => delta_step::<One<V>, 1>(step, state, out),
                    }
                }
            }
            for token in 0..tokens {
                let start = (first + token) * values + self.head * value_dim;
                let o = &mut os[token * value_dim..(token + 1) * value_dim];
                crate::norm::rms_norm_in_place::<V>(o, self.norm, self.eps);
                zip_in_place::<V>(o, &self.z[start..start + value_dim], |o, z| o.mul(silu(z)));
                // SAFETY: this task alone has this head of these rows.
                unsafe { self.out.part(self.first_row * values + start, value_dim) }.copy_from_slice(o);
            }
        }
    }
}

/// `x / sqrt(sum(x^2) + eps) * scale`
#[inline(always)]
fn normalise<V: Lanes>(x: &[f32], scale: f32, out: &mut [f32]) {
    let factor = V::splat(scale / (dot::<V>(x, x) + L2_EPS).sqrt());
    out.copy_from_slice(x);
    zip_in_place::<V>(out, x, |_, x| x.mul(factor));
}

/// One token over one block of `N` vectors of value columns; the state block is `[key_dim, columns]`.
///
/// Two passes over the block: `m = S k` (before the decay, which is a factor of the whole sum), then the update and the read-out.
/// Even and odd keys have their own sums, so that more additions are in flight.
#[inline(always)]
fn delta_step<B: Rows, const N: usize>(step: Step<'_>, state: &mut [f32], out: &mut [f32]) {
    let lanes = B::ROWS * LANES;
    let width = N * lanes;
    let keys = step.k.len();
    assert!(step.q.len() == keys && keys.is_multiple_of(2));
    assert!(state.len() == keys * width && step.v.len() == width && out.len() == width);
    let state = state.as_mut_ptr();
    // SAFETY: `key < keys` and `n < N`, so `key * width + n * lanes + lanes` is at most `keys * width`; `v` and `out` are `width`
    // long.
    unsafe {
        let mut sums = [[B::zero(); N]; 2];
        for key in (0..keys).step_by(2) {
            for (odd, sums) in sums.iter_mut().enumerate() {
                let k = B::splat(*step.k.get_unchecked(key + odd));
                for (n, sum) in sums.iter_mut().enumerate() {
                    *sum = B::mul_add(B::load(state.add((key + odd) * width + n * lanes)), k, *sum);
                }
            }
        }
        let decay = B::splat(step.decay);
        let mut delta = [B::zero(); N];
        for (n, delta) in delta.iter_mut().enumerate() {
            let remembered = B::mul(B::add(sums[0][n], sums[1][n]), decay);
            *delta = B::mul(
                B::sub(B::load(step.v.as_ptr().add(n * lanes)), remembered),
                B::splat(step.beta),
            );
        }
        let mut outs = [[B::zero(); N]; 2];
        for key in (0..keys).step_by(2) {
            for (odd, outs) in outs.iter_mut().enumerate() {
                let k = B::splat(*step.k.get_unchecked(key + odd));
                let q = B::splat(*step.q.get_unchecked(key + odd));
                for (n, out) in outs.iter_mut().enumerate() {
                    let at = state.add((key + odd) * width + n * lanes);
                    let updated = B::mul_add(k, delta[n], B::mul(B::load(at), decay));
                    B::store(updated, at);
                    *out = B::mul_add(updated, q, *out);
                }
            }
        }
        let [even, odd] = outs;
        for (n, (even, odd)) in even.into_iter().zip(odd).enumerate() {
            B::store(B::add(even, odd), out.as_mut_ptr().add(n * lanes));
        }
    }
}

#[cfg(test)]
#[path = "delta_net_tests.rs"]
mod tests;
