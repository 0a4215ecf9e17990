//! Who is let in, who waits and who is refused, told in stories (see [`story`] for how they are written).

mod story;

use story::check;

#[test]
fn nobody_is_let_into_the_room_that_one_on_its_way_back_will_grow_into() {
    check(
        "
        > limits blocks=3 tokens=128 host=4 pieces=1
        > arrive 0 prompt=30 new=5
        > arrive 1 prompt=32 new=40
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
        ",
    );
}

#[test]
fn requests_longer_than_can_be_counted_are_refused() {
    check(
        "
        > limits blocks=2
        > arrive 0 prompt=4294967295 new=5
        > next
        refuse 0: prompt and new tokens need 134217728 KV blocks of 32 tokens, and there are 2: shorten the prompt, ask for fewer tokens, or allow more memory
        ",
    );
}

#[test]
fn requests_that_cannot_fit_or_do_nothing_are_refused() {
    check(
        "
        > limits blocks=2 queue=2
        > arrive 0 prompt=60 new=6
        > next
        refuse 0: prompt and new tokens need 3 KV blocks of 32 tokens, and there are 2: shorten the prompt, ask for fewer tokens, or allow more memory
        > arrive 1 prompt=60 new=5
        > arrive 2 prompt=0 new=5
        > arrive 3 prompt=1 new=1
        > arrive 4 prompt=1 new=1
        > next
        refuse 2: a request needs at least one prompt token and one new token, found 0 and 5
        > next
        refuse 4: 2 requests wait already, which is the limit: try again later, or raise the queue's limit
        > next
        step 0: 1[0..60]* +0,1
        ",
    );
}
