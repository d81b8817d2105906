// gemv_norm of one token for GPUs whose matrix units make light of it (include/gemv_tiles.h); the same arguments, 4-bit weights, up to 2048 columns.
//
// A threadgroup makes 16 rows at a time, as long as there are any: its simdgroups share out the blocks of k, and have the codes of their next rows on the
// way while they multiply these; those of the first even before the vector is there.
#include "include/early.h"
#include "include/gemv_tiles.h"

// Adds to the output instead of overwriting it: the residual stream. Then the output is float.
constant bool kAddToOutput [[function_constant(0)]];
// x is normed already (the norm was a dispatch of its own).
constant bool kNormedInput [[function_constant(1)]];

constant constexpr int kDepth = 2;  // blocks of a simdgroup
constant constexpr uint kTileSimdgroups = 8;

METAL_FUNC void fetch_rows(thread RowBlock (&b)[kDepth], Matrix w, GemvTarget t, uint k, uint lane, uint sg) {
  const uint row = t.row + lane / 4;
#pragma unroll
  for (int d = 0; d < kDepth; d++) {
    const uint block = d * kTileSimdgroups + sg;
    if (block * kBlock < k) {
      b[d].load(w, min(row, t.rows - 1), min(row + 8, t.rows - 1), block, k, lane);
    }
  }
}

// Grid: as many threadgroups as run side by side, at most one a row block. Up to four matrices that read the same input share a dispatch.
[[kernel, max_total_threads_per_threadgroup(256)]] void gemv_norm_tiles(
    device const float* x [[buffer(0)]],       // [k] residual stream
    device const float* norm [[buffer(1)]],    // [k]
    device const uchar* codes0 [[buffer(2)]],
    device const uchar* scales0 [[buffer(3)]],
    device const uchar* biases0 [[buffer(4)]],
    device const uchar* codes1 [[buffer(5)]],
    device const uchar* scales1 [[buffer(6)]],
    device const uchar* biases1 [[buffer(7)]],
    device const uchar* codes2 [[buffer(8)]],
    device const uchar* scales2 [[buffer(9)]],
    device const uchar* biases2 [[buffer(10)]],
    device const uchar* codes3 [[buffer(11)]],
    device const uchar* scales3 [[buffer(12)]],
    device const uchar* biases3 [[buffer(13)]],
    device uchar* y0 [[buffer(14)]],
    device uchar* y1 [[buffer(15)]],
    device uchar* y2 [[buffer(16)]],
    device uchar* y3 [[buffer(17)]],
    device const StepState* step [[buffer(18)]],
    constant GemvParams& p [[buffer(19)]],
    uint tg [[threadgroup_position_in_grid]],
    uint grid [[threadgroups_per_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint sg [[simdgroup_index_in_threadgroup]]) {
  threadgroup uint4 staged[kTileSimdgroups * kDepth * kBlock / 8 * kParts];
  threadgroup float group_sums[kTileSimdgroups * kDepth * 2];
  threadgroup float partial[2][kTileSimdgroups][16];
  threadgroup float squares[kTileSimdgroups];
  threadgroup uint2* xs = (threadgroup uint2*)staged;
  const Matrix w0 = matrix(codes0, scales0, biases0);
  const Matrix w1 = matrix(codes1, scales1, biases1);
  const Matrix w2 = matrix(codes2, scales2, biases2);
  const Matrix w3 = matrix(codes3, scales3, biases3);
  const uint end = p.block_end[p.segments - 1];
  GemvTarget t = gemv_target(tg, 16, p);
  RowBlock b[kDepth];
  fetch_rows(b, t.segment == 0 ? w0 : t.segment == 1 ? w1 : t.segment == 2 ? w2 : w3, t, p.k, lane, sg);
  wait_for_earlier_kernels();

  float square = 0.0f;
  const uint quads = p.k / 4;
  // whole simdgroups go round, because a group's sum takes 16 lanes; quads past the end are zeros
#pragma unroll 2
  for (uint q = tid; q < (quads + 31) / 32 * 32; q += kTileSimdgroups * 32) {
    float4 v = float4(0.0f);
    if (q < quads) {
      v = ((device const float4*)x)[q];
      square += dot(v, v);
      if (!kNormedInput) {
        v *= ((device const float4*)norm)[q];
      }
    }
    stage_vector(xs, group_sums, q, v, lane);
  }
  square = simd_sum(square);
  if (lane == 0) {
    squares[sg] = square;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float total = 0.0f;
#pragma unroll
  for (uint i = 0; i < kTileSimdgroups; i++) {
    total += squares[i];
  }
  const float inverse = kNormedInput ? 1.0f : rsqrt(total / float(p.k) + p.eps);

  uint parity = 0;
  for (uint block = tg; block < end; block += grid) {
    const GemvTarget ahead = gemv_target(min(block + grid, end - 1), 16, p);
    RowBlock next[kDepth];
    if (block + grid < end) {
      fetch_rows(next, ahead.segment == 0 ? w0 : ahead.segment == 1 ? w1 : ahead.segment == 2 ? w2 : w3, ahead, p.k, lane, sg);
    }
    float sums[2] = {0.0f, 0.0f};
#pragma unroll
    for (int d = 0; d < kDepth; d++) {
      const uint mine = d * kTileSimdgroups + sg;
      if (mine * kBlock < p.k) {
        uint4 parts[4];
        load_parts(parts, xs, mine, lane);
        multiply_block(sums, b[d], parts, float2(group_sums[mine * 2], group_sums[mine * 2 + 1]), lane);
      }
    }
    // two buffers in turn: the barrier of the next round keeps this round's reads from the round's after it
    put_sums(partial[parity][sg], sums, lane);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (tid < 16 && t.row + tid < t.rows) {
      float value = 0.0f;
#pragma unroll
      for (uint i = 0; i < kTileSimdgroups; i++) {
        value += partial[parity][i][tid];
      }
      device uchar* y = t.segment == 0 ? y0 : t.segment == 1 ? y1 : t.segment == 2 ? y2 : y3;
      gemv_store(y, t, t.row + tid, 0, value * inverse, kAddToOutput, step, p);
    }
    parity = 1 - parity;
    t = ahead;
#pragma unroll
    for (int d = 0; d < kDepth; d++) {
      b[d] = next[d];
    }
  }
}
