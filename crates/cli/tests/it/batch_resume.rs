//! `ballast batch` killed, cut, filled up and gone on with: the output is always that of a job that nothing happened to.

use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::common::pipes::Unread;
use crate::common::{self, Folder, ballast, command, golden, limited};
use serde_json::json;

/// The time that all answers of these tests carry.
const CREATED: &str = "1700000000";
/// Lines of the job that is killed, and times that it is; `BALLAST_TEST_KILLS=200 BALLAST_TEST_LINES=500` for the whole.
const LINES: usize = 60;
const KILLS: usize = 6;

fn number(name: &str, default: usize) -> usize {
    std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
}

/// Requests of different lengths, some that fail, some without a seed, two of one name.
fn requests(lines: usize) -> String {
    let line = |i: usize| {
        let body = match i % 7 {
            3 => json!({"prompt": "hello", "max_tokens": 5000}),
            5 => json!({"prompt": format!("number {i}"), "max_tokens": 3 + i % 20, "temperature": 1, "n": 2}),
            _ => json!({"prompt": format!("number {i}"), "max_tokens": 1 + i % 30, "temperature": 0}),
        };
        let name = if i == 1 { "name 0".to_string() } else { format!("name {i}") };
        json!({"custom_id": name, "method": "POST", "url": "/v1/completions", "body": body}).to_string()
    };
    (0..lines).map(line).collect::<Vec<_>>().join("\n")
}

/// A job on the file `in.jsonl` of a folder.
struct Job {
    folder: Folder,
    model: String,
}

impl Job {
    fn new(input: impl AsRef<[u8]>) -> Job {
        let job = Job { folder: Folder::new(), model: golden("llama") };
        job.folder.write("in.jsonl", input);
        job
    }

    fn command(&self, out: &str, more: &[&str]) -> Command {
        let (from, to) = (self.folder.name("in.jsonl"), self.folder.name(out));
        let mut command = command(&["batch", &self.model, "-i", &from, "-o", &to, "--created", CREATED]);
        command.args(more);
        command
    }

    fn run(&self, out: &str, more: &[&str]) -> common::Ran {
        let (from, to) = (self.folder.name("in.jsonl"), self.folder.name(out));
        ballast(&[&["batch", &self.model, "-i", &from, "-o", &to, "--created", CREATED], more].concat())
    }

    /// The output of a job that nothing happened to; some of its lines are errors.
    fn whole(&self, more: &[&str]) -> String {
        let more = [&["--overwrite"], more].concat();
        self.run("whole.jsonl", &more).refused(3, &[]);
        self.folder.read("whole.jsonl")
    }

    fn len(&self, file: &str) -> u64 {
        fs::metadata(self.folder.path(file)).map_or(0, |file| file.len())
    }

    /// Begins the job and kills it (-9) once its output has so many bytes, if it has not ended then.
    fn kill_at(&self, out: &str, bytes: u64, more: &[&str]) {
        let mut child = self.command(out, more).stderr(Stdio::null()).spawn().expect("the binary starts");
        while self.len(out) < bytes {
            if child.try_wait().expect("known").is_some() {
                return;
            }
            std::thread::yield_now();
        }
        child.kill().expect("killed");
        child.wait().expect("it ends");
    }
}

/// SplitMix64.
fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[test]
fn a_job_killed_anywhere_ends_with_the_bytes_of_one_that_was_not() {
    let job = Job::new(requests(number("BALLAST_TEST_LINES", LINES)));
    let whole = job.whole(&[]);
    let mut state = number("BALLAST_TEST_SEED", 7) as u64;
    for _ in 0..number("BALLAST_TEST_KILLS", KILLS) {
        // Every kill at a random byte of a job that may have been killed before; a job that ended begins anew.
        let at = random(&mut state) % whole.len() as u64;
        if job.len("out.jsonl") > at {
            job.run("out.jsonl", &[]).refused(3, &[]);
            assert_eq!(job.folder.read("out.jsonl"), whole);
            fs::remove_file(job.folder.path("out.jsonl")).expect("removed");
        }
        // It may have ended before it is seen that there is so much: what comes of it is the same.
        job.kill_at("out.jsonl", at, &[]);
    }
    job.run("out.jsonl", &[]).refused(3, &[]);
    assert_eq!(job.folder.read("out.jsonl"), whole);
}

