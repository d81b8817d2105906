// Causal attention of a prefill chunk, as attention_prefill.metal, through products of warpgroups.
#include "include/common.h"
#include "include/copy.h"
#include "include/params.h"
#include "include/warpgroup.h"

// Of a simdgroup's 16 rows, what the softmax over the keys so far needs: a lane has two rows.
struct Softmax {
  float2 maximum;
  float2 sum;  // of this lane's columns
  uint limit[2];  // keys that the rows see

  // Makes weights of the scores of the keys from `base` on, and says how much less those of earlier keys count now. Every row sees the first key, so from
  // the first block on its maximum is a real score, and a masked one's weight comes out as 0.
  template <int TK>
  METAL_FUNC float2 weigh(thread mt::tile<float> (&score)[TK], uint base, bool all_seen, float factor) {
    if (!all_seen) {
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
    sum *= correction;
#pragma unroll
    for (int j = 0; j < TK; j++) {
#pragma unroll
      for (int e = 0; e < 8; e++) {
        const float w = exp2(fma(score[j].get(e), factor, -offset[mt::row_half(e)]));
        sum[mt::row_half(e)] += w;
        score[j].set(e, w);
      }
    }
    return correction;
  }
};

// Two warpgroups with 64 query rows each; queries, and two blocks of 64 keys and of values, in threadgroup memory. While the matrix units make a block's
// output, the softmax of the next block's scores is made. Grid (rows * group / 128, kv_heads); the rows that see the most keys begin.
[[kernel, max_total_threads_per_threadgroup(256)]] void attention_warpgroup_256(
    device const bfloat* q [[buffer(0)]],        // [kv_heads, rows, group, 256], up to 128 rows past the end may be read
    device const bfloat* k_cache [[buffer(1)]],  // [capacity, kv_heads, 256]
    device const bfloat* v_cache [[buffer(2)]],  // [capacity, kv_heads, 256]
    device const bfloat* q_gate [[buffer(3)]],   // [rows, heads, 2, 256]
    device bfloat* out [[buffer(4)]],            // [rows, heads, 256]
    device const StepState* step [[buffer(5)]],
    constant AttentionPrefillParams& p [[buffer(6)]],
    threadgroup uint4* memory [[threadgroup(0)]],  // queries [128], then keys twice [KEYS] and values twice [KEYS], in panels
    uint2 tg [[threadgroup_position_in_grid]],
    uint2 grid [[threadgroups_per_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint sg [[simdgroup_index_in_threadgroup]]) {
  constexpr int D = 256;
  constexpr uint KEYS = 64;
  constexpr uint PARTS = D / 8;
  constexpr uint COPIED = 256 / PARTS;  // rows that all threads copy at once
  constexpr uint ROWS = 128;
  constexpr uint BLOCK = KEYS * PARTS;
  constexpr int TN = D / 16;
  constexpr int TK = KEYS / 16;
  threadgroup uint4* staged_keys = memory + ROWS * PARTS;
  threadgroup uint4* staged_values = staged_keys + 2 * BLOCK;

  const uint group = p.heads / p.kv_heads;
  const uint kv_head = tg.y;
  const uint rows = p.rows * group;
  const uint first_row = (grid.x - 1 - tg.x) * ROWS;
  const uint row0 = first_row + sg * 16;
  const uint last_token = min((first_row + ROWS - 1) / group, p.rows - 1);
  const uint context = step->position + last_token + 1;             // keys that some row of the threadgroup sees
  const uint seen_by_all = step->position + first_row / group + 1;  // and that every row sees
  const uint blocks = (context + KEYS - 1) / KEYS;
  const ulong pitch = ulong(p.kv_heads) * PARTS;
  // a thread copies the same part of every eighth row
  const uint part = tid % PARTS;
  const uint my_row = tid / PARTS;
  device const uint4* queries = (device const uint4*)(q + (ulong(kv_head) * rows + first_row) * D) + part;
  device const uint4* keys = (device const uint4*)(k_cache + kv_head * D) + part;
  device const uint4* values = (device const uint4*)(v_cache + kv_head * D) + part;

#pragma unroll
  for (uint i = 0; i < ROWS; i += COPIED) {
    copy_16(memory + wg::panel_place(ROWS, i + my_row, part), queries + (i + my_row) * PARTS, true);
  }
#pragma unroll
  for (uint i = 0; i < KEYS; i += COPIED) {
    const uint key = i + my_row;
    copy_16(staged_keys + wg::panel_place(KEYS, key, part), keys + min(key, context - 1) * pitch, key < context);
  }
  copies_commit();
#pragma unroll
  for (uint i = 0; i < KEYS; i += COPIED) {
    const uint key = i + my_row;
    copy_16(staged_values + wg::panel_place(KEYS, key, part), values + min(key, context - 1) * pitch, key < context);
    copy_16(staged_keys + BLOCK + wg::panel_place(KEYS, key, part), keys + min(KEYS + key, context - 1) * pitch, KEYS + key < context);
  }
  copies_commit();

  Softmax softmax;
  softmax.maximum = float2(kMasked);
  softmax.sum = float2(0.0f);
#pragma unroll
  for (int e = 0; e < 8; e++) {
    softmax.limit[mt::row_half(e)] = step->position + (row0 + mt::row(e)) / group + 1;
  }
  const float factor = p.scale * M_LOG2E_F;
  threadgroup const uint4* my_queries = memory + sg / 4 * (64 * 8);
  mt::tile<float> acc[TN];
  mt::tile<float> score[TK];
  mt::tile<bfloat> weight[TK];
#pragma unroll
  for (int j = 0; j < TN; j++) {
    mt::fill(acc[j], 0.0f);
  }
#pragma unroll
  for (int j = 0; j < TK; j++) {
    mt::fill(score[j], 0.0f);
  }

  copies_wait<1>();
  wg::see_copies();
  threadgroup_barrier(mem_flags::mem_threadgroup);
  wg::begin(score);
#pragma unroll
  for (int k = 0; k < D; k += 16) {
    wg::multiply_nk<ROWS>(score, my_queries, staged_keys, k, k > 0, sg);
  }
  wg::commit();
  wg::wait<0>(score);
  float2 correction = softmax.weigh(score, 0, KEYS <= seen_by_all, factor);
  // A step waits for the output of the block before only when the next one's scores are weighed: where a loop begins anew, no compiler moves the wait.
  for (uint block = 0; block < blocks; block++) {
    wg::wait<0>(acc);
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
    for (int j = 0; j < TK; j++) {
      weight[j] = mt::convert<bfloat>(score[j]);
    }
    const uint base = (block + 1) * KEYS;
    copies_wait<0>();
    wg::see_copies();
    threadgroup_barrier(mem_flags::mem_threadgroup);
    threadgroup uint4* these_keys = staged_keys + (block + 1) % 2 * BLOCK;
    threadgroup uint4* these_values = staged_values + block % 2 * BLOCK;
    if (base < context) {
      threadgroup uint4* next_keys = staged_keys + block % 2 * BLOCK;
      threadgroup uint4* next_values = staged_values + (block + 1) % 2 * BLOCK;
#pragma unroll
      for (uint i = 0; i < KEYS; i += COPIED) {
        const uint key = base + i + my_row;
        const uint place = wg::panel_place(KEYS, i + my_row, part);
        copy_16(next_values + place, values + min(key, context - 1) * pitch, key < context);
        copy_16(next_keys + place, keys + min(key + KEYS, context - 1) * pitch, key + KEYS < context);
      }
    }
    copies_commit();
    wg::begin(score);
    wg::begin(acc, weight);
#pragma unroll
    for (int k = 0; k < D; k += 16) {
      wg::multiply_nk<ROWS>(score, my_queries, these_keys, k, k > 0, sg);
    }
    wg::commit();
#pragma unroll
    for (int j = 0; j < TK; j++) {
      wg::multiply_kn<KEYS>(acc, weight[j], these_values, j * 16);
    }
    wg::commit();
    wg::wait<1>(score);
    correction = softmax.weigh(score, base, base + KEYS <= seen_by_all, factor);
  }
  wg::wait<0>(acc);

  float2 sum = softmax.sum;
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
