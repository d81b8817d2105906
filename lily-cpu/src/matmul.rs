//! Matrix products in f32, straight from packed weights.
//!
//! A panel of [`PANEL_ROWS`] weight rows is unpacked into a thread's scratch, where it stays in the cache while the activations
//! pass by in blocks of [`TILE_TOKENS`] rows. One output is always the same chain of operations (eight lanes, columns in order,
//! then the sum of the lanes), so its bits do not depend on how many rows are multiplied at once.

use lily_model::Matrix;

use crate::KernelSet;
use crate::dequantize::DequantizeRows;
use crate::pool::Pool;
use crate::scratch::ThreadScratch;
use crate::shared::SharedMut;
use crate::simd::{Kernel, LANES, Lanes};

/// Weight rows of a panel.
pub(crate) const PANEL_ROWS: usize = 16;
/// Activation rows of a tile.
pub(crate) const TILE_TOKENS: usize = 48;
/// Outputs of a tile, `[TILE_TOKENS, PANEL_ROWS]`.
pub(crate) type Tile = [f32; TILE_TOKENS * PANEL_ROWS];

/// Weight rows of one task of [`products`].
const TASK_ROWS: usize = 64;

/// Activations `[rows, cols]`, or some rows of them in some order.
#[derive(Clone, Copy)]
pub(crate) struct Inputs<'a> {
    /// Row after row.
    pub(crate) data: &'a [f32],
    /// Numbers of a row.
    pub(crate) cols: usize,
    /// The rows to take; `None` for all of them, in order.
    pub(crate) select: Option<&'a [u32]>,
}

impl<'a> Inputs<'a> {
    pub(crate) fn all(data: &'a [f32], cols: usize) -> Self {
        Inputs {
            data,
            cols,
            select: None,
        }
    }

    /// Rows of the product.
    pub(crate) fn rows(&self) -> usize {
        self.select.map_or(self.data.len() / self.cols, <[u32]>::len)
    }

    #[inline(always)]
    fn row(&self, row: usize) -> &'a [f32] {
        let row = self.select.map_or(row, |select| select[row] as usize);
        &self.data[row * self.cols..(row + 1) * self.cols]
    }
}

/// A panel: rows `first_row..first_row + rows` of matrix `index`, at most [`PANEL_ROWS`].
#[derive(Clone, Copy)]
pub(crate) struct PanelRows<'a> {
    pub(crate) matrix: &'a Matrix,
    pub(crate) index: usize,
    pub(crate) first_row: usize,
    pub(crate) rows: usize,
}

impl<'a> PanelRows<'a> {
    /// The panels that cover `rows` rows from `first_row` on, or what there is of them.
    pub(crate) fn cover(
        matrix: &'a Matrix,
        index: usize,
        first_row: usize,
        rows: usize,
    ) -> impl Iterator<Item = PanelRows<'a>> {
        let end = matrix.rows.min(first_row + rows);
        (first_row..end).step_by(PANEL_ROWS).map(move |first_row| PanelRows {
            matrix,
            index,
            first_row,
            rows: PANEL_ROWS.min(end - first_row),
        })
    }

    /// Unpacks the panel into `values`.
    pub(crate) fn unpack(self, set: KernelSet, values: &mut [f32]) {
        set.run(DequantizeRows {
            matrix: self.matrix,
            index: self.index,
            first_row: self.first_row,
            rows: self.rows,
            out: values,
        });
    }
}

/// One tile: `tile[token * PANEL_ROWS + row]` is the product of activation row `first_token + token` and weight row `row`.
pub(crate) struct MultiplyTile<'a> {
    /// An unpacked panel.
    pub(crate) values: &'a [f32],
    /// Rows of the panel.
    pub(crate) rows: usize,
    pub(crate) inputs: Inputs<'a>,
    pub(crate) first_token: usize,
    pub(crate) tokens: usize,
    pub(crate) tile: &'a mut Tile,
}

