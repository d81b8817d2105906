//! A snapshot's state as bytes, and back: the same bits on both sides.
//!
//! Of each attention layer the keys, then the values, of the tokens that are there, as the device has them; then the convolution rings, then the
//! recurrent states; at the end the logits, little-endian, where there are any.

use std::io::{self, Read};

use thiserror::Error;

use crate::device::{Device, Slice};
use crate::error::GpuError;
use crate::model::{GpuModel, Snapshot};
use crate::state::{State, empty};

/// Why a saved state could not be loaded.
#[derive(Debug, Error)]
pub enum LoadError {
    /// The bytes could not be read.
    #[error(transparent)]
    Read(#[from] io::Error),
    /// The device has no room, or failed.
    #[error(transparent)]
    Device(#[from] GpuError),
}

/// Bytes that go to the device at a time.
const BUFFER: usize = 4 << 20;

impl<D: Device> GpuModel<D> {
    /// Bytes of the saved state of `tokens` tokens, with its logits or without.
    pub fn saved_bytes(&self, tokens: usize, with_logits: bool) -> usize {
        let logits = if with_logits {
            self.config().vocab_size * size_of::<f32>()
        } else {
            0
        };
        State::saved_bytes(self.config(), tokens).saturating_add(logits)
    }

    /// The state of `snapshot` as bytes.
    ///
    /// # Errors
    /// Where the device failed.
    pub fn save(&mut self, snapshot: &Snapshot) -> Result<Vec<u8>, GpuError> {
        let mut bytes = vec![0; State::saved_bytes(self.config(), snapshot.position)];
        let mut rest = &mut bytes[..];
        for slice in snapshot.state.saved_slices(snapshot.position) {
            let (part, tail) = std::mem::take(&mut rest).split_at_mut(slice.len);
            self.device.read(slice, part)?;
            rest = tail;
        }
        bytes.extend(snapshot.logits.iter().flat_map(|logit| logit.to_le_bytes()));
        Ok(bytes)
    }

    /// The snapshot of `tokens` tokens whose saved state `from` holds.
    ///
    /// # Errors
    /// Those of `from`, which has to have [`GpuModel::saved_bytes`] bytes; and where the device failed or has no room.
    pub fn load(&mut self, tokens: usize, with_logits: bool, from: &mut dyn Read) -> Result<Snapshot, LoadError> {
        empty(&self.bin, &mut self.device);
        let state = self.new_state(tokens.max(1))?;
        let mut buffer = Vec::new();
        for slice in state.saved_slices(tokens) {
            for start in (0..slice.len).step_by(BUFFER) {
                let part: Slice = slice.part(start, BUFFER.min(slice.len - start));
                buffer.resize(part.len, 0);
                from.read_exact(&mut buffer)?;
                self.device.write(part, &buffer)?;
            }
        }
        let mut logits = Vec::new();
        if with_logits {
            buffer.resize(self.config().vocab_size * size_of::<f32>(), 0);
            from.read_exact(&mut buffer)?;
            let (words, _) = buffer.as_chunks::<4>();
            logits.extend(words.iter().map(|&word| f32::from_le_bytes(word)));
        }
        Ok(Snapshot {
            state,
            position: tokens,
            logits,
        })
    }

    /// What the bytes of a state depend on beside the checkpoint: the device's kernels, whose rounding differs.
    pub fn state_format(&self) -> String {
        let device = self.describe();
        format!("{}, {}, {:?}", device.kind, device.description, self.options.switches)
    }
}
