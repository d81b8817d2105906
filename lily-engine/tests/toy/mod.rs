//! A backend whose logits are a hash of the tokens before: every mistake in what a sequence holds shows in what it generates.
#![allow(dead_code, reason = "each test file uses its own part")]

use std::collections::HashSet;
use std::io::Read;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lily_engine::sampling::{Sampler, SamplerState};
use lily_engine::{
    Backend, BackendError, DecodeStep, DeviceInfo, Engine, EngineOptions, Event, FinishReason, GenerateRequest,
    Generation, LoadError, MarkupIds, PrefillLogits, Sampling, SaveState, Token, Usage, Vocabulary,
};
use lily_model::SamplerStart;

pub const END: u32 = 256;
pub const THINK: u32 = 257;
pub const THINK_END: u32 = 258;
pub const CALL: u32 = 259;
pub const CALL_END: u32 = 260;
/// Valid ids; the model has rows beyond them, which it likes best.
pub const VALID: usize = 261;
pub const ROWS: usize = 272;
/// Bytes of state: a fixed part and some for each token.
pub const FIXED_BYTES: usize = 1000;
pub const TOKEN_BYTES: usize = 10;

/// What happened in the backend.
#[derive(Debug, Default)]
pub struct Log {
    /// Tokens of each prefill chunk.
    pub chunks: Vec<usize>,
    /// Sequences of each decode step.
    pub batches: Vec<usize>,
    pub restores: usize,
    pub snapshots: usize,
    /// Rows of each prefill chunk that got logits.
    pub logit_rows: Vec<usize>,
    /// `P` for a prefill chunk, `D` for a decode step, `H` for a token that the device chose.
    pub order: String,
    /// Snapshots whose restore fails, by their tokens.
    pub broken: HashSet<Vec<u32>>,
    /// Sequences that hold this token make the device fail.
    pub poison: Option<u32>,
    /// The logits after this token are not numbers.
    pub not_a_number: Option<u32>,
    /// Time that a decode step and a token of prefill take.
    pub pace: Duration,
}

#[derive(Clone, Debug)]
pub struct ToySequence {
    tokens: Vec<u32>,
    logits: Vec<f32>,
    hand_off: Option<ToyHandOff>,
}

/// A device that chooses tokens: the host's sampler, a token ahead.
#[derive(Clone, Debug)]
struct ToyHandOff {
    state: SamplerState,
    penalise: bool,
    exempt: Vec<bool>,
    valid_ids: usize,
    /// The next token, where no pass has taken it in yet.
    pending: Option<u32>,
}

pub struct Toy {
    pub log: Arc<Mutex<Log>>,
    /// The token after `n` tokens is `script[n]` where that exists, else what the hash says.
    pub script: Vec<u32>,
    pub max_chunk: usize,
    pub context_limit: usize,
    /// Whether the device chooses tokens where it may.
    pub hands_over: bool,
}

impl Toy {
    pub fn new() -> Self {
        Toy {
            log: Arc::default(),
            script: Vec::new(),
            max_chunk: 64,
            context_limit: 100_000,
            hands_over: false,
        }
    }

    /// Replies `reply` to prompts of `prompt` tokens.
    pub fn scripted(prompt: usize, reply: &[u32]) -> Self {
        Toy {
            script: [vec![u32::MAX; prompt], reply.to_vec()].concat(),
            ..Toy::new()
        }
    }

