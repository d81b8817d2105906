//! `lily inspect`: what a model is, and what it needs.

pub mod parts;

use std::fmt::Write as _;
use std::io::Write as _;

use clap::Args;
use lily_cpu::{KvPrecision, Sequence};
use lily_gpu::Switches;
use lily_gpu::plan::{Plan, decode_plan};
use lily_gpu::policy::MAX_CHUNK;
use lily_gpu::roofline::{self, WeightBytes, Work};
use lily_model::{LayerKind, MlpConfig, ModelConfig};
use serde::Serialize;

use crate::error::CliError;
use crate::model::{Kv, ModelArgs, SyntheticArgs};
use crate::output;
use parts::Part;

/// Says what a model is made of: architecture, parameters, bytes by part, bytes read for each token, and the memory that a context needs.
///
/// A shape given by --synthetic is computed with, not allocated.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  lily inspect
  lily inspect --model mlx-community/Qwen3.6-35B-A3B-4bit
  lily inspect --synthetic qwen3.6-35b-a3b --context 8192,262144 --json
  lily inspect --synthetic qwen3.6-35b-a3b --plan
  lily inspect --synthetic qwen3.6-35b-a3b --machine m4-max

With --json: {\"model\", \"architecture\": {...}, \"parameters\", \"active_parameters\", \"bytes\", \"read_per_token\",
\"parts\": [{\"name\", \"parameters\", \"bytes\", \"active_parameters\", \"read_per_token\"}],
\"memory\": [{\"context\", \"state_bytes\", \"total_bytes\"}],
\"gpu\": {\"kind\", \"description\", \"available_bytes\"} or null}, and with --plan
\"decode_plan\": {\"context\", \"dispatches\", \"stages\", \"launches\": [{\"stage\", \"label\", \"kernel\", \"threadgroups\", \"threads\"}]}.")]
pub struct InspectArgs {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    synthetic: SyntheticArgs,
    /// Context lengths for which to tell the memory, in tokens [default: 4096, 32768, and what the model was made for]
    #[arg(long, value_delimiter = ',', value_name = "N,..")]
    context: Vec<usize>,
    /// Number format of the KV cache: GPUs keep bf16, the CPU f32 unless it is told otherwise
    #[arg(long, value_enum, default_value_t = Kv::Bf16)]
    kv: Kv,
    /// Also tell what a GPU launches for one decoded token at the first context length
    #[arg(long)]
    plan: bool,
    /// Predict the speed of a Mac, such as m4-max, instead
    #[arg(long, value_name = "NAME", conflicts_with_all = ["json", "plan"])]
    machine: Option<String>,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    model: String,
    architecture: Architecture,
    parameters: u64,
    active_parameters: u64,
    bytes: u64,
    read_per_token: u64,
    parts: Vec<Part>,
    memory: Vec<Memory>,
    gpu: Option<Gpu>,
    #[serde(skip_serializing_if = "Option::is_none")]
    decode_plan: Option<Plan>,
}

/// The GPU of this machine.
#[derive(Serialize)]
struct Gpu {
    kind: &'static str,
    description: String,
    available_bytes: u64,
}

#[derive(Serialize)]
struct Architecture {
    model_type: &'static str,
    hidden_size: usize,
    vocab_size: usize,
    attention_layers: usize,
    delta_net_layers: usize,
    attention: String,
    delta_net: String,
    mlp: String,
    max_position_embeddings: usize,
}

#[derive(Serialize)]
struct Memory {
    context: usize,
    state_bytes: u64,
    total_bytes: u64,
}

/// Prints the report.
pub fn run(args: InspectArgs) -> Result<(), CliError> {
    let (name, config, parts) = match args.synthetic.config()? {
        Some(config) => {
            let parts = parts::of_config(&config);
            (args.synthetic.synthetic.unwrap_or_default(), config, parts)
        }
        None => {
            let checkpoint = args.model.open()?;
            let parts = parts::of_weights(&checkpoint.weights, &checkpoint.config);
            (checkpoint.name, checkpoint.config, parts)
        }
    };
    if let Some(machine) = &args.machine {
        return predict(machine, &config, &parts);
    }
    let sum = |of: fn(&Part) -> u64| parts.iter().map(of).sum::<u64>();
    let bytes = sum(|part| part.bytes);
    let longest = config.max_position_embeddings;
    let mut contexts = args.context;
    if contexts.is_empty() {
        contexts = [4096, 32768]
            .into_iter()
            .filter(|&context| context < longest)
            .chain([longest])
            .collect();
    }
    let plan_context = contexts.first().copied().unwrap_or(longest);
    let decode_plan = match args.plan {
        true => Some(decode_plan(&config, plan_context, &Switches::default())?),
        false => None,
    };
    let memory = contexts.into_iter().map(|context| {
        let state_bytes = Sequence::bytes(&config, KvPrecision::from(args.kv), context) as u64;
        Memory {
            context,
            state_bytes,
            total_bytes: bytes + state_bytes,
        }
    });
    let report = Report {
        model: name,
        architecture: architecture(&config),
        parameters: sum(|part| part.parameters),
        active_parameters: sum(|part| part.active_parameters),
        bytes,
        read_per_token: sum(|part| part.read_per_token),
        memory: memory.collect(),
        gpu: lily_gpu::system::describe().map(|(device, available)| Gpu {
            kind: device.kind,
            description: device.description,
            available_bytes: available as u64,
        }),
        parts,
        decode_plan,
    };
    if args.json {
        return output::json(&report);
    }
    write!(std::io::stdout(), "{}", for_people(&report))?;
    Ok(())
}

