// Rows of the embedding matrix: the input of the residual stream.
#include "include/weights.h"

// A token id in the prefill list, or the one that the sampler left in the step state.
constant bool kTokenFromStep [[function_constant(0)]];

// One threadgroup a token; a thread expands 4 columns at a time.
[[kernel, max_total_threads_per_threadgroup(256)]] void embed(
    device const uint* tokens [[buffer(0)]],  // [rows]
    device const StepState* step [[buffer(1)]],
    device const uchar* codes [[buffer(2)]],
    device const uchar* scales [[buffer(3)]],
    device const uchar* biases [[buffer(4)]],
    device float* x [[buffer(5)]],  // [rows, k]
    constant EmbedParams& p [[buffer(6)]],
    uint row [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint threads [[threads_per_threadgroup]]) {
  uint token = 0;
  if (kTokenFromStep) {
    token = step->token;
  } else {
    token = tokens[row];
  }
  // the host checks ids; this keeps a wrong one from reading outside the matrix
  token = token < p.vocab ? token : 0;
  const Matrix w = matrix(codes, scales, biases);
  device float4* out = (device float4*)(x + ulong(row) * p.k);
  for (uint q = tid; q < p.k / 4; q += threads) {
    out[q] = dequantize4(w, token, q * 4, p.k, p.encoding);
  }
}
