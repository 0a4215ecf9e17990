//! What `ballast bench serve` is told; names, defaults and meanings are those of `vllm bench serve`.

use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, ValueEnum};
use serde_json::Value;

use super::amounts::{any_count, whole_seconds};
use super::{at_least_one, positive};

#[derive(Args)]
pub(crate) struct BenchServeArgs {
    #[command(flatten)]
    pub(crate) server: TargetArgs,
    #[command(flatten)]
    pub(crate) traffic: TrafficArgs,
    #[command(flatten)]
    pub(crate) dataset: DatasetArgs,
    #[command(flatten)]
    pub(crate) body: BodyArgs,
    #[command(flatten)]
    pub(crate) report: ReportArgs,
}

/// Who is asked.
#[derive(Args)]
#[command(next_help_heading = "Server")]
pub(crate) struct TargetArgs {
    /// Where the server is, http or https [default: that of --host and --port].
    #[arg(long, value_name = "URL")]
    pub(crate) base_url: Option<String>,
    /// The server's host.
    #[arg(long, default_value = "127.0.0.1")]
    pub(crate) host: String,
    /// The server's port.
    #[arg(long, default_value_t = 8000)]
    pub(crate) port: u16,
    /// Which API is spoken.
    #[arg(long, value_enum, default_value_t = Backend::Openai)]
    pub(crate) backend: Backend,
    /// The path that is asked [default: that of --backend].
    #[arg(long, value_name = "PATH")]
    pub(crate) endpoint: Option<String>,
    /// The model's name in requests [default: the first that the server names].
    #[arg(long)]
    pub(crate) model: Option<String>,
    /// The model's name in requests, where --model names it otherwise for the result.
    #[arg(long, value_name = "NAME")]
    pub(crate) served_model_name: Option<String>,
    /// Cut and count text with this tokenizer, a folder or a .gguf file (or a hub id that is in the hub's cache), where the
    /// server does not [default: the server's /tokenize].
    #[arg(long, value_name = "MODEL")]
    pub(crate) tokenizer: Option<String>,
    /// Believe any certificate of an https server.
    #[arg(long)]
    pub(crate) insecure: bool,
    /// A key to show [default: that of $OPENAI_API_KEY].
    #[arg(long, value_name = "KEY")]
    pub(crate) api_key: Option<String>,
    /// Further headers of every request.
    #[arg(long, num_args = 1.., value_name = "KEY=VALUE")]
    pub(crate) header: Vec<Pair>,
    /// Seconds to wait for a server that is not ready; without, one that is not is an error.
    #[arg(long, default_value_t = 0, value_name = "SECONDS", value_parser = whole_seconds)]
    pub(crate) ready_check_timeout_sec: u64,
}

/// When requests come.
#[derive(Args)]
#[command(next_help_heading = "Traffic")]
pub(crate) struct TrafficArgs {
    /// Requests in all [default: 1000, or as many as the file has].
    #[arg(long, value_parser = at_least_one)]
    pub(crate) num_prompts: Option<usize>,
    /// Requests a second; inf sends all at once [default: inf, or the times of a trace].
    #[arg(long, value_name = "RATE", value_parser = rate)]
    pub(crate) request_rate: Option<f64>,
    /// How even arrivals are: 1 is a Poisson process, less comes in bursts, inf is a steady beat.
    #[arg(long, default_value_t = 1.0, value_parser = rate)]
    pub(crate) burstiness: f64,
    #[command(flatten)]
    pub(crate) ramp: RampArgs,
    /// Requests under way at once; more wait at the client, which is not counted as their time.
    #[arg(long, value_parser = at_least_one)]
    pub(crate) max_concurrency: Option<usize>,
    /// Requests before the clock starts.
    #[arg(long, default_value_t = 0, value_parser = any_count)]
    pub(crate) num_warmups: usize,
    /// Of lengths, tokens and arrivals.
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u64,
}

/// A rate that grows from the first request to the last.
#[derive(Args)]
pub(crate) struct RampArgs {
    /// How the rate grows, by requests.
    #[arg(
        long,
        value_enum,
        requires_all = ["ramp_up_start_rps", "ramp_up_end_rps"],
        conflicts_with = "request_rate"
    )]
    pub(crate) ramp_up_strategy: Option<RampUp>,
    /// Requests a second of the first.
    #[arg(long, value_name = "RATE", value_parser = positive, requires = "ramp_up_strategy")]
    pub(crate) ramp_up_start_rps: Option<f64>,
    /// Requests a second of the last, no fewer.
    #[arg(long, value_name = "RATE", value_parser = positive, requires = "ramp_up_strategy")]
    pub(crate) ramp_up_end_rps: Option<f64>,
}

