//! The model on a GPU (or the emulator) as a backend.

use std::io::Read;
use std::sync::Arc;

use lily_gpu::device::Device;
use lily_gpu::{GpuError, GpuModel, LogitRows, Sequence, Snapshot};
use lily_model::SamplerStart;

use super::{Backend, BackendError, DecodeStep, DeviceInfo, LoadError, PrefillLogits, SaveState};

impl From<GpuError> for BackendError {
    fn from(error: GpuError) -> Self {
        match error {
            GpuError::OutOfMemory { needed, available, .. } => BackendError::OutOfMemory { needed, available },
            GpuError::NotFinite { position } => BackendError::NotFinite { position },
            other => BackendError::Device(other.to_string()),
        }
    }
}

impl From<lily_gpu::LoadError> for LoadError {
    fn from(error: lily_gpu::LoadError) -> Self {
        match error {
            lily_gpu::LoadError::Read(error) => LoadError::Read(error),
            lily_gpu::LoadError::Device(error) => LoadError::Backend(error.into()),
        }
    }
}

impl<D: Device> Backend for GpuModel<D> {
    type Sequence = Sequence;
    type Snapshot = Snapshot;

    fn device(&self) -> DeviceInfo {
        let device = self.describe();
        DeviceInfo {
            kind: device.kind.into(),
            description: device.description,
        }
    }

    fn vocab_size(&self) -> usize {
        self.config().vocab_size
    }

    fn max_chunk(&self) -> usize {
        GpuModel::max_chunk(self)
    }

    fn max_batch(&self) -> usize {
        // a decode pass is written for one sequence
        1
    }

    fn context_limit(&self) -> usize {
        GpuModel::context_limit(self)
    }

    fn new_sequence(&mut self) -> Result<Sequence, BackendError> {
        Ok(GpuModel::new_sequence(self)?)
    }

    fn position(&self, sequence: &Sequence) -> usize {
        sequence.position()
    }

    fn prefill(
        &mut self,
        sequence: &mut Sequence,
        tokens: &[u32],
        logits: PrefillLogits<'_>,
    ) -> Result<(), BackendError> {
        let rows = match logits {
            PrefillLogits::None => LogitRows::None,
            PrefillLogits::Last => LogitRows::Last,
            PrefillLogits::All(each) => LogitRows::All(each),
        };
        Ok(GpuModel::prefill(self, sequence, tokens, rows)?)
    }

    fn decode(&mut self, batch: &mut [DecodeStep<'_, Sequence>]) -> Result<(), BackendError> {
        for step in batch {
            GpuModel::decode(self, step.sequence, step.token)?;
        }
        Ok(())
    }

    fn logits<'a>(&'a self, sequence: &'a Sequence) -> &'a [f32] {
        sequence.logits()
    }

    fn hands_over_tokens(&self) -> bool {
        self.switches().token_hand_off
    }

    fn start_hand_off(
        &mut self,
        sequence: &mut Sequence,
        token: u32,
        start: &SamplerStart<'_>,
    ) -> Result<(), BackendError> {
        Ok(GpuModel::start_hand_off(self, sequence, token, start)?)
    }

    fn next_token(&mut self, sequence: &mut Sequence, ahead: bool) -> Result<u32, BackendError> {
        Ok(GpuModel::next_token(self, sequence, ahead)?)
    }

    fn end_hand_off(&mut self, sequence: &mut Sequence) -> Result<(), BackendError> {
        Ok(GpuModel::end_hand_off(self, sequence)?)
    }

    fn snapshot(&mut self, sequence: &Sequence) -> Result<Snapshot, BackendError> {
        Ok(GpuModel::snapshot(self, sequence)?)
    }

    fn restore(&mut self, snapshot: &Snapshot) -> Result<Sequence, BackendError> {
        Ok(GpuModel::restore(self, snapshot)?)
    }

    fn sequence_bytes(&self, tokens: usize) -> usize {
        GpuModel::sequence_bytes(self, tokens)
    }

    fn snapshot_memory(&self, snapshot: &Snapshot, piece: &mut dyn FnMut(usize, usize)) {
        snapshot.memory(piece);
    }

    fn state_format(&self) -> String {
        GpuModel::state_format(self)
    }

    fn saved_bytes(&self, tokens: usize, with_logits: bool) -> usize {
        GpuModel::saved_bytes(self, tokens, with_logits)
    }

    fn save(&mut self, snapshot: &Arc<Snapshot>) -> Result<SaveState, BackendError> {
        // Only this thread reaches the device, so the bytes are copied here.
        let bytes = GpuModel::save(self, snapshot)?;
        Ok(Box::new(move |out| out.write_all(&bytes)))
    }

    fn load(&mut self, tokens: usize, with_logits: bool, from: &mut dyn Read) -> Result<Snapshot, LoadError> {
        Ok(GpuModel::load(self, tokens, with_logits, from)?)
    }
}
