//! Foreign code over foreign data: the libraries that read tokenizers and templates have panics behind malformed files, which
//! become errors here, so that a hostile file cannot end the process.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

thread_local! {
    static GUARDED: Cell<bool> = const { Cell::new(false) };
}

/// Runs it; a panic is its words.
pub(crate) fn guarded<T>(run: impl FnOnce() -> T) -> Result<T, String> {
    let before = GUARDED.replace(true);
    let result = catch_unwind(AssertUnwindSafe(run));
    GUARDED.set(before);
    result.map_err(|payload| words(&*payload))
}

/// Whether a panic of this thread would become an error: whoever hears of panics need not tell of it.
pub fn is_guarded() -> bool {
    GUARDED.get()
}

fn words(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    text.or(payload.downcast_ref::<&str>().copied()).unwrap_or("it did not say why").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panics_are_errors_with_their_words() {
        assert_eq!(guarded(|| assert!(is_guarded(), "guarded")), Ok(()));
        assert_eq!(guarded(|| panic!("found {}", 3)), Err::<(), _>("found 3".to_owned()));
        assert!(!is_guarded());
    }
}
