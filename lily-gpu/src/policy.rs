//! Which kernel and which tile for which shape: the only place where such choices are made.
//!
//! The figures behind a choice stand beside it: machine, shape, gain, date. Where none stand, the choice follows from the kernel's own limits.

use lily_model::ModelConfig;

use crate::error::GpuError;
use crate::switches::Switches;
use crate::weights::Form;

/// Kinds of GPU that the choices differ between.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Family {
    /// M1 and later, and whatever else has no route of its own.
    #[default]
    Apple,
    /// Compute capability 8.0 and later: copies into threadgroup memory run beside the arithmetic. The choices were measured on an H200.
    Nvidia {
        /// Multiprocessors.
        processors: u32,
        /// Threadgroup memory that one threadgroup may have.
        threadgroup_bytes: u32,
        /// Four simdgroups can multiply together, beside their other arithmetic (compute capability 9.0 alone).
        warpgroups: bool,
    },
}

impl Family {
    /// An H200, for which the emulator stands in.
    pub const H200: Family = Family::Nvidia {
        processors: 132,
        threadgroup_bytes: 232_448,
        warpgroups: true,
    };

    /// A B200: the memory of an H200, but not its products of warpgroups.
    #[cfg(test)]
    pub const B200: Family = Family::Nvidia {
        processors: 148,
        threadgroup_bytes: 232_448,
        warpgroups: false,
    };

    /// Whether it is one of NVIDIA's.
    pub fn is_nvidia(self) -> bool {
        matches!(self, Family::Nvidia { .. })
    }

    /// Threadgroups that run side by side with `each` on a multiprocessor; 0 where that is not known.
    fn side_by_side(self, each: usize) -> usize {
        match self {
            Family::Apple => 0,
            Family::Nvidia { processors, .. } => processors as usize * each,
        }
    }

    /// Whether kernels may multiply by warpgroups.
    fn warpgroups(self) -> bool {
        matches!(self, Family::Nvidia { warpgroups: true, .. })
    }

    /// Threadgroup memory that a launch can give to a kernel.
    fn threadgroup_bytes(self) -> usize {
        match self {
            Family::Apple => 0,
            Family::Nvidia { threadgroup_bytes, .. } => threadgroup_bytes as usize,
        }
    }
}

/// Simdgroups of the threadgroups of the GEMV kernels: 256 threads.
pub const GEMV_SIMDGROUPS: usize = 8;
/// Tokens that one GEMV of a prefill chunk takes together.
pub const GEMV_TOKENS: usize = 4;
/// Rows of the input that a prefill attention threadgroup may read past the end of the queries.
pub const ATTENTION_PREFILL_ROWS: usize = 128;
/// Slices of the vocabulary whose largest logits are found side by side.
pub const SAMPLE_SLICES: usize = 64;
/// From this context on, attention is split into blocks of a fixed number of keys.
pub const FIXED_BLOCK_CONTEXT: usize = 32_768;
/// Keys of such a block.
pub const FIXED_BLOCK_KEYS: usize = 1024;

/// Rows that a simdgroup of a GEMV makes.
pub fn gemv_rows(form: Form, rows: usize, tokens: usize) -> usize {
    match form {
        Form::Any | Form::Bf16 => 2,
        // four rows keep four loads in flight; a short matrix then has too few simdgroups to fill a GPU
        _ if tokens > 1 || rows >= 4096 => 4,
        _ => 2,
    }
}

/// A GEMV kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gemv {
    /// Its name.
    pub kernel: String,
    /// Rows of a row block.
    pub rows: usize,
    /// Row blocks of a threadgroup.
    pub blocks: usize,
    /// Tokens of a threadgroup.
    pub tokens: usize,
    /// Threads of a threadgroup.
    pub threads: usize,
    /// It can add to its output: function constant 0.
    pub adds: bool,
    /// The most threadgroups, which then take several row blocks each.
    pub most: Option<usize>,
    /// Bytes of its threadgroup argument.
    pub threadgroup_bytes: usize,
}

