//! A lane timeline as a picture: a row for each lane of each rank, how busy it is, a bar for each span, the time below.

use super::extent;
use spec::{Lane, LaneSpan, Nanos, RankId};
use std::collections::BTreeSet;
use std::fmt::Write;

const LEFT: f64 = 150.0;
const WIDTH: f64 = 1200.0;
const ROW: f64 = 30.0;
const TOP: f64 = 16.0;

/// Kinds by the first word of a label, with a colour each; anything else is grey.
const COLOURS: [(&str, &str); 13] = [
    ("weights", "#c44e52"),
    ("kv", "#dd8452"),
    ("move", "#937860"),
    ("hidden", "#ccb974"),
    ("queries", "#64b5cd"),
    ("attended", "#64b5cd"),
    ("attend", "#4c72b0"),
    ("choose", "#a1b9dd"),
    ("qkv", "#8172b3"),
    ("out", "#8172b3"),
    ("mlp", "#55a868"),
    ("head", "#2f7d46"),
    ("send", "#da8bc3"),
];

/// The picture's text. Times count from the first span.
pub fn svg(spans: &[LaneSpan]) -> String {
    let rows: Vec<(RankId, Lane)> =
        spans.iter().map(|span| (span.rank, span.lane)).collect::<BTreeSet<_>>().into_iter().collect();
    let (begin, end) = extent(spans);
    let scale = WIDTH / (end - begin).0.max(1) as f64;
    let x = |at: Nanos| LEFT + (at - begin).0 as f64 * scale;
    let bottom = TOP + rows.len() as f64 * ROW;
    let mut text = head(LEFT + WIDTH + 20.0, bottom + 60.0);
    for (row, &place) in rows.iter().enumerate() {
        let y = TOP + row as f64 * ROW;
        let mine = spans.iter().filter(|span| (span.rank, span.lane) == place);
        let busy: u64 = mine.clone().map(|span| (span.end - span.start).0).sum();
        let share = busy as f64 / (end - begin).0.max(1) as f64;
        text += &row_head(y, place, share);
        mine.for_each(|span| text += &bar(span, y, x(span.start), x(span.end)));
    }
    text + &axis(bottom, (end - begin).0 as f64) + &legend(spans, bottom + 44.0) + "</svg>\n"
}

fn head(width: f64, height: f64) -> String {
    let style = "text{font:12px sans-serif;fill:#333}rect.bar{stroke:#fff;stroke-width:.3}rect.bar:hover{stroke:#000}";
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\">\n<style>{style}</style>\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"#fff\"/>\n"
    )
}

fn row_head(y: f64, (rank, lane): (RankId, Lane), share: f64) -> String {
    let (middle, tall) = (y + ROW * 0.62, ROW - 6.0);
    format!(
        "<text x=\"8\" y=\"{middle:.1}\">{rank} {} {:.0} %</text>\n\
         <rect x=\"{LEFT}\" y=\"{:.1}\" width=\"{WIDTH}\" height=\"{tall}\" fill=\"#f3f3f3\"/>\n",
        lane.name(),
        share * 100.0,
        y + 3.0,
    )
}

fn bar(span: &LaneSpan, y: f64, from: f64, to: f64) -> String {
    let (label, width) = (escaped(&span.label), (to - from).max(0.2));
    let took = duration((span.end - span.start).0 as f64);
    // A letter is about seven wide; what does not fit is in the title.
    let inside = if width > 7.0 * span.label.len() as f64 {
        format!("<text x=\"{:.2}\" y=\"{:.1}\" pointer-events=\"none\">{label}</text>", from + 3.0, y + 19.0)
    } else {
        String::new()
    };
    format!(
        "<rect class=\"bar\" x=\"{from:.2}\" y=\"{:.1}\" width=\"{width:.2}\" height=\"{}\" fill=\"{}\">\
         <title>{label}: {took}</title></rect>{inside}\n",
        y + 3.0,
        ROW - 6.0,
        colour(&span.label),
    )
}

fn axis(bottom: f64, total_ns: f64) -> String {
    let mut text = String::new();
    for tick in 0..=8 {
        let (x, at) = (LEFT + WIDTH * f64::from(tick) / 8.0, total_ns * f64::from(tick) / 8.0);
        let anchor = if tick == 8 { "end" } else { "middle" };
        let line = format!("<line x1=\"{x}\" x2=\"{x}\" y1=\"{TOP}\" y2=\"{bottom}\" stroke=\"#ddd\"/>");
        let told = duration(at);
        writeln!(
            text,
            "{line}<text x=\"{x}\" y=\"{}\" text-anchor=\"{anchor}\">{told}</text>",
            bottom + 18.0
        )
        .expect("a string takes all");
    }
    text
}

fn legend(spans: &[LaneSpan], y: f64) -> String {
    let kinds: BTreeSet<&str> = spans.iter().map(|span| kind(&span.label)).collect();
    let known = COLOURS.iter().filter(|(name, _)| kinds.contains(name));
    let mut text = String::new();
    for (at, (name, colour)) in known.enumerate() {
        let x = LEFT + 95.0 * at as f64;
        writeln!(
            text,
            "<rect x=\"{x}\" y=\"{}\" width=\"12\" height=\"12\" fill=\"{colour}\"/><text x=\"{}\" y=\"{y}\">{name}</text>",
            y - 10.0,
            x + 17.0
        )
        .expect("a string takes all");
    }
    text
}

fn kind(label: &str) -> &str {
    label.split(' ').next().unwrap_or_default()
}

fn colour(label: &str) -> &'static str {
    COLOURS.iter().find(|(name, _)| *name == kind(label)).map_or("#999999", |(_, colour)| colour)
}

fn duration(ns: f64) -> String {
    match ns {
        ns if ns >= 1e9 => format!("{:.2} s", ns / 1e9),
        ns if ns >= 1e6 => format!("{:.2} ms", ns / 1e6),
        ns if ns >= 1e3 => format!("{:.1} us", ns / 1e3),
        ns => format!("{ns:.0} ns"),
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
