// What the attention kernels for single query rows share.
#pragma once
#include "common.h"
#include "params.h"

// Row of a query in [kv_heads, rows, heads / kv_heads]: the queries that read one KV head lie together.
METAL_FUNC ulong query_row(uint head, uint token, uint rows, uint group) { return (ulong(head / group) * rows + token) * group + head % group; }

// The keys [first, end) of one split, for a query that sees `context` keys.
struct KeyRange {
  uint first;
  uint end;
};

METAL_FUNC KeyRange split_range(uint split, uint context, constant AttentionDecodeParams& p) {
  // a multiple of 32 keys, so that every simdgroup's block is whole but the last
  const uint even = ((context + p.splits - 1) / p.splits + 31) / 32 * 32;
  const uint keys = p.split_keys != 0 ? p.split_keys : even;
  KeyRange r;
  r.first = min(split * keys, context);
  r.end = min(r.first + keys, context);
  return r;
}

// Adds up 32 values a lane over the 32 lanes of a simdgroup: lane i gets the sum of value i. 31 shuffles, where 32 separate sums take 160.
METAL_FUNC float sum_transposed(thread float* v, uint lane) {
#pragma unroll
  for (ushort half_width = 16; half_width > 0; half_width /= 2) {
    const bool upper = (lane & half_width) != 0;
#pragma unroll
    for (ushort i = 0; i < half_width; i++) {
      const float keep = upper ? v[i + half_width] : v[i];
      const float give = upper ? v[i] : v[i + half_width];
      v[i] = keep + simd_shuffle_xor(give, half_width);
    }
  }
  return v[0];
}
