// The feed-forward part of one token, in two dispatches: gate, up and SwiGLU of the chosen experts and of the shared one; then their down
// projections, weighted, summed and added to the residual stream. A slot is one chosen expert; slot top_k is the shared expert (slot 0 of a dense MLP).
#include "include/gemv.h"
#include "include/route.h"

// Take the experts from route_experts instead of choosing them here (the choice is then a dispatch of its own).
constant bool kChosenBefore [[function_constant(0)]];
// Write gate and up as floats instead of silu(gate) * up (SwiGLU is then a dispatch of its own).
constant bool kSeparateSwiglu [[function_constant(1)]];
// Write each slot's down projection instead of adding their weighted sum to the residual stream.
constant bool kSeparateCombine [[function_constant(2)]];
// expert_gate_up: x is normed already.
constant bool kNormedInput [[function_constant(3)]];

// Grid (row blocks / simdgroups, slots). Every threadgroup finds its own expert from the router's logits: 256 of them cost less than a stage.
template <int BITS, int ROWS>
[[kernel, max_total_threads_per_threadgroup(256)]] void expert_gate_up(
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
    device uchar* activations [[buffer(17)]],   // [slots, slot_stride] bfloats; [slots, 2, slot_stride] floats with kSeparateSwiglu: gate, then up
    constant ExpertParams& p [[buffer(18)]],
    uint2 tg [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint2 threads [[threads_per_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint sg [[simdgroup_index_in_threadgroup]],
    uint nsg [[simdgroups_per_threadgroup]]) {
  constexpr int UNITS = Packed<BITS>::units;
  constexpr uint TILE = 4096;
  threadgroup float4 xs[1024];
  threadgroup float squares[8];
  threadgroup uint chosen;

  const uint slot = p.first_slot + tg.y;
  const bool shared = slot == p.top_k;
  const uint rows = shared ? p.shared_intermediate : p.intermediate;
  if (tg.x * nsg * ROWS >= rows) {
    return;  // the whole threadgroup: the routed and the shared expert differ in width
  }
  if (sg == 0 && !shared) {
    uint expert = 0;
    if (kChosenBefore) {
      expert = route_experts[slot];
    } else {
      uint keys[kLogitsPerLane];
      load_logits(router_logits, p.experts, lane, keys);
      Choice c;
      for (uint i = 0; i <= slot; i++) {
        c = take_largest(keys, lane);
      }
      expert = c.expert;
      if (tg.x == 0 && lane == 0) {
        route_experts[slot] = c.expert;
        route_logits[slot] = c.logit;
      }
    }
    if (lane == 0) {
      chosen = expert;
    }
  }

  const uint row0 = (tg.x * nsg + sg) * ROWS;
  const bool active = row0 < rows;
  const Matrix gate = shared ? matrix(shared_gate_codes, shared_gate_scales, shared_gate_biases) : matrix(gate_codes, gate_scales, gate_biases);
  const Matrix up = shared ? matrix(shared_up_codes, shared_up_scales, shared_up_biases) : matrix(up_codes, up_scales, up_biases);
  float square = 0.0f;
  float gate_acc[ROWS] = {0.0f};
  float up_acc[ROWS] = {0.0f};
  for (uint k0 = 0; k0 < p.hidden; k0 += TILE) {
    const uint width = min(TILE, p.hidden - k0);
    if (k0 > 0) {
      threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    device const float4* in = (device const float4*)(x + k0);
    device const float4* weight = (device const float4*)(norm + k0);
    for (uint q = tid; q < width / 4; q += threads.x) {
      const float4 v = in[q];
      square += dot(v, v);
      xs[staged_quad(q)] = kNormedInput ? v : v * weight[q];
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (active) {
      const ulong first = shared ? 0 : ulong(chosen) * rows;
      for (uint unit = lane * UNITS; unit < width / 16; unit += 32 * UNITS) {
        typename Packed<BITS>::Unit g[ROWS];
        typename Packed<BITS>::Unit u[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
          const ulong row = first + min(row0 + r, rows - 1);
          if (shared) {
            Packed<BITS>::load(g[r], gate, row, k0 + unit * 16, p.hidden, p.shared_gate_matrix);
            Packed<BITS>::load(u[r], up, row, k0 + unit * 16, p.hidden, p.shared_up);
          } else {
            Packed<BITS>::load(g[r], gate, row, k0 + unit * 16, p.hidden, p.gate);
            Packed<BITS>::load(u[r], up, row, k0 + unit * 16, p.hidden, p.up);
          }
        }
        float4 v[UNITS * 4];
        read_staged<UNITS>(xs, unit, v);
        const float xsum = sum_quads<UNITS * 4>(v);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
          gate_acc[r] += Packed<BITS>::dot_x(g[r], v, xsum);
          up_acc[r] += Packed<BITS>::dot_x(u[r], v, xsum);
        }
      }
    }
  }
  square = simd_sum(square);
  if (lane == 0) {
    squares[sg] = square;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (!active) {
    return;
  }
  float total = 0.0f;
  for (uint i = 0; i < nsg; i++) {
    total += squares[i];
  }
  const float inverse = kNormedInput ? 1.0f : rsqrt(total / float(p.hidden) + p.eps);
#pragma unroll
  for (int r = 0; r < ROWS; r++) {
    const float g = simd_sum(gate_acc[r]) * inverse;
    const float u = simd_sum(up_acc[r]) * inverse;
    if (lane == 0 && row0 + r < rows) {
      if (kSeparateSwiglu) {
        device float* out = (device float*)activations + ulong(tg.y) * 2 * p.slot_stride + row0 + r;
        out[0] = g;
        out[p.slot_stride] = u;
      } else {
        ((device bfloat*)activations)[ulong(tg.y) * p.slot_stride + row0 + r] = bfloat(silu(g) * u);
      }
    }
  }
}

// One slot's rows of a down projection times its activations, not yet summed over the lanes.
template <int BITS, int ROWS>
METAL_FUNC void down_rows(Matrix w, ulong first, uint row0, uint rows, uint k, device const bfloat* x, constant Encoding& e, float weight, uint lane, thread float* acc) {
  constexpr int UNITS = Packed<BITS>::units;
  for (uint unit = lane * UNITS; unit < k / 16; unit += 32 * UNITS) {
    typename Packed<BITS>::Unit u[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
      Packed<BITS>::load(u[r], w, first + min(row0 + r, rows - 1), unit * 16, k, e);
    }
    float4 v[UNITS * 4];
    read_bfloats<UNITS>(x + unit * 16, v);
    const float xsum = sum_quads<UNITS * 4>(v);
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
      acc[r] = fma(weight, Packed<BITS>::dot_x(u[r], v, xsum), acc[r]);
    }
  }
}

// Grid (row blocks / simdgroups, 1), or (.., slots) with kSeparateCombine. A simdgroup makes ROWS rows of the sum over all slots, so no partial sums
// pass through memory.
template <int BITS, int ROWS>
[[kernel, max_total_threads_per_threadgroup(256)]] void expert_down(
    device const bfloat* activations [[buffer(0)]],      // [top_k + 1, slot_stride]
    device const uint* route_experts [[buffer(1)]],      // [top_k]
    device const float* route_logits [[buffer(2)]],      // [top_k], largest first
    device const float* shared_gate_logit [[buffer(3)]],  // [1]
    device const uchar* codes [[buffer(4)]],              // [experts, hidden, intermediate]
    device const uchar* scales [[buffer(5)]],
    device const uchar* biases [[buffer(6)]],
    device const uchar* shared_codes [[buffer(7)]],  // [hidden, shared_intermediate]
    device const uchar* shared_scales [[buffer(8)]],
    device const uchar* shared_biases [[buffer(9)]],
    device float* x [[buffer(10)]],     // [hidden] residual stream
    device bfloat* y [[buffer(11)]],    // [top_k + 1, hidden], with kSeparateCombine
    constant ExpertParams& p [[buffer(12)]],
    uint2 tg [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]],
    uint sg [[simdgroup_index_in_threadgroup]],
    uint nsg [[simdgroups_per_threadgroup]]) {
  const uint row0 = (tg.x * nsg + sg) * ROWS;
  if (row0 >= p.hidden) {
    return;
  }
  uint first = p.first_slot;
  uint end = p.first_slot + p.slots;
  if (kSeparateCombine) {
    first += tg.y;
    end = first + 1;
  }
  // the routing weights: softmax over the chosen logits, which come largest first
  float total = 0.0f;
  for (uint i = 0; i < p.top_k; i++) {
    total += exp(route_logits[i] - route_logits[0]);
  }
  float acc[ROWS] = {0.0f};
  for (uint slot = first; slot < end; slot++) {
    device const bfloat* a = activations + ulong(slot) * p.slot_stride;
    if (slot < p.top_k) {
      float weight = 1.0f;
      if (!kSeparateCombine) {
        weight = exp(route_logits[slot] - route_logits[0]) / total;
      }
      down_rows<BITS, ROWS>(matrix(codes, scales, biases), ulong(route_experts[slot]) * p.hidden, row0, p.hidden, p.intermediate, a, p.down, weight, lane, acc);
    } else {
      float weight = 1.0f;
      if (!kSeparateCombine && p.shared_gate != 0) {
        weight = sigmoid(shared_gate_logit[0]);
      }
      down_rows<BITS, ROWS>(matrix(shared_codes, shared_scales, shared_biases), 0, row0, p.hidden, p.shared_intermediate, a, p.shared_down, weight, lane, acc);
    }
  }
#pragma unroll
  for (int r = 0; r < ROWS; r++) {
    const float value = simd_sum(acc[r]);
    if (lane == 0 && row0 + r < p.hidden) {
      if (kSeparateCombine) {
        y[ulong(first) * p.hidden + row0 + r] = bfloat(value);
      } else {
        x[row0 + r] += value;
      }
    }
  }
}

template [[host_name("expert_gate_up_q4_r2")]] [[kernel]]
decltype(expert_gate_up<4, 2>) expert_gate_up<4, 2>;
template [[host_name("expert_down_q4_r2")]] [[kernel]]
decltype(expert_down<4, 2>) expert_down<4, 2>;
template [[host_name("expert_gate_up_q8_r2")]] [[kernel]]
decltype(expert_gate_up<8, 2>) expert_gate_up<8, 2>;
template [[host_name("expert_down_q8_r2")]] [[kernel]]
decltype(expert_down<8, 2>) expert_down<8, 2>;
template [[host_name("expert_gate_up_any_r1")]] [[kernel]]
decltype(expert_gate_up<0, 1>) expert_gate_up<0, 1>;
template [[host_name("expert_down_any_r1")]] [[kernel]]
decltype(expert_down<0, 1>) expert_down<0, 1>;
