//! `--model` and `--device`: which model a command runs, and how.

use std::sync::Arc;

use clap::{Args, ValueEnum};
use lily_cpu::{CpuModel, CpuOptions, KvPrecision};
use lily_engine::{Backend, Engine, EngineOptions, Vocabulary};
use lily_gpu::emulator::{EmulatorDevice, EmulatorOptions};
use lily_gpu::{GpuModel, GpuOptions, Switches, policy, system};
use lily_model::{Checkpoint, ModelConfig, Source, Weights, hub};

use crate::backend::AnyBackend;
use crate::demo;
use crate::error::CliError;
use crate::inspect::parts;
use crate::machine;
use crate::progress::{self, Downloads, Loading};

/// Name of the checkpoint inside the program.
pub const DEMO: &str = "demo";

/// Name of the one shape that `--synthetic` knows.
pub const QWEN3_6_35B_A3B: &str = "qwen3.6-35b-a3b";

/// Which checkpoint.
#[derive(Args, Clone, Debug)]
pub struct ModelArgs {
    /// A directory, a Hugging Face repository (ORG/NAME or ORG/NAME@REVISION, downloaded where it is not cached), or `demo`, which is part of
    /// the program
    #[arg(long, short, default_value = DEMO, value_name = "DIR|REPO|demo")]
    pub model: String,
}

/// Weights made in memory instead of a checkpoint's.
#[derive(Args, Clone, Debug, Default)]
pub struct SyntheticArgs {
    /// Random weights of this shape instead of a checkpoint's, for measurements
    #[arg(long, value_name = "SHAPE", value_parser = [QWEN3_6_35B_A3B], conflicts_with = "model")]
    pub synthetic: Option<String>,
    /// Only the first N layers of the shape
    #[arg(long, value_name = "N", requires = "synthetic")]
    pub layers: Option<usize>,
}

impl SyntheticArgs {
    /// The same as options, for another process.
    pub fn to_args(&self) -> Vec<String> {
        let mut args = Vec::new();
        if let Some(shape) = &self.synthetic {
            args.extend(["--synthetic".into(), shape.clone()]);
        }
        if let Some(layers) = self.layers {
            args.extend(["--layers".into(), layers.to_string()]);
        }
        args
    }

    /// The shape asked for, if one is.
    pub fn config(&self) -> Result<Option<ModelConfig>, CliError> {
        if self.synthetic.is_none() {
            return Ok(None);
        }
        let mut config = ModelConfig::qwen3_6_35b_a3b();
        if let Some(layers) = self.layers {
            if layers == 0 || layers > config.layers.len() {
                let most = config.layers.len();
                return Err(CliError::Usage(format!(
                    "--layers: expected 1 to {most}, found {layers}"
                )));
            }
            config.layers.truncate(layers);
        }
        Ok(Some(config))
    }
}

/// Which device, and how it computes.
#[derive(Args, Clone, Debug)]
pub struct DeviceArgs {
    /// Where the model runs
    #[arg(long, value_enum, default_value_t = Device::Auto)]
    pub device: Device,
    /// Threads on the CPU [default: all]
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
    /// Number format of the CPU's KV cache; GPUs keep bf16 [default: f32]
    #[arg(long, value_enum)]
    pub kv: Option<Kv>,
    /// Keep activations in f32 throughout, where faster kernels would round them
    #[arg(long)]
    pub exact: bool,
    /// Turn off one optimization of the GPU kernels, to measure it; may be given several times
    #[arg(long, value_name = "SWITCH")]
    pub without: Vec<String>,
}

/// A device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Device {
    /// The fastest that this program can use here
    Auto,
    /// The processor
    Cpu,
    /// The GPU of a Mac
    Metal,
    /// An NVIDIA GPU
    Cuda,
    /// The GPU kernels, run by software on the processor: for tests
    Emulator,
}

/// Number format of the KV cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kv {
    /// bfloat16
    Bf16,
    /// Single precision
    F32,
}

impl From<Kv> for KvPrecision {
    fn from(kv: Kv) -> Self {
        match kv {
            Kv::Bf16 => KvPrecision::Bf16,
            Kv::F32 => KvPrecision::F32,
        }
    }
}

