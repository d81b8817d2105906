//! The quantization block of `config.json`: which format each module is stored in.

use std::collections::HashMap;

use serde_json::Value;

use crate::error::{Error, Result};
use crate::fields::{Fields, brief};

/// A quantized format, as the config names it. Scale types are the tensors' own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scheme {
    Affine { bits: u32, group_size: usize },
    Mxfp4,
    Nvfp4,
    Mxfp8,
}

impl Scheme {
    /// Bits of a code.
    pub fn bits(self) -> usize {
        match self {
            Scheme::Affine { bits, .. } => bits as usize,
            Scheme::Mxfp4 | Scheme::Nvfp4 => 4,
            Scheme::Mxfp8 => 8,
        }
    }

    /// Columns that share a scale.
    pub fn group_size(self) -> usize {
        match self {
            Scheme::Affine { group_size, .. } => group_size,
            Scheme::Mxfp4 | Scheme::Mxfp8 => 32,
            Scheme::Nvfp4 => 16,
        }
    }
}

impl std::fmt::Display for Scheme {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Scheme::Affine { bits, group_size } => write!(f, "affine {bits}-bit, groups of {group_size}"),
            Scheme::Mxfp4 => f.write_str("mxfp4"),
            Scheme::Nvfp4 => f.write_str("nvfp4"),
            Scheme::Mxfp8 => f.write_str("mxfp8"),
        }
    }
}

/// The quantization block of a config; without one, every module is plain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Quantization {
    default: Option<Scheme>,
    /// `None`: the module is not quantized.
    modules: HashMap<String, Option<Scheme>>,
}

impl Quantization {
    /// Reads `quantization`, or its duplicate `quantization_config`, from the root of `config.json`.
    pub fn read(root: Fields<'_>) -> Result<Quantization> {
        let block = match root.object("quantization", "quantization.")? {
            Some(block) => block,
            None => match root.object("quantization_config", "quantization_config.")? {
                Some(block) => block,
                None => return Ok(Quantization::default()),
            },
        };
        if let Some(method) = block.get("quant_method") {
            return Err(Error::Field {
                file: root.file.into(),
                field: format!("{}quant_method", block.path),
                expected: "an MLX quantization (group_size, bits, mode); convert the checkpoint with mlx_lm.convert"
                    .into(),
                found: brief(method),
            });
        }
        let default = read_scheme(block)?;
        let mut modules = HashMap::new();
        for (name, value) in block.object {
            if matches!(name.as_str(), "group_size" | "bits" | "mode") {
                continue;
            }
            let scheme = match value {
                Value::Bool(true) => Some(default),
                Value::Bool(false) => None,
                Value::Object(object) => {
                    let path = format!("{}{name}.", block.path);
                    Some(read_scheme(Fields {
                        file: root.file,
                        path: &path,
                        object,
                    })?)
                }
                // Keys that are no modules (say, a converter's version) are not ours to judge.
                _ => continue,
            };
            modules.insert(name.clone(), scheme);
        }
        Ok(Quantization {
            default: Some(default),
            modules,
        })
    }

    /// The format of `module` (its path without `.weight`), or `None` where it is not quantized.
    pub fn scheme(&self, module: &str) -> Option<Scheme> {
        self.modules.get(module).copied().unwrap_or(self.default)
    }
}

/// A format: `mode`, `bits` and `group_size`, each with the mode's default where it is missing.
fn read_scheme(block: Fields<'_>) -> Result<Scheme> {
    let scheme = match block.string("mode")?.unwrap_or("affine") {
        "affine" => {
            let bits = optional(block, "bits", 4)?;
            let group_size = optional(block, "group_size", 64)?;
            if !matches!(bits, 2 | 3 | 4 | 5 | 6 | 8) {
                return Err(block.wrong("bits", "2, 3, 4, 5, 6 or 8"));
            }
            if !matches!(group_size, 32 | 64 | 128) {
                return Err(block.wrong("group_size", "32, 64 or 128"));
            }
            return Ok(Scheme::Affine {
                bits: bits as u32,
                group_size,
            });
        }
        "mxfp4" => Scheme::Mxfp4,
        "nvfp4" => Scheme::Nvfp4,
        "mxfp8" => Scheme::Mxfp8,
        _ => return Err(block.wrong("mode", "affine, mxfp4, nvfp4 or mxfp8")),
    };
    if optional(block, "bits", scheme.bits())? != scheme.bits() {
        return Err(block.wrong("bits", format!("{} ({scheme} has no other)", scheme.bits())));
    }
    if optional(block, "group_size", scheme.group_size())? != scheme.group_size() {
        return Err(block.wrong("group_size", format!("{} ({scheme} has no other)", scheme.group_size())));
    }
    Ok(scheme)
}

fn optional(block: Fields<'_>, name: &str, default: usize) -> Result<usize> {
    match block.get(name) {
        None => Ok(default),
        Some(_) => block.usize(name, 1..=1024),
    }
}
