//! A model found and opened: checkpoint, tokenizer, and what its files say of templates and sampling.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use engine::{Engine, EngineConfig, Planned};
use model::Checkpoint;
use model::sampling::GenerationConfig;
use model::source::{Places, locate};
use model::template::{ChatTemplate, SpecialTexts, Templates, Tools};
use model::tokenizer::Tokenizer;

use crate::args::{EngineArgs, LoadFormat};
use crate::display::{Download, Progress, Unit, Voice};

/// The name of the model that is fetched by itself.
const DEFAULT: &str = "smollm2";

/// A model whose headers are read.
pub(crate) struct Opened {
    /// What to call it.
    pub(crate) name: String,
    pub(crate) checkpoint: Checkpoint,
    path: PathBuf,
}

/// What turns text into tokens and back.
pub(crate) struct Text {
    pub(crate) tokenizer: Arc<Tokenizer>,
    templates: Templates,
    pub(crate) special: SpecialTexts,
    pub(crate) generation: GenerationConfig,
}

/// Finds (or fetches) and opens a model; reads headers only. `None` is the default model.
pub(crate) fn open(name: Option<&str>, args: &EngineArgs, voice: Voice) -> Result<Opened> {
    let wanted = name.filter(|name| *name != DEFAULT || Path::new(name).exists());
    let mut download = Download::new(voice);
    let path = locate(wanted, &Places::from_env(), &mut download)?;
    download.end();
    let checkpoint = Checkpoint::open(&path)?;
    let checkpoint = match args.load_format {
        LoadFormat::Auto => checkpoint,
        LoadFormat::Dummy => Checkpoint::dummy(checkpoint.spec().clone(), 0),
    };
    let stem = path.file_stem().map(|stem| stem.to_string_lossy().into_owned());
    let name = wanted.map(str::to_string).or(stem).unwrap_or_default();
    Ok(Opened { name, checkpoint, path })
}

impl Opened {
    /// Plans, announces and loads.
    pub(crate) fn start(&self, config: EngineConfig, voice: Voice) -> Result<Engine> {
        let planned = Planned::new(&self.checkpoint, config)?;
        if voice == Voice::Normal {
            let spec = self.checkpoint.spec();
            let millions = spec.parameters() as f64 / 1e6;
            eprintln!(
                "{}: {}, {millions:.0} M parameters, {}",
                self.name,
                spec.architecture,
                planned.formats()
            );
            eprintln!("memory: {}", planned.hold());
        }
        let progress = Progress::new("loading", planned.load_bytes(), Unit::Bytes, voice);
        let engine = planned.start(&|bytes| progress.set(bytes));
        progress.end();
        Ok(engine?)
    }

    /// Tokenizer, templates and defaults. `template` is the file of `--chat-template`.
    pub(crate) fn text(&self, template: Option<&Path>) -> Result<Text> {
        let folder =
            if self.path.is_dir() { &self.path } else { self.path.parent().unwrap_or(Path::new(".")) };
        let (tokenizer, templates) = match self.checkpoint.vocab() {
            Some(vocab) => {
                let own = vocab.chat_template.clone().map(Templates::one).unwrap_or_default();
                (Tokenizer::from_gguf(vocab)?, own)
            }
            None => {
                let (tokenizer, config) =
                    Tokenizer::from_dir(folder).context("the model's tokenizer cannot be used")?;
                let templates = Templates::find(folder, &config)?;
                (tokenizer, templates)
            }
        };
        let templates = match template {
            None => templates,
            Some(file) => Templates::one(
                std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?,
            ),
        };
        let special = special_texts(&tokenizer);
        let generation = generation_config(&folder.join("generation_config.json"), self.path.is_dir())?;
        Ok(Text { tokenizer: Arc::new(tokenizer), templates, special, generation })
    }
}

impl Text {
    /// The template for conversations without tools, if the model has any.
    pub(crate) fn template(&self) -> Result<Option<ChatTemplate>> {
        if self.templates.is_empty() {
            return Ok(None);
        }
        Ok(Some(self.templates.choose(Tools::Absent)?))
    }
}

fn special_texts(tokenizer: &Tokenizer) -> SpecialTexts {
    let ids = tokenizer.special_ids();
    let text = |id: Option<u32>| id.and_then(|id| tokenizer.token(id));
    SpecialTexts { bos: text(ids.bos), eos: text(ids.eos), pad: text(ids.pad), unk: text(ids.unk) }
}

fn generation_config(path: &Path, has_files: bool) -> Result<GenerationConfig> {
    match std::fs::read(path) {
        Ok(json) if has_files => {
            GenerationConfig::parse(&json).with_context(|| format!("in {}", path.display()))
        }
        _ => Ok(GenerationConfig::default()),
    }
}
