// What the shim needs from its target, on NVIDIA GPUs: a simdgroup is a warp, threadgroup memory is shared memory.
#pragma once

namespace msl {

// ---- positions -----------------------------------------------------------------
#define MSL_REGISTER3(NAME) \
  { __nvvm_read_ptx_sreg_##NAME##_x(), __nvvm_read_ptx_sreg_##NAME##_y(), __nvvm_read_ptx_sreg_##NAME##_z() }
MSL_ALWAYS_INLINE Position threadgroup_in_grid() { return Position MSL_REGISTER3(ctaid); }
MSL_ALWAYS_INLINE Position threadgroup_size() { return Position MSL_REGISTER3(ntid); }
MSL_ALWAYS_INLINE Position grid_size() { return Position MSL_REGISTER3(nctaid); }
MSL_ALWAYS_INLINE Position thread_in_threadgroup() { return Position MSL_REGISTER3(tid); }
#undef MSL_REGISTER3
MSL_ALWAYS_INLINE Position threads_in_grid() {
  const Position g = grid_size(), s = threadgroup_size();
  return {g.x * s.x, g.y * s.y, g.z * s.z};
}
MSL_ALWAYS_INLINE Position thread_in_grid() {
  const Position g = threadgroup_in_grid(), s = threadgroup_size(), t = thread_in_threadgroup();
  return {g.x * s.x + t.x, g.y * s.y + t.y, g.z * s.z + t.z};
}
MSL_ALWAYS_INLINE uint thread_index() {
  const Position s = threadgroup_size(), t = thread_in_threadgroup();
  return t.x + s.x * (t.y + s.y * t.z);
}
MSL_ALWAYS_INLINE uint lane() { return __nvvm_read_ptx_sreg_laneid(); }
MSL_ALWAYS_INLINE uint simdgroups() {
  const Position s = threadgroup_size();
  return (s.x * s.y * s.z + 31) / 32;
}

// ---- barriers --------------------------------------------------------------------
MSL_ALWAYS_INLINE void threadgroup_wait() { __syncthreads(); }
MSL_ALWAYS_INLINE void simdgroup_wait() { __nvvm_bar_warp_sync(-1); }

// ---- exchanges between lanes -------------------------------------------------------
// Shuffles move 32 bits; larger and smaller types go in pieces.
template <class T, class F>
MSL_ALWAYS_INLINE T by_words(T v, F f) {
  constexpr int WORDS = (sizeof(T) + 3) / 4;
  union {
    T value;
    int words[WORDS];
  } u;
  for (int i = 0; i < WORDS; i++) {
    u.words[i] = 0;
  }
  u.value = v;
#pragma unroll
  for (int i = 0; i < WORDS; i++) {
    u.words[i] = f(u.words[i]);
  }
  return u.value;
}
template <class T>
MSL_ALWAYS_INLINE T shuffle_index(T v, uint from) {
  return by_words(v, [=](int w) { return __nvvm_shfl_sync_idx_i32(-1, w, from, 31); });
}
template <class T>
MSL_ALWAYS_INLINE T shuffle_xor(T v, uint mask) {
  return by_words(v, [=](int w) { return __nvvm_shfl_sync_bfly_i32(-1, w, mask, 31); });
}
template <class T>
MSL_ALWAYS_INLINE T shuffle_down(T v, uint by) {
  return by_words(v, [=](int w) { return __nvvm_shfl_sync_down_i32(-1, w, by, 31); });
}
template <class T>
MSL_ALWAYS_INLINE T shuffle_up(T v, uint by) {
  return by_words(v, [=](int w) { return __nvvm_shfl_sync_up_i32(-1, w, by, 0); });
}
template <class T, class F>
MSL_ALWAYS_INLINE T reduce(T v, F f) {
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) {
    v = f(v, shuffle_xor(v, mask));
  }
  return v;
}
MSL_ALWAYS_INLINE ulong ballot(bool vote) { return (uint)__nvvm_vote_ballot_sync(-1, vote); }

// ---- matrices ------------------------------------------------------------------------
#define MSL_MMA_16X8X16(TYPE)                                                                                            \
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." TYPE "." TYPE ".f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};" \
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                                            \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))
template <class T>
MSL_ALWAYS_INLINE void mma_16x8x16(float* d, const uint* a, uint b0, uint b1) {
  if constexpr (__is_same(T, __bf16)) {
    MSL_MMA_16X8X16("bf16");
  } else {
    static_assert(__is_same(T, _Float16), "tiles are of bfloat or half");
    MSL_MMA_16X8X16("f16");
  }
}
#undef MSL_MMA_16X8X16
template <class T>
MSL_ALWAYS_INLINE uint pair(const T* elements) {
  typedef T Two __attribute__((ext_vector_type(2)));
  return __builtin_bit_cast(uint, Two{elements[0], elements[1]});
}
// d0, d1 += a * b0^T, a * b1^T; all fragments in the element order of m16n8k16's left operand, so that a right tile's pairs
// 0 and 2 are its first eight n, pairs 1 and 3 the others.
template <class T>
MSL_ALWAYS_INLINE void multiply_tile(float* d0, float* d1, const T* a, const T* b0, const T* b1) {
  const uint left[4] = {pair(a), pair(a + 2), pair(a + 4), pair(a + 6)};
  mma_16x8x16<T>(d0, left, pair(b0), pair(b0 + 4));
  mma_16x8x16<T>(d0 + 4, left, pair(b0 + 2), pair(b0 + 6));
  mma_16x8x16<T>(d1, left, pair(b1), pair(b1 + 4));
  mma_16x8x16<T>(d1 + 4, left, pair(b1 + 2), pair(b1 + 6));
}
template <class T>
MSL_ALWAYS_INLINE void unpair(T* elements, uint word) {
  typedef T Two __attribute__((ext_vector_type(2)));
  const Two two = __builtin_bit_cast(Two, word);
  elements[0] = two.x;
  elements[1] = two.y;
}
// Eight neighbouring 16-bit elements of a row, and of the row eight below it, into the elements of a slab's two tiles.
template <class T>
MSL_ALWAYS_INLINE void unpack_slab(T* first, T* second, uint4 upper, uint4 lower) {
  unpair(first, upper.x);
  unpair(first + 2, lower.x);
  unpair(first + 4, upper.y);
  unpair(first + 6, lower.y);
  unpair(second, upper.z);
  unpair(second + 2, lower.z);
  unpair(second + 4, upper.w);
  unpair(second + 6, lower.w);
}
MSL_ALWAYS_INLINE uint fma_bfloats(uint a, uint b, uint c) {
  uint d;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}
