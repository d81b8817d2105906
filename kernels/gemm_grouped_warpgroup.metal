// The product of gemm_grouped.metal, with the same arguments, for GPUs whose simdgroups multiply by fours; 4-bit weights, k a multiple of 128.
#include "include/gemm_warpgroup.h"

// The input row is that of the sorted entry (divided by row_divisor), else the position in the sorted list.
constant bool kGatherRows [[function_constant(0)]];
// The output row is the sorted entry, else the position in the sorted list.
constant bool kScatterRows [[function_constant(1)]];
// The output is float, else bfloat.
constant bool kFloatOutput [[function_constant(2)]];

// One block of the map: up to T rows of the sorted list that take the same expert. Grid (column tiles, blocks at most); blocks past the count leave.
template <int T, int STAGES, bool SWIGLU>
[[kernel, max_total_threads_per_threadgroup(256)]] void gemm_grouped_warpgroup(
    device const bfloat* x [[buffer(0)]],     // [rows, k]
    device const uchar* codes [[buffer(1)]],  // [experts, rows[0], k]: gate, or down
    device const uchar* scales [[buffer(2)]],
    device const uchar* biases [[buffer(3)]],
    device const uchar* up_codes [[buffer(4)]],  // with SWIGLU
    device const uchar* up_scales [[buffer(5)]],
    device const uchar* up_biases [[buffer(6)]],
    device const uint* sorted [[buffer(7)]],       // entries by expert
    device const uint* blocks [[buffer(8)]],       // [max_blocks, 3]: expert, first sorted row, rows
    device const uint* block_count [[buffer(9)]],  // [1]
    device uchar* y [[buffer(10)]],
    constant GemmParams& p [[buffer(11)]],
    threadgroup uint4* memory [[threadgroup(0)]],  // the ring, then where rows come from and go to, [2, T]
    uint2 tg [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint sg [[simdgroup_index_in_threadgroup]]) {
  threadgroup uint* sources = (threadgroup uint*)(memory + STAGES * WarpgroupStream<T, STAGES>::PLACE);
  threadgroup uint* targets = sources + T;
  if (tg.y >= block_count[0]) {
    return;
  }
  const uint expert = blocks[tg.y * 3];
  const uint first_row = blocks[tg.y * 3 + 1];
  const uint rows = blocks[tg.y * 3 + 2];
  const uint n0 = tg.x * (SWIGLU ? WARPGROUP_WEIGHTS / 2 : WARPGROUP_WEIGHTS);
  if (tid < T) {
    uint source = kNoRow;
    uint target = kNoRow;
    if (tid < rows) {
      const uint entry = sorted[first_row + tid];
      source = kGatherRows ? entry / p.row_divisor : first_row + tid;
      target = kScatterRows ? entry : first_row + tid;
    }
    sources[tid] = source;
    targets[tid] = target;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  mt::tile<float> acc[T / 16];
  multiply_warpgroups<T, STAGES, SWIGLU>(acc, memory, x, sources, matrix(codes, scales, biases), matrix(up_codes, up_scales, up_biases),
                                         ulong(expert) * p.rows[0], n0, p.rows[0], p.k, tid, sg);
  threadgroup float* sums = (threadgroup float*)memory;
  put_sums<T>(acc, sums, sg);
  constexpr uint LANES = SWIGLU ? 16 : 32;  // of a row of the output
  const uint column = lane % LANES * 4;
  const uint c = n0 + column;
  const uint there = c < p.rows[0] ? p.rows[0] - c : 0;
  const bool whole = there >= 4 && p.y_stride[0] % 4 == 0;
  for (uint t = tid / LANES; t < rows; t += WARPGROUP_THREADS / LANES) {
    threadgroup const float* row = sums + t * SUM_PITCH;
    const float4 v = SWIGLU ? joined(row, column) : *(threadgroup const float4*)(row + column);
    store_four(y, ulong(targets[t]) * p.y_stride[0] + c, v, whole, there, kFloatOutput, false);
  }
}

template [[host_name("gemm_grouped_q4_64x128_warpgroup")]] [[kernel]]
decltype(gemm_grouped_warpgroup<64, 6, false>) gemm_grouped_warpgroup<64, 6, false>;
template [[host_name("gemm_grouped_swiglu_q4_64x128_warpgroup")]] [[kernel]]
decltype(gemm_grouped_warpgroup<64, 6, true>) gemm_grouped_warpgroup<64, 6, true>;
template [[host_name("gemm_grouped_q4_32x128_warpgroup")]] [[kernel]]
decltype(gemm_grouped_warpgroup<32, 6, false>) gemm_grouped_warpgroup<32, 6, false>;
template [[host_name("gemm_grouped_swiglu_q4_32x128_warpgroup")]] [[kernel]]
decltype(gemm_grouped_warpgroup<32, 6, true>) gemm_grouped_warpgroup<32, 6, true>;
