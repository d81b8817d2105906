//! `response_format`: the form that a reply must have.

use llguidance::api::TopLevelGrammar;
use serde_json::{Value, json};

use super::calls;
use crate::error::ApiError;
use crate::tools::definition::{Tool, ToolChoice};

/// The form that the content must have.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum OutputFormat {
    /// Any.
    #[default]
    Text,
    /// JSON that fits a schema.
    Json(Value),
    /// Text that fits a regular expression (extension).
    Regex(String),
    /// Text of a grammar in Lark's notation (extension).
    Lark(String),
}

impl OutputFormat {
    /// Reads `response_format` as chat completions have it: the schema is nested.
    pub fn parse(value: Option<&Value>, field: &str) -> Result<Self, ApiError> {
        let Some(value) = value.filter(|value| !value.is_null()) else {
            return Ok(Self::Text);
        };
        let missing = |name: &str, what: &str| ApiError::invalid(format!("{field}.{name}"), format!("must be {what}"));
        match value["type"].as_str() {
            Some("text") => Ok(Self::Text),
            Some("json_object") => Ok(Self::Json(json!({ "type": "object" }))),
            Some("json_schema") => {
                // Responses have the schema beside the type, chat completions in an object of its own.
                let holder = if value["json_schema"].is_object() {
                    &value["json_schema"]
                } else {
                    value
                };
                match &holder["schema"] {
                    schema @ (Value::Object(_) | Value::Bool(_)) => Ok(Self::Json(schema.clone())),
                    _ => Err(missing("json_schema.schema", "a JSON schema, an object")),
                }
            }
            Some("regex") => match value["pattern"].as_str() {
                Some(pattern) => Ok(Self::Regex(pattern.to_owned())),
                None => Err(missing("pattern", "a regular expression, a string")),
            },
            Some("lark") => match value["grammar"].as_str() {
                Some(grammar) => Ok(Self::Lark(grammar.to_owned())),
                None => Err(missing("grammar", "a grammar in Lark's notation, a string")),
            },
            Some(other) => {
                let message = format!("must be text, json_object, json_schema, regex or lark, found {other:?}");
                Err(ApiError::invalid(format!("{field}.type"), message))
            }
            None => Err(missing("type", "a string")),
        }
    }

    /// The rule `content` of a grammar.
    fn rule(&self) -> Option<String> {
        match self {
            Self::Text | Self::Lark(_) => None,
            // The model may break the line first, as it does before any answer.
            Self::Json(schema) => Some(format!(
                "content: /[\\n ]{{0,2}}/ json\njson: {}\n",
                inline_schema(schema)
            )),
            Self::Regex(pattern) => Some(format!("content: /(?:{})/\n", pattern.replace('/', "\\/"))),
        }
    }
}

/// `schema` as a part of a rule. White space is what printers of JSON write, a blank or a new line with indentation: a model that may write
/// any amount of it can go on for ever.
pub fn inline_schema(schema: &Value) -> String {
    let mut schema = if schema.is_object() {
        schema.clone()
    } else {
        json!({ "allOf": [schema] })
    };
    if let Some(object) = schema.as_object_mut() {
        let options = json!({ "whitespace_pattern": "( |\\n[ \\t]{0,40})" });
        object.entry("x-guidance").or_insert(options);
    }
    format!("%json {schema}")
}

