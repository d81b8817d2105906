//! How Python writes numbers and JSON: prompts have to come out as `transformers` makes them, to the byte.

use std::fmt::Write;

use serde_json::Value;

/// The options of Python's `json.dumps` that templates use.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct JsonLayout {
    /// Spaces of each level, on lines of their own; all on one line where `None`.
    pub indent: Option<usize>,
    /// Whether keys are sorted instead of in their own order.
    pub sort_keys: bool,
    /// Whether characters beyond ASCII are escaped.
    pub ascii: bool,
}

/// `value` as Python's `json.dumps` writes it: `", "` and `": "` between items.
pub(crate) fn json(value: &Value, layout: JsonLayout) -> String {
    let mut out = String::new();
    write_json(&mut out, value, layout, 0);
    out
}

fn write_json(out: &mut String, value: &Value, layout: JsonLayout, level: usize) {
    match value {
        Value::Null => out.push_str("null"),
        Value::Bool(truth) => out.push_str(if *truth { "true" } else { "false" }),
        Value::Number(number) => match number.as_f64() {
            Some(real) if number.is_f64() => out.push_str(&float(real)),
            _ => out.push_str(&number.to_string()),
        },
        Value::String(text) => write_string(out, text, layout),
        Value::Array(items) => {
            let items: Vec<(Option<&str>, &Value)> = items.iter().map(|item| (None, item)).collect();
            write_items(out, ('[', ']'), &items, layout, level);
        }
        Value::Object(fields) => {
            let mut items: Vec<(Option<&str>, &Value)> = fields
                .iter()
                .map(|(name, field)| (Some(name.as_str()), field))
                .collect();
            if layout.sort_keys {
                items.sort_by_key(|(name, _)| *name);
            }
            write_items(out, ('{', '}'), &items, layout, level);
        }
    }
}

fn write_items(
    out: &mut String,
    (open, close): (char, char),
    items: &[(Option<&str>, &Value)],
    layout: JsonLayout,
    level: usize,
) {
    out.push(open);
    for (index, (name, item)) in items.iter().enumerate() {
        if index > 0 {
            out.push(',');
        }
        match layout.indent {
            Some(indent) => new_line(out, indent.saturating_mul(level + 1)),
            None if index > 0 => out.push(' '),
            None => {}
        }
        if let Some(name) = name {
            write_string(out, name, layout);
            out.push_str(": ");
        }
        write_json(out, item, layout, level + 1);
    }
    if let Some(indent) = layout.indent
        && !items.is_empty()
    {
        new_line(out, indent.saturating_mul(level));
    }
    out.push(close);
}

fn new_line(out: &mut String, spaces: usize) {
    // A template chooses the indent; one beyond reason would only fill memory.
    out.push('\n');
    out.extend(std::iter::repeat_n(' ', spaces.min(1024)));
}

fn write_string(out: &mut String, text: &str, layout: JsonLayout) {
    out.push('"');
    for character in text.chars() {
        match character {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            character if character < ' ' || (layout.ascii && !character.is_ascii()) => {
                for unit in character.encode_utf16(&mut [0; 2]) {
                    // Writing to a string cannot fail.
                    let _ = write!(out, "\\u{unit:04x}");
                }
            }
            character => out.push(character),
        }
    }
    out.push('"');
}

/// `number` as Python's `repr` writes it: the shortest digits that read back the same, an exponent below 1e-4 and from 1e16 on.
pub(crate) fn float(number: f64) -> String {
    if !number.is_finite() {
        return if number.is_nan() {
            "nan".into()
        } else if number > 0.0 {
            "inf".into()
        } else {
            "-inf".into()
        };
    }
    let magnitude = number.abs();
    if magnitude != 0.0 && !(1e-4..1e16).contains(&magnitude) {
        let scientific = format!("{number:e}");
        let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
        let (sign, exponent) = match exponent.strip_prefix('-') {
            Some(exponent) => ('-', exponent),
            None => ('+', exponent),
        };
        return format!("{digits}e{sign}{exponent:0>2}");
    }
    format!("{number:?}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn floats_read_as_in_python() {
        for (number, text) in [
            (1.5, "1.5"),
            (1.0, "1.0"),
            (-0.0, "-0.0"),
            (0.1, "0.1"),
            (1e-4, "0.0001"),
            (1e-5, "1e-05"),
            (1.25e-7, "1.25e-07"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.5e300, "1.5e+300"),
            (123_456_789.125, "123456789.125"),
        ] {
            assert_eq!(float(number), text);
        }
    }

    #[test]
    fn json_reads_as_in_python() {
        let value = json!({"b": [1, -2.5, null, true], "a": {"é": "\u{7f}\u{1}\"\\\n😀</>&'"}, "e": [], "o": {}});
        assert_eq!(
            json(&value, JsonLayout::default()),
            "{\"b\": [1, -2.5, null, true], \"a\": {\"é\": \"\u{7f}\\u0001\\\"\\\\\\n😀</>&'\"}, \"e\": [], \"o\": {}}"
        );
        let layout = JsonLayout {
            indent: Some(2),
            sort_keys: true,
            ascii: true,
        };
        assert_eq!(
            json(&json!({"b": [1], "a": "é😀", "e": []}), layout),
            "{\n  \"a\": \"\\u00e9\\ud83d\\ude00\",\n  \"b\": [\n    1\n  ],\n  \"e\": []\n}"
        );
    }
}
