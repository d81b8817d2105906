//! The loop of the engine's thread.
//!
//! A round gives every sequence that decodes one token, in one batched step, and one sequence that still reads its prompt one chunk. Prompts
//! take turns, so a short one does not wait for a long one to end.

mod hand_off;

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::backend::{Backend, BackendError, DecodeStep, PrefillLogits};
use crate::cache::{NewEntry, PrefixCache};
use crate::disk::DiskCache;
use crate::engine::{EngineOptions, EngineStatus};
use crate::generation::TokenLogprobs;
use crate::inbox::{Inbox, Job};
use crate::marks::marks;
use crate::outlet::Outlet;
use crate::request::GenerateRequest;
use crate::sampling::Sampler;
use crate::slot::{Limits, Phase, Run, Shared, Slot};
use crate::vocabulary::Vocabulary;

/// Tokens that memory is reserved for at a time where a request does not say how long its reply may be.
const GROWTH: usize = 1024;

/// Tokens of the shortest prefill chunk, whatever the time that it may take.
const MIN_CHUNK: usize = 16;

pub(crate) struct Scheduler<B: Backend> {
    backend: B,
    vocabulary: Vocabulary,
    options: EngineOptions,
    /// Tokens that a sequence may hold.
    context_limit: usize,
    inbox: Arc<Inbox>,
    status: Arc<Mutex<EngineStatus>>,
    /// What `status` is set to after each round.
    totals: EngineStatus,
    slots: Vec<Slot<B::Sequence>>,
    /// Readers of ended sequences that have not taken everything yet.
    draining: Vec<Outlet>,
    cache: PrefixCache<Arc<B::Snapshot>>,
    disk: Option<DiskCache>,
    sampler: Sampler,
    mask: Vec<u32>,
    /// Position in `slots` of the sequence whose prompt was read last.
    last_prefill: usize,
    /// Seconds that a token of a prompt took in the last chunk.
    prefill_pace: f64,
    seeds: RandomState,
}

impl<B: Backend> Scheduler<B> {
    pub(crate) fn new(
        backend: B,
        vocabulary: Vocabulary,
        options: EngineOptions,
        context_limit: usize,
        disk: Option<DiskCache>,
        inbox: Arc<Inbox>,
        status: Arc<Mutex<EngineStatus>>,
    ) -> Self {
        Scheduler {
            cache: PrefixCache::new(options.cache_memory),
            disk,
            backend,
            vocabulary,
            options,
            context_limit,
            inbox,
            status,
            totals: EngineStatus::default(),
            slots: Vec::new(),
            draining: Vec::new(),
            sampler: Sampler::default(),
            mask: Vec::new(),
            last_prefill: 0,
            prefill_pace: 0.0,
            seeds: RandomState::new(),
        }
    }

    /// Serves requests until the queue is closed and everything has ended.
    pub(crate) fn run(&mut self) {
        while !(self.slots.is_empty() && self.draining.is_empty() && self.inbox.is_done()) {
            if !self.round() {
                self.inbox.wait();
            }
        }
    }

    /// One round; whether anything moved.
    fn round(&mut self) -> bool {
        self.admit();
        self.draining
            .retain_mut(|outlet| !outlet.is_closed() && !outlet.flush());
        self.drop_cancelled();
        let mut moved = self.sample();
        moved |= self.decode();
        moved |= self.prefill();
        if !moved {
            moved = self.break_deadlock();
        }
        self.remove_ended();
        self.publish();
        moved
    }

    fn publish(&mut self) {
        self.totals.running = self.slots.len();
        self.totals.sequence_bytes = self.reserved_bytes();
        self.totals.cache_entries = self.cache.len();
        self.totals.cache_bytes = self.cache.bytes();
        *self.status.lock().unwrap_or_else(PoisonError::into_inner) = self.totals;
    }

    // Admission

    /// Starts requests that wait, while there is room.
    fn admit(&mut self) {
        self.inbox.drop_abandoned();
        while self.slots.len() < self.options.max_sequences.max(1) {
            let reserved = self.reserved_bytes();
            let (backend, options, context_limit) = (&self.backend, &self.options, self.context_limit);
            let fits = |request: &GenerateRequest| {
                let needed = backend.sequence_bytes(reservation(request, context_limit));
                options
                    .sequence_memory
                    .is_none_or(|available| reserved.saturating_add(needed) <= available)
            };
            let Some(job) = self.inbox.pop_if(fits) else { return };
            self.start(job);
            // Whoever has seen a request's first token also finds it in the status.
            self.publish();
        }
    }

    fn reserved_bytes(&self) -> usize {
        let bytes = self
            .slots
            .iter()
            .map(|slot| self.backend.sequence_bytes(slot.run.reserved));
        bytes.fold(0, usize::saturating_add)
    }

