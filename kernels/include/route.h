// Choosing a token's experts: the top_k largest router logits, lowest expert first among equals.
#pragma once
#include "common.h"

constant constexpr uint kMaxExperts = 512;
constant constexpr int kLogitsPerLane = 16;    // kMaxExperts / 32
constant constexpr int kFewLogitsPerLane = 8;  // up to 256 experts
constant constexpr uint kMaxTopK = 32;

// A key that orders as the float does, so that the search is a maximum over integers; 0 stands for "taken".
METAL_FUNC uint order_key(float v) {
  const uint u = as_type<uint>(v);
  return (u & 0x80000000u) != 0 ? ~u : u | 0x80000000u;
}
METAL_FUNC float key_value(uint key) { return as_type<float>((key & 0x80000000u) != 0 ? key & 0x7fffffffu : ~key); }

struct Choice {
  uint expert;
  float logit;
};

// The logits that this lane looks after: experts lane, lane + 32, ...
template <int N>
METAL_FUNC void load_logits(device const float* logits, uint experts, uint lane, thread uint (&keys)[N]) {
#pragma unroll
  for (int i = 0; i < N; i++) {
    const uint expert = lane + 32 * i;
    keys[i] = expert < experts ? order_key(logits[expert]) : 0;
  }
}

// Takes the largest key left. All lanes of the simdgroup get the same choice.
template <int N>
METAL_FUNC Choice take_largest(thread uint (&keys)[N], uint lane) {
  uint best = 0;
  uint expert = 0;
#pragma unroll
  for (int i = 0; i < N; i++) {
    if (keys[i] > best) {
      best = keys[i];
      expert = lane + 32 * i;
    }
  }
  const uint largest = simd_max(best);
  Choice c;
  c.expert = simd_min(best == largest ? expert : 0xffffffffu);
  c.logit = key_value(largest);
#pragma unroll
  for (int i = 0; i < N; i++) {
    keys[i] = lane + 32 * i == c.expert ? 0 : keys[i];
  }
  return c;
}
