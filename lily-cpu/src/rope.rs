//! Rotary position embedding on the leading dimensions of a head.

use lily_model::AttentionConfig;

/// Cosines and sines of the rows of one step, `[rows, rotary_dim / 2]` each.
///
/// Angles are computed in f64: at position 262,143 an f32 angle is off by 0.01.
#[derive(Debug)]
pub(crate) struct RotaryTable {
    frequencies: Vec<f64>,
    cos: Vec<f32>,
    sin: Vec<f32>,
}

impl RotaryTable {
    pub(crate) fn new(config: &AttentionConfig, rows: usize) -> RotaryTable {
        let half = config.rotary_dim / 2;
        RotaryTable {
            frequencies: (0..half)
                .map(|pair| config.rope_theta.powf(-2.0 * pair as f64 / config.rotary_dim as f64))
                .collect(),
            cos: vec![0.0; rows * half],
            sin: vec![0.0; rows * half],
        }
    }

    /// Fills row `row` for a token at `position`.
    pub(crate) fn set(&mut self, row: usize, position: usize) {
        let half = self.frequencies.len();
        for (pair, frequency) in self.frequencies.iter().enumerate() {
            let angle = position as f64 * frequency;
            self.cos[row * half + pair] = angle.cos() as f32;
            self.sin[row * half + pair] = angle.sin() as f32;
        }
    }

    /// Rotates the half-split pairs `(i, i + rotary_dim / 2)` of a head.
    #[inline(always)]
    pub(crate) fn rotate(&self, row: usize, head: &mut [f32]) {
        let half = self.frequencies.len();
        let (cos, sin) = (&self.cos[row * half..][..half], &self.sin[row * half..][..half]);
        let (first, second) = head[..2 * half].split_at_mut(half);
        for pair in 0..half {
            let (a, b) = (first[pair], second[pair]);
            first[pair] = a * cos[pair] - b * sin[pair];
            second[pair] = b * cos[pair] + a * sin[pair];
        }
    }
}
