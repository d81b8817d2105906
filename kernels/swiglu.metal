// silu(gate) * up, for the routes that do not fold it into the products: gate and up are as their products left them, not rounded.
#include "include/common.h"
#include "include/params.h"

// Grid (columns / threads, rows): row r of `gate_up` is [2, n], gate then up.
[[kernel, max_total_threads_per_threadgroup(256)]] void swiglu(
    device const float* gate_up [[buffer(0)]],  // [rows, 2, n]
    device bfloat* y [[buffer(1)]],             // [rows, n]
    constant SwigluParams& p [[buffer(2)]],
    uint2 at [[thread_position_in_grid]]) {
  if (at.x < p.n) {
    const ulong row = ulong(at.y) * p.n;
    const float gate = gate_up[row * 2 + at.x];
    const float up = gate_up[row * 2 + p.n + at.x];
    y[row + at.x] = bfloat(silu(gate) * up);
  }
}
