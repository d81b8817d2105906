// RMSNorm of the residual stream, for the kernels that take normed bfloat rows.
#include "include/common.h"
#include "include/params.h"

// Write float instead of bfloat: for the decode kernels where the norm is not folded into them.
constant bool kFloatOutput [[function_constant(0)]];

// One threadgroup a row. The statistics are float; one rounding at the end.
[[kernel, max_total_threads_per_threadgroup(256)]] void rms_norm(
    device const float* x [[buffer(0)]],     // [rows, k]
    device const float* norm [[buffer(1)]],  // [k]
    device uchar* y [[buffer(2)]],           // [rows, k]
    constant RmsNormParams& p [[buffer(3)]],
    uint row [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint threads [[threads_per_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint sg [[simdgroup_index_in_threadgroup]],
    uint nsg [[simdgroups_per_threadgroup]]) {
  threadgroup float squares[8];
  device const float4* in = (device const float4*)(x + ulong(row) * p.k);
  device const float4* weight = (device const float4*)norm;

  float square = 0.0f;
  for (uint q = tid; q < p.k / 4; q += threads) {
    square += dot(in[q], in[q]);
  }
  square = simd_sum(square);
  if (lane == 0) {
    squares[sg] = square;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float total = 0.0f;
  for (uint i = 0; i < nsg; i++) {
    total += squares[i];
  }
  const float inverse = rsqrt(total / float(p.k) + p.eps);
  for (uint q = tid; q < p.k / 4; q += threads) {
    const float4 v = in[q] * inverse * weight[q];
    if (kFloatOutput) {
      ((device float4*)y)[ulong(row) * (p.k / 4) + q] = v;
    } else {
      ((device uint2*)y)[ulong(row) * (p.k / 4) + q] = pack_bfloats(v);
    }
  }
}
