//! Every way in which a checkpoint can be broken has an error that names the file, the tensor or field, what was expected and what
//! was found.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::{Scratch, Tensor};
use lily_model::Error;
use safetensors::tensor::Dtype;
use serde_json::{Value, json};

const MINI: &str = "mini/mlx-4bit";
const SHARDED: &str = "mini/mlx-4bit-sharded";
const WEIGHTS: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
const SHARD: &str = "model-00002-of-00003.safetensors";

#[test]
fn missing_shard() {
    let scratch = Scratch::copy_of(SHARDED);
    scratch.remove(SHARD);
    scratch.fails(&[SHARD, "is missing", INDEX]);
}

#[test]
fn missing_weights() {
    let scratch = Scratch::copy_of(MINI);
    scratch.remove(WEIGHTS);
    scratch.remove(INDEX);
    scratch.fails(&[WEIGHTS, "is missing", "neither weights nor an index"]);
}

#[test]
fn truncated_shard() {
    let scratch = Scratch::copy_of(SHARDED);
    let content = std::fs::read(scratch.path(SHARD)).unwrap();
    scratch.write(SHARD, &content[..content.len() - 1000]);
    let (whole, cut) = (content.len().to_string(), (content.len() - 1000).to_string());
    scratch.fails(&[SHARD, "truncated", &whole, &cut]);
    scratch.write(SHARD, &content[..100]);
    scratch.fails(&[SHARD, "the header is longer than the file (100 bytes)"]);
    scratch.write(SHARD, &content[..5]);
    scratch.fails(&[SHARD, "is 5 bytes long"]);
    scratch.write(SHARD, b"");
    scratch.fails(&[SHARD, "is 0 bytes long"]);
}

#[test]
fn longer_shard() {
    let scratch = Scratch::copy_of(SHARDED);
    let mut content = std::fs::read(scratch.path(SHARD)).unwrap();
    content.extend([0; 8]);
    scratch.write(SHARD, &content);
    scratch.fails(&[SHARD, "fewer bytes than the file has"]);
}

fn with_header(header: &str, data: usize) -> Vec<u8> {
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.extend(vec![0; data]);
    file
}

