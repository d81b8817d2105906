//! Reads tool calls as the model writes them:
//!
//! ```text
//! <tool_call>
//! <function=NAME>
//! <parameter=KEY>
//! VALUE
//! </parameter>
//! </function>
//! </tool_call>
//! ```
//!
//! The outer tags are control tokens that the engine sets apart; this parser gets the text between them, in pieces cut anywhere, and gives
//! out arguments as JSON while they arrive. The same text gives the same call however it is cut.
//!
//! Values are raw text and may hold anything, markup included. So `</parameter>` ends a value only where the next parameter or the end of
//! the function follows. What is no call at all comes out as text: nothing that the model wrote is lost.

use std::sync::Arc;

use super::argument::{Types, escape, quote};
use super::definition::Tool;

const CALL_OPEN: &str = "<tool_call>";
const CALL_CLOSE: &str = "</tool_call>";
const FUNCTION_OPEN: &str = "<function=";
const FUNCTION_CLOSE: &str = "</function>";
const PARAMETER_OPEN: &str = "<parameter=";
const PARAMETER_CLOSE: &str = "</parameter>";

/// What the parser has found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallEvent {
    /// A call of this function starts.
    Start(String),
    /// More of its arguments' JSON text.
    Arguments(String),
    /// The call is complete.
    End,
    /// Text that is no part of a call.
    Text(String),
}

/// Where the parser is within the text between the tags.
#[derive(Clone, Debug)]
enum State {
    /// Before `<function=`.
    Preamble,
    /// In a function, outside of parameters.
    Parameters,
    /// In a parameter's value.
    Value(Value),
    /// After `</function>`.
    AfterFunction,
    /// In a JSON object, as the Hermes format has it.
    Json,
    /// In text that is no call.
    Text,
}

/// A value of which a part has been read.
#[derive(Clone, Debug)]
struct Value {
    types: Types,
    /// Whether the line break after the opening tag is behind us.
    begun: bool,
    /// Whether the value's first characters, as those of a JSON string, have been given out.
    streaming: bool,
    /// Bytes of the buffer that surely belong to the value.
    scanned: usize,
}

/// Parser of the text between `<tool_call>` and `</tool_call>`; one for a whole reply.
#[derive(Clone, Debug)]
pub struct CallParser {
    tools: Arc<[Tool]>,
    state: State,
    /// Text that has arrived and is not dealt with.
    buffer: String,
    /// Name of the function that is being called.
    function: String,
    /// Whether the call has an argument already.
    has_arguments: bool,
    /// Text found where none belongs, to be given out after the call.
    stray: String,
}

impl CallParser {
    /// A parser of calls of these tools.
    pub fn new(tools: Arc<[Tool]>) -> Self {
        Self {
            tools,
            state: State::Preamble,
            buffer: String::new(),
            function: String::new(),
            has_arguments: false,
            stray: String::new(),
        }
    }

    /// At `<tool_call>`.
    pub fn open(&mut self) {
        *self = Self::new(Arc::clone(&self.tools));
    }

    /// Takes the next piece of text.
    pub fn push(&mut self, text: &str, events: &mut Vec<CallEvent>) {
        self.buffer.push_str(text);
        while self.step(events) {}
    }

    /// At `</tool_call>`.
    pub fn close(&mut self, events: &mut Vec<CallEvent>) {
        self.complete(events);
        if matches!(self.state, State::Text) {
            events.push(CallEvent::Text(CALL_CLOSE.to_owned()));
        }
    }

    /// At the end of a reply that stopped inside a call. `truncated`: for want of tokens, so that the arguments stay incomplete.
    pub fn abandon(&mut self, truncated: bool, events: &mut Vec<CallEvent>) {
        tracing::warn!(
            function = self.function,
            truncated,
            "the reply ended inside a tool call"
        );
        if !truncated {
            return self.complete(events);
        }
        match &self.state {
            State::Value(value) => {
                let rest = std::mem::take(&mut self.buffer);
                let rest = if value.streaming { escape(&rest) } else { rest };
                push_arguments(rest, events);
                self.end(events);
            }
            State::Parameters => self.end(events),
            State::Preamble | State::Json => self.give_up(events),
            State::AfterFunction | State::Text => {}
        }
    }

