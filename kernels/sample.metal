// From logits to the next token, on the GPU: the token goes straight into the step state, so the next pass needs no host.
//
// Candidates are ordered by falling logit, the lower id first among equals, and cut to top_k; with w = exp((l - largest) / temperature) the shortest
// start of the list whose sum reaches top_p of the whole stays, and of it what has w >= min_p. The token is the first whose running sum exceeds
// u(seed, step) times the sum of what stays. Nothing is sorted: a place in the order is found by a search on the bits of (logit, id).
#include "include/philox.h"
#include "include/params.h"
#include "include/route.h"

// Apply penalties; a bias.
constant bool kPenalties [[function_constant(0)]];
constant bool kBias [[function_constant(1)]];

// A token's entry in the history: listed (of the prompt or the reply), exempt from penalties, and its count in the reply.
constant constexpr uint kListed = 0x80000000u;
constant constexpr uint kExempt = 0x40000000u;
constant constexpr uint kCount = 0x3fffffffu;

// Of the bits: arithmetic may take numbers for finite.
METAL_FUNC bool is_finite(float l) { return (as_type<uint>(l) & 0x7f800000u) != 0x7f800000u; }

// Penalties and bias, which leave what is not finite for the next kernel to find, and make nothing so. One thread a token.
[[kernel, max_total_threads_per_threadgroup(256)]] void sample_adjust(
    device const float* logits [[buffer(0)]],  // [vocab]
    device const uint* history [[buffer(1)]],  // [vocab]
    device const float* bias [[buffer(2)]],    // [vocab]
    device float* adjusted [[buffer(3)]],      // [vocab]
    device const SampleParams* params [[buffer(4)]],
    uint id [[thread_position_in_grid]]) {
  if (id >= params->vocab) {
    return;
  }
  float l = logits[id];
  if (kPenalties) {
    const uint entry = history[id];
    if ((entry & kListed) != 0) {
      l = l > 0.0f ? l / params->repetition : l * params->repetition;
    }
    if ((entry & kCount) != 0) {
      l -= params->presence + params->frequency * float(entry & kCount);
    }
  }
  if (kBias && is_finite(l)) {
    l = clamp(l + bias[id], -FLT_MAX, FLT_MAX);
  }
  adjusted[id] = l;
}

// The key of a logit, +0 and -0 being equal.
METAL_FUNC uint logit_key(float l) { return order_key(l == 0.0f ? 0.0f : l); }

// What the log gets where a logit was not finite.
constant constexpr uint kFailedToken = 0xffffffffu;

// Hands the token to the next pass. One thread.
METAL_FUNC void hand_over(uint token, bool failed, device StepState* step, device uint* log, device uint* history, device const SampleParams* params) {
  log[step->sampled % params->log_slots] = failed ? kFailedToken : token;
  step->token = token;
  step->position += 1;
  step->sampled += 1;
  step->failed |= failed ? 1 : 0;
  if (kPenalties && (history[token] & kExempt) == 0) {
    history[token] = (history[token] | kListed) + 1;
  }
}

