//! What the lines of a job need, as far as they tell before a tokenizer reads them.

use std::collections::BTreeMap;

use engine::job::{Input, JobError, Limits, Line, Shard};
use engine::{Expected, counted};
use model::api::{Context, Generate, VALUE_BYTES, values};

use crate::plan::{Ends, Work};
use crate::resolve::kv_tokens;

/// Tokens of an answer, where lines set no limit.
const ANSWER_TOKENS: usize = 256;
/// The same for KV: answers that grow beyond it make others wait.
const OPEN_TOKENS: usize = 4 * ANSWER_TOKENS;
/// Names of fields that are shown.
const SHOWN: usize = 8;
/// Tokens by which a prompt may differ from what it has here: templates may write the day that the job began.
const DATE_TOKENS: usize = 16;

/// The lines of a job.
pub(super) struct Lines {
    /// Of each line that is a request; the others are answered with errors.
    needs: Vec<Option<Need>>,
    /// The longest sequence that there may be.
    max: usize,
    /// Fields that nobody knows, and in how many lines each is.
    unknown: BTreeMap<String, usize>,
    /// Bytes of the line that takes most while it is read.
    largest: usize,
}

/// One line's.
struct Need {
    /// Tokens of its longest prompt.
    prompt: usize,
    sequences: usize,
    /// The most tokens of each answer, if the line (or the model's publisher) sets a limit.
    limit: Option<usize>,
    /// Whether its prompts have log-probabilities.
    scored: bool,
}

impl Lines {
    /// Reads the lines as they will be read, against the longest sequence that there may be.
    ///
    /// # Errors
    /// The input cannot be read any more.
    pub(super) fn of(input: &Input, context: &Context) -> Result<Lines, JobError> {
        let (mut unknown, mut largest) = (BTreeMap::new(), 0);
        let mut need = |line: Line| {
            // Itself, texts in it, and values.
            largest = largest.max(2 * line.bytes.len() + values(&line.bytes) * VALUE_BYTES);
            let request = line.parse().ok()?.generate(context).ok()?;
            request.unknown_fields.iter().for_each(|name| *unknown.entry(name.clone()).or_default() += 1);
            Some(Need::of(&request, context))
        };
        let needs = input.lines().map(|line| Ok(need(line?))).collect::<Result<_, JobError>>()?;
        Ok(Lines { needs, max: context.context_len, unknown, largest })
    }

    /// The fields that nobody knows, if there are any: a misspelt one would change nothing, and nobody would notice.
    pub(super) fn ignored(&self) -> Option<String> {
        let name = |(name, lines): (&String, &usize)| format!("{name:.40} ({})", counted(*lines, "line"));
        let mut shown: Vec<String> = self.unknown.iter().take(SHOWN).map(name).collect();
        if self.unknown.len() > SHOWN {
            shown.push(format!("and {} more", self.unknown.len() - SHOWN));
        }
        (!shown.is_empty()).then(|| format!("fields that nobody knows are ignored: {}", shown.join(", ")))
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

    /// Bytes of what waits beside the engine, `most` of each kind: answers to be written, sequences that have not begun. `grammars`:
    /// those that are kept; lines in the engine may be held to as many others.
    pub(super) fn beside_bytes(&self, most: usize, grammars: usize) -> usize {
        let sequences = || self.requests().map(|need| need.sequences);
        let queued = most.min(engine::queue_bytes(sequences().sum(), 0) as usize + grammars);
        // One line is begun however large its answer is.
        let answers = most.max(Limits::answer_bytes(sequences().max().unwrap_or(0)));
        answers + queued + grammars
    }

    /// Bytes of what is known of the lines, of the one that is read and its values, and of prompts in the engine.
    pub(super) fn input_bytes(&self, input: &Input) -> usize {
        let prompts: usize = self.requests().map(|need| need.prompt.saturating_mul(need.sequences)).sum();
        let needs = self.needs.len() * size_of::<Option<Need>>();
        input.bytes() + needs + self.largest + Limits::prompt_bytes(prompts)
    }

    /// Whether any line asks what the model thinks of its prompt.
    pub(super) fn scores_prompts(&self) -> bool {
        self.requests().any(|need| need.scored)
    }

    /// The longest sequence, in tokens, with room to spare. It is that of all lines, whichever of them are this job's: shards
    /// of one input are answered alike.
    pub(super) fn longest(&self) -> usize {
        self.requests().map(|need| need.longest(self.max)).max().unwrap_or(1)
    }

    /// KV in tokens for so many sequences at once, or for all: those that are likely to need most, and the longest that may come.
    pub(super) fn kv_tokens(&self, sequences: usize) -> usize {
        let each = self.requests().map(|need| (need.likely(self.max), need.sequences));
        let likely = most(each, sequences).into_iter().map(|(tokens, count)| count * kv_tokens(1, tokens));
        let likely: usize = likely.sum();
        likely.max(kv_tokens(1, self.longest()))
    }

    /// What so many of the requests will ask for.
    pub(super) fn expected(&self, requests: usize) -> Expected {
        let tokens: usize = self.requests().map(|need| need.prompt).sum();
        let prompt = tokens / self.requests().count().max(1);
        let (mean, ends) = self.answers();
        Expected { requests, prompt, output: mean.filter(|_| ends == Ends::Known) }
    }

    /// The mean of what lines say that they generate at the most, if any does, and whether all do.
    fn answers(&self) -> (Option<usize>, Ends) {
        let limits = || self.requests().filter_map(|need| need.limit);
        let known = limits().count();
        let ends = if known == self.requests().count() { Ends::Known } else { Ends::Open };
        (limits().sum::<usize>().checked_div(known), ends)
    }

    /// The same for the planner: a line that does not say how much it generates may be as long as the settings allow.
    pub(super) fn work(&self, requests: usize) -> Work {
        let Expected { requests, prompt, .. } = self.expected(requests);
        let (mean, ends) = self.answers();
        Work::likely(requests, (prompt, mean.unwrap_or(ANSWER_TOKENS)), self.max, ends)
    }
}

/// The `sequences` that have most tokens of all: so many tokens, and how many have them, as in `each`. However many come, no more
/// are held than that.
fn most(each: impl Iterator<Item = (usize, usize)>, sequences: usize) -> BTreeMap<usize, usize> {
    let (mut most, mut held) = (BTreeMap::<usize, usize>::new(), 0);
    for (tokens, count) in each {
        let count = count.min(sequences);
        *most.entry(tokens).or_default() += count;
        held += count;
        while held > sequences
            && let Some(mut shortest) = most.first_entry()
        {
            let beyond = (held - sequences).min(*shortest.get());
            *shortest.get_mut() -= beyond;
            held -= beyond;
            if *shortest.get() == 0 {
                shortest.remove();
            }
        }
    }
    most
}

impl Need {
    fn of(request: &Generate, context: &Context) -> Need {
        let prompt = request.prompts.iter().map(Vec::len).max().unwrap_or(0);
        let answer = request.params.max_tokens.map(|tokens| tokens as usize);
        // Without a limit an answer may fill what the prompt leaves.
        let limit = answer.filter(|answer| prompt + answer < context.context_len);
        let scored = request.params.prompt_logprobs.is_some();
        Need { prompt, sequences: request.sequences(), limit, scored }
    }

