//! What tells one checkpoint from another, so that state computed with one is not used with the other.

use std::io::{Read, Seek, SeekFrom};
use std::path::Path;
use std::time::UNIX_EPOCH;

use crate::error::{Error, Result};
use crate::source::Source;

/// Pieces of a large file that are read.
const PIECES: u64 = 64;
/// Bytes of each.
const PIECE: u64 = 4096;

impl Source {
    /// A hash of the config, the tokenizer and the weights.
    ///
    /// Small files count whole. Of files in a directory that are larger, which would take long to read, it is the size, the time of the last
    /// change and pieces from all over.
    ///
    /// # Errors
    /// Where a file cannot be read.
    pub fn identity(&self) -> Result<[u8; 32]> {
        let mut hash = blake3::Hasher::new();
        let of_interest =
            |name: &String| matches!(name.as_str(), "config.json" | "tokenizer.json") || name.ends_with(".safetensors");
        for name in self.list()?.into_iter().filter(of_interest) {
            hash.update(&(name.len() as u64).to_le_bytes());
            hash.update(name.as_bytes());
            match self {
                Source::Directory(directory) => {
                    let path = directory.join(&name);
                    add_file(&path, &mut hash).map_err(|source| Error::Io { path, source })?;
                }
                Source::Embedded { files, .. } => {
                    for (_, content) in files.iter().filter(|(file, _)| *file == name) {
                        hash.update(&(content.len() as u64).to_le_bytes());
                        hash.update(content);
                    }
                }
            }
        }
        Ok(hash.finalize().into())
    }
}

fn add_file(path: &Path, hash: &mut blake3::Hasher) -> std::io::Result<()> {
    let mut file = std::fs::File::open(path)?;
    let metadata = file.metadata()?;
    let size = metadata.len();
    hash.update(&size.to_le_bytes());
    if size <= PIECES * PIECE {
        return hash.update_reader(file.take(size)).map(drop);
    }
    let changed = metadata.modified()?.duration_since(UNIX_EPOCH).unwrap_or_default();
    hash.update(&changed.as_nanos().to_le_bytes());
    for piece in 0..PIECES {
        file.seek(SeekFrom::Start((size - PIECE) / (PIECES - 1) * piece))?;
        hash.update_reader((&mut file).take(PIECE))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_of_a_checkpoint_counts() {
        let directory = tempfile::tempdir().unwrap();
        let write = |name: &str, content: &[u8]| std::fs::write(directory.path().join(name), content).unwrap();
        let identity = || Source::Directory(directory.path().into()).identity().unwrap();
        write("config.json", b"{}");
        write("tokenizer.json", b"{}");
        let mut weights = vec![7; 3 * (PIECES * PIECE) as usize];
        write("model.safetensors", &weights);
        let first = identity();
        assert_eq!(identity(), first);
        write("README.md", b"it does not matter what is written here");
        assert_eq!(identity(), first);
        write("config.json", b"{ }");
        let second = identity();
        assert_ne!(second, first);
        write("tokenizer.json", b"[]");
        let third = identity();
        assert_ne!(third, second);
        // In the midst of a piece, and the time of the change set back.
        let path = directory.path().join("model.safetensors");
        let time = std::fs::metadata(&path).unwrap().modified().unwrap();
        weights[100] = 8;
        write("model.safetensors", &weights);
        std::fs::File::options()
            .append(true)
            .open(&path)
            .unwrap()
            .set_modified(time)
            .unwrap();
        assert_ne!(identity(), third);
    }

    #[test]
    fn an_embedded_checkpoint_counts_whole() {
        let identity = |weights: &'static [u8]| {
            let files: &'static [(&str, &[u8])] = vec![("model.safetensors", weights)].leak();
            Source::Embedded { name: "test", files }.identity().unwrap()
        };
        assert_eq!(identity(b"abc"), identity(b"abc"));
        assert_ne!(identity(b"abc"), identity(b"abd"));
    }
}