    fn complete(&mut self, events: &mut Vec<CallEvent>) {
        if let State::Value(_) = self.state {
            self.finish_value(events);
        }
        match self.state {
            State::Parameters => {
                let rest = std::mem::take(&mut self.buffer);
                self.stray.push_str(&rest);
                self.close_function(events);
            }
            State::Preamble => self.give_up(events),
            State::Json => self.finish_json(events),
            State::AfterFunction => {
                let rest = std::mem::take(&mut self.buffer);
                self.stray.push_str(&rest);
                self.give_out_stray(events);
            }
            State::Value(_) | State::Text => {}
        }
    }

    /// Deals with the start of the buffer; false where more text is needed.
    fn step(&mut self, events: &mut Vec<CallEvent>) -> bool {
        match &self.state {
            State::Preamble => self.preamble(events),
            State::Parameters => self.parameters(events),
            State::Value(_) => self.value(events),
            State::AfterFunction => self.after_function(events),
            State::Json => false,
            State::Text => {
                if !self.buffer.is_empty() {
                    events.push(CallEvent::Text(std::mem::take(&mut self.buffer)));
                }
                false
            }
        }
    }

    fn preamble(&mut self, events: &mut Vec<CallEvent>) -> bool {
        let text = self.buffer.trim_start();
        if FUNCTION_OPEN.starts_with(text) {
            return false;
        }
        if text.starts_with('{') {
            self.state = State::Json;
            return false;
        }
        match tag_name(text, FUNCTION_OPEN) {
            TagName::Partial => false,
            TagName::Complete(name, length) => {
                let (name, end) = (name.to_owned(), self.buffer.len() - text.len() + length);
                self.start(name, end, events);
                true
            }
            TagName::Wrong => {
                self.give_up(events);
                false
            }
        }
    }

    fn start(&mut self, name: String, consumed: usize, events: &mut Vec<CallEvent>) {
        self.buffer.drain(..consumed);
        self.separate_stray();
        if !self.tools.iter().any(|tool| tool.name == name) {
            // Passed on all the same: an agent answers it with an error that the model can learn from.
            tracing::warn!(
                function = name,
                "the model called a function that the request does not define"
            );
        }
        events.push(CallEvent::Start(name.clone()));
        self.function = name;
        self.has_arguments = false;
        self.state = State::Parameters;
    }

    fn parameters(&mut self, events: &mut Vec<CallEvent>) -> bool {
        let text = self.buffer.trim_start();
        if PARAMETER_OPEN.starts_with(text) || FUNCTION_CLOSE.starts_with(text) && text != FUNCTION_CLOSE {
            return false;
        }
        let skipped = self.buffer.len() - text.len();
        if text.starts_with(FUNCTION_CLOSE) {
            self.buffer.drain(..skipped + FUNCTION_CLOSE.len());
            self.close_function(events);
            return true;
        }
        match tag_name(text, PARAMETER_OPEN) {
            TagName::Partial => return false,
            TagName::Complete(key, length) => {
                let separator = if self.has_arguments { ',' } else { '{' };
                events.push(CallEvent::Arguments(format!("{separator}{}:", quote(key))));
                let tool = self.tools.iter().find(|tool| tool.name == self.function);
                let types = tool.map_or(Types::STRING, |tool| tool.argument_types(key));
                self.has_arguments = true;
                self.state = State::Value(Value {
                    types,
                    begun: false,
                    streaming: false,
                    scanned: 0,
                });
                self.buffer.drain(..skipped + length);
                self.separate_stray();
            }
            TagName::Wrong => {
                // At least one character, then up to whatever may be a tag.
                let first = text.chars().next().map_or(0, char::len_utf8);
                let length = text[first..].find('<').map_or(text.len(), |next| first + next);
                self.stray.extend(self.buffer.drain(..skipped + length));
            }
        }
        true
    }

