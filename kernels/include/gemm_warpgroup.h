// The main loop of the matrix products for GPUs whose simdgroups multiply by fours (warpgroup.h): 128 rows of 4-bit weights by T rows of the input.
//
// Slabs of 64 columns, a group of the weights, pass through a ring in threadgroup memory. A warpgroup expands the 64 rows of weights that are its own into
// left operands, those of the next slab while this one's products run, so that nothing expanded is stored. As in gemm_streamed.h the product is made
// transposed.
#pragma once
#include "copy.h"
#include "gemm.h"
#include "warpgroup.h"

constant constexpr uint WARPGROUP_THREADS = 256;
constant constexpr uint WARPGROUP_WEIGHTS = 128;

// What one thread copies, and where the ring stands.
template <int T, int STAGES>
struct WarpgroupStream {
  // a place of the ring: the input's panel, then the codes, [2, WARPGROUP_WEIGHTS]
  static constant constexpr uint PLACE = T * 8 + 2 * WARPGROUP_WEIGHTS;
  static constant constexpr int AHEAD = STAGES - 2;  // a place is free when the slab after its own is being multiplied
  static constant constexpr uint COPIED = WARPGROUP_THREADS / 8;
  threadgroup uint4* memory;
  device const uint4* x;
  uint offset[T / COPIED];    // of this thread's part of its rows, in uint4s
  uint present;               // bit i: row i is there; bit 31: so are the codes
  device const uint4* codes;  // half of a row's codes of a slab
  uint slabs;
  uint tid;
  uint next;  // where the next slab goes

  METAL_FUNC void copy(uint slab) {
    threadgroup uint4* to = memory + next * PLACE;
    next = next + 1 == STAGES ? 0 : next + 1;
    if (slab < slabs) {
#pragma unroll
      for (uint i = 0; i < T / COPIED; i++) {
        copy_16(to + wg::panel_place(T, i * COPIED + tid / 8, tid % 8), x + (offset[i] + slab * 8), ((present >> i) & 1) != 0);
      }
      copy_16(to + T * 8 + tid, codes + slab * 2, (present >> 31) != 0);
    }
    copies_commit();
  }

  // Slab `slab` is there for all; one more is on its way.
  METAL_FUNC void arrive(uint slab) {
    copies_wait<AHEAD - 1>();
    wg::see_copies();
    threadgroup_barrier(mem_flags::mem_threadgroup);
    copy(slab + AHEAD);
  }
};

// The factors of a lane's two rows for two slabs: those of the even one in the lower halves.
struct RowFactors {
  device const uint* scales[2];
  device const uint* biases[2];
  uint scale[2];
  uint bias[2];

  METAL_FUNC void begin(Matrix w, ulong base, uint first, uint rows, uint k) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const ulong at = (base + min(first + h * 8, rows - 1)) * (k / 128);
      scales[h] = (device const uint*)w.scales + at;
      biases[h] = (device const uint*)w.biases + at;
    }
    fetch(0);
  }
  METAL_FUNC void fetch(uint pair) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
      scale[h] = scales[h][pair];
      bias[h] = biases[h][pair];
    }
  }
  METAL_FUNC uint even(int h) { return (scale[h] & 0xffffu) | (bias[h] << 16); }
  METAL_FUNC uint odd(int h) { return (scale[h] >> 16) | (bias[h] & 0xffff0000u); }
};

