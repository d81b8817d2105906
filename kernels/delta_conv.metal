// Gated DeltaNet over a chunk, before the scan: convolution, L2 norm of q and k, gates; and the ring of the last raw rows. A simdgroup takes a head, so that
// the L2 norm is one sum.
#include "include/common.h"
#include "include/params.h"

METAL_FUNC float decay_of(float a_log, float a) { return exp(-exp(a_log) * softplus(a)); }

// What a lane holds of a row: V neighbouring channels.
template <int V>
struct Channels {
  float value[V];

  METAL_FUNC void load(device const bfloat* row) {
    if (V == 4) {
      const float4 v = bfloat_quad(*(device const uint2*)row);
#pragma unroll
      for (int i = 0; i < V; i++) {
        value[i] = v[i];
      }
    } else {
      const float2 v = bfloat_pair(*(device const uint*)row);
#pragma unroll
      for (int i = 0; i < V; i++) {
        value[i] = v[i];
      }
    }
  }

  METAL_FUNC void store(device bfloat* row, float scale) const {
#pragma unroll
    for (int i = 0; i < V; i += 2) {
      ((device uint*)row)[i / 2] = pack_bfloats(value[i] * scale, value[i + 1] * scale);
    }
  }
};

// Four taps, all heads of 32 * V dimensions. Grid (2 * key_heads + value_heads, tokens / 32), 4 simdgroups of eight tokens, whose raw rows are all asked for
// at once and each read once.
template <int V>
[[kernel, max_total_threads_per_threadgroup(128)]] void delta_conv_4(
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
  constexpr int TOKENS = 8;
  constexpr int TAPS = 4;
  const bool is_value = tg.x >= 2 * p.key_heads;
  const bool is_query = tg.x < p.key_heads;
  const uint head = is_value ? tg.x - 2 * p.key_heads : is_query ? tg.x : tg.x - p.key_heads;
  const uint dim = 32 * V;
  const uint channels = (2 * p.key_heads + p.value_heads) * dim;
  const uint channel = tg.x * dim + lane * V;
  const uint first_token = (tg.y * 4 + sg) * TOKENS;
  if (first_token >= p.rows) {
    return;
  }
  // row i is that of token first_token + i - 3
  Channels<V> rows[TOKENS + TAPS - 1];
#pragma unroll
  for (int i = 0; i < TOKENS + TAPS - 1; i++) {
    const int t = min(int(first_token) + i - (TAPS - 1), int(p.rows) - 1);
    rows[i].load(t >= 0 ? raw + ulong(t) * channels + channel : ring + ulong((step->position + TAPS + t) % TAPS) * channels + channel);
  }
  float4 taps[V];
#pragma unroll
  for (int i = 0; i < V; i++) {
    taps[i] = ((device const float4*)conv)[channel + i];
  }
#pragma unroll
  for (int i = 0; i < TOKENS; i++) {
    const uint t = first_token + i;
    if (t >= p.rows) {
      break;
    }
    Channels<V> c;
    float square = 0.0f;
#pragma unroll
    for (int n = 0; n < V; n++) {
      float sum = 0.0f;
#pragma unroll
      for (int j = 0; j < TAPS; j++) {
        sum = fma(taps[n][j], rows[i + j].value[n], sum);
      }
      c.value[n] = silu(sum);
      square = fma(c.value[n], c.value[n], square);
    }
    if (is_value) {
      c.store(v + (ulong(t) * p.value_heads + head) * dim + lane * V, 1.0f);
      continue;
    }
    const float inverse = rsqrt(simd_sum(square) + 1.0e-6f);
    const ulong at = (ulong(t) * p.key_heads + head) * dim + lane * V;
    c.store((is_query ? q : k) + at, is_query ? inverse * rsqrt(float(dim)) : inverse);
  }
  // a lane's token
  const uint t = first_token + lane;
  if (is_value && lane < TOKENS && t < p.rows) {
    const ulong at = ulong(t) * p.value_heads + head;
    decay[at] = decay_of(a_log[head], a[at] + dt_bias[head]);
    beta[at] = sigmoid(b[at]);
  }
}

template [[host_name("delta_conv_4_128")]] [[kernel]]
decltype(delta_conv_4<4>) delta_conv_4<4>;
template [[host_name("delta_conv_4_64")]] [[kernel]]
decltype(delta_conv_4<2>) delta_conv_4<2>;

// Any number of taps and heads of up to 256 dimensions. Grid (2 * key_heads + value_heads, tokens / 16), 4 simdgroups; a simdgroup takes one head of four
// tokens.
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
  const uint position = step->position;
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
                                    : float(ring[ulong((position + p.taps + t - back) % p.taps) * channels + channel]);
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
      decay[at] = decay_of(a_log[head], a[at] + dt_bias[head]);
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
