//! The feed-forward part: SwiGLU blocks, routed or not.

use lily_model::GatedMlp;

use crate::KernelSet;
use crate::panel::{Inputs, PANEL_ROWS, PanelRows, Place, Select, TASK_ROWS, TILE_TOKENS};
use crate::pool::Pool;
use crate::profile::Recorder;
use crate::quantize::{Layout, QuantizedRows};
use crate::router::{ExpertRows, Routing};
use crate::scratch::ThreadScratch;
use crate::shared::SharedMut;
use crate::simd::math::{silu, zip_in_place};
use crate::simd::{Kernel, LANES, Lanes};

/// Routed experts with the rows that they got.
pub(crate) struct RoutedExperts<'a> {
    pub(crate) mlp: &'a GatedMlp,
    pub(crate) routing: &'a Routing,
    /// `[slots, intermediate]`
    pub(crate) hidden: &'a mut [f32],
    /// Room for `hidden` quantized, where products are done in integers.
    pub(crate) quantized: Option<&'a mut QuantizedRows>,
    /// Room for the quantized inputs of every slot, where their layout needs them side by side.
    pub(crate) gathered: Option<&'a mut QuantizedRows>,
}

/// The block that every row passes: the shared expert, or the whole of a dense model's feed-forward part.
pub(crate) struct SharedBlock<'a> {
    pub(crate) mlp: &'a GatedMlp,
    /// Factor of each row's output.
    pub(crate) gates: &'a [f32],
    /// `[rows, intermediate]`
    pub(crate) hidden: &'a mut [f32],
    /// As in [`RoutedExperts`].
    pub(crate) quantized: Option<&'a mut QuantizedRows>,
}

/// Where the work of a feed-forward part is done.
pub(crate) struct Workers<'a> {
    pub(crate) pool: &'a mut Pool,
    pub(crate) set: KernelSet,
    pub(crate) threads: SharedMut<'a, ThreadScratch>,
    pub(crate) recorder: &'a mut Recorder,
}