impl Gemv {
    /// With the threads of [`GEMV_SIMDGROUPS`].
    fn new(kernel: String, rows: usize, blocks: usize, tokens: usize) -> Gemv {
        Gemv {
            kernel,
            rows,
            blocks,
            tokens,
            threads: GEMV_SIMDGROUPS * 32,
            adds: true,
            most: None,
            threadgroup_bytes: 0,
        }
    }
}

/// The kernel for `rows` rows of `k` columns, `m` tokens and a norm to fold in. The rows of a chunk need kernels whose sums are the same for any number of tokens;
/// a token that is being decoded does not.
pub fn gemv_norm_kernel(family: Family, form: Form, (rows, k): (usize, usize), m: usize, decoding: bool) -> Gemv {
    match form {
        Form::Q4 if decoding && k == STREAMED_COLUMNS && family.threadgroup_bytes() >= GEMV_STREAMED_BYTES => Gemv {
            adds: false,
            most: Some(family.side_by_side(2)),
            threadgroup_bytes: GEMV_STREAMED_BYTES,
            ..Gemv::new("gemv_norm_streamed_2048".into(), 16, 1, 1)
        },
        // H200, 2026-11-29: 12,352 rows of 2,048 in 9.7 us against 12.3 by gemv_norm_q4_r4_m1, 9,216 in 8.4 against 12.4, 248,320 in 111 against 187
        Form::Q4 if family.is_nvidia() && decoding && k <= 2048 => Gemv {
            most: Some(family.side_by_side(2)),
            ..Gemv::new("gemv_norm_tiles".into(), 16, 1, 1)
        },
        // 257 rows of 2,048 in 3.1 us against 4.7
        Form::Q8 if family.is_nvidia() && decoding => {
            Gemv::new("gemv_norm_deep_q8_r1_d4".into(), 1, GEMV_SIMDGROUPS, 1)
        }
        // H200, 2026-11-30, 4,096 x 257 x 2,048: 153 us against 805 by gemv_norm_q8_r4_m4
        Form::Q8 if family.is_nvidia() => Gemv {
            kernel: format!("router_q8_{}", router_tokens(m)),
            rows: 256,
            blocks: 1,
            tokens: router_tokens(m),
            threads: 256,
            adds: false,
            most: None,
            threadgroup_bytes: 0,
        },
        _ => {
            let tokens = if m == 1 { 1 } else { GEMV_TOKENS };
            let block = gemv_rows(form, rows, tokens);
            let kernel = format!("gemv_norm_{}_r{block}_m{tokens}", form.name());
            Gemv::new(kernel, block, GEMV_SIMDGROUPS, tokens)
        }
    }
}

/// Tokens of a threadgroup of the router of a chunk: few where the chunk would not give every multiprocessor a threadgroup.
fn router_tokens(m: usize) -> usize {
    if m <= 1024 { 16 } else { 32 }
}

/// Columns of the residual stream that the kernels with their codes in threadgroup memory take.
pub const STREAMED_COLUMNS: usize = 2048;
/// The threadgroup argument of gemv_norm_streamed_2048: codes and factors of 16 rows, four times.
const GEMV_STREAMED_BYTES: usize = 4 * (1024 + 2 * 16 * 5) * 16;
/// The threadgroup argument of expert_gate_up_streamed_2048.
pub const GATE_UP_STREAMED_BYTES: usize = (2 * 1024 + 4 * 16 * 5) * 16;

/// Whether gemv_streamed_4096 takes a product of `k` columns that is added to the residual stream: all weights of a threadgroup are asked for before
/// the vector is there.
pub fn streamed_output(family: Family, form: Form, k: usize) -> bool {
    family.is_nvidia() && form == Form::Q4 && k == 4096
}

