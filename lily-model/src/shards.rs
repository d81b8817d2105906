//! The tensors of a checkpoint: one safetensors file, or several with an index.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use safetensors::tensor::{Dtype, SafeTensorError, SafeTensors};
use serde_json::Value;

use crate::bytes::Bytes;
use crate::error::{Error, Result};
use crate::fields::{Fields, brief};
use crate::source::{Source, is_inside};

const INDEX: &str = "model.safetensors.index.json";
const SINGLE: &str = "model.safetensors";
/// The index of the largest published checkpoints is a few megabytes.
const INDEX_LIMIT: u64 = 64 << 20;
/// More shards than any checkpoint of this family has.
const MAX_SHARDS: usize = 4096;

/// One tensor, in place.
#[derive(Clone, Debug)]
pub(crate) struct Tensor {
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    pub data: Bytes,
    shard: usize,
}

/// All tensors of a checkpoint by name.
#[derive(Debug, Default)]
pub(crate) struct Shards {
    /// What errors call each file.
    labels: Vec<String>,
    tensors: HashMap<String, Tensor>,
}

impl Shards {
    /// Maps the files and reads their headers.
    pub fn open(source: &Source) -> Result<Shards> {
        let index = source.read_json(INDEX, INDEX_LIMIT)?;
        let placed = index
            .map(|index| read_index(&source.file_label(INDEX), &index))
            .transpose()?;
        let names: Vec<String> = match &placed {
            Some(placed) => placed.values().collect::<BTreeSet<_>>().into_iter().cloned().collect(),
            None => single_or_unindexed(source)?,
        };
        if names.len() > MAX_SHARDS {
            return Err(Error::BadFile {
                file: source.file_label(INDEX),
                problem: format!("names {} files; at most {MAX_SHARDS} are accepted", names.len()),
            });
        }
        let mut shards = Shards {
            labels: Vec::with_capacity(names.len()),
            tensors: HashMap::new(),
        };
        for name in &names {
            let file = source.map(name)?.ok_or_else(|| {
                let why = match placed {
                    Some(_) => format!("{INDEX} says that it holds weights"),
                    None => "it holds the weights".into(),
                };
                source.missing(name, &why)
            })?;
            shards.add(source.file_label(name), &file)?;
        }
        if let Some(placed) = placed {
            for (tensor, name) in placed {
                let label = source.file_label(&name);
                if shards.tensors.get(&tensor).map(|found| &shards.labels[found.shard]) != Some(&label) {
                    return Err(Error::Tensor {
                        file: label,
                        tensor,
                        expected: format!("to be here, as {INDEX} says"),
                        found: "no such tensor in this file".into(),
                    });
                }
            }
        }
        Ok(shards)
    }

    /// Adds the tensors of one file.
    pub fn add(&mut self, label: String, file: &Bytes) -> Result<()> {
        let shard = self.labels.len();
        for (name, tensor) in read_header(&label, file, shard)? {
            if let Some(twin) = self.tensors.insert(name.clone(), tensor) {
                return Err(Error::Tensor {
                    file: label,
                    tensor: name,
                    expected: "each tensor in one file".into(),
                    found: format!("it is also in {}", self.labels[twin.shard]),
                });
            }
        }
        self.labels.push(label);
        Ok(())
    }

    /// A tensor, or `None` where there is none of this name.
    pub fn get(&self, name: &str) -> Option<&Tensor> {
        self.tensors.get(name)
    }

    /// Names of all tensors, in no order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// What errors call the file that holds `tensor`, or all files where no file does.
    pub fn file_of(&self, tensor: &str) -> String {
        match self.tensors.get(tensor) {
            Some(found) => self.labels[found.shard].clone(),
            None => match self.labels.as_slice() {
                [only] => only.clone(),
                [first, .., last] => format!("{first} to {last}"),
                [] => "the checkpoint".into(),
            },
        }
    }

