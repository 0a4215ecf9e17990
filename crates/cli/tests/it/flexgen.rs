//! `ballast simulate flexgen` and `ballast plan`.

use crate::common::{self, Folder, ballast, command, golden};
use serde_json::{Value, json};

#[test]
fn a_given_policy_and_a_planned_one() {
    let folder = Folder::new();
    let (given, planned) = (folder.name("given.json"), folder.name("planned.json"));
    let cell = ["simulate", "flexgen", "--hardware", "t4", "--model", "opt-30b", "--prompt-len", "512"];
    let policy = ["--gen-len", "32", "--batch-size", "48", "--num-batches", "3", "--percent"];
    let shares = |json| ["20", "80", "0", "100", "0", "100", "--json", json];
    ballast(&[&cell[..], &policy[..], &shares(&given)[..]].concat()).fine();
    let told = folder.json("given.json");
    let shown = ballast(&[&cell[..], &policy[..], &shares("-")[..]].concat());
    assert!(shown.err.contains("generated tokens/s"), "what people read is elsewhere: {}", shown.err);
    let report = serde_json::from_str::<serde_json::Value>(&shown.fine());
    assert_eq!(report.expect("JSON alone"), told, "standard output has the same");
    let unheard = folder.name("unheard.json");
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let mut cell = command(&[&cell[..], &policy[..], &shares(&unheard)[..]].concat());
    assert!(cell.stdout(writer).status().expect("the binary starts").success());
    assert_eq!(folder.json("unheard.json"), told, "a file is written though nobody reads the lines");
    let rate = told["generated_tokens_per_s"].as_f64().expect("a number");
    assert!((7.32 * 0.8..7.32 * 1.25).contains(&rate), "{told}");
    assert!(
        told["decode_tokens_per_s"].as_f64() > Some(rate) && told["lane_seconds"]["Up"].as_f64() > Some(0.0)
    );
    assert_eq!(told["placement"]["weights"]["device"], 0.2);

    ballast(&["plan", "opt-175b", "--watts", "250", "--kwh-price", "0.2", "--json", &planned]).fine();
    let told = folder.json("planned.json");
    let rates = ["generated_tokens_per_s", "decode_tokens_per_s"].map(|name| told[name].as_f64());
    assert!(rates.iter().all(|rate| *rate > Some(0.69)), "{told}");
    // 204 of the machine's 208 GiB.
    assert!(told["peak_bytes"]["host"].as_f64() <= Some(219e9) && told["batch_size"].as_u64() >= Some(1));
    assert!(told["tokens_per_dollar"].as_f64() > Some(49_680.0) && told["binds"].as_array().is_some());

    // All of it is on the device, and stays: more memory adds nothing to that block.
    let small = ["plan", "opt-6.7b", "--batch-size", "2", "--num-batches", "1", "--json", &planned];
    ballast(&small).fine();
    let told = folder.json("planned.json");
    assert_eq!(told["placement"]["weights"]["device"], 1.0, "{told}");
    assert_eq!(told["one_more_gib_tokens_per_s"]["device"], 0.0, "{told}");

    // What is full and would be of no use if it were larger does not bind.
    ballast(&["plan", "opt-30b", "--json", &planned]).fine();
    let told = folder.json("planned.json");
    assert!(told["one_more_gib_tokens_per_s"]["device"].as_f64().unwrap() < 0.1, "{told}");
    assert!(told["peak_bytes"]["device"].as_f64() > Some(0.97 * f64::from(14u32 << 20) * 1024.0), "{told}");
    assert_eq!(told["binds"].as_array().map(Vec::len), Some(1), "{told}");
    // What more of it brings is what is planned with it.
    let of = |memory: &str, name: &str| {
        let flags = ["plan", "opt-30b", "--memory", "200GiB", "--device-memory", memory, "--json"];
        ballast(&[&flags[..], &[&folder.name(name)]].concat()).fine();
        folder.json(name)
    };
    let (little, more) = (of("4GiB", "4.json"), of("5GiB", "5.json"));
    let rate = |told: &Value| told["generated_tokens_per_s"].as_f64().unwrap();
    let (gain, brings) = (&little["one_more_gib_tokens_per_s"]["device"], rate(&more) - rate(&little));
    assert!(brings > 1.0 && (gain.as_f64().unwrap() - brings).abs() < 0.05 * brings, "{gain}, not {brings}");
    assert_eq!(little["binds"], json!(["copies from host to device", "memory of the device"]), "{little}");
    ballast(&["plan", "opt-125m", "--batch-size", "16777216", "--num-batches", "255"])
        .refused(2, &["--batch-size 16777216", "4096 at the most"]);
}

