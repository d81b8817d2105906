// What several kernels share: activations, packed bfloat loads, swizzled staging of an input row.
#pragma once
#include <metal_stdlib>
using namespace metal;

// Stands for minus infinity: fast math may assume that there are no infinities, so masks use a finite number.
constant constexpr float kMasked = -1.0e30f;

METAL_FUNC float sigmoid(float x) { return 1.0f / (1.0f + exp(-x)); }
METAL_FUNC float silu(float x) { return x / (1.0f + exp(-x)); }
METAL_FUNC float softplus(float x) { return max(x, 0.0f) + log(1.0f + exp(-fabs(x))); }

// Two bfloats of a word, the lower address in the lower half.
METAL_FUNC float2 bfloat_pair(uint word) { return float2(as_type<float>(word << 16), as_type<float>(word & 0xffff0000u)); }

METAL_FUNC float4 bfloat_quad(uint2 words) {
  const float2 a = bfloat_pair(words.x);
  const float2 b = bfloat_pair(words.y);
  return float4(a.x, a.y, b.x, b.y);
}

METAL_FUNC uint pack_bfloats(float a, float b) {
  return uint(as_type<ushort>(bfloat(a))) | (uint(as_type<ushort>(bfloat(b))) << 16);
}

METAL_FUNC uint2 pack_bfloats(float4 v) { return uint2(pack_bfloats(v.x, v.y), pack_bfloats(v.z, v.w)); }

// Number `at` of an output of floats or of bfloats; with `add` it is of floats, and added to.
METAL_FUNC void store_number(device uchar* y, ulong at, float value, bool as_float, bool add) {
  if (add) {
    ((device float*)y)[at] += value;
  } else if (as_float) {
    ((device float*)y)[at] = value;
  } else {
    ((device bfloat*)y)[at] = bfloat(value);
  }
}
