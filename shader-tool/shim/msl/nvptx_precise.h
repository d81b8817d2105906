// metal::precise on NVIDIA GPUs: computed in double and rounded once. Constants are written as bits, since an unsuffixed
// literal is a float here as in MSL.
#pragma once

namespace msl {

MSL_ALWAYS_INLINE double from_bits(ulong bits) { return __builtin_bit_cast(double, bits); }
MSL_ALWAYS_INLINE double ln2() { return from_bits(0x3fe62e42fefa39eful); }

MSL_ALWAYS_INLINE double exp2_in_double(double x) {
  x = __builtin_fmin(__builtin_fmax(x, double(-200)), double(200));  // far outside float's range on both sides
  const double n = __builtin_rint(x);
  const double t = (x - n) * ln2();
  double sum = 1;
#pragma unroll
  for (int i = 10; i > 0; i--) {
    sum = 1 + sum * t / i;
  }
  return sum * from_bits(ulong(1023 + long(n)) << 52);
}
MSL_ALWAYS_INLINE double log2_in_double(float x) {
  const ulong bits = __builtin_bit_cast(ulong, double(x));  // a float's denormal is a normal double
  long exponent = long(bits >> 52) - 1023;
  double m = from_bits((bits & 0xffffffffffffful) | 0x3ff0000000000000ul);
  if (m > double(1.5f)) {
    m /= 2;
    exponent++;
  }
  const double s = (m - 1) / (m + 1);
  double sum = 0;
#pragma unroll
  for (int i = 23; i > 0; i -= 2) {
    sum = sum * s * s + double(1) / i;
  }
  return exponent + 2 * s * sum / ln2();
}

MSL_ALWAYS_INLINE float precise_exp2(float x) { return x != x ? x : float(exp2_in_double(x)); }
MSL_ALWAYS_INLINE float precise_exp(float x) { return x != x ? x : float(exp2_in_double(double(x) / ln2())); }
MSL_ALWAYS_INLINE float precise_log2(float x) {
  if (!(x > 0.0f) || __builtin_isinf(x)) {
    return x == 0.0f ? -__builtin_inff() : x > 0.0f ? x : __builtin_nanf("");
  }
  return float(log2_in_double(x));
}
MSL_ALWAYS_INLINE float precise_log(float x) {
  if (!(x > 0.0f) || __builtin_isinf(x)) {
    return x == 0.0f ? -__builtin_inff() : x > 0.0f ? x : __builtin_nanf("");
  }
  return float(log2_in_double(x) * ln2());
}
MSL_ALWAYS_INLINE float precise_pow(float a, float b) {
  return b == 0.0f ? 1.0f : a == 0.0f ? (b > 0.0f ? 0.0f : __builtin_inff()) : float(exp2_in_double(b * log2_in_double(a)));
}
MSL_ALWAYS_INLINE float precise_sqrt(float x) { return __nvvm_sqrt_rn_f(x); }
MSL_ALWAYS_INLINE float precise_rsqrt(float x) { return float(1 / __nvvm_sqrt_rn_d(double(x))); }
MSL_ALWAYS_INLINE float precise_tanh(float x) {
  if (__builtin_fabsf(x) < 1e-3f) {
    return x - x * x * x / 3.0f;
  }
  const double e = exp2_in_double(2 * double(__builtin_fminf(__builtin_fmaxf(x, -20.0f), 20.0f)) / ln2());
  return x != x ? x : float((e - 1) / (e + 1));
}
// sin(x + quarter turns): reduced in two steps, good for |x| up to 2^30.
MSL_ALWAYS_INLINE float sine(float x, long quarters) {
  const double n = __builtin_rint(double(x) * from_bits(0x3fe45f306dc9c883ul));
  double r = __builtin_fma(-n, from_bits(0x3ff921fb54442d18ul), double(x));
  r = __builtin_fma(-n, from_bits(0x3c91a62633145c07ul), r);
  const long quadrant = long(n) + quarters;
  double sum = 1;
  if (quadrant & 1) {
#pragma unroll
    for (int i = 12; i > 0; i -= 2) {
      sum = 1 - sum * r * r / (i * (i - 1));
    }
  } else {
#pragma unroll
    for (int i = 13; i > 1; i -= 2) {
      sum = 1 - sum * r * r / (i * (i - 1));
    }
    sum *= r;
  }
  return float(quadrant & 2 ? -sum : sum);
}
MSL_ALWAYS_INLINE float precise_sin(float x) { return sine(x, 0); }
MSL_ALWAYS_INLINE float precise_cos(float x) { return sine(x, 1); }

}  // namespace msl