    fn value(&mut self, events: &mut Vec<CallEvent>) -> bool {
        let State::Value(value) = &mut self.state else {
            return false;
        };
        if !value.begun {
            match self.buffer.strip_prefix('\n') {
                Some(_) => drop(self.buffer.drain(..1)),
                None if self.buffer.is_empty() => return false,
                None => {}
            }
            value.begun = true;
        }
        let end = find_end(&self.buffer, &mut value.scanned);
        if let Some((end, next)) = end {
            self.end_value(end, events);
            self.buffer.drain(..next);
            return true;
        }
        // One line break before the closing tag belongs to the markup, so the last one waits.
        let sure = value.scanned - usize::from(self.buffer[..value.scanned].ends_with('\n'));
        if value.streaming || value.types.streams(&self.buffer[..sure]) {
            let mut piece = if value.streaming {
                String::new()
            } else {
                "\"".to_owned()
            };
            piece.push_str(&escape(&self.buffer[..sure]));
            self.buffer.drain(..sure);
            value.scanned -= sure;
            value.streaming = true;
            push_arguments(piece, events);
        }
        false
    }

    /// Ends the value at byte `end` of the buffer, where a closing tag starts.
    fn end_value(&mut self, end: usize, events: &mut Vec<CallEvent>) {
        let State::Value(value) = &self.state else { return };
        let text = &self.buffer[..end];
        let text = text.strip_suffix('\n').unwrap_or(text);
        let piece = if value.streaming {
            format!("{}\"", escape(text))
        } else {
            value.types.convert(text)
        };
        push_arguments(piece, events);
        self.buffer.drain(..end);
        self.state = State::Parameters;
    }

    /// Ends the value with the call: its closing tags may be missing.
    fn finish_value(&mut self, events: &mut Vec<CallEvent>) {
        let mut end = self.buffer.trim_end().len();
        let mut closed = false;
        for tag in [FUNCTION_CLOSE, PARAMETER_CLOSE] {
            if let Some(text) = self.buffer[..end].strip_suffix(tag) {
                closed = true;
                end = if tag == FUNCTION_CLOSE && text.trim_end().ends_with(PARAMETER_CLOSE) {
                    text.trim_end().len()
                } else {
                    text.len()
                };
            }
        }
        if !closed {
            end = self.buffer.len();
        }
        self.end_value(end, events);
        self.buffer.clear();
    }

    fn close_function(&mut self, events: &mut Vec<CallEvent>) {
        events.push(CallEvent::Arguments(
            if self.has_arguments { "}" } else { "{}" }.to_owned(),
        ));
        self.end(events);
    }

    fn end(&mut self, events: &mut Vec<CallEvent>) {
        events.push(CallEvent::End);
        self.state = State::AfterFunction;
        self.give_out_stray(events);
    }

    fn after_function(&mut self, events: &mut Vec<CallEvent>) -> bool {
        let text = self.buffer.trim_start();
        if FUNCTION_OPEN.starts_with(text) {
            return false;
        }
        match tag_name(text, FUNCTION_OPEN) {
            TagName::Partial => return false,
            TagName::Complete(name, length) => {
                let (name, end) = (name.to_owned(), self.buffer.len() - text.len() + length);
                self.start(name, end, events);
            }
            TagName::Wrong => {
                let first = text.chars().next().map_or(0, char::len_utf8);
                let length = text[first..].find('<').map_or(text.len(), |next| first + next);
                let skipped = self.buffer.len() - text.len();
                self.stray.extend(self.buffer.drain(..skipped + length));
            }
        }
        true
    }

    fn finish_json(&mut self, events: &mut Vec<CallEvent>) {
        #[derive(serde::Deserialize)]
        struct HermesCall {
            name: String,
            #[serde(default)]
            arguments: serde_json::Map<String, serde_json::Value>,
        }
        match serde_json::from_str::<HermesCall>(self.buffer.trim()) {
            Ok(call) => {
                self.buffer.clear();
                self.start(call.name, 0, events);
                events.push(CallEvent::Arguments(
                    serde_json::Value::Object(call.arguments).to_string(),
                ));
                self.end(events);
            }
            Err(_) => self.give_up(events),
        }
    }

    /// The text is no call: all of it comes out as it was written.
    fn give_up(&mut self, events: &mut Vec<CallEvent>) {
        let text = format!("{CALL_OPEN}{}", std::mem::take(&mut self.buffer));
        tracing::warn!(text, "a malformed tool call is passed on as text");
        events.push(CallEvent::Text(text));
        self.state = State::Text;
    }

    /// A tag ends a stretch of stray text; white space before the tag is the markup's.
    fn separate_stray(&mut self) {
        if !self.stray.is_empty() {
            self.stray.truncate(self.stray.trim_end().len());
            self.stray.push('\n');
        }
    }

