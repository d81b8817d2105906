// Copies into threadgroup memory that run beside the arithmetic, where the hardware has them; elsewhere they are done at once.
//
//   copy_16(to, from, present);   // 16 bytes, both addresses multiples of 16; zeros unless present
//   copies_commit();              // what was issued since the last commit is one group
//   copies_wait<LATER>();         // this thread's groups are done, but for the LATER latest; a barrier must follow before others read
#pragma once
#include <metal_stdlib>
using namespace metal;

#if defined(__NVPTX__)
METAL_FUNC void copy_16(threadgroup uint4* to, device const uint4* from, bool present) { ::msl::copy_16(to, from, present); }
METAL_FUNC void copies_commit() { ::msl::copies_commit(); }
template <int LATER>
METAL_FUNC void copies_wait() {
  ::msl::copies_wait<LATER>();
}
#else
METAL_FUNC void copy_16(threadgroup uint4* to, device const uint4* from, bool present) {
  uint4 v = uint4(0);
  if (present) {
    v = *from;
  }
  *to = v;
}
METAL_FUNC void copies_commit() {}
template <int LATER>
METAL_FUNC void copies_wait() {}
#endif