// The two codes of a word's byte, which `byte_select` names, as numbers: as the mantissas of 128 + code, which bfloat holds exactly, less 128. `shifted` is
// the word without its lowest code.
MSL_ALWAYS_INLINE constexpr uint byte_select(uint byte) { return (4 + byte) * 0x1100u | byte * 0x11u; }
MSL_ALWAYS_INLINE uint number_pair(uint word, uint shifted, uint select) {
  return fma_bfloats((__nvvm_prmt(word, shifted, select) & 0x000f000fu) | 0x43004300u, 0x3f803f80u, 0xc300c300u);
}
// The same as weights.
MSL_ALWAYS_INLINE uint expand_pair(uint word, uint shifted, uint select, uint scale, uint bias) {
  return fma_bfloats(number_pair(word, shifted, select), scale, bias);
}
MSL_ALWAYS_INLINE void code_numbers(__bf16* first, __bf16* second, uint word) {
  const uint shifted = word >> 4;
  unpair(first, number_pair(word, shifted, byte_select(0)));
  unpair(first + 4, number_pair(word, shifted, byte_select(1)));
  unpair(second, number_pair(word, shifted, byte_select(2)));
  unpair(second + 4, number_pair(word, shifted, byte_select(3)));
}
// 128 + code, as the mantissas that they are: pairs of codes 0 and 4, 1 and 5, 2 and 6, 3 and 7. One instruction takes the bits and puts the exponent there;
// the compiler makes two of it, because it knows both constants.
MSL_ALWAYS_INLINE uint raised_pair(uint word) {
  uint pair;
  __asm__("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(pair) : "r"(word), "r"(0x000f000fu), "r"(0x43004300u));
  return pair;
}
MSL_ALWAYS_INLINE void raised_codes(__bf16* first, __bf16* second, uint word) {
  unpair(first, raised_pair(word));
  unpair(first + 4, raised_pair(word >> 4));
  unpair(second, raised_pair(word >> 8));
  unpair(second + 4, raised_pair(word >> 12));
}
// d += a * b^T for eight vectors: half of a right tile.
MSL_ALWAYS_INLINE void multiply_eight(float* d, const __bf16* a, const __bf16* b) {
  const uint left[4] = {pair(a), pair(a + 2), pair(a + 4), pair(a + 6)};
  mma_16x8x16<__bf16>(d, left, pair(b), pair(b + 4));
}
// Eight codes of a row into pairs 0 and 2 of each of a slab's two tiles.
MSL_ALWAYS_INLINE void expand_codes(__bf16* first, __bf16* second, uint word, uint factors) {
  const uint scale = __nvvm_prmt(factors, 0, 0x1010);
  const uint bias = __nvvm_prmt(factors, 0, 0x3232);
  const uint shifted = word >> 4;
  unpair(first, expand_pair(word, shifted, byte_select(0), scale, bias));
  unpair(first + 4, expand_pair(word, shifted, byte_select(1), scale, bias));
  unpair(second, expand_pair(word, shifted, byte_select(2), scale, bias));
  unpair(second + 4, expand_pair(word, shifted, byte_select(3), scale, bias));
}

// ---- copies beside arithmetic ----------------------------------------------------------
MSL_ALWAYS_INLINE void copy_16(threadgroup void* to, const device void* from, bool present) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               :
               : "r"((uint)(ulong)to), "l"(from), "r"(present ? 16 : 0)
               : "memory");
}
MSL_ALWAYS_INLINE void copies_commit() { asm volatile("cp.async.commit_group;" : : : "memory"); }
template <int LATER>
MSL_ALWAYS_INLINE void copies_wait() {
  asm volatile("cp.async.wait_group %0;" : : "n"(LATER) : "memory");
}

