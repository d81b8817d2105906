//! The grammar of tool calls, for calls that must be made or must fit their schema.

use std::fmt::Write;

use serde_json::Value;

use super::format::inline_schema;
use crate::error::ApiError;
use crate::tools::definition::Tool;

/// The rule `calls` and what it needs, in Lark's notation: one call of one of `tools`, or several where `parallel`.
pub fn rules(tools: &[&Tool], parallel: bool, open: u32, close: u32) -> Result<String, ApiError> {
    let mut text = String::new();
    let more = if parallel { " (\"\\n\" call)*" } else { "" };
    let functions: Vec<String> = (0..tools.len()).map(|number| format!("function_{number}")).collect();
    push(&mut text, format_args!("calls: call{more}\n"));
    push(
        &mut text,
        format_args!(
            "call: <[{open}]> \"\\n\" ({}) \"\\n\" <[{close}]>\n",
            functions.join(" | ")
        ),
    );
    for (number, tool) in tools.iter().enumerate() {
        function(&mut text, number, tool);
    }
    // The shortest text up to the closing tag; it may hold anything else.
    push(
        &mut text,
        format_args!("text[suffix=\"\\n</parameter>\\n\"]: /(?s:.*)/\n"),
    );
    Ok(text)
}

fn function(text: &mut String, number: usize, tool: &Tool) {
    let opening = quote(&format!("<function={}>\n", tool.name));
    push(text, format_args!("function_{number}: {opening}"));
    let properties = tool.parameters["properties"].as_object();
    let names: Vec<&String> = properties
        .into_iter()
        .flat_map(|properties| properties.keys())
        .collect();
    for (index, name) in names.iter().enumerate() {
        let required = tool.parameters["required"]
            .as_array()
            .is_some_and(|list| list.iter().any(|entry| entry == *name));
        push(
            text,
            format_args!(" parameter_{number}_{index}{}", if required { "" } else { "?" }),
        );
    }
    push(text, format_args!(" \"</function>\"\n"));
    for (index, name) in names.into_iter().enumerate() {
        let opening = quote(&format!("<parameter={name}>\n"));
        let value = value(&tool.parameters, name);
        push(text, format_args!("parameter_{number}_{index}: {opening} {value}\n"));
    }
}

/// What may stand between the tags, with the closing tag.
fn value(parameters: &Value, name: &str) -> String {
    const CLOSE: &str = "\"\\n</parameter>\\n\"";
    let schema = &parameters["properties"][name];
    if let Some(choices) = schema["enum"].as_array()
        && !choices.is_empty()
        && choices.iter().all(|choice| choice.is_string())
    {
        let choices: Vec<String> = choices.iter().filter_map(Value::as_str).map(quote).collect();
        return format!("({}) {CLOSE}", choices.join(" | "));
    }
    let types = crate::tools::argument::Types::of_property(parameters, name);
    if types.may_be_string() {
        // Strings stand there as they are, not as JSON.
        return "text".to_owned();
    }
    let mut schema = schema.clone();
    // References in the schema are relative to the whole.
    if let Some(object) = schema.as_object_mut() {
        for definitions in ["$defs", "definitions"] {
            if let Some(all) = parameters.get(definitions) {
                object.entry(definitions).or_insert_with(|| all.clone());
            }
        }
    }
    format!("{} {CLOSE}", inline_schema(&schema))
}

/// `text` as a string of Lark's notation, whose escapes are JSON's.
fn quote(text: &str) -> String {
    Value::from(text).to_string()
}

fn push(text: &mut String, arguments: std::fmt::Arguments<'_>) {
    // Writing to a string does not fail.
    let _ = text.write_fmt(arguments);
}

#[cfg(test)]
mod tests {
    use super::super::format::{OutputFormat, grammar};
    use super::super::tests::{accepts, checkpoint};
    use super::*;
    use crate::tools::definition::ToolChoice;
    use lily_model::Checkpoint;
    use serde_json::json;

    fn tools() -> Vec<Tool> {
        let weather = json!({ "type": "function", "function": { "name": "weather", "parameters": {
            "type": "object",
            "properties": {
                "city": { "type": "string" },
                "days": { "type": "integer" },
                "unit": { "enum": ["C", "F"] },
                "tags": { "type": "array", "items": { "$ref": "#/$defs/tag" } },
            },
            "required": ["city", "days"],
            "$defs": { "tag": { "type": "boolean" } },
        } } });
        let time = json!({ "type": "function", "function": { "name": "time" } });
        Tool::parse_all(&[weather, time], "tools").unwrap()
    }

    fn fits(checkpoint: &Checkpoint, choice: ToolChoice, parallel: bool, text: &str) -> bool {
        let token = |name| checkpoint.tokenizer.added_token(name).unwrap();
        let markup = Some((token("<tool_call>"), token("</tool_call>")));
        let grammar = grammar(&OutputFormat::Text, &choice, &tools(), parallel, markup)
            .unwrap()
            .unwrap();
        accepts(checkpoint, grammar, text)
    }

    const TIME: &str = "<tool_call>\n<function=time>\n</function>\n</tool_call>";

    #[test]
    fn required_calls_fit_their_schemas() {
        let checkpoint = checkpoint();
        let call =
            |parameters: &str| format!("\n\n<tool_call>\n<function=weather>\n{parameters}</function>\n</tool_call>");
        let parameter = |name: &str, value: &str| format!("<parameter={name}>\n{value}\n</parameter>\n");
        let both = parameter("city", "New\n</x>\nYork") + &parameter("days", "3");
        for (parameters, expected) in [
            (both.clone(), true),
            (
                both.clone() + &parameter("unit", "F") + &parameter("tags", "[true, false]"),
                true,
            ),
            (both.clone() + &parameter("unit", "K"), false),
            (both.clone() + &parameter("tags", "[1]"), false),
            (parameter("city", "Rome"), false),
            (parameter("city", "Rome") + &parameter("days", "three"), false),
            (both + &parameter("color", "red"), false),
        ] {
            assert_eq!(
                fits(&checkpoint, ToolChoice::Required, true, &call(&parameters)),
                expected,
                "{parameters}"
            );
        }
        assert!(fits(&checkpoint, ToolChoice::Required, true, TIME));
        assert!(!fits(&checkpoint, ToolChoice::Required, true, "It is noon."));
        assert!(!fits(&checkpoint, ToolChoice::Named("weather".into()), true, TIME));
    }

    #[test]
    fn several_calls_only_where_they_are_allowed() {
        let checkpoint = checkpoint();
        let two = format!("{TIME}\n{TIME}");
        assert!(fits(&checkpoint, ToolChoice::Required, true, &two));
        assert!(!fits(&checkpoint, ToolChoice::Required, false, &two));
        assert!(fits(&checkpoint, ToolChoice::Auto, false, "Just text."));
        assert!(fits(
            &checkpoint,
            ToolChoice::Auto,
            false,
            &format!("I look.\n\n{TIME}")
        ));
        assert!(!fits(&checkpoint, ToolChoice::Auto, false, &two));
    }
}
