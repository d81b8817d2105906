// y = RMS(x) * W^T in float for the rows of a chunk: the router's product, which must not lose what bfloat loses. 8-bit weights; the arguments of gemv_norm.
//
// A threadgroup makes 128 rows by 64 columns, a thread 8 by 8. A sum runs along k in one order whatever the rows are, and the root mean square multiplies it
// at the end.
#include "include/weights.h"

// x is normed already (the norm was a dispatch of its own).
constant bool kNormedInput [[function_constant(1)]];

// Grid (column tiles of all matrices, row tiles).
[[kernel, max_total_threads_per_threadgroup(128)]] void router_q8(
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
    device float* y0 [[buffer(14)]],
    device float* y1 [[buffer(15)]],
    device float* y2 [[buffer(16)]],
    device float* y3 [[buffer(17)]],
    device const StepState* step [[buffer(18)]],
    constant GemvParams& p [[buffer(19)]],
    uint2 tg [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]]) {
  constexpr uint BM = 128;
  constexpr uint BN = 64;
  constexpr int DEPTH = 16;  // columns staged at a time: a unit of packed codes
  threadgroup float4 xs[DEPTH][BM / 4 + 1];
  threadgroup float4 ws[DEPTH][BN / 4 + 1];
  threadgroup float inverses[BM];

  uint segment = 0;
  uint start = 0;
  while (segment + 1 < p.segments && tg.x >= p.block_end[segment]) {
    start = p.block_end[segment];
    segment++;
  }
  const Matrix w = segment == 0   ? matrix(codes0, scales0, biases0)
                   : segment == 1 ? matrix(codes1, scales1, biases1)
                   : segment == 2 ? matrix(codes2, scales2, biases2)
                                  : matrix(codes3, scales3, biases3);
  const uint rows = p.rows[segment];
  const uint n0 = (tg.x - start) * BN;
  const uint m0 = tg.y * BM;
  // a thread stages one row of the input, and half of them one of the weights
  device const float4* my_x = (device const float4*)(x + ulong(min(m0 + tid, p.m - 1)) * p.k);
  const uint my_row = min(n0 + tid % BN, rows - 1);
  const uint row = tid / 8 * 8;
  const uint column = tid % 8 * 8;
  float acc[8][8];
#pragma unroll
  for (int i = 0; i < 8; i++) {
#pragma unroll
    for (int j = 0; j < 8; j++) {
      acc[i][j] = 0.0f;
    }
  }
  float square = 0.0f;
  float4 next_x[DEPTH / 4];
  Packed<8>::Unit next_w;
#pragma unroll
  for (int i = 0; i < DEPTH / 4; i++) {
    next_x[i] = my_x[i];
  }
  Packed<8>::load(next_w, w, my_row, 0, p.k, p.encoding[segment]);
  for (uint k0 = 0; k0 < p.k; k0 += DEPTH) {
#pragma unroll
    for (int i = 0; i < DEPTH / 4; i++) {
      const float4 v = next_x[i];
      square += dot(v, v);
      const float4 scaled = kNormedInput ? v : v * ((device const float4*)norm)[k0 / 4 + i];
#pragma unroll
      for (int c = 0; c < 4; c++) {
        ((threadgroup float*)xs[i * 4 + c])[tid] = scaled[c];
      }
    }
    if (tid < BN) {
      float4 v[4];
      Packed<8>::expand(next_w, v);
#pragma unroll
      for (int i = 0; i < 4; i++) {
#pragma unroll
        for (int c = 0; c < 4; c++) {
          ((threadgroup float*)ws[i * 4 + c])[tid] = v[i][c];
        }
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (k0 + DEPTH < p.k) {
#pragma unroll
      for (int i = 0; i < DEPTH / 4; i++) {
        next_x[i] = my_x[(k0 + DEPTH) / 4 + i];
      }
      Packed<8>::load(next_w, w, my_row, k0 + DEPTH, p.k, p.encoding[segment]);
    }
#pragma unroll
    for (int k = 0; k < DEPTH; k++) {
      const float4 a[2] = {xs[k][row / 4], xs[k][row / 4 + 1]};
      const float4 b[2] = {ws[k][column / 4], ws[k][column / 4 + 1]};
#pragma unroll
      for (int i = 0; i < 8; i++) {
#pragma unroll
        for (int j = 0; j < 8; j++) {
          acc[i][j] = fma(a[i / 4][i % 4], b[j / 4][j % 4], acc[i][j]);
        }
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  inverses[tid] = kNormedInput ? 1.0f : rsqrt(square / float(p.k) + p.eps);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  device float* y = segment == 0 ? y0 : segment == 1 ? y1 : segment == 2 ? y2 : y3;
#pragma unroll
  for (int i = 0; i < 8; i++) {
    const uint r = m0 + row + i;
    if (r < p.m) {
      const float inverse = inverses[row + i];
#pragma unroll
      for (int j = 0; j < 8; j++) {
        const uint c = n0 + column + j;
        if (c < rows) {
          y[ulong(r) * p.y_stride[segment] + c] = acc[i][j] * inverse;
        }
      }
    }
  }
}
