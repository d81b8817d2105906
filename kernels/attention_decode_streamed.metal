// Attention of one decoded token over the KV cache, for GPUs with room for it. One launch does what attention_prepare and attention_decode do
// elsewhere: RMSNorm and rotary embedding of the token's queries and key, the write into the KV cache, and the scores through the matrix units. All
// query heads of a KV head are the rows of one tile. Keys and values of the blocks to come are copied beside the arithmetic, and the first of them before
// the token's own projections are there. attention_reduce_many follows.
#include "include/attention.h"
#include "include/copy.h"
#include "include/early.h"
#include "include/tile.h"

// Keys [first, first + KEYS) and their values into threadgroup memory, [2, KEYS, D / 8 + 1]; zeros from `end` on.
template <int D, int KEYS, int THREADS>
METAL_FUNC void copy_keys(threadgroup uint4* to, device const uint4* keys, device const uint4* values, ulong pitch, uint first, uint end, uint tid) {
  constexpr int PITCH = D / 8 + 1;
#pragma unroll 8
  for (uint u = tid; u < KEYS * (D / 8); u += THREADS) {
    const uint key = first + u / (D / 8);
    const uint part = u % (D / 8);
    const bool present = key < end;
    const ulong from = (present ? key : 0) * pitch + part;
    copy_16(to + u / (D / 8) * PITCH + part, keys + from, present);
    copy_16(to + (KEYS + u / (D / 8)) * PITCH + part, values + from, present);
  }
}

// A lane's dimensions of every head are lane + 32 * i, so that the two that rotate together, ROTARY / 2 apart, are the same lane's.
template <int D, int ROTARY>
struct Turns {
  float2 turn[ROTARY / 64];  // cosine and sine
};

template <int D, int ROTARY>
METAL_FUNC Turns<D, ROTARY> turns_at(uint position, device const uint* frequencies, uint lane) {
  Turns<D, ROTARY> t;
#pragma unroll
  for (int i = 0; i < ROTARY / 64; i++) {
    // as in attention_prepare: a 32-bit fraction of a turn wraps as the circle does
    const float angle = float(int(position * frequencies[lane + 32 * i])) * (M_PI_F / 2147483648.0f);
    t.turn[i] = float2(cos(angle), sin(angle));
  }
  return t;
}

// RMSNorm of a head, then the rotation.
template <int D, int ROTARY>
METAL_FUNC void norm_and_turn(thread float* x, thread const float* weight, thread const Turns<D, ROTARY>& turns, float eps) {
  constexpr int HALF = ROTARY / 64;
  float square = 0.0f;
#pragma unroll
  for (int i = 0; i < D / 32; i++) {
    square = fma(x[i], x[i], square);
  }
  const float inverse = rsqrt(simd_sum(square) / float(D) + eps);
#pragma unroll
  for (int i = 0; i < D / 32; i++) {
    x[i] = x[i] * inverse * weight[i];
  }
#pragma unroll
  for (int i = 0; i < HALF; i++) {
    const float2 turn = turns.turn[i];
    const float a = x[i];
    const float b = x[i + HALF];
    x[i] = a * turn.x - b * turn.y;
    x[i + HALF] = b * turn.x + a * turn.y;
  }
}

