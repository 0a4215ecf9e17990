//! What the lines of a job need, as far as they tell before a tokenizer reads them.

use engine::Expected;
use engine::job::{Input, Line, Shard};
use model::api::{BatchLine, Endpoint};
use serde_json::Value;

use crate::plan::{Ends, Work};
use crate::resolve::kv_tokens;

/// Bytes of text that make a token, roughly.
const BYTES_A_TOKEN: usize = 4;
/// Tokens that a chat template may add to a line's own bytes, of which each is a token at the most.
const TEMPLATE_TOKENS: usize = 1024;
/// Tokens of an answer, where lines set no limit.
const ANSWER_TOKENS: usize = 256;
/// The same for KV: answers that grow beyond it make others wait.
const OPEN_TOKENS: usize = 4 * ANSWER_TOKENS;
/// Tokens of a completion without a limit, as OpenAI has it.
const COMPLETION_TOKENS: usize = 16;

/// The lines of a job.
pub(super) struct Lines {
    /// Of each line that is a request; the others are answered with errors, however long they are.
    needs: Vec<Option<Need>>,
    /// The longest sequence that there may be.
    max: usize,
}

/// One line's.
struct Need {
    bytes: usize,
    /// Sequences, and those of them that have a prompt of their own.
    sequences: usize,
    prompts: usize,
    /// The most tokens of each answer, if that is known.
    limit: Option<usize>,
}

impl Lines {
    /// Reads the lines. `max`: the longest sequence that there may be; `default`: the model's own limit of answers.
    pub(super) fn of(input: &Input, max: usize, default: Option<u32>) -> Lines {
        let need = |line: Line| Some(Need::of(line.bytes.len(), &line.parse().ok()?, default));
        Lines { needs: input.lines().map(need).collect(), max }
    }

    fn requests(&self) -> impl Iterator<Item = &Need> {
        self.needs.iter().flatten()
    }

    /// How many requests a shard has.
    pub(super) fn count(&self, shard: Shard) -> usize {
        self.needs
            .iter()
            .enumerate()
            .filter(|(position, need)| need.is_some() && shard.owns(*position))
            .count()
    }

    /// The longest sequence, in tokens, with room to spare. It is that of all lines, whichever of them are this job's: shards
    /// of one input are answered alike.
    pub(super) fn longest(&self) -> usize {
        let asked = self.requests().filter(|need| need.sequences > 0);
        asked.map(|need| need.longest(self.max)).max().unwrap_or(1)
    }

    /// KV in tokens for so many sequences at once, or for all: those that are likely to need most, and the longest that may come.
    pub(super) fn kv_tokens(&self, sequences: usize) -> usize {
        let each = self
            .requests()
            .flat_map(|need| std::iter::repeat_n(need.likely(self.max), need.sequences.min(sequences)));
        let mut each: Vec<usize> = each.collect();
        each.sort_unstable_by(|a, b| b.cmp(a));
        let likely: usize = each.iter().take(sequences).map(|&tokens| kv_tokens(1, tokens)).sum();
        likely.max(kv_tokens(1, self.longest()))
    }

    /// What so many of the requests will ask for.
    pub(super) fn expected(&self, requests: usize) -> Expected {
        let bytes: usize = self.requests().map(|need| need.bytes).sum();
        let prompt = bytes / self.requests().count().max(1) / BYTES_A_TOKEN;
        Expected { requests, prompt, output: None }
    }

    /// The same for the planner: a line that does not say how much it generates may be as long as the settings allow.
    pub(super) fn work(&self, requests: usize) -> Work {
        let Expected { requests, prompt, .. } = self.expected(requests);
        let limits = || self.requests().filter_map(|need| need.limit);
        let known = limits().count();
        let mean = limits().sum::<usize>().checked_div(known).unwrap_or(ANSWER_TOKENS);
        let ends = if known == self.requests().count() { Ends::Known } else { Ends::Open };
        Work::likely(requests, (prompt, mean), self.max, ends)
    }
}

