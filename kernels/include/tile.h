// The matrix-tile vocabulary: the only way kernels multiply matrices.
//
// A tile is 16x16 elements spread over one simdgroup, eight to a lane. Where an element lies is the backend's affair; kernels
// ask `row(i)` and `column(i)`. Every layout puts a lane's eight elements into two rows, eight apart, four in each, and
// gives accumulator and left operand the same layout, so a result can be converted and multiplied again without memory.
//
//   tile<T> t;                        // T: float for accumulators, bfloat or half for operands
//   fill(t, v)
//   load(t, p, pitch)                 // left operand or accumulator: element (r, c) at p[r * pitch + c]
//   load_nk(t, p, pitch)              // right operand held as [n][k], as weights are
//   load_kn(t, p, pitch)              // right operand held as [k][n], as values of attention are
//   store(t, p, pitch), store_clipped(t, p, pitch, rows, columns)
//   multiply(d0, d1, a, b0, b1)       // d0 += a * b0^T and d1 += a * b1^T: 16x32x16, the smallest step of Metal 4's units
//   rows_max(t), rows_sum(t)          // of this lane's two rows, over all 16 columns; component row_half(i) belongs to element i
//   convert<T>(t)
//   load_slab_nk(t, p, pitch)         // 16 rows of 32 columns as two right operands
//   load_codes(t, codes, factors)     // 16 rows of 32 packed 4-bit weights as two left operands, for slabs on the right
//   load_codes_in_order(t, codes, pitch, upper, lower)  // 64 columns as four left operands, for columns that lie in their own order on the right
//   unpack_codes, unpack_vectors, multiply_vectors      // products with up to eight vectors; see there
//
// p is device or threadgroup memory. For the NVIDIA backend p in threadgroup memory and the pitch must be multiples of
// 16 bytes (eight 16-bit elements). All of it is for whole simdgroups: every lane must call.
#pragma once
#include <metal_stdlib>
#include <metal_simdgroup_matrix>

#define TILE_SIMDGROUP 1  // simdgroup_matrix: M1 to M4
#define TILE_TENSOR 2     // Metal 4 tensor operations: M5
#define TILE_MMA 3        // NVIDIA mma.sync
#define TILE_LOOPS 4      // plain loops: the emulator
#ifndef TILE_BACKEND
#if defined(__NVPTX__)
#define TILE_BACKEND TILE_MMA
#elif defined(MSL_SHIM)
#define TILE_BACKEND TILE_LOOPS
#else
#define TILE_BACKEND TILE_SIMDGROUP
#endif
#endif
#if TILE_BACKEND == TILE_TENSOR
#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>
#endif

