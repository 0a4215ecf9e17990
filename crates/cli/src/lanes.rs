//! `--lanes FILE`: what ran on which lane in a real run, as a picture or as data.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use engine::{Engine, EngineConfig, Ran, Ranges};
use sim::draw::{Format, label};
use spec::{LaneSpan, RankId};

use crate::console::note;
use crate::output_file::OutputFile;

/// Spans that are kept, the newest: hundreds of steps of most models, and a picture of ten megabytes.
const SPANS: usize = 50_000;
/// How long a command that was interrupted waits for its engine, whose step may take minutes.
const PATIENCE: Duration = Duration::from_secs(1);

#[derive(Args)]
pub(crate) struct LanesArgs {
    /// Write what ran on each lane here: .svg, .json or .trace.json (Chrome's trace events). The newest 50,000 spans.
    #[arg(long, value_name = "FILE", value_parser = named)]
    lanes: Option<PathBuf>,
}

/// The file, found writable; or none is wanted.
pub(crate) struct LanesFile(Option<(Format, OutputFile)>);

fn named(text: &str) -> Result<PathBuf, String> {
    format_of(Path::new(text)).map(|_| PathBuf::from(text))
}

/// By the ending of a file's name.
pub(crate) fn format_of(path: &Path) -> Result<Format, String> {
    let format = Format::of_name(&path.to_string_lossy());
    format.ok_or_else(|| "the name must end in .svg, .json or .trace.json".to_string())
}

impl LanesArgs {
    /// Where it goes, if it is wanted.
    pub(crate) fn path(&self) -> Option<&Path> {
        self.lanes.as_deref()
    }

    /// Finds the file writable before anything heavy happens.
    pub(crate) fn open(&self) -> Result<LanesFile> {
        let Some(path) = &self.lanes else { return Ok(LanesFile(None)) };
        let format = format_of(path).map_err(anyhow::Error::msg)?;
        Ok(LanesFile(Some((format, OutputFile::open(path)?))))
    }
}

impl LanesFile {
    /// What the engine must keep for it.
    pub(crate) fn wanted(&self, config: EngineConfig) -> EngineConfig {
        EngineConfig { lane_spans: self.spans(), ..config }
    }

    /// Nodes that are to be kept for it.
    pub(crate) fn spans(&self) -> usize {
        if self.0.is_some() { SPANS } else { 0 }
    }

    /// Ends the engine, and writes what ran: its memory is free by then, and a drawing takes some.
    pub(crate) fn end(self, engine: Engine) -> Result<()> {
        let ranges = engine.ranges();
        engine.finish()?;
        self.write(ranges)
    }

    /// The same of a command that was interrupted, which waits for no long step. `record`: the engine's, which is told if it is not whole.
    pub(crate) fn end_soon(self, engine: Engine, record: Option<&Path>) -> Result<()> {
        let ranges = engine.ranges();
        let (tell, ended) = channel();
        // Nobody may hear it any more.
        let end = move || _ = tell.send(engine.finish());
        thread::Builder::new().name("end".into()).spawn(end).context("the system refuses threads")?;
        match ended.recv_timeout(PATIENCE) {
            Ok(finished) => finished?,
            Err(RecvTimeoutError::Disconnected) => bail!("ending the engine panicked"),
            Err(RecvTimeoutError::Timeout) if record.is_some() => {
                note!("the step under way is not waited for: --record is not whole");
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
        self.write(ranges)
    }

    /// Writes what ran.
    pub(crate) fn write(self, Ranges { ran, forgotten }: Ranges) -> Result<()> {
        let Some((format, mut file)) = self.0 else { return Ok(()) };
        if forgotten > 0 {
            note!("--lanes has the newest {} spans; {forgotten} older ones are not kept", ran.len());
        }
        let spans: Vec<LaneSpan> = ran.iter().map(span).collect();
        file.replace(format.draw(&spans).as_bytes())
    }
}

fn span(ran: &Ran) -> LaneSpan {
    LaneSpan { rank: RankId(0), lane: ran.lane, start: ran.start, end: ran.end, label: label(&ran.op) }
}
