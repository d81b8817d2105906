//! `--model`: a directory, or a Hugging Face repository that is cached or downloaded.
//!
//! The cache is the one that the Python tools use, so a model that either has fetched serves both. Downloads go through `hf-hub`,
//! which resumes a partly fetched file.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hf_hub::api::sync::{Api, ApiBuilder, ApiError, ApiRepo};
use hf_hub::{Cache, Repo, RepoType};
use serde_json::Value;

use crate::error::{Error, Result};

const INDEX: &str = "model.safetensors.index.json";
/// What a checkpoint has besides weights. The first two must be there.
const SMALL_FILES: [&str; 6] = [
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "generation_config.json",
    "chat_template.jinja",
    INDEX,
];
const REQUIRED: usize = 2;
/// Times that a file is tried; each goes on where the one before was cut off.
const ATTEMPTS: u32 = 5;

/// Told how a download goes.
pub trait Progress: Send + Sync {
    /// A file of `size` bytes starts, of which `present` are already there. Again after a connection was lost.
    fn start(&self, file: &str, size: u64, present: u64);
    /// `bytes` more have arrived.
    fn advance(&self, file: &str, bytes: u64);
    /// The file is complete.
    fn finish(&self, file: &str);
}

/// Resolves `model` to a local directory: a directory itself, or `org/name[@revision]` from the cache, else downloaded. Blocks.
///
/// # Errors
/// [`Error::Hub`] where it is neither, or the repository cannot be had.
pub fn resolve(model: &str, progress: &dyn Progress) -> Result<PathBuf> {
    Hub::from_env()?.resolve(model, progress)
}

/// Downloads what is missing of `org/name[@revision]`, or has changed there, and returns the snapshot's directory. Blocks.
///
/// # Errors
/// [`Error::Hub`] where the repository cannot be had.
pub fn pull(model: &str, progress: &dyn Progress) -> Result<PathBuf> {
    Hub::from_env()?.pull(model, progress)
}

/// The hub and its local cache.
#[derive(Clone, Debug)]
pub struct Hub {
    /// Directory with a `models--org--name` for each repository.
    pub cache: PathBuf,
    /// Address of the hub.
    pub endpoint: String,
    /// Sent along, for repositories that ask for one.
    pub token: Option<String>,
    /// Whether to keep away from the network.
    pub offline: bool,
}

impl Hub {
    /// The settings of the environment: `HF_HUB_CACHE`, `HF_HOME`, `XDG_CACHE_HOME`, `HF_ENDPOINT`, `HF_TOKEN` (else the token file
    /// that `hf auth login` writes) and `HF_HUB_OFFLINE`.
    ///
    /// # Errors
    /// [`Error::Hub`] where there is neither a home directory nor a variable that says where the cache is.
    pub fn from_env() -> Result<Hub> {
        Hub::from_variables(|name| std::env::var(name).ok().filter(|value| !value.is_empty()))
    }

    fn from_variables(variable: impl Fn(&str) -> Option<String>) -> Result<Hub> {
        let home = variable("HF_HOME")
            .map(PathBuf::from)
            .or_else(|| Some(PathBuf::from(variable("XDG_CACHE_HOME")?).join("huggingface")))
            .or_else(|| Some(std::env::home_dir()?.join(".cache").join("huggingface")));
        let cache = variable("HF_HUB_CACHE")
            .map(PathBuf::from)
            .or_else(|| Some(home.as_ref()?.join("hub")))
            .ok_or_else(|| Error::Hub {
                model: "the model cache".into(),
                problem: "there is no home directory; set HF_HOME to a directory".into(),
            })?;
        let stored_token = || std::fs::read_to_string(home.as_ref()?.join("token")).ok();
        Ok(Hub {
            cache,
            endpoint: variable("HF_ENDPOINT").map_or_else(
                || "https://huggingface.co".into(),
                |url| url.trim_end_matches('/').to_owned(),
            ),
            token: variable("HF_TOKEN")
                .or_else(stored_token)
                .map(|token| token.trim().to_owned())
                .filter(|token| !token.is_empty()),
            offline: variable("HF_HUB_OFFLINE")
                .is_some_and(|value| matches!(value.to_ascii_lowercase().as_str(), "1" | "on" | "yes" | "true")),
        })
    }

    /// See [`resolve`].
    ///
    /// # Errors
    /// As there.
    pub fn resolve(&self, model: &str, progress: &dyn Progress) -> Result<PathBuf> {
        if Path::new(model).is_dir() {
            return Ok(model.into());
        }
        let id = RepoId::parse(model)?;
        match self.missing_from_cache(&id) {
            Ok(snapshot) => Ok(snapshot),
            Err(missing) if self.offline => Err(id.error(format!(
                "is not in the cache ({}), {missing}; HF_HUB_OFFLINE is set, so it is not downloaded",
                self.cache.display()
            ))),
            Err(_) => self.pull(model, progress),
        }
    }

