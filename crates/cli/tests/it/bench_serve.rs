//! `ballast bench serve` over loopback: against a server that is scripted, and against the real one.

use crate::common::serving::{Asked, Scripted, Serving, response, stream};
use crate::common::{Folder, Ran, ballast, command, golden};
use serde_json::Value;
use std::process::Stdio;

const MODELS: &str = r#"{"data":[{"id":"org/scripted"}]}"#;

/// Three tokens for completions, two for chats; tokens of words are 3 to 12.
pub(crate) fn well(asked: &Asked) -> String {
    let path = asked.head.split(' ').nth(1).expect("a path");
    match path {
        "/v1/models" => response("200 OK", MODELS),
        "/tokenize" => response("200 OK", r#"{"tokens":[3,4,5,6,7,8,9,10,11,12]}"#),
        "/v1/completions" => stream(&[
            ": ping\n\ndata: {\"choices\":[{\"text\":\"a\"}]}\n\n",
            "data: {\"choices\":[{\"text\":\"b\"}]}\n\ndata: {\"choices\":[{\"text\":\"c\",\"finish_reason\":\"length\"}]}\n\n",
            "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":3}}\n\ndata: [DONE]\n\n",
        ]),
        "/v1/chat/completions" => stream(&[
            "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n",
            "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\ndata: {\"choices\":[{\"delta\":{\"content\":\"b\"}}]}\n\n",
            "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n",
        ]),
        _ => response("404 Not Found", "{}"),
    }
}

fn bench(url: &str, more: &[&str]) -> Ran {
    ballast(&[&["bench", "serve", "--base-url", url, "--disable-tqdm"], more].concat())
}

/// The bodies of streams that were asked for.
fn bodies(server: &Scripted) -> Vec<Value> {
    let asked = server.asked();
    let streams = asked.iter().filter(|asked| asked.head.contains("completions"));
    streams.map(|asked| serde_json::from_str(&asked.body).expect("JSON")).collect()
}

#[test]
fn a_scripted_server_is_measured_and_the_result_has_vllms_keys() {
    let (server, folder) = (Scripted::start(well), Folder::new());
    let json = folder.name("x.json");
    let flags =
        ["--num-prompts", "8", "--input-len", "20", "--output-len", "3", "--random-range-ratio", "0.5"];
    let report = [
        "--percentile-metrics",
        "ttft,tpot,itl,e2el",
        "--metric-percentiles",
        "50,99.9",
        "--goodput",
        "e2el:60000",
    ];
    let saved =
        ["--save-result", "--save-detailed", "--result-dir", &folder.whole(), "--result-filename", "y.json"];
    let more = ["--metadata", "what=a test", "--metadata", "duration=5", "--seed", "4", "--json", &json];
    let ran = bench(&server.url, &[&flags[..], &report, &saved, &more].concat());
    assert!(ran.err.contains("--metadata duration is left out"), "{}", ran.err);
    let out = ran.fine();
    for row in [
        "Successful requests:                     8",
        "Total generated tokens:                  24",
        "P99.9 ITL (ms):",
        "Request goodput",
    ] {
        assert!(out.contains(row), "{row}: {out}");
    }
    let result = folder.json("x.json");
    assert_eq!(result, folder.json("y.json"));
    let is = |key: &str, value: Value| assert_eq!(result[key], value, "{key}");
    is("completed", 8.into());
    is("failed", 0.into());
    is("total_input_tokens", 56.into());
    is("total_output_tokens", 24.into());
    is("model_id", "org/scripted".into());
    is("request_rate", "inf".into());
    is("what", "a test".into());
    is("request_goodput", result["request_throughput"].clone());
    is("output_lens", vec![3; 8].into());
    is("errors", vec![""; 8].into());
    for key in [
        "duration",
        "output_throughput",
        "total_token_throughput",
        "mean_ttft_ms",
        "p99.9_e2el_ms",
        "median_e2el_ms",
    ] {
        assert!(result[key].as_f64().is_some_and(|x| x > 0.0), "{key}: {result}");
    }
    for key in [
        "std_tpot_ms",
        "p50_itl_ms",
        "max_concurrency",
        "burstiness",
        "date",
        "backend",
        "label",
        "tokenizer_id",
    ] {
        assert!(result.get(key).is_some(), "{key}");
    }
    for body in bodies(&server) {
        let prompt = body["prompt"].as_array().expect("tokens");
        assert!(
            (10..=30).contains(&prompt.len())
                && prompt.iter().all(|t| (3..=12).contains(&t.as_u64().expect("an id")))
        );
        assert_eq!(
            (&body["ignore_eos"], &body["stream_options"]["include_usage"]),
            (&true.into(), &true.into())
        );
        assert!((1..=5).contains(&body["max_tokens"].as_u64().expect("a limit")));
    }
}