#[test]
fn a_term_of_flexgen_changes_figure_1_too() {
    let folder = Folder::new();
    let figure = |name: &str, more: &[&str]| {
        ballast(&[&["simulate", "flexgen", "--json", &folder.name(name)][..], more].concat()).fine();
        folder.json(name)["figure_1"].clone()
    };
    let (plain, pinned) = (figure("plain.json", &[]), figure("pinned.json", &["--term", "copies=pinned"]));
    assert_eq!([&plain[0], &plain[1]], [&pinned[0], &pinned[1]], "other systems have no such term");
    assert_ne!(plain[2], pinned[2]);
}

#[test]
fn tables_and_what_is_not_known() {
    let folder = Folder::new();
    let (figures, picture) = (folder.name("tables.json"), folder.name("figure.svg"));
    let told = ballast(&["simulate", "flexgen", "--json", &figures, "--curves", &picture]).fine();
    for words in ["Table 2", "Table 3", "Table 4", "table 23", "opt-175b", "Petals", "figure 1"] {
        assert!(told.contains(words), "{words} in:\n{told}");
    }
    let told = folder.json("tables.json");
    let curves = told["figure_1"].as_array().expect("curves");
    let points = curves.iter().map(|curve| curve["points"].as_array().expect("points").len());
    let points: Vec<usize> = points.collect();
    assert!(points.len() == 4 && points.iter().all(|count| *count > 0) && points[2] > 8, "{points:?}");
    assert_eq!(folder.read("figure.svg").matches("<circle").count(), points.iter().sum::<usize>());
    let cells = told["cells"].as_array().expect("cells");
    let without_disk = cells.iter().find(|cell| cell["row"] == "No disk" && cell["model"] == "opt-175b");
    let without_disk = without_disk.expect("in the table");
    assert!(without_disk["paper"].is_null() && without_disk["predicted"].is_null(), "{without_disk}");
    assert_eq!(
        (without_disk["paper_says"].as_str(), without_disk["fits"].as_bool()),
        (Some("OOM"), Some(false))
    );
    assert!(cells[0]["paper"].is_f64() && cells[0]["ratio"].is_f64() && cells[0]["batch_size"] == 2);
    ballast(&["simulate", "flexgen", "--model", "opt-31b"]).refused(2, &["opt-31b", "opt-30b"]);
    ballast(&["plan", "opt-31b"]).refused(2, &["opt-31b", "opt-30b"]);
    ballast(&["plan", "opt-30b", "--hardware", "t5"]).refused(2, &["t5", "t4"]);
    ballast(&["plan", "opt-175b", "--memory", "8GiB", "--disk", "8GiB"])
        .refused(1, &["nothing fits", "room on the drive"]);
    ballast(&["plan", "opt-30b", "--batch-size", "64", "--num-batches", "2", "--device-memory", "1GiB"])
        .refused(1, &["nothing fits: opt-30b in a block of 2 batches of 64 needs at least"]);
    ballast(&["plan", "opt-30b", "--max-latency", "1"])
        .refused(1, &["nothing is fast enough", "s for a request"]);
    let cell = |more: &[&str]| ballast(&[&["simulate", "flexgen", "--model", "opt-30b"], more].concat());
    cell(&["--devices", "49"]).refused(2, &["--devices 49", "48 layers"]);
    cell(&["--mechanism", "ballast", "--pin-weight", "on"]).refused(2, &["--pin-weight", "changes nothing"]);
    let bad = ["--batch-size", "1", "--num-batches", "1", "--percent", "90", "20", "0", "0", "0", "0"];
    let args = [&["simulate", "flexgen", "--model", "opt-30b"][..], &bad[..]].concat();
    ballast(&args).refused(1, &["more than all of them"]);
}

