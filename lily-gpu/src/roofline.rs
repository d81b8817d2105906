//! What speed to expect of a Mac that is not at hand: a prediction from its memory bandwidth and its matrix rate.
//!
//! Three costs are added. Reading: every byte of weights and state that a step needs, at a share of the memory bandwidth.
//! Multiplying: every multiply-accumulate, at a share of the matrix rate. Waiting: a fixed time for every dependency stage of a
//! pass, since a barrier drains the GPU. The shares and the time were fitted once to published figures of an engine of the same
//! model on an M5 Max (see the test); for other Macs nothing was measured here.

use lily_model::{LayerKind, MlpConfig, ModelConfig};

/// A Mac.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Machine {
    /// As in `--machine`: `m4-max-40`.
    pub name: &'static str,
    /// For people.
    pub label: &'static str,
    /// GPU cores.
    pub cores: u32,
    /// Bytes a second, in units of 10^9.
    pub bandwidth: f64,
    /// Half-precision multiply-accumulates a second and core, in units of 10^12.
    pub macs_per_core: f64,
    /// Largest memory, in GB.
    pub memory: u32,
    /// It has Metal 4's tensor units.
    pub tensor: bool,
}

/// Multiply-accumulates of a core's 128 lanes at the chip's clock, times the share of them that `simdgroup_matrix` reached
/// where it was measured (M5 Max: 6.5 of 8.3 T).
const fn simdgroup(gigahertz: f64) -> f64 {
    gigahertz * 0.128 * 0.78
}

/// Measured on an M5 Max with 40 cores: 33 T through tensor operations in half precision.
const TENSOR: f64 = 33.0 / 40.0;

macro_rules! machines {
    ($($name:literal $label:literal $cores:literal cores, $bandwidth:literal GBps, $memory:literal GB, $macs:expr, $tensor:literal;)*) => {
        /// Macs, by chip and GPU cores. Bandwidths are Apple's; clocks are approximate.
        pub const MACHINES: &[Machine] = &[$(Machine {
            name: $name, label: $label, cores: $cores, bandwidth: $bandwidth, macs_per_core: $macs, memory: $memory, tensor: $tensor,
        },)*];
    };
}

machines! {
    "m1" "M1" 8 cores, 68.0 GBps, 16 GB, simdgroup(1.28), false;
    "m1-pro" "M1 Pro" 16 cores, 200.0 GBps, 32 GB, simdgroup(1.30), false;
    "m1-max" "M1 Max" 32 cores, 400.0 GBps, 64 GB, simdgroup(1.30), false;
    "m1-ultra" "M1 Ultra" 64 cores, 800.0 GBps, 128 GB, simdgroup(1.30), false;
    "m2" "M2" 10 cores, 100.0 GBps, 24 GB, simdgroup(1.40), false;
    "m2-pro" "M2 Pro" 19 cores, 200.0 GBps, 32 GB, simdgroup(1.40), false;
    "m2-max" "M2 Max" 38 cores, 400.0 GBps, 96 GB, simdgroup(1.40), false;
    "m2-ultra" "M2 Ultra" 76 cores, 800.0 GBps, 192 GB, simdgroup(1.40), false;
    "m3" "M3" 10 cores, 100.0 GBps, 24 GB, simdgroup(1.40), false;
    "m3-pro" "M3 Pro" 18 cores, 150.0 GBps, 36 GB, simdgroup(1.40), false;
    "m3-max-30" "M3 Max, 30 cores" 30 cores, 300.0 GBps, 96 GB, simdgroup(1.40), false;
    "m3-max" "M3 Max, 40 cores" 40 cores, 400.0 GBps, 128 GB, simdgroup(1.40), false;
    "m3-ultra" "M3 Ultra" 80 cores, 819.0 GBps, 512 GB, simdgroup(1.40), false;
    "m4" "M4" 10 cores, 120.0 GBps, 32 GB, simdgroup(1.50), false;
    "m4-pro" "M4 Pro" 20 cores, 273.0 GBps, 64 GB, simdgroup(1.58), false;
    "m4-max-32" "M4 Max, 32 cores" 32 cores, 410.0 GBps, 36 GB, simdgroup(1.58), false;
    "m4-max" "M4 Max, 40 cores" 40 cores, 546.0 GBps, 128 GB, simdgroup(1.58), false;
    "m5" "M5" 10 cores, 153.0 GBps, 32 GB, TENSOR, true;
    "m5-pro" "M5 Pro" 20 cores, 307.0 GBps, 64 GB, TENSOR, true;
    "m5-max-32" "M5 Max, 32 cores" 32 cores, 460.0 GBps, 36 GB, TENSOR, true;
    "m5-max" "M5 Max, 40 cores" 40 cores, 614.0 GBps, 128 GB, TENSOR, true;
}

