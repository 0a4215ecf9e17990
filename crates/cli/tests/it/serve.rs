//! `ballast serve`: its flags, and what its log says and does not say.

use crate::common::serving::Serving;
use crate::common::{Folder, ballast, golden};
use serde_json::Value;

const KEY: &str = "a-key-that-nobody-may-see";
const PROMPT: &str = "xylophones of Zanzibar";

fn body(more: &str) -> String {
    format!("{{\"prompt\": \"{PROMPT}\", \"max_tokens\": 5, \"temperature\": 0, \"ignore_eos\": true{more}}}")
}

/// Whole answers, streams, chats, refusals of every kind, each with the prompt or the key in it.
fn ask_in_every_way(server: &Serving) -> Vec<String> {
    let key = format!("Authorization: Bearer {KEY}\r\n");
    let json = format!("{key}Content-Type: application/json\r\n");
    let chat = format!(
        "{{\"messages\": [{{\"role\": \"user\", \"content\": \"{PROMPT}\"}}], \"max_tokens\": 3, \"stream\": true}}"
    );
    let id = format!("{json}x-request-id: mine-1\r\n");
    [
        server.ask("POST", "/v1/completions", &id, &body("")),
        server.ask("POST", "/v1/completions", &json, &body(", \"stream\": true, \"n\": 2")),
        server.ask("POST", "/v1/chat/completions", &json, &chat),
        server.ask("POST", "/v1/completions", &json, &body(&format!(", \"model\": \"{PROMPT}\""))),
        server.ask("POST", "/v1/completions", &json, &format!("{{\"prompt\": \"{PROMPT}")),
        server.ask("POST", "/tokenize", &json, &body("")),
        server.ask("POST", "/v1/completions", "Authorization: Bearer wrong-key\r\n", &body("")),
        server.ask("GET", &format!("/{}?key={KEY}", PROMPT.replace(' ', "%20")), &key, ""),
        server.ask("GET", &format!("/v1/models/{}", PROMPT.replace(' ', "%20")), &key, ""),
        server.ask("GET", "/health", &key, ""),
    ]
    .into()
}

#[test]
fn a_line_a_request_without_prompts_or_keys() {
    let flags =
        ["--api-key", KEY, "--log-format", "json", "--log-level", "debug", "--served-model-name", "m"];
    let server = Serving::start(&[&[&golden("llama")[..]], &flags[..]].concat());
    let answers = ask_in_every_way(&server);
    let log = server.end();
    for secret in [KEY, "xylophones", "Zanzibar", "wrong-key", "panicked"] {
        assert!(!log.contains(secret), "{secret}: {log}");
    }
    let answer: Value =
        serde_json::from_str(answers[0].split("\r\n\r\n").nth(1).expect("a body")).expect("JSON");
    let said = answer["choices"][0]["text"].as_str().expect("a text");
    // A letter or two stand in any log.
    assert!(
        said.len() < 4 || !log.contains(said),
        "what was generated is no more for the log: {said:?}: {log}"
    );
    let lines: Vec<Value> = log
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}")))
        .collect();
    let events = |name: &str| lines.iter().filter(|line| line["event"] == name).collect::<Vec<_>>();
    assert_eq!([events("listening").len(), events("memory").len(), events("ready").len()], [1, 1, 1]);
    let requests = events("request");
    let statuses: Vec<u64> = requests.iter().map(|line| line["status"].as_u64().expect("a status")).collect();
    assert_eq!(statuses, [200, 200, 200, 404, 400, 200, 401, 404, 404, 200]);
    let one = requests[0];
    assert_eq!(
        (&one["id"], &one["model"], &one["finish_reason"]),
        (&"mine-1".into(), &"m".into(), &"length".into())
    );
    assert_eq!(
        (&one["generated_tokens"], &one["stream"], &one["path"]),
        (&5.into(), &false.into(), &"/v1/completions".into())
    );
    assert!(one["prompt_tokens"].as_u64().expect("tokens") > 0);
    let ms = |name: &str| one[name].as_f64().unwrap_or_else(|| panic!("{name}: {one}"));
    assert!(ms("queue_ms") <= ms("ttft_ms") && ms("ttft_ms") <= ms("total_ms"), "{one}");
    assert_eq!((&requests[1]["generated_tokens"], &requests[1]["stream"]), (&10.into(), &true.into()));
    assert_eq!((&requests[7]["path"], &requests[8]["path"]), (&"none".into(), &"/v1/models/{*id}".into()));
    assert_eq!(requests[3].get("model"), None, "it never came to a model");
}

