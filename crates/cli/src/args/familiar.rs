//! Flags that command lines of other servers have, vLLM's above all: each means here what it means there, or is refused.

use clap::Args;

/// The model: the first word, or a flag.
#[derive(Args)]
#[group(required = true, multiple = false)]
pub(crate) struct ModelArg {
    /// A folder, a .gguf file, a hub id (org/name, org/name:Q4_K_M), or `smollm2`.
    model: Option<String>,
    /// The same, where a flag is wanted.
    #[arg(long = "model", short = 'm', value_name = "MODEL")]
    by_flag: Option<String>,
}

impl ModelArg {
    /// What was named; clap makes sure that something was, but for commands below this one.
    pub(crate) fn name(&self) -> Option<&str> {
        self.model.as_deref().or(self.by_flag.as_deref())
    }
}

/// What is done here whether it is asked for or not, and the hub's revision.
#[derive(Args)]
pub(crate) struct FamiliarArgs {
    /// The revision of a model of the hub: a branch, a tag or a commit; ORG/NAME:REVISION says the same.
    #[arg(long, value_name = "REVISION", help_heading = "Engine")]
    pub(crate) revision: Option<String>,
    /// Taken, and changes nothing: unless --no-enable-prefix-caching, beginnings of prompts that are in memory are not
    /// computed again.
    #[arg(long, conflicts_with = "no_enable_prefix_caching", help_heading = "Engine")]
    enable_prefix_caching: bool,
    /// Taken, and changes nothing: long prompts are computed in chunks in any case.
    #[arg(long, help_heading = "Engine")]
    enable_chunked_prefill: bool,
    /// Taken, and changes nothing: a model may call tools wherever the template shows how it writes calls, or
    /// --tool-call-parser says.
    #[arg(long, help_heading = "Engine")]
    enable_auto_tool_choice: bool,
    /// Nothing to trust: no code that comes with a model is ever run.
    #[arg(long, help_heading = "Engine")]
    trust_remote_code: bool,
}

impl FamiliarArgs {
    /// Flags that change nothing, and why, for whoever believes otherwise.
    pub(crate) fn changing_nothing(&self) -> Vec<&'static str> {
        let all = [
            (
                self.enable_prefix_caching,
                "--enable-prefix-caching: it is on unless --no-enable-prefix-caching",
            ),
            (
                self.enable_chunked_prefill,
                "--enable-chunked-prefill: long prompts are always computed in chunks",
            ),
            (
                self.enable_auto_tool_choice,
                "--enable-auto-tool-choice: it is on wherever the form of calls is known",
            ),
            (self.trust_remote_code, "--trust-remote-code: no code that comes with a model is ever run"),
        ];
        all.into_iter().filter(|(given, _)| *given).map(|(_, why)| why).collect()
    }
}
