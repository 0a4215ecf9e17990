//! The files that a result goes to.

use std::path::PathBuf;

use anyhow::{Context, Result};
use serde_json::Value;

use super::arrivals::Pace;
use crate::args::{BenchServeArgs, typed};
use crate::clock;
use crate::output_file::{JsonReport, apart};

/// Where results go, found writable before the run.
pub(super) struct Files {
    exact: JsonReport,
    named: JsonReport,
    appends: bool,
}

impl Files {
    pub(super) fn open(args: &BenchServeArgs, model: &str, pace: Option<Pace>) -> Result<Files> {
        let report = &args.report;
        let named = match (&report.result_filename, report.save_result || report.append_result) {
            (_, false) => None,
            (Some(name), true) => Some(name.clone()),
            (None, true) => Some(default_name(args, model, pace)?),
        };
        let folder = report.result_dir.clone().unwrap_or_default();
        let named = named.map(|name| folder.join(name));
        if named.is_some() && !folder.as_os_str().is_empty() {
            let words = || format!("cannot create the folder {}", folder.display());
            std::fs::create_dir_all(&folder).with_context(words)?;
        }
        apart([report.json.as_deref(), named.as_deref()])?;
        Ok(Files {
            exact: JsonReport::open(report.json.as_deref())?,
            named: JsonReport::open(named.as_deref())?,
            appends: report.append_result,
        })
    }

    pub(super) fn write(self, result: &Value) -> Result<()> {
        self.exact.write(result)?;
        if self.appends { self.named.append(result) } else { self.named.write(result) }
    }
}

/// As vLLM names them: `{label}-{rate}qps-concurrency{n}-{model}-{date}.json`
fn default_name(args: &BenchServeArgs, model: &str, pace: Option<Pace>) -> Result<PathBuf> {
    let label = args.report.label.clone().unwrap_or_else(|| typed(args.server.backend)).replace('/', "-");
    let rate = match pace {
        None => "trace".to_string(),
        Some(Pace::Steady(rate)) => rate.to_string(),
        Some(Pace::Ramp { how, start, end }) => format!("ramp-up-{}-{start}qps-{end}", typed(how)),
    };
    let most = args.traffic.max_concurrency.map_or(String::new(), |most| format!("-concurrency{most}"));
    // As the result has it.
    let model = args.server.model.as_deref().unwrap_or(model);
    let model = model.rsplit('/').next().unwrap_or(model);
    Ok(format!("{label}-{rate}qps{most}-{model}-{}.json", date()?).into())
}

/// Now, in UTC.
pub(super) fn date() -> Result<String> {
    Ok(clock::now().strftime("%Y%m%d-%H%M%S")?)
}
