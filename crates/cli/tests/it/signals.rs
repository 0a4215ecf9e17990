//! SIGTERM while a model is being loaded, and signals to what is under way. A file of a model that is a pipe holds the loading until the
//! test lets it go on.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::OpenOptionsExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::thread;

use crate::bench_serve::well;
use crate::common::pipes::{O_NONBLOCK, Unread, pipe};
use crate::common::serving::{Asked, Scripted};
use crate::common::{self, Folder, command, golden, longwinded};

/// Waits until the process reads the pipe; what it reads ends when this is dropped.
fn held(pipe: &str, child: &mut Child) -> File {
    loop {
        assert_eq!(child.try_wait().expect("known"), None, "it ended");
        // Refused as long as nobody reads.
        if let Ok(open) = OpenOptions::new().write(true).custom_flags(O_NONBLOCK).open(pipe) {
            return open;
        }
        thread::yield_now();
    }
}

fn kill(signal: &str, child: &Child) {
    let kill = Command::new("kill").args([signal, &child.id().to_string()]).status();
    assert!(kill.expect("kill").success());
}

fn terminate(child: &Child) {
    kill("-TERM", child);
}

const LONG: [&str; 3] = ["--ignore-eos", "--max-tokens", "190000"];

#[test]
fn an_answer_that_is_interrupted_is_summed_up() {
    let folder = longwinded();
    let model = folder.whole();
    let args = [&["run", &model, "hello", "--n", "2"], &LONG[..]].concat();
    let mut child =
        command(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary starts");
    let mut out = child.stdout.take().expect("piped");
    // Its heading stands there before it begins.
    out.read_exact(&mut [0; "answer 1 of 2:\n".len() + 1]).expect("a first byte");
    kill("-INT", &child);
    let mut rest = Vec::new();
    out.read_to_end(&mut rest).expect("the rest of it");
    let ended = child.wait_with_output().expect("it ends");
    let told = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(130), "{told}");
    assert!(told.contains(" generated") && told.contains("peak memory"), "{told}");
    assert!(!String::from_utf8_lossy(&rest).contains("answer 2"), "the next one is not begun");
}

#[test]
fn an_answer_that_is_interrupted_does_not_wait_for_its_step() {
    let folder = Folder::new();
    let record = Unread::new(&folder);
    let model = golden("llama");
    let flags = ["--ignore-eos", "--max-tokens", "100", "--n", "100", "--record", &record.name];
    let args = [&["run", &model, "hello", "--temperature", "0"], &flags[..]].concat();
    let mut child =
        command(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary starts");
    let mut out = child.stdout.take().expect("piped");
    out.read_exact(&mut [0]).expect("the answer is told");
    record.fill(&mut child);
    kill("-INT", &child);
    let ended = child.wait_with_output().expect("it ends");
    let told = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(130), "{told}");
    assert!(told.contains("--record is not whole"), "{told}");
}

#[test]
fn a_batch_that_is_interrupted_does_not_wait_for_its_step() {
    let folder = Folder::new();
    let record = Unread::new(&folder);
    let body = r#"{"prompt": "x", "max_tokens": 100, "n": 100, "ignore_eos": true}"#;
    let line = format!(r#"{{"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {body}}}"#);
    let (from, to, lanes) =
        (folder.write("in.jsonl", line), folder.name("out.jsonl"), folder.name("lanes.json"));
    let (model, beside) = (golden("llama"), ["--record", &record.name, "--lanes", &lanes]);
    let args = [&["batch", &model, "-i", &from, "-o", &to, "--drain-timeout", "0"], &beside[..]].concat();
    let mut child = command(&args).stderr(Stdio::piped()).spawn().expect("the binary starts");
    record.fill(&mut child);
    kill("-INT", &child);
    let ended = child.wait_with_output().expect("it ends");
    let told = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(75), "{told}");
    for words in ["interrupted after 0 of 1 request; the same", "--record is not whole"] {
        assert!(told.contains(words), "{told}");
    }
    assert!(folder.path("lanes.json").exists() && folder.path("out.jsonl.state").exists());
}

