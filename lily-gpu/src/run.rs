//! Decoding with the next token chosen on the device: two passes are in flight, and the host reads tokens one step behind.

use std::collections::VecDeque;

use crate::device::{Device, Event, Memory, RecordingId, Slice};
use crate::error::GpuError;
use crate::graph::decode::decode_pass;
use crate::graph::sample::SamplerSlices;
use crate::model::{GpuModel, Sequence};
use crate::params::{Params, SampleParams};
use crate::policy::{self, AttentionRoute, SAMPLE_SLICES};

/// Slots of the log of chosen tokens: more than passes in flight.
const LOG_SLOTS: usize = 8;
/// What the log holds where a logit was not finite.
const FAILED: u32 = u32::MAX;

/// How a reply's tokens are chosen. `sample.metal` has the definition.
#[derive(Clone, Debug)]
pub struct Sampling {
    /// 0 for the most likely token.
    pub temperature: f32,
    /// Candidates; 0 for all.
    pub top_k: usize,
    /// Share of the probability that stays.
    pub top_p: f32,
    /// Least probability relative to the most likely token.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of tokens that occurred; 1 for none.
    pub repetition_penalty: f32,
    /// Subtracted from the logits of tokens of the reply.
    pub presence_penalty: f32,
    /// Subtracted for each time that a token is in the reply.
    pub frequency_penalty: f32,
    /// Added to the logits of some tokens.
    pub logit_bias: Vec<(u32, f32)>,
    /// Seed of the random generator.
    pub seed: u64,
    /// Ids below this may be chosen; the rest are padding.
    pub valid_ids: usize,
}

impl Sampling {
    fn penalises(&self) -> bool {
        self.repetition_penalty != 1.0 || self.presence_penalty != 0.0 || self.frequency_penalty != 0.0
    }
}

/// What penalties know about a token when a reply starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenHistory {
    /// The token is in the prompt or the reply, for the repetition penalty.
    pub listed: bool,
    /// The token is never penalised.
    pub exempt: bool,
    /// Times that the reply has it.
    pub count: u32,
}

impl TokenHistory {
    /// As `sample.metal` reads it.
    fn word(self) -> u32 {
        u32::from(self.listed) << 31 | u32::from(self.exempt) << 30 | self.count & 0x3fff_ffff
    }
}

/// A reply in the making.
#[derive(Debug)]
pub struct Run {
    sampler: SamplerSlices,
    in_flight: VecDeque<Event>,
    /// Tokens that the host has read.
    read: usize,
    first_step: u32,
    recording: Option<(AttentionRoute, RecordingId)>,
    valid_ids: usize,
}

impl<D: Device> GpuModel<D> {
    /// Starts a reply whose first token is `token` (already chosen); token number `step` comes next. `history` has an entry for each id, or none
    /// where no penalties apply. While the run lasts, the sequence must not be used otherwise.
    ///
    /// # Errors
    /// Where the token or a bias names an id that does not exist, there is no room, or the device failed.
    pub fn start_run(
        &mut self,
        sequence: &mut Sequence,
        token: u32,
        step: u32,
        sampling: &Sampling,
        history: &[TokenHistory],
    ) -> Result<Run, GpuError> {
        self.make_room(sequence, &[token])?;
        let vocab = self.config().vocab_size;
        if sampling.valid_ids == 0 || sampling.valid_ids > vocab {
            return Err(GpuError::Invalid(format!(
                "{} valid ids of a vocabulary of {vocab}",
                sampling.valid_ids
            )));
        }
        let penalises = sampling.penalises();
        if penalises && history.len() != vocab {
            return Err(GpuError::Invalid(format!(
                "a history of {} tokens for a vocabulary of {vocab}",
                history.len()
            )));
        }
        let mut bias = vec![0.0f32; if sampling.logit_bias.is_empty() { 0 } else { vocab }];
        for &(id, value) in &sampling.logit_bias {
            *bias
                .get_mut(id as usize)
                .ok_or_else(|| GpuError::Invalid(format!("a bias for token {id} of {vocab}")))? = value;
        }
        let params = SampleParams {
            vocab: sampling.valid_ids as u32,
            top_k: u32::try_from(sampling.top_k).unwrap_or(0),
            temperature: sampling.temperature,
            top_p: sampling.top_p,
            min_p: sampling.min_p,
            repetition: sampling.repetition_penalty,
            presence: sampling.presence_penalty,
            frequency: sampling.frequency_penalty,
            seed_low: sampling.seed as u32,
            seed_high: (sampling.seed >> 32) as u32,
            log_slots: LOG_SLOTS as u32,
        };
        let history: Vec<u8> = history.iter().flat_map(|entry| entry.word().to_le_bytes()).collect();
        let bias: Vec<u8> = bias.iter().flat_map(|value| value.to_le_bytes()).collect();
        let device = self.device();
        let mut place = |label: &str, bytes: &[u8], memory: Memory| {
            let buffer = device.allocate(label, bytes.len(), memory)?;
            let slice = Slice {
                buffer,
                offset: 0,
                len: bytes.len(),
            };
            device.write(slice, bytes)?;
            Ok::<_, GpuError>(slice)
        };
        let mut optional = |label: &str, bytes: &[u8], wanted: bool| match wanted {
            true => place(label, bytes, Memory::Device).map(Some),
            false => Ok(None),
        };
        let adjusts = penalises || !bias.is_empty();
        let sampler = SamplerSlices {
            history: optional("token history", &history, penalises)?,
            bias: optional("logit bias", &bias, !bias.is_empty())?,
            adjusted: optional("adjusted logits", &vec![0; vocab * 4], adjusts)?,
            params: place("sampling", &params.bytes(), Memory::Device)?,
            log: place("token log", &[0; LOG_SLOTS * 4], Memory::HostVisible)?,
            largest: place("largest logits", &[0; SAMPLE_SLICES * 12], Memory::Device)?,
            greedy: sampling.temperature == 0.0,
        };
        sequence
            .state
            .write_step(&mut self.device, token, sequence.position, step)?;
        let mut run = Run {
            sampler,
            in_flight: VecDeque::new(),
            read: 0,
            first_step: step,
            recording: None,
            valid_ids: sampling.valid_ids,
        };
        self.advance(sequence, &mut run)?;
        Ok(run)
    }

