//! The checkpoint's chat template: messages to prompt text.

use std::fmt;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde, ValueKind};
use minijinja::{AutoEscape, Environment, Error as JinjaError, ErrorKind, Output, State, Value as JinjaValue};
use serde_json::{Map, Value};

use crate::error::{Error, Result};
use crate::guard::Guards;
use crate::late_system::LateSystem;
use crate::python;
use crate::tokenizer::Tokenizer;

/// Steps that a template may take: some thousand times what a long conversation needs, and done in about a second.
const FUEL: u64 = 5_000_000;
const NAME: &str = "chat_template";

/// What a prompt is made of.
#[derive(Clone, Debug, Default)]
pub struct ChatInput<'a> {
    /// Messages in OpenAI's form, oldest first; `tool_calls[].function.arguments` are objects, not strings.
    pub messages: &'a [Value],
    /// Tools in OpenAI's form; empty for none.
    pub tools: &'a [Value],
    /// Whether to open the assistant's next turn.
    pub add_generation_prompt: bool,
    /// Whether the model thinks; the template's default where `None`.
    pub enable_thinking: Option<bool>,
    /// Whether the thoughts of earlier turns stay; the template's default where `None`.
    pub preserve_thinking: Option<bool>,
    /// Further variables for the template; those above win.
    pub extra: Map<String, Value>,
}

/// A rendered prompt, in which the template's markup can be told from what the messages say.
#[derive(Clone, Debug)]
pub struct ChatPrompt {
    guarded: String,
    guard: char,
}

impl ChatPrompt {
    /// The prompt as text, as `transformers` renders it.
    pub fn text(&self) -> String {
        self.unguard(&self.guarded)
    }

    /// Whether the prompt ends inside a think block, so that the model's answer starts with thoughts.
    pub fn ends_in_thinking(&self) -> bool {
        let turn = self
            .guarded
            .rfind("<|im_start|>")
            .map_or(self.guarded.as_str(), |start| &self.guarded[start..]);
        match (turn.rfind("<think>"), turn.rfind("</think>")) {
            (Some(opened), Some(closed)) => opened > closed,
            (Some(_), None) => true,
            (None, _) => false,
        }
    }

    /// The prompt with the messages' control tokens guarded.
    pub(crate) fn guarded(&self) -> &str {
        &self.guarded
    }

    /// `part` of the guarded prompt as text.
    pub(crate) fn unguard(&self, part: &str) -> String {
        part.replace(self.guard, "")
    }
}

/// A chat template, compiled.
pub struct ChatTemplate {
    file: String,
    source: String,
    environment: Environment<'static>,
    guards: Guards,
    constants: Map<String, Value>,
}

impl ChatTemplate {
    /// Compiles `source`, which errors call `file`. `constants` are variables that every prompt sees (`bos_token` and the like).
    ///
    /// # Errors
    /// [`Error::Template`] where it is no template.
    pub fn new(file: &str, source: &str, constants: Map<String, Value>, tokenizer: &Tokenizer) -> Result<ChatTemplate> {
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder()
            .trim_blocks(true)
            .lstrip_blocks(true)
            .build()
            .map_err(|error| template_error(file, &error))?;
        environment.set_syntax(syntax);
        environment.set_auto_escape_callback(|_| AutoEscape::None);
        environment.set_fuel(Some(FUEL));
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.set_formatter(write_python);
        environment.add_function("raise_exception", raise_exception);
        environment.add_function("strftime_now", strftime_now);
        environment.add_filter("tojson", tojson);
        environment.add_filter("string", python_string);
        environment
            .add_template_owned(NAME, source.to_owned())
            .map_err(|error| template_error(file, &error))?;
        Ok(ChatTemplate {
            file: file.into(),
            source: source.into(),
            environment,
            guards: Guards::new(tokenizer.added_tokens().map(|(content, _, special)| (content, special)))?,
            constants,
        })
    }

    /// Renders a prompt. Control tokens that a message's text spells out are marked, so that [`Tokenizer::encode_prompt`] reads them
    /// as text.
    ///
    /// # Errors
    /// [`Error::TemplateRefused`] where the template raises an exception: the messages are at fault.
    /// [`Error::Template`] where the template fails otherwise.
    pub fn render(&self, input: &ChatInput<'_>) -> Result<ChatPrompt> {
        self.render_as(input, false)
    }

    /// As [`ChatTemplate::render`], but system messages after the first are rendered where they stand, even if the template refuses them.
    ///
    /// # Errors
    /// As [`ChatTemplate::render`].
    pub fn render_late_system(&self, input: &ChatInput<'_>) -> Result<ChatPrompt> {
        self.render_as(input, true)
    }

