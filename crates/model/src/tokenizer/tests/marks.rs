//! Tokens of GGUF files that stand for themselves.

use super::*;

/// As in llama.cpp, and in the tokenizer.json of such models.
#[test]
fn the_unknown_token_of_gguf_is_a_special_one() {
    let tokenizer = Tokenizer::from_gguf(gguf_vocab(&fixture("llama")["gguf"])).unwrap();
    let ids = tokenizer.encode("<unk>a", Special::Without).unwrap();
    assert_eq!(ids[0], 0);
    assert_eq!(tokenizer.decode(&ids, Special::Without), "a");
    assert_eq!(ids, small("llama").encode("<unk>a", Special::Without).unwrap());
}

/// As the tokenizer.json of Phi 3 says, and llama.cpp by the model's name: a turn's mark takes the line's end along.
#[test]
fn marks_of_phi_3_take_the_white_space_behind_them() {
    let ids = |strips_right, text: &str| {
        let vocab = GgufVocab { strips_right, ..gguf_vocab(&fixture("llama")["gguf"]) };
        Tokenizer::from_gguf(vocab).unwrap().encode(text, Special::Without).unwrap()
    };
    for mark in ["</s>", "<s>", "<unk>"] {
        let (bare, spaced) = (format!("{mark}a"), format!("{mark} \n a"));
        assert_eq!(ids(true, &bare), ids(false, &bare));
        assert_eq!(ids(true, &spaced) == ids(true, &bare), mark == "</s>", "{mark}");
        assert_ne!(ids(false, &spaced), ids(false, &bare), "{mark}");
    }
}

/// As llama.cpp has it of `<|im_end|>` and the like, whatever a file says.
#[test]
fn ends_of_gguf_are_special_whatever_their_type() {
    let ids = |change: &dyn Fn(&mut GgufVocab)| {
        let mut vocab = gguf_vocab(&fixture("smollm")["gguf"]);
        change(&mut vocab);
        let tokenizer = Tokenizer::from_gguf(vocab).unwrap();
        let ids = tokenizer.encode("a<|im_end|>", Special::Without).unwrap();
        (tokenizer.decode(&ids, Special::Without), ids)
    };
    let whole = ids(&|_| ());
    assert_eq!((whole.0.as_str(), whole.1.last()), ("a", Some(&2)));
    for kind in [1, 4] {
        assert_eq!(ids(&|vocab| vocab.token_types.as_mut().unwrap()[2] = kind), whole, "type {kind}");
    }
    assert_eq!(ids(&|vocab| vocab.token_types = None), whole);
}
