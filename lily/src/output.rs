//! What commands print: JSON for machines, numbers and colours for people.

use std::io::{self, IsTerminal, Write};

use serde::Serialize;

use crate::error::CliError;

/// Prints `value` as JSON on the standard output.
pub fn json(value: &impl Serialize) -> Result<(), CliError> {
    let mut out = io::stdout().lock();
    serde_json::to_writer_pretty(&mut out, value).map_err(io::Error::from)?;
    writeln!(out)?;
    Ok(())
}

/// Whether the standard output is a terminal that may be coloured (<https://no-color.org>).
pub fn is_colourful() -> bool {
    io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Bytes for people: `19.5 GB`.
pub fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "kB", "MB", "GB", "TB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    match unit {
        0 => format!("{bytes} B"),
        _ => format!(
            "{value:.precision$} {}",
            UNITS[unit],
            precision = if value < 9.995 { 2 } else { 1 }
        ),
    }
}

/// A count with its thousands set apart: `248,320`.
pub fn count(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_for_people() {
        assert_eq!(bytes(999), "999 B");
        assert_eq!(bytes(1_000), "1.00 kB");
        assert_eq!(bytes(999_999), "1.00 MB");
        assert_eq!(bytes(19_508_789_376), "19.5 GB");
        assert_eq!(count(7), "7");
        assert_eq!(count(248_320), "248,320");
        assert_eq!(count(34_660_610_688), "34,660,610,688");
    }
}