    /// The error for tensor `name`, which is not what `expected` says.
    pub fn wrong(&self, name: &str, expected: impl Into<String>) -> Error {
        Error::Tensor {
            file: self.file_of(name),
            tensor: name.into(),
            expected: expected.into(),
            found: self.get(name).map_or_else(
                || "no such tensor".into(),
                |tensor| describe(tensor.dtype, &tensor.shape),
            ),
        }
    }
}

/// A type and shape for people: `U32 [512, 16]`.
pub(crate) fn describe(dtype: Dtype, shape: &[usize]) -> String {
    format!("{dtype:?} {shape:?}")
}

/// The file of every tensor, from an index.
pub(crate) fn read_index(label: &str, index: &Value) -> Result<BTreeMap<String, String>> {
    let root = Fields::root(label, index)?;
    let Some(map) = root.object("weight_map", "weight_map.")? else {
        return Err(root.wrong("weight_map", "an object that names the file of every tensor"));
    };
    if map.object.is_empty() {
        return Err(root.wrong("weight_map", "at least one tensor"));
    }
    map.object
        .iter()
        .map(|(tensor, file)| match file.as_str() {
            Some(file) if is_inside(file) => Ok((tensor.clone(), file.to_owned())),
            _ => Err(Error::Field {
                file: label.into(),
                field: format!("weight_map.{tensor}"),
                expected: "the name of a file inside the checkpoint's directory".into(),
                found: brief(file),
            }),
        })
        .collect()
}

/// The files of a checkpoint without an index.
fn single_or_unindexed(source: &Source) -> Result<Vec<String>> {
    let mut names = source.list()?;
    if names.iter().any(|name| name == SINGLE) {
        return Ok(vec![SINGLE.into()]);
    }
    names.retain(|name| name.starts_with("model") && name.ends_with(".safetensors"));
    if names.is_empty() {
        return Err(source.missing(SINGLE, "there are neither weights nor an index of them"));
    }
    Ok(names)
}

/// The tensors that the header of a safetensors file describes.
fn read_header(label: &str, file: &Bytes, shard: usize) -> Result<Vec<(String, Tensor)>> {
    let bad = |problem: String| Error::BadFile {
        file: label.into(),
        problem,
    };
    let (header_length, metadata) = SafeTensors::read_metadata(file).map_err(|error| {
        bad(match error {
            SafeTensorError::HeaderTooSmall => {
                format!("is {} bytes long, too short for a safetensors file", file.len())
            }
            SafeTensorError::InvalidHeaderLength => format!(
                "the header is longer than the file ({} bytes): truncated, or no safetensors file",
                file.len()
            ),
            SafeTensorError::MetadataIncompleteBuffer => match promised_length(file) {
                Some(promised) if promised > file.len() as u64 => format!(
                    "truncated: the header describes {promised} bytes, the file has {}",
                    file.len()
                ),
                _ => format!("the header describes fewer bytes than the file has ({})", file.len()),
            },
            other => format!("bad safetensors header: {other}"),
        })
    })?;
    let data_start = header_length + 8;
    metadata
        .tensors()
        .into_iter()
        .map(|(name, info)| {
            let (start, end) = info.data_offsets;
            let data = file
                .slice(data_start + start..data_start + end)
                .ok_or_else(|| bad(format!("tensor {name} lies outside the file")))?;
            let tensor = Tensor {
                dtype: info.dtype,
                shape: info.shape.clone(),
                data,
                shard,
            };
            Ok((name, tensor))
        })
        .collect()
}

/// Bytes that a safetensors file must have by its header, for an error message.
fn promised_length(file: &[u8]) -> Option<u64> {
    let header_length = u64::from_le_bytes(file.get(..8)?.try_into().ok()?);
    let header_end = header_length.checked_add(8)?;
    let header: Value = serde_json::from_slice(file.get(8..usize::try_from(header_end).ok()?)?).ok()?;
    let end = header
        .as_object()?
        .values()
        .filter_map(|tensor| tensor.get("data_offsets")?.get(1)?.as_u64())
        .max()?;
    header_end.checked_add(end)
}
