//! Curves as SVG, on two logarithmic axes: throughput against latency.

use std::fmt::Write;

/// A line of a chart.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    /// What it is.
    pub name: String,
    /// Its points, (x, y), all positive.
    pub points: Vec<(f64, f64)>,
}

/// Some curves.
#[derive(Clone, Debug, PartialEq)]
pub struct Chart {
    /// Above all.
    pub title: String,
    /// Below the horizontal axis.
    pub x: String,
    /// Beside the vertical axis.
    pub y: String,
    /// The curves.
    pub curves: Vec<Curve>,
}

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 440.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 170.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 50.0;
/// Colours that are told apart by those who see fewer (Okabe and Ito).
const COLOURS: [&str; 6] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"];

/// From values to decades and pixels.
struct Axis {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl Axis {
    fn over(values: impl Iterator<Item = f64>, from: f64, to: f64) -> Axis {
        let (low, high) =
            values.fold((f64::MAX, f64::MIN), |(low, high), v| (low.min(v.log10()), high.max(v.log10())));
        let (low, high) = if low <= high { (low.floor(), high.ceil()) } else { (0.0, 1.0) };
        Axis { low, high: high.max(low + 1.0), from, to }
    }

    fn at(&self, value: f64) -> f64 {
        self.from + (value.log10() - self.low) / (self.high - self.low) * (self.to - self.from)
    }

    fn decades(&self) -> impl Iterator<Item = f64> {
        (self.low as i32..=self.high as i32).map(|power| 10f64.powi(power))
    }
}

impl Chart {
    /// The picture.
    pub fn svg(&self) -> String {
        let points = || self.curves.iter().flat_map(|curve| curve.points.iter());
        let x = Axis::over(points().map(|point| point.0), LEFT, WIDTH - RIGHT);
        let y = Axis::over(points().map(|point| point.1), HEIGHT - BOTTOM, TOP);
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" \
             font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
        );
        text(&mut svg, WIDTH / 2.0, 22.0, &self.title);
        text(&mut svg, (LEFT + WIDTH - RIGHT) / 2.0, HEIGHT - 10.0, &self.x);
        text(&mut svg, LEFT, TOP - 8.0, &self.y);
        for value in x.decades() {
            line(&mut svg, (x.at(value), TOP), (x.at(value), HEIGHT - BOTTOM));
            text(&mut svg, x.at(value), HEIGHT - BOTTOM + 16.0, &value.to_string());
        }
        for value in y.decades() {
            line(&mut svg, (LEFT, y.at(value)), (WIDTH - RIGHT, y.at(value)));
            text(&mut svg, LEFT - 30.0, y.at(value) + 4.0, &value.to_string());
        }
        for (index, curve) in self.curves.iter().enumerate() {
            draw(&mut svg, curve, index, &x, &y);
        }
        svg + "</svg>\n"
    }
}

fn draw(svg: &mut String, curve: &Curve, index: usize, x: &Axis, y: &Axis) {
    let colour = COLOURS[index % COLOURS.len()];
    let mut path = String::new();
    for (px, py) in &curve.points {
        let _ = write!(path, "{:.1},{:.1} ", x.at(*px), y.at(*py));
    }
    let _ = writeln!(
        svg,
        "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
        path.trim_end()
    );
    // A curve of one point is a point.
    for (px, py) in &curve.points {
        let _ = writeln!(
            svg,
            "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"3\" fill=\"{colour}\"/>",
            x.at(*px),
            y.at(*py)
        );
    }
    let top = TOP + 18.0 * (index as f64 + 1.0);
    let _ = writeln!(
        svg,
        "<text x=\"{:.1}\" y=\"{top:.1}\" fill=\"{colour}\">{}</text>",
        WIDTH - RIGHT + 12.0,
        escaped(&curve.name)
    );
}

fn line(svg: &mut String, (x1, y1): (f64, f64), (x2, y2): (f64, f64)) {
    let _ = writeln!(svg, "<path d=\"M{x1:.1} {y1:.1}L{x2:.1} {y2:.1}\" stroke=\"#ddd\"/>");
}

fn text(svg: &mut String, x: f64, y: f64, words: &str) {
    let _ = writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"middle\">{}</text>", escaped(words));
}

fn escaped(words: &str) -> String {
    words.replace('&', "&amp;").replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn larger_is_further_right_and_higher() {
        let curve = Curve { name: "a < b".into(), points: vec![(1.0, 1.0), (100.0, 10.0)] };
        let chart = Chart { title: "t".into(), x: "x".into(), y: "y".into(), curves: vec![curve] };
        let svg = chart.svg();
        assert!(svg.contains("points=\"70.0,390.0 550.0,40.0\""), "{svg}");
        assert!(svg.contains("a &lt; b"));
        assert!(svg.contains("cx=\"550.0\" cy=\"40.0\""), "{svg}");
    }
}
