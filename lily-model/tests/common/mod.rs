//! What the tests of this crate share.
#![allow(dead_code, reason = "each test program uses a part of it")]

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};

use lily_model::{Checkpoint, Error, Source, Tokenizer};
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
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

/// A tensor to write.
#[derive(Clone)]
pub struct Tensor {
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    pub data: Vec<u8>,
}

pub type Tensors = BTreeMap<String, Tensor>;

/// A copy of a fixture's checkpoint in a directory of its own, to be damaged.
pub struct Scratch {
    directory: tempfile::TempDir,
}

impl Scratch {
    pub fn copy_of(name: &str) -> Scratch {
        let directory = tempfile::tempdir().unwrap();
        for entry in std::fs::read_dir(fixture(name)).unwrap() {
            let entry = entry.unwrap();
            std::fs::copy(entry.path(), directory.path().join(entry.file_name())).unwrap();
        }
        Scratch { directory }
    }

    pub fn path(&self, file: &str) -> PathBuf {
        self.directory.path().join(file)
    }

    pub fn open(&self) -> Result<Checkpoint, Error> {
        Checkpoint::open(&Source::Directory(self.directory.path().into()))
    }

    pub fn write(&self, file: &str, content: impl AsRef<[u8]>) {
        std::fs::write(self.path(file), content).unwrap();
    }

    pub fn remove(&self, file: &str) {
        std::fs::remove_file(self.path(file)).unwrap();
    }

    pub fn edit_json(&self, file: &str, edit: impl FnOnce(&mut Value)) {
        let mut json = serde_json::from_slice(&std::fs::read(self.path(file)).unwrap()).unwrap();
        edit(&mut json);
        self.write(file, json.to_string());
    }

    /// Changes `text_config` of the config.
    pub fn edit_text_config(&self, edit: impl FnOnce(&mut Value)) {
        self.edit_json("config.json", |config| edit(&mut config["text_config"]));
    }

    pub fn edit_tensors(&self, file: &str, edit: impl FnOnce(&mut Tensors)) {
        let content = std::fs::read(self.path(file)).unwrap();
        let parsed = SafeTensors::deserialize(&content).unwrap();
        let mut tensors: Tensors = parsed
            .iter()
            .map(|(name, view)| {
                let tensor = Tensor {
                    dtype: view.dtype(),
                    shape: view.shape().to_vec(),
                    data: view.data().to_vec(),
                };
                (name.to_owned(), tensor)
            })
            .collect();
        edit(&mut tensors);
        self.write_tensors(file, &tensors);
    }

    pub fn write_tensors(&self, file: &str, tensors: &Tensors) {
        let views = tensors.iter().map(|(name, tensor)| {
            (
                name,
                TensorView::new(tensor.dtype, tensor.shape.clone(), &tensor.data).unwrap(),
            )
        });
        self.write(file, safetensors::serialize(views, None).unwrap());
    }

    /// Asserts that the checkpoint does not open, and that the message has all of `parts`.
    pub fn fails(&self, parts: &[&str]) {
        let error = match self.open() {
            Ok(_) => panic!("the checkpoint opens; expected an error with {parts:?}"),
            Err(error) => error.to_string(),
        };
        for part in parts {
            assert!(error.contains(part), "expected {part:?} in {error:?}");
        }
        assert!(error.len() < 600, "too long to read: {error}");
    }
}
