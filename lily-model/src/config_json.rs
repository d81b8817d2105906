//! `config.json` to [`ModelConfig`], every dimension checked.

use crate::config::{AttentionConfig, DeltaNetConfig, LayerKind, MlpConfig, ModelConfig};
use crate::error::{Error, Result};
use crate::fields::Fields;

/// What `model_type` may be.
const SUPPORTED: &str = "qwen3_5_moe and qwen3_5 (Qwen3.5 and Qwen3.6, mixture of experts and dense)";

// Far above any model of this family, and low enough that no product of them overflows 64 bits:
// the largest tensor has experts * intermediate * hidden_size * 4 < 2^62 bytes.
const MAX_HIDDEN: usize = 1 << 20;
const MAX_VOCABULARY: usize = 1 << 26;
const MAX_LAYERS: usize = 4096;
const MAX_HEADS: usize = 4096;
const MAX_HEAD_DIM: usize = 8192;
const MAX_EXPERTS: usize = 1 << 16;
const MAX_INTERMEDIATE: usize = 1 << 22;
const MAX_POSITIONS: usize = 1 << 32;

/// Reads the shape of the model from the root of `config.json`: the fields are in `text_config`, or in the root itself.
pub(crate) fn read_config(root: Fields<'_>) -> Result<ModelConfig> {
    let model_type = root.string("model_type")?.unwrap_or("");
    let moe = match model_type {
        "qwen3_5_moe" | "qwen3_5_moe_text" => true,
        "qwen3_5" | "qwen3_5_text" => false,
        other => {
            return Err(Error::UnsupportedArchitecture {
                file: root.file.into(),
                found: other.into(),
                supported: SUPPORTED,
            });
        }
    };
    let text = root.object("text_config", "text_config.")?.unwrap_or(root);
    refuse_unknown_computations(text)?;
    let hidden_size = text.usize("hidden_size", 1..=MAX_HIDDEN)?;
    let tie_word_embeddings = match text.bool("tie_word_embeddings")? {
        Some(tied) => tied,
        None => root.bool("tie_word_embeddings")?.unwrap_or(false),
    };
    Ok(ModelConfig {
        hidden_size,
        vocab_size: text.usize("vocab_size", 1..=MAX_VOCABULARY)?,
        layers: read_layers(text)?,
        attention: read_attention(text)?,
        delta_net: read_delta_net(text)?,
        mlp: if moe {
            read_moe(text)?
        } else {
            MlpConfig::Dense {
                intermediate: text.usize("intermediate_size", 1..=MAX_INTERMEDIATE)?,
            }
        },
        rms_norm_eps: text.f64("rms_norm_eps", 0.0..=0.1)? as f32,
        tie_word_embeddings,
        max_position_embeddings: text.usize("max_position_embeddings", 1..=MAX_POSITIONS)?,
    })
}

/// Refuses configs that ask for something other than what the backends compute.
fn refuse_unknown_computations(text: Fields<'_>) -> Result<()> {
    for (name, only) in [
        ("attn_output_gate", true),
        ("attention_bias", false),
        ("norm_topk_prob", true),
    ] {
        if text.bool(name)?.is_some_and(|value| value != only) {
            return Err(text.wrong(name, format!("{only} (nothing else is implemented)")));
        }
    }
    if text.string("hidden_act")?.is_some_and(|name| name != "silu") {
        return Err(text.wrong("hidden_act", "silu"));
    }
    if text.get("decoder_sparse_step").is_some() {
        text.usize("decoder_sparse_step", 1..=1)?;
    }
    if let Some(layers) = text.get("mlp_only_layers")
        && layers.as_array().is_none_or(|layers| !layers.is_empty())
    {
        return Err(text.wrong("mlp_only_layers", "an empty array"));
    }
    Ok(())
}