/// The machine of that name.
pub fn machine(name: &str) -> Option<&'static Machine> {
    MACHINES.iter().find(|machine| machine.name.eq_ignore_ascii_case(name))
}

/// About how many dependency stages a layer of a prefill pass has.
pub const PREFILL_STAGES_OF_A_LAYER: usize = 15;
/// Share of the memory bandwidth that reading weights reaches.
const READING: f64 = 0.90;
/// Share of the matrix rate that products with dequantization inside reach in a model.
const MULTIPLYING: f64 = 0.55;
/// Seconds that a dependency stage adds.
const STAGE: f64 = 3.0e-6;
/// Rows of the tiles in which an expert's tokens are multiplied: half a tile is padding on average.
const TILE_ROWS: f64 = 32.0;
/// Share of a Mac's memory that macOS lets the GPU use, at least; the smallest Macs have the smallest share.
const GPU_SHARE: f64 = 0.67;

/// What a model makes a GPU do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Work {
    /// All weights.
    pub weight_bytes: f64,
    /// The weights of the routed experts, of all experts.
    pub expert_bytes: f64,
    /// Share of the experts that a token uses.
    pub expert_share: f64,
    /// The embedding, of which a token reads one row, if it is no part of the logits.
    pub embedding_bytes: f64,
    /// The last matrix, which a prefill uses for one row only.
    pub logits_bytes: f64,
    /// Recurrent and convolution state, read and written by every token.
    pub state_bytes: f64,
    /// KV cache of one token in all layers.
    pub kv_bytes: f64,
    /// Multiply-accumulates of a token outside attention's scores, the routed experts and the logits.
    pub dense_macs: f64,
    /// Multiply-accumulates of a token in its routed experts.
    pub routed_macs: f64,
    /// Multiply-accumulates of a token for each earlier token.
    pub attention_macs: f64,
    /// Experts, and how many of them a token uses.
    pub experts: (f64, f64),
}

/// Bytes of a model's weights as they are stored.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WeightBytes {
    /// All of them.
    pub all: f64,
    /// The routed experts, of all layers.
    pub experts: f64,
    /// The embedding.
    pub embedding: f64,
    /// The matrix that makes logits; the embedding again where the two are tied.
    pub logits: f64,
}

impl Work {
    /// The work of a model of this shape.
    pub fn of(config: &ModelConfig, bytes: WeightBytes) -> Work {
        let hidden = config.hidden_size;
        let (a, d) = (&config.attention, &config.delta_net);
        let (queries, kv, values) = (
            a.heads * a.head_dim,
            a.kv_heads * a.head_dim,
            d.value_heads * d.value_dim,
        );
        // The query projection makes a gate of the same size too.
        let attention_macs = hidden * (2 * queries + 2 * kv) + queries * hidden;
        let delta_macs = hidden * (d.conv_channels() + values + 2 * d.value_heads) + values * hidden;
        let (mlp_macs, routed_macs, experts) = match config.mlp {
            MlpConfig::Dense { intermediate } => (3 * hidden * intermediate, 0, (1, 1)),
            MlpConfig::Moe {
                experts,
                top_k,
                intermediate,
                shared_intermediate,
            } => {
                let shared = hidden * (experts + 1) + 3 * hidden * shared_intermediate;
                (shared, top_k * 3 * hidden * intermediate, (experts, top_k))
            }
        };
        let count = |wanted| config.layers.iter().filter(|&&kind| kind == wanted).count();
        let (attention, delta) = (count(LayerKind::Attention), count(LayerKind::DeltaNet));
        let layers = config.layers.len();
        let recurrent = 4 * values * d.key_dim + 2 * d.conv_channels() * d.conv_kernel;
        Work {
            weight_bytes: bytes.all,
            expert_bytes: bytes.experts,
            expert_share: experts.1 as f64 / experts.0 as f64,
            embedding_bytes: if config.tie_word_embeddings {
                0.0
            } else {
                bytes.embedding
            },
            logits_bytes: bytes.logits,
            state_bytes: (2 * delta * recurrent) as f64,
            kv_bytes: (attention * 2 * kv * 2) as f64,
            dense_macs: (attention * attention_macs + delta * delta_macs + layers * mlp_macs) as f64,
            routed_macs: (layers * routed_macs) as f64,
            attention_macs: (attention * 2 * queries) as f64,
            experts: (experts.0 as f64, experts.1 as f64),
        }
    }
}

