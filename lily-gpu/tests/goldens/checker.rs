//! Whole passes under the checker: clean with all barriers, and no barrier is superfluous in decode.

use lily_gpu::emulator::{EmulatorOptions, TileBackend};
use lily_gpu::policy::Family;
use lily_gpu::{LogitRows, Sequence, Switches};
use lily_model::{Checkpoint, Source};
use shader_tool::FindingKind;

use crate::common::{Model, build, fixture, model};

const CHECKED: EmulatorOptions = EmulatorOptions {
    checked: true,
    shuffle: None,
    threads: None,
    pass_limit: None,
    tiles: TileBackend::Native,
    family: Family::Apple,
};

fn assert_clean(model: &mut Model) {
    assert!(model.device().findings().is_empty(), "{:#?}", model.device().findings());
    assert!(
        model.device().undeclared().is_empty(),
        "{:?}",
        model.device().undeclared()
    );
}

/// Decodes a token without the barrier after `stage`; whether the checker misses it.
fn misses_barrier(model: &mut Model, sequence: &mut Sequence, stage: usize) -> bool {
    model.device().skip_barrier(Some(stage));
    model.decode(sequence, 5).unwrap();
    model.device().skip_barrier(None);
    let findings = model.device().findings();
    let missed = findings.iter().any(|finding| finding.kind == FindingKind::Hazard);
    model.device().clear_findings();
    missed
}

/// Which barriers a pass needs is computed from the accesses of one checked run. With a barrier after every dispatch, and a dispatch for every
/// projection, some are not needed: leaving each one out shows that the checker misses just the others.
#[test]
fn a_barrier_is_missed_where_it_is_needed() {
    let off = |switches: Switches, name| switches.without(name).unwrap();
    let switches = ["sparse-barriers", "merged-projections"]
        .into_iter()
        .fold(Switches::default(), off);
    let mut model = model("mini/mlx-4bit", switches, CHECKED);
    let mut sequence = model.new_sequence().unwrap();
    for token in [3, 1, 4] {
        model.decode(&mut sequence, token).unwrap();
    }
    assert_clean(&mut model);
    let superfluous = model.device().superfluous_barriers().to_vec();
    let stages = model.decode_pass(&sequence).stage_count();
    assert!(!superfluous.is_empty());
    for stage in 0..stages - 1 {
        let missed = misses_barrier(&mut model, &mut sequence, stage);
        let expected = !superfluous.contains(&stage);
        assert_eq!(missed, expected, "the barrier after stage {stage} of {stages}");
    }
}

/// A model after three tokens of prefill and one of decode, which were clean and needed all their barriers; the stages of its decode pass.
fn after_a_clean_step(checkpoint: &str) -> (Model, Sequence, usize) {
    let checkpoint = Checkpoint::open(&Source::Directory(fixture(checkpoint))).unwrap();
    let mut model = build(&checkpoint, Switches::default(), CHECKED);
    let mut sequence = model.new_sequence().unwrap();
    model.prefill(&mut sequence, &[3, 1, 4], LogitRows::None).unwrap();
    model.decode(&mut sequence, 1).unwrap();
    assert_clean(&mut model);
    assert_eq!(model.device().superfluous_barriers(), [0; 0]);
    let stages = model.decode_pass(&sequence).stage_count();
    (model, sequence, stages)
}

const DEMO: &str = "../../demo";

/// Every barrier of the decode pass is needed: by the accesses of a run, and, for a sample, by leaving it out.
#[test]
fn the_decode_pass_needs_each_of_its_barriers() {
    for checkpoint in ["mini/mlx-4bit", "tiny/mlx-4bit", DEMO] {
        let (mut model, mut sequence, stages) = after_a_clean_step(checkpoint);
        for stage in [0, 1, stages / 2, stages - 2] {
            assert!(
                misses_barrier(&mut model, &mut sequence, stage),
                "nothing missed the barrier after stage {stage} of {stages}"
            );
        }
    }
}

/// The same of the demo model by leaving each of them out, one at a time.
#[test]
#[ignore = "decodes a token under the checker for each barrier, which takes minutes"]
fn each_barrier_of_the_demo_is_missed() {
    let (mut model, mut sequence, stages) = after_a_clean_step(DEMO);
    let silent: Vec<usize> = (0..stages - 1)
        .filter(|&stage| !misses_barrier(&mut model, &mut sequence, stage))
        .collect();
    println!("{} barriers left out one at a time", stages - 1);
    assert_eq!(silent, [0; 0], "nothing missed the barriers after these stages");
}

#[test]
fn prefill_is_clean_in_any_order() {
    let shuffled = EmulatorOptions {
        shuffle: Some(7),
        ..CHECKED
    };
    for (switches, emulator) in [(Switches::default(), CHECKED), (Switches::default(), shuffled)] {
        let mut model = model("mini/mlx-4bit", switches, emulator);
        let mut sequence = model.new_sequence().unwrap();
        model.prefill(&mut sequence, &[3, 1, 4, 1, 5], LogitRows::Last).unwrap();
        model.prefill(&mut sequence, &[9, 2, 6], LogitRows::Last).unwrap();
        assert_clean(&mut model);
    }
}

#[test]
fn every_switch_off_is_clean() {
    let off = Switches::ALL.iter().fold(Switches::default(), |switches, (name, _)| {
        switches.without(name).unwrap()
    });
    let mut model = model("mini/mlx-4bit", off, CHECKED);
    let mut sequence = model.new_sequence().unwrap();
    model.prefill(&mut sequence, &[3, 1, 4], LogitRows::Last).unwrap();
    model.decode(&mut sequence, 5).unwrap();
    assert_clean(&mut model);
}
