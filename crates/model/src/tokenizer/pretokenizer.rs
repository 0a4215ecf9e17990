//! How text is cut into words before byte-pair merges, by the name that GGUF files give to the way
//! (`tokenizer.ggml.pre`). A GGUF file holds the name only; the patterns are those of the models'
//! own tokenizer.json.

use serde_json::{Value, json};

use super::TokenizerError;

const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const GPT_2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Digits are cut in threes before.
const MINICPM5: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const GPT_4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const SEED_CODER: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Letters of scripts with upper and lower case.
const DEEPSEEK_LETTERS: &str = r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+";
const DEEPSEEK_V3: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##;
/// Han, Hangul, and what lies between.
const EAST_ASIAN: &str = r"[一-龥ࠀ-一가-퟿]+";

const SUPPORTED: &str = "default, gpt-2, phi-2, olmo, jais, mpt, mellum, trillion, a.x-4.0, granite-docling, exaone4, llama-bpe, llama3, llama-v3, \
     falcon3, pixtral, midm-2.0, smaug-bpe, dbrx, chatglm-bpe, glm4, qwen2, deepseek-r1-qwen, kormo, f2llmv2, megrez, stablelm2, minicpm5, viking, smollm, starcoder, refact, command-r, codeshell, \
     minerva-7b, tekken, gpt-4o, llama4, seed-coder, deepseek-llm, deepseek-coder, deepseek-v3";

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
            "gpt-2" | "phi-2" | "olmo" | "jais" | "mpt" | "gpt2" | "mellum" | "trillion" | "a.x-4.0"
            | "granite-docling" | "exaone4" => plain(gpt2()),
            "default" => plain(default()),
            "smollm" | "starcoder" | "refact" | "command-r" | "codeshell" | "minerva-7b" => {
                plain(sequence(vec![digits(), gpt2()]))
            }
            "llama-bpe" | "llama3" | "llama-v3" | "falcon3" | "pixtral" | "midm-2.0" => {
                PreTokenizer { ignore_merges: true, add_bos: true, ..plain(pattern(LLAMA3)) }
            }
            "smaug-bpe" | "dbrx" | "chatglm-bpe" => plain(pattern(LLAMA3)),
            "glm4" => PreTokenizer { ignore_merges: true, ..plain(pattern(LLAMA3)) },
            "qwen2" | "deepseek-r1-qwen" | "kormo" | "f2llmv2" => {
                PreTokenizer { normalizer: Some(json!({"type": "NFC"})), ..plain(pattern(QWEN2)) }
            }
            "minicpm5" => {
                let words = [isolate(r"\p{N}{1,3}"), isolate(MINICPM5), byte_level(false)];
                PreTokenizer { ignore_merges: true, ..plain(sequence(words.into())) }
            }
            "viking" => {
                let words = [isolate(r" ?[^(\s|.,!?…。，、।۔،)]+"), isolate(r"\p{N}"), byte_level(false)];
                plain(sequence(words.into()))
            }
            "megrez" | "stablelm2" => plain(pattern(QWEN2)),
            "gpt-4o" | "llama4" => plain(pattern(GPT_4O)),
            "seed-coder" => plain(pattern(SEED_CODER)),
            "deepseek-llm" => plain(deepseek_llm()),
            "deepseek-coder" => plain(deepseek_coder()),
            "deepseek-v3" => plain(deepseek_v3()),
            "tekken" => PreTokenizer { ignore_merges: true, add_bos: true, ..plain(pattern(TEKKEN)) },
            other => {
                return Err(TokenizerError::Unsupported {
                    what: "GGUF pre-tokenizer",
                    found: other.to_owned(),
                    supported: SUPPORTED.to_owned(),
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

/// llama.cpp's fall-back for files that name no pre-tokenizer: punctuation apart, and digits in threes.
fn default() -> Value {
    let words = [r"[\p{P}\$\+<=>\^~\|]+", GPT_2, r"\p{N}+", "[0-9][0-9][0-9]"].map(isolate);
    sequence(words.into_iter().chain([byte_level(false)]).collect())
}

fn digits() -> Value {
    json!({"type": "Digits", "individual_digits": true})
}

fn deepseek_llm() -> Value {
    let punctuation = isolate(r"\s?[!-/:-~！-／：-～‘-‟　-。]+");
    let words =
        [isolate("[\r\n]"), isolate(DEEPSEEK_LETTERS), punctuation, isolate(r"\s+$"), isolate(EAST_ASIAN)];
    sequence(words.into_iter().chain([digits(), byte_level(false)]).collect())
}

fn deepseek_coder() -> Value {
    let words = [isolate("[\r\n]"), isolate(r"\s?\p{L}+"), isolate(r"\s?\p{P}+"), isolate(EAST_ASIAN)];
    sequence(words.into_iter().chain([digits(), byte_level(false)]).collect())
}

fn deepseek_v3() -> Value {
    let words = [isolate(r"\p{N}{1,3}"), isolate("[一-龥\u{3040}-ゟ゠-ヿ]+"), isolate(DEEPSEEK_V3)];
    sequence(words.into_iter().chain([byte_level(false)]).collect())
}

fn sequence(pretokenizers: Vec<Value>) -> Value {
    json!({"type": "Sequence", "pretokenizers": pretokenizers})
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenizers::tokenizer::{OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer as _};

    /// The words of a text.
    fn cut<'a>(name: &str, text: &'a str) -> Vec<&'a str> {
        let steps = PreTokenizer::named(name).expect("known").steps;
        let steps: tokenizers::PreTokenizerWrapper = serde_json::from_value(steps).expect("sound");
        let mut words = PreTokenizedString::from(text);
        steps.pre_tokenize(&mut words).expect("cut");
        let splits = words.get_splits(OffsetReferential::Original, OffsetType::Byte);
        splits.into_iter().map(|(_, (from, to), _)| &text[from..to]).collect()
    }

    #[track_caller]
    fn check(names: &[&str], text: &str, words: &[&str]) {
        names.iter().for_each(|name| assert_eq!(cut(name, text), words, "{name}"));
    }

    const TEXT: &str = "It'S 12345 x+=y;\n  Ünï 你好";

    #[test]
    fn digits_in_threes() {
        let llama = ["It", "'S", " ", "123", "45", " x", "+=", "y", ";\n", " ", " Ünï", " 你好"];
        check(&["llama-bpe", "falcon3", "pixtral", "midm-2.0", "dbrx", "glm4", "chatglm-bpe"], TEXT, &llama);
        let gpt_4o = ["It'S", " ", "123", "45", " x", "+=", "y", ";\n", " ", " Ünï", " 你好"];
        check(&["gpt-4o", "llama4"], TEXT, &gpt_4o);
        let deepseek = ["It", "'S", " ", "123", "45", " x", "+=", "y", ";\n", " ", " Ünï", " ", "你好"];
        check(&["deepseek-v3"], TEXT, &deepseek);
    }

    #[test]
    fn digits_one_by_one() {
        let qwen = ["It", "'S", " ", "1", "2", "3", "4", "5", " x", "+=", "y", ";\n", " ", " Ünï", " 你好"];
        check(&["qwen2", "kormo", "f2llmv2", "megrez"], TEXT, &qwen);
        let seed =
            ["It", "'S", " ", "1", "2", "3", "4", "5", " x", "+=", "y", ";", "\n", " ", " Ünï", " 你好"];
        check(&["seed-coder"], TEXT, &seed);
        let llm = [
            "It", "'", "S", " ", "1", "2", "3", "4", "5", " x", "+=", "y", ";", "\n", " ", " Ü", "n", "ï",
            " ", "你好",
        ];
        // What it takes for punctuation, `:-~`, holds the Latin letters too.
        check(&["deepseek-llm"], TEXT, &llm);
        let coder = [
            "It", "'", "S", " ", "1", "2", "3", "4", "5", " x", "+=", "y", ";", "\n", " ", " Ünï", " ",
            "你好",
        ];
        check(&["deepseek-coder"], TEXT, &coder);
        let smollm =
            ["It", "'", "S", " ", "1", "2", "3", "4", "5", " x", "+=", "y", ";", "\n ", " Ünï", " 你好"];
        check(&["smollm", "minerva-7b"], TEXT, &smollm);
    }

    #[test]
    fn digits_in_a_row() {
        let gpt = ["It", "'", "S", " 12345", " x", "+=", "y", ";", "\n ", " Ünï", " 你好"];
        check(&["gpt-2", "mellum", "trillion", "a.x-4.0", "granite-docling", "exaone4"], TEXT, &gpt);
    }

    #[test]
    fn digits_behind_spaces() {
        let default = ["It", "'", "S", " ", "123", "45", " x", "+=", "y", ";", "\n ", " Ünï", " 你好"];
        check(&["default"], TEXT, &default);
        // Words come first: a number takes one space along, and its digits are cut after that; those of other scripts never.
        check(&["default"], "   3. २०२४", &["  ", " ", "3", ".", " ", "२०२४"]);
        let minicpm = ["It", "'S", " ", "123", "45", " x", "+=", "y", ";\n", " ", " Ünï", " 你好"];
        check(&["minicpm5"], TEXT, &minicpm);
        let viking = ["It'S", " ", "1", "2", "3", "4", "5", " x+=y;", "\n ", " Ünï", " 你好"];
        check(&["viking"], TEXT, &viking);
    }

    #[test]
    fn symbols_and_spaces_of_deepseek() {
        check(&["deepseek-llm"], "a  \n+ 한！b", &["a", "  ", "\n", "+", " ", "한", "！", "b"]);
        check(&["deepseek-coder"], "a  \n+ 한！b", &["a", "  ", "\n", "+", " ", "한", "！", "b"]);
        check(&["deepseek-v3"], "f(x, §y) カナ+1", &["f", "(x", ",", " §", "y", ")", " ", "カナ", "+", "1"]);
    }

    #[test]
    fn every_name_that_is_said_to_be_supported_is() {
        SUPPORTED.split(", ").for_each(|name| assert!(!cut(name.trim(), "a b").is_empty(), "{name}"));
        assert!(PreTokenizer::named("martian").is_err());
    }
}
