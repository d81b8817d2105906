// simdgroup_matrix. Which lane holds which elements is not in Apple's specification; this is the layout observed on M1 to M5,
// on which other projects rely too: row = lane bits 4,2,1; column = lane bits 3,0 and the element.
#pragma once

namespace metal {

template <class T, int Rows, int Columns>
struct simdgroup_matrix {
  static_assert(Rows == 8 && Columns == 8, "simdgroup matrices are 8x8");
  static_assert(is_same_v<T, float> || is_same_v<T, half> || is_same_v<T, bfloat>, "of float, half or bfloat");
  vec<T, 2> elements;

  simdgroup_matrix() = default;
  MSL_ALWAYS_INLINE explicit simdgroup_matrix(T diagonal) {
    for (int i = 0; i < 2; i++) {
      elements[i] = row() == column() + i ? diagonal : T(0);
    }
  }
  MSL_ALWAYS_INLINE vec<T, 2>& thread_elements() { return elements; }
  MSL_ALWAYS_INLINE static int row() {
    const int lane = int(::msl::lane());
    return ((lane >> 4) << 2) | ((lane >> 1) & 3);
  }
  MSL_ALWAYS_INLINE static int column() {
    const int lane = int(::msl::lane());
    return (((lane >> 3) & 1) << 2) | ((lane & 1) << 1);
  }
};
using simdgroup_float8x8 = simdgroup_matrix<float, 8, 8>;
using simdgroup_half8x8 = simdgroup_matrix<half, 8, 8>;
using simdgroup_bfloat8x8 = simdgroup_matrix<bfloat, 8, 8>;

template <class T, int Rows, int Columns>
MSL_ALWAYS_INLINE simdgroup_matrix<T, Rows, Columns> make_filled_simdgroup_matrix(T value) {
  simdgroup_matrix<T, Rows, Columns> m;
  m.elements = vec<T, 2>{value, value};
  return m;
}

#define MSL_MATRIX_MEMORY(SPACE)                                                                                       \
  template <class T>                                                                                                   \
  MSL_ALWAYS_INLINE void simdgroup_load(thread simdgroup_matrix<T, 8, 8>& m, const SPACE T* from, ulong pitch = 8,      \
                                        ulong2 origin = ulong2{0, 0}, bool transpose = false) {                        \
    const ulong r = m.row(), c = m.column();                                                                           \
    for (int i = 0; i < 2; i++) {                                                                                      \
      m.elements[i] = transpose ? from[(c + i + origin.x) * pitch + r + origin.y]                                      \
                                : from[(r + origin.y) * pitch + c + i + origin.x];                                     \
    }                                                                                                                  \
  }                                                                                                                    \
  template <class T>                                                                                                   \
  MSL_ALWAYS_INLINE void simdgroup_store(simdgroup_matrix<T, 8, 8> m, SPACE T* to, ulong pitch = 8,                     \
                                         ulong2 origin = ulong2{0, 0}, bool transpose = false) {                       \
    const ulong r = m.row(), c = m.column();                                                                           \
    for (int i = 0; i < 2; i++) {                                                                                      \
      (transpose ? to[(c + i + origin.x) * pitch + r + origin.y] : to[(r + origin.y) * pitch + c + i + origin.x]) =    \
          m.elements[i];                                                                                               \
    }                                                                                                                  \
  }
MSL_MATRIX_MEMORY(device)
MSL_MATRIX_MEMORY(threadgroup)
#undef MSL_MATRIX_MEMORY

template <class D, class A, class B, class C>
MSL_ALWAYS_INLINE void simdgroup_multiply_accumulate(thread simdgroup_matrix<D, 8, 8>& d, thread simdgroup_matrix<A, 8, 8>& a,
                                                     thread simdgroup_matrix<B, 8, 8>& b, thread simdgroup_matrix<C, 8, 8>& c) {
  const float2 sum = ::msl::multiply_8x8(a.elements, b.elements, float2(c.elements), d.row(), d.column());
  d.elements = ::msl::make<vec<D, 2>>(sum);
}
template <class D, class A, class B>
MSL_ALWAYS_INLINE void simdgroup_multiply(thread simdgroup_matrix<D, 8, 8>& d, thread simdgroup_matrix<A, 8, 8>& a,
                                          thread simdgroup_matrix<B, 8, 8>& b) {
  const float2 sum = ::msl::multiply_8x8(a.elements, b.elements, float2(0.0f, 0.0f), d.row(), d.column());
  d.elements = ::msl::make<vec<D, 2>>(sum);
}

}  // namespace metal
