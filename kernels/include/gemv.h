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

// A block of rows of one of a dispatch's matrices.
struct GemvTarget {
  uint segment;
  uint row;
  uint rows;
};

METAL_FUNC GemvTarget gemv_target(uint block, uint rows_per_block, constant GemvParams& p) {
  GemvTarget t;
  t.segment = 0;
  uint start = 0;
  while (t.segment + 1 < p.segments && block >= p.block_end[t.segment]) {
    start = p.block_end[t.segment];
    t.segment++;
  }
  t.row = (block - start) * rows_per_block;
  t.rows = p.rows[t.segment];
  return t;
}

METAL_FUNC void gemv_store(device uchar* y, GemvTarget t, uint row, uint token, float value, bool add, device const StepState* step,
                           constant GemvParams& p) {
  ulong at = ulong(token) * p.y_stride[t.segment] + row;
  if (p.ring[t.segment] != 0) {
    at += ulong(step->position % p.ring[t.segment]) * t.rows;
  }
  store_number(y, at, value, ((p.float_outputs >> t.segment) & 1) != 0, add);
}

// A unit of 16 bytes of codes, for GPUs that read so much at a time and gain from having all of a row on its way before the first use. Codes turn into
// floats in the mantissa of 2^23; 4-bit codes stay where they are in their half word, so that code i of four comes out 16^i times too large and x has to
// be that much smaller (`scale_for_codes`): exact, both being powers of two.
template <int BITS>
struct Wide {
  static_assert(BITS == 4 || BITS == 8, "other widths have no such unit");
  static constant constexpr int columns = 128 / BITS;
  static constant constexpr int quads = columns / 4;
  uint4 codes;
  ushort scale;
  ushort bias;
  METAL_FUNC void load(Matrix w, ulong row, uint unit, uint k) {
    codes = *(device const uint4*)(w.codes + row * (k / (8 / BITS)) + unit * 16);
    const ulong group = row * (k / kGroup) + unit / (kGroup / columns);
    scale = ((device const ushort*)w.scales)[group];
    bias = ((device const ushort*)w.biases)[group];
  }
  static METAL_FUNC float4 scale_for_codes(float4 x) {
    return BITS == 4 ? x * float4(1.0f, 0.0625f, 0.00390625f, 0.000244140625f) : x;
  }
  static METAL_FUNC float sum(thread const float4* x) {
    float4 s = x[0];
#pragma unroll
    for (int i = 1; i < quads; i++) {
      s += x[i];
    }
    return BITS == 4 ? fma(4096.0f, s.w, fma(256.0f, s.z, fma(16.0f, s.y, s.x))) : sum4(s);
  }
  // code `c` of quad `i`; of 4 bits, 16^c times it
  METAL_FUNC float code(int i, int c) {
    const uint word = BITS == 4 ? codes[i / 2] >> (i % 2 * 16) : codes[i * BITS / 8] >> (c * 8);
    const uint mask = BITS == 4 ? 0xfu << (c * 4) : 0xffu;
    return as_type<float>((word & mask) | 0x4b000000u) - 8388608.0f;
  }
  METAL_FUNC float dot_x(thread const float4* x, float xsum) {
    float d = 0.0f;
#pragma unroll
    for (int i = 0; i < quads; i++) {
#pragma unroll
      for (int c = 0; c < 4; c++) {
        d = fma(code(i, c), x[i][c], d);
      }
    }
    return fma(as_type<float>(uint(scale) << 16), d, as_type<float>(uint(bias) << 16) * xsum);
  }
};

// An input row in threadgroup memory for units of QUADS float4s: lanes that read neighbouring units read neighbouring float4s.
template <int QUADS>
METAL_FUNC uint wide_quad(uint q) {
  return (q / QUADS / 32) * (32 * QUADS) + q % QUADS * 32 + q / QUADS % 32;
}
