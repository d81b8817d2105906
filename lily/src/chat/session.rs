//! A conversation with a model.

use std::io;

use lily_engine::{
    Engine, EngineError, Event, FinishReason, Generation, Part, Reply, ReplyBuilder, ReplyDelta, ReplyFormat, Usage,
};
use lily_model::{ChatInput, Checkpoint};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::error::CliError;
use crate::sampling::SamplingArgs;

/// A conversation with a model.
pub struct Session {
    pub checkpoint: Checkpoint,
    pub engine: Engine,
    pub sampling: SamplingArgs,
    /// Text of the system message.
    pub system: Option<String>,
    /// Whether the model thinks; the template's default where `None`.
    pub thinking: Option<bool>,
    /// Messages so far, without the system's.
    pub messages: Vec<Value>,
    runtime: Runtime,
}

/// A reply and how it came about.
pub struct Answer {
    /// What the model said.
    pub reply: Reply,
    /// Why it ended; `None` where Ctrl-C ended it.
    pub reason: Option<FinishReason>,
    /// What it took, where it was not interrupted.
    pub usage: Usage,
}

impl Session {
    /// An empty conversation.
    pub fn new(checkpoint: Checkpoint, engine: Engine, sampling: SamplingArgs) -> Result<Self, CliError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
        Ok(Session {
            checkpoint,
            engine,
            sampling,
            system: None,
            thinking: None,
            messages: Vec::new(),
            runtime,
        })
    }

    /// Says `message` to the model and shows its reply piece by piece. Ctrl-C ends the reply; what was said until then stays in the
    /// conversation. Where it fails, the conversation is as it was before.
    pub fn say(
        &mut self,
        message: &str,
        mut show: impl FnMut(&ReplyDelta) -> io::Result<()>,
    ) -> Result<Answer, CliError> {
        self.messages.push(json!({ "role": "user", "content": message }));
        let answer = self
            .generation()
            .and_then(|generation| self.runtime.block_on(read(generation, &mut show)));
        match &answer {
            Ok(answer) => self.messages.push(as_message(&answer.reply)),
            Err(_) => {
                self.messages.pop();
            }
        }
        answer
    }

    fn generation(&self) -> Result<(Generation, Part), CliError> {
        let mut messages = Vec::with_capacity(self.messages.len() + 1);
        messages.extend(
            self.system
                .as_ref()
                .map(|system| json!({ "role": "system", "content": system })),
        );
        messages.extend(self.messages.iter().cloned());
        let prompt = self.checkpoint.chat_template()?.render(&ChatInput {
            messages: &messages,
            add_generation_prompt: true,
            enable_thinking: self.thinking,
            // The conversation then only grows, and the prefix cache serves all of it.
            preserve_thinking: Some(true),
            ..ChatInput::default()
        })?;
        let starts_in_reasoning = prompt.ends_in_thinking();
        let mut request = self
            .sampling
            .request(self.checkpoint.tokenizer.encode_prompt(&prompt)?, &self.checkpoint);
        request.format = ReplyFormat::Chat { starts_in_reasoning };
        let part = if starts_in_reasoning {
            Part::Reasoning
        } else {
            Part::Content
        };
        Ok((self.engine.submit(request)?, part))
    }
}

fn as_message(reply: &Reply) -> Value {
    let mut message = json!({ "role": "assistant", "content": reply.content });
    if !reply.reasoning.is_empty() {
        message["reasoning_content"] = reply.reasoning.as_str().into();
    }
    message
}

async fn read(
    (mut generation, mut part): (Generation, Part),
    show: &mut impl FnMut(&ReplyDelta) -> io::Result<()>,
) -> Result<Answer, CliError> {
    let mut reply = Reply::default();
    let mut builder = ReplyBuilder::new();
    let (reason, usage) = loop {
        let event = tokio::select! {
            event = generation.next() => event,
            interrupt = tokio::signal::ctrl_c() => {
                interrupt?;
                break (None, Usage::default());
            }
        };
        let mut pieces = Vec::new();
        match event {
            Some(Event::Token(token)) => {
                builder.push(&token, |delta| pieces.push(delta));
                part = token.next_part();
            }
            Some(Event::Finished { reason, usage }) => break (Some(reason), usage),
            Some(Event::Failed(error)) => return Err(error.into()),
            Some(Event::Started { .. } | Event::PrefillProgress { .. } | Event::PromptLogprobs(_)) => {}
            None => return Err(EngineError::Stopped.into()),
        }
        for delta in &pieces {
            reply.push(delta);
            show(delta)?;
        }
    };
    let mut tail = Vec::new();
    builder.finish(part, |delta| tail.push(delta));
    for delta in &tail {
        reply.push(delta);
        show(delta)?;
    }
    Ok(Answer { reply, reason, usage })
}
