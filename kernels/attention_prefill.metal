// Causal attention of a prefill chunk over the whole KV cache, earlier chunks included, with the output gate.
#include "include/attention.h"
#include "include/copy.h"
#include "include/tile.h"

// A threadgroup takes 64 query rows of one KV head: tokens times the query heads that share it, so that every key is read once for all of them. A
// simdgroup has 16 of the rows and keeps their output in registers; where a head of 256 would not fit (DIM_SPLIT = 2), two simdgroups share the rows,
// each with half the dimensions, and both compute the scores. Keys, then values, of 32 positions pass through one buffer, because both do not fit.
// Grid (rows * group / 64, kv_heads).
template <int D, int DIM_SPLIT>
[[kernel, max_total_threads_per_threadgroup(DIM_SPLIT * 128)]] void attention_prefill(
    device const bfloat* q [[buffer(0)]],        // [kv_heads, rows, group, D], 64 rows past the end may be read
    device const bfloat* k_cache [[buffer(1)]],  // [capacity, kv_heads, D]
    device const bfloat* v_cache [[buffer(2)]],  // [capacity, kv_heads, D]
    device const bfloat* q_gate [[buffer(3)]],   // [rows, heads, 2, D]
    device bfloat* out [[buffer(4)]],            // [rows, heads, D]
    device const StepState* step [[buffer(5)]],
    constant AttentionPrefillParams& p [[buffer(6)]],
    uint2 tg [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint sg [[simdgroup_index_in_threadgroup]]) {
  constexpr int THREADS = DIM_SPLIT * 128;
  constexpr int KEYS = 32;
  constexpr int PITCH = D + 8;  // padded, against bank conflicts
  constexpr int TN = D / DIM_SPLIT / 16;
  static_assert(TN % 2 == 0, "output columns are multiplied in pairs of tiles");
  alignas(16) threadgroup bfloat staged[KEYS * PITCH];

  const uint group = p.heads / p.kv_heads;
  const uint kv_head = tg.y;
  const uint rows = p.rows * group;
  const uint row0 = tg.x * 64 + (sg / DIM_SPLIT) * 16;
  const uint dim0 = (sg % DIM_SPLIT) * (D / DIM_SPLIT);
  const uint last_token = min((tg.x * 64 + 63) / group, p.rows - 1);
  const uint context = step->position + last_token + 1;  // keys that some row of the threadgroup sees
  device const bfloat* queries = q + (ulong(kv_head) * rows + row0) * D;

  uint limit[2];  // keys that each of this lane's two rows sees
  float2 maximum = float2(kMasked);
  float2 sum = float2(0.0f);
#pragma unroll
  for (int e = 0; e < 8; e++) {
    limit[mt::row_half(e)] = step->position + (row0 + mt::row(e)) / group + 1;
  }
  mt::tile<float> acc[TN];
#pragma unroll
  for (int j = 0; j < TN; j++) {
    mt::fill(acc[j], 0.0f);
  }

  for (uint base = 0; base < context; base += KEYS) {
#pragma unroll
    for (int e = 0; e < KEYS * D / 8; e += THREADS) {
      const uint u = e + tid;
      const uint key = u / (D / 8);
      uint4 v = uint4(0);
      if (base + key < context) {
        v = *(device const uint4*)(k_cache + (ulong(base + key) * p.kv_heads + kv_head) * D + (u % (D / 8)) * 8);
      }
      *(threadgroup uint4*)(staged + key * PITCH + (u % (D / 8)) * 8) = v;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    mt::tile<float> score[2];
    mt::fill(score[0], 0.0f);
    mt::fill(score[1], 0.0f);
#pragma unroll
    for (int kk = 0; kk < D; kk += 16) {
      mt::tile<bfloat> a;
      mt::tile<bfloat> b0;
      mt::tile<bfloat> b1;
      mt::load(a, queries + kk, D);
      mt::load_nk(b0, staged + kk, PITCH);
      mt::load_nk(b1, staged + 16 * PITCH + kk, PITCH);
      mt::multiply(score[0], score[1], a, b0, b1);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
#pragma unroll
    for (int e = 0; e < KEYS * D / 8; e += THREADS) {
      const uint u = e + tid;
      const uint key = u / (D / 8);
      uint4 v = uint4(0);  // a probability of 0 times an unwritten value must be 0
      if (base + key < context) {
        v = *(device const uint4*)(v_cache + (ulong(base + key) * p.kv_heads + kv_head) * D + (u % (D / 8)) * 8);
      }
      *(threadgroup uint4*)(staged + key * PITCH + (u % (D / 8)) * 8) = v;
    }

#pragma unroll
    for (int j = 0; j < 2; j++) {
#pragma unroll
      for (int e = 0; e < 8; e++) {
        const bool seen = base + j * 16 + mt::column(e) < limit[mt::row_half(e)];
        score[j].set(e, seen ? score[j].get(e) * (p.scale * M_LOG2E_F) : kMasked);
      }
    }
    const float2 largest = max(maximum, max(mt::rows_max(score[0]), mt::rows_max(score[1])));
    const float2 correction = exp2(maximum - largest);
    maximum = largest;
    mt::tile<bfloat> probability[2];
#pragma unroll
    for (int j = 0; j < 2; j++) {
#pragma unroll
      for (int e = 0; e < 8; e++) {
        const float s = score[j].get(e);
        score[j].set(e, s > 0.5f * kMasked ? exp2(s - largest[mt::row_half(e)]) : 0.0f);
      }
      probability[j] = mt::convert<bfloat>(score[j]);
    }
    sum = sum * correction + mt::rows_sum(score[0]) + mt::rows_sum(score[1]);
#pragma unroll
    for (int j = 0; j < TN; j++) {
#pragma unroll
      for (int e = 0; e < 8; e++) {
        acc[j].set(e, acc[j].get(e) * correction[mt::row_half(e)]);
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
#pragma unroll
    for (int j = 0; j < TN; j += 2) {
#pragma unroll
      for (int h = 0; h < 2; h++) {
        mt::tile<bfloat> b0;
        mt::tile<bfloat> b1;
        mt::load_kn(b0, staged + h * 16 * PITCH + dim0 + j * 16, PITCH);
        mt::load_kn(b1, staged + h * 16 * PITCH + dim0 + j * 16 + 16, PITCH);
        mt::multiply(acc[j], acc[j + 1], probability[h], b0, b1);
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }

#pragma unroll
  for (int e = 0; e < 8; e++) {
    const uint r = row0 + mt::row(e);
    if (r < rows) {
      const float inverse = 1.0f / sum[mt::row_half(e)];
      const ulong head = ulong(r / group) * p.heads + kv_head * group + r % group;
#pragma unroll
      for (int j = 0; j < TN; j++) {
        const uint d = dim0 + j * 16 + mt::column(e);
        out[head * D + d] = bfloat(acc[j].get(e) * inverse * sigmoid(float(q_gate[(head * 2 + 1) * D + d])));
      }
    }
  }
}

// The same for GPUs with room for it: 16 * SIMDGROUPS query rows, all dimensions of 16 rows to a simdgroup, the queries in threadgroup memory, and the
// next KEYS keys and values copied there beside the arithmetic on these. One barrier a block. Grid (rows * group / (16 * SIMDGROUPS), kv_heads); the rows
// that see the most keys begin.
template <int D, int SIMDGROUPS, int KEYS>
[[kernel, max_total_threads_per_threadgroup(SIMDGROUPS * 32)]] void attention_prefill_streamed(
    device const bfloat* q [[buffer(0)]],        // [kv_heads, rows, group, D], up to 16 * SIMDGROUPS rows past the end may be read
    device const bfloat* k_cache [[buffer(1)]],  // [capacity, kv_heads, D]
    device const bfloat* v_cache [[buffer(2)]],  // [capacity, kv_heads, D]
    device const bfloat* q_gate [[buffer(3)]],   // [rows, heads, 2, D]
    device bfloat* out [[buffer(4)]],            // [rows, heads, D]
    device const StepState* step [[buffer(5)]],
    constant AttentionPrefillParams& p [[buffer(6)]],
    threadgroup uint4* memory [[threadgroup(0)]],  // queries [16 * SIMDGROUPS, PITCH], then twice keys and values [KEYS, PITCH]
    uint2 tg [[threadgroup_position_in_grid]],
    uint2 grid [[threadgroups_per_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint sg [[simdgroup_index_in_threadgroup]]) {
  constexpr int THREADS = SIMDGROUPS * 32;
  constexpr int ROWS = SIMDGROUPS * 16;
  constexpr int PITCH = D / 8 + 1;  // uint4s; padded, against bank conflicts
  constexpr int TN = D / 16;
  constexpr int TK = KEYS / 16;
  threadgroup uint4* staged = memory + ROWS * PITCH;

  const uint group = p.heads / p.kv_heads;
  const uint kv_head = tg.y;
  const uint rows = p.rows * group;
  const uint first_row = (grid.x - 1 - tg.x) * ROWS;
  const uint row0 = first_row + sg * 16;
  const uint last_token = min((first_row + ROWS - 1) / group, p.rows - 1);
  const uint context = step->position + last_token + 1;               // keys that some row of the threadgroup sees
  const uint seen_by_all = step->position + first_row / group + 1;  // and that every row sees
  device const uint4* queries = (device const uint4*)(q + (ulong(kv_head) * rows + first_row) * D);
  device const uint4* keys = (device const uint4*)(k_cache + kv_head * D);
  device const uint4* values = (device const uint4*)(v_cache + kv_head * D);
  const ulong pitch = ulong(p.kv_heads) * (D / 8);

  for (uint u = tid; u < ROWS * (D / 8); u += THREADS) {
    copy_16(memory + u / (D / 8) * PITCH + u % (D / 8), queries + u, true);
  }
  for (uint u = tid; u < KEYS * (D / 8); u += THREADS) {
    const uint key = u / (D / 8);
    const uint part = u % (D / 8);
    copy_16(staged + key * PITCH + part, keys + min(key, context - 1) * pitch + part, key < context);
    copy_16(staged + (KEYS + key) * PITCH + part, values + min(key, context - 1) * pitch + part, key < context);
  }
  copies_commit();

  uint limit[2];  // keys that each of this lane's two rows sees
  float2 maximum = float2(kMasked);
  float2 sum = float2(0.0f);
#pragma unroll
  for (int e = 0; e < 8; e++) {
    limit[mt::row_half(e)] = step->position + (row0 + mt::row(e)) / group + 1;
  }
  mt::tile<float> acc[TN];
#pragma unroll
  for (int j = 0; j < TN; j++) {
    mt::fill(acc[j], 0.0f);
  }
  const float factor = p.scale * M_LOG2E_F;
  threadgroup const bfloat* my_queries = (threadgroup const bfloat*)(memory + sg * 16 * PITCH);
  uint place = 0;
  for (uint base = 0; base < context; base += KEYS) {
    copies_wait<0>();
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (base + KEYS < context) {
      threadgroup uint4* next = staged + (1 - place) * (2 * KEYS * PITCH);
#pragma unroll 4
      for (uint u = tid; u < KEYS * (D / 8); u += THREADS) {
        const uint key = base + KEYS + u / (D / 8);
        const uint part = u % (D / 8);
        threadgroup uint4* to = next + u / (D / 8) * PITCH + part;
        copy_16(to, keys + min(key, context - 1) * pitch + part, key < context);
        copy_16(to + KEYS * PITCH, values + min(key, context - 1) * pitch + part, key < context);
      }
    }
    copies_commit();
    threadgroup const bfloat* k_rows = (threadgroup const bfloat*)(staged + place * (2 * KEYS * PITCH));
    threadgroup const bfloat* v_rows = k_rows + KEYS * PITCH * 8;
    place = 1 - place;

    mt::tile<float> score[TK];
#pragma unroll
    for (int j = 0; j < TK; j++) {
      mt::fill(score[j], 0.0f);
    }
#pragma unroll 4
    for (int kk = 0; kk < D; kk += 16) {
      mt::tile<bfloat> a;
      mt::load(a, my_queries + kk, PITCH * 8);
#pragma unroll
      for (int j = 0; j < TK; j += 2) {
        mt::tile<bfloat> b0;
        mt::tile<bfloat> b1;
        mt::load_nk(b0, k_rows + j * 16 * PITCH * 8 + kk, PITCH * 8);
        mt::load_nk(b1, k_rows + (j + 1) * 16 * PITCH * 8 + kk, PITCH * 8);
        mt::multiply(score[j], score[j + 1], a, b0, b1);
      }
    }
    if (base + KEYS > seen_by_all) {
#pragma unroll
      for (int j = 0; j < TK; j++) {
#pragma unroll
        for (int e = 0; e < 8; e++) {
          if (base + j * 16 + mt::column(e) >= limit[mt::row_half(e)]) {
            score[j].set(e, kMasked);
          }
        }
      }
    }
    // every row sees the first key, so from the first block on its maximum is a real score, and a masked one's weight comes out as 0
    float2 largest = maximum;
#pragma unroll
    for (int j = 0; j < TK; j++) {
#pragma unroll
      for (int e = 0; e < 8; e++) {
        largest[mt::row_half(e)] = max(largest[mt::row_half(e)], score[j].get(e));
      }
    }
    largest = max(largest, simd_shuffle_xor(largest, ushort(1)));
    largest = max(largest, simd_shuffle_xor(largest, mt::ROW_NEIGHBOUR));
    const float2 correction = exp2((maximum - largest) * factor);
    const float2 offset = largest * factor;
    maximum = largest;
    sum *= correction;  // of this lane's columns; brought together at the end
    mt::tile<bfloat> probability[TK];
#pragma unroll
    for (int j = 0; j < TK; j++) {
#pragma unroll
      for (int e = 0; e < 8; e++) {
        const float w = exp2(fma(score[j].get(e), factor, -offset[mt::row_half(e)]));
        sum[mt::row_half(e)] += w;
        score[j].set(e, w);
      }
      probability[j] = mt::convert<bfloat>(score[j]);
    }
    if (simd_any(correction.x != 1.0f || correction.y != 1.0f)) {
#pragma unroll
      for (int j = 0; j < TN; j++) {
#pragma unroll
        for (int e = 0; e < 8; e++) {
          acc[j].set(e, acc[j].get(e) * correction[mt::row_half(e)]);
        }
      }
    }
#pragma unroll
    for (int h = 0; h < TK; h++) {
#pragma unroll
      for (int j = 0; j < TN; j += 2) {
        mt::tile<bfloat> b0;
        mt::tile<bfloat> b1;
        mt::load_kn(b0, v_rows + h * 16 * PITCH * 8 + j * 16, PITCH * 8);
        mt::load_kn(b1, v_rows + h * 16 * PITCH * 8 + j * 16 + 16, PITCH * 8);
        mt::multiply(acc[j], acc[j + 1], probability[h], b0, b1);
      }
    }
  }
  sum += simd_shuffle_xor(sum, ushort(1));
  sum += simd_shuffle_xor(sum, mt::ROW_NEIGHBOUR);
#pragma unroll
  for (int e = 0; e < 8; e++) {
    const uint r = row0 + mt::row(e);
    if (r < rows) {
      const float inverse = 1.0f / sum[mt::row_half(e)];
      const ulong head = ulong(r / group) * p.heads + kv_head * group + r % group;
#pragma unroll
      for (int j = 0; j < TN; j++) {
        const uint d = j * 16 + mt::column(e);
        out[head * D + d] = bfloat(acc[j].get(e) * inverse * sigmoid(float(q_gate[(head * 2 + 1) * D + d])));
      }
    }
  }
}

template [[host_name("attention_prefill_256_s2")]] [[kernel]]
decltype(attention_prefill<256, 2>) attention_prefill<256, 2>;
template [[host_name("attention_prefill_128_s1")]] [[kernel]]
decltype(attention_prefill<128, 1>) attention_prefill<128, 1>;
template [[host_name("attention_prefill_64_s1")]] [[kernel]]
decltype(attention_prefill<64, 1>) attention_prefill<64, 1>;
template [[host_name("attention_prefill_256_w8")]] [[kernel]]
decltype(attention_prefill_streamed<256, 8, 64>) attention_prefill_streamed<256, 8, 64>;
template [[host_name("attention_prefill_256_w4")]] [[kernel]]
decltype(attention_prefill_streamed<256, 4, 32>) attention_prefill_streamed<256, 4, 32>;
