//! Embeds the kernel sources and their PTX, and makes Rust structs of the kernels' parameter structs, so that those are written once.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let kernels = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?).join("../kernels");
    let out = PathBuf::from(env::var("OUT_DIR")?);
    println!("cargo:rerun-if-changed={}", kernels.display());
    fs::write(out.join("kernels.rs"), embed(&kernels)?)?;
    fs::write(
        out.join("ptx.rs"),
        embed_ptx(&PathBuf::from(env::var("CARGO_MANIFEST_DIR")?).join("ptx"))?,
    )?;
    let header = fs::read_to_string(kernels.join("include/params.h"))?;
    fs::write(out.join("params.rs"), structs(&header)?)?;
    Ok(())
}

/// `(name relative to kernels/, text)` of every kernel source and header.
fn embed(kernels: &Path) -> Result<String, Box<dyn std::error::Error>> {
    let mut names = Vec::new();
    for (folder, extension) in [("", "metal"), ("include/", "h")] {
        for entry in fs::read_dir(kernels.join(folder))? {
            let path = entry?.path();
            if path.extension().is_some_and(|found| found == extension) {
                let name = path.file_name().ok_or("no file name")?.to_string_lossy().into_owned();
                names.push((format!("{folder}{name}"), path.canonicalize()?));
            }
        }
    }
    names.sort();
    let mut out = String::from("pub(crate) const SOURCES: &[(&str, &str)] = &[\n");
    for (name, path) in names {
        println!("cargo:rerun-if-changed={}", path.display());
        writeln!(out, "    ({name:?}, include_str!({path:?})),")?;
    }
    out.push_str("];\n");
    Ok(out)
}

/// The PTX that `shader-tool embed-ptx` made, by file name.
fn embed_ptx(folder: &Path) -> Result<String, Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed={}", folder.display());
    let mut files: Vec<PathBuf> = fs::read_dir(folder)?
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<_, std::io::Error>>()?;
    files.sort();
    let mut out = String::from("const EMBEDDED: &[(&str, &[u8])] = &[\n");
    for path in files {
        println!("cargo:rerun-if-changed={}", path.display());
        let name = path.file_name().ok_or("no file name")?.to_string_lossy().into_owned();
        writeln!(out, "    ({name:?}, include_bytes!({path:?})),")?;
    }
    out.push_str("];\n");
    Ok(out)
}

/// Translates the structs of params.h; see there for what is understood.
fn structs(header: &str) -> Result<String, Box<dyn std::error::Error>> {
    let mut out = String::new();
    let mut inside = false;
    for (number, line) in header.lines().enumerate() {
        let text = line.trim();
        let wrong = || format!("params.h:{}: cannot read {text:?}", number + 1);
        if let Some(comment) = text.strip_prefix("///") {
            writeln!(out, "{}///{comment}", if inside { "    " } else { "" })?;
        } else if text.is_empty() || text.starts_with("//") || text.starts_with('#') {
            continue;
        } else if let Some(name) = text.strip_prefix("struct ") {
            let name = name.strip_suffix(" {").ok_or_else(wrong)?;
            writeln!(
                out,
                "#[repr(C)]\n#[derive(Clone, Copy, Debug, Default, PartialEq)]\npub struct {name} {{"
            )?;
            inside = true;
        } else if text == "};" && inside {
            out.push_str("}\n\n");
            inside = false;
        } else if inside {
            let (ty, name) = text
                .strip_suffix(';')
                .and_then(|t| t.split_once(' '))
                .ok_or_else(wrong)?;
            let ty = match ty {
                "uint" => "u32",
                "float" => "f32",
                other if other.starts_with(char::is_uppercase) => other,
                _ => return Err(wrong().into()),
            };
            let (name, ty) = match name.split_once('[') {
                Some((name, count)) => (name, format!("[{ty}; {}]", count.strip_suffix(']').ok_or_else(wrong)?)),
                None => (name, ty.to_string()),
            };
            writeln!(out, "    #[allow(missing_docs)]\n    pub {name}: {ty},")?;
        } else {
            return Err(wrong().into());
        }
    }
    Ok(out)
}
