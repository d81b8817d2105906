//! What `GET /metrics` tells: latencies as the clients feel them, and the engine's own counts.

use std::fmt;
use std::time::{Duration, Instant};

use lily_engine::{Engine, EngineStatus, Event};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

/// Labels of the count of requests.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct RequestLabels {
    path: String,
    status: u16,
}

/// The server's metrics.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    requests: Family<RequestLabels, Counter>,
    first_token: Histogram,
    between_tokens: Histogram,
    queued: Histogram,
}

impl Metrics {
    /// Metrics of a server over `engine`.
    pub fn new(engine: &Engine) -> Self {
        // From a fraction of a decode step to the prefill of a long prompt.
        let long = || Histogram::new(exponential_buckets(0.005, 2.0, 18));
        let short = || Histogram::new(exponential_buckets(0.001, 2.0, 14));
        let (requests, first_token, between_tokens, queued) = (Family::default(), long(), short(), long());
        let mut registry = Registry::with_prefix("lily");
        registry.register("requests", "HTTP requests answered", Family::clone(&requests));
        for (name, help, histogram) in [
            (
                "time_to_first_token",
                "Time from a request to the first token of its reply",
                &first_token,
            ),
            (
                "inter_token_latency",
                "Time between two tokens of a reply",
                &between_tokens,
            ),
            ("queue_time", "Time that requests waited before they started", &queued),
        ] {
            registry.register_with_unit(name, help, Unit::Seconds, Histogram::clone(histogram));
        }
        registry.register_collector(Box::new(EngineCollector(engine.clone())));
        Self {
            registry,
            requests,
            first_token,
            between_tokens,
            queued,
        }
    }

    /// Counts an answered request.
    pub fn answered(&self, path: &str, status: u16) {
        self.requests
            .get_or_create(&RequestLabels {
                path: path.to_owned(),
                status,
            })
            .inc();
    }

    /// All metrics in Prometheus' text format.
    ///
    /// # Errors
    /// Never in practice: the text goes to memory.
    pub fn encode(&self) -> Result<String, fmt::Error> {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry)?;
        Ok(text)
    }
}

/// Times the events of one reply.
#[derive(Debug)]
pub struct Stopwatch {
    asked: Instant,
    last_token: Option<Instant>,
}

impl Stopwatch {
    /// Started when the request came.
    pub fn start() -> Self {
        Self {
            asked: Instant::now(),
            last_token: None,
        }
    }

    /// Takes note of the next event.
    pub fn observe(&mut self, event: &Event, metrics: &Metrics) {
        let now = Instant::now();
        match event {
            Event::Started { .. } => metrics.queued.observe((now - self.asked).as_secs_f64()),
            Event::Token(_) => match self.last_token.replace(now) {
                None => metrics.first_token.observe((now - self.asked).as_secs_f64()),
                Some(last) => metrics.between_tokens.observe((now - last).as_secs_f64()),
            },
            _ => {}
        }
    }
}

/// Tells the engine's own counts at the time of the scrape.
#[derive(Debug)]
struct EngineCollector(Engine);

impl Collector for EngineCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let status = self.0.status();
        let seconds = |time: Duration| time.as_secs_f64();
        let EngineStatus {
            waiting,
            running,
            sequence_bytes,
            cache_entries,
            cache_bytes,
            disk,
            ..
        } = status;
        for (name, help, value) in [
            ("requests_waiting", "Requests in the queue", waiting),
            ("requests_running", "Sequences that run", running),
            (
                "sequence_memory_bytes",
                "Memory reserved for running sequences",
                sequence_bytes,
            ),
            ("prefix_cache_entries", "Snapshots in the prefix cache", cache_entries),
            (
                "prefix_cache_bytes",
                "Memory of the snapshots in the prefix cache",
                cache_bytes,
            ),
            ("disk_cache_entries", "Snapshots in the cache on the disk", disk.entries),
            (
                "disk_cache_bytes",
                "Bytes of the files in the cache on the disk",
                usize::try_from(disk.bytes).unwrap_or(usize::MAX),
            ),
            (
                "resident_memory_bytes",
                "Memory that the process holds",
                resident_memory().unwrap_or(0),
            ),
        ] {
            let gauge = ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX));
            gauge.encode(encoder.encode_descriptor(name, help, None, gauge.metric_type())?)?;
        }
        for (name, help, value) in [
            ("generations_started", "Generations that left the queue", status.started),
            ("generations_finished", "Generations that finished", status.finished),
            (
                "generations_cancelled",
                "Generations whose clients went away first",
                status.cancelled,
            ),
            ("generations_failed", "Generations that failed", status.failed),
            ("prompt_tokens", "Tokens of the prompts", status.prompt_tokens),
            (
                "cached_prompt_tokens",
                "Tokens of the prompts that came from the prefix cache",
                status.cached_tokens,
            ),
            ("generated_tokens", "Tokens of the replies", status.generated_tokens),
            ("disk_cache_loaded", "Snapshots read from the disk", disk.loaded),
            ("disk_cache_written", "Snapshots written to the disk", disk.written),
            (
                "disk_cache_failed",
                "Damaged snapshots and failures to write one",
                disk.failed,
            ),
            (
                "decode_steps",
                "Decode steps, of one token for each running sequence",
                status.decode_steps,
            ),
        ] {
            let counter = ConstCounter::new(value);
            counter.encode(encoder.encode_descriptor(name, help, None, counter.metric_type())?)?;
        }
        for (name, help, value) in [
            ("prefill", "Time spent reading prompts", seconds(status.prefill_time)),
            ("decode", "Time spent in decode steps", seconds(status.decode_time)),
        ] {
            let counter = ConstCounter::new(value);
            counter.encode(encoder.encode_descriptor(name, help, Some(&Unit::Seconds), counter.metric_type())?)?;
        }
        Ok(())
    }
}

/// Bytes of memory that the process holds; `None` where the system does not say.
pub fn resident_memory() -> Option<usize> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kilobytes: usize = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes * 1024)
}
