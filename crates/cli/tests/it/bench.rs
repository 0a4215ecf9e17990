//! `ballast bench`, `ballast eval` and `ballast check`: the keys that others read, and what does not fit.

use crate::common::{Folder, ballast, golden};
use serde_json::Value;

/// Runs a command with `--json`, and checks that these keys hold positive numbers.
fn report(args: &[&str], keys: &[&str]) -> Value {
    let folder = Folder::new();
    let out = ballast(&[args, &["--json", &folder.name("x.json")]].concat()).fine();
    assert!(!out.is_empty() && !out.contains("NaN"), "{out}");
    let report = folder.json("x.json");
    for key in keys {
        assert!(report[key].as_f64().is_some_and(|x| x > 0.0), "`{key}` in {report}");
    }
    report
}

#[test]
fn throughput() {
    let model = golden("llama");
    let args =
        ["bench", "throughput", &model, "--num-prompts", "3", "--input-len", "40", "--output-len", "4"];
    let keys = ["prefill_tokens_per_s", "generated_tokens_per_s", "total_tokens_per_s", "peak_rss_bytes"];
    let report = report(&args, &keys);
    assert_eq!(report["seconds_all"].as_array().expect("a list").len(), 3);
}

#[test]
fn the_only_step_of_a_run_is_counted() {
    let model = golden("llama");
    let args =
        ["bench", "throughput", &model, "--num-prompts", "1", "--input-len", "400", "--output-len", "1"];
    let report = report(&args, &["prefill_tokens_per_s"]);
    assert!(report["gap_fraction"].as_f64().is_some_and(|gap| gap < 1.0), "{report}");
}

#[test]
fn a_report_that_cannot_be_written_is_told_before_anything_is_done() {
    let (model, nowhere) = (golden("llama"), "/nonexistent/x");
    let json = ["--json", nowhere];
    let commands: [&[&str]; 6] = [
        &["bench", "latency", &model],
        &["bench", "throughput", &model],
        &["eval", "perplexity", &model, "--text", nowhere],
        &["plan", &model],
        &["profile", &model],
        &["check"],
    ];
    let told = |args: &[&str]| {
        let ran = ballast(args);
        assert_eq!(ran.err.lines().count(), 1, "{}", ran.err);
        ran.refused(1, &["cannot write /nonexistent/x"]);
    };
    commands.iter().for_each(|command| told(&[command, &json[..]].concat()));
    told(&["run", &model, "hello", "--record", nowhere]);
}

#[test]
fn throughput_over_tiers() {
    let (model, folder) = (golden("llama"), Folder::new());
    let off = folder.whole();
    let args =
        ["bench", "throughput", &model, "--num-prompts", "5", "--input-len", "40", "--output-len", "4"];
    let tiers = ["--percent", "100", "0", "0", "50", "0", "50", "--num-batches", "3", "--offload-dir", &off];
    let keys = ["generated_tokens_per_s", "batch_size", "num_batches"];
    let report = report(&[&args[..], &tiers, &["--attend", "device", "--reps", "1"]].concat(), &keys);
    assert_eq!((report["schedule"].as_str(), report["num_batches"].as_u64()), (Some("zigzag"), Some(3)));
    let plain = ballast(&[&args[..], &tiers, &["--schedule", "plain"]].concat());
    plain.refused(1, &["--schedule plain", "zigzag"]);
}

#[test]
fn latency() {
    let model = golden("qwen3");
    let args = ["bench", "latency", &model, "--batch", "2", "--input-len", "8", "--reps", "1"];
    report(&[&args[..], &["--output-len", "4"]].concat(), &["ttft_ms", "decode_tokens_per_s"]);
    let one = report(&[&args[..], &["--output-len", "1"]].concat(), &["ttft_ms"]);
    assert_eq!(one.get("decode_tokens_per_s"), Some(&Value::Null), "one token has no decode speed");
    let (folder, twice) = (Folder::new(), &["choose other names"][..]);
    let (file, same) = (folder.name("x.json"), folder.name("./x.json"));
    ballast(&[&args[..], &["--json", &file, "--lanes", &same]].concat()).refused(2, twice);
    ballast(&["run", &model, "hello", "--record", &file, "--lanes", &same]).refused(2, twice);
    ballast(&["plan", &model, "--json", &file, "--emit-config", &same]).refused(2, twice);
    ballast(&["plan", "opt-30b", "--json", &file, "--curve", &same]).refused(2, twice);
    ballast(&["simulate", "flexgen", "--json", &file, "--curves", &same]).refused(2, twice);
    ballast(&["simulate", "block", "--json", &file, "--lanes", &same]).refused(2, twice);
}

