//! The CPU model as a backend.

use std::io::Read;
use std::sync::Arc;

use lily_cpu::{CpuError, CpuModel, DecodeRow, LogitRows, Sequence};

use super::{Backend, BackendError, DecodeStep, DeviceInfo, LoadError, PrefillLogits, SaveState};

impl From<CpuError> for BackendError {
    fn from(error: CpuError) -> Self {
        BackendError::Device(error.to_string())
    }
}

impl Backend for CpuModel {
    type Sequence = Sequence;
    /// A clone of a sequence shares its full KV blocks, and neither changes the other.
    type Snapshot = Sequence;

    fn device(&self) -> DeviceInfo {
        DeviceInfo {
            kind: "cpu".into(),
            description: self.description(),
        }
    }

    fn vocab_size(&self) -> usize {
        self.vocab_size()
    }

    fn max_chunk(&self) -> usize {
        self.max_chunk()
    }

    fn max_batch(&self) -> usize {
        self.max_chunk()
    }

    fn context_limit(&self) -> usize {
        self.config().max_position_embeddings
    }

    fn new_sequence(&mut self) -> Result<Sequence, BackendError> {
        Ok(CpuModel::new_sequence(self))
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
        Ok(CpuModel::prefill(self, sequence, tokens, rows)?)
    }

    fn decode(&mut self, batch: &mut [DecodeStep<'_, Sequence>]) -> Result<(), BackendError> {
        let mut rows: Vec<DecodeRow<'_>> = batch
            .iter_mut()
            .map(|step| DecodeRow {
                sequence: &mut *step.sequence,
                token: step.token,
            })
            .collect();
        Ok(CpuModel::decode(self, &mut rows)?)
    }

    fn logits<'a>(&'a self, sequence: &'a Sequence) -> &'a [f32] {
        sequence.logits()
    }

    fn snapshot(&mut self, sequence: &Sequence) -> Result<Sequence, BackendError> {
        Ok(sequence.clone())
    }

    fn restore(&mut self, snapshot: &Sequence) -> Result<Sequence, BackendError> {
        Ok(snapshot.clone())
    }

    fn sequence_bytes(&self, tokens: usize) -> usize {
        CpuModel::sequence_bytes(self, tokens)
    }

    fn snapshot_memory(&self, snapshot: &Sequence, piece: &mut dyn FnMut(usize, usize)) {
        snapshot.memory(piece);
    }

    fn state_format(&self) -> String {
        CpuModel::state_format(self)
    }

    fn saved_bytes(&self, tokens: usize, with_logits: bool) -> usize {
        CpuModel::saved_bytes(self, tokens, with_logits)
    }

    fn save(&mut self, snapshot: &Arc<Sequence>) -> Result<SaveState, BackendError> {
        let snapshot = Arc::clone(snapshot);
        Ok(Box::new(move |out| snapshot.save(out)))
    }

    fn load(&mut self, tokens: usize, with_logits: bool, from: &mut dyn Read) -> Result<Sequence, LoadError> {
        Ok(CpuModel::load(self, tokens, with_logits, from)?)
    }
}
