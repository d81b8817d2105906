//! Snapshots on the disk, so that a conversation goes on after a restart without being read anew.
//!
//! A directory holds one file for each snapshot; `file` says what is in it. A file is written by a thread of its own under a temporary name, given
//! to the disk, and only then named: whenever the program or the machine stops, what has a name is whole. Still nothing is taken on trust: a file
//! whose length, header, tokens or checksum are not right is deleted with a warning, and the prompt is read as if it had not been there.
//!
//! A failure to write (a full disk, a directory that is gone) is a warning, and nothing is written for a while.

mod file;
mod index;
mod writer;

use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::backend::Backend;
use crate::error::EngineError;
use file::{FileError, Hash, Header, Wanted};
use index::{Entry, Index, Keys};
use writer::{Job, Writer};

/// Ending of the files that hold snapshots; what comes before it is the key.
const SNAPSHOT: &str = "snapshot";
/// Ending of files that are being written.
const TEMPORARY: &str = "writing";
/// Held locked while a program uses the directory.
const LOCK: &str = "lock";
/// Fewer tokens are read anew as fast as from a file.
const MIN_TOKENS: usize = 64;

/// Where snapshots are kept on the disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskOptions {
    /// The directory; made where there is none. Only one program uses it at a time.
    pub directory: PathBuf,
    /// Bytes of all snapshots in it.
    pub bytes: u64,
    /// Tells the checkpoint from all others.
    pub identity: [u8; 32],
    /// Time that a snapshot waits to be written: a longer one of the same conversation that comes meanwhile takes its place.
    pub settle: Duration,
}

/// What the cache on the disk holds and did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskStatus {
    /// Snapshots.
    pub entries: usize,
    /// Bytes of their files.
    pub bytes: u64,
    /// Snapshots read since the start.
    pub loaded: u64,
    /// Snapshots written since the start.
    pub written: u64,
    /// Files that were damaged and are deleted, and failures to write.
    pub failed: u64,
}

/// What the engine's thread and the writer share.
struct Shared {
    directory: PathBuf,
    budget: u64,
    identity: Hash,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    index: Index,
    loaded: u64,
    written: u64,
    failed: u64,
}

impl Shared {
    /// The state; every change leaves it whole.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn path(&self, key: &Hash) -> PathBuf {
        self.directory
            .join(format!("{}.{SNAPSHOT}", blake3::Hash::from(*key).to_hex()))
    }

    /// Deletes a snapshot that is not to be kept.
    fn evict(&self, key: &Hash) {
        self.lock().index.remove(key);
        let path = self.path(key);
        if let Err(error) = std::fs::remove_file(&path) {
            tracing::warn!(path = %path.display(), %error, "a cached snapshot could not be deleted");
        }
    }

    /// Deletes a file that is not what it should be.
    fn drop_damaged(&self, key: &Hash, error: &FileError) {
        let path = self.path(key);
        tracing::warn!(path = %path.display(), %error, "a damaged snapshot is not used, and deleted");
        self.lock().failed += 1;
        self.evict(key);
    }
}

/// A snapshot that a prompt starts with.
pub(crate) struct Found {
    key: Hash,
    entry: Entry,
}

impl Found {
    /// Tokens that it holds.
    pub(crate) fn tokens(&self) -> usize {
        self.entry.tokens
    }

    /// Whether it has the logits after the last of them.
    pub(crate) fn with_logits(&self) -> bool {
        self.entry.with_logits
    }
}

/// The snapshots in a directory.
pub(crate) struct DiskCache {
    shared: Arc<Shared>,
    writer: Writer,
    /// Holds the lock.
    _lock: File,
}

impl DiskCache {
    /// Opens the directory and looks at what is there. `format` names what the bytes of states depend on beside the checkpoint.
    pub(crate) fn open(options: &DiskOptions, format: &str) -> Result<DiskCache, EngineError> {
        let failed = |problem: String| EngineError::CacheDirectory {
            directory: options.directory.clone(),
            problem,
        };
        std::fs::create_dir_all(&options.directory).map_err(|error| failed(error.to_string()))?;
        let lock = File::create(options.directory.join(LOCK)).map_err(|error| failed(error.to_string()))?;
        lock.try_lock().map_err(|error| match error {
            std::fs::TryLockError::WouldBlock => failed("another program is using it".into()),
            std::fs::TryLockError::Error(error) => failed(error.to_string()),
        })?;
        let mut identity = blake3::Hasher::new();
        identity.update(&options.identity);
        identity.update(env!("CARGO_PKG_VERSION").as_bytes());
        identity.update(format.as_bytes());
        let shared = Arc::new(Shared {
            directory: options.directory.clone(),
            budget: options.bytes,
            identity: identity.finalize().into(),
            state: Mutex::default(),
        });
        scan(&shared).map_err(|error| failed(error.to_string()))?;
        shared.make_room(0);
        let writer = Writer::start(Arc::clone(&shared), options.settle).map_err(|error| failed(error.to_string()))?;
        Ok(DiskCache {
            shared,
            writer,
            _lock: lock,
        })
    }

