//! The model's weights on a device, in their packed form.

use lily_model::{Bytes, Encoding as StoredEncoding, FloatType, LayerKind, Matrix, Mixer, Mlp, ModelConfig, Weights};

use crate::device::{BufferId, Device, Memory, Slice};
use crate::error::GpuError;
use crate::params::Encoding;
use crate::switches::Switches;

/// Which kernels read a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Form {
    /// Affine, 4 bits, groups of 64, bfloat scales: tuned kernels.
    Q4,
    /// Affine, 8 bits, groups of 64, bfloat scales: tuned kernels.
    Q8,
    /// Plain bfloat: tuned products.
    Bf16,
    /// Anything else that a checkpoint may hold: general kernels.
    Any,
}

impl Form {
    /// Part of the kernels' names.
    pub fn name(self) -> &'static str {
        match self {
            Form::Q4 => "q4",
            Form::Q8 => "q8",
            Form::Bf16 => "bf16",
            Form::Any => "any",
        }
    }
}

/// A matrix on the device.
#[derive(Clone, Copy, Debug)]
pub struct GpuMatrix {
    /// Stacked matrices: the routed experts, or 1.
    pub count: usize,
    /// Outputs of one matrix.
    pub rows: usize,
    /// Inputs.
    pub cols: usize,
    /// Which kernels read it.
    pub form: Form,
    /// How its elements are stored, for the general kernels.
    pub encoding: Encoding,
    /// Elements.
    pub codes: Slice,
    /// Scales; the codes again where there are none, so that something can be bound.
    pub scales: Slice,
    /// Biases; the codes again where there are none.
    pub biases: Slice,
}

/// Weights of a full-attention mixer on the device.
#[derive(Clone, Debug)]
pub struct GpuAttention {
    /// Per head the query's rows, then the gate's.
    pub q: GpuMatrix,
    /// Keys.
    pub k: GpuMatrix,
    /// Values.
    pub v: GpuMatrix,
    /// Output.
    pub o: GpuMatrix,
    /// `[head_dim]` f32
    pub q_norm: Slice,
    /// `[head_dim]` f32
    pub k_norm: Slice,
}

/// Weights of a Gated DeltaNet mixer on the device.
#[derive(Clone, Debug)]
pub struct GpuDeltaNet {
    /// q, k and v.
    pub qkv: GpuMatrix,
    /// Output gate.
    pub z: GpuMatrix,
    /// beta before its sigmoid.
    pub b: GpuMatrix,
    /// The decay before its softplus.
    pub a: GpuMatrix,
    /// Output.
    pub out: GpuMatrix,
    /// `[channels, taps]` f32
    pub conv: Slice,
    /// `[value_heads]` f32
    pub a_log: Slice,
    /// `[value_heads]` f32
    pub dt_bias: Slice,
    /// `[value_dim]` f32
    pub norm: Slice,
}

/// The mixer of a layer on the device.
#[derive(Clone, Debug)]
pub enum GpuMixer {
    /// Full attention.
    Attention(GpuAttention),
    /// Gated DeltaNet.
    DeltaNet(GpuDeltaNet),
}

/// `down(silu(gate(x)) * up(x))`
#[derive(Clone, Copy, Debug)]
pub struct GpuMlp {
    /// Gate rows.
    pub gate: GpuMatrix,
    /// Up rows.
    pub up: GpuMatrix,
    /// Down rows.
    pub down: GpuMatrix,
}

/// The routed part of a mixture of experts.
#[derive(Clone, Copy, Debug)]
pub struct GpuRouted {
    /// `[experts, hidden]`
    pub router: GpuMatrix,
    /// Each matrix has `count` = experts.
    pub experts: GpuMlp,
    /// `[1, hidden]`: gate of the shared expert.
    pub shared_gate: GpuMatrix,
}

