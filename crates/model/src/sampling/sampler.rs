//! The sampler of one sequence.
//!
//! Order of operations, as in vLLM: log-probabilities from the raw logits; allowed tokens; grammar; minimum
//! length; bad words; bias; repetition, then frequency and presence penalties; the most probable token if the
//! temperature is 0; else temperature, min-p, top-k, top-p, and a draw. Of equal logits the lowest
//! id counts as the larger. The token depends on the logits, the sequence's own tokens, the seed and
//! the position; on nothing else.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};

use kernels::pick::{Change, Draw, Edit, Pick};

use super::draw::Draws;
use super::logprobs::{TokenLogprobs, logprobs_of};
use super::row::{BLOCK, argmax, count_above, exp, mass};
use super::{Grammar, Guide, SampleError, SamplingParams};

/// A token, and what the model thought of it where that was asked for.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampled {
    /// The token.
    pub token: u32,
    /// Present if the parameters ask for log-probabilities.
    pub logprobs: Option<TokenLogprobs>,
}

/// Takes one sequence's tokens from its logits.
#[derive(Debug)]
pub struct Sampler {
    params: SamplingParams,
    draws: Draws,
    /// Ids masked until `min_tokens` are there: the model's own, so many, then those that were asked for.
    enders: Vec<u32>,
    eos: usize,
    /// Tokens of the prompt, if a penalty wants them.
    prompt: HashSet<u32>,
    /// How often each token was generated, if a penalty wants it.
    generated: HashMap<u32, u32>,
    position: u64,
    /// The newest tokens, as many as the longest bad word has before its last.
    tail: Vec<u32>,
    /// Where the text is in its grammar, if it has one and has begun: of those that wait there may be many.
    guide: Option<Box<dyn Guide>>,
}

/// What the taking of a token needs for so long. It is the thread's, as there are fewer of them than sequences.
#[derive(Debug, Default)]
struct Scratch {
    /// Edited logits.
    row: Vec<f32>,
    candidates: Vec<Candidate>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// Bytes that a thread keeps, or takes for a while, at most to take tokens from rows of so many logits.
pub fn scratch_bytes_at_most(vocab: usize) -> usize {
    // The lightest candidates are found by the weights of all; a list that grows may have room for twice as many.
    vocab * (2 * size_of::<f32>() + 2 * size_of::<Candidate>())
}

/// A logit, scaled by temperature and relative to the largest (or the weight made of it), and its
/// token.
pub(super) type Candidate = (f32, u32);

impl Sampler {
    /// A sampler for a sequence with this `prompt`.
    ///
    /// `eos`: ids that end a text. `seed`: used where the parameters have none.
    pub fn new(params: SamplingParams, prompt: &[u32], eos: &[u32], seed: u64) -> Self {
        let eos = if params.ends_at_eos() { eos } else { &[] };
        Sampler {
            draws: Draws::new(params.seed.unwrap_or(seed)),
            enders: [eos, &params.stop_token_ids].concat(),
            eos: eos.len(),
            tail: Vec::new(),
            prompt: if params.repetition_penalty == 1.0 {
                HashSet::new()
            } else {
                prompt.iter().copied().collect()
            },
            generated: HashMap::new(),
            position: 0,
            guide: None,
            params,
        }
    }

    /// The parameters.
    pub fn params(&self) -> &SamplingParams {
        &self.params
    }

    /// Tokens taken so far.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Takes the next token. `logits`: `[vocab]` f32, as the model computed them.
    pub fn sample(&mut self, logits: &[f32]) -> Result<Sampled, SampleError> {
        let token = SCRATCH.with_borrow_mut(|Scratch { row, candidates }| {
            if !self.edits() {
                return self.pick(logits, candidates);
            }
            row.clear();
            row.extend_from_slice(logits);
            self.edit(logits, row)?;
            self.pick(row, candidates)
        })?;
        let logprobs = match self.params.logprobs {
            Some(n) => Some(logprobs_of(logits, token, n as usize)?),
            None => None,
        };
        self.accept(token);
        Ok(Sampled { token, logprobs })
    }

