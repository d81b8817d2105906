//! The KV cache of one attention layer, in blocks that snapshots share.

use std::sync::Arc;

use crate::KvPrecision;
use crate::simd::{Kernel, LANES, Lanes};

/// Tokens of a block.
pub(crate) const BLOCK_TOKENS: usize = 256;

/// Keys and values of [`BLOCK_TOKENS`] tokens: `[kv_heads, 2 (keys, values), BLOCK_TOKENS, head_dim]`.
#[derive(Clone, Debug)]
pub(crate) enum KvBlock {
    Bf16(Vec<u16>),
    F32(Vec<f32>),
}

/// Which half of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Keys = 0,
    Values = 1,
}

/// Rows of a block: tokens `first..first + count` of one part of one KV head.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KvRows {
    pub(crate) head: usize,
    pub(crate) part: Part,
    pub(crate) first: usize,
    pub(crate) count: usize,
    pub(crate) head_dim: usize,
}

impl KvRows {
    pub(crate) fn range(self) -> std::ops::Range<usize> {
        let start = ((2 * self.head + self.part as usize) * BLOCK_TOKENS + self.first) * self.head_dim;
        start..start + self.count * self.head_dim
    }
}

impl KvBlock {
    pub(crate) fn new(precision: KvPrecision, len: usize) -> KvBlock {
        match precision {
            KvPrecision::Bf16 => KvBlock::Bf16(vec![0; len]),
            KvPrecision::F32 => KvBlock::F32(vec![0.0; len]),
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        match self {
            KvBlock::Bf16(data) => size_of_val(&data[..]),
            KvBlock::F32(data) => size_of_val(&data[..]),
        }
    }

    /// Where some rows lie: their address and bytes.
    pub(crate) fn place(&self, rows: KvRows) -> (*const u8, usize) {
        match self {
            KvBlock::Bf16(data) => (data[rows.range()].as_ptr().cast(), 2 * rows.range().len()),
            KvBlock::F32(data) => (data[rows.range()].as_ptr().cast(), 4 * rows.range().len()),
        }
    }

    /// Some rows as f32: where they are, or in `room` if they have to be converted.
    #[inline(always)]
    pub(crate) fn rows<'a, V: Lanes>(&'a self, rows: KvRows, room: &'a mut [f32]) -> &'a [f32] {
        match self {
            KvBlock::Bf16(data) => {
                let data = &data[rows.range()];
                let room = &mut room[..data.len()];
                for (from, to) in data.chunks_exact(LANES).zip(room.chunks_exact_mut(LANES)) {
                    // SAFETY: both chunks hold eight numbers.
                    unsafe { V::load_bf16(from.as_ptr().cast()).store(to.as_mut_ptr()) };
                }
                room
            }
            KvBlock::F32(data) => &data[rows.range()],
        }
    }
}

/// Writes rows of a block.
struct WriteRows<'a> {
    block: &'a mut KvBlock,
    rows: KvRows,
    values: &'a [f32],
}

impl Kernel for WriteRows<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Lanes>(self) {
        match self.block {
            KvBlock::Bf16(data) => {
                let rows = &mut data[self.rows.range()];
                for (to, from) in rows.chunks_exact_mut(LANES).zip(self.values.chunks_exact(LANES)) {
                    // SAFETY: both chunks hold eight numbers.
                    unsafe { V::load(from.as_ptr()).store_bf16(to.as_mut_ptr()) };
                }
            }
            KvBlock::F32(data) => data[self.rows.range()].copy_from_slice(self.values),
        }
    }
}

/// Keys and values of one layer, token after token. Clones share the blocks; the one that a clone writes next is copied first.
#[derive(Clone, Debug)]
pub(crate) struct KvCache {
    pub(crate) blocks: Vec<Arc<KvBlock>>,
    pub(crate) precision: KvPrecision,
    pub(crate) heads: usize,
    pub(crate) head_dim: usize,
}

impl KvCache {
    pub(crate) fn new(precision: KvPrecision, heads: usize, head_dim: usize) -> KvCache {
        KvCache {
            blocks: Vec::new(),
            precision,
            heads,
            head_dim,
        }
    }

    pub(crate) fn blocks(&self) -> &[Arc<KvBlock>] {
        &self.blocks
    }

    /// Numbers of a block.
    pub(crate) fn block_len(&self) -> usize {
        2 * BLOCK_TOKENS * self.heads * self.head_dim
    }

    /// Writes keys and values (`[tokens, heads * head_dim]`) of the tokens from `position` on.
    pub(crate) fn write(&mut self, set: crate::KernelSet, position: usize, keys: &[f32], values: &[f32]) {
        let (heads, head_dim) = (self.heads, self.head_dim);
        let row = heads * head_dim;
        for (token, (keys, values)) in keys.chunks_exact(row).zip(values.chunks_exact(row)).enumerate() {
            let position = position + token;
            let (block, first) = (position / BLOCK_TOKENS, position % BLOCK_TOKENS);
            if block == self.blocks.len() {
                self.blocks
                    .push(Arc::new(KvBlock::new(self.precision, self.block_len())));
            }
            let block = Arc::make_mut(&mut self.blocks[block]);
            for head in 0..heads {
                for (part, from) in [(Part::Keys, keys), (Part::Values, values)] {
                    set.run(WriteRows {
                        block,
                        rows: KvRows {
                            head,
                            part,
                            first,
                            count: 1,
                            head_dim,
                        },
                        values: &from[head * head_dim..(head + 1) * head_dim],
                    });
                }
            }
        }
    }

    /// Bytes of the blocks of `tokens` tokens.
    pub(crate) fn bytes(precision: KvPrecision, row: usize, tokens: usize) -> usize {
        let size = match precision {
            KvPrecision::Bf16 => 2,
            KvPrecision::F32 => 4,
        };
        tokens.div_ceil(BLOCK_TOKENS) * BLOCK_TOKENS * 2 * row * size
    }
}
