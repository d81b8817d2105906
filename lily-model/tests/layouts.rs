//! Layouts of checkpoints that no fixture has: dense, tied, flat, unquantized, embedded, older template files.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::{Scratch, Tensor, Tensors, fixture};
use half::{bf16, f16};
use lily_model::{
    ChatInput, Checkpoint, Encoding, Error, FloatType, GenerationConfig, LayerKind, Matrix, Mlp, MlpConfig, Source,
};
use safetensors::tensor::Dtype;
use serde_json::{Value, json};

const HIDDEN: usize = 32;

fn number(index: usize) -> f32 {
    (index % 17) as f32 / 8.0 - 1.0
}

fn tensor(shape: &[usize], float: FloatType) -> Tensor {
    let count: usize = shape.iter().product();
    let numbers = (0..count).map(number);
    let (dtype, data) = match float {
        FloatType::Bf16 => (
            Dtype::BF16,
            numbers.flat_map(|value| bf16::from_f32(value).to_le_bytes()).collect(),
        ),
        FloatType::F16 => (
            Dtype::F16,
            numbers.flat_map(|value| f16::from_f32(value).to_le_bytes()).collect(),
        ),
        FloatType::F32 => (Dtype::F32, numbers.flat_map(f32::to_le_bytes).collect()),
    };
    Tensor {
        dtype,
        shape: shape.to_vec(),
        data,
    }
}

/// The tensors of an unquantized model of two layers, dense or of 3 experts.
fn tensors(prefix: &str, moe: bool, float: FloatType) -> Tensors {
    let mut shapes: Vec<(String, Vec<usize>)> = vec![
        ("embed_tokens.weight".into(), vec![512, HIDDEN]),
        ("norm.weight".into(), vec![HIDDEN]),
    ];
    for layer in 0..2 {
        let mut add = |name: &str, shape: &[usize]| shapes.push((format!("layers.{layer}.{name}"), shape.to_vec()));
        add("input_layernorm.weight", &[HIDDEN]);
        add("post_attention_layernorm.weight", &[HIDDEN]);
        if layer == 0 {
            add("linear_attn.in_proj_qkv.weight", &[64, HIDDEN]);
            add("linear_attn.in_proj_z.weight", &[32, HIDDEN]);
            add("linear_attn.in_proj_b.weight", &[4, HIDDEN]);
            add("linear_attn.in_proj_a.weight", &[4, HIDDEN]);
            add("linear_attn.out_proj.weight", &[HIDDEN, 32]);
            add("linear_attn.conv1d.weight", &[64, 4, 1]);
            add("linear_attn.A_log", &[4]);
            add("linear_attn.dt_bias", &[4]);
            add("linear_attn.norm.weight", &[8]);
        } else {
            add("self_attn.q_proj.weight", &[64, HIDDEN]);
            add("self_attn.k_proj.weight", &[16, HIDDEN]);
            add("self_attn.v_proj.weight", &[16, HIDDEN]);
            add("self_attn.o_proj.weight", &[HIDDEN, 32]);
            add("self_attn.q_norm.weight", &[16]);
            add("self_attn.k_norm.weight", &[16]);
        }
        if moe {
            add("mlp.gate.weight", &[3, HIDDEN]);
            add("mlp.shared_expert_gate.weight", &[1, HIDDEN]);
            add("mlp.switch_mlp.gate_proj.weight", &[3, 24, HIDDEN]);
            add("mlp.switch_mlp.up_proj.weight", &[3, 24, HIDDEN]);
            add("mlp.switch_mlp.down_proj.weight", &[3, HIDDEN, 24]);
        }
        let part = if moe { "mlp.shared_expert" } else { "mlp" };
        add(&format!("{part}.gate_proj.weight"), &[40, HIDDEN]);
        add(&format!("{part}.up_proj.weight"), &[40, HIDDEN]);
        add(&format!("{part}.down_proj.weight"), &[HIDDEN, 40]);
    }
    shapes
        .into_iter()
        .map(|(name, shape)| (format!("{prefix}{name}"), tensor(&shape, float)))
        .collect()
}