/// One layer on the device.
#[derive(Clone, Debug)]
pub struct GpuLayer {
    /// RMSNorm before the mixer, `[hidden]` f32.
    pub input_norm: Slice,
    /// Attention or Gated DeltaNet.
    pub mixer: GpuMixer,
    /// RMSNorm before the feed-forward part, `[hidden]` f32.
    pub post_norm: Slice,
    /// Routed experts; `None` for a dense MLP.
    pub routed: Option<GpuRouted>,
    /// The shared expert, or the dense MLP.
    pub shared: GpuMlp,
}

/// All weights on the device.
#[derive(Clone, Debug)]
pub struct GpuWeights {
    /// `[vocab, hidden]`
    pub embedding: GpuMatrix,
    /// First layer first.
    pub layers: Vec<GpuLayer>,
    /// Final RMSNorm, `[hidden]` f32.
    pub norm: Slice,
    /// Makes logits from the last hidden state.
    pub output: GpuMatrix,
    /// Rotary frequencies in turns per position, times 2^32, `[rotary_dim / 2]` u32.
    pub frequencies: Slice,
    /// Bytes of all of it.
    pub bytes: usize,
}

/// Puts named data somewhere; [`GpuWeights::place`] says what there is.
pub trait Placer {
    /// A buffer of `bytes.len()` bytes that holds `bytes`.
    ///
    /// # Errors
    /// Where the device has no room or failed.
    fn place(&mut self, label: &str, bytes: &[u8]) -> Result<Slice, GpuError>;

    /// The same for bytes that live as long as anybody wants, so that a device may read them in place.
    ///
    /// # Errors
    /// As [`Placer::place`].
    fn place_shared(&mut self, label: &str, bytes: &Bytes) -> Result<Slice, GpuError> {
        self.place(label, bytes)
    }
}

/// Copies weights to a device.
pub struct Upload<'a, D> {
    /// The device.
    pub device: &'a mut D,
    /// Told the bytes of each piece when it is on the device.
    pub progress: &'a mut dyn FnMut(usize),
}

impl<D: Device> Placer for Upload<'_, D> {
    fn place(&mut self, label: &str, bytes: &[u8]) -> Result<Slice, GpuError> {
        let buffer = self.device.allocate(label, bytes.len(), Memory::Device)?;
        let slice = Slice {
            buffer,
            offset: 0,
            len: bytes.len(),
        };
        self.device.write(slice, bytes)?;
        (self.progress)(bytes.len());
        Ok(slice)
    }

    fn place_shared(&mut self, label: &str, bytes: &Bytes) -> Result<Slice, GpuError> {
        let slice = self.device.place(label, bytes)?;
        (self.progress)(bytes.len());
        Ok(slice)
    }
}

/// Gives out buffer ids without a device: for plans.
#[derive(Debug, Default)]
pub struct Imagined {
    next: u32,
}

impl Imagined {
    /// A slice of `len` bytes of a new buffer.
    pub fn slice(&mut self, len: usize) -> Slice {
        self.next += 1;
        Slice {
            buffer: BufferId(u32::MAX - self.next),
            offset: 0,
            len,
        }
    }
}

impl Placer for Imagined {
    fn place(&mut self, _label: &str, bytes: &[u8]) -> Result<Slice, GpuError> {
        Ok(self.slice(bytes.len()))
    }
}

const BFLOAT: u32 = 0;
const HALF: u32 = 1;
const FLOAT: u32 = 2;

fn float_type(float: FloatType) -> u32 {
    match float {
        FloatType::Bf16 => BFLOAT,
        FloatType::F16 => HALF,
        FloatType::F32 => FLOAT,
    }
}