    /// See [`pull`].
    ///
    /// # Errors
    /// As there.
    pub fn pull(&self, model: &str, progress: &dyn Progress) -> Result<PathBuf> {
        let id = RepoId::parse(model)?;
        if self.offline {
            return Err(id.error("HF_HUB_OFFLINE is set, so nothing is downloaded".into()));
        }
        Download::new(self, &id, progress)?.run()
    }

    fn repository(&self, id: &RepoId) -> PathBuf {
        self.cache.join(format!("models--{}", id.name.replace('/', "--")))
    }

    /// The snapshot of `id` if it is complete; else what is missing.
    fn missing_from_cache(&self, id: &RepoId) -> std::result::Result<PathBuf, String> {
        let repository = self.repository(id);
        let commit = std::fs::read_to_string(repository.join("refs").join(&id.revision))
            .map(|commit| commit.trim().to_owned())
            .unwrap_or_else(|_| id.revision.clone());
        let snapshot = repository.join("snapshots").join(commit);
        if !snapshot.is_dir() {
            return Err("nothing of it is".into());
        }
        let weights = weight_files(&snapshot).map_err(|file| format!("{file} is missing"))?;
        SMALL_FILES[..REQUIRED]
            .iter()
            .map(|file| (*file).to_owned())
            .chain(weights)
            .find(|file| !snapshot.join(file).exists())
            .map_or(Ok(snapshot), |file| Err(format!("{file} is missing")))
    }
}

/// The weight files that a snapshot should have: those of its index, or the only one. The error is a file without which it cannot
/// be told.
fn weight_files(snapshot: &Path) -> std::result::Result<BTreeSet<String>, String> {
    let unreadable = || INDEX.to_owned();
    match std::fs::read(snapshot.join(INDEX)) {
        Ok(content) => {
            let index: Value = serde_json::from_slice(&content).map_err(|_| unreadable())?;
            let map = index
                .get("weight_map")
                .and_then(Value::as_object)
                .ok_or_else(unreadable)?;
            Ok(map.values().filter_map(Value::as_str).map(str::to_owned).collect())
        }
        Err(_) => Ok(BTreeSet::from(["model.safetensors".to_owned()])),
    }
}

/// `org/name[@revision]`
#[derive(Clone, Debug, PartialEq)]
struct RepoId {
    name: String,
    revision: String,
}

impl RepoId {
    fn parse(model: &str) -> Result<RepoId> {
        let (name, revision) = model.split_once('@').unwrap_or((model, "main"));
        let plain = |part: &str| {
            !part.is_empty()
                && !part.starts_with(['.', '-'])
                && !part.contains("..")
                && part
                    .chars()
                    .all(|character| character.is_ascii_alphanumeric() || "._-".contains(character))
        };
        let parts: Vec<&str> = name.split('/').collect();
        if parts.len() == 2 && parts.into_iter().all(plain) && revision.split('/').all(plain) {
            return Ok(RepoId {
                name: name.into(),
                revision: revision.into(),
            });
        }
        Err(Error::Hub {
            model: model.into(),
            problem: "is neither a directory nor the name of a repository (org/name or org/name@revision)".into(),
        })
    }

    fn error(&self, problem: String) -> Error {
        Error::Hub {
            model: if self.revision == "main" {
                self.name.clone()
            } else {
                format!("{}@{}", self.name, self.revision)
            },
            problem,
        }
    }
}

/// One repository's download.
struct Download<'a> {
    hub: &'a Hub,
    id: &'a RepoId,
    progress: &'a dyn Progress,
    api: Api,
}

