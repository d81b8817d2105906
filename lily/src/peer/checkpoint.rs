//! A checkpoint as a directory, which other engines need.

use std::fs;
use std::path::{Path, PathBuf};

use lily_model::{Checkpoint, Source};

use super::{PeerError, cache_directory};

/// The checkpoint's directory; one inside the program is written to the cache directory first.
///
/// # Errors
/// [`PeerError::File`], [`PeerError::NoCache`]
pub fn directory(checkpoint: &Checkpoint) -> Result<PathBuf, PeerError> {
    match checkpoint.source() {
        Source::Directory(path) => Ok(path.clone()),
        Source::Embedded { name, files } => {
            let directory = cache_directory()?.join("peers").join(name);
            fs::create_dir_all(&directory).map_err(|error| PeerError::file(&directory, error))?;
            for (file, content) in *files {
                write_where_it_differs(&directory.join(file), content)?;
            }
            Ok(directory)
        }
    }
}

/// Another process may be reading the file: it is replaced as a whole, and only where it is not the same already.
fn write_where_it_differs(path: &Path, content: &[u8]) -> Result<(), PeerError> {
    if fs::read(path).is_ok_and(|present| present == content) {
        return Ok(());
    }
    let partial = path.with_added_extension(format!("{}.partial", std::process::id()));
    fs::write(&partial, content).map_err(|error| PeerError::file(&partial, error))?;
    fs::rename(&partial, path).map_err(|error| PeerError::file(path, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_written_once_and_mended() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("config.json");
        write_where_it_differs(&path, b"first").unwrap();
        let written = fs::metadata(&path).unwrap().modified().unwrap();
        write_where_it_differs(&path, b"first").unwrap();
        assert_eq!(fs::metadata(&path).unwrap().modified().unwrap(), written);
        write_where_it_differs(&path, b"other").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"other");
        assert_eq!(
            fs::read_dir(directory.path()).unwrap().count(),
            1,
            "nothing partial is left"
        );
    }
}
