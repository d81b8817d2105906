//! Replies as the model wrote them, for when a client sends them back.
//!
//! A history holds what the API told the client: trimmed text, arguments as JSON. Rendered again it means the same, but its tokens need not be
//! those that the model generated, and then the prefix cache serves the conversation only up to that reply. So the server remembers the
//! tokens of recent replies, and where a prompt goes on after a known prompt with a turn of the same meaning, it puts them in.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use lily_model::Tokenizer;
use serde_json::Value;

use crate::tools::definition::Tool;
use crate::tools::parser::{CallEvent, CallParser};

/// Most replies that are remembered.
const MAX_REPLIES: usize = 256;

/// Most tokens of prompts and replies that are remembered, 4 bytes each.
const MAX_TOKENS: usize = 4 << 20;

/// Recent replies.
#[derive(Debug, Default)]
pub struct Replays {
    replies: Mutex<VecDeque<Arc<Remembered>>>,
}

#[derive(Debug)]
struct Remembered {
    prompt: Vec<u32>,
    reply: Vec<u32>,
}

/// What a turn says, whatever its white space and the layout of its arguments.
#[derive(Debug, PartialEq)]
struct Meaning {
    reasoning: String,
    content: String,
    calls: Vec<(String, Value)>,
}

impl Replays {
    /// Remembers a complete reply; its last token ends the turn.
    pub fn remember(&self, prompt: Vec<u32>, reply: Vec<u32>) {
        let mut replies = self.replies.lock().unwrap_or_else(PoisonError::into_inner);
        replies.push_back(Arc::new(Remembered { prompt, reply }));
        let tokens = |replies: &VecDeque<Arc<Remembered>>| -> usize {
            replies
                .iter()
                .map(|remembered| remembered.prompt.len() + remembered.reply.len())
                .sum()
        };
        while replies.len() > MAX_REPLIES || tokens(&replies) > MAX_TOKENS {
            replies.pop_front();
        }
    }

    /// The prompt with the model's own tokens wherever it repeats one of its replies.
    pub fn restore(&self, mut prompt: Vec<u32>, tools: &Arc<[Tool]>, tokenizer: &Tokenizer) -> Vec<u32> {
        let Some(end_of_turn) = tokenizer.added_token("<|im_end|>") else {
            return prompt;
        };
        let mut known: Vec<_> = self
            .replies
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .iter()
            .map(Arc::clone)
            .collect();
        // A later turn's prompt holds the earlier turns as they were restored then.
        known.sort_by_key(|remembered| remembered.prompt.len());
        for remembered in known {
            let start = remembered.prompt.len();
            if !prompt.starts_with(&remembered.prompt) || remembered.reply.last() != Some(&end_of_turn) {
                continue;
            }
            let Some(length) = prompt[start..].iter().position(|&token| token == end_of_turn) else {
                continue;
            };
            let turn = start..start + length + 1;
            let differs = prompt[turn.clone()] != remembered.reply;
            if differs
                && meaning(&prompt[turn.clone()], tools, tokenizer) == meaning(&remembered.reply, tools, tokenizer)
            {
                prompt.splice(turn, remembered.reply.iter().copied());
            }
        }
        prompt
    }
}

