// Gated DeltaNet over a chunk: convolution and gates, the scan, the gated norm, and the ring of the last raw rows.
#include "include/common.h"
#include "include/params.h"

// Grid (2 * key_heads + value_heads, tokens / 16), 4 simdgroups. A simdgroup takes one head of four tokens, so that the L2 norm of q and k is one sum.
[[kernel, max_total_threads_per_threadgroup(128)]] void delta_conv(
    device const bfloat* raw [[buffer(0)]],     // [rows, channels] of this chunk
    device const bfloat* ring [[buffer(1)]],    // [taps, channels]: raw row of position n at slot n % taps
    device const float* conv [[buffer(2)]],     // [channels, taps]
    device const float* b [[buffer(3)]],        // [rows, value_heads]
    device const float* a [[buffer(4)]],        // [rows, value_heads]
    device const float* a_log [[buffer(5)]],    // [value_heads]
    device const float* dt_bias [[buffer(6)]],  // [value_heads]
    device bfloat* q [[buffer(7)]],             // [rows, key_heads, key_dim], normalised and scaled
    device bfloat* k [[buffer(8)]],             // [rows, key_heads, key_dim], normalised
    device bfloat* v [[buffer(9)]],             // [rows, value_heads, value_dim]
    device float* decay [[buffer(10)]],         // [rows, value_heads]
    device float* beta [[buffer(11)]],          // [rows, value_heads]
    device const StepState* step [[buffer(12)]],
    constant DeltaParams& p [[buffer(13)]],
    uint2 tg [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]],
    uint sg [[simdgroup_index_in_threadgroup]]) {
  constexpr int TOKENS = 4;
  constexpr int MAX_PER_LANE = 8;  // heads of up to 256 dimensions
  const bool is_value = tg.x >= 2 * p.key_heads;
  const bool is_query = tg.x < p.key_heads;
  const uint head = is_value ? tg.x - 2 * p.key_heads : is_query ? tg.x : tg.x - p.key_heads;
  const uint dim = is_value ? p.value_dim : p.key_dim;
  const uint channels = 2 * p.key_heads * p.key_dim + p.value_heads * p.value_dim;
  const uint first = is_value ? 2 * p.key_heads * p.key_dim + head * dim : tg.x * dim;
  const uint first_token = (tg.y * 4 + sg) * TOKENS;
  for (uint t = first_token; t < min(first_token + TOKENS, p.rows); t++) {
    float c[MAX_PER_LANE];
    float square = 0.0f;
#pragma unroll
    for (int i = 0; i < MAX_PER_LANE; i++) {
      c[i] = 0.0f;
      if (lane + 32 * i < dim) {
        const uint channel = first + lane + 32 * i;
        for (uint j = 0; j < p.taps; j++) {
          const uint back = p.taps - 1 - j;
          const float u = t >= back ? float(raw[ulong(t - back) * channels + channel])
                                    : float(ring[ulong((step->position + p.taps + t - back) % p.taps) * channels + channel]);
          c[i] = fma(conv[channel * p.taps + j], u, c[i]);
        }
        c[i] = silu(c[i]);
        square = fma(c[i], c[i], square);
      }
    }
    float scale = 1.0f;
    device bfloat* out = v + (ulong(t) * p.value_heads + head) * dim;
    if (!is_value) {
      scale = rsqrt(simd_sum(square) + 1.0e-6f);
      if (is_query) {
        scale *= rsqrt(float(dim));
        out = q + (ulong(t) * p.key_heads + head) * dim;
      } else {
        out = k + (ulong(t) * p.key_heads + head) * dim;
      }
    } else if (lane == 0) {
      const ulong at = ulong(t) * p.value_heads + head;
      decay[at] = exp(-exp(a_log[head]) * softplus(a[at] + dt_bias[head]));
      beta[at] = sigmoid(b[at]);
    }
#pragma unroll
    for (int i = 0; i < MAX_PER_LANE; i++) {
      if (lane + 32 * i < dim) {
        out[lane + 32 * i] = bfloat(c[i] * scale);
      }
    }
  }
}

