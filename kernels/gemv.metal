// Products of packed matrices with one token (or a few): the projections of decode, the router, lm_head.
//
// A simdgroup makes ROWS output rows for M tokens; a lane takes 16 columns of each row at a time and keeps the codes packed in registers until they
// are multiplied. Up to four matrices that read the same input share a dispatch. The grid is (row blocks / simdgroups, tokens / M).
#include "include/early.h"
#include "include/gemv.h"

// Adds to the output instead of overwriting it: the residual stream. Then the output is float.
constant bool kAddToOutput [[function_constant(0)]];

// gemv_norm: x is normed already (the norm was a dispatch of its own).
constant bool kNormedInput [[function_constant(1)]];

// y = W * RMS(x): the norm is folded in. x * weight is staged once a threadgroup, and the root mean square multiplies the sums at the end, so the
// statistics cost no pass and no barrier of their own.
template <int BITS, int ROWS, int M>
[[kernel, max_total_threads_per_threadgroup(256)]] void gemv_norm(
    device const float* x [[buffer(0)]],       // [m, k] residual stream
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
    uint2 tg [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint2 threads [[threads_per_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint sg [[simdgroup_index_in_threadgroup]],
    uint nsg [[simdgroups_per_threadgroup]]) {
  constexpr int UNITS = Packed<BITS>::units;
  constexpr uint TILE = 4096 / M;  // columns staged at a time: 16 KiB, which leaves room for a second threadgroup
  threadgroup float4 xs[1024];
  threadgroup float squares[M * 8];

  const GemvTarget t = gemv_target(tg.x * nsg + sg, ROWS, p);
  const uint token0 = tg.y * M;
  const bool active = t.row < t.rows && tg.x * nsg + sg < p.block_end[p.segments - 1];
  const Matrix w = t.segment == 0   ? matrix(codes0, scales0, biases0)
                   : t.segment == 1 ? matrix(codes1, scales1, biases1)
                   : t.segment == 2 ? matrix(codes2, scales2, biases2)
                                    : matrix(codes3, scales3, biases3);

  float square[M] = {0.0f};
  float acc[ROWS][M] = {{0.0f}};
  for (uint k0 = 0; k0 < p.k; k0 += TILE) {
    const uint width = min(TILE, p.k - k0);
    if (k0 > 0) {
      threadgroup_barrier(mem_flags::mem_threadgroup);
    }
#pragma unroll
    for (int m = 0; m < M; m++) {
      device const float4* row = (device const float4*)(x + ulong(min(token0 + m, p.m - 1)) * p.k + k0);
      device const float4* weight = (device const float4*)(norm + k0);
      for (uint q = tid; q < width / 4; q += threads.x) {
        const float4 v = row[q];
        square[m] += dot(v, v);
        xs[m * (TILE / 4) + staged_quad(q)] = kNormedInput ? v : v * weight[q];
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (active) {
      for (uint unit = lane * UNITS; unit < width / 16; unit += 32 * UNITS) {
        typename Packed<BITS>::Unit u[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
          Packed<BITS>::load(u[r], w, min(t.row + r, t.rows - 1), k0 + unit * 16, p.k, p.encoding[t.segment]);
        }
#pragma unroll
        for (int m = 0; m < M; m++) {
          float4 v[UNITS * 4];
          read_staged<UNITS>(xs + m * (TILE / 4), unit, v);
          const float xsum = sum_quads<UNITS * 4>(v);
#pragma unroll
          for (int r = 0; r < ROWS; r++) {
            acc[r][m] += Packed<BITS>::dot_x(u[r], v, xsum);
          }
        }
      }
    }
  }
#pragma unroll
  for (int m = 0; m < M; m++) {
    const float s = simd_sum(square[m]);
    if (lane == 0) {
      squares[m * 8 + sg] = s;
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (!active) {
    return;
  }
  device uchar* y = t.segment == 0 ? y0 : t.segment == 1 ? y1 : t.segment == 2 ? y2 : y3;
#pragma unroll
  for (int m = 0; m < M; m++) {
    float total = 0.0f;
    for (uint i = 0; i < nsg; i++) {
      total += squares[m * 8 + i];
    }
    const float inverse = kNormedInput ? 1.0f : rsqrt(total / float(p.k) + p.eps);
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
      const float value = simd_sum(acc[r][m]) * inverse;
      if (lane == 0 && t.row + r < t.rows && token0 + m < p.m) {
        gemv_store(y, t, t.row + r, token0 + m, value, kAddToOutput, step, p);
      }
    }
  }
}

// y = W * x with bfloat activations, which are small enough to be read straight from the cache.
template <int BITS, int ROWS, int M>
[[kernel, max_total_threads_per_threadgroup(256)]] void gemv(
    device const bfloat* x [[buffer(0)]],  // [m, k]
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
    uint2 tg [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]],
    uint sg [[simdgroup_index_in_threadgroup]],
    uint nsg [[simdgroups_per_threadgroup]]) {
  constexpr int UNITS = Packed<BITS>::units;
  if (tg.x * nsg + sg >= p.block_end[p.segments - 1]) {
    return;  // the whole simdgroup leaves, and no barrier follows
  }
  const GemvTarget t = gemv_target(tg.x * nsg + sg, ROWS, p);
  const uint token0 = tg.y * M;
  const Matrix w = t.segment == 0   ? matrix(codes0, scales0, biases0)
                   : t.segment == 1 ? matrix(codes1, scales1, biases1)
                   : t.segment == 2 ? matrix(codes2, scales2, biases2)
                                    : matrix(codes3, scales3, biases3);

  float acc[ROWS][M] = {{0.0f}};
  for (uint unit = lane * UNITS; unit < p.k / 16; unit += 32 * UNITS) {
    typename Packed<BITS>::Unit u[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
      Packed<BITS>::load(u[r], w, min(t.row + r, t.rows - 1), unit * 16, p.k, p.encoding[t.segment]);
    }
#pragma unroll
    for (int m = 0; m < M; m++) {
      float4 v[UNITS * 4];
      read_bfloats<UNITS>(x + ulong(min(token0 + m, p.m - 1)) * p.k + unit * 16, v);
      const float xsum = sum_quads<UNITS * 4>(v);
#pragma unroll
      for (int r = 0; r < ROWS; r++) {
        acc[r][m] += Packed<BITS>::dot_x(u[r], v, xsum);
      }
    }
  }
  device uchar* y = t.segment == 0 ? y0 : t.segment == 1 ? y1 : t.segment == 2 ? y2 : y3;
#pragma unroll
  for (int m = 0; m < M; m++) {
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
      const float value = simd_sum(acc[r][m]);
      if (lane == 0 && t.row + r < t.rows && token0 + m < p.m) {
        gemv_store(y, t, t.row + r, token0 + m, value, kAddToOutput, step, p);
      }
    }
  }
}

// gemv_norm for one token: all of a lane's codes, DEPTH units of each row, are on their way before the row is staged.
template <int BITS, int ROWS, int DEPTH>
[[kernel, max_total_threads_per_threadgroup(256)]] void gemv_norm_deep(
    device const float* x [[buffer(0)]],       // [m, k] residual stream
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
    uint2 tg [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint2 threads [[threads_per_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint sg [[simdgroup_index_in_threadgroup]],
    uint nsg [[simdgroups_per_threadgroup]]) {
  constexpr int QUADS = Wide<BITS>::quads;
  constexpr uint COLUMNS = Wide<BITS>::columns;
  constexpr uint TILE = 32 * DEPTH * COLUMNS;
  threadgroup float4 xs[TILE / 4];
  threadgroup float squares[8];

  const GemvTarget t = gemv_target(tg.x * nsg + sg, ROWS, p);
  const bool active = t.row < t.rows && tg.x * nsg + sg < p.block_end[p.segments - 1];
  const Matrix w = t.segment == 0   ? matrix(codes0, scales0, biases0)
                   : t.segment == 1 ? matrix(codes1, scales1, biases1)
                   : t.segment == 2 ? matrix(codes2, scales2, biases2)
                                    : matrix(codes3, scales3, biases3);
  float square = 0.0f;
  float acc[ROWS] = {0.0f};
  for (uint k0 = 0; k0 < p.k; k0 += TILE) {
    const uint width = min(TILE, p.k - k0);
    Wide<BITS> u[DEPTH][ROWS];
    if (active) {
#pragma unroll
      for (int d = 0; d < DEPTH; d++) {
        if (k0 + (d * 32 + lane) * COLUMNS < p.k) {
#pragma unroll
          for (int r = 0; r < ROWS; r++) {
            u[d][r].load(w, min(t.row + r, t.rows - 1), k0 / COLUMNS + d * 32 + lane, p.k);
          }
        }
      }
    }
    if (k0 > 0) {
      threadgroup_barrier(mem_flags::mem_threadgroup);
    } else {
      wait_for_earlier_kernels();
    }
    device const float4* row = (device const float4*)(x + k0);
    device const float4* weight = (device const float4*)(norm + k0);
#pragma unroll 2
    for (uint q = tid; q < width / 4; q += threads.x) {
      float4 v = row[q];
      if (!kNormedInput) {
        square += dot(v, v);
        v *= weight[q];
      }
      xs[wide_quad<QUADS>(q)] = Wide<BITS>::scale_for_codes(v);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (active) {
#pragma unroll
      for (int d = 0; d < DEPTH; d++) {
        if (k0 + (d * 32 + lane) * COLUMNS < p.k) {
          float4 v[QUADS];
#pragma unroll
          for (int j = 0; j < QUADS; j++) {
            v[j] = xs[d * 32 * QUADS + j * 32 + lane];
          }
          const float xsum = Wide<BITS>::sum(v);
#pragma unroll
          for (int r = 0; r < ROWS; r++) {
            acc[r] += u[d][r].dot_x(v, xsum);
          }
        }
      }
    }
  }
  float inverse = 1.0f;
  if (!kNormedInput) {
    const float s = simd_sum(square);
    if (lane == 0) {
      squares[sg] = s;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    float total = 0.0f;
    for (uint i = 0; i < nsg; i++) {
      total += squares[i];
    }
    inverse = rsqrt(total / float(p.k) + p.eps);
  }
  if (!active) {
    return;
  }
  device uchar* y = t.segment == 0 ? y0 : t.segment == 1 ? y1 : t.segment == 2 ? y2 : y3;
#pragma unroll
  for (int r = 0; r < ROWS; r++) {
    const float value = simd_sum(acc[r]) * inverse;
    if (lane == 0 && t.row + r < t.rows) {
      gemv_store(y, t, t.row + r, 0, value, kAddToOutput, step, p);
    }
  }
}

// gemv for one token: DEPTH units of each row are on their way before the first is used.
template <int BITS, int ROWS, int DEPTH>
[[kernel, max_total_threads_per_threadgroup(256)]] void gemv_deep(
    device const bfloat* x [[buffer(0)]],  // [m, k]
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
    uint2 tg [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]],
    uint sg [[simdgroup_index_in_threadgroup]],
    uint nsg [[simdgroups_per_threadgroup]]) {
  constexpr int QUADS = Wide<BITS>::quads;
  constexpr uint COLUMNS = Wide<BITS>::columns;
  if (tg.x * nsg + sg >= p.block_end[p.segments - 1]) {
    wait_for_earlier_kernels();
    return;  // the whole simdgroup leaves, and no barrier follows
  }
  const GemvTarget t = gemv_target(tg.x * nsg + sg, ROWS, p);
  const Matrix w = t.segment == 0   ? matrix(codes0, scales0, biases0)
                   : t.segment == 1 ? matrix(codes1, scales1, biases1)
                   : t.segment == 2 ? matrix(codes2, scales2, biases2)
                                    : matrix(codes3, scales3, biases3);
  float acc[ROWS] = {0.0f};
  for (uint first = 0; first * COLUMNS < p.k; first += 32 * DEPTH) {
    Wide<BITS> u[DEPTH][ROWS];
#pragma unroll
    for (int d = 0; d < DEPTH; d++) {
      const uint unit = first + d * 32 + lane;
      if (unit * COLUMNS < p.k) {
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
          u[d][r].load(w, min(t.row + r, t.rows - 1), unit, p.k);
        }
      }
    }
    if (first == 0) {
      wait_for_earlier_kernels();
    }
#pragma unroll
    for (int d = 0; d < DEPTH; d++) {
      const uint unit = first + d * 32 + lane;
      if (unit * COLUMNS < p.k) {
        float4 v[QUADS];
        read_bfloats<QUADS / 4>(x + unit * COLUMNS, v);
#pragma unroll
        for (int j = 0; j < QUADS; j++) {
          v[j] = Wide<BITS>::scale_for_codes(v[j]);
        }
        const float xsum = Wide<BITS>::sum(v);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
          acc[r] += u[d][r].dot_x(v, xsum);
        }
      }
    }
  }
  device uchar* y = t.segment == 0 ? y0 : t.segment == 1 ? y1 : t.segment == 2 ? y2 : y3;
#pragma unroll
  for (int r = 0; r < ROWS; r++) {
    const float value = simd_sum(acc[r]);
    if (lane == 0 && t.row + r < t.rows) {
      gemv_store(y, t, t.row + r, 0, value, kAddToOutput, step, p);
    }
  }
}

template [[host_name("gemv_norm_q4_r4_m1")]] [[kernel]]
decltype(gemv_norm<4, 4, 1>) gemv_norm<4, 4, 1>;
template [[host_name("gemv_q4_r4_m1")]] [[kernel]]
decltype(gemv<4, 4, 1>) gemv<4, 4, 1>;
template [[host_name("gemv_norm_q4_r2_m1")]] [[kernel]]
decltype(gemv_norm<4, 2, 1>) gemv_norm<4, 2, 1>;
template [[host_name("gemv_q4_r2_m1")]] [[kernel]]
decltype(gemv<4, 2, 1>) gemv<4, 2, 1>;
template [[host_name("gemv_norm_q4_r4_m4")]] [[kernel]]
decltype(gemv_norm<4, 4, 4>) gemv_norm<4, 4, 4>;
template [[host_name("gemv_norm_q8_r4_m1")]] [[kernel]]
decltype(gemv_norm<8, 4, 1>) gemv_norm<8, 4, 1>;
template [[host_name("gemv_q8_r4_m1")]] [[kernel]]
decltype(gemv<8, 4, 1>) gemv<8, 4, 1>;
template [[host_name("gemv_norm_q8_r2_m1")]] [[kernel]]
decltype(gemv_norm<8, 2, 1>) gemv_norm<8, 2, 1>;
template [[host_name("gemv_q8_r2_m1")]] [[kernel]]
decltype(gemv<8, 2, 1>) gemv<8, 2, 1>;
template [[host_name("gemv_norm_q8_r4_m4")]] [[kernel]]
decltype(gemv_norm<8, 4, 4>) gemv_norm<8, 4, 4>;
template [[host_name("gemv_norm_any_r2_m1")]] [[kernel]]
decltype(gemv_norm<0, 2, 1>) gemv_norm<0, 2, 1>;
template [[host_name("gemv_any_r2_m1")]] [[kernel]]
decltype(gemv<0, 2, 1>) gemv<0, 2, 1>;
template [[host_name("gemv_norm_any_r2_m4")]] [[kernel]]
decltype(gemv_norm<0, 2, 4>) gemv_norm<0, 2, 4>;
template [[host_name("gemv_norm_deep_q8_r1_d4")]] [[kernel]]
decltype(gemv_norm_deep<8, 1, 4>) gemv_norm_deep<8, 1, 4>;
template [[host_name("gemv_deep_q4_r2_d4")]] [[kernel]]
decltype(gemv_deep<4, 2, 4>) gemv_deep<4, 2, 4>;
template [[host_name("gemv_deep_q8_r1_d4")]] [[kernel]]
decltype(gemv_deep<8, 1, 4>) gemv_deep<8, 1, 4>;
