// Products of packed 4-bit matrices with one vector, through the matrix units.
//
// The codes of 16 rows are a left operand as they are: 0 to 15 are exact in bfloat. The vector is the right operand, as three bfloats whose sum it is to
// the last bit that matters, so that nothing is lost against products in float. A block is 128 columns, hence two groups, whose sums must stay
// apart: the parts for the first group are vectors 0 to 2 with zeros in the second's columns, those for the second vectors 3 to 5. A scale then multiplies
// a sum once a group rather than a code, and the bias the sum of the vector over the group.
#pragma once
#include "gemv.h"
#include "tile.h"

constant constexpr uint kBlock = 128;
constant constexpr uint kParts = 3;

// Where quad q of the vector goes, in bfloat quads: [block][word of a lane's four][part][lane & 3][2].
METAL_FUNC uint part_quad(uint q, uint part) {
  const uint block = q / 32;
  const uint owner = q % 32 / 8;
  const uint word = q % 8 / 2;
  return (((block * 4 + word) * kParts + part) * 4 + owner) * 2 + q % 2;
}

METAL_FUNC void stage_parts(threadgroup uint2* xs, uint q, float4 v) {
  const uint2 high = pack_bfloats(v);
  const float4 rest = v - bfloat_quad(high);
  const uint2 middle = pack_bfloats(rest);
  xs[part_quad(q, 0)] = high;
  xs[part_quad(q, 1)] = middle;
  xs[part_quad(q, 2)] = pack_bfloats(rest - bfloat_quad(middle));
}

// Quad q of the vector and, together with 15 other lanes, the sum of its group.
METAL_FUNC void stage_vector(threadgroup uint2* xs, threadgroup float* group_sums, uint q, float4 v, uint lane) {
  stage_parts(xs, q, v);
  float s = sum4(v);
#pragma unroll
  for (ushort mask = 1; mask < 16; mask *= 2) {
    s += simd_shuffle_xor(s, mask);
  }
  if (lane % 16 == 0) {
    group_sums[q / 16] = s;
  }
}

// Brings the shares of the four lanes of each row together.
METAL_FUNC void put_sums(threadgroup float* rows, thread const float* sums, uint lane) {
#pragma unroll
  for (int half_index = 0; half_index < 2; half_index++) {
    float s = sums[half_index];
    s += simd_shuffle_xor(s, ushort(1));
    s += simd_shuffle_xor(s, ushort(2));
    if (lane % 4 == 0) {
      rows[half_index * 8 + lane / 4] = s;
    }
  }
}

// One block of 16 rows, on its way: this lane's 32 columns of two rows, and their two groups' scales, or biases in every fourth lane.
struct RowBlock {
  uint4 upper;
  uint4 lower;
  uint upper_factors;
  uint lower_factors;

  METAL_FUNC void clear() {
    upper = uint4(0);
    lower = uint4(0);
    upper_factors = 0;
    lower_factors = 0;
  }

  METAL_FUNC void load(Matrix w, ulong row, ulong row_below, uint block, uint k, uint lane) {
    const uint column = block * kBlock + lane % 4 * 32;
    upper = uint4(0);
    lower = uint4(0);
    if (column < k) {
      upper = *(device const uint4*)(w.codes + row * (k / 2) + column / 2);
      lower = *(device const uint4*)(w.codes + row_below * (k / 2) + column / 2);
    }
    device const ushort* factors = (device const ushort*)(lane % 4 == 3 ? w.biases : w.scales) + block * 2;
    const uint groups = k / kGroup;
    if (groups % 2 == 0) {
      upper_factors = *(device const uint*)(factors + row * groups);
      lower_factors = *(device const uint*)(factors + row_below * groups);
    } else {
      upper_factors = factors[row * groups];
      lower_factors = factors[row_below * groups];
      if (block * 2 + 1 < groups) {
        upper_factors |= uint(factors[row * groups + 1]) << 16;
        lower_factors |= uint(factors[row_below * groups + 1]) << 16;
      }
    }
  }
};

// The parts of the vector for one block, as this lane needs them.
METAL_FUNC void load_parts(thread uint4* parts, threadgroup const uint2* xs, uint block, uint lane) {
  const uint vector = lane / 4;
  const uint part = lane % 4 < 2 ? vector : vector - kParts;
#pragma unroll
  for (uint word = 0; word < 4; word++) {
    parts[word] = uint4(0);
    if (part < kParts) {
      parts[word] = *(threadgroup const uint4*)(xs + ((block * 4 + word) * kParts + part) * 8 + lane % 4 * 2);
    }
  }
}

// sums[0] and sums[1] += this lane's share of the block's products with its two rows; the shares of the four lanes of a row make up the sum.
METAL_FUNC void multiply_block(thread float* sums, thread const RowBlock& b, thread const uint4* parts, float2 group_sums, uint lane) {
  mt::tile<float> d[2];
  mt::fill(d[0], 0.0f);
  mt::fill(d[1], 0.0f);
#pragma unroll
  for (int word = 0; word < 4; word++) {
    mt::tile<bfloat> codes[2];
    mt::tile<bfloat> vectors[2];
    mt::unpack_codes(codes, b.upper[word], b.lower[word]);
    mt::unpack_vectors(vectors, parts[word]);
    mt::multiply_vectors(d[0], codes[0], vectors[0]);
    mt::multiply_vectors(d[1], codes[1], vectors[1]);
  }
  float even[4];
  float odd[4];
  mt::vector_sums(even, d[0]);
  mt::vector_sums(odd, d[1]);
  const uint owner = lane % 4;
#pragma unroll
  for (int half_index = 0; half_index < 2; half_index++) {
    const float2 factors = bfloat_pair(half_index == 0 ? b.upper_factors : b.lower_factors);
    // lane 0 has parts 0 and 1 of the first group, lane 1 part 2 and the second group's part 0, lane 2 the rest, lane 3 no parts, but the biases
    const float first = owner == 3 ? group_sums.x : even[half_index * 2] + odd[half_index * 2];
    const float second = owner == 3 ? group_sums.y : even[half_index * 2 + 1] + odd[half_index * 2 + 1];
    sums[half_index] = fma(owner == 2 ? factors.y : factors.x, first, fma(owner == 0 ? factors.x : factors.y, second, sums[half_index]));
  }
}
