//! Flags and commands of vLLM, llama.cpp and Ollama that are none here: what to do instead, or why there is nothing to do. A
//! wrong guess at their meaning would be worse than a refusal, and a bare refusal leaves a person searching.

use clap::Command;

/// What a person who typed `flag` (as it was typed, dashes and all; of short ones the first letter), or a command, may want to
/// know. Where it names flags, those are flags of the command that was typed; `path`: that command's, such as `bench serve`.
pub(crate) fn instead_of((path, command): (&str, &Command), flag: &str) -> Option<&'static str> {
    let name = flag.split(['=', ' ']).next().unwrap_or_default().replace('_', "-");
    let whole = format!("{path} {name}");
    let mut meant =
        TIPS.iter().filter(|(known, _)| known.iter().any(|known| *known == name || *known == whole));
    meant.find(|(_, why)| flags_in(why).all(|flag| has(command, flag))).map(|(_, why)| *why)
}

/// The flags that a text names.
fn flags_in(why: &str) -> impl Iterator<Item = &str> {
    why.split([' ', ',', ':', ';']).filter(|word| word.starts_with("--"))
}

/// Whether a command has this flag and shows it.
fn has(command: &Command, flag: &str) -> bool {
    let shown = command.get_arguments().filter(|arg| !arg.is_hide_set());
    let mut longs = shown.flat_map(|arg| arg.get_long_and_visible_aliases().unwrap_or_default());
    longs.any(|long| flag.strip_prefix("--") == Some(long))
}

