//! What a model takes on a device, known before anything is loaded.

use lily_model::{ModelConfig, Weights};

use crate::error::GpuError;
use crate::graph::scratch::Scratch;
use crate::model::{FIRST_CAPACITY, GpuOptions, expanded_bytes};
use crate::state::{fixed_bytes, kv_bytes};
use crate::weights::{GpuWeights, Imagined};

/// Bytes by what they are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryPlan {
    /// Weights.
    pub weights: usize,
    /// Buffers that all passes work in.
    pub working: usize,
    /// State of a sequence that does not grow with it.
    pub sequence: usize,
    /// KV of a token.
    pub token: usize,
    /// Tokens that a sequence has room for from its start.
    pub first_tokens: usize,
}

impl MemoryPlan {
    /// The plan of a model.
    ///
    /// # Errors
    /// Where the model has a shape that no kernel takes.
    pub fn of(config: &ModelConfig, weights: &Weights, options: &GpuOptions) -> Result<MemoryPlan, GpuError> {
        let mut imagined = Imagined::default();
        let placed = GpuWeights::place(config, weights, &mut imagined)?;
        let mut working = 0;
        let context = options.max_context.unwrap_or(config.max_position_embeddings);
        let separate_swiglu = placed.separate_swiglu(&options.switches);
        Scratch::new(config, options.max_chunk, context, separate_swiglu, &mut |_, bytes| {
            working += bytes;
            Ok(imagined.slice(bytes))
        })?;
        if !options.switches.fused_dequant {
            working += expanded_bytes(&placed);
        }
        Ok(MemoryPlan {
            weights: placed.bytes,
            working,
            sequence: fixed_bytes(config),
            token: kv_bytes(config),
            first_tokens: FIRST_CAPACITY.min(context),
        })
    }

    /// Bytes with one sequence of `tokens` tokens.
    pub fn total(&self, tokens: usize) -> usize {
        self.weights + self.working + self.sequence + self.token * tokens
    }

    /// Tokens that one sequence can have where `available` bytes are free.
    pub fn tokens_in(&self, available: usize) -> usize {
        available.saturating_sub(self.total(0)) / self.token.max(1)
    }

