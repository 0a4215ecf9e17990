//! A loaded model that says how probable the tokens of a text are.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use engine::{Engine, Event, Request, Ticket, counted, kv_token_bytes, memory};
use model::decoder::{Along, Rounding, WeightsAs};
use model::sampling::{SamplingParams, TokenLogprobs};
use model::tokenizer::{Special, Tokenizer};
use serde::Serialize;

use crate::args::{EvalArgs, RoundAlong, typed};
use crate::console::{EXIT_CTRL_C, note};
use crate::display::{Progress, Unit, Voice};
use crate::lanes::LanesFile;
use crate::loaded;
use crate::output_file::apart;
use crate::resolve::{Needs, engine_config};
use crate::stop::Stop;
use crate::wanted::{Loaded, Wanted};

/// Texts that are scored at once.
const AT_ONCE: usize = 8;
/// How often a wait for a score looks whether somebody wants the end.
const TICK: Duration = Duration::from_millis(100);

/// A model and its tokenizer.
pub(super) struct Scorer {
    engine: Engine,
    lanes: LanesFile,
    pub(super) tokenizer: std::sync::Arc<Tokenizer>,
    /// The longest text that there is room for, and the token after it, in tokens.
    pub(super) longest: usize,
    subject: Subject,
    record: Option<PathBuf>,
    stop: Stop,
    began: Instant,
}

/// What is known when all is scored, or what was by the time that somebody stopped it.
pub(super) struct Ended {
    pub(super) subject: Subject,
    pub(super) seconds: f64,
    pub(super) peak_rss_bytes: u64,
    pub(super) exit: ExitCode,
}

/// What was evaluated, for the report.
#[derive(Clone, Serialize)]
pub(super) struct Subject {
    model: String,
    /// As `--weights` has it, or the grid of `--round-weights`.
    weights: String,
    /// What its matrices are held as.
    formats: String,
    threads: usize,
    isa: String,
    /// As `--activations` has it.
    activations: String,
    /// What keys and values are stored as.
    kv: &'static str,
    /// The share of keys that count, where not all do.
    sparse_attention: Option<f32>,
    weight_bytes: u64,
    kv_bytes_per_token: u64,
    /// Somebody stopped it before all was scored.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    interrupted: bool,
}

impl Scorer {
    /// Loads a model with room for [`AT_ONCE`] texts of so many tokens, one that follows included: of the most, or else as
    /// many as it can read.
    ///
    /// # Errors
    /// A model that cannot read the least.
    pub(super) fn load(args: &EvalArgs, lengths: RangeInclusive<usize>) -> Result<Scorer> {
        apart([args.json.as_deref(), args.lanes.path(), args.engine.record.as_deref()])?;
        let lanes = args.lanes.open()?;
        args.engine.note_conversations();
        let mut opened = loaded::open(Some(&args.model), &args.engine, Voice::Normal)?;
        let positions = opened.checkpoint.spec().max_positions;
        let room = args.engine.max_model_len.map_or(positions, |most| most.min(positions));
        if room < *lengths.start() {
            let instead = match positions {
                long if long < *lengths.start() => {
                    "this model reads no longer ones (a window is as long as --context)"
                }
                _ => "raise --max-model-len (a window is as long as --context)",
            };
            bail!(
                "texts of {} tokens, the one that follows included, are more than there is room for, {room}: {instead}",
                lengths.start()
            );
        }
        let longest = room.min(*lengths.end());
        let needs = Needs {
            seqs: AT_ONCE,
            longest: Some(longest),
            kv_tokens: Some(AT_ONCE * (longest + 1).next_multiple_of(kernels::attention::BLOCK_TOKENS)),
            step_tokens: None,
            expected: None,
        };
        let mut config = lanes.wanted(engine_config(&args.engine, needs)?);
        config.scores_prompts = true;
        let mut rounded = None;
        if let Some(bits) = args.round_weights {
            let (along, axis) = match args.round_along {
                RoundAlong::Inputs => (Along::Inputs, "inputs"),
                RoundAlong::Outputs => (Along::Outputs, "outputs"),
            };
            config.weights = WeightsAs::Rounded(Rounding { bits, along });
            rounded = Some(format!("{bits} bits in groups of 64 {axis}, embeddings and head as they are"));
        }
        let (threads, isa) = (config.threads, config.isa.to_string());
        let kv_bytes_per_token = kv_token_bytes(opened.checkpoint.spec(), &config);
        let tokenizer = opened.text(None)?.tokenizer;
        let wanted = Wanted { opened: &opened, config, args: &args.engine, work: None, voice: Voice::Normal };
        let Loaded { engine, weights, formats, .. } = wanted.load(wanted.plan()?.planned)?;
        let weights = rounded.unwrap_or_else(|| typed(args.engine.weights.as_kept(weights)));
        let hold = engine.hold();
        let weight_bytes = hold.weight_bytes;
        let (model, kv) = (opened.name.clone(), args.engine.kv_name());
        let sparse_attention = args.engine.sparse_attention;
        let activations = typed(args.engine.activations);
        let subject = Subject {
            model,
            weights,
            formats,
            activations,
            kv,
            sparse_attention,
            threads,
            isa,
            weight_bytes,
            kv_bytes_per_token,
            interrupted: false,
        };
        let (record, stop) = (args.engine.record.clone(), Stop::heard()?);
        Ok(Scorer { engine, lanes, tokenizer, longest, subject, record, stop, began: Instant::now() })
    }

