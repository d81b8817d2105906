//! `lily serve`: the HTTP server.

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use lily_engine::{DiskOptions, Engine, EngineOptions, Vocabulary};
use lily_model::Checkpoint;
use lily_server::{App, ServerConfig, bind, serve};

use crate::error::CliError;
use crate::model::{DeviceArgs, MemoryArgs, ModelArgs, parse_bytes, weight_bytes};

/// Environment variable with an API key, which the command line would show to every user of the machine.
const KEY_VARIABLE: &str = "LILY_API_KEY";

/// Time that a conversation's state waits to be written to the disk. An agent's next turn, whose state replaces it, often comes sooner.
const SETTLE: Duration = Duration::from_secs(2);

/// Serves a model over HTTP, as OpenAI's API does.
///
/// Listens on this machine only, unless --host says otherwise; set --api-key then.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  lily serve                                              the built-in demo model at http://127.0.0.1:8080
  lily serve --model mlx-community/Qwen3.6-35B-A3B-4bit --port 9000
  LILY_API_KEY=secret lily serve --host 0.0.0.0           for other machines, with a key
  lily serve --cors-origin https://app.example            for a web page
  lily serve --cache-dir ~/.cache/lily/states             conversations go on after a restart without being read again
  curl http://127.0.0.1:8080/v1/chat/completions -d '{\"messages\": [{\"role\": \"user\", \"content\": \"Hello\"}]}'

Ctrl-C lets running requests finish for --grace seconds; a second one ends at once.")]
pub struct ServeArgs {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    device: DeviceArgs,
    #[command(flatten)]
    memory: MemoryArgs,
    /// Directory that keeps the state of conversations, so that they need not be read again after a restart. Who can read it can read what was said
    #[arg(long, value_name = "DIRECTORY")]
    cache_dir: Option<PathBuf>,
    /// Most bytes of files in it, such as 500MB or 50GB
    #[arg(long, value_name = "BYTES", default_value = "20GB", value_parser = parse_bytes, requires = "cache_dir")]
    cache_dir_size: usize,
    /// Address to listen on; 0.0.0.0 for all
    #[arg(long, default_value = "127.0.0.1", value_name = "ADDRESS")]
    host: String,
    /// Port to listen on; 0 for any free one
    #[arg(long, short, default_value_t = 8080)]
    port: u16,
    /// Name under which clients ask for the model [default: the checkpoint's]
    #[arg(long, value_name = "NAME")]
    served_name: Option<String>,
    /// Another name for the model; may be given several times
    #[arg(long, value_name = "NAME")]
    alias: Vec<String>,
    /// Key that requests must carry; may be given several times, and as LILY_API_KEY in the environment
    #[arg(long, value_name = "KEY", help_heading = "Access")]
    api_key: Vec<String>,
    /// Host name under which the server may be asked, besides localhost and IP addresses; * for all
    #[arg(long, value_name = "NAME", help_heading = "Access")]
    allowed_host: Vec<String>,
    /// Web pages that may call the server, such as https://app.example; * for all
    #[arg(long, value_name = "ORIGIN", help_heading = "Access")]
    cors_origin: Vec<String>,
    /// Requests that run at the same time
    #[arg(long, default_value_t = 16, value_name = "N", help_heading = "Limits")]
    parallel: usize,
    /// Requests that wait at most; further ones get a 503
    #[arg(long, default_value_t = 256, value_name = "N", help_heading = "Limits")]
    queue: usize,
    /// Connections at most; further ones wait
    #[arg(long, default_value_t = 512, value_name = "N", help_heading = "Limits")]
    connections: usize,
    /// Largest request body, MiB
    #[arg(long, default_value_t = 32, value_name = "MIB", help_heading = "Limits")]
    max_body: usize,
    /// Seconds that a request may take, its wait in the queue included [default: no limit]
    #[arg(long, value_name = "SECONDS", help_heading = "Limits")]
    request_timeout: Option<u64>,
    /// Seconds that running requests have to finish when the server is asked to stop
    #[arg(long, default_value_t = 10, value_name = "SECONDS", help_heading = "Limits")]
    grace: u64,
}