/// The name of a value on the command line.
fn named(value: &impl ValueEnum) -> String {
    value
        .to_possible_value()
        .map_or_else(String::new, |value| value.get_name().to_owned())
}

impl DeviceArgs {
    /// The same as options, for another process.
    pub fn to_args(&self) -> Vec<String> {
        let mut args = vec!["--device".into(), named(&self.device)];
        if let Some(threads) = self.threads {
            args.extend(["--threads".into(), threads.to_string()]);
        }
        if let Some(kv) = &self.kv {
            args.extend(["--kv".into(), named(kv)]);
        }
        if self.exact {
            args.push("--exact".into());
        }
        for switch in &self.without {
            args.extend(["--without".into(), switch.clone()]);
        }
        args
    }

    fn options(&self) -> Result<CpuOptions, CliError> {
        if self.threads == Some(0) {
            return Err(CliError::Usage("--threads: expected at least 1, found 0".into()));
        }
        Ok(CpuOptions {
            threads: self.threads,
            kv: self.kv.map_or(KvPrecision::default(), Into::into),
            exact: self.exact,
            ..CpuOptions::default()
        })
    }

    /// Optimizations of the GPU kernels that are in use.
    pub fn switches(&self) -> Result<Switches, CliError> {
        let without = |switches: Switches, name: &String| switches.without(name);
        self.without
            .iter()
            .try_fold(Switches::default(), without)
            .map_err(|error| CliError::Usage(format!("--without: {error}")))
    }

    /// The backend over `weights`; what the user should know of it is logged.
    /// With `context`, sequences may have so many tokens, and a GPU without room for one of them is refused before anything is loaded.
    pub fn backend(
        &self,
        config: &ModelConfig,
        weights: Weights,
        context: Option<usize>,
    ) -> Result<AnyBackend, CliError> {
        let mut notices = Vec::new();
        let backend = self.backend_with_notices(config, weights, context, &mut notices);
        for notice in notices {
            tracing::warn!("{notice}");
        }
        backend
    }

    /// The backend over `weights`; `notices` gets what the user should know of it: why a device or its faster kernels are not used.
    pub fn backend_with_notices(
        &self,
        config: &ModelConfig,
        weights: Weights,
        context: Option<usize>,
        notices: &mut Vec<String>,
    ) -> Result<AnyBackend, CliError> {
        let (config, switches) = (Arc::new(config.clone()), self.switches()?);
        let gpu = |device: Box<dyn lily_gpu::Device>, notices: &mut Vec<String>| -> Result<AnyBackend, CliError> {
            notices.extend(device.notices());
            let options = GpuOptions {
                switches,
                max_chunk: policy::max_chunk(device.family()),
                max_context: context.map(|tokens| tokens.clamp(1, config.max_position_embeddings)),
            };
            let loading = Loading::new(weight_bytes(&weights) as u64);
            let model = GpuModel::new(device, config.clone(), &weights, options, &mut |bytes| {
                loading.advance(bytes as u64)
            })?;
            Ok(AnyBackend::Gpu(Box::new(model)))
        };
        let weight_bytes = weight_bytes(&weights);
        match self.device {
            Device::Emulator => {
                let options = EmulatorOptions {
                    threads: self.threads,
                    ..EmulatorOptions::default()
                };
                gpu(Box::new(EmulatorDevice::new(options)?), notices)
            }
            Device::Metal => gpu(system::metal(weight_bytes, &mut progress::kernels())?, notices),
            Device::Cuda => gpu(system::cuda()?, notices),
            Device::Auto => match system::gpu(weight_bytes, &mut progress::kernels()) {
                Ok(Some(device)) => gpu(device, notices),
                Ok(None) => self.cpu(config, weights),
                Err(error) => {
                    notices.push(format!("the CPU is used: {error}"));
                    self.cpu(config, weights)
                }
            },
            Device::Cpu => self.cpu(config, weights),
        }
    }

    fn cpu(&self, config: Arc<ModelConfig>, weights: Weights) -> Result<AnyBackend, CliError> {
        let model = CpuModel::new(config, Arc::new(weights), self.options()?)?;
        Ok(AnyBackend::Cpu(Box::new(model)))
    }
}

