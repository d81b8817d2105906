//! A model on a device, and its public calls.

use std::sync::Arc;
use std::time::Duration;

use lily_model::{LayerKind, ModelConfig, Weights};

use crate::device::{Device, DeviceDescription, Memory, RecordingId, Slice};
use crate::error::GpuError;
use crate::graph::Model;
use crate::graph::decode::decode_pass;
use crate::graph::prefill::{Chunk, Step, logits_pass, prefill_steps};
use crate::graph::scratch::{LOGIT_ROWS, Scratch};
use crate::hand_off::{HandOff, hand_off_bytes};
use crate::memory::MemoryPlan;
use crate::pass::Pass;
use crate::policy::{self, AttentionRoute};
use crate::routing::HostRouting;
use crate::state::{Bin, State, empty, fixed_bytes, kv_bytes};
use crate::switches::Switches;
use crate::weights::{GpuMatrix, GpuMixer, GpuWeights, Upload};

/// Tokens that a new sequence has room for; more room is made by doubling.
pub(crate) const FIRST_CAPACITY: usize = 1024;

/// How a model runs.
#[derive(Clone, Copy, Debug)]
pub struct GpuOptions {
    /// Optimizations in use.
    pub switches: Switches,
    /// Tokens of the largest prefill chunk.
    pub max_chunk: usize,
    /// Tokens of the longest sequence; the model's own limit for `None`.
    pub max_context: Option<usize>,
}

impl Default for GpuOptions {
    fn default() -> Self {
        GpuOptions {
            switches: Switches::default(),
            max_chunk: policy::MAX_CHUNK,
            max_context: None,
        }
    }
}

/// Which rows of a prefill chunk get logits.
pub enum LogitRows<'a> {
    /// None: more chunks follow.
    None,
    /// The last row, readable afterwards through [`Sequence::logits`].
    Last,
    /// Every row, handed over in order (row, `vocab_size` logits); the last stays readable through [`Sequence::logits`].
    All(&'a mut dyn FnMut(usize, &[f32])),
}

/// One conversation's state at one position.
#[derive(Debug)]
pub struct Sequence {
    pub(crate) state: State,
    pub(crate) position: usize,
    pub(crate) logits: Vec<f32>,
    pub(crate) hand_off: Option<Box<HandOff>>,
    decode: Option<(AttentionRoute, RecordingId)>,
}

impl Sequence {
    /// Tokens that the sequence holds.
    pub fn position(&self) -> usize {
        self.position
    }

    /// Logits `[vocab_size]` after the last token; empty where the last chunk asked for none.
    pub fn logits(&self) -> &[f32] {
        &self.logits
    }

    /// Leaves what a hand-off held for the model to give back.
    pub(crate) fn leave(&self, hand_off: HandOff) {
        let (buffers, recording) = hand_off.into_parts();
        self.state.leave(buffers);
        self.state.discard(recording);
    }
}

impl Drop for Sequence {
    fn drop(&mut self) {
        if let Some(hand_off) = self.hand_off.take() {
            self.leave(*hand_off);
        }
        self.state.discard(self.decode.take().map(|(_, recording)| recording));
    }
}

/// A frozen copy of a sequence.
#[derive(Debug)]
pub struct Snapshot {
    pub(crate) state: State,
    pub(crate) position: usize,
    pub(crate) logits: Vec<f32>,
}

impl Snapshot {
    /// Tells `piece` the identity and the bytes of each piece of memory that the snapshot keeps alive.
    pub fn memory(&self, piece: &mut dyn FnMut(usize, usize)) {
        self.state.memory(piece);
        piece(self.logits.as_ptr() as usize, self.logits.len() * size_of::<f32>());
    }
}

/// A model on a device.
pub struct GpuModel<D> {
    pub(crate) device: D,
    config: Arc<ModelConfig>,
    kinds: Arc<[LayerKind]>,
    weights: GpuWeights,
    scratch: Scratch,
    expanded: Option<Slice>,
    pub(crate) options: GpuOptions,
    pub(crate) bin: Bin,
    /// What was timed, while a profile is made.
    profile: Option<Vec<TimedDispatch>>,
}

/// A dispatch that ran alone, with its time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimedDispatch {
    /// What it computed: `layer 3 attention`.
    pub label: String,
    /// Its kernel.
    pub kernel: String,
    /// Its pass since the start of the profile, and the dependency stage in that pass.
    pub stage: (usize, usize),
    /// How long it took.
    pub time: Duration,
}

