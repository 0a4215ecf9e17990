//! Checkpoints that are damaged, hostile or of another kind: a message with the file's name, and no panic.

use std::fs;

use crate::common::{Folder, Ran, ballast, command};
use serde_json::{Value, json};

#[track_caller]
fn refused(folder: &Folder, says: &[&str]) {
    ballast(&["run", &folder.whole(), "hello", "--max-tokens", "2"]).refused(1, says);
}

fn configured(changes: Value) -> Folder {
    let folder = Folder::copy_of("llama");
    let mut config = folder.json("config.json");
    for (name, value) in changes.as_object().expect("an object") {
        config[name] = value.clone();
    }
    folder.write("config.json", config.to_string());
    folder
}

fn cut(model: &str, file: &str, keep: impl Fn(usize) -> usize) -> Folder {
    let folder = Folder::copy_of(model);
    let bytes = fs::read(folder.path(file)).expect("readable");
    folder.write(file, &bytes[..keep(bytes.len())]);
    folder
}

#[test]
fn cut_files() {
    for keep in [|_| 0, |_| 4, |_| 100, |n| n / 2, |n| n - 1] {
        refused(&cut("llama", "model.safetensors", keep), &["model.safetensors"]);
        refused(&cut("gguf-q4_0", "model.gguf", keep), &["model.gguf"]);
    }
    refused(&cut("gguf-q4_0", "model.gguf", |_| 0), &["0 bytes long", "did its download end early?"]);
    for file in ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"] {
        refused(&cut("llama", file, |n| n / 2), &[file]);
    }
}

#[test]
fn configurations() {
    refused(
        &configured(json!({"architectures": ["MambaForCausalLM"]})),
        &["`MambaForCausalLM`", "OPTForCausalLM"],
    );
    refused(&configured(json!({"hidden_size": -1})), &["`hidden_size` is -1"]);
    refused(&configured(json!({"num_hidden_layers": 1_000_000_000})), &["`num_hidden_layers`"]);
    refused(&configured(json!({"hidden_size": 1u64 << 40})), &["expected 1 to"]);
    refused(&configured(json!({"num_attention_heads": 32})), &["`head_dim` is 2:", "a multiple of 16"]);
    refused(&configured(json!({"quantization_config": {"quant_method": "aqlm"}})), &["aqlm", "GPTQ", "GGUF"]);
}

#[test]
fn tensors_that_are_missing_extra_or_misshapen() {
    refused(
        &configured(json!({"num_hidden_layers": 3})),
        &["`model.layers.2.mlp.up_proj.weight` is missing"],
    );
    refused(&configured(json!({"num_hidden_layers": 1})), &["is not part of"]);
    refused(&configured(json!({"hidden_size": 128})), &["`model.norm.weight` is [64], expected [128]"]);
}

#[test]
fn a_tokenizer_of_another_model() {
    let folder = configured(json!({"vocab_size": 20}));
    let args = ["run", &folder.whole(), "hello", "--load-format", "dummy"];
    let ran = ballast(&args);
    assert!(!ran.err.contains("prompt: "), "nothing is loaded for it: {}", ran.err);
    ran.refused(1, &["the model has 20 (its `vocab_size`)", "is outside the vocabulary of 20"]);
}

/// The library that reads them panics.
#[test]
fn tokenizers_that_a_library_gives_up_on() {
    let folder = Folder::copy_of("llama");
    let mut tokenizer = folder.json("tokenizer.json");
    tokenizer["normalizer"] = json!({"type": "Precompiled", "precompiled_charsmap": "AAAA"});
    folder.write("tokenizer.json", tokenizer.to_string());
    refused(&folder, &["tokenizer.json", "gave up on it"]);
}

#[test]
fn files_that_git_lfs_has_not_fetched() {
    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 269060552\n";
    let files = [("llama", "model.safetensors"), ("gguf-q4_0", "model.gguf"), ("llama", "tokenizer.json")];
    for (model, file) in files {
        let folder = Folder::copy_of(model);
        folder.write(file, pointer);
        refused(&folder, &[file, "a Git LFS pointer", "`git lfs pull`"]);
    }
}

#[test]
fn weights_that_are_not_numbers() {
    let folder = Folder::copy_of("llama");
    let mut bytes = fs::read(folder.path("model.safetensors")).expect("readable");
    let end = bytes.len();
    bytes[end - 2..].copy_from_slice(&0x7fc0u16.to_le_bytes());
    folder.write("model.safetensors", &bytes);
    refused(&folder, &["NaN or infinity in row"]);
}

#[test]
fn an_index_that_leaves_its_folder() {
    for outside in ["../x.safetensors", "/etc/passwd"] {
        let folder = Folder::copy_of("llama-sharded");
        let mut index = folder.json("model.safetensors.index.json");
        let map = index["weight_map"].as_object_mut().expect("an object");
        *map.values_mut().next().expect("an entry") = outside.into();
        folder.write("model.safetensors.index.json", index.to_string());
        refused(&folder, &[outside, "bare name"]);
    }
}

#[test]
fn a_shard_that_is_not_there() {
    let folder = Folder::copy_of("llama-sharded");
    fs::remove_file(folder.path("model-00002-of-00003.safetensors")).expect("removed");
    let ran = ballast(&["run", &folder.whole(), "hello"]);
    assert_eq!(ran.err.matches("1 of its 3 shards missing").count(), 1, "a cause is said once: {}", ran.err);
    ran.refused(1, &["model-00002-of-00003.safetensors"]);
}

#[test]
fn templates() {
    for (template, says) in [
        ("{% for x in %}", "syntax error"),
        ("{{ raise_exception('no way') }}", "no way"),
        ("{% for x in range(100000000) %}{% endfor %}", "too many"),
    ] {
        let folder = Folder::copy_of("llama");
        let file = folder.write("template.jinja", template);
        let ran = ballast(&["run", &folder.whole(), "hello", "--chat-template", &file]);
        ran.refused(1, &["chat template", says]);
    }
}

#[test]
fn weights_that_12_bits_cannot_hold_are_named() {
    const TENSOR: &str = "model.layers.1.mlp.down_proj.weight";
    let folder = Folder::copy_of("llama");
    let mut bytes = fs::read(folder.path("model.safetensors")).expect("readable");
    let data = 8 + u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes")) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..data]).expect("JSON");
    let offset = |i: usize| data + header[TENSOR]["data_offsets"][i].as_u64().expect("a number") as usize;
    // 2^-40 to 2^-1, by turns.
    for (i, weight) in bytes[offset(0)..offset(1)].chunks_exact_mut(2).enumerate() {
        weight.copy_from_slice(&((87 + i as u16 % 40) << 7).to_le_bytes());
    }
    folder.write("model.safetensors", &bytes);
    // One sequence alone has 12 bits by itself where vectors multiply, and where tiles do it has not.
    let vectors = if cfg!(target_arch = "x86_64") { "avx2" } else { "scalar" };
    let ballast = |more: &[&str]| {
        let model = folder.whole();
        let args = [&["run", &model, "hello", "--max-tokens", "2"], more].concat();
        Ran::of(command(&args).env("BALLAST_ISA", vectors).output().expect("the binary starts"))
    };
    let run = |weights| ballast(&["--weights", weights]);
    run("bf12").refused(1, &[TENSOR, "12 bits a weight", "write --weights bf16"]);
    // Where nobody asked for 12 bits they are no reason to fail.
    let by_itself = ballast(&[]);
    assert!(vectors == "scalar" || by_itself.err.contains(TENSOR), "{}", by_itself.err);
    assert_eq!(by_itself.fine(), run("bf16").fine());
}