    /// Whether the next token can be taken without knowing the last ones: nothing counts them.
    pub fn takes_blindly(&self) -> bool {
        !self.penalises() && self.params.bad_words.is_empty()
    }

    /// What a device is told that takes the next token itself, after so many `taken` ones that are to be
    /// [accepted](Sampler::accept) yet; none if the logits are needed here: for log-probabilities, for a grammar, or where
    /// tokens are allowed by name.
    ///
    /// # Panics
    /// If tokens were taken and not accepted that must be known to take the next: see [`takes_blindly`](Sampler::takes_blindly).
    pub fn for_device(&self, taken: u64) -> Option<Pick> {
        assert!(taken == 0 || self.takes_blindly(), "{taken} tokens are not known that count for the next");
        let p = &self.params;
        if p.logprobs.is_some() || p.allowed_token_ids.is_some() || p.grammar.is_some() {
            return None;
        }
        let draw = Draw {
            u: self.draws.uniform(self.position + taken),
            scale: 1.0 / p.temperature,
            floor: floor(p),
            top_k: p.top_k,
            top_p: p.top_p,
        };
        Some(Pick {
            edits: self.changes(taken),
            repetition: p.repetition_penalty,
            frequency: p.frequency_penalty,
            presence: p.presence_penalty,
            draw: (!p.is_greedy()).then_some(draw),
        })
    }

    /// What [`edit`](Sampler::edit) does to single logits, by token.
    fn changes(&self, taken: u64) -> Vec<Edit> {
        let mut edits = Vec::new();
        let mut push = |id: u32, change: Change| edits.push(Edit { id, change });
        self.too_early(self.position + taken)
            .iter()
            .chain(&self.bad())
            .for_each(|&id| push(id, Change::Mask));
        self.params.logit_bias.iter().for_each(|&(id, bias)| push(id, Change::Add(bias)));
        self.repeated().for_each(|id| push(id, Change::Repeated));
        self.generated.iter().for_each(|(&id, &times)| push(id, Change::Counted(times)));
        edits.sort_by_key(|edit| edit.id);
        edits
    }

    /// Tokens of prompt and text, each once, if that counts.
    fn repeated(&self) -> impl Iterator<Item = u32> {
        let again = self.generated.keys().filter(|id| !self.prompt.contains(id));
        let counts = self.params.repetition_penalty != 1.0;
        self.prompt.iter().chain(again).copied().filter(move |_| counts)
    }

    /// Counts a token that was taken elsewhere (a sequence that is resumed, a device that picks).
    pub fn accept(&mut self, token: u32) {
        if self.penalises() {
            *self.generated.entry(token).or_insert(0) += 1;
        }
        if let Some(grammar) = &self.params.grammar {
            let guide = place_in(grammar, &mut self.guide);
            if self.enders.contains(&token) { guide.end() } else { guide.accept(token) }
        }
        self.remember(token);
        self.position += 1;
    }

    fn remember(&mut self, token: u32) {
        if self.params.bad_words.is_empty() {
            return;
        }
        let longest = self.params.bad_words.iter().map(|word| word.len() - 1).max().unwrap_or(0);
        self.tail.push(token);
        self.tail.drain(..self.tail.len().saturating_sub(longest));
    }

    /// Tokens that would complete a bad word.
    fn bad(&self) -> Vec<u32> {
        let words = self.params.bad_words.iter().filter_map(|word| word.split_last());
        words.filter(|(_, before)| self.tail.ends_with(before)).map(|(&last, _)| last).collect()
    }

    fn penalises(&self) -> bool {
        let p = &self.params;
        p.repetition_penalty != 1.0 || p.presence_penalty != 0.0 || p.frequency_penalty != 0.0
    }

    /// Ids that would end the text too early, as its token at `position`.
    fn too_early(&self, position: u64) -> &[u32] {
        match position < u64::from(self.params.min_tokens) {
            true => &self.enders,
            // They are there for a format that leaves nothing else.
            false if self.params.ignore_eos => &self.enders[..self.eos],
            false => &[],
        }
    }

