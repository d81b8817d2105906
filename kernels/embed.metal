// Rows of the embedding matrix: the input of the residual stream.
#include "include/weights.h"

// A token id in the prefill list, or the one that the sampler left in the step state.
constant bool kTokenFromStep [[function_constant(0)]];

// One threadgroup a token; a thread expands 32 columns.
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
  for (uint column = tid * 32; column < p.k; column += threads * 32) {
    float v[32];
    dequantize32(w, token, column, p.k, p.encoding, v);
    device float4* out = (device float4*)(x + ulong(row) * p.k + column);
    for (int i = 0; i < 8; i++) {
      out[i] = float4(v[4 * i], v[4 * i + 1], v[4 * i + 2], v[4 * i + 3]);
    }
  }
}
