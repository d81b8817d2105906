"""The demo checkpoint's dimensions and its config.json.

The dimensions that the engine's kernels specialise on are those of Qwen3.6-35B-A3B (head_dim 256 of which 64 rotate,
8 query heads a KV head, Gated DeltaNet heads of 128 x 128 with twice as many value heads as key heads, convolution over
4 tokens, every layer a mixture of experts with a shared expert). Everything else is small.
"""

HIDDEN = 320
LAYERS = 8
FULL_ATTENTION_INTERVAL = 4
QUERY_HEADS = 8
KV_HEADS = 1
HEAD_DIM = 256
ROTARY_DIM = 64
ROPE_THETA = 10_000_000
KEY_HEADS = 2
VALUE_HEADS = 4
STATE_DIM = 128
CONV_KERNEL = 4
EXPERTS = 16
EXPERTS_PER_TOKEN = 4
EXPERT_DIM = 64
SHARED_EXPERT_DIM = 128
VOCAB = 3840  # rows of the embedding; the tokens in use fill all but the last ones, as in the published model
BASE_TOKENS = 3776  # byte-level BPE tokens; the 33 added tokens follow
NORM_EPS = 1e-6

KEY_CHANNELS = KEY_HEADS * STATE_DIM
VALUE_CHANNELS = VALUE_HEADS * STATE_DIM
CONV_CHANNELS = 2 * KEY_CHANNELS + VALUE_CHANNELS

LAYER_TYPES = [
    "full_attention" if (i + 1) % FULL_ATTENTION_INTERVAL == 0 else "linear_attention" for i in range(LAYERS)
]

# The added tokens of Qwen3.6 in their order; the ids start at BASE_TOKENS.
ADDED_TOKENS = """<|endoftext|> <|im_start|> <|im_end|> <|object_ref_start|> <|object_ref_end|> <|box_start|> <|box_end|>
<|quad_start|> <|quad_end|> <|vision_start|> <|vision_end|> <|vision_pad|> <|image_pad|> <|video_pad|> <tool_call>
</tool_call> <|fim_prefix|> <|fim_middle|> <|fim_suffix|> <|fim_pad|> <|repo_name|> <|file_sep|> <tool_response>
</tool_response> <think> </think> <|audio_start|> <|audio_end|> <tts_pad> <tts_text_bos> <tts_text_eod>
<tts_text_bos_single> <|audio_pad|>""".split()
# Added tokens that stay visible when special tokens are skipped.
NOT_SPECIAL = set(
    """<tool_call> </tool_call> <|fim_prefix|> <|fim_middle|> <|fim_suffix|> <|fim_pad|> <|repo_name|> <|file_sep|>
<tool_response> </tool_response> <think> </think>""".split()
)
TOKEN_ID = {token: BASE_TOKENS + i for i, token in enumerate(ADDED_TOKENS)}
ENDOFTEXT = TOKEN_ID["<|endoftext|>"]
IM_START = TOKEN_ID["<|im_start|>"]
IM_END = TOKEN_ID["<|im_end|>"]


def hf_config():
    """config.json in the published shape, before conversion to MLX (which adds the quantization block)."""
    return {
        "architectures": ["Qwen3_5MoeForConditionalGeneration"],
        "image_token_id": TOKEN_ID["<|image_pad|>"],
        "model_type": "qwen3_5_moe",
        "text_config": {
            "attention_bias": False,
            "attention_dropout": 0.0,
            "attn_output_gate": True,
            "bos_token_id": ENDOFTEXT,
            "dtype": "bfloat16",
            "eos_token_id": ENDOFTEXT,
            "full_attention_interval": FULL_ATTENTION_INTERVAL,
            "head_dim": HEAD_DIM,
            "hidden_act": "silu",
            "hidden_size": HIDDEN,
            "initializer_range": 0.02,
            "layer_types": LAYER_TYPES,
            "linear_conv_kernel_dim": CONV_KERNEL,
            "linear_key_head_dim": STATE_DIM,
            "linear_num_key_heads": KEY_HEADS,
            "linear_num_value_heads": VALUE_HEADS,
            "linear_value_head_dim": STATE_DIM,
            "mamba_ssm_dtype": "float32",
            "max_position_embeddings": 262144,
            "model_type": "qwen3_5_moe_text",
            "moe_intermediate_size": EXPERT_DIM,
            "num_attention_heads": QUERY_HEADS,
            "num_experts": EXPERTS,
            "num_experts_per_tok": EXPERTS_PER_TOKEN,
            "num_hidden_layers": LAYERS,
            "num_key_value_heads": KV_HEADS,
            "output_router_logits": False,
            "pad_token_id": None,
            "partial_rotary_factor": ROTARY_DIM / HEAD_DIM,
            "rms_norm_eps": NORM_EPS,
            "rope_parameters": {
                "mrope_interleaved": True,
                "mrope_section": [11, 11, 10],
                "partial_rotary_factor": ROTARY_DIM / HEAD_DIM,
                "rope_theta": ROPE_THETA,
                "rope_type": "default",
            },
            "router_aux_loss_coef": 0.001,
            "shared_expert_intermediate_size": SHARED_EXPERT_DIM,
            "tie_word_embeddings": False,
            "use_cache": True,
            "vocab_size": VOCAB,
        },
        "tie_word_embeddings": False,
        "transformers_version": "4.57.1",
        "video_token_id": TOKEN_ID["<|video_pad|>"],
        "vision_end_token_id": TOKEN_ID["<|vision_end|>"],
        "vision_start_token_id": TOKEN_ID["<|vision_start|>"],
    }


def generation_config():
    return {
        "bos_token_id": ENDOFTEXT,
        "do_sample": True,
        "eos_token_id": [IM_END, ENDOFTEXT],
        "pad_token_id": ENDOFTEXT,
        "temperature": 0.6,
        "top_k": 20,
        "top_p": 0.95,
    }