fn text_config(moe: bool) -> Value {
    let mut config = json!({
        "model_type": "qwen3_5_text", "hidden_size": HIDDEN, "num_hidden_layers": 2, "vocab_size": 512,
        "full_attention_interval": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16,
        "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
        "linear_conv_kernel_dim": 4, "rms_norm_eps": 1e-6, "max_position_embeddings": 4096,
        "partial_rotary_factor": 0.5, "rope_parameters": {"rope_theta": 10_000.0, "rope_type": "default"},
        "some_later_field": {"x": [1, 2]}, "tie_word_embeddings": true,
    });
    let more = if moe {
        json!({"num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "shared_expert_intermediate_size": 40})
    } else {
        json!({"intermediate_size": 40})
    };
    config
        .as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    config
}

/// A checkpoint with the mini fixture's tokenizer and the weights and config given.
fn checkpoint(config: &Value, tensors: &Tensors) -> Scratch {
    let scratch = Scratch::copy_of("mini/mlx-4bit");
    scratch.remove("model.safetensors.index.json");
    scratch.write("config.json", config.to_string());
    scratch.write_tensors("model.safetensors", tensors);
    scratch
}

fn assert_holds_its_numbers(matrix: &Matrix, float: FloatType) {
    assert_eq!(matrix.encoding, Encoding::Float(float), "{}", matrix.name);
    let (index, row) = (matrix.count - 1, matrix.rows - 1);
    let mut values = vec![0.0; matrix.cols];
    matrix.dequantize_row(index, row, &mut values);
    let start = (index * matrix.rows + row) * matrix.cols;
    let expected: Vec<f32> = (start..start + matrix.cols).map(number).collect();
    assert_eq!(values, expected, "{}", matrix.name);
}

#[test]
fn dense_flat_tied_unquantized() {
    for float in [FloatType::Bf16, FloatType::F16, FloatType::F32] {
        let opened = checkpoint(&text_config(false), &tensors("model.", false, float))
            .open()
            .unwrap();
        assert_eq!(opened.config.layers, [LayerKind::DeltaNet, LayerKind::Attention]);
        assert_eq!(opened.config.attention.rotary_dim, 8);
        assert_eq!(opened.config.mlp, MlpConfig::Dense { intermediate: 40 });
        assert!(opened.weights.lm_head.is_none());
        assert_eq!(opened.weights.output().name, "model.embed_tokens");
        assert_holds_its_numbers(&opened.weights.embedding, float);
        let Mlp::Dense(mlp) = &opened.weights.layers[1].mlp else {
            panic!("the model is dense");
        };
        assert_holds_its_numbers(&mlp.down, float);
        let norm: Vec<f32> = (0..HIDDEN).map(number).collect();
        assert_eq!(opened.weights.norm, norm);
    }
}

#[test]
fn dense_with_an_outer_config_and_its_own_head() {
    let mut text = text_config(false);
    text.as_object_mut().unwrap().remove("tie_word_embeddings");
    let outer = json!({"model_type": "qwen3_5", "text_config": text, "vision_config": {"depth": 2}, "tie_word_embeddings": false});
    let mut tensors = tensors("language_model.model.", false, FloatType::Bf16);
    tensors.insert(
        "language_model.lm_head.weight".into(),
        tensor(&[512, HIDDEN], FloatType::Bf16),
    );
    for ignored in [
        "vision_tower.blocks.0.norm1.weight",
        "model.visual.pos_embed.weight",
        "mtp.fc.weight",
    ] {
        tensors.insert(ignored.into(), tensor(&[3], FloatType::F32));
    }
    let opened = checkpoint(&outer, &tensors).open().unwrap();
    assert_holds_its_numbers(opened.weights.lm_head.as_ref().unwrap(), FloatType::Bf16);
    tensors.remove("language_model.lm_head.weight");
    checkpoint(&outer, &tensors).fails(&[
        "model.safetensors",
        "language_model.lm_head.weight",
        "BF16, F16 or F32 [512, 32]",
    ]);
}

#[test]
fn unquantized_experts() {
    let outer = json!({"model_type": "qwen3_5_moe", "text_config": text_config(true)});
    let opened = checkpoint(&outer, &tensors("language_model.model.", true, FloatType::F16))
        .open()
        .unwrap();
    let Mlp::Moe(moe) = &opened.weights.layers[0].mlp else {
        panic!("the model has experts");
    };
    assert_eq!(
        (moe.experts.down.count, moe.experts.down.rows, moe.experts.down.cols),
        (3, HIDDEN, 24)
    );
    assert_holds_its_numbers(&moe.experts.down, FloatType::F16);
    assert_holds_its_numbers(&moe.router, FloatType::F16);
}

#[test]
fn shards_without_an_index() {
    let scratch = Scratch::copy_of("mini/mlx-4bit-sharded");
    scratch.remove("model.safetensors.index.json");
    scratch.open().unwrap();
}

#[test]
fn quantization_overrides() {
    let scratch = Scratch::copy_of("mini/mlx-4bit");
    // A default that fits nothing, overridden for all: true means the default, an object its own values.
    scratch.edit_json("config.json", |config| {
        let lm_head = "language_model.lm_head";
        config["quantization"][lm_head] = true.into();
        config["quantization"]["language_model.model.embed_tokens"] = json!({});
        config["quantization"]["converter"] = "1.0".into();
    });
    scratch.open().unwrap();
}

#[test]
fn the_global_scale_of_nvfp4() {
    let module = "language_model.model.layers.0.mlp.switch_mlp.up_proj";
    let scratch = Scratch::copy_of("mini/variants/nvfp4");
    scratch.remove("model.safetensors.index.json");
    let scale = |value: f32| Tensor {
        dtype: Dtype::F32,
        shape: vec![],
        data: value.to_le_bytes().to_vec(),
    };
    scratch.edit_tensors("model.safetensors", |tensors| {
        tensors.insert(format!("{module}.global_scale"), scale(0.5));
    });
    let opened = scratch.open().unwrap();
    let Mlp::Moe(moe) = &opened.weights.layers[0].mlp else {
        panic!("the model has experts");
    };
    assert_eq!(moe.experts.up.encoding, Encoding::Nvfp4 { global_scale: 0.5 });
    scratch.edit_tensors("model.safetensors", |tensors| {
        tensors.insert(format!("{module}.global_scale"), scale(f32::NAN));
    });
    scratch.fails(&["global_scale", "finite"]);
}

#[test]
fn embedded() {
    static FILES: std::sync::LazyLock<Vec<(&'static str, &'static [u8])>> = std::sync::LazyLock::new(|| {
        [
            "config.json",
            "model.safetensors",
            "tokenizer.json",
            "generation_config.json",
            "chat_template.jinja",
        ]
        .into_iter()
        .map(|name| {
            let content = std::fs::read(fixture("mini/mlx-4bit").join(name)).unwrap();
            (name, &*content.leak())
        })
        .collect()
    });
    let source = Source::Embedded {
        name: "demo",
        files: &FILES,
    };
    let opened = Checkpoint::open(&source).unwrap();
    assert_eq!(opened.name, "demo");
    assert!(opened.chat_template().is_ok());
    let missing = Source::Embedded {
        name: "demo",
        files: &FILES[1..],
    };
    let error = Checkpoint::open(&missing).unwrap_err().to_string();
    assert!(
        error.contains("embedded checkpoint demo: config.json is missing"),
        "{error}"
    );
}

#[test]
fn names_in_the_hub_cache() {
    let source = Source::Directory("/c/hub/models--org--the-model/snapshots/0123".into());
    assert_eq!(source.name(), "org/the-model");
    assert_eq!(Source::Directory("/models/my-model/".into()).name(), "my-model");
}

#[test]
fn template_in_the_tokenizer_config() {
    let message = [json!({"role": "user", "content": "x"})];
    let scratch = Scratch::copy_of("mini/mlx-4bit");
    scratch.remove("chat_template.jinja");
    for (field, expected) in [
        (json!("{{ eos_token }}:{{ messages[0].content }}"), "<|im_end|>:x"),
        (
            json!([{"name": "tool_use", "template": "no"}, {"name": "default", "template": "{{ bos_token is none }}"}]),
            "False",
        ),
    ] {
        scratch.edit_json("tokenizer_config.json", |config| config["chat_template"] = field);
        let opened = scratch.open().unwrap();
        let input = ChatInput {
            messages: &message,
            ..ChatInput::default()
        };
        assert_eq!(opened.chat_template().unwrap().render(&input).unwrap().text(), expected);
    }
    scratch.edit_json("tokenizer_config.json", |config| {
        config["chat_template"] = "{{ messages | nope }}".into()
    });
    let opened = scratch.open();
    let error = match opened {
        Err(error) => error,
        Ok(opened) => opened
            .chat_template()
            .unwrap()
            .render(&ChatInput::default())
            .unwrap_err(),
    };
    assert!(matches!(error, Error::Template { .. }), "{error}");
    assert!(error.to_string().contains("tokenizer_config.json"), "{error}");
}

#[test]
fn generation_defaults_without_a_file() {
    let scratch = Scratch::copy_of("mini/mlx-4bit");
    scratch.remove("generation_config.json");
    let defaults = scratch.open().unwrap().generation;
    assert_eq!(
        defaults,
        GenerationConfig {
            eos_token_ids: vec![448, 450],
            ..GenerationConfig::default()
        }
    );
    scratch.write(
        "generation_config.json",
        r#"{"eos_token_id": 460, "do_sample": false, "temperature": 0.6, "top_k": null}"#,
    );
    let read = scratch.open().unwrap().generation;
    assert_eq!(
        (read.eos_token_ids, read.do_sample, read.temperature, read.top_k),
        (vec![448, 450, 460], false, 0.6, 0)
    );
}
