// A packed matrix expanded to bfloat in device memory: what the products do in threadgroup memory, as a pass of its own (for measuring the difference).
#include "include/weights.h"

// Grid (rows, columns / 4 / threads): the rows of stacked experts are more than CUDA takes in y.
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
  const uint column = (tg.y * threads.x + tid) * 4;
  if (column < p.k) {
    *(device uint2*)(y + ulong(row) * p.k + column) = pack_bfloats(dequantize4(matrix(codes, scales, biases), row, column, p.k, p.encoding));
  }
}
