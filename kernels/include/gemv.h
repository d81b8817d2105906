// Rows times a vector: what the decode kernels share.
#pragma once
#include "weights.h"

// An input row in threadgroup memory, swizzled so that the 32 lanes of a simdgroup, each reading its own 16 columns, read consecutive float4s.
METAL_FUNC uint staged_index(uint unit, uint j) { return (unit / 32) * 128 + j * 32 + unit % 32; }

// Four consecutive columns: quad `q` of the row.
METAL_FUNC uint staged_quad(uint q) { return staged_index(q / 4, q % 4); }

METAL_FUNC float sum4(float4 v) { return (v.x + v.y) + (v.z + v.w); }

template <int UNITS>
METAL_FUNC void read_staged(threadgroup const float4* xs, uint unit, thread float4* x) {
#pragma unroll
  for (int i = 0; i < UNITS; i++) {
#pragma unroll
    for (int j = 0; j < 4; j++) {
      x[i * 4 + j] = xs[staged_index(unit + i, j)];
    }
  }
}

// Columns [unit * 16, ...) of a bfloat row in device memory.
template <int UNITS>
METAL_FUNC void read_bfloats(device const bfloat* p, thread float4* x) {
  device const uint4* words = (device const uint4*)p;
#pragma unroll
  for (int i = 0; i < UNITS * 2; i++) {
    const uint4 w = words[i];
    x[i * 2] = bfloat_quad(w.xy);
    x[i * 2 + 1] = bfloat_quad(w.zw);
  }
}

template <int QUADS>
METAL_FUNC float sum_quads(thread const float4* x) {
  float s = 0.0f;
#pragma unroll
  for (int i = 0; i < QUADS; i++) {
    s += sum4(x[i]);
  }
  return s;
}
