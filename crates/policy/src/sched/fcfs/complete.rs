//! What a finished step changes.

use super::Fcfs;
use crate::kv::State;
use spec::{Done, Outcome, Produced, SeqId, Tier, Tokens};

impl Fcfs {
    /// Takes in what a step brought. Steps and sequences that are no longer known count nothing.
    pub(super) fn finish(&mut self, done: &Done) {
        let Some(at) = self.flights.iter().position(|flight| flight.step == done.step) else { return };
        let flight = self.flights.remove(at).expect("just found");
        let came = self.hold.arrive(done.step, &done.lost, self.newest());
        let asked = flight.fetched_for.and_then(|seq| self.table.get_mut(seq));
        if let Some(sequence) = asked {
            (sequence.coming, sequence.fetched) = (0, sequence.fetched + came);
        }
        for &(seq, upto) in &flight.chunks {
            self.advance(seq, upto);
        }
        for outcome in &done.outcomes {
            self.count(outcome);
        }
        let left = |&(seq, _): &(SeqId, Tokens)| {
            self.table.get(seq).is_some_and(|s| s.leaving && s.in_flight == 0).then_some(seq)
        };
        let left: Vec<SeqId> = flight.chunks.iter().filter_map(left).collect();
        left.into_iter().for_each(|seq| self.retire(seq));
    }

    /// A sequence is not wanted any more. One that is in a step stays until that is done: a client that has its last token
    /// leaves before the step ends, and what that computed of the prompt is for others too.
    pub(super) fn leave(&mut self, seq: SeqId) {
        match self.table.get_mut(seq) {
            Some(sequence) if sequence.in_flight > 0 && sequence.state == State::Running => {
                sequence.leaving = true;
            }
            _ => self.retire(seq),
        }
    }

    fn advance(&mut self, seq: SeqId, upto: Tokens) {
        let Some(sequence) = self.table.get_mut(seq) else { return };
        sequence.in_flight -= 1;
        if sequence.state != State::Waiting {
            sequence.done = sequence.done.max(upto);
        }
    }

    fn count(&mut self, outcome: &Outcome) {
        let newest = self.newest();
        let Some(sequence) = self.table.get_mut(outcome.seq) else { return };
        if outcome.produced == Produced::Failed {
            // Steps before this one may have spoiled it, or whoever computed what it began with: so all who began alike are doubtful.
            let first = sequence.shared_under().first().copied();
            for doubtful in self.table.who_began_with(first) {
                self.hold.distrust(doubtful.shared_under(), newest);
                doubtful.share_no_more();
            }
            return self.retire(outcome.seq);
        }
        outcome.full.iter().for_each(|full| sequence.learn(full.index as usize, full.hash));
        sequence.fresh().into_iter().for_each(|(hash, block)| self.hold.publish(hash, block));
        sequence.generated += Tokens(u32::from(outcome.produced.is_token()));
        let at_limit = sequence.generated >= sequence.request.max_new;
        if at_limit || matches!(outcome.produced, Produced::Last | Produced::Stuck) {
            self.retire(outcome.seq);
        }
    }

    /// A sequence is finished or cancelled: whatever it holds is given back.
    pub(super) fn retire(&mut self, seq: SeqId) {
        let newest = self.newest();
        let Some(sequence) = self.table.remove(seq) else { return };
        self.preempted.ended(sequence.preemptions);
        Self::refund(&mut self.pace, &sequence);
        let rank = sequence.rank();
        for queue in [&mut self.queue, &mut self.running, &mut self.moving] {
            queue.remove(&rank);
        }
        for tier in Tier::ALL {
            let held: Vec<_> =
                sequence.held().filter(|(at, _)| *at == tier).map(|(_, block)| block).collect();
            self.hold.give_back(tier, &held, newest);
        }
        if sequence.introduced {
            self.releases.push(seq);
        }
    }
}