fn read_layers(text: Fields<'_>) -> Result<Vec<LayerKind>> {
    let count = text.usize("num_hidden_layers", 1..=MAX_LAYERS)?;
    let Some(kinds) = text.get("layer_types") else {
        let interval = text.usize("full_attention_interval", 1..=MAX_LAYERS)?;
        return Ok((1..=count)
            .map(|layer| {
                if layer % interval == 0 {
                    LayerKind::Attention
                } else {
                    LayerKind::DeltaNet
                }
            })
            .collect());
    };
    let expected = format!("{count} (num_hidden_layers) of \"linear_attention\" and \"full_attention\"");
    let kinds = kinds
        .as_array()
        .filter(|kinds| kinds.len() == count)
        .ok_or_else(|| text.wrong("layer_types", expected.as_str()))?;
    kinds
        .iter()
        .enumerate()
        .map(|(layer, kind)| match kind.as_str() {
            Some("linear_attention") => Ok(LayerKind::DeltaNet),
            Some("full_attention") => Ok(LayerKind::Attention),
            _ => Err(Error::Field {
                file: text.file.into(),
                field: format!("{}layer_types.{layer}", text.path),
                expected: "\"linear_attention\" or \"full_attention\"".into(),
                found: crate::fields::brief(kind),
            }),
        })
        .collect()
}

fn read_attention(text: Fields<'_>) -> Result<AttentionConfig> {
    let heads = text.usize("num_attention_heads", 1..=MAX_HEADS)?;
    let kv_heads = text.usize("num_key_value_heads", 1..=MAX_HEADS)?;
    if !heads.is_multiple_of(kv_heads) {
        return Err(text.wrong(
            "num_key_value_heads",
            format!("a divisor of num_attention_heads ({heads})"),
        ));
    }
    let head_dim = text.usize("head_dim", 1..=MAX_HEAD_DIM)?;
    let path = format!("{}rope_parameters.", text.path);
    let rope = Fields {
        path: &path,
        ..text
            .object("rope_parameters", "")?
            .ok_or_else(|| text.wrong("rope_parameters", "an object with rope_theta"))?
    };
    for name in ["rope_type", "type"] {
        if rope.string(name)?.is_some_and(|kind| kind != "default") {
            return Err(rope.wrong(name, "\"default\" (no other is implemented)"));
        }
    }
    let rope_theta = rope.f64("rope_theta", 1.0..=1e12)?;
    let holder = if rope.get("partial_rotary_factor").is_some() {
        rope
    } else {
        text
    };
    let factor = holder.f64("partial_rotary_factor", 0.0..=1.0)?;
    let rotary_dim = (head_dim as f64 * factor) as usize;
    if rotary_dim == 0 || !rotary_dim.is_multiple_of(2) {
        return Err(holder.wrong(
            "partial_rotary_factor",
            format!("a factor that makes an even, positive number of head_dim ({head_dim})"),
        ));
    }
    Ok(AttentionConfig {
        heads,
        kv_heads,
        head_dim,
        rotary_dim,
        rope_theta,
    })
}

fn read_delta_net(text: Fields<'_>) -> Result<DeltaNetConfig> {
    let key_heads = text.usize("linear_num_key_heads", 1..=MAX_HEADS)?;
    let value_heads = text.usize("linear_num_value_heads", 1..=MAX_HEADS)?;
    if !value_heads.is_multiple_of(key_heads) {
        return Err(text.wrong(
            "linear_num_value_heads",
            format!("a multiple of linear_num_key_heads ({key_heads})"),
        ));
    }
    Ok(DeltaNetConfig {
        key_heads,
        value_heads,
        key_dim: text.usize("linear_key_head_dim", 1..=MAX_HEAD_DIM)?,
        value_dim: text.usize("linear_value_head_dim", 1..=MAX_HEAD_DIM)?,
        conv_kernel: text.usize("linear_conv_kernel_dim", 2..=64)?,
    })
}

fn read_moe(text: Fields<'_>) -> Result<MlpConfig> {
    let experts = text.usize("num_experts", 1..=MAX_EXPERTS)?;
    Ok(MlpConfig::Moe {
        experts,
        top_k: text.usize("num_experts_per_tok", 1..=experts)?,
        intermediate: text.usize("moe_intermediate_size", 1..=MAX_INTERMEDIATE)?,
        shared_intermediate: text.usize("shared_expert_intermediate_size", 1..=MAX_INTERMEDIATE)?,
    })
}