    fn start(&mut self, job: Job) {
        let reserved = reservation(&job.request, self.context_limit);
        let (sequence, cached) = match self.longest_cached(&job.request) {
            Some(restored) => restored,
            None => match self.backend.new_sequence() {
                Ok(sequence) => (sequence, 0),
                Err(error) => {
                    self.totals.failed += 1;
                    Outlet::new(job.events, job.pause).send(crate::Event::Failed(error.into()));
                    return;
                }
            },
        };
        self.totals.started += 1;
        self.totals.prompt_tokens += job.request.prompt.len() as u64;
        self.totals.cached_tokens += cached as u64;
        let limits = Limits {
            context: self.context_limit,
            reserved,
            fresh_seed: self.seeds.hash_one(self.totals.started),
        };
        let mut run = Run::new(job, cached, limits, &self.vocabulary);
        if self.cache.is_enabled() {
            run.marks = marks(
                &run.request.snapshot_at,
                cached,
                run.prompt_len(),
                self.options.snapshot_interval,
            );
        }
        self.slots.push(Slot { sequence, run });
    }

    /// A sequence restored from the longest snapshot that the prompt starts with. A snapshot that cannot be restored is dropped, and only it.
    fn longest_cached(&mut self, request: &GenerateRequest) -> Option<(B::Sequence, usize)> {
        if request.prompt_logprobs.is_some() {
            return None;
        }
        if let Some(disk) = &self.disk {
            fetch(disk, &mut self.backend, &mut self.cache, request);
        }
        while let Some((key, tokens)) = self.cache.find(&request.prompt) {
            match self.backend.restore(self.cache.get(key)?) {
                Ok(sequence) => return Some((sequence, tokens)),
                Err(error) => {
                    tracing::warn!(%error, tokens, "a snapshot could not be restored and is dropped");
                    self.cache.remove(key);
                }
            }
        }
        None
    }

    // Ends

    /// Ends the sequences whose readers have gone; what they computed stays in the cache.
    fn drop_cancelled(&mut self) {
        for slot in self.slots.iter_mut().filter(|slot| slot.run.outlet.is_closed()) {
            slot.run.phase = Phase::Ended;
            slot.run.cancelled = true;
        }
        self.remove_ended();
    }

    fn remove_ended(&mut self) {
        let mut at = 0;
        while at < self.slots.len() {
            if self.slots[at].run.phase != Phase::Ended {
                at += 1;
                continue;
            }
            let mut slot = self.slots.remove(at);
            if at < self.last_prefill {
                self.last_prefill -= 1;
            }
            if !slot.run.broken && self.cache.is_enabled() {
                self.keep(&mut slot);
            }
            let mut run = slot.run;
            let total = match (run.cancelled, run.failed) {
                (true, _) => &mut self.totals.cancelled,
                (_, true) => &mut self.totals.failed,
                _ => &mut self.totals.finished,
            };
            *total += 1;
            if !run.outlet.flush() {
                self.draining.push(run.outlet);
            }
        }
    }

    /// Where nothing can move because every sequence waits for memory, the youngest ends with its next token, so that the others can go on.
    fn break_deadlock(&mut self) -> bool {
        let starved = |slot: &&mut Slot<B::Sequence>| slot.run.phase == Phase::Decode && slot.run.starved;
        if self
            .slots
            .iter()
            .any(|slot| !slot.run.starved && slot.run.phase != Phase::Ended)
        {
            return false;
        }
        match self.slots.iter_mut().rev().find(starved) {
            Some(youngest) => {
                youngest.run.end_with_next_token();
                true
            }
            None => false,
        }
    }

    // Steps

    /// Takes a token for every sequence whose logits are ready.
    fn sample(&mut self) -> bool {
        let mut moved = false;
        for at in 0..self.slots.len() {
            let Slot { sequence, run } = &mut self.slots[at];
            if run.phase != Phase::Sample || !run.outlet.flush() {
                continue;
            }
            moved = true;
            let shared = Shared {
                vocabulary: &self.vocabulary,
                sampler: &mut self.sampler,
                mask: &mut self.mask,
            };
            let logits = self.backend.logits(sequence);
            let valid = self.vocabulary.len().min(logits.len());
            let generated = run.usage.completion_tokens;
            run.take_token(&logits[..valid], shared);
            self.totals.generated_tokens += (run.usage.completion_tokens - generated) as u64;
            // After the first token is on its way: the reader does not wait for the copy.
            if generated == 0 && run.phase != Phase::Ended {
                let Slot { sequence, run } = &self.slots[at];
                let mut keeper = Keeper {
                    backend: &mut self.backend,
                    cache: &mut self.cache,
                    disk: None,
                };
                keeper.snapshot(sequence, &run.tokens[..run.prompt_len()], &run.request);
            }
        }
        moved
    }

