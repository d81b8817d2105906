//! The fixtures open, and tokenizer and template answer as the reference implementations do.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::{fixture, fixture_json, qwen_tokenizer};
use lily_model::{ChatInput, ChatTemplate, Checkpoint, Encoding, Error, Matrix, Mixer, Mlp, Source, Tokenizer};
use serde_json::{Map, Value};

const CHECKPOINTS: [&str; 10] = [
    "tiny/mlx-4bit",
    "mini/mlx-4bit",
    "mini/mlx-4bit-sharded",
    "mini/variants/affine-3-g64",
    "mini/variants/affine-4-g32",
    "mini/variants/affine-6-g64",
    "mini/variants/mixed_4_6",
    "mini/variants/mxfp4",
    "mini/variants/mxfp8",
    "mini/variants/nvfp4",
];

fn open(name: &str) -> Checkpoint {
    Checkpoint::open(&Source::Directory(fixture(name))).unwrap()
}

/// Every matrix of a checkpoint.
fn matrices(checkpoint: &Checkpoint) -> Vec<&Matrix> {
    let weights = &checkpoint.weights;
    let mut all = vec![&weights.embedding, weights.output()];
    for layer in &weights.layers {
        match &layer.mixer {
            Mixer::Attention(mixer) => all.extend([&mixer.q_proj, &mixer.k_proj, &mixer.v_proj, &mixer.o_proj]),
            Mixer::DeltaNet(mixer) => all.extend([
                &mixer.in_proj_qkv,
                &mixer.in_proj_z,
                &mixer.in_proj_b,
                &mixer.in_proj_a,
                &mixer.out_proj,
            ]),
        }
        match &layer.mlp {
            Mlp::Moe(moe) => {
                all.extend([&moe.router, &moe.shared_gate]);
                for mlp in [&moe.experts, &moe.shared] {
                    all.extend([&mlp.gate, &mlp.up, &mlp.down]);
                }
            }
            Mlp::Dense(mlp) => all.extend([&mlp.gate, &mlp.up, &mlp.down]),
        }
    }
    all
}

#[test]
fn every_fixture_opens_with_finite_weights() {
    for name in CHECKPOINTS {
        let checkpoint = open(name);
        assert_eq!(
            checkpoint.weights.layers.len(),
            checkpoint.config.layers.len(),
            "{name}"
        );
        assert!(checkpoint.chat_template().is_ok(), "{name}");
        for matrix in matrices(&checkpoint) {
            let mut row = vec![0.0; matrix.cols];
            matrix.dequantize_row(matrix.count - 1, matrix.rows - 1, &mut row);
            assert!(row.iter().all(|value| value.is_finite()), "{name}: {}", matrix.name);
            assert!(row.iter().any(|value| *value != 0.0), "{name}: {}", matrix.name);
        }
    }
}

#[test]
fn shards_hold_the_same_weights_as_the_single_file() {
    let (single, sharded) = (open("mini/mlx-4bit"), open("mini/mlx-4bit-sharded"));
    assert_eq!(single.config, sharded.config);
    for (one, other) in matrices(&single).into_iter().zip(matrices(&sharded)) {
        assert_eq!(one.name, other.name);
        assert_eq!(one.encoding, other.encoding, "{}", one.name);
        assert_eq!(*one.codes, *other.codes, "{}", one.name);
        assert_eq!(*one.scales, *other.scales, "{}", one.name);
        assert_eq!(*one.biases, *other.biases, "{}", one.name);
    }
    assert_eq!(single.weights.norm, sharded.weights.norm);
}

#[test]
fn each_module_has_the_encoding_that_the_config_names() {
    let mixed = open("mini/variants/mixed_4_6");
    let bits: std::collections::BTreeSet<usize> =
        matrices(&mixed).iter().map(|matrix| matrix.encoding.bits()).collect();
    assert_eq!(bits.into_iter().collect::<Vec<_>>(), [4, 6]);
    for (name, encoding) in [
        ("mini/variants/mxfp4", Encoding::Mxfp4),
        ("mini/variants/mxfp8", Encoding::Mxfp8),
        ("mini/variants/nvfp4", Encoding::Nvfp4 { global_scale: 1.0 }),
    ] {
        let checkpoint = open(name);
        assert_eq!(checkpoint.weights.embedding.encoding, encoding);
        let Mlp::Moe(moe) = &checkpoint.weights.layers[0].mlp else {
            panic!("{name} is a mixture of experts");
        };
        assert_eq!(moe.experts.gate.encoding, encoding);
        // The router stays affine in every format.
        assert!(matches!(
            moe.router.encoding,
            Encoding::Affine {
                bits: 8,
                group_size: 64,
                ..
            }
        ));
    }
}

#[test]
fn generation_defaults_and_end_ids() {
    let checkpoint = open("mini/mlx-4bit");
    assert_eq!(checkpoint.generation.eos_token_ids, [448, 450]);
    assert_eq!(
        (
            checkpoint.generation.temperature,
            checkpoint.generation.top_k,
            checkpoint.generation.top_p
        ),
        (1.0, 20, 0.95)
    );
    assert_eq!(checkpoint.tokenizer.len(), 481);
    assert_eq!(checkpoint.tokenizer.added_token("</think>"), Some(473));
}