#[test]
fn levels_and_text() {
    let model = golden("llama");
    let server = Serving::start(&[&model, "--served-model-name", "m"]);
    server.ask("GET", "/health", "", "");
    server.ask("POST", "/v1/completions", "", &body(""));
    let log = server.end();
    let lines: Vec<&str> = log.lines().filter(|line| line.contains(" request ")).collect();
    assert_eq!(lines.len(), 1, "who only looks is not told of: {log}");
    for field in [
        "INFO",
        "method=POST",
        "status=200",
        "model=m",
        "generated_tokens=5",
        "finish_reason=length",
        "ttft_ms=",
    ] {
        assert!(lines[0].contains(field), "{field}: {log}");
    }
    assert!(log.contains("\nready: m\n"), "{log}");
}

#[test]
fn wrong_flags_are_refused_before_anything_is_loaded() {
    let (model, folder) = (golden("llama"), Folder::new());
    let empty = folder.write("keys", "\n \n# none yet\n");
    let serve = |flags: &[&str]| ballast(&[&["serve", &model, "--port", "0"], flags].concat());
    for (flags, code, says) in [
        (&["--port", "70000"][..], 2, "70000"),
        (&["--host", "no/where"], 2, "no/where"),
        (&["--max-logprobs", "-2"], 2, "-1"),
        (&["--model", "other"], 2, "cannot be used with"),
        (&["--kv-cache-dtype", "fp8_e5m2"], 2, "fp8"),
        (&["--dtype", "half"], 2, "bf16"),
        (&["--enable-prefix-caching", "--no-enable-prefix-caching"], 2, "cannot be used with"),
        (&["--revision", "main"], 1, "no revisions"),
        (&["--max-num-queued-reqs", "0"], 2, "from 1"),
        (&["--request-timeout", "0"], 2, "more than 0"),
        (&["--kv-cache-memory-bytes", "lots"], 2, "2GiB"),
        (&["--kv-cache-memory-bytes", "4"], 2, "has no room for any request"),
        (&["--log-format", "xml"], 2, "text, json"),
        (&["--log-level", "loud"], 2, "debug"),
        (&["--shutdown-timeout", "soon"], 2, "--shutdown-timeout"),
        (&["--api-key", " "], 2, "must not be empty"),
        (&["--served-model-name", "a", ""], 2, "a model's name must not be empty"),
        (&["--api-key", "schlüssel"], 2, "no client can send"),
        (&["--api-key-file", &empty], 2, "has no keys"),
        (&["--api-key-file", "/no/such/file"], 2, "cannot read /no/such/file"),
        (&["--spool-dir", "/dev/null/x"], 1, "choose another --spool-dir"),
        (&["--host", "192.0.2.1"], 1, "cannot listen on 192.0.2.1"),
        (&["--memory", "5MiB"], 1, "Raise --memory"),
        (&["--max-model-len", "100000"], 1, "at most 512"),
        (&["--chat-template", "/no/such/file"], 2, "cannot read /no/such/file"),
        (&["--reasoning-budget", "-2"], 2, "--reasoning-budget"),
    ] {
        serve(flags).refused(code, &[says]);
    }
    ballast(&["serve"]).refused(2, &["<MODEL>"]);
    let nowhere = ["serve", "./nowhere", "--port", "0"];
    ballast(&nowhere).refused(2, &["no model `./nowhere`"]);
    let ran = ballast(&[&nowhere[..], &["--log-format", "json"]].concat());
    let is_event =
        |line: &str| serde_json::from_str::<serde_json::Value>(line).is_ok_and(|line| line.is_object());
    assert!(ran.err.lines().all(is_event), "whoever reads events reads why it ended: {}", ran.err);
    ran.refused(2, &["no model `./nowhere`"]);
}

