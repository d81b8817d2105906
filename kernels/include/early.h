// Reading weights before the inputs are there.
//
//   wait_for_earlier_kernels();   // from here on the kernel may touch what earlier kernels of the pass write
//
// Some GPUs start a kernel while those that it depends on still run, and by default make it wait at its very beginning. A kernel that calls this waits
// here instead; before it, only weights and parameters may be read. Every thread must come by. Elsewhere a kernel starts when all is done.
#pragma once
#include <metal_stdlib>

METAL_FUNC void wait_for_earlier_kernels() {
#if defined(__NVPTX__)
  ::msl::kernel_waits();
#endif
}
