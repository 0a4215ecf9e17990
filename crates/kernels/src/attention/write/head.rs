//! A head of queries or keys on its way: norm and rotary embedding.

use crate::attention::element::Element;
use spec::rope::Growth;

/// RMS norm of every head of q and k before they turn (Qwen3).
#[derive(Clone, Copy, Debug)]
pub struct HeadNorm<'a> {
    /// Weight for queries: `[head_dim]`.
    pub q: &'a [f32],
    /// Weight for keys: `[head_dim]`.
    pub k: &'a [f32],
    /// Added to the mean square.
    pub eps: f32,
}

/// What rotary tables have rows of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeBy {
    /// Positions from 0 on.
    Position,
    /// The batch's rows, each of which may be turned otherwise at the same position.
    Row,
}

impl RopeBy {
    /// The table's row for a row of the batch that is at `position`.
    pub fn index(self, position: usize, row: usize) -> usize {
        match self {
            RopeBy::Position => position,
            RopeBy::Row => row,
        }
    }
}

/// Tables of a rotary embedding in half-split order: dimension `i` turns with `i + rotary_dim / 2`.
#[derive(Clone, Copy, Debug)]
pub struct RopeTable<'a> {
    /// What the tables have rows of.
    pub by: RopeBy,
    /// `[positions or rows][rotary_dim / 2]`.
    pub cos: &'a [f32],
    /// `[positions or rows][rotary_dim / 2]`.
    pub sin: &'a [f32],
    /// How many of a head's first dimensions turn; even.
    pub rotary_dim: usize,
    /// How queries grow, where the tables have rows of positions.
    pub growth: Option<Growth>,
}

/// What happens to a head between projection and attention.
#[derive(Clone, Copy, Debug, Default)]
pub struct HeadOps<'a> {
    /// Norm of q and k, if the model has it.
    pub norm: Option<HeadNorm<'a>>,
    /// Rotary embedding, if the model has it.
    pub rope: Option<RopeTable<'a>>,
}

/// Numbers that are done at a time.
pub(super) const PART: usize = 16;

/// The cosines and sines of a row; none where nothing turns.
#[derive(Clone, Copy)]
pub(super) struct Turn<'a> {
    cos: &'a [f32],
    sin: &'a [f32],
    /// Of all of a head.
    factor: f32,
}

impl<'a> Turn<'a> {
    /// That of queries; keys have it [plain](Turn::plain).
    #[inline(always)]
    pub(super) fn at(rope: Option<RopeTable<'a>>, position: usize, row: usize) -> Turn<'a> {
        let Some(rope) = rope else { return Turn { cos: &[], sin: &[], factor: 1.0 } };
        let half = rope.rotary_dim / 2;
        let at = rope.by.index(position, row) * half;
        let factor = rope.growth.map_or(1.0, |growth| growth.factor(position));
        Turn { cos: &rope.cos[at..][..half], sin: &rope.sin[at..][..half], factor }
    }

    /// The same without a factor.
    #[inline(always)]
    pub(super) fn plain(self) -> Turn<'a> {
        Turn { factor: 1.0, ..self }
    }
}

/// A head as the projection gave it, and what becomes of it.
pub(super) struct Head<'a> {
    x: &'a [f32],
    /// What every number is multiplied with, and what each is.
    norm: Option<(f32, &'a [f32])>,
    turn: Turn<'a>,
}

impl<'a> Head<'a> {
    /// `norm`: weight and eps.
    #[inline(always)]
    pub(super) fn new(x: &'a [f32], norm: Option<(&'a [f32], f32)>, turn: Turn<'a>) -> Head<'a> {
        Head { x, norm: norm.map(|(weight, eps)| (over_root_mean_square(x, eps), weight)), turn }
    }

    pub(super) fn len(&self) -> usize {
        self.x.len()
    }

    /// Writes the head down, straight from the projection: what passes over a stack waits behind stores that miss the caches.
    #[inline(always)]
    pub(super) fn store<E: Element>(&self, to: &mut [E]) {
        let half = self.turn.cos.len();
        if !half.is_multiple_of(PART) {
            return self.store_by_number(to);
        }
        for at in (0..half).step_by(PART) {
            let (a, b) = (self.part(at), self.part(half + at));
            let (cos, sin) = (part(self.turn.cos, at), part(self.turn.sin, at));
            let (mut low, mut high) = ([0.0; PART], [0.0; PART]);
            for i in 0..PART {
                low[i] = (a[i] * cos[i] - b[i] * sin[i]) * self.turn.factor;
                high[i] = (b[i] * cos[i] + a[i] * sin[i]) * self.turn.factor;
            }
            put(to, at, &low);
            put(to, half + at, &high);
        }
        for at in (2 * half..self.x.len()).step_by(PART) {
            let mut x = self.part(at);
            x.iter_mut().for_each(|x| *x *= self.turn.factor);
            put(to, at, &x);
        }
    }

    /// The same where halves end inside a part.
    #[inline(always)]
    fn store_by_number<E: Element>(&self, to: &mut [E]) {
        let Turn { cos, sin, factor } = self.turn;
        let half = cos.len();
        for i in 0..half {
            let (a, b) = (self.number(i), self.number(half + i));
            to[i] = E::from_f32((a * cos[i] - b * sin[i]) * factor);
            to[half + i] = E::from_f32((b * cos[i] + a * sin[i]) * factor);
        }
        for (i, to) in to.iter_mut().enumerate().skip(2 * half) {
            *to = E::from_f32(self.number(i) * factor);
        }
    }

    /// Dims from `at` on, before they turn.
    #[inline(always)]
    fn part(&self, at: usize) -> [f32; PART] {
        let mut x = *part(self.x, at);
        if let Some((scale, weight)) = self.norm {
            let weight = part(weight, at);
            for i in 0..PART {
                x[i] = x[i] * scale * weight[i];
            }
        }
        x
    }

    #[inline(always)]
    fn number(&self, dim: usize) -> f32 {
        self.norm.map_or(self.x[dim], |(scale, weight)| self.x[dim] * scale * weight[dim])
    }
}

#[inline(always)]
pub(super) fn part(x: &[f32], at: usize) -> &[f32; PART] {
    x[at..].first_chunk().expect("dims in whole parts")
}

#[inline(always)]
fn put<E: Element>(to: &mut [E], at: usize, x: &[f32; PART]) {
    *to[at..].first_chunk_mut().expect("dims in whole parts") = narrow(x);
}

/// A part as it is stored. A loop, for what maps an array may be a call.
#[inline(always)]
pub(super) fn narrow<E: Element>(x: &[f32; PART]) -> [E; PART] {
    let mut to = [E::zeroed(); PART];
    for i in 0..PART {
        to[i] = E::from_f32(x[i]);
    }
    to
}

/// One over the root mean square. Sums run in 16 lanes, on every machine.
#[inline(always)]
fn over_root_mean_square(head: &[f32], eps: f32) -> f32 {
    let mut lanes = [0.0f32; PART];
    for part in head.as_chunks::<PART>().0 {
        for (lane, x) in lanes.iter_mut().zip(part) {
            *lane += x * x;
        }
    }
    let mean = lanes.iter().sum::<f32>() / head.len() as f32;
    1.0 / (mean + eps).sqrt()
}
