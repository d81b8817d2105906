// Weight matrices as a checkpoint holds them: packed codes, a scale (and a bias) for each group of columns.
//
// A row is one little-endian string of bits. `Packed<4>` and `Packed<8>` are the tuned forms: affine, groups of 64, bfloat scales.
// `Packed<16>` is plain bfloat. `Packed<0>` takes any form, described at run time by an Encoding: slow but right.
// Reads here are at most 8 bytes wide, because a tensor in a safetensors file is only sure to start at a multiple of 8. The kernels that only run where
// weights are copied to the device (gemm_streamed.h, gemv_tiles.h, the deep ones of gemv.metal) read 16, which copies are aligned to.
#pragma once
#include "common.h"
#include "params.h"

constant constexpr uint kEncodingAffine = 0;
constant constexpr uint kEncodingMxfp4 = 1;
constant constexpr uint kEncodingNvfp4 = 2;
constant constexpr uint kEncodingMxfp8 = 3;
constant constexpr uint kEncodingBfloat = 4;
constant constexpr uint kEncodingHalf = 5;
constant constexpr uint kEncodingFloat = 6;

constant constexpr uint kGroup = 64;  // columns of a group in the tuned forms

// One matrix; `row` counts through all experts of a stacked one.
struct Matrix {
  device const uchar* codes;
  device const uchar* scales;
  device const uchar* biases;
};

METAL_FUNC Matrix matrix(device const uchar* codes, device const uchar* scales, device const uchar* biases) {
  Matrix m;
  m.codes = codes;
  m.scales = scales;
  m.biases = biases;
  return m;
}

// E2M1: sign, two bits of exponent, one of mantissa.
METAL_FUNC float e2m1(uint code) {
  const uint magnitude = code & 7;
  const uint exponent = magnitude >> 1;
  const float value = exponent == 0 ? 0.5f * float(magnitude & 1) : as_type<float>(((exponent + 126) << 23) | ((magnitude & 1) << 22));
  return (code & 8) != 0 ? -value : value;
}

// E4M3: bias 7, no infinities. The NaN codes do not occur in a checkpoint that was checked when it was loaded.
METAL_FUNC float e4m3(uint code) {
  const uint exponent = (code >> 3) & 15;
  const uint mantissa = code & 7;
  const float value = exponent == 0 ? float(mantissa) * (1.0f / 512.0f) : as_type<float>(((exponent + 120) << 23) | (mantissa << 20));
  return (code & 0x80) != 0 ? -value : value;
}

// 2^(code - 127); code 0 is the subnormal 2^-127.
METAL_FUNC float e8m0(uint code) { return code == 0 ? as_type<float>(0x00400000u) : as_type<float>(code << 23); }

METAL_FUNC float read_number(device const uchar* p, ulong index, uint type) {
  if (type == 0) {
    return float(((device const bfloat*)p)[index]);
  }
  if (type == 1) {
    return float(((device const half*)p)[index]);
  }
  return ((device const float*)p)[index];
}

// Columns [column, column + 4) of a row in any form. `column` is a multiple of 4.
METAL_FUNC float4 dequantize4(Matrix w, ulong row, uint column, uint k, constant Encoding& e) {
  float4 out;
  if (e.kind >= kEncodingBfloat) {
    const uint type = e.kind - kEncodingBfloat;
    device const uchar* p = w.codes + (row * k + column) * (type == 2 ? 4 : 2);
#pragma unroll
    for (int i = 0; i < 4; i++) {
      out[i] = read_number(p, i, type);
    }
    return out;
  }
  // rows have a multiple of 32 columns, so they begin with a whole word, and four codes of up to 8 bits lie in at most two
  device const uint* words = (device const uint*)(w.codes + row * (k / 8 * e.bits));
  const uint bit = column * e.bits;
  ulong codes = words[bit / 32];
  if (bit % 32 + 4 * e.bits > 32) {
    codes |= ulong(words[bit / 32 + 1]) << 32;
  }
  codes >>= bit % 32;
  // groups have a multiple of 4 columns
  const ulong group = row * (k / e.group_size) + column / e.group_size;
  float scale = 1.0f;
  float bias = 0.0f;
  if (e.kind == kEncodingAffine) {
    scale = read_number(w.scales, group, e.scale_type);
    bias = read_number(w.biases, group, e.scale_type);
  } else if (e.kind == kEncodingNvfp4) {
    scale = e.global_scale * e4m3(w.scales[group]);
  } else {
    scale = e8m0(w.scales[group]);
  }
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const uint code = uint(codes) & ((1u << e.bits) - 1);
    codes >>= e.bits;
    if (e.kind == kEncodingAffine) {
      out[i] = scale * float(code) + bias;
    } else {
      out[i] = scale * (e.kind == kEncodingMxfp8 ? e4m3(code) : e2m1(code));
    }
  }
  return out;
}

METAL_FUNC float4 nibbles(uint q) { return float4(float(q & 15), float((q >> 4) & 15), float((q >> 8) & 15), float((q >> 12) & 15)); }
METAL_FUNC float4 octets(uint q) { return float4(float(q & 255), float((q >> 8) & 255), float((q >> 16) & 255), float(q >> 24)); }