/// An encoding as the general kernels know it (the kEncoding constants of `weights.h`).
pub fn describe_encoding(encoding: StoredEncoding) -> Encoding {
    let bits = encoding.bits() as u32;
    let group_size = encoding.group_size().unwrap_or(0) as u32;
    let (kind, scale_type, global_scale) = match encoding {
        StoredEncoding::Affine { scale_type, .. } => (0, float_type(scale_type), 1.0),
        StoredEncoding::Mxfp4 => (1, BFLOAT, 1.0),
        StoredEncoding::Nvfp4 { global_scale } => (2, BFLOAT, global_scale),
        StoredEncoding::Mxfp8 => (3, BFLOAT, 1.0),
        StoredEncoding::Float(float) => (4 + float_type(float), BFLOAT, 1.0),
    };
    Encoding {
        kind,
        bits,
        group_size,
        scale_type,
        global_scale,
    }
}

/// The kernels that read a matrix of this encoding.
pub fn form(encoding: StoredEncoding) -> Form {
    match encoding {
        StoredEncoding::Affine {
            bits: 4,
            group_size: 64,
            scale_type: FloatType::Bf16,
        } => Form::Q4,
        StoredEncoding::Affine {
            bits: 8,
            group_size: 64,
            scale_type: FloatType::Bf16,
        } => Form::Q8,
        StoredEncoding::Float(FloatType::Bf16) => Form::Bf16,
        _ => Form::Any,
    }
}

fn floats(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

struct Placing<'a> {
    placer: &'a mut dyn Placer,
    bytes: usize,
}

impl Placing<'_> {
    fn place(&mut self, label: &str, bytes: &[u8]) -> Result<Slice, GpuError> {
        self.bytes += bytes.len();
        self.placer.place(label, bytes)
    }

    fn shared(&mut self, label: &str, bytes: &Bytes) -> Result<Slice, GpuError> {
        self.bytes += bytes.len();
        self.placer.place_shared(label, bytes)
    }

    fn matrix(&mut self, matrix: &Matrix) -> Result<GpuMatrix, GpuError> {
        // The general kernels take 32 columns at a time, which fill whole words at any width.
        if !matrix.cols.is_multiple_of(32) {
            return Err(GpuError::Unsupported {
                what: format!("{}: columns", matrix.name),
                expected: "a multiple of 32".into(),
                found: matrix.cols.to_string(),
            });
        }
        let codes = self.shared(&matrix.name, &matrix.codes)?;
        let mut other = |bytes: &Bytes| {
            if bytes.is_empty() {
                Ok(codes)
            } else {
                self.shared(&matrix.name, bytes)
            }
        };
        Ok(GpuMatrix {
            count: matrix.count,
            rows: matrix.rows,
            cols: matrix.cols,
            form: form(matrix.encoding),
            encoding: describe_encoding(matrix.encoding),
            codes,
            scales: other(&matrix.scales)?,
            biases: other(&matrix.biases)?,
        })
    }

    fn vector(&mut self, label: &str, values: &[f32]) -> Result<Slice, GpuError> {
        self.place(label, &floats(values))
    }

    fn mlp(&mut self, mlp: &lily_model::GatedMlp) -> Result<GpuMlp, GpuError> {
        Ok(GpuMlp {
            gate: self.matrix(&mlp.gate)?,
            up: self.matrix(&mlp.up)?,
            down: self.matrix(&mlp.down)?,
        })
    }

    fn mixer(&mut self, index: usize, mixer: &Mixer) -> Result<GpuMixer, GpuError> {
        Ok(match mixer {
            Mixer::Attention(w) => GpuMixer::Attention(GpuAttention {
                q: self.matrix(&w.q_proj)?,
                k: self.matrix(&w.k_proj)?,
                v: self.matrix(&w.v_proj)?,
                o: self.matrix(&w.o_proj)?,
                q_norm: self.vector(&format!("layers.{index}.q_norm"), &w.q_norm)?,
                k_norm: self.vector(&format!("layers.{index}.k_norm"), &w.k_norm)?,
            }),
            Mixer::DeltaNet(w) => GpuMixer::DeltaNet(GpuDeltaNet {
                qkv: self.matrix(&w.in_proj_qkv)?,
                z: self.matrix(&w.in_proj_z)?,
                b: self.matrix(&w.in_proj_b)?,
                a: self.matrix(&w.in_proj_a)?,
                out: self.matrix(&w.out_proj)?,
                conv: self.vector(&format!("layers.{index}.conv"), &w.conv)?,
                a_log: self.vector(&format!("layers.{index}.a_log"), &w.a_log)?,
                dt_bias: self.vector(&format!("layers.{index}.dt_bias"), &w.dt_bias)?,
                norm: self.vector(&format!("layers.{index}.norm"), &w.norm)?,
            }),
        })
    }
}

