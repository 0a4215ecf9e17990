//! What a folder says of a tokenizer beside its vocabulary.

use super::*;

#[test]
fn gpt2_files_make_the_same_tokenizer() {
    let fixture = fixture("gpt-2");
    let vocab = serde_json::to_vec(&fixture["hf"]["model"]["vocab"]).unwrap();
    let merges = format!("#version: 0.2\n{}\n", strings(&fixture["gguf"]["merges"]).join("\n"));
    let config = json!({"add_bos_token": true, "bos_token": "<|endoftext|>", "added_tokens_decoder": {
        "1": {"content": "<|im_start|>", "special": true}, "2": {"content": "<|im_end|>", "special": true}}});
    let config = TokenizerConfig::parse(config.to_string().as_bytes()).unwrap();
    let tokenizer = Tokenizer::from_gpt2(&vocab, merges.as_bytes(), &config).unwrap();
    assert_cases(&tokenizer, &fixture["cases"], false);
    assert_eq!(tokenizer.encode("", Special::With).unwrap(), [0]);
    let end = json!({"add_bos_token": false, "add_eos_token": true, "bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>"});
    let end = TokenizerConfig::parse(end.to_string().as_bytes()).unwrap();
    let tokenizer = Tokenizer::from_gpt2(&vocab, merges.as_bytes(), &end).unwrap();
    let a = tokenizer.encode("a", Special::Without).unwrap();
    assert_eq!(tokenizer.encode("a", Special::With).unwrap(), [a, vec![0]].concat());
}

/// As transformers 5.16.1 does: the map wins over the configuration, and is not read beside `added_tokens_decoder`.
#[test]
fn a_map_of_special_tokens_wins_unless_tokens_are_declared() {
    let map = json!({"eos_token": "<tool>", "extra_special_tokens": ["<b>"]}).to_string();
    let eos = |config: Value| {
        let mut config = TokenizerConfig::parse(config.to_string().as_bytes()).unwrap();
        config.take_special_tokens_map(map.as_bytes()).unwrap();
        let special: Vec<String> = config.special().map(|(text, _)| text.to_owned()).collect();
        special.join(" ")
    };
    assert_eq!(eos(json!({"bos_token": "<s>", "eos_token": "</s>"})), "<s> <tool> <b>");
    assert_eq!(eos(json!({"extra_special_tokens": ["<a>"]})), "<tool> <a> <b>");
    assert_eq!(eos(json!({"eos_token": "</s>", "added_tokens_decoder": {}})), "</s>");
}

/// Qwen's older class: its own words, NFC, and tokens of `added_tokens.json`. Ids are transformers 5.16.1's.
#[test]
fn gpt2_files_are_cut_as_their_class_says() {
    let fixture = fixture("qwen2");
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: String| std::fs::write(dir.path().join(name), text).unwrap();
    write("vocab.json", fixture["hf"]["model"]["vocab"].to_string());
    write("merges.txt", strings(&fixture["gguf"]["merges"]).join("\n"));
    let added: Vec<_> = fixture["hf"]["added_tokens"].as_array().unwrap().iter().collect();
    let special: Vec<_> = added.iter().filter(|t| t["special"] == true).map(|t| &t["content"]).collect();
    let load = |class: &str| {
        let config = json!({"tokenizer_class": class, "eos_token": "<|im_end|>", "additional_special_tokens": special});
        write("tokenizer_config.json", config.to_string());
        Tokenizer::from_dir(dir.path())
    };
    let ids = added.iter().map(|t| (t["content"].as_str().unwrap().to_owned(), t["id"].clone()));
    write("added_tokens.json", Value::Object(ids.collect()).to_string());
    let (tokenizer, _) = load("Qwen2Tokenizer").unwrap();
    assert_cases(&tokenizer, &fixture["cases"], false);
    let im_end = added.iter().find(|t| t["content"] == "<|im_end|>").unwrap();
    assert_eq!(tokenizer.special_ids().eos.map(u64::from), im_end["id"].as_u64());
    assert!(load("BertTokenizer").unwrap_err().to_string().contains("`BertTokenizer`"));
}