impl<D: Device> GpuModel<D> {
    /// Copies `weights` to `device`; `progress` is told the bytes of each piece.
    ///
    /// # Errors
    /// Where the model has a shape that no kernel takes, or the device has no room, which is known before anything is copied.
    pub fn new(
        mut device: D,
        config: Arc<ModelConfig>,
        weights: &Weights,
        options: GpuOptions,
        progress: &mut dyn FnMut(usize),
    ) -> Result<GpuModel<D>, GpuError> {
        policy::check_shape(&config)?;
        if options.max_chunk == 0 {
            return Err(GpuError::Invalid(
                "a prefill chunk has at least one token, but --chunk is 0".into(),
            ));
        }
        let plan = MemoryPlan::of(&config, weights, &options)?;
        plan.check(&device.describe().description, device.available(), options.max_context)?;
        let placed = GpuWeights::place(
            &config,
            weights,
            &mut Upload {
                device: &mut device,
                progress,
            },
        )?;
        let mut allocate = |label: &str, bytes: usize| {
            let buffer = device.allocate(label, bytes, Memory::Device)?;
            Ok(Slice {
                buffer,
                offset: 0,
                len: bytes,
            })
        };
        let context = options.max_context.unwrap_or(config.max_position_embeddings);
        let scratch = Scratch::new(
            &config,
            options.max_chunk,
            context,
            placed.separate_swiglu(&options.switches),
            &mut allocate,
        )?;
        let expanded = match options.switches.fused_dequant {
            true => None,
            false => Some(allocate("expanded weights", expanded_bytes(&placed))?),
        };
        Ok(GpuModel {
            device,
            kinds: placed.kinds().collect(),
            weights: placed,
            scratch,
            expanded,
            options,
            bin: Bin::default(),
            profile: None,
            config,
        })
    }

    /// What the model runs on.
    pub fn describe(&self) -> DeviceDescription {
        self.device.describe()
    }

    /// Bytes that the device has left.
    pub fn free_memory(&self) -> usize {
        self.device.available()
    }

    /// Runs dispatches one by one from now on and notes the time of each, until [`GpuModel::stop_profile`].
    pub fn start_profile(&mut self) {
        self.profile = Some(Vec::new());
    }

    /// The dispatches of the steps since [`GpuModel::start_profile`], in order.
    pub fn stop_profile(&mut self) -> Vec<TimedDispatch> {
        self.profile.take().unwrap_or_default()
    }

    /// The device.
    pub fn device(&mut self) -> &mut D {
        &mut self.device
    }

    /// Shape of the model.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Optimizations in use.
    pub fn switches(&self) -> &Switches {
        &self.options.switches
    }

    /// Tokens of the largest prefill chunk.
    pub fn max_chunk(&self) -> usize {
        self.options.max_chunk
    }

    /// Tokens of the longest sequence.
    pub fn context_limit(&self) -> usize {
        self.options.max_context.unwrap_or(self.config.max_position_embeddings)
    }

    /// Bytes of state that a sequence of `tokens` tokens takes.
    pub fn sequence_bytes(&self, tokens: usize) -> usize {
        let kv = capacity_for(tokens, self.context_limit()) * kv_bytes(&self.config);
        fixed_bytes(&self.config) + hand_off_bytes(self.config.vocab_size) + kv
    }

    /// A sequence at position 0.
    ///
    /// # Errors
    /// Where the device has no room.
    pub fn new_sequence(&mut self) -> Result<Sequence, GpuError> {
        empty(&self.bin, &mut self.device);
        let capacity = capacity_for(1, self.context_limit());
        let state = self.new_state(capacity)?;
        Ok(Sequence {
            state,
            position: 0,
            logits: Vec::new(),
            hand_off: None,
            decode: None,
        })
    }

    /// Appends a chunk of 1 to [`GpuModel::max_chunk`] tokens.
    ///
    /// # Errors
    /// Where the chunk is empty or too long, a token is not in the vocabulary, there is no room, or the device failed.
    pub fn prefill(
        &mut self,
        sequence: &mut Sequence,
        tokens: &[u32],
        mut logits: LogitRows<'_>,
    ) -> Result<(), GpuError> {
        if tokens.is_empty() || tokens.len() > self.options.max_chunk {
            return Err(GpuError::Invalid(format!(
                "a chunk of {} tokens; 1 to {} are taken",
                tokens.len(),
                self.options.max_chunk
            )));
        }
        self.make_room(sequence, tokens)?;
        sequence.logits.clear();
        let mut done = 0;
        while done < tokens.len() {
            let rows = policy::chunk_for_context(self.device.family(), self.options.max_chunk, sequence.position)
                .min(tokens.len() - done);
            self.prefill_part(sequence, &tokens[done..done + rows])?;
            match &mut logits {
                LogitRows::All(each) => {
                    let vocab = self.config.vocab_size;
                    for first in (0..rows).step_by(LOGIT_ROWS) {
                        let block = self.row_logits(sequence.state.step, first, LOGIT_ROWS.min(rows - first))?;
                        let numbered = block.chunks_exact(vocab).enumerate();
                        numbered.for_each(|(index, row)| each(done + first + index, row));
                        sequence.logits = block[block.len() - vocab..].to_vec();
                    }
                }
                LogitRows::Last if done + rows == tokens.len() => {
                    sequence.logits = self.row_logits(sequence.state.step, rows - 1, 1)?;
                }
                _ => {}
            }
            done += rows;
        }
        Ok(())
    }

