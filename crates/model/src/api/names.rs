//! Endpoints that are read as the chat that they mean: what is called otherwise there, and what of a chat means nothing here.

use serde_json::{Map, Value, json};

use super::ApiError;
use super::fields::Fields;

/// Fields by their names in a chat, and here.
pub(super) struct Names<const N: usize>(pub(super) [(&'static str, &'static str); N]);

/// Fields of chats that these endpoints show nothing of.
const SCORES: [&str; 5] =
    ["logprobs", "top_logprobs", "prompt_logprobs", "return_token_ids", "return_tokens_as_token_ids"];

impl<const N: usize> Names<N> {
    /// Refuses what clients of chats would send.
    pub(super) fn refuse_others(&self, fields: &mut Fields) -> Result<(), ApiError> {
        for (there, here) in self.0 {
            if fields.value(there).is_some() {
                let message = format!("{there} is a field of /v1/chat/completions; here it is {here}");
                return Err(ApiError::invalid(there, message));
            }
        }
        for name in SCORES {
            fields.refuse(name, &[json!(false), json!(0)], "this field of /v1/chat/completions")?;
        }
        fields.refuse("n", &[json!(1)], "more than one answer")
    }

    /// An error of the chat, in the words of its client. `tools`: where the parameters of each of the chat's functions stand.
    pub(super) fn told(&self, mut error: ApiError, tools: &[String]) -> ApiError {
        let here = |word: &str| self.0.iter().find(|(there, _)| *there == word).map(|(_, here)| *here);
        if let Some(there) = of_parameters(&error.message)
            && let Some(here) = tools.get(there.index)
        {
            error.message.replace_range(..there.len, here);
        }
        error.message = error.message.split_inclusive(|c: char| !is_of_word(c)).fold(
            String::with_capacity(error.message.len()),
            |out, piece| {
                let word = piece.trim_end_matches(|c: char| !is_of_word(c));
                out + here(word).unwrap_or(word) + &piece[word.len()..]
            },
        );
        error.param = error.param.map(|param| here(&param).map_or(param, str::to_owned));
        error
    }
}

/// Gives the chat a field, if there is one.
pub(super) fn put(chat: &mut Map<String, Value>, name: &str, value: Option<Value>) {
    if let Some(value) = value {
        chat.insert(name.to_owned(), value);
    }
}

fn is_of_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Where a message says that it is about a function's parameters.
struct Parameters {
    index: usize,
    len: usize,
}

fn of_parameters(message: &str) -> Option<Parameters> {
    let (index, rest) = message.strip_prefix("tools[")?.split_once(']')?;
    let rest = rest.strip_prefix(".function.parameters")?;
    Some(Parameters { index: index.parse().ok()?, len: message.len() - rest.len() })
}
