//! Working memory that each thread keeps between kernels.

use std::cell::RefCell;

use crate::aligned::AlignedBytes;

thread_local! {
    /// What is not in use: as many as calls were ever nested.
    static FREE: RefCell<Vec<AlignedBytes>> = const { RefCell::new(Vec::new()) };
}

/// Calls `f` with `len` bytes, aligned to a cache line, of unspecified content. The thread keeps them
/// for the next call; a call inside `f` gets others.
pub(crate) fn with_scratch<R>(len: usize, f: impl FnOnce(&mut [u8]) -> R) -> R {
    let mut bytes = take(len);
    let result = f(&mut bytes[..len]);
    give_back(bytes);
    result
}

fn give_back(bytes: AlignedBytes) {
    FREE.with_borrow_mut(|free| free.push(bytes));
}

/// What grew once seldom grows again, so that buffers have some room to spare. Those that fill most of one are whole huge pages: a
/// block of x is read over and over.
pub(crate) fn worth_keeping(len: usize) -> usize {
    const STEP: usize = 64 << 10;
    const HUGE_PAGE: usize = 2 << 20;
    match len {
        ..=STEP => len,
        len if len <= HUGE_PAGE / 2 => len.next_multiple_of(STEP),
        len => len.next_multiple_of(HUGE_PAGE),
    }
}

/// The smallest free buffer that is long enough, or a new one in place of the longest.
fn take(len: usize) -> AlignedBytes {
    let mut free = FREE.take();
    free.sort_by_key(|bytes| bytes.len());
    let found = free.iter().position(|bytes| bytes.len() >= len);
    let bytes = found.map(|i| free.remove(i));
    if bytes.is_none() {
        free.pop();
    }
    FREE.set(free);
    bytes.unwrap_or_else(|| AlignedBytes::zeroed(worth_keeping(len)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nested_calls_do_not_share() {
        with_scratch(100, |outer| {
            outer.fill(1);
            with_scratch(50, |inner| inner.fill(2));
            assert!(outer.iter().all(|b| *b == 1));
        });
    }

    #[test]
    fn what_is_kept_is_not_much_more_than_what_was_asked_for() {
        assert_eq!([0, 100, 64 << 10].map(worth_keeping), [0, 100, 64 << 10]);
        assert_eq!(worth_keeping(300 << 10), 320 << 10);
        assert_eq!(worth_keeping((1 << 20) + 1), 2 << 20);
        assert!(
            (0..8 << 20).step_by(4000).all(|len| (len..=2 * len + (64 << 10)).contains(&worth_keeping(len)))
        );
    }

    #[test]
    fn buffers_are_kept() {
        let nest = || with_scratch(300, |a| with_scratch(70, |b| (a.as_ptr() as usize, b.as_ptr() as usize)));
        let first = nest();
        assert_eq!((nest(), FREE.with_borrow(Vec::len)), (first, 2));
    }
}
