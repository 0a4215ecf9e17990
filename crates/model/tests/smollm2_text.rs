//! The tokenizer and the template of the real small model, where its file is in the cache.
//!
//! `BALLAST_SMOLLM2_GGUF` names the file; else `SmolLM2-135M-Instruct*.gguf` is looked for below the
//! user's cache folder (`smollm2_logits`, which runs before, fetches it). Where there is none the test says so and checks
//! nothing; with `BALLAST_REQUIRE_MODEL` it fails.

use std::path::{Path, PathBuf};

use model::gguf::Gguf;
use model::template::{Templates, Tools};
use model::{ChatTemplate, Conversation, Special, Tokenizer};
use serde_json::{Value, json};

fn find(dir: &Path, depth: usize) -> Option<PathBuf> {
    let mut paths: Vec<_> = std::fs::read_dir(dir).ok()?.filter_map(|e| Some(e.ok()?.path())).collect();
    paths.sort();
    let named =
        |p: &Path| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with("SmolLM2-135M-Instruct"));
    let is_it = |p: &&PathBuf| named(p) && p.extension().is_some_and(|e| e == "gguf");
    let below = |p: &PathBuf| if depth > 0 && p.is_dir() { find(p, depth - 1) } else { None };
    paths.iter().find(is_it).cloned().or_else(|| paths.iter().find_map(below))
}

fn cached() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os("BALLAST_SMOLLM2_GGUF") {
        return Some(PathBuf::from(path));
    }
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")))?;
    find(&cache.join("ballast"), 4)
}

#[test]
fn agrees_with_hugging_face() {
    let Some(path) = cached() else {
        assert!(std::env::var_os("BALLAST_REQUIRE_MODEL").is_none(), "SmolLM2 is not in the cache");
        eprintln!("skipped: SmolLM2 is not in the cache; `ballast run` fetches it");
        return;
    };
    let mut vocab = Gguf::open(&path).unwrap().take_vocab().unwrap().expect("a vocabulary");
    let templates = Templates::named(std::mem::take(&mut vocab.chat_templates));
    let tokenizer = Tokenizer::from_gguf(vocab).unwrap();
    let cases: Value = serde_json::from_str(include_str!("fixtures/tokenizer/smollm2_cases.json")).unwrap();
    for case in cases["cases"].as_array().unwrap() {
        let text = case["text"].as_str().unwrap();
        let ids = tokenizer.encode(text, Special::With).unwrap();
        assert_eq!(json!(ids), case["ids"], "{text:?}");
        assert_eq!(tokenizer.decode(&ids, Special::With), case["decoded"], "{text:?}");
        assert_eq!(tokenizer.decode(&ids, Special::Without), case["skipped"], "{text:?}");
    }
    let template: ChatTemplate = templates.choose(Tools::Absent).unwrap();
    let messages = [json!({"role": "user", "content": "Hi"})];
    let text = template.render(&Conversation { messages: &messages, ..Conversation::default() }).unwrap();
    let system = "You are a helpful AI assistant named SmolLM, trained by Hugging Face";
    let expected = format!(
        "<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    );
    assert_eq!(text, expected);
    let ids = tokenizer.encode(&text, Special::Without).unwrap();
    assert_eq!((ids[0], *ids.last().unwrap()), (1, 198), "special tokens are one token each");
}
