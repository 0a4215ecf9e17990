//! Bugs: who ends with them, and what is told. A process of its own, since whoever hears of panics hears of all.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use crate::common::spool::{Spool, batch, begin, ended, lines};
use crate::common::{good, is_idle, start_braked, until};
use server::{Clock, Config, Log, LogFormat, LogLevel};

const SECRET: &str = "words of a prompt";

#[test]
fn a_batch_that_meets_a_bug_ends_alone_and_its_words_are_not_told() {
    let (spool, armed) = (Spool::new(), Arc::new(AtomicBool::new(false)));
    let written = tempfile::NamedTempFile::new().unwrap();
    let log = Log::to(written.reopen().unwrap(), LogFormat::Text, LogLevel::Info).unwrap();
    log.hear_panics();
    let bug = Arc::clone(&armed);
    // Asked by the worker while it works on a batch.
    let clock = Clock::new(move || {
        assert!(!bug.swap(false, SeqCst), "{SECRET}");
        1_700_000_000
    });
    let (server, brake) = start_braked("llama", Config { clock, log: log.clone(), ..spool.config() });
    let (first, second) = (begin(&server, &lines(3, 5)), begin(&server, &lines(2, 5)));
    until(|| batch(&server, &first)["status"] == "in_progress");
    armed.store(true, SeqCst);
    until(|| !armed.load(SeqCst));
    brake.release();
    let failed = ended(&server, &first);
    assert_eq!(failed["errors"]["data"][0]["code"], "internal_error", "{failed}");
    assert_eq!(ended(&server, &second)["status"], "completed", "others go on");
    until(|| is_idle(server.address));
    good(&server);
    log.flush();
    let told = std::fs::read_to_string(written.path()).unwrap();
    assert!(told.contains("panicked at") && told.contains("panics.rs:"), "{told}");
    assert!(!told.contains(SECRET), "{told}");
}