    /// Tokens of a text, with what the model wants before one.
    pub(super) fn encode(&self, text: &str) -> Result<Vec<u32>> {
        Ok(self.tokenizer.encode(text, Special::With)?)
    }

    /// How probable each token of each text is after those before it: for `[t0, t1, .. tn]` those of `t1..=tn`. Of the first texts
    /// alone where somebody stops it.
    pub(super) fn score(&self, texts: &[Vec<u32>]) -> Result<Vec<Vec<TokenLogprobs>>> {
        let progress = Progress::new("scoring", texts.len() as u64, Unit::Items, Voice::Normal);
        let mut scores = Vec::with_capacity(texts.len());
        'all: for some in texts.chunks(AT_ONCE) {
            let tickets: Vec<Ticket> = some.iter().map(|t| self.submit(t)).collect::<Result<_>>()?;
            for (ticket, text) in tickets.iter().zip(some) {
                let Some(score) = self.collect(ticket, text.len())? else { break 'all };
                scores.push(score);
            }
            progress.set(scores.len() as u64);
        }
        progress.end();
        if scores.len() < texts.len() {
            note!(
                "interrupted: {} of {} had been scored by then",
                scores.len(),
                counted(texts.len(), "text")
            );
        }
        Ok(scores)
    }

    fn submit(&self, tokens: &[u32]) -> Result<Ticket> {
        let params = SamplingParams {
            max_tokens: Some(1),
            ignore_eos: true,
            prompt_logprobs: Some(0),
            ..SamplingParams::greedy()
        };
        Ok(self.engine.submit(Request { prompt: tokens.to_vec(), params, seed: 0, salt: 0 })?)
    }

    /// Scores of a text, or nothing where somebody wants the end before that.
    fn collect(&self, ticket: &Ticket, tokens: usize) -> Result<Option<Vec<TokenLogprobs>>> {
        let mut scores = Vec::with_capacity(tokens);
        loop {
            match ticket.events.recv_timeout(TICK) {
                _ if self.stop.is_wanted() => return Ok(None),
                Ok(Event::Prompt(_, logprobs)) => scores.push(logprobs),
                Ok(Event::Began(_) | Event::Token(_)) | Err(RecvTimeoutError::Timeout) => {}
                Ok(Event::Finished(_)) | Err(RecvTimeoutError::Disconnected) => break,
                Ok(Event::Failed(why)) => bail!(why),
            }
        }
        if scores.len() + 1 != tokens {
            bail!("the engine scored {} of {} tokens: it ended early", scores.len(), tokens - 1);
        }
        Ok(Some(scores))
    }

    /// Ends the engine and writes its lanes; `interrupted`: not all was scored.
    pub(super) fn finish(self, interrupted: bool) -> Result<Ended> {
        let seconds = self.began.elapsed().as_secs_f64();
        let exit = if interrupted {
            self.lanes.end_soon(self.engine, self.record.as_deref())?;
            ExitCode::from(EXIT_CTRL_C)
        } else {
            self.lanes.end(self.engine)?;
            ExitCode::SUCCESS
        };
        let subject = Subject { interrupted, ..self.subject };
        Ok(Ended { subject, seconds, peak_rss_bytes: memory::peak_resident_bytes(), exit })
    }
}