/// `x += sum of the routed experts' outputs by their weights + gate * shared block` for each row of `inputs`.
///
/// Two parallel regions: all gate and up rows of all experts, then all down rows. A task of the second region owns some columns
/// of `x` and adds the experts in order, so that a row's sum has one order whatever the other rows are.
pub(crate) fn feed_forward(
    workers: Workers<'_>,
    inputs: Inputs<'_>,
    routed: Option<RoutedExperts<'_>>,
    shared: SharedBlock<'_>,
    x: &mut [f32],
) {
    let Workers {
        pool,
        set,
        threads,
        recorder,
    } = workers;
    let mut no_hidden = [];
    let (experts, routing, hidden, quantized, gathered) = match routed {
        Some(RoutedExperts {
            mlp,
            routing,
            hidden,
            quantized,
            gathered,
        }) => (Some(mlp), Some(routing), hidden, quantized, gathered),
        None => (None, None, &mut no_hidden[..], None, None),
    };
    let groups: &[ExpertRows] = routing.map_or(&[], |routing| &routing.groups);
    let slots = groups.last().map_or(0, |group| group.slots.end);
    let gathered = match (gathered, inputs.quantized, routing) {
        (Some(gathered), Some(rows), Some(routing)) if rows.layout == Layout::Tiled => {
            gathered.gather(pool, rows, &routing.slot_rows[..slots]);
            Some(&*gathered)
        }
        _ => None,
    };

    // Rows of the gate and up projections, or of the down projection, of one task.
    let task_rows = set.task_rows();
    let blocks = experts.map_or(0, |mlp| mlp.gate.rows.div_ceil(task_rows));
    let shared_blocks = shared.mlp.gate.rows.div_ceil(task_rows);
    let hidden_out = SharedMut::new(&mut *hidden);
    let shared_out = SharedMut::new(&mut *shared.hidden);
    pool.run(groups.len() * blocks + shared_blocks, &|task, thread| {
        // SAFETY: the pool gives a thread number to one task at a time.
        let scratch = unsafe { threads.item(thread) };
        match (experts, routing) {
            (Some(mlp), Some(routing)) if task < groups.len() * blocks => {
                let group = &groups[task / blocks];
                let rows = Hidden {
                    mlp,
                    index: group.expert,
                    next: groups.get(task / blocks + 1).map(|group| group.expert),
                    inputs: Inputs {
                        select: Select::Rows(&routing.slot_rows[group.slots.clone()]),
                        gathered: gathered.map(|rows| (rows, group.slots.start)),
                        ..inputs
                    },
                    out: hidden_out,
                    first_slot: group.slots.start,
                };
                rows.compute(set, task % blocks * task_rows, scratch);
            }
            _ => {
                let rows = Hidden {
                    mlp: shared.mlp,
                    index: 0,
                    next: None,
                    inputs,
                    out: shared_out,
                    first_slot: 0,
                };
                rows.compute(set, (task - groups.len() * blocks) * task_rows, scratch);
            }
        }
    });

    recorder.end("gate and up");

    let layout = Layout::for_rows(set, inputs.rows());
    let mut quantize = |rows: Option<&mut QuantizedRows>, hidden: &[f32], cols| {
        if let Some(rows) = rows {
            rows.fill(pool, set, layout, hidden, cols);
        }
    };
    let size = experts.map_or(0, |mlp| mlp.down.cols);
    let (mut quantized, mut shared_quantized) = (quantized, shared.quantized);
    quantize(quantized.as_deref_mut(), &hidden[..slots * size], size);
    let shared_size = shared.mlp.down.cols;
    let shared_used = &shared.hidden[..inputs.rows() * shared_size];
    quantize(shared_quantized.as_deref_mut(), shared_used, shared_size);
    let (quantized, shared_quantized) = (quantized.as_deref(), shared_quantized.as_deref());

    let cols = shared.mlp.down.rows;
    let (hidden, shared_hidden) = (&*hidden, &*shared.hidden);
    let x = SharedMut::new(x);
    pool.run(cols.div_ceil(task_rows), &|task, thread| {
        // SAFETY: the pool gives a thread number to one task at a time.
        let scratch = unsafe { threads.item(thread) };
        let first_row = task * task_rows;
        let width = task_rows.min(cols - first_row);
        scratch.sums[..inputs.rows() * TASK_ROWS].fill(0.0);
        if let (Some(mlp), Some(routing)) = (experts, routing) {
            for (index, group) in groups.iter().enumerate() {
                let slots = group.slots.clone();
                let next = match groups.get(index + 1) {
                    Some(next) => Place {
                        matrix: &mlp.down,
                        index: next.expert,
                        row: first_row,
                    },
                    None => Place {
                        matrix: &shared.mlp.down,
                        index: 0,
                        row: first_row,
                    },
                };
                let inputs = Inputs {
                    data: hidden,
                    cols: size,
                    quantized,
                    select: Select::Range {
                        first: slots.start,
                        count: slots.len(),
                    },
                    gathered: None,
                };
                let (rows, weights) = (&routing.slot_rows[slots.clone()], &routing.slot_weights[slots]);
                add_down(
                    set,
                    PanelRows::cover(set, &mlp.down, group.expert, first_row, width)
                        .map(|panel| panel.before(first_row + width, Some(next))),
                    inputs,
                    scratch,
                    |slot| (rows[slot] as usize, weights[slot]),
                );
            }
        }
        let down = &shared.mlp.down;
        let shared_inputs = Inputs::first(inputs.rows(), shared_hidden, down.cols, shared_quantized);
        // The rows of the next task: most likely this thread has it too.
        let next = experts.zip(groups.first()).map(|(mlp, group)| Place {
            matrix: &mlp.down,
            index: group.expert,
            row: (first_row + width).min(cols - 1),
        });
        add_down(
            set,
            PanelRows::cover(set, down, 0, first_row, width).map(|panel| panel.before(first_row + width, next)),
            shared_inputs,
            scratch,
            |row| (row, shared.gates[row]),
        );
        for (row, sums) in scratch.sums.chunks_exact(TASK_ROWS).take(inputs.rows()).enumerate() {
            // SAFETY: the tasks have different columns.
            let x = unsafe { x.part(row * cols + first_row, width) };
            x.iter_mut().zip(sums).for_each(|(x, sum)| *x += sum);
        }
    });
    recorder.end("down");
}

