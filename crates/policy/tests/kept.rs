//! Blocks kept for reuse: what counts as copied to the host, and how it comes back.

use policy::kv::{Hit, Hold};
use spec::{BlockHash, BlockId, ByTier, KvGroups, StepId, Tier};

fn hold(device: u32, host: u32) -> Hold {
    Hold::new(ByTier { device, host, disk: 0 }, KvGroups::default())
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
    assert_eq!(hold.find(&hashes), Hit::default());
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
        let mut hold = Hold::new(ByTier { device: 4, host: 4, disk: 4 }, KvGroups::default());
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
    let mut hold = Hold::new(ByTier { device: 4, host: 4, disk: 4 }, KvGroups::default());
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

#[test]
fn a_drive_that_is_full_gives_up_what_was_longest_unused() {
    let mut hold = Hold::new(ByTier { device: 4, host: 0, disk: 2 }, KvGroups::default());
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
    let mut hold = Hold::new(ByTier { device: 3, host: 0, disk: 4 }, KvGroups::default());
    let blocks = [1, 2, 3].map(|hash| rests(&mut hold, hash));
    let pairs = hold.save((Tier::Device, Tier::Disk), 2, StepId(0));
    assert_eq!(pairs.iter().map(|pair| pair.0).collect::<Vec<_>>(), blocks[..2]);
    // While they are read, the third goes before them; after that they go first.
    assert_eq!(hold.available(Tier::Device), 1);
    assert_eq!(hold.arrive(StepId(0), &[], None), 0);
    hold.settle(None);
    assert_eq!(hold.take(Tier::Device, 2).map(|taken| taken.contains(&blocks[2])), Some(false));
}