    /// The reply's next token. Another pass, which takes this token in, is then already running where `token-hand-off` is on.
    ///
    /// # Errors
    /// Where a logit is not finite, the context is full, or the device failed.
    pub fn next_token(&mut self, sequence: &mut Sequence, run: &mut Run) -> Result<u32, GpuError> {
        if run.in_flight.is_empty() {
            self.advance(sequence, run)?;
        }
        let ahead = self.options.switches.token_hand_off && sequence.position < self.context_limit();
        if ahead && run.in_flight.len() < 2 {
            self.advance(sequence, run)?;
        }
        let Some(event) = run.in_flight.pop_front() else {
            return Err(GpuError::Invalid("no pass is in flight".into()));
        };
        let slot = (run.first_step as usize + run.read) % LOG_SLOTS;
        let mut bytes = [0; 4];
        self.device
            .read_after(event, run.sampler.log.part(slot * 4, 4), &mut bytes)?;
        run.read += 1;
        let token = u32::from_le_bytes(bytes);
        if token == FAILED || token as usize >= run.valid_ids {
            return Err(GpuError::Device(format!(
                "a logit at position {} is not finite",
                sequence.position
            )));
        }
        Ok(token)
    }

    /// Ends a run. The sequence then holds every token that a pass took in: all tokens of the reply where one was in flight, else all but the last; its
    /// position says which.
    ///
    /// # Errors
    /// Where the device failed.
    pub fn finish_run(&mut self, sequence: &mut Sequence, run: Run) -> Result<(), GpuError> {
        sequence.logits = self.first_logits()?;
        sequence.state.discard(run.recording.map(|(_, recording)| recording));
        let s = run.sampler;
        for slice in [
            Some(s.params),
            Some(s.log),
            Some(s.largest),
            s.history,
            s.bias,
            s.adjusted,
        ]
        .into_iter()
        .flatten()
        {
            self.device.release(slice.buffer);
        }
        Ok(())
    }

    /// Submits the pass that takes in the step state's token.
    fn advance(&mut self, sequence: &mut Sequence, run: &mut Run) -> Result<(), GpuError> {
        let capacity = sequence.state.capacity;
        self.make_room(sequence, &[0])?;
        let route = policy::attention_route(
            self.device.family(),
            self.config(),
            sequence.position + 1,
            &self.options.switches,
        );
        let recording = match run.recording {
            Some((recorded, recording)) if recorded == route && capacity == sequence.state.capacity => recording,
            old => {
                sequence.state.discard(old.map(|(_, recording)| recording));
                let pass = decode_pass(self.graph(), &sequence.state.slices(), route, Some(&run.sampler));
                let recording = self.device.record(&pass)?;
                run.recording = Some((route, recording));
                recording
            }
        };
        run.in_flight.push_back(self.device.submit(recording)?);
        sequence.position += 1;
        Ok(())
    }
}