    fn give_out_stray(&mut self, events: &mut Vec<CallEvent>) {
        let stray = std::mem::take(&mut self.stray);
        if !stray.trim().is_empty() {
            tracing::warn!(
                function = self.function,
                text = stray,
                "text inside a tool call is passed on as text"
            );
            events.push(CallEvent::Text(stray.trim().to_owned()));
        }
    }
}

fn push_arguments(piece: String, events: &mut Vec<CallEvent>) {
    if !piece.is_empty() {
        events.push(CallEvent::Arguments(piece));
    }
}

enum TagName<'a> {
    /// The tag may still become complete.
    Partial,
    /// The name, and the bytes that the tag takes.
    Complete(&'a str, usize),
    /// This is no such tag.
    Wrong,
}

/// Reads `<function=NAME>` or `<parameter=KEY>` at the start of `text`.
fn tag_name<'a>(text: &'a str, open: &str) -> TagName<'a> {
    let Some(rest) = text.strip_prefix(open) else {
        return TagName::Wrong;
    };
    match rest.find(['>', '\n', '<']) {
        None => TagName::Partial,
        Some(end) if rest[end..].starts_with('>') && !rest[..end].trim().is_empty() => {
            TagName::Complete(rest[..end].trim(), open.len() + end + 1)
        }
        Some(_) => TagName::Wrong,
    }
}