/// Prints what to expect of a Mac.
fn predict(name: &str, config: &ModelConfig, parts: &[Part]) -> Result<(), CliError> {
    let machine = roofline::machine(name).ok_or_else(|| {
        let known: Vec<&str> = roofline::MACHINES.iter().map(|machine| machine.name).collect();
        CliError::Usage(format!("--machine: expected one of {}, found {name}", known.join(", ")))
    })?;
    let of = |names: &[&str]| {
        parts
            .iter()
            .filter(|part| names.contains(&part.name))
            .map(|part| part.bytes as f64)
            .sum()
    };
    let bytes = WeightBytes {
        all: parts.iter().map(|part| part.bytes as f64).sum(),
        experts: of(&[parts::EXPERTS]),
        embedding: of(&["embedding", "embedding and lm_head"]),
        logits: of(&[parts::LM_HEAD, "embedding and lm_head"]),
    };
    let stages = decode_plan(config, 4096, &Switches::default())?.stages;
    let prefill_stages = config.layers.len() * roofline::PREFILL_STAGES_OF_A_LAYER;
    let report = machine.report(&Work::of(config, bytes), stages, prefill_stages, MAX_CHUNK);
    write!(std::io::stdout(), "{report}")?;
    Ok(())
}

fn architecture(config: &ModelConfig) -> Architecture {
    let layers = |kind| config.layers.iter().filter(|&&layer| layer == kind).count();
    let (attention, delta) = (&config.attention, &config.delta_net);
    let (model_type, mlp) = match config.mlp {
        MlpConfig::Moe {
            experts,
            top_k,
            intermediate,
            shared_intermediate,
        } => (
            "qwen3_5_moe",
            format!("{top_k} of {experts} experts of {intermediate}, a shared one of {shared_intermediate}"),
        ),
        MlpConfig::Dense { intermediate } => ("qwen3_5", format!("SwiGLU of {intermediate}")),
    };
    Architecture {
        model_type,
        hidden_size: config.hidden_size,
        vocab_size: config.vocab_size,
        attention_layers: layers(LayerKind::Attention),
        delta_net_layers: layers(LayerKind::DeltaNet),
        attention: format!(
            "{} query heads, {} KV heads of {}, rotary {}",
            attention.heads, attention.kv_heads, attention.head_dim, attention.rotary_dim
        ),
        delta_net: format!(
            "{} key heads of {}, {} value heads of {}, convolution of {}",
            delta.key_heads, delta.key_dim, delta.value_heads, delta.value_dim, delta.conv_kernel
        ),
        mlp,
        max_position_embeddings: config.max_position_embeddings,
    }
}

fn for_people(report: &Report) -> String {
    let mut text = String::new();
    let architecture = &report.architecture;
    let layers = architecture.attention_layers + architecture.delta_net_layers;
    let rows = [
        ("model", report.model.clone()),
        ("architecture", architecture.model_type.into()),
        (
            "layers",
            format!(
                "{layers}: {} Gated DeltaNet, {} attention",
                architecture.delta_net_layers, architecture.attention_layers
            ),
        ),
        (
            "size",
            format!(
                "hidden {}, vocabulary {}, context {}",
                output::count(architecture.hidden_size as u64),
                output::count(architecture.vocab_size as u64),
                output::count(architecture.max_position_embeddings as u64)
            ),
        ),
        ("attention", architecture.attention.clone()),
        ("Gated DeltaNet", architecture.delta_net.clone()),
        ("feed-forward", architecture.mlp.clone()),
        (
            "parameters",
            format!(
                "{}, of which {} take part in a token",
                output::count(report.parameters),
                output::count(report.active_parameters)
            ),
        ),
    ];
    // Writing to a string cannot fail.
    for (name, value) in rows {
        let _ = writeln!(text, "{name:16}{value}");
    }
    let _ = writeln!(
        text,
        "\n{:22} {:>18} {:>10} {:>16}",
        "weights", "parameters", "bytes", "read per token"
    );
    for part in &report.parts {
        let _ = writeln!(
            text,
            "{}",
            row(part.name, part.parameters, part.bytes, part.read_per_token)
        );
    }
    let _ = writeln!(
        text,
        "{}",
        row("all", report.parameters, report.bytes, report.read_per_token)
    );
    let _ = writeln!(text, "\n{:>22} {:>18} {:>18}", "context", "state", "with the weights");
    for memory in &report.memory {
        let _ = writeln!(
            text,
            "{:>22} {:>18} {:>18}",
            output::count(memory.context as u64),
            output::bytes(memory.state_bytes),
            output::bytes(memory.total_bytes)
        );
    }
    if let Some(gpu) = &report.gpu {
        let free = output::bytes(gpu.available_bytes);
        let _ = writeln!(
            text,
            "\nGPU             {}: {}, {free} for a model",
            gpu.kind, gpu.description
        );
    }
    if let Some(plan) = &report.decode_plan {
        let _ = writeln!(
            text,
            "\na decoded token at context {}: {} launches in {} dependent stages",
            output::count(plan.context as u64),
            plan.dispatches,
            plan.stages
        );
        for launch in &plan.launches {
            let [x, y, z] = launch.threadgroups;
            let _ = writeln!(
                text,
                "{:>6}  {:28} {:28} {x} x {y} x {z} of {}",
                launch.stage, launch.label, launch.kernel, launch.threads
            );
        }
    }
    text
}

fn row(name: &str, parameters: u64, bytes: u64, read: u64) -> String {
    format!(
        "{name:22} {:>18} {:>10} {:>16}",
        output::count(parameters),
        output::bytes(bytes),
        output::bytes(read)
    )
}
