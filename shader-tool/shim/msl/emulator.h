// The emulator's core, compiled into every kernel object: Metal threads as fibers.
//
// A threadgroup runs on one CPU thread. Each of its simdgroups owns a REGION of address space, aligned to its own size: a
// header at the bottom, then 32 stacks. So the stack pointer alone says which simdgroup and lane is running, without
// thread-local storage. A lane runs until it must wait for the others (a rendezvous: a SIMD operation or a barrier), then
// jumps straight to the next lane that has not arrived. The last lane to arrive completes the operation and goes on.
//
// `crate::emulator::abi` in the Rust half mirrors Launch and Worker.
#pragma once

#ifdef MSL_CHECKED
// Not inlined, so that the instrumentation does not watch the emulator's own bookkeeping.
#define MSL_RUNTIME __attribute__((noinline, disable_sanitizer_instrumentation))
// What threads wait at: calls must stay where they are in the source, to be told apart.
#define MSL_MEETING MSL_RUNTIME __attribute__((convergent, nomerge))
#else
#define MSL_RUNTIME MSL_ALWAYS_INLINE
#define MSL_MEETING MSL_ALWAYS_INLINE
#endif
#define MSL_COLD __attribute__((noinline, cold, disable_sanitizer_instrumentation))
#define MSL_UNLIKELY(x) __builtin_expect(!!(x), 0)

