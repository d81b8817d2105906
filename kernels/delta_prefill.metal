// Gated DeltaNet over a chunk, behind the convolution (delta_conv.metal): the scan and the gated norm.
#include "include/common.h"
#include "include/params.h"

// The recurrence with the state in registers for the whole chunk. Grid (DV / 32, value_heads), 128 threads: LANES lanes hold the keys of R rows of the
// state, so that a loaded key serves R rows. q, k and v of TOKENS tokens at a time are staged in threadgroup memory; those of the next tokens are on their
// way meanwhile.
template <int DK, int DV, int LANES, int R>
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
  static_assert(LANES == 4 * R, "128 threads take 32 rows");
  constexpr int QUADS = DK / 4 / LANES;
  constexpr uint ROWS = 32;
  constexpr uint TOKENS = 16;
  constexpr uint THREADS = 128;
  constexpr int KEY_LOADS = TOKENS * DK / 4 / THREADS;
  constexpr int VALUE_LOADS = TOKENS * ROWS / THREADS;
  threadgroup float4 qs[TOKENS * DK / 4];
  threadgroup float4 ks[TOKENS * DK / 4];
  threadgroup float vs[TOKENS][ROWS];
  threadgroup float outs[TOKENS][ROWS];
  threadgroup float decays[TOKENS];
  threadgroup float betas[TOKENS];

  const uint head = tg.y;
  const uint key_head = head / (p.value_heads / p.key_heads);
  const uint row0 = tg.x * ROWS;
  const uint row = tid / LANES * R;
  const uint part = tid % LANES;
  float4 s[R][QUADS];
#pragma unroll
  for (int r = 0; r < R; r++) {
    device const float4* s_row = (device const float4*)(state + (ulong(head) * DV + row0 + row + r) * DK) + part;
#pragma unroll
    for (int i = 0; i < QUADS; i++) {
      s[r][i] = s_row[i * LANES];
    }
  }
  uint2 next_q[KEY_LOADS];
  uint2 next_k[KEY_LOADS];
  float next_v[VALUE_LOADS];
  float next_decay = 0.0f;
  float next_beta = 0.0f;
  // tokens past the end repeat the last one, with a decay of 1 and a step of 0, so that they leave the state alone
#define DELTA_SCAN_FETCH(FIRST)                                                                    \
  _Pragma("unroll") for (int i = 0; i < KEY_LOADS; i++) {                                          \
    const uint e = i * THREADS + tid;                                                              \
    const uint t = min((FIRST) + e / (DK / 4), p.rows - 1);                                        \
    const ulong at = (ulong(t) * p.key_heads + key_head) * (DK / 4) + e % (DK / 4);                \
    next_q[i] = ((device const uint2*)q)[at];                                                      \
    next_k[i] = ((device const uint2*)k)[at];                                                      \
  }                                                                                                \
  _Pragma("unroll") for (int i = 0; i < VALUE_LOADS; i++) {                                        \
    const uint e = i * THREADS + tid;                                                              \
    const uint t = min((FIRST) + e / ROWS, p.rows - 1);                                            \
    next_v[i] = float(v[(ulong(t) * p.value_heads + head) * DV + row0 + e % ROWS]);                \
  }                                                                                                \
  {                                                                                                \
    const ulong at = ulong(min((FIRST) + tid % TOKENS, p.rows - 1)) * p.value_heads + head;        \
    next_decay = decay[at];                                                                        \
    next_beta = beta[at];                                                                          \
  }
  DELTA_SCAN_FETCH(0u)
  for (uint t0 = 0; t0 < p.rows; t0 += TOKENS) {
    const uint tokens = min(TOKENS, p.rows - t0);
#pragma unroll
    for (int i = 0; i < KEY_LOADS; i++) {
      qs[i * THREADS + tid] = bfloat_quad(next_q[i]);
      ks[i * THREADS + tid] = bfloat_quad(next_k[i]);
    }
#pragma unroll
    for (int i = 0; i < VALUE_LOADS; i++) {
      const uint e = i * THREADS + tid;
      vs[e / ROWS][e % ROWS] = next_v[i];
    }
    if (tid < TOKENS) {
      decays[tid] = tid < tokens ? next_decay : 1.0f;
      betas[tid] = tid < tokens ? next_beta : 0.0f;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    DELTA_SCAN_FETCH(t0 + TOKENS)
#pragma unroll 2
    for (uint t = 0; t < TOKENS; t++) {
      // both sums on the old state: o = S_new q = decay * (S q) + delta * (k q), so that they do not wait for each other
      float4 k4[QUADS];
      float kq = 0.0f;
      float sk[R];
      float sq[R];
#pragma unroll
      for (int r = 0; r < R; r++) {
        sk[r] = 0.0f;
        sq[r] = 0.0f;
      }
#pragma unroll
      for (int i = 0; i < QUADS; i++) {
        k4[i] = ks[t * (DK / 4) + part + i * LANES];
        const float4 q4 = qs[t * (DK / 4) + part + i * LANES];
#pragma unroll
        for (int c = 0; c < 4; c++) {
          kq = fma(k4[i][c], q4[c], kq);
#pragma unroll
          for (int r = 0; r < R; r++) {
            sk[r] = fma(s[r][i][c], k4[i][c], sk[r]);
            sq[r] = fma(s[r][i][c], q4[c], sq[r]);
          }
        }
      }
#pragma unroll
      for (ushort mask = 1; mask < LANES; mask *= 2) {
        kq += simd_shuffle_xor(kq, mask);
#pragma unroll
        for (int r = 0; r < R; r++) {
          sk[r] += simd_shuffle_xor(sk[r], mask);
          sq[r] += simd_shuffle_xor(sq[r], mask);
        }
      }
      const float g = decays[t];
#pragma unroll
      for (int r = 0; r < R; r++) {
        const float delta = betas[t] * (vs[t][row + r] - g * sk[r]);
#pragma unroll
        for (int i = 0; i < QUADS; i++) {
          s[r][i] = fma(k4[i], float4(delta), s[r][i] * g);
        }
        if (part == 0) {
          outs[t][row + r] = fma(delta, kq, g * sq[r]);
        }
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint e = tid; e < tokens * ROWS; e += THREADS) {
      o[(ulong(t0 + e / ROWS) * p.value_heads + head) * DV + row0 + e % ROWS] = bfloat(outs[e / ROWS][e % ROWS]);
    }
    // the next outputs are written behind the barrier that follows the next staging
  }
#undef DELTA_SCAN_FETCH
#pragma unroll
  for (int r = 0; r < R; r++) {
    device float4* s_row = (device float4*)(state + (ulong(head) * DV + row0 + row + r) * DK) + part;
#pragma unroll
    for (int i = 0; i < QUADS; i++) {
      s_row[i * LANES] = s[r][i];
    }
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
decltype(delta_scan<128, 128, 4, 1>) delta_scan<128, 128, 4, 1>;
template [[host_name("delta_scan_64_64")]] [[kernel]]
decltype(delta_scan<64, 64, 4, 1>) delta_scan<64, 64, 4, 1>;
template [[host_name("delta_scan_128_128_r2")]] [[kernel]]
decltype(delta_scan<128, 128, 8, 2>) delta_scan<128, 128, 8, 2>;