    /// A token of every sequence that is ready for one: the device's own choice, or a decode step, in batches of what the backend takes.
    fn decode(&mut self) -> bool {
        self.reserve_for_decode();
        let ready = |run: &mut Run| run.phase == Phase::Decode && !run.starved && run.outlet.flush();
        let mut members = Vec::with_capacity(self.slots.len());
        let mut moved = false;
        for slot in &mut self.slots {
            if !ready(&mut slot.run) {
                continue;
            }
            moved = true;
            if !hand_off::take_token(&mut self.backend, &self.vocabulary, &mut self.totals, slot) {
                members.push(slot);
            }
        }
        for members in members.chunks_mut(self.backend.max_batch().max(1)) {
            let mut batch = Vec::with_capacity(members.len());
            for slot in members.iter_mut() {
                // A prompt has at least one token.
                let token = slot.run.tokens.last().copied().unwrap_or_default();
                batch.push(DecodeStep {
                    sequence: &mut slot.sequence,
                    token,
                });
            }
            let started = Instant::now();
            let result = self.backend.decode(&mut batch);
            self.totals.decode_steps += 1;
            self.totals.decode_time += started.elapsed();
            for slot in members {
                match &result {
                    Ok(()) => slot.run.phase = Phase::Sample,
                    Err(error) => slot.run.break_off(error.clone()),
                }
            }
        }
        self.sample();
        moved
    }

    /// Reserves memory for the next token of every sequence that decodes; marks those that have to wait for it.
    fn reserve_for_decode(&mut self) {
        for at in 0..self.slots.len() {
            let run = &self.slots[at].run;
            // One token ahead, so that a sequence that gets no more memory can still end with a token of its own.
            let next = run.tokens.len() + 1;
            if run.phase != Phase::Decode || next <= run.reserved || next >= run.limit() {
                continue;
            }
            let wanted = (run.reserved + GROWTH).min(run.limit());
            let others = self.reserved_bytes() - self.backend.sequence_bytes(run.reserved);
            let needed = others.saturating_add(self.backend.sequence_bytes(wanted));
            let fits = self.options.sequence_memory.is_none_or(|available| needed <= available);
            let run = &mut self.slots[at].run;
            run.starved = !fits;
            if fits {
                run.reserved = wanted;
            }
        }
    }

    /// One chunk of the next prompt.
    fn prefill(&mut self) -> bool {
        let count = self.slots.len();
        let mut turns = (1..=count).map(|turn| (self.last_prefill + turn) % count);
        let slots = &mut self.slots;
        let ready = turns.find(|&at| slots[at].run.phase == Phase::Prefill && slots[at].run.outlet.flush());
        let Some(at) = ready else { return false };
        self.last_prefill = at;
        let others_decode = self
            .slots
            .iter()
            .any(|slot| matches!(slot.run.phase, Phase::Decode | Phase::Sample));
        let most = self.chunk(others_decode);

        let Slot { sequence, run } = &mut self.slots[at];
        let until = run
            .marks
            .last()
            .copied()
            .unwrap_or(run.prompt_len())
            .min(run.read + most);
        let started = Instant::now();
        let result = prefill_chunk(
            &mut self.backend,
            &mut self.sampler,
            self.vocabulary.len(),
            sequence,
            run,
            until,
        );
        let took = started.elapsed();
        self.totals.prefill_time += took;
        self.prefill_pace = took.as_secs_f64() / (until - run.read) as f64;
        match result {
            Ok(()) => run.has_read(until),
            Err(error) => {
                run.break_off(error);
                return true;
            }
        }
        if run.marks.last() == Some(&until) {
            run.marks.pop();
            let Slot { sequence, run } = &self.slots[at];
            // The end of the system prompt serves every conversation that starts with it; the others are behind the end of this turn soon.
            let start = run.request.snapshot_at.iter().min() == Some(&until);
            let mut keeper = Keeper {
                backend: &mut self.backend,
                cache: &mut self.cache,
                disk: self.disk.as_ref().filter(|_| start).map(|disk| (disk, start)),
            };
            keeper.snapshot(sequence, &run.tokens[..until], &run.request);
        }
        self.sample();
        true
    }

    /// Tokens of the next prefill chunk.
    fn chunk(&self, others_decode: bool) -> usize {
        let most = self.backend.max_chunk();
        if !others_decode || self.prefill_pace == 0.0 {
            return if others_decode { MIN_CHUNK.min(most) } else { most };
        }
        let fits = self.options.prefill_slice.max(Duration::from_millis(1)).as_secs_f64() / self.prefill_pace;
        (fits as usize).clamp(MIN_CHUNK.min(most), most)
    }

