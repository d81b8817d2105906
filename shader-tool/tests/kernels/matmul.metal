#include "include/tile.h"
#include <metal_stdlib>
using namespace metal;

// d[32][32] = a[32][k] * w[32][k]^T, then e[32][32] = bfloat(d) * v[32][32], by four simdgroups of one threadgroup, each
// 16 x 16 of d with a doubled right half, so that both results of `multiply` are used.
kernel void matmul(
    device const bfloat* a [[buffer(0)]],
    device const bfloat* w [[buffer(1)]],
    device const bfloat* v [[buffer(2)]],
    device float* d [[buffer(3)]],
    device float* e [[buffer(4)]],
    device float* stats [[buffer(5)]],
    constant int& k [[buffer(6)]],
    uint tid [[thread_index_in_threadgroup]],
    uint sg [[simdgroup_index_in_threadgroup]]) {
  constexpr int PITCH = 24;
  alignas(16) threadgroup bfloat as[32 * PITCH];
  alignas(16) threadgroup bfloat ws[32 * PITCH];
  alignas(16) threadgroup bfloat vs[32 * 40];
  const int row0 = int(sg) * 16;

  mt::tile<float> acc0;
  mt::tile<float> acc1;
  mt::fill(acc0, 0.0f);
  mt::fill(acc1, 0.0f);
  for (int k0 = 0; k0 < k; k0 += 16) {
    for (int i = int(tid); i < 32 * 16; i += 64) {
      as[i / 16 * PITCH + i % 16] = a[i / 16 * k + k0 + i % 16];
      ws[i / 16 * PITCH + i % 16] = w[i / 16 * k + k0 + i % 16];
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    mt::tile<bfloat> left;
    mt::tile<bfloat> right0;
    mt::tile<bfloat> right1;
    mt::load(left, as + row0 * PITCH, PITCH);
    mt::load_nk(right0, ws, PITCH);
    mt::load_nk(right1, ws + 16 * PITCH, PITCH);
    mt::multiply(acc0, acc1, left, right0, right1);
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  mt::store(acc0, d + row0 * 32, 32);
  mt::store_clipped(acc1, d + row0 * 32 + 16, 32, 16, 16);

  const float2 largest = max(mt::rows_max(acc0), mt::rows_max(acc1));
  const float2 total = mt::rows_sum(acc0) + mt::rows_sum(acc1);
  for (int i = 0; i < 8; i++) {
    if (mt::column(i) == 0) {
      stats[(row0 + mt::row(i)) * 2] = largest[mt::row_half(i)];
      stats[(row0 + mt::row(i)) * 2 + 1] = total[mt::row_half(i)];
    }
  }

  for (int i = int(tid); i < 32 * 32; i += 64) {
    vs[i / 32 * 40 + i % 32] = v[i];
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  mt::tile<bfloat> again[2] = {mt::convert<bfloat>(acc0), mt::convert<bfloat>(acc1)};
  mt::fill(acc0, 0.0f);
  mt::fill(acc1, 0.0f);
  for (int half_ = 0; half_ < 2; half_++) {
    mt::tile<bfloat> right0;
    mt::tile<bfloat> right1;
    mt::load_kn(right0, vs + half_ * 16 * 40, 40);
    mt::load_kn(right1, vs + half_ * 16 * 40 + 16, 40);
    mt::multiply(acc0, acc1, again[half_], right0, right1);
  }
  mt::store(acc0, e + row0 * 32, 32);
  mt::store(acc1, e + row0 * 32 + 16, 32);
}
