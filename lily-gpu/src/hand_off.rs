//! The token hand-off: the device chooses the next token and hands it to the next pass. Two passes are in flight, and the host reads tokens one
//! step behind.

use std::collections::VecDeque;

use lily_model::{SamplerStart, TokenHistory};

use crate::device::{BufferId, Device, Event, Memory, RecordingId, Slice};
use crate::error::GpuError;
use crate::graph::Model;
use crate::graph::decode::decode_pass;
use crate::graph::sample::SamplerSlices;
use crate::graph::scratch::Scratch;
use crate::model::{GpuModel, Sequence};
use crate::params::{Params, SampleParams};
use crate::policy::{AttentionRoute, SAMPLE_SLICES};

/// Slots of the log of chosen tokens: more than passes in flight.
const LOG_SLOTS: usize = 8;
/// What the log holds where a logit was not finite.
const FAILED: u32 = u32::MAX;

/// Bytes that the device needs at most to choose a sequence's tokens: logits, adjusted logits, token history and bias.
pub(crate) fn hand_off_bytes(vocab: usize) -> usize {
    4 * vocab * 4 + size_of::<SampleParams>() + LOG_SLOTS * 4 + SAMPLE_SLICES * 12
}

/// A sequence whose tokens the device chooses.
#[derive(Debug)]
pub(crate) struct HandOff {
    sampler: SamplerSlices,
    /// Logits of the last pass, f32 `[vocab_size]`: its own, so that other sequences' passes leave them alone.
    logits: Slice,
    /// Everything allocated.
    buffers: Vec<BufferId>,
    in_flight: VecDeque<Event>,
    /// Tokens that the host has read.
    read: usize,
    first_step: u32,
    recording: Option<(AttentionRoute, RecordingId)>,
    valid_ids: usize,
}

impl HandOff {
    /// What it holds on the device.
    pub(crate) fn into_parts(self) -> (Vec<BufferId>, Option<RecordingId>) {
        (self.buffers, self.recording.map(|(_, recording)| recording))
    }
}

/// As `sample.metal` reads it.
fn history_word(entry: &TokenHistory) -> u32 {
    u32::from(entry.listed) << 31 | u32::from(entry.exempt) << 30 | entry.count & 0x3fff_ffff
}

/// As `sample.metal` reads it: a banned token's logit stays a number, the least one, so that it can be told from one that is not finite.
fn bias_value(bias: f32) -> f32 {
    bias.clamp(f32::MIN, f32::MAX)
}

impl<D: Device> GpuModel<D> {
    /// Lets the device choose the tokens that follow `token`, which is the sequence's next one. While it does, only [`GpuModel::next_token`],
    /// [`GpuModel::end_hand_off`] and [`GpuModel::snapshot`] take the sequence.
    ///
    /// # Errors
    /// Where the token or a bias names an id that does not exist, the history has the wrong length, there is no room, or the device failed.
    pub fn start_hand_off(
        &mut self,
        sequence: &mut Sequence,
        token: u32,
        start: &SamplerStart<'_>,
    ) -> Result<(), GpuError> {
        self.make_room(sequence, &[token])?;
        let vocab = self.config().vocab_size;
        if start.valid_ids == 0 || start.valid_ids > vocab {
            return Err(GpuError::Invalid(format!(
                "{} valid ids of a vocabulary of {vocab}",
                start.valid_ids
            )));
        }
        if !start.history.is_empty() && start.history.len() != start.valid_ids {
            return Err(GpuError::Invalid(format!(
                "a history of {} tokens for {} valid ids",
                start.history.len(),
                start.valid_ids
            )));
        }
        let mut buffers = Vec::new();
        let placed = self.place_sampler(start, &mut buffers);
        let written = placed.and_then(|placed| {
            let (state, position) = (&sequence.state, sequence.position);
            state.write_step(&mut self.device, token, position, start.step)?;
            Ok(placed)
        });
        let (sampler, logits) = written.inspect_err(|_| sequence.state.leave(buffers.iter().copied()))?;
        sequence.logits.clear();
        sequence.hand_off = Some(Box::new(HandOff {
            sampler,
            logits,
            buffers,
            in_flight: VecDeque::new(),
            read: 0,
            first_step: start.step,
            recording: None,
            valid_ids: start.valid_ids,
        }));
        Ok(())
    }