/// What a kill in the middle of a write leaves: the job as it was when it was killed, and of its last bytes some.
#[test]
fn a_job_killed_in_the_middle_of_a_write_ends_with_the_same_bytes() {
    let job = Job::new(requests(40));
    let whole = job.whole(&[]);
    let mut state = 3;
    for _ in 0..4 {
        let at = 1024 + random(&mut state) % (whole.len() as u64 - 2048);
        job.kill_at("out.jsonl", at, &[]);
        // Bytes, not text: they may end inside of a character.
        let mut begun = fs::read(job.folder.path("out.jsonl")).expect("begun");
        begun.truncate(begun.len() - 1 - random(&mut state) as usize % 40);
        fs::write(job.folder.path("out.jsonl"), &begun).expect("written");
        assert!(whole.as_bytes().starts_with(&begun), "killed at {at} of {}", whole.len());
        job.run("out.jsonl", &[]).refused(3, &[]);
        assert_eq!(job.folder.read("out.jsonl"), whole);
        fs::remove_file(job.folder.path("out.jsonl")).expect("removed");
    }
}

#[test]
fn an_output_cut_at_any_byte_of_its_last_lines_is_completed() {
    let job = Job::new(requests(4));
    let whole = job.whole(&[]);
    let state = job.folder.read("whole.jsonl.state");
    let starts: Vec<usize> = whole.match_indices('\n').map(|(at, _)| at + 1).collect();
    // Around every line's end byte for byte; inside of lines some bytes stand for all, whose reading a unit test covers.
    let near = |at: usize| starts.iter().any(|&start| at.abs_diff(start) <= 1) || at == 0;
    let cuts = (0..whole.len()).filter(|&at| near(at) || at % 397 == 0);
    for at in cuts {
        job.folder.write("out.jsonl", &whole.as_bytes()[..at]);
        job.folder.write("out.jsonl.state", &state);
        job.run("out.jsonl", &[]).refused(3, &[]);
        assert_eq!(job.folder.read("out.jsonl"), whole, "cut at byte {at}");
    }
}

#[test]
fn shards_merge_into_the_output_of_the_whole() {
    let job = Job::new(requests(20));
    let whole = job.whole(&[]);
    let name = |i: usize| format!("shard{i}.jsonl");
    for i in 0..3 {
        let order = if i == 1 { "completion" } else { "input" };
        job.run(&name(i), &["--shard", &format!("{i}/3"), "--output-order", order]).refused(3, &[]);
    }
    let shards: Vec<String> = (0..3).map(|i| job.folder.name(&name(i))).collect();
    let merge = |shards: &[String], out: &str| {
        let shards: Vec<&str> = shards.iter().map(String::as_str).collect();
        ballast(&[&["batch", "merge", "-o", &job.folder.name(out)], &shards[..]].concat())
    };
    merge(&shards, "merged.jsonl").refused(3, &["20 answers of 3 shards"]);
    assert_eq!(job.folder.read("merged.jsonl"), whole);
    merge(&shards, "merged.jsonl").refused(2, &["merged.jsonl exists"]);
    let state = job.folder.name("shard1.jsonl.state");
    for flag in ["-o", "--error-file"] {
        let other = job.folder.name("other.jsonl");
        let names = if flag == "-o" { vec!["-o", &state] } else { vec!["-o", &other, flag, &state] };
        let shards = shards.iter().map(String::as_str);
        let args: Vec<&str> =
            ["batch", "merge", "--overwrite"].into_iter().chain(names).chain(shards).collect();
        ballast(&args).refused(2, &["shard1.jsonl.state would be written over what is merged"]);
    }
    merge(&shards[..2], "two.jsonl").refused(2, &["shard 2/3 is missing"]);
    let torn = job.folder.read(&name(2));
    job.folder.write(&name(2), &torn[..torn.len() - 1]);
    merge(&shards, "torn.jsonl").refused(2, &["1 line without an answer yet"]);
    assert!(!job.folder.path("torn.jsonl").exists() && !job.folder.path("two.jsonl").exists());
    job.run("one.jsonl", &["--shard", "3/3"]).refused(2, &["count from 0 to 2"]);
}