// Four 8x8 matrices of 16-bit elements from shared memory; every lane names one row.
#define MSL_LDMATRIX(NAME, VARIANT, SECOND, THIRD)                                                                                      \
  template <class T>                                                                                                     \
  MSL_ALWAYS_INLINE void NAME(T* elements, const threadgroup T* row) {                                                   \
    static_assert(sizeof(T) == 2, "16-bit elements");                                                                    \
    uint words[4];                                                                                                       \
    asm volatile("ldmatrix.sync.aligned.m8n8.x4" VARIANT ".shared.b16 {%0,%1,%2,%3}, [%4];"                               \
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])                                        \
                 : "r"((uint)(ulong)row)                                                                                 \
                 : "memory");                                                                                            \
    unpair(elements, words[0]);                                                                                          \
    unpair(elements + SECOND, words[1]);                                                                                 \
    unpair(elements + THIRD, words[2]);                                                                                  \
    unpair(elements + 6, words[3]);                                                                                      \
  }
MSL_LDMATRIX(load_matrices, "", 2, 4)
MSL_LDMATRIX(load_matrices_right, "", 4, 2)
MSL_LDMATRIX(load_matrices_right_transposed, ".trans", 4, 2)
#undef MSL_LDMATRIX

// ---- products of a warpgroup -------------------------------------------------------------
// Four warps multiply 64 rows at once, and go on before the product is there (sm_90a). Right operands, and left ones of scores, come from shared memory
// in panels of 64 columns: rows of 128 bytes whose 16-byte parts are exchanged by row (`panel_place` in kernels/include/warpgroup.h), which is what bits
// 62 and 63 of a descriptor say. The accumulators of 16 columns lie as those of m16n8k16 do.
#define MSL_WGMMA_D16 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define MSL_WGMMA_D32 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define MSL_WGMMA_D64 \
  "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31," \
  "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define MSL_WGMMA_D128 \
  "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31," \
  "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63," \
  "%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95," \
  "%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
#define MSL_F8(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define MSL_F32(d, i) MSL_F8(d, i), MSL_F8(d, i + 8), MSL_F8(d, i + 16), MSL_F8(d, i + 24)
// A left operand in registers, and a right one by its descriptor.
#define MSL_WGMMA_LEFT "r"(pair(a)), "r"(pair(a + 2)), "r"(pair(a + 4)), "r"(pair(a + 6)), "l"(b)

