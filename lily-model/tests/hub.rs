//! Downloads from a small hub on the loopback: resume, reuse, errors and the offline mode.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use lily_model::hub::{Hub, Progress};

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
const REPO: &str = "org/tiny-model";

/// A hub with one repository.
#[derive(Default)]
struct Server {
    files: Mutex<BTreeMap<String, Vec<u8>>>,
    commit: Mutex<String>,
    /// Method, path and range of each request, with its authorization.
    log: Mutex<Vec<String>>,
    /// Bytes of a file after which the connection breaks, once.
    cut: Mutex<Option<usize>>,
    token: Option<String>,
}

impl Server {
    fn start(self) -> (Arc<Server>, String) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let server = Arc::new(self);
        *server.commit.lock().unwrap() = COMMIT.into();
        let shared = server.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let server = shared.clone();
                std::thread::spawn(move || server.serve(stream.unwrap()));
            }
        });
        (server, address)
    }

    fn with_files(names: &[(&str, &str)]) -> Server {
        let files = names
            .iter()
            .map(|(name, content)| ((*name).to_owned(), content.as_bytes().to_vec()));
        Server {
            files: Mutex::new(files.collect()),
            ..Server::default()
        }
    }

    fn serve(&self, stream: TcpStream) {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        let mut lines = Vec::new();
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).unwrap_or(0) == 0 {
                return;
            }
            if line.trim().is_empty() {
                break;
            }
            lines.push(line.trim().to_owned());
        }
        let header = |name: &str| {
            lines.iter().find_map(|line| {
                let (key, value) = line.split_once(':')?;
                key.eq_ignore_ascii_case(name).then(|| value.trim().to_owned())
            })
        };
        let path = lines[0].split(' ').nth(1).unwrap().to_owned();
        let range = header("range").unwrap_or_default();
        self.log.lock().unwrap().push(format!("{path} {range}"));
        let authorized = self.token.is_none()
            || header("authorization") == self.token.as_ref().map(|token| format!("Bearer {token}"));
        self.answer(stream, &path, &range, authorized);
    }

    fn answer(&self, mut stream: TcpStream, path: &str, range: &str, authorized: bool) {
        let commit = self.commit.lock().unwrap().clone();
        let files = self.files.lock().unwrap().clone();
        let mut send = |status: &str, headers: &str, body: &[u8], length: usize| {
            let head = format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n{headers}\r\n");
            let _ = stream.write_all(head.as_bytes());
            let _ = stream.write_all(body);
        };
        if !authorized {
            return send("401 Unauthorized", "", b"", 0);
        }
        if path.starts_with("/api/models/") {
            if !path.starts_with(&format!("/api/models/{REPO}/")) {
                return send("404 Not Found", "", b"", 0);
            }
            let siblings: Vec<_> = files
                .keys()
                .map(|name| serde_json::json!({"rfilename": name}))
                .collect();
            let body = serde_json::json!({"sha": commit, "siblings": siblings}).to_string();
            return send(
                "200 OK",
                "Content-Type: application/json\r\n",
                body.as_bytes(),
                body.len(),
            );
        }
        let Some(content) = path
            .strip_prefix(&format!("/{REPO}/resolve/{commit}/"))
            .and_then(|name| files.get(name))
        else {
            return send("404 Not Found", "", b"", 0);
        };
        let (start, end) = range.strip_prefix("bytes=").unwrap().split_once('-').unwrap();
        let start: usize = start.parse().unwrap();
        let end: usize = end
            .parse::<usize>()
            .map_or(content.len(), |last| last + 1)
            .min(content.len());
        if start >= content.len() {
            return send("416 Range Not Satisfiable", "", b"", 0);
        }
        // Content decides the name of the blob, as on the real hub.
        let etag = format!(
            "etag{}-{}",
            content.len(),
            content.iter().map(|byte| u64::from(*byte)).sum::<u64>()
        );
        let headers = format!(
            "ETag: \"{etag}\"\r\nX-Repo-Commit: {commit}\r\nContent-Range: bytes {start}-{}/{}\r\n",
            end - 1,
            content.len()
        );
        let mut body = &content[start..end];
        let length = body.len();
        if length > 1
            && let Some(cut) = self.cut.lock().unwrap().take_if(|cut| *cut < length)
        {
            body = &body[..cut];
        }
        send("206 Partial Content", &headers, body, length);
    }

    fn requests(&self, part: &str) -> Vec<String> {
        let log = self.log.lock().unwrap();
        log.iter().filter(|line| line.contains(part)).cloned().collect()
    }
}

#[derive(Default)]
struct Recorder {
    events: Mutex<Vec<String>>,
    bytes: Mutex<BTreeMap<String, u64>>,
}

