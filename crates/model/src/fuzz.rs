//! One function for each parser of files from strangers: it must return, whatever the bytes.
//!
//! `fuzz/` drives them with cargo-fuzz; the tests below with mutations of sound files, on any toolchain.

use serde_json::json;

use crate::config::{parse_config, parse_generation};
use crate::gguf::{Gguf, parse_header as parse_gguf};
use crate::safetensors::{parse_header, parse_index};
use crate::template::{ChatTemplate, Conversation};
use crate::tokenizer::{Special, Tokenizer, TokenizerConfig};

/// A GGUF file: header, then the model and vocabulary that it describes.
pub fn fuzz_gguf(bytes: &[u8]) {
    let Ok(header) = parse_gguf(bytes, bytes.len() as u64, "fuzz") else { return };
    for entry in &header.entries {
        let end = entry.offset.checked_add(entry.bytes);
        assert!(end.is_some_and(|end| end <= bytes.len() as u64), "{entry:?} lies outside the file");
    }
    let mut gguf = Gguf::without_data(header);
    if let Ok(spec) = gguf.spec() {
        assert!(spec.parameters() > 0, "{spec:?}");
    }
    if let Ok(Some(vocab)) = gguf.take_vocab() {
        assert!(vocab.scores.as_ref().is_none_or(|s| s.len() == vocab.tokens.len()), "scores without tokens");
        uses(Tokenizer::from_gguf(vocab).ok());
    }
}

/// A `tokenizer.json`.
pub fn fuzz_tokenizer(bytes: &[u8]) {
    uses(Tokenizer::from_hf(bytes, &TokenizerConfig::default()).ok());
}

/// A `tokenizer_config.json`, a `special_tokens_map.json` or an `added_tokens.json`.
pub fn fuzz_tokenizer_config(bytes: &[u8]) {
    let _ = TokenizerConfig::parse(bytes);
    let _ = TokenizerConfig::default().take_special_tokens_map(bytes);
    let _ = TokenizerConfig::default().take_added_tokens(bytes);
}

/// A `vocab.json`, a zero byte and a `merges.txt`.
pub fn fuzz_gpt2(bytes: &[u8]) {
    let Some(at) = bytes.iter().position(|b| *b == 0) else { return };
    uses(Tokenizer::from_gpt2(&bytes[..at], &bytes[at + 1..], &TokenizerConfig::default()).ok());
}

/// A tokenizer that could be built works.
fn uses(tokenizer: Option<Tokenizer>) {
    let Some(tokenizer) = tokenizer else { return };
    if let Ok(ids) = tokenizer.encode("The ship's 2 holds.", Special::With) {
        assert!(ids.iter().all(|id| (*id as usize) < tokenizer.vocab_size()), "{ids:?}");
        let _ = tokenizer.decode(&ids, Special::Without);
    }
}

/// A safetensors file.
pub fn fuzz_safetensors(bytes: &[u8]) {
    let Some((length, rest)) = bytes.split_first_chunk::<8>() else { return };
    let length = u64::from_le_bytes(*length);
    let Some(header) = usize::try_from(length).ok().and_then(|n| rest.get(..n)) else { return };
    let Ok(entries) = parse_header(header, 8 + length, bytes.len() as u64, "fuzz") else { return };
    let covered: u64 = entries.iter().map(|e| e.bytes).sum();
    assert_eq!(8 + length + covered, bytes.len() as u64, "tensors do not fill the file");
}

/// A chat template, and a conversation that it renders.
pub fn fuzz_template(bytes: &[u8]) {
    let Ok(source) = std::str::from_utf8(bytes) else { return };
    let Ok(template) = ChatTemplate::new(source) else { return };
    let messages =
        [json!({"role": "system", "content": "é"}), json!({"role": "user", "content": "Ahoy {{ x }}"})];
    let _ = template.render(&Conversation { messages: &messages, ..Conversation::default() });
}

