//! The thread that writes snapshots.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::file::{self, Header};
use super::{Shared, TEMPORARY};
use crate::backend::SaveState;

/// Snapshots that wait to be written; each keeps its memory alive meanwhile.
const MOST_WAITING: usize = 6;
/// Time without writing after a failure.
const PAUSE: Duration = Duration::from_secs(30);

/// A snapshot to write.
pub(super) struct Job {
    pub(super) header: Header,
    pub(super) tokens: Box<[u32]>,
    pub(super) save: SaveState,
}

/// Handle to the thread. When it is dropped, what waits is written first.
pub(super) struct Writer {
    jobs: Option<Sender<Job>>,
    waiting: Arc<AtomicUsize>,
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    pub(super) fn start(shared: Arc<Shared>, settle: Duration) -> io::Result<Writer> {
        let (jobs, receiver) = channel();
        let waiting = Arc::new(AtomicUsize::new(0));
        let mut work = Work {
            shared,
            settle,
            waiting: Arc::clone(&waiting),
            pending: Vec::new(),
            paused: None,
        };
        let thread = thread::Builder::new()
            .name("cache writer".into())
            .spawn(move || work.run(&receiver))?;
        Ok(Writer {
            jobs: Some(jobs),
            waiting,
            thread: Some(thread),
        })
    }

    /// Whether another snapshot may wait.
    pub(super) fn has_room(&self) -> bool {
        self.waiting.load(Ordering::SeqCst) < MOST_WAITING
    }

    pub(super) fn push(&self, job: Job) {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        // Without a thread to receive it the job is dropped: the cache stops growing, nothing else.
        if let Some(jobs) = &self.jobs {
            let _ = jobs.send(job);
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        drop(self.jobs.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::warn!("the thread that writes the cache has failed");
        }
    }
}

struct Work {
    shared: Arc<Shared>,
    settle: Duration,
    waiting: Arc<AtomicUsize>,
    /// Jobs and when they are due, the earliest first.
    pending: Vec<(Instant, Job)>,
    /// Until when nothing is written.
    paused: Option<Instant>,
}

impl Work {
    fn run(&mut self, jobs: &Receiver<Job>) {
        loop {
            let next = match self.pending.first() {
                Some((due, _)) => jobs.recv_timeout(due.saturating_duration_since(Instant::now())),
                None => jobs.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            match next {
                Ok(job) => self.add(job),
                Err(RecvTimeoutError::Timeout) => {
                    let (_, job) = self.pending.remove(0);
                    self.take(job);
                }
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        for (_, job) in std::mem::take(&mut self.pending) {
            self.take(job);
        }
    }

    /// Puts a job in line, in the place of shorter snapshots of the same conversation.
    fn add(&mut self, job: Job) {
        let before = self.pending.len();
        self.pending.retain(|(_, other)| {
            let passed = !other.header.start && job.tokens.starts_with(&other.tokens);
            !passed && other.header.key != job.header.key
        });
        self.waiting.fetch_sub(before - self.pending.len(), Ordering::SeqCst);
        self.pending.push((Instant::now() + self.settle, job));
    }

    fn take(&mut self, job: Job) {
        if self.paused.is_none_or(|until| until <= Instant::now()) {
            self.paused = None;
            let tokens = job.tokens.len();
            match self.shared.write(job) {
                Ok(()) => {}
                Err(error) => {
                    let directory = self.shared.directory.display();
                    tracing::warn!(%directory, %error, tokens, "a snapshot could not be written; the next attempt is in {PAUSE:?}");
                    self.shared.lock().failed += 1;
                    self.paused = Some(Instant::now() + PAUSE);
                }
            }
        }
        self.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Shared {
    /// Deletes snapshots until `bytes` more are within the budget.
    pub(super) fn make_room(&self, bytes: u64) {
        loop {
            let victim = {
                let state = self.lock();
                let over = state.index.bytes().saturating_add(bytes) > self.budget;
                state.index.victim().filter(|_| over)
            };
            match victim {
                Some(key) => self.evict(&key),
                None => return,
            }
        }
    }

    fn write(&self, Job { header, tokens, save }: Job) -> io::Result<()> {
        let bytes = header.file_bytes().unwrap_or(u64::MAX);
        if bytes > self.budget || self.lock().index.contains(&header.key) {
            return Ok(());
        }
        // What it passes goes first, if something has to.
        self.lock().index.pass(&tokens, &self.identity);
        self.make_room(bytes);
        let path = self.path(&header.key);
        let temporary = path.with_extension(TEMPORARY);
        let written = create(&temporary)
            .and_then(|file| file::write(file, &header, &tokens, save))
            .and_then(|()| std::fs::rename(&temporary, &path))
            .and_then(|()| sync_directory(&self.directory));
        if let Err(error) = written {
            // The error that counts is the first; what is left here is deleted at the next start.
            let _ = std::fs::remove_file(&temporary);
            return Err(error);
        }
        let mut state = self.lock();
        state.index.insert(&header, &self.identity);
        state.written += 1;
        Ok(())
    }
}

/// A file that only its owner reads: conversations are private.
fn create(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

/// Makes a new name last through a power failure.
fn sync_directory(directory: &Path) -> io::Result<()> {
    #[cfg(unix)]
    File::open(directory)?.sync_all()?;
    #[cfg(not(unix))]
    let _ = directory;
    Ok(())
}
