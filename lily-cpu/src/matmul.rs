//! Matrix products of whole matrices, in parallel.

use lily_model::Matrix;

use crate::KernelSet;
use crate::panel::{Inputs, PANEL_ROWS, PanelRows, Place, TILE_TOKENS};
use crate::pool::Pool;
use crate::scratch::ThreadScratch;
use crate::shared::SharedMut;

/// One product of a parallel region: `out[row, :] = matrix * inputs[row]`, or added to it.
pub(crate) struct Product<'a> {
    /// A matrix that is not stacked.
    pub(crate) matrix: &'a Matrix,
    pub(crate) inputs: Inputs<'a>,
    /// `[inputs.rows(), matrix.rows]`
    pub(crate) out: SharedMut<'a, f32>,
    pub(crate) add: bool,
}

/// Several products in one parallel region, each weight row read once.
pub(crate) fn products(
    pool: &mut Pool,
    set: KernelSet,
    threads: SharedMut<'_, ThreadScratch>,
    products: &[Product<'_>],
) {
    let tasks_of = |product: &Product<'_>| product.matrix.rows.div_ceil(set.task_rows());
    let tasks = products.iter().map(tasks_of).sum();
    pool.run(tasks, &|mut task, thread| {
        for (index, product) in products.iter().enumerate() {
            let tasks = tasks_of(product);
            if task < tasks {
                // SAFETY: the pool gives a thread number to one task at a time.
                let scratch = unsafe { threads.item(thread) };
                let next = products.get(index + 1).map(|next| Place {
                    matrix: next.matrix,
                    index: 0,
                    row: 0,
                });
                return multiply_rows(set, product, task * set.task_rows(), next, scratch);
            }
            task -= tasks;
        }
    });
}

fn multiply_rows(
    set: KernelSet,
    product: &Product<'_>,
    first_row: usize,
    next: Option<Place<'_>>,
    scratch: &mut ThreadScratch,
) {
    let (inputs, out_cols) = (&product.inputs, product.matrix.rows);
    let ThreadScratch { panel, tile, .. } = scratch;
    for rows in PanelRows::cover(set, product.matrix, 0, first_row, set.task_rows()) {
        let rows = rows.before(out_cols, next);
        panel.load(set, rows, inputs);
        for first_token in (0..inputs.rows()).step_by(TILE_TOKENS) {
            let tokens = panel.multiply(set, rows, inputs, first_token, tile);
            for (token, tile) in tile.chunks_exact(PANEL_ROWS).take(tokens).enumerate() {
                let start = (first_token + token) * out_cols + rows.first_row;
                // SAFETY: the tasks of a region have different rows, so different columns of `out`.
                let out = unsafe { product.out.part(start, rows.rows) };
                if product.add {
                    out.iter_mut().zip(tile).for_each(|(out, value)| *out += value);
                } else {
                    out.copy_from_slice(&tile[..rows.rows]);
                }
            }
        }
    }
}
