// What the shim needs from its target, on the CPU: simdgroup operations over the emulator's fibers, and libm.
#pragma once
#include "emulator.h"

extern "C" {
float expf(float);
float exp2f(float);
float logf(float);
float log2f(float);
float powf(float, float);
float sinf(float);
float cosf(float);
float tanhf(float);

// clang lowers float -> bfloat to this call, which some runtime libraries lack. Round to nearest even; NaN stays NaN.
__attribute__((weak, visibility("hidden"), disable_sanitizer_instrumentation)) __bf16 __truncsfbf2(float x) {
  uint u = __builtin_bit_cast(uint, x);
  u = (u & 0x7fffffffu) > 0x7f800000u ? u | 0x400000u : u + 0x7fffu + ((u >> 16) & 1);
  return __builtin_bit_cast(__bf16, ushort(u >> 16));
}
}

namespace msl {

// ---- positions -----------------------------------------------------------------
MSL_ALWAYS_INLINE const Launch& launch() { return *simdgroup().launch; }
MSL_ALWAYS_INLINE Position threadgroup_in_grid() {
  const Worker& w = *simdgroup().worker;
  return {w.position[0], w.position[1], w.position[2]};
}
MSL_ALWAYS_INLINE Position threadgroup_size() { return {launch().size[0], launch().size[1], launch().size[2]}; }
MSL_ALWAYS_INLINE Position grid_size() { return {launch().grid[0], launch().grid[1], launch().grid[2]}; }
MSL_ALWAYS_INLINE uint simdgroups() { return (launch().threads + 31) / 32; }
MSL_ALWAYS_INLINE Position thread_in_threadgroup() {
  const Launch& l = launch();
  const uint t = thread_index();
  return {t % l.size[0], t / l.size[0] % l.size[1], t / l.size[0] / l.size[1]};
}
MSL_ALWAYS_INLINE Position threads_in_grid() {
  const Launch& l = launch();
  return {l.grid[0] * l.size[0], l.grid[1] * l.size[1], l.grid[2] * l.size[2]};
}
MSL_ALWAYS_INLINE Position thread_in_grid() {
  const Position g = threadgroup_in_grid(), s = threadgroup_size(), t = thread_in_threadgroup();
  return {g.x * s.x + t.x, g.y * s.y + t.y, g.z * s.z + t.z};
}

// ---- function constants ----------------------------------------------------------
// Not instrumented: the words are the launch's, not memory that a kernel may touch.
template <class T>
MSL_RUNTIME T function_constant(uint index) {
  T value;
  __builtin_memcpy(&value, launch().constants + index, sizeof(T));
  return value;
}

// ---- threadgroup memory ------------------------------------------------------------
template <class T>
MSL_RUNTIME threadgroup T& threadgroup_variable(uint at, uint end, uint size, const char* name) {
  Worker& w = *simdgroup().worker;
  w.variables_end = end;
  w.variables_size = size;
#ifdef MSL_CHECKED
  launch().variable(launch().checker, name, w.memory + at, sizeof(T));
#endif
  return *(threadgroup T*)(w.memory + at);
}
MSL_ALWAYS_INLINE threadgroup uchar* threadgroup_argument(uint index) {
  const Simdgroup& s = simdgroup();
  return (threadgroup uchar*)(s.worker->memory + s.launch->argument_at[index]);
}

// ---- barriers ------------------------------------------------------------------------
MSL_ALWAYS_INLINE void threadgroup_wait() { wait_at_threadgroup_barrier(); }
MSL_ALWAYS_INLINE void simdgroup_wait() {
  Simdgroup& s = simdgroup();
  rendezvous(s, SIMDGROUP_BARRIER, [&] { s.epoch++; });
}

// ---- exchanges between lanes -----------------------------------------------------------
// Every lane deposits a value; all 32 lie side by side once it returns.
template <class T>
MSL_ALWAYS_INLINE const T* exchange(T value, uint operation) {
  static_assert(sizeof(T) * 32 <= EXCHANGE_BYTES, "too large to exchange");
  Simdgroup& s = simdgroup();
  T* slots = (T*)s.exchange[s.phase];
  slots[lane()] = value;
  rendezvous(s, operation, [] {});
  return slots;
}
template <class T>
MSL_ALWAYS_INLINE T shuffle_index(T v, uint from) {
  return exchange(v, SHUFFLE)[from & 31];
}
template <class T>
MSL_ALWAYS_INLINE T shuffle_xor(T v, uint mask) {
  return exchange(v, SHUFFLE)[(lane() ^ mask) & 31];
}
template <class T>
MSL_ALWAYS_INLINE T shuffle_down(T v, uint by) {
  const uint from = lane() + by;
  const T* all = exchange(v, SHUFFLE);
  return from > 31 ? v : all[from];
}
template <class T>
MSL_ALWAYS_INLINE T shuffle_up(T v, uint by) {
  const uint me = lane();
  const T* all = exchange(v, SHUFFLE);
  return by > me ? v : all[me - by];
}
// The last lane to arrive adds up for all, in the order of a butterfly, so that NVPTX gets the same bits.
template <class T, class F>
MSL_ALWAYS_INLINE T reduce(T v, F f) {
  Simdgroup& s = simdgroup();
  T* slots = (T*)s.exchange[s.phase];
  slots[lane()] = v;
  rendezvous(s, REDUCE, [=] {
    T sums[16];
    for (int i = 0; i < 16; i++) {
      sums[i] = f(slots[i], slots[i + 16]);
    }
    for (int width = 8; width > 0; width /= 2) {
      for (int i = 0; i < width; i++) {
        sums[i] = f(sums[i], sums[i + width]);
      }
    }
    slots[0] = sums[0];
  });
  return slots[0];
}
MSL_ALWAYS_INLINE ulong ballot(bool vote) {
  Simdgroup& s = simdgroup();
  uchar* slots = s.exchange[s.phase];
  slots[lane()] = vote;
  uint* result = (uint*)(slots + 64);
  rendezvous(s, BALLOT, [=] {
    uint bits = 0;
    for (int i = 0; i < 32; i++) {
      bits |= uint(slots[i]) << i;
    }
    *result = bits;
  });
  return *result;
}

// ---- matrices ------------------------------------------------------------------------------
// d = a * b over a whole simdgroup: lanes deposit their elements as plain matrices, the last to arrive multiplies.
// Not inlined: one copy serves all call sites, and it runs once for 32 lanes.
template <int M, int N, int K>
__attribute__((noinline, disable_sanitizer_instrumentation)) void multiply(const float* __restrict a, const float* __restrict b, float* __restrict d) {
  for (int i = 0; i < M; i++) {
    float row[N];
    for (int j = 0; j < N; j++) {
      row[j] = 0.0f;
    }
    for (int k = 0; k < K; k++) {
#pragma clang loop vectorize(enable)
      for (int j = 0; j < N; j++) {
        row[j] = __builtin_fmaf(a[i * K + k], b[k * N + j], row[j]);
      }
    }
    for (int j = 0; j < N; j++) {
      d[i * N + j] = row[j];
    }
  }
}

// simdgroup_matrix: a lane holds elements (row, column) and (row, column + 1).
template <class A, class B>
MSL_ALWAYS_INLINE float2 multiply_8x8(A a, B b, float2 c, int row, int column) {
  Simdgroup& s = simdgroup();
  float* ma = (float*)s.exchange[s.phase];
  float* mb = ma + 64;
  float* md = ma + 128;
  const int at = row * 8 + column;
  ma[at] = float(a.x);
  ma[at + 1] = float(a.y);
  mb[at] = float(b.x);
  mb[at + 1] = float(b.y);
  rendezvous(s, MULTIPLY_8X8, [=] { multiply<8, 8, 8>(ma, mb, md); });
  return float2{c.x + md[at], c.y + md[at + 1]};
}

// The tile vocabulary's 16x32x16: d0, d1 += a * b0^T, a * b1^T, for fragments in the element order of PTX's m16n8k16.
template <class T>
MSL_ALWAYS_INLINE void multiply_tile(float* d0, float* d1, const T* a, const T* b0, const T* b1) {
  Simdgroup& s = simdgroup();
  float* ma = (float*)s.exchange[s.phase];  // [16][16]
  float* mb = ma + 256;                     // [k 16][n 32]
  float* md = mb + 512;                     // [16][32]
  const int row0 = int(lane()) >> 2;
  const int column0 = (int(lane()) & 3) * 2;
  for (int i = 0; i < 8; i++) {
    const int row = row0 + ((i >> 1) & 1) * 8;
    const int column = column0 + (i & 1) + (i >> 2) * 8;
    ma[row * 16 + column] = float(a[i]);
    mb[column * 32 + row] = float(b0[i]);
    mb[column * 32 + 16 + row] = float(b1[i]);
  }
  rendezvous(s, MULTIPLY_TILE, [=] { multiply<16, 32, 16>(ma, mb, md); });
  for (int i = 0; i < 8; i++) {
    const int at = (row0 + ((i >> 1) & 1) * 8) * 32 + column0 + (i & 1) + (i >> 2) * 8;
    d0[i] += md[at];
    d1[i] += md[at + 16];
  }
}

// ---- arithmetic ------------------------------------------------------------------------------
#define MSL_LIBM(NAME, VALUE)                                         \
  MSL_ALWAYS_INLINE float fast_##NAME(float x) { return VALUE; }      \
  MSL_ALWAYS_INLINE float precise_##NAME(float x) { return VALUE; }
MSL_LIBM(exp, expf(x))
MSL_LIBM(exp2, exp2f(x))
MSL_LIBM(log, logf(x))
MSL_LIBM(log2, log2f(x))
MSL_LIBM(sqrt, __builtin_sqrtf(x))
MSL_LIBM(rsqrt, 1.0f / __builtin_sqrtf(x))
MSL_LIBM(sin, sinf(x))
MSL_LIBM(cos, cosf(x))
MSL_LIBM(tanh, tanhf(x))
#undef MSL_LIBM
MSL_ALWAYS_INLINE float precise_pow(float a, float b) { return powf(a, b); }
MSL_ALWAYS_INLINE float round_floor(float x) { return __builtin_floorf(x); }
MSL_ALWAYS_INLINE float round_ceil(float x) { return __builtin_ceilf(x); }
MSL_ALWAYS_INLINE float round_rint(float x) { return __builtin_rintf(x); }
MSL_ALWAYS_INLINE float round_round(float x) { return __builtin_roundf(x); }
MSL_ALWAYS_INLINE float round_trunc(float x) { return __builtin_truncf(x); }
MSL_ALWAYS_INLINE float round_fabs(float x) { return __builtin_fabsf(x); }

}  // namespace msl

