//! `--device cuda` where NVIDIA's libraries are stood in for: the same answers as the CPU's, and clear ends where the device has not
//! what is asked of it.

use crate::common::{Folder, Ran, ballast, command, golden};
use crate::stand_in::StandIn;
use serde_json::{Value, json};

fn on_the_stand_in(stand_in: &StandIn, args: &[&str], settings: &[(&str, &str)]) -> Ran {
    let mut command = command(args);
    stand_in.given_to(&mut command).envs(settings.iter().copied());
    Ran::of(command.output().expect("the binary starts"))
}

/// Sums in f32 are near enough for the same tokens.
const GREEDY: [&str; 8] =
    ["-q", "--temperature", "0", "--max-tokens", "12", "--ignore-eos", "--dtype", "float32"];

#[test]
fn a_prompt_is_answered_as_on_the_cpu() {
    let Some(stand_in) = StandIn::new() else { return };
    let model = golden("llama");
    let args = [&["run", &model, "hello"], &GREEDY[..]].concat();
    let want = ballast(&args).fine();
    let got = on_the_stand_in(&stand_in, &[&args, &["--device", "cuda"][..]].concat(), &[]).fine();
    assert_eq!(got, want);
}

/// Sequences that come and go, steps run as graphs and one by one, in several orders of the streams, on one tier and on three.
#[test]
fn a_batch_is_answered_as_on_the_cpu() {
    let Some(stand_in) = StandIn::new() else { return };
    let folder = Folder::new();
    let line = |i: usize| {
        let prompt: Vec<usize> = (0..5 + 9 * (i % 4)).map(|j| 3 + (31 * i + 17 * j) % 90).collect();
        let body = json!({
            "prompt": prompt, "temperature": i % 2, "seed": i, "max_tokens": 4 + i % 9, "ignore_eos": true,
        });
        json!({"custom_id": format!("{i}"), "method": "POST", "url": "/v1/completions", "body": body})
            .to_string()
    };
    let input = folder.write("in.jsonl", (0..14).map(line).collect::<Vec<_>>().join("\n"));
    let texts = |ran: Ran, file: &str| -> Vec<Value> {
        ran.fine();
        let lines: Vec<Value> =
            folder.read(file).lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        lines.iter().map(|line| line["response"]["body"]["choices"][0]["text"].clone()).collect()
    };
    let args = |output: &str| {
        ["batch", &golden("llama"), "-i", &input, "-o", output, "--dtype", "float32"].map(String::from)
    };
    let run = |file: &str, more: &[&str], settings: &[(&str, &str)]| {
        let output = folder.name(file);
        let args = args(&output);
        let args: Vec<&str> = args.iter().map(String::as_str).chain(more.iter().copied()).collect();
        texts(on_the_stand_in(&stand_in, &args, settings), file)
    };
    let want = run("cpu", &[], &[]);
    assert!(want.len() == 14 && want.iter().all(Value::is_string), "{want:?}");
    let tiers =
        "--percent 40 60 20 30 100 0 --schedule zigzag --num-batches 2 --batch-size 2 --attend device";
    // Of which the last has no memory for any graph.
    let (small, large) = ("4096", "68719476736");
    let cases = [
        ("1", "on", small, ""),
        ("2", "on", small, ""),
        ("3", "off", small, ""),
        ("1", "on", small, tiers),
        ("2", "off", small, tiers),
        ("2", "on", large, ""),
    ];
    for (i, (seed, graphs, bytes, flags)) in cases.into_iter().enumerate() {
        let settings = [
            ("BALLAST_STAND_IN_SEED", seed),
            ("BALLAST_CUDA_GRAPHS", graphs),
            ("BALLAST_STAND_IN_GRAPH_BYTES", bytes),
        ];
        let flags: Vec<&str> = ["--device", "cuda"].into_iter().chain(flags.split_whitespace()).collect();
        let got = run(&format!("cuda-{i}"), &flags, &settings);
        assert_eq!(got, want, "seed {seed}, graphs {graphs} of {bytes} a kernel, {flags:?}");
    }
}

/// A device that has been lost ends the command, with the driver's words and without a hang: while this machine is measured, at the
/// first step, and later.
#[test]
fn a_lost_device_is_told_of() {
    let Some(stand_in) = StandIn::new() else { return };
    let model = golden("llama");
    let args = [&["run", &model, "hello", "--device", "cuda"], &GREEDY[..]].concat();
    let tiers = ["--percent", "50", "50", "30", "70", "100", "0", "--num-batches", "2"];
    for (more, launches) in [(&[][..], "1"), (&[], "40"), (&tiers, "3"), (&tiers, "30")] {
        let cache = Folder::new();
        let settings = [("BALLAST_STAND_IN_LAUNCHES", launches), ("BALLAST_CACHE", &cache.whole())];
        let ran = on_the_stand_in(&stand_in, &[&args, more].concat(), &settings);
        ran.refused(1, &["unspecified launch failure"]);
    }
}

/// As is one that has not the memory.
#[test]
fn too_little_memory_is_refused_before_anything_is_loaded() {
    let Some(stand_in) = StandIn::new() else { return };
    let args = ["run", &golden("llama"), "hello", "--device", "cuda"];
    let ran = on_the_stand_in(&stand_in, &args, &[("BALLAST_STAND_IN_MEMORY", "700000000")]);
    ran.refused(1, &["--device-memory"]);
}