/// The grammar that a reply must follow, if it must follow any. `open` and `close` are the ids of `<tool_call>` and `</tool_call>`.
pub fn grammar(
    format: &OutputFormat,
    choice: &ToolChoice,
    tools: &[Tool],
    parallel: bool,
    markup: Option<(u32, u32)>,
) -> Result<Option<TopLevelGrammar>, ApiError> {
    if let OutputFormat::Lark(grammar) = format {
        return Ok(Some(TopLevelGrammar::from_lark(grammar.clone())));
    }
    let content = format.rule();
    let called: Vec<&Tool> = match choice {
        ToolChoice::None => Vec::new(),
        ToolChoice::Auto | ToolChoice::Required => tools.iter().collect(),
        ToolChoice::Named(name) => tools.iter().filter(|tool| tool.name == *name).collect(),
    };
    let forced = matches!(choice, ToolChoice::Required | ToolChoice::Named(_));
    let strict = called.iter().any(|tool| tool.strict());
    if content.is_none() && !forced && !strict && (parallel || called.is_empty()) {
        return Ok(None);
    }
    let calls = match markup {
        Some((open, close)) if !called.is_empty() => Some(calls::rules(&called, parallel, open, close)?),
        _ => None,
    };
    let start = match (&content, &calls, forced) {
        (Some(_), None, _) => "start: content\n",
        (_, Some(_), true) => "start: /[\\n ]{0,2}/ calls\n",
        (Some(_), Some(_), false) => "start: content | /[\\n ]{0,2}/ calls\n",
        (None, Some(_), false) => "start: prose calls?\nprose: /(?s:.*)/\n",
        (None, None, true) => {
            let message = "this model's tokenizer has no tool calls";
            return Err(ApiError::invalid("tool_choice", message));
        }
        (None, None, false) => return Ok(None),
    };
    let text = [start, content.as_deref().unwrap_or(""), calls.as_deref().unwrap_or("")].concat();
    Ok(Some(TopLevelGrammar::from_lark(text)))
}

#[cfg(test)]
mod tests {
    use super::super::tests::{accepts, checkpoint};
    use super::*;

    fn output(value: Value) -> TopLevelGrammar {
        let format = OutputFormat::parse(Some(&value), "response_format").unwrap();
        grammar(&format, &ToolChoice::Auto, &[], true, None).unwrap().unwrap()
    }

    #[test]
    fn json_fits_its_schema() {
        let checkpoint = checkpoint();
        let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": false});
        let format = json!({"type": "json_schema", "json_schema": {"name": "x", "schema": schema}});
        for (text, fits) in [
            ("{\"a\": 5}", true),
            ("\n\n{\"a\":5}", true),
            ("{\"a\": \"5\"}", false),
            ("{}", false),
            ("{\n  \"a\": 5\n}", true),
            ("{  \"a\": 5}", false),
            ("{\n\n\"a\": 5}", false),
            ("{\"a\": 5} and more", false),
            ("Sure: {\"a\": 5}", false),
        ] {
            assert_eq!(accepts(&checkpoint, output(format.clone()), text), fits, "{text:?}");
        }
        assert!(accepts(
            &checkpoint,
            output(json!({"type": "json_object"})),
            "{\"x\": [1, {\"y\": null}]}"
        ));
        assert!(!accepts(&checkpoint, output(json!({"type": "json_object"})), "[1]"));
    }

    #[test]
    fn regular_expressions_and_grammars() {
        let checkpoint = checkpoint();
        let regex = json!({"type": "regex", "pattern": "a/(b|c)+"});
        assert!(accepts(&checkpoint, output(regex.clone()), "a/bcb"));
        assert!(!accepts(&checkpoint, output(regex), "a/"));
        let lark = json!({"type": "lark", "grammar": "start: \"yes\" | \"no\""});
        assert!(accepts(&checkpoint, output(lark.clone()), "no"));
        assert!(!accepts(&checkpoint, output(lark), "maybe"));
    }

    #[test]
    fn bad_formats_name_the_field() {
        for (value, param) in [
            (json!({}), "response_format.type"),
            (json!({"type": "xml"}), "response_format.type"),
            (json!({"type": "json_schema"}), "response_format.json_schema.schema"),
            (
                json!({"type": "json_schema", "json_schema": {"schema": 5}}),
                "response_format.json_schema.schema",
            ),
            (json!({"type": "regex"}), "response_format.pattern"),
            (json!({"type": "lark"}), "response_format.grammar"),
        ] {
            let found = OutputFormat::parse(Some(&value), "response_format");
            assert!(
                matches!(&found, Err(ApiError::Invalid { param: Some(found), .. }) if found == param),
                "{value}: {found:?}"
            );
        }
    }
}
