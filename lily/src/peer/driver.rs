//! A peer in a process of its own: a Python script that answers requests, a line of JSON each.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{PeerError, last_words};

/// What every script begins with.
const PROTOCOL: &str = include_str!("protocol.py");
/// Bytes of a driver's error output that are kept for messages.
const MOST_ERRORS: usize = 16 << 10;

/// A running driver. It ends when this is dropped.
pub struct Driver {
    peer: String,
    child: Child,
    requests: Option<ChildStdin>,
    replies: Receiver<String>,
    errors: Option<JoinHandle<String>>,
}

impl Driver {
    /// Starts `script` under `python`. It begins after `protocol.py`, defines `answer(request)` and ends with `run(answer)`. `peer` names it
    /// in messages.
    ///
    /// # Errors
    /// [`PeerError::Driver`] where the interpreter does not start
    pub fn start(peer: &str, python: &Path, script: &str) -> Result<Driver, PeerError> {
        let failed = |problem: String| PeerError::Driver {
            peer: peer.into(),
            problem,
        };
        let mut child = Command::new(python)
            // Nothing of the caller's Python may change what is measured.
            .args(["-I", "-c", &format!("{PROTOCOL}\n{script}")])
            .env("HF_HUB_OFFLINE", "1")
            .env("TRANSFORMERS_VERBOSITY", "error")
            .env("TOKENIZERS_PARALLELISM", "false")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| failed(format!("{}: {error}", python.display())))?;
        let (sender, replies) = mpsc::channel();
        if let Some(output) = child.stdout.take() {
            thread::spawn(move || {
                for line in BufReader::new(output).lines().map_while(Result::ok) {
                    if sender.send(line).is_err() {
                        return;
                    }
                }
            });
        }
        let errors = child.stderr.take().map(|output| thread::spawn(|| tail(output)));
        Ok(Driver {
            peer: peer.into(),
            requests: child.stdin.take(),
            child,
            replies,
            errors,
        })
    }

    /// Sends a request and waits for its answer, at most `limit`; after an error the driver is of no more use.
    ///
    /// # Errors
    /// [`PeerError::Driver`], [`PeerError::TimedOut`]
    pub fn ask<T: DeserializeOwned>(
        &mut self,
        request: &impl Serialize,
        limit: Option<Duration>,
    ) -> Result<T, PeerError> {
        let mut line = serde_json::to_string(request).map_err(|error| self.failed(error.to_string()))?;
        line.push('\n');
        let sent = self.requests.as_mut().is_some_and(|requests| {
            requests
                .write_all(line.as_bytes())
                .and_then(|()| requests.flush())
                .is_ok()
        });
        if !sent {
            return Err(self.ended());
        }
        let reply = match limit {
            None => self.replies.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(limit) => self.replies.recv_timeout(limit),
        };
        let reply = match (reply, limit) {
            (Ok(reply), _) => reply,
            (Err(RecvTimeoutError::Timeout), Some(limit)) => {
                self.stop();
                return Err(PeerError::TimedOut {
                    peer: self.peer.clone(),
                    seconds: limit.as_secs(),
                });
            }
            (Err(_), _) => return Err(self.ended()),
        };
        let strange = |driver: &Driver, what: String| driver.failed(format!("{what} in the answer {reply:.200}"));
        let mut value: Value = serde_json::from_str(&reply).map_err(|error| strange(self, error.to_string()))?;
        if let Some(error) = value.get("error").and_then(Value::as_str) {
            return Err(self.failed(error.to_owned()));
        }
        match value.get_mut("result").map(Value::take) {
            Some(result) => serde_json::from_value(result).map_err(|error| strange(self, error.to_string())),
            None => Err(strange(self, "no result".into())),
        }
    }

    fn failed(&self, problem: String) -> PeerError {
        PeerError::Driver {
            peer: self.peer.clone(),
            problem,
        }
    }

    /// The error of a driver whose pipes are closed.
    fn ended(&mut self) -> PeerError {
        self.stop();
        let said = self
            .errors
            .take()
            .and_then(|errors| errors.join().ok())
            .unwrap_or_default();
        self.failed(match last_words(&said, 3) {
            words if words.is_empty() => "the driver ended without an answer".into(),
            words => format!("the driver ended: {words}"),
        })
    }

    fn stop(&mut self) {
        // It ends by itself at the end of its input, unless it is busy or stuck.
        self.requests = None;
        for _ in 0..20 {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            thread::sleep(Duration::from_millis(5));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Reads all of it and keeps the end.
fn tail(mut output: impl Read) -> String {
    let mut kept = Vec::new();
    let mut buffer = [0; 4096];
    while let Ok(read @ 1..) = output.read(&mut buffer) {
        kept.extend_from_slice(&buffer[..read]);
        let excess = kept.len().saturating_sub(MOST_ERRORS);
        kept.drain(..excess);
    }
    String::from_utf8_lossy(&kept).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A driver under whatever Python there is; the scripts need no packages.
    fn start(script: &str) -> Driver {
        Driver::start("test", Path::new("python3"), script).unwrap()
    }

    #[test]
    fn requests_are_answered_in_order() {
        let mut driver = start("print('noise of a library')\nrun(lambda request: request['x'] * 2)");
        for x in [1, 21] {
            let doubled: i64 = driver.ask(&serde_json::json!({ "x": x }), None).unwrap();
            assert_eq!(doubled, 2 * x);
        }
    }

    #[test]
    fn errors_say_what_happened() {
        let complaint = |script: &str| {
            start(script)
                .ask::<i64>(&1, Some(Duration::from_secs(20)))
                .unwrap_err()
                .to_string()
        };
        assert_eq!(
            complaint("def answer(request): raise ValueError('no such file')\nrun(answer)"),
            "test: ValueError: no such file"
        );
        let ended = complaint("import no_such_package");
        assert!(ended.starts_with("test: the driver ended: "), "{ended}");
        assert!(
            ended.ends_with("ModuleNotFoundError: No module named 'no_such_package'"),
            "{ended}"
        );
        assert!(complaint("run(lambda request: 'text')").contains("invalid type: string \"text\""));
    }

    #[test]
    fn a_driver_that_hangs_is_ended() {
        let mut driver = start("import time\nrun(lambda request: time.sleep(600))");
        let error = driver.ask::<i64>(&1, Some(Duration::from_millis(200))).unwrap_err();
        assert!(matches!(error, PeerError::TimedOut { .. }), "{error}");
    }
}
