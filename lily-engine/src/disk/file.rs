//! The form of a snapshot in a file, and its checks. Nothing of a file is used before it is checked, and no size before it was compared with what
//! the model gives for that many tokens.
//!
//! | bytes | what |
//! |---|---|
//! | 8 | `LilySnap` |
//! | 4 | version of this form, little-endian as all numbers |
//! | 4 | flags: 1 with logits, 2 the start of conversations |
//! | 32 | whose state it is: a hash of the checkpoint, the backend and the program's version |
//! | 8 | tokens |
//! | 8 | bytes of state |
//! | 32 | key: a hash of all of the above that says whose state it is, and of the tokens |
//! | 32 | BLAKE3 of the header so far |
//! | 4 × tokens | the tokens |
//! | bytes of state | what the backend saved |
//! | 32 | BLAKE3 of everything before |

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::Path;

use thiserror::Error;

use crate::backend::{Backend, LoadError, SaveState};

const MAGIC: &[u8; 8] = b"LilySnap";
const VERSION: u32 = 1;
const WITH_LOGITS: u32 = 1;
const START: u32 = 2;
const HASH: usize = 32;
const HEADER: usize = 8 + 4 + 4 + HASH + 8 + 8 + HASH + HASH;
/// Bytes that go to or come from the file at a time.
const BUFFER: usize = 1 << 20;

/// A BLAKE3 hash.
pub(crate) type Hash = [u8; HASH];

/// What is wrong with a file.
#[derive(Debug, Error)]
pub(crate) enum FileError {
    /// It is not there any more.
    #[error("it is gone")]
    Gone,
    /// Its bytes are not those that were written.
    #[error("{0}")]
    Damaged(String),
    /// The system could not read it.
    #[error(transparent)]
    Io(io::Error),
    /// The backend could not take it; the file may be right.
    #[error(transparent)]
    Backend(crate::backend::BackendError),
}

impl From<io::Error> for FileError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::NotFound => FileError::Gone,
            io::ErrorKind::UnexpectedEof => FileError::Damaged("it ends too soon".into()),
            _ => FileError::Io(error),
        }
    }
}

impl From<LoadError> for FileError {
    fn from(error: LoadError) -> Self {
        match error {
            LoadError::Read(error) => error.into(),
            LoadError::Backend(error) => FileError::Backend(error),
        }
    }
}

fn damaged<T>(expected: &str, found: impl std::fmt::Display) -> Result<T, FileError> {
    Err(FileError::Damaged(format!("expected {expected}, found {found}")))
}

/// What a file starts with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// Whose state it is.
    pub(crate) identity: Hash,
    /// Tells it from all others, and is its name.
    pub(crate) key: Hash,
    pub(crate) tokens: u64,
    pub(crate) state_bytes: u64,
    pub(crate) with_logits: bool,
    /// Whether other conversations branch off here.
    pub(crate) start: bool,
}

impl Header {
    /// Bytes of the whole file; `None` where that is no number.
    pub(crate) fn file_bytes(&self) -> Option<u64> {
        let tokens = self.tokens.checked_mul(4)?;
        let fixed = (HEADER + HASH) as u64;
        fixed.checked_add(tokens)?.checked_add(self.state_bytes)
    }

    fn encode(&self) -> [u8; HEADER] {
        let mut flags = 0;
        if self.with_logits {
            flags |= WITH_LOGITS;
        }
        if self.start {
            flags |= START;
        }
        let mut bytes = Vec::with_capacity(HEADER);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&flags.to_le_bytes());
        bytes.extend_from_slice(&self.identity);
        bytes.extend_from_slice(&self.tokens.to_le_bytes());
        bytes.extend_from_slice(&self.state_bytes.to_le_bytes());
        bytes.extend_from_slice(&self.key);
        let check = blake3::hash(&bytes);
        bytes.extend_from_slice(check.as_bytes());
        let mut header = [0; HEADER];
        header.copy_from_slice(&bytes);
        header
    }

    fn decode(bytes: &[u8; HEADER]) -> Result<Header, FileError> {
        let mut rest = &bytes[..];
        if take::<8>(&mut rest) != *MAGIC {
            return damaged("a snapshot", "something else");
        }
        let version = u32::from_le_bytes(take(&mut rest));
        if version != VERSION {
            return damaged(&format!("version {VERSION}"), format!("version {version}"));
        }
        let flags = u32::from_le_bytes(take(&mut rest));
        let header = Header {
            identity: take(&mut rest),
            tokens: u64::from_le_bytes(take(&mut rest)),
            state_bytes: u64::from_le_bytes(take(&mut rest)),
            key: take(&mut rest),
            with_logits: flags & WITH_LOGITS != 0,
            start: flags & START != 0,
        };
        if header.encode() != *bytes {
            return damaged("a header with the right checksum", "another");
        }
        Ok(header)
    }

    /// The header of `file`, which has to have the length that it tells.
    pub(crate) fn read(file: &File, from: &mut impl Read) -> Result<Header, FileError> {
        let mut bytes = [0; HEADER];
        from.read_exact(&mut bytes)?;
        let header = Header::decode(&bytes)?;
        let (expected, found) = (header.file_bytes(), file.metadata()?.len());
        if expected != Some(found) {
            let expected = expected.map_or("fewer".into(), |bytes| bytes.to_string());
            return damaged(&format!("{expected} bytes"), format!("{found} bytes"));
        }
        Ok(header)
    }
}

