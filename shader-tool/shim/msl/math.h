// Arithmetic functions. `msl::fast_*` and `msl::precise_*` come from the target's header.
#pragma once

namespace metal {

#define MSL_UNARY(NAME, IMPL)                                                                   \
  MSL_ALWAYS_INLINE float NAME(float x) { return ::msl::IMPL##NAME(x); }                        \
  MSL_ALWAYS_INLINE half NAME(half x) { return half(::msl::IMPL##NAME(float(x))); }             \
  MSL_ALWAYS_INLINE bfloat NAME(bfloat x) { return bfloat(::msl::IMPL##NAME(float(x))); }       \
  template <class V, int N = ::msl::size_of<V>, class = enable_if_t<(N > 1)>>                   \
  MSL_ALWAYS_INLINE V NAME(V v) {                                                               \
    V out;                                                                                      \
    for (int i = 0; i < N; i++) {                                                               \
      out[i] = NAME(::msl::element_of<V>(v[i]));                                                \
    }                                                                                           \
    return out;                                                                                 \
  }
#define MSL_TRANSCENDENTAL(IMPL) \
  MSL_UNARY(exp, IMPL)           \
  MSL_UNARY(exp2, IMPL)          \
  MSL_UNARY(log, IMPL)           \
  MSL_UNARY(log2, IMPL)          \
  MSL_UNARY(sqrt, IMPL)          \
  MSL_UNARY(rsqrt, IMPL)         \
  MSL_UNARY(sin, IMPL)           \
  MSL_UNARY(cos, IMPL)           \
  MSL_UNARY(tanh, IMPL)
MSL_TRANSCENDENTAL(fast_)
MSL_UNARY(floor, round_)
MSL_UNARY(ceil, round_)
MSL_UNARY(rint, round_)
MSL_UNARY(round, round_)
MSL_UNARY(trunc, round_)
MSL_UNARY(fabs, round_)
namespace fast {
MSL_TRANSCENDENTAL(fast_)
MSL_ALWAYS_INLINE float divide(float a, float b) { return a / b; }
}  // namespace fast
namespace precise {
MSL_TRANSCENDENTAL(precise_)
MSL_ALWAYS_INLINE float divide(float a, float b) { return a / b; }
}  // namespace precise
#undef MSL_TRANSCENDENTAL
#undef MSL_UNARY

// As Metal's fast pow: defined for a > 0.
MSL_ALWAYS_INLINE float pow(float a, float b) { return ::msl::fast_exp2(b * ::msl::fast_log2(a)); }
MSL_ALWAYS_INLINE float powr(float a, float b) { return pow(a, b); }
namespace precise {
MSL_ALWAYS_INLINE float pow(float a, float b) { return ::msl::precise_pow(a, b); }
}  // namespace precise
MSL_ALWAYS_INLINE float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
MSL_ALWAYS_INLINE half fma(half a, half b, half c) { return half(__builtin_fmaf(a, b, c)); }
template <class V, int N = ::msl::size_of<V>, class = enable_if_t<(N > 1)>>
MSL_ALWAYS_INLINE V fma(V a, V b, V c) {
  V out;
  for (int i = 0; i < N; i++) {
    out[i] = fma(::msl::element_of<V>(a[i]), ::msl::element_of<V>(b[i]), ::msl::element_of<V>(c[i]));
  }
  return out;
}
MSL_ALWAYS_INLINE float divide(float a, float b) { return a / b; }
MSL_ALWAYS_INLINE bool isnan(float x) { return __builtin_isnan(x); }
MSL_ALWAYS_INLINE bool isinf(float x) { return __builtin_isinf(x); }
MSL_ALWAYS_INLINE bool isfinite(float x) { return __builtin_isfinite(x); }
MSL_ALWAYS_INLINE float copysign(float a, float b) { return __builtin_copysignf(a, b); }
MSL_ALWAYS_INLINE float sign(float x) { return x > 0.0f ? 1.0f : x < 0.0f ? -1.0f : 0.0f; }
MSL_ALWAYS_INLINE float ldexp(float x, int n) { return x * ::msl::precise_exp2(float(n)); }

#define MSL_ORDER(T)                                                        \
  MSL_ALWAYS_INLINE T min(T a, T b) { return b < a ? b : a; }               \
  MSL_ALWAYS_INLINE T max(T a, T b) { return a < b ? b : a; }               \
  MSL_ALWAYS_INLINE T clamp(T x, T low, T high) { return min(max(x, low), high); }
MSL_ORDER(char)
MSL_ORDER(uchar)
MSL_ORDER(short)
MSL_ORDER(ushort)
MSL_ORDER(int)
MSL_ORDER(uint)
MSL_ORDER(long)
MSL_ORDER(ulong)
MSL_ORDER(half)
MSL_ORDER(bfloat)
#undef MSL_ORDER
// fmin and fmax: the other operand where one is NaN, as MSL defines them for floats.
MSL_ALWAYS_INLINE float min(float a, float b) { return __builtin_fminf(a, b); }
MSL_ALWAYS_INLINE float max(float a, float b) { return __builtin_fmaxf(a, b); }
MSL_ALWAYS_INLINE float fmin(float a, float b) { return __builtin_fminf(a, b); }
MSL_ALWAYS_INLINE float fmax(float a, float b) { return __builtin_fmaxf(a, b); }
MSL_ALWAYS_INLINE float clamp(float x, float low, float high) { return min(max(x, low), high); }
template <class V, int N = ::msl::size_of<V>, class = enable_if_t<(N > 1)>>
MSL_ALWAYS_INLINE V min(V a, V b) {
  V out;
  for (int i = 0; i < N; i++) {
    out[i] = min(::msl::element_of<V>(a[i]), ::msl::element_of<V>(b[i]));
  }
  return out;
}
template <class V, int N = ::msl::size_of<V>, class = enable_if_t<(N > 1)>>
MSL_ALWAYS_INLINE V max(V a, V b) {
  V out;
  for (int i = 0; i < N; i++) {
    out[i] = max(::msl::element_of<V>(a[i]), ::msl::element_of<V>(b[i]));
  }
  return out;
}
template <class V, int N = ::msl::size_of<V>, class = enable_if_t<(N > 1)>>
MSL_ALWAYS_INLINE V clamp(V x, V low, V high) {
  return min(max(x, low), high);
}

MSL_ALWAYS_INLINE int abs(int a) { return a < 0 ? -a : a; }
MSL_ALWAYS_INLINE float abs(float a) { return __builtin_fabsf(a); }
MSL_ALWAYS_INLINE half abs(half a) { return half(__builtin_fabsf(a)); }
MSL_ALWAYS_INLINE bfloat abs(bfloat a) { return bfloat(__builtin_fabsf(a)); }
template <class V, int N = ::msl::size_of<V>, class = enable_if_t<(N > 1)>>
MSL_ALWAYS_INLINE V abs(V v) {
  V out;
  for (int i = 0; i < N; i++) {
    out[i] = abs(::msl::element_of<V>(v[i]));
  }
  return out;
}
MSL_ALWAYS_INLINE float saturate(float x) { return clamp(x, 0.0f, 1.0f); }
template <class T>
MSL_ALWAYS_INLINE T mix(T a, T b, T t) {
  return a + (b - a) * t;
}
template <class T>
MSL_ALWAYS_INLINE T select(T a, T b, bool c) {
  return c ? b : a;
}
template <class V, class M, int N = ::msl::size_of<V>, class = enable_if_t<(N > 1 && ::msl::size_of<M> == N)>>
MSL_ALWAYS_INLINE V select(V a, V b, M c) {
  V out;
  for (int i = 0; i < N; i++) {
    out[i] = c[i] ? b[i] : a[i];
  }
  return out;
}
template <class M, int N = ::msl::size_of<M>>
MSL_ALWAYS_INLINE bool any(M m) {
  bool found = false;
  for (int i = 0; i < N; i++) {
    found |= m[i] != 0;
  }
  return found;
}
template <class M, int N = ::msl::size_of<M>>
MSL_ALWAYS_INLINE bool all(M m) {
  bool every = true;
  for (int i = 0; i < N; i++) {
    every &= m[i] != 0;
  }
  return every;
}
template <class V, int N = ::msl::size_of<V>>
MSL_ALWAYS_INLINE ::msl::element_of<V> dot(V a, V b) {
  ::msl::element_of<V> sum = a[0] * b[0];
  for (int i = 1; i < N; i++) {
    sum += a[i] * b[i];
  }
  return sum;
}
template <class V>
MSL_ALWAYS_INLINE float length(V a) {
  return sqrt(float(dot(a, a)));
}

MSL_ALWAYS_INLINE uint popcount(uint x) { return __builtin_popcount(x); }
MSL_ALWAYS_INLINE uint clz(uint x) { return x ? __builtin_clz(x) : 32; }
MSL_ALWAYS_INLINE uint ctz(uint x) { return x ? __builtin_ctz(x) : 32; }
MSL_ALWAYS_INLINE uint reverse_bits(uint x) { return __builtin_bitreverse32(x); }
MSL_ALWAYS_INLINE uint mulhi(uint a, uint b) { return uint((ulong(a) * b) >> 32); }
MSL_ALWAYS_INLINE uint rotate(uint x, uint n) { return (x << (n & 31)) | (x >> ((32 - n) & 31)); }
MSL_ALWAYS_INLINE uint extract_bits(uint x, uint offset, uint bits) {
  return bits == 0 ? 0 : (x >> offset) & (0xffffffffu >> (32 - bits));
}

}  // namespace metal
