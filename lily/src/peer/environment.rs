//! The Python environment with MLX-LM: made on demand, in the user's cache directory.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, IsTerminal};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use clap::Args;
use indicatif::ProgressBar;

use super::{Driver, PeerError, cache_directory, last_words};

/// The release that is installed: figures of one release are not those of another.
const MLX_LM: &str = "0.32.2";
/// The release of MLX that goes with it.
const MLX: &str = "0.32.4";
/// A file in an environment that is complete.
const COMPLETE: &str = "complete";
/// Interpreters that are tried, in this order.
const PYTHONS: [&str; 6] = [
    "python3",
    "python3.13",
    "python3.12",
    "python3.11",
    "python3.10",
    "python",
];

/// Which MLX-LM.
#[derive(Args, Clone, Debug, Default)]
pub struct MlxArgs {
    /// A Python that has mlx-lm already [default: one that is installed on demand in the cache directory]
    #[arg(long, value_name = "FILE", conflicts_with = "peer_version", help_heading = "Peers")]
    pub peer_python: Option<PathBuf>,
    /// Release of mlx-lm that is installed [default: 0.32.2 with MLX 0.32.4]
    #[arg(long, value_name = "VERSION", help_heading = "Peers")]
    pub peer_version: Option<String>,
}

/// A Python in which `import mlx_lm` works.
#[derive(Debug)]
pub struct Environment {
    /// The interpreter.
    pub python: PathBuf,
    /// Releases of `mlx` and `mlx-lm`.
    pub versions: BTreeMap<String, String>,
}

impl Environment {
    /// The environment that `args` ask for. Where it has to be installed, that is told on the error output, and takes a minute and a network.
    ///
    /// # Errors
    /// [`PeerError`] where there is no Python, no network, or no such release
    pub fn mlx_lm(args: &MlxArgs) -> Result<Environment, PeerError> {
        if let Some(python) = &args.peer_python {
            return Environment::of(python).map_err(|error| PeerError::NotThere {
                python: python.clone(),
                reason: error.to_string(),
            });
        }
        let version = args.peer_version.as_deref().unwrap_or(MLX_LM);
        let peers = cache_directory()?.join("peers");
        let directory = peers.join(format!("mlx-lm-{version}"));
        fs::create_dir_all(&peers).map_err(|error| PeerError::file(&peers, error))?;
        // Two processes do not install into one directory.
        let lock_path = directory.with_added_extension("lock");
        let lock = File::create(&lock_path).map_err(|error| PeerError::file(&lock_path, error))?;
        lock.lock().map_err(|error| PeerError::file(&lock_path, error))?;
        let python = interpreter(&directory);
        if directory.join(COMPLETE).exists()
            && let Ok(environment) = Environment::of(&python)
        {
            return Ok(environment);
        }
        install(version, &directory)?;
        let environment = Environment::of(&python)?;
        let complete = directory.join(COMPLETE);
        fs::write(&complete, "").map_err(|error| PeerError::file(&complete, error))?;
        Ok(environment)
    }

    fn of(python: &Path) -> Result<Environment, PeerError> {
        const VERSIONS: &str = "\
from importlib.metadata import version
import mlx.core, mlx_lm
run(lambda request: {name: version(name) for name in request})";
        let versions =
            Driver::start("mlx-lm", python, VERSIONS)?.ask(&["mlx", "mlx-lm"], Some(Duration::from_secs(120)))?;
        Ok(Environment {
            python: python.to_owned(),
            versions,
        })
    }

    /// Starts a driver in this environment; see [`Driver::start`].
    ///
    /// # Errors
    /// [`PeerError::Driver`]
    pub fn start(&self, script: &str) -> Result<Driver, PeerError> {
        Driver::start("mlx-lm", &self.python, script)
    }

    /// `mlx-lm 0.32.2, mlx 0.32.4`.
    pub fn description(&self) -> String {
        let version = |name| self.versions.get(name).map_or("?", String::as_str);
        format!("mlx-lm {}, mlx {}", version("mlx-lm"), version("mlx"))
    }
}

fn interpreter(directory: &Path) -> PathBuf {
    directory.join("bin/python")
}

/// What pip is asked for. On Linux plain `mlx` has no backend at all.
fn requirements(version: &str) -> Vec<String> {
    let extra = if cfg!(target_os = "linux") { "[cpu]" } else { "" };
    let mlx = if version == MLX_LM {
        format!("mlx{extra}=={MLX}")
    } else {
        format!("mlx{extra}")
    };
    vec![format!("mlx-lm=={version}"), mlx]
}

