//! The tensors of a checkpoint to [`Weights`]: every shape and type checked against the config, nothing copied but small vectors.

use safetensors::tensor::Dtype;

use crate::bytes::Bytes;
use crate::config::{LayerKind, MlpConfig, ModelConfig};
use crate::error::{Error, Result};
use crate::matrix::{Encoding, FloatType, Matrix};
use crate::quantization::{Quantization, Scheme};
use crate::shards::{Shards, Tensor, describe};
use crate::weights::{Attention, DeltaNet, GatedMlp, Layer, Mixer, Mlp, Moe, Weights};

/// Builds the weights of a model of shape `config`. Tensors that the text model does not have (vision, MTP) are left alone.
pub(crate) fn load_weights(shards: &Shards, config: &ModelConfig, quantization: &Quantization) -> Result<Weights> {
    refuse_unconverted(shards)?;
    let loader = Loader {
        shards,
        quantization,
        config,
    };
    // With a vision part the text model is a submodule; a checkpoint of the text model alone has no such prefix.
    let (model, lm_head) = if shards.get("model.embed_tokens.weight").is_some() {
        ("model", "lm_head")
    } else {
        ("language_model.model", "language_model.lm_head")
    };
    let (hidden, vocabulary) = (config.hidden_size, config.vocab_size);
    let layers = config
        .layers
        .iter()
        .enumerate()
        .map(|(index, kind)| loader.layer(&format!("{model}.layers.{index}"), *kind))
        .collect::<Result<Vec<Layer>>>()?;
    let last = config.layers.len();
    if shards
        .get(&format!("{model}.layers.{last}.input_layernorm.weight"))
        .is_some()
    {
        return Err(shards.wrong(
            &format!("{model}.layers.{last}.input_layernorm.weight"),
            format!("no layer {last}, as num_hidden_layers is {last}"),
        ));
    }
    Ok(Weights {
        embedding: loader.matrix(&format!("{model}.embed_tokens"), vocabulary, hidden)?,
        layers,
        norm: loader.vector(&format!("{model}.norm.weight"), &[hidden])?,
        lm_head: if config.tie_word_embeddings {
            None
        } else {
            Some(loader.matrix(lm_head, vocabulary, hidden)?)
        },
    })
}

/// Refuses a checkpoint in transformers' layout. Its norms are stored without the 1 that has to be added to them, so it would load
/// and then produce nonsense; the layout of the tensors is what tells the two apart.
fn refuse_unconverted(shards: &Shards) -> Result<()> {
    let raw = shards
        .names()
        .filter(|name| name.starts_with("model.language_model.") || name.contains(".mlp.experts."))
        .min();
    match raw {
        Some(name) => Err(shards.wrong(name, CONVERTED)),
        None => Ok(()),
    }
}

const CONVERTED: &str =
    "a checkpoint in MLX's layout; this one is in transformers' layout, convert it with mlx_lm.convert";

struct Loader<'a> {
    shards: &'a Shards,
    quantization: &'a Quantization,
    config: &'a ModelConfig,
}

