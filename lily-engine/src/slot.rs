//! A running sequence: its state, its reply so far, and how the next token is taken.

use std::collections::VecDeque;
use std::time::Instant;

use lily_model::SamplerStart;

use crate::backend::BackendError;
use crate::error::EngineError;
use crate::generation::{Event, FinishReason, Token, TokenLogprobs, Usage};
use crate::inbox::Job;
use crate::outlet::Outlet;
use crate::reply::Part;
use crate::request::GenerateRequest;
use crate::sampling::{Sampler, SamplerState};
use crate::text::ReplyText;
use crate::vocabulary::Vocabulary;

/// What a running sequence needs next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// More of its prompt read.
    Prefill,
    /// A token chosen from its logits.
    Sample,
    /// Its last token read.
    Decode,
    /// Nothing: it has ended.
    Ended,
}

/// A running sequence: its state in the backend, and everything else.
pub(crate) struct Slot<S> {
    pub(crate) sequence: S,
    pub(crate) run: Run,
}

/// What the engine knows of a running sequence.
pub(crate) struct Run {
    pub(crate) request: GenerateRequest,
    pub(crate) outlet: Outlet,
    /// Prompt and reply. In phase `Decode` the last token is not in the sequence's state yet.
    pub(crate) tokens: Vec<u32>,
    pub(crate) phase: Phase,
    /// Tokens of the prompt that are in the sequence's state.
    pub(crate) read: usize,
    /// Token indices of the prompt at which to take snapshots, next one last.
    pub(crate) marks: Vec<usize>,
    /// Tokens that memory is reserved for.
    pub(crate) reserved: usize,
    /// Whether it waits for memory.
    pub(crate) starved: bool,
    /// Whether the reader went away.
    pub(crate) cancelled: bool,
    /// Whether it ended with an error.
    pub(crate) failed: bool,
    /// Whether the sequence's state cannot be trusted any more.
    pub(crate) broken: bool,
    /// Tokens that prompt and reply may have.
    limit: usize,
    pub(crate) usage: Usage,
    pub(crate) prompt_logprobs: Vec<TokenLogprobs>,
    text: ReplyText,
    sampler: SamplerState,
    /// Where the device chooses its tokens: whether with penalties.
    pub(crate) hand_off: Option<bool>,
    /// Tokens that come next whatever the logits say.
    forced: VecDeque<u32>,
    started: Instant,
    first_token: Option<Instant>,
}

/// The next token, and whether the request's mask had a say in it.
struct Choice {
    id: u32,
    masked: bool,
}

/// What all sequences use when they take a token.
pub(crate) struct Shared<'a> {
    pub(crate) vocabulary: &'a Vocabulary,
    pub(crate) sampler: &'a mut Sampler,
    /// Words for token masks.
    pub(crate) mask: &'a mut Vec<u32>,
}

impl Run {
    /// For a sequence that already holds the first `cached` tokens of the job's prompt.
    pub(crate) fn new(job: Job, cached: usize, limits: Limits, vocabulary: &Vocabulary) -> Self {
        let Job {
            mut request,
            events,
            pause,
            submitted,
        } = job;
        let started = Instant::now();
        let tokens = std::mem::take(&mut request.prompt);
        let prompt_tokens = tokens.len();
        let exempt = |id| vocabulary.is_control(id);
        let sampling = std::mem::replace(&mut request.sampling, crate::Sampling::greedy());
        let sampler = SamplerState::new(sampling, &tokens, vocabulary.len(), limits.fresh_seed, exempt);
        // A stop string that spells a control token out means the token: control tokens have no text.
        let (stop_controls, stop_strings): (Vec<_>, Vec<_>) = std::mem::take(&mut request.stop_strings)
            .into_iter()
            .enumerate()
            .partition(|(_, stop)| vocabulary.special(stop).is_some());
        request
            .stop_tokens
            .extend(stop_controls.iter().filter_map(|(_, stop)| vocabulary.special(stop)));
        let text = ReplyText::new(request.format, stop_strings, vocabulary);
        let mut run = Run {
            outlet: Outlet::new(events, pause),
            phase: if cached == prompt_tokens {
                Phase::Sample
            } else {
                Phase::Prefill
            },
            read: cached,
            marks: Vec::new(),
            reserved: limits.reserved,
            starved: false,
            cancelled: false,
            failed: false,
            broken: false,
            limit: request
                .max_tokens
                .map_or(usize::MAX, |max| prompt_tokens.saturating_add(max))
                .min(limits.context),
            usage: Usage {
                prompt_tokens,
                cached_tokens: cached,
                queued: started.duration_since(submitted),
                ..Usage::default()
            },
            prompt_logprobs: Vec::new(),
            text,
            sampler,
            hand_off: None,
            forced: VecDeque::new(),
            started,
            first_token: None,
            tokens,
            request,
        };
        run.outlet.send(Event::Started {
            prompt_tokens,
            cached_tokens: cached,
        });
        run.limit_reasoning(vocabulary);
        run
    }

