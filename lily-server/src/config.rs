//! What the person who starts the server may set.

use std::time::Duration;

/// Options of the server; everything about the model is the engine's.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Address or host name to listen on.
    pub host: String,
    /// TCP port; 0 takes a free one.
    pub port: u16,
    /// Id of the model in `/v1/models` and in replies.
    pub model_id: String,
    /// Other names under which requests may ask for the model.
    pub aliases: Vec<String>,
    /// Keys of which a request must carry one; none are required where this is empty.
    pub api_keys: Vec<String>,
    /// Host names, besides IP addresses and `localhost`, under which the server may be asked; `*` allows all.
    pub allowed_hosts: Vec<String>,
    /// Origins of web pages that may call the server; `*` allows all.
    pub cors_origins: Vec<String>,
    /// Largest request body, bytes.
    pub max_body_bytes: usize,
    /// Time within which a request's headers, and then its body, must arrive.
    pub body_timeout: Duration,
    /// Time that a request's reply may take, its wait in the queue included; no limit for `None`.
    pub request_timeout: Option<Duration>,
    /// Connections held open at once; more wait to be accepted.
    pub max_connections: usize,
    /// Silence on a stream after which a comment is sent, so that no proxy or client takes it for dead.
    pub keep_alive: Duration,
    /// Time that running requests have to finish once the server is asked to stop.
    pub shutdown_grace: Duration,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            host: "127.0.0.1".into(),
            port: 8080,
            model_id: "lily".into(),
            aliases: Vec::new(),
            api_keys: Vec::new(),
            allowed_hosts: Vec::new(),
            cors_origins: Vec::new(),
            max_body_bytes: 32 << 20,
            body_timeout: Duration::from_secs(30),
            request_timeout: None,
            max_connections: 512,
            keep_alive: Duration::from_secs(5),
            shutdown_grace: Duration::from_secs(10),
        }
    }
}

impl ServerConfig {
    /// Names the model. Clients may leave out the organization before the slash.
    pub fn name_model(&mut self, name: &str) {
        name.clone_into(&mut self.model_id);
        if let Some((_, short)) = name.rsplit_once('/')
            && !short.is_empty()
        {
            self.aliases.push(short.to_owned());
        }
    }

    /// Whether a request may ask for the model by this name.
    pub fn serves(&self, name: &str) -> bool {
        name == self.model_id || self.aliases.iter().any(|alias| alias == name)
    }
}
