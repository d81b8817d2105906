// A packed matrix expanded to bfloat in device memory: what the products do in threadgroup memory, as a pass of its own (for measuring the difference).
#include "include/weights.h"

// Grid (columns / 32 / threads, rows).
[[kernel, max_total_threads_per_threadgroup(256)]] void dequantize(
    device const uchar* codes [[buffer(0)]],
    device const uchar* scales [[buffer(1)]],
    device const uchar* biases [[buffer(2)]],
    device bfloat* y [[buffer(3)]],  // [rows, k]
    constant DequantizeParams& p [[buffer(4)]],
    uint2 at [[thread_position_in_grid]]) {
  if (at.x * 32 >= p.k) {
    return;
  }
  float v[32];
  dequantize32(matrix(codes, scales, biases), at.y, at.x * 32, p.k, p.encoding, v);
  device uint2* out = (device uint2*)(y + ulong(at.y) * p.k + at.x * 32);
  for (int i = 0; i < 8; i++) {
    out[i] = pack_bfloats(float4(v[4 * i], v[4 * i + 1], v[4 * i + 2], v[4 * i + 3]));
  }
}
