#include <metal_stdlib>
using namespace metal;

constant uint kPermutation[16] = {3, 1, 2, 0, 7, 5, 6, 4, 11, 9, 10, 8, 15, 13, 14, 12};

// Counts the low four bits of each value, permuted, and hands out a place of each value in its bin.
kernel void histogram(
    device const uint* values [[buffer(0)]],
    device atomic_uint* counts [[buffer(1)]],
    device uint* places [[buffer(2)]],
    constant uint& n [[buffer(3)]],
    uint i [[thread_position_in_grid]]) {
  if (i < n) {
    places[i] = atomic_fetch_add_explicit(&counts[kPermutation[values[i] & 15]], 1u, memory_order_relaxed);
  }
}
