// Attention of single query rows over the KV cache, split along the keys, and the reduction of the splits.
//
// Routes (chosen by the host): HEADS = 1 takes any model of a supported head size; HEADS = 4 lets four query heads share one read of their KV head;
// split_keys fixes the keys of a split, which keeps the splits' work even at long context.
#include "include/attention.h"

// A lane reads neighbouring dimensions of a key in one load. Without it, it reads one dimension at a time, 32 apart.
constant bool kCoalesced [[function_constant(0)]];

constant constexpr int kSimdgroups = 8;

// DPL bfloats of row `row` for this lane.
template <int DPL>
METAL_FUNC void load_row(device const bfloat* row, uint lane, thread float* out) {
  if (!kCoalesced) {
#pragma unroll
    for (int i = 0; i < DPL; i++) {
      out[i] = float(row[lane + 32 * i]);
    }
  } else if (DPL == 8) {
    const uint4 w = *(device const uint4*)(row + lane * 8);
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const float2 v = bfloat_pair(w[i]);
      out[(2 * i) % DPL] = v.x;
      out[(2 * i + 1) % DPL] = v.y;
    }
  } else {
#pragma unroll
    for (int i = 0; i < DPL / 2; i++) {
      const float2 v = bfloat_pair(((device const uint*)row)[lane * (DPL / 2) + i]);
      out[2 * i] = v.x;
      out[2 * i + 1] = v.y;
    }
  }
}

// The dimension that this lane's value i belongs to.
template <int DPL>
METAL_FUNC uint dimension(uint lane, uint i) {
  return kCoalesced ? lane * DPL + i : lane + 32 * i;
}

