// Routing of a prefill chunk without the host: choose experts and count them, turn the counts into row ranges and a map of tiles, sort the
// (token, slot) entries by expert; and, after the grouped products, the weighted sum back into the residual stream.
//
// An entry is token * top_k + slot. The order of entries within an expert depends on scheduling, but every row of a product is computed on its own, so
// the result does not.
#include "include/route.h"
#include "include/params.h"
#include <metal_atomic>

// Also count the rows of each expert.
constant bool kCount [[function_constant(0)]];

// One simdgroup a token, eight to a threadgroup.
[[kernel, max_total_threads_per_threadgroup(256)]] void moe_route(
    device const float* router_logits [[buffer(0)]],  // [rows, experts]
    device uint* route_experts [[buffer(1)]],         // [rows, top_k]
    device float* route_logits [[buffer(2)]],         // [rows, top_k], largest first
    device atomic_uint* counts [[buffer(3)]],         // [experts], zero before
    constant MoeParams& p [[buffer(4)]],
    uint tg [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]],
    uint sg [[simdgroup_index_in_threadgroup]],
    uint nsg [[simdgroups_per_threadgroup]]) {
  const uint token = tg * nsg + sg;
  if (token >= p.rows) {
    return;
  }
  uint keys[kLogitsPerLane];
  load_logits(router_logits + ulong(token) * p.experts, p.experts, lane, keys);
  for (uint i = 0; i < p.top_k; i++) {
    const Choice c = take_largest(keys, lane);
    if (lane == 0) {
      route_experts[token * p.top_k + i] = c.expert;
      route_logits[token * p.top_k + i] = c.logit;
      if (kCount) {
        atomic_fetch_add_explicit(&counts[c.expert], 1u, memory_order_relaxed);
      }
    }
  }
}

// One threadgroup of kMaxExperts threads, one a (possible) expert. Leaves the counts at zero for the next layer.
[[kernel, max_total_threads_per_threadgroup(512)]] void moe_offsets(
    device uint* counts [[buffer(0)]],      // [experts]
    device uint* cursors [[buffer(1)]],     // [experts]: first sorted row of each expert
    device uint* blocks [[buffer(2)]],      // [max_blocks, 3]: expert, first row, rows
    device uint* block_count [[buffer(3)]], // [1]
    constant MoeParams& p [[buffer(4)]],
    uint tid [[thread_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint sg [[simdgroup_index_in_threadgroup]],
    uint nsg [[simdgroups_per_threadgroup]]) {
  threadgroup uint row_sums[16];
  threadgroup uint block_sums[16];
  uint rows = 0;
  if (tid < p.experts) {
    rows = counts[tid];
    counts[tid] = 0;
  }
  const uint tiles = (rows + p.tile_rows - 1) / p.tile_rows;
  const uint rows_before = simd_prefix_exclusive_sum(rows);
  const uint tiles_before = simd_prefix_exclusive_sum(tiles);
  if (lane == 31) {
    row_sums[sg] = rows_before + rows;
    block_sums[sg] = tiles_before + tiles;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  uint first_row = rows_before;
  uint first_block = tiles_before;
  for (uint i = 0; i < sg; i++) {
    first_row += row_sums[i];
    first_block += block_sums[i];
  }
  if (tid < p.experts) {
    cursors[tid] = first_row;
    for (uint i = 0; i < tiles; i++) {
      device uint* block = blocks + (first_block + i) * 3;
      block[0] = tid;
      block[1] = first_row + i * p.tile_rows;
      block[2] = min(p.tile_rows, rows - i * p.tile_rows);
    }
  }
  if (tid == nsg * 32 - 1) {
    block_count[0] = first_block + tiles;
  }
}

// One thread an entry.
[[kernel, max_total_threads_per_threadgroup(256)]] void moe_scatter(
    device const uint* route_experts [[buffer(0)]],  // [rows * top_k]
    device atomic_uint* cursors [[buffer(1)]],       // [experts]
    device uint* sorted [[buffer(2)]],               // [rows * top_k] entries, by expert
    constant MoeParams& p [[buffer(3)]],
    uint entry [[thread_position_in_grid]]) {
  if (entry < p.rows * p.top_k) {
    const uint at = atomic_fetch_add_explicit(&cursors[route_experts[entry]], 1u, memory_order_relaxed);
    sorted[at] = entry;
  }
}

// x += sum over slots of weight * y, + sigmoid(gate) * shared. Grid (columns / 4 / threads, rows).
[[kernel, max_total_threads_per_threadgroup(256)]] void moe_combine(
    device const bfloat* y [[buffer(0)]],             // [rows, top_k, hidden]
    device const float* route_logits [[buffer(1)]],   // [rows, top_k], largest first
    device const bfloat* shared [[buffer(2)]],        // [rows, hidden]
    device const float* shared_gate_logits [[buffer(3)]],  // [rows]
    device float* x [[buffer(4)]],                    // [rows, hidden] residual stream
    constant MoeParams& p [[buffer(5)]],
    uint2 at [[thread_position_in_grid]]) {
  const uint quad = at.x;
  const uint row = at.y;
  if (quad >= p.hidden / 4) {
    return;
  }
  device const float* logits = route_logits + row * p.top_k;
  float total = 0.0f;
  float4 sum = float4(0.0f);
  for (uint i = 0; i < p.top_k; i++) {
    const float weight = exp(logits[i] - logits[0]);
    total += weight;
    device const uint2* in = (device const uint2*)(y + (ulong(row) * p.top_k + i) * p.hidden);
    sum += weight * bfloat_quad(in[quad]);
  }
  if (p.top_k > 0) {
    sum /= total;
  }
  if (p.shared != 0) {
    const float weight = p.shared_gate != 0 ? sigmoid(shared_gate_logits[row]) : 1.0f;
    sum += weight * bfloat_quad(((device const uint2*)(shared + ulong(row) * p.hidden))[quad]);
  }
  ((device float4*)(x + ulong(row) * p.hidden))[quad] += sum;
}