#[test]
fn texts_tokenize_as_in_the_reference() {
    let tokenizer = qwen_tokenizer();
    let golden = fixture_json("qwen3.6/tokenizer_golden.json");
    let texts = golden.as_array().unwrap();
    assert_eq!(texts.len(), 30);
    for case in texts {
        let text = case["text"].as_str().unwrap();
        let ids = tokenizer.encode(text).unwrap();
        assert_eq!(ids, common::ids(&case["ids"]), "{text:?}");
    }
    let real = fixture_json("qwen3.6/real_checkpoint_greedy.json");
    let raw = &real["raw"];
    let ids = tokenizer.encode(raw["prompt"].as_str().unwrap()).unwrap();
    assert_eq!(ids, common::ids(&raw["prompt_token_ids"]));
}

#[test]
fn tokens_decode_to_the_text_they_came_from() {
    let tokenizer = qwen_tokenizer();
    for case in fixture_json("qwen3.6/tokenizer_golden.json").as_array().unwrap() {
        let text = case["text"].as_str().unwrap();
        let ids = common::ids(&case["ids"]);
        let composed = tokenizer.decode(&ids, false);
        // The tokenizer composes characters (NFC), so the text may come back composed; encoding it again must be stable.
        assert_eq!(tokenizer.encode(&composed).unwrap(), ids, "{text:?}");
        if text.is_ascii() {
            assert_eq!(composed, text);
        }
    }
    assert_eq!(tokenizer.token_bytes(248_046), b"<|im_end|>");
    assert_eq!(tokenizer.token_bytes(248_077), b"");
    assert_eq!(tokenizer.token_bytes(u32::MAX), b"");
    assert_eq!(tokenizer.len(), 248_077);
    assert_eq!(tokenizer.decode(&[248_045, 846, 248_068], true), "user<think>");
}

fn chat_template(tokenizer: &Tokenizer) -> ChatTemplate {
    let source = std::fs::read_to_string(fixture("qwen3.6/chat_template.qwen3_6.jinja")).unwrap();
    ChatTemplate::new("chat_template.jinja", &source, Map::new(), tokenizer).unwrap()
}

fn input<'a>(case: &'a Value, tools: &'a [Value]) -> ChatInput<'a> {
    let mut extra = case["kwargs"].as_object().unwrap().clone();
    extra.remove("tools");
    let flag = |extra: &mut Map<String, Value>, name: &str| extra.remove(name).map(|value| value.as_bool().unwrap());
    ChatInput {
        messages: case["messages"].as_array().unwrap(),
        tools,
        add_generation_prompt: flag(&mut extra, "add_generation_prompt").unwrap(),
        enable_thinking: flag(&mut extra, "enable_thinking"),
        preserve_thinking: flag(&mut extra, "preserve_thinking"),
        extra,
    }
}

#[test]
fn chats_render_and_tokenize_as_in_the_reference() {
    let tokenizer = qwen_tokenizer();
    let template = chat_template(&tokenizer);
    let golden = fixture_json("qwen3.6/chat_golden.json");
    let cases = golden.as_array().unwrap();
    assert_eq!(cases.len(), 29);
    for case in cases {
        let name = case["name"].as_str().unwrap();
        let tools = case["kwargs"]["tools"].as_array().cloned().unwrap_or_default();
        let rendered = template.render(&input(case, &tools));
        let Some(error) = case["error"].as_str() else {
            let prompt = rendered.unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(prompt.text(), case["rendered"].as_str().unwrap(), "{name}");
            let ids = common::ids(&case["ids"]);
            assert_eq!(tokenizer.encode_prompt(&prompt).unwrap(), ids, "{name}");
            assert_eq!(tokenizer.encode(&prompt.text()).unwrap(), ids, "{name}");
            assert_eq!(
                prompt.ends_in_thinking(),
                prompt.text().ends_with("<think>\n"),
                "{name}"
            );
            continue;
        };
        match rendered {
            // transformers refuses an empty conversation before it asks the template.
            Err(Error::TemplateRefused(message)) if name == "err_empty" => assert_eq!(message, "No messages provided."),
            Err(Error::TemplateRefused(message)) => {
                assert_eq!(Some(message.as_str()), error.strip_prefix("TemplateError: "), "{name}");
            }
            // A failure of the template itself, not one that it raises.
            Err(Error::Template { .. }) => assert!(error.starts_with("TypeError"), "{name}: {error}"),
            other => panic!("{name}: expected {error:?}, found {other:?}"),
        }
    }
}

#[test]
fn the_published_checkpoints_chat_prompt() {
    let tokenizer = qwen_tokenizer();
    let golden = fixture_json("qwen3.6/real_checkpoint_greedy.json");
    let chat = &golden["chat"];
    let messages = [serde_json::json!({"role": "user", "content": chat["user"]})];
    let prompt = chat_template(&tokenizer)
        .render(&ChatInput {
            messages: &messages,
            add_generation_prompt: true,
            enable_thinking: chat["thinking"].as_bool(),
            ..ChatInput::default()
        })
        .unwrap();
    assert_eq!(
        tokenizer.encode_prompt(&prompt).unwrap(),
        common::ids(&chat["prompt_token_ids"])
    );
    assert!(prompt.ends_in_thinking());
}