    /// Keeps the state in which a sequence ended.
    fn keep(&mut self, Slot { sequence, run }: &mut Slot<B::Sequence>) {
        if run.hand_off.take().is_some()
            && let Err(error) = self.backend.end_hand_off(sequence)
        {
            tracing::warn!(%error, "the state of a sequence that has ended could not be kept");
            return;
        }
        let position = self.backend.position(sequence);
        if position > run.usage.cached_tokens {
            let mut keeper = Keeper {
                backend: &mut self.backend,
                cache: &mut self.cache,
                disk: self.disk.as_ref().map(|disk| (disk, false)),
            };
            keeper.snapshot(sequence, &run.tokens[..position], &run.request);
        }
    }
}

/// Tokens that memory is reserved for when a request starts.
fn reservation(request: &GenerateRequest, context_limit: usize) -> usize {
    request
        .prompt
        .len()
        .saturating_add(request.max_tokens.unwrap_or(GROWTH))
        .min(context_limit)
}

/// Reads the prompt up to token `until`.
fn prefill_chunk<B: Backend>(
    backend: &mut B,
    sampler: &mut Sampler,
    vocabulary: usize,
    sequence: &mut B::Sequence,
    run: &mut Run,
    until: usize,
) -> Result<(), BackendError> {
    let chunk = &run.tokens[run.read..until];
    let Some(top) = run.request.prompt_logprobs else {
        // A snapshot is taken with its logits; other chunks need none.
        let needs_logits = until == run.prompt_len() || run.marks.last() == Some(&until);
        let logits = if needs_logits {
            PrefillLogits::Last
        } else {
            PrefillLogits::None
        };
        return backend.prefill(sequence, chunk, logits);
    };
    let (tokens, start, found) = (&run.tokens, run.read, &mut run.prompt_logprobs);
    let mut row = |row: usize, logits: &[f32]| {
        if let Some(&next) = tokens.get(start + row + 1) {
            let logprobs: TokenLogprobs = sampler.logprobs(&logits[..vocabulary.min(logits.len())], next, top);
            found.push(logprobs);
        }
    };
    backend.prefill(sequence, chunk, PrefillLogits::All(&mut row))
}

/// Where a snapshot goes.
struct Keeper<'a, B: Backend> {
    backend: &'a mut B,
    cache: &'a mut PrefixCache<Arc<B::Snapshot>>,
    /// The cache on the disk, where the snapshot is worth a file, and whether other conversations branch off at it.
    disk: Option<(&'a DiskCache, bool)>,
}

impl<B: Backend> Keeper<'_, B> {
    /// Puts a snapshot of `sequence`, which holds `tokens`, into the cache, unless one is there.
    fn snapshot(&mut self, sequence: &B::Sequence, tokens: &[u32], request: &GenerateRequest) {
        let has_logits = !self.backend.logits(sequence).is_empty();
        if !self.cache.is_enabled() || tokens.is_empty() || self.cache.refresh(tokens, has_logits) {
            return;
        }
        match self.backend.snapshot(sequence) {
            Ok(snapshot) => {
                let snapshot = Arc::new(snapshot);
                if let Some((disk, start)) = self.disk {
                    disk.keep(self.backend, &snapshot, tokens, start, has_logits);
                }
                insert(self.backend, self.cache, snapshot, tokens, has_logits, request);
            }
            Err(error) => tracing::warn!(%error, tokens = tokens.len(), "no snapshot could be taken"),
        }
    }
}

/// Puts a snapshot of `tokens` into the cache.
fn insert<B: Backend>(
    backend: &B,
    cache: &mut PrefixCache<Arc<B::Snapshot>>,
    snapshot: Arc<B::Snapshot>,
    tokens: &[u32],
    has_logits: bool,
    request: &GenerateRequest,
) {
    let mut parts = Vec::new();
    backend.snapshot_memory(&snapshot, &mut |identity, bytes| parts.push((identity, bytes)));
    let conversation = request.cache_key.as_deref();
    cache.insert(
        NewEntry {
            tokens,
            has_logits,
            parts,
            conversation,
        },
        snapshot,
    );
}

/// Brings the longest snapshot that a request's prompt starts with from the disk into the cache, where it is longer than those in the cache.
fn fetch<B: Backend>(
    disk: &DiskCache,
    backend: &mut B,
    cache: &mut PrefixCache<Arc<B::Snapshot>>,
    request: &GenerateRequest,
) {
    let cached = cache.find(&request.prompt).map_or(0, |(_, tokens)| tokens);
    while let Some(found) = disk.find(&request.prompt, cached) {
        if let Some(snapshot) = disk.load(&found, &request.prompt, backend) {
            let tokens = &request.prompt[..found.tokens()];
            return insert(backend, cache, Arc::new(snapshot), tokens, found.with_logits(), request);
        }
    }
}