    fn edits(&self) -> bool {
        self.penalises()
            || !self.too_early(self.position).is_empty()
            || !self.params.logit_bias.is_empty()
            || !self.params.bad_words.is_empty()
            || self.params.allowed_token_ids.is_some()
            || self.params.grammar.is_some()
    }

    /// Applies everything that changes single logits. A masked logit may have hidden damage, so the
    /// row is checked first.
    fn edit(&mut self, logits: &[f32], row: &mut [f32]) -> Result<(), SampleError> {
        argmax(logits)?;
        if let Some(allowed) = &self.params.allowed_token_ids {
            row.fill(f32::NEG_INFINITY);
            for id in allowed.iter().map(|&id| id as usize).filter(|&id| id < logits.len()) {
                row[id] = logits[id];
            }
        }
        if let Some(grammar) = &self.params.grammar {
            let (ends, asked) = self.enders.split_at(self.eos);
            place_in(grammar, &mut self.guide).mask(row, ends, asked)?;
        }
        if !self.too_early(self.position).is_empty() && !self.must_end(row) {
            self.too_early(self.position).iter().for_each(|&id| change(row, id, |_| f32::NEG_INFINITY));
        }
        self.bad().into_iter().for_each(|id| change(row, id, |_| f32::NEG_INFINITY));
        for &(id, bias) in &*self.params.logit_bias {
            change(row, id, |x| x + bias);
        }
        self.penalise(row);
        Ok(())
    }

    /// Whether a grammar leaves nothing but an end, however early it is.
    fn must_end(&self, row: &[f32]) -> bool {
        let open = |(id, x): (u32, &f32)| *x > f32::NEG_INFINITY && !self.enders.contains(&id);
        self.params.grammar.is_some() && !(0..).zip(row).any(open)
    }

    fn penalise(&self, row: &mut [f32]) {
        let p = &self.params;
        let r = p.repetition_penalty;
        self.repeated().for_each(|id| change(row, id, |x| repeated(x, r)));
        for (&id, &n) in &self.generated {
            change(row, id, |x| x - p.frequency_penalty * n as f32 - p.presence_penalty);
        }
    }

    fn pick(&self, row: &[f32], candidates: &mut Vec<Candidate>) -> Result<u32, SampleError> {
        let (best, max) = argmax(row)?;
        if self.params.is_greedy() {
            return Ok(best);
        }
        let scale = 1.0 / self.params.temperature;
        let u = self.draws.uniform(self.position);
        let p = &self.params;
        if p.top_k.is_none() && p.top_p == 1.0 && p.min_p == 0.0 {
            return Ok(draw_from_row(row, max, scale, u, best));
        }
        truncate(p, row, max, scale, candidates);
        Ok(draw_from_candidates(candidates, u, best))
    }
}

fn place_in<'a>(grammar: &Grammar, guide: &'a mut Option<Box<dyn Guide>>) -> &'a mut dyn Guide {
    guide.get_or_insert_with(|| grammar.begin()).as_mut()
}

/// Changes the logit of `id`, if the row has it (an id of a wider vocabulary cannot come anyway).
fn change(row: &mut [f32], id: u32, new: impl Fn(f32) -> f32) {
    if let Some(x) = row.get_mut(id as usize) {
        *x = new(*x);
    }
}

/// What a repetition makes of a logit. A finite one stays so, however near to zero the penalty is.
fn repeated(x: f32, penalty: f32) -> f32 {
    let changed = if x > 0.0 { x / penalty } else { x * penalty };
    if x.is_finite() { changed.clamp(f32::MIN, f32::MAX) } else { changed }
}

