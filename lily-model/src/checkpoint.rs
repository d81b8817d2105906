//! A checkpoint: config, weights, tokenizer, chat template and generation defaults, read from one place.

use std::path::PathBuf;

use crate::config::ModelConfig;
use crate::error::Result;
use crate::generation::GenerationConfig;
use crate::template::ChatTemplate;
use crate::tokenizer::Tokenizer;
use crate::weights::Weights;

/// Where a checkpoint's files are.
#[derive(Clone, Debug)]
pub enum Source {
    /// A directory with `config.json`, `*.safetensors`, `tokenizer.json` and so on.
    Directory(PathBuf),
    /// Files inside the program.
    Embedded {
        /// Name of the checkpoint.
        name: &'static str,
        /// Name and content of each file.
        files: &'static [(&'static str, &'static [u8])],
    },
}

/// A checkpoint, read-only. The weights are mapped or borrowed, never expanded.
#[derive(Debug)]
pub struct Checkpoint {
    /// Name for people: the directory's last part, or the embedded checkpoint's name.
    pub name: String,
    /// Shape of the model.
    pub config: ModelConfig,
    /// Its weights, in their stored form.
    pub weights: Weights,
    /// Text to token ids and back.
    pub tokenizer: Tokenizer,
    /// Sampling defaults and end ids.
    pub generation: GenerationConfig,
    chat_template: Option<ChatTemplate>,
    label: String,
}

impl Checkpoint {
    /// Opens and checks a checkpoint.
    ///
    /// # Errors
    /// Where a file is missing or broken, or where files do not fit each other; see [`crate::Error`].
    pub fn open(source: &Source) -> Result<Checkpoint> {
        let _ = source;
        todo!()
    }

    /// The chat template.
    ///
    /// # Errors
    /// [`crate::Error::MissingFile`] where the checkpoint has none (a base model).
    pub fn chat_template(&self) -> Result<&ChatTemplate> {
        let _ = (&self.chat_template, &self.label);
        todo!()
    }
}
