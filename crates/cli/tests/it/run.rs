//! `ballast run`: prompts, what is printed where, and what it refuses before it loads anything.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::process::Stdio;

use serde_json::{Value, json};

use crate::common::{Folder, Ran, ballast, ballast_reading, command, golden};

const GREEDY: [&str; 6] = ["--quiet", "--temperature", "0", "--max-tokens", "12", "--ignore-eos"];

fn say(model: &str, more: &[&str]) -> String {
    let model = golden(model);
    ballast(&[&["run", &model, "hello"], &GREEDY[..], more].concat()).fine()
}

#[test]
fn an_answer_is_on_standard_output_and_the_summary_is_not() {
    let ran = ballast(&["run", &golden("llama"), "hello", "--max-tokens", "12", "--ignore-eos"]);
    assert_eq!(ran.out, say("llama", &[]), "the same text, quiet or not");
    for words in
        ["prompt: hello", "48 prompt tokens", "12 generated", "first token", "peak memory", "weights", "KV"]
    {
        assert!(ran.err.contains(words), "expected {words:?} in:\n{}", ran.err);
    }
    assert_eq!(ballast(&["run", &golden("llama"), "hello", "-q", "--max-tokens", "1"]).err, "");
}

#[test]
fn formats_and_families_answer() {
    for model in ["qwen3", "gguf-q4_0", "gguf-k"] {
        assert!(!say(model, &[]).trim().is_empty(), "{model}");
    }
}

#[test]
fn raw_and_standard_input_and_system_messages_change_what_is_read() {
    let model = golden("llama");
    let piped = ballast_reading(&[&["run", &model], &GREEDY[..]].concat(), b"hello\n").fine();
    assert_eq!(piped, say("llama", &[]), "a line end that echo adds is no part of the prompt");
    assert_ne!(say("llama", &["--raw"]), piped);
    assert_ne!(say("llama", &["--system", "Speak like a pirate."]), piped);
}

#[test]
fn a_text_that_is_gone_on_with_keeps_the_space_between() {
    // As SentencePiece has it: words begin with a space, and a text does not.
    let folder = Folder::copy_of("llama");
    let words: serde_json::Map<String, Value> = (0..304).map(|i| (format!("▁w{i}"), json!(i))).collect();
    let decoders = json!([
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0},
    ]);
    let tokenizer = json!({
        "pre_tokenizer": {"type": "Whitespace"},
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": {"type": "WordLevel", "vocab": words, "unk_token": "▁w0"},
    });
    folder.write("tokenizer.json", tokenizer.to_string());
    let text = ballast(&[&["run", &folder.whole(), "hello", "--raw"], &GREEDY[..]].concat()).fine();
    assert!(text.starts_with(" w"), "{text:?}");
}

