//! Blocks with the placements that the linear programme has for them, as far as the machine has room.

use super::case::{Case, Pinning, Policy};
use super::machine::Rates;
use super::mechanism::{Grain, Mechanism, Order};
use super::memory::{excess, peak};
use super::placement::{reachable, steps};
use super::plan::{Wanted, question};
use super::steps::countable;
use policy::plan::{BlockSize, Placed, Question, blocks, place, room};
use spec::{ByTier, HardwareSpec, Placement, Split, Tier};

/// Times that the programme is asked again with other memory, since it does not count all that is held.
const ROUNDS: usize = 6;
/// Of a tier's memory, when it is full.
const FULL: f64 = 0.99;
/// Of a tier's memory, what is aimed at: shares are rounded.
const AIM: f64 = 0.9995;
/// Candidates of which the programme thinks as well as of the best, nearly: what sets them apart it does not see.
const AS_GOOD: f64 = 0.97;
/// Times the tokens a second by which one candidate must lead another that is no sooner, to leave it out of a frontier.
const AHEAD: f64 = 1.1;
/// Candidates of a frontier that are run at the most.
const POINTS: usize = 48;

/// A policy that fits, and what the programme thinks of it.
#[derive(Clone)]
pub(super) struct Candidate {
    pub(super) case: Case,
    pub(super) placed: Placed,
}

impl Candidate {
    /// Tokens a second for each that a sequence generates, as the programme believes.
    pub(super) fn rate(&self) -> f64 {
        f64::from(self.case.policy.block()) / self.placed.seconds
    }

    /// Seconds of a request.
    pub(super) fn latency_s(&self) -> f64 {
        self.placed.seconds * f64::from(self.case.devices)
    }
}

/// All that fit, the best first.
pub(super) fn candidates(wanted: &Wanted, rates: Rates, mechanism: Mechanism) -> Vec<Candidate> {
    let machine = Machine { wanted, rates, mechanism };
    let question = question(wanted, rates, mechanism);
    let tried = wanted.block.map_or_else(|| blocks().collect(), |block| vec![block]);
    let mut found: Vec<Candidate> =
        tried.into_iter().flat_map(|block| machine.fitting(&question, block)).collect();
    found.sort_by(|a, b| b.rate().total_cmp(&a.rate()));
    found
}

/// The same block with each share of weights on the device that whole tensors come to; nothing where any share will do. The
/// programme's own share is cut down to one of these, and the best is another where room or time is short.
pub(super) fn stepwise(
    candidate: &Candidate,
    wanted: &Wanted,
    rates: Rates,
    mechanism: Mechanism,
) -> Vec<Candidate> {
    if mechanism.grain == Grain::Slices {
        return Vec::new();
    }
    let machine = Machine { wanted, rates, mechanism };
    let fixed = steps(&wanted.dims)
        .into_iter()
        .map(|share| Question { weights_on_device: Some(share), ..question(wanted, rates, mechanism) });
    fixed.flat_map(|question| machine.fitting(&question, candidate.placed.block)).collect()
}

/// `keep` of those that seem as good as the best before all others, evenly chosen among them.
pub(super) fn spread(list: Vec<Candidate>, keep: usize) -> Vec<Candidate> {
    let best = list.first().map_or(0.0, Candidate::rate);
    let alike = list.iter().take_while(|candidate| candidate.rate() >= AS_GOOD * best).count();
    let step = alike.div_ceil(keep).max(1);
    let early = |at: usize| at < alike && at.is_multiple_of(step);
    let (first, rest): (Vec<_>, Vec<_>) = (0..).zip(list).partition(|(at, _)| early(*at));
    first.into_iter().chain(rest).map(|(_, candidate)| candidate).collect()
}

/// Those that nothing sooner is far ahead of, thinned out evenly where they are many; the soonest first.
pub(super) fn worth_a_look(mut list: Vec<Candidate>) -> Vec<Candidate> {
    list.sort_by(|a, b| a.latency_s().total_cmp(&b.latency_s()));
    let mut best = 0.0_f64;
    list.retain(|candidate| {
        best = best.max(candidate.rate());
        AHEAD * candidate.rate() >= best
    });
    let step = list.len().div_ceil(POINTS).max(1);
    list.into_iter().step_by(step).collect()
}

struct Machine<'a> {
    wanted: &'a Wanted,
    rates: Rates,
    mechanism: Mechanism,
}