impl Progress for Recorder {
    fn start(&self, file: &str, size: u64, present: u64) {
        self.events
            .lock()
            .unwrap()
            .push(format!("start {file} {present}/{size}"));
        self.bytes.lock().unwrap().insert(file.into(), present);
    }

    fn advance(&self, file: &str, bytes: u64) {
        *self.bytes.lock().unwrap().get_mut(file).unwrap() += bytes;
    }

    fn finish(&self, file: &str) {
        self.events.lock().unwrap().push(format!("finish {file}"));
    }
}

fn hub(cache: &Path, endpoint: &str) -> Hub {
    Hub {
        cache: cache.into(),
        endpoint: endpoint.into(),
        token: None,
        offline: false,
    }
}

fn index(shards: &[&str]) -> String {
    let map: BTreeMap<String, &str> = shards
        .iter()
        .enumerate()
        .map(|(number, shard)| (format!("tensor{number}"), *shard))
        .collect();
    serde_json::json!({"weight_map": map}).to_string()
}

fn repository() -> Server {
    let shards = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];
    Server::with_files(&[
        ("config.json", "{\"model_type\": \"x\"}"),
        ("tokenizer.json", "{}"),
        ("chat_template.jinja", "template"),
        ("model.safetensors.index.json", &index(&shards)),
        (shards[0], "first shard's weights"),
        (shards[1], "second shard's weights, more of them"),
        ("README.md", "not needed"),
        ("original/model.pt", "not needed either"),
    ])
}

fn snapshot(cache: &Path) -> PathBuf {
    cache.join("models--org--tiny-model/snapshots").join(COMMIT)
}

#[test]
fn only_what_is_needed_is_downloaded_and_then_reused() {
    let cache = tempfile::tempdir().unwrap();
    let (server, endpoint) = repository().start();
    let recorder = Recorder::default();
    let directory = hub(cache.path(), &endpoint).resolve(REPO, &recorder).unwrap();
    assert_eq!(directory, snapshot(cache.path()));
    for (name, content) in server.files.lock().unwrap().iter() {
        let needed = !name.contains("README") && !name.contains("original");
        assert_eq!(
            std::fs::read(directory.join(name)).ok().as_ref(),
            needed.then_some(content),
            "{name}"
        );
    }
    let bytes = recorder.bytes.lock().unwrap();
    assert_eq!(bytes["model-00001-of-00002.safetensors"], 21);
    assert_eq!(bytes["model-00002-of-00002.safetensors"], 36);
    assert!(
        recorder
            .events
            .lock()
            .unwrap()
            .contains(&"finish config.json".to_owned())
    );

    // From now on the cache answers, without a request, online or not.
    let before = server.log.lock().unwrap().len();
    let offline = Hub {
        offline: true,
        ..hub(cache.path(), &endpoint)
    };
    assert_eq!(
        hub(cache.path(), &endpoint).resolve(REPO, &recorder).unwrap(),
        directory
    );
    assert_eq!(offline.resolve(REPO, &recorder).unwrap(), directory);
    assert_eq!(
        offline.resolve(&format!("{REPO}@{COMMIT}"), &recorder).unwrap(),
        directory
    );
    assert_eq!(server.log.lock().unwrap().len(), before);
}

#[test]
fn a_cut_download_goes_on_where_it_ended() {
    let cache = tempfile::tempdir().unwrap();
    let (server, endpoint) = repository().start();
    let recorder = Recorder::default();
    // A first run that ended in the middle of the shard.
    let blobs = cache.path().join("models--org--tiny-model/blobs");
    std::fs::create_dir_all(&blobs).unwrap();
    let content = server.files.lock().unwrap()["model-00002-of-00002.safetensors"].clone();
    let sum: u64 = content.iter().map(|byte| u64::from(*byte)).sum();
    std::fs::write(blobs.join(format!("etag{}-{sum}.part", content.len())), &content[..10]).unwrap();
    let directory = hub(cache.path(), &endpoint).pull(REPO, &recorder).unwrap();
    assert_eq!(
        std::fs::read(directory.join("model-00002-of-00002.safetensors")).unwrap(),
        content
    );
    assert_eq!(server.requests("model-00002-of-00002.safetensors bytes=10-").len(), 1);
    assert!(
        recorder
            .events
            .lock()
            .unwrap()
            .contains(&"start model-00002-of-00002.safetensors 10/36".to_owned())
    );
    assert_eq!(recorder.bytes.lock().unwrap()["model-00002-of-00002.safetensors"], 36);
}