impl Machine {
    /// Whether a model and the KV cache of `context` tokens fit into the largest memory that the machine is sold with.
    pub fn holds(&self, work: &Work, context: usize) -> bool {
        work.weight_bytes + work.kv_bytes * context as f64 <= f64::from(self.memory) * 1e9 * GPU_SHARE
    }

    /// Tokens a second while generating, one sequence, after `context` tokens, by a pass of `stages` dependency stages.
    pub fn decode(&self, work: &Work, context: usize, stages: usize) -> f64 {
        let weights = work.weight_bytes - work.embedding_bytes - work.expert_bytes * (1.0 - work.expert_share);
        let bytes = weights + work.state_bytes + work.kv_bytes * context as f64;
        1.0 / (self.reading(bytes) + stages as f64 * STAGE)
    }

    /// Tokens a second while a prompt of `tokens` tokens is read in chunks of `chunk`, by passes of `stages` dependency stages.
    pub fn prefill(&self, work: &Work, tokens: usize, chunk: usize, stages: usize) -> f64 {
        let mut seconds = self.reading(work.logits_bytes);
        let mut position = 0;
        while position < tokens {
            let rows = chunk.max(1).min(tokens - position);
            seconds += self.chunk(work, position as f64, rows as f64) + stages as f64 * STAGE;
            position += rows;
        }
        tokens as f64 / seconds
    }

    /// Seconds of the chunk of `rows` tokens at `position`.
    fn chunk(&self, work: &Work, position: f64, rows: f64) -> f64 {
        let (experts, top_k) = work.experts;
        let load = rows * top_k / experts;
        // Below one token an expert, not all experts are used.
        let padded = if load < 1.0 { TILE_ROWS } else { load + TILE_ROWS / 2.0 } / load;
        let attention = work.attention_macs * (position + rows / 2.0);
        let macs = rows * (work.dense_macs + work.routed_macs * padded.min(TILE_ROWS) + attention);
        let used = 1.0 - (1.0 - work.expert_share).powf(rows);
        let bytes = work.weight_bytes - work.embedding_bytes - work.logits_bytes - work.expert_bytes * (1.0 - used);
        self.reading(bytes) + macs / (self.macs_per_core * 1e12 * f64::from(self.cores) * MULTIPLYING)
    }

    /// What to expect of the machine, as a table for people: `decode_stages` and `prefill_stages` are dependency stages of the
    /// passes, `chunk` is the tokens of a prefill chunk.
    pub fn report(&self, work: &Work, decode_stages: usize, prefill_stages: usize, chunk: usize) -> String {
        let mut text = format!(
            "{}: {} GPU cores, {:.0} GB/s, up to {} GB. Predicted, not measured.\n{:>9} {:>9} {:>9}   tokens/s\n",
            self.label, self.cores, self.bandwidth, self.memory, "context", "decode", "prefill"
        );
        for context in (8..=17).map(|power| 1 << power) {
            let row = if self.holds(work, context) {
                let decode = self.decode(work, context, decode_stages);
                let prefill = self.prefill(work, context, chunk, prefill_stages);
                format!("{context:>9} {decode:>9.1} {prefill:>9.0}\n")
            } else {
                format!("{context:>9} does not fit\n")
            };
            text.push_str(&row);
        }
        text
    }

