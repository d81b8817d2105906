//! Snapshots, growth and errors.

use lily_gpu::device::{BufferId, Device, Memory};
use lily_gpu::emulator::EmulatorOptions;
use lily_gpu::{LogitRows, Switches};

use crate::common::{Model, model};
use crate::golden;

fn mini() -> Model {
    model("mini/mlx-4bit", Switches::default(), EmulatorOptions::default())
}

#[test]
fn a_restored_snapshot_continues_as_the_sequence_did() {
    let (mut model, inputs) = (mini(), golden("mini").inputs);
    let mut sequence = model.new_sequence().unwrap();
    model.prefill(&mut sequence, &inputs[..21], LogitRows::Last).unwrap();
    let snapshot = model.snapshot(&sequence).unwrap();
    let run = |model: &mut Model, sequence: &mut lily_gpu::Sequence| {
        let mut rows = vec![sequence.logits().to_vec()];
        for &token in &inputs[21..25] {
            model.decode(sequence, token).unwrap();
            rows.push(sequence.logits().to_vec());
        }
        model.prefill(sequence, &inputs[25..40], LogitRows::Last).unwrap();
        rows.push(sequence.logits().to_vec());
        rows
    };
    let first = run(&mut model, &mut sequence);
    let mut restored = model.restore(&snapshot).unwrap();
    assert_eq!(restored.position(), 21);
    assert_eq!(run(&mut model, &mut restored), first);
    // the snapshot itself is untouched, and a second sequence does not disturb the first
    let mut again = model.restore(&snapshot).unwrap();
    drop(restored);
    assert_eq!(run(&mut model, &mut again), first);
}

#[test]
fn bounded_passes_compute_the_same() {
    let inputs = &golden("mini").inputs[..40];
    let mut logits = Vec::new();
    // one layer to a pass, some, all
    for pass_limit in [Some(1), Some(5_000_000), None] {
        let options = EmulatorOptions {
            pass_limit,
            ..EmulatorOptions::default()
        };
        let mut model = model("mini/mlx-4bit", Switches::default(), options);
        let mut sequence = model.new_sequence().unwrap();
        model.prefill(&mut sequence, inputs, LogitRows::Last).unwrap();
        logits.push(sequence.logits().to_vec());
    }
    assert!(logits[0] == logits[2] && logits[1] == logits[2]);
}

#[test]
fn a_sequence_grows_beyond_its_first_room() {
    let (mut model, inputs) = (mini(), golden("mini").inputs);
    let long: Vec<u32> = inputs.iter().cycle().take(1030).copied().collect();
    let mut rows = Vec::new();
    for chunk in [192, 103] {
        let mut sequence = model.new_sequence().unwrap();
        for tokens in long.chunks(chunk) {
            model.prefill(&mut sequence, tokens, LogitRows::Last).unwrap();
        }
        model.decode(&mut sequence, 5).unwrap();
        rows.push(sequence.logits().to_vec());
    }
    assert_eq!(rows[0], rows[1]);
}

#[test]
fn bad_calls_are_refused_with_reasons() {
    let mut model = mini();
    let mut sequence = model.new_sequence().unwrap();
    let vocab = model.config().vocab_size as u32;
    let mut error = |tokens: &[u32]| {
        model
            .prefill(&mut sequence, tokens, LogitRows::Last)
            .unwrap_err()
            .to_string()
    };
    assert!(error(&[]).contains("a chunk of 0 tokens"));
    assert!(error(&[0; 193]).contains("1 to 192"));
    assert!(error(&[1, vocab]).contains("vocabulary"));
    assert!(
        model
            .decode(&mut sequence, vocab)
            .unwrap_err()
            .to_string()
            .contains("vocabulary")
    );
    assert_eq!(sequence.position(), 0);
}

/// The device's next buffer; ids count up.
fn next_buffer(model: &mut Model) -> u32 {
    let BufferId(id) = model.device().allocate("probe", 4, Memory::Device).unwrap();
    id
}

#[test]
fn decode_allocates_nothing() {
    let mut model = mini();
    let mut sequence = model.new_sequence().unwrap();
    model.prefill(&mut sequence, &[1, 2, 3], LogitRows::Last).unwrap();
    let before = next_buffer(&mut model);
    for token in 0..8 {
        model.decode(&mut sequence, token).unwrap();
    }
    assert_eq!(next_buffer(&mut model), before + 1);
}

#[test]
fn reading_a_long_prompt_allocates_only_its_state() {
    let mut model = mini();
    let mut sequence = model.new_sequence().unwrap();
    let before = next_buffer(&mut model);
    for _ in 0..3 {
        model.prefill(&mut sequence, &[7; 192], LogitRows::Last).unwrap();
    }
    assert_eq!(next_buffer(&mut model), before + 1);
}

#[test]
fn a_saved_snapshot_is_loaded_in_the_same_bits() {
    let (mut model, inputs) = (mini(), golden("mini").inputs);
    let mut sequence = model.new_sequence().unwrap();
    for (tokens, rows) in [(0..21, LogitRows::Last), (21..30, LogitRows::None)] {
        let end = tokens.end;
        model.prefill(&mut sequence, &inputs[tokens], rows).unwrap();
        let with_logits = !sequence.logits().is_empty();
        let snapshot = model.snapshot(&sequence).unwrap();
        let bytes = model.save(&snapshot).unwrap();
        assert_eq!(bytes.len(), model.saved_bytes(end, with_logits));
        let loaded = model.load(end, with_logits, &mut &bytes[..]).unwrap();
        assert_eq!(model.save(&loaded).unwrap(), bytes);
        let (mut one, mut other) = (model.restore(&snapshot).unwrap(), model.restore(&loaded).unwrap());
        assert_eq!(one.logits(), other.logits());
        for token in [5, 6] {
            model.decode(&mut one, token).unwrap();
            model.decode(&mut other, token).unwrap();
            assert_eq!(one.logits(), other.logits());
        }
        assert!(model.load(end, with_logits, &mut &bytes[..bytes.len() - 1]).is_err());
    }
}

#[test]
fn a_profile_computes_the_same() {
    let mut model = mini();
    crate::suite::profile(&mut model, "mini");
}
