//! Blocks kept for reuse: what counts as copied to the host, and how it comes back.

use policy::kv::Hold;
use policy::sched::{Fcfs, FcfsConfig, Next, Scheduler};
use spec::{
    BLOCK_TOKENS, BlockHash, BlockId, ByTier, Done, Nanos, Outcome, PrefixUse, Produced, Request, Sampling,
    SeqId, Step, StepId, Tier, Tokens,
};

fn hold(device: u32, host: u32) -> Hold {
    Hold::new(ByTier { device, host, disk: 0 })
}

/// A device block with this content, at rest.
fn rests(hold: &mut Hold, hash: u128) -> BlockId {
    let block = hold.take(Tier::Device, 1).unwrap()[0];
    hold.publish(BlockHash(hash), block);
    hold.give_back(Tier::Device, &[block], None);
    block
}

/// How many copies go down in a step that is done at once.
fn saves(hold: &mut Hold) -> usize {
    let copies = hold.save(9, StepId(0)).len();
    hold.settle(None);
    copies
}

fn check(hold: &Hold) {
    [Tier::Device, Tier::Host].into_iter().for_each(|tier| hold.check(tier, [].into_iter()));
}

#[test]
fn a_copy_of_what_the_device_has_behind_a_gap_leaves_no_mark_on_its_block() {
    let mut hold = hold(4, 4);
    let hashes = [BlockHash(1), BlockHash(2)];
    hashes.iter().for_each(|hash| _ = rests(&mut hold, hash.0));
    assert_eq!(saves(&mut hold), 2);
    // The first is evicted, the second stays.
    let all = hold.take(Tier::Device, 3).unwrap();
    hold.give_back(Tier::Device, &all, None);
    assert_eq!(hold.find(&hashes), []);
    let found = hold.find_below(&hashes);
    let fresh = hold.take(Tier::Device, 2).unwrap();
    hold.promote(&found, &fresh, StepId(1));
    hold.give_back(Tier::Device, &fresh, None);
    hold.settle(None);
    check(&hold);
    // The block that stayed nameless is taken for something new, which is copied like anything else.
    let again = hold.take(Tier::Device, 2).unwrap();
    assert!(again.contains(&fresh[1]));
    again.iter().zip(3..).for_each(|(&block, hash)| hold.publish(BlockHash(hash), block));
    hold.give_back(Tier::Device, &again, None);
    assert_eq!(saves(&mut hold), 2);
    check(&hold);
}

#[test]
fn what_lost_its_copy_is_copied_again_when_it_rests_again() {
    let mut hold = hold(4, 1);
    let first = rests(&mut hold, 1);
    assert_eq!(saves(&mut hold), 1);
    rests(&mut hold, 2);
    assert_eq!(saves(&mut hold), 1);
    check(&hold);
    assert_eq!(saves(&mut hold), 0, "copies do not take turns");
    hold.share(&[first]);
    hold.give_back(Tier::Device, &[first], None);
    assert_eq!(saves(&mut hold), 1);
    assert_eq!(hold.find_below(&[BlockHash(1)]).len(), 1);
}

#[test]
fn copies_that_made_room_for_a_sequence_are_made_again() {
    let mut hold = hold(4, 2);
    rests(&mut hold, 1);
    assert_eq!(saves(&mut hold), 1);
    let taken = hold.take(Tier::Host, 2).unwrap();
    check_taken(&hold, &taken);
    hold.give_back(Tier::Host, &taken, None);
    assert_eq!(saves(&mut hold), 1);
    check(&hold);
}

fn check_taken(hold: &Hold, taken: &[BlockId]) {
    hold.check(Tier::Host, taken.iter().copied());
    hold.check(Tier::Device, [].into_iter());
}

const PIECE: usize = 2;

fn scheduler() -> Fcfs {
    Fcfs::new(FcfsConfig {
        max_num_batched_tokens: Tokens(4096),
        blocks: ByTier { device: 24, host: 64, disk: 0 },
        max_move_blocks: PIECE,
        ..FcfsConfig::default()
    })
}

