//! The model: weights, threads and scratch buffers, and its public calls.

use std::sync::Arc;

use lily_model::{LayerKind, Matrix, Mixer, Mlp, MlpConfig, ModelConfig, Weights};

use crate::batch::Batch;
use crate::delta_net::MAX_CONV_KERNEL;
use crate::panel::integer_group_size;
use crate::pool::Pool;
use crate::profile::{Recorder, Span};
use crate::scratch::{Activations, ThreadScratch};
use crate::simd::LANES;
use crate::{CpuError, CpuOptions, KernelSet, KvPrecision, Sequence};

/// Most rows of one step. With 1024 rows an expert of 256 gets 32 on average, so that unpacking its weights is 4 % of a chunk's
/// time (8 % with 512); longer chunks would gain little more and take long to cancel.
const MAX_ROWS: usize = 1024;

/// Which rows of a prefill chunk get logits.
pub enum LogitRows<'a> {
    /// None: more chunks follow.
    None,
    /// The last row, readable afterwards through [`Sequence::logits`].
    Last,
    /// Every row, handed over in order (row, `vocab_size` logits); the last stays readable through [`Sequence::logits`].
    All(&'a mut dyn FnMut(usize, &[f32])),
}

/// One sequence's part of a decode step.
pub struct DecodeRow<'a> {
    /// The sequence to extend.
    pub sequence: &'a mut Sequence,
    /// Its next token.
    pub token: u32,
}

/// A model on the CPU.
pub struct CpuModel {
    pub(crate) config: Arc<ModelConfig>,
    pub(crate) weights: Arc<Weights>,
    /// Taps of each Gated DeltaNet layer, `[conv_kernel, conv_channels]`; empty for attention layers.
    pub(crate) conv_taps: Vec<Vec<f32>>,
    pub(crate) set: KernelSet,
    pub(crate) pool: Pool,
    pub(crate) threads: Vec<ThreadScratch>,
    pub(crate) activations: Activations,
    pub(crate) partials: Vec<crate::attention::Partial>,
    pub(crate) kv: KvPrecision,
    /// Whether activations stay in f32 throughout.
    pub(crate) exact: bool,
    pub(crate) recorder: Recorder,
}

impl CpuModel {
    /// A model over `weights`, which are read in place.
    ///
    /// # Errors
    /// Where the processor cannot run the kernels that `options` asks for, the shape is one that the kernels do not take, or the
    /// threads cannot be started.
    pub fn new(config: Arc<ModelConfig>, weights: Arc<Weights>, options: CpuOptions) -> Result<CpuModel, CpuError> {
        let set = options.kernels.map_or(Ok(KernelSet::detect()), KernelSet::checked)?;
        check_shape(&config, &weights)?;
        let threads = options.threads.unwrap_or_else(available_threads).max(1);
        let widest = matrices(&weights).map(|matrix| matrix.cols).max().unwrap_or(0);
        let group_size = matrices(&weights)
            .find_map(integer_group_size)
            .filter(|_| !options.exact);
        Ok(CpuModel {
            conv_taps: weights
                .layers
                .iter()
                .map(|layer| conv_taps(&layer.mixer, &config))
                .collect(),
            set,
            pool: Pool::new(threads)?,
            threads: (0..threads)
                .map(|_| ThreadScratch::new(&config, widest, group_size, MAX_ROWS))
                .collect(),
            activations: Activations::new(&config, set, group_size, MAX_ROWS),
            partials: Vec::new(),
            kv: options.kv,
            exact: options.exact,
            recorder: Recorder::default(),
            config,
            weights,
        })
    }

    /// Processor, threads and kernels, for people: `CPU, 2 threads, AVX2`.
    pub fn description(&self) -> String {
        let threads = self.pool.threads();
        let plural = if threads == 1 { "" } else { "s" };
        format!("CPU, {threads} thread{plural}, {}", self.set.name())
    }

    /// Shape of the model.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Logits of a row: the rows of lm_head.
    pub fn vocab_size(&self) -> usize {
        self.config.vocab_size
    }

    /// Most tokens of one prefill chunk, and most sequences of one decode step.
    pub fn max_chunk(&self) -> usize {
        MAX_ROWS
    }

    /// Notes the time of every operation from now on, until [`CpuModel::stop_profile`].
    pub fn start_profile(&mut self) {
        self.recorder.start();
    }

    /// The operations of the steps since [`CpuModel::start_profile`], in order.
    pub fn stop_profile(&mut self) -> Vec<Span> {
        self.recorder.stop()
    }

    /// A sequence at position 0.
    pub fn new_sequence(&self) -> Sequence {
        Sequence::new(&self.config, self.kv)
    }

    /// Bytes of state that a sequence of `tokens` tokens takes.
    pub fn sequence_bytes(&self, tokens: usize) -> usize {
        Sequence::bytes(&self.config, self.kv, tokens)
    }

    /// Appends a chunk of 1 to [`CpuModel::max_chunk`] tokens. Any split of a prompt into chunks gives the same bits.
    ///
    /// # Errors
    /// Where the chunk is empty or too long or a token is not in the vocabulary; the sequence is then as before.
    pub fn prefill(&mut self, sequence: &mut Sequence, tokens: &[u32], logits: LogitRows<'_>) -> Result<(), CpuError> {
        self.check_step(tokens.len(), tokens.iter().copied())?;
        let mut batch = Batch::Prefill { sequence, tokens };
        self.run_layers(&mut batch);
        let Batch::Prefill { sequence, tokens } = batch else {
            return Ok(());
        };
        sequence.position += tokens.len();
        match logits {
            LogitRows::None => sequence.logits.clear(),
            LogitRows::Last => {
                self.compute_logits(tokens.len() - 1, 1, |_, logits| sequence.set_logits(logits));
            }
            LogitRows::All(receive) => {
                self.compute_logits(0, tokens.len(), |row, logits| {
                    receive(row, logits);
                    if row + 1 == tokens.len() {
                        sequence.set_logits(logits);
                    }
                });
            }
        }
        Ok(())
    }

