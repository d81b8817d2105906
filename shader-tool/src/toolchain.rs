//! Finding clang, running it, and keeping what it made.

use crate::ShaderError;
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The shim's headers, by path below the include directory.
const SHIM: &[(&str, &str)] = &[
    ("metal_stdlib", include_str!("../shim/metal_stdlib")),
    ("metal_atomic", include_str!("../shim/metal_atomic")),
    ("metal_common", include_str!("../shim/metal_common")),
    ("metal_compute", include_str!("../shim/metal_compute")),
    ("metal_integer", include_str!("../shim/metal_integer")),
    ("metal_limits", include_str!("../shim/metal_limits")),
    ("metal_math", include_str!("../shim/metal_math")),
    ("metal_numeric", include_str!("../shim/metal_numeric")),
    ("metal_simdgroup", include_str!("../shim/metal_simdgroup")),
    ("metal_simdgroup_matrix", include_str!("../shim/metal_simdgroup_matrix")),
    ("metal_type_traits", include_str!("../shim/metal_type_traits")),
    ("msl/atomic.h", include_str!("../shim/msl/atomic.h")),
    ("msl/check.h", include_str!("../shim/msl/check.h")),
    ("msl/emulator.h", include_str!("../shim/msl/emulator.h")),
    ("msl/host.h", include_str!("../shim/msl/host.h")),
    ("msl/math.h", include_str!("../shim/msl/math.h")),
    ("msl/matrix.h", include_str!("../shim/msl/matrix.h")),
    ("msl/nvptx.h", include_str!("../shim/msl/nvptx.h")),
    ("msl/nvptx_precise.h", include_str!("../shim/msl/nvptx_precise.h")),
    ("msl/simd.h", include_str!("../shim/msl/simd.h")),
    ("msl/traits.h", include_str!("../shim/msl/traits.h")),
    ("msl/types.h", include_str!("../shim/msl/types.h")),
    (
        "MetalPerformancePrimitives/MetalPerformancePrimitives.h",
        include_str!("../shim/MetalPerformancePrimitives/MetalPerformancePrimitives.h"),
    ),
];

const OLDEST_CLANG: u32 = 19;
const NEWEST_CLANG: u32 = 30;

/// A clang that is new enough.
#[derive(Debug, Clone)]
pub(crate) struct Clang {
    pub path: PathBuf,
    /// First line of `--version`: part of every cache key.
    version: String,
}

impl Clang {
    /// `LILY_CLANG`, else `clang-19` and newer, else a plain `clang` that is new enough.
    pub fn find() -> Result<&'static Self, ShaderError> {
        static FOUND: OnceLock<Result<Clang, String>> = OnceLock::new();
        FOUND
            .get_or_init(Self::search)
            .as_ref()
            .map_err(|message| ShaderError::NoClang(message.clone()))
    }

    fn search() -> Result<Self, String> {
        let install = "install it with tools/setup (Debian, Ubuntu: apt-get install clang-19) or set LILY_CLANG";
        if let Some(path) = std::env::var_os("LILY_CLANG") {
            let path = PathBuf::from(path);
            return Self::probe(&path).map_err(|why| format!("LILY_CLANG={}: {why}; {install}", path.display()));
        }
        let names = (OLDEST_CLANG..NEWEST_CLANG)
            .map(|n| format!("clang-{n}"))
            .chain(["clang".to_owned()]);
        let mut last = String::from("no clang-19 or newer on the PATH");
        for name in names {
            match Self::probe(Path::new(&name)) {
                Ok(clang) => return Ok(clang),
                Err(why) if why.contains("is version") => last = format!("{name} {why}"),
                Err(_) => {}
            }
        }
        Err(format!(
            "compiling Metal kernels needs clang-19 or newer, and {last}: {install}"
        ))
    }

    fn probe(path: &Path) -> Result<Self, String> {
        let output = Command::new(path)
            .arg("--version")
            .output()
            .map_err(|e| format!("does not start ({e})"))?;
        let text = String::from_utf8_lossy(&output.stdout);
        let version = text.lines().next().unwrap_or_default().to_owned();
        let major = version
            .split("version ")
            .nth(1)
            .and_then(|v| v.split(|c: char| !c.is_ascii_digit()).next())
            .and_then(|v| v.parse::<u32>().ok());
        match major {
            Some(major) if major >= OLDEST_CLANG => Ok(Self {
                path: path.to_owned(),
                version,
            }),
            Some(major) => Err(format!(
                "is version {major}, but {OLDEST_CLANG} is the oldest that will do"
            )),
            None => Err("does not say its version".to_owned()),
        }
    }
}