/// How a rate grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum RampUp {
    /// By as much with each request.
    Linear,
    /// By the same factor with each request.
    Exponential,
}

/// What is asked.
#[derive(Args)]
#[command(next_help_heading = "Dataset")]
pub(crate) struct DatasetArgs {
    /// Where lengths and prompts come from.
    #[arg(long, value_enum, default_value_t = DatasetName::Random)]
    pub(crate) dataset_name: DatasetName,
    /// The file of a trace or of prompts.
    #[arg(long, value_name = "FILE")]
    pub(crate) dataset_path: Option<PathBuf>,
    /// Tokens of each random prompt.
    #[arg(long, visible_alias = "input-len", default_value_t = 1024, value_parser = at_least_one)]
    pub(crate) random_input_len: usize,
    /// Tokens generated for each random prompt.
    #[arg(long, default_value_t = 128, value_parser = at_least_one)]
    pub(crate) random_output_len: usize,
    /// Tokens generated for each prompt, whatever the dataset [default: that of the dataset].
    #[arg(long, value_parser = at_least_one)]
    pub(crate) output_len: Option<usize>,
    /// Random lengths are drawn between (1 - RATIO) and (1 + RATIO) times those.
    #[arg(long, default_value_t = 0.0, value_name = "RATIO", value_parser = ratio)]
    pub(crate) random_range_ratio: f64,
    /// Tokens generated for prompts of a file that does not say [default: with --tokenizer those of a ShareGPT answer, else
    /// 256].
    #[arg(long, visible_alias = "sharegpt-output-len", value_parser = at_least_one)]
    pub(crate) custom_output_len: Option<usize>,
    /// Keep the order of a file of prompts.
    #[arg(long)]
    pub(crate) disable_shuffle: bool,
    /// Send a trace's requests as --request-rate says, not at the trace's times.
    #[arg(long)]
    pub(crate) no_self_timed: bool,
    /// As it is without: a trace's requests are sent at the trace's times.
    #[arg(long, conflicts_with_all = ["no_self_timed", "request_rate", "ramp_up_strategy"])]
    pub(crate) self_timed: bool,
    /// Leave out requests of a trace whose prompt and answer have more tokens together.
    #[arg(long, value_name = "TOKENS", value_parser = at_least_one)]
    pub(crate) skip_longer_than: Option<usize>,
}

/// What every request says beside its prompt.
#[derive(Args)]
#[command(next_help_heading = "Requests")]
pub(crate) struct BodyArgs {
    /// Go on after end-of-text (always so for random prompts and traces).
    #[arg(long)]
    pub(crate) ignore_eos: bool,
    /// Without it, the server's default.
    #[arg(long)]
    pub(crate) temperature: Option<f64>,
    /// Without it, the server's default.
    #[arg(long)]
    pub(crate) top_p: Option<f64>,
    /// Without it, the server's default.
    #[arg(long, allow_negative_numbers = true)]
    pub(crate) top_k: Option<i64>,
    /// Without it, the server's default.
    #[arg(long)]
    pub(crate) min_p: Option<f64>,
    /// Without it, the server's default.
    #[arg(long, allow_negative_numbers = true)]
    pub(crate) frequency_penalty: Option<f64>,
    /// Without it, the server's default.
    #[arg(long, allow_negative_numbers = true)]
    pub(crate) presence_penalty: Option<f64>,
    /// Without it, the server's default.
    #[arg(long)]
    pub(crate) repetition_penalty: Option<f64>,
    /// Log-probabilities of so many likeliest tokens with each token.
    #[arg(long, value_name = "N")]
    pub(crate) logprobs: Option<u32>,
    /// Further fields of every body, a JSON object.
    #[arg(long, value_name = "JSON", value_parser = object)]
    pub(crate) extra_body: Option<Value>,
}

