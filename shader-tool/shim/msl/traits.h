// The part of MSL's type traits and numeric limits that kernels use.
#pragma once

namespace metal {
template <class T, int N>
using vec = ::msl::vector_of<T, N>;

template <class T, T v>
struct integral_constant {
  static constexpr T value = v;
  using value_type = T;
  using type = integral_constant;
  constexpr operator T() const { return v; }
  constexpr T operator()() const { return v; }
};
template <bool b>
using bool_constant = integral_constant<bool, b>;
using true_type = bool_constant<true>;
using false_type = bool_constant<false>;

template <class A, class B>
struct is_same : false_type {};
template <class A>
struct is_same<A, A> : true_type {};
template <class A, class B>
constexpr bool is_same_v = is_same<A, B>::value;

template <bool c, class T = void>
struct enable_if {};
template <class T>
struct enable_if<true, T> {
  using type = T;
};
template <bool c, class T = void>
using enable_if_t = typename enable_if<c, T>::type;

template <bool c, class A, class B>
struct conditional {
  using type = A;
};
template <class A, class B>
struct conditional<false, A, B> {
  using type = B;
};
template <bool c, class A, class B>
using conditional_t = typename conditional<c, A, B>::type;

template <class T>
struct remove_cv {
  using type = T;
};
template <class T>
struct remove_cv<const T> {
  using type = T;
};
template <class T>
using remove_cv_t = typename remove_cv<T>::type;
template <class T>
struct remove_reference {
  using type = T;
};
template <class T>
struct remove_reference<T&> {
  using type = T;
};
template <class T>
using remove_reference_t = typename remove_reference<T>::type;

template <class T>
constexpr bool is_integral_v = __is_integral(T);
template <class T>
struct is_integral : bool_constant<__is_integral(T)> {};
template <class T>
constexpr bool is_floating_point_v = __is_floating_point(T) || is_same_v<T, half> || is_same_v<T, bfloat>;
template <class T>
struct is_floating_point : bool_constant<is_floating_point_v<T>> {};
template <class T>
constexpr bool is_signed_v = __is_signed(T);
template <class T>
constexpr bool is_unsigned_v = __is_unsigned(T);

template <class T>
struct numeric_limits;
template <>
struct numeric_limits<float> {
  static constexpr float max() { return FLT_MAX; }
  static constexpr float lowest() { return -FLT_MAX; }
  static constexpr float min() { return FLT_MIN; }
  static constexpr float epsilon() { return FLT_EPSILON; }
  static constexpr float infinity() { return __builtin_inff(); }
  static constexpr float quiet_NaN() { return __builtin_nanf(""); }
};
template <>
struct numeric_limits<half> {
  static constexpr half max() { return half(65504.0f); }
  static constexpr half lowest() { return half(-65504.0f); }
  static constexpr half infinity() { return half(__builtin_inff()); }
};
template <>
struct numeric_limits<bfloat> {
  static constexpr bfloat max() { return bfloat(3.3895314e38f); }
  static constexpr bfloat lowest() { return bfloat(-3.3895314e38f); }
  static constexpr bfloat infinity() { return bfloat(__builtin_inff()); }
};
#define MSL_LIMITS(T, LOW, HIGH)               \
  template <>                                  \
  struct numeric_limits<T> {                   \
    static constexpr T max() { return HIGH; }  \
    static constexpr T lowest() { return LOW; } \
    static constexpr T min() { return LOW; }   \
  };
MSL_LIMITS(char, -128, 127)
MSL_LIMITS(signed char, -128, 127)
MSL_LIMITS(uchar, 0, 255)
MSL_LIMITS(short, -32768, 32767)
MSL_LIMITS(ushort, 0, 65535)
MSL_LIMITS(int, -2147483647 - 1, 2147483647)
MSL_LIMITS(uint, 0, 4294967295u)
MSL_LIMITS(long, -9223372036854775807l - 1, 9223372036854775807l)
MSL_LIMITS(ulong, 0, 18446744073709551615ul)
#undef MSL_LIMITS
}  // namespace metal
