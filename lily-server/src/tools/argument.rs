//! Argument values: from the text that the model writes to the JSON type that the tool's schema asks for.

use serde_json::Value;

/// Deepest chain of `$ref`, `allOf` and `anyOf` that is followed; schemas come from outside and may be circular.
const MAX_DEPTH: usize = 16;

/// JSON types that a schema allows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Types {
    string: bool,
    null: bool,
    boolean: bool,
    integer: bool,
    number: bool,
    object: bool,
    array: bool,
}

impl Types {
    /// A string and nothing else: also what an unknown parameter is taken for, since its text is then kept as it is.
    pub const STRING: Self = Self {
        string: true,
        null: false,
        boolean: false,
        integer: false,
        number: false,
        object: false,
        array: false,
    };

    /// Types of property `name` in the schema of a tool's parameters.
    pub fn of_property(parameters: &Value, name: &str) -> Self {
        let types = parameters["properties"]
            .get(name)
            .map(|schema| Self::of(schema, parameters, 0))
            .unwrap_or_default();
        if types == Self::default() { Self::STRING } else { types }
    }

    fn of(schema: &Value, root: &Value, depth: usize) -> Self {
        let mut types = Self::default();
        if depth > MAX_DEPTH {
            return types;
        }
        if let Some(target) = schema["$ref"]
            .as_str()
            .and_then(|path| root.pointer(path.strip_prefix('#')?))
        {
            types = types.or(Self::of(target, root, depth + 1));
        }
        match &schema["type"] {
            Value::String(name) => types.allow(name),
            Value::Array(names) => names
                .iter()
                .filter_map(Value::as_str)
                .for_each(|name| types.allow(name)),
            _ => {
                for list in ["anyOf", "oneOf", "allOf"] {
                    for option in schema[list].as_array().into_iter().flatten() {
                        types = types.or(Self::of(option, root, depth + 1));
                    }
                }
                for value in schema["enum"]
                    .as_array()
                    .into_iter()
                    .flatten()
                    .chain(schema.get("const"))
                {
                    types.allow(type_name(value));
                }
            }
        }
        if schema["nullable"] == Value::Bool(true) {
            types.null = true;
        }
        types
    }

    fn allow(&mut self, name: &str) {
        match name {
            "string" => self.string = true,
            "null" => self.null = true,
            "boolean" => self.boolean = true,
            "integer" => self.integer = true,
            "number" => self.number = true,
            "object" => self.object = true,
            "array" => self.array = true,
            _ => {}
        }
    }

    fn or(self, other: Self) -> Self {
        Self {
            string: self.string || other.string,
            null: self.null || other.null,
            boolean: self.boolean || other.boolean,
            integer: self.integer || other.integer,
            number: self.number || other.number,
            object: self.object || other.object,
            array: self.array || other.array,
        }
    }

    /// Whether a string is among the types, or nothing is known.
    pub fn may_be_string(self) -> bool {
        self.string
    }

    /// Whether a value's text can be passed on before it is complete, because it is a string whatever follows.
    ///
    /// A string that may also be null is one as soon as its text cannot become `null`.
    pub fn streams(self, text: &str) -> bool {
        self == Self::STRING
            || (self
                == Self {
                    null: true,
                    ..Self::STRING
                }
                && !"null".starts_with(text.trim()))
    }

    /// The JSON text of a complete value. Text that is not of an allowed type stays what it is: a string.
    pub fn convert(self, text: &str) -> String {
        if self == Self::STRING {
            return quote(text);
        }
        let trimmed = text.trim();
        let fits = |value: &Value| match value {
            Value::Null => self.null || !self.string,
            Value::Bool(_) => self.boolean,
            Value::Number(number) => {
                self.number || (self.integer && (number.is_i64() || number.is_u64() || is_whole(number)))
            }
            Value::String(_) => false,
            Value::Array(_) => self.array,
            Value::Object(_) => self.object,
        };
        // The text itself is passed on, not what was parsed from it: long numbers keep all of their digits.
        match serde_json::from_str::<Value>(trimmed) {
            Ok(value) if fits(&value) => return trimmed.to_owned(),
            Ok(Value::String(_)) if !self.string => return trimmed.to_owned(),
            _ => {}
        }
        // Python's spelling, which templates before 3.6 taught.
        match trimmed {
            "True" if self.boolean => "true".to_owned(),
            "False" if self.boolean => "false".to_owned(),
            "None" if self.null => "null".to_owned(),
            _ => quote(text),
        }
    }
}

