// Products that four neighbouring simdgroups, a warpgroup, make together and that run beside their other arithmetic: 64 rows, 16 to each simdgroup, with
// operands in threadgroup memory. NVIDIA's Hopper has them; elsewhere every simdgroup multiplies its own rows at once.
//
// An operand lies in panels of 64 columns, a panel's rows one after the other, 128 bytes each; `panel_place` says where 16 bytes of it are. Operands begin
// at multiples of 1 KiB, panels have a multiple of 8 rows.
//
//   see_copies()                       // after copies_wait, before the barrier: what was copied may be an operand
//   begin(d), begin(d, p), begin(p)    // d is going to be added to, p to be multiplied
//   multiply_nk<ROWS>(d, a, b, k, add, sg) // d (+)= a * b^T over 16 columns from k on; a's panels have ROWS rows, b's 64, as many as d has columns
//   multiply_left(d, p, b, k)          // d += p * b^T over 16 columns from k on, and 32, 64, 128 or 256 of d, which are b's rows; p is the simdgroup's own
//   multiply_kn<ROWS>(d, p, b, k)      // d += p * b over 16 of b's ROWS rows, from k on, and 256 columns; p is the simdgroup's own
//   commit()                           // what was multiplied since the last commit is one group
//   wait<LATER>(d)                     // this warpgroup's groups are done, but for the LATER latest; d is one of those
//   wait<LATER>(d, made)               // the same, after `made` is computed, which compilers would else put off
#pragma once
#include "tile.h"