#[test]
fn prompts_that_come_back_from_the_drive() {
    let (model, folder) = (golden("llama"), Folder::new());
    let off = folder.whole();
    let args = ["bench", "prefix", &model, "--input-len", "96", "--reps", "2", "--offload-dir", &off];
    let report = report(&args, &["computed_ttft_ms", "returning_ttft_ms", "planned_drive_bytes"]);
    let tokens = |of: &str| report[format!("{of}_tokens")].as_u64().expect("a number");
    assert_eq!(tokens("returning"), 2 * 4 * 96);
    // How many were written before their room was needed depends on the drive.
    let found = tokens("device") + tokens("host") + tokens("drive");
    assert!(
        (256..=512).contains(&found),
        "two blocks of each may be found, and the third is not whole: {report}"
    );
    assert_eq!(report["lost_blocks"].as_u64(), Some(0));
    ballast(&[&args[..], &["--num-prompts", "2"]].concat()).refused(2, &["--num-prompts", "at least 3"]);
}

#[test]
fn windows_and_passages_have_room_in_the_model() {
    let (model, folder) = (golden("llama"), Folder::new());
    let text_of_windows = || "The old whale swam on in the evening. ".repeat(20);
    let text = folder.write("text.txt", text_of_windows());
    let eval =
        |what: &str, more: &[&str]| ballast(&[&["eval", what, &model, "--text", &text], more].concat());
    let beyond = eval("perplexity", &["--context", "512", "--stride", "64"]);
    assert!(!beyond.err.contains("memory:"), "it is told before anything is planned: {}", beyond.err);
    beyond.refused(1, &["513 tokens", "room for, 512", "--context"]);
    let less = eval("perplexity", &["--context", "64", "--stride", "64", "--max-model-len", "32"]);
    less.refused(1, &["66 tokens", "room for, 32", "--context"]);
    eval("perplexity", &["--context", "511", "--stride", "64"]).fine();
    // Windows follow one another as --context has it, where nobody says otherwise; marks of editors are no text.
    let narrow = eval("perplexity", &["--context", "100"]).fine();
    let marked = folder.write("marked.txt", ["\u{feff}", &text_of_windows()].concat());
    let again =
        ballast(&["eval", "perplexity", &model, "--text", &marked, "--context", "100", "--stride", "100"])
            .fine();
    assert_eq!(narrow, again);
    eval("next-word", &["--max-model-len", "64"]).fine();
}

#[test]
fn random_weights() {
    let folder = Folder::copy_of("llama");
    std::fs::remove_file(folder.path("model.safetensors")).expect("removed");
    let model = folder.whole();
    let args =
        ["bench", "latency", &model, "--load-format", "dummy", "--input-len", "8", "--output-len", "2"];
    report(&args, &["ttft_ms"]);
}

#[test]
fn workloads_that_do_not_fit() {
    let model = golden("llama");
    let latency = |more: &[&str]| ballast(&[&["bench", "latency", &model], more].concat());
    latency(&["--input-len", "600"]).refused(1, &["600 tokens in and 65 out", "512"]);
    latency(&["--batch", "0"]).refused(2, &["expected a number from 1"]);
    latency(&["--reps", "0"]).refused(2, &["expected a number from 1"]);
    latency(&["--json", "/no/such/file"]).refused(1, &["cannot write /no/such/file"]);
    let kernels = ballast(&["bench", "kernels", "--json", "/no/such/file"]);
    assert_eq!(kernels.out, "", "nothing is measured for a report that cannot be written");
    kernels.refused(1, &["cannot write /no/such/file"]);
}

#[test]
fn check() {
    let report = |only: &str, keys: &[&str]| report(&["check", "--device", "cpu", "--only", only], keys);
    let norms = report("norm", &["cases"]);
    assert_eq!((&norms["failed"], norms["max_error"].is_number()), (&0.into(), true));
    report("linear/bf16/store(f32)/1x2048x5632", &["ceiling_fraction"]);
    ballast(&["check", "--device", "abacus"]).refused(2, &["abacus", "cpu, cuda"]);
    ballast(&["check", "--only", "nothing like it"]).refused(1, &["no case's name contains"]);
    ballast(&["check", "--device", "cuda", "--only", "nothing like it"])
        .refused(1, &["no case that a GPU has"]);
}

#[test]
fn kernels() {
    let report = report(&["bench", "kernels", "--only", "decode-8x1024", "--threads", "1"], &["threads"]);
    assert!(report["cases"][0]["ceiling_fraction"].is_number(), "{report}");
    ballast(&["bench", "kernels", "--only", "nothing like it"]).refused(1, &["there are:"]);
}
