//! From the logits to the next token.

use crate::device::Slice;
use crate::graph::Graph;
use crate::params::SampleSlices;
use crate::pass::Dispatch;
use crate::policy::SAMPLE_SLICES;

/// A reply's sampler on the device.
#[derive(Clone, Copy, Debug)]
pub struct SamplerSlices {
    /// [`crate::params::SampleParams`]
    pub params: Slice,
    /// The last tokens chosen, u32.
    pub log: Slice,
    /// Tokens that occurred, u32 `[vocab_size]`; only with penalties.
    pub history: Option<Slice>,
    /// f32 `[vocab_size]`; only with a bias.
    pub bias: Option<Slice>,
    /// Logits after penalties and bias, f32 `[vocab_size]`; only with either.
    pub adjusted: Option<Slice>,
    /// Largest logit of each slice.
    pub largest: Slice,
    /// The most likely token, else one drawn at random.
    pub greedy: bool,
}

impl Graph<'_> {
    /// Chooses the next token from the first row of logits and leaves it, and its position, in the step state.
    pub(super) fn sample(&mut self, s: &SamplerSlices) {
        let vocab = self.config.vocab_size;
        let mut logits = Self::rows(self.scratch.logits, 1, vocab, 4);
        if let Some(adjusted) = s.adjusted {
            let dispatch = Dispatch::new("sample_adjust", "penalties and bias")
                .constant(0, s.history.is_some())
                .constant(1, s.bias.is_some())
                .read(logits);
            let dispatch = s
                .history
                .map_or(dispatch.clone().unused(), |history| dispatch.read(history));
            let dispatch = s.bias.map_or(dispatch.clone().unused(), |bias| dispatch.read(bias));
            self.pass.push(
                dispatch
                    .write(adjusted)
                    .read(s.params)
                    .grid(vocab.div_ceil(256), 1, 1)
                    .threads(256),
            );
            logits = adjusted;
        }
        self.pass.push(
            Dispatch::new("sample_largest", "largest logits")
                .read(logits)
                .write(s.largest)
                .read(s.params)
                .grid(SAMPLE_SLICES, 1, 1)
                .threads(256),
        );
        let dispatch = match s.greedy {
            true => Dispatch::new("sample_greedy", "next token").threads(32),
            false => Dispatch::new("sample_draw", "next token").read(logits).threads(1024),
        };
        let dispatch = dispatch
            .constant(0, s.history.is_some())
            .read(s.largest)
            .update(self.step)
            .update(s.log);
        let dispatch = s
            .history
            .map_or(dispatch.clone().unused(), |history| dispatch.update(history));
        self.pass.push(dispatch.read(s.params).params(&SampleSlices {
            slices: SAMPLE_SLICES as u32,
        }));
    }
}