    /// The longest snapshot of more than `more_than` tokens that `prompt` starts with.
    pub(crate) fn find(&self, prompt: &[u32], more_than: usize) -> Option<Found> {
        let (key, entry) = self
            .shared
            .lock()
            .index
            .longest(prompt, more_than, &self.shared.identity)?;
        Some(Found { key, entry })
    }

    /// Reads a snapshot that `prompt` starts with. One that cannot be read is not found again.
    pub(crate) fn load<B: Backend>(&self, found: &Found, prompt: &[u32], backend: &mut B) -> Option<B::Snapshot> {
        let wanted = Wanted {
            identity: &self.shared.identity,
            key: &found.key,
            tokens: &prompt[..found.entry.tokens],
            with_logits: found.entry.with_logits,
        };
        match file::read(&self.shared.path(&found.key), &wanted, backend) {
            Ok(snapshot) => {
                let mut state = self.shared.lock();
                state.index.touch(&found.key);
                state.loaded += 1;
                return Some(snapshot);
            }
            Err(FileError::Gone) => {
                self.shared.lock().index.remove(&found.key);
            }
            Err(FileError::Backend(error)) => {
                tracing::warn!(%error, "a cached snapshot could not be loaded and is deleted");
                self.shared.evict(&found.key);
            }
            Err(error) => self.shared.drop_damaged(&found.key, &error),
        }
        None
    }

    /// Keeps a snapshot of `tokens`: soon, on another thread, if the disk has room. `start`: other conversations branch off at it.
    pub(crate) fn keep<B: Backend>(
        &self,
        backend: &mut B,
        snapshot: &Arc<B::Snapshot>,
        tokens: &[u32],
        start: bool,
        with_logits: bool,
    ) {
        if tokens.len() < MIN_TOKENS || !self.writer.has_room() {
            return;
        }
        let save = match backend.save(snapshot) {
            Ok(save) => save,
            Err(error) => {
                tracing::warn!(%error, tokens = tokens.len(), "a snapshot could not be copied for the disk");
                return;
            }
        };
        let header = Header {
            identity: self.shared.identity,
            key: Keys::new(&self.shared.identity, tokens).of(tokens.len()),
            tokens: tokens.len() as u64,
            state_bytes: backend.saved_bytes(tokens.len(), with_logits) as u64,
            with_logits,
            start,
        };
        self.writer.push(Job {
            header,
            tokens: tokens.into(),
            save,
        });
    }

    /// What tells its status, also after its end.
    pub(crate) fn watch(&self) -> DiskWatch {
        DiskWatch(Arc::clone(&self.shared))
    }
}

/// Tells the status of a cache.
pub(crate) struct DiskWatch(Arc<Shared>);

impl std::fmt::Debug for DiskWatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.status().fmt(f)
    }
}

impl DiskWatch {
    pub(crate) fn status(&self) -> DiskStatus {
        let state = self.0.lock();
        DiskStatus {
            entries: state.index.len(),
            bytes: state.index.bytes(),
            loaded: state.loaded,
            written: state.written,
            failed: state.failed,
        }
    }
}

/// Takes stock of the directory, oldest first. Files that were being written are deleted, and so are those that cannot be snapshots although they
/// are named so; other files are left alone.
fn scan(shared: &Shared) -> std::io::Result<()> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(&shared.directory)? {
        let path = entry?.path();
        let ending = path.extension().and_then(|ending| ending.to_str());
        let key = path
            .file_stem()
            .and_then(|stem| blake3::Hash::from_hex(stem.to_str()?).ok());
        match (ending, key) {
            (Some(TEMPORARY), Some(_)) => {
                if let Err(error) = std::fs::remove_file(&path) {
                    tracing::warn!(path = %path.display(), %error, "an unfinished snapshot could not be deleted");
                }
            }
            (Some(SNAPSHOT), Some(key)) => match read_header(&path) {
                Ok((header, used)) if key == header.key => found.push((used, header)),
                Ok(_) => {
                    let error = FileError::Damaged("expected the snapshot of its name, found another".into());
                    shared.drop_damaged(key.as_bytes(), &error);
                }
                Err(error) => shared.drop_damaged(key.as_bytes(), &error),
            },
            _ => {}
        }
    }
    found.sort_by_key(|(used, _)| *used);
    let mut state = shared.lock();
    for (_, header) in &found {
        state.index.insert(header, &shared.identity);
    }
    Ok(())
}

/// A file's header, and when it was used last.
fn read_header(path: &Path) -> Result<(Header, std::time::SystemTime), FileError> {
    let file = File::open(path)?;
    let header = Header::read(&file, &mut BufReader::with_capacity(256, &file))?;
    Ok((header, file.metadata()?.modified()?))
}
