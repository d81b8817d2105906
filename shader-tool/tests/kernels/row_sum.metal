#include <metal_stdlib>
using namespace metal;

constant bool kScaled [[function_constant(0)]];
constant uint kWidth [[function_constant(1)]];
constant uint kHalfWidth = kWidth / 2;

struct RowParams {
  uint columns;
  float scale;
};

// out[row] = sum of the row, by any number of simdgroups; with kScaled, times scale.
[[max_total_threads_per_threadgroup(256)]]
kernel void row_sum(
    device const bfloat* x [[buffer(0)]],
    device float* out [[buffer(1)]],
    constant RowParams& p [[buffer(2)]],
    uint row [[threadgroup_position_in_grid]],
    uint tid [[thread_position_in_threadgroup]],
    uint threads [[threads_per_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint sg [[simdgroup_index_in_threadgroup]],
    uint simdgroups [[simdgroups_per_threadgroup]]) {
  threadgroup float partial[32];

  float sum = 0.0f;
  for (uint i = tid; i < p.columns; i += threads) {
    sum += float(x[ulong(row) * p.columns + i]);
  }
  sum = simd_sum(sum);
  if (lane == 0) {
    partial[sg] = sum;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  const float total = simd_sum(lane < simdgroups ? partial[lane] : 0.0f);
  if (tid == 0) {
    out[row] = kScaled ? total * p.scale + float(kHalfWidth) : total;
  }
}
