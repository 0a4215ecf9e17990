//! What a log says has happened so far, and whether what it says next can follow.

use policy::log::Entry;
use policy::sched::Next;
use spec::{Done, Nanos, Outcome, Produced, Sampling, SeqId, Step, StepId};
use std::collections::{BTreeMap, BTreeSet};

/// Steps in flight with their sequences, and the time.
#[derive(Default)]
pub(crate) struct Ledger {
    /// With the sequences of each, and whether it samples of them.
    in_flight: BTreeMap<StepId, Vec<(SeqId, Sampling)>>,
    arrived: Vec<SeqId>,
    /// Sequences of which a step that is done sampled, and said nothing.
    untold: BTreeSet<SeqId>,
    now: Nanos,
}

impl Ledger {
    /// Takes in the next entry; why it cannot be the next one, otherwise.
    pub(crate) fn take(&mut self, entry: &Entry) -> Result<(), String> {
        match entry {
            Entry::Begin { .. } => Err("only the first line may be Begin".into()),
            Entry::Arrive { at, request } => {
                self.arrived.push(request.id);
                self.pass(*at)
            }
            Entry::Cancel { at, .. } => self.pass(*at),
            Entry::Done { at, done } => self.pass(*at).and_then(|()| self.end(done)),
            Entry::Next { at, answer } => {
                if let Next::Run(step) = answer {
                    self.begin(step);
                }
                self.pass(*at)
            }
        }
    }

    /// Sequences that came and that the scheduler still knows of.
    pub(crate) fn open(&self, knows: impl Fn(SeqId) -> bool) -> usize {
        self.arrived.iter().filter(|&&seq| knows(seq)).count()
    }

    /// A sequence that would wait for ever: the scheduler knows of it, a step said nothing of it, and no other is in flight. Of those
    /// that were over steps say nothing.
    pub(crate) fn left_waiting(&mut self, knows: impl Fn(SeqId) -> bool) -> Option<SeqId> {
        if !self.in_flight.is_empty() {
            return None;
        }
        // Who is over is not asked for again.
        self.untold.retain(|&seq| knows(seq));
        self.untold.first().copied()
    }

    /// Steps that began and are not done.
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    fn pass(&mut self, at: Nanos) -> Result<(), String> {
        if at < self.now {
            return Err(format!("time goes back from {} ns to {} ns", self.now.0, at.0));
        }
        self.now = at;
        Ok(())
    }

    fn begin(&mut self, step: &Step) {
        self.in_flight.insert(step.id, step.chunks().map(|chunk| (chunk.seq, chunk.sample)).collect());
    }

    fn end(&mut self, done: &Done) -> Result<(), String> {
        let Some(mut chunks) = self.in_flight.remove(&done.step) else {
            return Err(format!(
                "step {} is done that is not in flight: it was done before, or never began",
                done.step
            ));
        };
        for Outcome { seq, produced, .. } in &done.outcomes {
            let (step, at) = (done.step, chunks.iter().position(|(of, _)| of == seq));
            let Some((_, sample)) = at.map(|at| chunks.remove(at)) else {
                return Err(format!(
                    "step {step} has an outcome for sequence {seq}, which is not in it, or had one"
                ));
            };
            self.untold.remove(seq);
            // Engines of before told an end with the chunk before it.
            let fits = match produced {
                Produced::Nothing => sample != Sampling::Sample,
                Produced::Token => sample == Sampling::Sample,
                Produced::Last | Produced::Stuck | Produced::Failed => true,
            };
            if !fits {
                return Err(format!(
                    "step {step} has {produced:?} for sequence {seq}, of which it has {sample:?}"
                ));
            }
        }
        let sampled = chunks.into_iter().filter(|(_, sample)| *sample == Sampling::Sample);
        self.untold.extend(sampled.map(|(seq, _)| seq));
        Ok(())
    }
}