/// How much a running model may hold.
#[derive(Args, Clone, Debug, Default)]
pub struct MemoryArgs {
    /// Longest context in tokens, prompt and reply together [default: what the model was made for, or what memory has room for]
    #[arg(long, value_name = "TOKENS")]
    pub context: Option<usize>,
    /// Memory for the state of running sequences, such as 800MB or 4GB [default: half of what the weights leave free]
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub memory: Option<usize>,
    /// Memory for the prefix cache, 0 for none [default: a quarter of what the weights leave free, at most 8 GB]
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub cache_memory: Option<usize>,
}

impl MemoryArgs {
    /// Limits of an engine over `backend`, whose weights take `weight_bytes`.
    pub fn options(&self, backend: &AnyBackend, weight_bytes: usize) -> EngineOptions {
        const FOR_EVERYTHING_ELSE: usize = 1_000_000_000;
        const LEAST: usize = 256_000_000;
        const MOST_CACHE: usize = 8_000_000_000;
        let free = backend.free_memory().unwrap_or_else(|| {
            let total = usize::try_from(machine::memory()).unwrap_or(usize::MAX);
            total.saturating_sub(weight_bytes).saturating_sub(FOR_EVERYTHING_ELSE)
        });
        let free = free.max(LEAST);
        // Who asks for a context gets the memory that one sequence of it takes.
        let asked = self.context.map_or(0, |tokens| {
            let tokens = tokens.min(backend.context_limit());
            backend.sequence_bytes(tokens).min(free)
        });
        EngineOptions {
            context_limit: self.context,
            sequence_memory: Some(self.memory.unwrap_or((free / 2).max(asked))),
            cache_memory: self.cache_memory.unwrap_or((free / 4).min(MOST_CACHE)),
            ..EngineOptions::default()
        }
    }
}

/// `4GB`, `800MB`, `1GiB`, `123456`.
pub fn parse_bytes(text: &str) -> Result<usize, String> {
    let digits = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let factor = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1.0,
        "kb" | "k" => 1e3,
        "mb" | "m" => 1e6,
        "gb" | "g" => 1e9,
        "tb" | "t" => 1e12,
        "kib" => 1024.0,
        "mib" => f64::from(1 << 20),
        "gib" => f64::from(1 << 30),
        _ => {
            return Err(format!(
                "expected a number with B, kB, MB, GB, MiB or GiB, found {text:?}"
            ));
        }
    };
    let number: f64 = number
        .parse()
        .map_err(|_| format!("expected a number, found {number:?}"))?;
    Ok((number * factor) as usize)
}

impl ModelArgs {
    /// The same as options, for another process.
    pub fn to_args(&self) -> Vec<String> {
        vec!["--model".into(), self.model.clone()]
    }

    /// Opens the checkpoint, downloading it where it is neither a directory nor cached.
    pub fn open(&self) -> Result<Checkpoint, CliError> {
        Ok(Checkpoint::open(&self.source()?)?)
    }

    fn source(&self) -> Result<Source, CliError> {
        if self.model == DEMO {
            return Ok(demo::source());
        }
        Ok(Source::Directory(hub::resolve(&self.model, &Downloads::new())?))
    }
}

/// Bytes of all weights in memory.
pub fn weight_bytes(weights: &Weights) -> usize {
    parts::bytes(weights) as usize
}

/// An engine over `checkpoint`.
pub fn start_engine(checkpoint: &Checkpoint, device: &DeviceArgs, memory: &MemoryArgs) -> Result<Engine, CliError> {
    let backend = device.backend(&checkpoint.config, checkpoint.weights.clone(), memory.context)?;
    let options = memory.options(&backend, weight_bytes(&checkpoint.weights));
    Ok(Engine::start(backend, Vocabulary::new(&checkpoint.tokenizer), options)?)
}

#[cfg(test)]
mod tests {
    use super::parse_bytes;

    #[test]
    fn byte_counts() {
        assert_eq!(parse_bytes("123"), Ok(123));
        assert_eq!(parse_bytes("4GB"), Ok(4_000_000_000));
        assert_eq!(parse_bytes("1.5 mb"), Ok(1_500_000));
        assert_eq!(parse_bytes("2GiB"), Ok(2 << 30));
        assert!(parse_bytes("GB").is_err());
        assert!(parse_bytes("4 parsecs").is_err());
    }
}
