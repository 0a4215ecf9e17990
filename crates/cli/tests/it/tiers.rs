//! Weights on device, host and drive from the command line, and the lanes of a real run drawn.

use crate::common::{self, serving::Serving};
use crate::common::{Folder, Ran, ballast, command, golden};
use serde_json::Value;

fn answer(folder: &Folder, more: &[&str]) -> common::Ran {
    let (model, packed) = (golden("llama"), folder.name("packed"));
    let args =
        ["run", &model, "the sea", "--raw", "--max-tokens", "12", "--ignore-eos", "--offload-dir", &packed];
    ballast(&[&args, more].concat())
}

#[test]
fn every_tier_gives_the_answer_of_the_device_alone() {
    let folder = Folder::new();
    let want = answer(&folder, &[]).fine();
    let lanes = folder.name("lanes.json");
    let drawn = ["--lanes", lanes.as_str()];
    let shares =
        |shares: [&'static str; 2]| [&["--percent"], &shares[..], &["100", "0", "100", "0"]].concat();
    for (args, expected) in [
        (shares(["0", "0"]), ["DiskRead"].as_slice()),
        ([&shares(["20", "80"])[..], &["--host-weights", "copied"]].concat(), &["Up"]),
        ([&shares(["20", "40"])[..], &["--host-weights", "copied"]].concat(), &["DiskRead", "Up"]),
        (
            [&["--device", "cpu*1", "--link-gbps", "50"], &shares(["20", "0"])[..]].concat(),
            &["DiskRead", "Up"],
        ),
        // Without a link that is rehearsed: the drive is not the device's.
        ([&["--device", "cpu*1"], &shares(["20", "0"])[..]].concat(), &["DiskRead", "Up"]),
    ] {
        assert_eq!(answer(&folder, &[&args[..], &drawn].concat()).fine(), want, "{args:?}");
        let spans = folder.json("lanes.json")["spans"].as_array().expect("a list").clone();
        let ran = |lane: &str| spans.iter().any(|span| span["lane"] == lane && span["label"] != "");
        for lane in ["Up", "DiskRead", "Device"] {
            assert_eq!(ran(lane), lane == "Device" || expected.contains(&lane), "{args:?} {lane}");
        }
        let ordered = |span: &Value| span["start_ns"].as_u64() <= span["end_ns"].as_u64();
        assert!(spans.iter().all(ordered), "a span that ends before it begins");
    }
}

#[test]
fn weights_on_the_host_stay_there_when_told() {
    let folder = Folder::new();
    let shares = ["--percent", "20", "80", "100", "0", "100", "0"];
    for (who, says) in [("copied", "are copied to the device"), ("computed", "computed with there in steps")]
    {
        let ran = answer(&folder, &[&shares[..], &["--host-weights", who]].concat());
        assert!(ran.err.contains(says), "{who}: {}", ran.err);
        assert_eq!(ran.fine(), answer(&folder, &[]).fine(), "{who}");
    }
}

#[test]
fn flags_that_change_nothing_and_shares_that_cannot_be_are_told() {
    let folder = Folder::new();
    let idle = [
        "--num-batches",
        "4",
        "--schedule",
        "plain",
        "--attend",
        "device",
        "--link-gbps",
        "5",
        "--host-weights",
        "computed",
    ];
    let ran = answer(&folder, &idle);
    for flag in ["--num-batches", "--attend", "--link-gbps", "--host-weights"] {
        assert!(ran.err.contains(&format!("{flag} changes nothing here")), "{flag}: {}", ran.err);
    }
    let shares = answer(&folder, &["--percent", "5", "35", "100", "0", "100", "0", "--link-gbps", "50"]);
    assert!(!shares.err.contains("changes nothing"), "{}", shares.err);
    assert!(shares.err.contains("--percent asks for 5 % of the weights on the device"), "{}", shares.err);
    assert!(!answer(&folder, &[]).err.contains("--"), "nothing was asked for");
    let memory = ["--max-num-batched-tokens", "16777216", "--memory", "200MiB"];
    answer(&folder, &memory).refused(1, &["The nearest that fits: --max-num-batched-tokens"]);
    let (model, no_folder) = (golden("llama"), "/dev/null/packed");
    let nowhere = ["run", &model, "the sea", "--raw", "--offload-dir", no_folder];
    ballast(&nowhere).refused(1, &["--offload-dir /dev/null/packed is no folder that can be made"]);
}

#[test]
fn lanes_in_every_format_and_no_other() {
    let folder = Folder::new();
    for (name, begins) in
        [("a.svg", "<svg"), ("a.json", "{\"spans\""), ("a.trace.json", "{\"displayTimeUnit")]
    {
        answer(&folder, &["--lanes", &folder.name(name)]).fine();
        let text = std::fs::read_to_string(folder.path(name)).expect("written");
        assert!(text.starts_with(begins), "{name}: {}", &text[..60]);
    }
    answer(&folder, &["--lanes", &folder.name("a.png")]).refused(2, &[".svg, .json or .trace.json"]);
    answer(&folder, &["--lanes", "/no/such/a.svg"]).refused(1, &["cannot write /no/such/a.svg"]);
    let model = golden("llama");
    let bench =
        ["bench", "throughput", &model, "--num-prompts", "2", "--input-len", "8", "--output-len", "2"];
    ballast(&[&bench[..], &["--lanes", &folder.name("b.svg")]].concat()).fine();
    assert!(std::fs::read_to_string(folder.path("b.svg")).expect("written").contains("mlp 0 batch 0"));
    let text = folder.write("text.txt", "a b c d e f g h i j k l m n o p q r s t u v w x y z");
    let eval = ["eval", "perplexity", &model, "--text", &text, "--context", "8", "--stride", "8"];
    ballast(&[&eval[..], &["--lanes", &folder.name("c.json")]].concat()).fine();
    assert!(folder.json("c.json")["spans"].as_array().is_some_and(|spans| !spans.is_empty()));
    let server = Serving::start(&[&model, "--lanes", &folder.name("d.json")]);
    let body = r#"{"prompt": [5], "max_tokens": 2}"#;
    assert!(server.ask("POST", "/v1/completions", "", body).starts_with("HTTP/1.1 200"));
    server.end();
    assert!(folder.json("d.json")["spans"].as_array().is_some_and(|spans| !spans.is_empty()));
}

#[test]
fn the_process_stays_within_its_memory() {
    let (folder, model) = (Folder::new(), golden("llama"));
    let (json, packed) = (folder.name("x.json"), folder.name("packed"));
    let bench =
        ["bench", "throughput", &model, "--num-prompts", "8", "--input-len", "40", "--output-len", "8"];
    let tiers = ["--device", "cpu*1", "--percent", "30", "40", "100", "0", "100", "0", "--link-gbps", "50"];
    for more in [&[][..], &tiers[..], &tiers[..9]] {
        let files = ["--offload-dir", &packed, "--json", &json, "--reps", "1"];
        ballast(&[&bench[..], &files, more].concat()).fine();
        let report = folder.json("x.json");
        let bytes = |key: &str| report[key].as_u64().expect("a number");
        let (peak, planned) = (bytes("peak_rss_bytes"), bytes("planned_bytes"));
        assert!(peak <= planned, "{more:?}: {peak} of {planned}");
        // What is announced for the program itself is not announced for nothing: within 10 % of the smallest real model.
        assert!(planned - peak <= 12 << 20, "{more:?}: {peak} of {planned}");
    }
}

/// Nothing was measured of this model: KV away from the device has the command measure, and plan by it, before it loads.
#[test]
fn the_process_stays_within_its_memory_while_it_plans_itself() {
    let (folder, model) = (Folder::new(), golden("llama"));
    let json = folder.name("x.json");
    let bench =
        ["bench", "throughput", &model, "--num-prompts", "2", "--input-len", "8", "--output-len", "4"];
    // Where there is no room to measure in, nothing is; that is told.
    for (memory, told) in [("64MiB", "plan: "), ("96MiB", "plan: "), ("160MiB", "--attend auto")] {
        let cache = Folder::new();
        let limits = ["--reps", "1", "--memory", memory, "--json", &json, "--percent"];
        let args = [&bench[..], &limits, &["50"; 6]].concat();
        let ran = Ran::of(command(&args).env("BALLAST_CACHE", cache.whole()).output().expect("it starts"));
        assert!(ran.err.contains(told), "{memory}: {}", ran.err);
        ran.fine();
        let peak = folder.json("x.json")["peak_rss_bytes"].as_u64().expect("a number");
        let limit: u64 = memory.trim_end_matches("MiB").parse().expect("a number");
        assert!(peak <= limit << 20, "{memory}: {peak}");
    }
}

#[test]
fn a_processor_that_stands_for_a_device_has_memory_of_its_own() {
    let folder = Folder::new();
    let ran = answer(&folder, &["--device", "cpu*1", "--memory", "100MiB"]);
    assert!(ran.err.contains("of 50.0 MiB on the device"), "{}", ran.err);
    assert_eq!(ran.fine(), answer(&folder, &[]).fine());
}

#[test]
fn budgets_and_shares_of_nonsense() {
    let folder = Folder::new();
    let refused = |args: &[&str], code, says: &[&str]| answer(&folder, args).refused(code, says);
    let percent = |w: [&'static str; 6]| [&["--percent"], &w[..]].concat();
    refused(&["--memory", "1GiB", "--device-memory", "1GiB"], 1, &["leaves nothing", "lower the former"]);
    refused(
        &["--memory", "100MiB", "--device-memory", "1KiB"],
        1,
        &["Raise --device-memory", "1.0 KiB there"],
    );
    refused(&percent(["60", "60", "100", "0", "100", "0"]), 1, &["60 + 60 percent of the weights"]);
    refused(&percent(["101", "0", "100", "0", "100", "0"]), 2, &["expected a share in percent, 0..=100"]);
    refused(&["--device", "cpu*4"], 2, &["several devices are not built yet"]);
    refused(&["--link-gbps", "0"], 2, &["gigabytes a second"]);
    // Two layers: slots for both hold all of them.
    let small = ["--memory", "100MiB", "--device-memory", "300KiB"];
    let args = [&small[..], &percent(["100", "0", "100", "0", "100", "0"])].concat();
    refused(&args, 1, &["of the device's memory", "Nothing near it fits"]);
    what_would_fit_can_be_pasted(&folder);
}

fn what_would_fit_can_be_pasted(folder: &Folder) {
    let args = ["--memory", "100MiB", "--device-memory", "470KiB", "--weights", "bf16"];
    let blocks =
        ["--schedule", "zigzag", "--num-batches", "4", "--percent", "20", "80", "100", "0", "100", "0"];
    let told = answer(folder, &[&args[..], &blocks].concat()).err;
    let (_, flags) = told.split_once("The nearest that fits: ").unwrap_or_else(|| panic!("{told}"));
    let flags: Vec<&str> = flags.split_whitespace().collect();
    assert!(flags[0] == "--percent" && flags.len() >= 7, "{told}");
    let ran = answer(folder, &[&args[..], &blocks, &flags].concat());
    assert_eq!(ran.fine(), answer(folder, &[]).fine(), "{flags:?}");
}

#[test]
fn where_weights_do_not_fit_a_plan_is_made_and_told() {
    let (folder, model) = (Folder::new(), Folder::copy_of("llama"));
    let config = model.read("config.json").replace("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 24");
    model.write("config.json", config);
    let (whole, packed) = (model.whole(), folder.name("packed"));
    let run =
        ["run", &whole, "the sea", "--raw", "--max-tokens", "6", "--ignore-eos", "--load-format", "dummy"];
    let answer = |more: &[&str]| ballast(&[&run[..], &["--offload-dir", &packed], more].concat());
    let roomy = answer(&["--device-memory", "1GiB", "--memory", "2GiB"]);
    assert!(!roomy.err.contains("plan:"), "{}", roomy.err);
    let small = ["--device-memory", "2MiB", "--memory", "1GiB"];
    let planned = answer(&small);
    for word in ["plan: weights", "on the device", "binds", "generated tokens/s predicted", "ballast profile"]
    {
        assert!(planned.err.contains(word), "{word}: {}", planned.err);
    }
    let placed = ["--percent", "20", "80", "100", "0", "100", "0"];
    let told = answer(&[&small[..], &placed].concat());
    assert!(!told.err.contains("plan:"), "{}", told.err);
    let want = roomy.fine();
    assert_eq!((planned.fine(), told.fine()), (want.clone(), want));
}

#[test]
fn memory_that_a_refusal_names_is_enough() {
    let folder = Folder::new();
    let refused = answer(&folder, &["--memory", "8MiB"]);
    let named =
        refused.err.split("Raise --memory to at least ").nth(1).and_then(|rest| rest.split(',').next());
    let named = named.unwrap_or_else(|| panic!("no memory is named: {}", refused.err)).replace(' ', "");
    assert_eq!(answer(&folder, &["--memory", &named]).fine(), answer(&folder, &[]).fine(), "{named}");
}

/// KV may live on the drive, where nothing needs memory for it but what it passes through.
#[test]
fn memory_that_a_server_is_told_to_need_is_enough_and_less_is_not() {
    let (folder, model) = (Folder::new(), Folder::copy_of("llama"));
    let config = model.read("config.json").replace("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 24");
    model.write("config.json", config);
    let mut config = model.json("config.json");
    config["max_position_embeddings"] = 16384.into();
    model.write("config.json", config.to_string());
    let (whole, packed, cache) = (model.whole(), folder.name("packed"), folder.name("cache"));
    let flags = [
        "--load-format",
        "dummy",
        "--offload-dir",
        &packed,
        "--max-num-seqs",
        "1",
        "--max-model-len",
        "16384",
    ];
    let refused = |memory: &str| {
        let args = [&["serve", &whole, "--port", "0", "--memory", memory], &flags[..]].concat();
        let ran = Ran::of(command(&args).env("BALLAST_CACHE", &cache).output().expect("the binary starts"));
        let told = ran.err.clone();
        ran.refused(1, &["Raise --memory to at least "]);
        told
    };
    let told = refused("40MiB");
    assert!(told.contains("slots for KV on the drive"), "{told}");
    let named = told.split("Raise --memory to at least ").nth(1).and_then(|rest| rest.split(" MiB").next());
    let named: f64 = named.and_then(|mib| mib.parse().ok()).unwrap_or_else(|| panic!("{told}"));
    // Of what is named the last is for measuring, which may take less.
    let told = refused(&format!("{}MiB", named - 10.0));
    assert!(told.contains("slots for KV on the drive"), "{told}");
    let named = format!("{named}MiB");
    let args = [&[&*whole, "--memory", &named], &flags[..]].concat();
    let log = Serving::start_with(&args, &[("BALLAST_CACHE", &cache)]).end();
    assert!(log.contains("KV and activations on the drive"), "{log}");
}

/// Never more than there may be, and more than is announced here.
#[test]
fn what_measuring_took_is_told_where_the_engine_takes_less() {
    let (folder, model) = (Folder::new(), golden("llama"));
    let cache = folder.name("cache");
    let bench =
        ["bench", "throughput", &model, "--num-prompts", "2", "--input-len", "8", "--output-len", "2"];
    let args =
        [&bench[..], &["--reps", "1", "--memory", "1GiB", "--percent", "100", "0", "0", "100", "100", "0"]];
    let told = || {
        let ran = command(&args.concat()).env("BALLAST_CACHE", &cache).output().expect("the binary starts");
        assert!(ran.status.success());
        String::from_utf8_lossy(&ran.stderr).contains(" while costs were measured, less from here on")
    };
    assert_eq!([told(), told()], [true, false], "measured once");
}
