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

// A unit of 16 bytes of codes, for GPUs that read so much at a time and gain from having all of a row on its way before the first use. Both forms turn a
// code into a float by putting it into the mantissa of 2^23; 4-bit codes stay where they are in their half word, so that code i of four comes out 16^i
// times too large and x has to be that much smaller (`scale_for_codes`): exact, both being powers of two.
template <int BITS>
struct Wide;

constant constexpr uint kMantissa = 0x4b000000u;

METAL_FUNC float masked_code(uint word, uint mask) { return as_type<float>((word & mask) | kMantissa) - 8388608.0f; }

template <>
struct Wide<4> {
  static constant constexpr int columns = 32;
  static constant constexpr int quads = 8;
  uint4 codes;
  ushort scale;
  ushort bias;
  METAL_FUNC void load(Matrix w, ulong row, uint unit, uint k) {
    codes = *(device const uint4*)(w.codes + row * (k / 2) + unit * 16);
    const ulong group = row * (k / kGroup) + unit / 2;
    scale = ((device const ushort*)w.scales)[group];
    bias = ((device const ushort*)w.biases)[group];
  }
  static METAL_FUNC float4 scale_for_codes(float4 x) { return x * float4(1.0f, 0.0625f, 0.00390625f, 0.000244140625f); }
  static METAL_FUNC float sum(thread const float4* x) {
    float4 s = x[0];
#pragma unroll
    for (int i = 1; i < quads; i++) {
      s += x[i];
    }
    return fma(4096.0f, s.w, fma(256.0f, s.z, fma(16.0f, s.y, s.x)));
  }
  METAL_FUNC float dot_x(thread const float4* x, float xsum) {
    float d = 0.0f;
#pragma unroll
    for (int i = 0; i < quads; i++) {
      const uint word = (i & 1) != 0 ? codes[i / 2] >> 16 : codes[i / 2];
      d = fma(masked_code(word, 0x000fu), x[i].x, d);
      d = fma(masked_code(word, 0x00f0u), x[i].y, d);
      d = fma(masked_code(word, 0x0f00u), x[i].z, d);
      d = fma(masked_code(word, 0xf000u), x[i].w, d);
    }
    return fma(as_type<float>(uint(scale) << 16), d, as_type<float>(uint(bias) << 16) * xsum);
  }
};

template <>
struct Wide<8> {
  static constant constexpr int columns = 16;
  static constant constexpr int quads = 4;
  uint4 codes;
  ushort scale;
  ushort bias;
  METAL_FUNC void load(Matrix w, ulong row, uint unit, uint k) {
    codes = *(device const uint4*)(w.codes + row * k + unit * 16);
    const ulong group = row * (k / kGroup) + unit / 4;
    scale = ((device const ushort*)w.scales)[group];
    bias = ((device const ushort*)w.biases)[group];
  }
  static METAL_FUNC float4 scale_for_codes(float4 x) { return x; }
  static METAL_FUNC float sum(thread const float4* x) {
    float4 s = x[0];
#pragma unroll
    for (int i = 1; i < quads; i++) {
      s += x[i];
    }
    return sum4(s);
  }
  METAL_FUNC float dot_x(thread const float4* x, float xsum) {
    float d = 0.0f;
#pragma unroll
    for (int i = 0; i < quads; i++) {
      d = fma(masked_code(codes[i], 0xffu), x[i].x, d);
      d = fma(masked_code(codes[i] >> 8, 0xffu), x[i].y, d);
      d = fma(masked_code(codes[i] >> 16, 0xffu), x[i].z, d);
      d = fma(masked_code(codes[i] >> 24, 0xffu), x[i].w, d);
    }
    return fma(as_type<float>(uint(scale) << 16), d, as_type<float>(uint(bias) << 16) * xsum);
  }
};

// An input row in threadgroup memory for units of QUADS float4s: lanes that read neighbouring units read neighbouring float4s.
template <int QUADS>
METAL_FUNC uint wide_quad(uint q) {
  return (q / QUADS / 32) * (32 * QUADS) + q % QUADS * 32 + q / QUADS % 32;
}