    fn logits_after(&self, tokens: &[u32]) -> Vec<f32> {
        let mut hash = 0xcbf2_9ce4_8422_2325u64;
        for &token in tokens {
            hash = (hash ^ u64::from(token))
                .wrapping_mul(0x0000_0100_0000_01b3)
                .rotate_left(23);
        }
        let mut logits: Vec<f32> = (0..ROWS as u64)
            .map(|id| {
                ((hash ^ id.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_mul(0xff51_afd7_ed55_8ccd) >> 40) as f32
            })
            .map(|noise| noise / (1 << 24) as f32 * 8.0)
            .collect();
        // Control tokens only by script.
        logits[END as usize..VALID].fill(-50.0);
        logits[VALID..].fill(99.0);
        if let Some(&next) = self.script.get(tokens.len()).filter(|&&next| next != u32::MAX) {
            logits[next as usize] = 60.0;
        }
        if tokens
            .last()
            .is_some_and(|last| self.log.lock().unwrap().not_a_number == Some(*last))
        {
            logits[7] = f32::NAN;
        }
        logits
    }

    fn take_in(&self, sequence: &mut ToySequence, token: u32) -> Result<(), BackendError> {
        self.check(&[token])?;
        sequence.tokens.push(token);
        sequence.logits = self.logits_after(&sequence.tokens);
        Ok(())
    }

    fn check(&self, tokens: &[u32]) -> Result<(), BackendError> {
        match self.log.lock().unwrap().poison {
            Some(poison) if tokens.contains(&poison) => Err(BackendError::Device("poisoned".into())),
            _ => Ok(()),
        }
    }
}

impl Backend for Toy {
    type Sequence = ToySequence;
    type Snapshot = ToySequence;

    fn device(&self) -> DeviceInfo {
        DeviceInfo {
            kind: "toy".into(),
            description: "a hash".into(),
        }
    }

    fn vocab_size(&self) -> usize {
        ROWS
    }

    fn max_chunk(&self) -> usize {
        self.max_chunk
    }

    fn max_batch(&self) -> usize {
        4
    }

    fn context_limit(&self) -> usize {
        self.context_limit
    }

    fn new_sequence(&mut self) -> Result<ToySequence, BackendError> {
        Ok(ToySequence {
            tokens: Vec::new(),
            logits: Vec::new(),
            hand_off: None,
        })
    }

    fn position(&self, sequence: &ToySequence) -> usize {
        sequence.tokens.len()
    }

    fn prefill(
        &mut self,
        sequence: &mut ToySequence,
        tokens: &[u32],
        logits: PrefillLogits<'_>,
    ) -> Result<(), BackendError> {
        assert!(
            !tokens.is_empty() && tokens.len() <= self.max_chunk,
            "a chunk of {}",
            tokens.len()
        );
        let pace = {
            let mut log = self.log.lock().unwrap();
            log.chunks.push(tokens.len());
            log.logit_rows.push(match logits {
                PrefillLogits::None => 0,
                PrefillLogits::Last => 1,
                PrefillLogits::All(_) => tokens.len(),
            });
            log.order.push('P');
            log.pace
        };
        std::thread::sleep(pace * tokens.len() as u32);
        self.check(tokens)?;
        let start = sequence.tokens.len();
        sequence.tokens.extend_from_slice(tokens);
        sequence.logits = match logits {
            PrefillLogits::None => Vec::new(),
            PrefillLogits::Last => self.logits_after(&sequence.tokens),
            PrefillLogits::All(each) => {
                for row in 0..tokens.len() {
                    each(row, &self.logits_after(&sequence.tokens[..start + row + 1]));
                }
                self.logits_after(&sequence.tokens)
            }
        };
        Ok(())
    }