impl Machine<'_> {
    fn fits(&self, case: &Case) -> bool {
        countable(case, self.mechanism) && excess(case, self.rates, self.mechanism).is_empty()
    }

    /// Placements of a block, if there is room: the programme's for as much memory as what it does not count leaves of it, and
    /// with our loop that with all activations on the host too, where batches take turns in a few buffers of the device (the
    /// programme knows of shares, not of turns).
    fn fitting(&self, question: &Question, block: BlockSize) -> Vec<Candidate> {
        let turns = self.mechanism.order == Order::Buffers && block.num_batches > 1;
        let ways = std::iter::once(None).chain(turns.then_some(Some(Split::ON_HOST)));
        let found = ways.filter_map(|hidden| self.within_memory(question.clone(), block, hidden));
        found.flat_map(|found| [self.off_the_drive(&found), Some(found)]).flatten().collect()
    }

    /// With KV of the drive on the device instead, as far as there is room, and activations too if there is. For the programme of a
    /// block whose lanes all overlap, the device's time is dear and the drive's is not; the timeline knows what waits for it.
    fn off_the_drive(&self, found: &Candidate) -> Option<Candidate> {
        let case = found.case;
        let (placement, kv) = (case.policy.placement, case.policy.placement.kv);
        let on_drive = kv.part(Tier::Disk);
        if self.mechanism.order != Order::Buffers || on_drive == 0 {
            return None;
        }
        let moved = |up: u32| {
            let parts =
                ByTier { device: kv.part(Tier::Device) + up, host: kv.part(Tier::Host), disk: on_drive - up };
            Split::new(parts).expect("all of it").uncut(found.placed.block.sequences())
        };
        let shares = [1, 2, 4].map(|part| moved(on_drive / part));
        let placed = |kv, hidden| {
            let placement = Placement { kv, hidden, ..placement };
            Case { policy: Policy { placement, ..case.policy }, ..case }
        };
        let hiddens = [Placement::RESIDENT.hidden, placement.hidden];
        let tried = shares.into_iter().flat_map(|kv| hiddens.map(|hidden| placed(kv, hidden)));
        let case = tried.into_iter().find(|case| self.fits(case))?;
        Some(Candidate { case, ..found.clone() })
    }

    fn within_memory(
        &self,
        mut question: Question,
        block: BlockSize,
        hidden: Option<Split>,
    ) -> Option<Candidate> {
        let mut found = None;
        for _ in 0..ROUNDS {
            let Some(mut placed) = place(&question, block) else { break };
            let full = Tier::ALL.map(|tier| placed.peak[tier] >= FULL * room(&question)[tier as usize]);
            placed.placement.hidden = hidden.unwrap_or(placed.placement.hidden);
            let case = self.pinned_if_it_may(self.case(&placed));
            let fits = self.fits(&case);
            let last = fits && (found.is_some() || !full.contains(&true));
            if fits {
                found = Some(Candidate { case, placed });
            }
            if last {
                break;
            }
            self.give_room(&mut question, &case, full);
        }
        found
    }

    /// With its weights pinned if it may be and there is room: pinned tensors take more of it.
    fn pinned_if_it_may(&self, case: Case) -> Case {
        let pageable = Case { policy: Policy { pinning: Pinning::Off, ..case.policy }, ..case };
        let pinned_fits = case.policy.pinning != Pinning::Auto || self.fits(&case);
        if pinned_fits { case } else { pageable }
    }

    /// Gives the programme as much more of a tier that is full for it as is left of it, or as much less as is missing.
    fn give_room(&self, question: &mut Question, case: &Case, full: [bool; 3]) {
        let needs = peak(case, self.rates, self.mechanism);
        let HardwareSpec { device, host, disk, .. } = &mut question.hardware;
        let memories = [&mut device.memory, &mut host.memory, &mut disk.capacity];
        let has = [self.rates.device_bytes, self.rates.host_bytes, self.rates.disk_bytes];
        for (tier, (memory, has)) in Tier::ALL.into_iter().zip(memories.into_iter().zip(has)) {
            if full[tier as usize] || needs[tier] > has {
                memory.0 = (memory.0 as f64 + AIM * has - needs[tier]).max(0.0) as u64;
            }
        }
    }

    fn case(&self, placed: &Placed) -> Case {
        let weights = match self.mechanism.grain {
            Grain::Slices => placed.placement.weights,
            Grain::WholeTensors => reachable(&self.wanted.dims, placed.placement.weights),
        };
        let kv = match self.mechanism.order {
            Order::Barriers => placed.placement.kv,
            Order::Buffers => placed.placement.kv.uncut(placed.block.sequences()),
        };
        self.wanted.case(placed.block, Placement { weights, kv, ..placed.placement })
    }
}