impl Need {
    fn of(bytes: usize, line: &BatchLine, default: Option<u32>) -> Need {
        let count = |field: &str| line.body.get(field).and_then(Value::as_u64).map(|n| n as usize);
        let prompts = match line.body.get("prompt") {
            Some(Value::Array(list)) if !list.first().is_some_and(Value::is_number) => list.len(),
            _ => 1,
        };
        let usual = (line.endpoint == Endpoint::Completions).then_some(COMPLETION_TOKENS);
        let limit = count("max_completion_tokens").or_else(|| count("max_tokens"));
        Need {
            bytes,
            sequences: prompts.saturating_mul(count("n").unwrap_or(1)),
            prompts,
            limit: limit.or(default.map(|n| n as usize)).or(usual),
        }
    }

    /// Tokens of its longest sequence: a byte of text is a token at the most.
    fn longest(&self, max: usize) -> usize {
        let answer = self.limit.unwrap_or(max);
        self.bytes.saturating_add(TEMPLATE_TOKENS).saturating_add(answer).min(max)
    }

    /// Tokens of one of its sequences, roughly.
    fn likely(&self, max: usize) -> usize {
        let prompt = self.bytes / BYTES_A_TOKEN / self.prompts.max(1);
        prompt.saturating_add(self.limit.unwrap_or(OPEN_TOKENS)).min(max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn lines(bodies: &[Value], url: &str) -> Lines {
        let line = |body| json!({"custom_id": "x", "method": "POST", "url": url, "body": body}).to_string();
        let text: Vec<String> = bodies.iter().map(line).collect();
        Lines::of(&Input::new(text.join("\n").into_bytes()), 131_072, None)
    }

    fn chat(fields: Value) -> Value {
        let mut body = json!({"messages": [{"role": "user", "content": "word ".repeat(40)}]});
        body.as_object_mut().expect("an object").extend(fields.as_object().expect("an object").clone());
        body
    }

    #[test]
    fn short_lines_need_little_of_a_long_context() {
        let short = lines(&vec![chat(json!({"max_tokens": 60})); 16], "/v1/chat/completions");
        assert!(short.longest() < 2048, "{}", short.longest());
        assert!(short.kv_tokens(256) < 16 * 256, "{}", short.kv_tokens(256));
        // A line that does not say how long its answer is may fill the context, alone.
        let open = lines(&vec![chat(json!({})); 16], "/v1/chat/completions");
        assert_eq!((open.longest(), open.kv_tokens(256)), (131_072, 131_072));
        let one = lines(&[chat(json!({"max_tokens": 60}))], "/v1/chat/completions");
        assert!(one.kv_tokens(256) >= one.longest(), "it runs, however wrong the guess");
    }

    #[test]
    fn every_sequence_at_once_has_its_own() {
        let many = |n: u64| lines(&[chat(json!({"max_tokens": 4000, "n": n}))], "/v1/chat/completions");
        assert!(many(8).kv_tokens(256) > 8 * 4000);
        assert!(many(8).kv_tokens(2) < 3 * 4100, "only two run at once");
        let prompts = json!({"prompt": vec!["a"; 300], "max_tokens": 4000});
        assert!(lines(&[prompts], "/v1/completions").kv_tokens(256) > 256 * 4000);
        let ids = json!({"prompt": [1, 2, 3], "n": u64::MAX});
        assert!(
            lines(&[ids], "/v1/completions").kv_tokens(256) <= 256 * 64,
            "16 tokens each, as OpenAI has it"
        );
    }

    #[test]
    fn lines_that_are_no_requests_need_nothing() {
        let broken = Lines::of(&Input::new(b"{\n[]".to_vec()), 131_072, None);
        assert!(broken.longest() == 1 && broken.kv_tokens(256) <= 64);
        let one =
            json!({"custom_id": "x", "method": "POST", "url": "/v1/completions", "body": {"prompt": "sea"}});
        let among =
            |others: &str| Lines::of(&Input::new(format!("{one}\n{others}").into_bytes()), 8192, None);
        let (alone, beside) = (among(""), among(&"[".repeat(3 << 20)));
        assert_eq!(
            (alone.expected(1).prompt, alone.longest()),
            (beside.expected(1).prompt, beside.longest())
        );
        let shards = [0, 1].map(|index| beside.count(Shard { index, of: 2 }));
        assert_eq!(shards, [1, 0], "the second line is no request");
    }
}