#[test]
fn every_instruction_set_and_thread_count_gives_the_same_text() {
    let model = golden("llama");
    let on = |isa: &str, threads: &str| {
        let args = [&["run", &model, "hello", "--threads", threads], &GREEDY[..]].concat();
        command(&args).env("BALLAST_ISA", isa).output().expect("the binary starts")
    };
    // Two families have orders of their own: one of linear layers, one of attention.
    for isas in [&["scalar", "avx2", "avx512"][..], &["avx512bf16"], &["amx"]] {
        let first = on(isas[0], "1");
        let lacks = String::from_utf8_lossy(&first.stderr).contains("this machine");
        assert!(lacks || first.status.success() && !first.stdout.is_empty(), "{}", isas[0]);
        let text = first.stdout;
        for (isa, threads) in isas.iter().flat_map(|isa| [(isa, "1"), (isa, "3")]) {
            let output = on(isa, threads);
            let (out, err) =
                (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
            assert!(output.stdout == text || err.contains("this machine"), "{isa}: {out}\n{err}");
        }
    }
    assert_eq!(on("mmx", "1").status.code(), Some(2));
}

#[test]
fn a_seed_repeats_and_a_stop_string_ends() {
    let sampled = ["--temperature", "1.5", "--seed", "-7", "--ignore-eos"];
    assert_eq!(say("llama", &sampled), say("llama", &sampled));
    let text = say("llama", &[]);
    let stop: String = text.trim_end().chars().rev().take(1).collect();
    let cut = say("llama", &["--stop", &stop, "--stop", "never said"]);
    assert!(!cut.contains(&stop) && text.starts_with(cut.trim_end()), "{cut:?} of {text:?}");
}

#[test]
fn flags_that_choose_among_tokens_are_heard_without_a_temperature() {
    let model = golden("llama");
    let said = |more: &[&str]| {
        let plain = ["run", &model, "hello", "--quiet", "--max-tokens", "12", "--ignore-eos", "--seed", "7"];
        ballast(&[&plain[..], more].concat()).fine()
    };
    let chosen = said(&["--top-p", "0.9"]);
    assert_eq!(chosen, said(&["--top-p", "0.9", "--temperature", "1"]));
    assert_ne!(chosen, said(&["--top-p", "0.9", "--temperature", "0"]));
}

/// Ids of the tokens that a table of log-probabilities lists.
fn listed(out: &str, of: &str) -> Vec<String> {
    let (_, table) = out.split_once(&format!("log-probabilities of {of}:\n")).expect("a table");
    let rows = table.lines().skip(1).take_while(|line| !line.is_empty());
    rows.map(|line| line.split_whitespace().nth(2).expect("an id").to_string()).collect()
}

#[test]
fn tokens_are_listed_biased_and_ended_at_by_their_ids() {
    let plain = say("llama", &["--logprobs", "2", "--prompt-logprobs", "0"]);
    assert!(plain.starts_with(say("llama", &[]).trim_end()), "the answer comes first");
    assert_eq!(listed(&plain, "the prompt").len(), 47, "each of 48 but the first");
    let ids = listed(&plain, "the answer");
    assert_eq!(ids.len(), 12);
    assert!(plain.contains("likeliest: "));
    let biased = say("llama", &["--logprobs", "0", "--logit-bias", &format!("{}=-100", ids[0])]);
    let others = listed(&biased, "the answer");
    assert_ne!(others[0], ids[0]);
    assert!(!others.contains(&ids[0]) && !biased.contains("likeliest"), "{biased}");
    let end = format!("{},{}", ids[3], ids[1]);
    let ended = listed(&say("llama", &["--logprobs", "0", "--stop-token-ids", &end]), "the answer");
    let first = ids.iter().position(|id| *id == ids[1] || *id == ids[3]).expect("there");
    assert_eq!(ended, ids[..=first]);
}

#[test]
fn templates_are_told_the_date() {
    let folder = Folder::new();
    let template = "{% if strftime_now('%Y') == '1970' %}{{ raise_exception('the clock stands') }}{% endif %}\
                    {{ messages[0].content }}";
    std::fs::write(folder.path("dated.jinja"), template).expect("written");
    say("llama", &["--chat-template", &folder.name("dated.jinja")]);
}

#[test]
fn an_answer_is_as_long_as_it_must_be_where_nothing_says_how_long_it_may_be() {
    let args = ["run", &golden("llama"), "hello", "--temperature", "0", "--min-tokens", "300"];
    let ran = ballast(&args);
    let generated = ran.err.split(" generated").next().and_then(|told| told.rsplit(' ').next());
    let generated: usize = generated.and_then(|n| n.parse().ok()).expect("a count");
    assert!(generated >= 300, "{}", ran.err);
}

#[test]
fn no_flag_is_named_where_the_model_itself_can_read_no_more() {
    let ran = ballast(&["run", &golden("llama"), &"hello ".repeat(600)]);
    assert!(!ran.err.contains("--max-model-len"), "{}", ran.err);
    ran.refused(1, &["this model can read 512", "shorten the prompt"]);
    let ran = ballast(&["run", &golden("llama"), &"hello ".repeat(20), "--max-model-len", "16"]);
    ran.refused(1, &["raise --max-model-len (to 512 at most)"]);
}

#[test]
fn kv_is_for_no_more_than_the_model_can_read() {
    let ran = ballast(&["run", &golden("llama"), "hello", "--temperature", "0", "--max-tokens", "4000000"]);
    let tokens = ran.err.split(" tokens)").next().and_then(|told| told.rsplit('(').next());
    let tokens: usize = tokens.and_then(|n| n.parse().ok()).expect("a count");
    assert!((304..=576).contains(&tokens), "{}", ran.err);
    assert!(ran.err.contains("the model reads 512 tokens, so the answer ends after 464"), "{}", ran.err);
}

#[test]
fn several_answers_have_seeds_of_their_own() {
    let sampled = |more: &[&str]| say("llama", &[&["--temperature", "1.5"], more].concat());
    let (one, two) = (sampled(&["--seed", "8"]), sampled(&["--seed", "9"]));
    assert_eq!(
        sampled(&["--seed", "8", "--n", "2"]),
        format!("answer 1 of 2:\n{one}\nanswer 2 of 2:\n{two}")
    );
    let many = sampled(&["--seed", "8", "--n", "70", "--max-tokens", "1"]);
    assert_eq!(many.matches("answer ").count(), 70, "more than are generated at once: {many}");
}

#[test]
fn random_weights_need_no_weights() {
    let folder = Folder::copy_of("llama");
    std::fs::remove_file(folder.path("model.safetensors")).expect("removed");
    let model = folder.whole();
    let args = ["run", &model, "hello", "--load-format", "dummy"];
    assert!(!ballast(&[&args, &GREEDY[..]].concat()).fine().is_empty());
    let gguf =
        ballast(&["run", &golden("gguf-q8_0"), "hello", "--load-format", "dummy", "--max-tokens", "2"]);
    gguf.fine();
}

#[test]
fn weights_are_converted_as_asked() {
    for weights in ["bf16", "f32", "int8", "int4"] {
        assert!(!say("llama", &["--weights", weights]).is_empty(), "{weights}");
    }
}

#[test]
fn a_reader_that_leaves_ends_it_quietly() {
    let mut command =
        command(&["run", &golden("llama"), "hello", "-q", "--ignore-eos", "--max-tokens", "400"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary starts");
    let mut out = child.stdout.take().expect("piped");
    out.read_exact(&mut [0; 1]).expect("a first byte");
    drop(out);
    let ended = child.wait_with_output().expect("it ends");
    assert_eq!((ended.status.code(), ended.stderr), (Some(0), Vec::new()));
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_an_error_and_a_full_terminal_is_not() {
    let full = || File::options().write(true).open("/dev/full").expect("Linux has it");
    let args = ["run", &golden("llama"), "hello", "--max-tokens", "3"];
    let output = command(&args).stdout(full()).output().expect("the binary starts");
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("cannot write to standard output"));
    let output = command(&args).stderr(full()).output().expect("the binary starts");
    assert_eq!(output.status.code(), Some(0));
    let record = ballast(&["run", &golden("llama"), "hello", "--max-tokens", "3", "--record", "/dev/full"]);
    record.refused(1, &["the record could not be written"]);
}

#[test]
fn wrong_flags_are_usage_errors() {
    let model = golden("llama");
    for flags in [
        &["--threads", "0"][..],
        &["--sparse-attention", "0"],
        &["--sparse-attention", "7"],
        &["--threads", "100000"],
        &["--max-tokens", "0"],
        &["--max-model-len", "0"],
        &["--max-num-seqs", "0"],
        &["--max-num-batched-tokens", "99999999999999999999"],
        &["--memory", "much"],
        &["--dtype", "float8"],
        &["--temperature", "hot"],
        &["--n", "0"],
        &["--logit-bias", "hello=1"],
    ] {
        ballast(&[&["run", &model, "hello"], flags].concat()).refused(2, &["error:"]);
    }
    for (flag, wrong, says) in [
        ("--temperature", "-1", "--temperature: expected a number of at least 0, found -1"),
        ("--top-p", "2", "--top-p: expected a number in (0, 1], found 2"),
        ("--stop", "", "--stop: expected"),
        ("--logit-bias", "0=101", "--logit-bias: expected"),
        ("--stop-token-ids", "999999", "--stop-token-ids: expected token ids below 304"),
        ("--logprobs", "1000000", "--logprobs: expected at most 304: the model has no more tokens"),
        (
            "--prompt-logprobs",
            "1000000",
            "--prompt-logprobs: expected at most 304: the model has no more tokens",
        ),
    ] {
        ballast(&["run", &model, "hello", flag, wrong]).refused(2, &[says]);
    }
}

#[test]
fn words_of_other_programs_are_known() {
    for (words, says) in [
        (&["run", "-m", "smollm2", "-p", "hello"][..], "ORG/NAME"),
        (&["run", "smollm2", "-p", "hello"], "ballast run MODEL PROMPT"),
        (&["run", "smollm2", "hello", "-n", "20"], "--max-tokens"),
        (&["run", "smollm2", "hello", "--temp", "0"], "--temperature"),
        (&["serve", "smollm2", "-c", "4096"], "--max-model-len"),
        (&["chat", "smollm2"], "ballast run MODEL"),
        (&["batch", "smollm2", "in.jsonl", "out.jsonl"], "-i IN.jsonl -o OUT.jsonl"),
        (&["batch", "smollm2", "--file", "in.jsonl"], "--input-file (-i)"),
        (&["bench", "throughput", "smollm2", "-n", "20"], "--output-len"),
        (&["bench", "serve", "--parallel", "4"], "--max-concurrency"),
    ] {
        let ran = ballast(words);
        assert!(!ran.err.contains("tip:"), "{}", ran.err);
        ran.refused(2, &["error:", says]);
    }
    // Flags that other commands have are no help.
    let ran = ballast(&["bench", "serve", "-t", "3"]);
    assert!(!ran.err.contains("--threads"), "{}", ran.err);
    ran.refused(2, &["error:"]);
}

#[test]
fn what_cannot_be_is_said_before_anything_is_loaded() {
    let model = golden("llama");
    let long = "ship ".repeat(400);
    for (flags, says) in [
        (&["hello", "--memory", "5MiB"][..], &["weights", "Raise --memory"][..]),
        (&["hello", "--memory", "90TiB"], &["--memory", "ask for less"]),
        (&["hello", "--max-model-len", "1"], &["48 tokens", "--max-model-len"]),
        (&["hello", "--max-model-len", "1000"], &["--max-model-len 1000", "at most 512"]),
        (&["hello", "--max-num-seqs", "9", "--max-num-batched-tokens", "8"], &["every sequence"]),
        (
            &["hello", "--max-num-seqs", "9000000", "--memory", "64MiB"],
            &["activations", "--max-num-batched-tokens"],
        ),
        (&["", "--raw"], &["the prompt is empty"]),
        (&[&long], &["tokens", "shorten the prompt"]),
        (&["hello", "--record", "/no/such/file"], &["cannot write /no/such/file"]),
    ] {
        let ran = ballast(&[&["run", &model], flags].concat());
        assert_eq!(ran.out, "");
        ran.refused(1, says);
    }
    let template = ["run", &model, "hello", "--chat-template", "/no/such/file"];
    ballast(&template).refused(2, &["cannot read /no/such/file"]);
    ballast_reading(&["run", &model], b"h\xff").refused(1, &["standard input is not UTF-8"]);
    ballast_reading(&["run", &model], b" \n").refused(1, &["no prompt"]);
    ballast_reading(&["run", &model, "-"], b"").refused(1, &["no prompt"]);
    let system = ["run", &model, "hello", "--system", "be kind"];
    ballast(&[&system[..], &["--raw"]].concat()).refused(2, &["--raw", "cannot be used with", "--system"]);
}

#[test]
fn a_model_without_a_chat_template_goes_on_with_the_prompt_and_says_so() {
    let folder = Folder::copy_of("llama");
    let mut config = folder.json("tokenizer_config.json");
    config.as_object_mut().expect("an object").remove("chat_template");
    folder.write("tokenizer_config.json", config.to_string());
    let model = folder.whole();
    let run = ["run", &model, "hello", "--temperature", "0", "--max-tokens", "4"];
    let (plain, raw) = (ballast(&run), ballast(&[&run[..], &["--raw"]].concat()));
    assert_eq!((plain.code, &plain.out), (Some(0), &raw.out));
    assert!(plain.err.contains("no chat template") && !raw.err.contains("no chat template"), "{}", plain.err);
    ballast(&[&run[..], &["--system", "be kind"]].concat()).refused(2, &["--system", "--chat-template"]);
}

#[test]
fn flags_of_conversations_that_change_nothing_are_told() {
    let (model, folder) = (golden("llama"), Folder::new());
    let flags = ["--chat-template", "/no/such/file", "--tool-call-parser", "hermes"];
    let run = ["run", &model, "hello", "--temperature", "0", "--max-tokens", "4"];
    let text = folder.write("text.txt", "The old whale swam on in the evening. ".repeat(20));
    let eval = ["eval", "perplexity", &model, "--text", &text, "--context", "64", "--stride", "64"];
    for args in [&[&run[..], &["--raw"]].concat()[..], &eval] {
        let ran = ballast(&[args, &flags].concat());
        for flag in [flags[0], flags[2]] {
            let said = format!("{flag} changes nothing here: no conversation is held");
            assert!(ran.err.contains(&said), "{args:?}: {}", ran.err);
        }
        ran.fine();
    }
    // A template is read here, and what the model writes is not looked through.
    let ran = ballast(&[&run[..], &flags[2..]].concat());
    let said = "--tool-call-parser changes nothing here: the model is given no tools";
    assert!(ran.err.contains(said), "{}", ran.err);
    let quiet = ballast(&[&run[..], &flags[2..], &["--quiet"]].concat());
    assert!(!quiet.err.contains("changes nothing") && quiet.out == ran.out, "{}", quiet.err);
}

#[test]
fn a_dash_for_a_prompt_is_standard_input() {
    let model = golden("llama");
    let asks = |prompt| ["run", &model, prompt, "--temperature", "0", "--max-tokens", "4"];
    let piped = ballast_reading(&asks("-"), b"hello\n");
    assert_eq!((piped.code, piped.out), (Some(0), ballast(&asks("hello")).out));
}

/// The default model, from a hub's folder that holds another: what is piped is said to it, or else what a first run says.
#[test]
fn without_a_model_what_is_piped_is_the_prompt() {
    let hub = Folder::new();
    let repo = hub.path("models--HuggingFaceTB--SmolLM2-135M-Instruct");
    let snapshot = repo.join("snapshots/1");
    std::fs::create_dir_all(&snapshot).expect("made");
    std::fs::create_dir_all(repo.join("refs")).expect("made");
    std::fs::write(repo.join("refs/main"), "1").expect("written");
    for file in std::fs::read_dir(golden("llama")).expect("a checkpoint").map(|file| file.expect("an entry"))
    {
        std::fs::copy(file.path(), snapshot.join(file.file_name())).expect("copied");
    }
    let asks = |input: &Path| {
        let mut command = command(&["run", "--max-tokens", "1"]);
        command.env("HF_HUB_CACHE", hub.whole()).env("BALLAST_CACHE", hub.path("cache"));
        command.stdin(File::open(input).expect("readable"));
        let ran = Ran::of(command.output().expect("the binary starts"));
        assert_eq!(ran.code, Some(0), "{}", ran.err);
        ran.err
            .lines()
            .find_map(|line| Some(line.strip_prefix("prompt: ")?.to_string()))
            .expect("it is shown")
    };
    hub.write("piped", "Is it deep?\n");
    assert_eq!(asks(&hub.path("piped")), "Is it deep?");
    assert_eq!(asks(Path::new("/dev/null")), "Why is the sea salty?");
}

#[test]
fn models_that_are_not_there_are_named() {
    ballast(&["run", "./nowhere", "hello"])
        .refused(2, &["no model `./nowhere`", "a folder with config.json"]);
    ballast(&["run", "Why is the sea salty?"]).refused(2, &["the model comes before the prompt", "smollm2"]);
    for named in
        [&["run", "/my models/llama"][..], &["eval", "perplexity", "my model"], &["run", "my model", "hello"]]
    {
        let ran = ballast(named);
        assert!(!ran.err.contains("before the prompt"), "{named:?}: {}", ran.err);
        ran.refused(2, &["no model `"]);
    }
    let folder = Folder::new();
    let json = folder.name("x.json");
    ballast(&["bench", "ablation", "./nowhere", "--json", &json]).refused(2, &["no model `./nowhere`"]);
    ballast(&["run", "--revision", "v2"]).refused(1, &["--revision v2", "no revisions"]);
    let weights = golden("llama") + "/model.safetensors";
    ballast(&["run", &weights, "hello"]).refused(1, &["name its folder"]);
    let empty = Folder::new();
    ballast(&["run", &empty.whole(), "hello"]).refused(1, &["no config.json"]);
    let no_tokenizer = golden("opt");
    ballast(&["run", &no_tokenizer, "hello"]).refused(1, &["no tokenizer", "expected tokenizer.json"]);
}
