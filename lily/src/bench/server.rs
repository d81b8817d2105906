//! Our own server, in a process of its own.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::thread;

use super::http::Client;
use crate::error::CliError;

/// A running `lily serve`. It ends when this is dropped.
pub struct OwnServer {
    child: Child,
    /// Talks to it.
    pub client: Client,
    /// Its name of the model.
    pub model: String,
    /// Device and kernels, for people, and the kind of device.
    pub device: (String, String),
}

impl OwnServer {
    /// Starts one with the options that name model and device, and `more`, and waits until it serves.
    ///
    /// # Errors
    /// [`CliError::Arm`] with what it said
    pub fn start(subject: &[String], more: &[&str]) -> Result<Self, CliError> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["serve", "--port", "0"])
            .args(subject)
            .args(more)
            .env_remove("LILY_API_KEY")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let errors = child.stderr.take().map(|mut output| {
            thread::spawn(move || {
                let mut text = String::new();
                let _ = output.read_to_string(&mut text);
                text
            })
        });
        let mut line = String::new();
        if let Some(output) = child.stdout.take() {
            BufReader::new(output).read_line(&mut line)?;
        }
        let failed = |problem: String| CliError::Arm {
            arm: "lily serve".into(),
            problem,
        };
        let Some(address) = address(&line) else {
            let _ = child.kill();
            let _ = child.wait();
            let said = errors.and_then(|errors| errors.join().ok()).unwrap_or_default();
            let last = said.lines().last().unwrap_or("it ended without a word");
            return Err(failed(last.strip_prefix("lily: ").unwrap_or(last).to_owned()));
        };
        let mut server = OwnServer {
            child,
            client: Client::new(&address),
            model: String::new(),
            device: Default::default(),
        };
        let status = server
            .client
            .get("/status")
            .map_err(|error| failed(error.to_string()))?;
        let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
        server.model = text(&status["model"]);
        server.device = (text(&status["device"]["description"]), text(&status["device"]["kind"]));
        Ok(server)
    }
}

impl Drop for OwnServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The address in the line that the server prints once it serves.
fn address(line: &str) -> Option<String> {
    let (_, rest) = line.split_once(" at http://")?;
    Some(format!("http://{}", rest.split_whitespace().next()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_in_the_announcement() {
        let line = "lily: demo at http://127.0.0.1:8080 (CPU, 2 threads, AVX2, context of 4096 tokens)\n";
        assert_eq!(address(line).as_deref(), Some("http://127.0.0.1:8080"));
        assert_eq!(address(""), None);
    }
}
