// gemv_norm of one token for 4-bit weights of 2048 columns, for GPUs whose copies run beside the arithmetic (include/gemv_streamed.h); the same arguments.
//
// A threadgroup makes a run of row blocks of 16 rows. The codes of the first STAGES are asked for before the vector is there, the others while those before
// them are multiplied.
#include "include/early.h"
#include "include/gemv_streamed.h"

// x is normed already (the norm was a dispatch of its own).
constant bool kNormedInput [[function_constant(1)]];

constant constexpr uint kStage = 1024 + 2 * 16 * kFactorPitch;  // uint4s

// The matrix that a row block belongs to.
struct Source {
  Matrix w;
  uint segment;
  uint first;  // row block
  uint end;    // row block
  uint rows;
};

METAL_FUNC void copy_stage(threadgroup uint4* to, thread const Source& s, uint block, uint tid) {
  const uint row0 = (block - s.first) * 16;
  const uint last = s.rows - 1;
  const uint row = row0 + tid % 32 / 4;
  copy_codes_2048(to, s.w.codes, min(row, last), min(row + 8, last), tid);
  if (tid < 128) {
    const uint kind = tid / 64;
    const uint r = tid % 64 / 4;
    copy_factors_2048(to + 1024 + kind * 16 * kFactorPitch, kind == 0 ? s.w.scales : s.w.biases, r, min(row0 + r, last), tid % 4);
  }
}