// Up to 16 query heads to a KV head. A block is 32 keys to each of two simdgroups; a threadgroup is a split. Grid (kv_heads, splits).
template <int D, int ROTARY, int STAGES>
[[kernel, max_total_threads_per_threadgroup(64)]] void attention_decode_streamed(
    device const bfloat* q_gate [[buffer(0)]],     // [heads, 2, D]: query, then gate
    device const bfloat* k [[buffer(1)]],          // [kv_heads, D]
    device const bfloat* v [[buffer(2)]],          // [kv_heads, D]
    device const float* q_norm [[buffer(3)]],      // [D]
    device const float* k_norm [[buffer(4)]],      // [D]
    device const uint* frequencies [[buffer(5)]],  // [ROTARY / 2] turns per position, times 2^32
    device bfloat* k_cache [[buffer(6)]],          // [capacity, kv_heads, D]
    device bfloat* v_cache [[buffer(7)]],          // [capacity, kv_heads, D]
    device const StepState* step [[buffer(8)]],
    device float* partial [[buffer(9)]],  // [heads, splits, D], not divided by the sum
    device float* extent [[buffer(10)]],  // [heads, splits, 2]: maximum (in powers of two) and sum
    constant AttentionStreamedParams& p [[buffer(11)]],
    threadgroup uint4* memory [[threadgroup(0)]],  // queries [16, PITCH], then STAGES times keys and values [KEYS, PITCH]
    uint2 tg [[threadgroup_position_in_grid]],
    uint2 grid [[threadgroups_per_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint sg [[simdgroup_index_in_threadgroup]]) {
  constexpr int THREADS = 64;
  constexpr int KEYS = 64;
  constexpr int DPL = D / 32;
  constexpr int PITCH = D / 8 + 1;  // uint4s; padded, against bank conflicts
  constexpr int TN = D / 16;
  constexpr int HEADS_AT_ONCE = 4;
  threadgroup uint4* staged = memory + 16 * PITCH;
  const uint group = p.heads / p.kv_heads;
  const uint kv_head = tg.x;
  const uint position = step->position;
  const uint context = position + 1;
  // the same number of blocks to each threadgroup, but for the last ones
  const uint blocks = (context + KEYS - 1) / KEYS;
  const uint each = (blocks + grid.y - 1) / grid.y;
  const uint first = min(tg.y * each, blocks);
  const uint end = min(first + each, blocks);
  const ulong pitch = ulong(p.kv_heads) * (D / 8);
  device const uint4* keys = (device const uint4*)(k_cache + kv_head * D);
  device const uint4* values = (device const uint4*)(v_cache + kv_head * D);

  // the cache up to this token is that of earlier passes
  uint place = 0;
  uint next = 0;
#pragma unroll
  for (int s = 0; s < STAGES - 1; s++) {
    copy_keys<D, KEYS, THREADS>(staged + next * (2 * KEYS * PITCH), keys, values, pitch, (first + s) * KEYS, first + s < end ? position : 0, tid);
    copies_commit();
    next = next + 1 == STAGES ? 0 : next + 1;
  }
  const Turns<D, ROTARY> turns = turns_at<D, ROTARY>(position, frequencies, lane);
  float weight[DPL];
#pragma unroll
  for (int i = 0; i < DPL; i++) {
    weight[i] = q_norm[lane + 32 * i];
  }
  wait_for_earlier_kernels();

  threadgroup bfloat* queries = (threadgroup bfloat*)memory;
  for (uint first_head = sg * HEADS_AT_ONCE; first_head < 16; first_head += 2 * HEADS_AT_ONCE) {
    float x[HEADS_AT_ONCE][DPL];
#pragma unroll
    for (int h = 0; h < HEADS_AT_ONCE; h++) {
      const uint head = kv_head * group + min(first_head + h, group - 1);
#pragma unroll
      for (int i = 0; i < DPL; i++) {
        x[h][i] = first_head + h < group ? float(q_gate[head * 2 * D + lane + 32 * i]) : 0.0f;
      }
    }
#pragma unroll
    for (int h = 0; h < HEADS_AT_ONCE; h++) {
      norm_and_turn<D, ROTARY>(x[h], weight, turns, p.eps);
#pragma unroll
      for (int i = 0; i < DPL; i++) {
        queries[(first_head + h) * (PITCH * 8) + lane + 32 * i] = bfloat(x[h][i]);
      }
    }
  }
  // the token's own row: the first simdgroup makes its key, the second its value
  const bool has_last = first < end && end == blocks;
  float own[DPL];
  if (has_last) {
    device const bfloat* from = (sg == 0 ? k : v) + kv_head * D;
#pragma unroll
    for (int i = 0; i < DPL; i++) {
      own[i] = float(from[lane + 32 * i]);
    }
    if (sg == 0) {
#pragma unroll
      for (int i = 0; i < DPL; i++) {
        weight[i] = k_norm[lane + 32 * i];
      }
      norm_and_turn<D, ROTARY>(own, weight, turns, p.eps);
    }
    device bfloat* to = (sg == 0 ? k_cache : v_cache) + (ulong(position) * p.kv_heads + kv_head) * D;
#pragma unroll
    for (int i = 0; i < DPL; i++) {
      to[lane + 32 * i] = bfloat(own[i]);
    }
  }

  float2 maximum = float2(kMasked);
  float2 sum = float2(0.0f);
  mt::tile<float> acc[TN];
#pragma unroll
  for (int j = 0; j < TN; j++) {
    mt::fill(acc[j], 0.0f);
  }
  const float factor = p.scale * M_LOG2E_F;
  for (uint block = first; block < end; block++) {
    copies_wait<STAGES - 2>();
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const uint ahead = block + STAGES - 1;
    if (ahead < end) {
      copy_keys<D, KEYS, THREADS>(staged + next * (2 * KEYS * PITCH), keys, values, pitch, ahead * KEYS, position, tid);
    }
    copies_commit();
    next = next + 1 == STAGES ? 0 : next + 1;
    threadgroup bfloat* block_keys = (threadgroup bfloat*)(staged + place * 2 * KEYS * PITCH);
    place = place + 1 == STAGES ? 0 : place + 1;
    if (block + 1 == blocks) {
      threadgroup bfloat* to = block_keys + (position % KEYS + sg * KEYS) * (PITCH * 8);
#pragma unroll
      for (int i = 0; i < DPL; i++) {
        to[lane + 32 * i] = bfloat(own[i]);
      }
      threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    threadgroup const bfloat* k_rows = block_keys + sg * 32 * (PITCH * 8);
    threadgroup const bfloat* v_rows = k_rows + KEYS * PITCH * 8;

    mt::tile<float> score[2];
    mt::fill(score[0], 0.0f);
    mt::fill(score[1], 0.0f);
#pragma unroll
    for (int kk = 0; kk < D; kk += 16) {
      mt::tile<bfloat> a;
      mt::tile<bfloat> b0;
      mt::tile<bfloat> b1;
      mt::load(a, (threadgroup const bfloat*)memory + kk, PITCH * 8);
      mt::load_nk(b0, k_rows + kk, PITCH * 8);
      mt::load_nk(b1, k_rows + 16 * PITCH * 8 + kk, PITCH * 8);
      mt::multiply(score[0], score[1], a, b0, b1);
    }
    const uint base = block * KEYS + sg * 32;
    if (base + 32 > context) {
#pragma unroll
      for (int j = 0; j < 2; j++) {
#pragma unroll
        for (int e = 0; e < 8; e++) {
          if (base + j * 16 + mt::column(e) >= context) {
            score[j].set(e, kMasked);
          }
        }
      }
    }
    const float2 largest = max(maximum, max(mt::rows_max(score[0]), mt::rows_max(score[1])));
    const float2 correction = exp2((maximum - largest) * factor);
    const float2 offset = largest * factor;
    maximum = largest;
    sum *= correction;  // of this lane's columns; brought together at the end
    mt::tile<bfloat> probability[2];
#pragma unroll
    for (int j = 0; j < 2; j++) {
#pragma unroll
      for (int e = 0; e < 8; e++) {
        const float s = score[j].get(e);
        // a simdgroup's share of the last block may be all masked
        const float w = s > 0.5f * kMasked ? exp2(fma(s, factor, -offset[mt::row_half(e)])) : 0.0f;
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
    for (int h = 0; h < 2; h++) {
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
  copies_wait<0>();
  sum += simd_shuffle_xor(sum, ushort(1));
  sum += simd_shuffle_xor(sum, mt::ROW_NEIGHBOUR);

  // The simdgroups' halves become one: each takes half of the dimensions, and leaves its own other half to the other.
  threadgroup float4* extents = (threadgroup float4*)memory;  // [2, 32]: maxima, sums
  threadgroup float* given = (threadgroup float*)(memory + 64);
  threadgroup_barrier(mem_flags::mem_threadgroup);  // the queries and the last block have been read
  extents[tid] = float4(maximum.x, maximum.y, sum.x, sum.y);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  const float4 other = extents[tid ^ 32];
  const float2 largest = max(maximum, other.xy);
  const float2 mine = exp2((maximum - largest) * factor);
  sum = sum * mine + other.zw * exp2((other.xy - largest) * factor);
#pragma unroll
  for (int j = 0; j < TN; j++) {
#pragma unroll
    for (int e = 0; e < 8; e++) {
      acc[j].set(e, acc[j].get(e) * mine[mt::row_half(e)]);
      if ((j < TN / 2) == (sg == 1)) {
        given[(j * 8 + e) * 32 + lane] = acc[j].get(e);
      }
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
#pragma unroll
  for (int e = 0; e < 8; e++) {
    const uint row = mt::row(e);
    if (row < group) {
      const ulong at = (ulong(kv_head) * group + row) * p.splits + tg.y;
#pragma unroll
      for (int j = 0; j < TN; j++) {
        if ((j < TN / 2) == (sg == 0)) {
          partial[at * D + j * 16 + mt::column(e)] = acc[j].get(e) + given[(j * 8 + e) * 32 + lane];
        }
      }
      if (sg == 0 && mt::column(e) == 0) {
        extent[at * 2] = sum[mt::row_half(e)] > 0.0f ? largest[mt::row_half(e)] * factor : kMasked;
        extent[at * 2 + 1] = sum[mt::row_half(e)];
      }
    }
  }
}

template [[host_name("attention_decode_streamed_256_64")]] [[kernel]]
decltype(attention_decode_streamed<256, 64, 3>) attention_decode_streamed<256, 64, 3>;