// The last raw rows of the chunk into the ring. Grid (channels / threads, taps).
[[kernel, max_total_threads_per_threadgroup(256)]] void delta_ring(
    device const bfloat* raw [[buffer(0)]],  // [rows, channels]
    device bfloat* ring [[buffer(1)]],       // [taps, channels]
    device const StepState* step [[buffer(2)]],
    constant DeltaParams& p [[buffer(3)]],
    uint2 at [[thread_position_in_grid]]) {
  const uint channels = 2 * p.key_heads * p.key_dim + p.value_heads * p.value_dim;
  if (at.x < channels && at.y < p.rows) {
    const uint t = p.rows - 1 - at.y;
    ring[ulong((step->position + t) % p.taps) * channels + at.x] = raw[ulong(t) * channels + at.x];
  }
}

// The recurrence with the state in registers for the whole chunk. Grid (DV / ROWS, value_heads), ROWS * 4 threads: four lanes hold a row of the state,
// a simdgroup eight rows. q, k and v of TOKENS tokens at a time are staged in threadgroup memory, where the eight rows read them as broadcasts.
template <int DK, int DV>
[[kernel, max_total_threads_per_threadgroup(128)]] void delta_scan(
    device const bfloat* q [[buffer(0)]],     // [rows, key_heads, DK]
    device const bfloat* k [[buffer(1)]],     // [rows, key_heads, DK]
    device const bfloat* v [[buffer(2)]],     // [rows, value_heads, DV]
    device const float* decay [[buffer(3)]],  // [rows, value_heads]
    device const float* beta [[buffer(4)]],   // [rows, value_heads]
    device float* state [[buffer(5)]],        // [value_heads, DV, DK]
    device bfloat* o [[buffer(6)]],           // [rows, value_heads, DV]
    constant DeltaParams& p [[buffer(7)]],
    uint2 tg [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]]) {
  constexpr int QUADS = DK / 16;
  constexpr uint ROWS = 32;
  constexpr uint TOKENS = 16;
  constexpr uint THREADS = ROWS * 4;
  threadgroup float4 qs[TOKENS * DK / 4];
  threadgroup float4 ks[TOKENS * DK / 4];
  threadgroup float vs[TOKENS][ROWS];
  threadgroup float outs[TOKENS][ROWS];
  threadgroup float decays[TOKENS];
  threadgroup float betas[TOKENS];

  const uint head = tg.y;
  const uint key_head = head / (p.value_heads / p.key_heads);
  const uint row0 = tg.x * ROWS;
  const uint row = tid / 4;
  const uint part = tid % 4;
  device float4* s_row = (device float4*)(state + (ulong(head) * DV + row0 + row) * DK) + part;
  float4 s[QUADS];
#pragma unroll
  for (int i = 0; i < QUADS; i++) {
    s[i] = s_row[i * 4];
  }
  for (uint t0 = 0; t0 < p.rows; t0 += TOKENS) {
    const uint tokens = min(TOKENS, p.rows - t0);
    for (uint e = tid; e < tokens * (DK / 4); e += THREADS) {
      const uint t = e / (DK / 4);
      const uint c = e % (DK / 4);
      const ulong at = (ulong(t0 + t) * p.key_heads + key_head) * (DK / 4) + c;
      qs[e] = bfloat_quad(((device const uint2*)q)[at]);
      ks[e] = bfloat_quad(((device const uint2*)k)[at]);
    }
    for (uint e = tid; e < tokens * ROWS; e += THREADS) {
      vs[e / ROWS][e % ROWS] = float(v[(ulong(t0 + e / ROWS) * p.value_heads + head) * DV + row0 + e % ROWS]);
    }
    if (tid < tokens) {
      decays[tid] = decay[ulong(t0 + tid) * p.value_heads + head];
      betas[tid] = beta[ulong(t0 + tid) * p.value_heads + head];
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint t = 0; t < tokens; t++) {
      // both sums on the old state: o = S_new q = decay * (S q) + delta * (k q), so that they do not wait for each other
      float sk = 0.0f;
      float sq = 0.0f;
      float kq = 0.0f;
#pragma unroll
      for (int i = 0; i < QUADS; i++) {
        const float4 k4 = ks[t * (DK / 4) + part + i * 4];
        const float4 q4 = qs[t * (DK / 4) + part + i * 4];
        sk += dot(s[i], k4);
        sq += dot(s[i], q4);
        kq += dot(k4, q4);
      }
#pragma unroll
      for (ushort mask = 1; mask < 4; mask *= 2) {
        sk += simd_shuffle_xor(sk, mask);
        sq += simd_shuffle_xor(sq, mask);
        kq += simd_shuffle_xor(kq, mask);
      }
      const float g = decays[t];
      const float delta = betas[t] * (vs[t][row] - g * sk);
#pragma unroll
      for (int i = 0; i < QUADS; i++) {
        s[i] = fma(ks[t * (DK / 4) + part + i * 4], float4(delta), s[i] * g);
      }
      if (part == 0) {
        outs[t][row] = fma(delta, kq, g * sq);
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint e = tid; e < tokens * ROWS; e += THREADS) {
      o[(ulong(t0 + e / ROWS) * p.value_heads + head) * DV + row0 + e % ROWS] = bfloat(outs[e / ROWS][e % ROWS]);
    }
    // the next outputs are written behind the barrier that follows the next staging
  }
#pragma unroll
  for (int i = 0; i < QUADS; i++) {
    s_row[i * 4] = s[i];
  }
}

// The recurrence for any head sizes that are multiples of 32, with the state in device memory: one simdgroup a row of the state.
// Grid (value_dim, value_heads).
[[kernel, max_total_threads_per_threadgroup(64)]] void delta_scan_general(
    device const bfloat* q [[buffer(0)]],
    device const bfloat* k [[buffer(1)]],
    device const bfloat* v [[buffer(2)]],
    device const float* decay [[buffer(3)]],
    device const float* beta [[buffer(4)]],
    device float* state [[buffer(5)]],
    device bfloat* o [[buffer(6)]],
    constant DeltaParams& p [[buffer(7)]],
    uint2 tg [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]]) {
  const uint head = tg.y;
  const uint row = tg.x;
  const uint key_head = head / (p.value_heads / p.key_heads);
  device float* s = state + (ulong(head) * p.value_dim + row) * p.key_dim;
  for (uint t = 0; t < p.rows; t++) {
    const ulong key_at = (ulong(t) * p.key_heads + key_head) * p.key_dim;
    const ulong at = ulong(t) * p.value_heads + head;
    const float g = decay[at];
    float sk = 0.0f;
    for (uint i = lane; i < p.key_dim; i += 32) {
      sk = fma(s[i], float(k[key_at + i]), sk);
    }
    const float delta = beta[at] * (float(v[at * p.value_dim + row]) - g * simd_sum(sk));
    float sq = 0.0f;
    for (uint i = lane; i < p.key_dim; i += 32) {
      const float updated = fma(delta, float(k[key_at + i]), s[i] * g);
      s[i] = updated;
      sq = fma(updated, float(q[key_at + i]), sq);
    }
    const float value = simd_sum(sq);
    if (lane == 0) {
      o[at * p.value_dim + row] = bfloat(value);
    }
  }
}