namespace mt {
using namespace metal;

constant constexpr int SIDE = 16;

template <typename T>
struct tile {
#if TILE_BACKEND == TILE_SIMDGROUP
  // Quarters in row-major order. A right operand holds quarter (n, k) as k rows of n columns.
  simdgroup_matrix<T, 8, 8> quarter[4];
  METAL_FUNC T get(int i) { return quarter[i >> 1].thread_elements()[i & 1]; }
  METAL_FUNC void set(int i, T v) { quarter[i >> 1].thread_elements()[i & 1] = v; }
#else
  T element[8];
  METAL_FUNC T get(int i) { return element[i]; }
  METAL_FUNC void set(int i, T v) { element[i] = v; }
#endif
};

METAL_FUNC int lane_index() { return int(__metal_get_thread_index_in_simdgroup(ushort())); }

// Which of the lane's two rows element i is in, and where the element lies.
#if TILE_BACKEND == TILE_SIMDGROUP
METAL_FUNC int row_half(int i) { return i >> 2; }
METAL_FUNC int first_row() { return ((lane_index() >> 4) << 2) | ((lane_index() >> 1) & 3); }
METAL_FUNC int column(int i) {
  return (((lane_index() >> 3) & 1) << 2) + ((lane_index() & 1) << 1) + ((i >> 1) & 1) * 8 + (i & 1);
}
#elif TILE_BACKEND == TILE_TENSOR
METAL_FUNC int row_half(int i) { return i >> 2; }
METAL_FUNC int first_row() { return ((lane_index() >> 2) & 4) | ((lane_index() >> 1) & 3); }
METAL_FUNC int column(int i) { return (((lane_index() >> 2) & 2) | (lane_index() & 1)) * 4 + (i & 3); }
#else
METAL_FUNC int row_half(int i) { return (i >> 1) & 1; }
METAL_FUNC int first_row() { return lane_index() >> 2; }
METAL_FUNC int column(int i) { return (lane_index() & 3) * 2 + (i & 1) + (i >> 2) * 8; }
#endif
METAL_FUNC int row(int i) { return first_row() + row_half(i) * 8; }

// Where element i of a right operand lies.
#if TILE_BACKEND == TILE_SIMDGROUP
METAL_FUNC int right_n(int i) { return (i >> 2) * 8 + (column(i) & 7); }
METAL_FUNC int right_k(int i) { return first_row() + ((i >> 1) & 1) * 8; }
#else
METAL_FUNC int right_n(int i) { return row(i); }
METAL_FUNC int right_k(int i) { return column(i); }
#endif

// A slab: 32 columns of k as two tiles, dealt out so that a lane of the NVIDIA and loop layouts gets eight neighbouring columns of a row, which it
// loads at once. A sum over k does not mind the order as long as both operands have it.
METAL_FUNC int slab_column(int half_index, int c) { return (c & 7) / 2 * 8 + half_index * 4 + c / 8 * 2 + (c & 1); }

template <typename T>
METAL_FUNC void fill(thread tile<T>& t, T v) {
#pragma unroll
  for (int i = 0; i < 8; i++) {
    t.set(i, v);
  }
}

template <typename T, typename From>
METAL_FUNC tile<T> convert(thread tile<From>& from) {
  tile<T> to;
#pragma unroll
  for (int i = 0; i < 8; i++) {
    to.set(i, T(from.get(i)));
  }
  return to;
}

// A row's 16 elements lie in four lanes.
#if TILE_BACKEND == TILE_SIMDGROUP || TILE_BACKEND == TILE_TENSOR
constant constexpr ushort ROW_NEIGHBOUR = 8;
#else
constant constexpr ushort ROW_NEIGHBOUR = 2;
#endif

METAL_FUNC float2 rows_max(thread tile<float>& t) {
  float2 m = float2(t.get(0));
  m[0] = m[1] = -FLT_MAX;
#pragma unroll
  for (int i = 0; i < 8; i++) {
    m[row_half(i)] = max(m[row_half(i)], t.get(i));
  }
  m = max(m, simd_shuffle_xor(m, ushort(1)));
  return max(m, simd_shuffle_xor(m, ROW_NEIGHBOUR));
}

METAL_FUNC float2 rows_sum(thread tile<float>& t) {
  float2 s = float2(0.0f);
#pragma unroll
  for (int i = 0; i < 8; i++) {
    s[row_half(i)] += t.get(i);
  }
  s += simd_shuffle_xor(s, ushort(1));
  return s + simd_shuffle_xor(s, ROW_NEIGHBOUR);
}

#define TILE_MEMORY_BY_ELEMENT(SPACE)                                                                        \
  template <typename T, typename M>                                                                          \
  METAL_FUNC void load_clipped(thread tile<T>& t, const SPACE M* p, int pitch, int rows, int columns) {      \
    _Pragma("unroll") for (int i = 0; i < 8; i++) {                                                          \
      const bool inside = row(i) < rows && column(i) < columns;                                              \
      t.set(i, inside ? T(p[row(i) * pitch + column(i)]) : T(0.0f));                                         \
    }                                                                                                        \
  }                                                                                                          \
  template <typename T, typename M>                                                                          \
  METAL_FUNC void store_clipped(thread tile<T>& t, SPACE M* p, int pitch, int rows, int columns) {           \
    _Pragma("unroll") for (int i = 0; i < 8; i++) {                                                          \
      if (row(i) < rows && column(i) < columns) {                                                            \
        p[row(i) * pitch + column(i)] = M(t.get(i));                                                         \
      }                                                                                                      \
    }                                                                                                        \
  }                                                                                                          \
  template <typename T, typename M>                                                                          \
  METAL_FUNC void store(thread tile<T>& t, SPACE M* p, int pitch) {                                          \
    _Pragma("unroll") for (int i = 0; i < 8; i++) { p[row(i) * pitch + column(i)] = M(t.get(i)); }           \
  }
TILE_MEMORY_BY_ELEMENT(device)
TILE_MEMORY_BY_ELEMENT(threadgroup)
#undef TILE_MEMORY_BY_ELEMENT

#if TILE_BACKEND == TILE_SIMDGROUP
#define TILE_MEMORY(SPACE)                                                                                   \
  template <typename T>                                                                                      \
  METAL_FUNC void load(thread tile<T>& t, const SPACE T* p, int pitch) {                                     \
    _Pragma("unroll") for (int q = 0; q < 4; q++) {                                                          \
      simdgroup_load(t.quarter[q], p + (q >> 1) * 8 * pitch + (q & 1) * 8, ulong(pitch));                    \
    }                                                                                                        \
  }                                                                                                          \
  template <typename T>                                                                                      \
  METAL_FUNC void load_nk(thread tile<T>& t, const SPACE T* p, int pitch) {                                  \
    _Pragma("unroll") for (int q = 0; q < 4; q++) {                                                          \
      simdgroup_load(t.quarter[q], p + (q >> 1) * 8 * pitch + (q & 1) * 8, ulong(pitch), ulong2(0, 0), true); \
    }                                                                                                        \
  }                                                                                                          \
  template <typename T>                                                                                      \
  METAL_FUNC void load_kn(thread tile<T>& t, const SPACE T* p, int pitch) {                                  \
    _Pragma("unroll") for (int q = 0; q < 4; q++) {                                                          \
      simdgroup_load(t.quarter[q], p + (q & 1) * 8 * pitch + (q >> 1) * 8, ulong(pitch));                    \
    }                                                                                                        \
  }
#else
#define TILE_MEMORY(SPACE)                                                                                   \
  template <typename T>                                                                                      \
  METAL_FUNC void load(thread tile<T>& t, const SPACE T* p, int pitch) {                                     \
    TILE_LOAD(SPACE, T, t, p, pitch)                                                                         \
  }                                                                                                          \
  template <typename T>                                                                                      \
  METAL_FUNC void load_nk(thread tile<T>& t, const SPACE T* p, int pitch) {                                  \
    TILE_LOAD_RIGHT(SPACE, T, t, p, pitch)                                                                   \
  }                                                                                                          \
  template <typename T>                                                                                      \
  METAL_FUNC void load_kn(thread tile<T>& t, const SPACE T* p, int pitch) {                                  \
    TILE_LOAD_TRANSPOSED(SPACE, T, t, p, pitch)                                                              \
  }
#define TILE_LOAD(SPACE, T, t, p, pitch)                                                                     \
  _Pragma("unroll") for (int i = 0; i < 8; i++) { t.element[i] = p[row(i) * pitch + column(i)]; }
#define TILE_LOAD_RIGHT(SPACE, T, t, p, pitch) TILE_LOAD(SPACE, T, t, p, pitch)
#define TILE_LOAD_TRANSPOSED(SPACE, T, t, p, pitch)                                                          \
  _Pragma("unroll") for (int i = 0; i < 8; i++) { t.element[i] = p[column(i) * pitch + row(i)]; }
#endif
TILE_MEMORY(device)
#if TILE_BACKEND == TILE_MMA
// From shared memory, one instruction loads all four quarters; float tiles have no such instruction. A right operand's quarters are taken in the order in
// which its two halves of n are multiplied, so that each lies in neighbouring registers.
#undef TILE_LOAD
#undef TILE_LOAD_RIGHT
#undef TILE_LOAD_TRANSPOSED
#define TILE_LOAD_RIGHT(SPACE, T, t, p, pitch)                                                               \
  ::msl::load_matrices_right(                                                                                \
      t.element, p + ((lane_index() & 7) + (lane_index() >> 4) * 8) * pitch + ((lane_index() >> 3) & 1) * 8);
#define TILE_LOAD(SPACE, T, t, p, pitch)                                                                     \
  if constexpr (sizeof(T) == 2) {                                                                            \
    ::msl::load_matrices(t.element, p + (lane_index() & 15) * pitch + (lane_index() >> 4) * 8);              \
  } else {                                                                                                   \
    _Pragma("unroll") for (int i = 0; i < 8; i++) { t.element[i] = p[row(i) * pitch + column(i)]; }          \
  }
#define TILE_LOAD_TRANSPOSED(SPACE, T, t, p, pitch)                                                          \
  ::msl::load_matrices_right_transposed(                                                                     \
      t.element, p + ((lane_index() & 7) + ((lane_index() >> 3) & 1) * 8) * pitch + (lane_index() >> 4) * 8);
#endif
TILE_MEMORY(threadgroup)

#if TILE_BACKEND == TILE_MMA
#define TILE_SLAB(SPACE)                                                                                     \
  template <typename T>                                                                                      \
  METAL_FUNC void load_slab_nk(thread tile<T> (&t)[2], const SPACE T* p, int pitch) {                        \
    const uint4 first = *(const SPACE uint4*)(p + first_row() * pitch + (lane_index() & 3) * 8);             \
    const uint4 second = *(const SPACE uint4*)(p + (first_row() + 8) * pitch + (lane_index() & 3) * 8);      \
    ::msl::unpack_slab(t[0].element, t[1].element, first, second);                                           \
  }
#else
#define TILE_SLAB(SPACE)                                                                                     \
  template <typename T>                                                                                      \
  METAL_FUNC void load_slab_nk(thread tile<T> (&t)[2], const SPACE T* p, int pitch) {                        \
    _Pragma("unroll") for (int i = 0; i < 8; i++) {                                                          \
      t[0].set(i, p[right_n(i) * pitch + slab_column(0, right_k(i))]);                                       \
      t[1].set(i, p[right_n(i) * pitch + slab_column(1, right_k(i))]);                                       \
    }                                                                                                        \
  }
#endif
TILE_SLAB(device)
TILE_SLAB(threadgroup)
#undef TILE_SLAB

// A slab of 4-bit weights as bfloats, the left operand: code * scale + bias, rounded once. `codes` is [16][4] words, eight codes each, the lowest
// column in the lowest bits; a word of `factors` [16] holds a row's bfloat scale in its lower half and its bias in the upper.
METAL_FUNC void load_codes(thread tile<bfloat> (&t)[2], threadgroup const uint* codes, threadgroup const uint* factors) {
#if TILE_BACKEND == TILE_MMA
  const int r = first_row();
  const int word = lane_index() & 3;
  ::msl::expand_codes(t[0].element, t[1].element, codes[r * 4 + word], factors[r]);
  ::msl::expand_codes(t[0].element + 2, t[1].element + 2, codes[(r + 8) * 4 + word], factors[r + 8]);
#else
#pragma unroll
  for (int h = 0; h < 2; h++) {
#pragma unroll
    for (int i = 0; i < 8; i++) {
      const int k = slab_column(h, column(i));
      const uint code = (codes[row(i) * 4 + k / 8] >> (k % 8 * 4)) & 15;
      const float scale = as_type<float>(factors[row(i)] << 16);
      const float bias = as_type<float>(factors[row(i)] & 0xffff0000u);
      t[h].set(i, bfloat(fma(float(code), scale, bias)));
    }
  }
#endif
}

// The same of 64 columns in their own order, as four left operands. Column 32 * h + 8 * w + i of a row is code i of word w of codes[h * pitch + row];
// `upper` and `lower` are the factors of this lane's two rows, first_row() and the eighth below.
METAL_FUNC void load_codes_in_order(thread tile<bfloat> (&t)[4], threadgroup const uint4* codes, uint pitch, uint upper, uint lower) {
#if TILE_BACKEND == TILE_MMA
  const uint select = ::msl::byte_select(lane_index() & 3);
#pragma unroll
  for (int half_row = 0; half_row < 2; half_row++) {
    const uint factors = half_row == 0 ? upper : lower;
    const uint scale = (factors & 0xffffu) | (factors << 16);
    const uint bias = (factors >> 16) | (factors & 0xffff0000u);
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const uint4 words = codes[h * pitch + first_row() + half_row * 8];
#pragma unroll
      for (int w = 0; w < 4; w++) {
        ::msl::unpair(t[h * 2 + w / 2].element + w % 2 * 4 + half_row * 2, ::msl::expand_pair(words[w], words[w] >> 4, select, scale, bias));
      }
    }
  }
#else
#pragma unroll
  for (int b = 0; b < 4; b++) {
#pragma unroll
    for (int i = 0; i < 8; i++) {
      const int k = b * 16 + column(i);
      const uint code = (codes[k / 32 * pitch + row(i)][k % 32 / 8] >> (k % 8 * 4)) & 15;
      const uint factors = row_half(i) == 0 ? upper : lower;
      t[b].set(i, bfloat(fma(float(code), as_type<float>(factors << 16), as_type<float>(factors & 0xffff0000u))));
    }
  }
#endif
}
#undef TILE_MEMORY
#undef TILE_LOAD
#undef TILE_LOAD_RIGHT
#undef TILE_LOAD_TRANSPOSED

