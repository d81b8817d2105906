// Scalars, vectors and their constructors.
#pragma once

using uchar = unsigned char;
using ushort = unsigned short;
using uint = unsigned int;
using ulong = unsigned long;
using size_t = decltype(sizeof(0));
using ptrdiff_t = long;
using int8_t = signed char;
using uint8_t = uchar;
using int16_t = short;
using uint16_t = ushort;
using int32_t = int;
using uint32_t = uint;
using int64_t = long;
using uint64_t = ulong;
using half = _Float16;
using bfloat = __bf16;

#define INFINITY (__builtin_inff())
#define NAN (__builtin_nanf(""))
#define HUGE_VALF (__builtin_inff())
#define FLT_MAX 3.402823466e+38f
#define FLT_MIN 1.175494351e-38f
#define FLT_EPSILON 1.1920929e-07f
#define HALF_MAX half(65504.0f)
#define INT_MAX 0x7fffffff
#define UINT_MAX 0xffffffffu
#define M_PI_F 3.14159265358979323846f
#define M_E_F 2.71828182845904523536f
#define M_LOG2E_F 1.44269504088896340736f
#define M_LN2_F 0.69314718055994530942f
#define M_SQRT2_F 1.41421356237309504880f

#define MSL_VECTORS(T)                                                \
  typedef T T##2 __attribute__((ext_vector_type(2)));                 \
  typedef T T##3 __attribute__((ext_vector_type(3)));                 \
  typedef T T##4 __attribute__((ext_vector_type(4)));                 \
  typedef T##2 packed_##T##2 __attribute__((aligned(sizeof(T))));     \
  typedef T##4 packed_##T##4 __attribute__((aligned(sizeof(T))));
MSL_VECTORS(char)
MSL_VECTORS(uchar)
MSL_VECTORS(short)
MSL_VECTORS(ushort)
MSL_VECTORS(int)
MSL_VECTORS(uint)
MSL_VECTORS(long)
MSL_VECTORS(ulong)
MSL_VECTORS(float)
MSL_VECTORS(half)
MSL_VECTORS(bfloat)
#undef MSL_VECTORS
typedef bool bool2 __attribute__((ext_vector_type(2)));
typedef bool bool3 __attribute__((ext_vector_type(3)));
typedef bool bool4 __attribute__((ext_vector_type(4)));

// A vector type cannot be three elements long without padding, so these are structures.
#define MSL_PACKED3(T)                                                              \
  struct packed_##T##3 {                                                            \
    T x, y, z;                                                                      \
    packed_##T##3() = default;                                                      \
    MSL_ALWAYS_INLINE packed_##T##3(T##3 v) : x(v.x), y(v.y), z(v.z) {}             \
    MSL_ALWAYS_INLINE operator T##3() const { return T##3{x, y, z}; }               \
  };
MSL_PACKED3(float)
MSL_PACKED3(half)
MSL_PACKED3(bfloat)
MSL_PACKED3(uint)
MSL_PACKED3(int)
MSL_PACKED3(ushort)
MSL_PACKED3(uchar)
#undef MSL_PACKED3

constexpr half operator""h(long double x) { return half(x); }

template <class To, class From>
MSL_ALWAYS_INLINE To as_type(From from) {
  static_assert(sizeof(To) == sizeof(From), "as_type needs types of equal size");
  return __builtin_bit_cast(To, from);
}