#[test]
fn a_seed_repeats_the_requests() {
    let sent = |seed| {
        let server = Scripted::start(well);
        let flags = [
            "--num-prompts",
            "3",
            "--input-len",
            "8",
            "--output-len",
            "3",
            "--max-concurrency",
            "1",
            "--seed",
            seed,
        ];
        bench(&server.url, &flags).fine();
        bodies(&server)
    };
    assert_eq!(sent("1"), sent("1"));
    assert_ne!(sent("1"), sent("2"));
}

#[test]
fn chats_and_files_of_prompts() {
    let (server, folder) = (Scripted::start(well), Folder::new());
    let file = folder.write(
        "p.jsonl",
        "{\"prompt\": \"one\", \"output_tokens\": 5}\n{\"conversations\": [{\"value\": \"two\"}]}\n{\"messages\": [{\"role\": \"user\", \"content\": \"three\"}]}\n",
    );
    let json = folder.name("x.json");
    let data = [
        "--dataset-name",
        "custom",
        "--dataset-path",
        &file,
        "--disable-shuffle",
        "--custom-output-len",
        "6",
    ];
    let how = [
        "--backend",
        "openai-chat",
        "--max-concurrency",
        "1",
        "--extra-body",
        "{\"x\": 1}",
        "--temperature",
        "0",
    ];
    let who = ["--header", "X-Who=me", "--api-key", "k", "--model", "m", "--json", &json];
    bench(&server.url, &[&data[..], &how, &who].concat()).fine();
    let said: Vec<Value> = bodies(&server);
    let content = |i: usize| said[i]["messages"][0]["content"].as_str().expect("text").to_string();
    assert_eq!([content(0), content(1), content(2)], ["one", "two", "three"]);
    assert_eq!(
        (&said[0]["max_completion_tokens"], &said[1]["max_completion_tokens"]),
        (&5.into(), &6.into())
    );
    assert_eq!(
        (&said[0]["x"], &said[0]["temperature"], &said[0]["model"]),
        (&1.into(), &0.0.into(), &"m".into())
    );
    assert_eq!(said[0].get("ignore_eos"), None);
    assert!(
        server
            .asked()
            .iter()
            .all(|asked| asked.head.contains("Bearer k") && asked.head.to_lowercase().contains("x-who: me"))
    );
    let result = folder.json("x.json");
    assert_eq!(
        (&result["completed"], &result["total_output_tokens"]),
        (&3.into(), &6.into()),
        "counted by events"
    );
    bench(&server.url, &["--dataset-name", "custom", "--dataset-path", &file])
        .refused(1, &["request 3", "openai-chat"]);
    bench(&server.url, &[&data[..], &how, &["--num-prompts", "4"]].concat()).refused(1, &["has 3 requests"]);
}

#[test]
fn one_length_of_answers_holds_for_every_dataset() {
    let folder = Folder::new();
    let prompts =
        folder.write("p.jsonl", "{\"prompt\": \"one\", \"output_tokens\": 5}\n{\"prompt\": \"two\"}\n");
    let trace =
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.50,5,2\n2023-11-16 18:17:03.60,6,3\n";
    for (name, file) in [("custom", prompts), ("trace", folder.write("t.csv", trace))] {
        let server = Scripted::start(well);
        let data = ["--dataset-name", name, "--dataset-path", &file];
        let lens = ["--output-len", "9", "--custom-output-len", "4", "--skip-longer-than", "99"];
        let ran = bench(&server.url, &[&data[..], &lens].concat());
        let other = if name == "custom" { "--skip-longer-than" } else { "--custom-output-len" };
        let notes: Vec<&str> = ran.err.lines().filter(|line| line.contains("changes nothing")).collect();
        assert!(notes.len() == 1 && notes[0].contains(other), "{notes:?}");
        ran.fine();
        let asked: Vec<Value> = bodies(&server).iter().map(|body| body["max_tokens"].clone()).collect();
        assert_eq!(asked, [9, 9], "{name}");
    }
}

