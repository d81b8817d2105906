// y = RMS(x) * W^T in float for the rows of a chunk: the router's product, which must not lose what bfloat loses. 8-bit weights; the arguments of gemv_norm.
//
// A number of the input goes through the matrix units as three bfloats whose sum it is; a code less 128 is a bfloat, and a group's scale and bias join in
// float where its sum is done. A threadgroup makes BM rows by 256 columns, a simdgroup BM by 32. A sum runs along k in one order whatever the rows and BM
// are, and the root mean square multiplies it at the end.
#include "include/tile.h"
#include "include/weights.h"

// x is normed already (the norm was a dispatch of its own).
constant bool kNormedInput [[function_constant(1)]];

// Two codes, less 128, as bfloats: a code in the mantissa of 2^23 is 2^23 + code.
METAL_FUNC uint code_pair(uint word) {
  const float low = as_type<float>((word & 0xff) | 0x4b000000u) - 8388736.0f;
  const float high = as_type<float>(((word >> 8) & 0xff) | 0x4b000000u) - 8388736.0f;
  return (as_type<uint>(low) >> 16) | (as_type<uint>(high) & 0xffff0000u);
}

// Adds a number of each of `lanes` neighbouring lanes, in the same order whatever was added before.
METAL_FUNC float sum_of_lanes(float v, ushort first, ushort lanes) {
#pragma unroll
  for (ushort mask = first; mask < lanes; mask *= 2) {
    v += simd_shuffle_xor(v, mask);
  }
  return v;
}

