// The products of gemm.metal, with the same arguments, for GPUs whose simdgroups multiply by fours; 4-bit weights, k a multiple of 128.
//
// A threadgroup of two warpgroups makes T rows of the output by 128 columns; gemm_warpgroup.h has the main loop.
#include "include/gemm_warpgroup.h"

// Adds to a float output instead of overwriting it: the residual stream.
constant bool kAddToOutput [[function_constant(0)]];

// Rows [first, first + T) of the input that are there.
template <int T>
METAL_FUNC void rows_in_order(threadgroup uint* sources, uint first, uint m, uint tid) {
  for (uint r = tid; r < T; r += WARPGROUP_THREADS) {
    sources[r] = first + r < m ? first + r : kNoRow;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
}

// Grid (column tiles of all matrices, row tiles). Up to four matrices that read the same input share a dispatch.
template <int T, int STAGES>
[[kernel, max_total_threads_per_threadgroup(256)]] void gemm_warpgroup(
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
    threadgroup uint4* memory [[threadgroup(0)]],  // the ring, then the rows of the input, [T]
    uint2 tg [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint sg [[simdgroup_index_in_threadgroup]]) {
  threadgroup uint* sources = (threadgroup uint*)(memory + STAGES * WarpgroupStream<T, STAGES>::PLACE);
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
  const uint n0 = (tg.x - start) * WARPGROUP_WEIGHTS;
  const uint m0 = tg.y * T;
  rows_in_order<T>(sources, m0, p.m, tid);
  mt::tile<float> acc[T / 16];
  multiply_warpgroups<T, STAGES, false>(acc, memory, x, sources, w, w, 0, n0, rows, p.k, tid, sg);
  device uchar* y = segment == 0 ? y0 : segment == 1 ? y1 : segment == 2 ? y2 : y3;
  const bool as_float = ((p.float_outputs >> segment) & 1) != 0;
  threadgroup float* sums = (threadgroup float*)memory;
  put_sums<T>(acc, sums, sg);
  const uint c = n0 + lane * 4;
  const uint there = c < rows ? rows - c : 0;
  const bool whole = there >= 4 && p.y_stride[segment] % 4 == 0;
  for (uint t = sg; t < min(uint(T), p.m - m0); t += 8) {
    const float4 v = *(threadgroup const float4*)(sums + t * SUM_PITCH + lane * 4);
    store_four(y, ulong(m0 + t) * p.y_stride[segment] + c, v, whole, there, as_float, kAddToOutput);
  }
}

// y = silu(x * gate^T) * (x * up^T), 64 columns to a threadgroup. Grid (column tiles, row tiles).
template <int T, int STAGES>
[[kernel, max_total_threads_per_threadgroup(256)]] void gemm_warpgroup_swiglu(
    device const bfloat* x [[buffer(0)]],  // [m, k]
    device const uchar* gate_codes [[buffer(1)]],
    device const uchar* gate_scales [[buffer(2)]],
    device const uchar* gate_biases [[buffer(3)]],
    device const uchar* up_codes [[buffer(4)]],
    device const uchar* up_scales [[buffer(5)]],
    device const uchar* up_biases [[buffer(6)]],
    device bfloat* y [[buffer(7)]],  // [m, rows]
    constant GemmParams& p [[buffer(8)]],
    threadgroup uint4* memory [[threadgroup(0)]],
    uint2 tg [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint sg [[simdgroup_index_in_threadgroup]]) {
  threadgroup uint* sources = (threadgroup uint*)(memory + STAGES * WarpgroupStream<T, STAGES>::PLACE);
  const uint n0 = tg.x * (WARPGROUP_WEIGHTS / 2);
  const uint m0 = tg.y * T;
  rows_in_order<T>(sources, m0, p.m, tid);
  mt::tile<float> acc[T / 16];
  multiply_warpgroups<T, STAGES, true>(acc, memory, x, sources, matrix(gate_codes, gate_scales, gate_biases), matrix(up_codes, up_scales, up_biases), 0, n0,
                                       p.rows[0], p.k, tid, sg);
  threadgroup float* sums = (threadgroup float*)memory;
  put_sums<T>(acc, sums, sg);
  const uint c = n0 + lane % 16 * 4;
  const uint there = c < p.rows[0] ? p.rows[0] - c : 0;
  const bool whole = there >= 4 && p.y_stride[0] % 4 == 0;
  for (uint t = sg * 2 + lane / 16; t < min(uint(T), p.m - m0); t += 16) {
    store_four((device uchar*)y, ulong(m0 + t) * p.y_stride[0] + c, joined(sums + t * SUM_PITCH, lane % 16 * 4), whole, there, false, false);
  }
}

template [[host_name("gemm_q4_256x128_warpgroup")]] [[kernel]]
decltype(gemm_warpgroup<256, 6>) gemm_warpgroup<256, 6>;
template [[host_name("gemm_q4_128x128_warpgroup")]] [[kernel]]
decltype(gemm_warpgroup<128, 5>) gemm_warpgroup<128, 5>;
template [[host_name("gemm_q4_64x128_warpgroup")]] [[kernel]]
decltype(gemm_warpgroup<64, 6>) gemm_warpgroup<64, 6>;
template [[host_name("gemm_q4_32x128_warpgroup")]] [[kernel]]
decltype(gemm_warpgroup<32, 6>) gemm_warpgroup<32, 6>;
template [[host_name("gemm_swiglu_q4_256x128_warpgroup")]] [[kernel]]
decltype(gemm_warpgroup_swiglu<256, 6>) gemm_warpgroup_swiglu<256, 6>;
template [[host_name("gemm_swiglu_q4_128x128_warpgroup")]] [[kernel]]
decltype(gemm_warpgroup_swiglu<128, 5>) gemm_warpgroup_swiglu<128, 5>;
template [[host_name("gemm_swiglu_q4_64x128_warpgroup")]] [[kernel]]
decltype(gemm_warpgroup_swiglu<64, 6>) gemm_warpgroup_swiglu<64, 6>;
template [[host_name("gemm_swiglu_q4_32x128_warpgroup")]] [[kernel]]
decltype(gemm_warpgroup_swiglu<32, 6>) gemm_warpgroup_swiglu<32, 6>;
