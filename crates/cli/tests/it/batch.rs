//! `ballast batch`: answers in the order of the input, errors as lines, files that are not lost.

use std::collections::BTreeSet;
use std::fs;
use std::process::{Command, Stdio};

use crate::common::{Folder, Ran, ballast, ballast_reading, command, golden};
use serde_json::{Value, json};

fn completion(id: &str, body: Value) -> String {
    json!({"custom_id": id, "method": "POST", "url": "/v1/completions", "body": body}).to_string()
}

fn chat(id: &str, mut body: Value) -> String {
    body["messages"] = json!([{"role": "user", "content": "hello"}]);
    json!({"custom_id": id, "method": "POST", "url": "/v1/chat/completions", "body": body}).to_string()
}

/// The answers to these lines, and the end of the command.
fn answers(input: &str) -> (Vec<Value>, Ran) {
    let folder = Folder::new();
    let (from, to) = (folder.write("in.jsonl", input), folder.name("out.jsonl"));
    let ran = ballast(&["batch", &golden("llama"), "-i", &from, "-o", &to]);
    let lines = folder.read("out.jsonl");
    (lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect(), ran)
}

fn body(answer: &Value) -> &Value {
    &answer["response"]["body"]
}

#[test]
fn answers_come_in_order_and_are_those_of_run() {
    let lines: Vec<String> = (0..40)
        .map(|i| {
            chat(
                &format!("line {i}"),
                json!({"temperature": 0, "max_tokens": 1 + i % 12, "ignore_eos": true}),
            )
        })
        .collect();
    let (answers, ran) = answers(&lines.join("\n"));
    ran.fine();
    assert_eq!(answers.len(), 40);
    for (i, answer) in answers.iter().enumerate() {
        assert_eq!(answer["custom_id"], format!("line {i}"));
        assert_eq!((&answer["error"], &answer["response"]["status_code"]), (&Value::Null, &json!(200)));
        assert_eq!(body(answer)["usage"]["completion_tokens"], 1 + i % 12);
    }
    let greedy = ["-q", "--temperature", "0", "--max-tokens", "12", "--ignore-eos"];
    let run = ballast(&[&["run", &golden("llama"), "hello"], &greedy[..]].concat());
    assert_eq!(
        run.fine(),
        format!("{}\n", body(&answers[11])["choices"][0]["message"]["content"].as_str().unwrap())
    );
}

#[test]
fn requests_of_all_kinds() {
    let lines = [
        completion("three", json!({"prompt": "hello", "max_tokens": 4, "n": 3, "temperature": 1, "seed": 5})),
        completion("again", json!({"prompt": "hello", "max_tokens": 4, "n": 3, "temperature": 1, "seed": 5})),
        completion("scores", json!({"prompt": "hello", "max_tokens": 0, "echo": true, "logprobs": 2})),
        completion("ids", json!({"prompt": [5, 6, 7], "max_tokens": 2})),
        completion("two", json!({"prompt": ["hello", "ho"], "max_tokens": 2, "n": 2})),
        chat(
            "tops",
            json!({"logprobs": true, "top_logprobs": 3, "max_tokens": 2, "temperature": 0, "ignore_eos": true}),
        ),
        completion("named", json!({"model": "llama", "prompt": "hello", "max_tokens": 1})),
    ];
    let (answers, ran) = answers(&lines.join("\n"));
    ran.fine();
    let choices = |i: usize| body(&answers[i])["choices"].as_array().expect("choices");
    assert_eq!(choices(0).len(), 3);
    assert_eq!(choices(0), choices(1), "a seed repeats");
    assert_eq!(
        (&choices(2)[0]["text"], &body(&answers[2])["usage"]["completion_tokens"]),
        (&json!("hello"), &json!(0))
    );
    assert_eq!(choices(2)[0]["logprobs"]["token_logprobs"].as_array().expect("scores").len(), 4);
    assert_eq!(choices(4).len(), 4);
    assert_eq!(choices(5)[0]["logprobs"]["content"][0]["top_logprobs"].as_array().expect("tops").len(), 3);
}

#[test]
fn lines_without_seeds_draw_numbers_of_their_own() {
    let ask = json!({"prompt": "hello", "n": 4, "max_tokens": 12, "temperature": 1.5, "ignore_eos": true});
    let lines: Vec<String> = (0..6).map(|i| completion(&format!("{i}"), ask.clone())).collect();
    let (answers, ran) = answers(&lines.join("\n"));
    ran.fine();
    let choices = answers.iter().flat_map(|answer| body(answer)["choices"].as_array().expect("choices"));
    let texts: Vec<&str> = choices.map(|choice| choice["text"].as_str().expect("text")).collect();
    let distinct: BTreeSet<&str> = texts.iter().copied().collect();
    assert_eq!((texts.len(), distinct.len()), (24, 24), "{texts:?}");
}