#[test]
fn flags_do_what_they_say() {
    let (model, folder) = (golden("llama"), Folder::new());
    let keys = folder.write("keys", "# those of the fleet\none\n two \n");
    let spool = folder.name("spool");
    let flags = [
        "--api-key-file",
        &keys,
        "--api-key",
        "three",
        "--api-key",
        "five",
        "--host",
        "localhost",
        "--dtype",
        "bfloat16",
        "--kv-cache-dtype",
        "auto",
        "--trust-remote-code",
        "--enable-auto-tool-choice",
        "--max-logprobs",
        "25",
        "--open-metrics",
        "--timings",
        "--served-model-name",
        "a",
        "b",
        "a",
        "--max-model-len",
        "64",
        "--max-num-seqs",
        "2",
        "--max-num-queued-reqs",
        "5",
        "--spool-dir",
        &spool,
        "--kv-cache-memory-bytes",
        "1MiB",
        "--threads",
        "1",
    ];
    let server = Serving::start(&[&["--model", &model[..]], &flags[..]].concat());
    let get =
        |path: &str, key: &str| server.ask("GET", path, &format!("Authorization: Bearer {key}\r\n"), "");
    for key in ["one", "two", "three", "five"] {
        assert!(get("/v1/models", key).starts_with("HTTP/1.1 200"), "{key}");
    }
    assert!(get("/v1/models", "four").starts_with("HTTP/1.1 401"));
    let models = get("/v1/models", "one");
    assert!(
        models.matches("\"id\":\"a\"").count() == 1
            && models.contains("\"id\":\"b\"")
            && models.contains("\"max_model_len\":64"),
        "{models}"
    );
    assert!(get("/v1/files", "one").starts_with("HTTP/1.1 200"), "there is a spool");
    let many = r#"{"prompt": "x", "n": 6}"#;
    let refused = server.ask("POST", "/v1/completions", "Authorization: Bearer one\r\n", many);
    assert!(refused.starts_with("HTTP/1.1 400") && refused.contains("at most 5"), "{refused}");
    let key = "Authorization: Bearer one\r\n";
    let rivals = |n: u32| format!("{{\"prompt\": \"x\", \"max_tokens\": 1, \"logprobs\": {n}}}");
    assert!(server.ask("POST", "/v1/completions", key, &rivals(25)).starts_with("HTTP/1.1 200"));
    assert!(server.ask("POST", "/v1/completions", key, &rivals(26)).contains("at most 25"));
    assert!(server.ask("GET", "/metrics", "", "").starts_with("HTTP/1.1 200"));
    // How long an answer took, in a whole one and in the last chunk of a stream.
    for stream in [false, true] {
        let body =
            format!("{{\"prompt\": \"x\", \"max_tokens\": 3, \"ignore_eos\": true, \"stream\": {stream}}}");
        let answer = server.ask("POST", "/v1/completions", key, &body);
        assert_eq!(answer.matches("\"timings\":{").count(), 1, "{answer}");
        assert!(answer.contains("\"predicted_n\":3"), "{answer}");
    }
    let log = server.end();
    for told in ["--trust-remote-code: no code", "--enable-auto-tool-choice: it is on", ", fingerprint "] {
        assert!(log.contains(told), "{told}: {log}");
    }
}