/// Names, and what is to be said of them. A name that means another thing elsewhere stands behind its command.
const TIPS: &[(&[&str], &str)] = &[
    (
        &["--gpu-memory-utilization"],
        "a share of the GPU is no amount: --device-memory says how many bytes, and without it all that is free is used",
    ),
    (&["--cpu-offload-gb"], "--percent says what lives where, --memory how much of the host may be used"),
    (
        &["--swap-space", "--kv-offloading-size", "--kv-offloading-backend", "--kv-transfer-config"],
        "KV on the host is counted in tokens here: --swap-tokens, and on the drive: --disk-cache-tokens",
    ),
    (&["--disk-offload-gb"], "--disk and --offload-dir say how much is kept on disk, and where"),
    (&["--block-size"], "a block of KV has one size here, which /metrics tells (vllm:cache_config_info)"),
    (
        &["--quantization"],
        "--weights int8 or int4 converts weights while loading; .gguf files stay as they are",
    ),
    (&["--tokenizer-mode"], "there is one tokenizer for a model: that of its files"),
    (&["--skip-tokenizer-init"], "no tokenizer is read here but with --tokenizer"),
    (
        &["--enforce-eager"],
        "on the processor nothing is captured or compiled; on a GPU BALLAST_CUDA_GRAPHS=off starts kernels one by one",
    ),
    (
        &["--generation-config", "--override-generation-config"],
        "the model's generation_config.json is read where it is",
    ),
    (&["serve --seed", "batch --seed"], "requests have seeds of their own: the field `seed`"),
    (&["--limit-mm-per-prompt", "--mm-processor-kwargs"], "models read text alone"),
    (
        &["--enable-lora", "--lora-modules", "--max-lora-rank", "--lora", "--lora-scaled"],
        "adapters are not read: merge them into the weights",
    ),
    (&["--speculative-config", "--model-draft", "--draft-max"], "there is no speculative decoding"),
    (
        &["run --reasoning-parser", "run --reasoning-format", "run --reasoning-budget"],
        "what the model thinks is printed as it comes, before its answer",
    ),
    (&["--ssl-keyfile", "--ssl-certfile", "--ssl-ca-certs"], "put a proxy that speaks TLS before the server"),
    (&["--allowed-origins", "--allow-credentials"], "pages of other origins are never let in"),
    (&["--root-path", "--uds", "--api-server-count"], "put a proxy before the server"),
    (
        &["--disable-log-requests", "--enable-log-requests", "--max-log-len", "--uvicorn-log-level"],
        "--log-level says how much is told; prompts never are",
    ),
    (&["--disable-log-stats"], "there is no line of figures in the log: /metrics has them"),
    (
        &["--tensor-parallel-size", "--pipeline-parallel-size", "--data-parallel-size"],
        "one device serves a model; several replicas are several processes",
    ),
    (&["--nnodes", "--node-rank", "--master-addr", "--master-port"], "one machine serves a model"),
    (&["--use-beam-search"], "there is no search over beams"),
    (
        &["serve --profiler-config", "bench serve --profile"],
        "the server's page at / and its /metrics show what it does",
    ),
    (&["--plot-timeline", "--plot-dataset-stats"], "--save-detailed has all that a plot needs"),
    (&["--probe-request-rate", "--request-id-prefix"], "the benchmark has no such thing"),
    (
        &[
            "--hf-split",
            "--hf-subset",
            "--hf-name",
            "--hf-output-len",
            "--sonnet-input-len",
            "--sonnet-output-len",
        ],
        "--dataset-name custom reads a file of prompts; none is fetched",
    ),
    (&["--enable-metrics"], "a job tells its figures as it goes: --progress json is for programs"),
    (&["--output-tmp-dir"], "the output is written where it belongs, and can be read as it grows"),
    (&["bench serve -m"], "here it is --model"),
    (
        &["-m", "--hf-repo", "--hf-file"],
        "the model is the first word: a folder, a .gguf file or ORG/NAME of the hub",
    ),
    (&["run -p", "run --prompt"], "the prompt is the word after the model: ballast run MODEL PROMPT"),
    (&["run -f", "run --file"], "a prompt in a file comes on standard input: ballast run MODEL < FILE"),
    (&["batch -f", "batch --file"], "--input-file (-i) names the file of requests"),
    (
        &["-n", "--n-predict", "--predict"],
        "--max-tokens says how long an answer may get (and --device cuda takes as many layers to the GPU as fit)",
    ),
    (&["-n", "--n-predict", "--predict"], "--output-len says how many tokens are generated for a prompt"),
    (&["-c", "--ctx-size"], "--max-model-len says how long a prompt and its answer may get"),
    (&["-t", "--threads-batch"], "--threads says how many threads compute"),
    (&["-b", "--ubatch-size"], "--max-num-batched-tokens says how many tokens a step has"),
    (&["--parallel"], "--max-num-seqs says how many sequences run at once"),
    (&["bench serve --parallel"], "--max-concurrency says how many requests are under way at once"),
    (
        &["--n-gpu-layers", "--gpu-layers", "--override-tensor", "--n-cpu-moe", "--no-kv-offload"],
        "with --device cuda what fits --device-memory lives there; --percent says otherwise",
    ),
    (&["--cache-type-k", "--cache-type-v"], "--kv says how both keys and values are kept"),
    (&["--flash-attn"], "attention is always computed so: there is nothing to turn on"),
    (
        &["--mmap", "--no-mmap", "--mlock"],
        "weights are read, not mapped: --memory says how many stay, and the others are streamed from --offload-dir",
    ),
    (&["--temp"], "here it is --temperature"),
    (&["serve --temp", "batch --temp"], "requests say it: the field `temperature`"),
    (&["--repeat-penalty"], "here it is --repetition-penalty"),
    (
        &["serve --repeat-penalty", "batch --repeat-penalty"],
        "requests say it: the field `repetition_penalty`",
    ),
    (&["--system-prompt", "-s"], "here it is --system"),
    (
        &["run -i", "run --interactive", "run --conversation"],
        "without a prompt, ballast run MODEL is a conversation on a terminal",
    ),
    (&["--no-conversation"], "--raw leaves the chat template out"),
    (
        &["--grammar", "--grammar-file", "--json-schema"],
        "forms are asked for in requests: `response_format` and `structured_outputs` of serve and batch",
    ),
    (&["--embedding", "--embeddings", "--reranking"], "models generate text; none embeds it"),
    (&["chat", "generate", "complete"], "ballast run MODEL is a chat, ballast run MODEL PROMPT answers once"),
    (&["pull", "download"], "ballast run ORG/NAME fetches a model and keeps it"),
    (&["list", "ls", "ps"], "models are folders and files, and nothing runs in the background"),
];

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::args::Cli;

    /// All commands below this one, itself too, and their paths.
    fn commands(path: &str, command: &Command) -> Vec<(String, Command)> {
        let below = command
            .get_subcommands()
            .flat_map(|command| commands(format!("{path} {}", command.get_name()).trim_start(), command));
        [(path.to_string(), command.clone())].into_iter().chain(below).collect()
    }

    fn told(path: &str, flag: &str) -> Option<&'static str> {
        let below = |command: Command, name: &str| command.find_subcommand(name).expect("a command").clone();
        instead_of((path, &path.split_whitespace().fold(Cli::command(), below)), flag)
    }

    #[test]
    fn flags_are_known_as_they_are_typed() {
        for typed in ["--swap-space", "--swap-space=4", "--swap_space"] {
            assert!(told("serve", typed).is_some_and(|why| why.contains("--swap-tokens")), "{typed}");
        }
        assert_eq!(told("serve", "--swap"), None);
    }

    #[test]
    fn each_command_is_told_of_its_own_flags() {
        for (path, typed, says) in [
            ("run", "-n", "--max-tokens"),
            ("bench throughput", "-n", "--output-len"),
            ("serve", "--parallel", "--max-num-seqs"),
            ("bench serve", "--parallel", "--max-concurrency"),
            ("run", "--file", "ballast run MODEL < FILE"),
            ("batch", "--file", "--input-file"),
            ("run", "--temp", "--temperature"),
            ("serve", "--temp", "`temperature`"),
            ("serve", "--seed", "`seed`"),
            ("run", "-m", "the first word"),
            ("bench serve", "-m", "--model"),
        ] {
            assert!(told(path, typed).is_some_and(|why| why.contains(says)), "{path} {typed}");
        }
        for (path, typed) in [
            ("bench serve", "-t"),
            ("stores", "-t"),
            ("serve", "-n"),
            ("bench throughput", "--seed"),
            ("bench throughput", "--profile"),
            ("serve", "-p"),
        ] {
            assert_eq!(told(path, typed), None, "{path} {typed}");
        }
    }

    /// Each name of a tip has a command that it is told for, and is no flag of those that it is for, nor a command.
    #[test]
    fn what_is_recommended_is_there() {
        let commands = commands("", &Cli::command());
        for (name, why) in TIPS.iter().flat_map(|(names, why)| names.iter().map(move |name| (*name, *why))) {
            let (of, name) = name.rsplit_once(' ').map_or((None, name), |(path, name)| (Some(path), name));
            let own = || commands.iter().filter(|(path, _)| of.is_none_or(|of| of == path));
            let is_told =
                |(path, command): &(String, Command)| instead_of((path, command), name) == Some(why);
            assert!(own().any(is_told), "{name}: {why}");
            assert!(own().all(|(_, command)| !has(command, name)), "{name} is there");
            assert!(Cli::command().find_subcommand(name).is_none(), "{name} is there");
        }
    }
}
