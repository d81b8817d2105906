// Products of packed 4-bit matrices with one vector, as gemv_tiles.h has them, for columns that are known when the kernel is compiled: codes lie in
// threadgroup memory, where copies put them that began before the vector was there, and take few instructions to become operands.
//
// A threadgroup has eight simdgroups and makes 16 rows at a time. A block is 128 columns; simdgroup s takes blocks s, s + 8, ... Codes reach the matrix units
// as 128 + code, so 128 times the sum of the vector is taken away again (`block_offsets`).
#pragma once
#include "copy.h"
#include "gemv_tiles.h"

constant constexpr uint kWarps = 8;
constant constexpr uint kFactorPitch = 5;  // uint4s from one row's scales to the next; padded, against bank conflicts

// Where the parts of octet o (columns 8 o to 8 o + 7) of the vector go: [block][word of a lane's four][part][lane & 3].
METAL_FUNC uint part_octet(uint o, uint part) { return ((o / 16 * 4 + o % 4) * kParts + part) * 4 + o % 16 / 4; }

// Octet o of the vector and, together with seven other lanes, the sum of its group.
METAL_FUNC void stage_octet(threadgroup uint4* xs, threadgroup float* group_sums, uint o, float4 a, float4 b, uint lane) {
  float s = sum4(a) + sum4(b);
#pragma unroll
  for (uint part = 0; part < kParts; part++) {
    const uint2 first = pack_bfloats(a);
    const uint2 second = pack_bfloats(b);
    xs[part_octet(o, part)] = mt::raised_order(uint4(first, second));
    a -= bfloat_quad(first);
    b -= bfloat_quad(second);
  }
#pragma unroll
  for (ushort mask = 1; mask < 8; mask *= 2) {
    s += simd_shuffle_xor(s, mask);
  }
  if (lane % 8 == 0) {
    group_sums[o / 8] = s;
  }
}

// The parts of the vector for one block, as this lane needs them.
METAL_FUNC void load_octets(thread uint4* parts, threadgroup const uint4* xs, uint block, uint lane) {
  const uint vector = lane / 4;
  const uint part = lane % 4 < 2 ? vector : vector - kParts;
#pragma unroll
  for (uint word = 0; word < 4; word++) {
    parts[word] = part < kParts ? xs[((block * 4 + word) * kParts + part) * 4 + lane % 4] : uint4(0);
  }
}

// What a lane adds to the sums of a block's two groups: lane 1 of a row takes the 128s away, lane 3 has the biases.
METAL_FUNC float2 block_offsets(threadgroup const float* group_sums, uint block, uint lane) {
  const float factor = lane % 4 == 1 ? -128.0f : lane % 4 == 3 ? 1.0f : 0.0f;
  return float2(group_sums[block * 2], group_sums[block * 2 + 1]) * factor;
}

// d[0] and d[1] += the products of a lane's 32 columns of two rows.
METAL_FUNC void multiply_raised(thread mt::tile<float> (&d)[2], uint4 upper, uint4 lower, thread const uint4* parts) {
#pragma unroll
  for (int word = 0; word < 4; word++) {
    mt::tile<bfloat> codes[2];
    mt::tile<bfloat> vectors[2];
    mt::unpack_raised_codes(codes, upper[word], lower[word]);
    mt::unpack_vectors(vectors, parts[word]);
    mt::multiply_vectors(d[0], codes[0], vectors[0]);
    mt::multiply_vectors(d[1], codes[1], vectors[1]);
  }
}

// sums[0] and sums[1] += this lane's share of the block's products with its two rows. `factors` are the two groups' scales of the two rows, or their biases
// in every fourth lane.
METAL_FUNC void add_block(thread float* sums, uint4 upper, uint4 lower, uint2 factors, thread const uint4* parts, float2 offsets, uint lane) {
  mt::tile<float> d[2];
  mt::fill(d[0], 0.0f);
  mt::fill(d[1], 0.0f);
  multiply_raised(d, upper, lower, parts);
  float even[4];
  float odd[4];
  mt::vector_sums(even, d[0]);
  mt::vector_sums(odd, d[1]);
  const uint owner = lane % 4;
#pragma unroll
  for (int half_index = 0; half_index < 2; half_index++) {
    const float2 f = bfloat_pair(factors[half_index]);
    // lane 0 has parts 0 and 1 of the first group, lane 1 part 2 and the second group's part 0, lane 2 the rest, lane 3 no parts, but the biases
    const float first = even[half_index * 2] + odd[half_index * 2] + offsets.x;
    const float second = even[half_index * 2 + 1] + odd[half_index * 2 + 1] + offsets.y;
    sums[half_index] = fma(owner == 2 ? f.y : f.x, first, fma(owner == 0 ? f.x : f.y, second, sums[half_index]));
  }
}

// 16 rows of a matrix of 2048 columns: codes in the order in which threads use them, [4][256] uint4s.
METAL_FUNC void copy_codes_2048(threadgroup uint4* to, device const uchar* codes, ulong row, ulong row_below, uint tid) {
  const uint at = tid / 32 * 4 + tid % 4;
  device const uint4* upper = (device const uint4*)codes + row * 64 + at;
  device const uint4* lower = (device const uint4*)codes + row_below * 64 + at;
  copy_16(to + tid, upper, true);
  copy_16(to + 256 + tid, lower, true);
  copy_16(to + 512 + tid, upper + 32, true);
  copy_16(to + 768 + tid, lower + 32, true);
}

// The scales, or the biases, of one row of 2048 columns: a quarter of it, to [16][kFactorPitch] uint4s.
METAL_FUNC void copy_factors_2048(threadgroup uint4* to, device const uchar* factors, uint row_here, ulong row, uint quarter) {
  copy_16(to + row_here * kFactorPitch + quarter, (device const uint4*)factors + row * 4 + quarter, true);
}

// sums += this thread's share of two rows of 2048 columns, which the copies above have brought.
METAL_FUNC void add_rows_2048(thread float* sums, threadgroup const uint4* codes, threadgroup const uint4* scales, threadgroup const uint4* biases, thread const uint4* parts, thread const float2* offsets, uint tid, uint lane, uint sg) {
  threadgroup const uint* factors = (threadgroup const uint*)(lane % 4 == 3 ? biases : scales) + lane / 4 * (kFactorPitch * 4) + sg;
#pragma unroll
  for (uint d = 0; d < 2; d++) {
    const uint2 f = uint2(factors[d * kWarps], factors[8 * kFactorPitch * 4 + d * kWarps]);
    add_block(sums, codes[d * 512 + tid], codes[d * 512 + 256 + tid], f, parts + d * 4, offsets[d], lane);
  }
}
