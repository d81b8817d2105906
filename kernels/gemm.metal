// y[m, n] = x[m, k] * W[n, k]^T for a prefill chunk.
//
// A threadgroup of WM * WN simdgroups makes a BM x BN tile; the weights are expanded to bfloat in threadgroup memory, 32 columns at a time, and never
// anywhere else. Sums are float.
#include "include/gemm.h"

// Adds to a float output instead of overwriting it: the residual stream.
constant bool kAddToOutput [[function_constant(0)]];

// Grid (column tiles of all matrices, row tiles). Up to four matrices that read the same input share a dispatch.
template <int BITS, int BM, int BN, int WM, int WN>
[[kernel, max_total_threads_per_threadgroup(WM * WN * 32)]] void gemm(
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
  constexpr int THREADS = WM * WN * 32;
  constexpr int TM = BM / WM / 16;
  constexpr int TN = BN / WN / 16;
  static_assert(TM >= 1 && TN >= 2 && TN % 2 == 0, "a simdgroup multiplies one row tile by pairs of column tiles");
  alignas(16) threadgroup bfloat xs[BM * LD];
  alignas(16) threadgroup bfloat ws[BN * LD];
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
  const uint n0 = (tg.x - start) * BN;
  const uint m0 = tg.y * BM;
  for (uint r = tid; r < BM; r += THREADS) {
    sources[r] = m0 + r < p.m ? m0 + r : kNoRow;
  }
  const uint sm = (sg / WN) * (BM / WM);
  const uint sn = (sg % WN) * (BN / WN);
  mt::tile<float> acc[TM][TN];
#pragma unroll
  for (int i = 0; i < TM; i++) {
#pragma unroll
    for (int j = 0; j < TN; j++) {
      mt::fill(acc[i][j], 0.0f);
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint k0 = 0; k0 < p.k; k0 += BK) {
    stage_rows<BM, THREADS>(xs, x, sources, p.k, k0, tid);
    stage_weights<BITS, BN, THREADS, false>(ws, w, w, 0, n0, p.rows[segment], p.k, k0, p.encoding[segment], p.encoding[segment], tid);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    multiply_staged<TM, TN>(acc, xs + sm * LD, ws + sn * LD);
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  device uchar* y = segment == 0 ? y0 : segment == 1 ? y1 : segment == 2 ? y2 : y3;
  const bool as_float = ((p.float_outputs >> segment) & 1) != 0;
#pragma unroll
  for (int i = 0; i < TM; i++) {
#pragma unroll
    for (int j = 0; j < TN; j++) {
#pragma unroll
      for (int e = 0; e < 8; e++) {
        const uint r = m0 + sm + i * 16 + mt::row(e);
        const uint c = n0 + sn + j * 16 + mt::column(e);
        if (r < p.m && c < p.rows[segment]) {
          store_number(y, ulong(r) * p.y_stride[segment] + c, acc[i][j].get(e), as_float, kAddToOutput);
        }
      }
    }
  }
}

// y = silu(x * gate^T) * (x * up^T): BN / 2 columns of the output to a tile. Grid (column tiles, row tiles).
template <int BITS, int BM, int BN, int WM, int WN>
[[kernel, max_total_threads_per_threadgroup(WM * WN * 32)]] void gemm_swiglu(
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
  constexpr int THREADS = WM * WN * 32;
  constexpr int TM = BM / WM / 16;
  constexpr int TN = BN / WN / 16;
  alignas(16) threadgroup bfloat xs[BM * LD];
  alignas(16) threadgroup bfloat ws[BN * LD];
  threadgroup uint sources[BM];
  const uint n0 = tg.x * (BN / 2);
  const uint m0 = tg.y * BM;
  for (uint r = tid; r < BM; r += THREADS) {
    sources[r] = m0 + r < p.m ? m0 + r : kNoRow;
  }
  const uint sm = (sg / WN) * (BM / WM);
  const uint sn = (sg % WN) * (BN / WN);
  mt::tile<float> acc[TM][TN];
#pragma unroll
  for (int i = 0; i < TM; i++) {
#pragma unroll
    for (int j = 0; j < TN; j++) {
      mt::fill(acc[i][j], 0.0f);
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  const Matrix gate = matrix(gate_codes, gate_scales, gate_biases);
  const Matrix up = matrix(up_codes, up_scales, up_biases);
  for (uint k0 = 0; k0 < p.k; k0 += BK) {
    stage_rows<BM, THREADS>(xs, x, sources, p.k, k0, tid);
    stage_weights<BITS, BN, THREADS, true>(ws, gate, up, 0, n0, p.rows[0], p.k, k0, p.encoding[0], p.encoding[1], tid);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    multiply_staged<TM, TN>(acc, xs + sm * LD, ws + sn * LD);
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
#pragma unroll
  for (int i = 0; i < TM; i++) {
#pragma unroll
    for (int j = 0; j < TN; j += 2) {
#pragma unroll
      for (int e = 0; e < 8; e++) {
        const uint r = m0 + sm + i * 16 + mt::row(e);
        const uint c = n0 + (sn + j * 16) / 2 + mt::column(e);
        if (r < p.m && c < p.rows[0]) {
          y[ulong(r) * p.y_stride[0] + c] = bfloat(silu(acc[i][j].get(e)) * acc[i][j + 1].get(e));
        }
      }
    }
  }
}

template [[host_name("gemm_q4_128x128")]] [[kernel]]
decltype(gemm<4, 128, 128, 2, 4>) gemm<4, 128, 128, 2, 4>;
template [[host_name("gemm_swiglu_q4_128x128")]] [[kernel]]
decltype(gemm_swiglu<4, 128, 128, 2, 4>) gemm_swiglu<4, 128, 128, 2, 4>;
template [[host_name("gemm_q4_64x64")]] [[kernel]]
decltype(gemm<4, 64, 64, 2, 2>) gemm<4, 64, 64, 2, 2>;
template [[host_name("gemm_swiglu_q4_64x64")]] [[kernel]]
decltype(gemm_swiglu<4, 64, 64, 2, 2>) gemm_swiglu<4, 64, 64, 2, 2>;
template [[host_name("gemm_q4_16x64")]] [[kernel]]
decltype(gemm<4, 16, 64, 1, 2>) gemm<4, 16, 64, 1, 2>;
template [[host_name("gemm_swiglu_q4_16x64")]] [[kernel]]
decltype(gemm_swiglu<4, 16, 64, 1, 2>) gemm_swiglu<4, 16, 64, 1, 2>;
template [[host_name("gemm_q8_128x128")]] [[kernel]]
decltype(gemm<8, 128, 128, 2, 4>) gemm<8, 128, 128, 2, 4>;
template [[host_name("gemm_swiglu_q8_128x128")]] [[kernel]]
decltype(gemm_swiglu<8, 128, 128, 2, 4>) gemm_swiglu<8, 128, 128, 2, 4>;
template [[host_name("gemm_q8_64x64")]] [[kernel]]
decltype(gemm<8, 64, 64, 2, 2>) gemm<8, 64, 64, 2, 2>;
template [[host_name("gemm_swiglu_q8_64x64")]] [[kernel]]
decltype(gemm_swiglu<8, 64, 64, 2, 2>) gemm_swiglu<8, 64, 64, 2, 2>;
template [[host_name("gemm_bf16_64x64")]] [[kernel]]
decltype(gemm<16, 64, 64, 2, 2>) gemm<16, 64, 64, 2, 2>;
template [[host_name("gemm_swiglu_bf16_64x64")]] [[kernel]]
decltype(gemm_swiglu<16, 64, 64, 2, 2>) gemm_swiglu<16, 64, 64, 2, 2>;
template [[host_name("gemm_any_64x64")]] [[kernel]]
decltype(gemm<0, 64, 64, 2, 2>) gemm<0, 64, 64, 2, 2>;
template [[host_name("gemm_swiglu_any_64x64")]] [[kernel]]
decltype(gemm_swiglu<0, 64, 64, 2, 2>) gemm_swiglu<0, 64, 64, 2, 2>;
