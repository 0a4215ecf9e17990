//! Lane timelines: every span is in every format, on its lane, at its time.

use sim::draw::{Format, label};
use spec::{Lane, LaneSpan, Nanos, Op, Part, RankId, Tier};

fn spans() -> Vec<LaneSpan> {
    let span = |rank, lane, start, end, label: &str| LaneSpan {
        rank: RankId(rank),
        lane,
        start: Nanos(start),
        end: Nanos(end),
        label: label.into(),
    };
    vec![
        span(0, Lane::Up, 1_000, 3_000, "weights of MLP 3 from host to device"),
        span(0, Lane::Device, 2_000, 5_000, "mlp 2 batch 0"),
        span(1, Lane::Device, 5_000, 9_000, "a <new> & \"odd\" one"),
    ]
}

fn parsed(format: Format) -> serde_json::Value {
    serde_json::from_str(&format.draw(&spans())).expect("it is JSON")
}

#[test]
fn a_file_is_named_by_its_format() {
    assert_eq!(Format::of_name("a.svg"), Some(Format::Svg));
    assert_eq!(Format::of_name("a.trace.json"), Some(Format::TraceEvents));
    assert_eq!(Format::of_name("trace.json"), Some(Format::Json));
    assert_eq!(Format::of_name("a.png"), None);
}

#[test]
fn a_picture_has_a_row_a_lane_and_a_titled_bar_a_span() {
    let svg = Format::Svg.draw(&spans());
    assert_eq!(svg.matches("class=\"bar\"").count(), 3);
    assert_eq!(svg.matches("<title>").count(), 3);
    for row in ["0 Up 25 %", "0 Device 38 %", "1 Device 50 %"] {
        assert!(svg.contains(row), "{row} is not in {svg}");
    }
    assert!(svg.contains("<title>a &lt;new&gt; &amp; &quot;odd&quot; one: 4.0 us</title>"), "{svg}");
    // 8 us are 1,200 wide, from 150 on.
    assert!(svg.contains("x=\"300.00\" y=\"19.0\" width=\"450.00\""), "{svg}");
    assert!(svg.ends_with("</svg>\n"));
}

#[test]
fn no_spans_are_an_empty_picture() {
    assert!(!Format::Svg.draw(&[]).contains("NaN"));
}

#[test]
fn json_is_a_list_of_spans_in_nanoseconds() {
    let first = &parsed(Format::Json)["spans"][0];
    let expected = serde_json::json!({
        "rank": 0, "lane": "Up", "start_ns": 1_000, "end_ns": 3_000, "label": "weights of MLP 3 from host to device"
    });
    assert_eq!(*first, expected);
}

#[test]
fn trace_events_name_ranks_and_lanes_and_count_in_microseconds() {
    let trace = parsed(Format::TraceEvents);
    let events = trace["traceEvents"].as_array().expect("a list");
    let of = |phase: &str| events.iter().filter(|e| e["ph"] == phase).collect::<Vec<_>>();
    assert_eq!(of("M").len(), 2 + 3, "two ranks, three lanes");
    assert_eq!(of("X").len(), 3);
    let mlp = of("X")[1];
    assert_eq!((mlp["ts"].as_f64(), mlp["dur"].as_f64()), (Some(2.0), Some(3.0)));
    let thread = of("M").into_iter().find(|e| e["name"] == "thread_name" && e["tid"] == mlp["tid"]);
    assert_eq!(thread.expect("its lane has a name")["args"]["name"], "Device");
}

#[test]
fn ops_are_told_in_words() {
    let load = Op::LoadWeights { part: Part::Attention(7), from: Tier::Disk, to: Tier::Host };
    assert_eq!(label(&load), "weights of attention 7 from disk to host");
    assert_eq!(label(&Op::Attend { layer: 3, batch: 0, on: Tier::Host }), "attend 3 batch 0 on host");
}
