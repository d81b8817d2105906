// A packed matrix expanded to bfloat in device memory: what the products do in threadgroup memory, as a pass of its own (for measuring the difference).
#include "include/weights.h"

// Grid (rows, columns / 32 / threads): the rows of stacked experts are more than CUDA takes in y.
[[kernel, max_total_threads_per_threadgroup(256)]] void dequantize(
    device const uchar* codes [[buffer(0)]],
    device const uchar* scales [[buffer(1)]],
    device const uchar* biases [[buffer(2)]],
    device bfloat* y [[buffer(3)]],  // [rows, k]
    constant DequantizeParams& p [[buffer(4)]],
    uint2 tg [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint2 threads [[threads_per_threadgroup]]) {
  const uint row = tg.x;
  const uint column = (tg.y * threads.x + tid) * 32;
  if (column >= p.k) {
    return;
  }
  float v[32];
  dequantize32(matrix(codes, scales, biases), row, column, p.k, p.encoding, v);
  device uint2* out = (device uint2*)(y + ulong(row) * p.k + column);
  for (int i = 0; i < 8; i++) {
    out[i] = pack_bfloats(float4(v[4 * i], v[4 * i + 1], v[4 * i + 2], v[4 * i + 3]));
  }
}