// `leading` bytes from one panel to the next where columns are the outer side, `stride` from eight rows to the next eight.
MSL_ALWAYS_INLINE ulong panel_descriptor(const threadgroup void* p, uint leading, uint stride) {
  return (ulong)(((uint)(ulong)p & 0x3ffffu) >> 4) | (ulong)(leading >> 4) << 16 | (ulong)(stride >> 4) << 32 | 1ul << 62;
}
MSL_ALWAYS_INLINE void warpgroup_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
MSL_ALWAYS_INLINE void warpgroup_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int LATER>
MSL_ALWAYS_INLINE void warpgroup_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" : : "n"(LATER) : "memory");
}
// Nothing that uses the register moves across.
MSL_ALWAYS_INLINE void pin(float* d, int n) {
#pragma unroll
  for (int i = 0; i < n; i++) {
    asm volatile("" : "+f"(d[i]) : : "memory");
  }
}
MSL_ALWAYS_INLINE void pin(__bf16* elements, int n) {
#pragma unroll
  for (int i = 0; i < n; i += 2) {
    uint word = pair(elements + i);
    asm volatile("" : "+r"(word) : : "memory");
    unpair(elements + i, word);
  }
}
// d (+)= a * b^T with both in shared memory, k along the rows of both, 64 columns.
MSL_ALWAYS_INLINE void warpgroup_multiply_nk_64(float* d, ulong a, ulong b, int add) {
  asm volatile("{.reg .pred p; setp.ne.b32 p, %34, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" MSL_WGMMA_D32 "}, %32, %33, p, 1, 1, 0, 0;}"
               : MSL_F32(d, 0) : "l"(a), "l"(b), "r"(add));
}
// d += a * b with b [k][n] in shared memory, 256 columns.
MSL_ALWAYS_INLINE void warpgroup_multiply_kn_256(float* d, const __bf16* a, ulong b) {
  asm volatile("{.reg .pred p; setp.ne.b32 p, 1, 0; wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {" MSL_WGMMA_D128 "}, {%128,%129,%130,%131}, %132, p, 1, 1, 1;}"
               : MSL_F32(d, 0), MSL_F32(d, 32), MSL_F32(d, 64), MSL_F32(d, 96)
               : MSL_WGMMA_LEFT);
}
// d += a * b^T with b in shared memory, k along its rows, and 32, 64, 128 or 256 columns of d.
MSL_ALWAYS_INLINE void warpgroup_multiply_left_32(float* d, const __bf16* a, ulong b) {
  asm volatile("{.reg .pred p; setp.ne.b32 p, 1, 0; wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {" MSL_WGMMA_D16 "}, {%16,%17,%18,%19}, %20, p, 1, 1, 0;}"
               : MSL_F8(d, 0), MSL_F8(d, 8)
               : MSL_WGMMA_LEFT);
}
MSL_ALWAYS_INLINE void warpgroup_multiply_left_64(float* d, const __bf16* a, ulong b) {
  asm volatile("{.reg .pred p; setp.ne.b32 p, 1, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" MSL_WGMMA_D32 "}, {%32,%33,%34,%35}, %36, p, 1, 1, 0;}"
               : MSL_F32(d, 0)
               : MSL_WGMMA_LEFT);
}
MSL_ALWAYS_INLINE void warpgroup_multiply_left_128(float* d, const __bf16* a, ulong b) {
  asm volatile("{.reg .pred p; setp.ne.b32 p, 1, 0; wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" MSL_WGMMA_D64 "}, {%64,%65,%66,%67}, %68, p, 1, 1, 0;}"
               : MSL_F32(d, 0), MSL_F32(d, 32)
               : MSL_WGMMA_LEFT);
}
MSL_ALWAYS_INLINE void warpgroup_multiply_left_256(float* d, const __bf16* a, ulong b) {
  asm volatile("{.reg .pred p; setp.ne.b32 p, 1, 0; wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {" MSL_WGMMA_D128 "}, {%128,%129,%130,%131}, %132, p, 1, 1, 0;}"
               : MSL_F32(d, 0), MSL_F32(d, 32), MSL_F32(d, 64), MSL_F32(d, 96)
               : MSL_WGMMA_LEFT);
}
// What this thread's copies have put into shared memory is seen by products of warpgroups after the next barrier.
MSL_ALWAYS_INLINE void warpgroup_sees_copies() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// simdgroup_matrix by shuffles: correct for every type, slow; kernels use the tile vocabulary.
template <class A, class B>
MSL_ALWAYS_INLINE float2 multiply_8x8(A a, B b, float2 c, int row, int column) {
  for (int k = 0; k < 8; k++) {
    const int lane_a = ((row >> 2) << 4) | ((row & 3) << 1) | ((k >> 2) << 3) | ((k >> 1) & 1);
    const int lane_b = ((k >> 2) << 4) | ((k & 3) << 1) | ((column >> 2) << 3) | ((column >> 1) & 1);
    const float a0 = shuffle_index(float(a.x), lane_a), a1 = shuffle_index(float(a.y), lane_a);
    const float b0 = shuffle_index(float(b.x), lane_b), b1 = shuffle_index(float(b.y), lane_b);
    const float left = (k & 1) ? a1 : a0;
    c.x = __builtin_fmaf(left, b0, c.x);
    c.y = __builtin_fmaf(left, b1, c.y);
  }
  return c;
}