#[test]
fn a_lost_connection_is_tried_again() {
    let cache = tempfile::tempdir().unwrap();
    let (server, endpoint) = repository().start();
    *server.cut.lock().unwrap() = Some(7);
    let recorder = Recorder::default();
    let directory = hub(cache.path(), &endpoint).pull(REPO, &recorder).unwrap();
    for name in ["config.json", "model-00001-of-00002.safetensors"] {
        assert_eq!(
            std::fs::read(directory.join(name)).unwrap(),
            server.files.lock().unwrap()[name],
            "{name}"
        );
    }
    assert_eq!(
        server.requests(" bytes=7-").len(),
        1,
        "{:?}",
        server.log.lock().unwrap()
    );
}

#[test]
fn a_file_that_a_new_commit_keeps_is_not_downloaded_again() {
    let cache = tempfile::tempdir().unwrap();
    let (server, endpoint) = repository().start();
    let recorder = Recorder::default();
    hub(cache.path(), &endpoint).pull(REPO, &recorder).unwrap();
    let next = COMMIT.replace('0', "f");
    *server.commit.lock().unwrap() = next.clone();
    server
        .files
        .lock()
        .unwrap()
        .insert("config.json".into(), b"{\"changed\": 1}".to_vec());
    server.log.lock().unwrap().clear();
    let directory = hub(cache.path(), &endpoint).pull(REPO, &recorder).unwrap();
    assert!(directory.ends_with(&next));
    assert_eq!(
        std::fs::read(directory.join("config.json")).unwrap(),
        b"{\"changed\": 1}"
    );
    assert_eq!(
        std::fs::read(directory.join("model-00001-of-00002.safetensors")).unwrap(),
        b"first shard's weights"
    );
    // The shards cost a request for their size each (a range of one byte), no more.
    assert_eq!(server.requests("00002.safetensors bytes=0-0").len(), 2);
    assert_eq!(server.requests("00002.safetensors bytes=0-").len(), 2);
}

#[test]
fn the_token_is_sent_and_its_absence_explained() {
    let cache = tempfile::tempdir().unwrap();
    let server = Server {
        token: Some("secret".into()),
        ..repository()
    };
    let (_, endpoint) = server.start();
    let recorder = Recorder::default();
    let mut hub = hub(cache.path(), &endpoint);
    let error = hub.pull(REPO, &recorder).unwrap_err().to_string();
    assert!(error.contains(REPO) && error.contains("set HF_TOKEN"), "{error}");
    hub.token = Some("wrong".into());
    let error = hub.pull(REPO, &recorder).unwrap_err().to_string();
    assert!(error.contains("does not give it to this token"), "{error}");
    hub.token = Some("secret".into());
    hub.pull(REPO, &recorder).unwrap();
}

#[test]
fn errors_say_what_to_do() {
    let cache = tempfile::tempdir().unwrap();
    let (server, endpoint) = repository().start();
    let recorder = Recorder::default();
    let hub = hub(cache.path(), &endpoint);
    let fails = |hub: &Hub, model: &str, parts: &[&str]| {
        let error = hub.resolve(model, &recorder).unwrap_err().to_string();
        for part in parts {
            assert!(error.contains(part), "{model}: {error}");
        }
    };
    fails(&hub, "org/other", &["org/other", "no such repository or revision"]);
    fails(
        &hub,
        "no-such-directory",
        &["neither a directory nor the name of a repository"],
    );
    let offline = Hub {
        offline: true,
        ..hub.clone()
    };
    fails(
        &offline,
        REPO,
        &[REPO, "HF_HUB_OFFLINE is set", &cache.path().display().to_string()],
    );
    let unreachable = Hub {
        endpoint: "http://127.0.0.1:1".into(),
        ..hub.clone()
    };
    fails(&unreachable, REPO, &[REPO, "http://127.0.0.1:1", "failed"]);
    // A partly cached repository is no repository to someone offline.
    hub.pull(REPO, &recorder).unwrap();
    std::fs::remove_file(snapshot(cache.path()).join("model-00002-of-00002.safetensors")).unwrap();
    fails(&offline, REPO, &["model-00002-of-00002.safetensors is missing"]);
    // Names that lead out of the cache.
    let outside = index(&["../../../../outside.safetensors"]);
    server
        .files
        .lock()
        .unwrap()
        .insert("model.safetensors.index.json".into(), outside.into_bytes());
    server
        .files
        .lock()
        .unwrap()
        .insert("../../../../outside.safetensors".into(), b"x".to_vec());
    *server.commit.lock().unwrap() = COMMIT.replace('0', "e");
    let error = hub.pull(REPO, &recorder).unwrap_err().to_string();
    assert!(error.contains("outside.safetensors"), "{error}");
    *server.commit.lock().unwrap() = "../..".into();
    let error = hub.pull(REPO, &recorder).unwrap_err().to_string();
    assert!(error.contains("bad commit"), "{error}");
}