impl GpuWeights {
    /// Puts all weights somewhere through `placer`.
    ///
    /// # Errors
    /// Where a matrix has a shape that no kernel takes, or the placer fails.
    pub fn place(config: &ModelConfig, weights: &Weights, placer: &mut dyn Placer) -> Result<GpuWeights, GpuError> {
        let mut p = Placing { placer, bytes: 0 };
        let embedding = p.matrix(&weights.embedding)?;
        let mut layers = Vec::with_capacity(weights.layers.len());
        for (index, layer) in weights.layers.iter().enumerate() {
            let (routed, shared) = match &layer.mlp {
                Mlp::Moe(moe) => {
                    let routed = GpuRouted {
                        router: p.matrix(&moe.router)?,
                        experts: p.mlp(&moe.experts)?,
                        shared_gate: p.matrix(&moe.shared_gate)?,
                    };
                    (Some(routed), p.mlp(&moe.shared)?)
                }
                Mlp::Dense(mlp) => (None, p.mlp(mlp)?),
            };
            layers.push(GpuLayer {
                input_norm: p.vector(&format!("layers.{index}.input_norm"), &layer.input_norm)?,
                mixer: p.mixer(index, &layer.mixer)?,
                post_norm: p.vector(&format!("layers.{index}.post_norm"), &layer.post_norm)?,
                routed,
                shared,
            });
        }
        let output = match &weights.lm_head {
            Some(lm_head) => p.matrix(lm_head)?,
            None => embedding,
        };
        let norm = p.vector("norm", &weights.norm)?;
        let frequencies: Vec<u8> = frequencies(config).iter().flat_map(|f| f.to_le_bytes()).collect();
        let frequencies = p.place("rotary frequencies", &frequencies)?;
        Ok(GpuWeights {
            embedding,
            layers,
            norm,
            output,
            frequencies,
            bytes: p.bytes,
        })
    }

    /// Whether gate and up ever pass through memory: with `fused-swiglu` off, or where the two have different forms.
    pub fn separate_swiglu(&self, switches: &Switches) -> bool {
        let differ = |mlp: &GpuMlp| mlp.gate.form != mlp.up.form;
        let layer =
            |layer: &GpuLayer| differ(&layer.shared) || layer.routed.is_some_and(|routed| differ(&routed.experts));
        !switches.fused_swiglu || self.layers.iter().any(layer)
    }

    /// The layers' kinds, first layer first.
    pub fn kinds(&self) -> impl Iterator<Item = LayerKind> + '_ {
        self.layers.iter().map(|layer| match layer.mixer {
            GpuMixer::Attention(_) => LayerKind::Attention,
            GpuMixer::DeltaNet(_) => LayerKind::DeltaNet,
        })
    }
}

/// Rotary frequencies `theta^(-2i / rotary_dim)` in turns per position, as fractions of 2^32: multiplied by a position they wrap as the
/// circle does.
fn frequencies(config: &ModelConfig) -> Vec<u32> {
    let attention = &config.attention;
    (0..attention.rotary_dim / 2)
        .map(|i| {
            let radians = attention.rope_theta.powf(-2.0 * i as f64 / attention.rotary_dim as f64);
            (radians / std::f64::consts::TAU * 4_294_967_296.0).round() as u64 as u32
        })
        .collect()
}