    /// Refuses what does not fit: the model and a sequence of `context` tokens, or a first short one for `None`.
    ///
    /// # Errors
    /// They take more than `available`; the message says what each part takes and what would fit.
    pub fn check(&self, device: &str, available: usize, context: Option<usize>) -> Result<(), GpuError> {
        let tokens = context.unwrap_or(self.first_tokens).max(self.first_tokens);
        let needed = self.total(tokens);
        if needed <= available {
            return Ok(());
        }
        let gb = |bytes: usize| bytes as f64 / 1e9;
        let least = self.total(self.first_tokens) - self.weights;
        let fits = match (self.tokens_in(available), available.checked_sub(least)) {
            (tokens, _) if tokens >= self.first_tokens => format!("a context of {tokens} tokens fits (--context)"),
            (_, Some(most)) if most > 0 => format!(
                "weights of up to {:.1} GB fit: take a checkpoint with fewer bits or parameters, or --device cpu",
                gb(most)
            ),
            _ => "no model of this width fits: take --device cpu".into(),
        };
        Err(GpuError::Device(format!(
            "the model does not fit on the device ({device}): {:.1} GB are needed ({:.1} GB of weights, {:.1} GB to work in, {:.2} GB for \
             a sequence of {tokens} tokens), {:.1} GB are free; {fits}",
            gb(needed),
            gb(self.weights),
            gb(self.working),
            gb(self.sequence + self.token * tokens),
            gb(available)
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> MemoryPlan {
        MemoryPlan {
            weights: 19_000_000_000,
            working: 900_000_000,
            sequence: 66_000_000,
            token: 20_480,
            first_tokens: 1024,
        }
    }

    #[test]
    fn what_does_not_fit_is_refused_with_what_would() {
        let plan = plan();
        plan.check("H200", 20_000_000_000, None).unwrap();
        let message = plan.check("RTX 4080", 16_000_000_000, None).unwrap_err().to_string();
        for part in [
            "RTX 4080",
            "20.0 GB are needed",
            "19.0 GB of weights",
            "16.0 GB are free",
            "up to 15.0 GB fit",
        ] {
            assert!(message.contains(part), "{part}: {message}");
        }
        assert!(
            plan.check("tiny", 500_000_000, None)
                .unwrap_err()
                .to_string()
                .contains("no model of this width")
        );
    }

    #[test]
    fn a_context_that_does_not_fit_is_refused_with_one_that_does() {
        let plan = plan();
        plan.check("RTX 4090", 22_000_000_000, Some(65_536)).unwrap();
        let message = plan
            .check("RTX 4090", 22_000_000_000, Some(262_144))
            .unwrap_err()
            .to_string();
        let fits = plan.tokens_in(22_000_000_000);
        assert!(
            message.contains(&format!("a context of {fits} tokens fits")),
            "{message}"
        );
        plan.check("RTX 4090", 22_000_000_000, Some(fits)).unwrap();
        assert!(plan.check("RTX 4090", 22_000_000_000, Some(fits + 1)).is_err());
    }

    #[test]
    fn the_context_that_fits_is_what_the_rest_leaves() {
        let plan = plan();
        assert_eq!(plan.tokens_in(plan.total(12_345)), 12_345);
        assert_eq!(plan.tokens_in(1000), 0);
    }

    #[test]
    fn a_plan_is_what_a_model_allocates() {
        let mut config = ModelConfig::qwen3_6_35b_a3b();
        config.layers.truncate(4);
        config.vocab_size = 512;
        config.hidden_size = 256;
        let weights = Weights::synthetic(&config, 0);
        let options = GpuOptions {
            max_chunk: 32,
            max_context: Some(4096),
            ..GpuOptions::default()
        };
        let plan = MemoryPlan::of(&config, &weights, &options).unwrap();
        let mut model =
            crate::GpuModel::new(Counting::default(), config.into(), &weights, options, &mut |_| {}).unwrap();
        let before = model.device().bytes;
        assert_eq!(before, plan.weights + plan.working);
        let sequence = model.new_sequence().unwrap();
        assert_eq!(model.device().bytes, plan.total(plan.first_tokens));
        drop(sequence);
    }

    /// Counts what is allocated; nothing runs on it.
    #[derive(Default)]
    struct Counting {
        bytes: usize,
        next: u32,
    }

    impl crate::Device for Counting {
        fn describe(&self) -> crate::device::DeviceDescription {
            crate::device::DeviceDescription {
                kind: "counting",
                description: "counts bytes".into(),
            }
        }

        fn available(&self) -> usize {
            usize::MAX
        }

        fn allocate(
            &mut self,
            _label: &str,
            bytes: usize,
            _memory: crate::device::Memory,
        ) -> Result<crate::device::BufferId, GpuError> {
            self.bytes += bytes;
            self.next += 1;
            Ok(crate::device::BufferId(self.next))
        }

        fn release(&mut self, _buffer: crate::device::BufferId) {}

        fn write(&mut self, _to: crate::device::Slice, _bytes: &[u8]) -> Result<(), GpuError> {
            Ok(())
        }

        fn read(&mut self, _from: crate::device::Slice, _into: &mut [u8]) -> Result<(), GpuError> {
            Err(GpuError::Invalid("nothing runs here".into()))
        }

        fn read_after(
            &mut self,
            _event: crate::device::Event,
            _from: crate::device::Slice,
            _into: &mut [u8],
        ) -> Result<(), GpuError> {
            Err(GpuError::Invalid("nothing runs here".into()))
        }

        fn copy(&mut self, _from: crate::device::Slice, _to: crate::device::Slice) -> Result<(), GpuError> {
            Ok(())
        }

        fn record(&mut self, _pass: &crate::pass::Pass) -> Result<crate::device::RecordingId, GpuError> {
            Err(GpuError::Invalid("nothing runs here".into()))
        }

        fn discard(&mut self, _recording: crate::device::RecordingId) {}

        fn submit(&mut self, _recording: crate::device::RecordingId) -> Result<crate::device::Event, GpuError> {
            Err(GpuError::Invalid("nothing runs here".into()))
        }

        fn time(&mut self, _pass: &crate::pass::Pass) -> Result<Vec<std::time::Duration>, GpuError> {
            Err(GpuError::Invalid("nothing runs here".into()))
        }
    }
}
