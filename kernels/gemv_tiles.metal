// gemv_norm and gemv of one token for GPUs whose matrix units make light of it (include/gemv_tiles.h); the same arguments, 4-bit weights.
//
// A threadgroup makes TILES * 16 rows: its simdgroups share out the blocks of k, and have all their codes on the way before the vector is there.
#include "include/early.h"
#include "include/gemv_tiles.h"

#if TILE_BACKEND == TILE_MMA || TILE_BACKEND == TILE_LOOPS
// Adds to the output instead of overwriting it: the residual stream. Then the output is float.
constant bool kAddToOutput [[function_constant(0)]];
// gemv_tiles with a norm: x is normed already (the norm was a dispatch of its own).
constant bool kNormedInput [[function_constant(1)]];

METAL_FUNC void store_row(device uchar* y, uint segment, uint row, float value, device const StepState* step, constant GemvParams& p) {
  ulong at = row;
  if (p.ring[segment] != 0) {
    at += ulong(step->position % p.ring[segment]) * p.rows[segment];
  }
  if (kAddToOutput) {
    ((device float*)y)[at] += value;
  } else if (((p.float_outputs >> segment) & 1) != 0) {
    ((device float*)y)[at] = value;
  } else {
    ((device bfloat*)y)[at] = bfloat(value);
  }
}