namespace wg {
using namespace metal;

constant constexpr int PANEL = 64;

// Where part `part` (eight bfloats) of a row is, in uint4s, in a matrix whose panels have `rows` rows.
METAL_FUNC uint panel_place(uint rows, uint row, uint part) { return (part / 8 * rows + row) * 8 + ((part ^ row) & 7); }

#if TILE_BACKEND == TILE_MMA
METAL_FUNC void see_copies() { ::msl::warpgroup_sees_copies(); }
METAL_FUNC void commit() { ::msl::warpgroup_commit(); }
template <int TN>
METAL_FUNC void begin(thread mt::tile<float> (&d)[TN]) {
  ::msl::pin(d[0].element, TN * 8);
  ::msl::warpgroup_begin();
}
template <int TN, int TK>
METAL_FUNC void begin(thread mt::tile<float> (&d)[TN], thread mt::tile<bfloat> (&p)[TK]) {
  ::msl::pin(p[0].element, TK * 8);
  begin(d);
}
template <int TK>
METAL_FUNC void begin(thread mt::tile<bfloat> (&p)[TK]) {
  ::msl::pin(p[0].element, TK * 8);
  ::msl::warpgroup_begin();
}
// The groups that `p` was multiplied in are done, and it may be made anew.
template <int LATER, int TK>
METAL_FUNC void wait(thread mt::tile<bfloat> (&p)[TK]) {
  ::msl::warpgroup_wait<LATER>();
  ::msl::pin(p[0].element, TK * 8);
}
template <int LATER, int TN>
METAL_FUNC void wait(thread mt::tile<float> (&d)[TN]) {
  ::msl::warpgroup_wait<LATER>();
  ::msl::pin(d[0].element, TN * 8);
}
template <int LATER, int TN, int TK>
METAL_FUNC void wait(thread mt::tile<float> (&d)[TN], thread mt::tile<float> (&made)[TK]) {
  ::msl::pin(made[0].element, TK * 8);
  wait<LATER>(d);
}
template <int A_ROWS>
METAL_FUNC void multiply_nk(thread mt::tile<float> (&d)[4], threadgroup const uint4* a, threadgroup const uint4* b, int k, bool add, uint sg) {
  ::msl::warpgroup_multiply_nk_64(d[0].element, ::msl::panel_descriptor(a + k / PANEL * A_ROWS * 8 + k % PANEL / 8, 16, 1024),
                                  ::msl::panel_descriptor(b + k / PANEL * 64 * 8 + k % PANEL / 8, 16, 1024), add);
}
template <int B_ROWS>
METAL_FUNC void multiply_kn(thread mt::tile<float> (&d)[16], thread mt::tile<bfloat>& p, threadgroup const uint4* b, int k) {
  ::msl::warpgroup_multiply_kn_256(d[0].element, p.element, ::msl::panel_descriptor(b + k * 8, B_ROWS * 128, 1024));
}
template <int TN>
METAL_FUNC void multiply_left(thread mt::tile<float> (&d)[TN], thread mt::tile<bfloat>& p, threadgroup const uint4* b, int k) {
  static_assert(TN == 2 || TN == 4 || TN == 8 || TN == 16, "32, 64, 128 or 256 columns");
  const ulong right = ::msl::panel_descriptor(b + k / PANEL * TN * 16 * 8 + k % PANEL / 8, 16, 1024);
  if (TN == 16) {
    ::msl::warpgroup_multiply_left_256(d[0].element, p.element, right);
  } else if (TN == 8) {
    ::msl::warpgroup_multiply_left_128(d[0].element, p.element, right);
  } else if (TN == 4) {
    ::msl::warpgroup_multiply_left_64(d[0].element, p.element, right);
  } else {
    ::msl::warpgroup_multiply_left_32(d[0].element, p.element, right);
  }
}
#else
METAL_FUNC void see_copies() {}
METAL_FUNC void commit() {}
template <int TN>
METAL_FUNC void begin(thread mt::tile<float> (&)[TN]) {}
template <int TN, int TK>
METAL_FUNC void begin(thread mt::tile<float> (&)[TN], thread mt::tile<bfloat> (&)[TK]) {}
template <int TK>
METAL_FUNC void begin(thread mt::tile<bfloat> (&)[TK]) {}
template <int LATER, int TK>
METAL_FUNC void wait(thread mt::tile<bfloat> (&)[TK]) {}
template <int LATER, int TN>
METAL_FUNC void wait(thread mt::tile<float> (&)[TN]) {}
template <int LATER, int TN, int TK>
METAL_FUNC void wait(thread mt::tile<float> (&)[TN], thread mt::tile<float> (&)[TK]) {}

METAL_FUNC bfloat panel_element(threadgroup const uint4* p, uint rows, uint row, uint column) {
  return ((threadgroup const bfloat*)(p + panel_place(rows, row, column / 8)))[column % 8];
}
template <int A_ROWS>
METAL_FUNC void multiply_nk(thread mt::tile<float> (&d)[4], threadgroup const uint4* a, threadgroup const uint4* b, int k, bool add, uint sg) {
  const uint first = sg % 4 * 16;
  mt::tile<bfloat> left;
#pragma unroll
  for (int i = 0; i < 8; i++) {
    left.set(i, panel_element(a, A_ROWS, first + mt::row(i), k + mt::column(i)));
  }
  mt::tile<float> unused;
#pragma unroll
  for (int j = 0; j < 4; j++) {
    mt::tile<bfloat> right;
#pragma unroll
    for (int i = 0; i < 8; i++) {
      right.set(i, panel_element(b, 64, j * 16 + mt::right_n(i), k + mt::right_k(i)));
    }
    if (!add) {
      mt::fill(d[j], 0.0f);
    }
    mt::fill(unused, 0.0f);
    mt::multiply(d[j], unused, left, right, right);
  }
}
template <int TN>
METAL_FUNC void multiply_left(thread mt::tile<float> (&d)[TN], thread mt::tile<bfloat>& p, threadgroup const uint4* b, int k) {
#pragma unroll
  for (int j = 0; j < TN; j += 2) {
    mt::tile<bfloat> right[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
#pragma unroll
      for (int i = 0; i < 8; i++) {
        right[h].set(i, panel_element(b, TN * 16, (j + h) * 16 + mt::right_n(i), k + mt::right_k(i)));
      }
    }
    mt::multiply(d[j], d[j + 1], p, right[0], right[1]);
  }
}
template <int B_ROWS>
METAL_FUNC void multiply_kn(thread mt::tile<float> (&d)[16], thread mt::tile<bfloat>& p, threadgroup const uint4* b, int k) {
#pragma unroll
  for (int j = 0; j < 16; j += 2) {
    mt::tile<bfloat> right[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
#pragma unroll
      for (int i = 0; i < 8; i++) {
        right[h].set(i, panel_element(b, B_ROWS, k + mt::right_k(i), (j + h) * 16 + mt::right_n(i)));
      }
    }
    mt::multiply(d[j], d[j + 1], p, right[0], right[1]);
  }
}
#endif

}  // namespace wg