impl<'a> Download<'a> {
    fn new(hub: &'a Hub, id: &'a RepoId, progress: &'a dyn Progress) -> Result<Download<'a>> {
        let api = ApiBuilder::from_cache(Cache::new(hub.cache.clone()))
            .with_endpoint(hub.endpoint.clone())
            .with_token(hub.token.clone())
            .with_progress(false)
            .build()
            .map_err(|error| id.error(error.to_string()))?;
        Ok(Download { hub, id, progress, api })
    }

    fn repo(&self, revision: &str) -> Repo {
        Repo::with_revision(self.id.name.clone(), RepoType::Model, revision.into())
    }

    fn run(&self) -> Result<PathBuf> {
        let info = self
            .api
            .repo(self.repo(&self.id.revision))
            .info()
            .map_err(|error| self.failed("", &error))?;
        if !is_plain(&info.sha) {
            return Err(self.id.error(format!("the hub names a bad commit: {:?}", info.sha)));
        }
        let listed: BTreeSet<&str> = info.siblings.iter().map(|file| file.rfilename.as_str()).collect();
        // All files of one commit, even if the branch moves on meanwhile.
        let repo = self.api.repo(self.repo(&info.sha));
        let snapshot = self.hub.repository(self.id).join("snapshots").join(&info.sha);
        for (index, file) in SMALL_FILES.into_iter().enumerate() {
            if listed.contains(file) {
                self.fetch(&repo, &snapshot, file)?;
            } else if index < REQUIRED {
                return Err(self.id.error(format!("has no {file}; is it a model?")));
            }
        }
        let weights =
            weight_files(&snapshot).map_err(|file| self.id.error(format!("{file} is no index of weights")))?;
        for file in &weights {
            // The name becomes a path: only a plain name in the repository's root is one.
            if !listed.contains(file.as_str()) || !is_plain(file) {
                return Err(self
                    .id
                    .error(format!("{file:?}, which holds weights, is not in the repository")));
            }
            self.fetch(&repo, &snapshot, file)?;
        }
        Cache::new(self.hub.cache.clone())
            .repo(self.repo(&self.id.revision))
            .create_ref(&info.sha)
            .map_err(|source| Error::Io {
                path: self.hub.repository(self.id).join("refs"),
                source,
            })?;
        Ok(snapshot)
    }

    /// Fetches one file into the snapshot, unless it is there.
    fn fetch(&self, repo: &ApiRepo, snapshot: &Path, file: &str) -> Result<()> {
        let target = snapshot.join(file);
        if target.exists() {
            return Ok(());
        }
        let mut attempt = 1;
        loop {
            match self.try_fetch(repo, &target, file) {
                Ok(()) => return Ok(()),
                Err(error) if attempt == ATTEMPTS || !is_passing(&error) => return Err(self.failed(file, &error)),
                Err(_) => std::thread::sleep(Duration::from_millis(250 << attempt)),
            }
            attempt += 1;
        }
    }

    fn try_fetch(&self, repo: &ApiRepo, target: &Path, file: &str) -> std::result::Result<(), ApiError> {
        let metadata = self.api.metadata(&repo.url(file))?;
        // Both become parts of paths.
        if !is_plain(metadata.etag()) || !is_plain(metadata.commit_hash()) {
            return Err(ApiError::InvalidHeader("etag"));
        }
        let size = metadata.size() as u64;
        let blob = self.hub.repository(self.id).join("blobs").join(metadata.etag());
        let part = blob.with_extension("part");
        if length(&blob) == Some(size) && link(&blob, target).is_ok() {
            // Another commit has the same file.
            self.progress.start(file, size, size);
            self.progress.finish(file);
            return Ok(());
        }
        if length(&part).is_some_and(|present| present >= size) {
            // Nothing is left to ask the server for, which it would take for a mistake: begin anew.
            std::fs::remove_file(&part)?;
        }
        self.progress.start(file, size, length(&part).unwrap_or(0));
        let path = repo.download_with_progress(
            file,
            Adapter {
                file,
                progress: self.progress,
                resumed: false,
            },
        )?;
        let found = length(&path).unwrap_or(0);
        if found != size {
            // A server that ignores the range appends the file to its own beginning.
            let _ = std::fs::remove_file(&path);
            let _ = std::fs::remove_file(&blob);
            let problem = format!("{file}: {found} bytes arrived of {size}");
            return Err(ApiError::IoError(std::io::Error::new(
                std::io::ErrorKind::UnexpectedEof,
                problem,
            )));
        }
        self.progress.finish(file);
        Ok(())
    }

    fn failed(&self, file: &str, error: &ApiError) -> Error {
        let what = if file.is_empty() {
            String::new()
        } else {
            format!("{file}: ")
        };
        let endpoint = &self.hub.endpoint;
        let problem = match status(error) {
            Some(401 | 403) if self.hub.token.is_some() => {
                format!("{what}{endpoint} does not give it to this token (HF_TOKEN)")
            }
            Some(401 | 403) => {
                format!("{what}{endpoint} has no such public repository; if it is a private or gated one, set HF_TOKEN")
            }
            Some(404) => format!("{what}{endpoint} has no such repository or revision"),
            Some(status) => format!("{what}{endpoint} answers with status {status}"),
            None => {
                format!("{what}download from {endpoint} failed: {error}; what has arrived is kept, try again to go on")
            }
        };
        self.id.error(problem)
    }
}

/// The HTTP status that `error` stands for.
fn status(error: &ApiError) -> Option<u16> {
    match error {
        ApiError::RequestError(error) => match error.as_ref() {
            ureq::Error::StatusCode(status) => Some(*status),
            _ => None,
        },
        _ => None,
    }
}

/// Whether another attempt may help.
fn is_passing(error: &ApiError) -> bool {
    match error {
        ApiError::RequestError(_) => status(error).is_none_or(|status| status >= 500 || status == 429),
        ApiError::IoError(error) => !matches!(
            error.kind(),
            std::io::ErrorKind::PermissionDenied | std::io::ErrorKind::StorageFull | std::io::ErrorKind::NotFound
        ),
        _ => false,
    }
}

/// Whether `name` can only be a file's name: no separators, no `..`.
fn is_plain(name: &str) -> bool {
    !name.is_empty()
        && !name.starts_with('.')
        && name
            .chars()
            .all(|character| character.is_ascii_alphanumeric() || "._-".contains(character))
}

fn length(path: &Path) -> Option<u64> {
    std::fs::metadata(path).ok().map(|metadata| metadata.len())
}

/// Makes `target`, in a snapshot, a relative symlink to `blob`, as the cache has it.
#[cfg(unix)]
fn link(blob: &Path, target: &Path) -> std::io::Result<()> {
    let Some((directory, name)) = target.parent().zip(blob.file_name()) else {
        return Err(std::io::ErrorKind::InvalidInput.into());
    };
    std::fs::create_dir_all(directory)?;
    std::os::unix::fs::symlink(Path::new("../../blobs").join(name), target)
}

/// Where symlinks need rights that users do not have, the file is fetched again.
#[cfg(not(unix))]
fn link(_blob: &Path, _target: &Path) -> std::io::Result<()> {
    Err(std::io::ErrorKind::Unsupported.into())
}

/// Passes `hf-hub`'s progress on. Its first update is what was there before.
struct Adapter<'a> {
    file: &'a str,
    progress: &'a dyn Progress,
    resumed: bool,
}

