// One token of a Gated DeltaNet layer after its input projections: convolution, gates, the recurrence and the gated norm, in one dispatch.
#include "include/common.h"
#include "include/early.h"
#include "include/params.h"

// A threadgroup looks after one value head, because the norm of the output spans the head. A row of the state, [DK], lies in the registers of four
// lanes: eight rows to a simdgroup, so a sum over keys is two shuffles. The loads of the state are issued first and overlap everything before their use; no
// other kernel of a pass writes it, so that they need not wait.
// The input projection has already put the token's raw row into the ring, at slot position % taps.
template <int DK, int DV>
[[kernel, max_total_threads_per_threadgroup(512)]] void delta_decode(
    device const bfloat* ring [[buffer(0)]],   // [taps, channels]
    device const float* conv [[buffer(1)]],    // [channels, taps]
    device const bfloat* z [[buffer(2)]],      // [value_heads, DV]
    device const float* b [[buffer(3)]],       // [value_heads]
    device const float* a [[buffer(4)]],       // [value_heads]
    device const float* a_log [[buffer(5)]],   // [value_heads]
    device const float* dt_bias [[buffer(6)]], // [value_heads]
    device const float* norm [[buffer(7)]],    // [DV]
    device float* state [[buffer(8)]],         // [value_heads, DV, DK]
    device bfloat* out [[buffer(9)]],          // [value_heads, DV]
    device const StepState* step [[buffer(10)]],
    constant DeltaParams& p [[buffer(11)]],
    uint head [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint sg [[simdgroup_index_in_threadgroup]]) {
  static_assert(DK % 32 == 0 && DV % 8 == 0 && 2 * DK + DV <= 4 * DV, "a thread convolves at most one channel");
  constexpr int QUADS = DK / 16;
  constexpr int GROUPS = DV / 8;  // simdgroups
  threadgroup float4 qs[DK / 4];
  threadgroup float4 ks[DK / 4];
  threadgroup float vs[DV];
  threadgroup float partial[GROUPS];
  threadgroup float squares[GROUPS];

  const uint row = tid / 4;
  const uint part = tid % 4;
  device float4* s_row = (device float4*)(state + (ulong(head) * DV + row) * DK) + part;
  float4 s[QUADS];
#pragma unroll
  for (int i = 0; i < QUADS; i++) {
    s[i] = s_row[i * 4];
  }

  const uint key_head = head / (p.value_heads / p.key_heads);
  const uint keys = p.key_heads * DK;
  const uint channels = 2 * keys + p.value_heads * DV;
  const bool convolves = tid < 2 * DK + DV;
  const uint channel = tid < DK       ? key_head * DK + tid
                       : tid < 2 * DK ? keys + key_head * DK + tid - DK
                                      : 2 * keys + head * DV + tid - 2 * DK;
  float4 taps = float4(0.0f);
  if (convolves && p.taps == 4) {
    taps = ((device const float4*)conv)[channel];
  }
  const float rate = exp(a_log[head]);
  const float dt = dt_bias[head];
  const float weight = norm[row];
  wait_for_earlier_kernels();

  // everything that comes from earlier kernels at once, whether it is needed soon or late
  const uint oldest = step->position + 1;
  const float beta_logit = b[head];
  const float a_here = a[head];
  const float z_here = float(z[head * DV + row]);
  float c = 0.0f;
  if (convolves && p.taps == 4) {
    float slots[4];
#pragma unroll
    for (uint i = 0; i < 4; i++) {
      slots[i] = float(ring[i * channels + channel]);
    }
#pragma unroll
    for (uint j = 0; j < 4; j++) {
      const uint slot = (oldest + j) & 3;
      const float value = slot < 2 ? (slot == 0 ? slots[0] : slots[1]) : (slot == 2 ? slots[2] : slots[3]);
      c = fma(taps[j], value, c);
    }
    c = silu(c);
  } else if (convolves) {
    for (uint j = 0; j < p.taps; j++) {
      const uint slot = (oldest + j) % p.taps;
      c = fma(conv[channel * p.taps + j], float(ring[slot * channels + channel]), c);
    }
    c = silu(c);
  }
  const float square = simd_sum(c * c);
  if (lane == 0) {
    partial[sg] = square;
  }
  if (tid < DK) {
    ((threadgroup float*)qs)[tid] = c;
  } else if (tid < 2 * DK) {
    ((threadgroup float*)ks)[tid - DK] = c;
  } else if (tid < 2 * DK + DV) {
    vs[tid - 2 * DK] = c;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float q_square = 0.0f;
  float k_square = 0.0f;
  for (int i = 0; i < DK / 32; i++) {
    q_square += partial[i];
    k_square += partial[DK / 32 + i];
  }
  const float q_scale = rsqrt(q_square + 1.0e-6f) * rsqrt(float(DK));
  const float k_scale = rsqrt(k_square + 1.0e-6f);
  const float decay = exp(-rate * softplus(a_here + dt));
  const float beta = sigmoid(beta_logit);

  // S k and S q are both taken on the old state: o = S_new q = decay * (S q) + delta * (k q), so that the two sums do not wait for each other
  float sk = 0.0f;
  float sq = 0.0f;
  float kq = 0.0f;
#pragma unroll
  for (int i = 0; i < QUADS; i++) {
    const float4 k4 = ks[part + i * 4];
    const float4 q4 = qs[part + i * 4];
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
  const float delta = beta * (vs[row] - decay * sk * k_scale);
  const float o = (decay * sq + delta * kq * k_scale) * q_scale;
#pragma unroll
  for (int i = 0; i < QUADS; i++) {
    s_row[i * 4] = fma(ks[part + i * 4], float4(delta * k_scale), s[i] * decay);
  }
  const float o_square = simd_sum(part == 0 ? o * o : 0.0f);
  if (lane == 0) {
    squares[sg] = o_square;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float total = 0.0f;
  for (int i = 0; i < GROUPS; i++) {
    total += squares[i];
  }
  if (part == 0) {
    out[head * DV + row] = bfloat(o * rsqrt(total / float(DV) + p.eps) * weight * silu(z_here));
  }
}

template [[host_name("delta_decode_128_128")]] [[kernel]]
decltype(delta_decode<128, 128>) delta_decode<128, 128>;
template [[host_name("delta_decode_64_64")]] [[kernel]]
decltype(delta_decode<64, 64>) delta_decode<64, 64>;
