// Gate and up of one token's feed-forward part, as expert_tiles.metal has them, for a residual stream of 2048 columns and at most 256 experts, 4-bit weights
// (include/gemv_streamed.h); the same arguments.
#include "include/early.h"
#include "include/gemv_streamed.h"
#include "include/route.h"

// Grid (rows / 16, slots). A threadgroup makes 16 rows of a slot's gate and the same 16 of its up matrix; its simdgroups share out the blocks of k.
[[kernel, max_total_threads_per_threadgroup(256)]] void expert_gate_up_streamed_2048(
    device const float* x [[buffer(0)]],              // [hidden] residual stream
    device const float* norm [[buffer(1)]],           // [hidden]
    device const float* router_logits [[buffer(2)]],  // [experts]
    device const uchar* gate_codes [[buffer(3)]],     // [experts, intermediate, hidden]
    device const uchar* gate_scales [[buffer(4)]],
    device const uchar* gate_biases [[buffer(5)]],
    device const uchar* up_codes [[buffer(6)]],
    device const uchar* up_scales [[buffer(7)]],
    device const uchar* up_biases [[buffer(8)]],
    device const uchar* shared_gate_codes [[buffer(9)]],  // [shared_intermediate, hidden]
    device const uchar* shared_gate_scales [[buffer(10)]],
    device const uchar* shared_gate_biases [[buffer(11)]],
    device const uchar* shared_up_codes [[buffer(12)]],
    device const uchar* shared_up_scales [[buffer(13)]],
    device const uchar* shared_up_biases [[buffer(14)]],
    device uint* route_experts [[buffer(15)]],  // [top_k]
    device float* route_logits [[buffer(16)]],  // [top_k]
    device bfloat* activations [[buffer(17)]],  // [slots, slot_stride]
    constant ExpertParams& p [[buffer(18)]],
    threadgroup uint4* memory [[threadgroup(0)]],  // codes [2][1024], then factors [4][16][kFactorPitch]
    uint2 tg [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint sg [[simdgroup_index_in_threadgroup]]) {
  threadgroup uint4 xs[2048 / 8 * kParts];
  threadgroup float group_sums[32];
  threadgroup float partial[kWarps][2][16];
  threadgroup float squares[kWarps];
  threadgroup uint4* factors = memory + 2 * 1024;

  const uint slot = p.first_slot + tg.y;
  const bool shared = slot == p.top_k;
  const uint rows = shared ? p.shared_intermediate : p.intermediate;
  const uint row0 = tg.x * 16;
  if (row0 >= rows) {
    wait_for_earlier_kernels();
    return;  // the whole threadgroup: the routed and the shared expert differ in width
  }
  device const float4* in = (device const float4*)x + tid * 2;
  device const float4* weight = (device const float4*)norm + tid * 2;
  const float4 weight_a = weight[0];
  const float4 weight_b = weight[1];
  float4 a;
  float4 b;
  uint expert = 0;
  if (!shared) {
    wait_for_earlier_kernels();
    a = in[0];
    b = in[1];
    // every simdgroup chooses for itself, which costs less than to wait for one of them
    uint keys[kFewLogitsPerLane];
    load_logits(router_logits, p.experts, lane, keys);
    Choice c;
    for (uint i = 0; i <= slot; i++) {
      c = take_largest(keys, lane);
    }
    expert = c.expert;
    if (tg.x == 0 && tid == 0) {
      route_experts[slot] = c.expert;
      route_logits[slot] = c.logit;
    }
  }
  const Matrix gate = shared ? matrix(shared_gate_codes, shared_gate_scales, shared_gate_biases) : matrix(gate_codes, gate_scales, gate_biases);
  const Matrix up = shared ? matrix(shared_up_codes, shared_up_scales, shared_up_biases) : matrix(up_codes, up_scales, up_biases);
  const ulong first = ulong(expert) * rows;
  const ulong upper = first + min(row0 + lane / 4, rows - 1);
  const ulong lower = first + min(row0 + lane / 4 + 8, rows - 1);
  copy_codes_2048(memory, gate.codes, upper, lower, tid);
  copy_codes_2048(memory + 1024, up.codes, upper, lower, tid);
  {
    const uint kind = tid / 64;
    const uint r = tid % 64 / 4;
    device const uchar* from = kind == 0 ? gate.scales : kind == 1 ? gate.biases : kind == 2 ? up.scales : up.biases;
    copy_factors_2048(factors + kind * 16 * kFactorPitch, from, r, first + min(row0 + r, rows - 1), tid % 4);
  }
  copies_commit();
  if (shared) {
    wait_for_earlier_kernels();
    a = in[0];
    b = in[1];
  }
  const float square = simd_sum(dot(a, a) + dot(b, b));
  if (lane == 0) {
    squares[sg] = square;
  }
  stage_octet(xs, group_sums, tid, a * weight_a, b * weight_b, lane);
  copies_wait<0>();
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float gate_sums[2] = {0.0f, 0.0f};
  float up_sums[2] = {0.0f, 0.0f};
  uint4 parts[8];
  float2 offsets[2];
#pragma unroll
  for (uint d = 0; d < 2; d++) {
    load_octets(parts + d * 4, xs, d * kWarps + sg, lane);
    offsets[d] = block_offsets(group_sums, d * kWarps + sg, lane);
  }
  add_rows_2048(gate_sums, memory, factors, factors + 16 * kFactorPitch, parts, offsets, tid, lane, sg);
  add_rows_2048(up_sums, memory + 1024, factors + 32 * kFactorPitch, factors + 48 * kFactorPitch, parts, offsets, tid, lane, sg);
  put_sums(partial[sg][0], gate_sums, lane);
  put_sums(partial[sg][1], up_sums, lane);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (tid < 16 && row0 + tid < rows) {
    float g = 0.0f;
    float u = 0.0f;
    float total = 0.0f;
#pragma unroll
    for (uint i = 0; i < kWarps; i++) {
      g += partial[i][0][tid];
      u += partial[i][1][tid];
      total += squares[i];
    }
    const float inverse = rsqrt(total / float(p.hidden) + p.eps);
    activations[ulong(tg.y) * p.slot_stride + row0 + tid] = bfloat(silu(g * inverse) * (u * inverse));
  }
}
