//! `shader-tool`: looks at a directory of Metal kernels from the command line.

mod embed;

use clap::{Parser, Subcommand, ValueEnum};
use shader_tool::{Constants, Library, Mode, Options, Ptx, PtxArch, ShaderError, SourceFile, TileBackend};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(Parser)]
#[command(about, version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Read every kernel and apply the lint; needs no clang.
    Lint { kernels: PathBuf },
    /// Print what the kernels declare, as JSON; needs no clang.
    Manifest { kernels: PathBuf },
    /// Print one source with its headers in place, as Apple's run-time compiler takes it; needs no clang.
    Flatten { kernels: PathBuf, source: String },
    /// Print the C++ that one source becomes; needs no clang.
    Cpp { kernels: PathBuf, source: String },
    /// Compile every source for the emulator, plain and checked, with every tile backend, and to PTX.
    Check { kernels: PathBuf },
    /// Write PTX of every source, with all function constants undefined.
    Ptx {
        kernels: PathBuf,
        /// Where `<source>.ptx` files go.
        out: PathBuf,
        #[arg(long, value_enum, default_value = "sm90")]
        arch: Arch,
    },
    /// Write the PTX of every source and GPU generation as the program carries it; what is up to date is left alone.
    EmbedPtx {
        kernels: PathBuf,
        /// Where `<source>.<generation>.ptx.gz` files go.
        out: PathBuf,
    },
}

#[derive(Clone, Copy, ValueEnum)]
enum Arch {
    Sm80,
    Sm90,
    Sm90a,
}

fn main() -> ExitCode {
    match run(Arguments::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn library(kernels: &Path, options: Options) -> Result<Library, ShaderError> {
    Library::build(&SourceFile::read_dir(kernels)?, options)
}

fn run(command: Command) -> Result<(), ShaderError> {
    match command {
        Command::Lint { kernels } => {
            let library = library(&kernels, Options::default())?;
            println!(
                "{} kernels, nothing to complain about",
                library.manifest().kernels.len()
            );
        }
        Command::Manifest { kernels } => {
            let library = library(&kernels, Options::default())?;
            match serde_json::to_string_pretty(library.manifest()) {
                Ok(json) => println!("{json}"),
                Err(error) => {
                    return Err(ShaderError::Tool {
                        tool: "JSON".to_owned(),
                        message: error.to_string(),
                    });
                }
            }
        }
        Command::Flatten { kernels, source } => print!("{}", library(&kernels, Options::default())?.flatten(&source)?),
        Command::Cpp { kernels, source } => print!("{}", library(&kernels, Options::default())?.cpp(&source)?),
        Command::Check { kernels } => check(&kernels)?,
        Command::Ptx { kernels, out, arch } => {
            let library = library(&kernels, Options::default())?;
            let arch = match arch {
                Arch::Sm80 => PtxArch::Sm80,
                Arch::Sm90 => PtxArch::Sm90,
                Arch::Sm90a => PtxArch::Sm90a,
            };
            for unit in library.units() {
                if !library.ptx_archs(unit)?.contains(&arch) {
                    continue;
                }
                let path = out.join(unit.replace('/', "-")).with_extension("ptx");
                let text = Ptx::compile(&library, unit, arch)?.with_constants(&Constants::new());
                std::fs::write(&path, text).map_err(|source| ShaderError::Io { path, source })?;
            }
        }
        Command::EmbedPtx { kernels, out } => embed::embed(&library(&kernels, Options::default())?, &out)?,
    }
    Ok(())
}

/// Goes on after a failure, so that one run shows everything.
fn check(kernels: &Path) -> Result<(), ShaderError> {
    let variants = [
        ("plain", Mode::Plain, TileBackend::Native),
        ("checked", Mode::Checked, TileBackend::Native),
        ("plain, simdgroup tiles", Mode::Plain, TileBackend::Simdgroup),
        ("plain, tensor tiles", Mode::Plain, TileBackend::Tensor),
    ];
    let mut failures = 0;
    let mut show = |what: &str, result: Result<(), ShaderError>| match result {
        Ok(()) => {
            println!("{what}: ok");
            Ok(())
        }
        Err(error @ ShaderError::NoClang(_)) => Err(error),
        Err(error) => {
            println!("{what}: {error}");
            failures += 1;
            Ok(())
        }
    };
    for (name, mode, tiles) in variants {
        let options = Options {
            mode,
            tiles,
            ..Options::default()
        };
        let library = library(kernels, options)?;
        for unit in library.units() {
            show(&format!("{unit} ({name})"), library.compile(unit))?;
        }
    }
    let library = library(kernels, Options::default())?;
    for unit in library.units() {
        for &arch in library.ptx_archs(unit)? {
            let ptx = Ptx::compile(&library, unit, arch);
            show(&format!("{unit} (PTX, {})", arch.name()), ptx.map(drop))?;
        }
    }
    match failures {
        0 => Ok(()),
        n => Err(ShaderError::Tool {
            tool: "clang".to_owned(),
            message: format!("{n} of these failed"),
        }),
    }
}
