//! Linears whose panels live on the host, computed there instead of brought to the device (FlexGen's computation
//! delegation, section 4.2, for weights): activations go down, the columns of those panels come up.
//!
//! The host computes with the same panels in the same order, so the bits are those of the device.

use std::ops::Range;

use kernels::arena::{Buf, Full};
use kernels::device::{Device, Matrix, Rows, Sink};
use kernels::linear::{PANEL_ROWS, RowOrder};
use spec::{ModelSpec, Tier};

use super::linear::{Away, Linear};
use super::work::WorkSize;

/// A host that computes with the panels of a part of a layer that live there.
#[derive(Clone, Copy)]
pub struct Host<'a> {
    /// What computes, and whose memory the panels are in.
    pub device: &'a dyn Device,
    /// The panels, as the cut lays them out.
    pub panels: Buf,
    /// Where activations go.
    pub work: &'a HostWork,
    /// Copies buffers of one memory to as many of another.
    pub copy: &'a Copying<'a>,
}

/// A copy from one memory to another, of buffers of the same sizes.
pub type Copying<'a> = dyn Fn((&dyn Device, &[Buf]), (&dyn Device, &[Buf])) + 'a;

/// The host's memory for the activations of one linear.
pub struct HostWork {
    input: Buf,
    bias: Buf,
    output: Buf,
}

impl HostWork {
    /// Takes the memory of batches of `size` from the host.
    ///
    /// # Errors
    /// [`Full`] when it has too little left.
    pub fn take(host: &mut dyn Device, spec: &ModelSpec, size: WorkSize) -> Result<HostWork, Full> {
        let [input, bias, output] = HostWork::sizes(spec, size).map(|bytes| host.take(bytes));
        Ok(HostWork { input: input?, bias: bias?, output: output? })
    }

    /// Bytes that [`take`](HostWork::take) will take, rounding included.
    pub fn bytes(spec: &ModelSpec, size: WorkSize) -> usize {
        HostWork::sizes(spec, size).map(|bytes| bytes.next_multiple_of(kernels::arena::PAGE)).iter().sum()
    }

    fn sizes(spec: &ModelSpec, size: WorkSize) -> [usize; 3] {
        let widest_in = spec.hidden.max(spec.ffn).max(spec.q_rows());
        let widest_out = spec.hidden.max(2 * spec.ffn).max(spec.q_rows() + 2 * spec.kv_rows());
        let tokens = size.tokens;
        [tokens * widest_in * size.dtype.bytes(), 4 * widest_out, 4 * tokens * widest_out]
    }
}

/// Where a linear's columns go, from the first on.
struct Target {
    rows: Rows,
    first: usize,
    /// Columns in all.
    columns: usize,
}

/// A linear whose input is on the host.
pub(super) struct Begun {
    input: Rows,
    matrix: Matrix,
    bias: Option<Buf>,
    sink: Sink,
    output: Rows,
    target: Target,
    columns: Range<usize>,
}

impl Host<'_> {
    /// Brings what the panels that live here are computed with, if there are any: before the device begins with its own,
    /// so that both compute side by side where the device does not make its caller wait.
    pub(super) fn begin(
        &self,
        device: &dyn Device,
        x: Rows,
        linear: &Linear,
        bias: Option<Buf>,
        sink: Sink,
    ) -> Option<Begun> {
        let away = linear.away.iter().find(|away| away.home == Tier::Host)?;
        let input = Rows { buf: self.work.input.slice(0, x.rows * x.cols * x.dtype.bytes()), ..x };
        (self.copy)((device, &[x.buf.slice(0, input.buf.bytes())]), (self.device, &[input.buf]));
        let bias = bias.map(|bias| {
            let here = self.work.bias.slice(0, bias.bytes());
            (self.copy)((device, &[bias]), (self.device, &[here]));
            here
        });
        let parts = vec![(away.first_panel, self.panels.slice(away.at, away.bytes))];
        let matrix = Matrix { parts, ..linear.here.clone() };
        let target = target(sink, matrix.n);
        let (rows, dtype, cols) = (target.rows.rows, target.rows.dtype, target.columns);
        let output = Rows { buf: self.work.output.slice(0, rows * cols * dtype.bytes()), dtype, rows, cols };
        let columns = columns(&matrix, away, cols);
        let begun = Begun { input, matrix, bias, sink: sink_into(sink, output), output, target, columns };
        if matches!(sink, Sink::Add(_)) {
            self.exchange(device, &begun, Direction::Down);
        }
        Some(begun)
    }

    /// Computes, and brings the device its columns.
    pub(super) fn finish(&self, device: &dyn Device, begun: &Begun) {
        self.device.linear(begun.input, &begun.matrix, begun.bias, begun.sink);
        self.exchange(device, begun, Direction::Up);
    }

    /// Copies some columns of all rows.
    fn exchange(&self, device: &dyn Device, begun: &Begun, direction: Direction) {
        let Begun { output: here, target, columns, .. } = begun;
        let size = here.dtype.bytes();
        let of_row = |row| {
            let there = (row * target.rows.cols + target.first + columns.start) * size;
            let own = (row * here.cols + columns.start) * size;
            let bytes = columns.len() * size;
            (target.rows.buf.slice(there, bytes), here.buf.slice(own, bytes))
        };
        // All rows at once: a device that is far carries them together.
        let (there, own): (Vec<Buf>, Vec<Buf>) = (0..here.rows).map(of_row).unzip();
        match direction {
            Direction::Down => (self.copy)((device, &there), (self.device, &own)),
            Direction::Up => (self.copy)((self.device, &own), (device, &there)),
        }
    }
}

#[derive(Clone, Copy)]
enum Direction {
    Down,
    Up,
}

fn target(sink: Sink, n: usize) -> Target {
    match sink {
        Sink::Store(rows) | Sink::Add(rows) | Sink::Act(_, rows) => Target { rows, first: 0, columns: n },
        Sink::Gated(_, rows) => Target { rows, first: 0, columns: n / 2 },
        Sink::StoreAt(rows, first) => Target { rows, first, columns: n },
    }
}

fn sink_into(sink: Sink, output: Rows) -> Sink {
    match sink {
        Sink::Store(_) | Sink::StoreAt(..) => Sink::Store(output),
        Sink::Add(_) => Sink::Add(output),
        Sink::Act(kind, _) => Sink::Act(kind, output),
        Sink::Gated(kind, _) => Sink::Gated(kind, output),
    }
}

/// The columns that some panels make.
fn columns(matrix: &Matrix, away: &Away, all: usize) -> Range<usize> {
    let wide = if matrix.order == RowOrder::Gated { PANEL_ROWS / 2 } else { PANEL_ROWS };
    let panels = away.bytes / kernels::linear::panel_bytes(matrix.format, matrix.k).max(1);
    away.first_panel * wide..((away.first_panel + panels) * wide).min(all)
}
