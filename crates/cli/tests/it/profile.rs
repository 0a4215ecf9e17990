//! `ballast profile` and `ballast plan` on a tiny model: what is measured is kept, and plans are made of it.

use crate::common::{Folder, Ran, command, golden};
use serde_json::Value;

fn ballast(cache: &Folder, args: &[&str]) -> Ran {
    Ran::of(command(args).env("BALLAST_CACHE", cache.whole()).output().expect("the binary starts"))
}

#[test]
fn what_is_measured_is_planned_with() {
    let cache = Folder::new();
    let none = ballast(&cache, &["profile", &golden("llama-gqa-tied"), "--refresh"]);
    none.refused(1, &["there is no profile", "leave --refresh out"]);
    let little = ballast(&cache, &["profile", &golden("llama-gqa-tied"), "--disk", "64MiB"]);
    little.refused(1, &["128 MiB", "--disk allows 64"]);
    let unmeasured = ballast(&cache, &[&["plan", &golden("llama-gqa-tied")][..], &JOB].concat());
    let said = unmeasured.err.clone();
    unmeasured.fine();
    let kept = cache.path("profiles").display().to_string();
    assert!(
        said.contains("nothing was measured")
            && said.contains("kept for the next plan")
            && said.contains(&kept),
        "{said}"
    );
    let out =
        ballast(&cache, &["profile", &golden("llama-gqa-tied"), "--json", &cache.name("copy.json")]).fine();
    assert!(out.contains("drive written"), "{out}");
    let files: Vec<_> = std::fs::read_dir(cache.path("profiles")).unwrap().collect();
    let [Ok(file)] = files.as_slice() else { panic!("one profile, found {files:?}") };
    let profile: Value = serde_json::from_slice(&std::fs::read(file.path()).unwrap()).unwrap();
    assert_eq!(profile, cache.json("copy.json"));
    assert_eq!(profile["key"]["threads"], 1);
    assert!(profile["key"]["drive"].is_u64(), "times of reads are of one drive");
    for table in ["qkv", "out", "mlp", "head"] {
        let points = profile["tables"][table]["seconds"].as_array().unwrap();
        assert!(points.len() > 8 && points.iter().all(|p| p[1].as_f64() > Some(0.0)), "{table}: {points:?}");
    }
    // Nothing is left on the drive.
    assert_eq!(std::fs::read_dir(cache.path("packed")).unwrap().count(), 0);
    a_plan_is_run_as_it_was_emitted(&cache);
    flags_and_budgets_are_kept(&cache);
    what_drifts_is_measured_again(&cache, &profile);
}

fn what_drifts_is_measured_again(cache: &Folder, before: &Value) {
    let model = golden("llama-gqa-tied");
    ballast(cache, &["profile", &model, "--refresh", "--json", &cache.name("again.json")]).fine();
    let again = cache.json("again.json");
    let point = |profile: &Value, pointer: &str| profile.pointer(pointer).and_then(Value::as_f64).unwrap();
    let mlp = "/tables/mlp/seconds/0/1";
    let drift = point(&again, "/drift/linears");
    assert!((point(&again, mlp) / (point(before, mlp) * drift) - 1.0).abs() < 1e-6, "{drift}");
    // Beside that of the weights in 12 bits, which small budgets were planned with.
    let kept = std::fs::read_dir(cache.path("profiles")).unwrap().map(|file| -> Value {
        serde_json::from_slice(&std::fs::read(file.unwrap().path()).unwrap()).unwrap()
    });
    let of_the_model: Vec<_> = kept.filter(|kept| kept["key"] == again["key"]).collect();
    assert_eq!(of_the_model.iter().map(|kept| &kept["tables"]).collect::<Vec<_>>(), [&again["tables"]]);
}

const JOB: [&str; 6] = ["--num-prompts", "8", "--prompt-len", "12", "--gen-len", "4"];

fn a_plan_is_run_as_it_was_emitted(cache: &Folder) {
    let (model, toml) = (golden("llama-gqa-tied"), cache.name("plan.toml"));
    let (json, svg, run) = (cache.name("plan.json"), cache.name("curve.svg"), cache.name("run.json"));
    // By plain steps, which keep KV where they compute: beside one thread another core may attend meanwhile, and that may pay.
    let out = ["--emit-config", &toml, "--json", &json, "--curve", &svg, "--price-per-hour", "2"];
    let out = [&out[..], &["--schedule", "plain"]].concat();
    let told = ballast(cache, &[&["plan", &model][..], &JOB, &out].concat()).fine();
    assert!(told.contains("binds") && !told.contains("measuring"), "{told}");
    let plan = cache.json("plan.json");
    let rate = plan["generated_tokens_per_s"].as_f64().unwrap();
    let per_dollar = plan["tokens_per_dollar"].as_f64().unwrap();
    // What is read of a file may differ in its last bit.
    assert!(rate > 0.0 && (per_dollar / (rate * 1800.0) - 1.0).abs() < 1e-12, "{rate} {per_dollar}");
    for what in ["weights", "kv", "hidden"] {
        assert_eq!(plan["placement"][what], serde_json::json!({"device": 1.0, "host": 0.0, "disk": 0.0}));
    }
    assert!(plan["peak_bytes"]["device"].as_u64() > Some(0) && plan["binds"].as_array().is_some());
    assert!(cache.read("curve.svg").contains("<svg"));
    let bench = ["bench", "throughput", &model, "--config", &toml, "--num-prompts", "8", "--input-len", "12"];
    ballast(cache, &[&bench[..], &["--output-len", "4", "--reps", "1", "--json", &run]].concat()).fine();
    let ran = cache.json("run.json");
    // What the plan counted is what the engine held, but for what the process had resident before, and answers of a batch that wait
    // for those before them.
    let (planned, held) =
        (plan["peak_bytes"]["device"].as_f64().unwrap(), ran["planned_bytes"].as_f64().unwrap());
    let waiting = f64::from(64 << 20);
    assert!((planned - waiting - held).abs() < 16e6, "{planned} {held}");
}

