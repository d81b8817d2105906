//! The engine as its callers see it: a handle to the thread that runs the model.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use crate::backend::{Backend, BackendError, DeviceInfo};
use crate::disk::{DiskCache, DiskOptions, DiskStatus, DiskWatch};
use crate::error::EngineError;
use crate::generation::Generation;
use crate::inbox::{Inbox, Job, Pause};
use crate::request::GenerateRequest;
use crate::scheduler::Scheduler;
use crate::vocabulary::Vocabulary;

/// Limits of an engine.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineOptions {
    /// Tokens of prompt and reply together that a sequence may hold; never more than the backend's own limit, which holds where `None`.
    pub context_limit: Option<usize>,
    /// Bytes for the state of all running sequences; as much as they ask for where `None`.
    pub sequence_memory: Option<usize>,
    /// Bytes for snapshots in the prefix cache; 0 for no cache.
    pub cache_memory: usize,
    /// Where snapshots are kept on the disk, if they are.
    pub disk_cache: Option<DiskOptions>,
    /// Sequences that run at the same time; at least 1.
    pub max_sequences: usize,
    /// Requests that wait at most; further ones are refused.
    pub queue_capacity: usize,
    /// While other sequences decode, prefill chunks are cut so that each takes about this long, and they need not wait longer. Alone, a prompt
    /// is read in the backend's largest chunks.
    pub prefill_slice: Duration,
    /// Tokens between the snapshots that are taken on the way through a long prompt.
    pub snapshot_interval: usize,
}

impl Default for EngineOptions {
    fn default() -> Self {
        EngineOptions {
            context_limit: None,
            sequence_memory: None,
            cache_memory: 1 << 30,
            disk_cache: None,
            max_sequences: 16,
            queue_capacity: 256,
            prefill_slice: Duration::from_millis(200),
            snapshot_interval: 8192,
        }
    }
}

/// What an engine runs, fixed for its life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineInfo {
    /// What runs the model.
    pub device: DeviceInfo,
    /// Tokens of prompt and reply together that a sequence may hold.
    pub context_limit: usize,
    /// Valid token ids are those below this.
    pub vocabulary: usize,
}

/// What an engine is doing, and what it has done since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EngineStatus {
    /// Requests that wait.
    pub waiting: usize,
    /// Sequences that run, those that read their prompt included.
    pub running: usize,
    /// Bytes reserved for running sequences.
    pub sequence_bytes: usize,
    /// Snapshots in the prefix cache.
    pub cache_entries: usize,
    /// Bytes of them.
    pub cache_bytes: usize,
    /// The cache on the disk.
    pub disk: DiskStatus,
    /// Requests that started.
    pub started: u64,
    /// Requests that finished.
    pub finished: u64,
    /// Requests whose callers went away first.
    pub cancelled: u64,
    /// Requests that failed.
    pub failed: u64,
    /// Tokens of the prompts of started requests.
    pub prompt_tokens: u64,
    /// Those of them that came from the prefix cache.
    pub cached_tokens: u64,
    /// Tokens of replies.
    pub generated_tokens: u64,
    /// Decode steps; with several sequences in a step, fewer than `generated_tokens`.
    pub decode_steps: u64,
    /// Time spent in prefill.
    pub prefill_time: Duration,
    /// Time spent in decode steps.
    pub decode_time: Duration,
}

/// A running model. Clones are handles to the same one; when the last is dropped, requests that wait are dropped and those that run go on
/// until they finish or their callers drop them.
#[derive(Clone, Debug)]
pub struct Engine {
    shared: Arc<Shared>,
}

/// Ends the engine's thread when the last handle goes.
#[derive(Debug)]
struct Shared {
    inbox: Arc<Inbox>,
    info: EngineInfo,
    options: EngineOptions,
    status: Arc<Mutex<EngineStatus>>,
    thread: Mutex<Option<thread::JoinHandle<()>>>,
    disk: Option<DiskWatch>,
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.inbox.abandon();
    }
}

