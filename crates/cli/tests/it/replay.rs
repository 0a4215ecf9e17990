//! `--record` and `ballast simulate replay`.

use crate::common::{Folder, ballast, golden};
use serde_json::json;

/// The record of a run of several requests.
fn recorded(folder: &Folder) -> String {
    let line = |i: usize| {
        let body = json!({"prompt": "hello sailor", "max_tokens": 3 + i, "temperature": 0});
        json!({"custom_id": format!("{i}"), "method": "POST", "url": "/v1/completions", "body": body})
            .to_string()
    };
    let input = folder.write("in.jsonl", (0..9).map(line).collect::<Vec<_>>().join("\n"));
    let (output, record) = (folder.name("out.jsonl"), folder.name("run.record"));
    let args =
        ["batch", &golden("llama"), "-i", &input, "-o", &output, "--record", &record, "--max-num-seqs", "4"];
    ballast(&args).fine();
    folder.read("run.record")
}

#[test]
fn a_recorded_run_replays_and_a_changed_one_does_not() {
    let folder = Folder::new();
    let record = recorded(&folder);
    let told = ballast(&["simulate", "replay", &folder.name("run.record")]).fine();
    assert!(told.contains("9 requests") && told.contains("as recorded"), "{told}");

    let changed = folder.write("changed", record.replacen("\"len\":10", "\"len\":9", 1));
    assert!(folder.read("changed") != record, "something was changed");
    ballast(&["simulate", "replay", &changed]).refused(1, &["when recorded", "now"]);
    // Not at the end of a line, where half of a record is a record.
    let half = record[..record.len() / 2].rfind('\n').expect("a line") + 2;
    for (name, text) in [
        ("half", &record[..half]),
        ("empty", ""),
        ("blank", "\n"),
        ("other", "{}\n"),
        ("twice", &record.repeat(2)),
    ] {
        let file = folder.write(name, text);
        ballast(&["simulate", "replay", &file]).refused(1, &["line"]);
    }
    let bytes = folder.write("bytes", b"\xff\xfe\n");
    ballast(&["simulate", "replay", &bytes]).refused(1, &["UTF-8"]);
    ballast(&["simulate", "replay", "/no/such/file"]).refused(2, &["cannot read /no/such/file"]);
}

#[test]
fn records_that_lie_about_what_was_done() {
    let folder = Folder::new();
    let record = recorded(&folder);
    for (from, to) in [
        ("\"Done\":{\"at\"", "\"Done\":{ \"at\""),
        ("\"step\":0", "\"step\":7"),
        ("\"step\":1", "\"step\":0"),
        ("\"outcomes\":[{\"seq\":0", "\"outcomes\":[{\"seq\":5"),
        ("\"outcomes\":[{\"seq\":0", "\"outcomes\":[{\"seq\":99"),
        ("\"prompt\":", "\"prompt\":9"),
        ("\"max_new\":3", "\"max_new\":0"),
    ] {
        let lie = folder.write("lie", record.replacen(from, to, 1));
        let ran = ballast(&["simulate", "replay", &lie]);
        assert!(!ran.err.contains("panicked"), "{from} -> {to}: {}", ran.err);
    }
}

/// A number that would take all memory is an error, and nothing is made of it.
#[test]
fn a_begin_line_with_more_blocks_than_there_can_be_is_refused() {
    let folder = Folder::new();
    let record = recorded(&folder);
    let from = record.find("\"blocks\":{\"device\":").expect("blocks of the device") + 19;
    let digits = record[from..].find(|c: char| !c.is_ascii_digit()).expect("an end");
    let many = format!("{}4000000000{}", &record[..from], &record[from + digits..]);
    let file = folder.write("many", many);
    ballast(&["simulate", "replay", &file])
        .refused(1, &["line 1", "blocks.device must be at most 67108864", "4000000000"]);
}

#[test]
fn a_record_that_ends_early_says_so() {
    let folder = Folder::new();
    let record = recorded(&folder);
    let whole = ballast(&["simulate", "replay", &folder.name("run.record")]).fine();
    assert!(!whole.contains("ends before"), "{whole}");
    let half = record[..record.len() / 2].rfind('\n').expect("a line") + 1;
    let cut = folder.write("cut", &record[..half]);
    let told = ballast(&["simulate", "replay", &cut]).fine();
    assert!(told.contains("the record ends before its run did") && told.contains("unfinished"), "{told}");
}

/// `run` records too. (That a record has the last step whenever it is stopped: `sim/tests/it/rules.rs`.)
#[test]
fn a_single_answer_is_recorded() {
    let folder = Folder::new();
    let (model, record) = (golden("llama"), folder.name("run.record"));
    for in_flight in ["1", "2"] {
        let more = ["--ignore-eos", "--steps-in-flight", in_flight, "--record", &record];
        ballast(&[&["run", &model, "the sea", "--raw", "--max-tokens", "5"], &more[..]].concat()).fine();
        let told = ballast(&["simulate", "replay", &record]).fine();
        assert!(told.contains("1 request") && !told.contains("ends before"), "{in_flight}: {told}");
    }
}

#[test]
fn steps_that_are_done_twice_or_never_began_or_before_their_time_are_refused() {
    let folder = Folder::new();
    let record = recorded(&folder);
    let lines: Vec<&str> = record.lines().collect();
    let done = lines.iter().position(|line| line.contains("\"Done\"")).expect("a step was done");
    let with = |name: &str, line: &str, times: usize| {
        let mut changed: Vec<&str> = lines.clone();
        changed.splice(done..=done, std::iter::repeat_n(line, times));
        folder.write(name, changed.join("\n") + "\n")
    };
    let refused = |file: &str, why: &str| ballast(&["simulate", "replay", file]).refused(1, &["line", why]);
    refused(&with("twice", lines[done], 2), "not in flight");
    let stranger = lines[done].replacen("\"seq\":0", "\"seq\":99", 1);
    refused(&with("stranger", &stranger, 1), "sequence 99, which is not in it");
    let at = lines[done].find("\"at\":").expect("a time") + 5;
    let digits = lines[done][at..].find(|c: char| !c.is_ascii_digit()).expect("an end");
    let early = format!("{}0{}", &lines[done][..at], &lines[done][at + digits..]);
    refused(&with("early", &early, 1), "time goes back");
}