namespace msl {

template <class V>
struct vector_traits {
  using element = V;
  static constexpr int size = 1;
};
template <class T, int N>
struct vector_traits<T __attribute__((ext_vector_type(N)))> {
  using element = T;
  static constexpr int size = N;
};
template <class V>
using element_of = typename vector_traits<V>::element;
template <class V>
constexpr int size_of = vector_traits<V>::size;
template <class T, int N>
using vector_of = T __attribute__((ext_vector_type(N)));

// What V(...) means in MSL: splat, convert element by element, or concatenate. clang's own functional cast would
// reinterpret the bits of a vector of the same size.
template <class V, int At>
MSL_ALWAYS_INLINE void fill_from(V&) {}
template <class V, int At, class A, class... Rest>
MSL_ALWAYS_INLINE void fill_from(V& out, A a, Rest... rest) {
  if constexpr (size_of<A> == 1) {
    out[At] = static_cast<element_of<V>>(a);
  } else {
    for (int i = 0; i < size_of<A>; i++) {
      out[At + i] = static_cast<element_of<V>>(a[i]);
    }
  }
  fill_from<V, At + size_of<A>>(out, rest...);
}
template <class V>
MSL_ALWAYS_INLINE V make() {
  return V(0);
}
template <class V, class A>
MSL_ALWAYS_INLINE V make(A a) {
  if constexpr (size_of<V> == 1) {
    return static_cast<V>(a);
  } else if constexpr (size_of<A> == 1 && !__is_class(A)) {
    return (V)(static_cast<element_of<V>>(a));
  } else if constexpr (__is_class(A)) {
    return static_cast<V>(a);
  } else {
    static_assert(size_of<A> == size_of<V>, "vector sizes differ");
    return __builtin_convertvector(a, V);
  }
}
template <class V, class A, class B, class... Rest>
MSL_ALWAYS_INLINE V make(A a, B b, Rest... rest) {
  static_assert(((size_of<A> + size_of<B>) + ... + size_of<Rest>) == size_of<V>, "wrong number of components");
  V out;
  fill_from<V, 0>(out, a, b, rest...);
  return out;
}

// A built-in position parameter: one, two or three of the coordinates.
struct Position {
  uint x, y, z;
};
template <class V>
MSL_ALWAYS_INLINE V position(Position p) {
  if constexpr (size_of<V> == 1) {
    return V(p.x);
  } else if constexpr (size_of<V> == 2) {
    return V{element_of<V>(p.x), element_of<V>(p.y)};
  } else {
    return V{element_of<V>(p.x), element_of<V>(p.y), element_of<V>(p.z)};
  }
}

}  // namespace msl

// Function-like macros: the type names themselves stay types.
#define float2(...) ::msl::make<float2>(__VA_ARGS__)
#define float3(...) ::msl::make<float3>(__VA_ARGS__)
#define float4(...) ::msl::make<float4>(__VA_ARGS__)
#define half2(...) ::msl::make<half2>(__VA_ARGS__)
#define half3(...) ::msl::make<half3>(__VA_ARGS__)
#define half4(...) ::msl::make<half4>(__VA_ARGS__)
#define bfloat2(...) ::msl::make<bfloat2>(__VA_ARGS__)
#define bfloat3(...) ::msl::make<bfloat3>(__VA_ARGS__)
#define bfloat4(...) ::msl::make<bfloat4>(__VA_ARGS__)
#define char2(...) ::msl::make<char2>(__VA_ARGS__)
#define char4(...) ::msl::make<char4>(__VA_ARGS__)
#define uchar2(...) ::msl::make<uchar2>(__VA_ARGS__)
#define uchar4(...) ::msl::make<uchar4>(__VA_ARGS__)
#define short2(...) ::msl::make<short2>(__VA_ARGS__)
#define short4(...) ::msl::make<short4>(__VA_ARGS__)
#define ushort2(...) ::msl::make<ushort2>(__VA_ARGS__)
#define ushort4(...) ::msl::make<ushort4>(__VA_ARGS__)
#define int2(...) ::msl::make<int2>(__VA_ARGS__)
#define int3(...) ::msl::make<int3>(__VA_ARGS__)
#define int4(...) ::msl::make<int4>(__VA_ARGS__)
#define uint2(...) ::msl::make<uint2>(__VA_ARGS__)
#define uint3(...) ::msl::make<uint3>(__VA_ARGS__)
#define uint4(...) ::msl::make<uint4>(__VA_ARGS__)
#define ulong2(...) ::msl::make<ulong2>(__VA_ARGS__)
#define ulong4(...) ::msl::make<ulong4>(__VA_ARGS__)
