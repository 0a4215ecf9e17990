//! Whether the files that a store was packed from are still what they were. What a store is known by has samples of them alone:
//! of 13 GB one in fifty thousand bytes.

use serde::{Deserialize, Serialize};

use crate::checkpoint::Checkpoint;
use crate::error::{Error, Result};
use crate::file::{RegularFile, Written};

/// Bytes that are read at a time.
const PIECE_BYTES: usize = 8 << 20;

/// What is kept of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SourceFile {
    #[serde(flatten)]
    pub(super) written: Written,
    /// Of all that it holds.
    crc32: u32,
}

/// When each file was last written: where that is as it was, nobody reads them.
pub(super) fn written(checkpoint: &Checkpoint) -> Vec<Written> {
    checkpoint.files().iter().map(RegularFile::written).collect()
}

/// What the files are now. Reads all of them.
///
/// # Errors
/// If one cannot be read, or has been written to since the checkpoint was opened.
pub(super) fn sources(checkpoint: &Checkpoint) -> Result<Vec<SourceFile>> {
    checkpoint.files().iter().map(source).collect()
}

fn source(file: &RegularFile) -> Result<SourceFile> {
    let crc32 = crc32(file)?;
    if !file.is_as_opened()? {
        let found = "written to while it was read";
        return Err(Error::malformed(&file.name(), found, "a file that stays as it is; start again"));
    }
    Ok(SourceFile { written: file.written(), crc32 })
}

/// Whether these hold the same, whenever they were written.
pub(super) fn hold_the_same(a: &[SourceFile], b: &[SourceFile]) -> bool {
    a.iter().map(|file| file.crc32).eq(b.iter().map(|file| file.crc32))
}

