//! The chat in a terminal: a prompt, commands, replies as they come.

use std::io::{self, Write};
use std::path::PathBuf;

use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;

use super::display::{Display, Thoughts, dim};
use super::session::{Answer, Session};
use crate::error::CliError;
use crate::generate::{decode_rate, prefill_rate};
use crate::output;

const HELP: &str = "\
/help            this
/reset           forget the conversation
/system TEXT     set the system message (empty: none) and forget the conversation
/think on|off    whether the model thinks before it answers
/again           answer the last message anew
/exit            leave (also Ctrl-D)
A line that ends in \\ goes on in the next. Ctrl-C stops a reply.";

/// What a line asks for.
#[derive(Debug, PartialEq, Eq)]
enum Input<'a> {
    Nothing,
    Message(&'a str),
    Help,
    Reset,
    System(&'a str),
    Think(bool),
    Again,
    Exit,
    Unknown(&'a str),
}

impl<'a> Input<'a> {
    fn parse(line: &'a str) -> Self {
        let line = line.trim();
        if !line.starts_with('/') {
            return if line.is_empty() {
                Input::Nothing
            } else {
                Input::Message(line)
            };
        }
        let (command, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        match (command, rest.trim()) {
            ("/help" | "/?", _) => Input::Help,
            ("/reset", _) => Input::Reset,
            ("/system", text) => Input::System(text),
            ("/think", "on") => Input::Think(true),
            ("/think", "off") => Input::Think(false),
            ("/again", _) => Input::Again,
            ("/exit" | "/quit", _) => Input::Exit,
            _ => Input::Unknown(line),
        }
    }
}

/// Talks until the user leaves.
pub fn run(session: &mut Session) -> Result<(), CliError> {
    let colourful = output::is_colourful();
    let mut editor = DefaultEditor::new()?;
    let history = history_file();
    if let Some(history) = &history {
        // There is none the first time.
        let _ = editor.load_history(history);
    }
    let device = &session.engine.info().device.description;
    writeln!(
        io::stdout(),
        "{}",
        dim(
            &format!("{} on {device}. /help lists commands.", session.checkpoint.name),
            colourful
        )
    )?;
    while let Some(line) = read_line(&mut editor)? {
        match Input::parse(&line) {
            Input::Nothing => {}
            Input::Message(message) => {
                let message = message.to_owned();
                reply(session, &message, colourful)?;
            }
            Input::Help => writeln!(io::stdout(), "{HELP}")?,
            Input::Reset => session.messages.clear(),
            Input::System(text) => {
                session.system = (!text.is_empty()).then(|| text.to_owned());
                session.messages.clear();
            }
            Input::Think(on) => session.thinking = Some(on),
            Input::Again => match last_message(session) {
                Some(message) => reply(session, &message, colourful)?,
                None => writeln!(io::stdout(), "There is no message to answer yet.")?,
            },
            Input::Exit => break,
            Input::Unknown(line) => writeln!(io::stdout(), "{line} is no command; /help lists them.")?,
        }
    }
    if let Some(history) = history {
        save_history(&mut editor, &history);
    }
    Ok(())
}

/// The next line, with those that it goes on in; `None` at the end.
fn read_line(editor: &mut DefaultEditor) -> Result<Option<String>, CliError> {
    let mut text = String::new();
    loop {
        match editor.readline(if text.is_empty() { "> " } else { ". " }) {
            Ok(line) => {
                match line.strip_suffix('\\') {
                    Some(start) => {
                        text.push_str(start);
                        text.push('\n');
                        continue;
                    }
                    None => text.push_str(&line),
                }
                if !text.trim().is_empty() {
                    editor.add_history_entry(&text)?;
                }
                return Ok(Some(text));
            }
            // Ctrl-C drops the line, as in a shell.
            Err(ReadlineError::Interrupted) => text.clear(),
            Err(ReadlineError::Eof) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Takes the last exchange out of the conversation and returns its message.
fn last_message(session: &mut Session) -> Option<String> {
    let at = session.messages.iter().rposition(|message| message["role"] == "user")?;
    let message = session.messages[at]["content"].as_str()?.to_owned();
    session.messages.truncate(at);
    Some(message)
}

/// One exchange. What the model or the engine refuse is said, and the conversation goes on.
fn reply(session: &mut Session, message: &str, colourful: bool) -> Result<(), CliError> {
    let thoughts = if colourful { Thoughts::Dimmed } else { Thoughts::Marked };
    let mut display = Display::new(io::stdout().lock(), thoughts);
    let answer = session.say(message, |delta| display.show(delta));
    display.finish()?;
    drop(display);
    match answer {
        Ok(answer) => writeln!(io::stdout(), "{}", dim(&summary(&answer), colourful))?,
        Err(error @ (CliError::Model(_) | CliError::Engine(_))) => writeln!(io::stdout(), "{error}")?,
        Err(error) => return Err(error),
    }
    Ok(io::stdout().flush()?)
}

/// `[52 tokens, 38.1/s; prompt 120 tokens, 96 cached, 210/s]`
fn summary(answer: &Answer) -> String {
    let usage = &answer.usage;
    if answer.reason.is_none() {
        return "[stopped]".into();
    }
    let rate = |rate: Option<f64>| rate.map_or(String::new(), |rate| format!(", {rate:.1}/s"));
    let cached = if usage.cached_tokens > 0 {
        format!(", {} cached", usage.cached_tokens)
    } else {
        String::new()
    };
    let cut = if answer.reason == Some(lily_engine::FinishReason::Length) {
        " (cut off)"
    } else {
        ""
    };
    format!(
        "[{} tokens{}{cut}; prompt {} tokens{cached}{}]",
        usage.completion_tokens,
        rate(decode_rate(usage)),
        usage.prompt_tokens,
        rate(prefill_rate(usage))
    )
}

/// Where the lines that were typed are kept, as shells do.
fn history_file() -> Option<PathBuf> {
    let variable = |name| {
        std::env::var_os(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    let state = variable("XDG_STATE_HOME").or_else(|| Some(variable("HOME")?.join(".local/state")))?;
    Some(state.join("lily").join("chat_history"))
}

/// A history that cannot be kept is no reason to end with an error.
fn save_history(editor: &mut DefaultEditor, path: &std::path::Path) {
    let directory = path.parent().map_or(Ok(()), std::fs::create_dir_all);
    let saved = directory
        .map_err(ReadlineError::from)
        .and_then(|()| editor.save_history(path));
    if let Err(error) = saved {
        tracing::warn!(%error, path = %path.display(), "the history could not be kept");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_commands_or_messages() {
        assert_eq!(Input::parse("  "), Input::Nothing);
        assert_eq!(Input::parse(" hello /help "), Input::Message("hello /help"));
        assert_eq!(Input::parse("/system Be brief. "), Input::System("Be brief."));
        assert_eq!(Input::parse("/system"), Input::System(""));
        assert_eq!(Input::parse("/think off"), Input::Think(false));
        assert_eq!(Input::parse("/think"), Input::Unknown("/think"));
        assert_eq!(Input::parse("/frobnicate now"), Input::Unknown("/frobnicate now"));
    }
}
