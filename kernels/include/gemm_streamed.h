// The main loop of the matrix products for GPUs that copy into threadgroup memory beside their arithmetic.
//
// Inputs and packed 4-bit weights pass through a ring of STAGES slabs of 32 columns; a simdgroup expands its own weights straight into left operands, so
// the product is made transposed.
// Nothing expanded is stored, and one barrier a slab is enough. Both addresses of a copy must be multiples of 16 bytes: weights are, where they were
// copied to the device rather than mapped.
#pragma once
#include "copy.h"
#include "gemm.h"

constant constexpr int SLAB = 32;  // columns; half a group

// What one thread copies: the same rows of the input and of the weights all along k.
template <int BM, int BN, int THREADS, bool PAIR>
struct Stream {
  static constant constexpr int ROW_COPIES = (BM * 4 + THREADS - 1) / THREADS;
  static constant constexpr int CODE_COPIES = (BN + THREADS - 1) / THREADS;
  device const uint4* row[ROW_COPIES];
  device const uint4* codes[CODE_COPIES];
  device const ushort* scales[CODE_COPIES];
  device const ushort* biases[CODE_COPIES];
  uint present;     // bit i: copy i of the input exists; bit 16 + i: copy i of the weights
  uint factor[CODE_COPIES];  // of the next group, on their way

  METAL_FUNC void begin(device const bfloat* x, threadgroup const uint* sources, Matrix w, Matrix up, ulong base, uint first, uint rows, uint k, uint tid) {
    present = 0;
#pragma unroll
    for (int i = 0; i < ROW_COPIES; i++) {
      const uint u = i * THREADS + tid;
      const uint source = u < BM * 4 ? sources[u / 4] : kNoRow;
      present |= source != kNoRow ? 1u << i : 0u;
      row[i] = (device const uint4*)(x + (source != kNoRow ? ulong(source) * k + u % 4 * 8 : 0));
    }
#pragma unroll
    for (int i = 0; i < CODE_COPIES; i++) {
      const uint r = i * THREADS + tid;
      const bool is_up = PAIR && (r & 16) != 0;
      const uint n = first + (PAIR ? (r / 32) * 16 + r % 16 : r);
      const bool inside = r < BN && n < rows;
      const ulong at = inside ? base + n : base;
      present |= inside ? 0x10000u << i : 0u;
      codes[i] = (device const uint4*)((is_up ? up.codes : w.codes) + at * (k / 2));
      scales[i] = (device const ushort*)(is_up ? up.scales : w.scales) + at * (k / kGroup);
      biases[i] = (device const ushort*)(is_up ? up.biases : w.biases) + at * (k / kGroup);
    }
  }

  // Slab `slab` into its place of the ring.
  METAL_FUNC void copy(threadgroup uint4* xs, threadgroup uint4* ws, uint slab, uint place, uint tid) {
#pragma unroll
    for (int i = 0; i < ROW_COPIES; i++) {
      const uint u = i * THREADS + tid;
      if (BM * 4 % THREADS == 0 || u < BM * 4) {
        copy_16(xs + place * (BM * 4) + u, row[i] + slab * 4, ((present >> i) & 1) != 0);
      }
    }
#pragma unroll
    for (int i = 0; i < CODE_COPIES; i++) {
      const uint r = i * THREADS + tid;
      if (BN % THREADS == 0 || r < BN) {
        copy_16(ws + place * BN + r, codes[i] + slab, ((present >> (16 + i)) & 1) != 0);
      }
    }
  }

  METAL_FUNC void fetch_factors(uint group) {
#pragma unroll
    for (int i = 0; i < CODE_COPIES; i++) {
      factor[i] = 0;
      if (((present >> (16 + i)) & 1) != 0) {
        factor[i] = uint(scales[i][group]) | (uint(biases[i][group]) << 16);
      }
    }
  }

  METAL_FUNC void put_factors(threadgroup uint* factors, uint group, uint tid) {
#pragma unroll
    for (int i = 0; i < CODE_COPIES; i++) {
      const uint r = i * THREADS + tid;
      if (BN % THREADS == 0 || r < BN) {
        factors[(group & 1) * BN + r] = factor[i];
      }
    }
  }
};

