//! Where models are kept and fetched from: the environment, read once.

use std::path::{Path, PathBuf};

const HUB: &str = "https://huggingface.co";

/// Caches, addresses and credentials.
#[derive(Clone)]
pub struct Places {
    /// The hub's cache, in the layout of its own client.
    pub hub_cache: PathBuf,
    /// Our cache.
    pub cache: PathBuf,
    /// Address of the hub, without a slash at its end.
    pub hub: String,
    /// The hub's access token.
    pub token: Option<String>,
    /// Whether the hub may not be asked.
    pub offline: bool,
    /// The commands that may be pip, best first.
    pub pip_commands: Vec<Vec<String>>,
    /// The package indexes that pip's configuration names, best first.
    pub indexes: Vec<String>,
}

/// Reads a variable; an empty one counts as absent.
pub(super) type Variable<'a> = &'a dyn Fn(&str) -> Option<String>;

impl Places {
    /// What the environment says.
    pub fn from_env() -> Places {
        // Services often have no HOME: the system's list of users knows theirs.
        let listed = |name: &str| match name {
            "HOME" => std::env::home_dir()?.into_os_string().into_string().ok(),
            _ => None,
        };
        Places::from(&|name| {
            std::env::var(name).ok().or_else(|| listed(name)).filter(|value| !value.is_empty())
        })
    }

    /// What these variables say: `HF_HUB_CACHE`, `HF_HOME`, `XDG_CACHE_HOME`, `HOME`, `BALLAST_CACHE`,
    /// `HF_ENDPOINT`, `HF_TOKEN`, `HF_TOKEN_PATH`, `HF_HUB_OFFLINE`, and those of pip; older names of these too, as the hub's own
    /// client takes them.
    pub(super) fn from(variable: Variable) -> Places {
        let home = variable("HOME").map_or_else(|| PathBuf::from("."), PathBuf::from);
        let path = |name: &str| variable(name).map(|value| expanded(&value, &home));
        let caches = path("XDG_CACHE_HOME").unwrap_or_else(|| home.join(".cache"));
        let hub_home = path("HF_HOME").unwrap_or_else(|| caches.join("huggingface"));
        let token_file = path("HF_TOKEN_PATH").unwrap_or_else(|| hub_home.join("token"));
        let named = variable("HF_TOKEN").or_else(|| variable("HUGGING_FACE_HUB_TOKEN"));
        let token = named.or_else(|| std::fs::read_to_string(token_file).ok());
        let hub = variable("HF_ENDPOINT").unwrap_or_else(|| HUB.into());
        let offline = variable("HF_HUB_OFFLINE").or_else(|| variable("TRANSFORMERS_OFFLINE"));
        Places {
            hub_cache: path("HF_HUB_CACHE")
                .or_else(|| path("HUGGINGFACE_HUB_CACHE"))
                .unwrap_or_else(|| hub_home.join("hub")),
            cache: path("BALLAST_CACHE").unwrap_or_else(|| caches.join("ballast")),
            hub: hub.trim_end_matches('/').into(),
            token: token.map(|t| t.trim().to_owned()).filter(|t| !t.is_empty()),
            offline: offline.is_some_and(|value| is_true(&value)),
            pip_commands: super::pip::commands(),
            indexes: super::pip::indexes(variable, &home),
        }
    }
}

/// The token stays out of logs.
impl std::fmt::Debug for Places {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Places")
            .field("hub_cache", &self.hub_cache)
            .field("cache", &self.cache)
            .field("hub", &self.hub)
            .field("token", &self.token.as_ref().map(|_| "..."))
            .field("offline", &self.offline)
            .finish_non_exhaustive()
    }
}

/// A path in which no shell has replaced a `~` at the beginning, as in a service's file.
fn expanded(path: &str, home: &Path) -> PathBuf {
    match path.strip_prefix('~') {
        Some(rest) if rest.is_empty() || rest.starts_with('/') => home.join(rest.trim_start_matches('/')),
        _ => PathBuf::from(path),
    }
}

fn is_true(value: &str) -> bool {
    matches!(value.to_ascii_lowercase().as_str(), "1" | "true" | "yes" | "on")
}
