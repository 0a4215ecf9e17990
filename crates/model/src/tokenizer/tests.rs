//! Against Hugging Face's own results (scripts/tokenizer_fixtures.py), and against hostile files.

mod folders;
mod length;
mod marks;

use serde_json::{Value, json};

use super::*;
use crate::gguf::GgufVocab;

const FIXTURES: [&str; 6] = [
    include_str!("../../tests/fixtures/tokenizer/gpt-2.json"),
    include_str!("../../tests/fixtures/tokenizer/smollm.json"),
    include_str!("../../tests/fixtures/tokenizer/llama-bpe.json"),
    include_str!("../../tests/fixtures/tokenizer/qwen2.json"),
    include_str!("../../tests/fixtures/tokenizer/tekken.json"),
    include_str!("../../tests/fixtures/tokenizer/llama.json"),
];

fn fixture(name: &str) -> Value {
    let parsed = FIXTURES.iter().map(|f| serde_json::from_str::<Value>(f).unwrap());
    let named = |f: &Value| f["gguf"]["pre"] == name || f["gguf"]["model"] == name;
    parsed.into_iter().find(|f| named(f)).unwrap()
}

fn strings(value: &Value) -> Vec<String> {
    let strings = value.as_array().into_iter().flatten();
    strings.map(|v| v.as_str().unwrap().to_owned()).collect()
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as u32).collect()
}

fn gguf_vocab(g: &Value) -> GgufVocab {
    let id = |key: &str| g[key].as_u64().map(|id| id as u32);
    let numbers = |key: &str| g[key].as_array().into_iter().flatten();
    GgufVocab {
        model: g["model"].as_str().unwrap().to_owned(),
        pre: g["pre"].as_str().map(str::to_owned),
        tokens: strings(&g["tokens"]).into_iter().collect(),
        scores: Some(numbers("scores").map(|v| v.as_f64().unwrap() as f32).collect()),
        token_types: Some(numbers("kinds").map(|v| v.as_i64().unwrap() as i32).collect()),
        merges: Some(strings(&g["merges"]).into_iter().collect()),
        bos: id("bos"),
        eos: id("eos"),
        unk: id("unk"),
        add_bos: g["add_bos"].as_bool(),
        ..GgufVocab::default()
    }
}

fn from_hf(fixture: &Value) -> Tokenizer {
    let json = serde_json::to_vec(&fixture["hf"]).unwrap();
    Tokenizer::from_hf(&json, &TokenizerConfig::default()).unwrap()
}

fn small(name: &str) -> Tokenizer {
    from_hf(&fixture(name))
}

fn assert_cases(tokenizer: &Tokenizer, cases: &Value, with_special: bool) {
    for case in cases.as_array().unwrap() {
        let text = case["text"].as_str().unwrap();
        assert_eq!(tokenizer.encode(text, Special::Without).unwrap(), ids(&case["ids"]), "{text:?}");
        let special = ids(&case["with_special"]);
        if with_special {
            assert_eq!(tokenizer.encode(text, Special::With).unwrap(), special, "{text:?}");
        }
        assert_eq!(tokenizer.decode(&special, Special::With), case["decoded"], "{text:?}");
        assert_eq!(tokenizer.decode(&special, Special::Without), case["skipped"], "{text:?}");
    }
}

#[test]
fn tokenizer_json_agrees_with_hugging_face() {
    for text in FIXTURES {
        let fixture: Value = serde_json::from_str(text).unwrap();
        assert_cases(&from_hf(&fixture), &fixture["cases"], true);
    }
}

#[test]
fn gguf_vocabularies_agree_with_hugging_face() {
    for text in FIXTURES {
        let fixture: Value = serde_json::from_str(text).unwrap();
        let tokenizer = Tokenizer::from_gguf(gguf_vocab(&fixture["gguf"])).unwrap();
        assert_cases(&tokenizer, &fixture["cases"], true);
    }
}

#[test]
fn streams_equal_full_decode_and_never_split_a_character() {
    for name in ["smollm", "llama"] {
        let tokenizer = small(name);
        let n = tokenizer.vocab_size() as u64;
        let mut seed = 7u64;
        for special in [Special::With, Special::Without] {
            for _ in 0..200 {
                let mut next = || {
                    seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    ((seed >> 33) % n) as u32
                };
                let ids: Vec<u32> = (0..40).map(|_| next()).collect();
                assert_eq!(streamed(&tokenizer, &ids, special), tokenizer.decode(&ids, special));
            }
        }
    }
}

