//! Blocks kept for reuse: what counts as copied to the host, and how it comes back.

use policy::kv::Hold;
use policy::sched::{Fcfs, FcfsConfig, Next, Preempt, ReadOrCompute, Scheduler};
use spec::{
    BLOCK_TOKENS, BlockHash, BlockId, ByTier, Chunk, Done, Kept, Nanos, Outcome, PrefixUse, Produced,
    Request, Sampling, SeqId, Step, StepId, Tier, Tokens,
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
    let copies = hold.save((Tier::Device, Tier::Host), 9, StepId(0)).len();
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
    let found = hold.find_on(Tier::Host, &hashes);
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
    assert_eq!(hold.find_on(Tier::Host, &[BlockHash(1)]).len(), 1);
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

/// A sequence computed a prompt of these blocks and is gone.
fn prompt_rests(hold: &mut Hold, hashes: &[BlockHash]) {
    let blocks = hold.take(Tier::Device, hashes.len()).unwrap();
    hashes.iter().zip(&blocks).for_each(|(&hash, &block)| hold.publish(hash, block));
    hold.give_back(Tier::Device, &blocks, None);
}

/// How many of a prompt's blocks a sequence can begin with when one of this tier had to go.
fn left_after_one_is_taken(hold: &mut Hold, tier: Tier, hashes: &[BlockHash]) -> usize {
    hold.settle(None);
    hold.take(tier, 1).unwrap();
    hold.find_on(tier, hashes).len()
}

#[test]
fn a_prefix_that_came_up_loses_its_end_first_on_the_host() {
    let hashes = [1, 2, 3, 4].map(BlockHash);
    let mut hold = hold(8, 4);
    prompt_rests(&mut hold, &hashes);
    assert_eq!(saves(&mut hold), 4);
    let found = hold.find_on(Tier::Host, &hashes);
    let fresh = hold.take(Tier::Device, 4).unwrap();
    hold.promote(&found, &fresh, StepId(1));
    hold.give_back(Tier::Device, &fresh, None);
    assert_eq!(left_after_one_is_taken(&mut hold, Tier::Host, &hashes), 3);
}

#[test]
fn a_prefix_that_was_fetched_loses_its_end_first_where_it_was_and_where_it_is() {
    let hashes = [1, 2, 3, 4].map(BlockHash);
    for tier in [Tier::Host, Tier::Disk] {
        let mut hold = Hold::new(ByTier { device: 4, host: 4, disk: 4 });
        prompt_rests(&mut hold, &hashes);
        assert_eq!(hold.save((Tier::Device, Tier::Disk), 9, StepId(0)).len(), 4);
        hold.arrive(StepId(0), &[], None);
        let found = hold.find_on(Tier::Disk, &hashes);
        hold.fetch(Tier::Host, &found, StepId(1));
        assert_eq!(hold.arrive(StepId(1), &[], None), 4);
        assert_eq!(left_after_one_is_taken(&mut hold, tier, &hashes), 3, "{tier:?}");
    }
}

#[test]
fn what_is_on_its_way_while_it_is_found_to_be_spoiled_is_of_no_use_to_anybody() {
    let hashes = [1, 2].map(BlockHash);
    let mut hold = Hold::new(ByTier { device: 4, host: 4, disk: 4 });
    prompt_rests(&mut hold, &hashes);
    assert_eq!(hold.save((Tier::Device, Tier::Disk), 9, StepId(0)).len(), 2);
    hold.distrust(&hashes[1..], Some(StepId(0)));
    hold.arrive(StepId(0), &[], None);
    let found = hold.find_on(Tier::Disk, &hashes);
    assert_eq!(found.len(), 1, "the other is not spoiled");
    hold.fetch(Tier::Host, &found, StepId(1));
    hold.distrust(&hashes, Some(StepId(1)));
    hold.arrive(StepId(1), &[], None);
    hold.settle(None);
    for tier in Tier::ALL {
        assert_eq!((hold.kept(tier), hold.available(tier)), (0, 4), "{tier:?}");
        hold.check(tier, [].into_iter());
    }
}

fn check_taken(hold: &Hold, taken: &[BlockId]) {
    hold.check(Tier::Host, taken.iter().copied());
    hold.check(Tier::Device, [].into_iter());
}

const PIECE: usize = 2;

fn scheduler() -> Fcfs {
    with_below(64, 0)
}

fn with_below(host: u32, disk: u32) -> Fcfs {
    Fcfs::new(FcfsConfig {
        max_num_batched_tokens: Tokens(4096),
        blocks: ByTier { device: 24, host, disk },
        max_move_blocks: PIECE,
        max_drive_blocks: PIECE,
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
    step_but_for(scheduler, |_| false)
}

/// The same, in which some copies fail.
fn step_but_for(scheduler: &mut Fcfs, fails: impl Fn(&Kept) -> bool) -> Option<Step> {
    step_with(scheduler, fails, as_asked)
}

fn as_asked(chunk: &Chunk) -> Produced {
    match chunk.sample {
        Sampling::Skip => Produced::Nothing,
        Sampling::Sample => Produced::Token,
    }
}

/// The same, in which sequence `seq` ends so.
fn step_that_ends(scheduler: &mut Fcfs, seq: u64, so: Produced) {
    let produced = |chunk: &Chunk| if chunk.seq == SeqId(seq) { so } else { as_asked(chunk) };
    step_with(scheduler, |_| false, produced).expect("it goes on");
    assert!(!scheduler.knows(SeqId(seq)), "it has ended");
}

fn step_with(
    scheduler: &mut Fcfs,
    fails: impl Fn(&Kept) -> bool,
    produced: impl Fn(&Chunk) -> Produced,
) -> Option<Step> {
    let Next::Run(step) = scheduler.next(Nanos(0)) else { return None };
    scheduler.check();
    let outcomes = step.chunks().map(|c| Outcome { seq: c.seq, produced: produced(c), full: Vec::new() });
    let lost = step.kept.iter().filter(|kept| fails(kept)).cloned().collect();
    scheduler.complete(Nanos(0), &Done { step: step.id, outcomes: outcomes.collect(), lost });
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
    for (produced, shared) in [(Produced::Last, 2), (Produced::Stuck, 2), (Produced::Failed, 0)] {
        let mut scheduler = scheduler();
        arrives(&mut scheduler, 0, (1, 2), 9);
        step_that_ends(&mut scheduler, 0, produced);
        arrives(&mut scheduler, 1, (1, 2), 9);
        let begins = begins(&mut scheduler, 1, |_| false);
        assert_eq!(begins, (Tokens::of_blocks(shared), 0), "{produced:?}");
    }
}

#[test]
fn what_a_sequence_computed_before_it_failed_is_kept_no_longer() {
    // A token that is no number may come long after what made it so.
    let mut scheduler = scheduler();
    arrives(&mut scheduler, 0, (1, 4), 9);
    step(&mut scheduler).unwrap();
    arrives(&mut scheduler, 1, (1, 4), 9);
    assert_eq!(begins(&mut scheduler, 1, |_| false), (Tokens::of_blocks(4), 0), "it shares them");
    step_that_ends(&mut scheduler, 0, Produced::Failed);
    arrives(&mut scheduler, 2, (1, 4), 9);
    assert_eq!(begins(&mut scheduler, 2, |_| false), (Tokens::ZERO, 0));
    while step(&mut scheduler).is_some() {}
    arrives(&mut scheduler, 3, (1, 4), 9);
    assert_eq!(begins(&mut scheduler, 3, |_| false), (Tokens::of_blocks(4), 0), "the new ones are kept");
}

#[test]
fn what_others_computed_after_the_same_beginning_is_doubtful_too() {
    // The other is done with its prompt when the first fails, or in its midst, or begins in that very step.
    for before in [2, 1, 0] {
        let mut scheduler = Fcfs::new(FcfsConfig {
            max_num_batched_tokens: Tokens::of_blocks(6),
            depth: 1,
            blocks: ByTier { device: 64, host: 0, disk: 0 },
            ..FcfsConfig::default()
        });
        arrives(&mut scheduler, 0, (1, 4), 9);
        step(&mut scheduler).unwrap();
        arrives(&mut scheduler, 1, (1, 12), 9);
        (0..before).for_each(|_| _ = step(&mut scheduler).unwrap());
        step_that_ends(&mut scheduler, 0, Produced::Failed);
        while step(&mut scheduler).is_some() {}
        arrives(&mut scheduler, 2, (1, 4), 1);
        assert_eq!(begins(&mut scheduler, 2, |_| false), (Tokens::ZERO, 0));
        arrives(&mut scheduler, 3, (1, 12), 1);
        assert_eq!(
            begins(&mut scheduler, 3, |_| false),
            (Tokens::of_blocks(4), 0),
            "{before}: those of 2 alone"
        );
    }
}

#[test]
fn who_waited_while_another_failed_shares_as_before() {
    let mut scheduler = Fcfs::new(FcfsConfig {
        max_num_seqs: 1,
        depth: 1,
        blocks: ByTier { device: 64, host: 0, disk: 0 },
        ..FcfsConfig::default()
    });
    arrives(&mut scheduler, 0, (1, 4), 9);
    step(&mut scheduler).unwrap();
    [1, 2].into_iter().for_each(|id| arrives(&mut scheduler, id, (1, 4), 1));
    step_that_ends(&mut scheduler, 0, Produced::Failed);
    assert_eq!(begins(&mut scheduler, 1, |_| false), (Tokens::ZERO, 0));
    assert_eq!(begins(&mut scheduler, 2, |_| false), (Tokens::of_blocks(4), 0));
}

#[test]
fn a_sequence_that_shares_most_of_what_it_has_is_not_moved_to_the_host() {
    for (topics, moves) in [([1, 1, 1], false), ([1, 2, 3], true)] {
        let mut scheduler = Fcfs::new(FcfsConfig {
            depth: 1,
            preempt: Preempt::Swap,
            blocks: ByTier { device: if moves { 31 } else { 12 }, host: 100, disk: 0 },
            ..FcfsConfig::default()
        });
        arrives(&mut scheduler, 9, (topics[0], 8), 1);
        step(&mut scheduler).unwrap();
        (0..3).zip(topics).for_each(|(id, topic)| arrives(&mut scheduler, id, (topic, 8), 100));
        while step(&mut scheduler).is_some() {}
        let preempted = scheduler.preempted();
        let again = preempted.recomputed.device;
        assert_eq!((preempted.swapped > 0, again > 0), (moves, !moves), "{preempted:?}");
    }
}

#[test]
fn copies_of_what_a_failed_sequence_began_with_are_kept_no_longer() {
    for host in [0, 4] {
        let mut scheduler = with_below(host, 64);
        comes_again(&mut scheduler, |_| false);
        assert_eq!(begins(&mut scheduler, 3, |_| false), (Tokens::of_blocks(8), 8), "the drive has them");
        arrives(&mut scheduler, 4, (1, 8), 9);
        step(&mut scheduler).unwrap();
        step_that_ends(&mut scheduler, 4, Produced::Failed);
        while step(&mut scheduler).is_some() {}
        arrives(&mut scheduler, 5, (1, 8), 9);
        assert_eq!(begins(&mut scheduler, 5, |_| false), (Tokens::ZERO, 0), "host {host}");
        while step(&mut scheduler).is_some() {}
    }
}

fn down(kept: &Kept) -> bool {
    kept.to == Tier::Disk
}

/// A prompt of eight blocks about topic 1 came and went, others took its room on every tier in memory, and it comes again.
fn comes_again(scheduler: &mut Fcfs, fails: impl Fn(&Kept) -> bool) {
    for (id, prompt) in [(0, (1, 8)), (1, (2, 12)), (2, (3, 23))] {
        arrives(scheduler, id, prompt, 1);
        while step_but_for(scheduler, &fails).is_some() {}
    }
    arrives(scheduler, 3, (1, 8), 1);
}

/// Where a sequence begins, and how many blocks come from the drive before.
fn begins(scheduler: &mut Fcfs, seq: u64, fails: impl Fn(&Kept) -> bool) -> (Tokens, usize) {
    let mut came = 0;
    loop {
        let step = step_but_for(scheduler, &fails).unwrap();
        let reads = step.kept.iter().filter(|kept| kept.from == Tier::Disk);
        let read: usize = reads.map(|kept| kept.blocks.len()).sum();
        assert!(read <= PIECE, "{read} blocks come in one step");
        came += read;
        if let Some(chunk) = step.chunks().find(|chunk| chunk.seq == SeqId(seq)) {
            return (chunk.span.start, came);
        }
    }
}

#[test]
fn what_nobody_has_room_for_in_memory_comes_back_from_the_drive() {
    // With a host that has room for half of it, and with none.
    for host in [0, 4] {
        let mut scheduler = with_below(host, 64);
        comes_again(&mut scheduler, |_| false);
        assert_eq!(begins(&mut scheduler, 3, |_| false), (Tokens::of_blocks(8), 8), "host {host}");
        assert_eq!((scheduler.fetched(), scheduler.promoted()), (8, 0), "host {host}");
        // The device has it now.
        arrives(&mut scheduler, 4, (1, 8), 1);
        assert_eq!(begins(&mut scheduler, 4, |_| false), (Tokens::of_blocks(8), 0), "host {host}");
        assert_eq!(scheduler.fetched(), 8, "host {host}");
    }
}

/// Pieces of a prompt are read one after the other; the drive then forgets its end first.
#[test]
fn a_prompt_that_came_in_pieces_is_forgotten_from_its_end() {
    let mut scheduler = with_below(0, 50);
    comes_again(&mut scheduler, |_| false);
    assert_eq!(begins(&mut scheduler, 3, |_| false), (Tokens::of_blocks(8), 8));
    while step(&mut scheduler).is_some() {}
    for (id, topic) in [(4, 5), (6, 6)] {
        arrives(&mut scheduler, id, (topic, 23), 1);
        while step(&mut scheduler).is_some() {}
    }
    arrives(&mut scheduler, 5, (1, 8), 1);
    assert_eq!(begins(&mut scheduler, 5, |_| false), (Tokens::of_blocks(4), 4));
}

#[test]
fn a_step_writes_as_many_blocks_to_the_drive_as_it_computes() {
    let mut scheduler = with_below(0, 64);
    arrives(&mut scheduler, 0, (1, 10), 1);
    while step(&mut scheduler).is_some() {}
    arrives(&mut scheduler, 1, (2, 12), 1);
    let step = step(&mut scheduler).unwrap();
    let written: usize = step.kept.iter().filter(|kept| down(kept)).map(|kept| kept.blocks.len()).sum();
    assert_eq!(written, 10);
}

#[test]
fn what_cannot_be_read_from_the_drive_is_computed_and_not_asked_for_again() {
    let mut scheduler = with_below(0, 64);
    comes_again(&mut scheduler, |_| false);
    let up = |kept: &Kept| kept.from == Tier::Disk;
    // The first piece is lost; the rest of the prompt is of no use without it.
    assert_eq!(begins(&mut scheduler, 3, up), (Tokens::ZERO, PIECE));
    assert_eq!(scheduler.fetched(), 0);
}

#[test]
fn what_the_drive_does_not_take_is_not_looked_for_there() {
    let mut scheduler = with_below(0, 64);
    comes_again(&mut scheduler, down);
    assert_eq!(begins(&mut scheduler, 3, |_| false), (Tokens::ZERO, 0));
    while step_but_for(&mut scheduler, down).is_some() {}
    assert_eq!(scheduler.kept(Tier::Disk), 0);
}

#[test]
fn a_drive_that_is_full_gives_up_what_was_longest_unused() {
    let mut hold = Hold::new(ByTier { device: 4, host: 0, disk: 2 });
    let on_drive = |hold: &Hold, hash| !hold.find_on(Tier::Disk, &[BlockHash(hash)]).is_empty();
    let save = |hold: &mut Hold, step| {
        let copies = hold.save((Tier::Device, Tier::Disk), 9, StepId(step)).len();
        assert_eq!(hold.arrive(StepId(step), &[], None), 0, "nothing comes up");
        hold.settle(None);
        check(hold);
        copies
    };
    [1, 2].iter().for_each(|hash| _ = rests(&mut hold, *hash));
    assert_eq!(save(&mut hold, 0), 2);
    // Who begins with the first one makes it the newer.
    let found = hold.find_on(Tier::Disk, &[BlockHash(1)]);
    hold.fetch(Tier::Device, &found, StepId(1));
    assert_eq!(hold.arrive(StepId(1), &[], None), 1);
    hold.settle(None);
    rests(&mut hold, 3);
    assert_eq!(save(&mut hold, 2), 1);
    assert_eq!([1, 2, 3].map(|hash| on_drive(&hold, hash)), [true, false, true]);
}

#[test]
fn blocks_keep_their_turn_while_they_are_copied() {
    let mut hold = Hold::new(ByTier { device: 3, host: 0, disk: 4 });
    let blocks = [1, 2, 3].map(|hash| rests(&mut hold, hash));
    let pairs = hold.save((Tier::Device, Tier::Disk), 2, StepId(0));
    assert_eq!(pairs.iter().map(|pair| pair.0).collect::<Vec<_>>(), blocks[..2]);
    // While they are read, the third goes before them; after that they go first.
    assert_eq!(hold.available(Tier::Device), 1);
    assert_eq!(hold.arrive(StepId(0), &[], None), 0);
    hold.settle(None);
    assert_eq!(hold.take(Tier::Device, 2).map(|taken| taken.contains(&blocks[2])), Some(false));
}

#[test]
fn what_is_computed_sooner_than_it_is_read_is_computed() {
    for (read_ns, computed) in [(8, 0_u32), (100, 8)] {
        let worth = ReadOrCompute { read_ns, compute_ns: 5, attend_ns: 1 };
        let config = with_below(0, 64).config().clone();
        let mut scheduler = Fcfs::new(FcfsConfig { read_or_compute: Some(worth), ..config });
        comes_again(&mut scheduler, |_| false);
        let (begins, came) = begins(&mut scheduler, 3, |_| false);
        assert_eq!(
            (begins, came),
            (Tokens::of_blocks(8 - computed as usize), 8 - computed as usize),
            "{read_ns}"
        );
        let counted = (scheduler.fetched(), scheduler.computed_instead());
        assert_eq!(counted, (8 - u64::from(computed), computed.into()), "{read_ns}");
    }
}

#[test]
fn what_gives_way_before_it_is_written_is_counted() {
    let mut scheduler = with_below(0, 64);
    comes_again(&mut scheduler, |_| false);
    assert_eq!(scheduler.evicted_unsaved(), 0);
    let mut failing = with_below(0, 64);
    comes_again(&mut failing, down);
    assert!(failing.evicted_unsaved() >= 8, "{}", failing.evicted_unsaved());
    // Without a tier below nothing is lost to a slow drive.
    let mut alone = with_below(0, 0);
    comes_again(&mut alone, |_| false);
    assert_eq!(alone.evicted_unsaved(), 0);
}