/// What a command told and showed that was interrupted once its record was full.
fn interrupted(record: &Unread, args: &[&str]) -> (String, String) {
    let mut child =
        command(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary starts");
    record.fill(&mut child);
    kill("-INT", &child);
    let ended = child.wait_with_output().expect("it ends");
    let [told, shown] =
        [ended.stderr, ended.stdout].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    assert_eq!(ended.status.code(), Some(130), "{told}");
    assert!(told.contains("interrupted: "), "{told}");
    (told, shown)
}

/// The engine stands still long before all is scored.
#[test]
fn an_evaluation_that_is_interrupted_tells_what_was_scored() {
    let folder = Folder::new();
    let record = Unread::new(&folder);
    let (text, json) = (folder.write("text", "It is a truth. ".repeat(500)), folder.name("report.json"));
    let model = golden("llama");
    let args =
        ["eval", "perplexity", &model, "--text", &text, "--context", "8", "--stride", "8", "--json", &json];
    let (told, _) = interrupted(&record, &[&args[..], &["--record", &record.name]].concat());
    assert!(told.contains(" had been scored by then"), "{told}");
}

/// What a benchmark told that was interrupted on its way, and its report.
fn interrupted_bench(args: &[&str]) -> (String, serde_json::Value) {
    let folder = Folder::new();
    // What is run before anything is measured fills little of it.
    let record = Unread::with_room(&folder, 64 << 10);
    let (json, model) = (folder.name("report.json"), golden("llama"));
    let beside = ["--json", &json, "--record", &record.name];
    let (told, shown) = interrupted(&record, &[&["bench", args[0], &model], &args[1..], &beside].concat());
    let report = folder.json("report.json");
    assert_eq!(report["interrupted"], true);
    (told + &shown, report)
}

#[test]
fn benchmarks_that_are_interrupted_tell_what_was_measured() {
    let short = ["--input-len", "8", "--output-len", "4", "--reps", "100000"];
    let all = |report: &serde_json::Value, key: &str| report[key].as_array().expect("a list").len();
    let (told, report) = interrupted_bench(&[&["latency", "--batch", "1"], &short[..]].concat());
    assert!(told.contains("first token after ") && told.contains(", decode "), "{told}");
    assert!(all(&report, "prefill_seconds_all") >= all(&report, "seconds_all"), "{report}");
    assert!(report["ttft_ms"].as_f64().expect("a number") > 0.0);
    let (told, report) = interrupted_bench(&[&["throughput", "--num-prompts", "2"], &short[..]].concat());
    assert!(told.contains(" of 100000 repetitions had ended by then") && told.contains("generated tokens/s"));
    assert!(all(&report, "seconds_all") > 0 && report["generated_tokens_per_s"].as_f64().expect("one") > 0.0);
}

/// Of the only run a part was.
#[test]
fn a_part_of_a_run_tells_something_where_none_is_whole() {
    let long =
        ["throughput", "--num-prompts", "64", "--input-len", "8", "--output-len", "400", "--reps", "1"];
    let (told, report) = interrupted_bench(&[&long[..], &["--max-num-seqs", "4"]].concat());
    assert!(told.contains("interrupted: 0 of 1 repetition had ended by then; of the first, "), "{told}");
    assert!(told.contains("generated tokens/s"), "{told}");
    let rate = |key: &str| report[key].as_f64().expect("a number");
    assert!(rate("generated_tokens_per_s") > 0.0 && rate("prefill_tokens_per_s") > 0.0, "{report}");
    assert!(rate("requests_per_s") * rate("seconds") < 63.5, "{report}");
}

/// Requests of the benchmark below.
static ASKED: AtomicUsize = AtomicUsize::new(0);

/// Answers three of them, and no other.
fn thrice(asked: &Asked) -> String {
    if asked.head.contains("/v1/completions") && ASKED.fetch_add(1, SeqCst) == 3 {
        loop {
            thread::park();
        }
    }
    well(asked)
}

#[test]
fn a_benchmark_that_is_interrupted_tells_what_it_has() {
    let server = Scripted::start(thrice);
    let folder = Folder::new();
    let json = folder.name("x.json");
    let flags = ["--num-prompts", "9", "--max-concurrency", "1", "--input-len", "20", "--output-len", "3"];
    let args = [&["bench", "serve", "--base-url", &server.url, "--json", &json], &flags[..]].concat();
    let mut child =
        command(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary starts");
    while ASKED.load(SeqCst) < 4 {
        assert_eq!(child.try_wait().expect("known"), None, "it ended");
        thread::yield_now();
    }
    kill("-INT", &child);
    let ended = child.wait_with_output().expect("it ends");
    let told = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(130), "{told}");
    assert!(told.contains("interrupted: 3 of 9 requests had ended by then"), "{told}");
    let result = folder.json("x.json");
    assert_eq!(
        (&result["completed"], &result["failed"], &result["interrupted"]),
        (&3.into(), &0.into(), &true.into())
    );
    let table = String::from_utf8_lossy(&ended.stdout);
    assert!(table.contains("Successful requests:                     3"), "{table}");
}

#[test]
fn a_batch_that_is_told_to_end_while_it_loads_can_be_begun_again() {
    let folder = Folder::new();
    let (pipe, to) = (pipe(&folder), folder.name("out.jsonl"));
    let line = r#"{"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "x"}}"#;
    let from = folder.write("in.jsonl", line);
    let args = ["batch", &golden("llama"), "-i", &from, "-o", &to, "--chat-template", &pipe];
    let mut child = command(&args).stderr(Stdio::piped()).spawn().expect("the binary starts");
    let hold = held(&pipe, &mut child);
    terminate(&child);
    let ended = child.wait_with_output().expect("it ends");
    drop(hold);
    let told = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(75), "{told}");
    assert!(told.contains("the same command begins again"), "{told}");
    assert!(
        !folder.path("out.jsonl").exists() && !folder.path("out.jsonl.state").exists(),
        "nothing is left"
    );
    let again = common::ballast(&["batch", &golden("llama"), "-i", &from, "-o", &to]);
    again.fine();
    assert_eq!(folder.read("out.jsonl").lines().count(), 1);
}

