//! What a scheduler keeps for those who begin with the same tokens, where it goes, and how it comes back.

use policy::sched::{BlockConfig, Fcfs, FcfsConfig, Next, Preempt, ReadOrCompute, Schedule, Scheduler};
use spec::{
    BLOCK_TOKENS, BlockHash, ByTier, Chunk, Done, Kept, Nanos, Outcome, PrefixUse, Produced, Request,
    Sampling, SeqId, Step, Tier, Tokens,
};

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

/// Room for a sequence is reserved to its end there, and it shares what nobody holds as well as what others do.
#[test]
fn schedules_of_blocks_share_what_the_device_kept() {
    for schedule in [Schedule::Continuous, Schedule::Zigzag, Schedule::Diagonal] {
        let block = BlockConfig { schedule, batches: 2, batch_seqs: 2, ..BlockConfig::default() };
        let mut scheduler = Fcfs::new(FcfsConfig {
            max_num_batched_tokens: Tokens(4096),
            blocks: ByTier { device: 24, host: 0, disk: 0 },
            block,
            ..FcfsConfig::default()
        });
        arrives(&mut scheduler, 0, (1, 8), 1);
        assert_eq!(begins(&mut scheduler, 0, |_| false).0, Tokens::ZERO);
        // One beside nobody, and two at once.
        arrives(&mut scheduler, 1, (1, 8), 1);
        assert_eq!(begins(&mut scheduler, 1, |_| false).0, Tokens::of_blocks(8), "{schedule:?}");
        (2..4).for_each(|id| arrives(&mut scheduler, id, (1, 8), 20));
        // Diagonal lets some time pass between them.
        let steps: Vec<Step> = std::iter::from_fn(|| step(&mut scheduler)).collect();
        let begins = |seq| steps.iter().flat_map(Step::chunks).find(|chunk| chunk.seq == SeqId(seq)).unwrap();
        (2..4).for_each(|id| assert_eq!(begins(id).span.start, Tokens::of_blocks(8), "{schedule:?}"));
        (4..9).for_each(|id| arrives(&mut scheduler, id, (u128::from(id % 2), 10), 40));
        while step(&mut scheduler).is_some() {}
        let gave_way = scheduler.preempted().of_sequences;
        assert!(schedule == Schedule::Continuous || gave_way == 0, "{schedule:?}");
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