/// Looks for the closing tag of a value: where it starts, and how much of what then remains it takes.
///
/// `scanned` moves to the first byte that may belong to a closing tag.
fn find_end(buffer: &str, scanned: &mut usize) -> Option<(usize, usize)> {
    while let Some(offset) = buffer[*scanned..].find("</") {
        let at = *scanned + offset;
        let text = &buffer[at..];
        if let Some(after) = text.strip_prefix(PARAMETER_CLOSE) {
            let after = after.trim_start();
            if after.starts_with(PARAMETER_OPEN) || after.starts_with(FUNCTION_CLOSE) {
                return Some((at, PARAMETER_CLOSE.len()));
            }
            if PARAMETER_OPEN.starts_with(after) || FUNCTION_CLOSE.starts_with(after) {
                *scanned = at;
                return None;
            }
        } else if let Some(after) = text.strip_prefix(FUNCTION_CLOSE) {
            if after.trim().is_empty() {
                *scanned = at;
                return None;
            }
        } else if PARAMETER_CLOSE.starts_with(text) || FUNCTION_CLOSE.starts_with(text) {
            *scanned = at;
            return None;
        }
        *scanned = at + 2;
    }
    *scanned = buffer.len() - usize::from(buffer.ends_with('<'));
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn tools() -> Arc<[Tool]> {
        let weather = json!({ "type": "function", "function": { "name": "weather", "parameters": {
            "type": "object",
            "properties": {
                "city": { "type": "string" },
                "days": { "type": "integer" },
                "where": { "type": "object" },
                "unit": { "type": ["string", "null"] },
            },
        } } });
        let time = json!({ "type": "function", "function": { "name": "time" } });
        Tool::parse_all(&[weather, time], "tools").unwrap().into()
    }

    /// Calls (name, arguments) and text that the pieces give; neighbouring pieces of arguments and text are joined.
    fn parse(pieces: &[&str], end: fn(&mut CallParser, &mut Vec<CallEvent>)) -> Vec<CallEvent> {
        let mut parser = CallParser::new(tools());
        let mut events = Vec::new();
        parser.open();
        for piece in pieces {
            parser.push(piece, &mut events);
        }
        end(&mut parser, &mut events);
        let mut joined: Vec<CallEvent> = Vec::new();
        for event in events {
            match (joined.last_mut(), event) {
                (Some(CallEvent::Arguments(all)), CallEvent::Arguments(piece)) => all.push_str(&piece),
                (Some(CallEvent::Text(all)), CallEvent::Text(piece)) => all.push_str(&piece),
                (_, event) => joined.push(event),
            }
        }
        joined
    }

    /// Parses `text` whole, one character at a time and cut in two at every place: all must agree.
    fn parse_cut(text: &str, end: fn(&mut CallParser, &mut Vec<CallEvent>)) -> Vec<CallEvent> {
        let whole = parse(&[text], end);
        let characters: Vec<&str> = text.split("").filter(|piece| !piece.is_empty()).collect();
        assert_eq!(parse(&characters, end), whole, "one character at a time: {text:?}");
        for (at, _) in text.char_indices() {
            assert_eq!(parse(&[&text[..at], &text[at..]], end), whole, "cut at {at}: {text:?}");
        }
        whole
    }

    fn call(name: &str, arguments: &str) -> Vec<CallEvent> {
        vec![
            CallEvent::Start(name.into()),
            CallEvent::Arguments(arguments.into()),
            CallEvent::End,
        ]
    }

    fn text(text: &str) -> CallEvent {
        CallEvent::Text(text.into())
    }

    #[test]
    fn one_call_with_typed_arguments() {
        let source = "\n<function=weather>\n<parameter=city>\nNew\n\"York\" é\n</parameter>\n<parameter=days>\n3\n</parameter>\n\
             <parameter=where>\n{\"lat\": [1, 2]}\n</parameter>\n</function>\n";
        let expected = r#"{"city":"New\n\"York\" é","days":3,"where":{"lat": [1, 2]}}"#;
        assert_eq!(parse_cut(source, CallParser::close), call("weather", expected));
    }

    #[test]
    fn arguments_arrive_as_they_are_written() {
        let mut parser = CallParser::new(tools());
        let mut events = Vec::new();
        parser.open();
        parser.push("<function=weather>\n<parameter=city>\nNew Yo", &mut events);
        let expected = [
            CallEvent::Start("weather".into()),
            CallEvent::Arguments("{\"city\":".into()),
            CallEvent::Arguments("\"New Yo".into()),
        ];
        assert_eq!(events, expected);
    }

    #[test]
    fn no_arguments_are_an_empty_object() {
        assert_eq!(
            parse_cut("\n<function=time>\n</function>\n", CallParser::close),
            call("time", "{}")
        );
    }

    #[test]
    fn strings_keep_their_line_breaks() {
        let source = "<function=weather>\n<parameter=city>\n\n  a\n\n\n</parameter>\n</function>";
        assert_eq!(
            parse_cut(source, CallParser::close),
            call("weather", r#"{"city":"\n  a\n\n"}"#)
        );
        let source = "<function=weather>\n<parameter=city>\n\n</parameter>\n</function>";
        assert_eq!(parse_cut(source, CallParser::close), call("weather", r#"{"city":""}"#));
        let source = "<function=weather><parameter=city>a</parameter></function>";
        assert_eq!(parse_cut(source, CallParser::close), call("weather", r#"{"city":"a"}"#));
    }

    #[test]
    fn values_may_hold_markup() {
        let source = "<function=weather>\n<parameter=city>\nif a < b </ x </parameter> y </function> z <parameter=q>\n</parameter>\n</function>\n";
        let expected = r#"{"city":"if a < b </ x </parameter> y </function> z <parameter=q>"}"#;
        assert_eq!(parse_cut(source, CallParser::close), call("weather", expected));
    }

    #[test]
    fn null_is_told_from_a_string() {
        for (value, json) in [
            ("null", "null"),
            ("nullable", "\"nullable\""),
            ("C", "\"C\""),
            ("", "\"\""),
        ] {
            let source = format!("<function=weather>\n<parameter=unit>\n{value}\n</parameter>\n</function>");
            assert_eq!(
                parse_cut(&source, CallParser::close),
                call("weather", &format!("{{\"unit\":{json}}}"))
            );
        }
    }

    #[test]
    fn missing_closing_tags_are_forgiven() {
        for rest in [
            "",
            "\n",
            "\n</parameter>",
            "\n</parameter>\n",
            "\n</function>",
            "\n</parameter>\n</function>",
            "\n</parameter></func",
        ] {
            let source = format!("<function=weather>\n<parameter=city>\nParis{rest}");
            let found = parse_cut(&source, CallParser::close);
            if rest.ends_with("func") {
                // Cut inside a tag: the rest is text, but the call stands.
                assert_eq!(
                    found[..3],
                    call("weather", r#"{"city":"Paris\n</parameter></func"}"#),
                    "{rest:?}"
                );
            } else {
                assert_eq!(found, call("weather", r#"{"city":"Paris"}"#), "{rest:?}");
            }
        }
    }

    #[test]
    fn two_functions_in_one_call_are_two_calls() {
        let source =
            "<function=time>\n</function>\n<function=weather>\n<parameter=days>\n1\n</parameter>\n</function>\n";
        let expected = [call("time", "{}"), call("weather", r#"{"days":1}"#)].concat();
        assert_eq!(parse_cut(source, CallParser::close), expected);
    }

    #[test]
    fn what_is_no_call_stays_text() {
        for source in [
            "",
            "\nhello\n",
            "<function>",
            "<function=\n>",
            "<function=>",
            "<parameter=a>",
            "{\"name\": 5}",
            "<function=weather",
        ] {
            let expected = vec![text(&format!("<tool_call>{source}</tool_call>"))];
            assert_eq!(parse_cut(source, CallParser::close), expected);
        }
    }

    #[test]
    fn stray_text_is_not_lost() {
        let source = "<function=time>\noops <b>\n</function>\nand more\n";
        let expected = [call("time", "{}"), vec![text("oops <b>and more")]].concat();
        assert_eq!(parse_cut(source, CallParser::close), expected);
    }

    #[test]
    fn the_hermes_format_is_understood() {
        let source = "\n{\"name\": \"weather\", \"arguments\": {\"days\": 2}}\n";
        assert_eq!(parse_cut(source, CallParser::close), call("weather", r#"{"days":2}"#));
    }

    #[test]
    fn unknown_functions_and_parameters_are_passed_on() {
        let source = "<function=fly>\n<parameter=to>\n5\n</parameter>\n</function>";
        assert_eq!(parse_cut(source, CallParser::close), call("fly", r#"{"to":"5"}"#));
    }

    #[test]
    fn a_truncated_call_stays_incomplete() {
        let truncated = |parser: &mut CallParser, events: &mut Vec<CallEvent>| parser.abandon(true, events);
        let source = "<function=weather>\n<parameter=city>\nNew Yo";
        assert_eq!(parse_cut(source, truncated), call("weather", r#"{"city":"New Yo"#));
        let source = "<function=weather>\n<parameter=days>\n12";
        assert_eq!(parse_cut(source, truncated), call("weather", r#"{"days":12"#));
        assert_eq!(parse_cut("\n<func", truncated), vec![text("<tool_call>\n<func")]);
    }

    #[test]
    fn a_call_that_the_model_did_not_close_is_complete() {
        let stopped = |parser: &mut CallParser, events: &mut Vec<CallEvent>| parser.abandon(false, events);
        let source = "<function=weather>\n<parameter=city>\nRome\n</parameter>\n</function>";
        assert_eq!(parse_cut(source, stopped), call("weather", r#"{"city":"Rome"}"#));
        assert_eq!(
            parse_cut("<function=weather>\n<parameter=city>\nRome", stopped),
            call("weather", r#"{"city":"Rome"}"#)
        );
    }

    #[test]
    fn every_finished_call_is_valid_json() {
        // Random walks over the markup's fragments: whatever comes, finished arguments parse and no character of text is invented.
        let fragments = [
            "<function=weather>",
            "<function=time>",
            "</function>",
            "<parameter=city>",
            "<parameter=days>",
            "</parameter>",
            "\n",
            "a",
            "<",
            "</",
            "5",
            "{",
            "\"",
            "null",
            ">",
        ];
        let mut state = 1_u64;
        for _ in 0..1000 {
            let mut source = String::from("<function=weather>");
            for _ in 0..10 {
                state = state
                    .wrapping_mul(6364136223846793005)
                    .wrapping_add(1442695040888963407);
                source.push_str(fragments[(state >> 33) as usize % fragments.len()]);
            }
            let mut arguments = None;
            for event in parse_cut(&source, CallParser::close) {
                match event {
                    CallEvent::Start(_) => arguments = Some(String::new()),
                    CallEvent::Arguments(piece) => arguments.as_mut().unwrap().push_str(&piece),
                    CallEvent::End => {
                        let json = arguments.take().unwrap();
                        assert!(
                            serde_json::from_str::<serde_json::Value>(&json).unwrap().is_object(),
                            "{source:?}: {json}"
                        );
                    }
                    CallEvent::Text(_) => {}
                }
            }
            assert_eq!(arguments, None, "{source:?}");
        }
    }
}
