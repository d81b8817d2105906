//! Any backend that `--device` can name, behind one type.

use std::io::Read;
use std::sync::Arc;

use lily_cpu::CpuModel;
use lily_engine::{Backend, BackendError, DecodeStep, DeviceInfo, LoadError, PrefillLogits, SaveState};
use lily_gpu::{Device, GpuModel};
use lily_model::SamplerStart;

/// A model on one of the devices.
pub enum AnyBackend {
    /// The processor.
    Cpu(Box<CpuModel>),
    /// The GPU kernels, on a GPU or on the processor.
    Gpu(Box<GpuModel<Box<dyn Device>>>),
}

/// A sequence of one of the backends; all GPU devices share a type.
pub enum AnySequence {
    /// On the processor.
    Cpu(lily_cpu::Sequence),
    /// On a GPU device.
    Gpu(lily_gpu::Sequence),
}

/// A snapshot of one of the backends.
pub enum AnySnapshot {
    /// On the processor.
    Cpu(lily_cpu::Sequence),
    /// On a GPU device.
    Gpu(lily_gpu::Snapshot),
}

/// Evaluates `$body` with `$model` bound to whichever backend there is, and `$sequence` to what it keeps of a sequence.
macro_rules! each {
    ($backend:expr, $model:ident => $body:expr) => {
        match $backend {
            AnyBackend::Cpu($model) => $body,
            AnyBackend::Gpu($model) => $body,
        }
    };
    ($backend:expr, $any:expr, ($model:ident, $sequence:ident) => $body:expr) => {
        match ($backend, $any) {
            (AnyBackend::Cpu($model), AnySequence::Cpu($sequence)) => $body,
            (AnyBackend::Gpu($model), AnySequence::Gpu($sequence)) => $body,
            _ => Err(foreign()),
        }
    };
}

impl AnyBackend {
    /// Bytes that the device's own memory has left; `None` where it uses the machine's.
    pub fn free_memory(&self) -> Option<usize> {
        match self {
            AnyBackend::Gpu(model) => Some(model.free_memory()).filter(|&free| free < usize::MAX),
            AnyBackend::Cpu(_) => None,
        }
    }
}

fn foreign() -> BackendError {
    BackendError::Device("the sequence belongs to another backend".into())
}

impl AnySequence {
    fn cpu(&mut self) -> Result<&mut lily_cpu::Sequence, BackendError> {
        match self {
            AnySequence::Cpu(sequence) => Ok(sequence),
            AnySequence::Gpu(_) => Err(foreign()),
        }
    }

    fn gpu(&mut self) -> Result<&mut lily_gpu::Sequence, BackendError> {
        match self {
            AnySequence::Gpu(sequence) => Ok(sequence),
            AnySequence::Cpu(_) => Err(foreign()),
        }
    }
}

impl Backend for AnyBackend {
    type Sequence = AnySequence;
    type Snapshot = AnySnapshot;

    fn device(&self) -> DeviceInfo {
        each!(self, model => Backend::device(model.as_ref()))
    }

    fn vocab_size(&self) -> usize {
        each!(self, model => Backend::vocab_size(model.as_ref()))
    }

    fn max_chunk(&self) -> usize {
        each!(self, model => Backend::max_chunk(model.as_ref()))
    }

    fn max_batch(&self) -> usize {
        each!(self, model => Backend::max_batch(model.as_ref()))
    }

    fn context_limit(&self) -> usize {
        each!(self, model => Backend::context_limit(model.as_ref()))
    }

    fn new_sequence(&mut self) -> Result<AnySequence, BackendError> {
        match self {
            AnyBackend::Cpu(model) => Backend::new_sequence(model.as_mut()).map(AnySequence::Cpu),
            AnyBackend::Gpu(model) => Backend::new_sequence(model.as_mut()).map(AnySequence::Gpu),
        }
    }

    fn position(&self, sequence: &AnySequence) -> usize {
        match sequence {
            AnySequence::Cpu(sequence) => sequence.position(),
            AnySequence::Gpu(sequence) => sequence.position(),
        }
    }

    fn prefill(
        &mut self,
        sequence: &mut AnySequence,
        tokens: &[u32],
        logits: PrefillLogits<'_>,
    ) -> Result<(), BackendError> {
        each!(self, sequence, (model, sequence) => Backend::prefill(model.as_mut(), sequence, tokens, logits))
    }