/// Draws from the whole row: finds the block in which the mass passes `u`, then the token in it.
fn draw_from_row(row: &[f32], max: f32, scale: f32, u: f64, best: u32) -> u32 {
    let masses: Vec<f64> = row.chunks(BLOCK).map(|block| mass(block, max, scale)).collect();
    let mut left = u * masses.iter().sum::<f64>();
    for (b, &mass) in masses.iter().enumerate() {
        if left >= mass {
            left -= mass;
            continue;
        }
        let start = b * BLOCK;
        let mut last = best;
        for (i, &x) in row[start..].iter().take(BLOCK).enumerate() {
            let p = f64::from(exp((x - max) * scale));
            if p > 0.0 {
                last = (start + i) as u32;
                if left < p {
                    break;
                }
                left -= p;
            }
        }
        return last;
    }
    best
}

/// Ids whose candidates' weights are added up together.
const GROUP: u32 = 64;

/// Draws among weighted candidates, in order of id so that how they were found does not matter: finds the group of ids in
/// which the mass passes `u`, then the token in it. A device does the same, its groups side by side.
fn draw_from_candidates(candidates: &[Candidate], u: f64, best: u32) -> u32 {
    let groups = || candidates.chunk_by(|a, b| a.1 / GROUP == b.1 / GROUP);
    let mass = |group: &[Candidate]| group.iter().map(|&(weight, _)| f64::from(weight)).sum::<f64>();
    let mut left = u * groups().map(mass).sum::<f64>();
    for group in groups() {
        let mass = mass(group);
        if left >= mass {
            left -= mass;
            continue;
        }
        for &(weight, id) in group {
            if left < f64::from(weight) {
                return id;
            }
            left -= f64::from(weight);
        }
        return group.last().map_or(best, |last| last.1);
    }
    candidates.last().map_or(best, |last| last.1)
}

/// Leaves the tokens that min-p, top-k and top-p admit in `out`, in order of id, with their weights
/// (probabilities relative to the largest).
pub(super) fn truncate(p: &SamplingParams, row: &[f32], max: f32, scale: f32, out: &mut Vec<Candidate>) {
    let floor = floor(p);
    let k = p.top_k.map_or(usize::MAX, |k| k as usize);
    let cut = Cut { max, scale, floor };
    if k < row.len() {
        cut.at_least(row, k, out);
        keep_largest(out, k);
        if p.top_p < 1.0 {
            let wanted = f64::from(p.top_p) * total(out);
            keep_mass(out, wanted);
        }
        out.sort_unstable_by_key(|&(_, id)| id);
    } else if p.top_p < 1.0 {
        cut.nucleus(row, p.top_p, out);
    } else {
        cut.above(row, f32::NEG_INFINITY, out);
    }
    out.iter_mut().for_each(|(x, _)| *x = exp(*x));
}

/// Where scaled logits, relative to the largest, begin to count.
fn floor(p: &SamplingParams) -> f32 {
    if p.min_p > 0.0 { p.min_p.ln() } else { f32::NEG_INFINITY }
}

/// How a row is read: relative to its largest logit, scaled, and cut at a floor (min-p).
struct Cut {
    max: f32,
    scale: f32,
    floor: f32,
}

/// Depths below the largest logit at which candidates are sought: the first that gives enough is
/// enough, and rarely holds more than a few hundred.
const DEPTHS: [f32; 5] = [2.0, 5.0, 10.0, 20.0, f32::INFINITY];

impl Cut {
    /// Candidates at or above the floor and above `-depth`.
    fn above(&self, row: &[f32], threshold: f32, out: &mut Vec<Candidate>) {
        out.clear();
        let threshold = threshold.max(self.floor);
        for (b, block) in row.chunks(64).enumerate() {
            if !block.iter().fold(false, |any, &x| any | ((x - self.max) * self.scale >= threshold)) {
                continue;
            }
            let scaled =
                block.iter().enumerate().map(|(i, &x)| ((x - self.max) * self.scale, (b * 64 + i) as u32));
            out.extend(scaled.filter(|&(x, _)| x >= threshold && x > f32::NEG_INFINITY));
        }
    }