// Grid (column tiles of all matrices, row tiles).
template <uint BM>
[[kernel, max_total_threads_per_threadgroup(256)]] void router(
    device const float* x [[buffer(0)]],       // [m, k] residual stream
    device const float* norm [[buffer(1)]],    // [k]
    device const uchar* codes0 [[buffer(2)]],
    device const uchar* scales0 [[buffer(3)]],
    device const uchar* biases0 [[buffer(4)]],
    device const uchar* codes1 [[buffer(5)]],
    device const uchar* scales1 [[buffer(6)]],
    device const uchar* biases1 [[buffer(7)]],
    device const uchar* codes2 [[buffer(8)]],
    device const uchar* scales2 [[buffer(9)]],
    device const uchar* biases2 [[buffer(10)]],
    device const uchar* codes3 [[buffer(11)]],
    device const uchar* scales3 [[buffer(12)]],
    device const uchar* biases3 [[buffer(13)]],
    device float* y0 [[buffer(14)]],
    device float* y1 [[buffer(15)]],
    device float* y2 [[buffer(16)]],
    device float* y3 [[buffer(17)]],
    device const StepState* step [[buffer(18)]],
    constant GemvParams& p [[buffer(19)]],
    uint2 tg [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint sg [[simdgroup_index_in_threadgroup]]) {
  constexpr uint BN = 256;
  constexpr uint DEPTH = 32;  // columns staged at a time: half a group
  constexpr uint PITCH = DEPTH + 8;  // padded, against bank conflicts
  constexpr int PARTS = 3;
  constexpr int TM = BM / 16;
  constexpr uint LANES = 256 / BM;          // threads of an input row
  constexpr int PAIRS = DEPTH / LANES / 2;  // pairs of columns of each
  alignas(16) threadgroup bfloat xs[PARTS][BM][PITCH];
  alignas(16) threadgroup bfloat ws[BN][PITCH];
  threadgroup float group_sums[BM];
  threadgroup uint factors[BN];  // a scale in the lower half, a bias in the upper
  threadgroup float inverses[BM];

  uint segment = 0;
  uint start = 0;
  while (segment + 1 < p.segments && tg.x >= p.block_end[segment]) {
    start = p.block_end[segment];
    segment++;
  }
  const Matrix w = segment == 0   ? matrix(codes0, scales0, biases0)
                   : segment == 1 ? matrix(codes1, scales1, biases1)
                   : segment == 2 ? matrix(codes2, scales2, biases2)
                                  : matrix(codes3, scales3, biases3);
  const uint rows = p.rows[segment];
  const uint n0 = (tg.x - start) * BN;
  const uint m0 = tg.y * BM;
  const bool live = n0 + sg * 32 < rows;  // a simdgroup without columns stages inputs only
  // a thread stages a few columns of one row of the input, and a row of the weights
  const uint x_row = tid / LANES;
  const uint x_column = tid % LANES * (2 * PAIRS);
  device const float2* my_x = (device const float2*)(x + ulong(min(m0 + x_row, p.m - 1)) * p.k + x_column);
  device const float2* my_norm = (device const float2*)(norm + x_column);
  const ulong w_row = min(n0 + tid, rows - 1);
  device const uint4* my_codes = (device const uint4*)(w.codes + w_row * p.k);
  device const ushort* my_scales = (device const ushort*)w.scales + w_row * (p.k / kGroup);
  device const ushort* my_biases = (device const ushort*)w.biases + w_row * (p.k / kGroup);

  mt::tile<float> acc[TM][2];
  mt::tile<float> part[TM][2];
#pragma unroll
  for (int i = 0; i < TM; i++) {
#pragma unroll
    for (int j = 0; j < 2; j++) {
      mt::fill(acc[i][j], 0.0f);
      mt::fill(part[i][j], 0.0f);
    }
  }
  float square = 0.0f;
  float total = 0.0f;  // of this thread's columns of a group
  float2 next_x[PAIRS];
  float2 next_norm[PAIRS];
#pragma unroll
  for (int i = 0; i < PAIRS; i++) {
    next_x[i] = my_x[i];
    next_norm[i] = kNormedInput ? float2(1.0f) : my_norm[i];
  }
  uint4 next_codes[2] = {my_codes[0], my_codes[1]};
  uint next_factors = uint(my_scales[0]) | (uint(my_biases[0]) << 16);
  for (uint k0 = 0; k0 < p.k; k0 += DEPTH) {
    const bool group_ends = (k0 & DEPTH) != 0;
    float2 sums = float2(0.0f);  // of four columns: their squares, and they themselves
#pragma unroll
    for (int i = 0; i < PAIRS; i++) {
      float2 rest = next_x[i] * next_norm[i];
      sums += float2(fma(next_x[i].x, next_x[i].x, next_x[i].y * next_x[i].y), rest.x + rest.y);
#pragma unroll
      for (int h = 0; h < PARTS; h++) {
        const uint word = pack_bfloats(rest.x, rest.y);
        *(threadgroup uint*)&xs[h][x_row][x_column + 2 * i] = word;
        rest -= bfloat_pair(word);
      }
    }
    if (PAIRS == 1) {
      sums += simd_shuffle_xor(sums, ushort(1));
    }
    square += sums.x;
    total = group_ends ? total + sums.y : sums.y;
    if (live) {  // a simdgroup stages the weights that it multiplies
#pragma unroll
      for (int i = 0; i < 2; i++) {
#pragma unroll
        for (int c = 0; c < 2; c++) {
          const uint first = next_codes[i][c * 2];
          const uint second = next_codes[i][c * 2 + 1];
          *(threadgroup uint4*)&ws[tid][i * 16 + c * 8] =
              uint4(code_pair(first), code_pair(first >> 16), code_pair(second), code_pair(second >> 16));
        }
      }
    }
    if (group_ends) {
      const float sum = sum_of_lanes(total, 2 / PAIRS, LANES);
      if (tid % LANES == 0) {
        group_sums[x_row] = sum;
      }
      factors[tid] = next_factors;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (k0 + DEPTH < p.k) {
      const uint k = k0 + DEPTH;
#pragma unroll
      for (int i = 0; i < PAIRS; i++) {
        next_x[i] = my_x[k / 2 + i];
        next_norm[i] = kNormedInput ? float2(1.0f) : my_norm[k / 2 + i];
      }
      next_codes[0] = my_codes[k / 16];
      next_codes[1] = my_codes[k / 16 + 1];
      next_factors = uint(my_scales[k / kGroup]) | (uint(my_biases[k / kGroup]) << 16);
    }
    if (live) {
#pragma unroll
      for (int kk = 0; kk < int(DEPTH); kk += 16) {
        mt::tile<bfloat> b0;
        mt::tile<bfloat> b1;
        mt::load_nk(b0, &ws[sg * 32][kk], PITCH);
        mt::load_nk(b1, &ws[sg * 32 + 16][kk], PITCH);
#pragma unroll
        for (int h = PARTS - 1; h >= 0; h--) {
#pragma unroll
          for (int i = 0; i < TM; i++) {
            mt::tile<bfloat> a;
            mt::load(a, &xs[h][i * 16][kk], PITCH);
            mt::multiply(part[i][0], part[i][1], a, b0, b1);
          }
        }
      }
      if (group_ends) {
#pragma unroll
        for (int j = 0; j < 2; j++) {
#pragma unroll
          for (int e = 0; e < 8; e++) {
            const float2 factor = bfloat_pair(factors[sg * 32 + j * 16 + mt::column(e)]);
#pragma unroll
            for (int i = 0; i < TM; i++) {
              const float sum = group_sums[i * 16 + mt::row(e)];
              const float offset = fma(128.0f, factor.x, factor.y);
              acc[i][j].set(e, fma(factor.x, part[i][j].get(e), fma(offset, sum, acc[i][j].get(e))));
              part[i][j].set(e, 0.0f);
            }
          }
        }
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  square = sum_of_lanes(square, 2 / PAIRS, LANES);
  if (tid % LANES == 0) {
    inverses[x_row] = kNormedInput ? 1.0f : rsqrt(square / float(p.k) + p.eps);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  device float* y = segment == 0 ? y0 : segment == 1 ? y1 : segment == 2 ? y2 : y3;
#pragma unroll
  for (int i = 0; i < TM; i++) {
#pragma unroll
    for (int j = 0; j < 2; j++) {
#pragma unroll
      for (int e = 0; e < 8; e++) {
        const uint r = i * 16 + mt::row(e);
        const uint c = n0 + sg * 32 + j * 16 + mt::column(e);
        if (m0 + r < p.m && c < rows) {
          y[ulong(m0 + r) * p.y_stride[segment] + c] = acc[i][j].get(e) * inverses[r];
        }
      }
    }
  }
}

template [[host_name("router_q8_16")]] [[kernel]]
decltype(router<16>) router<16>;
template [[host_name("router_q8_32")]] [[kernel]]
decltype(router<32>) router<32>;
