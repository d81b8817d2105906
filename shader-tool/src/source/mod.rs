//! Reading Metal sources: files, includes, tokens, declarations, and their translation to C++.

pub(crate) mod emit;
pub(crate) mod flatten;
pub(crate) mod lexer;
pub(crate) mod parse;

use crate::ShaderError;
use std::path::Path;

/// One kernel source or header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceFile {
    /// Its path relative to the kernels' directory, with `/`: what `#include "..."` names and what messages show.
    pub name: String,
    /// Metal Shading Language.
    pub text: String,
}

impl SourceFile {
    /// A source with a name and a text.
    pub fn new(name: impl Into<String>, text: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            text: text.into(),
        }
    }

    /// Every `.metal` and `.h` file under `directory`, sorted by name.
    ///
    /// # Errors
    /// [`ShaderError::Io`] names the file that could not be read.
    pub fn read_dir(directory: &Path) -> Result<Vec<Self>, ShaderError> {
        let mut found = Vec::new();
        walk(directory, "", &mut found)?;
        found.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(found)
    }

    /// Whether it is compiled on its own, rather than included.
    pub fn is_unit(&self) -> bool {
        self.name.ends_with(".metal")
    }
}

fn walk(directory: &Path, prefix: &str, found: &mut Vec<SourceFile>) -> Result<(), ShaderError> {
    let io = |path: &Path| {
        let path = path.to_path_buf();
        |source| ShaderError::Io { path, source }
    };
    for entry in std::fs::read_dir(directory).map_err(io(directory))? {
        let entry = entry.map_err(io(directory))?;
        let path = entry.path();
        let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
        if path.is_dir() {
            walk(&path, &format!("{name}/"), found)?;
        } else if name.ends_with(".metal") || name.ends_with(".h") {
            found.push(SourceFile {
                name,
                text: std::fs::read_to_string(&path).map_err(io(&path))?,
            });
        }
    }
    Ok(())
}
