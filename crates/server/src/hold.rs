//! `GET /v1/hold`: what sits where, what the lanes did in the last minute, the queue and latencies, for the page.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use engine::{Counts, Hold};
use serde_json::{Value, json};
use spec::Lane;

use crate::app::{App, Phase};
use crate::metrics::Histogram;
use crate::routes;

/// The answer. Without a model there is nothing to hold yet.
pub(crate) async fn hold(State(app): State<Arc<App>>) -> Response {
    let mut body = json!({
        "object": "hold",
        "state": state(&app.phase.borrow()),
        "model": null,
        "tiers": [],
        "lanes": Lane::ALL.map(|lane| lane_row(&app, lane, 0)),
        "tokens_per_second": app.minute.tokens(),
        "latency": latency(&app),
        "queue": {"running": 0, "waiting": app.gate.queued().requests},
    });
    if let Ok(served) = app.served() {
        let (counts, hold) = (served.engine.counts(), served.engine.hold());
        body["model"] = json!(served.names.first());
        body["tiers"] = tiers(hold, &counts);
        body["lanes"] = json!(Lane::ALL.map(|lane| lane_row(&app, lane, counts.lane_busy_ns[lane.index()])));
        body["queue"]["running"] = json!(counts.running);
        body["totals"] = json!({
            "prompt_tokens": counts.prompt_tokens,
            "cached_tokens": counts.cached_tokens,
            "generated_tokens": counts.generated_tokens,
            "moved_blocks": counts.moved_blocks,
            "steps": counts.steps,
        });
    }
    routes::json(body.to_string())
}

fn state(phase: &Phase) -> &'static str {
    match phase {
        Phase::Loading => "loading the model",
        Phase::Ready => "ready",
        Phase::Draining | Phase::Ending => "shutting down",
        Phase::Dead(_) => "the engine has stopped",
    }
}

/// What each tier has, in bytes. `reserved_bytes` of a part are set apart for it, `used_bytes` hold something.
fn tiers(hold: &Hold, counts: &Counts) -> Value {
    let block_bytes = hold.kv_bytes / hold.kv_blocks.max(1) as u64;
    let device = [
        full("weights", hold.weight_bytes),
        full("activations", hold.work_bytes),
        full("process", hold.process_bytes),
        part("kv", counts.kv_blocks_used * block_bytes, hold.kv_bytes),
    ];
    // Which of the host's blocks are in use is not counted yet; the pool is set apart as a whole.
    let host = [full("kv", hold.host_kv_bytes)];
    json!([
        tier("device", hold.limit_bytes - hold.host_kv_bytes.min(hold.limit_bytes), &device),
        tier("host", hold.host_kv_bytes, &host),
        tier("disk", 0, &[]),
    ])
}

/// A part that is full from the start.
fn full(name: &str, bytes: u64) -> Value {
    part(name, bytes, bytes)
}

fn part(name: &str, used_bytes: u64, reserved_bytes: u64) -> Value {
    json!({"part": name, "used_bytes": used_bytes, "reserved_bytes": reserved_bytes})
}

fn tier(name: &str, capacity_bytes: u64, parts: &[Value]) -> Value {
    let used: u64 = parts.iter().filter_map(|part| part["used_bytes"].as_u64()).sum();
    json!({"tier": name, "capacity_bytes": capacity_bytes, "used_bytes": used, "parts": parts})
}

/// `busy`: the share of each second of the last minute, the newest last.
fn lane_row(app: &App, lane: Lane, busy_ns: u64) -> Value {
    let name = match lane {
        Lane::Device => "device",
        Lane::Host => "host",
        Lane::Up => "up",
        Lane::Down => "down",
        Lane::DiskRead => "disk_read",
        Lane::DiskWrite => "disk_write",
        Lane::PeerIn => "peer_in",
        Lane::PeerOut => "peer_out",
    };
    json!({"lane": name, "used": busy_ns > 0, "busy_s": busy_ns as f64 / 1e9, "busy": app.minute.busy(lane)})
}

/// Of the last minute, in seconds; null where nothing was measured.
fn latency(app: &App) -> Value {
    let now = app.minute.latencies();
    let of = |histogram: &Histogram, counts: &[u64]| json!({"p50": histogram.quantile(counts, 0.5), "p95": histogram.quantile(counts, 0.95)});
    json!({
        "first_token_s": of(&app.metrics.first_token, &now.first_token),
        "next_token_s": of(&app.metrics.next_token, &now.next_token),
    })
}
