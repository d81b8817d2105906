//! `--model`: a directory, or a Hugging Face repository that is cached or downloaded.

use std::path::PathBuf;

use crate::error::Result;

/// Told how a download goes; every method may be called from another thread.
pub trait Progress: Send + Sync {
    /// A file of `size` bytes starts, of which `present` are already there.
    fn start(&self, file: &str, size: u64, present: u64);
    /// `bytes` more have arrived.
    fn advance(&self, file: &str, bytes: u64);
    /// The file is complete.
    fn finish(&self, file: &str);
}

/// Resolves `model` to a local directory: a directory itself, or `org/name[@revision]` from the cache, else downloaded. Blocks.
pub fn resolve(model: &str, progress: &dyn Progress) -> Result<PathBuf> {
    let _ = (model, progress);
    todo!()
}

/// Downloads `org/name[@revision]` (what is missing or newer) and returns the snapshot's directory. Blocks.
pub fn pull(model: &str, progress: &dyn Progress) -> Result<PathBuf> {
    let _ = (model, progress);
    todo!()
}