impl Engine {
    /// Moves `backend` to a thread of its own, which waits for requests.
    ///
    /// # Errors
    /// [`EngineError::Backend`] where the memory for sequences does not even hold one token, or no thread can be started;
    /// [`EngineError::CacheDirectory`] where the directory for snapshots cannot be used.
    pub fn start<B: Backend>(
        backend: B,
        vocabulary: Vocabulary,
        options: EngineOptions,
    ) -> Result<Engine, EngineError> {
        let context_limit = context_limit(&backend, &options)?;
        let info = EngineInfo {
            device: backend.device(),
            context_limit,
            vocabulary: vocabulary.len().min(backend.vocab_size()),
        };
        if options.disk_cache.is_some() && options.cache_memory == 0 {
            let expected = "some memory for a cache that is also on the disk";
            return Err(EngineError::invalid("cache_memory", expected, 0));
        }
        let disk = options.disk_cache.as_ref();
        let disk = disk
            .map(|disk| DiskCache::open(disk, &backend.state_format()))
            .transpose()?;
        let disk_watch = disk.as_ref().map(DiskCache::watch);
        let inbox = Arc::new(Inbox::default());
        let status = Arc::new(Mutex::new(EngineStatus::default()));
        let mut scheduler = Scheduler::new(
            backend,
            vocabulary,
            options.clone(),
            context_limit,
            disk,
            Arc::clone(&inbox),
            Arc::clone(&status),
        );
        let on_exit = Arc::clone(&inbox);
        let thread = thread::Builder::new()
            .name("engine".into())
            .spawn(move || {
                // If the backend panics, requests must not wait for ever: the queue is dropped, and with it the callers' streams end.
                let _abandon = AbandonOnDrop(on_exit);
                scheduler.run();
            })
            .map_err(|error| BackendError::Device(format!("no thread for the engine: {error}")))?;
        Ok(Engine {
            shared: Arc::new(Shared {
                inbox,
                info,
                options,
                status,
                thread: Mutex::new(Some(thread)),
                disk: disk_watch,
            }),
        })
    }

    /// Checks a request and puts it in the queue. Does not wait.
    ///
    /// # Errors
    /// [`EngineError::Invalid`] and [`EngineError::ContextOverflow`] where the request is at fault, [`EngineError::QueueFull`] where it may
    /// succeed later, [`EngineError::ShuttingDown`].
    pub fn submit(&self, request: GenerateRequest) -> Result<Generation, EngineError> {
        request.validate(&self.shared.info)?;
        let (events, receiver) = mpsc::channel(Generation::BUFFER);
        let pause = Arc::new(Pause::default());
        let job = Job {
            request,
            events,
            pause: Arc::clone(&pause),
            submitted: Instant::now(),
        };
        self.shared.inbox.push(job, self.shared.options.queue_capacity)?;
        Ok(Generation::new(receiver, pause, Arc::clone(&self.shared.inbox)))
    }

    /// What the engine runs.
    pub fn info(&self) -> &EngineInfo {
        &self.shared.info
    }

    /// The limits that it was started with.
    pub fn options(&self) -> &EngineOptions {
        &self.shared.options
    }

    /// What it is doing.
    pub fn status(&self) -> EngineStatus {
        let mut status = *self.shared.status.lock().unwrap_or_else(PoisonError::into_inner);
        status.waiting = self.shared.inbox.waiting();
        status.disk = self.shared.disk.as_ref().map(DiskWatch::status).unwrap_or_default();
        status
    }

    /// Takes no more requests; those that wait or run finish. Does not wait for them.
    pub fn shut_down(&self) {
        self.shared.inbox.close();
    }

    /// Shuts down, and waits until the backend is gone and the cache on the disk is written: a program that ends while a GPU's driver still works for it may crash on its way out. Those
    /// who read replies must have read them or dropped them, else this waits for ever.
    pub fn finish(&self) {
        self.shut_down();
        let thread = self.shared.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // A panic of the backend has been reported by its thread.
            let _ = thread.join();
        }
    }
}

struct AbandonOnDrop(Arc<Inbox>);

impl Drop for AbandonOnDrop {
    fn drop(&mut self) {
        self.0.abandon();
    }
}

/// Tokens that a sequence may hold: what the caller wants, the backend allows and the memory for sequences has room for.
fn context_limit<B: Backend>(backend: &B, options: &EngineOptions) -> Result<usize, EngineError> {
    let wanted = options.context_limit.unwrap_or(usize::MAX).min(backend.context_limit());
    let Some(available) = options.sequence_memory else {
        return Ok(wanted);
    };
    let (mut fits, mut too_long) = (0, wanted + 1);
    while too_long - fits > 1 {
        let tokens = fits + (too_long - fits) / 2;
        if backend.sequence_bytes(tokens) <= available {
            fits = tokens
        } else {
            too_long = tokens
        }
    }
    match fits {
        0 => Err(BackendError::OutOfMemory {
            needed: backend.sequence_bytes(1),
            available,
        }
        .into()),
        _ => Ok(fits),
    }
}
