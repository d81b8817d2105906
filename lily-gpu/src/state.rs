//! A sequence's state in device memory.

use std::sync::{Arc, Mutex, PoisonError};

use lily_model::{LayerKind, ModelConfig};

use crate::device::{BufferId, Device, Memory, RecordingId, Slice};
use crate::error::GpuError;
use crate::graph::{LayerState, StateSlices};
use crate::params::{Params, StepState};

/// What dropped sequences leave behind, until the model next has the device at hand.
#[derive(Debug, Default)]
pub(crate) struct Leftovers {
    buffers: Vec<BufferId>,
    recordings: Vec<RecordingId>,
}

/// Shared by a model and its sequences.
pub(crate) type Bin = Arc<Mutex<Leftovers>>;

/// Gives back what dropped sequences held.
pub(crate) fn empty(bin: &Bin, device: &mut impl Device) {
    let left = std::mem::take(&mut *bin.lock().unwrap_or_else(PoisonError::into_inner));
    left.recordings
        .into_iter()
        .for_each(|recording| device.discard(recording));
    left.buffers.into_iter().for_each(|buffer| device.release(buffer));
}

/// KV cache, convolution rings and recurrent states of one sequence.
#[derive(Debug)]
pub(crate) struct State {
    /// KV of each attention layer, `[2, capacity, kv_heads, head_dim]`: keys, then values.
    kv: Vec<Slice>,
    /// Convolution ring of each Gated DeltaNet layer.
    rings: Vec<Slice>,
    /// S of each Gated DeltaNet layer.
    states: Vec<Slice>,
    /// [`StepState`]
    pub step: Slice,
    kinds: Arc<[LayerKind]>,
    /// Tokens that the KV cache holds at most.
    pub capacity: usize,
    token_bytes: usize,
    pub bin: Bin,
}

/// Bytes of state that do not grow with the context.
pub(crate) fn fixed_bytes(config: &ModelConfig) -> usize {
    let layers = config
        .layers
        .iter()
        .filter(|&&kind| kind == LayerKind::DeltaNet)
        .count();
    layers * (ring_bytes(config) + state_bytes(config)) + size_of::<StepState>()
}

/// Bytes of KV that one token takes in all layers.
pub(crate) fn kv_bytes(config: &ModelConfig) -> usize {
    let layers = config
        .layers
        .iter()
        .filter(|&&kind| kind == LayerKind::Attention)
        .count();
    layers * 2 * token_bytes(config)
}

fn ring_bytes(config: &ModelConfig) -> usize {
    config.delta_net.conv_kernel * config.delta_net.conv_channels() * 2
}

fn state_bytes(config: &ModelConfig) -> usize {
    let d = &config.delta_net;
    d.value_heads * d.value_dim * d.key_dim * 4
}

/// Bytes of one token's keys (or values) in one layer.
fn token_bytes(config: &ModelConfig) -> usize {
    config.attention.kv_heads * config.attention.head_dim * 2
}

impl State {
    /// The state at position 0, with room for `capacity` tokens.
    pub fn new(
        device: &mut impl Device,
        config: &ModelConfig,
        kinds: &Arc<[LayerKind]>,
        capacity: usize,
        bin: &Bin,
    ) -> Result<State, GpuError> {
        let mut state = State {
            kv: Vec::new(),
            rings: Vec::new(),
            states: Vec::new(),
            step: Slice {
                buffer: BufferId(u32::MAX),
                offset: 0,
                len: 0,
            },
            kinds: kinds.clone(),
            capacity,
            token_bytes: token_bytes(config),
            bin: bin.clone(),
        };
        // each slice is in the state as soon as it exists, so that a failure gives back the earlier ones
        for kind in kinds.iter() {
            match kind {
                LayerKind::Attention => {
                    let slice = allocate(device, "KV cache", 2 * capacity * state.token_bytes)?;
                    state.kv.push(slice);
                }
                LayerKind::DeltaNet => {
                    let slice = allocate(device, "convolution ring", ring_bytes(config))?;
                    state.rings.push(slice);
                    let slice = allocate(device, "recurrent state", state_bytes(config))?;
                    state.states.push(slice);
                }
            }
        }
        state.step = allocate(device, "step", size_of::<StepState>())?;
        Ok(state)
    }

