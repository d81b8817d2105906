// The feed-forward part of one token with everything fused, as expert_decode.metal has it, for GPUs whose matrix units make light of it
// (include/gemv_tiles.h); the same arguments, 4-bit weights.
#include "include/early.h"
#include "include/gemv_tiles.h"
#include "include/route.h"

constant constexpr uint kTileSimdgroups = 8;

// Grid (rows / 16, slots). A threadgroup makes 16 rows of a slot's gate and the same 16 of its up matrix; its simdgroups share out the blocks of k.
[[kernel, max_total_threads_per_threadgroup(256)]] void expert_gate_up_tiles(
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
    uint2 tg [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint sg [[simdgroup_index_in_threadgroup]]) {
  constexpr int DEPTH = 2;
  constexpr uint TILE = kTileSimdgroups * DEPTH * kBlock;
  threadgroup uint4 staged[TILE / 8 * kParts];
  threadgroup float group_sums[TILE / kGroup];
  threadgroup float partial[kTileSimdgroups][2][16];
  threadgroup float squares[kTileSimdgroups];
  threadgroup uint2* xs = (threadgroup uint2*)staged;

  const uint slot = p.first_slot + tg.y;
  const bool shared = slot == p.top_k;
  const uint rows = shared ? p.shared_intermediate : p.intermediate;
  const uint row0 = tg.x * 16;
  if (row0 >= rows) {
    wait_for_earlier_kernels();
    return;  // the whole threadgroup: the routed and the shared expert differ in width
  }
  // every simdgroup chooses for itself, which costs less than to wait for one of them
  uint expert = 0;
  if (!shared) {
    wait_for_earlier_kernels();
    uint keys[kLogitsPerLane];
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
  const ulong upper = ulong(expert) * rows + min(row0 + lane / 4, rows - 1);
  const ulong lower = ulong(expert) * rows + min(row0 + lane / 4 + 8, rows - 1);
  float gate_sums[2] = {0.0f, 0.0f};
  float up_sums[2] = {0.0f, 0.0f};
  float square = 0.0f;
  for (uint k0 = 0; k0 < p.hidden; k0 += TILE) {
    RowBlock g[DEPTH];
    RowBlock u[DEPTH];
#pragma unroll
    for (int d = 0; d < DEPTH; d++) {
      const uint block = k0 / kBlock + d * kTileSimdgroups + sg;
      if (block * kBlock < p.hidden) {
        g[d].load(gate, upper, lower, block, p.hidden, lane);
        u[d].load(up, upper, lower, block, p.hidden, lane);
      }
    }
    if (k0 > 0) {
      threadgroup_barrier(mem_flags::mem_threadgroup);
    } else if (shared) {
      wait_for_earlier_kernels();
    }
    const uint quads = min(TILE, p.hidden - k0) / 4;
#pragma unroll 2
    for (uint q = tid; q < (quads + 31) / 32 * 32; q += kTileSimdgroups * 32) {
      float4 v = float4(0.0f);
      if (q < quads) {
        v = ((device const float4*)x)[k0 / 4 + q];
        square += dot(v, v);
        v *= ((device const float4*)norm)[k0 / 4 + q];
      }
      stage_vector(xs, group_sums, q, v, lane);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
#pragma unroll
    for (int d = 0; d < DEPTH; d++) {
      const uint block = d * kTileSimdgroups + sg;
      if (k0 + block * kBlock < p.hidden) {
        uint4 parts[4];
        load_parts(parts, xs, block, lane);
        const float2 sums = float2(group_sums[block * 2], group_sums[block * 2 + 1]);
        multiply_block(gate_sums, g[d], parts, sums, lane);
        multiply_block(up_sums, u[d], parts, sums, lane);
      }
    }
  }
  square = simd_sum(square);
  if (lane == 0) {
    squares[sg] = square;
  }
  put_sums(partial[sg][0], gate_sums, lane);
  put_sums(partial[sg][1], up_sums, lane);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (tid < 16 && row0 + tid < rows) {
    float g = 0.0f;
    float u = 0.0f;
    float total = 0.0f;
#pragma unroll
    for (uint i = 0; i < kTileSimdgroups; i++) {
      g += partial[i][0][tid];
      u += partial[i][1][tid];
      total += squares[i];
    }
    const float inverse = rsqrt(total / float(p.hidden) + p.eps);
    activations[ulong(tg.y) * p.slot_stride + row0 + tid] = bfloat(silu(g * inverse) * (u * inverse));
  }
}

// Grid (hidden / 16). A threadgroup makes 16 rows of the sum over all slots; its simdgroups share out the blocks of all slots.
template <int DEPTH>
[[kernel, max_total_threads_per_threadgroup(256)]] void expert_down_tiles(
    device const bfloat* activations [[buffer(0)]],       // [top_k + 1, slot_stride]
    device const uint* route_experts [[buffer(1)]],       // [top_k]
    device const float* route_logits [[buffer(2)]],       // [top_k], largest first
    device const float* shared_gate_logit [[buffer(3)]],  // [1]
    device const uchar* codes [[buffer(4)]],              // [experts, hidden, intermediate]
    device const uchar* scales [[buffer(5)]],
    device const uchar* biases [[buffer(6)]],
    device const uchar* shared_codes [[buffer(7)]],  // [hidden, shared_intermediate]
    device const uchar* shared_scales [[buffer(8)]],
    device const uchar* shared_biases [[buffer(9)]],
    device float* x [[buffer(10)]],   // [hidden] residual stream
    device bfloat* y [[buffer(11)]],  // unused
    constant ExpertParams& p [[buffer(12)]],
    uint tg [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint sg [[simdgroup_index_in_threadgroup]]) {
  constexpr uint BATCH = kTileSimdgroups * DEPTH;  // blocks at a time
  threadgroup uint4 staged[BATCH * kBlock / 8 * kParts];
  threadgroup float group_sums[BATCH * 2];
  threadgroup float partial[kTileSimdgroups][16];
  threadgroup float weights[kMaxTopK + 1];
  threadgroup uint2* xs = (threadgroup uint2*)staged;
  wait_for_earlier_kernels();

  const uint row0 = tg * 16;
  const uint upper = min(row0 + lane / 4, p.hidden - 1);
  const uint lower = min(row0 + lane / 4 + 8, p.hidden - 1);
  const uint widest = p.first_slot < p.top_k ? max(p.intermediate, p.shared_intermediate) : p.shared_intermediate;
  const uint each = (widest + kBlock - 1) / kBlock;  // blocks of a slot
  const uint blocks = p.slots * each;
  if (tid <= p.top_k) {
    float weight = 1.0f;
    if (tid < p.top_k) {
      float total = 0.0f;
      for (uint i = 0; i < p.top_k; i++) {
        total += exp(route_logits[i] - route_logits[0]);
      }
      weight = exp(route_logits[tid] - route_logits[0]) / total;
    } else if (p.shared_gate != 0) {
      weight = sigmoid(shared_gate_logit[0]);
    }
    weights[tid] = weight;
  }
  float sums[2] = {0.0f, 0.0f};
  for (uint b0 = 0; b0 < blocks; b0 += BATCH) {
    RowBlock b[DEPTH];
    uint2 raw[DEPTH];
#pragma unroll
    for (int d = 0; d < DEPTH; d++) {
      const uint block = b0 + d * kTileSimdgroups + sg;
      const uint slot = p.first_slot + block / each;
      const bool shared = slot == p.top_k;
      const uint k = shared ? p.shared_intermediate : p.intermediate;
      b[d].clear();
      if (block < blocks && block % each * kBlock < k) {
        const Matrix w = shared ? matrix(shared_codes, shared_scales, shared_biases) : matrix(codes, scales, biases);
        const ulong first = shared ? 0 : ulong(route_experts[slot]) * p.hidden;
        b[d].load(w, first + upper, first + lower, block % each, k, lane);
      }
    }
#pragma unroll
    for (int d = 0; d < DEPTH; d++) {
      const uint q = d * 256 + tid;
      const uint block = b0 + q / 32;
      const uint slot = p.first_slot + block / each;
      const uint column = block % each * kBlock + q % 32 * 4;
      raw[d] = uint2(0);
      if (block < blocks && column < (slot == p.top_k ? p.shared_intermediate : p.intermediate)) {
        raw[d] = *(device const uint2*)(activations + ulong(slot) * p.slot_stride + column);
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
#pragma unroll
    for (int d = 0; d < DEPTH; d++) {
      const uint q = d * 256 + tid;
      const uint slot = p.first_slot + min(b0 + q / 32, blocks - 1) / each;
      stage_vector(xs, group_sums, q, bfloat_quad(raw[d]) * weights[slot], lane);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
#pragma unroll
    for (int d = 0; d < DEPTH; d++) {
      const uint block = d * kTileSimdgroups + sg;
      if (b0 + block < blocks) {
        uint4 parts[4];
        load_parts(parts, xs, block, lane);
        multiply_block(sums, b[d], parts, float2(group_sums[block * 2], group_sums[block * 2 + 1]), lane);
      }
    }
  }
  put_sums(partial[sg], sums, lane);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (tid < 16 && row0 + tid < p.hidden) {
    float value = 0.0f;
#pragma unroll
    for (uint i = 0; i < kTileSimdgroups; i++) {
      value += partial[i][tid];
    }
    x[row0 + tid] += value;
  }
}

template [[host_name("expert_down_tiles")]] [[kernel]]
decltype(expert_down_tiles<5>) expert_down_tiles<5>;
