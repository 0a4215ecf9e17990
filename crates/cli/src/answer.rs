//! An answer to one prompt: asked for, printed as it comes, and what it took.

use std::time::Instant;

use anyhow::{Result, bail};
use engine::{Engine, Event, Request, counted, memory, size};
use model::output::TextStream;
use model::sampling::{SamplingParams, TokenLogprobs};

use crate::console::{self, note, show};
use crate::interrupts::{Answer, Heard, Interrupts};
use crate::loaded::Text;
use crate::logprobs;

/// An answer that was asked for. It is generated whether somebody reads it or not; who drops it ends it.
pub(crate) struct Asked {
    answer: Answer,
    stream: TextStream,
    said: Said,
}

impl Asked {
    /// Hands a prompt in.
    pub(crate) fn new(
        engine: &Engine,
        text: &Text,
        ids: Vec<u32>,
        params: &SamplingParams,
        interrupts: &Interrupts,
    ) -> Result<Asked> {
        let stream =
            TextStream::new(text.tokenizer.clone(), params, &engine.spec().eos, usize::MAX).after(&ids);
        let said = Said::begun(ids.len());
        let request = Request { prompt: ids, params: params.clone(), seed: fresh_seed(), salt: 0 };
        Ok(Asked { answer: interrupts.submit(engine, request)?, stream, said })
    }

    /// Prints it as it comes, to its end or to an interrupt. `begun` is called with its first token.
    pub(crate) fn told(
        self,
        engine: &Engine,
        interrupts: &Interrupts,
        begun: &mut dyn FnMut() -> Result<()>,
    ) -> Result<Said> {
        let Asked { answer, mut stream, mut said } = self;
        for heard in interrupts.of(&answer) {
            let delta = match heard {
                Heard::Event(Event::Token(token)) => {
                    if said.first.is_none() {
                        begun()?;
                    }
                    said.tokens += 1;
                    said.first.get_or_insert(token.at);
                    said.last = token.at;
                    said.logprobs.extend(token.logprobs);
                    stream.push(token.id)
                }
                Heard::Event(Event::Finished(_)) => stream.abort(),
                Heard::Event(Event::Failed(why)) => bail!(why),
                Heard::Event(Event::Prompt(_, scores)) => {
                    said.prompt_logprobs.push(scores);
                    continue;
                }
                Heard::Event(Event::Began(_)) => continue,
                Heard::Interrupt => {
                    said.interrupted = true;
                    stream.abort()
                }
                // Before the last token: it is dead.
                Heard::End => {
                    engine.alive()?;
                    break;
                }
            };
            console::write_out(format_args!("{}", delta.text))?;
            said.text.push_str(&delta.text);
            if stream.is_finished() {
                break;
            }
        }
        Ok(said)
    }
}

/// An answer, and how long it took.
pub(crate) struct Said {
    pub(crate) text: String,
    prompt_tokens: usize,
    tokens: usize,
    /// Of the prompt's tokens from the second on, and of the answer's, where they were asked for.
    prompt_logprobs: Vec<TokenLogprobs>,
    logprobs: Vec<TokenLogprobs>,
    begun: Instant,
    first: Option<Instant>,
    last: Instant,
    /// By Ctrl-C, before its end.
    pub(crate) interrupted: bool,
}

impl Said {
    fn begun(prompt_tokens: usize) -> Said {
        let now = Instant::now();
        Said {
            text: String::new(),
            prompt_tokens,
            tokens: 0,
            prompt_logprobs: vec![],
            logprobs: vec![],
            begun: now,
            first: None,
            last: now,
            interrupted: false,
        }
    }

    /// Log-probabilities that were asked for. Those of the prompt are the same with each answer.
    pub(crate) fn probabilities(&self, text: &Text, of_prompt: bool) -> Result<()> {
        let prompt = ("the prompt", &self.prompt_logprobs);
        for (what, scores) in of_prompt.then_some(prompt).into_iter().chain([("the answer", &self.logprobs)])
        {
            if !scores.is_empty() {
                show!("\nlog-probabilities of {what}:\n{}", logprobs::table(&text.tokenizer, scores))?;
            }
        }
        Ok(())
    }

    /// Tokens of the conversation, this answer included.
    pub(crate) fn conversation_tokens(&self) -> usize {
        self.prompt_tokens + self.tokens
    }

    pub(crate) fn summary(&self, started: Instant, engine: &Engine) {
        note!("\n{}", self.times(started));
        let hold = engine.hold();
        note!(
            "peak memory {} of {} announced; weights {} and KV {} on the device, weights {} on the host, {} on disk",
            size(&memory::peak_resident_bytes()),
            size(&hold.total_bytes()),
            size(&hold.weight_bytes),
            size(&hold.kv_bytes),
            size(&hold.host_weight_bytes),
            size(&hold.disk_bytes)
        );
    }

    /// How much was read and said, and how fast.
    fn times(&self, started: Instant) -> String {
        let prompt = counted(self.prompt_tokens, "prompt token");
        let Some(first) = self.first else {
            return format!("{prompt}; the answer ended before its first");
        };
        let prefill = (first - self.begun).as_secs_f64();
        format!(
            "{prompt} ({:.0}/s), {} generated{}; first token {:.0} ms after the start of the process, \
             {:.0} ms after the prompt",
            self.prompt_tokens as f64 / prefill,
            self.tokens,
            self.rate(first),
            (first - started).as_secs_f64() * 1e3,
            prefill * 1e3,
        )
    }

    /// How fast tokens came after the first, if any did.
    fn rate(&self, first: Instant) -> String {
        match self.tokens {
            0 | 1 => String::new(),
            n => format!(" ({:.1}/s)", (n - 1) as f64 / (self.last - first).as_secs_f64()),
        }
    }
}

/// For sampling without `--seed`.
fn fresh_seed() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |now| now.as_nanos() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_that_was_ended_before_its_first_token_has_no_rates() {
        let said = Said::begun(5);
        assert_eq!(said.times(said.begun), "5 prompt tokens; the answer ended before its first");
    }
}