namespace msl {

constexpr ulong REGION_BYTES = 8ul << 20;
constexpr ulong STACKS_AT = 4ul << 20;
constexpr int SLOT_BITS = 17;  // 128 KiB of stack a lane
constexpr uint MAX_SIMDGROUPS = 32;
constexpr uint EXCHANGE_BYTES = 8192;
constexpr uint VARIABLES_BYTES = 40960;  // Metal's 32 KiB, and room for the gaps below
#ifdef MSL_CHECKED
constexpr uint THREADGROUP_GAP = 64;  // so that running over one variable's end does not land in the next
#else
constexpr uint THREADGROUP_GAP = 0;
#endif

// Operations a lane can wait at. All lanes of a simdgroup must wait at the same one.
enum Operation : uint {
  NONE,
  THREADGROUP_BARRIER,
  SIMDGROUP_BARRIER,
  SHUFFLE,
  REDUCE,
  BALLOT,
  MULTIPLY_8X8,
  MULTIPLY_TILE,
  MULTIPLY_TENSOR,
};

// What went wrong in a threadgroup; the numbers are shared with Rust.
enum Problem : uint {
  FINE,
  DIVERGED,          // lanes wait at different operations
  LANES_MISSING,     // a SIMD operation although some lanes have returned or never existed
  BARRIER_MISSED,    // a threadgroup barrier although some threads have returned
  BAD_ACCESS,        // outside every buffer; already reported
};

enum AccessKind : uint { READ, WRITE, ATOMIC };

struct AccessEvent {
  const volatile void* address;
  ulong bytes;
  uint kind;
  uint index;  // the thread's, in its threadgroup
  uint epoch;
  uint simd_epoch;
  void* pc;
};

struct Worker;

struct Launch {
  void (*entry)(void* const*);
  void* const* buffers;
  const uint* constants;      // one word a function constant index
  ulong constants_defined;    // one bit an index
  uint grid[3];
  uint size[3];
  uint threads;
  // Offsets into a worker's memory: the threadgroup arguments, together and one by one.
  uint arguments_at;
  uint arguments_end;
  uint argument_at[4];
  uint uses_variables;
  uint* next;                 // the next threadgroup to run; shared by the workers
  const uint* order;          // threadgroups in the order to run them, or null
  ulong seed;                 // 0: lanes and simdgroups take turns in a fixed order
  void* checker;
  void (*begin)(void* checker, uint group);
  uint (*access)(void* checker, const AccessEvent& event);  // not 0: give the threadgroup up
  void (*variable)(void* checker, const char* name, void* address, ulong bytes);
  void (*call_site)(void* checker, uint operation, uint index, uint epoch, void* pc);
  void (*problem)(void* checker, uint problem, uint index, void* pc);
};

struct Context {
  void* stack;
  void* resume;
};

struct alignas(64) Simdgroup {
  Worker* worker;
  const Launch* launch;
  uint index;
  uint first_thread;
  uint pending;    // lanes that have not arrived at the current rendezvous
  uint live;       // lanes that have not returned
  uint all;        // lanes that it began with
  uint operation;  // what the lanes that have arrived wait at
  uint phase;      // which half of `exchange` the current rendezvous uses
  uint epoch;      // counts simdgroup barriers
  Context lanes[32];
  // Two halves: a lane may deposit for the next operation before the others have read the results of this one.
  alignas(64) uchar exchange[2][EXCHANGE_BYTES];
};

// One CPU thread's state. `regions` and `memory` are given by the caller.
struct Worker {
  uchar* regions;  // MAX_SIMDGROUPS regions, aligned
  uchar* memory;   // threadgroup variables, then threadgroup arguments
  Context caller;
  uint todo;       // simdgroups that have not yet run up to the next threadgroup barrier
  uint alive;      // simdgroups with a live lane
  uint all;        // simdgroups that the threadgroup began with
  uint epoch;      // counts threadgroup barriers
  uint group;
  uint position[3];
  uint variables_end;   // bytes of `memory` in use by variables
  uint variables_size;  // the same without gaps: what Metal would count
  uint problem;
  uint problem_thread;
  void* problem_pc;
  void* barrier_pc;
  ulong random;
};

// ---- who is running ----------------------------------------------------------

MSL_ALWAYS_INLINE ulong stack_pointer() {
  // Not volatile: constant within a fiber, so the compiler may keep the result.
  ulong sp;
#if defined(__x86_64__)
  asm("movq %%rsp, %0" : "=r"(sp));
#elif defined(__aarch64__)
  asm("mov %0, sp" : "=r"(sp));
#else
#error "the emulator's fiber switch is written for x86-64 and aarch64"
#endif
  return sp;
}
MSL_ALWAYS_INLINE Simdgroup& simdgroup() { return *(Simdgroup*)(stack_pointer() & ~(REGION_BYTES - 1)); }
MSL_ALWAYS_INLINE uint lane() { return (stack_pointer() >> SLOT_BITS) & 31; }
MSL_ALWAYS_INLINE uint thread_index() { return simdgroup().first_thread + lane(); }

// ---- switching ---------------------------------------------------------------

// Saves where this fiber is in `from` and goes on with `to`. Every register is declared lost, so the compiler saves just
// those that are in use; and the jump, unlike a return, is predicted well, since all lanes resume at the same place.
MSL_ALWAYS_INLINE void switch_to(Context& from, const Context& to) {
#if defined(__x86_64__)
  void* a = &from;
  const void* b = &to;
  asm volatile(
      "pushq %%rbp\n\tpushq %%rbx\n\t"
      "leaq 1f(%%rip), %%rax\n\t"
      "movq %%rsp, (%0)\n\tmovq %%rax, 8(%0)\n\t"
      "movq (%1), %%rsp\n\tjmpq *8(%1)\n"
      "1:\n\tpopq %%rbx\n\tpopq %%rbp"
      : "+D"(a), "+S"(b)
      :
      : "rax", "rcx", "rdx", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4",
        "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "memory", "cc");
#elif defined(__aarch64__)
#ifdef __APPLE__
#define MSL_PLATFORM_REGISTER  // x18 is the system's there
#else
#define MSL_PLATFORM_REGISTER "x18",
#endif
  register void* a asm("x0") = &from;
  register const void* b asm("x1") = &to;
  asm volatile(
      "stp x29, x19, [sp, #-16]!\n\t"
      "adr x2, 1f\n\tmov x3, sp\n\tstp x3, x2, [x0]\n\t"
      "ldp x3, x2, [x1]\n\tmov sp, x3\n\tbr x2\n"
      "1:\n\tldp x29, x19, [sp], #16"
      : "+r"(a), "+r"(b)
      :
      : "x2", "x3", "x4", "x5", "x6", "x7", "x8", "x9", "x10", "x11", "x12", "x13", "x14", "x15", "x16", "x17",
        MSL_PLATFORM_REGISTER "x20", "x21", "x22", "x23", "x24", "x25", "x26", "x27", "x28", "x30", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9",
        "v10", "v11", "v12", "v13", "v14", "v15", "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26",
        "v27", "v28", "v29", "v30", "v31", "memory", "cc");
#endif
}

MSL_COLD inline uint random_bit(Worker& w, uint mask) {
  w.random ^= w.random << 13;
  w.random ^= w.random >> 7;
  w.random ^= w.random << 17;
  for (uint skip = uint(w.random >> 32) % uint(__builtin_popcount(mask)); skip > 0; skip--) {
    mask &= mask - 1;
  }
  return uint(__builtin_ctz(mask));
}

// The lane of `mask` that follows `after`, cyclically, or a random one.
MSL_ALWAYS_INLINE uint pick_lane(Simdgroup& s, uint mask, uint after) {
  if (MSL_UNLIKELY(s.launch->seed != 0)) {
    return random_bit(*s.worker, mask);
  }
  const uint start = (after + 1) & 31;
  const uint rotated = (mask >> start) | (mask << ((32 - start) & 31));
  return (start + uint(__builtin_ctz(rotated))) & 31;
}

// Gives the threadgroup up: its fibers are abandoned where they stand (kernels own nothing that needs cleaning up).
[[noreturn]] MSL_COLD inline void give_up(Simdgroup& s, uint problem, void* pc) {
  Worker& w = *s.worker;
  w.problem = problem;
  w.problem_thread = thread_index();
  w.problem_pc = pc;
  Context nowhere;
  switch_to(nowhere, w.caller);
  __builtin_unreachable();
}
[[noreturn]] MSL_COLD inline void diverged(Simdgroup& s, uint problem) { give_up(s, problem, __builtin_return_address(0)); }

// Some threads wait at a barrier that others, which have returned, will never reach. Apple's GPUs and this emulator go on;
// that is not promised anywhere.
MSL_COLD inline void barrier_missed(Simdgroup& s) {
  s.launch->problem(s.launch->checker, BARRIER_MISSED, thread_index(), s.worker->barrier_pc);
}

// Leaves a simdgroup whose live lanes all wait at a threadgroup barrier, or have returned, for the next one.
MSL_RUNTIME void next_simdgroup(Simdgroup& s, Context& from) {
  Worker& w = *s.worker;
  w.todo &= ~(1u << s.index);
  if (w.todo == 0) {
    if (w.alive == 0) {
      switch_to(from, w.caller);
      return;
    }
#ifdef MSL_CHECKED
    if (w.alive != w.all) {
      barrier_missed(s);
    }
#endif
    w.epoch++;
    w.todo = w.alive;
  }
  const uint index = MSL_UNLIKELY(s.launch->seed != 0) ? random_bit(w, w.todo) : uint(__builtin_ctz(w.todo));
  Simdgroup& next = *(Simdgroup*)(w.regions + index * REGION_BYTES);
  const uint to = pick_lane(next, next.live, 31);
  if (&next.lanes[to] != &from) {
    switch_to(from, next.lanes[to]);
  }
}

// ---- waiting for the other lanes -----------------------------------------------

// Waits until all 32 lanes have called it with the same operation; the last to arrive runs `complete`.
template <class Complete>
MSL_MEETING void rendezvous(Simdgroup& s, uint operation, Complete complete) {
  const uint me = lane();
  const uint pending = s.pending & ~(1u << me);
#ifdef MSL_CHECKED
  s.launch->call_site(s.launch->checker, operation, s.first_thread + me, s.worker->epoch, __builtin_return_address(0));
#endif
  if (MSL_UNLIKELY(s.operation != operation)) {
    if (s.operation != NONE) {
      diverged(s, DIVERGED);
    }
    s.operation = operation;
  }
  if (pending == 0) {
    if (MSL_UNLIKELY(s.live != ~0u)) {
      diverged(s, LANES_MISSING);
    }
    s.pending = ~0u;
    s.operation = NONE;
    s.phase ^= 1;
    complete();
    return;
  }
  s.pending = pending;
  switch_to(s.lanes[me], s.lanes[pick_lane(s, pending, me)]);
}

MSL_MEETING void wait_at_threadgroup_barrier() {
  Simdgroup& s = simdgroup();
  const uint me = lane();
#ifdef MSL_CHECKED
  s.worker->barrier_pc = __builtin_return_address(0);
  s.launch->call_site(s.launch->checker, THREADGROUP_BARRIER, s.first_thread + me, s.worker->epoch, s.worker->barrier_pc);
#endif
  if (MSL_UNLIKELY(s.operation != THREADGROUP_BARRIER)) {
    if (s.operation != NONE) {
      diverged(s, DIVERGED);
    }
    s.operation = THREADGROUP_BARRIER;
  }
  s.pending &= ~(1u << me);
  if (s.pending != 0) {
    switch_to(s.lanes[me], s.lanes[pick_lane(s, s.pending, me)]);
    return;
  }
#ifdef MSL_CHECKED
  if (s.live != s.all) {
    barrier_missed(s);
  }
#endif
  s.pending = s.live;
  s.operation = NONE;
  next_simdgroup(s, s.lanes[me]);
}

[[noreturn]] MSL_COLD inline void lane_returned() {
  Simdgroup& s = simdgroup();
  const uint me = lane();
  s.live &= ~(1u << me);
  s.pending &= ~(1u << me);
  if (s.pending != 0) {
    switch_to(s.lanes[me], s.lanes[pick_lane(s, s.pending, me)]);
    __builtin_unreachable();
  }
  if (s.live == 0) {
    s.worker->alive &= ~(1u << s.index);
  } else if (s.operation != THREADGROUP_BARRIER) {
    // Where another lane waits is where the operation is. (The checked mode knows better: it has noted the call site.)
    give_up(s, LANES_MISSING, s.lanes[__builtin_ctz(s.live)].resume);
  }
  s.pending = s.live;
  s.operation = NONE;
  next_simdgroup(s, s.lanes[me]);
  __builtin_unreachable();
}

// Where every fiber begins.
[[noreturn]] __attribute__((noinline, disable_sanitizer_instrumentation)) inline void fiber() {
  const Launch& launch = *simdgroup().launch;
  launch.entry(launch.buffers);
  lane_returned();
}

// ---- running a dispatch --------------------------------------------------------

MSL_COLD inline void run_threadgroup(Worker& w, const Launch& l, uint group) {
  w.group = group;
  w.position[0] = group % l.grid[0];
  w.position[1] = group / l.grid[0] % l.grid[1];
  w.position[2] = group / l.grid[0] / l.grid[1];
  w.epoch = 0;
  w.problem = FINE;
  w.random = (l.seed + group + 1) * 0x9e3779b97f4a7c15ul | 1;
  if (l.begin) {
    l.begin(l.checker, group);
  }
  // Every threadgroup starts with NaNs, so that a value left by the one before cannot help.
  __builtin_memset(w.memory, 0xff, w.variables_end);
  __builtin_memset(w.memory + l.arguments_at, 0xff, l.arguments_end - l.arguments_at);
  const uint count = (l.threads + 31) / 32;
  for (uint i = 0; i < count; i++) {
    uchar* region = w.regions + i * REGION_BYTES;
    Simdgroup& s = *(Simdgroup*)region;
    const uint lanes = l.threads - i * 32 < 32 ? l.threads - i * 32 : 32;
    s.worker = &w;
    s.launch = &l;
    s.index = i;
    s.first_thread = i * 32;
    s.all = s.live = s.pending = lanes == 32 ? ~0u : (1u << lanes) - 1;
    s.operation = NONE;
    s.phase = 0;
    s.epoch = 0;
    for (uint j = 0; j < lanes; j++) {
      // Staggered: stacks that start at equal distances would all fall into the same few sets of the caches.
      const ulong stagger = (j * 1152 + i * 2368) % 65536;
      uchar* top = region + STACKS_AT + ((j + 1ul) << SLOT_BITS) - stagger;
#if defined(__x86_64__)
      top -= 8;  // as if a return address had just been pushed
#endif
      s.lanes[j] = Context{top, (void*)&fiber};
    }
  }
  w.all = w.alive = w.todo = count == 32 ? ~0u : (1u << count) - 1;
  Simdgroup& first = *(Simdgroup*)(w.regions + (l.seed ? random_bit(w, w.todo) : 0) * REGION_BYTES);
  switch_to(w.caller, first.lanes[pick_lane(first, first.live, 31)]);
}

// Runs threadgroups until none is left or one goes wrong. Called on each worker's own CPU thread.
extern "C" MSL_COLD __attribute__((visibility("default"))) void msl_run(Worker* w, const Launch* l) {
  const uint groups = l->grid[0] * l->grid[1] * l->grid[2];
  w->problem = FINE;
  w->variables_end = l->uses_variables ? VARIABLES_BYTES : 0;  // unknown until a thread has passed its declarations
  w->variables_size = 0;
  for (;;) {
    const uint turn = __atomic_fetch_add(l->next, 1u, __ATOMIC_RELAXED);
    if (turn >= groups) {
      return;
    }
    run_threadgroup(*w, *l, l->order ? l->order[turn] : turn);
    if (w->problem != FINE) {
      return;
    }
  }
}

// For the Rust half's assertions.
extern "C" {
__attribute__((visibility("default"), used)) extern const uint msl_layout[2];
const uint msl_layout[2] = {sizeof(Launch), sizeof(Worker)};
}

}  // namespace msl
