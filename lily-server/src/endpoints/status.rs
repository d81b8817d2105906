//! `GET /status`: what runs and how it does, for people and scripts.

use axum::Json;
use axum::extract::State;
use serde_json::{Value, json};

use crate::app::AppState;
use crate::metrics::resident_memory;

/// The model, the device, and what the engine is doing.
pub async fn status(State(app): State<AppState>) -> Json<Value> {
    let (info, options, status) = (app.engine.info(), app.engine.options(), app.engine.status());
    let rate = |tokens: u64, time: std::time::Duration| {
        let seconds = time.as_secs_f64();
        if seconds > 0.0 {
            json!(tokens as f64 / seconds)
        } else {
            Value::Null
        }
    };
    Json(json!({
        "version": env!("CARGO_PKG_VERSION"),
        "model": app.config.model_id,
        "uptime_seconds": app.started.elapsed().map_or(0.0, |time| time.as_secs_f64()),
        "device": { "kind": info.device.kind, "description": info.device.description },
        "context_limit": info.context_limit,
        "resident_memory_bytes": resident_memory(),
        "limits": {
            "max_sequences": options.max_sequences,
            "queue_capacity": options.queue_capacity,
            "sequence_memory_bytes": options.sequence_memory,
            "cache_memory_bytes": options.cache_memory,
            "cache_disk_bytes": options.disk_cache.as_ref().map(|disk| disk.bytes),
        },
        "engine": {
            "waiting": status.waiting,
            "running": status.running,
            "sequence_bytes": status.sequence_bytes,
            "cache_entries": status.cache_entries,
            "cache_bytes": status.cache_bytes,
            "disk_cache": {
                "entries": status.disk.entries,
                "bytes": status.disk.bytes,
                "loaded": status.disk.loaded,
                "written": status.disk.written,
                "failed": status.disk.failed,
            },
            "started": status.started,
            "finished": status.finished,
            "cancelled": status.cancelled,
            "failed": status.failed,
            "prompt_tokens": status.prompt_tokens,
            "cached_tokens": status.cached_tokens,
            "generated_tokens": status.generated_tokens,
            "decode_steps": status.decode_steps,
            "prefill_tokens_per_second": rate(status.prompt_tokens.saturating_sub(status.cached_tokens), status.prefill_time),
            "decode_tokens_per_second": rate(status.generated_tokens, status.decode_time),
        },
    }))
}