fn streamed(tokenizer: &Tokenizer, ids: &[u32], special: Special) -> String {
    let mut stream = tokenizer.detokenizer(special);
    let mut all = String::new();
    for &id in ids {
        stream.push(tokenizer, id, &mut all);
    }
    stream.finish(tokenizer, &mut all);
    all
}

#[test]
fn a_character_appears_with_its_last_byte() {
    let tokenizer = small("llama");
    let bytes = ["<0xF0>", "<0x9F>", "<0x91>", "<0x8D>"].map(|t| tokenizer.id_of(t).unwrap());
    let mut stream = tokenizer.detokenizer(Special::Without);
    let deltas = bytes.map(|id| {
        let mut delta = String::new();
        stream.push(&tokenizer, id, &mut delta);
        delta
    });
    assert_eq!(deltas, ["", "", "", "👍"]);
    let mut rest = String::new();
    stream.push(&tokenizer, bytes[0], &mut rest);
    stream.push(&tokenizer, bytes[1], &mut rest);
    stream.finish(&tokenizer, &mut rest);
    assert_eq!(rest, "\u{fffd}\u{fffd}", "byte fallback shows every broken byte");
}

#[test]
fn tokens_have_bytes_even_where_they_have_no_text() {
    let tokenizer = small("smollm");
    let ids = tokenizer.encode("👍", Special::Without).unwrap();
    assert!(ids.len() > 1);
    let bytes: Vec<u8> = ids.iter().flat_map(|&id| tokenizer.token_bytes(id)).copied().collect();
    assert_eq!(bytes, "👍".as_bytes());
    assert_eq!(tokenizer.token_text(tokenizer.id_of("Ġ").unwrap()), " ");
    assert_eq!(tokenizer.token_bytes(u32::MAX), b"");
}

#[test]
fn the_post_processor_decides_what_is_put_around_a_text() {
    let fixture = fixture("llama-bpe");
    let json = serde_json::to_vec(&fixture["hf"]).unwrap();
    let encode = |config: Value| {
        let config = TokenizerConfig::parse(config.to_string().as_bytes()).unwrap();
        let tokenizer = Tokenizer::from_hf(&json, &config).unwrap();
        tokenizer.encode("a", Special::With).unwrap()
    };
    let a = small("llama-bpe").encode("a", Special::Without).unwrap()[0];
    assert_eq!(encode(json!({})), [0, a], "as the post-processor does");
    // transformers 5 lets go of these flags where there is a tokenizer.json.
    assert_eq!(encode(json!({"add_bos_token": false})), [0, a]);
    assert_eq!(encode(json!({"add_bos_token": true})), [0, a]);
    let object = json!({"content": "<|im_end|>", "lstrip": false});
    assert_eq!(encode(json!({"add_eos_token": true, "eos_token": object})), [0, a]);
}

#[test]
fn further_special_tokens_are_skipped() {
    let mut hf = fixture("smollm")["hf"].clone();
    // Words of the vocabulary that nobody has added yet.
    hf["added_tokens"] = json!([]);
    let json = serde_json::to_vec(&hf).unwrap();
    let shown = |config: &TokenizerConfig| {
        let tokenizer = Tokenizer::from_hf(&json, config).unwrap();
        let ids = tokenizer.encode("<|im_start|>a<|im_end|>", Special::Without).unwrap();
        assert_eq!(tokenizer.vocab_size(), small("smollm").vocab_size(), "no token is made up");
        tokenizer.decode(&ids, Special::Without)
    };
    let config = |json: Value| TokenizerConfig::parse(json.to_string().as_bytes()).unwrap();
    let list = json!(["<|im_end|>", {"content": "<|im_start|>", "lstrip": false}, "<not in the vocabulary>"]);
    assert_eq!(shown(&TokenizerConfig::default()), "<|im_start|>a<|im_end|>");
    assert_eq!(shown(&config(json!({"additional_special_tokens": list}))), "a");
    assert_eq!(
        shown(&config(json!({"extra_special_tokens": {"turn_token": "<|im_end|>"}}))),
        "<|im_start|>a"
    );
    let mut filled = config(json!({"extra_special_tokens": []}));
    filled
        .take_special_tokens_map(json!({"additional_special_tokens": list}).to_string().as_bytes())
        .unwrap();
    assert_eq!(shown(&filled), "a");
}