impl Kernel for MultiplyTile<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Lanes>(self) {
        let MultiplyTile {
            values,
            rows,
            inputs,
            first_token,
            tokens,
            tile,
        } = self;
        let values = &values[..rows * inputs.cols];
        let mut token = 0;
        while tokens - token >= 3 {
            let x = std::array::from_fn(|i| inputs.row(first_token + token + i));
            multiply_tokens::<V, 3>(values, x, &mut tile[token * PANEL_ROWS..]);
            token += 3;
        }
        for token in token..tokens {
            multiply_tokens::<V, 1>(
                values,
                [inputs.row(first_token + token)],
                &mut tile[token * PANEL_ROWS..],
            );
        }
    }
}

#[inline(always)]
fn multiply_tokens<V: Lanes, const T: usize>(values: &[f32], x: [&[f32]; T], out: &mut [f32]) {
    let cols = x[0].len();
    let mut row = 0;
    for four in values.chunks_exact(4 * cols) {
        let sums = dot_tile::<V, 4, T>(four, x);
        for (i, sums) in sums.iter().enumerate() {
            for (token, sum) in sums.iter().enumerate() {
                out[token * PANEL_ROWS + row + i] = *sum;
            }
        }
        row += 4;
    }
    for one in values.chunks_exact(4 * cols).remainder().chunks_exact(cols) {
        for (token, sum) in dot_tile::<V, 1, T>(one, x)[0].iter().enumerate() {
            out[token * PANEL_ROWS + row] = *sum;
        }
        row += 1;
    }
}

/// Dot products of `R` contiguous rows `w` with `T` rows `x`. `x` rows have the same length, a multiple of [`LANES`].
#[inline(always)]
pub(crate) fn dot_tile<V: Lanes, const R: usize, const T: usize>(w: &[f32], x: [&[f32]; T]) -> [[f32; T]; R] {
    let cols = x[0].len();
    assert!(cols.is_multiple_of(LANES) && w.len() == R * cols && x.iter().all(|x| x.len() == cols));
    let mut sums = [[V::zero(); T]; R];
    for at in (0..cols).step_by(LANES) {
        // SAFETY: `at + LANES` is at most `cols`, the length of every row.
        unsafe {
            let x: [V; T] = std::array::from_fn(|t| V::load(x[t].as_ptr().add(at)));
            for (r, sums) in sums.iter_mut().enumerate() {
                let w = V::load(w.as_ptr().add(r * cols + at));
                for t in 0..T {
                    sums[t] = w.mul_add(x[t], sums[t]);
                }
            }
        }
    }
    sums.map(|sums| sums.map(V::sum))
}

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
    let tasks = products
        .iter()
        .map(|product| product.matrix.rows.div_ceil(TASK_ROWS))
        .sum();
    pool.run(tasks, &|mut task, thread| {
        for product in products {
            let tasks = product.matrix.rows.div_ceil(TASK_ROWS);
            if task < tasks {
                // SAFETY: the pool gives a thread number to one task at a time.
                let scratch = unsafe { threads.item(thread) };
                return multiply_rows(set, product, task * TASK_ROWS, scratch);
            }
            task -= tasks;
        }
    });
}

fn multiply_rows(set: KernelSet, product: &Product<'_>, first_row: usize, scratch: &mut ThreadScratch) {
    let (inputs, out_cols) = (product.inputs, product.matrix.rows);
    for panel in PanelRows::cover(product.matrix, 0, first_row, TASK_ROWS) {
        panel.unpack(set, &mut scratch.panel);
        for first_token in (0..inputs.rows()).step_by(TILE_TOKENS) {
            let tokens = TILE_TOKENS.min(inputs.rows() - first_token);
            set.run(MultiplyTile {
                values: &scratch.panel,
                rows: panel.rows,
                inputs,
                first_token,
                tokens,
                tile: &mut scratch.tile,
            });
            for (token, tile) in scratch.tile.chunks_exact(PANEL_ROWS).take(tokens).enumerate() {
                let start = (first_token + token) * out_cols + panel.first_row;
                // SAFETY: the tasks of a region have different rows, so different columns of `out`.
                let out = unsafe { product.out.part(start, panel.rows) };
                if product.add {
                    out.iter_mut().zip(tile).for_each(|(out, value)| *out += value);
                } else {
                    out.copy_from_slice(&tile[..panel.rows]);
                }
            }
        }
    }
}
