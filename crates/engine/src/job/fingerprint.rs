//! Tells models apart without reading them whole.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

use model::gguf::siblings;
use model::template::TEMPLATES;
use sha2::{Digest, Sha256};

use super::input::hex;

/// What a model is made of.
const KINDS: [&str; 6] = ["json", "safetensors", "gguf", "model", "txt", "jinja"];
/// Of longer files than two of these, the beginning and the end, and samples between them.
const PART: u64 = 1 << 20;
/// Places between them that are looked at, and bytes at each.
const SAMPLES: u64 = 64;
const SAMPLE_BYTES: u64 = 4096;

/// A digest of a model, a folder or a file with the parts that belong to it: names and lengths of its files, their beginnings and
/// ends (where headers are) and samples of what lies between, where weights are that somebody may have changed. The same wherever
/// the model lies.
///
/// # Errors
/// A file that cannot be read.
pub fn fingerprint(model: &Path) -> io::Result<String> {
    let mut digest = Sha256::new();
    if model.is_dir() {
        add_folder(&mut digest, model)?;
        let templates = model.join(TEMPLATES);
        if templates.is_dir() {
            add_folder(&mut digest, &templates)?;
        }
    } else {
        for part in siblings(model).unwrap_or_else(|| vec![model.to_owned()]) {
            add(&mut digest, &part)?;
        }
    }
    Ok(hex(&digest.finalize())[..16].to_string())
}

fn add_folder(digest: &mut Sha256, folder: &Path) -> io::Result<()> {
    let mut files: Vec<_> =
        fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<io::Result<_>>()?;
    files.retain(|path| path.is_file() && path.extension().is_some_and(|e| KINDS.iter().any(|k| e == *k)));
    files.sort();
    for path in files {
        digest.update(path.file_name().unwrap_or_default().as_encoded_bytes());
        digest.update(b"\0");
        add(digest, &path)?;
    }
    Ok(())
}

fn add(digest: &mut Sha256, path: &Path) -> io::Result<()> {
    let mut file = File::open(path)?;
    let len = file.metadata()?.len();
    digest.update(len.to_le_bytes());
    let mut part = Vec::new();
    file.by_ref().take(PART).read_to_end(&mut part)?;
    let end = len.saturating_sub(PART).max(PART);
    if len > PART {
        let apart = (end - PART) / SAMPLES;
        for at in (0..SAMPLES).map(|i| PART + i * apart).filter(|_| apart > 0) {
            file.seek(SeekFrom::Start(at))?;
            file.by_ref().take(apart.min(SAMPLE_BYTES)).read_to_end(&mut part)?;
        }
        file.seek(SeekFrom::Start(end))?;
        file.take(PART).read_to_end(&mut part)?;
    }
    digest.update(&part);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_makes_another_model_shows_and_where_it_lies_does_not() {
        let (one, two) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
        let weights = vec![7u8; 3 << 20];
        for folder in [&one, &two] {
            fs::write(folder.path().join("config.json"), "{}").expect("written");
            fs::write(folder.path().join("model.safetensors"), &weights).expect("written");
        }
        fs::write(two.path().join("notes.md"), "mine").expect("written");
        let of = |folder: &tempfile::TempDir| fingerprint(folder.path()).expect("readable");
        assert_eq!(of(&one), of(&two));
        // At its end, and in a tensor in the middle of it.
        for changed in [weights.len() - 1..weights.len(), (3 << 19)..(3 << 19) + (64 << 10)] {
            let mut other = weights.clone();
            other[changed].fill(8);
            fs::write(two.path().join("model.safetensors"), &other).expect("written");
            assert_ne!(of(&one), of(&two));
        }
    }

    #[test]
    fn later_parts_and_further_templates_count() {
        let folder = tempfile::tempdir().expect("a folder");
        let name = |name: &str| folder.path().join(name);
        let first = name("m-00001-of-00002.gguf");
        let written = |name: &Path, text: &str| fs::write(name, text).expect("written");
        written(&first, "metadata alone");
        fingerprint(&first).expect_err("a part is missing");
        written(&name("m-00002-of-00002.gguf"), "weights");
        let of_parts = fingerprint(&first).expect("whole");
        written(&name("m-00002-of-00002.gguf"), "others.");
        assert_ne!(fingerprint(&first).expect("whole"), of_parts);

        let of_folder = || fingerprint(folder.path()).expect("readable");
        let without = of_folder();
        fs::create_dir(name(TEMPLATES)).expect("made");
        written(&name(TEMPLATES).join("tool_use.jinja"), "tools");
        assert_ne!(of_folder(), without);
    }
}