/// What is made of it.
#[derive(Args)]
#[command(next_help_heading = "Report")]
pub(crate) struct ReportArgs {
    /// Times whose distribution is reported.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "ttft,tpot,itl")]
    pub(crate) percentile_metrics: Vec<Time>,
    /// Percentiles of those.
    #[arg(long, value_delimiter = ',', default_value = "99", value_parser = percentile)]
    pub(crate) metric_percentiles: Vec<f64>,
    /// Count requests that keep to these limits, such as ttft:500 tpot:50 e2el:2000, in milliseconds.
    #[arg(long, num_args = 1.., value_name = "TIME:MS")]
    pub(crate) goodput: Vec<Limit>,
    /// Write the result to a file, in --result-dir under a name that says what ran.
    #[arg(long, group = "saving")]
    pub(crate) save_result: bool,
    /// The same, as a line after those that the file has.
    #[arg(long, group = "saving")]
    pub(crate) append_result: bool,
    /// With every request's times, text and error; for --save-result, --append-result or --json.
    #[arg(long)]
    pub(crate) save_detailed: bool,
    /// The folder of the result [default: this one].
    #[arg(long, value_name = "DIR", requires = "saving")]
    pub(crate) result_dir: Option<PathBuf>,
    /// The result's name.
    #[arg(long, value_name = "FILE", requires = "saving")]
    pub(crate) result_filename: Option<PathBuf>,
    /// Write the result to exactly this file.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// What the result is called [default: that of --backend].
    #[arg(long)]
    pub(crate) label: Option<String>,
    /// Noted in the result.
    #[arg(long, num_args = 1.., value_name = "KEY=VALUE")]
    pub(crate) metadata: Vec<Pair>,
    /// Show no progress.
    #[arg(long)]
    pub(crate) disable_tqdm: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Backend {
    /// /v1/completions
    Openai,
    /// The same.
    Vllm,
    /// /v1/chat/completions
    OpenaiChat,
}

impl Backend {
    /// Whether conversations are asked for, not completions of prompts.
    pub(crate) fn is_chat(self) -> bool {
        self == Backend::OpenaiChat
    }

    /// Where it is served.
    pub(crate) fn endpoint(self) -> &'static str {
        if self.is_chat() { "/v1/chat/completions" } else { "/v1/completions" }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum DatasetName {
    /// Random tokens of given lengths, no prompt twice.
    Random,
    /// A CSV of lengths, with times if it has them; the prompts are random.
    #[value(alias = "timed_trace")]
    Trace,
    /// JSON lines with a prompt, messages or a ShareGPT conversation, and output_tokens if known.
    #[value(alias = "sharegpt")]
    Custom,
}

/// A time that is measured of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Time {
    /// To the first token.
    Ttft,
    /// Per token after the first, of a request.
    Tpot,
    /// From each token to the next.
    Itl,
    /// To the last token.
    E2el,
}

/// `KEY=VALUE`
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pair(pub(crate) String, pub(crate) String);

impl FromStr for Pair {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let pair = text.split_once('=').filter(|(key, _)| !key.trim().is_empty());
        let (key, value) = pair.ok_or("expected KEY=VALUE")?;
        Ok(Pair(key.trim().to_string(), value.trim().to_string()))
    }
}

/// What a good request takes at most.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Limit {
    pub(crate) time: Time,
    pub(crate) ms: f64,
}

impl FromStr for Limit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = || "expected ttft:MS, tpot:MS or e2el:MS".to_string();
        let (name, ms) = text.split_once(':').ok_or_else(expected)?;
        let time = Time::from_str(name, true).ok().filter(|time| *time != Time::Itl).ok_or_else(expected)?;
        let ms = ms.parse().ok().filter(|ms: &f64| ms.is_finite() && *ms >= 0.0).ok_or_else(expected)?;
        Ok(Limit { time, ms })
    }
}

fn rate(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number: &f64| *number > 0.0);
    number.ok_or_else(|| "expected a number above 0, or inf".into())
}

fn ratio(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number: &f64| (0.0..1.0).contains(number));
    number.ok_or_else(|| "expected a number from 0 to below 1".into())
}

fn percentile(text: &str) -> Result<f64, String> {
    let number = text.trim().parse().ok().filter(|number: &f64| (0.0..=100.0).contains(number));
    number.ok_or_else(|| "expected percentiles from 0 to 100, such as 50,90,99".into())
}

fn object(text: &str) -> Result<Value, String> {
    let value: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    if value.is_object() { Ok(value) } else { Err("expected a JSON object".into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_and_pairs() {
        assert_eq!("ttft:500".parse(), Ok(Limit { time: Time::Ttft, ms: 500.0 }));
        for bad in ["itl:5", "ttft", "ttft:-1", "ttft:nan", "e2e:5"] {
            assert!(bad.parse::<Limit>().is_err(), "{bad}");
        }
        assert_eq!("a = b=c".parse(), Ok(Pair("a".into(), "b=c".into())));
        assert!("=b".parse::<Pair>().is_err());
    }

    #[test]
    fn rates_and_shares() {
        assert_eq!((rate("inf"), rate("2.5")), (Ok(f64::INFINITY), Ok(2.5)));
        assert!([rate("0"), rate("nan"), ratio("1"), percentile("101")].iter().all(Result::is_err));
    }
}
