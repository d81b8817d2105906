// The products of gemm.metal, with the same arguments, for GPUs that copy into threadgroup memory beside their arithmetic; 4-bit weights.
//
// A threadgroup of WM * WN simdgroups makes BM rows of the output by BN columns; gemm_streamed.h has the main loop.
#include "include/gemm_streamed.h"

// Adds to a float output instead of overwriting it: the residual stream.
constant bool kAddToOutput [[function_constant(0)]];

// Grid (column tiles of all matrices, row tiles). Up to four matrices that read the same input share a dispatch.
template <int BM, int BN, int WM, int WN, int STAGES>
[[kernel, max_total_threads_per_threadgroup(WM * WN * 32)]] void gemm_streamed(
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
    constant GemmParams& p [[buffer(17)]],
    uint2 tg [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint sg [[simdgroup_index_in_threadgroup]]) {
  constexpr int TM = BM / WM / 16;
  constexpr int TN = BN / WN / 16;
  threadgroup uint4 xs[STAGES * BM * SLAB / 8];
  threadgroup uint4 ws[STAGES * BN];
  threadgroup uint fs[2 * BN];
  threadgroup uint sources[BM];

  uint segment = 0;
  uint start = 0;
  while (segment + 1 < p.segments && tg.x >= p.tile_end[segment]) {
    start = p.tile_end[segment];
    segment++;
  }
  const Matrix w = segment == 0   ? matrix(codes0, scales0, biases0)
                   : segment == 1 ? matrix(codes1, scales1, biases1)
                   : segment == 2 ? matrix(codes2, scales2, biases2)
                                  : matrix(codes3, scales3, biases3);
  const uint rows = p.rows[segment];
  const uint n0 = (tg.x - start) * BN;
  const uint m0 = tg.y * BM;
  for (uint r = tid; r < BM; r += WM * WN * 32) {
    sources[r] = m0 + r < p.m ? m0 + r : kNoRow;
  }
  const uint sm = (sg / WN) * (BM / WM);
  const uint sn = (sg % WN) * (BN / WN);
  mt::tile<float> acc[TN][TM];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  multiply_streamed<BM, BN, WM * WN * 32, STAGES, false>(acc, xs, ws, fs, x, sources, w, w, 0, n0, rows, p.k, sm, sn,
                                                         m0 + sm < p.m && n0 + sn < rows, tid);
  device uchar* y = segment == 0 ? y0 : segment == 1 ? y1 : segment == 2 ? y2 : y3;
  const bool as_float = ((p.float_outputs >> segment) & 1) != 0;
#pragma unroll
  for (int j = 0; j < TM; j++) {
#pragma unroll
    for (int e = 0; e < 8; e++) {
      const uint r = m0 + sm + j * 16 + mt::column(e);
#pragma unroll
      for (int i = 0; i < TN; i++) {
        const uint c = n0 + sn + i * 16 + mt::row(e);
        if (r < p.m && c < rows) {
          store_number(y, ulong(r) * p.y_stride[segment] + c, acc[i][j].get(e), as_float, kAddToOutput);
        }
      }
    }
  }
}

// y = silu(x * gate^T) * (x * up^T): BN / 2 columns of the output to a tile. Grid (column tiles, row tiles).
template <int BM, int BN, int WM, int WN, int STAGES>
[[kernel, max_total_threads_per_threadgroup(WM * WN * 32)]] void gemm_streamed_swiglu(
    device const bfloat* x [[buffer(0)]],  // [m, k]
    device const uchar* gate_codes [[buffer(1)]],
    device const uchar* gate_scales [[buffer(2)]],
    device const uchar* gate_biases [[buffer(3)]],
    device const uchar* up_codes [[buffer(4)]],
    device const uchar* up_scales [[buffer(5)]],
    device const uchar* up_biases [[buffer(6)]],
    device bfloat* y [[buffer(7)]],  // [m, rows]
    constant GemmParams& p [[buffer(8)]],
    uint2 tg [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint sg [[simdgroup_index_in_threadgroup]]) {
  constexpr int TM = BM / WM / 16;
  constexpr int TN = BN / WN / 16;
  threadgroup uint4 xs[STAGES * BM * SLAB / 8];
  threadgroup uint4 ws[STAGES * BN];
  threadgroup uint fs[2 * BN];
  threadgroup uint sources[BM];
  const uint n0 = tg.x * (BN / 2);
  const uint m0 = tg.y * BM;
  for (uint r = tid; r < BM; r += WM * WN * 32) {
    sources[r] = m0 + r < p.m ? m0 + r : kNoRow;
  }
  const uint sm = (sg / WN) * (BM / WM);
  const uint sn = (sg % WN) * (BN / WN);
  mt::tile<float> acc[TN][TM];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  multiply_streamed<BM, BN, WM * WN * 32, STAGES, true>(acc, xs, ws, fs, x, sources, matrix(gate_codes, gate_scales, gate_biases),
                                                        matrix(up_codes, up_scales, up_biases), 0, n0, p.rows[0], p.k, sm, sn,
                                                        m0 + sm < p.m && n0 + sn / 2 < p.rows[0], tid);
#pragma unroll
  for (int j = 0; j < TM; j++) {
#pragma unroll
    for (int e = 0; e < 8; e++) {
      const uint r = m0 + sm + j * 16 + mt::column(e);
#pragma unroll
      for (int i = 0; i < TN; i += 2) {
        const uint c = n0 + (sn + i * 16) / 2 + mt::row(e);
        if (r < p.m && c < p.rows[0]) {
          y[ulong(r) * p.y_stride[0] + c] = bfloat(silu(acc[i][j].get(e)) * acc[i + 1][j].get(e));
        }
      }
    }
  }
}

template [[host_name("gemm_q4_128x128_streamed")]] [[kernel]]
decltype(gemm_streamed<128, 128, 2, 2, 3>) gemm_streamed<128, 128, 2, 2, 3>;
template [[host_name("gemm_swiglu_q4_128x128_streamed")]] [[kernel]]
decltype(gemm_streamed_swiglu<128, 128, 2, 2, 3>) gemm_streamed_swiglu<128, 128, 2, 2, 3>;
template [[host_name("gemm_q4_64x128_streamed")]] [[kernel]]
decltype(gemm_streamed<64, 128, 1, 4, 4>) gemm_streamed<64, 128, 1, 4, 4>;
template [[host_name("gemm_swiglu_q4_64x128_streamed")]] [[kernel]]
decltype(gemm_streamed_swiglu<64, 128, 1, 4, 4>) gemm_streamed_swiglu<64, 128, 1, 4, 4>;
template [[host_name("gemm_q4_32x128_streamed")]] [[kernel]]
decltype(gemm_streamed<32, 128, 1, 4, 6>) gemm_streamed<32, 128, 1, 4, 6>;
template [[host_name("gemm_swiglu_q4_32x128_streamed")]] [[kernel]]
decltype(gemm_streamed_swiglu<32, 128, 1, 4, 6>) gemm_streamed_swiglu<32, 128, 1, 4, 6>;