#[test]
fn errors_apart_are_gone_on_with_too() {
    let job = Job::new(requests(20));
    let errors = ["--error-file", &job.folder.name("errors.jsonl")];
    job.run("out.jsonl", &errors).refused(3, &["20 requests, 3 failed"]);
    let (good, bad) = (job.folder.read("out.jsonl"), job.folder.read("errors.jsonl"));
    assert!(good.lines().all(|line| line.contains("\"error\":null")) && bad.lines().count() == 3, "{bad}");
    for (file, text, other) in [("out.jsonl", &good, &bad), ("errors.jsonl", &bad, &good)] {
        job.folder.write(file, &text.as_bytes()[..text.len() / 2]);
        job.run("out.jsonl", &errors).refused(3, &["going on"]);
        assert_eq!(&job.folder.read(file), text);
        let unhurt = if file == "out.jsonl" { "errors.jsonl" } else { "out.jsonl" };
        assert_eq!(&job.folder.read(unhurt), other);
    }
}

#[test]
fn answers_with_a_fault_of_ours_are_asked_for_again() {
    let job = Job::new(requests(8));
    let whole = job.whole(&[]);
    let state = job.folder.read("whole.jsonl.state");
    let spoilt: Vec<String> = (0..)
        .zip(whole.lines())
        .map(|(i, line)| match i {
            2 => line.replace("\"status_code\":200", "\"status_code\":503"),
            _ => line.to_string(),
        })
        .collect();
    let spoilt = spoilt.join("\n") + "\n";
    job.folder.write("out.jsonl", &spoilt);
    job.folder.write("out.jsonl.state", &state);
    job.run("out.jsonl", &[]).refused(3, &["8 of 8 lines are answered"]);
    assert_eq!(job.folder.read("out.jsonl"), spoilt, "only where it is asked for");
    job.run("out.jsonl", &["--retry-errors"]).refused(3, &["7 of 8 lines are answered"]);
    assert_eq!(job.folder.read("out.jsonl"), whole);
    assert!(!job.folder.path("out.jsonl.part").exists());
}

#[test]
fn another_job_does_not_go_on() {
    let job = Job::new(requests(6));
    let whole = job.whole(&[]);
    let again = |more: &[&str]| job.run("whole.jsonl", more);
    again(&["--shard", "0/2"]).refused(2, &["the shard was 0/1, now is 0/2"]);
    again(&["--output-order", "completion"]).refused(2, &["the order was"]);
    again(&["--max-model-len", "256"]).refused(2, &["--max-model-len", "was 512, now is 256"]);
    again(&["--tool-call-parser", "hermes"]).refused(2, &["--tool-call-parser was the template's own"]);
    again(&["--weights", "int8"]).refused(2, &["--weights was auto, now is int8"]);
    job.folder.write("in.jsonl", requests(7));
    again(&[]).refused(2, &["answers of another job", "the input's SHA-256 was"]);
    assert_eq!(job.folder.read("whole.jsonl"), whole, "nothing was touched");
    job.folder.write("in.jsonl", requests(6));
    job.folder.write("whole.jsonl", format!("{whole}{{}}\n"));
    again(&[]).refused(2, &["line 7 of", "is no answer of this job"]);
    job.folder.write("whole.jsonl", &whole.as_bytes()[..whole.len() / 2]);
    job.folder.write("whole.jsonl.state", "{\"versi");
    again(&[]).refused(2, &["whole.jsonl exists"]);
    again(&["--overwrite"]).refused(3, &[]);
    assert_eq!(job.folder.read("whole.jsonl"), whole);
}