    /// A part of a chunk through all layers.
    fn prefill_part(&mut self, sequence: &mut Sequence, tokens: &[u32]) -> Result<(), GpuError> {
        let rows = tokens.len();
        let bytes: Vec<u8> = tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
        self.device.write(self.scratch.tokens, &bytes)?;
        sequence.state.write_step(&mut self.device, 0, sequence.position, 0)?;
        let chunk = Chunk {
            rows,
            position: sequence.position,
            pass_limit: self.device.pass_limit(),
        };
        for step in prefill_steps(self.graph(), &sequence.state.slices(), chunk) {
            match step {
                Step::Run(pass) => self.run(&pass)?,
                Step::HostRouting { tile_rows } => {
                    let (config, scratch) = (&self.config, &self.scratch);
                    HostRouting {
                        config,
                        scratch,
                        rows,
                        tile_rows,
                    }
                    .run(&mut self.device)?;
                }
            }
        }
        sequence.position += rows;
        Ok(())
    }

    /// Appends one token; its logits are ready afterwards.
    ///
    /// # Errors
    /// Where the token is not in the vocabulary, there is no room, or the device failed.
    pub fn decode(&mut self, sequence: &mut Sequence, token: u32) -> Result<(), GpuError> {
        self.make_room(sequence, &[token])?;
        sequence
            .state
            .write_step(&mut self.device, token, sequence.position, 0)?;
        if self.profile.is_some() {
            self.run(&self.decode_pass(sequence))?;
        } else {
            let recording = self.decode_recording(sequence)?;
            self.device.submit(recording)?;
        }
        sequence.position += 1;
        sequence.logits = self.read_floats(self.scratch.logits.part(0, self.config.vocab_size * 4))?;
        Ok(())
    }

    /// What `from` holds once all submitted work is done.
    pub(crate) fn read_floats(&mut self, from: Slice) -> Result<Vec<f32>, GpuError> {
        let mut bytes = vec![0; from.len];
        self.device.read(from, &mut bytes)?;
        let words = bytes.as_chunks::<4>().0;
        Ok(words.iter().map(|&word| f32::from_le_bytes(word)).collect())
    }

    /// The recording that decodes at the sequence's position.
    fn decode_recording(&mut self, sequence: &mut Sequence) -> Result<RecordingId, GpuError> {
        let route = self.attention_route(sequence.position);
        if let Some((recorded, recording)) = sequence.decode {
            if recorded == route {
                return Ok(recording);
            }
            self.device.discard(recording);
        }
        let pass = decode_pass(self.graph(), &sequence.state.slices(), route, None);
        let recording = self.device.record(&pass)?;
        sequence.decode = Some((route, recording));
        Ok(recording)
    }

    /// How a token at `position` attends.
    pub(crate) fn attention_route(&self, position: usize) -> AttentionRoute {
        let (family, switches) = (self.device.family(), &self.options.switches);
        policy::attention_route(family, &self.config, position + 1, switches)
    }

    /// The pass that decodes at the sequence's position.
    pub fn decode_pass(&self, sequence: &Sequence) -> Pass {
        let route = self.attention_route(sequence.position);
        decode_pass(self.graph(), &sequence.state.slices(), route, None)
    }

    /// A frozen copy of the whole state.
    ///
    /// # Errors
    /// Where the device has no room.
    pub fn snapshot(&mut self, sequence: &Sequence) -> Result<Snapshot, GpuError> {
        empty(&self.bin, &mut self.device);
        let state = self.copy(&sequence.state, sequence.position, sequence.position.max(1))?;
        Ok(Snapshot {
            state,
            position: sequence.position,
            logits: sequence.logits.clone(),
        })
    }

