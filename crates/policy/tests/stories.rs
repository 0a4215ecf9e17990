//! What the scheduler does, told in stories (see [`story`] for how they are written).

mod story;

use story::check;

#[test]
fn a_prompt_then_decodes_then_the_limit() {
    check(
        "
        > limits
        > arrive 0 prompt=40 new=3
        > next
        step 0: 0[0..40]* +0,1
        > next
        wait
        > done 0
        > next
        step 1: 0[40..41]*
        > done 1
        > next
        step 2: 0[41..42]*
        > done 2
        > next
        wait
        ",
    );
}

#[test]
fn who_comes_to_an_idle_engine_waits_for_company_where_that_pays() {
    // A command takes a nanosecond.
    check(
        "
        > limits gather=4 seqs=3
        > arrive 0 prompt=2 new=9
        > next
        wait 3 more
        > arrive 1 prompt=2 new=9
        > next
        wait 3 more
        > next
        wait 2 more
        > next
        wait 1 more
        > next
        step 0: 0[0..2]* +0 1[0..2]* +1
        > done 0
        > arrive 2 prompt=2 new=9
        > next
        step 1: 0[2..3]* 1[2..3]* 2[0..2]* +2
        ",
    );
    // No more than four times as long, and not when there is no room for more.
    check(
        "
        > limits gather=2 seqs=9
        > arrive 0 prompt=2 new=9
        > arrive 1 prompt=2 new=9
        > arrive 2 prompt=2 new=9
        > arrive 3 prompt=2 new=9
        > arrive 4 prompt=2 new=9
        > arrive 5 prompt=2 new=9
        > next
        wait 1 more
        > arrive 6 prompt=2 new=9
        > arrive 7 prompt=2 new=9
        > next
        step 0: 0[0..2]* +0 1[0..2]* +1 2[0..2]* +2 3[0..2]* +3 4[0..2]* +4 5[0..2]* +5 6[0..2]* +6 7[0..2]* +7
        ",
    );
    check(
        "
        > limits gather=9 seqs=2
        > arrive 0 prompt=2 new=1
        > arrive 1 prompt=2 new=1
        > next
        step 0: 0[0..2]* +0 1[0..2]* +1
        ",
    );
}

#[test]
fn long_prompts_are_chunked_beside_decodes() {
    check(
        "
        > limits tokens=32
        > arrive 0 prompt=5 new=9
        > arrive 1 prompt=60 new=9
        > next
        step 0: 0[0..5]* +0 1[0..27] +1
        > done 0
        > next
        step 1: 0[5..6]* 1[27..58] +2
        > done 1
        > next
        step 2: 0[6..7]* 1[58..60]*
        > done 2
        > next
        step 3: 0[7..8]* 1[60..61]*
        ",
    );
}

#[test]
fn a_common_beginning_is_computed_once() {
    check(
        "
        > limits tokens=128
        > arrive 0 prompt=70 new=2 topic=a
        > next
        step 0: 0[0..70]* +0,1,2
        > done 0
        > arrive 1 prompt=80 new=2 topic=a
        > next
        step 1: 0[70..71]* 1[64..80]* +0,1,3
        > done 1
        > next
        step 2: release 0 1[80..81]*
        > done 2
        > arrive 2 prompt=64 new=1 topic=a
        > next
        step 3: release 1 2[32..64]* +0,3
        ",
    );
}

#[test]
fn what_nobody_uses_is_evicted_longest_unused_first() {
    check(
        "
        > limits blocks=4 tokens=128
        > arrive 0 prompt=64 new=1 topic=a
        > next
        step 0: 0[0..64]* +0,1
        > done 0
        > arrive 1 prompt=65 new=1
        > next
        step 1: release 0 1[0..65]* +1,2,3
        > done 1
        > arrive 2 prompt=64 new=1 topic=a
        > next
        step 2: release 1 2[32..64]* +0,1
        ",
    );
}

#[test]
fn the_youngest_is_recomputed_when_blocks_run_out() {
    check(
        "
        > limits blocks=3 tokens=128
        > arrive 0 prompt=30 new=5
        > arrive 1 prompt=32 new=9 topic=a
        > next
        step 0: 0[0..30]* +0 1[0..32]* +1
        > done 0
        > next
        step 1: 0[30..31]* 1[32..33]* +2
        > done 1
        > next
        step 2: 0[31..32]* 1[33..34]*
        > done 2
        > next
        step 3: release 1 0[32..33]* +2
        > done 3
        > next
        step 4: 0[33..34]*
        > done 4
        > next
        step 5: release 0 1[32..35]* +1,0
        > preempted
        0 moved, 1 computed again; of 1+0+0+0+0+0+0+0 that ended: 0
        > done 5
        > next
        step 6: 1[35..36]*
        > done 6 last=1
        > preempted
        0 moved, 1 computed again; of 2+0+0+0+0+0+0+0 that ended: 1
        ",
    );
}