#[test]
fn bad_header() {
    let scratch = Scratch::copy_of(MINI);
    for (content, problem) in [
        (with_header("{not json", 0), "bad safetensors header"),
        (with_header("[]", 0), "bad safetensors header"),
        (b"\xff\xff\xff\xff\xff\xff\xff\xff{}".to_vec(), "bad safetensors header"),
        (
            with_header(r#"{"a": {"dtype": "F99", "shape": [1], "data_offsets": [0, 4]}}"#, 4),
            "bad safetensors header",
        ),
        (
            with_header(r#"{"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}"#, 4),
            "bad safetensors header",
        ),
        (
            with_header(r#"{"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}}"#, 8),
            "bad safetensors header",
        ),
        (
            with_header(
                r#"{"a": {"dtype": "F32", "shape": [4294967296, 4294967296], "data_offsets": [0, 4]}}"#,
                4,
            ),
            "bad safetensors header",
        ),
        (b"<!DOCTYPE html><html>".to_vec(), "safetensors"),
    ] {
        scratch.write(WEIGHTS, &content);
        scratch.fails(&[WEIGHTS, problem]);
    }
}

#[test]
fn bad_index() {
    let scratch = Scratch::copy_of(SHARDED);
    scratch.write(INDEX, "{");
    scratch.fails(&[INDEX, "is not valid JSON"]);
    scratch.write(INDEX, "[]");
    scratch.fails(&[INDEX, "expected a JSON object"]);
    scratch.write(INDEX, "{}");
    scratch.fails(&[INDEX, "weight_map", "found nothing"]);
    scratch.write(INDEX, r#"{"weight_map": {}}"#);
    scratch.fails(&[INDEX, "weight_map", "at least one tensor"]);
    scratch.write(INDEX, r#"{"weight_map": {"a": 3}}"#);
    scratch.fails(&[INDEX, "weight_map.a", "found 3"]);
}

#[test]
fn index_that_leads_out_of_the_directory() {
    let scratch = Scratch::copy_of(SHARDED);
    std::fs::create_dir(scratch.path("sub")).unwrap();
    std::fs::copy(scratch.path(SHARD), scratch.path("sub").join(SHARD)).unwrap();
    let outside = scratch.path(SHARD).display().to_string();
    for name in [
        "../model.safetensors",
        "sub/../../model.safetensors",
        "..",
        "",
        "/etc/passwd",
        outside.as_str(),
        "C:\\model.safetensors",
        "..\\model.safetensors",
    ] {
        scratch.edit_json(INDEX, |index| {
            index["weight_map"]["language_model.lm_head.weight"] = name.into();
        });
        scratch.fails(&[
            INDEX,
            "weight_map.language_model.lm_head.weight",
            "the name of a file inside the checkpoint's directory",
        ]);
    }
}

#[test]
fn index_that_is_wrong_about_a_tensor() {
    let scratch = Scratch::copy_of(SHARDED);
    scratch.edit_json(INDEX, |index| {
        index["weight_map"]["language_model.lm_head.weight"] = SHARD.into();
    });
    scratch.fails(&[
        SHARD,
        "language_model.lm_head.weight",
        INDEX,
        "no such tensor in this file",
    ]);
}

#[test]
fn tensor_in_two_shards() {
    let scratch = Scratch::copy_of(SHARDED);
    let twin = Tensor {
        dtype: Dtype::F32,
        shape: vec![1],
        data: vec![0; 4],
    };
    for shard in [SHARD, "model-00003-of-00003.safetensors"] {
        scratch.edit_tensors(shard, |tensors| {
            tensors.insert("twin".into(), twin.clone());
        });
    }
    scratch.fails(&["tensor twin", "each tensor in one file", SHARD]);
}

const DOWN: &str = "language_model.model.layers.0.mlp.switch_mlp.down_proj";
const NORM: &str = "language_model.model.layers.1.input_layernorm.weight";

#[test]
fn missing_tensor() {
    for (name, expected) in [
        ("language_model.model.embed_tokens.weight", "U32 [512, 16]"),
        ("language_model.lm_head.biases", "BF16 [512, 2]"),
        (NORM, "[128]"),
        ("language_model.model.layers.3.self_attn.q_norm.weight", "[64]"),
    ] {
        let scratch = Scratch::copy_of(MINI);
        scratch.remove(INDEX);
        scratch.edit_tensors(WEIGHTS, |tensors| {
            tensors.remove(name).unwrap();
        });
        scratch.fails(&[WEIGHTS, name, expected, "no such tensor"]);
    }
}

#[test]
fn wrong_shape() {
    let scratch = Scratch::copy_of(MINI);
    scratch.edit_tensors(WEIGHTS, |tensors| {
        tensors.get_mut(NORM).unwrap().shape = vec![2, 64];
    });
    scratch.fails(&[WEIGHTS, NORM, "[128]", "found BF16 [2, 64]"]);

    let scratch = Scratch::copy_of(MINI);
    let weight = format!("{DOWN}.weight");
    scratch.edit_tensors(WEIGHTS, |tensors| {
        tensors.get_mut(&weight).unwrap().shape = vec![128, 8, 8];
    });
    scratch.fails(&[WEIGHTS, &weight, "U32 [8, 128, 8]", "found U32 [128, 8, 8]"]);

    let scratch = Scratch::copy_of(MINI);
    let scales = format!("{DOWN}.scales");
    scratch.edit_tensors(WEIGHTS, |tensors| {
        tensors.get_mut(&scales).unwrap().shape = vec![8, 64, 2];
    });
    scratch.fails(&[WEIGHTS, &scales, "[8, 128, 1]", "found BF16 [8, 64, 2]"]);
}

#[test]
fn wrong_type() {
    let scratch = Scratch::copy_of(MINI);
    scratch.edit_tensors(WEIGHTS, |tensors| {
        tensors.get_mut(NORM).unwrap().dtype = Dtype::I16;
    });
    scratch.fails(&[WEIGHTS, NORM, "BF16, F16 or F32", "found I16 [128]"]);

    let scratch = Scratch::copy_of(MINI);
    let weight = format!("{DOWN}.weight");
    scratch.edit_tensors(WEIGHTS, |tensors| {
        tensors.get_mut(&weight).unwrap().dtype = Dtype::I32;
    });
    scratch.fails(&[WEIGHTS, &weight, "U32 [8, 128, 8]", "found I32"]);

    let scratch = Scratch::copy_of(MINI);
    let biases = format!("{DOWN}.biases");
    scratch.edit_tensors(WEIGHTS, |tensors| {
        tensors.get_mut(&biases).unwrap().dtype = Dtype::F16;
    });
    scratch.fails(&[WEIGHTS, &biases, "BF16 [8, 128, 1]", "found F16"]);
}

#[test]
fn numbers_that_are_none() {
    let scratch = Scratch::copy_of(MINI);
    scratch.edit_tensors(WEIGHTS, |tensors| {
        tensors.get_mut(NORM).unwrap().data[6..8].copy_from_slice(&[0xc0, 0x7f]);
    });
    scratch.fails(&[WEIGHTS, NORM, "finite", "NaN at 3"]);
}

#[test]
fn unconverted_layout() {
    let conv = "language_model.model.layers.0.linear_attn.conv1d.weight";
    let scratch = Scratch::copy_of(MINI);
    scratch.edit_tensors(WEIGHTS, |tensors| {
        tensors.get_mut(conv).unwrap().shape = vec![512, 1, 4];
    });
    scratch.fails(&[WEIGHTS, conv, "mlx_lm.convert", "[512, 1, 4]"]);

    for raw in [
        "model.language_model.layers.0.mlp.experts.gate_up_proj",
        "model.layers.0.mlp.experts.down_proj",
        "model.language_model.norm.weight",
    ] {
        let scratch = Scratch::copy_of(MINI);
        scratch.remove(INDEX);
        scratch.edit_tensors(WEIGHTS, |tensors| {
            let tensor = tensors.remove(NORM).unwrap();
            tensors.insert(raw.into(), tensor);
        });
        scratch.fails(&[WEIGHTS, raw, "mlx_lm.convert"]);
    }
}

#[test]
fn inconsistent_quantization() {
    let quantization = |edit: &dyn Fn(&mut Value), parts: &[&str]| {
        let scratch = Scratch::copy_of(MINI);
        scratch.edit_json("config.json", |config| edit(&mut config["quantization"]));
        scratch.fails(parts);
    };
    let embedding = "language_model.model.embed_tokens";
    quantization(
        &|block| block["bits"] = 8.into(),
        &[WEIGHTS, "U32 [", "8-bit", "config.json", "found U32 ["],
    );
    quantization(
        &|block| block["group_size"] = 32.into(),
        &["scales", "groups of 32", "found BF16"],
    );
    quantization(
        &|block| block[embedding] = false.into(),
        &[WEIGHTS, embedding, "does not say that this module is quantized"],
    );
    quantization(
        &|block| block[embedding] = json!({"mode": "mxfp4"}),
        &[WEIGHTS, embedding, "U8 [512, 4]", "mxfp4"],
    );
    quantization(
        &|block| block["bits"] = 7.into(),
        &["config.json", "quantization.bits", "found 7"],
    );
    quantization(
        &|block| block["group_size"] = 48.into(),
        &["config.json", "quantization.group_size", "32, 64 or 128", "found 48"],
    );
    quantization(
        &|block| block["mode"] = "gguf".into(),
        &[
            "config.json",
            "quantization.mode",
            "affine, mxfp4, nvfp4 or mxfp8",
            "gguf",
        ],
    );
    quantization(
        &|block| *block = json!({"mode": "nvfp4", "group_size": 32}),
        &["config.json", "quantization.group_size", "16", "found 32"],
    );
    quantization(
        &|block| block[embedding] = json!({"bits": "four"}),
        &[
            "config.json",
            "quantization.language_model.model.embed_tokens.bits",
            "\"four\"",
        ],
    );
    quantization(
        &|block| block["quant_method"] = "awq".into(),
        &["config.json", "quantization.quant_method", "mlx_lm.convert", "awq"],
    );
    quantization(
        &|block| *block = 4.into(),
        &["config.json", "quantization", "an object", "found 4"],
    );
    // A quantized matrix whose scales were lost.
    let scratch = Scratch::copy_of(MINI);
    scratch.remove(INDEX);
    scratch.edit_tensors(WEIGHTS, |tensors| {
        tensors.remove(&format!("{DOWN}.scales")).unwrap();
    });
    scratch.fails(&[WEIGHTS, DOWN, "with its scales beside it", "found U32"]);
    // A quantized checkpoint whose config does not say so.
    let scratch = Scratch::copy_of(MINI);
    scratch.edit_json("config.json", |config| {
        let config = config.as_object_mut().unwrap();
        config.remove("quantization");
        config.remove("quantization_config");
    });
    scratch.fails(&[WEIGHTS, "scales", "does not say that this module is quantized"]);
}

#[test]
fn unsupported_architecture() {
    let scratch = Scratch::copy_of(MINI);
    scratch.edit_json("config.json", |config| config["model_type"] = "llama".into());
    scratch.fails(&["config.json", "\"llama\"", "supported are qwen3_5_moe and qwen3_5"]);
    scratch.edit_json("config.json", |config| {
        config.as_object_mut().unwrap().remove("model_type");
    });
    scratch.fails(&["config.json", "model_type", "supported are"]);
}

#[test]
fn missing_rope_theta() {
    let scratch = Scratch::copy_of(MINI);
    scratch.edit_text_config(|text| {
        text["rope_parameters"].as_object_mut().unwrap().remove("rope_theta");
    });
    scratch.fails(&["config.json", "text_config.rope_parameters.rope_theta", "found nothing"]);
    scratch.edit_text_config(|text| {
        text.as_object_mut().unwrap().remove("rope_parameters");
    });
    scratch.fails(&[
        "config.json",
        "text_config.rope_parameters",
        "rope_theta",
        "found nothing",
    ]);
}

#[test]
fn bad_dimensions() {
    for (field, value, expected) in [
        ("hidden_size", json!(0), "a whole number from 1"),
        ("hidden_size", json!(-128), "a whole number"),
        ("hidden_size", json!("128"), "a whole number"),
        ("hidden_size", json!(1e300), "a whole number"),
        ("hidden_size", json!(u64::MAX), "a whole number"),
        ("hidden_size", Value::Null, "a whole number"),
        ("vocab_size", json!(1_u64 << 40), "a whole number"),
        ("num_hidden_layers", json!(0), "a whole number"),
        ("num_hidden_layers", json!(1_000_000_000), "a whole number"),
        ("num_attention_heads", json!(0), "a whole number"),
        ("num_key_value_heads", json!(3), "a divisor of num_attention_heads (8)"),
        ("head_dim", json!(1_000_000), "a whole number"),
        (
            "linear_num_value_heads",
            json!(3),
            "a multiple of linear_num_key_heads (2)",
        ),
        ("linear_conv_kernel_dim", json!(1), "a whole number from 2"),
        ("num_experts_per_tok", json!(9), "a whole number from 1 to 8"),
        ("rms_norm_eps", json!("small"), "a number"),
        ("layer_types", json!(["full_attention"]), "4 (num_hidden_layers)"),
        ("attn_output_gate", json!(false), "true"),
        ("attention_bias", json!(true), "false"),
        ("norm_topk_prob", json!(false), "true"),
        ("hidden_act", json!("gelu"), "silu"),
        ("mlp_only_layers", json!([1]), "an empty array"),
        ("decoder_sparse_step", json!(2), "a whole number from 1 to 1"),
    ] {
        let scratch = Scratch::copy_of(MINI);
        scratch.edit_text_config(|text| text[field] = value.clone());
        scratch.fails(&["config.json", &format!("text_config.{field}"), expected]);
    }
    for (field, value, expected) in [
        ("rope_theta", json!(0), "a number from 1"),
        ("type", json!("yarn"), "\"default\""),
        ("rope_type", json!("linear"), "\"default\""),
        ("partial_rotary_factor", json!(1.5), "a number from 0"),
        ("partial_rotary_factor", json!(0.02), "an even, positive number"),
    ] {
        let scratch = Scratch::copy_of(MINI);
        scratch.edit_text_config(|text| text["rope_parameters"][field] = value.clone());
        scratch.fails(&["config.json", &format!("text_config.rope_parameters.{field}"), expected]);
    }
    let scratch = Scratch::copy_of(MINI);
    scratch.edit_text_config(|text| text["layer_types"][2] = "mamba".into());
    scratch.fails(&["config.json", "text_config.layer_types.2", "\"mamba\""]);
    // More layers in the file than in the config: the config is not this checkpoint's.
    let scratch = Scratch::copy_of(MINI);
    scratch.edit_text_config(|text| {
        text["num_hidden_layers"] = 3.into();
        text["layer_types"].as_array_mut().unwrap().pop();
    });
    scratch.fails(&[WEIGHTS, "layers.3.input_layernorm.weight", "num_hidden_layers is 3"]);
}

#[test]
fn missing_or_bad_config() {
    let scratch = Scratch::copy_of(MINI);
    scratch.write("config.json", "{\"model_type\": ");
    scratch.fails(&["config.json", "is not valid JSON"]);
    scratch.write("config.json", "[".repeat(100_000));
    scratch.fails(&["config.json", "is not valid JSON"]);
    scratch.write("config.json", vec![b' '; (16 << 20) + 1]);
    scratch.fails(&["config.json", "at most 16777216 are accepted"]);
    scratch.remove("config.json");
    scratch.fails(&["config.json", "is missing"]);
}

#[test]
fn missing_or_bad_tokenizer() {
    let scratch = Scratch::copy_of(MINI);
    scratch.edit_json("tokenizer.json", |json| json["added_tokens"][0]["lstrip"] = true.into());
    scratch.fails(&["tokenizer.json", "added_tokens", "<|endoftext|>"]);
    scratch.edit_json("tokenizer.json", |json| {
        json["added_tokens"][0]["lstrip"] = false.into();
        json["added_tokens"][0]["id"] = 512.into();
    });
    scratch.fails(&["tokenizer.json", "vocab_size (512)", "found 512"]);
    scratch.edit_json("tokenizer.json", |json| json["added_tokens"][0]["id"] = u32::MAX.into());
    scratch.fails(&["tokenizer.json", "expected tokens with ids up to", "greater ids"]);
    scratch.edit_json("tokenizer.json", |json| {
        json["added_tokens"][0]["id"] = 448.into();
        json["pre_tokenizer"] = json!({"type": "Whitespace"});
    });
    scratch.fails(&["tokenizer.json", "pre_tokenizer", "ByteLevel"]);
    scratch.edit_json("tokenizer.json", |json| {
        json["model"] = json!({"type": "WordLevel", "vocab": {}})
    });
    scratch.fails(&["tokenizer.json", "no byte-level BPE tokenizer"]);
    scratch.remove("tokenizer.json");
    scratch.fails(&["tokenizer.json", "is missing"]);
}

#[test]
fn missing_or_bad_template() {
    let scratch = Scratch::copy_of(MINI);
    scratch.write("chat_template.jinja", "{% if %}");
    scratch.fails(&["chat_template.jinja", "syntax error"]);
    scratch.remove("chat_template.jinja");
    // A base model has no template: it opens, and says so when one is asked for.
    let checkpoint = scratch.open().unwrap();
    let error = checkpoint.chat_template().unwrap_err();
    assert!(matches!(error, Error::MissingFile { .. }));
    assert!(error.to_string().contains("chat_template.jinja is missing"), "{error}");
}

#[test]
fn bad_generation_config() {
    for (field, value) in [
        ("temperature", json!(-1)),
        ("top_p", json!(2)),
        ("top_k", json!(-1)),
        ("min_p", json!("x")),
        ("do_sample", json!(1)),
        ("eos_token_id", json!([450, 100_000])),
        ("eos_token_id", json!("x")),
        ("repetition_penalty", json!(0)),
    ] {
        let scratch = Scratch::copy_of(MINI);
        scratch.edit_json("generation_config.json", |json| json[field] = value.clone());
        scratch.fails(&["generation_config.json", field, "expected", "found"]);
    }
}
