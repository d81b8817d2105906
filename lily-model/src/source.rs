//! Where a checkpoint's files are, and bounded access to them.

use std::fs::File;
use std::io::Read;
use std::path::{Component, Path, PathBuf};

use memmap2::Mmap;
use serde_json::Value;

use crate::bytes::Bytes;
use crate::error::{Error, Result};

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

impl Source {
    /// Name for people: the directory's last part, or the embedded checkpoint's name. In the Hugging Face cache, where the last
    /// part is a commit, the repository's name.
    pub fn name(&self) -> String {
        match self {
            Source::Directory(path) => {
                let repository = path
                    .components()
                    .filter_map(|part| part.as_os_str().to_str()?.strip_prefix("models--"))
                    .next_back();
                match (repository, path.file_name()) {
                    (Some(repository), _) => repository.replace("--", "/"),
                    (None, Some(name)) => name.to_string_lossy().into_owned(),
                    (None, None) => path.display().to_string(),
                }
            }
            Source::Embedded { name, .. } => (*name).into(),
        }
    }

    /// What errors call the checkpoint: the directory's path, or the embedded checkpoint's name.
    pub fn label(&self) -> String {
        match self {
            Source::Directory(path) => path.display().to_string(),
            Source::Embedded { name, .. } => format!("embedded checkpoint {name}"),
        }
    }

    /// What errors call the file `name`.
    pub(crate) fn file_label(&self, name: &str) -> String {
        match self {
            Source::Directory(path) => path.join(name).display().to_string(),
            Source::Embedded { name: checkpoint, .. } => format!("{checkpoint}:{name}"),
        }
    }

    /// The error for a file that must be there and is not.
    pub(crate) fn missing(&self, file: &str, why: &str) -> Error {
        Error::MissingFile {
            checkpoint: self.label(),
            file: file.into(),
            why: why.into(),
        }
    }

    /// The whole of a small file, or `None` where there is none.
    pub(crate) fn read(&self, name: &str, limit: u64) -> Result<Option<Vec<u8>>> {
        let too_large = |size: u64| Error::BadFile {
            file: self.file_label(name),
            problem: format!("is {size} bytes large; at most {limit} are accepted"),
        };
        match self {
            Source::Directory(directory) => {
                let path = directory.join(name);
                let file = match File::open(&path) {
                    Ok(file) => file,
                    Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
                    Err(source) => return Err(Error::Io { path, source }),
                };
                let mut content = Vec::new();
                if let Err(source) = file.take(limit + 1).read_to_end(&mut content) {
                    return Err(Error::Io { path, source });
                }
                if content.len() as u64 > limit {
                    return Err(too_large(content.len() as u64));
                }
                Ok(Some(content))
            }
            Source::Embedded { files, .. } => match files.iter().find(|(file, _)| *file == name) {
                Some((_, content)) if content.len() as u64 > limit => Err(too_large(content.len() as u64)),
                Some((_, content)) => Ok(Some(content.to_vec())),
                None => Ok(None),
            },
        }
    }

    /// A small text file, or `None` where there is none.
    pub(crate) fn read_text(&self, name: &str, limit: u64) -> Result<Option<String>> {
        self.read(name, limit)?
            .map(|content| {
                String::from_utf8(content).map_err(|error| Error::BadFile {
                    file: self.file_label(name),
                    problem: format!("is not UTF-8: {error}"),
                })
            })
            .transpose()
    }

    /// A small JSON file, or `None` where there is none.
    pub(crate) fn read_json(&self, name: &str, limit: u64) -> Result<Option<Value>> {
        self.read(name, limit)?
            .map(|content| {
                serde_json::from_slice(&content).map_err(|error| Error::BadFile {
                    file: self.file_label(name),
                    problem: format!("is not valid JSON: {error}"),
                })
            })
            .transpose()
    }

    /// A large file, mapped or borrowed, or `None` where there is none.
    pub(crate) fn map(&self, name: &str) -> Result<Option<Bytes>> {
        match self {
            Source::Directory(directory) => {
                let path = directory.join(name);
                let file = match File::open(&path) {
                    Ok(file) => file,
                    Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
                    Err(source) => return Err(Error::Io { path, source }),
                };
                // SAFETY: the map is read-only and private to this process. A file that another program shortens while it is
                // mapped raises SIGBUS on access, as with every mapped file; published checkpoints are not written to in place.
                let map = unsafe { Mmap::map(&file) }.map_err(|source| Error::Io { path, source })?;
                // A token touches every page of gigabytes of weights, so the processor's page table cache misses often with small
                // pages. Kernels whose file system knows large folios map files in huge ones when asked; others refuse, and nothing is lost.
                #[cfg(target_os = "linux")]
                let _ = map.advise(memmap2::Advice::HugePage);
                Ok(Some(Bytes::from(map)))
            }
            Source::Embedded { files, .. } => Ok(files
                .iter()
                .find(|(file, _)| *file == name)
                .map(|(_, content)| Bytes::from(*content))),
        }
    }

    /// Names of the files that lie directly in the checkpoint, sorted.
    pub(crate) fn list(&self) -> Result<Vec<String>> {
        let mut names: Vec<String> = match self {
            Source::Directory(path) => {
                let failed = |source| Error::Io {
                    path: path.clone(),
                    source,
                };
                std::fs::read_dir(path)
                    .map_err(failed)?
                    .filter_map(|entry| entry.map(|entry| entry.file_name().into_string().ok()).transpose())
                    .collect::<std::io::Result<_>>()
                    .map_err(failed)?
            }
            Source::Embedded { files, .. } => files.iter().map(|(name, _)| (*name).into()).collect(),
        };
        names.sort_unstable();
        Ok(names)
    }
}

/// Whether `name`, found in a file, names something inside the directory: relative, no `..`. A symlink there may point elsewhere
/// (the Hugging Face cache is made of them); whoever put it there could as well have put the file.
pub(crate) fn is_inside(name: &str) -> bool {
    !name.is_empty()
        && !name.contains('\\')
        && !name.contains(':')
        && Path::new(name)
            .components()
            .all(|part| matches!(part, Component::Normal(_)))
}
