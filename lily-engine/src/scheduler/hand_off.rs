//! Tokens that the device chooses by itself.
//!
//! A round reads one token of each such sequence, while the pass that takes the token in already runs: sequences take turns as they do with the
//! host's choices, and none has more than two passes waiting. What the device cannot know ends the hand-off: a forced token, or a part of the reply
//! with other penalties. The sequence then holds all its tokens, and the host chooses the next from its logits.

use std::time::Instant;

use crate::backend::{Backend, BackendError};
use crate::engine::EngineStatus;
use crate::slot::{Phase, Slot};
use crate::vocabulary::Vocabulary;

/// Takes the next token of a sequence in phase `Decode` from the device; whether the device chooses its tokens.
pub(super) fn take_token<B: Backend>(
    backend: &mut B,
    vocabulary: &Vocabulary,
    totals: &mut EngineStatus,
    slot: &mut Slot<B::Sequence>,
) -> bool {
    if slot.run.hand_off.is_none() && !(backend.hands_over_tokens() && slot.run.device_may_choose(vocabulary)) {
        return false;
    }
    let started = Instant::now();
    let result = next_token(backend, vocabulary, slot);
    totals.decode_steps += 1;
    totals.decode_time += started.elapsed();
    let result = result.and_then(|token| {
        totals.generated_tokens += 1;
        match slot.run.take_handed(token, vocabulary) {
            true => Ok(()),
            false => back_to_host(backend, slot),
        }
    });
    if let Err(error) = result {
        slot.run.break_off(error);
    }
    true
}

fn next_token<B: Backend>(
    backend: &mut B,
    vocabulary: &Vocabulary,
    Slot { sequence, run }: &mut Slot<B::Sequence>,
) -> Result<u32, BackendError> {
    if run.hand_off.is_none() {
        run.start_hand_off(vocabulary, |token, start| {
            backend.start_hand_off(sequence, token, start)
        })?;
    }
    backend.next_token(sequence, run.next_may_follow())
}

/// The host chooses the next token, unless the reply has ended.
fn back_to_host<B: Backend>(
    backend: &mut B,
    Slot { sequence, run }: &mut Slot<B::Sequence>,
) -> Result<(), BackendError> {
    if run.phase == Phase::Ended {
        return Ok(());
    }
    run.hand_off = None;
    backend.end_hand_off(sequence)?;
    if backend.position(sequence) == run.tokens.len() {
        run.phase = Phase::Sample;
    }
    Ok(())
}