    fn decode(&mut self, batch: &mut [DecodeStep<'_, ToySequence>]) -> Result<(), BackendError> {
        assert!(
            !batch.is_empty() && batch.len() <= self.max_batch(),
            "a batch of {}",
            batch.len()
        );
        let pace = {
            let mut log = self.log.lock().unwrap();
            log.batches.push(batch.len());
            log.order.push('D');
            log.pace
        };
        std::thread::sleep(pace);
        for step in batch {
            assert!(step.sequence.hand_off.is_none(), "the device chooses its tokens");
            self.take_in(step.sequence, step.token)?;
        }
        Ok(())
    }

    fn logits<'a>(&'a self, sequence: &'a ToySequence) -> &'a [f32] {
        &sequence.logits
    }

    fn hands_over_tokens(&self) -> bool {
        self.hands_over
    }

    fn start_hand_off(
        &mut self,
        sequence: &mut ToySequence,
        token: u32,
        start: &SamplerStart<'_>,
    ) -> Result<(), BackendError> {
        assert!(sequence.hand_off.is_none(), "a second hand-off");
        let entries = || (0..).zip(start.history);
        let listed: Vec<u32> = entries().filter(|(_, entry)| entry.listed).map(|(id, _)| id).collect();
        let sampling = Sampling {
            seed: Some(start.seed),
            ..start.sampling.clone()
        };
        let mut state = SamplerState::new(sampling, &listed, start.valid_ids, 0, |_| false);
        let counted: Vec<u32> = entries()
            .flat_map(|(id, entry)| vec![id; entry.count as usize])
            .collect();
        for &id in &counted {
            state.accept(id, true);
        }
        for _ in counted.len()..start.step as usize {
            state.accept(0, false);
        }
        sequence.hand_off = Some(ToyHandOff {
            state,
            penalise: !start.history.is_empty(),
            exempt: start.history.iter().map(|entry| entry.exempt).collect(),
            valid_ids: start.valid_ids,
            pending: Some(token),
        });
        Ok(())
    }

    fn next_token(&mut self, sequence: &mut ToySequence, ahead: bool) -> Result<u32, BackendError> {
        let pace = {
            let mut log = self.log.lock().unwrap();
            log.order.push('H');
            log.pace
        };
        std::thread::sleep(pace);
        let mut hand_off = sequence.hand_off.take().unwrap();
        if let Some(token) = hand_off.pending.take() {
            self.take_in(sequence, token)?;
        }
        let logits = &sequence.logits[..hand_off.valid_ids];
        let position = sequence.tokens.len();
        let token = Sampler::default()
            .sample(logits, &hand_off.state, hand_off.penalise, None)
            .map_err(|_| BackendError::NotFinite { position })?;
        let exempt = hand_off.exempt.get(token as usize).copied().unwrap_or(true);
        hand_off.state.accept(token, !exempt);
        match ahead {
            true => self.take_in(sequence, token)?,
            false => hand_off.pending = Some(token),
        }
        sequence.hand_off = Some(hand_off);
        Ok(token)
    }

    fn end_hand_off(&mut self, sequence: &mut ToySequence) -> Result<(), BackendError> {
        sequence.hand_off = None;
        Ok(())
    }

    fn snapshot(&mut self, sequence: &ToySequence) -> Result<ToySequence, BackendError> {
        self.log.lock().unwrap().snapshots += 1;
        Ok(sequence.clone())
    }

    fn restore(&mut self, snapshot: &ToySequence) -> Result<ToySequence, BackendError> {
        let mut log = self.log.lock().unwrap();
        if log.broken.contains(&snapshot.tokens) {
            return Err(BackendError::Device("damaged".into()));
        }
        log.restores += 1;
        Ok(snapshot.clone())
    }

    fn sequence_bytes(&self, tokens: usize) -> usize {
        FIXED_BYTES + TOKEN_BYTES * tokens
    }

    fn snapshot_memory(&self, snapshot: &ToySequence, piece: &mut dyn FnMut(usize, usize)) {
        piece(
            snapshot.tokens.as_ptr() as usize,
            self.sequence_bytes(snapshot.tokens.len()),
        );
    }

    fn state_format(&self) -> String {
        "toy".into()
    }

    fn saved_bytes(&self, tokens: usize, with_logits: bool) -> usize {
        4 * (tokens + if with_logits { ROWS } else { 0 })
    }

    fn save(&mut self, snapshot: &Arc<ToySequence>) -> Result<SaveState, BackendError> {
        let snapshot = Arc::clone(snapshot);
        Ok(Box::new(move |out| {
            for token in &snapshot.tokens {
                out.write_all(&token.to_le_bytes())?;
            }
            for logit in &snapshot.logits {
                out.write_all(&logit.to_le_bytes())?;
            }
            Ok(())
        }))
    }

    fn load(&mut self, tokens: usize, with_logits: bool, from: &mut dyn Read) -> Result<ToySequence, LoadError> {
        let mut next = || -> std::io::Result<[u8; 4]> {
            let mut word = [0; 4];
            from.read_exact(&mut word)?;
            Ok(word)
        };
        let tokens = (0..tokens)
            .map(|_| next().map(u32::from_le_bytes))
            .collect::<Result<_, _>>()?;
        let rows = if with_logits { ROWS } else { 0 };
        let logits = (0..rows)
            .map(|_| next().map(f32::from_le_bytes))
            .collect::<Result<_, _>>()?;
        Ok(ToySequence {
            tokens,
            logits,
            hand_off: None,
        })
    }
}

pub fn vocabulary() -> Vocabulary {
    let names: [&[u8]; 5] = [b"<|im_end|>", b"<think>", b"</think>", b"<tool_call>", b"</tool_call>"];
    let tokens = (0..=255u8).map(|byte| vec![byte]).chain(names.map(<[u8]>::to_vec));
    let markup = MarkupIds {
        think_start: Some(THINK),
        think_end: Some(THINK_END),
        tool_call_start: Some(CALL),
        tool_call_end: Some(CALL_END),
    };
    Vocabulary::from_tokens(tokens, vec![END], markup)
}

/// An engine over `toy`, and the backend's log.
pub fn engine(toy: Toy, options: EngineOptions) -> (Engine, Arc<Mutex<Log>>) {
    let log = Arc::clone(&toy.log);
    (Engine::start(toy, vocabulary(), options).unwrap(), log)
}

/// A request for `max_tokens` more of `prompt`.
pub fn request(prompt: &[u32], max_tokens: usize) -> GenerateRequest {
    GenerateRequest {
        max_tokens: Some(max_tokens),
        stop_tokens: vec![END],
        ..GenerateRequest::new(prompt.to_vec())
    }
}

/// A whole generation.
#[derive(Debug)]
pub struct Outcome {
    pub events: Vec<Event>,
    pub tokens: Vec<Token>,
    pub reason: FinishReason,
    pub usage: Usage,
}

impl Outcome {
    pub fn ids(&self) -> Vec<u32> {
        self.tokens.iter().map(|token| token.id).collect()
    }