#[test]
fn one_job_at_a_time() {
    let job = Job::new(requests(3));
    let state = fs::File::create(job.folder.path("out.jsonl.state")).expect("created");
    state.lock().expect("locked");
    job.run("out.jsonl", &[]).refused(1, &["another job is writing"]);
    drop(state);
    // By whatever name they know it.
    std::os::unix::fs::symlink(job.folder.path("out.jsonl"), job.folder.path("link.jsonl")).expect("linked");
    let errors = job.folder.name("errors.jsonl");
    for (held, output, more) in
        [("out.jsonl", "link.jsonl", &[][..]), ("errors.jsonl", "third.jsonl", &["--error-file", &errors])]
    {
        let other = fs::File::create(job.folder.path(held)).expect("created");
        other.lock().expect("locked");
        job.run(output, more).refused(1, &["another job is writing"]);
        drop(other);
        job.run(output, more).fine();
    }
}

/// The one that is in the way.
#[test]
fn the_output_that_holds_something_is_named() {
    let job = Job::new(requests(3));
    let errors = job.folder.write("errors.jsonl", "{}\n");
    job.run("out.jsonl", &["--error-file", &errors]).refused(2, &["errors.jsonl exists"]);
}

/// A job that was begun anew goes on without the flag that would begin it once more.
#[cfg(target_os = "linux")]
#[test]
fn how_an_interrupted_job_goes_on_is_told() {
    let job = Job::new(requests(120));
    for (output, flags, told) in [
        ("out.jsonl", &[][..], "; the same command goes on"),
        ("anew.jsonl", &["--overwrite"], "the same command without --overwrite goes on"),
        ("/dev/stdout", &[], "what was answered is written; the same command begins anew"),
    ] {
        let mut command = job.command(output, &[&["--max-inflight", "1"], flags].concat());
        let mut child =
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary starts");
        if output.starts_with('/') {
            child.stdout.as_mut().expect("piped").read_exact(&mut [0]).expect("an answer");
        } else {
            while job.len(output) == 0 {
                std::thread::yield_now();
            }
        }
        let asked = Command::new("kill").args(["-TERM", &child.id().to_string()]).status().expect("kill");
        assert!(asked.success());
        let ended = child.wait_with_output().expect("it ends");
        let said = String::from_utf8(ended.stderr).expect("UTF-8");
        // On a machine that is fast enough the job has ended before the signal comes.
        assert!(
            ended.status.code() == Some(75) && said.contains(told) || ended.status.code() == Some(3),
            "{said}"
        );
    }
}

#[test]
fn orders_and_edges() {
    let job = Job::new(requests(30));
    let whole = job.whole(&[]);
    job.run("out.jsonl", &["--output-order", "completion", "--max-inflight", "5"]).refused(3, &[]);
    let sorted = |text: &str| {
        let mut lines: Vec<String> = text.lines().map(str::to_string).collect();
        lines.sort();
        lines
    };
    assert_eq!(sorted(&job.folder.read("out.jsonl")), sorted(&whole));
    for empty in ["", "\n\r\n"] {
        let job = Job::new(empty);
        job.run("out.jsonl", &[]).fine();
        assert_eq!(job.folder.read("out.jsonl"), "");
        job.run("out.jsonl", &[]).fine();
    }
    let long = Job::new(format!("{}\n{}", requests(1), "[".repeat(4 << 20)));
    long.run("out.jsonl", &[]).refused(3, &["2 requests, 1 failed"]);
}

#[test]
fn programs_read_progress_as_json() {
    let job = Job::new(requests(10));
    let ran = job.run("out.jsonl", &["--progress", "json"]);
    let last = ran.err.lines().last().expect("a line").to_string();
    let event: serde_json::Value = serde_json::from_str(&last).expect("JSON");
    assert_eq!(
        (&event["event"], &event["requests"], &event["done"]),
        (&json!("done"), &json!(10), &json!(10))
    );
    assert!(event["generated_tokens"].as_u64() > Some(0));
}

