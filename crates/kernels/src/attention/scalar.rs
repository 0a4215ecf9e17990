//! Attention as a textbook writes it, over pages: the reference for the other instruction sets.

use super::Task;
use super::element::{Element, Stored};
use super::layout::{BLOCK_TOKENS, Span};
use super::sparse::{choose, kept, mark};
use crate::team::Team;

/// `softmax(q k^T * scale) v` for every row and head, one after another; or what each chooses.
pub(super) fn attend<E: Stored, O: Element>(team: &Team, task: &Task<'_, E, O>) {
    team.run(|w| {
        for (number, span) in task.spans.iter().enumerate() {
            let Some(told) = &task.chosen else {
                for i in w.share(span.rows.len() * task.heads) {
                    attend_one(task, span, i / task.heads, i % task.heads);
                }
                continue;
            };
            // Query heads that share keys tell of one row.
            for kv_head in w.share(task.layout.kv_heads) {
                let row = number * task.layout.kv_heads + kv_head;
                // SAFETY: workers hold different heads of keys.
                let row = unsafe { told.span(row, 0..told.cols()) };
                for head in kv_head * task.group()..(kv_head + 1) * task.group() {
                    let seen = task.visible(span.start);
                    mark(&chosen(task, span, 0, head).unwrap_or_default(), seen.start, row);
                }
            }
        }
    });
}

/// The score of a row's query with the key at a position.
fn score<E: Stored, O: Element>(
    task: &Task<'_, E, O>,
    span: &Span<'_>,
    (i, head): (usize, usize),
    position: usize,
) -> f32 {
    let d = task.layout.head_dim;
    let q = &task.q.row(span.rows.start + i)[head * d..][..d];
    let page = task.page(span.block_of(position), head / task.group());
    let key = |dim| E::key_at(&page, d, position % BLOCK_TOKENS, dim);
    q.iter().enumerate().fold(0.0, |sum, (dim, q)| sum + q.to_f32() * key(dim)) * task.softmax.scale
}

/// Scores of all positions that row `i` sees, minus infinity where they do not count; nothing where all do.
fn chosen<E: Stored, O: Element>(
    task: &Task<'_, E, O>,
    span: &Span<'_>,
    i: usize,
    head: usize,
) -> Option<Vec<f32>> {
    let share = task.softmax.share?;
    let seen = task.visible(span.start + i);
    let mut scores: Vec<f32> = seen.clone().map(|position| score(task, span, (i, head), position)).collect();
    let mut order = scores.clone();
    choose(&mut scores, kept(share, seen.len()), &mut order);
    Some(scores)
}

/// Row `i` of `span` in one head. Two passes over the keys: the largest score, then the weighted mean.
fn attend_one<E: Stored, O: Element>(task: &Task<'_, E, O>, span: &Span<'_>, i: usize, head: usize) {
    let (d, row) = (task.layout.head_dim, span.rows.start + i);
    let kv_head = head / task.group();
    let seen = task.visible(span.start + i);
    let score = |position| score(task, span, (i, head), position);
    let chosen = chosen(task, span, i, head);
    let counts =
        |position: usize| chosen.as_ref().is_none_or(|s| s[position - seen.start] != f32::NEG_INFINITY);
    let largest = seen.clone().map(score).fold(f32::NEG_INFINITY, f32::max);
    let mut sum = 0.0;
    let mut mean = [0.0f32; 256];
    for position in seen.clone().filter(|position| counts(*position)) {
        let p = (score(position) - largest).exp();
        sum += p;
        let page = task.page(span.block_of(position), kv_head);
        for (dim, x) in mean[..d].iter_mut().enumerate() {
            *x += p * E::value_at(&page, d, position % BLOCK_TOKENS, dim);
        }
    }
    // SAFETY: workers hold different (row, head) pairs, and no row is in two spans.
    let out = unsafe { task.out.span(row, head * d..(head + 1) * d) };
    for (out, x) in out.iter_mut().zip(mean) {
        *out = O::from_f32(x / sum);
    }
}