/// Whether gate and up of experts_streamed.metal take these shapes. It needs so few registers that the shared expert fits beside the chosen ones, in one
/// dispatch: H200, 2026-11-30, decode at 4,096 with 12 of the 35B shape's layers: 1,523 tokens/s against 1,497 with the shared one apart, and 1,446 against
/// 1,407 by expert_gate_up_tiles.
pub fn streamed_gate_up(family: Family, hidden: usize, experts: usize) -> bool {
    family.threadgroup_bytes() >= GATE_UP_STREAMED_BYTES && hidden == STREAMED_COLUMNS && experts <= 256
}

/// The same for bfloat rows, which need no norm.
pub fn gemv_kernel(family: Family, form: Form, rows: usize) -> Gemv {
    let block = gemv_rows(form, rows, 1);
    let (kernel, rows) = match form {
        // H200, 2026-11-29: 2,048 rows of 4,096 in 6.0 us against 13.3 by gemv_q4_r2_m1 and 6.6 through the matrix units
        Form::Q4 if family.is_nvidia() => ("gemv_deep_q4_r2_d4".into(), 2),
        Form::Q8 if family.is_nvidia() => ("gemv_deep_q8_r1_d4".into(), 1),
        _ => (format!("gemv_{}_r{block}_m1", form.name()), block),
    };
    Gemv::new(kernel, rows, GEMV_SIMDGROUPS, 1)
}

/// Whether the feed-forward part of one token goes through the matrix units (expert_tiles.metal), where everything is fused. The shared expert's gate and
/// up are then a dispatch of their own, which runs beside the router's: the chosen experts alone make 256 threadgroups of the 264 that run side by side.
pub fn expert_tiles(family: Family, form: Form, everything_fused: bool) -> bool {
    // H200, 2026-11-29: gate and up of 8 chosen experts in 10.4 us, 13.8 with the shared one, against 11.7 by expert_gate_up_q4_r2; down in 7.3 against
    // 12.7 by expert_down_q4_r2
    family.is_nvidia() && form == Form::Q4 && everything_fused
}

/// Rows of a threadgroup of the kernels of expert_tiles.metal.
pub const EXPERT_TILE_ROWS: usize = 16;

/// Rows that a simdgroup of expert_gate_up makes of each matrix.
pub fn gate_up_rows(form: Form) -> usize {
    match form {
        Form::Any | Form::Bf16 => 1,
        _ => 2,
    }
}

/// Rows that a simdgroup of expert_down makes.
pub fn down_rows(form: Form) -> usize {
    match form {
        Form::Any | Form::Bf16 => 1,
        _ => 2,
    }
}

/// The form whose GEMV kernels read a matrix (there is no tuned GEMV for bfloat weights).
pub fn gemv_form(form: Form) -> Form {
    if form == Form::Bf16 { Form::Any } else { form }
}

/// A tile of the matrix products: rows, columns, simdgroups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tile {
    /// Rows of the input.
    pub rows: usize,
    /// Rows of the weights.
    pub columns: usize,
    /// Simdgroups of the threadgroup.
    pub simdgroups: usize,
    /// How the operands come together.
    pub route: TileRoute,
}

/// How a tile's operands come together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TileRoute {
    /// Both are staged as bfloats (gemm.h).
    Staged,
    /// They are copied ahead, the weights packed (gemm_streamed.h).
    Streamed,
    /// The same, and four simdgroups multiply together (gemm_warpgroup.h).
    Warpgroups {
        /// Places of the ring that they are copied into.
        stages: usize,
    },
}

impl Tile {
    /// What the names of the kernels with this tile end in.
    pub fn name(&self) -> String {
        let route = match self.route {
            TileRoute::Staged => "",
            TileRoute::Streamed => "_streamed",
            TileRoute::Warpgroups { .. } => "_warpgroup",
        };
        format!("{}x{}{route}", self.rows, self.columns)
    }

    /// Bytes of the kernels' threadgroup argument.
    pub fn threadgroup_bytes(&self) -> usize {
        match self.route {
            TileRoute::Staged | TileRoute::Streamed => 0,
            // inputs and codes of 64 columns; where each row of the input comes from and where that of the output goes
            TileRoute::Warpgroups { stages } => stages * (self.rows * 128 + self.columns * 32) + self.rows * 8,
        }
    }
}

