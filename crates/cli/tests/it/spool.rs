//! Batches of a server that ends and begins again.

use crate::common::serving::Serving;
use crate::common::{Folder, longwinded};

/// How long a sequence there is room for is another length at each start: what is under way is no other job for that.
#[test]
fn a_batch_goes_on_in_another_memory() {
    let (model, folder) = (longwinded(), Folder::new());
    let serve = |memory: &str| {
        Serving::start(&[
            &model.whole(),
            "--spool-dir",
            &folder.name("spool"),
            "--memory",
            memory,
            "--threads",
            "1",
        ])
    };
    let line = |i: usize| {
        format!(
            "{{\"custom_id\": \"{i}\", \"method\": \"POST\", \"url\": \"/v1/completions\", \"body\": \
             {{\"prompt\": [{}], \"max_tokens\": 30, \"ignore_eos\": true}}}}\n",
            5 + i % 50
        )
    };
    let longest = |server: &Serving| server.get("/v1/models")["data"][0]["max_model_len"].clone();
    let first = serve("215MiB");
    let (path, room) = (first.batch(&(0..1000).map(line).collect::<String>()), longest(&first));
    let so_far = loop {
        let done = first.get(&path)["request_counts"]["completed"].as_u64().expect("a number");
        if done > 0 {
            break done;
        }
    };
    assert!(so_far < 1000, "it is under way");
    // Killed.
    drop(first);
    let second = serve("205MiB");
    assert_ne!(longest(&second), room);
    let ended = loop {
        let batch = second.get(&path);
        if !["validating", "in_progress", "finalizing"].contains(&batch["status"].as_str().expect("a status"))
        {
            break batch;
        }
    };
    assert_eq!(
        (&ended["status"], &ended["request_counts"]["completed"]),
        (&"completed".into(), &1000.into()),
        "{ended}"
    );
}
