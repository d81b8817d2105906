//! Speed of the CPU model on random weights in the shape of Qwen3.6-35B-A3B.
//!
//! `cargo run --release -p lily-cpu --example speed -- LAYERS [PROMPT [DECODE [ROUNDS]]]`
//!
//! Each round prefills `PROMPT` tokens, decodes `DECODE` tokens, and decodes as many in two sequences at once, with all
//! processors and (prefill only) with one. The configurations alternate within a round; medians are printed.

use std::sync::Arc;
use std::time::Instant;

use lily_cpu::{CpuModel, CpuOptions, DecodeRow, LogitRows, Sequence};
use lily_model::{ModelConfig, Weights};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let numbers: Vec<usize> = std::env::args()
        .skip(1)
        .map(|text| text.parse())
        .collect::<Result<_, _>>()?;
    let number = |index: usize, default: usize| numbers.get(index).copied().unwrap_or(default);
    let (layers, prompt, decode, rounds) = (number(0, 8), number(1, 512), number(2, 16), number(3, 3));
    let mut config = ModelConfig::qwen3_6_35b_a3b();
    config.layers.truncate(layers);
    let started = Instant::now();
    let weights = Arc::new(Weights::synthetic(&config, 1));
    let config = Arc::new(config);
    println!(
        "{layers} layers, weights made in {:.1} s",
        started.elapsed().as_secs_f64()
    );

    let configurations = [
        ("all threads", None, false),
        ("one thread", Some(1), false),
        ("exact", None, true),
    ];
    let mut models = Vec::new();
    for (name, threads, exact) in configurations {
        let options = CpuOptions {
            threads,
            exact,
            ..CpuOptions::default()
        };
        models.push((name, CpuModel::new(Arc::clone(&config), Arc::clone(&weights), options)?));
    }
    println!("{}", models[0].1.description());
    let tokens: Vec<u32> = (0..prompt as u32)
        .map(|i| i * 7919 % config.vocab_size as u32)
        .collect();
    let mut prefill_rates = vec![Vec::new(); models.len()];
    let mut decode_rates = vec![Vec::new(); models.len()];
    let mut pair_costs = Vec::new();
    for _ in 0..rounds {
        for (index, (_, model)) in models.iter_mut().enumerate() {
            let started = Instant::now();
            let mut sequence = model.new_sequence();
            for chunk in tokens.chunks(model.max_chunk()) {
                model.prefill(&mut sequence, chunk, LogitRows::Last)?;
            }
            prefill_rates[index].push(prompt as f64 / started.elapsed().as_secs_f64());
            let mut other = sequence.clone();
            if decode > 0 {
                let one = decode_seconds(model, decode, &mut [&mut sequence])?;
                decode_rates[index].push(1.0 / one);
                if index == 0 {
                    pair_costs.push(decode_seconds(model, decode, &mut [&mut sequence, &mut other])? / one);
                }
            }
        }
    }
    for (index, (name, _)) in models.iter().enumerate() {
        let prefill = median(&mut prefill_rates[index]);
        let decode = median(&mut decode_rates[index]);
        println!("{name:12} prefill of {prompt}: {prefill:.1} tokens/s, decode: {decode:.2} tokens/s");
    }
    println!(
        "two sequences at once take {:.2} times as long as one",
        median(&mut pair_costs)
    );
    Ok(())
}

/// Median seconds of a decode step of `sequences`.
fn decode_seconds(
    model: &mut CpuModel,
    steps: usize,
    sequences: &mut [&mut Sequence],
) -> Result<f64, lily_cpu::CpuError> {
    let mut seconds = Vec::with_capacity(steps);
    for step in 0..steps {
        let started = Instant::now();
        let mut batch: Vec<DecodeRow<'_>> = sequences
            .iter_mut()
            .enumerate()
            .map(|(index, sequence)| DecodeRow {
                token: (step * 104_729 + index * 31) as u32 % 248_000,
                sequence,
            })
            .collect();
        model.decode(&mut batch)?;
        seconds.push(started.elapsed().as_secs_f64());
    }
    Ok(median(&mut seconds))
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
