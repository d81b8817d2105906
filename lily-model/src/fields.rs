//! Typed, range-checked access to the fields of a JSON object, with errors that name file and field.

use std::ops::RangeInclusive;

use serde_json::{Map, Value};

use crate::error::{Error, Result};

/// An object of a JSON file.
#[derive(Clone, Copy)]
pub(crate) struct Fields<'a> {
    /// Name of the file, for errors.
    pub file: &'a str,
    /// Path of the object inside the file, for errors: empty, or ending in a dot.
    pub path: &'a str,
    /// The object.
    pub object: &'a Map<String, Value>,
}

impl<'a> Fields<'a> {
    /// The root of a file.
    pub fn root(file: &'a str, value: &'a Value) -> Result<Fields<'a>> {
        match value {
            Value::Object(object) => Ok(Fields { file, path: "", object }),
            other => Err(Error::BadFile {
                file: file.into(),
                problem: format!("expected a JSON object, found {}", brief(other)),
            }),
        }
    }

    /// The value of `name`; JSON's null counts as absent.
    pub fn get(&self, name: &str) -> Option<&'a Value> {
        self.object.get(name).filter(|value| !value.is_null())
    }

    /// The error that says what `name` holds in place of `expected`.
    pub fn wrong(&self, name: &str, expected: impl Into<String>) -> Error {
        Error::Field {
            file: self.file.into(),
            field: format!("{}{name}", self.path),
            expected: expected.into(),
            found: self.object.get(name).map_or_else(|| "nothing".into(), brief),
        }
    }

    /// An object inside this one; `path` is its path with a trailing dot.
    pub fn object(&self, name: &str, path: &'a str) -> Result<Option<Fields<'a>>> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::Object(object)) => Ok(Some(Fields {
                file: self.file,
                path,
                object,
            })),
            Some(_) => Err(self.wrong(name, "an object")),
        }
    }

    /// A whole number in `range`.
    pub fn usize(&self, name: &str, range: RangeInclusive<usize>) -> Result<usize> {
        self.get(name)
            .and_then(Value::as_u64)
            .and_then(|value| usize::try_from(value).ok())
            .filter(|value| range.contains(value))
            .ok_or_else(|| {
                self.wrong(
                    name,
                    format!("a whole number from {} to {}", range.start(), range.end()),
                )
            })
    }

    /// A finite number in `range`.
    pub fn f64(&self, name: &str, range: RangeInclusive<f64>) -> Result<f64> {
        self.get(name)
            .and_then(Value::as_f64)
            .filter(|value| range.contains(value))
            .ok_or_else(|| self.wrong(name, format!("a number from {:e} to {:e}", range.start(), range.end())))
    }

    /// A truth value, or `None` where there is none.
    pub fn bool(&self, name: &str) -> Result<Option<bool>> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::Bool(value)) => Ok(Some(*value)),
            Some(_) => Err(self.wrong(name, "true or false")),
        }
    }

    /// A string, or `None` where there is none.
    pub fn string(&self, name: &str) -> Result<Option<&'a str>> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::String(value)) => Ok(Some(value)),
            Some(_) => Err(self.wrong(name, "a string")),
        }
    }
}

/// `value` as JSON, cut to a length that fits an error message.
pub(crate) fn brief(value: &Value) -> String {
    const LONGEST: usize = 60;
    match value {
        Value::Array(items) => format!("an array of {}", items.len()),
        Value::Object(_) => "an object".into(),
        other => {
            let text = other.to_string();
            match text.char_indices().nth(LONGEST) {
                Some((end, _)) => format!("{}...", &text[..end]),
                None => text,
            }
        }
    }
}
