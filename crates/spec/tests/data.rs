//! What the plain data promises by itself.

use spec::{
    Access, BlockHash, Buffer, ByTier, Chunk, Lane, Layout, Nanos, Op, Placement, PrefixUse, Program, RankId,
    Ranks, Request, Sampling, SeqId, Span, Split, Tensor, Tier, Tokens,
};
use std::collections::BTreeSet;

fn split(device: u32, host: u32, disk: u32) -> Split {
    Split::new(ByTier { device, host, disk }).expect("adds up")
}

#[test]
fn tokens_count_blocks() {
    let blocks = |n| (Tokens(n).blocks(), Tokens(n).full_blocks());
    assert_eq!([0, 1, 31, 32, 33, 64].map(blocks), [(0, 0), (1, 0), (1, 0), (1, 1), (2, 1), (2, 2)]);
    assert_eq!(Tokens::of_blocks(3), Tokens(96));
}

/// Logs are replayed, whoever wrote them.
#[test]
fn a_request_of_any_length_is_counted() {
    let kv_max = |prompt, max_new| {
        let (id, arrival, hashes, prefix) = (SeqId(0), Nanos::ZERO, Vec::new(), PrefixUse::Forbidden);
        Request { id, arrival, prompt: Tokens(prompt), max_new: Tokens(max_new), hashes, prefix }.kv_max()
    };
    assert_eq!((kv_max(5, 3), kv_max(0, 0)), (Tokens(7), Tokens(0)));
    assert!(kv_max(u32::MAX, 9) >= Tokens(u32::MAX - 1));
}

#[test]
fn nanoseconds_round() {
    assert_eq!(Nanos::from_secs(1.5e-9), Nanos(2));
    assert_eq!((Nanos::from_secs(-1.0), Nanos::from_secs(f64::NAN)), (Nanos(0), Nanos(0)));
    assert_eq!(Nanos(2_500_000_000).as_secs(), 2.5);
}

#[test]
fn a_split_gives_what_was_asked_and_loses_nothing() {
    for n in 0..500 {
        let of = |tier| split(200_000, 300_000, 500_000).of(tier, n);
        assert_eq!(Tier::ALL.map(of).iter().sum::<u64>(), n);
        assert!((of(Tier::Device) as f64 - 0.2 * n as f64).abs() <= 1.0, "{n}");
        assert!((of(Tier::Host) as f64 - 0.3 * n as f64).abs() <= 1.0, "{n}");
    }
    assert_eq!(Tier::ALL.map(|tier| Split::RESIDENT.of(tier, u64::MAX)), [u64::MAX, 0, 0]);
}

#[test]
fn shares_that_do_not_add_up_are_refused_also_from_text() {
    let error = Split::new(ByTier { device: u32::MAX, host: 1, disk: 0 }).expect_err("too much");
    assert_eq!(error.found, 1 << 32);
    assert!(serde_json::from_str::<Split>(r#"{"device":1,"host":2,"disk":3}"#).is_err());
    let placement = Placement { kv: split(0, 1_000_000, 0), ..Placement::RESIDENT };
    let text = serde_json::to_string(&placement).expect("plain data");
    assert_eq!(serde_json::from_str::<Placement>(&text).expect("what was written"), placement);
}

#[test]
fn hashes_are_hexadecimal_in_text() {
    let hash = BlockHash(0xfeed_0000_0000_0000_0000_0000_0000_beef);
    let text = serde_json::to_string(&hash).expect("plain data");
    assert_eq!(text, "\"feed000000000000000000000000beef\"");
    assert_eq!(serde_json::from_str::<BlockHash>(&text).expect("what was written"), hash);
    assert!(serde_json::from_str::<BlockHash>("\"xyz\"").is_err());
    assert_eq!(serde_json::from_reader::<_, BlockHash>(text.as_bytes()).expect("from a stream too"), hash);
}

#[test]
fn chunks_survive_a_log() {
    let span = Span { start: Tokens(32), len: Tokens(1) };
    let (home, attend) = (Tier::Host, Tier::Device);
    let chunk = Chunk {
        seq: SeqId(7),
        span,
        home,
        attend,
        new_blocks: vec![spec::BlockId(3)],
        sample: Sampling::Skip,
    };
    let text = serde_json::to_string(&chunk).expect("plain data");
    assert_eq!(serde_json::from_str::<Chunk>(&text).expect("what was written"), chunk);
}

#[test]
fn buffers_have_names_of_their_own() {
    let mut keys = BTreeSet::new();
    let mut add = |buffer: Buffer| {
        assert!(buffer.key().0 < Buffer::KINDS);
        assert!(keys.insert(buffer.key()), "{buffer:?} shares its name");
    };
    add(Buffer::Sampled);
    add(Buffer::Turn);
    for index in 0..5 {
        add(Buffer::Logits { batch: index });
        for tier in Tier::ALL {
            add(Buffer::Hidden { batch: index, tier });
            add(Buffer::Qkv { batch: index, tier });
            add(Buffer::Attended { batch: index, tier });
            add(Buffer::Weights { slot: index, tier });
            add(Buffer::Kv { layer: index, tier });
            add(Buffer::KvSlot { slot: index, tier });
            add(Buffer::Moved { layer: index, tier });
        }
    }
}

#[test]
fn ranks_of_stages_are_neighbours_and_sends_occupy_both_sides() {
    let layout = Layout { tp: 2, pp: 3, dp: 1 };
    let stages: Vec<_> = (0..3).map(|stage| Ranks::of_stage(layout, stage)).collect();
    assert_eq!(
        stages.iter().flat_map(|ranks| ranks.iter()).collect::<Vec<_>>(),
        (0..6).map(RankId).collect::<Vec<_>>()
    );
    let mut program = Program::new(layout);
    let back = Op::SendRecv { what: Tensor::Tokens, batch: 0, to: RankId(0) };
    program.push(back, Lane::PeerOut, stages[2], [(Buffer::Sampled, Access::WritePast)]);
    let places: Vec<_> = program.nodes()[0].places().map(|(rank, lane)| (rank.0, lane)).collect();
    assert_eq!(places, [(4, Lane::PeerOut), (5, Lane::PeerOut), (0, Lane::PeerIn), (1, Lane::PeerIn)]);
}

#[test]
fn lanes_are_dense_and_copies_know_theirs() {
    assert!(Lane::ALL.iter().enumerate().all(|(at, lane)| lane.index() == at));
    let lane = |from, to| Lane::of_copy(from, to);
    assert_eq!((lane(Tier::Host, Tier::Device), lane(Tier::Device, Tier::Host)), (Lane::Up, Lane::Down));
    assert_eq!(
        (lane(Tier::Disk, Tier::Device), lane(Tier::Host, Tier::Disk)),
        (Lane::DiskRead, Lane::DiskWrite)
    );
}

#[test]
#[should_panic(expected = "names each node once")]
fn an_order_that_loses_a_node_is_no_order() {
    let mut program = Program::new(Layout::SINGLE);
    for batch in 0..2 {
        program.push(Op::Embed { batch }, Lane::Device, Ranks::FIRST, []);
    }
    program.reordered(&[1, 1]);
}
