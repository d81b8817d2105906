#include <metal_stdlib>
using namespace metal;

// One simdgroup: what each SIMD-group function gives each lane.
kernel void simd_functions(
    device const float* x [[buffer(0)]],
    device float* out [[buffer(1)]],
    uint lane [[thread_index_in_simdgroup]]) {
  const float v = x[lane];
  const uint bits = as_type<uint>(v);
  device float* o = out + lane * 16;
  o[0] = simd_sum(v);
  o[1] = simd_max(v);
  o[2] = simd_min(v);
  o[3] = simd_shuffle_xor(v, ushort(5));
  o[4] = simd_shuffle_down(v, ushort(3));
  o[5] = simd_shuffle_and_fill_up(v, -1.0f, ushort(2));
  o[6] = simd_broadcast(v, ushort(9));
  o[7] = simd_prefix_inclusive_sum(v);
  o[8] = simd_prefix_exclusive_sum(v);
  o[9] = float(ulong(simd_ballot(v > 0.0f)) & 0xffff);
  o[10] = as_type<float>(simd_xor(bits));
  const float2 pair = simd_sum(float2(v, -2.0f * v));
  o[11] = pair.x + pair.y;
  o[12] = float(bfloat4(float4(v, v, v, v)).z);
  o[13] = float(vec<int, 2>(float2(v * 100.0f)).y);
  o[14] = precise::exp(v);
  o[15] = simd_all(v > -10.0f) && simd_any(v > 0.0f) ? 1.0f : 0.0f;
}