impl Loader<'_> {
    fn layer(&self, prefix: &str, kind: LayerKind) -> Result<Layer> {
        let hidden = self.config.hidden_size;
        Ok(Layer {
            input_norm: self.vector(&format!("{prefix}.input_layernorm.weight"), &[hidden])?,
            mixer: match kind {
                LayerKind::Attention => Mixer::Attention(Box::new(self.attention(&format!("{prefix}.self_attn"))?)),
                LayerKind::DeltaNet => Mixer::DeltaNet(Box::new(self.delta_net(&format!("{prefix}.linear_attn"))?)),
            },
            post_norm: self.vector(&format!("{prefix}.post_attention_layernorm.weight"), &[hidden])?,
            mlp: self.mlp(&format!("{prefix}.mlp"))?,
        })
    }

    fn attention(&self, prefix: &str) -> Result<Attention> {
        let hidden = self.config.hidden_size;
        let shape = &self.config.attention;
        let (query_rows, kv_rows) = (shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim);
        Ok(Attention {
            q_proj: self.matrix(&format!("{prefix}.q_proj"), 2 * query_rows, hidden)?,
            k_proj: self.matrix(&format!("{prefix}.k_proj"), kv_rows, hidden)?,
            v_proj: self.matrix(&format!("{prefix}.v_proj"), kv_rows, hidden)?,
            o_proj: self.matrix(&format!("{prefix}.o_proj"), hidden, query_rows)?,
            q_norm: self.vector(&format!("{prefix}.q_norm.weight"), &[shape.head_dim])?,
            k_norm: self.vector(&format!("{prefix}.k_norm.weight"), &[shape.head_dim])?,
        })
    }

    fn delta_net(&self, prefix: &str) -> Result<DeltaNet> {
        let hidden = self.config.hidden_size;
        let shape = &self.config.delta_net;
        let value_rows = shape.value_heads * shape.value_dim;
        let (channels, taps) = (shape.conv_channels(), shape.conv_kernel);
        let conv = format!("{prefix}.conv1d.weight");
        if self
            .shards
            .get(&conv)
            .is_some_and(|tensor| tensor.shape == [channels, 1, taps])
        {
            return Err(self.shards.wrong(&conv, CONVERTED));
        }
        Ok(DeltaNet {
            in_proj_qkv: self.matrix(&format!("{prefix}.in_proj_qkv"), channels, hidden)?,
            in_proj_z: self.matrix(&format!("{prefix}.in_proj_z"), value_rows, hidden)?,
            in_proj_b: self.matrix(&format!("{prefix}.in_proj_b"), shape.value_heads, hidden)?,
            in_proj_a: self.matrix(&format!("{prefix}.in_proj_a"), shape.value_heads, hidden)?,
            out_proj: self.matrix(&format!("{prefix}.out_proj"), hidden, value_rows)?,
            conv: self.vector(&conv, &[channels, taps, 1])?,
            a_log: self.vector(&format!("{prefix}.A_log"), &[shape.value_heads])?,
            dt_bias: self.vector(&format!("{prefix}.dt_bias"), &[shape.value_heads])?,
            norm: self.vector(&format!("{prefix}.norm.weight"), &[shape.value_dim])?,
        })
    }

    fn mlp(&self, prefix: &str) -> Result<Mlp> {
        let hidden = self.config.hidden_size;
        Ok(match self.config.mlp {
            MlpConfig::Dense { intermediate } => Mlp::Dense(Box::new(self.gated_mlp(prefix, None, intermediate)?)),
            MlpConfig::Moe {
                experts,
                intermediate,
                shared_intermediate,
                ..
            } => Mlp::Moe(Box::new(Moe {
                router: self.matrix(&format!("{prefix}.gate"), experts, hidden)?,
                experts: self.gated_mlp(&format!("{prefix}.switch_mlp"), Some(experts), intermediate)?,
                shared: self.gated_mlp(&format!("{prefix}.shared_expert"), None, shared_intermediate)?,
                shared_gate: self.matrix(&format!("{prefix}.shared_expert_gate"), 1, hidden)?,
            })),
        })
    }

    fn gated_mlp(&self, prefix: &str, experts: Option<usize>, intermediate: usize) -> Result<GatedMlp> {
        let hidden = self.config.hidden_size;
        Ok(GatedMlp {
            gate: self.stacked(&format!("{prefix}.gate_proj"), experts, intermediate, hidden)?,
            up: self.stacked(&format!("{prefix}.up_proj"), experts, intermediate, hidden)?,
            down: self.stacked(&format!("{prefix}.down_proj"), experts, hidden, intermediate)?,
        })
    }

    fn matrix(&self, module: &str, rows: usize, cols: usize) -> Result<Matrix> {
        self.stacked(module, None, rows, cols)
    }

    /// A matrix `[rows, cols]`, or the stacked matrices `[count, rows, cols]` of the experts.
    fn stacked(&self, module: &str, count: Option<usize>, rows: usize, cols: usize) -> Result<Matrix> {
        let shape = |last: usize| -> Vec<usize> { count.into_iter().chain([rows, last]).collect() };
        let (weight, scales) = (format!("{module}.weight"), format!("{module}.scales"));
        let scheme = self.quantization.scheme(module);
        let (encoding, scales, biases) = match (self.shards.get(&scales), scheme) {
            // Converters leave out of the quantization block what they could not quantize: no scales, plain numbers.
            (None, _) => {
                let float = self.float(&weight, &shape(cols), scheme)?;
                (Encoding::Float(float), None, None)
            }
            (Some(_), None) => {
                return Err(self.shards.wrong(
                    &scales,
                    "no scales, as config.json does not say that this module is quantized",
                ));
            }
            (Some(found), Some(scheme)) => {
                let (bits, group_size) = (scheme.bits(), scheme.group_size());
                if !cols.is_multiple_of(group_size) || !(cols * bits).is_multiple_of(32) {
                    return Err(self.shards.wrong(
                        &weight,
                        format!("{cols} columns to be whole groups, as config.json says {scheme}"),
                    ));
                }
                self.exact(&weight, Dtype::U32, &shape(cols * bits / 32), scheme)?;
                let groups = shape(cols / group_size);
                match scheme {
                    Scheme::Affine { bits, group_size } => {
                        let scale_type = float_type(found.dtype)
                            .filter(|_| found.shape == groups)
                            .ok_or_else(|| self.inconsistent(&scales, &format!("floats {groups:?}"), scheme))?;
                        let biases = self.exact(&format!("{module}.biases"), found.dtype, &groups, scheme)?;
                        let encoding = Encoding::Affine {
                            bits,
                            group_size,
                            scale_type,
                        };
                        (encoding, Some(found), Some(biases))
                    }
                    Scheme::Mxfp4 | Scheme::Nvfp4 | Scheme::Mxfp8 => {
                        let found = self.exact(&scales, Dtype::U8, &groups, scheme)?;
                        let encoding = match scheme {
                            Scheme::Mxfp8 => Encoding::Mxfp8,
                            Scheme::Nvfp4 => Encoding::Nvfp4 {
                                global_scale: self.global_scale(module)?,
                            },
                            _ => Encoding::Mxfp4,
                        };
                        (encoding, Some(found), None)
                    }
                }
            }
        };
        let data = |tensor: Option<&Tensor>| tensor.map_or_else(|| Bytes::from(&[][..]), |tensor| tensor.data.clone());
        let matrix = Matrix {
            name: module.into(),
            count: count.unwrap_or(1),
            rows,
            cols,
            encoding,
            codes: data(self.shards.get(&weight)),
            scales: data(scales),
            biases: data(biases),
        };
        if !matrix.has_expected_lengths() {
            return Err(self.shards.wrong(&weight, "as many bytes as its shape asks for"));
        }
        Ok(matrix)
    }

    /// The number format of an unquantized matrix.
    fn float(&self, name: &str, shape: &[usize], scheme: Option<Scheme>) -> Result<FloatType> {
        self.shards
            .get(name)
            .filter(|tensor| tensor.shape == shape)
            .and_then(|tensor| float_type(tensor.dtype))
            .ok_or_else(|| {
                let quantized = scheme.map_or_else(String::new, |scheme| {
                    format!(", or {scheme} (as config.json says) with its scales beside it")
                });
                self.shards
                    .wrong(name, format!("BF16, F16 or F32 {shape:?}{quantized}"))
            })
    }

    /// A tensor of exactly this type and shape, which follow from `scheme`.
    fn exact(&self, name: &str, dtype: Dtype, shape: &[usize], scheme: Scheme) -> Result<&Tensor> {
        self.shards
            .get(name)
            .filter(|tensor| tensor.dtype == dtype && tensor.shape == shape)
            .ok_or_else(|| self.inconsistent(name, &describe(dtype, shape), scheme))
    }

    fn inconsistent(&self, name: &str, expected: &str, scheme: Scheme) -> Error {
        self.shards
            .wrong(name, format!("{expected} ({scheme}, as config.json says)"))
    }

    /// The factor of all scales of an nvfp4 matrix; 1 where the checkpoint has none.
    fn global_scale(&self, module: &str) -> Result<f32> {
        let name = format!("{module}.global_scale");
        match self.shards.get(&name) {
            None => Ok(1.0),
            Some(tensor) if tensor.dtype == Dtype::F32 && tensor.data.len() == 4 => {
                Some(FloatType::F32.read(&tensor.data, 0))
                    .filter(|scale| scale.is_finite())
                    .ok_or_else(|| self.shards.wrong(&name, "a finite number"))
            }
            Some(_) => Err(self.shards.wrong(&name, "F32 with one element")),
        }
    }

    /// A small tensor as numbers; all must be finite.
    fn vector(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>> {
        let wrong = || self.shards.wrong(name, format!("BF16, F16 or F32 {shape:?}"));
        let tensor = self
            .shards
            .get(name)
            .filter(|tensor| tensor.shape == shape)
            .ok_or_else(wrong)?;
        let float = float_type(tensor.dtype).ok_or_else(wrong)?;
        let count = tensor.data.len() / float.size();
        let numbers: Vec<f32> = (0..count).map(|index| float.read(&tensor.data, index)).collect();
        match numbers.iter().position(|number| !number.is_finite()) {
            None => Ok(numbers),
            Some(index) => Err(Error::Tensor {
                file: self.shards.file_of(name),
                tensor: name.into(),
                expected: "finite numbers".into(),
                found: format!("{} at {index}", numbers[index]),
            }),
        }
    }
}

fn float_type(dtype: Dtype) -> Option<FloatType> {
    match dtype {
        Dtype::BF16 => Some(FloatType::Bf16),
        Dtype::F16 => Some(FloatType::F16),
        Dtype::F32 => Some(FloatType::F32),
        _ => None,
    }
}