// The largest logit of a slice of the vocabulary. Grid (slices).
[[kernel, max_total_threads_per_threadgroup(256)]] void sample_largest(
    device const float* logits [[buffer(0)]],
    device uint* largest [[buffer(1)]],  // [slices, 3]: key, id, 1 where a logit is not finite
    device const SampleParams* params [[buffer(2)]],
    uint slice [[threadgroup_position_in_grid]],
    uint slices [[threadgroups_per_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint sg [[simdgroup_index_in_threadgroup]],
    uint nsg [[simdgroups_per_threadgroup]]) {
  threadgroup uint best_keys[8];
  threadgroup uint best_ids[8];
  threadgroup uint failures[8];
  uint best = 0;
  uint id = 0xffffffffu;
  uint failed = 0;
  for (uint i = slice * nsg * 32 + tid; i < params->vocab; i += slices * nsg * 32) {
    const float l = logits[i];
    failed |= is_finite(l) ? 0 : 1;
    const uint key = logit_key(l);
    if (key > best) {
      best = key;
      id = i;
    }
  }
  const uint top = simd_max(best);
  const uint top_id = simd_min(best == top ? id : 0xffffffffu);
  const uint any_failed = simd_max(failed);
  if (lane == 0) {
    best_keys[sg] = top;
    best_ids[sg] = top_id;
    failures[sg] = any_failed;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (sg == 0) {
    best = lane < nsg ? best_keys[lane] : 0;
    id = lane < nsg ? best_ids[lane] : 0xffffffffu;
    failed = lane < nsg ? failures[lane] : 0;
    const uint key = simd_max(best);
    const uint token = simd_min(best == key ? id : 0xffffffffu);
    failed = simd_max(failed);
    if (lane == 0) {
      largest[slice * 3] = key;
      largest[slice * 3 + 1] = token;
      largest[slice * 3 + 2] = failed;
    }
  }
}

struct Largest {
  uint key;
  uint id;
  bool failed;
};

// Over all slices; every lane gets it.
METAL_FUNC Largest largest_of(device const uint* largest, uint slices, uint lane) {
  uint best = 0;
  uint id = 0xffffffffu;
  uint failed = 0;
  for (uint i = lane; i < slices; i += 32) {
    const uint key = largest[i * 3];
    const uint candidate = largest[i * 3 + 1];
    if (key > best || (key == best && candidate < id)) {
      best = key;
      id = candidate;
    }
    failed |= largest[i * 3 + 2];
  }
  Largest l;
  l.key = simd_max(best);
  l.id = simd_min(best == l.key ? id : 0xffffffffu);
  l.failed = simd_max(failed) != 0;
  return l;
}

// The largest logit's token comes next. One simdgroup.
[[kernel, max_total_threads_per_threadgroup(64)]] void sample_greedy(
    device const uint* largest [[buffer(0)]],  // [slices, 3]
    device StepState* step [[buffer(1)]],
    device uint* log [[buffer(2)]],
    device uint* history [[buffer(3)]],
    device const SampleParams* params [[buffer(4)]],
    constant SampleSlices& p [[buffer(5)]],
    uint lane [[thread_index_in_simdgroup]]) {
  const Largest l = largest_of(largest, p.slices, lane);
  if (lane == 0) {
    hand_over(min(l.id, params->vocab - 1), l.failed, step, log, history, params);
  }
}

// A place in the order of candidates: everything down to this key, and of equal keys down to this id.
struct Place {
  uint key;
  uint id;
};

METAL_FUNC bool before_or_at(uint key, uint id, Place place) { return key > place.key || (key == place.key && id <= place.id); }

constant constexpr int kDrawSimdgroups = 32;

// What a thread needs to look at all candidates.
struct Candidates {
  device const float* logits;
  uint vocab;
  uint tid;
  uint lane;
  uint sg;
  float largest;      // logit
  float temperature;
  float least;        // weight that a candidate has at least
  Place last;         // the last candidate
};

METAL_FUNC float weight_of(float logit, thread const Candidates& c) { return exp((logit - c.largest) / c.temperature); }

// Sum over the threadgroup; every thread gets the same.
METAL_FUNC float sum_threads(float v, threadgroup float* sums, uint lane, uint sg) {
  v = simd_sum(v);
  threadgroup_barrier(mem_flags::mem_threadgroup);  // the sums before are read
  if (lane == 0) {
    sums[sg] = v;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  return simd_sum(sums[lane]);
}

// Sum of the candidates' weights.
METAL_FUNC float total_weight(thread const Candidates& c, threadgroup float* sums) {
  float total = 0.0f;
  for (uint i = c.tid; i < c.vocab; i += kDrawSimdgroups * 32) {
    const float l = c.logits[i];
    const float w = weight_of(l, c);
    total += before_or_at(logit_key(l), i, c.last) && w >= c.least ? w : 0.0f;
  }
  return sum_threads(total, sums, c.lane, c.sg);
}

// The first place in the order at which the running sum reaches (or, with `exceed`, exceeds) `target`: of the candidates' weights, or of their count.
// Four bits of the key at a time, then of the id: the candidates that agree with the bits found so far are summed by their next four bits, and the
// sixteen sums, walked from the top, give those.
METAL_FUNC Place find_place(thread const Candidates& c, bool count, float target, bool exceed, threadgroup float* sums) {
  Place found;
  found.key = 0;
  found.id = 0;
  float above = 0.0f;
  const int id_bits = (int(32 - clz(c.vocab - 1)) + 3) / 4 * 4;
  for (int shift = 28; shift >= -id_bits; shift -= 4) {
    const bool by_key = shift >= 0;
    const int at = by_key ? shift : shift + id_bits;
    float acc[16];
#pragma unroll
    for (int b = 0; b < 16; b++) {
      acc[b] = 0.0f;
    }
    for (uint i = c.tid; i < c.vocab; i += kDrawSimdgroups * 32) {
      const float l = c.logits[i];
      const uint key = logit_key(l);
      const ulong agrees = by_key ? (ulong(key ^ found.key) >> (at + 4)) : ulong(key ^ found.key) | (ulong(i ^ found.id) >> (at + 4));
      if (agrees == 0) {
        const float w = weight_of(l, c);
        if (before_or_at(key, i, c.last) && w >= c.least) {
          // ids count upwards, keys downwards
          const uint bits = by_key ? (key >> at) & 15 : 15 - ((i >> at) & 15);
          const float mass = count ? 1.0f : w;
#pragma unroll
          for (uint b = 0; b < 16; b++) {
            acc[b] += bits == b ? mass : 0.0f;
          }
        }
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);  // the sums of the round before are read
#pragma unroll
    for (int b = 0; b < 16; b++) {
      const float sum = simd_sum(acc[b]);
      if (c.lane == 0) {
        sums[b * kDrawSimdgroups + c.sg] = sum;
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    // every thread walks the same sums, so all find the same
    uint bits = 16;
    uint lowest = 0;
    float before_lowest = above;
    for (int b = 15; b >= 0 && bits == 16; b--) {
      float sum = 0.0f;
      for (int s = 0; s < kDrawSimdgroups; s++) {
        sum += sums[b * kDrawSimdgroups + s];
      }
      if (sum > 0.0f) {
        lowest = b;
        before_lowest = above;
        if (exceed ? above + sum > target : above + sum >= target) {
          bits = b;
        } else {
          above += sum;
        }
      }
    }
    if (bits == 16) {
      // rounding left the whole a hair below the target: the last candidate
      bits = lowest;
      above = before_lowest;
    }
    if (by_key) {
      found.key |= bits << at;
    } else {
      found.id |= (15 - bits) << at;
    }
  }
  return found;
}

// A token drawn at random. One threadgroup of 1,024 threads.
[[kernel, max_total_threads_per_threadgroup(1024)]] void sample_draw(
    device const float* logits [[buffer(0)]],  // [vocab]
    device const uint* largest [[buffer(1)]],  // [slices, 3]
    device StepState* step [[buffer(2)]],
    device uint* log [[buffer(3)]],
    device uint* history [[buffer(4)]],
    device const SampleParams* params [[buffer(5)]],
    constant SampleSlices& p [[buffer(6)]],
    uint tid [[thread_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint sg [[simdgroup_index_in_threadgroup]]) {
  threadgroup float sums[16 * kDrawSimdgroups];
  const Largest top = largest_of(largest, p.slices, lane);
  Candidates c;
  c.logits = logits;
  c.vocab = params->vocab;
  c.tid = tid;
  c.lane = lane;
  c.sg = sg;
  c.largest = key_value(top.key);
  c.temperature = params->temperature;
  c.least = 0.0f;
  c.last.key = 0;
  c.last.id = 0xffffffffu;
  if (params->top_k > 0 && params->top_k < params->vocab) {
    c.last = find_place(c, true, float(params->top_k), false, sums);
  }
  if (params->top_p < 1.0f) {
    c.last = find_place(c, false, params->top_p * total_weight(c, sums), false, sums);
  }
  c.least = min(params->min_p, 1.0f);  // the largest always stays
  const float u = philox_uniform(step->sampled, params->seed_low, params->seed_high);
  const Place drawn = find_place(c, false, u * total_weight(c, sums), true, sums);
  threadgroup_barrier(mem_flags::mem_device);  // everyone has read the step
  if (tid == 0) {
    hand_over(min(drawn.id, params->vocab - 1), top.failed, step, log, history, params);
  }
}