const fn tile(rows: usize, columns: usize, simdgroups: usize) -> Tile {
    Tile {
        rows,
        columns,
        simdgroups,
        route: TileRoute::Staged,
    }
}

const fn streamed(rows: usize, columns: usize) -> Tile {
    Tile {
        route: TileRoute::Streamed,
        ..tile(rows, columns, 4)
    }
}

/// The tile with `rows` rows whose products go through warpgroups.
pub const fn by_warpgroups(rows: usize) -> Tile {
    Tile {
        route: TileRoute::Warpgroups {
            stages: if rows == 128 { 5 } else { 6 },
        },
        ..tile(rows, 128, 8)
    }
}

/// Whether products of 4-bit weights with `k` columns go through warpgroups, whatever the rows: a row has the same bits in every chunk. H200, 2026-11-30, a
/// chunk of 4,096 of the 35B: projections 364 us (569 TFLOP/s) against 720 by the streamed kernels, output 154 against 347, gate and up 576 against 661, down
/// 359 against 384.
fn products_by_warpgroups(family: Family, form: Form, k: usize) -> bool {
    form == Form::Q4 && k.is_multiple_of(128) && family.warpgroups()
}

/// The tile of a dense product with `m` rows of input and `n` rows of `k` weights.
pub fn dense_tile(family: Family, form: Form, m: usize, (n, k): (usize, usize)) -> Tile {
    if products_by_warpgroups(family, form, k) {
        let fills = |rows: &usize| m.div_ceil(*rows) * n.div_ceil(128) >= family.side_by_side(1);
        return by_warpgroups([256, 128, 64].into_iter().find(fills).unwrap_or(32));
    }
    match form {
        // H200, 2026-11-29, 4,096 x 12,288 x 2,048: 277 TFLOP/s with 128x128, 228 with 64x128, 171 with 32x128; 144 by the kernels that are not streamed.
        // 512 rows: 204, 210 and 160.
        Form::Q4 if family.is_nvidia() && m.div_ceil(128) * n.div_ceil(128) >= family.side_by_side(2) => {
            streamed(128, 128)
        }
        Form::Q4 if family.is_nvidia() && m.div_ceil(64) * n.div_ceil(128) >= family.side_by_side(1) => {
            streamed(64, 128)
        }
        Form::Q4 if family.is_nvidia() => streamed(32, 128),
        Form::Q4 if m <= 16 => tile(16, 64, 2),
        Form::Q4 | Form::Q8 if m >= 512 && n >= 1024 => tile(128, 128, 8),
        _ => tile(64, 64, 4),
    }
}

/// Rows of the tiles of a grouped product whose experts get `load` rows each on average.
pub fn grouped_rows(family: Family, form: Form, load: usize, switches: &Switches) -> usize {
    match form {
        Form::Q4 if !switches.wide_tiles => 16,
        Form::Q4 if family.is_nvidia() && load >= 24 => 64,
        Form::Q4 if family.is_nvidia() => 32,
        Form::Q4 if load >= 48 => 64,
        Form::Q4 if load <= 8 => 16,
        _ => 32,
    }
}

/// The tile of a grouped product with [`grouped_rows`] rows and weights of `k` columns.
pub fn grouped_tile(family: Family, form: Form, rows: usize, k: usize) -> Tile {
    if products_by_warpgroups(family, form, k) && rows >= 32 {
        return by_warpgroups(rows);
    }
    match (form, rows) {
        // H200, 2026-11-29, 256 experts, 4,096 tokens: 210 and 190 TFLOP/s (gate and up, down) with 64x128, 195 and 179 with 128x128, 155 and 150 with
        // 32x128; 77 and 80 by the kernels that are not streamed. 2,048 tokens: 175 and 160 with 64x128.
        (Form::Q4, 64) if family.is_nvidia() => streamed(64, 128),
        (Form::Q4, 32) if family.is_nvidia() => streamed(32, 128),
        (Form::Q4, 64) => tile(64, 128, 4),
        (Form::Q4, 16) => tile(16, 64, 2),
        _ => tile(32, 64, 2),
    }
}