fn meaning(turn: &[u32], tools: &Arc<[Tool]>, tokenizer: &Tokenizer) -> Meaning {
    let text = tokenizer.decode(turn, true);
    let (reasoning, rest) = text.split_once("</think>").unwrap_or(("", &text));
    let mut pieces = rest.split("<tool_call>");
    let mut meaning = Meaning {
        reasoning: reasoning.trim().to_owned(),
        content: pieces.next().unwrap_or_default().trim().to_owned(),
        calls: Vec::new(),
    };
    for piece in pieces {
        let (call, after) = piece.split_once("</tool_call>").unwrap_or((piece, ""));
        let (mut parser, mut events) = (CallParser::new(Arc::clone(tools)), Vec::new());
        parser.push(call, &mut events);
        parser.close(&mut events);
        let mut arguments = String::new();
        for event in events {
            match event {
                CallEvent::Start(name) => meaning.calls.push((name, Value::Null)),
                CallEvent::Arguments(text) => arguments.push_str(&text),
                CallEvent::End => {
                    let parsed = serde_json::from_str(&std::mem::take(&mut arguments));
                    if let Some((_, value)) = meaning.calls.last_mut() {
                        *value = parsed.unwrap_or(Value::Null);
                    }
                }
                CallEvent::Text(text) => meaning.content.push_str(&text),
            }
        }
        meaning.content.push_str(after.trim());
    }
    meaning
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    struct Case {
        tokenizer: Tokenizer,
        tools: Arc<[Tool]>,
        replays: Replays,
    }

    impl Case {
        fn new() -> Self {
            let tool = json!({ "type": "function", "function": { "name": "f", "parameters": { "type": "object", "properties": {
                "a": { "type": "object" }, "s": { "type": "string" },
            } } } });
            let tools = Tool::parse_all(&[tool], "tools").unwrap().into();
            Self {
                tokenizer: crate::grammar::tests::checkpoint().tokenizer,
                tools,
                replays: Replays::default(),
            }
        }

        fn tokens(&self, text: &str) -> Vec<u32> {
            self.tokenizer.encode(text).unwrap()
        }

        /// The text of what `rendered` becomes, after the model said `said` to the same prompt.
        fn restored(&self, said: &str, rendered: &str) -> String {
            let prompt = "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n<think>\n";
            self.replays
                .remember(self.tokens(prompt), self.tokens(&format!("{said}<|im_end|>")));
            let rest = "<|im_end|>\n<|im_start|>user\nmore<|im_end|>\n";
            let tokens = self.tokens(&format!("{prompt}{rendered}{rest}"));
            let text = self
                .tokenizer
                .decode(&self.replays.restore(tokens, &self.tools, &self.tokenizer), false);
            text.strip_prefix(prompt)
                .unwrap()
                .strip_suffix(rest)
                .unwrap()
                .to_owned()
        }
    }

    #[test]
    fn turns_of_the_same_meaning_are_as_the_model_wrote_them() {
        let call = |arguments: &str| format!("<tool_call>\n<function=f>\n{arguments}</function>\n</tool_call>");
        let said = format!(
            " so\n\n</think>\n\n\nLook: \n{}\n",
            call("<parameter=a>\n{\"x\":1}\n</parameter>\n")
        );
        let rendered = format!(
            "so\n</think>\n\nLook:\n\n{}",
            call("<parameter=a>\n{\"x\": 1}\n</parameter>\n")
        );
        assert_eq!(Case::new().restored(&said, &rendered), said);
        assert_eq!(Case::new().restored("a </think> b", "a\n</think>\n\nb"), "a </think> b");
    }

    #[test]
    fn turns_that_were_changed_stay_changed() {
        let call = |value: &str| {
            format!("<tool_call>\n<function=f>\n<parameter=s>\n{value}\n</parameter>\n</function>\n</tool_call>")
        };
        for (said, rendered) in [
            ("a\n</think>\n\nb ", "a\n</think>\n\nc".to_owned()),
            ("a\n</think>\n\nb ", "\n</think>\n\nb".to_owned()),
            (
                &format!("a</think>{}", call("x")),
                format!("a\n</think>\n\n{}", call("y")),
            ),
            (&format!("a</think>{}", call("x")), "a\n</think>\n\n".to_owned()),
        ] {
            assert_eq!(Case::new().restored(said, &rendered), rendered);
        }
    }

    #[test]
    fn memory_is_bounded() {
        let replays = Replays::default();
        for number in 0..1000 {
            replays.remember(vec![number], vec![number]);
        }
        assert_eq!(replays.replies.lock().unwrap().len(), MAX_REPLIES);
        replays.remember(vec![0; MAX_TOKENS - 2], vec![1]);
        assert_eq!(replays.replies.lock().unwrap().len(), 1);
        replays.remember(vec![0; MAX_TOKENS + 1], vec![1]);
        assert_eq!(replays.replies.lock().unwrap().len(), 0);
    }
}
