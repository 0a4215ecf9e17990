//! The vocabulary and chat template that a GGUF file carries, as plain data.

use super::Texts;

/// The types of tokens that are text, and of those that are not.
pub(super) const NORMAL: i32 = 1;
const CONTROL: i32 = 3;

/// Names of tokens that end a text, a turn or a file, as llama.cpp knows them.
const ENDS: [&str; 30] = [
    "</s>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<EOT>",
    "_<EOT>",
    "<end_of_utterance>",
    "[EOT]",
    "[EOS]",
    "<｜end▁of▁sentence｜>",
    "<eos>",
    // What separates files and repositories, and fills, where a model completes code.
    "<|fim_pad|>",
    "<fim-pad>",
    "<fim_pad>",
    "<PAD>",
    "[PAD]",
    "<|fim_repo|>",
    "<|repo_name|>",
    "<fim-repo>",
    "<REPO>",
    "<reponame>",
    "<|file_sep|>",
];

/// Whether a token of this type ends a text, a turn or a file.
pub(super) fn is_end(token: &str, kind: i32) -> bool {
    ENDS.contains(&token) && (kind == CONTROL || is_no_text(token))
}

/// Whether it is one of a model's marks, whatever type a file gives it: `</s>` may well be text, of HTML; nobody writes
/// `<|im_end|>`.
fn is_no_text(token: &str) -> bool {
    token.starts_with("<|") || token.starts_with("<｜") || token == "<end_of_turn>"
}

/// `tokenizer.*` of a GGUF file. Lists that are present have the length of `tokens`, `merges` apart.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GgufVocab {
    /// Kind of tokenizer: `gpt2` is byte-level BPE, `llama` is SentencePiece.
    pub model: String,
    /// Name of the pre-tokenizer's rules (`llama-bpe`, `qwen2`, `smollm`, ...).
    pub pre: Option<String>,
    /// Text of each token, by id.
    pub tokens: Texts,
    /// Score of each token (SentencePiece).
    pub scores: Option<Vec<f32>>,
    /// Type of each token: 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte.
    pub token_types: Option<Vec<i32>>,
    /// Merges of BPE, best first, each two tokens around a space.
    pub merges: Option<Texts>,
    /// Token that begins a text.
    pub bos: Option<u32>,
    /// Token that ends a text.
    pub eos: Option<u32>,
    /// Token that ends a turn, where it is another than `eos`.
    pub eot: Option<u32>,
    /// Token for what cannot be encoded.
    pub unk: Option<u32>,
    /// Token that fills a batch.
    pub pad: Option<u32>,
    /// Whether a text begins with `bos`.
    pub add_bos: Option<bool>,
    /// Whether a text ends with `eos`.
    pub add_eos: Option<bool>,
    /// Whether a space goes before the text (SentencePiece).
    pub add_space_prefix: Option<bool>,
    /// Whether tokens that stand for themselves take the white space behind them along, but for a few (Phi 3).
    pub strips_right: bool,
    /// Chat templates in Jinja, by name; `default` is the usual one.
    pub chat_templates: Vec<(String, String)>,
}

impl GgufVocab {
    /// Makes its special tokens what llama.cpp takes for them ([`special`]).
    pub(crate) fn settle_special(&mut self) {
        let ids = [
            ("bos", &mut self.bos),
            ("eos", &mut self.eos),
            ("eot", &mut self.eot),
            ("unknown", &mut self.unk),
            ("padding", &mut self.pad),
        ];
        for (name, id) in ids {
            *id = special(name, *id, &self.model, self.tokens.len());
        }
        self.settle_ends();
    }

    /// Ends that a file has as text or as its author's, or says nothing of, are as special as others.
    fn settle_ends(&mut self) {
        let kinds = self.token_types.get_or_insert_with(|| vec![NORMAL; self.tokens.len()]);
        for (token, kind) in self.tokens.iter().zip(kinds) {
            if *kind != CONTROL && is_end(token, *kind) {
                *kind = CONTROL;
            }
        }
    }
}

/// The special token behind `tokenizer.ggml.<name>_token_id`. As in llama.cpp, a number that no token has counts for nothing,
/// and SentencePiece (`llama`) has usual ones.
pub(super) fn special(name: &str, named: Option<u32>, model: &str, tokens: usize) -> Option<u32> {
    let usual = match (model, name) {
        ("llama", "unknown") => Some(0),
        ("llama", "bos") => Some(1),
        ("llama", "eos") => Some(2),
        _ => None,
    };
    [named, usual].into_iter().flatten().find(|id| (*id as usize) < tokens)
}