/// Serves until SIGINT or SIGTERM.
pub fn run(args: ServeArgs) -> Result<(), CliError> {
    if args.parallel == 0 {
        return Err(CliError::Usage("--parallel: expected at least 1, found 0".into()));
    }
    if args.connections == 0 {
        return Err(CliError::Usage("--connections: expected at least 1, found 0".into()));
    }
    // One thread for all connections: of several, each token would wake two, and where the model runs on the processor they take its time.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut config = args.config();
    // Before the model is loaded, which may take long: a port in use should be told at once.
    let listener = runtime.block_on(bind(&config))?;
    let checkpoint = args.model.open()?;
    config.name_model(args.served_name.as_deref().unwrap_or(&checkpoint.name));
    let engine = args.start_engine(&checkpoint)?;
    announce(&config, listener.local_addr()?, &checkpoint, &engine)?;
    if engine.info().device.kind == "cpu" {
        give_way();
    }
    let app = App::new(config, engine.clone(), Arc::new(checkpoint));
    let served = runtime.block_on(async {
        serve(listener, app, stop_signal()?).await;
        Ok(())
    });
    // With it go the connections that are left, and the replies that they read.
    drop(runtime);
    engine.finish();
    served
}

/// Has this thread wait until an engine's thread has nothing to do for a moment, which happens every few microseconds, instead of stopping it at once
/// when there is something to send. The others would wait for the task that it was at.
fn give_way() {
    #[cfg(target_os = "linux")]
    {
        let parameters = libc::sched_param { sched_priority: 0 };
        // SAFETY: changes the scheduling of this thread, and reads parameters that live until it returns. Where it is refused nothing changes.
        let _ = unsafe { libc::sched_setscheduler(0, libc::SCHED_BATCH, &raw const parameters) };
    }
}

impl ServeArgs {
    fn config(&self) -> ServerConfig {
        let from_environment = std::env::var(KEY_VARIABLE).ok().filter(|key| !key.is_empty());
        ServerConfig {
            host: self.host.clone(),
            port: self.port,
            aliases: self.alias.clone(),
            api_keys: self.api_key.iter().cloned().chain(from_environment).collect(),
            allowed_hosts: self.allowed_host.clone(),
            cors_origins: self.cors_origin.clone(),
            max_body_bytes: self.max_body.saturating_mul(1 << 20),
            request_timeout: self.request_timeout.map(Duration::from_secs),
            max_connections: self.connections,
            shutdown_grace: Duration::from_secs(self.grace),
            ..ServerConfig::default()
        }
    }

    fn start_engine(&self, checkpoint: &Checkpoint) -> Result<Engine, CliError> {
        let (config, weights) = (&checkpoint.config, checkpoint.weights.clone());
        let backend = self.device.backend(config, weights, self.memory.context)?;
        let disk_cache = match &self.cache_dir {
            Some(directory) => Some(DiskOptions {
                directory: directory.clone(),
                bytes: self.cache_dir_size as u64,
                identity: checkpoint.source().identity()?,
                settle: SETTLE,
            }),
            None => None,
        };
        let options = EngineOptions {
            disk_cache,
            max_sequences: self.parallel,
            queue_capacity: self.queue,
            ..self.memory.options(&backend, weight_bytes(&checkpoint.weights))
        };
        Ok(Engine::start(backend, Vocabulary::new(&checkpoint.tokenizer), options)?)
    }
}

/// The one line that the command prints once it serves: people and scripts take the address from it.
fn announce(
    config: &ServerConfig,
    address: std::net::SocketAddr,
    checkpoint: &Checkpoint,
    engine: &Engine,
) -> Result<(), CliError> {
    if !address.ip().is_loopback() && config.api_keys.is_empty() {
        tracing::warn!("other machines can use this server without a key: set --api-key");
    }
    if let Err(error) = checkpoint.chat_template() {
        tracing::warn!("{error}: chat requests will be refused");
    }
    let info = engine.info();
    let mut out = std::io::stdout();
    writeln!(
        out,
        "lily: {} at http://{address} ({}, context of {} tokens)",
        config.model_id, info.device.description, info.context_limit
    )?;
    Ok(out.flush()?)
}

/// Completes at the first SIGINT or SIGTERM; a second SIGINT ends the program.
fn stop_signal() -> Result<impl Future<Output = ()>, CliError> {
    #[cfg(unix)]
    let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    Ok(async move {
        #[cfg(unix)]
        tokio::select! {
            _ = tokio::signal::ctrl_c() => {}
            _ = terminate.recv() => {}
        }
        #[cfg(not(unix))]
        let _ = tokio::signal::ctrl_c().await;
        tracing::info!("stopping");
        tokio::spawn(async {
            if tokio::signal::ctrl_c().await.is_ok() {
                std::process::exit(130);
            }
        });
    })
}
