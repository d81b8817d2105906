//! From the engine's events to the pieces of a reply: the one place where reasoning, content and tool calls are told apart.
//!
//! Every API, streamed or not, is written in terms of [`ReplyEvent`], so all of them agree on what the model said.

use std::collections::VecDeque;
use std::sync::Arc;

use lily_engine::{Event, FinishReason, Markup, Part, ReplyBuilder, ReplyDelta, Token, TokenLogprobs, Usage};

use crate::error::ApiError;
use crate::ids;
use crate::tools::definition::Tool;
use crate::tools::parser::{CallEvent, CallParser};

/// A piece of a reply.
#[derive(Clone, Debug, PartialEq)]
pub enum ReplyEvent {
    /// The request left the queue.
    Started {
        /// Tokens of the prompt.
        prompt_tokens: usize,
        /// Those of them that came from the prefix cache.
        cached_tokens: usize,
    },
    /// A part of the prompt was read.
    Progress {
        /// Tokens read so far.
        done: usize,
        /// Tokens of the prompt.
        total: usize,
    },
    /// Log-probabilities of the prompt's tokens.
    PromptLogprobs(Vec<TokenLogprobs>),
    /// Log-probabilities of a token of the content; its text comes with this or a later piece.
    Logprobs(TokenLogprobs),
    /// More of the thoughts.
    Reasoning(String),
    /// More of the answer.
    Content(String),
    /// A call starts.
    CallStart {
        /// Number of the call in this reply, from 0.
        index: usize,
        /// Ties the call to its result.
        id: String,
        /// The function.
        name: String,
    },
    /// More of a call's arguments, as JSON text.
    CallArguments {
        /// Number of the call.
        index: usize,
        /// The next characters.
        text: String,
    },
    /// A call is complete.
    CallEnd {
        /// Number of the call.
        index: usize,
    },
    /// The reply is complete; the last event.
    Finished {
        /// Why.
        reason: Ending,
        /// What it took.
        usage: Usage,
    },
    /// The reply broke off; the last event.
    Failed(ApiError),
}

/// Why a reply ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The model was done.
    Stop,
    /// The stop string of this index in the request.
    StopString(usize),
    /// The model was done after calling functions.
    ToolCalls,
    /// The token limit or the context limit.
    Length,
}

/// Turns the engine's events into pieces of a reply.
#[derive(Clone, Debug)]
pub struct ReplyMachine {
    /// Absent for raw completions, whose text is passed on as it is.
    builder: Option<ReplyBuilder>,
    /// Absent where the request has no tools: call markup is then text.
    parser: Option<CallParser>,
    part: Part,
    calls: usize,
    found: Vec<CallEvent>,
}

impl ReplyMachine {
    /// For a raw completion: everything is content, white space included.
    pub fn raw() -> Self {
        Self {
            builder: None,
            ..Self::chat(&Arc::from([]))
        }
    }

    /// For a chat's reply to a request with these tools.
    pub fn chat(tools: &Arc<[Tool]>) -> Self {
        Self {
            builder: Some(ReplyBuilder::new()),
            parser: (!tools.is_empty()).then(|| CallParser::new(Arc::clone(tools))),
            part: Part::Content,
            calls: 0,
            found: Vec::new(),
        }
    }

    /// Takes the engine's next event.
    pub fn push(&mut self, event: Event, out: &mut VecDeque<ReplyEvent>) {
        match event {
            Event::Started {
                prompt_tokens,
                cached_tokens,
            } => {
                out.push_back(ReplyEvent::Started {
                    prompt_tokens,
                    cached_tokens,
                });
            }
            Event::PrefillProgress { done, total } => out.push_back(ReplyEvent::Progress { done, total }),
            Event::PromptLogprobs(list) => out.push_back(ReplyEvent::PromptLogprobs(list)),
            Event::Token(token) => self.token(token, out),
            Event::Finished { reason, usage } => self.finish(reason, usage, out),
            Event::Failed(error) => out.push_back(ReplyEvent::Failed(error.into())),
        }
    }

