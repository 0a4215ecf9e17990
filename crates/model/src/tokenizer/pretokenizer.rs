//! How text is cut into words before byte-pair merges, by the name that GGUF files give to the way
//! (`tokenizer.ggml.pre`). A GGUF file holds the name only; the patterns are those of the models'
//! own tokenizer.json.

use serde_json::{Value, json};

use super::TokenizerError;

const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

const SUPPORTED: &str = "default, gpt-2, phi-2, olmo, jais, mpt, llama-bpe, llama3, llama-v3, smaug-bpe, dbrx, qwen2, \
     deepseek-r1-qwen, smollm, starcoder, refact, command-r, codeshell, tekken";

/// How a byte-pair vocabulary wants its text.
pub(super) struct PreTokenizer {
    /// As `pre_tokenizer` of tokenizer.json.
    pub(super) steps: Value,
    /// As `normalizer` of tokenizer.json.
    pub(super) normalizer: Option<Value>,
    /// A word that is a token as a whole is not merged.
    pub(super) ignore_merges: bool,
    /// Whether these models begin texts with bos where the file does not say.
    pub(super) add_bos: bool,
}

impl PreTokenizer {
    /// The pre-tokenizer that `tokenizer.ggml.pre` names.
    pub(super) fn named(name: &str) -> Result<Self, TokenizerError> {
        let plain = |steps| PreTokenizer { steps, normalizer: None, ignore_merges: false, add_bos: false };
        Ok(match name {
            "gpt-2" | "phi-2" | "olmo" | "jais" | "mpt" | "gpt2" => plain(gpt2()),
            "default" => plain(default()),
            "smollm" | "starcoder" | "refact" | "command-r" | "codeshell" => {
                plain(sequence(vec![json!({"type": "Digits", "individual_digits": true}), gpt2()]))
            }
            "llama-bpe" | "llama3" | "llama-v3" => {
                PreTokenizer { ignore_merges: true, add_bos: true, ..plain(pattern(LLAMA3)) }
            }
            "smaug-bpe" | "dbrx" => plain(pattern(LLAMA3)),
            "qwen2" | "deepseek-r1-qwen" => {
                PreTokenizer { normalizer: Some(json!({"type": "NFC"})), ..plain(pattern(QWEN2)) }
            }
            "tekken" => PreTokenizer { ignore_merges: true, add_bos: true, ..plain(pattern(TEKKEN)) },
            other => {
                return Err(TokenizerError::Unsupported {
                    what: "GGUF pre-tokenizer",
                    found: other.to_owned(),
                    supported: format!("{SUPPORTED} (or give the model's tokenizer.json)"),
                });
            }
        })
    }
}

/// Words as GPT-2 cuts them, then bytes.
pub(super) fn gpt2() -> Value {
    byte_level(true)
}

fn byte_level(use_regex: bool) -> Value {
    json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": use_regex})
}

fn pattern(regex: &str) -> Value {
    sequence(vec![isolate(regex), byte_level(false)])
}

fn isolate(regex: &str) -> Value {
    json!({"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": false})
}

/// llama.cpp's fall-back for files that name no pre-tokenizer: punctuation apart, digits in threes.
fn default() -> Value {
    sequence(vec![isolate(r"[\p{P}\$\+<=>\^~\|]+"), isolate(r"\p{N}{1,3}"), gpt2()])
}

fn sequence(pretokenizers: Vec<Value>) -> Value {
    json!({"type": "Sequence", "pretokenizers": pretokenizers})
}