/// A model whose marks are tokens thinks as long as it may, and then answers; one whose marks are none is refused a limit.
#[test]
fn thoughts_are_told_apart_and_end_in_time() {
    let folder = Folder::copy_of("llama");
    let template = folder.write("think.jinja", "{% for m in messages %}{{ m.content }}{% endfor %}<think>");
    let flags = ["--chat-template", &template, "--reasoning-budget", "3", "--reasoning-parser", "any"];
    let whole = folder.whole();
    let serve = [&["serve", &whole, "--port", "0"], &flags[..]].concat();
    ballast(&serve).refused(1, &["what marks this model's thoughts is no token of it"]);
    let renamed = |file: &str, [opens, closes]: [&str; 2]| {
        let text = folder.read(file).replace("<|im_start|>", opens).replace("<|endoftext|>", closes);
        folder.write(file, text);
    };
    renamed("tokenizer.json", ["<think>", "</think>"]);
    renamed("tokenizer_config.json", ["<|im_end|>"; 2]);
    let server = Serving::start(&[&[&whole[..]], &flags[..]].concat());
    let ask = |more: &str| {
        let body = format!(
            "{{\"messages\": [{{\"role\": \"user\", \"content\": \"Hi\"}}], \"max_tokens\": 20, \"temperature\": 0{more}}}"
        );
        let answer = server.ask("POST", "/v1/chat/completions", "Content-Type: application/json\r\n", &body);
        let answer: Value = serde_json::from_str(answer.split("\r\n\r\n").nth(1).unwrap()).unwrap();
        let thought = answer["usage"]["completion_tokens_details"]["reasoning_tokens"].as_u64().unwrap();
        (thought, answer["choices"][0]["message"].clone())
    };
    let (thought, message) = ask(", \"ignore_eos\": true");
    assert!(thought == 4 && message["reasoning_content"].is_string(), "{thought} {message}");
    assert!(message["content"].as_str().is_some_and(|text| !text.contains("think>")), "{message}");
    let (thought, message) = ask(", \"thinking_token_budget\": 1, \"guided_choice\": [\"yes\"]");
    assert_eq!((thought, &message["content"]), (2, &Value::from("yes")), "{message}");
    let log = server.end();
    assert!(log.contains("--reasoning-parser any: the chat template says"), "{log}");
}

/// Its own machine needs none; who opens a server to others is told that it is.
#[test]
fn a_server_that_lets_everybody_in_says_so() {
    for (host, keys, is_told) in
        [("0.0.0.0", &[][..], true), ("0.0.0.0", &["--api-key", KEY], false), ("127.0.0.1", &[], false)]
    {
        let server = Serving::start(&[&[&golden("llama")[..], "--host", host], keys].concat());
        let log = server.end();
        assert_eq!(log.contains("whoever reaches this address may use the model"), is_told, "{host}: {log}");
    }
}

/// What the process itself takes, in MiB, as the plan of all memory tells it.
fn process_mib(flags: &[&str]) -> f64 {
    let server = Serving::start(&[&[&golden("llama")[..], "--log-level", "info"], flags].concat());
    let log = server.end();
    let told = log.lines().find(|line| line.contains("memory: ")).unwrap_or_else(|| panic!("{log}"));
    let told = told.split("process ").nth(1).expect("a part").split(':').next().expect("a size");
    let (number, unit) = told.split_once(' ').expect("a unit");
    number.parse::<f64>().expect("a number") * if unit == "GiB" { 1024.0 } else { 1.0 }
}

#[test]
fn connections_are_part_of_the_memory_that_is_told() {
    let (few, many) = (process_mib(&["--max-connections", "1"]), process_mib(&["--max-connections", "3001"]));
    // What else the process has differs a little from run to run.
    let each_kib = (many - few) * 1024.0 / 3000.0;
    assert!((35.0..65.0).contains(&each_kib), "{few} MiB and {many} MiB");
    let (small, large) = (process_mib(&["--memory", "600MiB"]), process_mib(&["--memory", "3GiB"]));
    assert!(small + 64.0 < large, "a small server is for fewer: {small} MiB and {large} MiB");
    let refused = ballast(&["serve", &golden("llama"), "--port", "0", "--memory", "64MiB"]);
    refused.refused(1, &["Raise --memory"]);
}