// ---- arithmetic ------------------------------------------------------------------------
// The unqualified functions are as fast and as rough as Metal's fast ones; precise ones are made of correctly rounded steps.
MSL_ALWAYS_INLINE float fast_exp2(float x) { return __nvvm_ex2_approx_ftz_f(x); }
MSL_ALWAYS_INLINE float fast_exp(float x) { return __nvvm_ex2_approx_ftz_f(x * 1.44269504f); }
MSL_ALWAYS_INLINE float fast_log2(float x) { return __nvvm_lg2_approx_f(x); }
MSL_ALWAYS_INLINE float fast_log(float x) { return __nvvm_lg2_approx_f(x) * 0.69314718f; }
MSL_ALWAYS_INLINE float fast_sqrt(float x) { return __nvvm_sqrt_approx_f(x); }
MSL_ALWAYS_INLINE float fast_rsqrt(float x) { return __nvvm_rsqrt_approx_f(x); }
MSL_ALWAYS_INLINE float fast_sin(float x) { return __nvvm_sin_approx_f(x); }
MSL_ALWAYS_INLINE float fast_cos(float x) { return __nvvm_cos_approx_f(x); }
MSL_ALWAYS_INLINE float fast_tanh(float x) {
  float y;
  asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
MSL_ALWAYS_INLINE float round_floor(float x) { return __builtin_floorf(x); }
MSL_ALWAYS_INLINE float round_ceil(float x) { return __builtin_ceilf(x); }
MSL_ALWAYS_INLINE float round_rint(float x) { return __builtin_rintf(x); }
MSL_ALWAYS_INLINE float round_trunc(float x) { return __builtin_truncf(x); }
MSL_ALWAYS_INLINE float round_round(float x) { return __builtin_truncf(x + __builtin_copysignf(0.5f, x)); }
MSL_ALWAYS_INLINE float round_fabs(float x) { return __builtin_fabsf(x); }

}  // namespace msl
#include "nvptx_precise.h"

namespace msl {
// Function constants are names in the PTX that the host replaces by numbers before the driver compiles it; what is thereby
// never reached, the driver's compiler leaves out.
template <int INDEX>
MSL_ALWAYS_INLINE uint constant_word() {
  uint word;
  asm("mov.b32 %0, lily_constant_%1;" : "=r"(word) : "n"(INDEX));
  return word;
}
template <int INDEX>
MSL_ALWAYS_INLINE bool constant_given() {
  uint word;
  asm("mov.b32 %0, lily_given_%1;" : "=r"(word) : "n"(INDEX));
  return word != 0;
}
template <class T, int INDEX>
MSL_ALWAYS_INLINE T function_constant() {
  const uint word = constant_word<INDEX>();
  if constexpr (__is_same(T, bool)) {
    return word != 0;
  } else if constexpr (__is_same(T, float)) {
    return __builtin_bit_cast(float, word);
  } else {
    return T(word);
  }
}

// Where a kernel begins. Later GPUs may start it while the kernels that it depends on still run, and it lets its own dependents do the same.
MSL_ALWAYS_INLINE void kernel_starts() {
#if MSL_SM >= 90
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}
// Waits for the end of the kernels that it depends on.
MSL_ALWAYS_INLINE void kernel_waits() {
#if MSL_SM >= 90
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
}  // namespace msl
#define MSL_CONSTANT(TYPE, INDEX) (::msl::function_constant<TYPE, INDEX>())
#define MSL_CONSTANT_DEFINED(INDEX) (::msl::constant_given<INDEX>())

// The address of a kernel's parameter that is passed by value.
#define MSL_PARAMETER(KERNEL, PLACE)                                            \
  ({                                                                            \
    ulong address;                                                              \
    asm("mov.b64 %0, " #KERNEL "_param_" #PLACE ";" : "=l"(address));            \
    (constant char*)address;                                                    \
  })

#define MSL_BARE(...) __VA_ARGS__
#define MSL_THREADGROUP(NAME, AFTER, TYPE, DIMENSIONS) \
  [[clang::loader_uninitialized]] static threadgroup __attribute__((aligned(16))) MSL_BARE TYPE NAME MSL_BARE DIMENSIONS
// Dynamic threadgroup memory; the launch gives its size.
extern "C" {
extern threadgroup __attribute__((aligned(16))) char msl_dynamic_threadgroup_memory[];
}