template <typename T>
METAL_FUNC void multiply(thread tile<float>& d0, thread tile<float>& d1, thread tile<T>& a, thread tile<T>& b0,
                         thread tile<T>& b1) {
#if TILE_BACKEND == TILE_SIMDGROUP
#pragma unroll
  for (int i = 0; i < 2; i++) {
#pragma unroll
    for (int j = 0; j < 2; j++) {
#pragma unroll
      for (int k = 0; k < 2; k++) {
        simdgroup_multiply_accumulate(d0.quarter[i * 2 + j], a.quarter[i * 2 + k], b0.quarter[j * 2 + k], d0.quarter[i * 2 + j]);
        simdgroup_multiply_accumulate(d1.quarter[i * 2 + j], a.quarter[i * 2 + k], b1.quarter[j * 2 + k], d1.quarter[i * 2 + j]);
      }
    }
  }
#elif TILE_BACKEND == TILE_TENSOR
  constexpr auto descriptor = mpp::tensor_ops::matmul2d_descriptor(
      16, 32, 16, false, true, true, mpp::tensor_ops::matmul2d_descriptor::mode::multiply_accumulate);
  mpp::tensor_ops::matmul2d<descriptor, execution_simdgroup> op;
  auto left = op.template get_left_input_cooperative_tensor<T, T, float>();
  auto right = op.template get_right_input_cooperative_tensor<T, T, float>();
  auto sum = op.template get_destination_cooperative_tensor<decltype(left), decltype(right), float>();
#pragma unroll
  for (short i = 0; i < 8; i++) {
    left[i] = a.element[i];
    right[i] = b0.element[i];
    right[8 + i] = b1.element[i];
    sum[i] = d0.element[i];
    sum[8 + i] = d1.element[i];
  }
  op.run(left, right, sum);
#pragma unroll
  for (short i = 0; i < 8; i++) {
    d0.element[i] = sum[i];
    d1.element[i] = sum[8 + i];
  }
#else
  ::msl::multiply_tile(d0.element, d1.element, a.element, b0.element, b1.element);
#endif
}

