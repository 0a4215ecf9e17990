//! Who is refused, told in stories (see [`story`] for how they are written).

mod story;

use story::check;

#[test]
fn requests_longer_than_can_be_counted_are_refused() {
    check(
        "
        > limits blocks=2
        > arrive 0 prompt=4294967295 new=5
        > next
        refuse 0: prompt and new tokens need 134217728 blocks of KV, and there are 2: shorten the prompt, ask for fewer tokens, or allow more memory
        ",
    );
}

#[test]
fn requests_that_cannot_fit_or_do_nothing_are_refused() {
    check(
        "
        > limits blocks=2 seqs=1 queue=2
        > arrive 0 prompt=60 new=6
        > next
        refuse 0: prompt and new tokens need 3 blocks of KV, and there are 2: shorten the prompt, ask for fewer tokens, or allow more memory
        > arrive 1 prompt=60 new=5
        > arrive 2 prompt=0 new=5
        > arrive 3 prompt=1 new=1
        > arrive 4 prompt=1 new=1
        > arrive 5 prompt=1 new=1
        > next
        refuse 2: a request needs at least one prompt token and one new token, found 0 and 5
        > next
        refuse 5: 2 requests wait already, which is the limit: try again later, or raise the queue's limit
        > next
        step 0: 1[0..60]* +0,1
        ",
    );
}