impl hf_hub::api::Progress for Adapter<'_> {
    fn init(&mut self, _size: usize, _file: &str) {
        self.resumed = false;
    }

    fn update(&mut self, bytes: usize) {
        if self.resumed {
            self.progress.advance(self.file, bytes as u64);
        }
        self.resumed = true;
    }

    fn finish(&mut self) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hub(variables: &[(&str, &str)]) -> Hub {
        Hub::from_variables(|name| {
            let found = variables.iter().find(|(variable, _)| *variable == name);
            found.map(|(_, value)| (*value).to_owned())
        })
        .unwrap()
    }

    #[test]
    fn the_environment_is_honoured() {
        let plain = hub(&[("XDG_CACHE_HOME", "/c")]);
        assert_eq!(plain.cache, Path::new("/c/huggingface/hub"));
        assert_eq!(plain.endpoint, "https://huggingface.co");
        assert_eq!((plain.token, plain.offline), (None, false));
        let set = hub(&[
            ("HF_HOME", "/h"),
            ("HF_ENDPOINT", "http://localhost:1/"),
            ("HF_TOKEN", " t\n"),
            ("HF_HUB_OFFLINE", "True"),
        ]);
        assert_eq!(set.cache, Path::new("/h/hub"));
        assert_eq!(set.endpoint, "http://localhost:1");
        assert_eq!((set.token.as_deref(), set.offline), (Some("t"), true));
        let cache = hub(&[
            ("HF_HOME", "/h"),
            ("HF_HUB_CACHE", "/elsewhere"),
            ("HF_HUB_OFFLINE", "0"),
        ]);
        assert_eq!(cache.cache, Path::new("/elsewhere"));
        assert!(!cache.offline);
    }

    #[test]
    fn the_token_file_is_read() {
        let home = tempfile::tempdir().unwrap();
        std::fs::write(home.path().join("token"), "secret\n").unwrap();
        let hub = hub(&[("HF_HOME", home.path().to_str().unwrap())]);
        assert_eq!(hub.token.as_deref(), Some("secret"));
    }

    #[test]
    fn names_of_repositories() {
        let id = RepoId::parse("mlx-community/Qwen3.6-35B-A3B-4bit").unwrap();
        assert_eq!(
            (id.name.as_str(), id.revision.as_str()),
            ("mlx-community/Qwen3.6-35B-A3B-4bit", "main")
        );
        assert_eq!(RepoId::parse("a/b@refs/pr/1").unwrap().revision, "refs/pr/1");
        for bad in [
            "", "name", "a/b/c", "../b", "a/..", "/a/b", "./a", "a/b@", "a/b@../x", "a/b@/x", "a b/c", "a/b?c",
            "C:\\a/b",
        ] {
            let error = RepoId::parse(bad).unwrap_err().to_string();
            assert!(error.contains("neither a directory nor"), "{bad}: {error}");
        }
    }
}