#[test]
fn traces_come_at_their_times_or_at_a_rate() {
    let (server, folder) = (Scripted::start(well), Folder::new());
    let file = folder.write(
        "t.csv",
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:16:03.50,600,2\n2023-11-16 18:17:03.50,5,2\n\
         2023-11-16 18:17:03.80,6,3\n2023-11-16 18:17:03.90,600,3\n",
    );
    let json = folder.name("x.json");
    let trace =
        ["--dataset-name", "trace", "--dataset-path", &file, "--skip-longer-than", "100", "--json", &json];
    bench(&server.url, &trace).fine();
    let result = folder.json("x.json");
    assert_eq!((&result["completed"], &result["request_rate"]), (&2.into(), &"trace".into()));
    let duration = result["duration"].as_f64().expect("seconds");
    assert!((0.3..60.0).contains(&duration), "it begins with the first that is kept: {result}");
    let mut lens: Vec<usize> =
        bodies(&server).iter().map(|body| body["prompt"].as_array().expect("tokens").len()).collect();
    lens.sort_unstable();
    assert_eq!(lens, [5, 6]);
    bench(&server.url, &[&trace[..], &["--request-rate", "20", "--burstiness", "0.5"]].concat()).fine();
    let result = folder.json("x.json");
    assert_eq!((&result["request_rate"], &result["burstiness"]), (&20.0.into(), &0.5.into()));
    assert!(result["duration"].as_f64().expect("seconds") >= 0.1, "two requests at 20 a second");
}

#[test]
fn a_trace_without_times_says_so() {
    let (server, folder) = (Scripted::start(well), Folder::new());
    let file = folder.write("t.csv", "\u{feff}when,prompt_tokens,output_tokens\n0,5,2\n30,6,3\n");
    let trace = |more: &[&str]| {
        bench(&server.url, &[&["--dataset-name", "trace", "--dataset-path", &file], more].concat())
    };
    let told = "the trace has no column of times (timestamp, arrival, arrived_at, time)";
    trace(&["--self-timed"]).refused(2, &["--self-timed", told]);
    let at_once = trace(&[]);
    assert!(at_once.err.contains(told), "{}", at_once.err);
    at_once.fine();
    let paced = trace(&["--request-rate", "50"]);
    assert!(!paced.err.contains(told), "{}", paced.err);
    paced.fine();
    // With the same mark before it, a column that is known is found.
    let timed =
        folder.write("timed.csv", "\u{feff}TIMESTAMP,ContextTokens,GeneratedTokens\r\n0,5,2\r\n0.2,6,3\r\n");
    let json = folder.name("x.json");
    bench(&server.url, &["--dataset-name", "trace", "--dataset-path", &timed, "--json", &json]).fine();
    assert_eq!(folder.json("x.json")["request_rate"], "trace");
}

#[test]
fn a_rate_that_grows_and_results_that_are_appended() {
    let (server, folder) = (Scripted::start(well), Folder::new());
    let ramp = ["--ramp-up-strategy", "linear", "--ramp-up-start-rps", "50", "--ramp-up-end-rps", "100"];
    let saved = ["--append-result", "--result-dir", &folder.whole(), "--result-filename", "all.jsonl"];
    let more = ["--num-prompts", "4", "--backend", "vllm", "--model", "org/m", "--served-model-name", "m"];
    let out = bench(&server.url, &[&ramp[..], &saved, &more].concat()).fine();
    assert!(out.contains("50.00 to 100.00, linear"), "{out}");
    bench(&server.url, &[&saved[..], &more].concat()).fine();
    let lines: Vec<Value> =
        folder.read("all.jsonl").lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(lines.len(), 2);
    assert_eq!(lines[0]["ramp_up_strategy"], "linear");
    assert_eq!((&lines[0]["ramp_up_start_rps"], &lines[0]["ramp_up_end_rps"]), (&50.0.into(), &100.0.into()));
    assert_eq!(lines[1].get("ramp_up_strategy"), None);
    for line in &lines {
        assert_eq!((&line["backend"], &line["model_id"]), (&"vllm".into(), &"org/m".into()));
    }
    assert!(bodies(&server).iter().all(|body| body["model"] == "m" && body["prompt"].is_array()));
}

#[test]
fn results_without_a_name_get_one_each() {
    let (server, folder) = (Scripted::start(well), Folder::new());
    let names = ["--model", "org/named", "--served-model-name", "m", "--label", "of a/b"];
    let saved = ["--save-result", "--result-dir", &folder.whole(), "--num-prompts", "1"];
    // Within a second, perhaps.
    (0..2).for_each(|_| _ = bench(&server.url, &[&names[..], &saved].concat()).fine());
    let found: Vec<String> = std::fs::read_dir(folder.path(""))
        .expect("a folder")
        .map(|entry| entry.expect("an entry").file_name().into_string().expect("UTF-8"))
        .collect();
    let is_named = |name: &String| name.starts_with("of a-b-infqps-named-20");
    assert!(found.len() == 2 && found.iter().all(is_named), "{found:?}");
}

