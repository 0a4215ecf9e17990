//! Attention as a textbook writes it, over pages: the reference for the other instruction sets.

use super::Task;
use super::element::{Element, Stored};
use super::layout::{BLOCK_TOKENS, Span};
use super::sparse::{choose, kept, mark};
use crate::team::Team;

/// `softmax(q k^T * scale) v` for every row and head, one after another; or what each chooses.
pub(super) fn attend<E: Stored>(team: &Team, task: &Task<'_, E>) {
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
                    mark(&chosen(task, span, 0, head), seen.start, row);
                }
            }
        }
    });
}

/// Attends once more for rows whose result is not finite. The other families weigh values of a page that a row does not see
/// by zero, which makes nothing of a number and no number of what is infinite or none: what a row comes to would depend on
/// the rows beside it. A row that itself sees such a number keeps what it has: alone it would come to the same, and a model that
/// makes nothing else would take hours to say so.
pub(super) fn attend_again<E: Stored>(team: &Team, task: &Task<'_, E>) {
    // A decode reads no value that it does not see, but before its window.
    let decode = || task.spans.iter().all(|span| span.rows.len() == 1);
    if task.out.all_finite() || task.softmax.window.is_none() && decode() {
        return;
    }
    let d = task.layout.head_dim;
    team.run(|w| {
        for span in task.spans {
            for (i, head) in w.share(span.rows.len() * task.heads).map(|i| (i / task.heads, i % task.heads)) {
                // SAFETY: workers hold different (row, head) pairs, and no row is in two spans.
                let finite = unsafe { task.out.is_finite(span.rows.start + i, head * d..(head + 1) * d) };
                if !finite && sees_numbers(task, span, i, head) {
                    attend_one(task, span, i, head);
                }
            }
        }
    });
}

/// Scores of row `i` with the keys of all positions that it sees, before the factor.
fn scores<E: Stored>(task: &Task<'_, E>, span: &Span<'_>, i: usize, head: usize) -> Vec<f32> {
    let d = task.layout.head_dim;
    let q = &task.q.row(span.rows.start + i)[head * d..][..d];
    let score = |position: usize| {
        let page = task.page(span.block_of(position), head / task.group());
        let key = |dim| E::key_at(&page, d, position % BLOCK_TOKENS, dim);
        q.iter().enumerate().fold(0.0, |sum, (dim, q)| sum + q.to_f32() * key(dim))
    };
    task.visible(span.start + i).map(score).collect()
}

/// The same, minus infinity where they do not count, if a share of them does.
fn chosen<E: Stored>(task: &Task<'_, E>, span: &Span<'_>, i: usize, head: usize) -> Vec<f32> {
    let mut scores = scores(task, span, i, head);
    if let Some(share) = task.softmax.share {
        let (keep, mut order) = (kept(share, scores.len()), scores.clone());
        choose(&mut scores, keep, &mut order);
    }
    scores
}

/// Whether the query of row `i` of `span` and all keys and values that it sees are finite, in one head.
fn sees_numbers<E: Stored>(task: &Task<'_, E>, span: &Span<'_>, i: usize, head: usize) -> bool {
    let d = task.layout.head_dim;
    let query = &task.q.row(span.rows.start + i)[head * d..][..d];
    query.iter().all(|x| x.to_f32().is_finite())
        && task.visible(span.start + i).all(|position| {
            let (page, slot) =
                (task.page(span.block_of(position), head / task.group()), position % BLOCK_TOKENS);
            let is_number = |at: fn(&_, usize, usize, usize) -> f32| {
                (0..d).all(|dim| at(&page, d, slot, dim).is_finite())
            };
            is_number(E::key_at) && is_number(E::value_at)
        })
}

/// Row `i` of `span` in one head: the weighted mean of the values.
fn attend_one<E: Stored>(task: &Task<'_, E>, span: &Span<'_>, i: usize, head: usize) {
    let (d, row) = (task.layout.head_dim, span.rows.start + i);
    let mut scores = chosen(task, span, i, head);
    task.softmax.cap_scores(&mut scores);
    scores.iter_mut().for_each(|score| *score *= task.softmax.scale);
    let largest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut sum = 0.0;
    let mut mean = [0.0f32; 256];
    // A weight of zero may not make a NaN of a value that does not count.
    let counts = |(_, score): &(usize, &f32)| **score != f32::NEG_INFINITY || task.softmax.share.is_none();
    for (position, score) in task.visible(span.start + i).zip(&scores).filter(counts) {
        let p = (score - largest).exp();
        sum += p;
        let page = task.page(span.block_of(position), head / task.group());
        for (dim, x) in mean[..d].iter_mut().enumerate() {
            *x += p * E::value_at(&page, d, position % BLOCK_TOKENS, dim);
        }
    }
    // SAFETY: workers hold different (row, head) pairs, and no row is in two spans.
    unsafe { task.out.write(row, head * d, &mean[..d], |x| x / sum) };
}