// Grid: as many threadgroups as run side by side, at most one a row block. Up to four matrices that read the same input share a dispatch.
template <int STAGES>
[[kernel, max_total_threads_per_threadgroup(256)]] void gemv_norm_streamed(
    device const float* x [[buffer(0)]],       // [k] residual stream
    device const float* norm [[buffer(1)]],    // [k]
    device const uchar* codes0 [[buffer(2)]],
    device const uchar* scales0 [[buffer(3)]],
    device const uchar* biases0 [[buffer(4)]],
    device const uchar* codes1 [[buffer(5)]],
    device const uchar* scales1 [[buffer(6)]],
    device const uchar* biases1 [[buffer(7)]],
    device const uchar* codes2 [[buffer(8)]],
    device const uchar* scales2 [[buffer(9)]],
    device const uchar* biases2 [[buffer(10)]],
    device const uchar* codes3 [[buffer(11)]],
    device const uchar* scales3 [[buffer(12)]],
    device const uchar* biases3 [[buffer(13)]],
    device uchar* y0 [[buffer(14)]],
    device uchar* y1 [[buffer(15)]],
    device uchar* y2 [[buffer(16)]],
    device uchar* y3 [[buffer(17)]],
    device const StepState* step [[buffer(18)]],
    constant GemvParams& p [[buffer(19)]],
    threadgroup uint4* ring [[threadgroup(0)]],  // [STAGES][kStage]
    uint tg [[threadgroup_position_in_grid]],
    uint grid [[threadgroups_per_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint sg [[simdgroup_index_in_threadgroup]]) {
  threadgroup uint4 xs[2048 / 8 * kParts];
  threadgroup float group_sums[32];
  threadgroup float partial[2][kWarps][16];
  threadgroup float squares[kWarps];
  const uint blocks = p.block_end[p.segments - 1];
  const uint each = (blocks + grid - 1) / grid;
  const uint first = min(tg * each, blocks);
  const uint end = min(first + each, blocks);

  Source source;
  source.segment = 0;
  source.first = 0;
  source.end = p.block_end[0];
  source.rows = p.rows[0];
  source.w = matrix(codes0, scales0, biases0);
  uint next = first;
#pragma unroll
  for (int s = 0; s < STAGES; s++) {
    if (next < end) {
      while (next >= source.end) {
        source.segment++;
        source.first = source.end;
        source.end = p.block_end[source.segment];
        source.rows = p.rows[source.segment];
        source.w = source.segment == 1   ? matrix(codes1, scales1, biases1)
                   : source.segment == 2 ? matrix(codes2, scales2, biases2)
                                         : matrix(codes3, scales3, biases3);
      }
      copy_stage(ring + s * kStage, source, next, tid);
      next++;
    }
    copies_commit();
  }
  wait_for_earlier_kernels();

  float square;
  {
    device const float4* in = (device const float4*)x + tid * 2;
    device const float4* weight = (device const float4*)norm + tid * 2;
    float4 a = in[0];
    float4 b = in[1];
    square = dot(a, a) + dot(b, b);
    if (!kNormedInput) {
      a *= weight[0];
      b *= weight[1];
    }
    stage_octet(xs, group_sums, tid, a, b, lane);
  }
  square = simd_sum(square);
  if (lane == 0) {
    squares[sg] = square;
  }
  copies_wait<STAGES - 1>();
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float total = 0.0f;
#pragma unroll
  for (uint i = 0; i < kWarps; i++) {
    total += squares[i];
  }
  const float inverse = kNormedInput ? 1.0f : rsqrt(total / float(p.k) + p.eps);
  uint4 parts[8];
  float2 offsets[2];
#pragma unroll
  for (uint d = 0; d < 2; d++) {
    load_octets(parts + d * 4, xs, d * kWarps + sg, lane);
    offsets[d] = block_offsets(group_sums, d * kWarps + sg, lane);
  }

  uint place = 0;
  uint parity = 0;
  uint segment = 0;
  for (uint block = first; block < end; block++) {
    threadgroup uint4* here = ring + place * kStage;
    place = place + 1 == STAGES ? 0 : place + 1;
    float sums[2] = {0.0f, 0.0f};
    add_rows_2048(sums, here, here + 1024, here + 1024 + 16 * kFactorPitch, parts, offsets, tid, lane, sg);
    put_sums(partial[parity][sg], sums, lane);
    // the next stage is there for everybody behind the barrier, and this one is free; two buffers of sums in turn, so that one barrier is enough
    copies_wait<STAGES - 2>();
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (next < end) {
      while (next >= source.end) {
        source.segment++;
        source.first = source.end;
        source.end = p.block_end[source.segment];
        source.rows = p.rows[source.segment];
        source.w = source.segment == 1   ? matrix(codes1, scales1, biases1)
                   : source.segment == 2 ? matrix(codes2, scales2, biases2)
                                         : matrix(codes3, scales3, biases3);
      }
      copy_stage(here, source, next, tid);
      next++;
    }
    copies_commit();
    while (block >= p.block_end[segment]) {
      segment++;
    }
    const uint row = (block - (segment == 0 ? 0 : p.block_end[segment - 1])) * 16 + tid;
    if (tid < 16 && row < p.rows[segment]) {
      float value = 0.0f;
#pragma unroll
      for (uint i = 0; i < kWarps; i++) {
        value += partial[parity][i][tid];
      }
      value *= inverse;
      device uchar* y = segment == 0 ? y0 : segment == 1 ? y1 : segment == 2 ? y2 : y3;
      ulong at = row;
      if (p.ring[segment] != 0) {
        at += ulong(step->position % p.ring[segment]) * p.rows[segment];
      }
      if (((p.float_outputs >> segment) & 1) != 0) {
        ((device float*)y)[at] = value;
      } else {
        ((device bfloat*)y)[at] = bfloat(value);
      }
    }
    parity = 1 - parity;
  }
}

template [[host_name("gemv_norm_streamed_2048")]] [[kernel]]
decltype(gemv_norm_streamed<4>) gemv_norm_streamed<4>;

// gemv of one token whose output is added to the residual stream, for 4-bit weights of DEPTH * 1024 columns: y += W x. x is bfloat, so that one part is all of
// it. Grid (rows / 16).
template <int DEPTH>
[[kernel, max_total_threads_per_threadgroup(256)]] void gemv_streamed(
    device const bfloat* x [[buffer(0)]],  // [k]
    device const uchar* codes [[buffer(1)]],
    device const uchar* scales [[buffer(2)]],
    device const uchar* biases [[buffer(3)]],
    device float* y [[buffer(4)]],  // [rows]
    constant GemvParams& p [[buffer(5)]],
    uint tg [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint sg [[simdgroup_index_in_threadgroup]]) {
  constexpr uint K = DEPTH * kWarps * kBlock;
  threadgroup uint4 xs[K / 8];
  threadgroup float group_sums[K / kGroup];
  threadgroup float partial[kWarps][16];
  const uint row0 = tg * 16;
  const uint last = p.rows[0] - 1;
  const uint upper = min(row0 + lane / 4, last);
  const uint lower = min(row0 + lane / 4 + 8, last);
  const Matrix w = matrix(codes, scales, biases);
  RowBlock b[DEPTH];
#pragma unroll
  for (int d = 0; d < DEPTH; d++) {
    b[d].load(w, upper, lower, d * kWarps + sg, K, lane);
  }
  wait_for_earlier_kernels();
#pragma unroll
  for (uint o = tid; o < K / 8; o += 256) {
    const uint4 v = ((device const uint4*)x)[o];
    xs[o] = mt::raised_order(v);
    float s = sum4(bfloat_quad(v.xy)) + sum4(bfloat_quad(v.zw));
#pragma unroll
    for (ushort mask = 1; mask < 8; mask *= 2) {
      s += simd_shuffle_xor(s, mask);
    }
    if (lane % 8 == 0) {
      group_sums[o / 8] = s;
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  const uint owner = lane % 4;
  // vector 0 is the first group's columns, vector 1 the second's: lane 0 of a row has the sums of both, lane 3 the biases
  const float factor = owner == 0 ? -128.0f : owner == 3 ? 1.0f : 0.0f;
  float sums[2] = {0.0f, 0.0f};
#pragma unroll
  for (int d = 0; d < DEPTH; d++) {
    const uint block = d * kWarps + sg;
    uint4 words[4];
#pragma unroll
    for (uint word = 0; word < 4; word++) {
      words[word] = lane / 4 == owner / 2 ? xs[block * 16 + owner * 4 + word] : uint4(0);
    }
    mt::tile<float> product[2];
    mt::fill(product[0], 0.0f);
    mt::fill(product[1], 0.0f);
    multiply_raised(product, b[d].upper, b[d].lower, words);
    float even[4];
    float odd[4];
    mt::vector_sums(even, product[0]);
    mt::vector_sums(odd, product[1]);
    const float2 offsets = float2(group_sums[block * 2], group_sums[block * 2 + 1]) * factor;
#pragma unroll
    for (int half_index = 0; half_index < 2; half_index++) {
      const float2 f = bfloat_pair(half_index == 0 ? b[d].upper_factors : b[d].lower_factors);
      const float first = even[half_index * 2] + odd[half_index * 2] + offsets.x;
      const float second = even[half_index * 2 + 1] + odd[half_index * 2 + 1] + offsets.y;
      sums[half_index] = fma(f.x, first, fma(f.y, second, sums[half_index]));
    }
  }
  put_sums(partial[sg], sums, lane);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (tid < 16 && row0 + tid < p.rows[0]) {
    float value = 0.0f;
#pragma unroll
    for (uint i = 0; i < kWarps; i++) {
      value += partial[i][tid];
    }
    y[row0 + tid] += value;
  }
}

template [[host_name("gemv_streamed_4096")]] [[kernel]]
decltype(gemv_streamed<4>) gemv_streamed<4>;
