//! Rotary tables: computed once, or for each row where the rotation depends on the sequence's length.

use std::collections::BTreeMap;

use kernels::arena::Full;
use kernels::attention::RopeBy;
use kernels::device::{Device, RopeTables};
use spec::ModelSpec;
use spec::model::RopeLayers;
use spec::rope::{Rope, RopeFrequencies, rope_frequencies};

use super::Work;
use super::load::pieces;

/// How queries and keys of each layer are turned.
pub(super) struct Rotaries {
    /// By the model's rotary embedding.
    pub(super) usual: Rotary,
    /// By that of layers with a window, where it is another one.
    of_windows: Rotary,
    which: Vec<Which>,
}

/// How a layer's are.
#[derive(Clone, Copy)]
enum Which {
    Not,
    Usual,
    OfWindows,
}

/// How queries and keys are turned.
pub(super) enum Rotary {
    /// Not at all: positions are learned, or not known.
    None,
    /// By position alone.
    Table(RopeTables),
    /// By position and length (dynamic NTK scaling, LongRoPE).
    ByRow(ByRow),
}

/// Tables that are made for each batch.
pub(super) struct ByRow {
    rope: Rope,
    head_dim: usize,
}

/// Bytes of the rotary tables that are computed once for so many positions.
pub fn rope_bytes(spec: &ModelSpec, positions: usize) -> usize {
    let ropes = [spec.rope(), of_windows(spec)].into_iter().flatten();
    let fixed = ropes.filter(|rope| !rope.depends_on_length());
    fixed.map(|rope| 2 * table_bytes(rope, spec.head_dim, positions)).sum()
}

/// The rotary embedding of layers with a window, where it is one of their own.
fn of_windows(spec: &ModelSpec) -> Option<&Rope> {
    match &spec.rope_layers {
        RopeLayers::WindowsBy(rope) => Some(rope),
        RopeLayers::All | RopeLayers::Listed(_) => None,
    }
}

fn table_bytes(rope: &Rope, head_dim: usize, positions: usize) -> usize {
    (4 * positions * rope.rotary_dims(head_dim) / 2).next_multiple_of(kernels::arena::ALIGN)
}

impl Rotaries {
    /// Computes what can be computed once, for positions up to `positions`.
    pub(super) fn load(
        spec: &ModelSpec,
        positions: usize,
        device: &mut dyn Device,
    ) -> Result<Rotaries, Full> {
        let which = |layer| match spec.rope_of(layer) {
            None => Which::Not,
            own if own == spec.rope() => Which::Usual,
            _ => Which::OfWindows,
        };
        let which = (0..spec.layers).map(which).collect();
        let mut load = |rope| Rotary::load(rope, spec, positions, device);
        Ok(Rotaries { usual: load(spec.rope())?, of_windows: load(of_windows(spec))?, which })
    }

    /// That of a layer.
    pub(super) fn of(&self, layer: usize) -> &Rotary {
        match self.which[layer] {
            Which::Not => &Rotary::None,
            Which::Usual => &self.usual,
            Which::OfWindows => &self.of_windows,
        }
    }
}

impl Rotary {
    fn load(
        rope: Option<&Rope>,
        spec: &ModelSpec,
        positions: usize,
        device: &mut dyn Device,
    ) -> Result<Rotary, Full> {
        let Some(rope) = rope else { return Ok(Rotary::None) };
        if rope.depends_on_length() {
            return Ok(Rotary::ByRow(ByRow { rope: rope.clone(), head_dim: spec.head_dim }));
        }
        let bytes = table_bytes(rope, spec.head_dim, positions);
        let tables = RopeTables {
            by: RopeBy::Position,
            cos: device.take(bytes)?,
            sin: device.take(bytes)?,
            rotary_dim: rope.rotary_dims(spec.head_dim),
            growth: rope.growth,
        };
        let frequencies = rope_frequencies(rope, spec.head_dim, positions);
        for (buf, f) in [(tables.cos, f32::cos as fn(f32) -> f32), (tables.sin, f32::sin)] {
            let row_bytes = 4 * tables.rotary_dim / 2;
            for rows in pieces(positions, row_bytes) {
                let own = buf.slice(rows.start * row_bytes, rows.len() * row_bytes);
                device.fill(&own, &mut |out| {
                    let each = rows.clone().zip(out.chunks_exact_mut(row_bytes));
                    each.for_each(|(position, row)| turn(position, &frequencies, f, row));
                });
            }
        }
        Ok(Rotary::Table(tables))
    }
}

impl ByRow {
    /// Fills the work's tables for a batch.
    pub(super) fn fill(&self, device: &dyn Device, positions: &[u32], lengths: &[u32], work: &Work) {
        let n = positions.len();
        // Rows of one class are turned alike; LongRoPE has two of them.
        let class = |length: u32| self.rope.turned_as(length as usize).unwrap_or_default();
        let mut known = BTreeMap::new();
        for &length in lengths {
            let frequencies = || rope_frequencies(&self.rope, self.head_dim, length as usize);
            known.entry(class(length)).or_insert_with(frequencies);
        }
        for (rows, f) in [(work.cos.first(n), f32::cos as fn(f32) -> f32), (work.sin.first(n), f32::sin)] {
            device.fill(&rows.buf, &mut |out| {
                let each = out.chunks_exact_mut(4 * rows.cols).zip(positions).zip(lengths);
                each.for_each(|((row, &position), &length)| {
                    turn(position as usize, &known[&class(length)], f, row);
                });
            });
        }
    }

    /// The work's tables of a batch of `n` rows.
    pub(super) fn tables(n: usize, work: &Work) -> RopeTables {
        let (cos, sin) = (work.cos.first(n).buf, work.sin.first(n).buf);
        RopeTables { by: RopeBy::Row, cos, sin, rotary_dim: 2 * work.cos.cols, growth: None }
    }
}

/// One row of a table, little-endian f32: `f(position * frequency)`, times the attention factor.
fn turn(position: usize, frequencies: &RopeFrequencies, f: fn(f32) -> f32, row: &mut [u8]) {
    for (out, frequency) in row.chunks_exact_mut(4).zip(&frequencies.inverse) {
        let value = f(position as f32 * frequency) * frequencies.attention_factor;
        out.copy_from_slice(&value.to_le_bytes());
    }
}