// Products with up to eight vectors. Lane l looks after rows l / 4 and l / 4 + 8 of the left operand, vector l / 4 of the right one, and of both columns
// 2 * (l % 4) and the next in each half of a tile, which is where the NVIDIA and loop layouts have them; the other layouts fetch them from there.
//
//   unpack_codes(a, word, word_below)   // left operands of two steps: eight 4-bit codes, as numbers, of this lane's two rows
//   unpack_raised_codes(a, word, word_below)
//   unpack_vectors(b, words)            // right operands of two steps: eight bfloats of this lane's vector
//   multiply_vectors(d, a, b)           // d[row][vector] += a * b^T
//   vector_sums(sums, d)                // of this lane's row and the one below, vectors 2 * (l % 4) and the next
METAL_FUNC void unpack_codes(thread tile<bfloat> (&a)[2], uint word, uint word_below) {
#if TILE_BACKEND == TILE_MMA
  ::msl::code_numbers(a[0].element, a[1].element, word);
  ::msl::code_numbers(a[0].element + 2, a[1].element + 2, word_below);
#else
#pragma unroll
  for (int i = 0; i < 8; i++) {
    const ushort owner = ushort((row(i) & 7) * 4 + (column(i) & 7) / 2);
    const uint upper = simd_shuffle(word, owner);
    const uint lower = simd_shuffle(word_below, owner);
    const uint codes = (row(i) < 8 ? upper : lower) >> ((column(i) / 8 * 2 + (column(i) & 1)) * 4);
    a[0].set(i, bfloat(float(codes & 15)));
    a[1].set(i, bfloat(float((codes >> 16) & 15)));
  }
#endif
}

