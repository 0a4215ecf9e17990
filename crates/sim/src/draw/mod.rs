//! Lane timelines as pictures and as data: what ran on which lane, and when.

mod label;
mod svg;
mod trace_events;

pub use label::label;
pub use svg::svg;
pub use trace_events::trace_events;

use policy::pipeline::Timing;
use spec::{LaneSpan, Nanos, Program};

/// Formats of a lane timeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// A picture: lanes as rows, what a bar is when the mouse is on it.
    Svg,
    /// A list of spans.
    Json,
    /// Chrome's trace events, for its tracing page, Perfetto and the like.
    TraceEvents,
}

impl Format {
    /// By the ending of a file's name: `.svg`, `.trace.json` or `.json`; none of these is no format.
    pub fn of_name(name: &str) -> Option<Format> {
        let endings = [(".svg", Format::Svg), (".trace.json", Format::TraceEvents), (".json", Format::Json)];
        endings.into_iter().find(|(ending, _)| name.ends_with(ending)).map(|(_, format)| format)
    }

    /// The file's text.
    pub fn draw(self, spans: &[LaneSpan]) -> String {
        match self {
            Format::Svg => svg(spans),
            Format::Json => serde_json::json!({ "spans": spans }).to_string() + "\n",
            Format::TraceEvents => trace_events(spans),
        }
    }
}

/// What a timed program did on each lane. Nodes that take no time are left out.
pub fn spans(program: &Program, timing: &Timing) -> Vec<LaneSpan> {
    let timed = program.nodes().iter().zip(&timing.nodes).filter(|(_, (begin, end))| begin < end);
    let spans = timed.flat_map(|(node, &(start, end))| {
        let place = move |(rank, lane)| LaneSpan { rank, lane, start, end, label: label(&node.op) };
        node.places().map(place)
    });
    spans.collect()
}

/// From the first beginning to the last end.
fn extent(spans: &[LaneSpan]) -> (Nanos, Nanos) {
    let begin = spans.iter().map(|span| span.start).min().unwrap_or_default();
    let end = spans.iter().map(|span| span.end).max().unwrap_or_default();
    (begin, end)
}
