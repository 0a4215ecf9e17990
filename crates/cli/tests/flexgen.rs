//! `ballast simulate flexgen` and `ballast plan`.

mod common;

use common::{Folder, ballast};

#[test]
fn a_given_policy_and_a_planned_one() {
    let folder = Folder::new();
    let (given, planned) = (folder.name("given.json"), folder.name("planned.json"));
    let cell = ["simulate", "flexgen", "--hardware", "t4", "--model", "opt-30b", "--prompt-len", "512"];
    let policy = ["--gen-len", "32", "--batch-size", "48", "--num-batches", "3", "--percent"];
    let shares = ["20", "80", "0", "100", "0", "100", "--json", &given];
    ballast(&[&cell[..], &policy[..], &shares[..]].concat()).fine();
    let told = folder.json("given.json");
    let rate = told["generated_tokens_per_s"].as_f64().expect("a number");
    assert!((7.32 * 0.8..7.32 * 1.25).contains(&rate), "{told}");
    assert!(
        told["decode_tokens_per_s"].as_f64() > Some(rate) && told["lane_seconds"]["Up"].as_f64() > Some(0.0)
    );
    assert_eq!(told["placement"]["weights"]["device"], 0.2);

    ballast(&["plan", "opt-175b", "--watts", "250", "--kwh-price", "0.2", "--json", &planned]).fine();
    let told = folder.json("planned.json");
    assert!(told["generated_tokens_per_s"].as_f64() > Some(0.69), "{told}");
    assert!(told["peak_bytes"]["host"].as_f64() < Some(208e9) && told["batch_size"].as_u64() >= Some(1));
    assert!(told["tokens_per_dollar"].as_f64() > Some(49_680.0) && told["binds"].as_array().is_some());
}

#[test]
fn tables_and_what_is_not_known() {
    let told = ballast(&["simulate", "flexgen"]).fine();
    for words in ["Table 2", "Table 3", "Table 4", "table 23", "opt-175b"] {
        assert!(told.contains(words), "{words} in:\n{told}");
    }
    ballast(&["simulate", "flexgen", "--model", "opt-31b"]).refused(1, &["opt-31b", "opt-30b"]);
    ballast(&["plan", "opt-30b", "--hardware", "t5"]).refused(1, &["t5", "t4"]);
    ballast(&["plan", "opt-175b", "--memory", "8GiB", "--disk", "8GiB"]).refused(1, &["nothing fits"]);
    let bad = ["--batch-size", "1", "--num-batches", "1", "--percent", "90", "20", "0", "0", "0", "0"];
    let args = [&["simulate", "flexgen", "--model", "opt-30b"][..], &bad[..]].concat();
    ballast(&args).refused(1, &["more than all of them"]);
}