#[test]
fn wrong_lines_are_answered_with_errors_and_the_rest_is_served() {
    let good = completion("good", json!({"prompt": "hello", "max_tokens": 2}));
    let wrong = [
        ("{nope".to_string(), "line 2: the line is not valid JSON (column 2)"),
        ("[]".to_string(), "the line is not a JSON object"),
        ("\0".to_string(), "not valid JSON"),
        ("[".repeat(100_000), "not valid JSON"),
        (
            r#"{"custom_id":"x","method":"GET","url":"/v1/completions","body":{}}"#.to_string(),
            "expected POST",
        ),
        (
            r#"{"custom_id":"x","method":"POST","url":"/v1/completions","body":{"prompt":"hello}}"#
                .to_string(),
            "not valid JSON",
        ),
        (completion("x", json!({"model": "gpt-4", "prompt": "hello"})), "model `gpt-4` is not served"),
        (completion("x", json!({"prompt": ""})), "the prompt is empty"),
        (completion("x", json!({"prompt": "y".repeat(1 << 20)})), "maximum context length is 512"),
        (completion("x", json!({"prompt": "hello", "max_tokens": 5000})), "maximum context length is 512"),
        (completion("x", json!({"prompt": "hello", "max_tokens": 0})), "max_tokens"),
        (
            completion("x", json!({"prompt": "hello", "logprobs": 21})),
            "at most 20 (`ballast serve --max-logprobs N`",
        ),
        (completion("x", json!({"prompt": [1, 99999]})), "ids are below 304"),
        (completion("x", json!({"prompt": "hello", "temperature": -1})), "temperature"),
        (completion("x", json!({"prompt": "hello", "stream": true})), "not supported"),
        (completion("x", json!({"prompt": "hello", "logit_bias": {"abc": 1}})), r#"found {"abc":1}"#),
        (completion("x", json!({"prompt": "hello", "stop_token_ids": [-1]})), "found [-1]"),
        (chat("x", json!({"functions": [{"name": "f"}]})), "functions: the older form of `tools`"),
    ];
    let mut lines = vec![good.clone()];
    lines.extend(wrong.iter().map(|(line, _)| line.clone()));
    lines.push(good);
    let (answers, ran) = answers(&lines.join("\r\n"));
    assert_eq!(answers.len(), lines.len());
    for (answer, (_, why)) in answers[1..].iter().zip(&wrong) {
        let message = answer["error"]["message"].as_str().expect("a message");
        assert!(message.contains(why), "{message} lacks {why}");
        assert!(answer["response"]["status_code"].as_u64().expect("a status") >= 400);
    }
    let named = |answer: &&Value| answer["custom_id"] == "x";
    assert_eq!(answers.iter().filter(named).count(), wrong.len() - 4, "of those that have a name");
    let [first, .., last] = &answers[..] else { panic!("answers") };
    assert_eq!((&first["error"], &last["error"]), (&Value::Null, &Value::Null));
    ran.refused(3, &["20 requests, 18 failed", "with the custom_id of another"]);
}

/// A misspelt field changes nothing, which is told.
#[test]
fn fields_that_nobody_knows_are_told() {
    let misspelt =
        |i: usize| completion(&format!("{i}"), json!({"prompt": "hello", "mx_tokens": 3, "max_tokens": 1}));
    let lines =
        [misspelt(0), misspelt(1), completion("2", json!({"prompt": "hello", "max_tokens": 1, "user": "u"}))];
    let (_, ran) = answers(&lines.join("\n"));
    assert!(ran.err.contains("fields that nobody knows are ignored: mx_tokens (2 lines)\n"), "{}", ran.err);
    let (_, ran) = answers(&lines[2]);
    assert!(!ran.err.contains("nobody knows"), "{}", ran.err);
}

#[test]
fn files_without_requests_and_files_of_windows() {
    let good = completion("good", json!({"prompt": "hello", "max_tokens": 2}));
    for empty in ["", "\n", "\r\n \r\n"] {
        let (answers, ran) = answers(empty);
        assert_eq!(answers.len(), 0);
        ran.refused(0, &["the input has no lines: the output is empty", "0 requests, 0 failed"]);
    }
    let (answers, ran) = answers(&format!("\u{feff}{good}\r\n\r\n{good}"));
    ran.fine();
    assert_eq!(answers.len(), 2);
}

/// What has no end to read, and must not be replaced, is refused before a model is looked for.
#[test]
fn outputs_that_have_to_be_files_are_files() {
    let folder = Folder::new();
    let (from, a, pipe) = (folder.write("in.jsonl", ""), folder.name("a"), folder.name("pipe"));
    assert!(Command::new("mkfifo").arg(&pipe).status().expect("mkfifo").success());
    ballast(&["batch", &golden("llama"), "-i", &from, "-o", &a]).fine();
    for other in ["-", &pipe, &folder.whole()] {
        let refused = |args: &[&str]| ballast(args).refused(2, &[&format!("{other} is no file")]);
        refused(&["batch", "no/model", "-i", &from, "-o", "out", "--error-file", other]);
        refused(&["batch", "merge", &a, "-o", other, "--overwrite"]);
        refused(&["batch", "merge", &a, "-o", "out", "--error-file", other, "--overwrite"]);
    }
    assert!(!folder.path("pipe").is_file() && folder.path("pipe").exists(), "it is as it was");
}

/// A model whose weights are used from the drive is packed there when it is loaded.
#[test]
fn a_job_without_lines_loads_no_model() {
    let (folder, model) = (Folder::new(), golden("llama"));
    let one = completion("one", json!({"prompt": "hello", "max_tokens": 2}));
    let packed = folder.name("packed");
    let batch = |input: &str, to: &str, more: &[&str]| {
        let (from, to) = (folder.write("in.jsonl", input), folder.name(to));
        let streamed = ["--offload-dir", &packed, "--percent", "0", "0", "100", "0", "100", "0"];
        ballast(&[&["batch", &model, "-i", &from, "-o", &to][..], &streamed, more].concat())
    };
    fs::write(folder.path("old"), "an old answer\n").expect("written");
    batch("\n \n", "old", &["--overwrite"]).refused(0, &["the input has no lines: the output is empty"]);
    assert_eq!(folder.read("old"), "");
    batch(&one, "b", &["--shard", "1/2"]).refused(0, &["no line of the input is this shard's"]);
    assert!(!folder.path("packed").exists());
    let ran = batch("", "c", &["--progress", "json"]);
    let last: Value = serde_json::from_str(ran.err.lines().last().expect("a line")).expect("JSON");
    assert_eq!((&last["event"], &last["requests"]), (&json!("done"), &json!(0)));
    batch(&one, "a", &["--shard", "0/2"]).fine();
    assert!(folder.path("packed").exists());
    let [a, b, all] = ["a", "b", "all"].map(|name| folder.name(name));
    ballast(&["batch", "merge", &a, &b, "-o", &all]).fine();
    assert_eq!(folder.read("all"), folder.read("a"));
}

#[test]
fn a_line_of_other_bytes_fails_alone() {
    let folder = Folder::new();
    let good = completion("good", json!({"prompt": "hello", "max_tokens": 2}));
    let from = folder.write("in.jsonl", [good.as_bytes(), b"\n\xff\xfe\n", good.as_bytes()].concat());
    let job = ["batch", &golden("llama"), "-i", &from, "-o", &folder.name("out.jsonl")];
    ballast(&[&job[..], &["--on-invalid", "fail"]].concat())
        .refused(2, &["1 of 3 lines are no requests", "line 2: byte 1 is not UTF-8 text"]);
    assert!(!folder.path("out.jsonl").exists() && !folder.path("out.jsonl.state").exists());
    ballast(&job).refused(3, &["1 of 3 lines are no requests", "3 requests, 1 failed"]);
    assert!(folder.read("out.jsonl").contains("line 2: byte 1 is not UTF-8 text"));
}

#[test]
fn standard_input_and_output() {
    let line = completion("x", json!({"prompt": "hello", "max_tokens": 2}));
    let ran = ballast_reading(&["batch", &golden("llama"), "-i", "-", "-o", "-"], line.as_bytes());
    let answer: Value = serde_json::from_str(&ran.fine()).expect("one line");
    assert_eq!(answer["custom_id"], "x");
}

#[test]
fn names_that_are_asked_for() {
    let folder = Folder::new();
    let line = completion("x", json!({"model": "gpt-4", "prompt": "hello", "max_tokens": 2}));
    let (from, to) = (folder.write("in.jsonl", line), folder.name("out.jsonl"));
    let names = ["--served-model-name", "tiny", "--served-model-name", "gpt-4"];
    ballast(&[&["batch", &golden("llama"), "-i", &from, "-o", &to], &names[..]].concat()).fine();
    assert!(folder.read("out.jsonl").contains("\"object\":\"text_completion\""));
    let nameless = ["batch", &golden("llama"), "-i", &from, "-o", &to, "--served-model-name", ""];
    ballast(&nameless).refused(2, &["a model's name must not be empty"]);
}

#[test]
fn outputs_are_not_lost() {
    let folder = Folder::new();
    let from = folder.write("in.jsonl", completion("x", json!({"prompt": "hello", "max_tokens": 2})));
    let to = folder.write("out.jsonl", "precious");
    let model = golden("llama");
    let batch = |model: &str, to: &str, more: &[&str]| {
        ballast(&[&["batch", model, "-i", &from, "-o", to], more].concat())
    };
    batch("./nowhere", &to, &[]).refused(2, &["out.jsonl exists", "--overwrite"]);
    batch(&model, &from, &["--overwrite"]).refused(2, &["choose other names"]);
    let new = folder.name("new.jsonl");
    for errors in [&new, &format!("{new}.state"), &format!("{new}.part"), &folder.name("./new.jsonl"), &from]
    {
        batch(&model, &new, &["--error-file", errors]).refused(2, &["choose other names"]);
    }
    for beside in ["--record", "--lanes"] {
        let svg = folder.name("new.svg");
        batch(&model, &svg, &[beside, &svg]).refused(2, &["choose other names"]);
    }
    batch(&model, "-", &["--record", &from]).refused(2, &["choose other names"]);
    let merge = ["batch", "merge", &from, "-o", &new, "--error-file", &folder.name("./new.jsonl")];
    ballast(&merge).refused(2, &["choose other names"]);
    batch("./nowhere", &to, &["--overwrite"]).refused(2, &["no model"]);
    assert_eq!(folder.read("out.jsonl"), "precious", "nothing is emptied before there is something to write");
    batch("./nowhere", &folder.name("new.jsonl"), &[]).refused(2, &["no model"]);
    assert!(!folder.path("new.jsonl").exists(), "nothing was written, so nothing is left");
    batch(&model, "/no/such/folder/out.jsonl", &[])
        .refused(1, &["cannot write /no/such/folder/out.jsonl.state"]);
    batch(&model, &folder.whole(), &[]).refused(1, &["cannot write"]);
    batch(&model, &to, &["--overwrite"]).fine();
    assert!(folder.read("out.jsonl").starts_with('{'));
    ballast(&["batch", &model, "-i", "/no/such.jsonl", "-o", &to])
        .refused(2, &["cannot read /no/such.jsonl"]);
    let merged = folder.name("merged.jsonl");
    ballast(&["batch", "merge", "/no/such.jsonl", "-o", &merged])
        .refused(2, &["cannot read /no/such.jsonl.state"]);
    assert!(fs::exists(&to).expect("known"));
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_and_a_reader_that_leaves() {
    let folder = Folder::new();
    let line = completion("x", json!({"prompt": "hello", "max_tokens": 2}));
    let from = folder.write("in.jsonl", vec![line; 200].join("\n"));
    let model = golden("llama");
    ballast(&["batch", &model, "-i", &from, "-o", "/dev/full"]).refused(1, &["cannot write /dev/full"]);
    // Behind /dev/stdout may be a file, which the shell adds to.
    let few = folder.write("few.jsonl", completion("x", json!({"prompt": "hello", "max_tokens": 2})));
    folder.write("shell.txt", "before\n");
    let shell = fs::File::options().append(true).open(folder.path("shell.txt")).expect("just made");
    let ran = command(&["batch", &model, "-i", &few, "-o", "/dev/stdout"]).stdout(shell).status();
    assert!(ran.expect("the binary starts").success() && !fs::exists("/dev/stdout.state").expect("known"));
    let told = folder.read("shell.txt");
    assert!(told.starts_with("before\n{") && told.lines().count() == 2, "{told}");
    let mut child = command(&["batch", &model, "-i", &from, "-o", "-"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    drop(child.stdout.take());
    let ended = child.wait_with_output().expect("it ends");
    let err = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(75), "lines without answers are no success: {err}");
    assert!(err.contains("who read them left") && !err.contains("Broken"), "{err}");
}

/// A model may have a template of its own for tools: lines with tools are rendered by it, the others are not.
#[test]
fn tools_have_their_own_template() {
    let folder = Folder::copy_of("llama");
    let mut config = folder.json("tokenizer_config.json");
    config["chat_template"] = json!([
        {"name": "default", "template": "{{ messages[0]['content'] }}"},
        {"name": "tool_use", "template": "tools: {{ tools | length }} {{ messages[0]['content'] }} and then some"},
    ]);
    folder.write("tokenizer_config.json", config.to_string());
    let tool = json!({"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}});
    let lines =
        [chat("plain", json!({"max_tokens": 1})), chat("tools", json!({"max_tokens": 1, "tools": [tool]}))];
    let (from, to) = (folder.write("in.jsonl", lines.join("\n")), folder.name("out.jsonl"));
    ballast(&["batch", &folder.whole(), "-i", &from, "-o", &to, "--tool-call-parser", "hermes"]).fine();
    let out = folder.read("out.jsonl");
    let tokens: Vec<u64> = out
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).expect("JSON"))
        .map(|answer| body(&answer)["usage"]["prompt_tokens"].as_u64().expect("tokens"))
        .collect();
    assert!(tokens[1] > tokens[0] + 10, "{tokens:?}");
}

/// Fine-tunes change the tokenizer's end of text, and forget the configuration.
#[test]
fn the_tokenizers_end_of_text_ends_a_text() {
    let folder = Folder::copy_of("llama");
    let asked = json!({"prompt": "hello", "max_tokens": 8, "temperature": 0, "return_token_ids": true});
    let (from, to) = (folder.write("in.jsonl", completion("x", asked)), folder.name("out.jsonl"));
    let answer = || {
        ballast(&["batch", &folder.whole(), "-i", &from, "-o", &to, "--overwrite"]).fine();
        body(&folder.json("out.jsonl")).clone()
    };
    let before = answer();
    let drawn = before["choices"][0]["token_ids"][0].as_u64().expect("a token");
    assert_eq!(before["usage"]["completion_tokens"], 8);
    let tokenizer = folder.json("tokenizer.json");
    let vocab = tokenizer["model"]["vocab"].as_object().expect("a vocabulary");
    let (text, _) = vocab.iter().find(|(_, id)| id.as_u64() == Some(drawn)).expect("an ordinary token");
    let mut config = folder.json("tokenizer_config.json");
    config["eos_token"] = json!(text);
    folder.write("tokenizer_config.json", config.to_string());
    let after = answer();
    assert_eq!(after["choices"][0]["finish_reason"], "stop");
    assert_eq!(after["usage"]["completion_tokens"], 1);
}

/// Memory is planned for what the lines need, not for as many of the longest sequences as there are lines.
#[test]
fn kv_is_planned_for_the_lines() {
    let folder = Folder::new();
    let lines: Vec<String> =
        (0..30).map(|i| completion(&format!("{i}"), json!({"prompt": "hello", "max_tokens": 4}))).collect();
    let (from, to) = (folder.write("in.jsonl", lines.join("\n")), folder.name("out.jsonl"));
    let planned = |model: &Folder| {
        let ran = ballast(&["batch", &model.whole(), "-i", &from, "-o", &to, "--overwrite"]);
        assert_eq!(ran.code, Some(0), "{}", ran.err);
        let kv = ran.err.split_once(", KV ").and_then(|(_, rest)| rest.split_once(" tokens)"));
        kv.expect("announced").0.to_string()
    };
    let (short, long) = (Folder::copy_of("llama"), Folder::copy_of("llama"));
    for (folder, positions) in [(&short, 8192), (&long, 131_072)] {
        let mut config = folder.json("config.json");
        config["max_position_embeddings"] = json!(positions);
        folder.write("config.json", config.to_string());
    }
    assert_eq!(planned(&short), planned(&long));
}

/// A format that is complete before `min_tokens` ends its text.
#[test]
fn a_form_that_ends_early_has_ended() {
    let fields = json!({"structured_outputs": {"choice": ["a", "b"]}, "min_tokens": 20, "max_tokens": 30});
    let (answers, ran) = answers(&chat("x", fields));
    ran.fine();
    let choice = &body(&answers[0])["choices"][0];
    assert_eq!(choice["finish_reason"], "stop", "{choice}");
    assert!(["a", "b"].contains(&choice["message"]["content"].as_str().expect("text")), "{choice}");
}