    pub fn text(&self) -> String {
        self.tokens.iter().map(|token| token.text.as_str()).collect()
    }
}

/// Reads a generation to its end, which has to be a good one.
pub fn collect(mut generation: Generation) -> Outcome {
    let mut events = Vec::new();
    while let Some(event) = generation.blocking_next() {
        events.push(event);
    }
    let tokens = events.iter().filter_map(|event| match event {
        Event::Token(token) => Some(token.clone()),
        _ => None,
    });
    let tokens = tokens.collect();
    match events.last() {
        Some(&Event::Finished { reason, usage }) => Outcome {
            tokens,
            reason,
            usage,
            events,
        },
        other => panic!("the generation ended with {other:?}"),
    }
}

pub fn run(engine: &Engine, request: GenerateRequest) -> Outcome {
    collect(engine.submit(request).unwrap())
}

/// A prompt of `len` tokens, different for each `seed`.
pub fn prompt(len: usize, seed: u32) -> Vec<u32> {
    (0..len as u32).map(|i| (i * 31 + seed * 97 + 5) % 256).collect()
}

/// The same request on a fresh engine.
pub fn cold(prompt: &[u32], max_tokens: usize) -> Vec<u32> {
    let (engine, _) = engine(
        Toy::new(),
        EngineOptions {
            cache_memory: 0,
            ..EngineOptions::default()
        },
    );
    run(&engine, request(prompt, max_tokens)).ids()
}
