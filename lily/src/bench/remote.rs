//! Servers as arms: another one at a URL, and ours, measured through HTTP as well, so that both sides do the same work.

use std::cell::OnceCell;

use lily_model::Checkpoint;
use serde_json::Value;

use super::arm::{Arm, Job, Sample};
use super::http::{Client, Completion, Refusal, Streamed};
use super::measure;
use super::report::{Model, Subject};
use super::server::OwnServer;
use super::sweep::Peer;
use crate::error::CliError;

/// Prompts of so many rounds, and of their warm-ups, differ.
const MOST_ROUNDS: usize = 1000;

/// A server that completes prompts.
pub struct RemoteArm {
    place: Place,
    /// Where its prompts come from.
    checkpoint: Checkpoint,
    extensions: bool,
    /// Why the server gets no extensions.
    refused: Option<String>,
    cached: usize,
    counted: Option<(usize, usize)>,
}

enum Place {
    /// Ours, started for every round.
    Own {
        args: Vec<String>,
        model: Model,
        device: OnceCell<(String, String)>,
    },
    /// One that runs already.
    At { url: String, client: Client, model: String },
}

impl RemoteArm {
    fn new(place: Place, checkpoint: Checkpoint) -> Self {
        RemoteArm {
            place,
            checkpoint,
            extensions: true,
            refused: None,
            cached: 0,
            counted: None,
        }
    }

    /// Ours, with the options that name model and device.
    pub fn ours(args: Vec<String>, model: Model, checkpoint: Checkpoint) -> Self {
        let device = OnceCell::new();
        RemoteArm::new(Place::Own { args, model, device }, checkpoint)
    }

    /// The server at `url`; its model is the first that it lists where no `name` is given.
    ///
    /// # Errors
    /// [`CliError::Arm`] where it does not answer
    pub fn at(url: &str, name: Option<&str>, checkpoint: Checkpoint) -> Result<Self, CliError> {
        let client = Client::new(url);
        let model = match name {
            Some(name) => name.to_owned(),
            None => client.first_model().map_err(|error| CliError::Arm {
                arm: url.into(),
                problem: error.to_string(),
            })?,
        };
        let url = url.to_owned();
        Ok(RemoteArm::new(Place::At { url, client, model }, checkpoint))
    }

    /// The completion of a prompt that no other round has. Servers that know neither token ids nor extensions get the text.
    fn complete(&mut self, client: &Client, model: &str, shift: usize, job: &Job) -> Result<Streamed, CliError> {
        job.check()?;
        // A server refuses ids that the tokenizer does not have, though the model's matrices have rows for them.
        let prompt = measure::shifted_prompt(shift, job.context, self.checkpoint.tokenizer.len());
        loop {
            let completion = Completion {
                model: model.into(),
                prompt: match self.extensions {
                    true => prompt.clone().into(),
                    false => Value::from(self.checkpoint.tokenizer.decode(&prompt, false)),
                },
                max_tokens: job.steps + 1,
                extensions: self.extensions,
            };
            match client.complete(&completion) {
                Ok(streamed) => return Ok(streamed),
                Err(Refusal::Status(400 | 422, said)) if self.extensions => {
                    self.extensions = false;
                    self.refused = Some(said);
                }
                Err(refusal) => {
                    return Err(CliError::Arm {
                        arm: self.name(),
                        problem: refusal.to_string(),
                    });
                }
            }
        }
    }
}

impl Arm for RemoteArm {
    fn name(&self) -> String {
        match &self.place {
            Place::Own { .. } => "lily serve".into(),
            Place::At { url, .. } => url.clone(),
        }
    }

    fn sample(&mut self, job: &Job) -> Result<Sample, CliError> {
        // It ends with this round.
        let mut own = None;
        let (client, model) = match &self.place {
            Place::Own { args, device, .. } => {
                let server = own.insert(OwnServer::start(args, &["--cache-memory", "0"])?);
                let _ = device.set(server.device.clone());
                (server.client.clone(), server.model.clone())
            }
            Place::At { client, model, .. } => (client.clone(), model.clone()),
        };
        // No two prompts begin alike, those of other contexts included: a cache of the server has none of them.
        let shift = job.context * MOST_ROUNDS + 2 * job.round;
        self.complete(&client, &model, shift + 1, job)?;
        let streamed = self.complete(&client, &model, shift, job)?;
        self.cached = self.cached.max(streamed.cached_tokens);
        let prompt_tokens = streamed.prompt_tokens.unwrap_or(job.context);
        self.counted = Some((job.context, prompt_tokens));
        Ok(Sample {
            prompt_tokens,
            prefill_seconds: streamed.first().as_secs_f64(),
            steps: streamed.tokens().saturating_sub(1),
            decode_seconds: streamed.rest().as_secs_f64(),
            tokens: Vec::new(),
        })
    }

    fn subject(&self) -> Option<(Subject, Option<u64>)> {
        match &self.place {
            Place::Own { model, device, .. } => {
                let (device, device_kind) = device.get()?.clone();
                let model = model.clone();
                Some((
                    Subject {
                        device,
                        device_kind,
                        max_chunk: None,
                        model,
                    },
                    None,
                ))
            }
            Place::At { .. } => None,
        }
    }

    fn peer(&self) -> Option<Peer> {
        let (name, model) = match &self.place {
            Place::Own { .. } => ("lily serve", ""),
            Place::At { url, model, .. } => (url.as_str(), model.as_str()),
        };
        let mut notes = vec![
            "both engines are measured at the client, through HTTP: time to the first piece of text, then time to the last".into(),
            "the server runs all the time: no fresh process for each arm; every round has a prompt of its own, and tokens are not compared".into(),
        ];
        if let Some(refused) = &self.refused {
            notes.push(format!(
                "the server refuses token ids or extensions ({refused}): it got the prompt as text, and may stop at the end of a text"
            ));
        }
        if let Some((asked, counted)) = self.counted.filter(|(asked, counted)| asked != counted) {
            notes.push(format!("of a prompt of {asked} tokens the server counts {counted}"));
        }
        if self.cached > 0 {
            notes.push(format!(
                "the server took up to {} tokens of a prompt from a cache",
                self.cached
            ));
        }
        Some(Peer {
            name: name.into(),
            version: "unknown".into(),
            device: "unknown".into(),
            format: format!("{model}, in whatever format the server has it"),
            notes,
        })
    }
}
