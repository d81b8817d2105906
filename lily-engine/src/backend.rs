//! What the engine asks of the machine that runs the model.

mod cpu;
mod gpu;

use std::io::{self, Read, Write};
use std::sync::Arc;

use lily_model::SamplerStart;
use thiserror::Error;

/// Why a backend could not do what it was asked.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum BackendError {
    /// The state of another sequence, or more of this one, does not fit.
    #[error("{needed} bytes are needed for the sequence's state, {available} are left")]
    OutOfMemory {
        /// Bytes asked for.
        needed: usize,
        /// Bytes left in the memory plan.
        available: usize,
    },
    /// The device failed; the sequences it held are lost.
    #[error("the device failed: {0}")]
    Device(String),
    /// The model's logits are not numbers.
    #[error("the model's logits are not finite at position {position}")]
    NotFinite {
        /// Tokens before the one that could not be told.
        position: usize,
    },
}

/// Why a saved state could not be loaded.
#[derive(Debug, Error)]
pub enum LoadError {
    /// The bytes could not be read.
    #[error(transparent)]
    Read(#[from] io::Error),
    /// The device has no room, or failed; the bytes may be right.
    #[error(transparent)]
    Backend(#[from] BackendError),
}

/// Writes a saved state, on any thread.
pub type SaveState = Box<dyn FnOnce(&mut dyn Write) -> io::Result<()> + Send>;

/// What runs the model, for people and for `/status`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// `cpu`, `emulator`, `cuda` or `metal`.
    pub kind: String,
    /// Processor or GPU and the kernels in use, for people: `AMD EPYC, 2 threads, AVX2`.
    pub description: String,
}

/// Which rows of a prefill chunk get logits.
pub enum PrefillLogits<'a> {
    /// None: more chunks follow.
    None,
    /// The last row, readable afterwards through [`Backend::logits`].
    Last,
    /// Every row, handed over in order (row, `vocab_size` logits); the last stays readable through [`Backend::logits`].
    All(&'a mut dyn FnMut(usize, &[f32])),
}

/// One sequence's part of a decode step.
pub struct DecodeStep<'a, S> {
    /// The sequence to extend.
    pub sequence: &'a mut S,
    /// Its next token.
    pub token: u32,
}

/// A model on a device.
///
/// A sequence is one conversation's state at one position: the KV cache of the attention layers, the convolution and recurrent
/// states of the Gated DeltaNet layers, and the last logits. They travel together or not at all.
///
/// What a sequence computes depends on its own tokens only: not on how its prompt was cut into chunks, not on which other sequences share a
/// decode step, not on whether it was restored from a snapshot.
///
/// Errors of [`Backend::prefill`], [`Backend::decode`] and the hand-off leave the sequences that took part unusable, and no others.
pub trait Backend: Send + 'static {
    /// State of one conversation.
    type Sequence: Send;
    /// A frozen copy of a sequence; later work on the sequence does not change it.
    type Snapshot: Send + Sync;

    /// What runs the model.
    fn device(&self) -> DeviceInfo;

    /// Logits of a row: the rows of lm_head.
    fn vocab_size(&self) -> usize;

    /// Tokens of the largest prefill chunk that the backend takes at once.
    fn max_chunk(&self) -> usize;

    /// Sequences of the largest decode step.
    fn max_batch(&self) -> usize;

    /// Tokens of the longest sequence that the model was made for.
    fn context_limit(&self) -> usize;

    /// A sequence at position 0.
    fn new_sequence(&mut self) -> Result<Self::Sequence, BackendError>;

    /// Tokens that `sequence` holds.
    fn position(&self, sequence: &Self::Sequence) -> usize;

    /// Appends a chunk of 1 to [`Backend::max_chunk`] tokens. Any split of a prompt into chunks gives the same result.
    fn prefill(
        &mut self,
        sequence: &mut Self::Sequence,
        tokens: &[u32],
        logits: PrefillLogits<'_>,
    ) -> Result<(), BackendError>;

    /// Appends one token to each of up to [`Backend::max_batch`] different sequences, reading the weights once; each one's logits are ready
    /// afterwards.
    fn decode(&mut self, batch: &mut [DecodeStep<'_, Self::Sequence>]) -> Result<(), BackendError>;

    /// Logits `[vocab_size]` after the last token of `sequence`; empty where the last chunk asked for none.
    fn logits<'a>(&'a self, sequence: &'a Self::Sequence) -> &'a [f32];

    /// Whether the device can choose tokens by itself: see [`Backend::start_hand_off`].
    fn hands_over_tokens(&self) -> bool {
        false
    }

    /// Lets the device choose the tokens that follow `token`, which is the next one of `sequence`, by the definition of [`crate::sampling`], and
    /// hand each to the next pass without the host. Until [`Backend::end_hand_off`], the sequence is only for [`Backend::next_token`] and
    /// [`Backend::snapshot`].
    fn start_hand_off(
        &mut self,
        _sequence: &mut Self::Sequence,
        _token: u32,
        _start: &SamplerStart<'_>,
    ) -> Result<(), BackendError> {
        Err(BackendError::Device("it cannot choose tokens".into()))
    }

    /// The next token. With `ahead` the token must stand: a pass that takes it in is then already running.
    fn next_token(&mut self, _sequence: &mut Self::Sequence, _ahead: bool) -> Result<u32, BackendError> {
        Err(BackendError::Device("it cannot choose tokens".into()))
    }

    /// The host chooses the tokens of `sequence` again, from its logits. [`Backend::position`] then says whether it holds the last token already.
    fn end_hand_off(&mut self, _sequence: &mut Self::Sequence) -> Result<(), BackendError> {
        Ok(())
    }

    /// A frozen copy of the whole state.
    fn snapshot(&mut self, sequence: &Self::Sequence) -> Result<Self::Snapshot, BackendError>;

    /// A sequence in the state of `snapshot`.
    fn restore(&mut self, snapshot: &Self::Snapshot) -> Result<Self::Sequence, BackendError>;

    /// Bytes of state that a sequence of `tokens` tokens takes; grows with `tokens`.
    fn sequence_bytes(&self, tokens: usize) -> usize;

    /// Tells `piece` the identity and the bytes of each piece of memory that `snapshot` keeps alive. What two snapshots share has the same
    /// identity in both; an identity is not used anew while a snapshot holds it.
    fn snapshot_memory(&self, snapshot: &Self::Snapshot, piece: &mut dyn FnMut(usize, usize));

    /// Names what the bytes of a saved state depend on beside the checkpoint: number formats, and kernels, whose rounding differs.
    fn state_format(&self) -> String;

    /// Bytes of the saved state of `tokens` tokens, with its logits or without.
    fn saved_bytes(&self, tokens: usize, with_logits: bool) -> usize;

    /// What writes the state of `snapshot`, all [`Backend::saved_bytes`] of it.
    fn save(&mut self, snapshot: &Arc<Self::Snapshot>) -> Result<SaveState, BackendError>;

    /// The snapshot of `tokens` tokens that [`Backend::save`] wrote, in the same bits. `from` may hold anything, and may end early.
    fn load(&mut self, tokens: usize, with_logits: bool, from: &mut dyn Read) -> Result<Self::Snapshot, LoadError>;
}