// Grid (heads / HEADS, splits, rows), 8 simdgroups. A simdgroup takes 32 / HEADS keys at a time, so that keys times heads fill its lanes.
template <int D, int HEADS>
[[kernel, max_total_threads_per_threadgroup(256)]] void attention_decode(
    device const bfloat* q [[buffer(0)]],        // [kv_heads, rows, heads / kv_heads, D]
    device const bfloat* k_cache [[buffer(1)]],  // [capacity, kv_heads, D]
    device const bfloat* v_cache [[buffer(2)]],  // [capacity, kv_heads, D]
    device const StepState* step [[buffer(3)]],
    device float* partial [[buffer(4)]],  // [rows, heads, splits, D], not divided by the sum
    device float* extent [[buffer(5)]],   // [rows, heads, splits, 2]: maximum (in powers of two) and sum
    constant AttentionDecodeParams& p [[buffer(6)]],
    uint3 tg [[threadgroup_position_in_grid]],
    uint3 grid [[threadgroups_per_grid]],
    uint lane [[thread_index_in_simdgroup]],
    uint sg [[simdgroup_index_in_threadgroup]]) {
  constexpr int DPL = D / 32;
  constexpr int KEYS = 32 / HEADS;
  threadgroup float probabilities[kSimdgroups][32];  // [key][head], read back as broadcasts
  threadgroup float corrections[kSimdgroups][HEADS];
  threadgroup float maxima[kSimdgroups][HEADS];
  threadgroup float sums[kSimdgroups][HEADS];
  threadgroup float merged[kSimdgroups / 2][HEADS * D];

  const uint head0 = tg.x * HEADS;
  const uint kv_head = head0 / (p.heads / p.kv_heads);
  const uint context = step->position + tg.z + 1;
  const KeyRange range = split_range(tg.y, context, p);
  const ulong pitch = ulong(p.kv_heads) * D;
  device const bfloat* keys = k_cache + ulong(kv_head) * D;
  device const bfloat* values = v_cache + ulong(kv_head) * D;

  float query[HEADS][DPL];
#pragma unroll
  for (int h = 0; h < HEADS; h++) {
    load_row<DPL>(q + query_row(head0 + h, tg.z, grid.z, p.heads / p.kv_heads) * D, lane, query[h]);
#pragma unroll
    for (int i = 0; i < DPL; i++) {
      query[h][i] *= p.scale * M_LOG2E_F;
    }
  }

  float acc[HEADS][DPL] = {{0.0f}};
  float maximum = kMasked;
  float sum = 0.0f;
  const uint my_key = lane % KEYS;
  const uint my_head = lane / KEYS;
  for (uint base = range.first + sg * KEYS; base < range.end; base += kSimdgroups * KEYS) {
    float scores[32];
#pragma unroll
    for (int key = 0; key < KEYS; key++) {
      float row[DPL];
      load_row<DPL>(keys + min(base + key, range.end - 1) * pitch, lane, row);
#pragma unroll
      for (int h = 0; h < HEADS; h++) {
        float d = 0.0f;
#pragma unroll
        for (int i = 0; i < DPL; i++) {
          d = fma(query[h][i], row[i], d);
        }
        scores[h * KEYS + key] = d;
      }
    }
    float score = sum_transposed(scores, lane);
    const bool valid = base + my_key < range.end;
    score = valid ? score : kMasked;
    float largest = score;
#pragma unroll
    for (ushort mask = 1; mask < KEYS; mask *= 2) {
      largest = max(largest, simd_shuffle_xor(largest, mask));
    }
    largest = max(largest, maximum);
    const float probability = valid ? exp2(score - largest) : 0.0f;
    const float correction = exp2(maximum - largest);
    float added = probability;
#pragma unroll
    for (ushort mask = 1; mask < KEYS; mask *= 2) {
      added += simd_shuffle_xor(added, mask);
    }
    sum = sum * correction + added;
    maximum = largest;
    probabilities[sg][my_key * HEADS + my_head] = probability;
    if (my_key == 0) {
      corrections[sg][my_head] = correction;
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
#pragma unroll
    for (int h = 0; h < HEADS; h++) {
      const float c = corrections[sg][h];
#pragma unroll
      for (int i = 0; i < DPL; i++) {
        acc[h][i] *= c;
      }
    }
#pragma unroll 8
    for (int key = 0; key < KEYS; key++) {
      float row[DPL];
      load_row<DPL>(values + min(base + key, range.end - 1) * pitch, lane, row);
#pragma unroll
      for (int h = 0; h < HEADS; h++) {
        const float w = probabilities[sg][key * HEADS + h];
#pragma unroll
        for (int i = 0; i < DPL; i++) {
          acc[h][i] = fma(w, row[i], acc[h][i]);
        }
      }
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
  }

  if (my_key == 0) {
    maxima[sg][my_head] = maximum;
    sums[sg][my_head] = sum;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float largest[HEADS];
  float total[HEADS];
#pragma unroll
  for (int h = 0; h < HEADS; h++) {
    largest[h] = kMasked;
    total[h] = 0.0f;
#pragma unroll
    for (int i = 0; i < kSimdgroups; i++) {
      largest[h] = max(largest[h], maxima[i][h]);
    }
#pragma unroll
    for (int i = 0; i < kSimdgroups; i++) {
      total[h] += sums[i][h] * exp2(maxima[i][h] - largest[h]);
    }
    const float c = exp2(maxima[sg][h] - largest[h]);
#pragma unroll
    for (int i = 0; i < DPL; i++) {
      acc[h][i] *= c;
    }
  }
  // halves of the simdgroups, so that the buffer stays small
#pragma unroll
  for (uint half_count = kSimdgroups / 2; half_count > 0; half_count /= 2) {
    if (sg >= half_count && sg < 2 * half_count) {
#pragma unroll
      for (int h = 0; h < HEADS; h++) {
#pragma unroll
        for (int i = 0; i < DPL; i++) {
          merged[sg - half_count][h * D + i * 32 + lane] = acc[h][i];
        }
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (sg < half_count) {
#pragma unroll
      for (int h = 0; h < HEADS; h++) {
#pragma unroll
        for (int i = 0; i < DPL; i++) {
          acc[h][i] += merged[sg][h * D + i * 32 + lane];
        }
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  if (sg == 0) {
#pragma unroll
    for (int h = 0; h < HEADS; h++) {
      const ulong at = (ulong(tg.z) * p.heads + head0 + h) * p.splits + tg.y;
#pragma unroll
      for (int i = 0; i < DPL; i++) {
        partial[at * D + dimension<DPL>(lane, i)] = acc[h][i];
      }
      if (lane == 0) {
        extent[at * 2] = largest[h];
        extent[at * 2 + 1] = total[h];
      }
    }
  }
}

// Any head size that is a multiple of 32, up to 512: one simdgroup a (head, split, row), one key at a time.
[[kernel, max_total_threads_per_threadgroup(64)]] void attention_decode_general(
    device const bfloat* q [[buffer(0)]],
    device const bfloat* k_cache [[buffer(1)]],
    device const bfloat* v_cache [[buffer(2)]],
    device const StepState* step [[buffer(3)]],
    device float* partial [[buffer(4)]],
    device float* extent [[buffer(5)]],
    constant AttentionDecodeParams& p [[buffer(6)]],
    uint3 tg [[threadgroup_position_in_grid]],
    uint3 grid [[threadgroups_per_grid]],
    uint lane [[thread_index_in_simdgroup]]) {
  constexpr int MAX_DPL = 16;
  const uint dpl = p.head_dim / 32;
  const uint kv_head = tg.x / (p.heads / p.kv_heads);
  const KeyRange range = split_range(tg.y, step->position + tg.z + 1, p);
  const ulong pitch = ulong(p.kv_heads) * p.head_dim;
  device const bfloat* query = q + query_row(tg.x, tg.z, grid.z, p.heads / p.kv_heads) * p.head_dim;
  float acc[MAX_DPL] = {0.0f};
  float maximum = kMasked;
  float sum = 0.0f;
  for (uint key = range.first; key < range.end; key++) {
    device const bfloat* k = k_cache + key * pitch + kv_head * p.head_dim;
    device const bfloat* v = v_cache + key * pitch + kv_head * p.head_dim;
    float d = 0.0f;
    for (uint i = 0; i < dpl; i++) {
      d = fma(float(query[lane + 32 * i]), float(k[lane + 32 * i]), d);
    }
    const float score = simd_sum(d) * p.scale * M_LOG2E_F;
    const float largest = max(maximum, score);
    const float probability = exp2(score - largest);
    const float correction = exp2(maximum - largest);
    sum = sum * correction + probability;
    maximum = largest;
#pragma unroll
    for (int i = 0; i < MAX_DPL; i++) {
      if (uint(i) < dpl) {
        acc[i] = fma(probability, float(v[lane + 32 * i]), acc[i] * correction);
      }
    }
  }
  const ulong at = (ulong(tg.z) * p.heads + tg.x) * p.splits + tg.y;
#pragma unroll
  for (int i = 0; i < MAX_DPL; i++) {
    if (uint(i) < dpl) {
      partial[at * p.head_dim + lane + 32 * i] = acc[i];
    }
  }
  if (lane == 0) {
    extent[at * 2] = maximum;
    extent[at * 2 + 1] = sum;
  }
}

// out = sigmoid(gate) * sum over splits / sum of weights. Grid (heads, rows), head_dim threads. A split past the context has sum 0 and adds nothing.
[[kernel, max_total_threads_per_threadgroup(512)]] void attention_reduce(
    device const float* partial [[buffer(0)]],
    device const float* extent [[buffer(1)]],
    device const bfloat* q_gate [[buffer(2)]],  // [rows, heads, 2, head_dim]
    device bfloat* out [[buffer(3)]],           // [rows, heads, head_dim]
    constant AttentionDecodeParams& p [[buffer(4)]],
    uint2 tg [[threadgroup_position_in_grid]],
    uint d [[thread_index_in_threadgroup]]) {
  const ulong head = ulong(tg.y) * p.heads + tg.x;
  device const float* e = extent + head * p.splits * 2;
  float largest = kMasked;
  for (uint s = 0; s < p.splits; s++) {
    largest = max(largest, e[s * 2]);
  }
  float total = 0.0f;
  float value = 0.0f;
#pragma unroll 4
  for (uint s = 0; s < p.splits; s++) {
    const float c = exp2(e[s * 2] - largest);
    total = fma(e[s * 2 + 1], c, total);
    value = fma(partial[(head * p.splits + s) * p.head_dim + d], c, value);
  }
  const float gate = float(q_gate[head * 2 * p.head_dim + p.head_dim + d]);
  out[head * p.head_dim + d] = bfloat(value / total * sigmoid(gate));
}

constant constexpr uint kMaxSplits = 1024;

// attention_reduce for many splits: a threadgroup takes 64 dimensions, four groups of its threads a quarter of the splits each. Grid (heads,
// head_dim / 64, rows), 256 threads.
[[kernel, max_total_threads_per_threadgroup(256)]] void attention_reduce_many(
    device const float* partial [[buffer(0)]],
    device const float* extent [[buffer(1)]],
    device const bfloat* q_gate [[buffer(2)]],  // [rows, heads, 2, head_dim]
    device bfloat* out [[buffer(3)]],           // [rows, heads, head_dim]
    constant AttentionDecodeParams& p [[buffer(4)]],
    uint3 tg [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint sg [[simdgroup_index_in_threadgroup]]) {
  threadgroup float weights[kMaxSplits];
  threadgroup float maxima[8];
  threadgroup float totals[8];
  threadgroup float values[256];
  const ulong head = ulong(tg.z) * p.heads + tg.x;
  device const float* e = extent + head * p.splits * 2;
  float largest = kMasked;
  for (uint s = tid; s < p.splits; s += 256) {
    largest = max(largest, e[s * 2]);
  }
  largest = simd_max(largest);
  if (lane == 0) {
    maxima[sg] = largest;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
#pragma unroll
  for (int i = 0; i < 8; i++) {
    largest = max(largest, maxima[i]);
  }
  float total = 0.0f;
  for (uint s = tid; s < p.splits; s += 256) {
    const float w = exp2(e[s * 2] - largest);
    weights[s] = w;
    total = fma(e[s * 2 + 1], w, total);
  }
  total = simd_sum(total);
  if (lane == 0) {
    totals[sg] = total;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  const uint d = tg.y * 64 + tid % 64;
  float value = 0.0f;
#pragma unroll 8
  for (uint s = tid / 64; s < p.splits; s += 4) {
    value = fma(partial[(head * p.splits + s) * p.head_dim + d], weights[s], value);
  }
  values[tid] = value;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (tid < 64) {
    total = 0.0f;
#pragma unroll
    for (int i = 0; i < 8; i++) {
      total += totals[i];
    }
    value = (values[tid] + values[tid + 64]) + (values[tid + 128] + values[tid + 192]);
    const float gate = float(q_gate[head * 2 * p.head_dim + p.head_dim + d]);
    out[head * p.head_dim + d] = bfloat(value / total * sigmoid(gate));
  }
}

template [[host_name("attention_decode_256_h4")]] [[kernel]]
decltype(attention_decode<256, 4>) attention_decode<256, 4>;
template [[host_name("attention_decode_256_h1")]] [[kernel]]
decltype(attention_decode<256, 1>) attention_decode<256, 1>;
template [[host_name("attention_decode_128_h4")]] [[kernel]]
decltype(attention_decode<128, 4>) attention_decode<128, 4>;
template [[host_name("attention_decode_128_h1")]] [[kernel]]
decltype(attention_decode<128, 1>) attention_decode<128, 1>;
template [[host_name("attention_decode_64_h4")]] [[kernel]]
decltype(attention_decode<64, 4>) attention_decode<64, 4>;
template [[host_name("attention_decode_64_h1")]] [[kernel]]
decltype(attention_decode<64, 1>) attention_decode<64, 1>;