    /// Buffers of a sampler, and that of its logits; what is allocated is added to `buffers`.
    fn place_sampler(
        &mut self,
        start: &SamplerStart<'_>,
        buffers: &mut Vec<BufferId>,
    ) -> Result<(SamplerSlices, Slice), GpuError> {
        let (vocab, sampling) = (self.config().vocab_size, start.sampling);
        let penalises = !start.history.is_empty();
        let mut bias = vec![0.0f32; if sampling.logit_bias.is_empty() { 0 } else { vocab }];
        for &(id, value) in &sampling.logit_bias {
            *bias
                .get_mut(id as usize)
                .ok_or_else(|| GpuError::Invalid(format!("a bias for token {id} of {vocab}")))? = bias_value(value);
        }
        let params = SampleParams {
            vocab: start.valid_ids as u32,
            top_k: u32::try_from(sampling.top_k).unwrap_or(0),
            temperature: sampling.temperature,
            top_p: sampling.top_p,
            min_p: sampling.min_p,
            repetition: sampling.repetition_penalty,
            presence: sampling.presence_penalty,
            frequency: sampling.frequency_penalty,
            seed_low: start.seed as u32,
            seed_high: (start.seed >> 32) as u32,
            log_slots: LOG_SLOTS as u32,
        };
        let history: Vec<u8> = start
            .history
            .iter()
            .flat_map(|entry| history_word(entry).to_le_bytes())
            .chain(vec![0; (vocab - start.history.len()) * 4])
            .collect();
        let bias: Vec<u8> = bias.iter().flat_map(|value| value.to_le_bytes()).collect();
        let mut allocate = |label: &str, len: usize, memory: Memory| {
            let buffer = self.device.allocate(label, len, memory)?;
            buffers.push(buffer);
            Ok::<_, GpuError>(Slice { buffer, offset: 0, len })
        };
        let mut optional = |label: &str, wanted: bool| match wanted {
            true => allocate(label, vocab * 4, Memory::Device).map(Some),
            false => Ok(None),
        };
        let biased = !bias.is_empty();
        let sampler = SamplerSlices {
            history: optional("token history", penalises)?,
            bias: optional("logit bias", biased)?,
            adjusted: optional("adjusted logits", penalises || biased)?,
            params: allocate("sampling", size_of::<SampleParams>(), Memory::Device)?,
            log: allocate("token log", LOG_SLOTS * 4, Memory::HostVisible)?,
            largest: allocate("largest logits", SAMPLE_SLICES * 12, Memory::Device)?,
            greedy: sampling.temperature == 0.0,
        };
        let logits = allocate("logits", vocab * 4, Memory::Device)?;
        self.device.write(sampler.params, &params.bytes())?;
        for (slice, bytes) in [(sampler.history, history), (sampler.bias, bias)] {
            if let Some(slice) = slice {
                self.device.write(slice, &bytes)?;
            }
        }
        Ok((sampler, logits))
    }

    /// The next token. With `ahead` another pass, which takes this token in, is already running then, where the context has room: whoever asks
    /// must be sure that the token will stand, since a recurrent state cannot be rewound.
    ///
    /// # Errors
    /// Where a logit is not finite, the context is full, or the device failed.
    pub fn next_token(&mut self, sequence: &mut Sequence, ahead: bool) -> Result<u32, GpuError> {
        let mut hand_off = sequence.hand_off.take().ok_or_else(not_handed_off)?;
        let token = self.step(sequence, &mut hand_off, ahead);
        sequence.hand_off = Some(hand_off);
        token
    }

    fn step(&mut self, sequence: &mut Sequence, hand_off: &mut HandOff, ahead: bool) -> Result<u32, GpuError> {
        if hand_off.in_flight.is_empty() {
            self.advance(sequence, hand_off)?;
        }
        if ahead && hand_off.in_flight.len() < 2 && sequence.position < self.context_limit() {
            self.advance(sequence, hand_off)?;
        }
        let event = hand_off.in_flight.pop_front().ok_or_else(not_handed_off)?;
        let slot = (hand_off.first_step as usize + hand_off.read) % LOG_SLOTS;
        let mut bytes = [0; 4];
        self.device
            .read_after(event, hand_off.sampler.log.part(slot * 4, 4), &mut bytes)?;
        hand_off.read += 1;
        let token = u32::from_le_bytes(bytes);
        if token == FAILED || token as usize >= hand_off.valid_ids {
            let position = sequence.position - hand_off.in_flight.len();
            return Err(GpuError::NotFinite { position });
        }
        Ok(token)
    }

    /// The host chooses the sequence's tokens again, from its logits. The sequence then holds every token that a pass took in: its position says
    /// whether the last token read is among them.
    ///
    /// # Errors
    /// Where the device failed.
    pub fn end_hand_off(&mut self, sequence: &mut Sequence) -> Result<(), GpuError> {
        let Some(hand_off) = sequence.hand_off.take() else {
            return Ok(());
        };
        let logits = self.read_floats(hand_off.logits);
        sequence.leave(*hand_off);
        sequence.logits = logits?;
        Ok(())
    }

    /// Submits the pass that takes in the step state's token.
    fn advance(&mut self, sequence: &mut Sequence, hand_off: &mut HandOff) -> Result<(), GpuError> {
        let capacity = sequence.state.capacity;
        self.make_room(sequence, &[0])?;
        let route = self.attention_route(sequence.position);
        let recording = match hand_off.recording {
            Some((recorded, recording)) if recorded == route && capacity == sequence.state.capacity => recording,
            old => {
                sequence.state.discard(old.map(|(_, recording)| recording));
                let graph = self.graph();
                let scratch = Scratch {
                    logits: hand_off.logits,
                    ..graph.scratch.clone()
                };
                let model = Model {
                    scratch: &scratch,
                    ..graph
                };
                let pass = decode_pass(model, &sequence.state.slices(), route, Some(&hand_off.sampler));
                let recording = self.device.record(&pass)?;
                hand_off.recording = Some((route, recording));
                recording
            }
        };
        hand_off.in_flight.push_back(self.device.submit(recording)?);
        sequence.position += 1;
        Ok(())
    }
}

fn not_handed_off() -> GpuError {
    GpuError::Invalid("the host chooses this sequence's tokens".into())
}
