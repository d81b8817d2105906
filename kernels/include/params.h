// Parameter structs that the host fills in and a kernel reads.
//
// lily-gpu's build script reads this file and makes a #[repr(C)] Rust struct of each one, so they are written once. It
// understands `struct NAME { uint|float name; uint|float name[N]; OTHER_STRUCT name; };` with `///` comments, nothing else:
// every field is made of 4-byte numbers, hence no padding, and the same layout in Metal, CUDA and Rust.
#pragma once

/// How the elements of a weight matrix are stored; read by the general kernels only.
struct Encoding {
  /// One of the kEncoding constants of weights.h.
  uint kind;
  /// Bits of one element.
  uint bits;
  /// Columns that share a scale; 0 for plain numbers.
  uint group_size;
  /// Format of affine scales and biases: 0 bfloat, 1 half, 2 float.
  uint scale_type;
  /// Factor of every scale (nvfp4).
  float global_scale;
};

/// Where a sequence stands. Lives in device memory: the sampler moves it on without the host.
struct StepState {
  /// Token that the next decode pass takes in.
  uint token;
  /// Position of that token; for a prefill chunk, of its first token.
  uint position;
  /// Tokens sampled so far: the counter of the random generator and the index into the output log.
  uint sampled;
  /// Set by the sampler when it met no finite logit.
  uint failed;
};

/// embed
struct EmbedParams {
  /// Tokens.
  uint rows;
  /// Columns of the embedding.
  uint k;
  /// Rows of the embedding; a token past them is taken as token 0.
  uint vocab;
  Encoding encoding;
};

/// rms_norm
struct RmsNormParams {
  uint k;
  float eps;
};

/// gemv_norm and gemv: up to four matrices that read the same input.
struct GemvParams {
  /// Columns.
  uint k;
  /// Tokens.
  uint m;
  float eps;
  /// Matrices.
  uint segments;
  /// Rows of each matrix.
  uint rows[4];
  /// First row block of the next matrix; a row block is the rows that one simdgroup makes.
  uint block_end[4];
  /// Numbers between the outputs of two tokens.
  uint y_stride[4];
  /// 0, or the slots of a ring: the output row is that of position % ring.
  uint ring[4];
  /// Bit s: matrix s writes float, else bfloat.
  uint float_outputs;
  Encoding encoding[4];
};

/// expert_gate_up and expert_down: the feed-forward part of one token.
struct ExpertParams {
  /// Width of the residual stream.
  uint hidden;
  /// Routed experts.
  uint experts;
  /// Routed experts that a token takes; slot top_k is the shared expert.
  uint top_k;
  /// Rows of a routed expert's gate and up matrices.
  uint intermediate;
  /// Rows of the shared expert's gate and up matrices.
  uint shared_intermediate;
  /// Numbers between the activations of two slots.
  uint slot_stride;
  /// First slot of the dispatch.
  uint first_slot;
  /// Slots of the dispatch.
  uint slots;
  float eps;
  /// 1 where the shared expert is scaled by the sigmoid of its gate.
  uint shared_gate;
  Encoding gate;
  Encoding up;
  Encoding down;
  Encoding shared_gate_matrix;
  Encoding shared_up;
  Encoding shared_down;
};

/// swiglu
struct SwigluParams {
  /// Numbers.
  uint n;
};

/// attention_prepare
struct AttentionPrepareParams {
  uint heads;
  uint kv_heads;
  uint head_dim;
  uint rotary_dim;
  float eps;
};

/// attention_decode, attention_decode_general and attention_reduce
struct AttentionDecodeParams {
  uint heads;
  uint kv_heads;
  uint head_dim;
  /// Splits of the keys.
  uint splits;
  /// Keys of a split, or 0: the context divided by the splits.
  uint split_keys;
  float scale;
};

/// attention_decode_streamed
struct AttentionStreamedParams {
  uint heads;
  uint kv_heads;
  /// Splits of the keys, one to a threadgroup.
  uint splits;
  float eps;
  float scale;
};

/// attention_prefill
struct AttentionPrefillParams {
  uint heads;
  uint kv_heads;
  uint rows;
  float scale;
};

/// delta_decode, delta_conv, delta_scan, delta_scan_general, delta_norm, delta_ring
struct DeltaParams {
  /// Tokens.
  uint rows;
  uint key_heads;
  uint value_heads;
  uint key_dim;
  uint value_dim;
  /// Taps of the convolution, and slots of the ring of its last inputs.
  uint taps;
  /// RMSNorm of the output.
  float eps;
};

/// gemm and gemm_grouped
struct GemmParams {
  /// Rows of the input.
  uint m;
  /// Columns.
  uint k;
  /// Matrices; 1 where gate and up are multiplied as a pair.
  uint segments;
  /// Rows of each matrix.
  uint rows[4];
  /// First column tile of the next matrix.
  uint tile_end[4];
  /// Numbers between two output rows.
  uint y_stride[4];
  /// Bit s: matrix s writes float, else bfloat.
  uint float_outputs;
  /// gemm_grouped: input row = sorted entry / row_divisor (top_k where entries are (token, slot) pairs, 1 where rows are sorted).
  uint row_divisor;
  Encoding encoding[4];
};

/// moe_route, moe_offsets, moe_scatter, moe_combine
struct MoeParams {
  /// Tokens.
  uint rows;
  uint experts;
  uint top_k;
  uint hidden;
  /// Rows of a tile of the grouped product.
  uint tile_rows;
  /// 1 where the shared expert is scaled by the sigmoid of its gate.
  uint shared_gate;
  /// 1 where a shared expert (or a dense MLP) is added.
  uint shared;
  /// Entries of the block map.
  uint max_blocks;
};

/// dequantize
struct DequantizeParams {
  /// Rows.
  uint rows;
  /// Columns.
  uint k;
  Encoding encoding;
};

/// sample_adjust, sample_greedy and sample_draw. Lives in device memory, so that one recorded pass serves all settings.
struct SampleParams {
  /// Logits that may be chosen: the tokenizer's ids. The rest are padding.
  uint vocab;
  /// Candidates, or 0 for all.
  uint top_k;
  /// Above 0; sample_greedy does not read it.
  float temperature;
  float top_p;
  float min_p;
  /// Divides positive and multiplies negative logits of tokens that occurred.
  float repetition;
  /// Subtracted once from the logit of a token of the reply.
  float presence;
  /// Subtracted for each time that a token is in the reply.
  float frequency;
  uint seed_low;
  uint seed_high;
  /// Slots of the log of chosen tokens.
  uint log_slots;
};

/// sample_greedy and sample_draw
struct SampleSlices {
  /// Slices of sample_largest.
  uint slices;
};