// RMS over a head, times its weight, times silu(z). Grid (value_heads, rows / 4), 4 simdgroups, one token each.
[[kernel, max_total_threads_per_threadgroup(128)]] void delta_norm(
    device const bfloat* o [[buffer(0)]],    // [rows, value_heads, value_dim]
    device const bfloat* z [[buffer(1)]],    // [rows, value_heads, value_dim]
    device const float* norm [[buffer(2)]],  // [value_dim]
    device bfloat* y [[buffer(3)]],          // [rows, value_heads, value_dim]
    constant DeltaParams& p [[buffer(4)]],
    uint2 tg [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]],
    uint sg [[simdgroup_index_in_threadgroup]]) {
  const uint t = tg.y * 4 + sg;
  if (t >= p.rows) {
    return;
  }
  const ulong at = (ulong(t) * p.value_heads + tg.x) * p.value_dim;
  float square = 0.0f;
  for (uint i = lane; i < p.value_dim; i += 32) {
    const float value = float(o[at + i]);
    square = fma(value, value, square);
  }
  const float inverse = rsqrt(simd_sum(square) / float(p.value_dim) + p.eps);
  for (uint i = lane; i < p.value_dim; i += 32) {
    y[at + i] = bfloat(float(o[at + i]) * inverse * norm[i] * silu(float(z[at + i])));
  }
}

template [[host_name("delta_scan_128_128")]] [[kernel]]
decltype(delta_scan<128, 128>) delta_scan<128, 128>;
template [[host_name("delta_scan_64_64")]] [[kernel]]
decltype(delta_scan<64, 64>) delta_scan<64, 64>;
