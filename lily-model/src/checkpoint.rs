//! A checkpoint: config, weights, tokenizer, chat template and generation defaults, read from one place.

use serde_json::Value;

use crate::config::ModelConfig;
use crate::config_json::read_config;
use crate::error::{Error, Result};
use crate::fields::Fields;
use crate::generation::GenerationConfig;
use crate::load::load_weights;
use crate::quantization::Quantization;
use crate::shards::Shards;
use crate::source::Source;
use crate::template::ChatTemplate;
use crate::tokenizer::Tokenizer;
use crate::weights::Weights;

/// Configs are some kilobytes; those with an entry per module some hundred.
const CONFIG_LIMIT: u64 = 16 << 20;
/// The family's tokenizer has 13 MB.
const TOKENIZER_LIMIT: u64 = 128 << 20;
const TEMPLATE_LIMIT: u64 = 1 << 20;

/// A checkpoint, read-only. The weights are mapped or borrowed, never expanded.
#[derive(Debug)]
pub struct Checkpoint {
    /// Name for people: the repository, the directory's last part, or the embedded checkpoint's name.
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
    source: Source,
}

impl Checkpoint {
    /// Opens and checks a checkpoint.
    ///
    /// # Errors
    /// Where a file is missing or broken, or where files do not fit each other; see [`crate::Error`].
    pub fn open(source: &Source) -> Result<Checkpoint> {
        const CONFIG: &str = "config.json";
        let json = source
            .read_json(CONFIG, CONFIG_LIMIT)?
            .ok_or_else(|| source.missing(CONFIG, "it describes the model"))?;
        let label = source.file_label(CONFIG);
        let root = Fields::root(&label, &json)?;
        let config = read_config(root)?;
        let quantization = Quantization::read(root)?;
        let weights = load_weights(&Shards::open(source)?, &config, &quantization)?;
        let tokenizer = open_tokenizer(source, &config)?;
        Ok(Checkpoint {
            name: source.name(),
            generation: open_generation(source, &tokenizer)?,
            chat_template: open_template(source, &tokenizer)?,
            config,
            weights,
            tokenizer,
            source: source.clone(),
        })
    }

    /// The chat template.
    ///
    /// # Errors
    /// [`crate::Error::MissingFile`] where the checkpoint has none (a base model).
    pub fn chat_template(&self) -> Result<&ChatTemplate> {
        self.chat_template.as_ref().ok_or_else(|| {
            self.source.missing(
                TEMPLATE,
                "chats need the model's template (tokenizer_config.json has no chat_template either)",
            )
        })
    }

    /// Where the checkpoint was opened.
    pub fn source(&self) -> &Source {
        &self.source
    }
}

const TEMPLATE: &str = "chat_template.jinja";
const TOKENIZER_CONFIG: &str = "tokenizer_config.json";

fn open_tokenizer(source: &Source, config: &ModelConfig) -> Result<Tokenizer> {
    const TOKENIZER: &str = "tokenizer.json";
    let content = source
        .read(TOKENIZER, TOKENIZER_LIMIT)?
        .ok_or_else(|| source.missing(TOKENIZER, "it turns text into token ids"))?;
    let label = source.file_label(TOKENIZER);
    let tokenizer = Tokenizer::from_json(&label, &content)?;
    if tokenizer.len() > config.vocab_size {
        return Err(Error::BadFile {
            file: label,
            problem: format!(
                "expected ids below vocab_size ({}) of config.json, found {}",
                config.vocab_size,
                tokenizer.len() - 1
            ),
        });
    }
    Ok(tokenizer)
}

fn open_generation(source: &Source, tokenizer: &Tokenizer) -> Result<GenerationConfig> {
    const GENERATION: &str = "generation_config.json";
    let json = source.read_json(GENERATION, CONFIG_LIMIT)?;
    GenerationConfig::read(&source.file_label(GENERATION), json.as_ref(), tokenizer)
}

/// The template in a file of its own, or in older checkpoints in `tokenizer_config.json`.
fn open_template(source: &Source, tokenizer: &Tokenizer) -> Result<Option<ChatTemplate>> {
    let tokenizer_config = source.read_json(TOKENIZER_CONFIG, CONFIG_LIMIT)?;
    let field = |name: &str| tokenizer_config.as_ref().and_then(|config| config.get(name));
    let (file, text) = match source.read_text(TEMPLATE, TEMPLATE_LIMIT)? {
        Some(text) => (TEMPLATE, text),
        None => match field("chat_template").and_then(default_template) {
            Some(text) => (TOKENIZER_CONFIG, text.to_owned()),
            None => return Ok(None),
        },
    };
    let constants = ["bos_token", "eos_token", "pad_token", "unk_token"]
        .iter()
        .filter_map(|name| {
            let token = field(name)?;
            let content = token.get("content").unwrap_or(token).as_str()?;
            Some(((*name).to_owned(), content.into()))
        })
        .collect();
    ChatTemplate::new(&source.file_label(file), &text, constants, tokenizer).map(Some)
}

/// `chat_template` of `tokenizer_config.json`: one template, or several of which one is called `default`.
fn default_template(field: &Value) -> Option<&str> {
    match field {
        Value::Array(named) => named
            .iter()
            .find(|entry| entry.get("name").and_then(Value::as_str) == Some("default"))?
            .get("template")?
            .as_str(),
        single => single.as_str(),
    }
}