fn install(version: &str, directory: &Path) -> Result<(), PeerError> {
    let failed = |reason: String| PeerError::Install {
        what: format!("mlx-lm {version}"),
        directory: directory.to_owned(),
        reason,
    };
    let base = find_python()?;
    let progress = Progress::new(&format!(
        "installing mlx-lm {version} in {} (once; about 400 MB)",
        directory.display()
    ));
    let made = Command::new(&base)
        .args(["-I", "-m", "venv", "--clear"])
        .arg(directory)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| failed(format!("{}: {error}", base.display())))?;
    if !made.status.success() {
        let said = [made.stdout, made.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        return Err(failed(if said.contains("ensurepip") {
            format!("{} has no ensurepip: install python3-venv", base.display())
        } else {
            last_words(&said, 3)
        }));
    }
    let mut pip = Command::new(interpreter(directory))
        .args([
            "-m",
            "pip",
            "install",
            "--disable-pip-version-check",
            "--no-input",
            "--progress-bar",
            "off",
        ])
        .args(requirements(version))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| failed(error.to_string()))?;
    let errors = pip
        .stderr
        .take()
        .map(|errors| std::thread::spawn(|| std::io::read_to_string(errors).unwrap_or_default()));
    if let Some(output) = pip.stdout.take() {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            progress.line(line.trim());
        }
    }
    let status = pip.wait().map_err(|error| failed(error.to_string()))?;
    if status.success() {
        return Ok(());
    }
    let said = errors.and_then(|errors| errors.join().ok()).unwrap_or_default();
    Err(failed(why_pip_failed(&said, version)))
}

/// pip's complaint in a line. Without a network it first warns of each try and then says that no version was found.
fn why_pip_failed(said: &str, version: &str) -> String {
    const NETWORK: [&str; 5] = [
        "NewConnectionError",
        "NameResolutionError",
        "ConnectTimeoutError",
        "ProxyError",
        "Connection to ",
    ];
    if NETWORK.iter().any(|sign| said.contains(sign)) {
        return "the package index cannot be reached: a network is needed once; or name a Python that has mlx-lm with --peer-python".into();
    }
    if said.contains(&format!("No matching distribution found for mlx-lm=={version}")) {
        return format!("the package index has no mlx-lm {version} for this Python and system");
    }
    let errors: Vec<&str> = said.lines().filter(|line| line.starts_with("ERROR")).collect();
    last_words(if errors.is_empty() { said } else { errors[0] }, 3)
}

/// A Python of 3.10 or later.
fn find_python() -> Result<PathBuf, PeerError> {
    let mut found = None;
    for name in PYTHONS {
        let asked = Command::new(name)
            .args([
                "-I",
                "-c",
                "import sys; print('%d.%d' % sys.version_info[:2], sys.executable)",
            ])
            .stdin(Stdio::null())
            .output();
        let Ok(output) = asked else { continue };
        let said = String::from_utf8_lossy(&output.stdout);
        let Some((version, path)) = said.trim().split_once(' ') else {
            continue;
        };
        let minor = version.strip_prefix("3.").and_then(|minor| minor.parse::<u32>().ok());
        if output.status.success() && minor.is_some_and(|minor| minor >= 10) {
            return Ok(PathBuf::from(path));
        }
        found = Some(version.to_owned());
    }
    Err(PeerError::NoPython(match found {
        Some(version) => format!("found {version}"),
        None => "found none on PATH".into(),
    }))
}

/// What is being installed: a line that changes on a terminal, elsewhere a line for each download.
struct Progress {
    bar: ProgressBar,
    on_terminal: bool,
}

impl Progress {
    fn new(what: &str) -> Self {
        let on_terminal = std::io::stderr().is_terminal();
        eprintln!("{what}");
        let bar = if on_terminal {
            ProgressBar::new_spinner()
        } else {
            ProgressBar::hidden()
        };
        bar.enable_steady_tick(Duration::from_millis(120));
        Progress { bar, on_terminal }
    }

    fn line(&self, line: &str) {
        self.bar.set_message(line.to_owned());
        if !self.on_terminal && line.starts_with("Downloading ") {
            eprintln!("{line}");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_pip_says_becomes_one_line() {
        let offline = "WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnectionError(\"...\")': /simple/mlx-lm/\n\
                       ERROR: Could not find a version that satisfies the requirement mlx-lm==0.32.2\n\
                       ERROR: No matching distribution found for mlx-lm==0.32.2";
        assert!(why_pip_failed(offline, "0.32.2").starts_with("the package index cannot be reached"));
        let unknown = "ERROR: Could not find a version that satisfies the requirement mlx-lm==9.9 (from versions: 0.1)\n\
                       ERROR: No matching distribution found for mlx-lm==9.9";
        assert!(why_pip_failed(unknown, "9.9").contains("has no mlx-lm 9.9"));
        assert_eq!(
            why_pip_failed(
                "ERROR: Could not install packages: [Errno 28] No space left on device\nnoise",
                "0.32.2"
            ),
            "ERROR: Could not install packages: [Errno 28] No space left on device"
        );
    }

    #[test]
    fn a_python_without_mlx_lm_is_refused() {
        let args = MlxArgs {
            peer_python: Some("/no/such/python".into()),
            peer_version: None,
        };
        let error = Environment::mlx_lm(&args).unwrap_err().to_string();
        assert!(error.contains("--peer-python /no/such/python"), "{error}");
    }
}
