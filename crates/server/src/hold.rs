//! `GET /v1/hold`: what sits where, what the lanes did in the last minute, the queue and latencies, for the page.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use serde_json::{Value, json};
use spec::Lane;

use crate::app::{App, Phase};
use crate::metrics::{Histogram, lane_name};
use crate::routes;
use crate::tiers::{Tier, tiers};

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
        body["tiers"] = tiers(hold, &counts).iter().map(tier).collect();
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

fn tier(tier: &Tier) -> Value {
    let parts = tier.parts.iter().map(|part| {
        json!({"part": part.name, "used_bytes": part.used_bytes, "reserved_bytes": part.reserved_bytes})
    });
    json!({
        "tier": tier.name,
        "capacity_bytes": tier.capacity_bytes,
        "used_bytes": tier.used_bytes(),
        "parts": parts.collect::<Value>(),
    })
}

/// `busy`: the share of each second of the last minute, the newest last.
fn lane_row(app: &App, lane: Lane, busy_ns: u64) -> Value {
    json!({"lane": lane_name(lane), "used": busy_ns > 0, "busy_s": busy_ns as f64 / 1e9, "busy": app.minute.busy(lane)})
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