// The same, each 128 too large and in the order 0, 4, 1, 5, 2, 6, 3, 7, which takes half the instructions: whoever uses them orders the vector so
// (`raised_order`), and takes 128 times its sum away.
METAL_FUNC void unpack_raised_codes(thread tile<bfloat> (&a)[2], uint word, uint word_below) {
#if TILE_BACKEND == TILE_MMA
  ::msl::raised_codes(a[0].element, a[1].element, word);
  ::msl::raised_codes(a[0].element + 2, a[1].element + 2, word_below);
#else
#pragma unroll
  for (int i = 0; i < 8; i++) {
    const ushort owner = ushort((row(i) & 7) * 4 + (column(i) & 7) / 2);
    const uint upper = simd_shuffle(word, owner);
    const uint lower = simd_shuffle(word_below, owner);
    const uint codes = (row(i) < 8 ? upper : lower) >> ((column(i) / 8 + (column(i) & 1) * 4) * 4);
    a[0].set(i, bfloat(float(128 + (codes & 15))));
    a[1].set(i, bfloat(float(128 + ((codes >> 8) & 15))));
  }
#endif
}

// Eight bfloats in the order of `unpack_raised_codes`.
METAL_FUNC uint4 raised_order(uint4 v) {
  return uint4((v.x & 0xffffu) | (v.z << 16), (v.x >> 16) | (v.z & 0xffff0000u), (v.y & 0xffffu) | (v.w << 16), (v.y >> 16) | (v.w & 0xffff0000u));
}

