//! `docs/faults.md` names a test for every fault, and the tests are there.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::PathBuf;

const FAULTS: usize = 56;

#[test]
fn every_fault_has_its_tests() {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..");
    let page = std::fs::read_to_string(root.join("docs/faults.md")).unwrap();
    // What was found here comes after the table of all faults.
    let (all, _) = page.split_once("\n## ").unwrap();
    let rows: Vec<Vec<&str>> = all
        .lines()
        .filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |"))
        .map(|row| row.split(" | ").collect())
        .filter(|row: &Vec<&str>| row[0] != "#")
        .collect();
    let numbers: Vec<usize> = rows.iter().map(|row| row[0].parse().unwrap()).collect();
    assert_eq!(numbers, (1..=FAULTS).collect::<Vec<_>>());
    for row in rows {
        let [number, fault, tests] = row[..] else {
            panic!("three columns expected: {row:?}");
        };
        if let Some(reason) = tests.strip_prefix("Cannot occur: ") {
            assert!(reason.len() > 10, "{number}: {reason}");
            continue;
        }
        assert!(
            !fault.is_empty() && tests.starts_with('`') && tests.ends_with('`'),
            "{number}: {tests}"
        );
        for test in tests.trim_matches('`').split("` `") {
            let (file, name) = test.split_once("::").unwrap_or_else(|| panic!("{number}: {test}"));
            let text =
                std::fs::read_to_string(root.join(file)).unwrap_or_else(|error| panic!("{number}: {file}: {error}"));
            assert!(is_test(&text, name), "{number}: {file} has no test {name}");
        }
    }
}

/// Whether a Rust or Python file has a test of this name that is not left out.
fn is_test(text: &str, name: &str) -> bool {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let at = |start: &str| lines.iter().position(|line| line.starts_with(start));
    if at(&format!("def {name}(")).is_some() {
        return true;
    }
    let function = ["fn ", "async fn "]
        .iter()
        .find_map(|kind| at(&format!("{kind}{name}(")));
    let above = |at: usize| {
        lines[..at]
            .iter()
            .rev()
            .take_while(|line| line.starts_with('#'))
            .copied()
    };
    function.is_some_and(|at| {
        let attributes: Vec<&str> = above(at).collect();
        attributes
            .iter()
            .any(|line| line.starts_with("#[test]") || line.starts_with("#[tokio::test"))
            && !attributes.iter().any(|line| line.starts_with("#[ignore"))
    })
}