    /// Tokens of the prompt.
    pub(crate) fn prompt_len(&self) -> usize {
        self.usage.prompt_tokens
    }

    /// Tokens that prompt and reply may have.
    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// Chooses the next token from `logits` (of the valid ids) and tells the reader. `logits` belong to the sequence's last token.
    pub(crate) fn take_token(&mut self, logits: &[f32], shared: Shared<'_>) {
        if self.request.prompt_logprobs.take().is_some() {
            let logprobs = std::mem::take(&mut self.prompt_logprobs);
            self.outlet.send(Event::PromptLogprobs(logprobs));
        }
        if self.tokens.len() >= self.limit {
            return self.finish(FinishReason::Length);
        }
        match self.choose(logits, shared.sampler, shared.mask, shared.vocabulary) {
            Ok(choice) => {
                let logprobs = self
                    .request
                    .logprobs
                    .map(|top| shared.sampler.logprobs(logits, choice.id, top));
                self.append(choice, logprobs, shared.vocabulary);
            }
            Err(error) => {
                self.broken = matches!(error, EngineError::NotFinite { .. });
                self.fail(error);
            }
        }
    }

    /// Whether the device may choose the next token: nothing that only the host can do has a say in it, and more than one is to come.
    pub(crate) fn device_may_choose(&self, vocabulary: &Vocabulary) -> bool {
        let host_only = self.request.mask.is_some() || self.request.logprobs.is_some() || !self.forced.is_empty();
        // A bias on every token could ban them all, which the host can tell.
        let open = self.sampler.sampling().logit_bias.len() < vocabulary.len();
        !host_only && open && self.next_may_follow()
    }

    /// Whether a token follows the next one, unless that ends the reply by itself.
    pub(crate) fn next_may_follow(&self) -> bool {
        self.tokens.len() + 1 < self.limit
    }