/// How a decode pass attends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AttentionRoute {
    /// Query heads that share a read of their KV head, or `None` for the kernel that takes any head size.
    pub packed_heads: Option<usize>,
    /// Splits of the keys.
    pub splits: usize,
    /// Keys of a split; 0 divides the context by the splits.
    pub split_keys: usize,
    /// One token, by attention_decode_streamed.
    pub streamed: bool,
}

/// Threads of attention_decode_streamed.
pub const STREAMED_ATTENTION_THREADS: usize = 64;
/// Its threadgroup argument: 16 queries, and three times the keys and values of 64 positions.
pub const STREAMED_ATTENTION_BYTES: usize = (16 + 3 * 2 * 64) * STREAMED_PITCH;

/// Bytes from one row of a head of 256 to the next, as the streamed attention kernels stage them.
const STREAMED_PITCH: usize = (256 + 8) * 2;

/// The route of single query rows over up to `context` keys. The context is rounded up inside, so that a pass serves many steps.
pub fn attention_route(family: Family, config: &ModelConfig, context: usize, switches: &Switches) -> AttentionRoute {
    let attention = &config.attention;
    let group = attention.heads / attention.kv_heads;
    let packed_heads = match attention.head_dim {
        64 | 128 | 256 if switches.gqa_packing && group.is_multiple_of(4) => Some(4),
        64 | 128 | 256 => Some(1),
        _ => None,
    };
    // each of the original's three optimizations can still be turned off, so their kernels run where one is
    let optimized = switches.gqa_packing && switches.coalesced_kv && switches.fixed_block_attention;
    let fits = family.threadgroup_bytes() >= STREAMED_ATTENTION_BYTES;
    if fits && (attention.head_dim, attention.rotary_dim) == (256, 64) && group <= 16 && optimized {
        // H200, 2026-11-29: 131,072 keys in 71 us with 64 threadgroups to each of two KV heads, which fill the multiprocessors (3.8 TB/s), 107 with 32, 74
        // with 128, 220 by attention_decode_256_h4. A threadgroup has at least a block of 64 keys.
        return AttentionRoute {
            packed_heads,
            splits: (context_bucket(context) / 64).min(64),
            split_keys: 0,
            streamed: true,
        };
    }
    if switches.fixed_block_attention && context >= FIXED_BLOCK_CONTEXT {
        let splits = context_bucket(context) / FIXED_BLOCK_KEYS;
        return AttentionRoute {
            packed_heads,
            splits,
            split_keys: FIXED_BLOCK_KEYS,
            streamed: false,
        };
    }
    // 256 keys keep eight simdgroups of 32 lanes busy; more splits than 32 cost more in the reduction than they give
    let splits = (context_bucket(context) / 256).clamp(1, 32);
    AttentionRoute {
        packed_heads,
        splits,
        split_keys: 0,
        streamed: false,
    }
}

/// Contexts up to this many tokens use the same decode pass as `context`: powers of two from 256 on, so that a pass is recorded seldom.
pub fn context_bucket(context: usize) -> usize {
    context.next_power_of_two().max(256)
}

/// A kernel of a chunk's causal attention.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttentionPrefill {
    /// Its name.
    pub kernel: String,
    /// Query rows of a threadgroup, at most [`ATTENTION_PREFILL_ROWS`].
    pub rows: usize,
    /// Threads of a threadgroup.
    pub threads: usize,
    /// Bytes of its threadgroup argument.
    pub threadgroup_bytes: usize,
}