fn crc32(file: &RegularFile) -> Result<u32> {
    let mut hash = crc32fast::Hasher::new();
    let mut piece = vec![0; PIECE_BYTES.min(file.len() as usize)];
    for offset in (0..file.len()).step_by(PIECE_BYTES) {
        let bytes = PIECE_BYTES.min((file.len() - offset) as usize);
        file.read_at(offset, &mut piece[..bytes])?;
        hash.update(&piece[..bytes]);
    }
    kernels::page_cache::forget(file.reader());
    Ok(hash.finalize())
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::path::Path;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::{Duration, SystemTime};

    use kernels::{AlignedBytes, Team};

    use super::*;
    use crate::config::parse_config;
    use crate::decoder::{Blueprint, WeightsAs};
    use crate::store::make::forget_from;
    use crate::store::{Maker, Store, Stretch};
    use crate::tensor::Naming;
    use crate::testing::{llama_config, safetensors, tensors_of, write};

    /// Writes a model's configuration; the bytes of its weights.
    fn weights(model: &Path, changes: serde_json::Value) -> Vec<u8> {
        let text = llama_config(changes);
        let spec = parse_config(&text, "config.json").expect("sound").spec;
        write(model, "config.json", text);
        safetensors(&tensors_of(&spec, Naming::Llama))
    }

    /// Changes numbers in the middle of two samples, behind what is read as a header.
    fn change(bytes: &mut [u8], to: u8) {
        let between = bytes.len() / 64;
        bytes[40 * between + between / 2..][..8].fill(to);
    }

    /// The store of a model in `home`, and whether it was packed just now.
    fn store(model: &Path, home: &Path) -> (Store, bool) {
        let checkpoint = Checkpoint::open(model).expect("a checkpoint");
        let stored = |tensor| checkpoint.info(tensor).expect("such a tensor").stored;
        let blueprint = Blueprint::new(checkpoint.spec(), WeightsAs::Bf16, stored);
        let packed = AtomicUsize::new(0);
        let maker = Maker { checkpoint: &checkpoint, blueprint: &blueprint, home };
        let count = |_| _ = packed.fetch_add(1, Ordering::Relaxed);
        let store = maker.make(&Team::new(1), &count).expect("a store");
        (store, packed.into_inner() > 0)
    }

    /// Its panels.
    fn panels(model: &Path, home: &Path) -> (Vec<u8>, bool) {
        let (store, packed) = store(model, home);
        (fs::read(store.folder().join("panels.bin")).expect("readable"), packed)
    }

    #[test]
    fn who_reads_a_store_keeps_it_while_it_is_packed_again() {
        let [model, home] = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
        let mut bytes = weights(model.path(), serde_json::json!({"vocab_size": 60_000}));
        write(model.path(), "model.safetensors", &bytes);
        let (before, packed) = store(model.path(), home.path());
        assert!(packed);
        let room = || AlignedBytes::zeroed(before.layout().bytes() as usize);
        let read = |into: &mut [u8]| {
            before.panels().read(vec![Stretch { offset: 0, into }]).expect("readable");
        };
        let (mut held, mut again) = (room(), room());
        read(&mut held);
        change(&mut bytes, 0x42);
        write(model.path(), "model.safetensors", &bytes);
        let (after, packed) = store(model.path(), home.path());
        assert!(packed && after.folder() == before.folder());
        read(&mut again);
        assert!(*again == *held, "what is read was written over");
        // Nor does it say anything of the other one.
        forget_from(before.folder(), before.panels().file(), 0).expect("said");
        assert!(!store(model.path(), home.path()).1, "a sound store was packed again");
        forget_from(after.folder(), after.panels().file(), 0).expect("said");
        assert!(store(model.path(), home.path()).1);
    }

    #[test]
    fn files_that_change_while_they_are_packed_make_no_store() {
        let [model, home] = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
        let bytes = weights(model.path(), serde_json::json!({}));
        write(model.path(), "model.safetensors", bytes);
        let checkpoint = Checkpoint::open(model.path()).expect("a checkpoint");
        let stored = |tensor| checkpoint.info(tensor).expect("such a tensor").stored;
        let blueprint = Blueprint::new(checkpoint.spec(), WeightsAs::Bf16, stored);
        let maker = Maker { checkpoint: &checkpoint, blueprint: &blueprint, home: home.path() };
        let file = model.path().join("model.safetensors");
        let touched = |_| {
            let file = File::options().write(true).open(&file).expect("a file");
            file.set_modified(SystemTime::UNIX_EPOCH).expect("a time");
        };
        let why = maker.make(&Team::new(1), &touched).map(drop).unwrap_err().to_string();
        assert!(why.contains("model.safetensors") && why.contains("written to while"), "{why}");
        assert!(maker.open().expect("no failure").is_none());
    }

    #[test]
    fn a_store_is_packed_again_where_its_files_have_changed_between_samples_and_not_where_they_were_touched()
    {
        let [model, home, other] = [(); 3].map(|()| tempfile::tempdir().expect("a folder"));
        let mut bytes = weights(model.path(), serde_json::json!({"vocab_size": 60_000}));
        let file = model.path().join("model.safetensors");
        let written_at = |bytes: &[u8], seconds| {
            fs::write(&file, bytes).expect("written");
            let time = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
            File::options().write(true).open(&file).and_then(|file| file.set_modified(time)).expect("a time");
        };
        written_at(&bytes, 1_000);
        let (first, packed) = panels(model.path(), home.path());
        assert!(packed);
        written_at(&bytes, 2_000);
        assert_eq!(panels(model.path(), home.path()), (first.clone(), false), "the same numbers");
        // By a copy that keeps the time, too.
        let mut last = first;
        for (number, seconds) in [(0x42, 3_000), (0x43, 3_000)] {
            change(&mut bytes, number);
            written_at(&bytes, seconds);
            let (changed, packed) = panels(model.path(), home.path());
            assert!(packed && changed != last);
            last = changed;
        }
        assert_eq!((last, true), panels(model.path(), other.path()));
    }
}