/// `hidden = silu(gate x) * (up x)` of one expert.
struct Hidden<'a> {
    mlp: &'a GatedMlp,
    index: usize,
    /// The expert that comes after this one, of the same block.
    next: Option<usize>,
    inputs: Inputs<'a>,
    out: SharedMut<'a, f32>,
    first_slot: usize,
}

impl Hidden<'_> {
    fn compute(&self, set: KernelSet, first_row: usize, scratch: &mut ThreadScratch) {
        let size = self.mlp.gate.rows;
        let panels = |matrix| {
            let next = self.next.map(|index| Place { matrix, index, row: 0 });
            PanelRows::cover(set, matrix, self.index, first_row, set.task_rows())
                .map(move |panel| panel.before(size, next))
        };
        for (gate, up) in panels(&self.mlp.gate).zip(panels(&self.mlp.up)) {
            scratch.panel.load(set, gate, &self.inputs);
            scratch.second_panel.load(set, up, &self.inputs);
            for first_token in (0..self.inputs.rows()).step_by(TILE_TOKENS) {
                let tokens = scratch
                    .panel
                    .multiply(set, gate, &self.inputs, first_token, &mut scratch.tile);
                scratch
                    .second_panel
                    .multiply(set, up, &self.inputs, first_token, &mut scratch.second_tile);
                let used = tokens * PANEL_ROWS;
                set.run(SwiGlu {
                    gate: &mut scratch.tile[..used],
                    up: &scratch.second_tile[..used],
                });
                for (token, tile) in scratch.tile.chunks_exact(PANEL_ROWS).take(tokens).enumerate() {
                    let start = (self.first_slot + first_token + token) * size + gate.first_row;
                    // SAFETY: the tasks of the region have different experts or different rows.
                    unsafe { self.out.part(start, gate.rows) }.copy_from_slice(&tile[..gate.rows]);
                }
            }
        }
    }
}

struct SwiGlu<'a> {
    gate: &'a mut [f32],
    up: &'a [f32],
}

impl Kernel for SwiGlu<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Lanes>(self) {
        zip_in_place::<V>(self.gate, self.up, |gate, up| silu(gate).mul(up));
    }
}

/// `sums += weight * values`
struct AddScaled<'a> {
    sums: &'a mut [f32],
    values: &'a [f32],
    weight: f32,
}

impl Kernel for AddScaled<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Lanes>(self) {
        let weight = V::splat(self.weight);
        zip_in_place::<V>(self.sums, self.values, |sum, value| sum.add(weight.mul(value)));
    }
}

/// Adds the products of some down rows to `scratch.sums` (`[rows, TASK_ROWS]`); `target` gives row and weight of an input.
fn add_down<'a>(
    set: KernelSet,
    panels: impl Iterator<Item = PanelRows<'a>>,
    inputs: Inputs<'_>,
    scratch: &mut ThreadScratch,
    target: impl Fn(usize) -> (usize, f32),
) {
    let mut at = 0;
    for panel in panels {
        scratch.panel.load(set, panel, &inputs);
        for first_token in (0..inputs.rows()).step_by(TILE_TOKENS) {
            let tokens = scratch
                .panel
                .multiply(set, panel, &inputs, first_token, &mut scratch.tile);
            for (token, tile) in scratch.tile.chunks_exact(PANEL_ROWS).take(tokens).enumerate() {
                let (row, weight) = target(first_token + token);
                // Whole vectors: what lies beyond the last row of the last panel is not looked at.
                let rows = panel.rows.next_multiple_of(LANES);
                set.run(AddScaled {
                    sums: &mut scratch.sums[row * TASK_ROWS + at..][..rows],
                    values: &tile[..rows],
                    weight,
                });
            }
        }
        at += panel.rows;
    }
}
