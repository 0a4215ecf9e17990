//! Stories of layers that look back through a window: what lies behind it is given back, and found by whoever still looks there.

mod story;

use story::check;

#[test]
fn what_lies_behind_a_window_is_given_back() {
    // Five blocks of each group are one more than there are.
    check(
        "
        > limits blocks=9 tokens=32 near=1 behind=32
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
        > limits blocks=20 tokens=128 near=1 behind=32
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