    /// Tokens of its longest sequence.
    fn longest(&self, max: usize) -> usize {
        self.limit.map_or(max, |answer| (self.prompt + DATE_TOKENS + answer).min(max))
    }

    /// Tokens of one of its sequences, roughly.
    fn likely(&self, max: usize) -> usize {
        (self.prompt + self.limit.unwrap_or(OPEN_TOKENS)).min(max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::api::{OwnTemplates, Streaming};
    use model::sampling::GenerationConfig;
    use model::template::{ChatTemplate, SpecialTexts, WallClock};
    use model::tokenizer::{Tokenizer, TokenizerConfig};
    use serde_json::{Value, json};

    const CHATS: &str = "/v1/chat/completions";
    const COMPLETIONS: &str = "/v1/completions";

    /// Read by a tokenizer that makes a token of each word, and a template that adds one.
    fn read(input: &str, context_len: usize) -> Lines {
        let tokenizer = json!({
            "pre_tokenizer": {"type": "Whitespace"},
            "model": {"type": "WordLevel", "vocab": {"unknown": 0, "word": 1, "user": 2}, "unk_token": "unknown"},
        });
        let tokenizer = Tokenizer::from_hf(tokenizer.to_string().as_bytes(), &TokenizerConfig::default());
        let template =
            ChatTemplate::new("{% for m in messages %}{{ m.role }} {{ m.content }}{% endfor %}").unwrap();
        let context = Context {
            tokenizer: &tokenizer.unwrap(),
            template: Some(&template),
            tool_template: None,
            special: SpecialTexts::default(),
            generation: &GenerationConfig::default(),
            served: &["tiny".to_string()],
            vocab_size: 3,
            context_len,
            max_logprobs: 0,
            own_templates: OwnTemplates::Refused,
            thoughts: model::thoughts::Manner::default(),
            streaming: Streaming::Refused,
            now: WallClock::default(),
        };
        Lines::of(&Input::new(input.as_bytes().to_vec()), &context).expect("in memory")
    }

    fn line(body: &Value, url: &str) -> String {
        json!({"custom_id": "x", "method": "POST", "url": url, "body": body}).to_string()
    }

    fn lines(bodies: &[Value], url: &str) -> Lines {
        let text: Vec<String> = bodies.iter().map(|body| line(body, url)).collect();
        read(&text.join("\n"), 131_072)
    }

    /// 41 tokens.
    fn chat(fields: Value) -> Value {
        let mut body = json!({"messages": [{"role": "user", "content": "word ".repeat(40)}]});
        body.as_object_mut().expect("an object").extend(fields.as_object().expect("an object").clone());
        body
    }

    #[test]
    fn lines_need_the_tokens_that_they_have() {
        let short = lines(&vec![chat(json!({"max_tokens": 60})); 16], CHATS);
        let Expected { prompt, output, .. } = short.expected(16);
        assert_eq!((short.longest(), prompt, output), (41 + DATE_TOKENS + 60, 41, Some(60)));
        assert_eq!(short.kv_tokens(256), 16 * kv_tokens(1, 41 + 60));
        // A line that does not say how long its answer is may fill the context, alone.
        let open = lines(&vec![chat(json!({})); 16], CHATS);
        assert_eq!((open.longest(), open.kv_tokens(256)), (131_072, 131_072));
        let mixed = lines(&[chat(json!({"max_tokens": 60})), chat(json!({}))], CHATS);
        assert_eq!(mixed.expected(2).output, None, "nobody knows when the second ends");
        let full = lines(&[chat(json!({"max_tokens": 131_072 - 41}))], CHATS);
        assert_eq!(full.longest(), 131_072, "no more than there may be");
        let one = lines(&[chat(json!({"max_tokens": 60}))], CHATS);
        assert!(one.kv_tokens(256) >= one.longest(), "it runs, whatever the day is called");
    }

    #[test]
    fn every_sequence_at_once_has_its_own() {
        let many = |n: u64| lines(&[chat(json!({"max_tokens": 4000, "n": n}))], CHATS);
        assert!(many(8).kv_tokens(256) > 8 * 4000);
        assert!(many(8).kv_tokens(2) < 3 * 4100, "only two run at once");
        let prompts = json!({"prompt": vec!["a"; 300], "max_tokens": 4000});
        assert!(lines(&[prompts], COMPLETIONS).kv_tokens(256) > 256 * 4000);
        let ids = json!({"prompt": [1, 2, 2], "n": 128});
        assert_eq!(
            lines(&[ids], COMPLETIONS).kv_tokens(256),
            128 * kv_tokens(1, 3 + 16),
            "16, as OpenAI has it"
        );
    }

    #[test]
    fn of_many_sequences_no_more_are_held_than_run_at_once() {
        let each = || (0..5000).map(|i| (i * 7919 % 1009, 1 + i % 40));
        let mut plain: Vec<usize> =
            each().flat_map(|(tokens, count)| std::iter::repeat_n(tokens, count)).collect();
        plain.sort_unstable();
        for sequences in [1, 2, 256, 300_000] {
            let most = most(each(), sequences);
            assert!(most.len() <= sequences && most.values().all(|&count| count > 0), "{most:?}");
            let found: Vec<usize> =
                most.into_iter().flat_map(|(tokens, count)| std::iter::repeat_n(tokens, count)).collect();
            assert_eq!(found, plain[plain.len().saturating_sub(sequences)..]);
        }
        assert_eq!(most([(5, usize::MAX)].into_iter(), 3), BTreeMap::from([(5, 3)]));
    }

    #[test]
    fn what_waits_is_counted_as_far_as_there_is_that_much() {
        let some = lines(&vec![chat(json!({"n": 100})); 5], CHATS);
        let queued = engine::queue_bytes(500, 0) as usize;
        assert_eq!(some.beside_bytes(8 << 20, 0), (8 << 20) + queued);
        assert_eq!(some.beside_bytes(8 << 20, 1000), (8 << 20) + queued + 1000 + 1000);
        assert_eq!(some.beside_bytes(1 << 20, 1 << 20), 3 << 20);
        let large = json!({"prompt": vec!["a"; 1000], "n": 100});
        let answers = Limits::answer_bytes(100_000);
        assert_eq!(lines(&[large], COMPLETIONS).beside_bytes(8 << 20, 0), answers + (8 << 20));
    }

    #[test]
    fn lines_that_are_no_requests_need_nothing() {
        let broken = read("{\n[]", 8192);
        assert_eq!((broken.longest(), broken.kv_tokens(256)), (1, kv_tokens(1, 1)));
        let good = line(&json!({"prompt": "word"}), COMPLETIONS);
        let wrong = [
            "[".repeat(3 << 20),
            line(&json!({"prompt": "word", "max_tokens": -3}), COMPLETIONS),
            line(&json!({"prompt": "word", "max_tokens": 9000}), COMPLETIONS),
            line(&json!({"prompt": "word ".repeat(9000)}), COMPLETIONS),
            line(&json!({"prompt": "word", "model": "another"}), COMPLETIONS),
        ];
        let (alone, beside) = (read(&good, 8192), read(&format!("{good}\n{}", wrong.join("\n")), 8192));
        assert_eq!(
            (alone.expected(1).prompt, alone.longest()),
            (beside.expected(1).prompt, beside.longest())
        );
        let shards = [0, 1].map(|index| beside.count(Shard { index, of: 2 }));
        assert_eq!(shards, [1, 0], "the others are no requests");
    }
}