/// Takes the first `N` of at least as many bytes.
fn take<const N: usize>(bytes: &mut &[u8]) -> [u8; N] {
    let (first, rest) = bytes.split_at(N);
    *bytes = rest;
    let mut taken = [0; N];
    taken.copy_from_slice(first);
    taken
}

/// Hashes what goes through it.
struct Hashing<T> {
    inner: T,
    hash: blake3::Hasher,
    bytes: u64,
}

impl<T> Hashing<T> {
    fn new(inner: T) -> Self {
        Hashing {
            inner,
            hash: blake3::Hasher::new(),
            bytes: 0,
        }
    }

    fn add(&mut self, bytes: &[u8]) {
        self.hash.update(bytes);
        self.bytes += bytes.len() as u64;
    }
}

impl<T: Read> Read for Hashing<T> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.add(&buffer[..count]);
        Ok(count)
    }
}

impl<T: Write> Write for Hashing<T> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        let count = self.inner.write(buffer)?;
        self.add(&buffer[..count]);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

/// Writes a whole snapshot and waits until the disk has it.
pub(crate) fn write(file: File, header: &Header, tokens: &[u32], save: SaveState) -> io::Result<()> {
    let mut out = Hashing::new(BufWriter::with_capacity(BUFFER, file));
    out.write_all(&header.encode())?;
    for token in tokens {
        out.write_all(&token.to_le_bytes())?;
    }
    save(&mut out)?;
    let check = *out.hash.finalize().as_bytes();
    if header.file_bytes() != Some(out.bytes + HASH as u64) {
        return Err(io::Error::other(format!(
            "the state has {} bytes, not as many as it should",
            out.bytes
        )));
    }
    out.write_all(&check)?;
    out.flush()?;
    let file = out.inner.into_inner().map_err(io::IntoInnerError::into_error)?;
    file.sync_all()
}

/// What a file must hold to be used.
pub(crate) struct Wanted<'a> {
    pub(crate) identity: &'a Hash,
    pub(crate) key: &'a Hash,
    pub(crate) tokens: &'a [u32],
    pub(crate) with_logits: bool,
}

/// The snapshot in the file at `path`, if every byte of it is what was written.
pub(crate) fn read<B: Backend>(path: &Path, wanted: &Wanted<'_>, backend: &mut B) -> Result<B::Snapshot, FileError> {
    let file = File::open(path)?;
    let mut from = Hashing::new(BufReader::with_capacity(BUFFER, &file));
    let header = Header::read(&file, &mut from)?;
    let state_bytes = backend.saved_bytes(wanted.tokens.len(), wanted.with_logits);
    let expected = Header {
        identity: *wanted.identity,
        key: *wanted.key,
        tokens: wanted.tokens.len() as u64,
        state_bytes: state_bytes as u64,
        with_logits: wanted.with_logits,
        start: header.start,
    };
    if header != expected {
        return damaged("the snapshot of its name", "another");
    }
    let mut token = [0; 4];
    for &wanted in wanted.tokens {
        from.read_exact(&mut token)?;
        if u32::from_le_bytes(token) != wanted {
            return damaged("the tokens of its name", "others");
        }
    }
    let before = from.bytes;
    let snapshot = backend.load(wanted.tokens.len(), wanted.with_logits, &mut from)?;
    if from.bytes - before != state_bytes as u64 {
        return damaged("as many bytes of state as were written", from.bytes - before);
    }
    let check = *from.hash.finalize().as_bytes();
    let mut written = [0; HASH];
    from.read_exact(&mut written)?;
    if written != check {
        return damaged("content with the right checksum", "other content");
    }
    // When it was used last, for the next start; not worth a word where the system does not let us.
    let _ = file.set_modified(std::time::SystemTime::now());
    Ok(snapshot)
}