    fn reading(&self, bytes: f64) -> f64 {
        bytes / (self.bandwidth * 1e9 * READING)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Qwen3.6-35B-A3B in 4 bits with groups of 64, embedding and logits too.
    fn qwen() -> Work {
        let config = ModelConfig::qwen3_6_35b_a3b();
        let packed = |macs: usize| macs as f64 * 4.5 / 8.0;
        let vocabulary = packed(config.hidden_size * config.vocab_size);
        let experts = packed(40 * 256 * 3 * 2048 * 512);
        let work = Work::of(
            &config,
            WeightBytes {
                all: 0.0,
                experts,
                embedding: vocabulary,
                logits: vocabulary,
            },
        );
        Work {
            weight_bytes: packed(work.dense_macs as usize) + experts + 2.0 * vocabulary,
            ..work
        }
    }

    /// Published in September 2026 for an engine of this model on an M5 Max with 40 cores, whose decode pass has 555 stages:
    /// context, decode, prefill, tokens a second.
    const PUBLISHED: [(usize, f64, f64); 10] = [
        (256, 194.7, 2866.6),
        (512, 193.8, 3859.9),
        (1024, 193.3, 4734.6),
        (2048, 190.4, 5274.3),
        (4096, 182.8, 5724.4),
        (8192, 180.5, 5457.6),
        (16384, 167.0, 4968.5),
        (32768, 151.1, 3927.5),
        (65536, 125.4, 2752.5),
        (131_072, 92.7, 1792.7),
    ];

    #[test]
    fn predictions_for_m5_max_are_within_a_quarter_of_what_was_published() {
        let (m5, work) = (machine("m5-max").unwrap(), qwen());
        for (context, decode, prefill) in PUBLISHED {
            let close = |predicted: f64, published: f64| {
                let ratio = predicted / published;
                println!("{context}: {predicted:.1} for {published}, ratio {ratio:.3}");
                assert!(
                    (0.75..=1.25).contains(&ratio),
                    "{context} tokens: {predicted:.1} predicted, {published} published"
                );
            };
            close(m5.decode(&work, context, 555), decode);
            close(m5.prefill(&work, context, 2048, 555), prefill);
        }
    }

    #[test]
    fn the_bytes_of_a_token_are_those_that_were_counted_elsewhere() {
        let work = qwen();
        let weights = work.weight_bytes - work.embedding_bytes - work.expert_bytes * (1.0 - work.expert_share);
        assert!(
            (1.60e9..1.75e9).contains(&weights),
            "{weights}: 1.67 GB of weights a token"
        );
        assert!(
            (0.12e9..0.14e9).contains(&work.state_bytes),
            "{}: 126 MB of state a token",
            work.state_bytes
        );
        assert!(
            (18e9..21e9).contains(&work.weight_bytes),
            "{}: a file of about 19 GB",
            work.weight_bytes
        );
    }

    #[test]
    fn more_of_everything_is_faster() {
        let work = qwen();
        for pair in ["m1", "m1-pro", "m1-max", "m1-ultra"].windows(2) {
            let (slow, fast) = (machine(pair[0]).unwrap(), machine(pair[1]).unwrap());
            assert!(fast.decode(&work, 1024, 280) > slow.decode(&work, 1024, 280));
            assert!(fast.prefill(&work, 4096, 2048, 600) > slow.prefill(&work, 4096, 2048, 600));
        }
        let m5 = machine("M5-Max").unwrap();
        assert!(m5.decode(&work, 1024, 280) > m5.decode(&work, 1024, 555));
        assert!(m5.decode(&work, 1024, 280) > m5.decode(&work, 65_536, 280));
        assert!(machine("m9").is_none());
    }

    #[test]
    fn small_macs_do_not_hold_the_model() {
        let work = qwen();
        for (name, holds) in [("m1", false), ("m4", true), ("m5-max", true)] {
            assert_eq!(machine(name).unwrap().holds(&work, 8192), holds, "{name}");
        }
    }
}
