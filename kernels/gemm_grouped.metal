// Products of a prefill chunk's rows with the experts that they chose, over the block map of moe_offsets.
//
// The tile and its staging are those of gemm.metal; what differs is that a tile's rows are gathered from the sorted list, and that its weights are one
// expert's. With SWIGLU the gate and up products of a column lie in the two accumulators of one multiplication, so silu(gate) * up needs no memory.
#include "include/gemm.h"

// The input row is that of the sorted entry (divided by row_divisor), else the position in the sorted list.
constant bool kGatherRows [[function_constant(0)]];
// The output row is the sorted entry, else the position in the sorted list.
constant bool kScatterRows [[function_constant(1)]];
// The output is float, else bfloat.
constant bool kFloatOutput [[function_constant(2)]];

// One block of the map: up to BM rows of the sorted list that take the same expert. Grid (column tiles, blocks at most); blocks past the count leave.
template <int BITS, int BM, int BN, int WM, int WN, bool SWIGLU>
[[kernel, max_total_threads_per_threadgroup(WM * WN * 32)]] void gemm_grouped(
    device const bfloat* x [[buffer(0)]],  // [rows, k]
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
  constexpr int THREADS = WM * WN * 32;
  constexpr int TM = BM / WM / 16;
  constexpr int TN = BN / WN / 16;
  alignas(16) threadgroup bfloat xs[BM * LD];
  alignas(16) threadgroup bfloat ws[BN * LD];
  threadgroup uint sources[BM];
  threadgroup uint targets[BM];
  if (tg.y >= block_count[0]) {
    return;
  }
  const uint expert = blocks[tg.y * 3];
  const uint first_row = blocks[tg.y * 3 + 1];
  const uint rows = blocks[tg.y * 3 + 2];
  const uint n0 = tg.x * (SWIGLU ? BN / 2 : BN);
  for (uint r = tid; r < BM; r += THREADS) {
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
  mt::tile<float> acc[TM][TN];
#pragma unroll
  for (int i = 0; i < TM; i++) {
#pragma unroll
    for (int j = 0; j < TN; j++) {
      mt::fill(acc[i][j], 0.0f);
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  const Matrix w = matrix(codes, scales, biases);
  const Matrix up = matrix(up_codes, up_scales, up_biases);
  const ulong base = ulong(expert) * p.rows[0];
  for (uint k0 = 0; k0 < p.k; k0 += BK) {
    stage_rows<BM, THREADS>(xs, x, sources, p.k, k0, tid);
    stage_weights<BITS, BN, THREADS, SWIGLU>(ws, w, up, base, n0, p.rows[0], p.k, k0, p.encoding[0], p.encoding[1], tid);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    multiply_staged<TM, TN>(acc, xs + sm * LD, ws + sn * LD);
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
#pragma unroll
  for (int i = 0; i < TM; i++) {
#pragma unroll
    for (int j = 0; j < TN; j += SWIGLU ? 2 : 1) {
#pragma unroll
      for (int e = 0; e < 8; e++) {
        const uint target = targets[sm + i * 16 + mt::row(e)];
        const uint c = n0 + (SWIGLU ? (sn + j * 16) / 2 : sn + j * 16) + mt::column(e);
        if (target != kNoRow && c < p.rows[0]) {
          const float value = SWIGLU ? silu(acc[i][j].get(e)) * acc[i][SWIGLU ? j + 1 : j].get(e) : acc[i][j].get(e);
          store_number(y, ulong(target) * p.y_stride[0] + c, value, kFloatOutput, false);
        }
      }
    }
  }
}

template [[host_name("gemm_grouped_q4_64x128")]] [[kernel]]
decltype(gemm_grouped<4, 64, 128, 2, 2, false>) gemm_grouped<4, 64, 128, 2, 2, false>;
template [[host_name("gemm_grouped_swiglu_q4_64x128")]] [[kernel]]
decltype(gemm_grouped<4, 64, 128, 2, 2, true>) gemm_grouped<4, 64, 128, 2, 2, true>;
template [[host_name("gemm_grouped_q4_32x64")]] [[kernel]]
decltype(gemm_grouped<4, 32, 64, 1, 2, false>) gemm_grouped<4, 32, 64, 1, 2, false>;
template [[host_name("gemm_grouped_swiglu_q4_32x64")]] [[kernel]]
decltype(gemm_grouped<4, 32, 64, 1, 2, true>) gemm_grouped<4, 32, 64, 1, 2, true>;
template [[host_name("gemm_grouped_q4_16x64")]] [[kernel]]
decltype(gemm_grouped<4, 16, 64, 1, 2, false>) gemm_grouped<4, 16, 64, 1, 2, false>;
template [[host_name("gemm_grouped_swiglu_q4_16x64")]] [[kernel]]
decltype(gemm_grouped<4, 16, 64, 1, 2, true>) gemm_grouped<4, 16, 64, 1, 2, true>;
template [[host_name("gemm_grouped_q8_32x64")]] [[kernel]]
decltype(gemm_grouped<8, 32, 64, 1, 2, false>) gemm_grouped<8, 32, 64, 1, 2, false>;
template [[host_name("gemm_grouped_swiglu_q8_32x64")]] [[kernel]]
decltype(gemm_grouped<8, 32, 64, 1, 2, true>) gemm_grouped<8, 32, 64, 1, 2, true>;
template [[host_name("gemm_grouped_bf16_32x64")]] [[kernel]]
decltype(gemm_grouped<16, 32, 64, 1, 2, false>) gemm_grouped<16, 32, 64, 1, 2, false>;
template [[host_name("gemm_grouped_swiglu_bf16_32x64")]] [[kernel]]
decltype(gemm_grouped<16, 32, 64, 1, 2, true>) gemm_grouped<16, 32, 64, 1, 2, true>;
template [[host_name("gemm_grouped_any_32x64")]] [[kernel]]
decltype(gemm_grouped<0, 32, 64, 1, 2, false>) gemm_grouped<0, 32, 64, 1, 2, false>;
template [[host_name("gemm_grouped_swiglu_any_32x64")]] [[kernel]]
decltype(gemm_grouped<0, 32, 64, 1, 2, true>) gemm_grouped<0, 32, 64, 1, 2, true>;
