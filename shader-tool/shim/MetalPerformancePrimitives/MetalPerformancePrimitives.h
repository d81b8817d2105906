// Stand-in for the part of Metal 4's tensor operations that register-level kernels use: a 16x32x16 product of one
// simdgroup, its cooperative tensors filled by hand in the layout that M5 has. CPU only; NVIDIA kernels use mma.sync.
#pragma once
#include <metal_stdlib>

namespace metal {
struct execution_simdgroup {};
}  // namespace metal

namespace mpp {
namespace tensor_ops {

constexpr int dynamic_length_v = -1;

struct matmul2d_descriptor {
  enum class mode { multiply, multiply_accumulate };
  int m, n, k;
  bool transpose_left, transpose_right, relaxed_precision;
  mode matmul_mode;
  constexpr matmul2d_descriptor(int m_, int n_, int k_ = dynamic_length_v, bool left = false, bool right = false,
                                bool relaxed = false, mode mode_ = mode::multiply)
      : m(m_), n(n_), k(k_), transpose_left(left), transpose_right(right), relaxed_precision(relaxed), matmul_mode(mode_) {}
};

template <class T, int N>
struct cooperative_tensor {
  T elements[N];
  using element_type = T;
  METAL_FUNC T& operator[](int i) { return elements[i]; }
  METAL_FUNC const T& operator[](int i) const { return elements[i]; }
  METAL_FUNC static constexpr int get_capacity() { return N; }
  METAL_FUNC static constexpr bool is_valid_element(int) { return true; }
};

template <matmul2d_descriptor D, class Scope>
struct matmul2d {
  static_assert(metal::is_same_v<Scope, metal::execution_simdgroup>, "cooperative inputs are for one simdgroup");
  static_assert(D.m == 16 && D.n == 32 && D.k == 16, "this stand-in knows 16x32x16 only");
  static_assert(!D.transpose_left && D.transpose_right, "this stand-in knows left [m][k] and right [n][k] only");
  static_assert(D.matmul_mode == matmul2d_descriptor::mode::multiply_accumulate, "pass the mode; accumulate in loops");

  template <class A, class B, class C>
  METAL_FUNC auto get_left_input_cooperative_tensor() const {
    return cooperative_tensor<A, 8>();
  }
  template <class A, class B, class C>
  METAL_FUNC auto get_right_input_cooperative_tensor() const {
    return cooperative_tensor<B, 16>();
  }
  template <class A, class B, class C>
  METAL_FUNC auto get_destination_cooperative_tensor() const {
    return cooperative_tensor<C, 16>();
  }

#ifndef __NVPTX__
  // 16x16 fragments, eight elements a lane: row = lane bits 4,2,1 (+8 for the last four), column = bits 3,0 and i % 4.
  // The right operand's and the result's 32 are two fragments in sequence.
  template <class A, class B, class C>
  METAL_FUNC void run(thread cooperative_tensor<A, 8>& a, thread cooperative_tensor<B, 16>& b,
                      thread cooperative_tensor<C, 16>& c) const {
    msl::Simdgroup& s = msl::simdgroup();
    float* ma = (float*)s.exchange[s.phase];
    float* mb = ma + 256;
    float* md = mb + 512;
    const int lane = int(msl::lane()), quad = lane >> 2;
    const int row0 = (quad & 4) | ((lane >> 1) & 3), column0 = ((quad & 2) | (lane & 1)) * 4;
    for (int i = 0; i < 8; i++) {
      const int row = row0 + (i >> 2) * 8, column = column0 + (i & 3);
      ma[row * 16 + column] = float(a[i]);
      mb[column * 32 + row] = float(b[i]);
      mb[column * 32 + 16 + row] = float(b[8 + i]);
    }
    msl::rendezvous(s, msl::MULTIPLY_TENSOR, [=] { msl::multiply<16, 32, 16>(ma, mb, md); });
    for (int i = 0; i < 16; i++) {
      c[i] = C(float(c[i]) + md[(row0 + ((i >> 2) & 1) * 8) * 32 + (i >> 3) * 16 + column0 + (i & 3)]);
    }
#ifdef MPP_MISCOMPUTES  // to test what a program does on a GPU whose result lies elsewhere
    const C first = c[0];
    c[0] = c[1];
    c[1] = first;
#endif
  }
#endif
};

}  // namespace tensor_ops
}  // namespace mpp