// Grid (row blocks of TILES * 16 rows). With NORM x is float and gets its RMSNorm, else it is bfloat and `norm` is not read.
template <bool NORM, int TILES, int DEPTH>
METAL_FUNC void gemv_tiles(device const uchar* x, device const float* norm, Matrix w, uint segment, uint row0, device uchar* y,
                           device const StepState* step, constant GemvParams& p, threadgroup uint2* xs, threadgroup float* group_sums,
                           threadgroup float* partial, threadgroup float* squares, uint tid, uint lane, uint sg) {
  constexpr uint SIMDGROUPS = 8;
  constexpr uint TILE = SIMDGROUPS * DEPTH * kBlock;
  const uint rows = p.rows[segment];
  float acc[TILES][2];
#pragma unroll
  for (int i = 0; i < TILES; i++) {
    acc[i][0] = 0.0f;
    acc[i][1] = 0.0f;
  }
  float square = 0.0f;
  for (uint k0 = 0; k0 < p.k; k0 += TILE) {
    RowBlock b[DEPTH][TILES];
#pragma unroll
    for (int d = 0; d < DEPTH; d++) {
      const uint block = k0 / kBlock + d * SIMDGROUPS + sg;
      if (block * kBlock < p.k) {
#pragma unroll
        for (int i = 0; i < TILES; i++) {
          const uint row = row0 + i * 16 + lane / 4;
          b[d][i].load(w, min(row, rows - 1), min(row + 8, rows - 1), block, p.k, lane);
        }
      }
    }
    if (k0 == 0) {
      wait_for_earlier_kernels();
    } else {
      threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    const uint quads = min(TILE, p.k - k0) / 4;
    // whole simdgroups go round, because a group's sum takes 16 lanes; quads past the end are zeros
#pragma unroll 2
    for (uint q = tid; q < (quads + 31) / 32 * 32; q += SIMDGROUPS * 32) {
      float4 v = float4(0.0f);
      if (q < quads) {
        if (NORM) {
          v = ((device const float4*)x)[k0 / 4 + q];
          square += dot(v, v);
          if (!kNormedInput) {
            v *= ((device const float4*)norm)[k0 / 4 + q];
          }
        } else {
          v = bfloat_quad(((device const uint2*)x)[k0 / 4 + q]);
        }
      }
      stage_vector(xs, group_sums, q, v, lane);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
#pragma unroll
    for (int d = 0; d < DEPTH; d++) {
      const uint block = d * SIMDGROUPS + sg;
      if (k0 + block * kBlock < p.k) {
        uint4 parts[4];
        load_parts(parts, xs, block, lane);
        const float2 sums = float2(group_sums[block * 2], group_sums[block * 2 + 1]);
#pragma unroll
        for (int i = 0; i < TILES; i++) {
          multiply_block(acc[i], b[d][i], parts, sums, lane);
        }
      }
    }
  }
  square = simd_sum(square);
  if (lane == 0) {
    squares[sg] = square;
  }
#pragma unroll
  for (int i = 0; i < TILES; i++) {
    put_sums(partial + sg * (TILES * 16) + i * 16, acc[i], lane);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (tid < TILES * 16 && row0 + tid < rows) {
    float value = 0.0f;
    float total = 0.0f;
#pragma unroll
    for (uint i = 0; i < SIMDGROUPS; i++) {
      value += partial[i * (TILES * 16) + tid];
      total += squares[i];
    }
    if (NORM && !kNormedInput) {
      value *= rsqrt(total / float(p.k) + p.eps);
    }
    store_row(y, segment, row0 + tid, value, step, p);
  }
}

template <int TILES, int DEPTH>
[[kernel, max_total_threads_per_threadgroup(256)]] void gemv_norm_tiles(
    device const uchar* x [[buffer(0)]],       // [k] float: residual stream
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
    uint tid [[thread_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint sg [[simdgroup_index_in_threadgroup]]) {
  threadgroup uint4 xs[8 * DEPTH * kBlock / 8 * kParts];
  threadgroup float group_sums[8 * DEPTH * 2];
  threadgroup float partial[8 * TILES * 16];
  threadgroup float squares[8];
  uint segment = 0;
  uint start = 0;
  while (segment + 1 < p.segments && tg >= p.block_end[segment]) {
    start = p.block_end[segment];
    segment++;
  }
  const Matrix w = segment == 0   ? matrix(codes0, scales0, biases0)
                   : segment == 1 ? matrix(codes1, scales1, biases1)
                   : segment == 2 ? matrix(codes2, scales2, biases2)
                                  : matrix(codes3, scales3, biases3);
  device uchar* y = segment == 0 ? y0 : segment == 1 ? y1 : segment == 2 ? y2 : y3;
  gemv_tiles<true, TILES, DEPTH>(x, norm, w, segment, (tg - start) * TILES * 16, y, step, p, (threadgroup uint2*)xs, group_sums, partial, squares, tid,
                                 lane, sg);
}

template <int TILES, int DEPTH>
[[kernel, max_total_threads_per_threadgroup(256)]] void gemv_plain_tiles(
    device const uchar* x [[buffer(0)]],  // [k] bfloat
    device const uchar* codes0 [[buffer(1)]],
    device const uchar* scales0 [[buffer(2)]],
    device const uchar* biases0 [[buffer(3)]],
    device const uchar* codes1 [[buffer(4)]],
    device const uchar* scales1 [[buffer(5)]],
    device const uchar* biases1 [[buffer(6)]],
    device const uchar* codes2 [[buffer(7)]],
    device const uchar* scales2 [[buffer(8)]],
    device const uchar* biases2 [[buffer(9)]],
    device const uchar* codes3 [[buffer(10)]],
    device const uchar* scales3 [[buffer(11)]],
    device const uchar* biases3 [[buffer(12)]],
    device uchar* y0 [[buffer(13)]],
    device uchar* y1 [[buffer(14)]],
    device uchar* y2 [[buffer(15)]],
    device uchar* y3 [[buffer(16)]],
    device const StepState* step [[buffer(17)]],
    constant GemvParams& p [[buffer(18)]],
    uint tg [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint sg [[simdgroup_index_in_threadgroup]]) {
  threadgroup uint4 xs[8 * DEPTH * kBlock / 8 * kParts];
  threadgroup float group_sums[8 * DEPTH * 2];
  threadgroup float partial[8 * TILES * 16];
  threadgroup float squares[8];
  uint segment = 0;
  uint start = 0;
  while (segment + 1 < p.segments && tg >= p.block_end[segment]) {
    start = p.block_end[segment];
    segment++;
  }
  const Matrix w = segment == 0   ? matrix(codes0, scales0, biases0)
                   : segment == 1 ? matrix(codes1, scales1, biases1)
                   : segment == 2 ? matrix(codes2, scales2, biases2)
                                  : matrix(codes3, scales3, biases3);
  device uchar* y = segment == 0 ? y0 : segment == 1 ? y1 : segment == 2 ? y2 : y3;
  gemv_tiles<false, TILES, DEPTH>(x, (device const float*)x, w, segment, (tg - start) * TILES * 16, y, step, p, (threadgroup uint2*)xs, group_sums, partial,
                                  squares, tid, lane, sg);
}

template [[host_name("gemv_norm_tiles_t2_d2")]] [[kernel]]
decltype(gemv_norm_tiles<2, 2>) gemv_norm_tiles<2, 2>;
template [[host_name("gemv_norm_tiles_t1_d2")]] [[kernel]]
decltype(gemv_norm_tiles<1, 2>) gemv_norm_tiles<1, 2>;
#endif