/// Nobody reads its answers: it waits in the middle of one, and is told twice.
#[test]
fn a_batch_whose_reader_has_stopped_ends_when_it_is_told_twice() {
    let folder = Folder::new();
    // More than a pipe holds.
    let line = |i: usize| {
        let id = format!("{i}-{}", "x".repeat(4000));
        format!(
            r#"{{"custom_id": "{id}", "method": "POST", "url": "/v1/completions", "body": {{"prompt": [5], "max_tokens": 1}}}}"#
        ) + "\n"
    };
    let from = folder.write("in.jsonl", (0..40).map(line).collect::<String>());
    let args = ["batch", &golden("llama"), "-i", &from, "-o", "-"];
    let mut child =
        command(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary starts");
    let mut out = child.stdout.take().expect("piped");
    out.read_exact(&mut [0]).expect("it answers");
    // Two of one kind at once may come as one.
    ["-TERM", "-INT"].into_iter().for_each(|signal| kill(signal, &child));
    let ended = child.wait_with_output().expect("it ends");
    let told = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(75), "{told}");
    drop(out);
}

#[test]
fn a_server_that_is_told_to_end_while_it_loads_ends_well() {
    let folder = Folder::new();
    let pipe = pipe(&folder);
    let args = ["serve", &golden("llama"), "--port", "0", "--chat-template", &pipe];
    let mut child = command(&args).stderr(Stdio::piped()).spawn().expect("the binary starts");
    let mut log = BufReader::new(child.stderr.take().expect("piped"));
    let hold = held(&pipe, &mut child);
    let mut line = String::new();
    while !line.contains("http://") {
        line.clear();
        assert!(log.read_line(&mut line).expect("UTF-8") > 0, "it ended");
    }
    let address = line.trim().rsplit("http://").next().expect("an address").to_string();
    let mut client = TcpStream::connect(address).expect("it listens");
    client.write_all(b"GET /ready HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").expect("sent");
    let mut answer = String::new();
    client.read_to_string(&mut answer).expect("UTF-8");
    assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("model_loading"), "{answer}");
    terminate(&child);
    let status = child.wait().expect("it ends");
    drop(hold);
    let mut told = String::new();
    log.read_to_string(&mut told).expect("UTF-8");
    assert_eq!(status.code(), Some(0), "{told}");
    assert!(!told.contains("ready: ") && !told.contains("panicked"), "{told}");
    assert!(!told.contains("path=/ready"), "who asks whether it is ready makes no lines: {told}");
}
