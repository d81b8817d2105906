//! Panels: a few weight rows, made ready for products with many activation rows.
//!
//! There are two arithmetics. In f32, the rows are unpacked to f32 values, and one output is always the same chain of operations: eight
//! lanes, columns in order, then the sum of the lanes. With quantized activations ([`crate::quantize`]), a lane has a group: the
//! group's integer sum is exact, then `lane += scale * sum; lane += bias * group's sum of activations`, blocks of eight groups in order, then
//! the sum of the lanes. Either way the bits of an output do not depend on how many rows are multiplied at once.

mod ahead;
mod direct;
mod float;
mod groups;
mod interleaved;
mod tiles;

use lily_model::{Encoding, Matrix};

use self::ahead::Ahead;
use self::direct::DirectTile;
use self::float::{DirectFloatTile, FloatTile, float_direct};
use self::interleaved::{InterleaveRows, InterleavedTile};
use self::tiles::{TileRows, TiledTile};
use crate::KernelSet;
use crate::aligned::Aligned;
use crate::dequantize::DequantizeRows;
use crate::quantize::{Layout, QuantizedRows, supports_group};
#[cfg(doc)]
use crate::simd::rows::Rows;

/// Most weight rows of a panel, and the numbers from one token's outputs to the next's.
pub(crate) const PANEL_ROWS: usize = 64;
/// Most weight rows of a task.
pub(crate) const TASK_ROWS: usize = PANEL_ROWS;
/// Activation rows of a tile.
pub(crate) const TILE_TOKENS: usize = 48;
/// Outputs of a tile, `[TILE_TOKENS, PANEL_ROWS]`.
pub(crate) type Tile = [f32; TILE_TOKENS * PANEL_ROWS];

impl KernelSet {
    /// Weight rows of a panel: four tiles of sixteen, or whole strips of six rows as of eight.
    fn panel_rows(self) -> usize {
        match self {
            KernelSet::Avx512VnniAmx => PANEL_ROWS,
            _ => 24,
        }
    }

    /// Weight rows of a task.
    pub(crate) fn task_rows(self) -> usize {
        TASK_ROWS / self.panel_rows() * self.panel_rows()
    }
}

/// The group size of a matrix that is multiplied in integers where its inputs are quantized.
pub(crate) fn integer_group_size(matrix: &Matrix) -> Option<usize> {
    match matrix.encoding {
        Encoding::Affine {
            bits: 4, group_size, ..
        } if supports_group(group_size) => Some(group_size),
        _ => None,
    }
}

/// Which rows of the activations take part in a product.
#[derive(Clone, Copy)]
pub(crate) enum Select<'a> {
    /// `count` rows from `first` on.
    Range { first: usize, count: usize },
    /// These rows, in this order.
    Rows(&'a [u32]),
}

/// Activations `[_, cols]`.
#[derive(Clone, Copy)]
pub(crate) struct Inputs<'a> {
    /// Row after row.
    pub(crate) data: &'a [f32],
    /// Numbers of a row.
    pub(crate) cols: usize,
    /// The same rows quantized.
    pub(crate) quantized: Option<&'a QuantizedRows>,
    pub(crate) select: Select<'a>,
    /// The selected rows quantized, one after the other from this one on: what [`Layout::Tiled`] needs of [`Select::Rows`].
    pub(crate) gathered: Option<(&'a QuantizedRows, usize)>,
}

impl<'a> Inputs<'a> {
    /// The first `count` rows of `data`.
    pub(crate) fn first(count: usize, data: &'a [f32], cols: usize, quantized: Option<&'a QuantizedRows>) -> Self {
        Inputs {
            data,
            cols,
            quantized,
            select: Select::Range { first: 0, count },
            gathered: None,
        }
    }

    /// Rows of the product.
    pub(crate) fn rows(&self) -> usize {
        match self.select {
            Select::Range { count, .. } => count,
            Select::Rows(rows) => rows.len(),
        }
    }

    #[inline(always)]
    fn index(&self, row: usize) -> usize {
        match self.select {
            Select::Range { first, .. } => first + row,
            Select::Rows(rows) => rows[row] as usize,
        }
    }

