//! Functions that a request lets the model call.

use serde_json::Value;

use super::argument::Types;
use crate::error::ApiError;

/// Most tools in a request.
const MAX_TOOLS: usize = 512;

/// Longest name of a function, bytes.
const MAX_NAME: usize = 128;

/// A function that the model may call.
#[derive(Clone, Debug, PartialEq)]
pub struct Tool {
    /// Its name.
    pub name: String,
    /// JSON schema of its arguments; null where the request has none.
    pub parameters: Value,
    /// The whole definition, `{"type": "function", "function": {...}}`, as the template shows it to the model.
    pub definition: Value,
}

impl Tool {
    /// Checks the tools of a request, `field` being where they stand.
    pub fn parse_all(definitions: &[Value], field: &str) -> Result<Vec<Self>, ApiError> {
        if definitions.len() > MAX_TOOLS {
            return Err(ApiError::invalid(
                field,
                format!("at most {MAX_TOOLS} tools, found {}", definitions.len()),
            ));
        }
        let mut tools: Vec<Self> = Vec::with_capacity(definitions.len());
        for (index, definition) in definitions.iter().enumerate() {
            let tool = Self::parse(definition, &format!("{field}[{index}]"))?;
            if tools.iter().any(|other| other.name == tool.name) {
                let message = format!("the function {:?} is defined twice", tool.name);
                return Err(ApiError::invalid(format!("{field}[{index}].function.name"), message));
            }
            tools.push(tool);
        }
        Ok(tools)
    }

    fn parse(definition: &Value, field: &str) -> Result<Self, ApiError> {
        match definition["type"].as_str() {
            Some("function") => {}
            Some(kind) => {
                let message = format!("only tools of type \"function\" are supported, found {kind:?}");
                return Err(ApiError::invalid(format!("{field}.type"), message));
            }
            None => {
                return Err(ApiError::invalid(
                    format!("{field}.type"),
                    "must be the string \"function\"",
                ));
            }
        }
        let function = &definition["function"];
        if !function.is_object() {
            return Err(ApiError::invalid(
                format!("{field}.function"),
                "must be an object with a name",
            ));
        }
        let name = function["name"].as_str().unwrap_or("");
        check_name(name, &format!("{field}.function.name"))?;
        let parameters = function["parameters"].clone();
        if !parameters.is_object() && !parameters.is_null() {
            return Err(ApiError::invalid(
                format!("{field}.function.parameters"),
                "must be a JSON schema, an object",
            ));
        }
        Ok(Self {
            name: name.to_owned(),
            parameters,
            definition: definition.clone(),
        })
    }

    /// Whether calls must fit the schema.
    pub fn strict(&self) -> bool {
        self.definition["function"]["strict"] == Value::Bool(true)
    }

    /// JSON types that the schema allows for argument `name`.
    pub fn argument_types(&self, name: &str) -> Types {
        Types::of_property(&self.parameters, name)
    }
}

/// Names go into markup, which a `>` or a line break would end.
pub fn check_name(name: &str, field: &str) -> Result<(), ApiError> {
    let plain = |character: char| character.is_alphanumeric() || "_-.:/".contains(character);
    if name.is_empty() || name.len() > MAX_NAME || !name.chars().all(plain) {
        let message = format!("must be 1 to {MAX_NAME} letters, digits, or _ - . : /, found {name:?}");
        return Err(ApiError::invalid(field, message));
    }
    Ok(())
}

/// Whether the model may or must call a function.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ToolChoice {
    /// It must not.
    None,
    /// It decides.
    #[default]
    Auto,
    /// It must call one.
    Required,
    /// It must call this one.
    Named(String),
}

impl ToolChoice {
    /// Reads OpenAI's `tool_choice`: a word, or an object that names a function.
    pub fn parse(value: Option<&Value>, tools: &[Tool]) -> Result<Self, ApiError> {
        let invalid = |message: String| Err(ApiError::invalid("tool_choice", message));
        let choice =
            match value {
                None | Some(Value::Null) => Self::Auto,
                Some(Value::String(word)) => match word.as_str() {
                    "none" => Self::None,
                    "auto" => Self::Auto,
                    "required" | "any" => Self::Required,
                    _ => return invalid(format!("must be none, auto, required or an object, found {word:?}")),
                },
                Some(Value::Object(object)) => {
                    // Chat completions nest the name, responses do not.
                    let name = object.get("function").and_then(|function| function["name"].as_str());
                    match name.or_else(|| object.get("name").and_then(Value::as_str)) {
                        Some(name) => Self::Named(name.to_owned()),
                        None => return invalid(
                            "an object must name a function: {\"type\": \"function\", \"function\": {\"name\": ...}}"
                                .into(),
                        ),
                    }
                }
                Some(other) => return invalid(format!("must be a string or an object, found {other}")),
            };
        match &choice {
            Self::Named(name) if !tools.iter().any(|tool| tool.name == *name) => {
                invalid(format!("the function {name:?} is not among the tools"))
            }
            Self::Required if tools.is_empty() => invalid("is \"required\", but the request has no tools".into()),
            _ => Ok(choice),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn tool(name: &str) -> Value {
        json!({ "type": "function", "function": { "name": name, "parameters": { "type": "object" } } })
    }

    fn param<T: std::fmt::Debug>(result: Result<T, ApiError>) -> String {
        match result {
            Err(ApiError::Invalid { param, .. }) => param.unwrap_or_default(),
            other => panic!("expected a 400, found {other:?}"),
        }
    }

    #[test]
    fn definitions_are_checked() {
        let tools = Tool::parse_all(&[tool("a"), tool("b.c-d_e")], "tools").unwrap();
        assert_eq!(tools[1].name, "b.c-d_e");
        for (bad, at) in [
            (json!(5), "tools[0].type"),
            (json!({"type": "web_search"}), "tools[0].type"),
            (json!({"type": "function"}), "tools[0].function"),
            (json!({"type": "function", "function": {}}), "tools[0].function.name"),
            (tool("a>b"), "tools[0].function.name"),
            (tool("a\nb"), "tools[0].function.name"),
            (
                json!({"type": "function", "function": {"name": "a", "parameters": []}}),
                "tools[0].function.parameters",
            ),
        ] {
            assert_eq!(param(Tool::parse_all(&[bad], "tools")), at);
        }
        assert_eq!(
            param(Tool::parse_all(&[tool("a"), tool("a")], "tools")),
            "tools[1].function.name"
        );
    }

    #[test]
    fn choices_are_read() {
        let tools = Tool::parse_all(&[tool("a")], "tools").unwrap();
        let parse = |value: Value| ToolChoice::parse(Some(&value), &tools);
        assert_eq!(ToolChoice::parse(None, &tools), Ok(ToolChoice::Auto));
        assert_eq!(parse(json!("none")), Ok(ToolChoice::None));
        assert_eq!(parse(json!("required")), Ok(ToolChoice::Required));
        let named = json!({"type": "function", "function": {"name": "a"}});
        assert_eq!(parse(named), Ok(ToolChoice::Named("a".into())));
        assert_eq!(
            parse(json!({"type": "function", "name": "a"})),
            Ok(ToolChoice::Named("a".into()))
        );
        for bad in [
            json!("maybe"),
            json!(5),
            json!({"type": "function"}),
            json!({"function": {"name": "b"}}),
        ] {
            assert_eq!(param(parse(bad)), "tool_choice");
        }
        assert_eq!(param(ToolChoice::parse(Some(&json!("required")), &[])), "tool_choice");
    }
}