/// Answers that do not say how many tokens they have, nor how words are cut.
fn silent(asked: &Asked) -> String {
    if !asked.head.contains("/v1/completions") {
        return bare(asked);
    }
    stream(&[
        "data: {\"choices\":[{\"text\":\" the sea the sea\",\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n",
    ])
}

#[test]
fn a_tokenizer_of_ones_own_counts_what_the_server_does_not() {
    let (server, folder) = (Scripted::start(silent), Folder::new());
    let file = folder.write(
        "p.json",
        r#"[{"conversations": [{"value": " the sea"}, {"value": " the sea the sea the sea"}]}]"#,
    );
    let json = folder.name("x.json");
    let model = golden("llama");
    let own = ["--model", "m", "--tokenizer", &model, "--json", &json];
    let data = ["--dataset-name", "sharegpt", "--dataset-path", &file];
    bench(&server.url, &[&own[..], &data].concat()).fine();
    let result = folder.json("x.json");
    let count = |key: &str| result[key].as_u64().expect("a number");
    assert_eq!(count("total_output_tokens"), 2 * count("total_input_tokens"), "{result}");
    assert!(count("total_input_tokens") > 0 && result["tokenizer_id"] == model.as_str());
    assert_eq!(bodies(&server)[0]["max_tokens"], 3 * count("total_input_tokens"));
    bench(&server.url, &[&own[..], &["--num-prompts", "1", "--input-len", "7"]].concat()).fine();
    assert_eq!(bodies(&server)[1]["prompt"].as_array().expect("tokens").len(), 7);
    bench(&server.url, &["--model", "m", "--tokenizer", "/no/such"])
        .refused(2, &["/no/such", "tokenizer.json"]);
}