/// The kernel of the chunk's causal attention; `None` where the head size has none and single-row kernels are used.
pub fn attention_prefill(family: Family, config: &ModelConfig) -> Option<AttentionPrefill> {
    let head_dim = config.attention.head_dim;
    // H200, 2026-11-30, 4,096 rows at 126,976: 556 TFLOP/s against 278 by attention_prefill_256_w8; at 0: 333 and 206
    if head_dim == 256 && family.warpgroups() {
        return Some(AttentionPrefill {
            kernel: "attention_warpgroup_256".into(),
            rows: 128,
            threads: 256,
            threadgroup_bytes: (128 + 4 * 64) * 256 * 2,
        });
    }
    // H200, 2026-11-29, 4,096 rows at 126,976: 277 TFLOP/s by w8, 263 by w4, 39 by s2; at 0: 203, 192 and 37
    for (simdgroups, keys) in [(8, 64), (4, 32)] {
        let rows = 16 * simdgroups;
        let threadgroup_bytes = (rows + 4 * keys) * STREAMED_PITCH;
        if head_dim == 256 && family.threadgroup_bytes() >= threadgroup_bytes {
            return Some(AttentionPrefill {
                kernel: format!("attention_prefill_256_w{simdgroups}"),
                rows,
                threads: 32 * simdgroups,
                threadgroup_bytes,
            });
        }
    }
    let split = match head_dim {
        // two simdgroups share 16 rows, because the output of a head of 256 does not fit one's registers on M1 to M4
        256 => 2,
        64 | 128 => 1,
        _ => return None,
    };
    Some(AttentionPrefill {
        kernel: format!("attention_prefill_{head_dim}_s{split}"),
        rows: 64,
        threads: 128 * split,
        threadgroup_bytes: 0,
    })
}

/// Sizes of Gated DeltaNet heads that have register-resident kernels.
pub fn delta_heads(config: &ModelConfig) -> Option<&'static str> {
    match (config.delta_net.key_dim, config.delta_net.value_dim) {
        (128, 128) => Some("128_128"),
        (64, 64) => Some("64_64"),
        _ => None,
    }
}

/// The convolution of a chunk, and the tokens that a threadgroup of it takes. H200, 2026-11-30, 4,096 tokens of the 35B: 68 us by delta_conv_4_128, 231 by
/// delta_conv.
pub fn delta_conv_kernel(config: &ModelConfig) -> (String, usize) {
    let d = &config.delta_net;
    match (d.conv_kernel, d.key_dim, d.value_dim) {
        (4, 128, 128) | (4, 64, 64) => (format!("delta_conv_4_{}", d.key_dim), 32),
        _ => ("delta_conv".into(), 16),
    }
}

/// The scan of a chunk over heads that [`delta_heads`] names.
pub fn delta_scan_kernel(family: Family, heads: &str) -> String {
    match (family, heads) {
        // two rows of the state to eight lanes: half the reads of shared memory for each key
        (Family::Nvidia { .. }, "128_128") => "delta_scan_128_128_r2".into(),
        _ => format!("delta_scan_{heads}"),
    }
}

/// Tokens of the largest prefill chunk: 64 rows for each of 256 experts that take 8 of them.
pub const MAX_CHUNK: usize = 2048;

/// Tokens of the largest prefill chunk on GPUs of a family.
pub fn max_chunk(family: Family) -> usize {
    match family {
        Family::Apple => MAX_CHUNK,
        // 128 rows for each expert: fewer tiles are left half empty, and the experts' weights are read half as often
        Family::Nvidia { .. } => 2 * MAX_CHUNK,
    }
}

/// Tokens that are prefilled together from `position` on. Attention grows with the position and the scratch of a chunk does not shrink with it, so
/// at long context shorter chunks keep every pass bounded at little loss: the experts' share of the time is small there. Where no watchdog bounds a
/// pass they stay whole.
pub fn chunk_for_context(family: Family, max_chunk: usize, position: usize) -> usize {
    if family.is_nvidia() {
        return max_chunk;
    }
    let halvings = (position / FIXED_BLOCK_CONTEXT)
        .checked_ilog2()
        .map_or(0, |log| log + 1);
    (max_chunk >> halvings.min(3)).max(256.min(max_chunk))
}

