// Barriers and SIMD-group functions, over the target's rendezvous.
#pragma once

namespace metal {

enum class mem_flags { mem_none = 0, mem_device = 1, mem_threadgroup = 2, mem_texture = 4 };
MSL_ALWAYS_INLINE constexpr mem_flags operator|(mem_flags a, mem_flags b) { return mem_flags(int(a) | int(b)); }
MSL_ALWAYS_INLINE void threadgroup_barrier(mem_flags) { ::msl::threadgroup_wait(); }
MSL_ALWAYS_INLINE void simdgroup_barrier(mem_flags) { ::msl::simdgroup_wait(); }

// MSL 6.9.2: any scalar or vector of up to 32-bit elements, but no bool.
#define MSL_SIMD_TYPE(T)                                                                                         \
  static_assert(sizeof(::msl::element_of<T>) <= 4 && !is_same_v<::msl::element_of<T>, bool>,                     \
                "SIMD-group functions take neither bool nor 64-bit types")

template <class T>
MSL_ALWAYS_INLINE T simd_shuffle(T v, ushort from) {
  MSL_SIMD_TYPE(T);
  return ::msl::shuffle_index(v, from);
}
template <class T>
MSL_ALWAYS_INLINE T simd_shuffle_xor(T v, ushort mask) {
  MSL_SIMD_TYPE(T);
  return ::msl::shuffle_xor(v, mask);
}
template <class T>
MSL_ALWAYS_INLINE T simd_shuffle_down(T v, ushort by) {
  MSL_SIMD_TYPE(T);
  return ::msl::shuffle_down(v, by);
}
template <class T>
MSL_ALWAYS_INLINE T simd_shuffle_up(T v, ushort by) {
  MSL_SIMD_TYPE(T);
  return ::msl::shuffle_up(v, by);
}
template <class T>
MSL_ALWAYS_INLINE T simd_shuffle_and_fill_up(T v, T filling, ushort by) {
  MSL_SIMD_TYPE(T);
  const T shifted = ::msl::shuffle_up(v, by);
  const T filled = ::msl::shuffle_index(filling, (32 + ::msl::lane() - by) & 31);
  return ::msl::lane() < by ? filled : shifted;
}
template <class T>
MSL_ALWAYS_INLINE T simd_shuffle_and_fill_down(T v, T filling, ushort by) {
  MSL_SIMD_TYPE(T);
  const T shifted = ::msl::shuffle_down(v, by);
  const T filled = ::msl::shuffle_index(filling, (::msl::lane() + by) & 31);
  return ::msl::lane() + by > 31 ? filled : shifted;
}
template <class T>
MSL_ALWAYS_INLINE T simd_broadcast(T v, ushort from) {
  MSL_SIMD_TYPE(T);
  return ::msl::shuffle_index(v, from);
}
template <class T>
MSL_ALWAYS_INLINE T simd_broadcast_first(T v) {
  MSL_SIMD_TYPE(T);
  return ::msl::shuffle_index(v, 0);
}
template <class T>
MSL_ALWAYS_INLINE T quad_shuffle_xor(T v, ushort mask) {
  MSL_SIMD_TYPE(T);
  return ::msl::shuffle_xor(v, mask & 3);
}

#define MSL_REDUCTION(NAME, EXPRESSION)                                      \
  template <class T>                                                         \
  MSL_ALWAYS_INLINE T NAME(T v) {                                            \
    MSL_SIMD_TYPE(T);                                                        \
    return ::msl::reduce(v, [](T a, T b) { return T(EXPRESSION); });         \
  }
MSL_REDUCTION(simd_sum, a + b)
MSL_REDUCTION(simd_product, a* b)
MSL_REDUCTION(simd_max, max(a, b))
MSL_REDUCTION(simd_min, min(a, b))
MSL_REDUCTION(simd_and, a& b)
MSL_REDUCTION(simd_or, a | b)
MSL_REDUCTION(simd_xor, a ^ b)
#undef MSL_REDUCTION
#ifdef __NVPTX__
// One instruction, where the others are ten.
MSL_ALWAYS_INLINE uint simd_max(uint v) { return __nvvm_redux_sync_umax(v, -1); }
MSL_ALWAYS_INLINE uint simd_min(uint v) { return __nvvm_redux_sync_umin(v, -1); }
#endif

template <class T>
MSL_ALWAYS_INLINE T quad_sum(T v) {
  v = T(v + simd_shuffle_xor(v, 2));
  return T(v + simd_shuffle_xor(v, 1));
}
template <class T>
MSL_ALWAYS_INLINE T quad_max(T v) {
  v = max(v, simd_shuffle_xor(v, 2));
  return max(v, simd_shuffle_xor(v, 1));
}

template <class T>
MSL_ALWAYS_INLINE T simd_prefix_inclusive_sum(T v) {
  MSL_SIMD_TYPE(T);
  for (ushort by = 1; by < 32; by <<= 1) {
    const T other = ::msl::shuffle_up(v, by);
    if (::msl::lane() >= by) {
      v = T(v + other);
    }
  }
  return v;
}
template <class T>
MSL_ALWAYS_INLINE T simd_prefix_exclusive_sum(T v) {
  const T before = ::msl::shuffle_up(simd_prefix_inclusive_sum(v), 1);
  return ::msl::lane() == 0 ? T(0) : before;
}

struct simd_vote {
  ulong bits;
  MSL_ALWAYS_INLINE explicit operator ulong() const { return bits; }
  MSL_ALWAYS_INLINE bool all() const { return uint(bits) == 0xffffffffu; }
  MSL_ALWAYS_INLINE bool any() const { return bits != 0; }
};
MSL_ALWAYS_INLINE simd_vote simd_ballot(bool vote) { return simd_vote{::msl::ballot(vote)}; }
MSL_ALWAYS_INLINE bool simd_any(bool vote) { return ::msl::ballot(vote) != 0; }
MSL_ALWAYS_INLINE bool simd_all(bool vote) { return uint(::msl::ballot(vote)) == 0xffffffffu; }

}  // namespace metal
// As spelled in Apple's own headers; the tile vocabulary asks it for its lane.
#define __metal_get_thread_index_in_simdgroup(x) (::msl::lane())
