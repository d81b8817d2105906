//! The command line, and what it says where clang is missing.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;
use std::process::{Command, Output};

fn tool(arguments: &[&str], environment: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_shader-tool"));
    command
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(".."))
        .args(arguments);
    command.envs(environment.iter().copied()).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn without_clang_one_line_says_how_to_get_it() {
    let empty = tempfile::tempdir().unwrap();
    let path = empty.path().to_str().unwrap();
    let no_path = tool(&["check", "kernels"], &[("PATH", path), ("LILY_SHADER_CACHE", path)]);
    let wrong = tool(
        &["check", "kernels"],
        &[("LILY_CLANG", "/nowhere/clang"), ("LILY_SHADER_CACHE", path)],
    );
    for (output, part) in [
        (no_path, "no clang-19 or newer on the PATH"),
        (wrong, "LILY_CLANG=/nowhere/clang"),
    ] {
        assert!(!output.status.success());
        let message = text(&output.stderr);
        assert_eq!(message.lines().count(), 1, "{message}");
        assert!(message.contains(part) && message.contains("tools/setup"), "{message}");
    }
}

#[test]
fn reading_needs_no_clang() {
    let environment = [("LILY_CLANG", "/nowhere/clang")];
    let output = tool(&["lint", "kernels"], &environment);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let manifest = tool(&["manifest", "kernels"], &environment);
    let manifest: serde_json::Value = serde_json::from_slice(&manifest.stdout).unwrap();
    assert!(
        manifest["kernels"]
            .as_array()
            .unwrap()
            .iter()
            .any(|k| k["unit"] == "gemv.metal")
    );
    let flat = text(&tool(&["flatten", "kernels", "gemm.metal"], &environment).stdout);
    assert!(
        flat.contains("#line 1 \"include/tile.h\"") && !flat.contains("#include \""),
        "headers are in place"
    );
    assert!(
        !tool(&["flatten", "kernels", "none.metal"], &environment)
            .status
            .success()
    );
}

#[test]
fn lint_findings_name_file_and_line() {
    let kernels = tempfile::tempdir().unwrap();
    std::fs::write(kernels.path().join("k.metal"), "\nvoid f(float* p) {}\n").unwrap();
    let output = tool(&["lint", kernels.path().to_str().unwrap()], &[]);
    assert!(!output.status.success());
    assert!(
        text(&output.stderr).starts_with("k.metal:2: "),
        "{}",
        text(&output.stderr)
    );
}