METAL_FUNC void unpack_vectors(thread tile<bfloat> (&b)[2], uint4 words) {
#if TILE_BACKEND == TILE_MMA
#pragma unroll
  for (int h = 0; h < 2; h++) {
#pragma unroll
    for (int i = 0; i < 8; i++) {
      const uint word = words[h * 2 + i / 4];
      b[h].element[i] = row_half(i) == 0 ? as_type<bfloat>(ushort((i & 1) != 0 ? word >> 16 : word)) : bfloat(0.0f);
    }
  }
#else
#pragma unroll
  for (int h = 0; h < 2; h++) {
#pragma unroll
    for (int i = 0; i < 8; i++) {
      const ushort owner = ushort((right_n(i) & 7) * 4 + (right_k(i) & 7) / 2);
      const uint first = simd_shuffle(words[h * 2], owner);
      const uint second = simd_shuffle(words[h * 2 + 1], owner);
      const uint word = right_k(i) < 8 ? first : second;
      b[h].set(i, right_n(i) < 8 ? as_type<bfloat>(ushort((right_k(i) & 1) != 0 ? word >> 16 : word)) : bfloat(0.0f));
    }
  }
#endif
}

METAL_FUNC void multiply_vectors(thread tile<float>& d, thread tile<bfloat>& a, thread tile<bfloat>& b) {
#if TILE_BACKEND == TILE_MMA
  ::msl::multiply_eight(d.element, a.element, b.element);
#else
  tile<float> unused;
  fill(unused, 0.0f);
  multiply(d, unused, a, b, b);
#endif
}

METAL_FUNC void vector_sums(thread float* sums, thread tile<float>& d) {
#if TILE_BACKEND == TILE_MMA || TILE_BACKEND == TILE_LOOPS
#pragma unroll
  for (int i = 0; i < 4; i++) {
    sums[i] = d.get(i);
  }
#else
  const int r = lane_index() / 4;
  const int c = lane_index() % 4 * 2;
#pragma unroll
  for (int i = 0; i < 4; i++) {
#if TILE_BACKEND == TILE_SIMDGROUP
    const ushort owner = ushort(((r >> 2) << 4) | ((r & 3) << 1) | ((c >> 2) << 3) | ((c >> 1) & 1));
    sums[i] = simd_shuffle(d.get(i / 2 * 4 + (i & 1)), owner);
#else
    const ushort owner = ushort(((r & 4) << 2) | ((r & 3) << 1) | ((c / 4 & 2) << 2) | (c / 4 & 1));
    const float low = simd_shuffle(d.get(i / 2 * 4 + (i & 1)), owner);
    const float high = simd_shuffle(d.get(i / 2 * 4 + 2 + (i & 1)), owner);
    sums[i] = (c & 2) != 0 ? high : low;
#endif
  }
#endif
}

}  // namespace mt