// acc = w * x^T over all of k, a multiple of 128, for the rows `sources` of x and 128 rows of weights behind row `base`: [first, first + 128), or, for a PAIR,
// the rows [first, first + 64) of the gate by the first warpgroup and of the up matrix by the second. acc[j] is 16 rows of weights against inputs j.
// memory: STAGES places of the ring.
template <int T, int STAGES, bool PAIR>
METAL_FUNC void multiply_warpgroups(thread mt::tile<float> (&acc)[T / 16], threadgroup uint4* memory, device const bfloat* x,
                                    threadgroup const uint* sources, Matrix w, Matrix up, ulong base, uint first, uint rows, uint k, uint tid,
                                    uint sg) {
  WarpgroupStream<T, STAGES> stream;
  stream.memory = memory;
  stream.x = (device const uint4*)x;
  stream.present = 0;
#pragma unroll
  for (uint i = 0; i < T / stream.COPIED; i++) {
    const uint source = sources[i * stream.COPIED + tid / 8];
    stream.offset[i] = (source != kNoRow ? source * (k / 8) : 0) + tid % 8;
    stream.present |= source != kNoRow ? 1u << i : 0u;
  }
  const uint r = tid % WARPGROUP_WEIGHTS;
  const uint n = first + (PAIR ? r % 64 : r);
  stream.present |= n < rows ? 1u << 31 : 0u;
  stream.codes = (device const uint4*)((PAIR && r >= 64 ? up.codes : w.codes) + (base + (n < rows ? n : 0)) * (k / 2)) + tid / WARPGROUP_WEIGHTS;
  stream.slabs = k / 64;
  stream.tid = tid;
  stream.next = 0;
  RowFactors factors;
  const bool second = PAIR && sg >= 4;
  const Matrix mine = {second ? up.codes : w.codes, second ? up.scales : w.scales, second ? up.biases : w.biases};
  factors.begin(mine, base, first + (PAIR ? sg % 4 : sg) * 16 + mt::first_row(), rows, k);

#pragma unroll
  for (int j = 0; j < T / 16; j++) {
    mt::fill(acc[j], 0.0f);
  }
#pragma unroll
  for (int s = 0; s < stream.AHEAD; s++) {
    stream.copy(s);
  }
  uint place = 0;
  const uint my_codes = T * 8 + sg * 16;
  mt::tile<bfloat> even[4];
  mt::tile<bfloat> odd[4];
  stream.arrive(0);
  mt::load_codes_in_order(even, memory + my_codes, WARPGROUP_WEIGHTS, factors.even(0), factors.even(1));
  for (uint slab = 0; slab < stream.slabs; slab += 2) {
    threadgroup const uint4* this_place = memory + place * stream.PLACE;
    place = place + 1 == STAGES ? 0 : place + 1;
    threadgroup const uint4* next_place = memory + place * stream.PLACE;
    place = place + 1 == STAGES ? 0 : place + 1;
    wg::begin(acc, even);
#pragma unroll
    for (int b = 0; b < 4; b++) {
      wg::multiply_left(acc, even[b], this_place, b * 16);
    }
    wg::commit();
    // expanded while the slab before it is multiplied
    stream.arrive(slab + 1);
    mt::load_codes_in_order(odd, next_place + my_codes, WARPGROUP_WEIGHTS, factors.odd(0), factors.odd(1));
    wg::begin(odd);
#pragma unroll
    for (int b = 0; b < 4; b++) {
      wg::multiply_left(acc, odd[b], next_place, b * 16);
    }
    wg::commit();
    wg::wait<1>(even);
    if (slab + 2 < stream.slabs) {
      factors.fetch(slab / 2 + 1);
      stream.arrive(slab + 2);
      mt::load_codes_in_order(even, memory + place * stream.PLACE + my_codes, WARPGROUP_WEIGHTS, factors.even(0), factors.even(1));
    }
    // no compiler lets products run on where a loop begins anew
    wg::wait<0>(acc);
  }
}

// Sums on their way out, [T, SUM_PITCH] floats where the ring was: a row of the output lies in as many lanes as there are rows in a tile, and would be
// written two bytes at a time. Of a PAIR, the first 64 columns are the gate's.
constant constexpr uint SUM_PITCH = WARPGROUP_WEIGHTS + 4;  // padded, against bank conflicts

template <int T>
METAL_FUNC void put_sums(thread mt::tile<float> (&acc)[T / 16], threadgroup float* sums, uint sg) {
  threadgroup_barrier(mem_flags::mem_threadgroup);  // the ring has been read
#pragma unroll
  for (int j = 0; j < T / 16; j++) {
#pragma unroll
    for (int e = 0; e < 8; e++) {
      sums[(j * 16 + mt::column(e)) * SUM_PITCH + sg * 16 + mt::row(e)] = acc[j].get(e);
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
}

// silu(gate) * up of four columns of a row.
METAL_FUNC float4 joined(threadgroup const float* row, uint column) {
  const float4 gate = *(threadgroup const float4*)(row + column);
  const float4 up = *(threadgroup const float4*)(row + WARPGROUP_WEIGHTS / 2 + column);
  return float4(silu(gate.x), silu(gate.y), silu(gate.z), silu(gate.w)) * up;
}

// Four numbers of an output of floats or of bfloats, of which `there` are inside; with `add` it is of floats, and added to. Whole, they lie at a multiple of
// four numbers.
METAL_FUNC void store_four(device uchar* y, ulong at, float4 v, bool whole, uint there, bool as_float, bool add) {
  if (!whole) {
#pragma unroll
    for (uint i = 0; i < 4; i++) {
      if (i < there) {
        store_number(y, at + i, v[i], as_float, add);
      }
    }
  } else if (as_float || add) {
    device float4* to = (device float4*)y + at / 4;
    *to = add ? *to + v : v;
  } else {
    ((device uint2*)y)[at / 4] = pack_bfloats(v);
  }
}