#[test]
fn files_that_cannot_be_written_are_told_before_anything_is_planned() {
    let model = golden("llama");
    for args in [
        &["plan", &model, "--curve", "/no/such/a.svg"][..],
        &["plan", "opt-30b", "--curve", "/no/such/a.svg"],
        &["simulate", "flexgen", "--curves", "/no/such/a.svg"],
    ] {
        let ran = ballast(args);
        assert_eq!(ran.out, "", "{args:?}");
        ran.refused(1, &["cannot write /no/such/a.svg"]);
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_plan_that_cannot_be_shown_is_written() {
    let folder = Folder::new();
    let full = std::fs::File::options().write(true).open("/dev/full").expect("Linux has it");
    let mut plan = command(&["plan", "opt-30b", "--json", &folder.name("plan.json")]);
    let ended = plan.stdout(full).output().expect("the binary starts");
    assert_eq!(ended.status.code(), Some(1), "standard output is full");
    assert!(folder.json("plan.json")["generated_tokens_per_s"].as_f64() > Some(0.0));
}

#[test]
fn flags_that_would_not_be_heard_are_refused_by_name() {
    let tables = |flags: &[&str], named: &str| {
        ballast(&[&["simulate", "flexgen"][..], flags].concat()).refused(2, &[named, "--model"]);
    };
    for flag in ["--compress-weight", "--compress-cache", "--no-host-attention", "--no-overlap"] {
        tables(&[flag], flag);
        tables(&["--mechanism", "ballast", flag], flag);
    }
    for flag in ["--prompt-len", "--gen-len", "--devices"] {
        tables(&[flag, "64"], flag);
    }
    tables(&["--batch-size", "2", "--num-batches", "1"], "--batch-size");
    tables(&["--pin-weight", "off"], "--pin-weight");
    tables(&["--mechanism", "ballast", "--term", "grain=slices"], "--term");
    let published = [
        ("--num-prompts", "7"),
        ("--steps-in-flight", "2"),
        ("--record", "x"),
        ("--tool-call-parser", "hermes"),
        ("--chat-template", "x"),
        ("--revision", "main"),
    ];
    for (flag, value) in published {
        ballast(&["plan", "opt-30b", flag, value]).refused(2, &[flag, "published model"]);
    }
    for flag in ["--price-per-hour", "--max-latency"] {
        for nonsense in ["0", "nan", "inf"] {
            ballast(&["plan", "opt-30b", flag, nonsense]).refused(2, &[flag, "above zero"]);
        }
    }
}

#[test]
fn a_plan_of_a_model_that_is_here_refuses_what_it_does_not_hear() {
    let model = common::golden("llama");
    for (flag, value, instead) in [
        ("--hardware", "t9", "this machine"),
        ("--devices", "1", "one device"),
        ("--record", "x", "runs the plan"),
        ("--chat-template", "x", "runs the plan"),
        ("--tool-call-parser", "hermes", "runs the plan"),
        ("--max-model-len", "64", "--gen-len"),
    ] {
        ballast(&["plan", &model, flag, value]).refused(2, &[flag, instead]);
    }
}

/// Of long prompts a batch has few: a step that computes all of a large block has more than can be counted.
#[test]
fn a_block_that_is_too_large_to_simulate_is_told_so() {
    let block = ["--batch-size", "1024", "--num-batches", "256", "--prompt-len", "2049", "--gen-len", "2"];
    let machine = ["--disk", "30TB", "--memory", "1TB", "--device-memory", "40GiB"];
    ballast(&[&["plan", "opt-125m"], &block[..], &machine[..]].concat())
        .refused(1, &["too large to be simulated"]);
    let cell = ["simulate", "flexgen", "--mechanism", "ballast", "--model", "opt-125m"];
    ballast(&[&cell[..], &block[..], &["--percent", "0", "100", "0", "0", "0", "0"]].concat())
        .refused(1, &["too large to be simulated"]);
}

#[test]
fn a_policy_that_does_not_fit_is_out_of_memory_and_the_nearest_does() {
    let cell = ["simulate", "flexgen", "--model", "opt-175b"];
    let block = ["--batch-size", "32", "--num-batches", "8", "--percent"];
    let told = ballast(&[&cell[..], &block[..], &["100", "0", "100", "0", "100", "0"]].concat());
    let words = told.err.clone();
    told.refused(1, &["out of memory", "GiB on the device", "--batch-size 32 --num-batches 8 --percent"]);
    let nearest = words.split("the nearest that fits is ").nth(1).expect("told").trim();
    let nearest = nearest.split_whitespace().collect::<Vec<_>>();
    ballast(&[&cell[..], &nearest[..]].concat()).fine();
    let tables = ballast(&["simulate", "flexgen"]).fine();
    let without_disk = tables.lines().filter(|line| line.contains("No disk") && line.contains("opt-175b"));
    assert!(
        without_disk.clone().count() == 2
            && without_disk.clone().all(|line| line.matches("OOM").count() == 2)
    );
}

#[test]
fn a_cell_says_what_was_simulated_and_terms_are_switched_one_by_one() {
    let folder = Folder::new();
    let file = folder.name("cell.json");
    let cell = [
        "simulate",
        "flexgen",
        "--model",
        "opt-30b",
        "--batch-size",
        "48",
        "--num-batches",
        "3",
        "--percent",
    ];
    let shares = ["20", "80", "0", "100", "0", "100", "--json", &file];
    let rate = |flags: &[&str]| {
        ballast(&[&cell[..], &shares[..], flags].concat()).fine();
        let told = folder.json("cell.json");
        (told["generated_tokens_per_s"].as_f64().expect("a number"), told)
    };
    let (released, told) = rate(&[]);
    assert_eq!((told["model"].as_str(), told["hardware"].as_str()), (Some("opt-30b"), Some("t4")));
    assert_eq!(
        (told["prompt_len"].as_u64(), told["mechanism"]["order"].as_str()),
        (Some(512), Some("barriers"))
    );
    let (unpinned, told) = rate(&["--pin-weight", "off"]);
    assert!(unpinned < released && told["pin_weight"] == "off", "{told}");
    let (freed, told) = rate(&["--term", "order=buffers", "--term", "compute=fused"]);
    assert!(
        freed > released
            && told["mechanism"]["order"] == "buffers"
            && told["mechanism"]["grain"] == "tensors"
    );
    ballast(&["simulate", "flexgen", "--term", "order=sideways"]).refused(2, &["barriers, buffers"]);
}
