// Atomics, as MSL has them: relaxed only; float arithmetic in device memory only.
#pragma once

namespace metal {
enum memory_order { memory_order_relaxed };

template <class T>
struct atomic {
  static_assert(is_same_v<T, uint> || is_same_v<T, int> || is_same_v<T, float> || is_same_v<T, bool>,
                "atomics are uint, int, float or bool");
  T value;
};
using atomic_uint = atomic<uint>;
using atomic_int = atomic<int>;
using atomic_float = atomic<float>;
using atomic_bool = atomic<bool>;

#define MSL_ATOMIC_UPDATE(SPACE, NAME, BUILTIN)                                                              \
  template <class T, class = enable_if_t<is_integral_v<T>>>                                                  \
  MSL_ALWAYS_INLINE T atomic_##NAME##_explicit(volatile SPACE atomic<T>* p, T x, memory_order) {             \
    return BUILTIN(&p->value, x, __ATOMIC_RELAXED);                                                          \
  }
#define MSL_ATOMICS(SPACE)                                                                                   \
  template <class T>                                                                                         \
  MSL_ALWAYS_INLINE T atomic_load_explicit(const volatile SPACE atomic<T>* p, memory_order) {                \
    T out;                                                                                                   \
    __atomic_load((volatile SPACE T*)&p->value, &out, __ATOMIC_RELAXED);                                     \
    return out;                                                                                              \
  }                                                                                                          \
  template <class T>                                                                                         \
  MSL_ALWAYS_INLINE void atomic_store_explicit(volatile SPACE atomic<T>* p, T x, memory_order) {             \
    __atomic_store(&p->value, &x, __ATOMIC_RELAXED);                                                         \
  }                                                                                                          \
  MSL_ATOMIC_UPDATE(SPACE, exchange, __atomic_exchange_n)                                                    \
  MSL_ATOMIC_UPDATE(SPACE, fetch_add, __atomic_fetch_add)                                                    \
  MSL_ATOMIC_UPDATE(SPACE, fetch_sub, __atomic_fetch_sub)                                                    \
  MSL_ATOMIC_UPDATE(SPACE, fetch_max, __atomic_fetch_max)                                                    \
  MSL_ATOMIC_UPDATE(SPACE, fetch_min, __atomic_fetch_min)                                                    \
  MSL_ATOMIC_UPDATE(SPACE, fetch_or, __atomic_fetch_or)                                                      \
  MSL_ATOMIC_UPDATE(SPACE, fetch_and, __atomic_fetch_and)                                                    \
  MSL_ATOMIC_UPDATE(SPACE, fetch_xor, __atomic_fetch_xor)                                                    \
  template <class T>                                                                                         \
  MSL_ALWAYS_INLINE bool atomic_compare_exchange_weak_explicit(volatile SPACE atomic<T>* p, T* expected, T x,  \
                                                               memory_order, memory_order) {                 \
    return __atomic_compare_exchange(&p->value, expected, &x, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED);     \
  }
MSL_ATOMICS(device)
MSL_ATOMICS(threadgroup)
#undef MSL_ATOMICS
#undef MSL_ATOMIC_UPDATE

MSL_ALWAYS_INLINE float atomic_fetch_add_explicit(volatile device atomic<float>* p, float x, memory_order) {
  volatile device uint* bits = (volatile device uint*)&p->value;
  uint seen = __atomic_load_n(bits, __ATOMIC_RELAXED);
  for (;;) {
    const uint wanted = __builtin_bit_cast(uint, __builtin_bit_cast(float, seen) + x);
    if (__atomic_compare_exchange_n(bits, &seen, wanted, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
      return __builtin_bit_cast(float, seen);
    }
  }
}
}  // namespace metal
