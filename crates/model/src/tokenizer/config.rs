//! `tokenizer_config.json` and `special_tokens_map.json`: which tokens are special, and which are added.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use tokenizers::AddedToken;

use super::TokenizerError;

/// What `tokenizer_config.json` says about text; everything may be absent.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct TokenizerConfig {
    /// Put `bos_token` before every text, where no `tokenizer.json` says what is put there: as transformers 5 has it, the flag
    /// says nothing beside one.
    #[serde(default)]
    pub add_bos_token: Option<bool>,
    /// The same for `eos_token` after every text.
    #[serde(default)]
    pub add_eos_token: Option<bool>,
    /// Begin of sequence.
    #[serde(default)]
    pub bos_token: Option<TokenText>,
    /// End of sequence.
    #[serde(default)]
    pub eos_token: Option<TokenText>,
    /// Padding.
    #[serde(default)]
    pub pad_token: Option<TokenText>,
    /// Unknown text.
    #[serde(default)]
    pub unk_token: Option<TokenText>,
    /// Further special tokens, as transformers 4 names them.
    #[serde(default)]
    pub additional_special_tokens: Option<TokenTexts>,
    /// Further special tokens, as transformers 5 names them.
    #[serde(default)]
    pub extra_special_tokens: Option<TokenTexts>,
    /// One template, or a list of named ones.
    #[serde(default)]
    pub chat_template: Option<TemplateField>,
    /// Tokens beside the vocabulary, by id.
    #[serde(default)]
    pub added_tokens_decoder: Option<BTreeMap<String, AddedTokenConfig>>,
    /// transformers' class, for vocabularies of which no `tokenizer.json` says how text is cut.
    #[serde(default)]
    pub tokenizer_class: Option<String>,
}

/// A special token: its text, or an object that holds it.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum TokenText {
    /// `"<s>"`
    Text(String),
    /// `{"content": "<s>", ...}`
    Object {
        /// The text.
        content: String,
    },
}

impl TokenText {
    /// The token's text.
    pub fn as_str(&self) -> &str {
        match self {
            TokenText::Text(content) | TokenText::Object { content } => content,
        }
    }
}

/// Special tokens in their two published forms.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum TokenTexts {
    /// `["<|im_start|>", "<|im_end|>"]`
    List(Vec<TokenText>),
    /// `{"image_token": "<image>"}`
    Named(BTreeMap<String, TokenText>),
}

impl TokenTexts {
    /// The tokens.
    pub fn iter(&self) -> Box<dyn Iterator<Item = &TokenText> + '_> {
        match self {
            TokenTexts::List(tokens) => Box::new(tokens.iter()),
            TokenTexts::Named(tokens) => Box::new(tokens.values()),
        }
    }
}

/// `chat_template` in its two published forms.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum TemplateField {
    /// One template.
    One(String),
    /// Several, by name; `default` is the usual one and `tool_use` the one for tools.
    Named(Vec<NamedTemplate>),
    /// The same as a map.
    Map(BTreeMap<String, String>),
}

/// A template with a name.
#[derive(Clone, Debug, Deserialize)]
pub struct NamedTemplate {
    /// `default`, `tool_use`, `rag` ...
    pub name: String,
    /// Jinja source.
    pub template: String,
}

/// An entry of `added_tokens_decoder`.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct AddedTokenConfig {
    /// The token's text.
    pub content: String,
    /// Skipped in text that is shown.
    #[serde(default)]
    pub special: bool,
    /// Takes white space on its left.
    #[serde(default)]
    pub lstrip: bool,
    /// Takes white space on its right.
    #[serde(default)]
    pub rstrip: bool,
    /// Matched in normalised text (absent: unless it is special).
    #[serde(default)]
    pub normalized: Option<bool>,
    /// Matched only as a whole word.
    #[serde(default)]
    pub single_word: bool,
}

impl TokenizerConfig {
    /// Every token that is said to be special by its text, and whether that is so even of one that the vocabulary has added
    /// otherwise: of those that have a name here, and not of those in a list.
    pub(super) fn special(&self) -> impl Iterator<Item = (&str, bool)> {
        let named = [&self.bos_token, &self.eos_token, &self.pad_token, &self.unk_token];
        let named = named.into_iter().flatten().map(|token| (token, true));
        let lists = [&self.additional_special_tokens, &self.extra_special_tokens].into_iter().flatten();
        let listed =
            lists.flat_map(|texts| texts.iter().map(|token| (token, matches!(texts, TokenTexts::Named(_)))));
        named.chain(listed).map(|(token, always)| (token.as_str(), always))
    }

    /// Parses `tokenizer_config.json`.
    pub fn parse(json: &[u8]) -> Result<Self, TokenizerError> {
        serde_json::from_slice(json).map_err(|e| TokenizerError::malformed("tokenizer_config.json", e))
    }

    /// Takes what `special_tokens_map.json` says, which wins; as in transformers 5 it says nothing beside `added_tokens_decoder`.
    pub fn take_special_tokens_map(&mut self, json: &[u8]) -> Result<(), TokenizerError> {
        let map: TokenizerConfig = serde_json::from_slice(json)
            .map_err(|e| TokenizerError::malformed("special_tokens_map.json", e))?;
        if self.added_tokens_decoder.is_some() {
            return Ok(());
        }
        let won = |own: &mut Option<TokenText>, theirs: Option<TokenText>| *own = theirs.or(own.take());
        won(&mut self.bos_token, map.bos_token);
        won(&mut self.eos_token, map.eos_token);
        won(&mut self.pad_token, map.pad_token);
        won(&mut self.unk_token, map.unk_token);
        self.additional_special_tokens =
            map.additional_special_tokens.or(self.additional_special_tokens.take());
        self.extra_special_tokens = match (self.extra_special_tokens.take(), map.extra_special_tokens) {
            (Some(TokenTexts::List(own)), Some(TokenTexts::List(theirs))) => {
                Some(TokenTexts::List([own, theirs].concat()))
            }
            (own, theirs) => theirs.or(own),
        };
        Ok(())
    }

    /// Takes the ids of `added_tokens.json`, which older folders have instead of `added_tokens_decoder`.
    pub fn take_added_tokens(&mut self, json: &[u8]) -> Result<(), TokenizerError> {
        let ids: BTreeMap<String, u32> =
            serde_json::from_slice(json).map_err(|e| TokenizerError::malformed("added_tokens.json", e))?;
        if self.added_tokens_decoder.is_none() {
            let special: BTreeSet<String> = self.special().map(|(text, _)| text.to_owned()).collect();
            let token = |content: String| AddedTokenConfig {
                special: special.contains(&content),
                content,
                ..AddedTokenConfig::default()
            };
            let added = ids.into_iter().map(|(content, id)| (id.to_string(), token(content))).collect();
            self.added_tokens_decoder = Some(added);
        }
        Ok(())
    }
}

impl AddedTokenConfig {
    pub(super) fn to_added(&self) -> AddedToken {
        AddedToken::from(self.content.clone(), self.special)
            .lstrip(self.lstrip)
            .rstrip(self.rstrip)
            .normalized(self.normalized.unwrap_or(!self.special))
            .single_word(self.single_word)
    }
}