fn flags_and_budgets_are_kept(cache: &Folder) {
    let model = golden("llama-gqa-tied");
    let json = cache.name("given.json");
    let plan =
        |more: &[&str]| ballast(cache, &[&["plan", &model][..], &JOB, &["--json", &json], more].concat());
    plan(&["--batch-size", "2", "--num-batches", "3", "--schedule", "zigzag"]).fine();
    let told = cache.json("given.json");
    assert_eq!((&told["batch_size"], &told["num_batches"]), (&2.into(), &3.into()));
    assert_eq!((&told["schedule"], &told["max_num_seqs"]), (&"zigzag".into(), &6.into()));
    // Where batches have room for more than are allowed at once, that many are.
    for sizes in [["--num-batches", "3"], ["--batch-size", "4"], ["--batch-size", "7"]] {
        plan(&[&["--max-num-seqs", "5", "--schedule", "zigzag"][..], &sizes].concat()).fine();
        let told = cache.json("given.json");
        assert!(
            told["max_num_seqs"].as_u64().is_some_and(|seqs| (1..=5).contains(&seqs)),
            "{sizes:?}: {told}"
        );
    }
    plan(&["--percent", "0", "0", "100", "0", "100", "0"]).fine();
    let told = cache.json("given.json");
    assert!(told["placement"]["weights"]["disk"].as_f64() > Some(0.2), "{told}");
    assert!(told["lane_seconds"]["DiskRead"].as_f64() > Some(0.0), "{told}");
    plan(&["--device-memory", "64MiB", "--memory", "1GiB", "--percent", "0", "100", "100", "0", "100", "0"])
        .fine();
    let told = cache.json("given.json");
    assert!(told["placement"]["weights"]["host"].as_f64() > Some(0.2), "{told}");
    assert!(told["lane_seconds"]["Up"].as_f64() > Some(0.0), "{told}");
    let toml = cache.name("given.toml");
    let sets = [
        "--steps-in-flight",
        "2",
        "--no-enable-prefix-caching",
        "--swap-tokens",
        "64",
        "--emit-config",
        &toml,
    ];
    plan(&sets).fine();
    let emitted: toml::Table = cache.read("given.toml").parse().unwrap();
    assert_eq!(
        (&emitted["steps-in-flight"], &emitted["no-enable-prefix-caching"]),
        (&2.into(), &true.into())
    );
    assert_eq!((&emitted["swap-tokens"], &emitted["device"]), (&64.into(), &"cpu".into()));
    a_limit_is_of_the_slowest_request(cache, &plan);
    let sets =
        ["--device", "cpu*1", "--memory", "256MiB", "--disk-cache-tokens", "96", "--emit-config", &toml];
    plan(&sets).fine();
    let emitted: toml::Table = cache.read("given.toml").parse().unwrap();
    assert_eq!((&emitted["device"], &emitted["disk-cache-tokens"]), (&"cpu*1".into(), &96.into()));
    let peak = |who: &str| {
        plan(&["--for", who]).fine();
        let bytes = &cache.json("given.json")["peak_bytes"];
        bytes["device"].as_u64().unwrap() + bytes["host"].as_u64().unwrap()
    };
    assert!(peak("serve") > peak("batch") + (16 << 20), "connections count where they will be");
    plan(&["--memory", "1MiB"]).refused(1, &["nothing fits", "--memory"]);
    plan(&["--max-latency", "0.000001"]).refused(1, &["nothing is fast enough", "--max-latency"]);
    plan(&["--compress-cache"]).refused(2, &["--kv int4"]);
    let published = |more: &[&str]| ballast(cache, &[&["plan", "opt-30b"][..], more].concat());
    published(&["--weights", "int4"]).refused(2, &["--weights", "--compress-weight"]);
    published(&["--batch-size", "4"]).refused(2, &["--num-batches"]);
}

fn a_limit_is_of_the_slowest_request(cache: &Folder, plan: &dyn Fn(&[&str]) -> Ran) {
    let told = plan(&[]).fine();
    assert!(told.contains("the longest"), "{told}");
    let free = cache.json("given.json");
    let seconds = |report: &Value, key: &str| report[key].as_f64().expect("a number");
    // What is read of a file may differ in its last bit.
    let limit = seconds(&free, "latency_max_s") * 1.000_001;
    plan(&["--max-latency", &limit.to_string()]).fine();
    let kept = cache.json("given.json");
    let candidates = kept["candidates"].as_array().expect("a list");
    for candidate in candidates {
        assert!(seconds(candidate, "latency_s") <= seconds(candidate, "latency_max_s") * 1.000_001);
        assert!(seconds(candidate, "latency_max_s") <= limit, "{candidate}");
    }
    assert!(seconds(&kept, "generated_tokens_per_s") >= 0.999_999 * seconds(&free, "generated_tokens_per_s"));
}
