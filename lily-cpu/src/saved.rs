//! A sequence's state as bytes, little-endian, and back: the same bits on both sides.
//!
//! Layer after layer: of an attention layer the blocks, of each block each KV head's keys, then its values, of the tokens that are there; of a
//! Gated DeltaNet layer the convolution's inputs, then the recurrent state. At the end the logits, where there are any.

use std::io::{self, Read, Write};
use std::sync::Arc;

use lily_model::{LayerKind, ModelConfig};

use crate::kv::{BLOCK_TOKENS, KvBlock, KvCache, KvRows, Part};
use crate::sequence::{LayerState, delta_net_sizes};
use crate::{CpuModel, KvPrecision, Sequence};

/// Bytes that are converted at a time.
const BUFFER: usize = 16 << 10;

/// Numbers that are saved bit by bit.
trait Saved: Copy + Default {
    const SIZE: usize;
    fn put(self, bytes: &mut [u8]);
    fn get(bytes: &[u8]) -> Self;
}

impl Saved for f32 {
    const SIZE: usize = 4;

    fn put(self, bytes: &mut [u8]) {
        bytes.copy_from_slice(&self.to_le_bytes());
    }

    fn get(bytes: &[u8]) -> f32 {
        f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
    }
}

impl Saved for u16 {
    const SIZE: usize = 2;

    fn put(self, bytes: &mut [u8]) {
        bytes.copy_from_slice(&self.to_le_bytes());
    }

    fn get(bytes: &[u8]) -> u16 {
        u16::from_le_bytes([bytes[0], bytes[1]])
    }
}

fn put<T: Saved>(numbers: &[T], out: &mut dyn Write) -> io::Result<()> {
    let mut buffer = [0; BUFFER];
    for numbers in numbers.chunks(BUFFER / T::SIZE) {
        let bytes = &mut buffer[..numbers.len() * T::SIZE];
        for (number, bytes) in numbers.iter().zip(bytes.chunks_exact_mut(T::SIZE)) {
            number.put(bytes);
        }
        out.write_all(bytes)?;
    }
    Ok(())
}

fn get<T: Saved>(numbers: &mut [T], from: &mut dyn Read) -> io::Result<()> {
    let mut buffer = [0; BUFFER];
    for numbers in numbers.chunks_mut(BUFFER / T::SIZE) {
        let bytes = &mut buffer[..numbers.len() * T::SIZE];
        from.read_exact(bytes)?;
        for (number, bytes) in numbers.iter_mut().zip(bytes.chunks_exact(T::SIZE)) {
            *number = T::get(bytes);
        }
    }
    Ok(())
}

/// Where the rows of a cache of `tokens` tokens lie: each run of rows with its block.
fn runs(tokens: usize, heads: usize, head_dim: usize) -> impl Iterator<Item = (usize, KvRows)> {
    (0..tokens.div_ceil(BLOCK_TOKENS)).flat_map(move |block| {
        let count = BLOCK_TOKENS.min(tokens - block * BLOCK_TOKENS);
        let parts = (0..heads).flat_map(|head| [(head, Part::Keys), (head, Part::Values)]);
        parts.map(move |(head, part)| {
            let rows = KvRows {
                head,
                part,
                first: 0,
                count,
                head_dim,
            };
            (block, rows)
        })
    })
}

impl KvCache {
    fn save(&self, tokens: usize, out: &mut dyn Write) -> io::Result<()> {
        for (block, rows) in runs(tokens, self.heads, self.head_dim) {
            match self.blocks[block].as_ref() {
                KvBlock::Bf16(data) => put(&data[rows.range()], out)?,
                KvBlock::F32(data) => put(&data[rows.range()], out)?,
            }
        }
        Ok(())
    }

    fn load(&mut self, tokens: usize, from: &mut dyn Read) -> io::Result<()> {
        let mut block = KvBlock::new(self.precision, self.block_len());
        for (index, rows) in runs(tokens, self.heads, self.head_dim) {
            if index > self.blocks.len() {
                let full = std::mem::replace(&mut block, KvBlock::new(self.precision, self.block_len()));
                self.blocks.push(Arc::new(full));
            }
            match &mut block {
                KvBlock::Bf16(data) => get(&mut data[rows.range()], from)?,
                KvBlock::F32(data) => get(&mut data[rows.range()], from)?,
            }
        }
        if tokens > 0 {
            self.blocks.push(Arc::new(block));
        }
        Ok(())
    }
}

impl Sequence {
    /// Writes the whole state, [`CpuModel::saved_bytes`] bytes.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn save(&self, out: &mut dyn Write) -> io::Result<()> {
        for layer in &self.layers {
            match layer {
                LayerState::Attention(cache) => cache.save(self.position, out)?,
                LayerState::DeltaNet(state) => {
                    put(&state.conv, out)?;
                    put(&state.recurrent, out)?;
                }
            }
        }
        put(&self.logits, out)
    }
}

impl CpuModel {
    /// Bytes that [`Sequence::save`] writes of a sequence of `tokens` tokens, with its logits or without.
    pub fn saved_bytes(&self, tokens: usize, with_logits: bool) -> usize {
        saved_bytes(&self.config, self.kv, tokens, with_logits)
    }

    /// The sequence of `tokens` tokens that [`Sequence::save`] wrote, in a model of the same shape and options.
    ///
    /// # Errors
    /// Those of `from`; it is an error where it ends too soon.
    pub fn load(&self, tokens: usize, with_logits: bool, from: &mut dyn Read) -> io::Result<Sequence> {
        let mut sequence = self.new_sequence();
        for layer in &mut sequence.layers {
            match layer {
                LayerState::Attention(cache) => cache.load(tokens, from)?,
                LayerState::DeltaNet(state) => {
                    get(&mut state.conv, from)?;
                    get(&mut state.recurrent, from)?;
                }
            }
        }
        if with_logits {
            sequence.logits.resize(self.config.vocab_size, 0.0);
            get(&mut sequence.logits, from)?;
        }
        sequence.position = tokens;
        Ok(sequence)
    }

    /// What the bytes of a state depend on beside the checkpoint: number formats, and the kernels, whose rounding differs.
    pub fn state_format(&self) -> String {
        let activations = if self.exact { "exact" } else { "quantized" };
        let kv = match self.kv {
            KvPrecision::Bf16 => "bf16",
            KvPrecision::F32 => "f32",
        };
        format!("cpu, {}, {activations} activations, {kv} KV", self.set.name())
    }
}

fn saved_bytes(config: &ModelConfig, kv: KvPrecision, tokens: usize, with_logits: bool) -> usize {
    let (conv, recurrent) = delta_net_sizes(config);
    let number = match kv {
        KvPrecision::Bf16 => 2,
        KvPrecision::F32 => 4,
    };
    let row = config.attention.kv_heads * config.attention.head_dim;
    let layers = config.layers.iter().map(|kind| match kind {
        LayerKind::Attention => tokens.saturating_mul(2 * row * number),
        LayerKind::DeltaNet => (conv + recurrent) * size_of::<f32>(),
    });
    let logits = if with_logits {
        config.vocab_size * size_of::<f32>()
    } else {
        0
    };
    layers.fold(logits, usize::saturating_add)
}
