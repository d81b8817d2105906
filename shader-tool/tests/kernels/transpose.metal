#include "include/shape.h"
#include <metal_stdlib>
using namespace metal;

// out[c][r] = in[r][c], through dynamic threadgroup memory of 32 x 33 elements; edges are cut off.
template <typename T>
[[kernel]] void transpose(
    device const T* in [[buffer(0)]],
    device T* out [[buffer(1)]],
    constant Shape& shape [[buffer(2)]],
    threadgroup T* block [[threadgroup(0)]],
    uint2 group [[threadgroup_position_in_grid]],
    ushort2 at [[thread_position_in_threadgroup]]) {
  const uint column = group.x * 32 + at.x;
  for (uint i = at.y; i < 32; i += 8) {
    const uint row = group.y * 32 + i;
    if (row < shape.rows && column < shape.columns) {
      block[i * 33 + at.x] = in[row * shape.columns + column];
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  const uint row = group.y * 32 + at.x;
  for (uint i = at.y; i < 32; i += 8) {
    const uint to = group.x * 32 + i;
    if (row < shape.rows && to < shape.columns) {
      out[to * shape.rows + row] = block[at.x * 33 + i];
    }
  }
}

template [[host_name("transpose_f32")]] [[kernel]] decltype(transpose<float>) transpose<float>;
template [[host_name("transpose_f16")]] [[kernel]] decltype(transpose<half>) transpose<half>;