    #[inline(always)]
    fn row(&self, row: usize) -> &'a [f32] {
        let row = self.index(row);
        &self.data[row * self.cols..(row + 1) * self.cols]
    }

    /// The quantized rows in a place where the selected ones follow each other, and the first of them.
    ///
    /// # Panics
    /// Where rows are selected one by one and were not gathered.
    fn side_by_side(&self, quantized: &'a QuantizedRows) -> (&'a QuantizedRows, usize) {
        match (self.gathered, self.select) {
            (Some(gathered), _) => gathered,
            (None, Select::Range { first, .. }) => (quantized, first),
            (None, Select::Rows(_)) => panic!("rows of a tiled layout have to be gathered"),
        }
    }

    /// The quantized rows, where the product with `matrix` is one of integers.
    fn integers_for(&self, matrix: &Matrix) -> Option<&'a QuantizedRows> {
        self.quantized
            .filter(|quantized| integer_group_size(matrix) == Some(quantized.group_size))
    }
}

/// A row of a matrix.
#[derive(Clone, Copy)]
pub(crate) struct Place<'a> {
    pub(crate) matrix: &'a Matrix,
    pub(crate) index: usize,
    pub(crate) row: usize,
}

/// Rows `first_row..first_row + rows` of matrix `index`, at most [`PANEL_ROWS`].
#[derive(Clone, Copy)]
pub(crate) struct PanelRows<'a> {
    pub(crate) matrix: &'a Matrix,
    pub(crate) index: usize,
    pub(crate) first_row: usize,
    pub(crate) rows: usize,
    /// The row at which the thread most likely leaves the matrix, and where it goes on from there.
    pub(crate) leaves_at: usize,
    pub(crate) next: Option<Place<'a>>,
}

impl<'a> PanelRows<'a> {
    /// The panels that cover `rows` rows from `first_row` on, or what there is of them.
    pub(crate) fn cover(
        set: KernelSet,
        matrix: &'a Matrix,
        index: usize,
        first_row: usize,
        rows: usize,
    ) -> impl Iterator<Item = PanelRows<'a>> {
        let end = matrix.rows.min(first_row + rows);
        (first_row..end)
            .step_by(set.panel_rows())
            .map(move |first_row| PanelRows {
                matrix,
                index,
                first_row,
                rows: set.panel_rows().min(end - first_row),
                leaves_at: matrix.rows,
                next: None,
            })
    }

    /// Codes, scales and biases of the panel that the thread most likely takes next.
    fn next_panel(&self) -> [&'a [u8]; 3] {
        let row = self.first_row + self.rows;
        let place = match self.next {
            _ if row < self.leaves_at => Place {
                matrix: self.matrix,
                index: self.index,
                row,
            },
            Some(next) => next,
            None => return [&[]; 3],
        };
        let matrix = place.matrix;
        let rows = self.rows.min(matrix.rows - place.row);
        let [codes, scales, biases] = bytes_from(place);
        let scale_bytes = rows * matrix.row_scales(0, 0).len();
        [
            &codes[..rows * matrix.row_bytes()],
            &scales[..scale_bytes],
            biases.get(..scale_bytes).unwrap_or(&[]),
        ]
    }

    /// The next panel's bytes, which arrive while strips of `strip` rows of this one are multiplied with its first `tokens` tokens.
    fn ahead(&self, first_token: usize, strip: usize, tokens: usize) -> [Ahead<'a>; 3] {
        let next = if first_token == 0 {
            self.next_panel()
        } else {
            [&[][..]; 3]
        };
        next.map(|bytes| Ahead::new(bytes, self.rows.div_ceil(strip) * tokens))
    }

    /// The same rows of a thread that leaves the matrix at row `leaves_at` for `next`.
    pub(crate) fn before(self, leaves_at: usize, next: Option<Place<'a>>) -> Self {
        PanelRows {
            leaves_at,
            next,
            ..self
        }
    }
}