    /// Candidates among which the `k` largest surely are.
    fn at_least(&self, row: &[f32], k: usize, out: &mut Vec<Candidate>) {
        for depth in DEPTHS {
            let enough = depth == f32::INFINITY
                || -depth <= self.floor
                || count_above(row, self.max - depth / self.scale) >= k;
            if enough {
                // A little deeper, as the count above rounds differently from the test below.
                return self.above(row, -depth * 1.001 - 1e-3, out);
            }
        }
    }

    /// The smallest set of largest candidates that holds `top_p` of the mass above the floor.
    ///
    /// Masses are added up in buckets of similar weight; only the bucket in which the wanted mass is
    /// reached has to be looked at token by token.
    fn nucleus(&self, row: &[f32], top_p: f32, out: &mut Vec<Candidate>) {
        let scaled = |x: f32| (x - self.max) * self.scale;
        let weight = |x: f32| if x >= self.floor { exp(x) } else { 0.0 };
        let weights: Vec<f32> = row.iter().map(|&x| weight(scaled(x))).collect();
        let mut masses = [0f64; BUCKETS];
        weights.iter().for_each(|&w| masses[bucket(w)] += f64::from(w));
        let wanted = f64::from(top_p) * masses.iter().sum::<f64>();
        let (last, missing) = last_bucket(&masses, wanted);
        let heavier = |n: usize| {
            let all = weights.iter().zip(row).zip(0..);
            all.filter(move |&((&w, _), _)| bucket(w) >= n && w > 0.0)
                .map(move |((&w, &x), id)| (bucket(w), (scaled(x), id)))
        };
        out.clear();
        out.extend(heavier(last).filter(|&(b, _)| b == last).map(|(_, c)| c));
        keep_mass(out, missing);
        let Some(cutoff) = out.iter().copied().max_by(larger_first) else { return };
        let kept = heavier(last).filter(|(b, c)| *b > last || !larger_first(c, &cutoff).is_gt());
        out.clear();
        out.extend(kept.map(|(_, c)| c));
    }
}

/// Buckets of weights: the exponent and three bits of the fraction of a number in [0, 1].
const BUCKETS: usize = (0x3f80_0000 >> 20) + 1;

fn bucket(weight: f32) -> usize {
    ((weight.to_bits() >> 20) as usize).min(BUCKETS - 1)
}

/// The bucket, from the heaviest weights down, in which the mass reaches `wanted`, and how much of
/// it is wanted there.
fn last_bucket(masses: &[f64; BUCKETS], wanted: f64) -> (usize, f64) {
    let mut missing = wanted;
    let mut last = BUCKETS - 1;
    for (b, &mass) in masses.iter().enumerate().rev().filter(|(_, m)| **m > 0.0) {
        last = b;
        if mass >= missing {
            break;
        }
        missing -= mass;
    }
    (last, missing)
}

fn total(candidates: &[Candidate]) -> f64 {
    candidates.iter().map(|&(x, _)| f64::from(exp(x))).sum()
}

fn larger_first(a: &Candidate, b: &Candidate) -> std::cmp::Ordering {
    b.0.total_cmp(&a.0).then(a.1.cmp(&b.1))
}

fn keep_largest(candidates: &mut Vec<Candidate>, k: usize) {
    if k < candidates.len() {
        candidates.select_nth_unstable_by(k, larger_first);
        candidates.truncate(k);
    }
}

/// Keeps the fewest of the largest whose mass reaches `wanted`: a quickselect by mass, not by count.
fn keep_mass(candidates: &mut Vec<Candidate>, wanted: f64) {
    let (mut kept, mut end, mut mass) = (0, candidates.len(), 0.0);
    while end - kept > 1 {
        let middle = (end - kept) / 2;
        let open = &mut candidates[kept..end];
        open.select_nth_unstable_by(middle, larger_first);
        let upper = total(&open[..middle]);
        if mass + upper >= wanted {
            end = kept + middle;
        } else {
            mass += upper;
            kept += middle;
        }
    }
    candidates.truncate(end.max(1));
}