#define MSL_CONSTANT(TYPE, INDEX) ::msl::function_constant<TYPE>(INDEX)
#define MSL_CONSTANT_DEFINED(INDEX) (((::msl::launch().constants_defined >> INDEX) & 1) != 0)

#define MSL_BARE(...) __VA_ARGS__
#define MSL_THREADGROUP(NAME, AFTER, TYPE, DIMENSIONS)                                            \
  typedef MSL_BARE TYPE msl_type_##NAME MSL_BARE DIMENSIONS;                                      \
  constexpr uint msl_at_##NAME = (msl_end_##AFTER + ::msl::THREADGROUP_GAP + 15) & ~15u;          \
  constexpr uint msl_end_##NAME = msl_at_##NAME + sizeof(msl_type_##NAME);                        \
  constexpr uint msl_size_##NAME = ((msl_size_##AFTER + 15) & ~15u) + sizeof(msl_type_##NAME);    \
  static_assert(msl_size_##NAME <= 32768, "threadgroup memory over 32 KiB");                      \
  threadgroup msl_type_##NAME& NAME =                                                             \
      ::msl::threadgroup_variable<msl_type_##NAME>(msl_at_##NAME, msl_end_##NAME, msl_size_##NAME, #NAME)
// What the first variable of a kernel comes after.
constexpr uint msl_end_none = 0;
constexpr uint msl_size_none = 0;
