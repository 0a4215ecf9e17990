//! What is told without cutting a text up.

use super::*;

#[test]
fn no_text_has_fewer_tokens_than_its_length_tells() {
    let texts = [
        " ".repeat(4000),
        "a".repeat(4000),
        "\u{1100}\u{1161}\u{11a8}".repeat(500),
        "\u{0}\n\t".repeat(900),
        "\u{2581}".repeat(900),
    ];
    let fixtures = FIXTURES.iter().map(|text| serde_json::from_str::<Value>(text).unwrap());
    let both = |fixture: Value| {
        let tokenizers = [from_hf(&fixture), Tokenizer::from_gguf(gguf_vocab(&fixture["gguf"])).unwrap()];
        tokenizers.map(|tokenizer| (fixture.clone(), tokenizer))
    };
    for (fixture, tokenizer) in fixtures.flat_map(both) {
        let longest =
            (0..tokenizer.vocab_size() as u32).map(|id| tokenizer.token_bytes(id).len()).max().unwrap();
        for text in &texts {
            let (least, found) =
                (tokenizer.least_tokens(text), tokenizer.encode(text, Special::Without).unwrap().len());
            assert!(least <= found, "{}: {least} of {found}", fixture["gguf"]["pre"]);
            assert!(least >= text.len() / (12 * longest), "{}: it is told", fixture["gguf"]["pre"]);
        }
    }
    // Of a byte of no text nothing need be known, of one of all of them it must.
    for (byte, told) in [("ÿ", true), ("ı", false)] {
        let mut hf = fixture("smollm")["hf"].clone();
        let vocab = hf["model"]["vocab"].as_object_mut().unwrap();
        assert!(vocab.remove(byte).is_some());
        let merges = hf["model"]["merges"].as_array_mut().unwrap();
        merges.retain(|merge| !merge.to_string().contains(byte));
        let tokenizer =
            Tokenizer::from_hf(&serde_json::to_vec(&hf).unwrap(), &TokenizerConfig::default()).unwrap();
        assert_eq!(tokenizer.least_tokens(&texts[0]) > 0, told, "{byte}");
    }
    // Where something may be dropped it is not.
    for (rule, value) in [
        ("normalizer", json!({"type": "Strip", "strip_left": true, "strip_right": true})),
        ("pre_tokenizer", json!({"type": "WhitespaceSplit"})),
    ] {
        let mut hf = fixture("smollm")["hf"].clone();
        hf[rule] = value;
        let tokenizer =
            Tokenizer::from_hf(&serde_json::to_vec(&hf).unwrap(), &TokenizerConfig::default()).unwrap();
        assert_eq!(tokenizer.least_tokens(&texts[0]), 0, "{rule}");
    }
}

#[test]
fn what_a_folder_has_instead_of_a_tokenizer_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let why = || Tokenizer::from_dir(folder.path()).map(drop).unwrap_err().to_string();
    assert!(!why().contains("is not read"), "{}", why());
    for name in ["tokenizer.model", "tekken.json"] {
        crate::testing::write(folder.path(), name, "{}");
        assert!(why().contains(&format!("its {name}, ")), "{}", why());
    }
}