#[test]
fn ids_may_have_gaps() {
    let whole = small("smollm");
    let n = whole.vocab_size() as u32;
    let last = whole.token(n - 1).unwrap();
    let mut hf = fixture("smollm")["hf"].clone();
    hf["model"]["vocab"][&last] = json!(n + 4);
    let json = serde_json::to_vec(&hf).unwrap();
    let tokenizer = Tokenizer::from_hf(&json, &TokenizerConfig::default()).unwrap();
    assert_eq!(tokenizer.vocab_size() as u32, n + 5);
    assert_eq!((tokenizer.token(n - 1), tokenizer.token(n + 4)), (None, Some(last)));
    assert_eq!(tokenizer.token_bytes(n + 4), whole.token_bytes(n - 1));
}

#[test]
fn fields_that_are_null_are_absent() {
    let config = TokenizerConfig::parse(br#"{"added_tokens_decoder": null, "bos_token": null}"#).unwrap();
    assert!(config.added_tokens_decoder.is_none() && config.bos_token.is_none());
}

#[test]
fn long_runs_are_encoded_in_linear_work() {
    // Quadratic work on these would be 10^10 steps and more: the test would not end.
    let tokens = |name: &str, text: &str| small(name).encode(text, Special::Without).unwrap();
    for name in ["gpt-2", "llama-bpe", "llama"] {
        for unit in [" ", "a", "7", " \n"] {
            let text = unit.repeat(100_000 / unit.len());
            let ids = tokens(name, &text);
            assert_eq!(small(name).decode(&ids, Special::Without), text, "{name} {unit:?}");
        }
    }
}

#[test]
fn too_much_text_is_refused() {
    let tokenizer = small("llama-bpe");
    let spaces = " ".repeat(MAX_SPACE_RUN + 1);
    let refused = tokenizer.encode(&spaces, Special::Without).unwrap_err();
    assert!(matches!(refused, TokenizerError::LongRun { found, .. } if found == MAX_SPACE_RUN + 1));
    tokenizer.encode(&spaces[1..], Special::Without).unwrap();
    let long = "a ".repeat(MAX_TEXT_BYTES / 2 + 1);
    assert!(matches!(tokenizer.encode(&long, Special::Without), Err(TokenizerError::TooLong { .. })));
}

fn hf_error(json: &[u8]) -> String {
    Tokenizer::from_hf(json, &TokenizerConfig::default()).unwrap_err().to_string()
}

#[test]
fn malformed_tokenizer_json_is_an_error() {
    let whole = serde_json::to_vec(&fixture("smollm")["hf"]).unwrap();
    for cut in (0..whole.len()).step_by(997) {
        hf_error(&whole[..cut]);
    }
    hf_error(b"\xff\xfe");
    hf_error("[".repeat(100_000).as_bytes());
    hf_error(br#"{"model":{"type":"BPE","vocab":{},"merges":[]}}"#);
    let change = |path: &str, value: Value| {
        let mut json = fixture("smollm")["hf"].clone();
        *json.pointer_mut(path).unwrap() = value;
        hf_error(&serde_json::to_vec(&json).unwrap())
    };
    assert!(change("/model/vocab", json!({"a": 4_294_967_295u32})).contains("malformed"));
    assert!(change("/model/merges", json!([["nope", "nada"]])).contains("malformed"));
    assert!(
        change("/decoder", json!({"type": "WordPiece", "prefix": "##", "cleanup": true}))
            .contains("WordPiece")
    );
    change("/decoder", json!({"type": "Unheard"}));
    change(
        "/pre_tokenizer",
        json!({"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated", "invert": false}),
    );
    change("/normalizer", json!({"type": "Precompiled", "precompiled_charsmap": "AAAA"}));
    change("/model", json!({"type": "Unigram", "unk_id": 7, "vocab": [["a", 0.0]]}));
}

#[test]
fn malformed_gguf_vocabularies_are_errors() {
    let broken = |name: &str, change: &dyn Fn(&mut GgufVocab)| {
        let mut vocab = gguf_vocab(&fixture(name)["gguf"]);
        change(&mut vocab);
        Tokenizer::from_gguf(vocab).unwrap_err().to_string()
    };
    assert!(broken("smollm", &|v| v.pre = Some("martian".into())).contains("martian"));
    assert!(broken("smollm", &|v| v.model = "t5".into()).contains("t5"));
    assert!(broken("smollm", &|v| v.token_types.as_mut().unwrap().truncate(3)).contains("token_type"));
    assert!(broken("smollm", &|v| v.merges = None).contains("needs merges"));
    assert!(broken("smollm", &|v| v.merges.as_mut().unwrap().push("alone")).contains("not two tokens"));
    assert!(broken("smollm", &|v| v.merges.as_mut().unwrap().push("no such")).contains("malformed"));
    assert!(
        broken("smollm", &|v| *v = GgufVocab {
            model: "gpt2".into(),
            merges: Some([""; 0].into_iter().collect()),
            ..GgufVocab::default()
        })
        .contains("empty")
    );
    assert!(broken("llama", &|v| v.scores = None).contains("scores"));
}

/// Every one of these took minutes and gigabytes.
#[test]
fn vocabularies_that_would_take_minutes_are_refused() {
    let pieces = |tokens: Vec<String>| {
        let scores = Some(vec![0.0; tokens.len()]);
        let tokens = tokens.into_iter().collect();
        let vocab = GgufVocab { model: "llama".into(), tokens, scores, ..GgufVocab::default() };
        Tokenizer::from_gguf(vocab).map(|_| ()).map_err(|error| error.to_string())
    };
    let runs = |n: usize| (1..=n).map(|i| "a".repeat(i));
    // Texts that can be cut in many places, or are there many times, take no longer than others.
    pieces(runs(64).chain(std::iter::repeat_n("a".repeat(64), 10_000)).collect()).unwrap();
    let cuts = runs(120).flat_map(|a| {
        let b = format!("{a}b");
        let longer: Vec<String> = runs(120).map(|c| format!("{b}{c}")).collect();
        longer.into_iter().chain([a, b])
    });
    pieces(cuts.chain(runs(120).map(|b| format!("b{b}"))).collect()).unwrap();
    assert!(pieces(vec!["a".repeat(10_000)]).unwrap_err().contains("too long"));
    let long = (0..70_000).map(|i| format!("{i:01000}")).collect();
    assert!(pieces(long).unwrap_err().contains("too long"), "70 MB of words");
    let many = (0..=pieces::MAX_VOCAB).map(|i| i.to_string()).collect();
    assert!(pieces(many).unwrap_err().contains("tokens; at most"));
    let mut added = fixture("smollm")["hf"].clone();
    let token = |i: usize| {
        json!({"id": i, "content": format!("<{i}{}>", "x".repeat(1000)), "special": true,
        "single_word": false, "lstrip": false, "rstrip": false, "normalized": false})
    };
    added["added_tokens"] = (0..5_000).map(token).collect();
    assert!(hf_error(added.to_string().as_bytes()).contains("malformed added tokens"));
    let vocab: serde_json::Map<_, _> = (0..=pieces::MAX_VOCAB).map(|i| (i.to_string(), json!(i))).collect();
    let many = json!({"model": {"type": "BPE", "vocab": vocab, "merges": []}});
    assert!(hf_error(many.to_string().as_bytes()).contains("malformed vocabulary"));
}

#[test]
fn scores_that_are_not_numbers_do_not_panic() {
    let mut vocab = gguf_vocab(&fixture("llama")["gguf"]);
    vocab.scores.as_mut().unwrap().iter_mut().step_by(3).for_each(|s| *s = f32::NAN);
    let tokenizer = Tokenizer::from_gguf(vocab).unwrap();
    let ids = tokenizer.encode("any text", Special::Without).unwrap();
    assert_eq!(tokenizer.decode(&ids, Special::Without), "any text");
}

#[test]
fn an_answer_goes_on_where_its_prompt_ends() {
    for name in ["llama", "smollm"] {
        let tokenizer = small(name);
        let encode = |text: &str| tokenizer.encode(text, Special::Without).unwrap();
        let (prompt, answer) = (encode("the sea"), encode("the the"));
        let after = |begun: &[u32]| {
            let (mut stream, mut text) = (tokenizer.continuation(begun, Special::Without), String::new());
            answer.iter().for_each(|&id| stream.push(&tokenizer, id, &mut text));
            stream.finish(&tokenizer, &mut text);
            text
        };
        let whole = tokenizer.decode(&[&prompt[..], &answer].concat(), Special::Without);
        assert_eq!(tokenizer.decode(&prompt, Special::Without) + &after(&prompt), whole, "{name}");
        let begin: Vec<u32> = tokenizer.special_ids().bos.into_iter().collect();
        assert_eq!(after(&begin), tokenizer.decode(&answer, Special::Without), "{name}: nothing came before");
    }
}

/// llama.cpp reads such files, and has usual tokens for SentencePiece.
#[test]
fn special_tokens_of_gguf_that_no_token_is_are_absent_or_the_usual() {
    let ids = |name: &str, change: &dyn Fn(&mut GgufVocab)| {
        let mut vocab = gguf_vocab(&fixture(name)["gguf"]);
        change(&mut vocab);
        let tokenizer = Tokenizer::from_gguf(vocab).unwrap();
        (tokenizer.special_ids(), tokenizer.encode("a", Special::With).unwrap())
    };
    let (found, _) = ids("smollm", &|v| (v.bos, v.pad) = (Some(1 << 30), Some(u32::MAX)));
    assert_eq!(found, SpecialIds { eos: Some(2), ..SpecialIds::default() });
    let whole = ids("llama", &|_| ());
    assert_eq!(whole.0, SpecialIds { bos: Some(1), eos: Some(2), pad: None, unk: Some(0) });
    assert_eq!(ids("llama", &|v| (v.bos, v.eos, v.unk) = (None, None, None)), whole);
    let beyond = |v: &mut GgufVocab| (v.eos, v.pad) = (Some(v.tokens.len() as u32), Some(u32::MAX));
    assert_eq!(ids("llama", &beyond), whole);
}

#[test]
fn text_that_grows_with_every_step_is_refused() {
    let chain = |part: &str, steps: &str, step: &Value, n: usize| {
        let mut hf = fixture("smollm")["hf"].clone();
        hf[part] = json!({"type": "Sequence", steps: vec![step; n]});
        let json = hf.to_string();
        Tokenizer::from_hf(json.as_bytes(), &TokenizerConfig::default()).map_err(|e| e.to_string())
    };
    let refused = |part: &str, steps: &str, step: Value| {
        let why = chain(part, steps, &step, 12).unwrap_err();
        assert!(why.contains("times as long"), "{step}: {why}");
    };
    let doubled = json!({"type": "Replace", "pattern": {"String": "a"}, "content": "aa"});
    refused("normalizer", "normalizers", doubled.clone());
    chain("normalizer", "normalizers", &doubled, 2).unwrap();
    refused("decoder", "decoders", doubled.clone());
    chain("decoder", "decoders", &doubled, 2).unwrap();
    refused(
        "normalizer",
        "normalizers",
        json!({"type": "Replace", "pattern": {"Regex": "x*"}, "content": "y"}),
    );
    refused("normalizer", "normalizers", json!({"type": "Prepend", "prepend": "a"}));
    refused("normalizer", "normalizers", json!({"type": "ByteLevel"}));
    let bytes =
        json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": false});
    refused("pre_tokenizer", "pretokenizers", bytes);
    let long = json!({"type": "Replace", "pattern": {"String": "a"}, "content": "b".repeat(5_000)});
    assert!(chain("decoder", "decoders", &long, 1).unwrap_err().contains("times as long"));
    // There may be any number of those that do not.
    let shorter = json!({"type": "Replace", "pattern": {"String": "``"}, "content": "\""});
    chain("normalizer", "normalizers", &shorter, 40).unwrap();
}

/// A tokenizer_config.json that declares tokens.
fn declared(tokens: impl Iterator<Item = (usize, Value)>) -> TokenizerConfig {
    let tokens: serde_json::Map<_, _> = tokens.map(|(id, token)| (id.to_string(), token)).collect();
    TokenizerConfig::parse(json!({"added_tokens_decoder": tokens}).to_string().as_bytes()).unwrap()
}

#[test]
fn tokens_are_added_by_tokenizer_config_no_more_than_by_tokenizer_json() {
    let mut hf = fixture("smollm")["hf"].clone();
    let n = small("smollm").vocab_size();
    let long = |i: usize| format!("<{i}{}>", "x".repeat(1000));
    let refused = |hf: &Value, config: &TokenizerConfig| {
        let error = Tokenizer::from_hf(hf.to_string().as_bytes(), config).unwrap_err().to_string();
        assert!(error.contains("malformed added tokens"), "{error}");
    };
    refused(&hf, &declared((0..5_000).map(|i| (n + i, json!({"content": long(i)})))));
    (0..5_000).for_each(|i| hf["model"]["vocab"][long(i)] = json!(n + i));
    let named = json!({"additional_special_tokens": (0..5_000).map(long).collect::<Vec<_>>()});
    refused(&hf, &TokenizerConfig::parse(named.to_string().as_bytes()).unwrap());
}

#[test]
fn declared_tokens_do_not_take_the_ids_of_others() {
    let json = fixture("smollm")["hf"].to_string();
    let plain = small("smollm");
    let taken = (0..plain.vocab_size()).find(|&id| plain.token_bytes(id as u32) == b"a").unwrap();
    let config = declared([(taken, json!({"content": "<zz>"}))].into_iter());
    let tokenizer = Tokenizer::from_hf(json.as_bytes(), &config).unwrap();
    assert_eq!((tokenizer.vocab_size(), tokenizer.id_of("<zz>")), (plain.vocab_size(), None));
}

/// transformers adds every declared token once more.
#[test]
fn flags_of_declared_tokens_win_over_those_of_tokenizer_json() {
    let json = fixture("smollm")["hf"].to_string();
    let load = |id: usize, token: Value| {
        let config = declared([(id, token)].into_iter());
        Tokenizer::from_hf(json.as_bytes(), &config).unwrap()
    };
    let ids = |tokenizer: &Tokenizer| tokenizer.encode("a <|im_end|>", Special::Without).unwrap();
    let whole = ids(&small("smollm"));
    let strips = json!({"content": "<|im_end|>", "special": true, "lstrip": true});
    let stripped = ids(&load(2, strips.clone()));
    assert_eq!((stripped.len(), stripped.last()), (whole.len() - 1, Some(&2)), "{stripped:?} of {whole:?}");
    // The vocabulary is right about ids.
    for (id, token) in [(1, strips.clone()), (400, strips), (1, json!({"content": "<|other|>"}))] {
        let tokenizer = load(id, token);
        assert_eq!((ids(&tokenizer), tokenizer.vocab_size()), (whole.clone(), small("smollm").vocab_size()));
    }
}

/// As in transformers: a token with a name is special however it was added, and as it was added otherwise; one of a list is what
/// it was added as.
#[test]
fn special_tokens_are_as_they_were_added() {
    let mut hf = fixture("smollm")["hf"].clone();
    for token in hf["added_tokens"].as_array_mut().unwrap() {
        token["special"] = json!(false);
        token["lstrip"] = json!(token["content"] == "<|im_end|>");
    }
    let load = |config: Value| {
        let config = TokenizerConfig::parse(config.to_string().as_bytes()).unwrap();
        Tokenizer::from_hf(hf.to_string().as_bytes(), &config).unwrap()
    };
    let shown = |tokenizer: &Tokenizer| {
        let ids = tokenizer.encode("a <|im_end|>b", Special::Without).unwrap();
        tokenizer.decode(&ids, Special::Without)
    };
    assert_eq!(shown(&load(json!({"additional_special_tokens": ["<|im_end|>"]}))), "a<|im_end|>b");
    assert_eq!(shown(&load(json!({"extra_special_tokens": {"end": "<|im_end|>"}}))), "ab");
    assert_eq!(shown(&load(json!({"eos_token": "<|im_end|>"}))), "ab");
}
