//! A reply as a row of blocks: thoughts, text and calls, each opened, filled and closed before the next. Anthropic's messages and OpenAI's
//! responses are both built so.

use crate::reply::ReplyEvent;

/// What a block holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BlockKind {
    /// Thoughts.
    Reasoning,
    /// The answer.
    Text,
    /// A call's arguments, as JSON text.
    Call {
        /// Ties the call to its result.
        id: String,
        /// The function.
        name: String,
    },
}

/// A block of a reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// What it holds.
    pub kind: BlockKind,
    /// Its text so far.
    pub text: String,
}

/// What happens to the row of blocks. The block meant is always the last one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BlockEvent {
    /// A block is added.
    Open,
    /// Its text grows.
    Delta(String),
    /// It is complete.
    Close,
}

/// The blocks of a reply as it arrives.
#[derive(Clone, Debug, Default)]
pub struct Blocks {
    /// All blocks so far.
    pub list: Vec<Block>,
    open: bool,
}

impl Blocks {
    /// Takes a piece of the reply; `emit` hears of each change right after it was made.
    pub fn push(&mut self, event: &ReplyEvent, mut emit: impl FnMut(&[Block], BlockEvent)) {
        match event {
            ReplyEvent::Reasoning(text) => self.text(BlockKind::Reasoning, text, &mut emit),
            ReplyEvent::Content(text) => self.text(BlockKind::Text, text, &mut emit),
            ReplyEvent::CallStart { id, name, .. } => {
                self.open(
                    BlockKind::Call {
                        id: id.clone(),
                        name: name.clone(),
                    },
                    &mut emit,
                );
            }
            ReplyEvent::CallArguments { text, .. } => self.grow(text, &mut emit),
            ReplyEvent::CallEnd { .. } | ReplyEvent::Finished { .. } | ReplyEvent::Failed(_) => self.close(&mut emit),
            _ => {}
        }
    }

    fn text(&mut self, kind: BlockKind, text: &str, emit: &mut impl FnMut(&[Block], BlockEvent)) {
        if !self.open || self.list.last().is_none_or(|block| block.kind != kind) {
            self.open(kind, emit);
        }
        self.grow(text, emit);
    }

    fn open(&mut self, kind: BlockKind, emit: &mut impl FnMut(&[Block], BlockEvent)) {
        self.close(emit);
        self.list.push(Block {
            kind,
            text: String::new(),
        });
        self.open = true;
        emit(&self.list, BlockEvent::Open);
    }

    fn grow(&mut self, text: &str, emit: &mut impl FnMut(&[Block], BlockEvent)) {
        if let Some(block) = self.list.last_mut() {
            block.text.push_str(text);
            emit(&self.list, BlockEvent::Delta(text.to_owned()));
        }
    }

    fn close(&mut self, emit: &mut impl FnMut(&[Block], BlockEvent)) {
        if std::mem::take(&mut self.open) {
            emit(&self.list, BlockEvent::Close);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_open_and_close_in_turn() {
        let call = |index| ReplyEvent::CallStart {
            index,
            id: format!("c{index}"),
            name: "f".into(),
        };
        let events = [
            ReplyEvent::Reasoning("a".into()),
            ReplyEvent::Reasoning("b".into()),
            ReplyEvent::Content("c".into()),
            call(0),
            ReplyEvent::CallArguments {
                index: 0,
                text: "{}".into(),
            },
            ReplyEvent::CallEnd { index: 0 },
            call(1),
            ReplyEvent::CallEnd { index: 1 },
            ReplyEvent::Content("d".into()),
            ReplyEvent::Failed(crate::error::ApiError::invalid_request("x")),
        ];
        let (mut blocks, mut log) = (Blocks::default(), String::new());
        for event in &events {
            blocks.push(event, |list, event| match event {
                BlockEvent::Open => log.push_str(&format!("({}", list.len())),
                BlockEvent::Delta(text) => log.push_str(&text),
                BlockEvent::Close => log.push(')'),
            });
        }
        assert_eq!(log, "(1ab)(2c)(3{})(4)(5d)");
        assert_eq!(blocks.list[0].text, "ab");
        assert_eq!(
            blocks.list[3].kind,
            BlockKind::Call {
                id: "c1".into(),
                name: "f".into()
            }
        );
    }
}
