//! What a plan foretells, frozen, beside what the engine then does with it: shared by `bench plan` and `bench ablation`.

use anyhow::{Context, Result};
use serde::Serialize;
use serde_json::{Value, json};

use super::child::{Desk, number};
use super::report::median;
use crate::output_file::OutputFile;

/// Requests of one length, handed over at once.
#[derive(Clone, Copy, Serialize)]
pub(super) struct Requests {
    pub(super) num_prompts: usize,
    pub(super) input_len: usize,
    pub(super) output_len: usize,
}

impl Requests {
    /// As `plan` has them.
    pub(super) fn planned(self) -> Vec<String> {
        self.flags(["--num-prompts", "--prompt-len", "--gen-len"])
    }

    /// As `bench throughput` has them.
    fn benched(self) -> Vec<String> {
        self.flags(["--num-prompts", "--input-len", "--output-len"])
    }

    fn flags(self, names: [&str; 3]) -> Vec<String> {
        let numbers = [self.num_prompts, self.input_len, self.output_len];
        names.iter().zip(numbers).flat_map(|(name, number)| [name.to_string(), number.to_string()]).collect()
    }
}

/// A plan, and what came of it.
#[derive(Clone, Serialize)]
pub(super) struct Foretold {
    /// As it was emitted, and as it is run.
    config: String,
    plan: Value,
    predicted_tokens_per_s: f64,
    measured_tokens_per_s: Option<f64>,
    measured_seconds_all: Vec<f64>,
    /// What each kind of op took in a run; what the plan says of them is in the plan.
    measured_op_seconds: Value,
    /// Predicted over measured, less one.
    error: Option<f64>,
}

impl Foretold {
    /// Plans with these flags, and freezes what the plan says.
    pub(super) fn plan(desk: &Desk, requests: Requests, flags: &[String]) -> Result<Foretold> {
        let file = desk.file("emitted.toml");
        let emit = ["--emit-config".to_string(), file.display().to_string()];
        let plan = desk.run(&words("plan", &[flags, &requests.planned(), &emit].concat()))?;
        Ok(Foretold {
            config: std::fs::read_to_string(&file).context("the emitted plan")?,
            predicted_tokens_per_s: number(&plan, "/generated_tokens_per_s")?,
            plan,
            measured_tokens_per_s: None,
            measured_seconds_all: Vec::new(),
            measured_op_seconds: Value::Null,
            error: None,
        })
    }

    /// Runs the plan as it was emitted.
    pub(super) fn measure(
        &mut self,
        desk: &Desk,
        model: &str,
        requests: Requests,
        reps: usize,
    ) -> Result<()> {
        let file = desk.file("measured.toml");
        std::fs::write(&file, &self.config)?;
        let told =
            [model.into(), "--config".into(), file.display().to_string(), "--reps".into(), reps.to_string()];
        let report = desk.run(&words("bench throughput", &[&told[..], &requests.benched()].concat()))?;
        let measured = number(&report, "/generated_tokens_per_s")?;
        let all = report["seconds_all"].as_array().map(|all| all.iter().filter_map(Value::as_f64).collect());
        self.measured_seconds_all = all.unwrap_or_default();
        self.measured_op_seconds = report["op_seconds"].clone();
        self.measured_tokens_per_s = Some(measured);
        self.error = Some(self.predicted_tokens_per_s / measured - 1.0);
        Ok(())
    }

    pub(super) fn config(&self) -> &str {
        &self.config
    }

    pub(super) fn predicted(&self) -> f64 {
        self.predicted_tokens_per_s
    }

    pub(super) fn measured(&self) -> Option<f64> {
        self.measured_tokens_per_s
    }

    pub(super) fn error(&self) -> Option<f64> {
        self.error
    }

    /// Kinds of ops whose times are furthest from what was foretold, most seconds first: `mlp 1.2 of 1.5 s`.
    pub(super) fn ops(&self) -> String {
        let seconds = |of: &Value, kind: &str| of[kind].as_f64().unwrap_or(0.0);
        let mut kinds: Vec<(f64, String)> = spec::Op::KINDS
            .iter()
            .map(|kind| {
                let (said, took) =
                    (seconds(&self.plan["op_seconds"], kind), seconds(&self.measured_op_seconds, kind));
                ((said - took).abs(), format!("{kind} {said:.2} of {took:.2} s"))
            })
            .collect();
        kinds.sort_by(|a, b| b.0.total_cmp(&a.0));
        kinds.into_iter().take(3).map(|(_, told)| told).collect::<Vec<_>>().join(", ")
    }
}

/// A command and its flags.
pub(super) fn words(command: &str, flags: &[String]) -> Vec<String> {
    command.split(' ').map(String::from).chain(flags.iter().cloned()).collect()
}

/// Model, its format and where packed weights go, as flags.
pub(super) fn subject(
    model: &str,
    format: crate::args::LoadFormat,
    folder: Option<&std::path::Path>,
) -> Vec<String> {
    let mut flags = vec![model.to_string()];
    if format == crate::args::LoadFormat::Dummy {
        flags.extend(["--load-format".into(), "dummy".into()]);
    }
    if let Some(folder) = folder {
        flags.extend(["--offload-dir".into(), folder.display().to_string()]);
    }
    flags
}

/// All that is known so far: what took long to measure is not lost with what comes after it.
pub(super) fn write<R: Serialize>(file: &mut OutputFile, name: &str, rows: &[R], state: &str) -> Result<()> {
    let report = json!({ "state": state, name: rows });
    file.replace((serde_json::to_string_pretty(&report)? + "\n").as_bytes())
}

/// `+8.1 %`
pub(super) fn percent(value: Option<f64>) -> String {
    value.map_or("-".into(), |value| format!("{:+.1} %", 100.0 * value))
}

/// `9 of 16 within 15 %; median error 8.1 %, largest 21.0 %`
pub(super) fn summary(errors: impl Iterator<Item = f64>, within: f64) -> String {
    let errors: Vec<f64> = errors.map(f64::abs).collect();
    if errors.is_empty() {
        return "nothing was measured".into();
    }
    let good = errors.iter().filter(|error| **error <= within).count();
    format!(
        "{good} of {} within {:.0} %; median error {:.1} %, largest {:.1} %",
        errors.len(),
        100.0 * within,
        100.0 * median(&errors),
        100.0 * errors.iter().fold(0.0, |a: f64, b| a.max(*b))
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_summed_up() {
        let errors = [0.1, -0.12, 0.4];
        assert_eq!(
            summary(errors.into_iter(), 0.15),
            "2 of 3 within 15 %; median error 12.0 %, largest 40.0 %"
        );
        assert_eq!(summary([].into_iter(), 0.15), "nothing was measured");
        assert_eq!((percent(Some(-0.123)), percent(None)), ("-12.3 %".into(), "-".into()));
    }

    #[test]
    fn ops_that_are_furthest_off_come_first() {
        let ops = |mlp: f64, qkv: f64, head: f64| json!({ "mlp": mlp, "qkv": qkv, "head": head });
        let foretold = Foretold {
            config: String::new(),
            plan: json!({ "op_seconds": ops(1.0, 1.0, 1.0) }),
            predicted_tokens_per_s: 1.0,
            measured_tokens_per_s: None,
            measured_seconds_all: vec![],
            measured_op_seconds: ops(1.1, 0.5, 3.0),
            error: None,
        };
        assert_eq!(foretold.ops(), "head 1.00 of 3.00 s, qkv 1.00 of 0.50 s, mlp 1.00 of 1.10 s");
    }
}
