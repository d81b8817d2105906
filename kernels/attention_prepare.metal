// What lies between attention's projections and its scores: RMSNorm of q and k, rotary embedding, and the write into the KV cache.
#include "include/attention.h"

constant constexpr uint kMaxHeadDim = 512;

// Grid (heads + 2 * kv_heads, tokens) simdgroups of 32 threads: query heads, then keys, then values.
//
// The angle is counted in turns as a 32-bit fraction: position * frequency wraps as the circle does, so it is exact to 2^-32 of a turn at every
// position, where a float product would be off by hundredths of a radian at 100,000.
[[kernel, max_total_threads_per_threadgroup(64)]] void attention_prepare(
    device const bfloat* q_gate [[buffer(0)]],    // [rows, heads, 2, head_dim]: query, then gate
    device const bfloat* k [[buffer(1)]],         // [rows, kv_heads, head_dim]
    device const bfloat* v [[buffer(2)]],         // [rows, kv_heads, head_dim]
    device const float* q_norm [[buffer(3)]],     // [head_dim]
    device const float* k_norm [[buffer(4)]],     // [head_dim]
    device const uint* frequencies [[buffer(5)]], // [rotary_dim / 2] turns per position, times 2^32
    device bfloat* q [[buffer(6)]],               // [kv_heads, rows, heads / kv_heads, head_dim]
    device bfloat* k_cache [[buffer(7)]],         // [capacity, kv_heads, head_dim]
    device bfloat* v_cache [[buffer(8)]],         // [capacity, kv_heads, head_dim]
    device const StepState* step [[buffer(9)]],
    constant AttentionPrepareParams& p [[buffer(10)]],
    uint2 tg [[threadgroup_position_in_grid]],
    uint2 grid [[threadgroups_per_grid]],
    uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float normed[kMaxHeadDim];
  const uint d = p.head_dim;
  const uint token = tg.y;
  const ulong cached = ulong(step->position) + token;
  if (tg.x >= p.heads + p.kv_heads) {
    const uint head = tg.x - p.heads - p.kv_heads;
    for (uint i = lane; i < d; i += 32) {
      v_cache[(cached * p.kv_heads + head) * d + i] = v[(ulong(token) * p.kv_heads + head) * d + i];
    }
    return;
  }
  const bool is_query = tg.x < p.heads;
  const uint head = is_query ? tg.x : tg.x - p.heads;
  device const bfloat* in = is_query ? q_gate + (ulong(token) * p.heads + head) * 2 * d : k + (ulong(token) * p.kv_heads + head) * d;
  device const float* weight = is_query ? q_norm : k_norm;
  device bfloat* out = is_query ? q + query_row(head, token, grid.y, p.heads / p.kv_heads) * d
                                : k_cache + (cached * p.kv_heads + head) * d;

  float square = 0.0f;
  for (uint i = lane; i < d; i += 32) {
    const float value = float(in[i]);
    square = fma(value, value, square);
  }
  const float inverse = rsqrt(simd_sum(square) / float(d) + p.eps);
  for (uint i = lane; i < d; i += 32) {
    normed[i] = float(in[i]) * inverse * weight[i];
  }
  simdgroup_barrier(mem_flags::mem_threadgroup);
  const uint half_dim = p.rotary_dim / 2;
  for (uint i = lane; i < d; i += 32) {
    float value = normed[i];
    if (i < p.rotary_dim) {
      const uint pair = i < half_dim ? i : i - half_dim;
      const int turns = int(uint(cached) * frequencies[pair]);  // in [-2^31, 2^31): half a turn either way
      const float angle = float(turns) * (M_PI_F / 2147483648.0f);
      const float other = normed[i < half_dim ? i + half_dim : i - half_dim];
      value = i < half_dim ? value * cos(angle) - other * sin(angle) : value * cos(angle) + other * sin(angle);
    }
    out[i] = bfloat(value);
  }
}
