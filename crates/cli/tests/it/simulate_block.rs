//! `ballast simulate block`.

use crate::common::{Folder, ballast};

#[test]
fn diagonal_beside_zigzag_in_words_json_and_a_picture() {
    let folder = Folder::new();
    let (json, svg) = (folder.name("block.json"), folder.name("lanes.svg"));
    let told = ballast(&[
        "simulate",
        "block",
        "--gen-len",
        "64",
        "--prompt-len",
        "8",
        "--kv-memory",
        "300MB",
        "--model",
        "opt-125m",
        "--json",
        &json,
        "--lanes",
        &svg,
    ])
    .fine();
    assert!(told.contains("(2s+2n)/(2s+n) is 1.80"), "{told}");
    let found: serde_json::Value = serde_json::from_str(&folder.read("block.json")).unwrap();
    for side in ["zigzag", "diagonal"] {
        for figure in ["block", "weight_bytes_per_token", "mean_completion_s", "generated_tokens_per_s"] {
            assert!(found[side][figure].as_f64().unwrap() > 0.0, "{side} {figure}: {found}");
        }
    }
    assert!(found["block_ratio"].as_f64().unwrap() > 1.2, "{found}");
    let svg = folder.read("lanes.svg");
    assert!(svg.starts_with("<svg") && svg.contains("attend 0 batch 0 on host"));
}

#[test]
fn what_cannot_be_simulated_is_refused_before_anything_is_written() {
    let folder = Folder::new();
    let lanes = folder.name("lanes.png");
    ballast(&["simulate", "block", "--lanes", &lanes]).refused(1, &[".svg, .json or .trace.json"]);
    let small = ["simulate", "block", "--model", "opt-6.7b", "--gen-len", "4", "--prompt-len", "2000"];
    let told = |kv: &str| ballast(&[&small[..], &["--kv-memory", kv]].concat()).err;
    assert!(told("250GiB").contains("KV of 250.0 GiB are more than the 204.0 GiB of this machine's host"));
    assert!(!told("20GiB").contains("this machine's host"));
    ballast(&["simulate", "block", "--kv-memory", "10MB"]).refused(1, &["--kv-memory holds 0 tokens"]);
    ballast(&["simulate", "block", "--kv-memory", "90000TiB"]).refused(1, &["not simulated", "give it less"]);
    let large = ["simulate", "block", "--batch-size", "16777216", "--prompt-len", "256"];
    ballast(&large).refused(1, &["--batch-size 16777216", "make it smaller"]);
    let long = ["--prompt-len", "65535", "--gen-len", "65535", "--kv-memory", "999TB"];
    ballast(&[&["simulate", "block"], &long[..]].concat())
        .refused(1, &["65535 tokens each", "--gen-len shorter"]);
    ballast(&["simulate", "block", "--model", "opt-31b"]).refused(1, &["opt-31b", "opt-30b"]);
    ballast(&["simulate", "block", "--gen-len", "0"]).refused(2, &["--gen-len"]);
}