/// Nobody is let into the room that it will grow into, on its way back and after it.
#[test]
fn the_youngest_goes_to_the_host_in_pieces_and_comes_back() {
    check(
        "
        > limits blocks=3 tokens=128 host=4 pieces=1
        > arrive 0 prompt=30 new=5
        > arrive 1 prompt=32 new=40 topic=a
        > next
        step 0: 0[0..30]* +0 1[0..32]* +1
        > done 0
        > next
        step 1: 0[30..31]* 1[32..33]* +2
        > done 1
        > next
        step 2: 0[31..32]* 1[33..34]*
        > done 2
        > next
        step 3: move 1 Device-Host 1>0 ...
        > done 3
        > next
        step 4: move 1 Device-Host 2>1 0[32..33]* +1
        > done 4
        > next
        step 5: 0[33..34]*
        > done 5
        > next
        step 6: release 0 move 1 Host-Device 0>0 ...
        > done 6
        > arrive 2 prompt=9 new=9
        > next
        step 7: move 1 Host-Device 1>1
        > done 7
        > next
        step 8: 1[34..35]*
        > done 8
        > cancel 1
        > arrive 3 prompt=40 new=1 topic=a
        > next
        step 9: release 1 2[0..9]* +1 3[32..40]* +0,2
        ",
    );
}

#[test]
fn a_cancelled_sequence_is_gone_wherever_it_is() {
    check(
        "
        > limits blocks=4 seqs=1
        > arrive 0 prompt=20 new=5
        > arrive 1 prompt=20 new=5
        > arrive 2 prompt=20 new=5
        > next
        step 0: 0[0..20]* +0
        > cancel 0
        > cancel 1
        > cancel 7
        > done 0
        > next
        step 1: release 0 2[0..20]* +0
        ",
    );
}

/// A client has its last token before the scheduler hears of the step, and leaves.
#[test]
fn what_was_computed_for_a_client_that_left_with_its_last_token_is_kept() {
    check(
        "
        > limits tokens=128
        > arrive 0 prompt=70 new=2 topic=a
        > arrive 1 prompt=40 new=9 topic=b
        > next
        step 0: 0[0..70]* +0,1,2 1[0..40]* +3,4
        > cancel 0
        > cancel 1
        > next
        wait
        > done 0 last=0 gone=1
        > arrive 2 prompt=80 new=2 topic=a
        > arrive 3 prompt=40 new=2 topic=b
        > next
        step 1: release 0 release 1 2[64..80]* +0,1,3 3[0..40]* +4,2
        ",
    );
}

#[test]
fn who_leaves_is_planned_no_more_and_goes_with_its_last_step() {
    check(
        "
        > limits depth=2 blocks=2 seqs=2
        > arrive 0 prompt=3 new=9
        > arrive 1 prompt=3 new=9
        > next
        step 0: 0[0..3]* +0 1[0..3]* +1
        > next
        step 1: 0[3..4]* 1[3..4]*
        > cancel 0
        > arrive 2 prompt=3 new=9
        > done 0 gone=0
        > next
        step 2: 1[4..5]*
        > done 1 gone=0
        > next
        step 3: release 0 1[5..6]*
        > done 2
        > next
        step 4: 1[6..7]* 2[0..3]* +0
        ",
    );
}

/// What is about to come free is waited for, and nobody computes anything again for it.
#[test]
fn nobody_is_preempted_for_blocks_of_those_that_end() {
    for (new, ends) in [(9, "> cancel 2"), (2, "")] {
        check(&format!(
            "> limits depth=2 blocks=5 tokens=128 seqs=3
             > arrive 0 prompt=31 new=9
             > arrive 1 prompt=32 new=9
             > arrive 2 prompt=32 new={new}
             > next
             step 0: 0[0..31]* +0 1[0..32]* +1 2[0..32]* +2
             > next
             step 1: 0[31..32]* 1[32..33]* +3 2[32..33]* +4
             {ends}
             > done 0
             > next
             step 2: 1[33..34]*"
        ));
    }
}

#[test]
fn two_steps_in_flight_plan_a_decode_before_its_token_is_known() {
    check(
        "
        > limits depth=2
        > arrive 0 prompt=3 new=9
        > next
        step 0: 0[0..3]* +0
        > next
        step 1: 0[3..4]*
        > next
        wait
        > done 0
        > next
        step 2: 0[4..5]*
        > done 1 last=0
        > next
        wait
        > done 2
        > next
        wait
        ",
    );
}

