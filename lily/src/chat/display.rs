//! How a reply looks on a terminal and in a pipe.

use std::io::{self, Write};

use lily_engine::ReplyDelta;

const DIM: &str = "\x1b[2m";
const PLAIN: &str = "\x1b[0m";

/// What the reply shows of the thoughts before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Thoughts {
    /// Dimmed.
    Dimmed,
    /// Between lines that say what they are, where there are no colours.
    Marked,
    /// Not at all: a program reads the answer.
    Hidden,
}

/// What was shown last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shown {
    Nothing,
    Reasoning,
    Content,
    ToolCall,
}

/// Writes a reply as its pieces come.
pub struct Display<W: Write> {
    out: W,
    thoughts: Thoughts,
    shown: Shown,
}

impl<W: Write> Display<W> {
    /// Nothing shown yet.
    pub fn new(out: W, thoughts: Thoughts) -> Self {
        Display {
            out,
            thoughts,
            shown: Shown::Nothing,
        }
    }

    /// Shows a piece.
    pub fn show(&mut self, delta: &ReplyDelta) -> io::Result<()> {
        match delta {
            ReplyDelta::Reasoning(_) if self.thoughts == Thoughts::Hidden => {}
            ReplyDelta::Reasoning(text) => {
                self.enter(Shown::Reasoning)?;
                self.text(text)?;
            }
            ReplyDelta::Content(text) => {
                self.enter(Shown::Content)?;
                self.text(text)?;
            }
            ReplyDelta::ToolCallStart => self.enter(Shown::ToolCall)?,
            ReplyDelta::ToolCall(text) => self.text(text)?,
            ReplyDelta::ToolCallEnd => {}
        }
        self.out.flush()
    }

    /// Ends the reply's last line.
    pub fn finish(&mut self) -> io::Result<()> {
        self.leave()?;
        if self.shown != Shown::Nothing {
            writeln!(self.out)?;
        }
        self.shown = Shown::Nothing;
        self.out.flush()
    }

    /// What a model says must not act on the terminal: control characters, which could move the cursor or rename the window, are left out.
    fn text(&mut self, text: &str) -> io::Result<()> {
        if self.thoughts == Thoughts::Hidden || !text.contains(acts_on_terminal) {
            return self.out.write_all(text.as_bytes());
        }
        self.out.write_all(text.replace(acts_on_terminal, "").as_bytes())
    }

    fn enter(&mut self, next: Shown) -> io::Result<()> {
        let before = self.shown;
        if before == next && next != Shown::ToolCall {
            return Ok(());
        }
        self.leave()?;
        if before != Shown::Nothing {
            self.out.write_all(b"\n\n")?;
        }
        self.shown = next;
        match (next, self.thoughts) {
            (Shown::Reasoning, Thoughts::Dimmed) => self.out.write_all(DIM.as_bytes()),
            (Shown::Reasoning, Thoughts::Marked) => self.out.write_all(b"[thinking]\n"),
            (Shown::Content, Thoughts::Marked) if before == Shown::Reasoning => self.out.write_all(b"[answer]\n"),
            (Shown::ToolCall, _) => self.out.write_all(b"[tool call]"),
            _ => Ok(()),
        }
    }

    fn leave(&mut self) -> io::Result<()> {
        match (self.shown, self.thoughts) {
            (Shown::Reasoning, Thoughts::Dimmed) => self.out.write_all(PLAIN.as_bytes()),
            _ => Ok(()),
        }
    }
}

fn acts_on_terminal(c: char) -> bool {
    c.is_control() && c != '\n' && c != '\t'
}

/// `text` dimmed, where `colourful`.
pub fn dim(text: &str, colourful: bool) -> String {
    if colourful {
        format!("{DIM}{text}{PLAIN}")
    } else {
        text.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(thoughts: Thoughts) -> String {
        let mut out = Vec::new();
        let mut display = Display::new(&mut out, thoughts);
        let pieces = [
            ReplyDelta::Reasoning("let me".into()),
            ReplyDelta::Reasoning(" see".into()),
            ReplyDelta::Content("a\x1b[2Jb".into()),
            ReplyDelta::ToolCallStart,
            ReplyDelta::ToolCall("\nf\n".into()),
            ReplyDelta::ToolCallEnd,
        ];
        for piece in &pieces {
            display.show(piece).unwrap();
        }
        display.finish().unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn thoughts_are_dimmed_marked_or_hidden() {
        assert_eq!(
            shown(Thoughts::Dimmed),
            "\x1b[2mlet me see\x1b[0m\n\na[2Jb\n\n[tool call]\nf\n\n"
        );
        assert_eq!(
            shown(Thoughts::Marked),
            "[thinking]\nlet me see\n\n[answer]\na[2Jb\n\n[tool call]\nf\n\n"
        );
        assert_eq!(shown(Thoughts::Hidden), "a\x1b[2Jb\n\n[tool call]\nf\n\n");
    }
}