    /// A sequence in the state of `snapshot`.
    ///
    /// # Errors
    /// Where the device has no room.
    pub fn restore(&mut self, snapshot: &Snapshot) -> Result<Sequence, GpuError> {
        empty(&self.bin, &mut self.device);
        let capacity = capacity_for(snapshot.position + 1, self.context_limit());
        let state = self.copy(&snapshot.state, snapshot.position, capacity)?;
        Ok(Sequence {
            state,
            position: snapshot.position,
            logits: snapshot.logits.clone(),
            hand_off: None,
            decode: None,
        })
    }

    /// An empty state with room for `capacity` tokens.
    pub(crate) fn new_state(&mut self, capacity: usize) -> Result<State, GpuError> {
        State::new(&mut self.device, &self.config, &self.kinds, capacity, &self.bin)
    }

    fn copy(&mut self, from: &State, tokens: usize, capacity: usize) -> Result<State, GpuError> {
        let mut state = self.new_state(capacity)?;
        state.copy_from(&mut self.device, from, tokens)?;
        Ok(state)
    }

    pub(crate) fn graph(&self) -> Model<'_> {
        Model {
            config: &self.config,
            weights: &self.weights,
            scratch: &self.scratch,
            switches: &self.options.switches,
            family: self.device.family(),
            expanded: self.expanded,
        }
    }

    /// Checks tokens that are to be appended, and makes room for them.
    pub(crate) fn make_room(&mut self, sequence: &mut Sequence, tokens: &[u32]) -> Result<(), GpuError> {
        empty(&self.bin, &mut self.device);
        if sequence.hand_off.is_some() {
            return Err(GpuError::Invalid("the device chooses this sequence's tokens".into()));
        }
        let vocab = self.config.vocab_size;
        if let Some(token) = tokens.iter().find(|&&token| token as usize >= vocab) {
            return Err(GpuError::Invalid(format!(
                "token {token} is not below the vocabulary's {vocab}"
            )));
        }
        let needed = sequence.position + tokens.len();
        if needed > self.context_limit() {
            return Err(GpuError::Invalid(format!(
                "{needed} tokens are more than the context of {}",
                self.context_limit()
            )));
        }
        if needed > sequence.state.capacity {
            sequence
                .state
                .discard(sequence.decode.take().map(|(_, recording)| recording));
            let capacity = capacity_for(needed, self.context_limit());
            sequence.state.grow(&mut self.device, sequence.position, capacity)?;
        }
        Ok(())
    }

    fn run(&mut self, pass: &Pass) -> Result<(), GpuError> {
        let Some(profile) = &mut self.profile else {
            return self.device.run_once(pass).map(drop);
        };
        let times = self.device.time(pass)?;
        let number = profile.last().map_or(0, |last| last.stage.0 + 1);
        let timed = pass.dispatches().iter().zip(times).enumerate();
        profile.extend(timed.map(|(index, (dispatch, time))| TimedDispatch {
            label: dispatch.label.clone(),
            kernel: dispatch.kernel.clone(),
            stage: (number, pass.stage(index)),
            time,
        }));
        Ok(())
    }

    /// Logits of rows `[first, first + rows)` of the chunk that was prefilled last.
    fn row_logits(&mut self, step: Slice, first: usize, rows: usize) -> Result<Vec<f32>, GpuError> {
        let pass = logits_pass(self.graph(), step, first, rows);
        self.run(&pass)?;
        self.read_floats(self.scratch.logits.part(0, rows * self.config.vocab_size * 4))
    }
}

/// Room that a sequence of `tokens` tokens has.
fn capacity_for(tokens: usize, limit: usize) -> usize {
    tokens.max(FIRST_CAPACITY).next_power_of_two().min(limit)
}

/// Bytes for the largest group of matrices that one product expands.
pub(crate) fn expanded_bytes(weights: &GpuWeights) -> usize {
    let bytes = |m: &GpuMatrix| (m.count * m.rows * m.cols * 2).next_multiple_of(256);
    let layer = |layer: &crate::weights::GpuLayer| {
        let mixer = match &layer.mixer {
            GpuMixer::Attention(w) => (bytes(&w.q) + bytes(&w.k) + bytes(&w.v)).max(bytes(&w.o)),
            GpuMixer::DeltaNet(w) => (bytes(&w.qkv) + bytes(&w.z) + bytes(&w.b) + bytes(&w.a)).max(bytes(&w.out)),
        };
        let mlp = |m: &crate::weights::GpuMlp| (bytes(&m.gate) + bytes(&m.up)).max(bytes(&m.down));
        mixer
            .max(mlp(&layer.shared))
            .max(layer.routed.map_or(0, |routed| mlp(&routed.experts)))
    };
    weights.layers.iter().map(layer).max().unwrap_or(0)
}