    /// Appends one token to each of several sequences, reading the weights once; each one's logits are ready afterwards.
    ///
    /// # Errors
    /// Where the batch is empty or too long or a token is not in the vocabulary; the sequences are then as before.
    pub fn decode(&mut self, batch: &mut [DecodeRow<'_>]) -> Result<(), CpuError> {
        self.check_step(batch.len(), batch.iter().map(|row| row.token))?;
        self.run_layers(&mut Batch::Decode(batch));
        self.compute_logits(0, batch.len(), |row, logits| {
            batch[row].sequence.position += 1;
            batch[row].sequence.set_logits(logits);
        });
        Ok(())
    }

    fn check_step(&self, rows: usize, mut tokens: impl Iterator<Item = u32>) -> Result<(), CpuError> {
        let vocab_size = self.config.vocab_size;
        if rows == 0 || rows > MAX_ROWS {
            return Err(CpuError::BadChunk {
                found: rows,
                limit: MAX_ROWS,
            });
        }
        match tokens.find(|&token| token as usize >= vocab_size) {
            Some(token) => Err(CpuError::TokenOutOfRange { token, vocab_size }),
            None => Ok(()),
        }
    }
}

/// Processors that this process may use.
pub(crate) fn available_threads() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// Transposes the taps, so that a vector of channels reads one tap.
fn conv_taps(mixer: &Mixer, config: &ModelConfig) -> Vec<f32> {
    let Mixer::DeltaNet(delta_net) = mixer else {
        return Vec::new();
    };
    let (channels, kernel) = (config.delta_net.conv_channels(), config.delta_net.conv_kernel);
    let taps = (0..kernel).flat_map(|tap| (0..channels).map(move |channel| channel * kernel + tap));
    taps.map(|from| delta_net.conv[from]).collect()
}

fn matrices(weights: &Weights) -> impl Iterator<Item = &Matrix> {
    let layers = weights.layers.iter().flat_map(|layer| {
        let mixer: Vec<&Matrix> = match &layer.mixer {
            Mixer::Attention(a) => vec![&a.q_proj, &a.k_proj, &a.v_proj, &a.o_proj],
            Mixer::DeltaNet(d) => vec![&d.in_proj_qkv, &d.in_proj_z, &d.in_proj_b, &d.in_proj_a, &d.out_proj],
        };
        let mlp: Vec<&Matrix> = match &layer.mlp {
            Mlp::Moe(moe) => {
                let (routed, shared) = (&moe.experts, &moe.shared);
                vec![
                    &moe.router,
                    &moe.shared_gate,
                    &routed.gate,
                    &routed.up,
                    &routed.down,
                    &shared.gate,
                    &shared.up,
                    &shared.down,
                ]
            }
            Mlp::Dense(mlp) => vec![&mlp.gate, &mlp.up, &mlp.down],
        };
        mixer.into_iter().chain(mlp)
    });
    layers.chain([&weights.embedding, weights.output()])
}

/// Whether the kernels can run this shape: whole vectors everywhere, and a tree of weights that belongs to the config.
fn check_shape(config: &ModelConfig, weights: &Weights) -> Result<(), CpuError> {
    let multiple = |what, found: usize, of: usize, expected| {
        if found > 0 && found.is_multiple_of(of) {
            Ok(())
        } else {
            Err(CpuError::UnsupportedShape { what, expected, found })
        }
    };
    let (attention, delta_net) = (&config.attention, &config.delta_net);
    multiple("head_dim", attention.head_dim, 2 * LANES, "a multiple of 16")?;
    multiple(
        "num_attention_heads",
        attention.heads,
        attention.kv_heads.max(1),
        "a multiple of num_key_value_heads",
    )?;
    multiple("linear_key_head_dim", delta_net.key_dim, LANES, "a multiple of 8")?;
    multiple("linear_value_head_dim", delta_net.value_dim, LANES, "a multiple of 8")?;
    multiple(
        "linear_num_value_heads",
        delta_net.value_heads,
        delta_net.key_heads.max(1),
        "a multiple of linear_num_key_heads",
    )?;
    if !(1..=MAX_CONV_KERNEL).contains(&delta_net.conv_kernel) {
        return Err(CpuError::UnsupportedShape {
            what: "linear_conv_kernel_dim",
            expected: "1 to 9",
            found: delta_net.conv_kernel,
        });
    }
    if let MlpConfig::Moe { experts, top_k, .. } = config.mlp
        && !(1..=experts).contains(&top_k)
    {
        return Err(CpuError::UnsupportedShape {
            what: "num_experts_per_tok",
            expected: "1 to num_experts",
            found: top_k,
        });
    }
    for matrix in matrices(weights) {
        multiple("columns of a matrix", matrix.cols, LANES, "a multiple of 8")?;
    }
    let kinds = weights.layers.iter().map(|layer| match layer.mixer {
        Mixer::Attention(_) => LayerKind::Attention,
        Mixer::DeltaNet(_) => LayerKind::DeltaNet,
    });
    if !kinds.eq(config.layers.iter().copied()) {
        return Err(CpuError::UnsupportedShape {
            what: "layers of the weights",
            expected: "the mixers that the config lists",
            found: weights.layers.len(),
        });
    }
    Ok(())
}