    /// Calls `begin` with the last token and what the device has to know to choose those that follow it.
    pub(crate) fn start_hand_off<T>(
        &mut self,
        vocabulary: &Vocabulary,
        begin: impl FnOnce(u32, &SamplerStart<'_>) -> T,
    ) -> T {
        let penalise = self.penalises();
        let history = match penalise {
            true => self.sampler.history(|id| vocabulary.is_control(id)),
            false => Vec::new(),
        };
        self.hand_off = Some(penalise);
        // A prompt has at least one token.
        let token = self.tokens.last().copied().unwrap_or_default();
        begin(token, &self.sampler.start(vocabulary.len(), &history))
    }

    /// Takes a token that the device chose; whether the device may choose the next one as it did this one.
    pub(crate) fn take_handed(&mut self, id: u32, vocabulary: &Vocabulary) -> bool {
        self.append(Choice { id, masked: false }, None, vocabulary);
        self.phase == Phase::Decode && self.forced.is_empty() && self.hand_off == Some(self.penalises())
    }

    /// Whether penalties change the next token's logits. A tool call repeats names and syntax by its nature.
    fn penalises(&self) -> bool {
        self.sampler.penalises() && self.text.part() != Part::ToolCall
    }

    fn choose(
        &mut self,
        logits: &[f32],
        sampler: &mut Sampler,
        mask: &mut Vec<u32>,
        vocabulary: &Vocabulary,
    ) -> Result<Choice, EngineError> {
        if let Some(id) = self.forced.pop_front() {
            return Ok(Choice { id, masked: false });
        }
        // In a chat the grammar waits for the reasoning to end, which then only `</think>` may do.
        let reasoning = self.text.part() == Part::Reasoning;
        let masked = self.request.mask.is_some() && !reasoning;
        let restricted = self.request.mask.is_some();
        if let Some(grammar) = &mut self.request.mask {
            mask.clear();
            mask.resize(vocabulary.len().div_ceil(32), u32::MAX);
            if reasoning {
                let ends = self
                    .request
                    .stop_tokens
                    .iter()
                    .copied()
                    .chain(vocabulary.markup.tool_call_start);
                for id in ends.filter(|&id| (id as usize) < vocabulary.len()) {
                    mask[id as usize / 32] &= !(1 << (id % 32));
                }
            } else {
                grammar.restrict(mask).map_err(EngineError::Mask)?;
            }
        }
        let penalise = self.penalises();
        let mask = restricted.then_some(&mask[..]);
        let id = sampler
            .sample(logits, &self.sampler, penalise, mask)
            .map_err(|why| why.at(self.tokens.len()))?;
        Ok(Choice { id, masked })
    }

    /// Makes a token the reply's next one.
    fn append(&mut self, Choice { id, masked }: Choice, logprobs: Option<TokenLogprobs>, vocabulary: &Vocabulary) {
        let now = Instant::now();
        let first = *self.first_token.get_or_insert(now);
        self.usage.prefill = first - self.started;
        self.usage.decode = now - first;
        self.usage.completion_tokens += 1;

        let part = self.text.part();
        let is_stop = self.request.stop_tokens.contains(&id);
        self.sampler
            .accept(id, part != Part::ToolCall && !is_stop && !vocabulary.is_control(id));
        self.tokens.push(id);
        if let Some(mask) = self.request.mask.as_mut().filter(|_| masked && !is_stop)
            && let Err(error) = mask.accept(id)
        {
            return self.fail(EngineError::Mask(error));
        }
        if part == Part::Reasoning {
            self.usage.reasoning_tokens += 1;
        }

        let step = if is_stop {
            self.text.end()
        } else {
            self.text.push(id, vocabulary)
        };
        let at_limit = self.tokens.len() >= self.limit;
        let (mut text, mut stopped) = (step.text, step.stopped);
        if at_limit && stopped.is_none() && !is_stop {
            let (rest, found) = self.text.finish();
            text.push_str(&rest);
            stopped = found;
        }
        self.outlet.send(Event::Token(Token {
            id,
            text,
            part: step.part,
            markup: step.markup,
            logprobs,
        }));
        if let Some(index) = stopped {
            self.finish(FinishReason::StopString(index));
        } else if is_stop {
            self.finish(FinishReason::Stop);
        } else if at_limit {
            self.finish(FinishReason::Length);
        } else {
            self.limit_reasoning(vocabulary);
            self.phase = Phase::Decode;
        }
    }

    /// Ends the reasoning where its budget is spent.
    fn limit_reasoning(&mut self, vocabulary: &Vocabulary) {
        let (Some(budget), Some(think_end)) = (&self.request.reasoning_budget, vocabulary.markup.think_end) else {
            return;
        };
        let spent = self.usage.reasoning_tokens >= budget.tokens;
        if spent && self.forced.is_empty() && self.text.part() == Part::Reasoning {
            self.forced.extend(&budget.end);
            if !budget.end.contains(&think_end) {
                self.forced.push_back(think_end);
            }
        }
    }

    /// Ends the reply: the last event, and no more phases.
    fn finish(&mut self, reason: FinishReason) {
        self.outlet.send(Event::Finished {
            reason,
            usage: self.usage,
        });
        self.phase = Phase::Ended;
    }

    /// There is no more memory for it: its next token is its last.
    pub(crate) fn end_with_next_token(&mut self) {
        self.limit = self.tokens.len() + 1;
        self.starved = false;
    }

    /// The prompt is read up to token `until`.
    pub(crate) fn has_read(&mut self, until: usize) {
        self.read = until;
        let total = self.prompt_len();
        self.outlet.send(Event::PrefillProgress { done: until, total });
        if until == total {
            self.phase = Phase::Sample;
        }
    }

    /// Ends the generation because the backend failed in the middle of a step.
    pub(crate) fn break_off(&mut self, error: BackendError) {
        self.broken = true;
        self.fail(match error {
            BackendError::NotFinite { position } => EngineError::NotFinite { position },
            error => error.into(),
        });
    }

    /// Ends the generation with an error.
    fn fail(&mut self, error: EngineError) {
        self.failed = true;
        self.outlet.send(Event::Failed(error));
        self.phase = Phase::Ended;
    }
}

/// What the scheduler grants a sequence.
pub(crate) struct Limits {
    /// Tokens that prompt and reply may have.
    pub(crate) context: usize,
    /// Tokens that memory is reserved for.
    pub(crate) reserved: usize,
    /// Seed where the request has none.
    pub(crate) fresh_seed: u64,
}
