//! Stories of layers that look back through a window: what lies behind it is given back, and found by whoever still looks there.

mod story;

use policy::sched::{BlockConfig, Fcfs, FcfsConfig, Next, Preempt, Schedule, Scheduler};
use spec::{
    BlockHash, ByTier, Chunk, Done, KvGroups, Nanos, Outcome, PrefixUse, Produced, Request, Sampling, SeqId,
    Tier, Tokens,
};
use story::check;

#[test]
fn what_lies_behind_a_window_is_given_back() {
    // Five blocks of each group are one more than there are.
    check(
        "
        > limits blocks=9 tokens=32 sliding=1 behind=32
        > arrive 0 prompt=128 new=20
        > next
        step 0: 0[0..32] +0,1
        > done 0
        > next
        step 1: 0[32..64] +2,3
        > done 1
        > next
        step 2: 0[64..96] +1,4
        > done 2
        > next
        step 3: 0[96..128]* +3,5
        > done 3
        > next
        step 4: 0[128..129]* +4,6
        ",
    );
}

#[test]
fn who_begins_where_a_window_still_looks_finds_what_it_looks_at() {
    check(
        "
        > limits blocks=20 tokens=128 sliding=1 behind=32
        > arrive 0 prompt=128 new=2 topic=a
        > next
        step 0: 0[0..128]* +0,1,2,3,4,5,6,7
        > done 0
        > arrive 1 prompt=130 new=2 topic=a
        > next
        step 1: 0[128..129]* +8,9 1[128..130]* +0,2,4,6,7,10,11
        > done 1
        > arrive 2 prompt=70 new=2 topic=a
        > next
        step 2: release 0 1[130..131]* 2[64..70]* +0,2,3,8,9
        ",
    );
}

/// What one computed that failed, others that began alike may have: nobody begins with what they compute from then on.
#[test]
fn what_may_be_spoiled_is_kept_for_nobody_whatever_looks_back_how_far() {
    for full in [0, 1] {
        let groups = KvGroups { full, sliding: 1, behind: Tokens(64), ahead: Tokens(64) };
        let blocks = ByTier { device: 60, host: 0, disk: 0 };
        let max_num_batched_tokens = Tokens(64);
        let mut scheduler =
            Fcfs::new(FcfsConfig { max_num_batched_tokens, blocks, groups, ..FcfsConfig::default() });
        let arrive = |scheduler: &mut Fcfs, id, prompt| {
            let (prompt, max_new) = (Tokens(prompt), Tokens(40));
            let (hashes, prefix) = ((1..9).map(BlockHash).collect(), PrefixUse::Allowed);
            let (id, arrival) = (SeqId(id), Nanos::ZERO);
            scheduler.arrive(arrival, Request { id, arrival, prompt, max_new, hashes, prefix });
        };
        let run = |scheduler: &mut Fcfs, fails: Option<SeqId>| {
            let Next::Run(step) = scheduler.next(Nanos::ZERO) else { panic!("something runs") };
            scheduler.check();
            let produced = |chunk: &Chunk| match chunk.sample {
                _ if fails == Some(chunk.seq) => Produced::Failed,
                Sampling::Sample => Produced::Token,
                Sampling::Skip => Produced::Nothing,
            };
            let outcome =
                |chunk: &Chunk| Outcome { seq: chunk.seq, produced: produced(chunk), full: Vec::new() };
            let outcomes = step.chunks().map(outcome).collect();
            scheduler.complete(Nanos::ZERO, &Done::of(step.id, outcomes));
            scheduler.kept(Tier::Device)
        };
        arrive(&mut scheduler, 0, 70);
        assert!(run(&mut scheduler, None) > 0, "what it computed is there for others");
        arrive(&mut scheduler, 1, 200);
        // The second begins with what the first computed, and has more of its prompt to compute.
        run(&mut scheduler, Some(SeqId(0)));
        for _ in 0..4 {
            assert_eq!(run(&mut scheduler, None), 0, "full groups: {full}");
        }
    }
}

#[test]
fn groups_that_nothing_can_run_with_are_refused() {
    let groups = KvGroups { full: 1, sliding: 2, behind: Tokens(64), ahead: Tokens(32) };
    let on = |[device, host, disk]: [u32; 3]| ByTier { device, host, disk };
    let fine = FcfsConfig {
        max_num_batched_tokens: Tokens(32),
        blocks: on([9, 0, 0]),
        groups,
        ..FcfsConfig::default()
    };
    let of = |groups| FcfsConfig { groups, ..fine.clone() };
    let zigzag = BlockConfig { schedule: Schedule::Zigzag, ..BlockConfig::default() };
    assert_eq!(fine.check(), Ok(()));
    for (config, why) in [
        (of(KvGroups { full: usize::MAX, ..groups }), "more than any model"),
        (of(KvGroups { full: 0, sliding: 0, ..groups }), "none"),
        (of(KvGroups { behind: Tokens(u32::MAX), ..groups }), "further than any sequence"),
        (of(KvGroups { sliding: 0, ahead: Tokens(u32::MAX), ..groups }), "further than any sequence"),
        (FcfsConfig { blocks: on([9, 1, 0]), ..fine.clone() }, "on the device alone"),
        (FcfsConfig { preempt: Preempt::Swap, ..fine.clone() }, "not moved"),
        (FcfsConfig { block: zigzag, ..fine.clone() }, "the continuous schedule alone"),
        (FcfsConfig { depth: 2, ..fine.clone() }, "all that steps in flight compute"),
    ] {
        let found = config.check().expect_err(why).to_string();
        assert!(found.contains(why), "{found}");
    }
}
