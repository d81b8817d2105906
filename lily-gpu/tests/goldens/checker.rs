//! Whole passes under the checker: clean with all barriers, and no barrier is superfluous.

use lily_gpu::emulator::{EmulatorOptions, TileBackend};
use lily_gpu::policy::Family;
use lily_gpu::{LogitRows, Switches};
use shader_tool::FindingKind;

use crate::common::{Model, model};

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

#[test]
fn the_decode_pass_needs_each_of_its_barriers() {
    let mut model = model("mini/mlx-4bit", Switches::default(), CHECKED);
    let mut sequence = model.new_sequence().unwrap();
    for token in [3, 1, 4] {
        model.decode(&mut sequence, token).unwrap();
    }
    assert_clean(&mut model);
    let stages = model.decode_pass(&sequence).stage_count();
    for stage in 0..stages - 1 {
        model.device().skip_barrier(Some(stage));
        model.decode(&mut sequence, 5).unwrap();
        let hazards = model
            .device()
            .findings()
            .iter()
            .filter(|finding| finding.kind == FindingKind::Hazard)
            .count();
        assert!(
            hazards > 0,
            "nothing missed the barrier after stage {stage} of {stages}"
        );
        model.device().clear_findings();
    }
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