    fn token(&mut self, mut token: Token, out: &mut VecDeque<ReplyEvent>) {
        if token.part == Part::Content
            && token.markup.is_none()
            && let Some(logprobs) = token.logprobs.take()
        {
            out.push_back(ReplyEvent::Logprobs(logprobs));
        }
        self.part = match token.markup {
            Some(Markup::ThinkStart) => Part::Reasoning,
            Some(Markup::ThinkEnd | Markup::ToolCallEnd) => Part::Content,
            Some(Markup::ToolCallStart) => Part::ToolCall,
            Some(Markup::End) | None => token.part,
        };
        let Some(builder) = &mut self.builder else {
            if !token.text.is_empty() {
                out.push_back(ReplyEvent::Content(token.text));
            }
            return;
        };
        let mut deltas = Vec::new();
        builder.push(&token, |delta| deltas.push(delta));
        for delta in deltas {
            self.delta(delta, out);
        }
    }

    fn delta(&mut self, delta: ReplyDelta, out: &mut VecDeque<ReplyEvent>) {
        let Some(parser) = &mut self.parser else {
            out.push_back(match delta {
                ReplyDelta::Reasoning(text) => ReplyEvent::Reasoning(text),
                ReplyDelta::Content(text) | ReplyDelta::ToolCall(text) => ReplyEvent::Content(text),
                ReplyDelta::ToolCallStart => ReplyEvent::Content("<tool_call>".into()),
                ReplyDelta::ToolCallEnd => ReplyEvent::Content("</tool_call>".into()),
            });
            return;
        };
        match delta {
            ReplyDelta::Reasoning(text) => out.push_back(ReplyEvent::Reasoning(text)),
            ReplyDelta::Content(text) => out.push_back(ReplyEvent::Content(text)),
            ReplyDelta::ToolCallStart => parser.open(),
            ReplyDelta::ToolCall(text) => parser.push(&text, &mut self.found),
            ReplyDelta::ToolCallEnd => parser.close(&mut self.found),
        }
        self.give_out_found(out);
    }

    fn give_out_found(&mut self, out: &mut VecDeque<ReplyEvent>) {
        for event in self.found.drain(..) {
            match event {
                CallEvent::Start(name) => {
                    out.push_back(ReplyEvent::CallStart {
                        index: self.calls,
                        id: ids::new("call"),
                        name,
                    });
                    self.calls += 1;
                }
                CallEvent::Arguments(text) => {
                    out.push_back(ReplyEvent::CallArguments {
                        index: self.calls.saturating_sub(1),
                        text,
                    });
                }
                CallEvent::End => out.push_back(ReplyEvent::CallEnd {
                    index: self.calls.saturating_sub(1),
                }),
                CallEvent::Text(text) => out.push_back(ReplyEvent::Content(text)),
            }
        }
    }

    fn finish(&mut self, reason: FinishReason, usage: Usage, out: &mut VecDeque<ReplyEvent>) {
        let mut tail = None;
        if let Some(builder) = &mut self.builder {
            builder.finish(self.part, |delta| tail = Some(delta));
        }
        if let Some(delta) = tail {
            self.delta(delta, out);
        }
        if self.part == Part::ToolCall
            && let Some(parser) = &mut self.parser
        {
            parser.abandon(reason == FinishReason::Length, &mut self.found);
            self.give_out_found(out);
        }
        let reason = match reason {
            FinishReason::Length => Ending::Length,
            FinishReason::Stop | FinishReason::StopString(_) if self.calls > 0 => Ending::ToolCalls,
            FinishReason::Stop => Ending::Stop,
            FinishReason::StopString(index) => Ending::StopString(index),
        };
        out.push_back(ReplyEvent::Finished { reason, usage });
    }
}