/// Compiled objects by content.
#[derive(Debug, Clone)]
pub(crate) struct Cache {
    directory: PathBuf,
}

impl Cache {
    /// In `directory`, or else `LILY_SHADER_CACHE`, or `shader-cache` in cargo's target directory when run from there, or
    /// the temporary directory.
    pub fn new(directory: Option<&Path>) -> Self {
        let chosen = directory
            .map(Path::to_owned)
            .or_else(|| std::env::var_os("LILY_SHADER_CACHE").map(PathBuf::from));
        let directory = chosen.unwrap_or_else(|| {
            let executable = std::env::current_exe().unwrap_or_default();
            match executable
                .ancestors()
                .find(|a| a.file_name().is_some_and(|n| n == "target"))
            {
                Some(target) => target.join("shader-cache"),
                None => std::env::temp_dir().join("lily-shader-cache"),
            }
        });
        Self { directory }
    }

    /// The shim's include directory, written once per content.
    fn shim(&self) -> Result<PathBuf, ShaderError> {
        let mut hash = Sha256::new();
        for (name, text) in SHIM {
            hash.update(name);
            hash.update([0]);
            hash.update(text);
        }
        let directory = self.directory.join(format!("shim-{}", hex(hash)));
        if directory.is_dir() {
            return Ok(directory);
        }
        // Written aside and renamed, so that another process never sees half of it.
        let aside = self.directory.join(format!("shim-{}-{}", std::process::id(), unique()));
        for (name, text) in SHIM {
            let path = aside.join(name);
            let parent = path.parent().unwrap_or(&aside);
            std::fs::create_dir_all(parent).map_err(io(parent))?;
            std::fs::write(&path, text).map_err(io(&path))?;
        }
        match std::fs::rename(&aside, &directory) {
            Ok(()) => {}
            Err(_) if directory.is_dir() => drop(std::fs::remove_dir_all(&aside)),
            Err(error) => return Err(io(&directory)(error)),
        }
        Ok(directory)
    }

    /// Compiles C++ `text` with `arguments`, unless that was done before. The result's name ends in `extension`.
    pub fn compile(
        &self,
        file: &str,
        text: &str,
        arguments: &[String],
        extension: &str,
    ) -> Result<PathBuf, ShaderError> {
        let clang = Clang::find()?;
        let shim = self.shim()?;
        let mut hash = Sha256::new();
        for part in [clang.version.as_str(), &shim.to_string_lossy(), extension, text] {
            hash.update(part);
            hash.update([0]);
        }
        for argument in arguments {
            hash.update(argument);
            hash.update([0]);
        }
        let stem = file.replace(['/', '.'], "-");
        let result = self.directory.join(format!("{stem}-{}.{extension}", hex(hash)));
        if result.is_file() {
            return Ok(result);
        }
        let aside = self
            .directory
            .join(format!("{stem}-{}-{}", std::process::id(), unique()));
        let source = aside.with_extension("cpp");
        let made = aside.with_extension(format!("{extension}.part"));
        std::fs::write(&source, text).map_err(io(&source))?;
        let output = Command::new(&clang.path)
            .args(["-x", "c++", "-isystem"])
            .arg(&shim)
            .args(arguments)
            .arg(&source)
            .arg("-o")
            .arg(&made)
            .output()
            .map_err(|error| ShaderError::Tool {
                tool: clang.path.display().to_string(),
                message: error.to_string(),
            })?;
        drop(std::fs::remove_file(&source));
        if !output.status.success() {
            drop(std::fs::remove_file(&made));
            return Err(ShaderError::Compile {
                file: file.to_owned(),
                log: String::from_utf8_lossy(&output.stderr).into_owned(),
            });
        }
        std::fs::rename(&made, &result).map_err(io(&result))?;
        Ok(result)
    }
}

/// Stands for a text, the shim that it includes, and the arguments that it is compiled with.
pub(crate) fn key(text: &str, arguments: &[String]) -> String {
    let mut hash = Sha256::new();
    let shim = SHIM.iter().flat_map(|(name, text)| [*name, *text]);
    for part in shim.chain([text]).chain(arguments.iter().map(String::as_str)) {
        hash.update(part);
        hash.update([0]);
    }
    hex(hash)
}

fn io(path: &Path) -> impl FnOnce(std::io::Error) -> ShaderError {
    let path = path.to_path_buf();
    |source| ShaderError::Io { path, source }
}

fn hex(hash: Sha256) -> String {
    hash.finalize()
        .iter()
        .take(12)
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// Tells apart the files that threads of one process write at the same time.
fn unique() -> u64 {
    static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
}