fn is_whole(number: &serde_json::Number) -> bool {
    number.as_f64().is_some_and(|value| value.fract() == 0.0)
}

fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// `text` as a JSON string.
pub fn quote(text: &str) -> String {
    Value::from(text).to_string()
}

/// `text` as the inside of a JSON string.
pub fn escape(text: &str) -> String {
    let mut quoted = quote(text);
    quoted.pop();
    quoted.remove(0);
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn types(schema: Value) -> Types {
        Types::of_property(&json!({ "properties": { "x": schema } }), "x")
    }

    #[test]
    fn values_take_the_type_of_the_schema() {
        for (schema, text, expected) in [
            (json!({"type": "string"}), "5", r#""5""#),
            (json!({"type": "string"}), "null", r#""null""#),
            (json!({"type": "string"}), "a\n\"b\"", r#""a\n\"b\"""#),
            (json!({"type": "integer"}), "5", "5"),
            (json!({"type": "integer"}), " 5 ", "5"),
            (
                json!({"type": "integer"}),
                "123456789012345678901234567890",
                "123456789012345678901234567890",
            ),
            (json!({"type": "integer"}), "5.5", r#""5.5""#),
            (json!({"type": "number"}), "1.50", "1.50"),
            (json!({"type": "boolean"}), "true", "true"),
            (json!({"type": "boolean"}), "True", "true"),
            (json!({"type": "boolean"}), "yes", r#""yes""#),
            (json!({"type": "object"}), "{\"a\": [1, 2]}", "{\"a\": [1, 2]}"),
            (json!({"type": "object"}), "{'a': 1}", r#""{'a': 1}""#),
            (json!({"type": "array"}), "[1,\n2]", "[1,\n2]"),
            (json!({"type": "integer"}), "null", "null"),
            (json!({"type": ["string", "null"]}), "null", "null"),
            (json!({"type": ["string", "null"]}), "nullable", r#""nullable""#),
            (
                json!({"anyOf": [{"type": "integer"}, {"type": "null"}]}),
                "None",
                "null",
            ),
            (json!({"type": ["string", "integer"]}), "5", "5"),
            (json!({"type": ["string", "integer"]}), "five", r#""five""#),
            (json!({"enum": ["a", "b"]}), "a", r#""a""#),
            (json!({"enum": [1, 2]}), "2", "2"),
            (json!({}), "5", r#""5""#),
        ] {
            assert_eq!(types(schema.clone()).convert(text), expected, "{schema} {text:?}");
        }
    }

    #[test]
    fn references_are_followed_and_circles_end() {
        let parameters = json!({
            "properties": { "a": { "$ref": "#/$defs/A" }, "c": { "$ref": "#/$defs/C" } },
            "$defs": { "A": { "type": "integer" }, "C": { "$ref": "#/$defs/C" } },
        });
        assert_eq!(Types::of_property(&parameters, "a").convert("5"), "5");
        assert_eq!(Types::of_property(&parameters, "c"), Types::STRING);
    }

    #[test]
    fn unknown_parameters_stay_text() {
        assert_eq!(
            Types::of_property(&json!({"properties": {}}), "y").convert("5"),
            r#""5""#
        );
        assert_eq!(Types::of_property(&Value::Null, "y").convert("5"), r#""5""#);
    }

    #[test]
    fn only_what_is_surely_a_string_streams() {
        assert!(types(json!({"type": "string"})).streams(""));
        assert!(!types(json!({"type": "integer"})).streams("12"));
        let nullable = types(json!({"type": ["string", "null"]}));
        assert!(!nullable.streams(""));
        assert!(!nullable.streams("nul"));
        assert!(nullable.streams("nux"));
        assert!(nullable.streams("nullable"));
    }

    #[test]
    fn escape_is_the_inside_of_a_json_string() {
        assert_eq!(escape("a\"\n\u{1}é"), "a\\\"\\n\\u0001é");
        assert_eq!(escape(""), "");
    }
}
