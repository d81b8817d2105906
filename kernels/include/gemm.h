// Products of many rows with a packed matrix, tile by tile: dequantization into threadgroup memory, multiplication through the tile vocabulary.
#pragma once
#include "tile.h"
#include "weights.h"

constant constexpr uint kNoRow = 0xffffffffu;
constant constexpr int BK = 32;      // columns of the input that are staged at a time: half a group of the tuned forms
constant constexpr int LD = BK + 8;  // padded, against bank conflicts; still a multiple of 16 bytes

// Rows of the input, [BM, BK], into threadgroup memory; a missing row is zero.
template <int BM, int THREADS>
METAL_FUNC void stage_rows(threadgroup bfloat* xs, device const bfloat* x, threadgroup const uint* sources, uint k, uint k0, uint tid) {
  constexpr int PER_ROW = BK / 8;
#pragma unroll
  for (int e = 0; e < BM * PER_ROW; e += THREADS) {
    const uint u = e + tid;
    if (BM * PER_ROW % THREADS == 0 || u < BM * PER_ROW) {
      const uint source = sources[u / PER_ROW];
      uint4 v = uint4(0);
      if (source != kNoRow) {
        v = *(device const uint4*)(x + ulong(source) * k + k0 + (u % PER_ROW) * 8);
      }
      *(threadgroup uint4*)(xs + (u / PER_ROW) * LD + (u % PER_ROW) * 8) = v;
    }
  }
}

// Weights [BN, BK] as bfloat into threadgroup memory. Row r of the tile is row first + r of `w`, or, for a PAIR, 16 rows of the gate and the same 16 rows
// of the up matrix in turn, so that the two lie in the two accumulators of one multiplication.
template <int BITS, int BN, int THREADS, bool PAIR>
METAL_FUNC void stage_weights(threadgroup bfloat* ws, Matrix w, Matrix up, ulong base, uint first, uint rows, uint k, uint k0,
                              constant Encoding& e, constant Encoding& e_up, uint tid) {
  constexpr int UNITS = Packed<BITS>::units;
  constexpr int PER_ROW = BK / 16 / UNITS;
#pragma unroll
  for (int i = 0; i < BN * PER_ROW; i += THREADS) {
    const uint unit = i + tid;
    if (BN * PER_ROW % THREADS == 0 || unit < BN * PER_ROW) {
      const uint r = unit / PER_ROW;
      const uint column = (unit % PER_ROW) * 16 * UNITS;
      const bool is_up = PAIR && (r & 16) != 0;
      const uint row = first + (PAIR ? (r / 32) * 16 + r % 16 : r);
      threadgroup uint4* out = (threadgroup uint4*)(ws + r * LD + column);
      if (row < rows) {
        typename Packed<BITS>::Unit u;
        float4 v[UNITS * 4];
        if (is_up) {
          Packed<BITS>::load(u, up, base + row, k0 + column, k, e_up);
        } else {
          Packed<BITS>::load(u, w, base + row, k0 + column, k, e);
        }
        Packed<BITS>::expand(u, v);
#pragma unroll
        for (int j = 0; j < UNITS * 2; j++) {
          const uint2 low = pack_bfloats(v[2 * j]);
          const uint2 high = pack_bfloats(v[2 * j + 1]);
          out[j] = uint4(low.x, low.y, high.x, high.y);
        }
      } else {
#pragma unroll
        for (int j = 0; j < UNITS * 2; j++) {
          out[j] = uint4(0);
        }
      }
    }
  }
}

// acc[i][j] += rows [i * 16, +16) of xs times rows [j * 16, +16) of ws, over BK columns; j counts in pairs.
template <int TM, int TN>
METAL_FUNC void multiply_staged(thread mt::tile<float> (&acc)[TM][TN], threadgroup const bfloat* xs, threadgroup const bfloat* ws) {
#pragma unroll
  for (int kk = 0; kk < BK; kk += 16) {
    mt::tile<bfloat> a[TM];
#pragma unroll
    for (int i = 0; i < TM; i++) {
      mt::load(a[i], xs + i * 16 * LD + kk, LD);
    }
#pragma unroll
    for (int j = 0; j < TN; j += 2) {
      mt::tile<bfloat> b0;
      mt::tile<bfloat> b1;
      mt::load_nk(b0, ws + j * 16 * LD + kk, LD);
      mt::load_nk(b1, ws + (j + 1) * 16 * LD + kk, LD);
#pragma unroll
      for (int i = 0; i < TM; i++) {
        mt::multiply(acc[i][j], acc[i][j + 1], a[i], b0, b1);
      }
    }
  }
}
