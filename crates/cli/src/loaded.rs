//! A model found and opened: checkpoint, tokenizer, and what its files say of templates and sampling.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Error, Result, bail};
use model::Checkpoint;
use model::Error::NotThere;
use model::config::read_generation;
use model::sampling::GenerationConfig;
use model::source::{Places, RepoId, describe, locate};
use model::template::{ChatTemplate, SpecialTexts, Templates, Tools};
use model::tokenizer::Tokenizer;
use model::tools::ToolFormat;

use crate::args::{EngineArgs, LoadFormat};
use crate::console::{Misuse, note, text_of};
use crate::display::{Download, Voice};
use crate::output_file::OutputFile;

/// The name of the model that is fetched by itself.
pub(crate) const DEFAULT: &str = "smollm2";
/// What it is.
const DEFAULT_NAME: &str = "SmolLM2-135M-Instruct";

/// A model whose headers are read.
pub(crate) struct Opened {
    /// What to call it.
    pub(crate) name: String,
    /// What it was asked for by.
    pub(crate) asked: String,
    pub(crate) checkpoint: Checkpoint,
    path: PathBuf,
    tool_format: Option<ToolFormat>,
}

/// What turns text into tokens and back.
pub(crate) struct Text {
    pub(crate) tokenizer: Arc<Tokenizer>,
    templates: Templates,
    /// Of `--tool-call-parser`.
    tool_format: Option<ToolFormat>,
    pub(crate) special: SpecialTexts,
    pub(crate) generation: GenerationConfig,
}

/// Finds (or fetches) and opens a model; reads headers only. `None` is the default model.
pub(crate) fn open(name: Option<&str>, args: &EngineArgs, voice: Voice) -> Result<Opened> {
    if voice == Voice::Normal {
        args.familiar.changing_nothing().iter().for_each(|why| note!("{why}"));
    }
    // The engine will open it: that nobody may write there is to be told before anything is fetched or measured.
    args.record.as_deref().map(OutputFile::open).transpose()?;
    let revised = revised(name.unwrap_or(DEFAULT), args.familiar.revision.as_deref())?;
    let wanted = name.map(|_| revised.as_str()).filter(|name| *name != DEFAULT || Path::new(name).exists());
    let mut download = Download::new(voice);
    let places = Places::from_env();
    let found = match args.load_format {
        LoadFormat::Auto => locate(wanted, &places, &mut download),
        LoadFormat::Dummy => describe(wanted, &places, &mut download),
    };
    download.end();
    let path = found.map_err(|error| match error {
        // As for files that flags name.
        NotThere { .. } => Misuse(error.to_string()).into(),
        error => Error::new(error),
    })?;
    let checkpoint = match args.load_format {
        LoadFormat::Auto => Checkpoint::open(&path)?,
        LoadFormat::Dummy => Checkpoint::open_dummy(&path, 0)?,
    };
    let max = checkpoint.spec().max_positions;
    if let Some(asked) = args.max_model_len.filter(|&asked| asked > max) {
        bail!("--max-model-len {asked} is more than this model can read: ask for at most {max}");
    }
    Ok(Opened {
        name: wanted.unwrap_or(DEFAULT_NAME).to_string(),
        asked: name.unwrap_or(DEFAULT).to_string(),
        checkpoint,
        path,
        tool_format: args.tool_call_parser,
    })
}

/// The model's name with the revision that `--revision` asks for, which only the hub has.
fn revised(name: &str, revision: Option<&str>) -> Result<String> {
    let Some(revision) = revision else { return Ok(name.to_string()) };
    let chosen = RepoId::parse(name).is_some_and(|repo| repo.revision != "main" || name.contains('@'));
    if name == DEFAULT || chosen || Path::new(name).exists() {
        bail!(
            "--revision {revision}: `{name}` has no revisions to choose among; it is for models of the hub (org/name)"
        );
    }
    Ok(format!("{name}@{revision}"))
}

impl Opened {
    /// Where its files are.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Tokenizer, templates and defaults, once: a GGUF file's vocabulary is gone then. `template` is the file of `--chat-template`. The tokenizer's end of text becomes one
    /// of the model's: fine-tunes change that one, and forget the configuration.
    pub(crate) fn text(&mut self, template: Option<&Path>) -> Result<Text> {
        let folder =
            if self.path.is_dir() { &self.path } else { self.path.parent().unwrap_or(Path::new(".")) };
        let (tokenizer, templates) = match self.checkpoint.take_vocab() {
            Some(mut vocab) => {
                let templates = Templates::named(std::mem::take(&mut vocab.chat_templates));
                (Tokenizer::from_gguf(vocab)?, templates)
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
            Some(file) => Templates::one(text_of(file)?),
        };
        if let Some(end) = tokenizer.special_ids().eos {
            self.checkpoint.ends_at(end);
        }
        let (cut, rows) = (tokenizer.text_tokens(), self.checkpoint.spec().vocab);
        if cut > rows {
            note!(
                "the tokenizer cuts text into {cut} tokens, and the model has {rows} (its `vocab_size`): they are hardly of one \
                 model, and prompts with the others are refused"
            );
        }
        let special = special_texts(&tokenizer);
        let generation = match self.path.is_dir() {
            true => read_generation(&self.path)?,
            false => GenerationConfig::default(),
        };
        Ok(Text {
            tokenizer: Arc::new(tokenizer),
            templates,
            tool_format: self.tool_format,
            special,
            generation,
        })
    }
}

impl Text {
    /// The template for conversations without tools, if the model has any.
    pub(crate) fn template(&self) -> Result<Option<ChatTemplate>> {
        self.template_for(Tools::Absent)
    }

    /// The template for conversations with or without tools, if the model has any.
    pub(crate) fn template_for(&self, tools: Tools) -> Result<Option<ChatTemplate>> {
        if self.templates.is_empty() {
            return Ok(None);
        }
        let template = self.templates.choose(tools)?;
        Ok(Some(match self.tool_format {
            Some(format) => template.with_tool_format(format),
            None => template,
        }))
    }
}

fn special_texts(tokenizer: &Tokenizer) -> SpecialTexts {
    let ids = tokenizer.special_ids();
    let text = |id: Option<u32>| id.and_then(|id| tokenizer.token(id));
    SpecialTexts { bos: text(ids.bos), eos: text(ids.eos), pad: text(ids.pad), unk: text(ids.unk) }
}