/// A limit on the size of files ends a write in the middle, as a full disk does.
#[cfg(target_os = "linux")]
#[test]
fn a_disk_that_fills_up_leaves_whole_lines_to_go_on_from() {
    let job = Job::new(requests(40));
    let whole = job.whole(&[]);
    let ended = limited(&job.command("out.jsonl", &[]), 4096).output().expect("sh");
    let err = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(1), "{err}");
    assert!(err.contains("safe there: ") && err.contains("cannot write"), "{err}");
    let begun = job.folder.read("out.jsonl");
    assert!(begun.ends_with('\n') && whole.starts_with(&begun), "only whole lines stay");
    job.run("out.jsonl", &[]).refused(3, &["going on"]);
    assert_eq!(job.folder.read("out.jsonl"), whole);
}

#[cfg(target_os = "linux")]
#[test]
fn folders_that_cannot_be_written() {
    let job = Job::new(requests(1));
    for out in ["/proc/out.jsonl", "/sys/out.jsonl"] {
        if Path::new(out).parent().is_some_and(Path::exists) {
            let args = ["batch", &job.model, "-i", &job.folder.name("in.jsonl"), "-o", out];
            ballast(&args).refused(1, &[&format!("cannot write {out}.state")]);
        }
    }
}

/// SIGTERM lets requests that run finish, and the same command goes on.
#[cfg(target_os = "linux")]
#[test]
fn a_job_that_is_asked_to_end_can_be_gone_on_with() {
    let job = Job::new(requests(120));
    let whole = job.whole(&[]);
    let mut child = job
        .command("out.jsonl", &["--max-inflight", "2"])
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    while job.len("out.jsonl") == 0 {
        std::thread::yield_now();
    }
    let asked = Command::new("kill").args(["-TERM", &child.id().to_string()]).status().expect("kill");
    assert!(asked.success());
    let code = child.wait().expect("it ends").code();
    let begun = job.folder.read("out.jsonl");
    assert!(begun.ends_with('\n') && whole.starts_with(&begun));
    // On a machine that is fast enough the job has ended before the signal comes.
    assert!(code == Some(75) && begun.len() < whole.len() || code == Some(3) && begun == whole, "{code:?}");
    job.run("out.jsonl", &[]).refused(3, &[]);
    assert_eq!(job.folder.read("out.jsonl"), whole);
}

/// The engine stands still until the output is gone.
#[cfg(target_os = "linux")]
#[test]
fn a_job_whose_output_is_removed_is_no_success() {
    let body = json!({"prompt": "x", "max_tokens": 100, "n": 100, "ignore_eos": true});
    let line = json!({"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": body});
    let job = Job::new(line.to_string());
    let record = Unread::new(&job.folder);
    let mut command = job.command("out.jsonl", &["--record", &record.name]);
    let mut child = command.stderr(Stdio::piped()).spawn().expect("the binary starts");
    record.fill(&mut child);
    fs::remove_file(job.folder.path("out.jsonl")).expect("removed");
    drop(record);
    let ended = common::Ran::of(child.wait_with_output().expect("it ends"));
    ended.refused(1, &["out.jsonl: it was removed or renamed meanwhile"]);
}

#[test]
fn a_job_that_goes_on_keeps_its_time() {
    let job = Job::new(
        r#"{"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "x", "max_tokens": 1}}"#,
    );
    job.run("out.jsonl", &[]).fine();
    let (from, to) = (job.folder.name("in.jsonl"), job.folder.name("out.jsonl"));
    let again =
        |created: &str| ballast(&["batch", &job.model, "-i", &from, "-o", &to, "--created", created]).err;
    assert!(!again(CREATED).contains("--created"));
    assert!(
        again("77")
            .contains(&format!("--created 77 changes nothing: the job that goes on was created {CREATED}"))
    );
}
