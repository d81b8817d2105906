// The checked mode's ears: clang's -fsanitize=thread calls these at every access; no sanitizer runtime is linked.
// Included once, by an object compiled with MSL_CHECKED.
#pragma once

#define MSL_HOOK __attribute__((noinline, used, visibility("hidden"), disable_sanitizer_instrumentation))

namespace msl {
__attribute__((always_inline, disable_sanitizer_instrumentation)) inline void watch(const volatile void* p, ulong bytes, uint kind,
                                                                                    void* pc) {
  // The lane's own stack and the simdgroup's bookkeeping share its region; the rest of the bookkeeping is the worker's.
  if ((((ulong)p ^ stack_pointer()) & ~(REGION_BYTES - 1)) == 0) {
    return;
  }
  const Simdgroup& s = simdgroup();
  const ulong in_worker = (ulong)p - (ulong)s.worker, in_launch = (ulong)p - (ulong)s.launch;
  if (in_worker < sizeof(Worker) || in_launch < sizeof(Launch)) {
    return;
  }
  const AccessEvent event{p, bytes, kind, thread_index(), s.worker->epoch, s.epoch, pc};
  if (s.launch->access(s.launch->checker, event) != 0) {
    give_up(*const_cast<Simdgroup*>(&s), BAD_ACCESS, pc);
  }
}
}  // namespace msl

#define MSL_PC __builtin_return_address(0)
extern "C" {
#define MSL_HOOKS(N)                                                                                  \
  MSL_HOOK void __tsan_read##N(void* p) { ::msl::watch(p, N, ::msl::READ, MSL_PC); }                  \
  MSL_HOOK void __tsan_write##N(void* p) { ::msl::watch(p, N, ::msl::WRITE, MSL_PC); }                \
  MSL_HOOK void __tsan_unaligned_read##N(void* p) { ::msl::watch(p, N, ::msl::READ, MSL_PC); }        \
  MSL_HOOK void __tsan_unaligned_write##N(void* p) { ::msl::watch(p, N, ::msl::WRITE, MSL_PC); }
MSL_HOOKS(1)
MSL_HOOKS(2)
MSL_HOOKS(4)
MSL_HOOKS(8)
MSL_HOOKS(16)
MSL_HOOK void __tsan_init() {}
MSL_HOOK void* __tsan_memcpy(void* to, const void* from, size_t n) {
  ::msl::watch(from, n, ::msl::READ, MSL_PC);
  ::msl::watch(to, n, ::msl::WRITE, MSL_PC);
  return __builtin_memcpy(to, from, n);
}
MSL_HOOK void* __tsan_memmove(void* to, const void* from, size_t n) {
  ::msl::watch(from, n, ::msl::READ, MSL_PC);
  ::msl::watch(to, n, ::msl::WRITE, MSL_PC);
  return __builtin_memmove(to, from, n);
}
MSL_HOOK void* __tsan_memset(void* to, int value, size_t n) {
  ::msl::watch(to, n, ::msl::WRITE, MSL_PC);
  return __builtin_memset(to, value, n);
}
// Checked dispatches run on one CPU thread, so plain read-modify-write is atomic enough.
#define MSL_ATOMIC_UPDATE(BITS, T, NAME, EXPRESSION)                                     \
  MSL_HOOK T __tsan_atomic##BITS##_##NAME(volatile T* p, T v, int) {                     \
    ::msl::watch(p, sizeof(T), ::msl::ATOMIC, MSL_PC);                                   \
    const T old = *p;                                                                    \
    *p = EXPRESSION;                                                                     \
    return old;                                                                          \
  }
#define MSL_ATOMICS(BITS, T)                                                             \
  MSL_HOOK T __tsan_atomic##BITS##_load(const volatile T* p, int) {                      \
    ::msl::watch(p, sizeof(T), ::msl::ATOMIC, MSL_PC);                                   \
    return *p;                                                                           \
  }                                                                                      \
  MSL_HOOK void __tsan_atomic##BITS##_store(volatile T* p, T v, int) {                   \
    ::msl::watch(p, sizeof(T), ::msl::ATOMIC, MSL_PC);                                   \
    *p = v;                                                                              \
  }                                                                                      \
  MSL_ATOMIC_UPDATE(BITS, T, exchange, v)                                                \
  MSL_ATOMIC_UPDATE(BITS, T, fetch_add, old + v)                                         \
  MSL_ATOMIC_UPDATE(BITS, T, fetch_sub, old - v)                                         \
  MSL_ATOMIC_UPDATE(BITS, T, fetch_or, old | v)                                          \
  MSL_ATOMIC_UPDATE(BITS, T, fetch_and, old & v)                                         \
  MSL_ATOMIC_UPDATE(BITS, T, fetch_xor, old ^ v)                                         \
  MSL_HOOK T __tsan_atomic##BITS##_compare_exchange_val(volatile T* p, T e, T v, int, int) { \
    ::msl::watch(p, sizeof(T), ::msl::ATOMIC, MSL_PC);                                   \
    const T old = *p;                                                                    \
    if (old == e) {                                                                      \
      *p = v;                                                                            \
    }                                                                                    \
    return old;                                                                          \
  }
MSL_ATOMICS(8, uchar)
MSL_ATOMICS(32, uint)
MSL_ATOMICS(64, ulong)
}
