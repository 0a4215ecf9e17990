//! What no run can beat, by its costs alone: a run that is too late by that need not be run to its end.

use super::Measured;
use super::tables::{Beside, Linear};

/// Times of ops are rounded to whole nanoseconds, down by as much at the most.
const ROUNDED_S: f64 = 1e-9;

impl Measured {
    /// Seconds that a position takes on the device at the least in batches of up to so many, whatever goes on beside them: of each
    /// layer's linears what they take over the best number of rows; of the last layer's MLP, which only takes those that sample,
    /// nothing.
    pub fn position_s(&self, most: u32) -> f64 {
        let row = |linear| self.row_s(linear, f64::from(most.max(1)));
        let [qkv, out, mlp] = [&self.tables.qkv, &self.tables.out, &self.tables.mlp].map(row);
        let layers = self.dims.layers as f64;
        layers * (qkv + out) + (layers - 1.0).max(0.0) * mlp
    }

    fn row_s(&self, linear: &Linear, most: f64) -> f64 {
        // Of a line the ratio is least at one of its ends.
        let ends = linear.seconds.points().iter().map(|(rows, _)| *rows).filter(|rows| *rows < most);
        let least =
            ends.chain([most]).map(|rows| linear.seconds.at(rows) / rows).fold(f64::INFINITY, f64::min);
        let quicker = quicker(&self.tables.beside) + quicker(&self.tables.beside_copies);
        (least * (1.0 - quicker).max(0.0) - ROUNDED_S).max(0.0)
    }
}

/// The share by which a linear was measured to be quicker beside something, if it was: noise.
fn quicker(beside: &Beside) -> f64 {
    (1.0 - beside.few_rows.min(beside.many_rows)).max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::{Curve, Dims, ElementBytes, Tables};
    use crate::pipeline::{Delegation, DiskPath};

    /// Two layers, whose linears take this over so many rows, and `few` times as long beside the drive.
    fn costs(points: &[(f64, f64)], few: f64) -> Measured {
        let linear = || Linear { seconds: Curve::new(points.to_vec()), ..Linear::default() };
        let beside = Beside { few_rows: few, ..Beside::default() };
        Measured {
            tables: Tables { qkv: linear(), out: linear(), mlp: linear(), beside, ..Tables::default() },
            dims: Dims { layers: 2, ..Dims::named("opt-125m").expect("published") },
            bytes: ElementBytes { weight: 2.0, kv: 2.0, hidden: 4.0, attended: 2.0 },
            from_disk: Vec::new(),
            from_host: Vec::new(),
            delegation: Delegation::Never,
            disk_path: DiskPath::Direct,
            windows: Vec::new(),
            link: None,
            sparse: None,
        }
    }

    #[test]
    fn no_number_of_rows_takes_less_for_each() {
        let points = [(1.0, 1.0), (16.0, 2.0), (64.0, 12.0), (256.0, 32.0)];
        for (most, rows) in
            [(1, 1.0), (8, 8.0), (16, 16.0), (40, 16.0), (64, 16.0), (256, 16.0), (9000, 16.0)]
        {
            let costs = costs(&points, 1.0);
            let each = costs.tables.qkv.seconds.at(rows) / rows;
            // Two layers of two linears, and one of the last.
            let least = costs.position_s(most);
            assert!((least - 5.0 * each).abs() < 1e-7 && least <= 5.0 * each, "{most}: {least}, {each}");
            for rows in 1..=most {
                let rows = f64::from(rows);
                assert!(least <= 5.0 * costs.tables.qkv.seconds.at(rows) / rows, "{most}: {rows}");
            }
        }
        // What was measured to be quicker beside something may be.
        assert!(costs(&points, 0.5).position_s(16) <= 0.5 * costs(&points, 1.0).position_s(16));
        assert_eq!(costs(&[], 1.0).position_s(16), 0.0, "nothing was measured");
    }
}
