//! Random damage to configs, indexes and safetensors files: reading them may fail, but never panics or allocates without bound.
//!
//! `LILY_FUZZ_SECONDS` says how long to look; the default fits a normal test run. A failure prints the seed that reproduces it.

use std::path::Path;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use serde_json::{Map, Value, json};

use crate::bytes::Bytes;
use crate::config_json::read_config;
use crate::fields::Fields;
use crate::load::load_weights;
use crate::quantization::Quantization;
use crate::shards::{Shards, read_index};
use crate::synthetic::mix;

fn fixture(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../tests/fixtures")
        .join(name);
    std::fs::read(path).unwrap()
}

fn fixture_json(name: &str) -> Value {
    serde_json::from_slice(&fixture(name)).unwrap()
}

/// Reads everything that a checkpoint's weights depend on; what comes out does not matter.
fn read_all(config: &Value, index: &Value, files: &[Vec<u8>]) {
    let _ = read_index("index", index);
    let mut shards = Shards::default();
    for (number, file) in files.iter().enumerate() {
        let _ = shards.add(format!("shard {number}"), &Bytes::from(file.clone()));
    }
    let Ok(root) = Fields::root("config", config) else {
        return;
    };
    let (Ok(config), Ok(quantization)) = (read_config(root), Quantization::read(root)) else {
        return;
    };
    if let Ok(weights) = load_weights(&shards, &config, &quantization) {
        // A checkpoint that is accepted can be read to its end.
        let matrix = weights.output();
        let mut row = vec![0.0; matrix.cols];
        matrix.dequantize_row(matrix.count - 1, matrix.rows - 1, &mut row);
    }
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(1);
        mix(self.0)
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit.max(1) as u64) as usize
    }

    fn value(&mut self) -> Value {
        match self.below(14) {
            0 => Value::Null,
            1 => true.into(),
            2 => false.into(),
            3 => json!(-1),
            4 => 0.into(),
            5 => self.below(300).into(),
            6 => self.next().into(),
            7 => (1u64 << self.below(64)).into(),
            8 => json!(1e308),
            9 => json!(0.3),
            10 => "".into(),
            11 => "../model.safetensors".into(),
            12 => json!([]),
            _ => json!({}),
        }
    }

    /// Replaces, removes or adds something somewhere in `value`.
    fn damage(&mut self, value: &mut Value) {
        match value {
            Value::Array(items) if !items.is_empty() && self.below(8) > 0 => {
                let index = self.below(items.len());
                match self.below(6) {
                    0 => drop(items.remove(index)),
                    1 => items.push(items[index].clone()),
                    _ => self.damage(&mut items[index]),
                }
            }
            Value::Object(fields) if !fields.is_empty() && self.below(8) > 0 => {
                let name = fields.keys().nth(self.below(fields.len())).unwrap().clone();
                match self.below(8) {
                    0 => drop(fields.remove(&name)),
                    1 => {
                        let other = self.value();
                        fields.insert(format!("{name}x"), other);
                    }
                    _ => self.damage(fields.get_mut(&name).unwrap()),
                }
            }
            plain => *plain = self.value(),
        }
    }

    /// Damages a safetensors file: bytes, its length, or the JSON of its header.
    fn damage_file(&mut self, file: &mut Vec<u8>) {
        match self.below(4) {
            0 => {
                for _ in 0..=self.below(8) {
                    let at = self.below(file.len());
                    file[at] = self.next() as u8;
                }
            }
            1 => file.truncate(self.below(file.len())),
            2 => {
                // The beginning is where the lengths are.
                let at = self.below(64);
                file[at] ^= 1 << self.below(8);
            }
            _ => {
                let length = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
                let mut header: Value = serde_json::from_slice(&file[8..8 + length]).unwrap();
                self.damage(&mut header);
                let header = header.to_string();
                let data = file.split_off(8 + length);
                *file = (header.len() as u64).to_le_bytes().to_vec();
                file.extend(header.into_bytes());
                file.extend(data);
            }
        }
    }
}

#[test]
fn damaged_checkpoints_do_not_panic() {
    let seconds = std::env::var("LILY_FUZZ_SECONDS")
        .ok()
        .and_then(|text| text.parse().ok());
    let deadline = Instant::now() + Duration::from_secs(seconds.unwrap_or(2));
    let configs = [
        fixture_json("mini/mlx-4bit-sharded/config.json"),
        fixture_json("mini/variants/mixed_4_6/config.json"),
        fixture_json("mini/variants/nvfp4/config.json"),
        fixture_json("qwen3.6/config.mlx-4bit.reconstructed.json"),
    ];
    let index = fixture_json("mini/mlx-4bit-sharded/model.safetensors.index.json");
    let files = [1, 2, 3].map(|number| {
        fixture(&format!(
            "mini/mlx-4bit-sharded/model-0000{number}-of-00003.safetensors"
        ))
    });
    read_all(&configs[0], &index, &files);
    let mut seed = 0u64;
    while Instant::now() < deadline {
        let result = std::panic::catch_unwind(|| {
            let mut random = Random(seed << 32);
            let mut config = configs[random.below(4) * random.below(2)].clone();
            let mut index = index.clone();
            let mut files = files.to_vec();
            for _ in 0..=random.below(3) {
                match random.below(3) {
                    0 => random.damage(&mut config),
                    1 => random.damage(&mut index),
                    _ => {
                        let number = random.below(3);
                        // A file that was cut to nothing has nothing left to damage.
                        if files[number].len() > 64 {
                            let mut file = std::mem::take(&mut files[number]);
                            if Shards::default().add(String::new(), &Bytes::from(file.clone())).is_ok() {
                                random.damage_file(&mut file);
                            }
                            files[number] = file;
                        }
                    }
                }
            }
            read_all(&config, &index, &files);
        });
        assert!(result.is_ok(), "seed {seed} panics");
        seed += 1;
    }
    println!("{seed} damaged checkpoints");
}

/// Any JSON, a few levels deep, with the names that the readers look for.
fn any_json() -> impl Strategy<Value = Value> {
    let names = proptest::sample::select(vec![
        "model_type",
        "text_config",
        "hidden_size",
        "num_hidden_layers",
        "layer_types",
        "rope_parameters",
        "rope_theta",
        "quantization",
        "bits",
        "group_size",
        "mode",
        "weight_map",
        "dtype",
        "shape",
        "data_offsets",
        "__metadata__",
        "x",
    ]);
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (0usize..300).prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "[a-z_./]{0,12}".prop_map(Value::from),
        proptest::sample::select(vec![
            "qwen3_5",
            "qwen3_5_moe",
            "affine",
            "mxfp4",
            "F32",
            "U32",
            "full_attention"
        ])
        .prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 64, 8, move |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            proptest::collection::vec((names.clone(), inner), 0..8).prop_map(|fields| {
                let named = fields.into_iter().map(|(name, value)| (name.to_owned(), value));
                Value::from(named.collect::<Map<String, Value>>())
            }),
        ]
    })
}

proptest! {
    #[test]
    fn any_json_as_config_and_index(config in any_json(), index in any_json()) {
        read_all(&config, &index, &[]);
    }

    #[test]
    fn any_bytes_as_shard(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = Shards::default().add("shard".into(), &Bytes::from(bytes));
    }

    #[test]
    fn any_json_as_header(header in any_json(), data in 0usize..64) {
        let header = header.to_string();
        let mut file = (header.len() as u64).to_le_bytes().to_vec();
        file.extend(header.into_bytes());
        file.resize(file.len() + data, 0);
        let _ = Shards::default().add("shard".into(), &Bytes::from(file));
    }
}
