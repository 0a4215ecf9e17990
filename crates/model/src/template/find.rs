//! Where a model's chat templates are published, in order of precedence: `chat_template.jinja`,
//! `tokenizer_config.json`, `chat_template.json`, and the GGUF file.

use std::path::Path;

use serde::Deserialize;

use super::{ChatTemplate, TemplateError};
use crate::tokenizer::{TemplateField, TokenizerConfig};

/// The folder of a model's further templates.
pub const TEMPLATES: &str = "additional_chat_templates";
/// The one for conversations without tools.
const DEFAULT: &str = "default";

/// The templates of a model, by name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Templates {
    named: Vec<(String, String)>,
}

#[derive(Deserialize)]
struct ChatTemplateJson {
    chat_template: TemplateField,
}

impl Templates {
    /// Looks in a model's directory; `config` is its tokenizer_config.json. Files win over it; where they are additional ones
    /// alone, the default is its own.
    pub fn find(dir: &Path, config: &TokenizerConfig) -> Result<Self, TemplateError> {
        let mut templates = read(&dir.join("chat_template.jinja"))?.map(Templates::one).unwrap_or_default();
        templates.add_directory(&dir.join(TEMPLATES))?;
        if templates.get(DEFAULT).is_some() {
            return Ok(templates);
        }
        let mut rest = Templates::elsewhere(dir, config)?;
        rest.named.retain(|(name, _)| templates.get(name).is_none());
        templates.named.extend(rest.named);
        Ok(templates)
    }

    /// Where no file of Jinja says what the default is.
    fn elsewhere(dir: &Path, config: &TokenizerConfig) -> Result<Self, TemplateError> {
        if let Some(field) = &config.chat_template {
            return Ok(Templates::of(field));
        }
        let path = dir.join("chat_template.json");
        match read(&path)? {
            Some(json) => match serde_json::from_str::<ChatTemplateJson>(&json) {
                Ok(found) => Ok(Templates::of(&found.chat_template)),
                Err(e) => Err(TemplateError::Read { path, why: e.to_string() }),
            },
            None => Ok(Templates::default()),
        }
    }

    /// Templates by name, from a GGUF file.
    pub fn named(named: Vec<(String, String)>) -> Self {
        Templates { named }
    }

    /// One template, from the command line.
    pub fn one(source: String) -> Self {
        Templates { named: vec![(DEFAULT.to_owned(), source)] }
    }

    fn of(field: &TemplateField) -> Self {
        match field {
            TemplateField::One(source) => Templates::one(source.clone()),
            TemplateField::Named(list) => {
                let named = list.iter().map(|t| (t.name.clone(), t.template.clone()));
                Templates { named: named.collect() }
            }
            TemplateField::Map(map) => Templates { named: map.clone().into_iter().collect() },
        }
    }

    fn add_directory(&mut self, dir: &Path) -> Result<(), TemplateError> {
        let Ok(entries) = std::fs::read_dir(dir) else { return Ok(()) };
        let mut paths: Vec<_> = entries.filter_map(|e| Some(e.ok()?.path())).collect();
        paths.retain(|p| p.extension().is_some_and(|e| e == "jinja"));
        paths.sort();
        for path in paths {
            let name = path.file_stem().map(|s| s.to_string_lossy().into_owned());
            if let (Some(name), Some(source)) = (name, read(&path)?) {
                self.named.push((name, source));
            }
        }
        Ok(())
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.named.is_empty()
    }

    /// The template for a conversation, as transformers chooses it: `tool_use` where there are tools
    /// and such a template, else `default`.
    pub fn choose(&self, tools: Tools) -> Result<ChatTemplate, TemplateError> {
        let tool_use = if tools == Tools::Given { self.get("tool_use") } else { None };
        match tool_use.or(self.get(DEFAULT)) {
            Some(source) => ChatTemplate::new(source),
            None if self.named.is_empty() => Err(TemplateError::Missing),
            None => Err(TemplateError::Unnamed { name: DEFAULT.to_owned(), known: self.names() }),
        }
    }

    fn get(&self, name: &str) -> Option<&str> {
        self.named.iter().find(|(n, _)| n == name).map(|(_, source)| source.as_str())
    }

    fn names(&self) -> String {
        self.named.iter().map(|(n, _)| n.as_str()).collect::<Vec<_>>().join(", ")
    }
}

/// Whether a conversation has tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tools {
    /// It has.
    Given,
    /// It has none.
    Absent,
}

fn read(path: &Path) -> Result<Option<String>, TemplateError> {
    let wrong = |why: String| TemplateError::Read { path: path.to_owned(), why };
    match std::fs::metadata(path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(wrong(e.to_string())),
        Ok(meta) if !meta.is_file() => Err(wrong("it is not a file".to_owned())),
        Ok(meta) if meta.len() > super::MAX_SOURCE_BYTES as u64 => {
            Err(TemplateError::TooLong { found: meta.len() as usize, limit: super::MAX_SOURCE_BYTES })
        }
        Ok(_) => std::fs::read_to_string(path).map(Some).map_err(|e| wrong(e.to_string())),
    }
}