/// A prompt of so many whole blocks about `topic`, and a token.
fn arrives(scheduler: &mut Fcfs, id: u64, (topic, blocks): (u128, u32), max_new: u32) {
    let hashes = (0..blocks).map(|i| BlockHash(topic << 64 | u128::from(i))).collect();
    let prompt = Tokens(blocks * BLOCK_TOKENS.0 + 1);
    let max_new = Tokens(max_new);
    let request =
        Request { id: SeqId(id), arrival: Nanos(id), prompt, max_new, hashes, prefix: PrefixUse::Allowed };
    scheduler.arrive(Nanos(id), request);
}

/// Runs the next step to its end.
fn step(scheduler: &mut Fcfs) -> Option<Step> {
    let Next::Run(step) = scheduler.next(Nanos(0)) else { return None };
    scheduler.check();
    let produced = |sample| match sample {
        Sampling::Skip => Produced::Nothing,
        Sampling::Sample => Produced::Token,
    };
    let outcomes =
        step.chunks().map(|c| Outcome { seq: c.seq, produced: produced(c.sample), full: Vec::new() });
    scheduler.complete(Nanos(0), &Done { step: step.id, outcomes: outcomes.collect() });
    scheduler.check();
    Some(step)
}

#[test]
fn a_long_beginning_comes_up_in_pieces_beside_those_who_wait_for_tokens() {
    let mut scheduler = scheduler();
    arrives(&mut scheduler, 0, (1, 8), 1);
    while step(&mut scheduler).is_some() {}
    // Beside another sequence its blocks are copied to the host; a third needs their room.
    arrives(&mut scheduler, 1, (2, 12), 12);
    while step(&mut scheduler).is_some() {}
    arrives(&mut scheduler, 2, (3, 23), 1);
    while step(&mut scheduler).is_some() {}
    arrives(&mut scheduler, 3, (4, 2), 30);
    step(&mut scheduler).unwrap();
    arrives(&mut scheduler, 4, (1, 8), 1);
    let mut came = 0;
    let begun = loop {
        let step = step(&mut scheduler).unwrap();
        assert!(step.chunks().any(|chunk| chunk.seq == SeqId(3)), "the other goes on");
        let up = step.kept.iter().filter(|kept| kept.to == Tier::Device);
        let up: usize = up.map(|kept| kept.blocks.len()).sum();
        assert!(up <= PIECE, "{up} blocks come up in one step");
        came += up;
        if let Some(chunk) = step.chunks().find(|chunk| chunk.seq == SeqId(4)) {
            break chunk.span;
        }
    };
    assert_eq!((came, begun.start, begun.len), (8, Tokens::of_blocks(8), Tokens(1)));
    assert_eq!(scheduler.promoted(), 8, "however many steps it took");
    arrives(&mut scheduler, 5, (1, 8), 1);
    step(&mut scheduler).unwrap();
    assert_eq!(scheduler.promoted(), 8, "the device has them now");
}

#[test]
fn nothing_that_a_failed_sequence_computed_is_kept_for_others() {
    for (produced, shared) in [(Produced::Last, 2), (Produced::Failed, 0)] {
        let mut scheduler = scheduler();
        arrives(&mut scheduler, 0, (1, 2), 9);
        let Next::Run(step) = scheduler.next(Nanos(0)) else { panic!("it fits") };
        let outcome = Outcome { seq: SeqId(0), produced, full: Vec::new() };
        scheduler.complete(Nanos(1), &Done { step: step.id, outcomes: vec![outcome] });
        scheduler.check();
        assert!(!scheduler.knows(SeqId(0)), "it has ended");
        arrives(&mut scheduler, 1, (1, 2), 9);
        let Next::Run(step) = scheduler.next(Nanos(2)) else { panic!("it fits") };
        let begins = step.chunks().next().expect("a chunk").span.start;
        assert_eq!(begins, Tokens::of_blocks(shared), "{produced:?}");
    }
}