#[test]
fn one_block_is_left_for_each_that_runs() {
    check(
        "
        > limits blocks=3
        > arrive 0 prompt=10 new=30
        > arrive 1 prompt=10 new=30
        > arrive 2 prompt=10 new=30
        > next
        step 0: 0[0..10]* +0 1[0..10]* +1
        > done 0 last=0
        > next
        step 1: release 0 1[10..11]* 2[0..10]* +0
        > arrive 3 prompt=10 new=30
        > done 1
        > next
        step 2: 1[11..12]* 2[10..11]*
        ",
    );
}

#[test]
fn zigzag_begins_what_fits_to_its_full_length_and_replaces_what_ends() {
    check(
        "
        > limits blocks=6 schedule=zigzag batches=2 per=2
        > arrive 0 prompt=10 new=30
        > arrive 1 prompt=10 new=30
        > arrive 2 prompt=10 new=30
        > arrive 3 prompt=10 new=30
        > next
        step 0: 0[0..10]* +0 1[0..10]* +1 | 2[0..10]* +2
        > done 0 last=1
        > next
        step 1: release 1 0[10..11]* 2[10..11]* | 3[0..10]* +1
        ",
    );
}

#[test]
fn diagonal_staggers_so_that_the_hold_is_full_at_every_step() {
    check(
        "
        > limits blocks=4 seqs=9 schedule=diagonal
        > arrive 0 prompt=30 new=4
        > arrive 1 prompt=30 new=4
        > arrive 2 prompt=30 new=4
        > arrive 3 prompt=30 new=4
        > arrive 4 prompt=30 new=4
        > next
        step 0: 0[0..30]* +0
        > done 0
        > next
        step 1: 0[30..31]* 1[0..30]* +1
        > done 1
        > next
        step 2: 0[31..32]* 1[30..31]* 2[0..30]* +2
        > done 2
        > next
        step 3: 0[32..33]* +3 1[31..32]* 2[30..31]*
        > done 3
        > next
        step 4: release 0 1[32..33]* +0 2[31..32]* 3[0..30]* +3
        ",
    );
}

#[test]
fn a_block_lives_on_the_first_tier_with_room() {
    check(
        "
        > limits blocks=2 host=4 schedule=zigzag
        > arrive 0 prompt=10 new=30
        > arrive 1 prompt=10 new=30
        > arrive 2 prompt=10 new=30
        > arrive 3 prompt=10 new=30
        > next
        step 0: 0[0..10]* +0 1@Host[0..10]* +0 2@Host[0..10]* +1
        > done 0
        > cancel 1
        > next
        step 1: release 1 0[10..11]* 2@Host[10..11]* 3@Host[0..10]* +0
        ",
    );
}

/// The second half of the design's sixth rule.
#[test]
fn a_prompt_away_from_the_device_is_not_cut_lightly() {
    // Of 24 positions that are left it would be the smaller half: it waits.
    check(
        "
        > limits blocks=2 host=8 schedule=zigzag
        > arrive 0 prompt=40 new=2
        > arrive 1 prompt=60 new=2
        > next
        step 0: 0[0..40]* +0,1
        > done 0
        > next
        step 1: 0[40..41]* 1@Host[0..60]* +0,1
        ",
    );
    // Of this one they are more than half.
    check(
        "
        > limits blocks=2 host=8 schedule=zigzag
        > arrive 0 prompt=40 new=2
        > arrive 1 prompt=44 new=9
        > next
        step 0: 0[0..40]* +0,1 1@Host[0..24] +0
        > done 0
        > next
        step 1: 0[40..41]* 1@Host[24..44]* +1
        ",
    );
    // What decodes leave is all that there is, however little.
    check(
        "
        > limits blocks=3 host=8 tokens=4 schedule=zigzag
        > arrive 0 prompt=1 new=9
        > arrive 1 prompt=1 new=9
        > arrive 2 prompt=1 new=9
        > arrive 3 prompt=5 new=2
        > next
        step 0: 0[0..1]* +0 1[0..1]* +1 2[0..1]* +2
        > done 0
        > next
        step 1: 0[1..2]* 1[1..2]* 2[1..2]* 3@Host[0..1] +0
        ",
    );
}

#[test]
fn who_was_preempted_comes_back_before_newcomers() {
    check(
        "
        > limits blocks=3 tokens=128
        > arrive 0 prompt=30 new=4
        > arrive 1 prompt=32 new=9
        > next
        step 0: 0[0..30]* +0 1[0..32]* +1
        > done 0
        > next
        step 1: 0[30..31]* 1[32..33]* +2
        > done 1
        > next
        step 2: 0[31..32]* 1[33..34]*
        > arrive 2 prompt=9 new=1
        > done 2
        > next
        step 3: release 1 0[32..33]* +1
        > done 3 last=0
        > next
        step 4: release 0 1[0..35]* +0,1 2[0..9]* +2
        ",
    );
}
