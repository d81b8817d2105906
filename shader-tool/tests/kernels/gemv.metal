#include <metal_stdlib>
using namespace metal;

struct GemvParams {
  uint rows;
  uint columns;
};

// y = dequantize(w) * x for 4-bit codes, eight to a word, with a scale and a bias for each GROUP columns. One simdgroup
// makes ROWS rows.
template <typename T, int ROWS, int GROUP>
[[kernel]] void gemv_q4(
    device const uint* codes [[buffer(0)]],
    device const T* scales [[buffer(1)]],
    device const T* biases [[buffer(2)]],
    device const T* x [[buffer(3)]],
    device T* y [[buffer(4)]],
    constant GemvParams& p [[buffer(5)]],
    uint group [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]],
    uint sg [[simdgroup_index_in_threadgroup]],
    uint simdgroups [[simdgroups_per_threadgroup]]) {
  const uint row0 = (group * simdgroups + sg) * ROWS;
  if (row0 >= p.rows) {
    return;
  }
  float sums[ROWS] = {0.0f};
  for (uint k = lane * 16; k < p.columns; k += 32 * 16) {
    float xs[16];
    float xsum = 0.0f;
    for (int i = 0; i < 16; i++) {
      xs[i] = float(x[k + i]);
      xsum += xs[i];
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
      const uint row = row0 + r;
      const uint2 q = *(device const uint2*)(codes + (ulong(row) * p.columns + k) / 8);
      const float scale = float(scales[(row * p.columns + k) / GROUP]);
      const float bias = float(biases[(row * p.columns + k) / GROUP]);
      float dot = 0.0f;
      for (int i = 0; i < 8; i++) {
        dot = fma(float((q.x >> (4 * i)) & 0xf), xs[i], dot);
        dot = fma(float((q.y >> (4 * i)) & 0xf), xs[8 + i], dot);
      }
      sums[r] += scale * dot + bias * xsum;
    }
  }
#pragma unroll
  for (int r = 0; r < ROWS; r++) {
    const float sum = simd_sum(sums[r]);
    if (lane == 0) {
      y[row0 + r] = T(sum);
    }
  }
}

template [[host_name("gemv_q4_bf16_r4_g64")]] [[kernel]]
decltype(gemv_q4<bfloat, 4, 64>) gemv_q4<bfloat, 4, 64>;
template [[host_name("gemv_q4_f16_r2_g64")]] [[kernel]]
decltype(gemv_q4<half, 2, 64>) gemv_q4<half, 2, 64>;