/// Refuses what no kernel takes.
///
/// # Errors
/// [`GpuError::Unsupported`], which names the field.
pub fn check_shape(config: &ModelConfig) -> Result<(), GpuError> {
    let limit = |ok: bool, what: &str, expected: &str, found: usize| {
        if ok {
            return Ok(());
        }
        Err(GpuError::Unsupported {
            what: what.into(),
            expected: expected.into(),
            found: found.to_string(),
        })
    };
    let (a, d) = (&config.attention, &config.delta_net);
    limit(
        config.hidden_size.is_multiple_of(32),
        "hidden_size",
        "a multiple of 32",
        config.hidden_size,
    )?;
    limit(
        a.head_dim.is_multiple_of(32) && a.head_dim <= 512,
        "head_dim",
        "a multiple of 32 up to 512",
        a.head_dim,
    )?;
    limit(
        a.rotary_dim <= a.head_dim && a.rotary_dim.is_multiple_of(2),
        "rotary dimensions",
        "an even number up to head_dim",
        a.rotary_dim,
    )?;
    limit(
        a.heads.is_multiple_of(a.kv_heads),
        "num_attention_heads",
        "a multiple of num_key_value_heads",
        a.heads,
    )?;
    limit(
        d.key_dim.is_multiple_of(32) && d.key_dim <= 256,
        "linear_key_head_dim",
        "a multiple of 32 up to 256",
        d.key_dim,
    )?;
    limit(
        d.value_dim.is_multiple_of(32) && d.value_dim <= 256,
        "linear_value_head_dim",
        "a multiple of 32 up to 256",
        d.value_dim,
    )?;
    limit(
        d.value_heads.is_multiple_of(d.key_heads),
        "linear_num_value_heads",
        "a multiple of linear_num_key_heads",
        d.value_heads,
    )?;
    limit(
        d.conv_kernel >= 1,
        "linear_conv_kernel_dim",
        "at least 1",
        d.conv_kernel,
    )?;
    if let lily_model::MlpConfig::Moe { experts, top_k, .. } = config.mlp {
        limit(experts <= 512, "num_experts", "up to 512", experts)?;
        limit(
            (1..=32).contains(&top_k) && top_k <= experts,
            "num_experts_per_tok",
            "1 to 32",
            top_k,
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn qwen() -> ModelConfig {
        ModelConfig::qwen3_6_35b_a3b()
    }

    #[test]
    fn every_context_lies_inside_its_splits() {
        let switches = Switches::default();
        for context in [1, 255, 256, 257, 8192, 32_767, 32_768, 32_769, 65_536, 131_073, 262_144] {
            let route = attention_route(Family::Apple, &qwen(), context, &switches);
            assert_eq!(route.packed_heads, Some(4));
            assert_eq!(route.split_keys > 0, context >= FIXED_BLOCK_CONTEXT, "{context}");
            if route.split_keys > 0 {
                assert!(route.splits * route.split_keys >= context, "{context}");
            }
        }
        let without = switches.without("fixed-block-attention").unwrap();
        assert_eq!(attention_route(Family::Apple, &qwen(), 100_000, &without).split_keys, 0);
    }

    #[test]
    fn chunks_shrink_with_the_context() {
        let sizes =
            [0, 32_768, 65_536, 131_072, 262_144].map(|position| chunk_for_context(Family::Apple, MAX_CHUNK, position));
        assert_eq!(sizes, [2048, 1024, 512, 256, 256]);
        assert_eq!(chunk_for_context(Family::Apple, 100, 200_000), 100);
        assert_eq!(chunk_for_context(Family::H200, 4096, 200_000), 4096);
    }

    #[test]
    fn shapes_that_no_kernel_takes_are_named() {
        let mut config = qwen();
        check_shape(&config).unwrap();
        config.attention.head_dim = 80;
        assert!(check_shape(&config).unwrap_err().to_string().contains("head_dim"));
        config.attention.head_dim = 256;
        config.delta_net.key_dim = 512;
        assert!(
            check_shape(&config)
                .unwrap_err()
                .to_string()
                .contains("linear_key_head_dim")
        );
    }
}