    fn render_as(&self, input: &ChatInput<'_>, late_system: bool) -> Result<ChatPrompt> {
        let all: Vec<&Value> = input
            .messages
            .iter()
            .chain(input.tools)
            .chain(input.extra.values())
            .collect();
        let guard = Guards::choose(&self.source, &all)?;
        let mut variables = self.constants.clone();
        for (name, value) in &input.extra {
            variables.insert(name.clone(), self.guards.input(value, guard));
        }
        let messages = input.messages.iter().map(|message| self.guards.message(message, guard));
        variables.insert("messages".into(), messages.collect());
        let tools = match input.tools {
            [] => Value::Null,
            tools => tools.iter().map(|tool| self.guards.input(tool, guard)).collect(),
        };
        variables.insert("tools".into(), tools);
        variables.insert("add_generation_prompt".into(), input.add_generation_prompt.into());
        for (name, value) in [
            ("enable_thinking", input.enable_thinking),
            ("preserve_thinking", input.preserve_thinking),
        ] {
            if let Some(value) = value {
                variables.insert(name.into(), value.into());
            }
        }
        let guarded = match self.fill(&variables, guard) {
            Err(refused @ Error::TemplateRefused(_)) if late_system => {
                let Some(late) = LateSystem::take(&mut variables, guard) else {
                    return Err(refused);
                };
                let rendered = self.fill(&variables, guard)?;
                late.put_back(&rendered).ok_or(refused)?
            }
            filled => filled?,
        };
        Ok(ChatPrompt { guarded, guard })
    }

    fn fill(&self, variables: &Map<String, Value>, guard: char) -> Result<String> {
        let rendered = self
            .environment
            .get_template(NAME)
            .and_then(|template| template.render(JinjaValue::from(Serde(variables))));
        rendered.map_err(|error| match refusal(&error) {
            Some(refused) => Error::TemplateRefused(refused.replace(guard, "")),
            None => template_error(&self.file, &error),
        })
    }
}

impl fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ChatTemplate({})", self.file)
    }
}

/// What a template says through `raise_exception`.
#[derive(Debug)]
struct Refused(String);

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Refused {}

fn refusal(error: &JinjaError) -> Option<&str> {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(current) = cause {
        if let Some(refused) = current.downcast_ref::<Refused>() {
            return Some(&refused.0);
        }
        cause = current.source();
    }
    None
}

fn template_error(file: &str, error: &JinjaError) -> Error {
    Error::Template {
        file: file.into(),
        problem: error.to_string(),
    }
}

fn raise_exception(message: String) -> std::result::Result<JinjaValue, JinjaError> {
    Err(JinjaError::new(ErrorKind::InvalidOperation, message.clone()).with_source(Refused(message)))
}

/// The local time, formatted by `strftime`'s rules.
fn strftime_now(format: &str) -> std::result::Result<String, JinjaError> {
    use std::fmt::Write;
    let mut text = String::new();
    match write!(text, "{}", chrono::Local::now().format(format)) {
        Ok(()) => Ok(text),
        Err(_) => Err(JinjaError::new(
            ErrorKind::InvalidOperation,
            format!("strftime_now: bad format {format:?}"),
        )),
    }
}

/// Python's `json.dumps(value, ensure_ascii=False)`, which `transformers` puts in place of Jinja's HTML-escaping filter.
fn tojson(value: JinjaValue, options: Kwargs) -> std::result::Result<JinjaValue, JinjaError> {
    let indent: Option<usize> = options.get("indent")?;
    let sort_keys: Option<bool> = options.get("sort_keys")?;
    let ascii: Option<bool> = options.get("ensure_ascii")?;
    options.assert_all_used()?;
    let json = serde_json::to_value(&value)
        .map_err(|error| JinjaError::new(ErrorKind::BadSerialization, error.to_string()))?;
    let layout = python::JsonLayout {
        indent,
        sort_keys: sort_keys.unwrap_or(false),
        ascii: ascii.unwrap_or(false),
    };
    Ok(JinjaValue::from_safe_string(python::json(&json, layout)))
}

/// Python's `str(value)` of what is no string.
fn python_string(value: JinjaValue) -> JinjaValue {
    match python_scalar(&value) {
        Some(text) => JinjaValue::from(text),
        None if value.kind() == ValueKind::String => value,
        None => JinjaValue::from(value.to_string()),
    }
}

/// Prints a value as Python would: `True`, `None`, `1e+20`.
fn write_python(
    out: &mut Output<'_>,
    state: &mut State<'_, '_>,
    value: &JinjaValue,
) -> std::result::Result<(), JinjaError> {
    match python_scalar(value) {
        Some(text) => out.write_str(&text).map_err(JinjaError::from),
        None => minijinja::escape_formatter(out, state, value),
    }
}

fn python_scalar(value: &JinjaValue) -> Option<String> {
    match value.kind() {
        ValueKind::Bool => Some(if value.is_true() { "True" } else { "False" }.into()),
        ValueKind::None => Some("None".into()),
        ValueKind::Number if !value.is_integer() => f64::try_from(value.clone()).ok().map(python::float),
        _ => None,
    }
}
