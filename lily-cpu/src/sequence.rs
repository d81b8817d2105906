//! One conversation's state at one position.

/// One conversation's state at one position: the KV cache of the attention layers, the convolution and recurrent states of the
/// Gated DeltaNet layers, and the last logits.
///
/// A clone is a snapshot: it shares the full KV blocks with its source and copies the rest; later work on either does not change
/// the other.
#[derive(Clone, Debug)]
pub struct Sequence {
    position: usize,
    logits: Vec<f32>,
}

impl Sequence {
    /// Tokens that the sequence holds.
    pub fn position(&self) -> usize {
        self.position
    }

    /// Logits `[vocab_size]` after the last token; empty where the last chunk asked for none.
    pub fn logits(&self) -> &[f32] {
        &self.logits
    }
}