/// An index of shards.
pub fn fuzz_index(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let Ok(map) = parse_index(text, "fuzz") else { return };
    assert!(map.values().all(|name| !name.contains('/') && name != ".."), "a shard outside the folder");
}

/// A `config.json`.
pub fn fuzz_config(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let Ok(config) = parse_config(text, "fuzz") else { return };
    assert!(config.spec.parameters() > 0, "{config:?}");
    for rope in (0..config.spec.layers.min(8)).filter_map(|layer| config.spec.rope_of(layer)) {
        for length in [1, config.spec.max_positions] {
            let frequencies = spec::rope_frequencies(rope, config.spec.head_dim, length);
            assert!(frequencies.inverse.iter().all(|f| !f.is_nan()), "{rope:?}");
        }
    }
}

/// A `generation_config.json`.
pub fn fuzz_generation(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let _ = parse_generation(text, "fuzz");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{counting, llama_config, safetensors, tiny_gguf};
    use proptest::prelude::*;

    fn gguf() -> Vec<u8> {
        let mut file = tiny_gguf("llama");
        file.text("tokenizer.ggml.model", "llama");
        let tokens = ["a", "b", "ab", "d", "ba", "aba", "</s>", "h", "i", "▁"];
        file.texts("tokenizer.ggml.tokens", &tokens).uint("tokenizer.ggml.eos_token_id", 2);
        let floats = [&6u32.to_le_bytes()[..], &10u64.to_le_bytes(), &counting(0, 10)].concat();
        file.pair("tokenizer.ggml.scores", 9, &floats).uint("general.alignment", 32);
        file.tensor("rope_freqs.weight", &[8], 0, counting(1, 8));
        file.build()
    }

    /// The same with a vocabulary of merges.
    fn gguf_of_merges() -> Vec<u8> {
        let mut file = tiny_gguf("llama");
        file.text("tokenizer.ggml.model", "gpt2").text("tokenizer.ggml.pre", "llama-bpe");
        let tokens = ["a", "b", "ab", "d", "ba", "aba", "</s>", "h", "i", "c"];
        file.texts("tokenizer.ggml.tokens", &tokens).uint("tokenizer.ggml.eos_token_id", 6);
        file.texts("tokenizer.ggml.merges", &["a b", "b a", "ab a"]);
        file.build()
    }

    fn generation() -> Vec<u8> {
        let fields = json!({"eos_token_id": [2, 3], "do_sample": true, "temperature": 0.6, "top_k": 20, "top_p": 0.95,
            "repetition_penalty": 1.1, "max_new_tokens": 8});
        fields.to_string().into_bytes()
    }

    fn tensors() -> Vec<u8> {
        safetensors(&[
            ("model.a".into(), "F32", vec![2, 3], counting(0, 6)),
            ("model.b".into(), "BF16", vec![4], vec![0; 8]),
        ])
    }

    /// The same of architectures that know more by keys.
    fn gguf_of_variants() -> [Vec<u8>; 2] {
        let mut granite = tiny_gguf("granite");
        for key in ["embedding_scale", "residual_scale", "logit_scale", "attention.scale"] {
            granite.float(&format!("granite.{key}"), 2.0);
        }
        let mut gemma = tiny_gguf("gemma3");
        gemma.uint("gemma3.attention.sliding_window", 4).uint("gemma3.attention.sliding_window_pattern", 2);
        gemma.float("gemma3.rope.freq_base_swa", 1e4);
        [granite.build(), gemma.build()]
    }

    /// Configurations, and an index of shards.
    fn texts() -> [Vec<u8>; 6] {
        let scaling = json!({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16});
        let qwen = json!({"architectures": ["Qwen2ForCausalLM"], "use_sliding_window": true, "sliding_window": 4,
            "max_window_layers": 1, "rope_scaling": {"type": "dynamic", "factor": 2}});
        let index = json!({"weight_map": {"a": "1.safetensors", "b": "2.safetensors"}});
        let phi = json!({"architectures": ["Phi3ForCausalLM"], "partial_rotary_factor": 0.5,
            "original_max_position_embeddings": 16, "rope_scaling": {"type": "longrope", "factor": 2.0,
            "short_factor": [1.0, 1.0, 1.0, 2.0], "long_factor": [1.0, 2.0, 3.0, 4.0]}});
        let gemma = json!({"architectures": ["Gemma3ForCausalLM"], "query_pre_attn_scalar": 8, "sliding_window": 4,
            "sliding_window_pattern": 2, "rope_local_base_freq": 1e3, "rope_scaling": {"rope_type": "linear", "factor": 2.0}});
        let smol = json!({"architectures": ["SmolLM3ForCausalLM"], "no_rope_layers": [1, 0], "no_rope_layer_interval": 2,
            "use_sliding_window": true, "sliding_window": 4, "attention_multiplier": 0.5});
        let llama = json!({"rope_scaling": scaling});
        let [llama, qwen, phi, gemma, smol] = [llama, qwen, phi, gemma, smol].map(llama_config);
        [llama, qwen, phi, gemma, smol, index.to_string()].map(String::into_bytes)
    }

    /// A vocabulary of a few tokens in each of Hugging Face's forms.
    fn tokenizers() -> [Vec<u8>; 3] {
        let vocab = json!({"a": 0, "b": 1, "ab": 2, "</s>": 3});
        let added = json!({"id": 3, "content": "</s>", "special": true, "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false});
        let whole = json!({"version": "1.0", "added_tokens": [added], "normalizer": null,
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
            "post_processor": null, "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
            "use_regex": true}, "model": {"type": "BPE", "vocab": vocab, "merges": ["a b"]}});
        let config = json!({"eos_token": {"content": "</s>"}, "add_bos_token": true, "chat_template": "x",
            "added_tokens_decoder": {"3": {"content": "</s>", "special": true}}});
        let files = format!("{vocab}\0#version: 0.2\na b\n");
        [whole.to_string(), config.to_string(), files].map(String::into_bytes)
    }

    fn all(bytes: &[u8]) {
        for target in [
            fuzz_gguf,
            fuzz_safetensors,
            fuzz_index,
            fuzz_config,
            fuzz_generation,
            fuzz_tokenizer,
            fuzz_tokenizer_config,
            fuzz_gpt2,
            fuzz_template,
        ] {
            target(bytes);
        }
    }

    fn template() -> Vec<u8> {
        let source = "{% for m in messages[::-1] %}{% if loop.first and m.role == 'user' %}<|{{ m['role']|upper }}|>\n\
                      {{ m.content.strip()|tojson(indent=2) }}{% endif %}{% endfor %}{{ strftime_now('%d') }}";
        source.as_bytes().to_vec()
    }

    fn seeds() -> Vec<Vec<u8>> {
        let files = vec![gguf(), gguf_of_merges(), tensors(), template(), generation()];
        [files, gguf_of_variants().into(), texts().into(), tokenizers().into()].concat()
    }

    /// Seeds that are refused at once would find nothing.
    #[test]
    fn seeds_are_sound() {
        let source = String::from_utf8(template()).expect("UTF-8");
        let messages = [json!({"role": "user", "content": "x"})];
        let conversation = Conversation { messages: &messages, ..Conversation::default() };
        assert!(ChatTemplate::new(&source).and_then(|own| own.render(&conversation)).is_ok());
        let [whole, config, files] = tokenizers();
        let named = TokenizerConfig::parse(&config).expect("sound");
        assert!(Tokenizer::from_hf(&whole, &named).is_ok());
        let at = files.iter().position(|b| *b == 0).expect("two files");
        assert!(Tokenizer::from_gpt2(&files[..at], &files[at + 1..], &TokenizerConfig::default()).is_ok());
        for seed in [gguf(), gguf_of_merges()] {
            let header = parse_gguf(&seed[..], seed.len() as u64, "seed").expect("sound");
            let vocab = Gguf::without_data(header).take_vocab().expect("sound").expect("there");
            assert!(Tokenizer::from_gguf(vocab).is_ok());
        }
        for seed in gguf_of_variants() {
            let header = parse_gguf(&seed[..], seed.len() as u64, "seed").expect("sound");
            assert!(Gguf::without_data(header).spec().is_ok());
        }
        for config in &texts()[..5] {
            let text = std::str::from_utf8(config).expect("UTF-8");
            parse_config(text, "seed").expect("sound");
        }
        let generation = String::from_utf8(generation()).expect("UTF-8");
        assert!(parse_generation(&generation, "seed").is_ok_and(|read| read.overrides.top_k.is_some()));
    }

    #[test]
    fn truncated_at_every_byte() {
        for seed in seeds() {
            (0..=seed.len()).for_each(|length| all(&seed[..length]));
        }
    }

    #[test]
    fn extreme_numbers_at_every_byte() {
        let extremes = [0, u64::MAX, u64::MAX >> 1, u64::from(u32::MAX), 1 << 40];
        for seed in [vec![gguf(), tensors()], gguf_of_variants().into()].concat() {
            for (at, extreme) in (0..seed.len().saturating_sub(8)).flat_map(|at| extremes.map(|e| (at, e))) {
                for width in [4, 8] {
                    let mut damaged = seed.clone();
                    damaged[at..at + width].copy_from_slice(&extreme.to_le_bytes()[..width]);
                    all(&damaged);
                }
            }
        }
    }

    #[test]
    fn extreme_values_of_every_field() {
        let values = [
            json!(null),
            json!(0),
            json!(-1),
            json!(1e308),
            json!(1e-308),
            json!(u64::MAX),
            json!(1 << 24),
            json!(""),
            json!([]),
            json!({}),
            json!(true),
            json!(["a", 1]),
            json!([[[]]]),
        ];
        for text in &texts()[..5] {
            let sound: serde_json::Value = serde_json::from_slice(text).expect("JSON");
            let outer: Vec<String> = sound.as_object().expect("an object").keys().cloned().collect();
            let inner = [
                "factor",
                "original_max_position_embeddings",
                "rope_type",
                "type",
                "beta_fast",
                "mscale",
                "short_factor",
            ];
            for value in &values {
                for name in &outer {
                    let mut damaged = sound.clone();
                    damaged[name] = value.clone();
                    fuzz_config(damaged.to_string().as_bytes());
                }
                for name in inner {
                    let mut damaged = sound.clone();
                    damaged["rope_scaling"][name] = value.clone();
                    fuzz_config(damaged.to_string().as_bytes());
                }
            }
        }
    }

    /// A change somewhere: (place, kind, byte).
    fn mutate(bytes: &mut Vec<u8>, (at, kind, byte): (usize, u8, u8)) {
        let at = at % bytes.len().max(1);
        match kind % 5 {
            0 if at < bytes.len() => bytes[at] ^= 1 << (byte % 8),
            1 if at < bytes.len() => bytes[at] = byte,
            2 => bytes.insert(at, byte),
            3 if at < bytes.len() => drop(bytes.remove(at)),
            4 => {
                let stretch: Vec<u8> = bytes[at..].iter().copied().take(usize::from(byte)).collect();
                bytes.splice(at..at, stretch);
            }
            _ => {}
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn mutated(which in 0..seeds().len(), changes in prop::collection::vec((any::<usize>(), any::<u8>(), any::<u8>()), 1..8)) {
            let mut bytes = seeds().swap_remove(which);
            changes.into_iter().for_each(|change| mutate(&mut bytes, change));
            all(&bytes);
        }

        #[test]
        fn arbitrary(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            all(&bytes);
            all(&[b"GGUF\x03\0\0\0", bytes.as_slice()].concat());
        }
    }
}