// acc[i][j] += rows [i * 16, +16) of the weights times rows [j * 16, +16) of the input, over one slab; j counts in pairs.
template <int TN, int TM>
METAL_FUNC void multiply_slab(thread mt::tile<float> (&acc)[TN][TM], threadgroup const bfloat* xs, threadgroup const uint* codes,
                              threadgroup const uint* factors) {
  mt::tile<bfloat> x[TM][2];
#pragma unroll
  for (int j = 0; j < TM; j++) {
    mt::load_slab_nk(x[j], xs + j * 16 * SLAB, SLAB);
  }
#pragma unroll
  for (int i = 0; i < TN; i++) {
    mt::tile<bfloat> w[2];
    mt::load_codes(w, codes + i * 64, factors + i * 16);
#pragma unroll
    for (int h = 0; h < 2; h++) {
#pragma unroll
      for (int j = 0; j < TM; j += 2) {
        mt::multiply(acc[i][j], acc[i][j + 1], w[h], x[j][h], x[j + 1][h]);
      }
    }
  }
}

// acc = w * x^T over all of k, for the rows `sources` of x and the weights [first, first + BN) behind row `base`: acc[i][j] is weights i against inputs
// j. A PAIR has 16 rows of the gate and the same 16 rows of the up matrix in turn, so that a column's two sums lie in the same place of two tiles. A
// simdgroup that is not `live` only copies.
//
// xs: [STAGES, BM, SLAB] bfloats, ws: [STAGES, BN, SLAB] codes, factors: [2, BN], by the parity of the group.
template <int BM, int BN, int THREADS, int STAGES, bool PAIR, int TN, int TM>
METAL_FUNC void multiply_streamed(thread mt::tile<float> (&acc)[TN][TM], threadgroup uint4* xs, threadgroup uint4* ws, threadgroup uint* factors,
                                  device const bfloat* x, threadgroup const uint* sources, Matrix w, Matrix up, ulong base, uint first, uint rows,
                                  uint k, uint sm, uint sn, bool live, uint tid) {
  static_assert(TM >= 2 && TM % 2 == 0 && TN >= (PAIR ? 2 : 1), "inputs are multiplied in pairs of tiles");
#pragma unroll
  for (int i = 0; i < TN; i++) {
#pragma unroll
    for (int j = 0; j < TM; j++) {
      mt::fill(acc[i][j], 0.0f);
    }
  }
  Stream<BM, BN, THREADS, PAIR> stream;
  const uint slabs = k / SLAB;
  stream.begin(x, sources, w, up, base, first, rows, k, tid);
  stream.fetch_factors(0);
#pragma unroll
  for (int s = 0; s < STAGES - 1; s++) {
    if (uint(s) < slabs) {
      stream.copy(xs, ws, s, s, tid);
    }
    copies_commit();
  }
  stream.put_factors(factors, 0, tid);
  uint place = 0;
  uint next = STAGES - 1;
  for (uint slab = 0; slab < slabs; slab += 2) {
    const uint group = slab / 2;
#pragma unroll
    for (int h = 0; h < 2; h++) {
      copies_wait<STAGES - 2>();
      threadgroup_barrier(mem_flags::mem_threadgroup);
      if (slab + h + STAGES - 1 < slabs) {
        stream.copy(xs, ws, slab + h + STAGES - 1, next, tid);
      }
      copies_commit();
      // the next group's factors have a slab's time to arrive
      if (slab + 2 < slabs) {
        if (h == 0) {
          stream.fetch_factors(group + 1);
        } else {
          stream.put_factors(factors, group + 1, tid);
        }
      }
      if (live) {
        multiply_slab<TN, TM>(acc, (threadgroup const bfloat*)(xs + place * (BM * 4)) + sm * SLAB, (threadgroup const uint*)(ws + place * BN + sn),
                              factors + (group & 1) * BN + sn);
      }
      place = place + 1 == STAGES ? 0 : place + 1;
      next = next + 1 == STAGES ? 0 : next + 1;
    }
  }
}
