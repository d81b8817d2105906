//! What the tests of this crate share.

use std::io::Read;
use std::path::{Path, PathBuf};

use lily_model::Tokenizer;
use serde_json::Value;

/// A file or directory among the workspace's fixtures.
pub fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../tests/fixtures")
        .join(name)
}

pub fn fixture_json(name: &str) -> Value {
    serde_json::from_slice(&std::fs::read(fixture(name)).unwrap()).unwrap()
}

/// The family's real tokenizer.
pub fn qwen_tokenizer() -> Tokenizer {
    let file = std::fs::File::open(fixture("qwen3.6/tokenizer.json.zst")).unwrap();
    let mut json = Vec::new();
    zstd::Decoder::new(file).unwrap().read_to_end(&mut json).unwrap();
    Tokenizer::from_json("tokenizer.json", &json).unwrap()
}

pub fn ids(value: &Value) -> Vec<u32> {
    let ids = value.as_array().unwrap();
    ids.iter()
        .map(|id| u32::try_from(id.as_u64().unwrap()).unwrap())
        .collect()
}