METAL_FUNC float affine_scale(device const uchar* p, ulong group) { return float(((device const bfloat*)p)[group]); }

// A unit is 16 columns of a row: what a lane takes at a time. `Unit` holds one in registers, packed, so that the loads of several rows can be in
// flight before the first is used.
template <int BITS>
struct Packed;

template <>
struct Packed<4> {
  static constant constexpr int units = 1;  // units that a lane takes at a time
  struct Unit {
    uint2 codes;
    float scale;
    float bias;
  };
  static METAL_FUNC void load(thread Unit& u, Matrix w, ulong row, uint column, uint k, constant Encoding& e) {
    u.codes = *(device const uint2*)(w.codes + (row * k + column) / 2);
    const ulong group = row * (k / kGroup) + column / kGroup;
    u.scale = affine_scale(w.scales, group);
    u.bias = affine_scale(w.biases, group);
  }
  // sum of the unit's weights times x; `xsum` is the sum of x
  static METAL_FUNC float dot_x(thread const Unit& u, thread const float4* x, float xsum) {
    float d = dot(nibbles(u.codes.x), x[0]) + dot(nibbles(u.codes.x >> 16), x[1]);
    d += dot(nibbles(u.codes.y), x[2]) + dot(nibbles(u.codes.y >> 16), x[3]);
    return u.scale * d + u.bias * xsum;
  }
  static METAL_FUNC void expand(thread const Unit& u, thread float4* out) {
    const float4 s = float4(u.scale);
    const float4 b = float4(u.bias);
    out[0] = fma(nibbles(u.codes.x), s, b);
    out[1] = fma(nibbles(u.codes.x >> 16), s, b);
    out[2] = fma(nibbles(u.codes.y), s, b);
    out[3] = fma(nibbles(u.codes.y >> 16), s, b);
  }
};

template <>
struct Packed<8> {
  static constant constexpr int units = 1;
  struct Unit {
    uint2 low;
    uint2 high;
    float scale;
    float bias;
  };
  static METAL_FUNC void load(thread Unit& u, Matrix w, ulong row, uint column, uint k, constant Encoding& e) {
    device const uint2* p = (device const uint2*)(w.codes + row * k + column);
    u.low = p[0];
    u.high = p[1];
    const ulong group = row * (k / kGroup) + column / kGroup;
    u.scale = affine_scale(w.scales, group);
    u.bias = affine_scale(w.biases, group);
  }
  static METAL_FUNC float dot_x(thread const Unit& u, thread const float4* x, float xsum) {
    float d = dot(octets(u.low.x), x[0]) + dot(octets(u.low.y), x[1]);
    d += dot(octets(u.high.x), x[2]) + dot(octets(u.high.y), x[3]);
    return u.scale * d + u.bias * xsum;
  }
  static METAL_FUNC void expand(thread const Unit& u, thread float4* out) {
    const float4 s = float4(u.scale);
    const float4 b = float4(u.bias);
    out[0] = fma(octets(u.low.x), s, b);
    out[1] = fma(octets(u.low.y), s, b);
    out[2] = fma(octets(u.high.x), s, b);
    out[3] = fma(octets(u.high.y), s, b);
  }
};

template <>
struct Packed<16> {
  static constant constexpr int units = 1;
  struct Unit {
    uint2 words[4];
  };
  static METAL_FUNC void load(thread Unit& u, Matrix w, ulong row, uint column, uint k, constant Encoding& e) {
    device const uint2* p = (device const uint2*)(w.codes + (row * k + column) * 2);
#pragma unroll
    for (int i = 0; i < 4; i++) {
      u.words[i] = p[i];
    }
  }
  static METAL_FUNC float dot_x(thread const Unit& u, thread const float4* x, float xsum) {
    float d = 0.0f;
#pragma unroll
    for (int i = 0; i < 4; i++) {
      d += dot(bfloat_quad(u.words[i]), x[i]);
    }
    return d;
  }
  static METAL_FUNC void expand(thread const Unit& u, thread float4* out) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
      out[i] = bfloat_quad(u.words[i]);
    }
  }
};

template <>
struct Packed<0> {
  static constant constexpr int units = 2;  // 32 columns: what fills whole words at any width
  struct Unit {
    float4 values[8];
  };
  static METAL_FUNC void load(thread Unit& u, Matrix w, ulong row, uint column, uint k, constant Encoding& e) {
#pragma unroll
    for (int i = 0; i < 8; i++) {
      u.values[i] = dequantize4(w, row, column + i * 4, k, e);
    }
  }
  static METAL_FUNC float dot_x(thread const Unit& u, thread const float4* x, float xsum) {
    float d = 0.0f;
#pragma unroll
    for (int i = 0; i < 8; i++) {
      d += dot(u.values[i], x[i]);
    }
    return d;
  }
  static METAL_FUNC void expand(thread const Unit& u, thread float4* out) {
#pragma unroll
    for (int i = 0; i < 8; i++) {
      out[i] = u.values[i];
    }
  }
};
