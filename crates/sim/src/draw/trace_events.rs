//! Chrome's trace event format: complete events (`ph: X`) in microseconds, ranks as processes, lanes as threads.

use serde_json::{Value, json};
use spec::{Lane, LaneSpan, RankId};
use std::collections::BTreeSet;

/// The file's text.
pub fn trace_events(spans: &[LaneSpan]) -> String {
    let rows: BTreeSet<(RankId, Lane)> = spans.iter().map(|span| (span.rank, span.lane)).collect();
    let ranks: BTreeSet<RankId> = rows.iter().map(|row| row.0).collect();
    let processes = ranks.iter().map(|rank| named("process_name", *rank, 0, &format!("rank {rank}")));
    let threads = rows.iter().map(|&(rank, lane)| named("thread_name", rank, lane.index(), lane.name()));
    let events: Vec<Value> = processes.chain(threads).chain(spans.iter().map(event)).collect();
    json!({ "displayTimeUnit": "ms", "traceEvents": events }).to_string() + "\n"
}

fn named(what: &str, rank: RankId, thread: usize, name: &str) -> Value {
    json!({ "ph": "M", "name": what, "pid": rank.0, "tid": thread, "args": { "name": name } })
}

fn event(span: &LaneSpan) -> Value {
    let us = |ns: u64| ns as f64 / 1e3;
    json!({
        "ph": "X",
        "name": span.label,
        "pid": span.rank.0,
        "tid": span.lane.index(),
        "ts": us(span.start.0),
        "dur": us((span.end - span.start).0),
    })
}
