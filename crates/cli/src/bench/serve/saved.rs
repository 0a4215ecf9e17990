//! The files that a result goes to.

use std::path::{Path, PathBuf};

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
    /// Folder and name of one that was given none.
    made_up: Option<(PathBuf, String)>,
    appends: bool,
}

impl Files {
    pub(super) fn open(args: &BenchServeArgs, model: &str, pace: Option<Pace>) -> Result<Files> {
        let report = &args.report;
        let folder = report.result_dir.clone().unwrap_or_default();
        let (named, made_up) = match (&report.result_filename, report.save_result || report.append_result) {
            (_, false) => (None, None),
            (Some(name), true) => (Some(folder.join(name)), None),
            (None, true) => {
                let name = default_name(args, model, pace)?;
                (Some(unused(&folder, &name)), Some((folder.clone(), name)))
            }
        };
        if named.is_some() && !folder.as_os_str().is_empty() {
            let words = || format!("cannot create the folder {}", folder.display());
            std::fs::create_dir_all(&folder).with_context(words)?;
        }
        apart([report.json.as_deref(), named.as_deref()])?;
        Ok(Files {
            exact: JsonReport::open(report.json.as_deref())?,
            named: JsonReport::open(named.as_deref())?,
            made_up,
            appends: report.append_result,
        })
    }

    pub(super) fn write(self, result: &Value) -> Result<()> {
        self.exact.write(result)?;
        // By now another run may have taken the name.
        let made_up = self.made_up.map(|(folder, name)| JsonReport::open(Some(&unused(&folder, &name))));
        let named = made_up.unwrap_or(Ok(self.named))?;
        if self.appends { named.append(result) } else { named.write(result) }
    }
}

/// The first of `x.json`, `x-2.json`, `x-3.json` and so on that is not there: several runs may begin within a second.
fn unused(folder: &Path, name: &str) -> PathBuf {
    let (mut path, mut runs) = (folder.join(format!("{name}.json")), 1);
    while path.exists() {
        runs += 1;
        path.set_file_name(format!("{name}-{runs}.json"));
    }
    path
}

/// As vLLM names them: `{label}-{rate}qps-concurrency{n}-{model}-{date}`
fn default_name(args: &BenchServeArgs, model: &str, pace: Option<Pace>) -> Result<String> {
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
    Ok(format!("{label}-{rate}qps{most}-{model}-{}", date()?))
}

/// Now, in UTC.
pub(super) fn date() -> Result<String> {
    Ok(clock::now().strftime("%Y%m%d-%H%M%S")?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_taken_is_counted_on() {
        let folder = tempfile::tempdir().unwrap();
        let taken = (0..3).map(|_| {
            let path = unused(folder.path(), "a-0.5qps");
            std::fs::write(&path, "").unwrap();
            path.file_name().unwrap().to_str().unwrap().to_string()
        });
        assert_eq!(taken.collect::<Vec<_>>(), ["a-0.5qps.json", "a-0.5qps-2.json", "a-0.5qps-3.json"]);
    }
}
