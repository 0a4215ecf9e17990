//! Batches that their clients give up.

use std::sync::{Arc, Condvar, Mutex};

use serde_json::json;

use crate::common::spool::{Spool, batch, begin, ended, lines, sequences};
use crate::common::{is_idle, metric, post, request, send, start_braked, until};
use server::{Clock, Config};

#[test]
fn a_cancelled_batch_frees_everything() {
    let spool = Spool::new();
    let (server, brake) = start_braked("llama", spool.config());
    let id = begin(&server, &lines(200, 400));
    until(|| batch(&server, &id)["status"] == "in_progress");
    until(|| metric(server.address, "ballast_requests_under_way") > 0.0);
    let file = batch(&server, &id)["input_file_id"].as_str().unwrap().to_string();
    let delete = |file: &str| send(server.address, &request("DELETE", &format!("/v1/files/{file}"), "", b""));
    assert_eq!(delete(&file).status, 400, "it is in use");
    assert_eq!(
        post(server.address, &format!("/v1/batches/{id}/cancel"), &json!({})).json()["status"],
        "cancelling"
    );
    until(|| metric(server.address, "ballast_requests_under_way") == 0.0);
    brake.release();
    assert_eq!(ended(&server, &id)["status"], "cancelled");
    until(|| is_idle(server.address));
    assert!(sequences(&server, "abort") > 0.0, "those under way are told of");
    assert_eq!(post(server.address, &format!("/v1/batches/{id}/cancel"), &json!({})).status, 400);
    assert_eq!(delete(&file).json()["deleted"], true);
    assert_eq!(delete(&file).status, 404);
}

/// A clock that holds up who asks, once it is armed and was asked so often.
#[derive(Clone, Default)]
struct Held(Arc<(Mutex<Hold>, Condvar)>);

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Hold {
    #[default]
    Off,
    Armed(u32),
    Holds,
}

impl Held {
    fn clock(&self) -> Clock {
        let Held(shared) = self.clone();
        Clock::new(move || {
            let (hold, changed) = &*shared;
            let mut now = hold.lock().unwrap();
            match *now {
                Hold::Armed(0) => {
                    *now = Hold::Holds;
                    drop(changed.wait_while(now, |now| *now == Hold::Holds).unwrap());
                }
                Hold::Armed(more) => *now = Hold::Armed(more - 1),
                Hold::Off | Hold::Holds => {}
            }
            1_800_000_000
        })
    }

    fn set(&self, to: Hold) {
        *self.0.0.lock().unwrap() = to;
        self.0.1.notify_all();
    }

    fn holds(&self) -> bool {
        *self.0.0.lock().unwrap() == Hold::Holds
    }
}

#[test]
fn a_batch_that_is_cancelled_while_it_is_read_is_not_begun() {
    let (spool, held) = (Spool::new(), Held::default());
    let (server, brake) =
        start_braked("llama", Config { max_file_bytes: 64 << 20, clock: held.clock(), ..spool.config() });
    // Who works on it asks for the time every so many lines, and while it is answered: where all was read before the clock held, it
    // is another's turn.
    let was_read = |_: &usize| {
        let id = begin(&server, &lines(20_000, 400));
        // More often than anybody asks but who reads.
        held.set(Hold::Armed(20));
        until(|| held.holds());
        let reads = batch(&server, &id)["status"] == "validating";
        let cancelled = post(server.address, &format!("/v1/batches/{id}/cancel"), &json!({}));
        assert_eq!(cancelled.json()["status"], "cancelling");
        held.set(Hold::Off);
        let ended = ended(&server, &id);
        assert_eq!(ended["status"], "cancelled");
        assert_eq!(ended["in_progress_at"].is_null(), reads, "{ended}");
        reads
    };
    assert!((0..20).any(|i| was_read(&i)), "none was read when the clock held");
    brake.release();
    until(|| is_idle(server.address));
}