    fn decode(&mut self, batch: &mut [DecodeStep<'_, AnySequence>]) -> Result<(), BackendError> {
        match self {
            AnyBackend::Cpu(model) => {
                let mut steps = Vec::with_capacity(batch.len());
                for step in batch {
                    steps.push(DecodeStep {
                        token: step.token,
                        sequence: step.sequence.cpu()?,
                    });
                }
                Backend::decode(model.as_mut(), &mut steps)
            }
            AnyBackend::Gpu(model) => {
                let mut steps = Vec::with_capacity(batch.len());
                for step in batch {
                    steps.push(DecodeStep {
                        token: step.token,
                        sequence: step.sequence.gpu()?,
                    });
                }
                Backend::decode(model.as_mut(), &mut steps)
            }
        }
    }

    fn logits<'a>(&'a self, sequence: &'a AnySequence) -> &'a [f32] {
        match sequence {
            AnySequence::Cpu(sequence) => sequence.logits(),
            AnySequence::Gpu(sequence) => sequence.logits(),
        }
    }

    fn hands_over_tokens(&self) -> bool {
        each!(self, model => Backend::hands_over_tokens(model.as_ref()))
    }

    fn start_hand_off(
        &mut self,
        sequence: &mut AnySequence,
        token: u32,
        start: &SamplerStart<'_>,
    ) -> Result<(), BackendError> {
        each!(self, sequence, (model, sequence) => Backend::start_hand_off(model.as_mut(), sequence, token, start))
    }

    fn next_token(&mut self, sequence: &mut AnySequence, ahead: bool) -> Result<u32, BackendError> {
        each!(self, sequence, (model, sequence) => Backend::next_token(model.as_mut(), sequence, ahead))
    }

    fn end_hand_off(&mut self, sequence: &mut AnySequence) -> Result<(), BackendError> {
        each!(self, sequence, (model, sequence) => Backend::end_hand_off(model.as_mut(), sequence))
    }

    fn snapshot(&mut self, sequence: &AnySequence) -> Result<AnySnapshot, BackendError> {
        match (self, sequence) {
            (AnyBackend::Cpu(model), AnySequence::Cpu(sequence)) => {
                Backend::snapshot(model.as_mut(), sequence).map(AnySnapshot::Cpu)
            }
            (AnyBackend::Gpu(model), AnySequence::Gpu(sequence)) => {
                Backend::snapshot(model.as_mut(), sequence).map(AnySnapshot::Gpu)
            }
            _ => Err(foreign()),
        }
    }

    fn restore(&mut self, snapshot: &AnySnapshot) -> Result<AnySequence, BackendError> {
        match (self, snapshot) {
            (AnyBackend::Cpu(model), AnySnapshot::Cpu(snapshot)) => {
                Backend::restore(model.as_mut(), snapshot).map(AnySequence::Cpu)
            }
            (AnyBackend::Gpu(model), AnySnapshot::Gpu(snapshot)) => {
                Backend::restore(model.as_mut(), snapshot).map(AnySequence::Gpu)
            }
            _ => Err(foreign()),
        }
    }

    fn sequence_bytes(&self, tokens: usize) -> usize {
        each!(self, model => Backend::sequence_bytes(model.as_ref(), tokens))
    }

    fn snapshot_memory(&self, snapshot: &AnySnapshot, piece: &mut dyn FnMut(usize, usize)) {
        match snapshot {
            AnySnapshot::Cpu(snapshot) => snapshot.memory(piece),
            AnySnapshot::Gpu(snapshot) => snapshot.memory(piece),
        }
    }

    fn state_format(&self) -> String {
        each!(self, model => Backend::state_format(model.as_ref()))
    }

    fn saved_bytes(&self, tokens: usize, with_logits: bool) -> usize {
        each!(self, model => Backend::saved_bytes(model.as_ref(), tokens, with_logits))
    }

    fn save(&mut self, snapshot: &Arc<AnySnapshot>) -> Result<SaveState, BackendError> {
        match (self, snapshot.as_ref()) {
            (AnyBackend::Gpu(model), AnySnapshot::Gpu(snapshot)) => {
                let bytes = model.save(snapshot)?;
                Ok(Box::new(move |out| out.write_all(&bytes)))
            }
            (AnyBackend::Cpu(_), AnySnapshot::Cpu(_)) => {
                let snapshot = Arc::clone(snapshot);
                Ok(Box::new(move |out| match snapshot.as_ref() {
                    AnySnapshot::Cpu(snapshot) => snapshot.save(out),
                    AnySnapshot::Gpu(_) => Err(std::io::Error::other(foreign())),
                }))
            }
            _ => Err(foreign()),
        }
    }

    fn load(&mut self, tokens: usize, with_logits: bool, from: &mut dyn Read) -> Result<AnySnapshot, LoadError> {
        match self {
            AnyBackend::Cpu(model) => Backend::load(model.as_mut(), tokens, with_logits, from).map(AnySnapshot::Cpu),
            AnyBackend::Gpu(model) => Backend::load(model.as_mut(), tokens, with_logits, from).map(AnySnapshot::Gpu),
        }
    }
}