/// A thread's room for one panel.
pub(crate) struct Panel {
    /// f32 values `[PANEL_ROWS, cols]`.
    values: Aligned<f32>,
    /// Codes `[strips, blocks, vectors, STRIP]` as [`Rows::unpack_block`] makes them, where a vector has the codes of [`Rows::ROWS`] rows;
    /// or `[tiles, chunks]` (see [`crate::simd::tiles`]).
    codes: Aligned<u8>,
    /// `[strips, blocks, STRIP, ROWS, 8]`, or `[tiles, groups, 16]`; 0 beyond the last group.
    scales: Vec<f32>,
    /// As `scales`.
    biases: Vec<f32>,
}

impl Panel {
    /// Room for panels of matrices of up to `widest` columns, and of `widest_integer` (padded) columns that are multiplied in integers.
    pub(crate) fn new(widest: usize, widest_integer: usize) -> Panel {
        let groups = widest_integer / 64;
        Panel {
            values: Aligned::new(PANEL_ROWS * widest),
            codes: Aligned::new(PANEL_ROWS * widest_integer * size_of::<i16>()),
            scales: vec![0.0; PANEL_ROWS * groups],
            biases: vec![0.0; PANEL_ROWS * groups],
        }
    }

    /// Makes `rows` ready for products with `inputs`.
    pub(crate) fn load(&mut self, set: KernelSet, rows: PanelRows<'_>, inputs: &Inputs<'_>) {
        match inputs.integers_for(rows.matrix) {
            Some(quantized) if quantized.layout == Layout::Direct => {}
            Some(quantized) if quantized.layout == Layout::Tiled => set.run(TileRows {
                rows,
                group_size: quantized.group_size,
                panel: self,
            }),
            Some(quantized) => set.run(InterleaveRows {
                rows,
                group_size: quantized.group_size,
                panel: self,
            }),
            None if float_direct(rows.matrix, inputs) => {}
            None => set.run(DequantizeRows {
                matrix: rows.matrix,
                index: rows.index,
                first_row: rows.first_row,
                rows: rows.rows,
                out: &mut self.values,
            }),
        }
    }

    /// `tile[token * PANEL_ROWS + row]` becomes the product of activation row `first_token + token` and weight row `row`, for up to
    /// [`TILE_TOKENS`] rows. `rows` and `inputs` are those of the last [`Panel::load`].
    pub(crate) fn multiply(
        &self,
        set: KernelSet,
        rows: PanelRows<'_>,
        inputs: &Inputs<'_>,
        first_token: usize,
        tile: &mut Tile,
    ) -> usize {
        let tokens = TILE_TOKENS.min(inputs.rows() - first_token);
        match inputs.integers_for(rows.matrix) {
            Some(quantized) if quantized.layout == Layout::Direct => set.run(DirectTile {
                rows,
                quantized,
                inputs,
                first_token,
                tokens,
                tile,
            }),
            Some(quantized) if quantized.layout == Layout::Tiled => {
                let (quantized, first_row) = inputs.side_by_side(quantized);
                set.run(TiledTile {
                    panel: self,
                    rows,
                    quantized,
                    first_row: first_row + first_token,
                    first_token,
                    tokens,
                    tile,
                });
            }
            Some(quantized) => set.run(InterleavedTile {
                panel: self,
                rows,
                quantized,
                inputs,
                first_token,
                tokens,
                tile,
            }),
            None if float_direct(rows.matrix, inputs) => set.run(DirectFloatTile {
                rows,
                inputs,
                first_token,
                tokens,
                tile,
            }),
            None => set.run(FloatTile {
                values: &self.values[..rows.rows * inputs.cols],
                inputs,
                first_token,
                tokens,
                tile,
            }),
        }
        tokens
    }
}

/// Codes, scales and biases from a row on.
fn bytes_from<'a>(place: Place<'a>) -> [&'a [u8]; 3] {
    let (matrix, row) = (place.matrix, place.index * place.matrix.rows + place.row);
    let scale_bytes = matrix.row_scales(0, 0).len();
    [
        &matrix.codes[row * matrix.row_bytes()..],
        &matrix.scales[row * scale_bytes..],
        matrix.biases.get(row * scale_bytes..).unwrap_or(&[]),
    ]
}

#[cfg(test)]
#[path = "panel_tests.rs"]
mod tests;
