// The product of gemm_grouped.metal, with the same arguments, for GPUs that copy into threadgroup memory beside their arithmetic; 4-bit weights.
#include "include/gemm_streamed.h"

// The input row is that of the sorted entry (divided by row_divisor), else the position in the sorted list.
constant bool kGatherRows [[function_constant(0)]];
// The output row is the sorted entry, else the position in the sorted list.
constant bool kScatterRows [[function_constant(1)]];
// The output is float, else bfloat.
constant bool kFloatOutput [[function_constant(2)]];

// One block of the map: up to BM rows of the sorted list that take the same expert. Grid (column tiles, blocks at most); blocks past the count leave.
template <int BM, int BN, int WM, int WN, bool SWIGLU, int STAGES>
[[kernel, max_total_threads_per_threadgroup(WM * WN * 32)]] void gemm_grouped_streamed(
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
    uint2 tg [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint sg [[simdgroup_index_in_threadgroup]]) {
  constexpr int TM = BM / WM / 16;
  constexpr int TN = BN / WN / 16;
  threadgroup uint4 xs[STAGES * BM * SLAB / 8];
  threadgroup uint4 ws[STAGES * BN];
  threadgroup uint fs[2 * BN];
  threadgroup uint sources[BM];
  threadgroup uint targets[BM];
  if (tg.y >= block_count[0]) {
    return;
  }
  const uint expert = blocks[tg.y * 3];
  const uint first_row = blocks[tg.y * 3 + 1];
  const uint rows = blocks[tg.y * 3 + 2];
  const uint n0 = tg.x * (SWIGLU ? BN / 2 : BN);
  for (uint r = tid; r < BM; r += WM * WN * 32) {
    uint source = kNoRow;
    uint target = kNoRow;
    if (r < rows) {
      const uint entry = sorted[first_row + r];
      source = kGatherRows ? entry / p.row_divisor : first_row + r;
      target = kScatterRows ? entry : first_row + r;
    }
    sources[r] = source;
    targets[r] = target;
  }
  const uint sm = (sg / WN) * (BM / WM);
  const uint sn = (sg % WN) * (BN / WN);
  mt::tile<float> acc[TN][TM];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  multiply_streamed<BM, BN, WM * WN * 32, STAGES, SWIGLU>(acc, xs, ws, fs, x, sources, matrix(codes, scales, biases),
                                                          matrix(up_codes, up_scales, up_biases), ulong(expert) * p.rows[0], n0, p.rows[0], p.k,
                                                          sm, sn, sm < rows && n0 + (SWIGLU ? sn / 2 : sn) < p.rows[0], tid);
#pragma unroll
  for (int j = 0; j < TM; j++) {
#pragma unroll
    for (int e = 0; e < 8; e++) {
      const uint target = targets[sm + j * 16 + mt::column(e)];
#pragma unroll
      for (int i = 0; i < TN; i += SWIGLU ? 2 : 1) {
        const uint c = n0 + (SWIGLU ? (sn + i * 16) / 2 : sn + i * 16) + mt::row(e);
        if (target != kNoRow && c < p.rows[0]) {
          const float value = SWIGLU ? silu(acc[i][j].get(e)) * acc[SWIGLU ? i + 1 : i][j].get(e) : acc[i][j].get(e);
          store_number(y, ulong(target) * p.y_stride[0] + c, value, kFloatOutput, false);
        }
      }
    }
  }
}

template [[host_name("gemm_grouped_q4_64x128_streamed")]] [[kernel]]
decltype(gemm_grouped_streamed<64, 128, 1, 4, false, 4>) gemm_grouped_streamed<64, 128, 1, 4, false, 4>;
template [[host_name("gemm_grouped_swiglu_q4_64x128_streamed")]] [[kernel]]
decltype(gemm_grouped_streamed<64, 128, 1, 4, true, 4>) gemm_grouped_streamed<64, 128, 1, 4, true, 4>;
template [[host_name("gemm_grouped_q4_32x128_streamed")]] [[kernel]]
decltype(gemm_grouped_streamed<32, 128, 1, 4, false, 6>) gemm_grouped_streamed<32, 128, 1, 4, false, 6>;
template [[host_name("gemm_grouped_swiglu_q4_32x128_streamed")]] [[kernel]]
decltype(gemm_grouped_streamed<32, 128, 1, 4, true, 6>) gemm_grouped_streamed<32, 128, 1, 4, true, 6>;