/// The first stream of a connection is refused, breaks off or fails, by its prompt's length.
fn badly(asked: &Asked) -> String {
    let path = asked.head.split(' ').nth(1).expect("a path");
    let prompt = serde_json::from_str::<Value>(&asked.body)
        .ok()
        .and_then(|body| Some(body["prompt"].as_array()?.len()));
    match (path, prompt) {
        ("/v1/completions", Some(1)) => {
            response("503 Service Unavailable", r#"{"error":{"message":"too much waits"}}"#)
        }
        ("/v1/completions", Some(2)) => stream(&["data: {\"choices\":[{\"text\":\"a\"}]}\n\n"]),
        ("/v1/completions", Some(3)) => stream(&["data: {\"error\":{\"message\":\"the engine died\"}}\n\n"]),
        // The connection ends with these, maybe in one packet.
        ("/v1/completions", Some(5)) => {
            stream(&["data: {\"choices\":[{\"text\":\"a\"}]}\n\n"]).replace("0\r\n\r\n", "")
        }
        ("/v1/completions", Some(6)) => "HTTP/1.1 502 Bad Gateway\r\n\r\nnobody is here".to_string(),
        _ => well(asked),
    }
}

#[test]
fn failures_are_counted_and_shown() {
    let (server, folder) = (Scripted::start(badly), Folder::new());
    let file = folder.write("t.csv", "prompt_tokens,output_tokens\n1,3\n2,3\n3,3\n4,3\n5,3\n6,3\n");
    let trace = ["--dataset-name", "trace", "--dataset-path", &file];
    let out = bench(&server.url, &trace).fine();
    for says in [
        "HTTP 503: too much waits",
        "before its end",
        "the engine died",
        "HTTP 502: nobody is here",
        "Failed requests:                         5",
    ] {
        assert!(out.contains(says), "{says}: {out}");
    }
    bench(&server.url, &[&trace[..], &["--num-prompts", "3"]].concat())
        .refused(1, &["of 3 requests all failed"]);
    bench(&server.url, &[&trace[..], &["--num-warmups", "1"]].concat())
        .refused(1, &["warm up", "too much waits"]);
    // Nobody reads the report: they failed all the same.
    let unread = [&["bench", "serve", "--base-url", &server.url, "--num-prompts", "3"], &trace[..]].concat();
    let mut child = command(&unread).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("it starts");
    drop(child.stdout.take());
    assert_eq!(child.wait().expect("it ends").code(), Some(1));
}

/// Neither models nor /tokenize.
fn bare(asked: &Asked) -> String {
    if asked.head.contains("completions") { well(asked) } else { response("404 Not Found", "{}") }
}

#[test]
fn servers_without_vllms_extras_get_words() {
    let server = Scripted::start(bare);
    bench(&server.url, &["--num-prompts", "2"])
        .refused(1, &["does not name its models", "404", "--ready-check-timeout-sec"]);
    let flags = ["--num-prompts", "2", "--model", "m", "--input-len", "9"];
    let ran = bench(&server.url, &flags);
    assert!(ran.err.contains("no /tokenize"), "{}", ran.err);
    ran.fine();
    assert_eq!(bodies(&server)[0]["prompt"].as_str().expect("text").split(' ').count(), 9);
}

#[test]
fn what_cannot_be_asked_is_refused() {
    let nobody = ["--num-prompts", "1", "--port", "1"];
    ballast(&[&["bench", "serve"], &nobody[..]].concat())
        .refused(1, &["cannot reach http://127.0.0.1:1", "running"]);
    for (flags, says) in [
        (&["--base-url", "nonsense"][..], "no address of a server"),
        (&["--endpoint", "v1"], "begin with a slash"),
        (&["--dataset-name", "trace"], "--dataset-path"),
        (&["--dataset-path", "x"], "--dataset-name"),
        (&["--request-rate", "0"], "above 0"),
        (&["--goodput", "itl:5"], "ttft:MS"),
        (&["--extra-body", "[]"], "JSON object"),
        (&["--random-range-ratio", "1"], "below 1"),
        (&["--header", "x"], "KEY=VALUE"),
        (&["--ramp-up-strategy", "linear"], "--ramp-up-start-rps"),
        (&["--ramp-up-start-rps", "1", "--ramp-up-end-rps", "2"], "--ramp-up-strategy"),
        (
            &["--ramp-up-strategy", "linear", "--ramp-up-start-rps", "3", "--ramp-up-end-rps", "2"],
            "3 is more than --ramp-up-end-rps 2",
        ),
        (&["--result-dir", "x"], "--append-result"),
        (&["--dataset-name", "sonnet"], "possible values: random, trace, custom"),
        (&["--plot-timeline"], "--save-detailed has all that a plot needs"),
        (&["--lora-modules", "x"], "merge them into the weights"),
    ] {
        ballast(&[&["bench", "serve"], flags].concat()).refused(2, &[says]);
    }
}

/// Before anything is measured, and not as a server that cannot count tokens.
#[test]
fn a_model_that_the_server_has_not_is_refused() {
    let server = Serving::start(&[&golden("llama")]);
    ballast(&["bench", "serve", "--base-url", &server.url, "--model", "foo", "--num-prompts", "1"])
        .refused(1, &["refuses --model foo", "`foo` is not served"]);
}

#[test]
fn the_real_server_gives_what_was_asked_for() {
    let (server, folder) = (Serving::start(&[&golden("llama"), "--api-key", "k"]), Folder::new());
    let json = folder.name("x.json");
    let flags = [
        "--num-prompts",
        "40",
        "--input-len",
        "30",
        "--output-len",
        "8",
        "--max-concurrency",
        "16",
        "--json",
        &json,
    ];
    let key = ["--api-key", "k"];
    for backend in ["openai", "openai-chat"] {
        bench(&server.url, &[&flags[..], &key, &["--backend", backend, "--num-warmups", "2"]].concat())
            .fine();
        let result = folder.json("x.json");
        assert_eq!(
            (&result["completed"], &result["total_output_tokens"]),
            (&40.into(), &320.into()),
            "{backend}"
        );
        // How many overlap depends on the machine; more than allowed is never right.
        let most = result["max_concurrent_requests"].as_u64().expect("a number");
        assert!((1..=16).contains(&most), "{backend}: {most}");
        if backend == "openai" {
            assert_eq!(result["total_input_tokens"], 40 * 30);
        }
    }
    bench(&server.url, &flags).refused(1, &["401"]);
}

#[cfg(target_os = "linux")]
#[test]
fn a_result_that_cannot_be_shown_is_written() {
    let (server, folder) = (Scripted::start(well), Folder::new());
    let full = std::fs::File::options().write(true).open("/dev/full").expect("Linux has it");
    let (json, url) = (folder.name("x.json"), &server.url);
    let mut bench = command(&[
        "bench",
        "serve",
        "--base-url",
        url,
        "--disable-tqdm",
        "--num-prompts",
        "2",
        "--json",
        &json,
    ]);
    let ended = bench.stdout(full).output().expect("the binary starts");
    assert_eq!(ended.status.code(), Some(1), "standard output is full");
    assert_eq!(folder.json("x.json")["completed"], 2);
}