    /// Copies the first `tokens` tokens' state from `other`.
    pub fn copy_from(&mut self, device: &mut impl Device, other: &State, tokens: usize) -> Result<(), GpuError> {
        for (to, from) in self.kv.iter().zip(&other.kv) {
            let len = tokens * self.token_bytes;
            if len > 0 {
                device.copy(from.part(0, len), to.part(0, len))?;
                device.copy(
                    from.part(other.capacity * self.token_bytes, len),
                    to.part(self.capacity * self.token_bytes, len),
                )?;
            }
        }
        for (to, from) in self
            .rings
            .iter()
            .chain(&self.states)
            .zip(other.rings.iter().chain(&other.states))
        {
            device.copy(*from, *to)?;
        }
        Ok(())
    }

    /// Makes room for `capacity` tokens, keeping the first `tokens`.
    pub fn grow(&mut self, device: &mut impl Device, tokens: usize, capacity: usize) -> Result<(), GpuError> {
        for index in 0..self.kv.len() {
            let larger = allocate(device, "KV cache", 2 * capacity * self.token_bytes)?;
            let (old, len) = (self.kv[index], tokens * self.token_bytes);
            if len > 0 {
                device.copy(old.part(0, len), larger.part(0, len))?;
                device.copy(
                    old.part(self.capacity * self.token_bytes, len),
                    larger.part(capacity * self.token_bytes, len),
                )?;
            }
            self.kv[index] = larger;
            device.release(old.buffer);
        }
        self.capacity = capacity;
        Ok(())
    }

    /// The state as a pass sees it.
    pub fn slices(&self) -> StateSlices {
        let (mut kv, mut delta) = (self.kv.iter(), self.rings.iter().zip(&self.states));
        let half = self.capacity * self.token_bytes;
        let layers = self.kinds.iter().filter_map(|kind| match kind {
            LayerKind::Attention => kv.next().map(|slice| LayerState::Attention {
                k: slice.part(0, half),
                v: slice.part(half, half),
            }),
            LayerKind::DeltaNet => delta.next().map(|(&ring, &state)| LayerState::DeltaNet { ring, state }),
        });
        StateSlices {
            layers: layers.collect(),
            step: self.step,
        }
    }

    /// Sets what the next pass takes in; `sampled` tokens of the reply are chosen.
    pub fn write_step(
        &self,
        device: &mut impl Device,
        token: u32,
        position: usize,
        sampled: u32,
    ) -> Result<(), GpuError> {
        let step = StepState {
            token,
            position: position as u32,
            sampled,
            failed: 0,
        };
        device.write(self.step, &step.bytes())
    }

    /// Where the state of the first `tokens` tokens lies, all that a saved state holds.
    pub fn saved_slices(&self, tokens: usize) -> Vec<Slice> {
        let len = tokens * self.token_bytes;
        let kv = self
            .kv
            .iter()
            .flat_map(|slice| [slice.part(0, len), slice.part(self.capacity * self.token_bytes, len)]);
        kv.chain(self.rings.iter().copied())
            .chain(self.states.iter().copied())
            .filter(|slice| slice.len > 0)
            .collect()
    }

    /// Bytes of [`State::saved_slices`].
    pub fn saved_bytes(config: &ModelConfig, tokens: usize) -> usize {
        let fixed = fixed_bytes(config) - size_of::<StepState>();
        tokens.saturating_mul(kv_bytes(config)).saturating_add(fixed)
    }

    fn buffers(&self) -> impl Iterator<Item = Slice> + '_ {
        self.kv
            .iter()
            .chain(&self.rings)
            .chain(&self.states)
            .chain([&self.step])
            .copied()
    }

    /// Identity and bytes of each piece of memory.
    pub fn memory(&self, piece: &mut dyn FnMut(usize, usize)) {
        self.buffers()
            .for_each(|slice| piece(slice.buffer.0 as usize, slice.len));
    }

    /// Leaves a recording for the model to discard.
    pub fn discard(&self, recordings: impl IntoIterator<Item = RecordingId>) {
        self.bin
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .recordings
            .extend(recordings);
    }

    /// Leaves buffers for the model to release.
    pub fn leave(&self, buffers: impl IntoIterator<Item = BufferId>) {
        self.bin
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .buffers
            .extend(buffers);
    }
}

impl Drop for State {
    fn drop(&mut self) {
        let buffers: Vec<BufferId> = self
            .buffers()
            .filter(|slice| slice.len > 0)
            .map(|slice| slice.buffer)
            .collect();
        self.leave(buffers);
    }
}

fn allocate(device: &mut impl Device, label: &str, bytes: usize) -> Result<Slice, GpuError> {
    let buffer = device.allocate(label, bytes, Memory::Device)?;
    Ok(Slice {
        buffer,
        offset: 0,
        len: bytes,
    })
}
