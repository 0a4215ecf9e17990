//! The packed store: made once, continued where it was interrupted, checked when it is read.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use kernels::{AlignedBytes, Team};
use model::Checkpoint;
use model::decoder::{Blueprint, WeightsAs};
use model::store::{CHECKED_EVERY, Maker, Removal, Run, Store, kept};
use spec::ModelSpec;

fn checkpoint() -> Checkpoint {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/llama-gqa-tied");
    Checkpoint::open(&folder).expect("a committed checkpoint")
}

fn blueprint(checkpoint: &Checkpoint, weights: WeightsAs) -> Blueprint {
    Blueprint::new(checkpoint.spec(), weights, |tensor| checkpoint.info(tensor).expect("it has it").stored)
}

/// Every panel of every matrix.
fn contents(store: &Store) -> Vec<Vec<u8>> {
    let layout = store.layout();
    let matrix = |(index, place): (usize, &model::store::Place)| {
        let run = layout.run(index, 0..place.panels, 0);
        let mut memory = AlignedBytes::zeroed(run.bytes().max(2 << 20));
        store.read(std::slice::from_ref(&run), &mut memory).expect("readable");
        memory[run.skip..][..run.panel_bytes()].to_vec()
    };
    layout.places().iter().enumerate().map(matrix).collect()
}

fn panels(home: &Path) -> PathBuf {
    let folder = std::fs::read_dir(home).expect("a folder").next().expect("a store").expect("readable");
    folder.path().join("panels.bin")
}

#[test]
fn an_interrupted_store_continues_and_is_the_same() {
    let (checkpoint, team) = (checkpoint(), Team::new(2));
    for weights in [WeightsAs::Bf16, WeightsAs::Int4] {
        let blueprint = blueprint(&checkpoint, weights);
        let (whole, broken) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let maker = |home| Maker { checkpoint: &checkpoint, blueprint: &blueprint, home };
        let first = maker(whole.path()).make(&team, &|_| {}).unwrap();
        let half = first.layout().bytes() / 2;
        let dies = |bytes| assert!(bytes < half, "killed here");
        let died = catch_unwind(AssertUnwindSafe(|| maker(broken.path()).make(&team, &dies).map(drop)));
        assert!(died.is_err(), "it was to be interrupted");
        assert!(maker(broken.path()).open().unwrap().is_none(), "half a store is none");
        let least = AtomicU64::new(u64::MAX);
        let told = |bytes| {
            least.fetch_min(bytes, Ordering::Relaxed);
        };
        let second = maker(broken.path()).make(&team, &told).unwrap();
        assert!(least.into_inner() > half / 2, "it began anew");
        assert_eq!(contents(&first), contents(&second));
        let again = Mutex::new(0);
        maker(broken.path()).make(&team, &|_| *again.lock().unwrap() += 1).unwrap();
        assert_eq!(again.into_inner().unwrap(), 0, "a whole store was made again");
    }
}

#[test]
fn damage_is_found_by_the_first_read_and_packed_again_by_the_next_engine() {
    let (checkpoint, home, team) = (checkpoint(), tempfile::tempdir().unwrap(), Team::new(1));
    let blueprint = blueprint(&checkpoint, WeightsAs::Bf16);
    let maker = Maker { checkpoint: &checkpoint, blueprint: &blueprint, home: home.path() };
    let sound = contents(&maker.make(&team, &|_| {}).unwrap());
    let store = maker.open().unwrap().expect("it is whole");
    let (matrix, place) = (3, &store.layout().places()[3]);
    let path = panels(home.path());
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[place.offset as usize + 100] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    let mut memory = AlignedBytes::zeroed(2 << 20);
    let mut read =
        || store.read(&[store.layout().run(matrix, 0..1, 0)], &mut memory).unwrap_err().to_string();
    for _ in 0..2 {
        let text = read();
        assert!(text.contains("damaged") && text.contains("start again"), "{text}");
    }
    assert!(maker.open().unwrap().is_none(), "nobody uses it as it is");
    let least = AtomicU64::new(u64::MAX);
    let told = |bytes| {
        least.fetch_min(bytes, Ordering::Relaxed);
    };
    let again = maker.make(&team, &told).unwrap();
    assert!(least.into_inner() > place.offset, "what is sound was packed again");
    assert!(contents(&again) == sound, "the damage is still there");
    // Who may not say so in its folder tells what to do.
    std::fs::remove_file(path.with_file_name("lock")).unwrap();
    std::fs::write(&path, &bytes).unwrap();
    let text = read();
    assert!(text.contains("damaged") && text.contains("--offload-dir"), "{text}");
}

#[test]
fn a_store_that_was_ruined_is_named_and_made_again() {
    let (checkpoint, home, team) = (checkpoint(), tempfile::tempdir().unwrap(), Team::new(1));
    let blueprint = blueprint(&checkpoint, WeightsAs::Bf16);
    let maker = Maker { checkpoint: &checkpoint, blueprint: &blueprint, home: home.path() };
    let sound = contents(&maker.make(&team, &|_| {}).unwrap());
    let path = panels(home.path());
    let ruin = |name: &str, of: &dyn Fn(Vec<u8>) -> Option<Vec<u8>>| {
        let path = path.with_file_name(name);
        match of(std::fs::read(&path).unwrap()) {
            Some(bytes) => std::fs::write(&path, bytes).unwrap(),
            None => std::fs::remove_file(&path).unwrap(),
        }
        let text = maker.open().unwrap_err().to_string();
        assert!(text.contains(name) && text.contains("packed again"), "{text}");
        assert!(contents(&maker.make(&team, &|_| {}).unwrap()) == sound, "{name}");
    };
    ruin("panels.bin", &|bytes| Some(bytes[..bytes.len() - 4096].to_vec()));
    ruin("panels.bin", &|bytes| Some([bytes, vec![0; 4096]].concat()));
    ruin("panels.bin", &|_| None);
    ruin("checksums.bin", &|bytes| Some(bytes[..bytes.len() - 4].to_vec()));
    ruin("checksums.bin", &|mut bytes| {
        bytes[100] ^= 1;
        Some(bytes)
    });
    ruin("checksums.bin", &|_| None);
    ruin("manifest.json", &|bytes| Some(bytes[..bytes.len() / 2].to_vec()));
    ruin("manifest.json", &|_| Some(b"{}".to_vec()));
}

/// Reads of a panel until it is found to be damaged.
fn reads_until_found(store: &Store, run: &Run, memory: &mut [u8]) -> Option<u32> {
    let is_found = |_: &u32| store.read(std::slice::from_ref(run), memory).is_err();
    (1..=2 * CHECKED_EVERY).find(is_found)
}

#[test]
fn damage_that_comes_later_is_found_by_a_rotating_share_of_reads() {
    let (checkpoint, home) = (checkpoint(), tempfile::tempdir().unwrap());
    let blueprint = blueprint(&checkpoint, WeightsAs::Bf16);
    let maker = Maker { checkpoint: &checkpoint, blueprint: &blueprint, home: home.path() };
    let store = maker.make(&Team::new(1), &|_| {}).unwrap();
    contents(&store);
    let mut bytes = std::fs::read(panels(home.path())).unwrap();
    bytes.iter_mut().for_each(|byte| *byte ^= 1);
    std::fs::write(panels(home.path()), &bytes).unwrap();
    let layout = store.layout();
    let each = |(index, place): (usize, &model::store::Place)| {
        (0..place.panels).map(|panel| layout.run(index, panel..panel + 1, 0)).collect::<Vec<Run>>()
    };
    let runs: Vec<Run> = layout.places().iter().enumerate().flat_map(each).collect();
    let mut memory = AlignedBytes::zeroed(2 << 20);
    let found: Vec<u32> =
        runs.iter().map(|run| reads_until_found(&store, run, &mut memory).expect("found")).collect();
    assert!(found.iter().all(|&reads| reads <= CHECKED_EVERY), "{found:?}");
    // Each pass compares another share, so that none takes much longer than the others.
    let share = runs.len().div_ceil(CHECKED_EVERY as usize);
    for pass in 1..=CHECKED_EVERY {
        let checked = found.iter().filter(|&&reads| reads == pass).count();
        assert!(checked <= share, "pass {pass} compares {checked} of {} panels", runs.len());
    }
    assert_eq!(
        reads_until_found(&store, &runs[0], &mut memory),
        Some(1),
        "whoever reads it again is told again"
    );
}

#[test]
fn another_version_is_named() {
    let (checkpoint, home) = (checkpoint(), tempfile::tempdir().unwrap());
    let blueprint = blueprint(&checkpoint, WeightsAs::Bf16);
    let maker = Maker { checkpoint: &checkpoint, blueprint: &blueprint, home: home.path() };
    maker.make(&Team::new(1), &|_| {}).unwrap();
    let manifest = panels(home.path()).with_file_name("manifest.json");
    let text = std::fs::read_to_string(&manifest).unwrap();
    std::fs::write(&manifest, text.replace("\"version\": 1", "\"version\": 9")).unwrap();
    let text = maker.open().unwrap_err().to_string();
    assert!(text.contains("version 9") && text.contains("reads 1"), "{text}");
}

#[test]
fn formats_and_models_have_stores_of_their_own() {
    let (checkpoint, home) = (checkpoint(), Path::new("anywhere"));
    let place = |checkpoint: &Checkpoint, weights| {
        let blueprint = blueprint(checkpoint, weights);
        Maker { checkpoint, blueprint: &blueprint, home }.place().unwrap().0
    };
    let dummy = Checkpoint::dummy(checkpoint.spec().clone(), 1);
    let other = Checkpoint::dummy(checkpoint.spec().clone(), 2);
    let places = [
        place(&checkpoint, WeightsAs::Bf16),
        place(&checkpoint, WeightsAs::Int8),
        place(&dummy, WeightsAs::Bf16),
        place(&other, WeightsAs::Bf16),
    ];
    assert_eq!(place(&checkpoint, WeightsAs::Bf16), places[0]);
    // What only tells how they are used.
    let mut ends_elsewhere = self::checkpoint();
    ends_elsewhere.ends_at(7);
    assert_eq!(place(&ends_elsewhere, WeightsAs::Bf16), places[0]);
    let shorter = ModelSpec { max_positions: 8, eos: vec![1, 2], ..checkpoint.spec().clone() };
    assert_eq!(place(&Checkpoint::dummy(shorter, 1), WeightsAs::Bf16), places[2]);
    assert!((1..4).all(|i| !places[..i].contains(&places[i])), "{places:?}");
}

#[test]
fn an_empty_manifest_is_none_and_nothing_is_packed_again() {
    let (checkpoint, home, team) = (checkpoint(), tempfile::tempdir().unwrap(), Team::new(1));
    let blueprint = blueprint(&checkpoint, WeightsAs::Bf16);
    let maker = Maker { checkpoint: &checkpoint, blueprint: &blueprint, home: home.path() };
    let want = contents(&maker.make(&team, &|_| {}).unwrap());
    std::fs::write(panels(home.path()).with_file_name("manifest.json"), "").unwrap();
    assert!(maker.open().unwrap().is_none());
    let store = maker.make(&team, &|_| panic!("all panels are there")).unwrap();
    assert_eq!(contents(&store), want);
}

/// Others may share its folder to read.
#[test]
fn a_store_that_is_whole_is_opened_without_a_write() {
    let (checkpoint, home, team) = (checkpoint(), tempfile::tempdir().unwrap(), Team::new(1));
    let blueprint = blueprint(&checkpoint, WeightsAs::Bf16);
    let maker = Maker { checkpoint: &checkpoint, blueprint: &blueprint, home: home.path() };
    let want = contents(&maker.make(&team, &|_| {}).unwrap());
    let lock = panels(home.path()).with_file_name("lock");
    std::fs::remove_file(&lock).unwrap();
    assert_eq!(contents(&maker.make(&team, &|_| panic!("it is whole")).unwrap()), want);
    assert!(!lock.exists(), "nothing was to be made");
}

#[test]
fn a_drive_that_is_too_small_is_refused_before_anything_is_packed() {
    let spec = ModelSpec { hidden: 1 << 20, ffn: 1 << 22, layers: 512, ..checkpoint().spec().clone() };
    let (checkpoint, home) = (Checkpoint::dummy(spec, 1), tempfile::tempdir().unwrap());
    let blueprint = blueprint(&checkpoint, WeightsAs::Bf16);
    let maker = Maker { checkpoint: &checkpoint, blueprint: &blueprint, home: home.path() };
    assert!(blueprint.bytes() as u64 > 1 << 52);
    let text = maker.make(&Team::new(1), &|_| panic!("packed")).map(drop).unwrap_err().to_string();
    assert!(text.contains("--offload-dir") && text.contains("free"), "{text}");
    assert_eq!(std::fs::metadata(panels(home.path())).unwrap().len(), 0);
    assert_eq!(maker.held_bytes().unwrap(), 0);
}

#[test]
fn the_room_of_a_store_is_there_from_the_beginning() {
    let (checkpoint, home, team) = (checkpoint(), tempfile::tempdir().unwrap(), Team::new(1));
    let blueprint = blueprint(&checkpoint, WeightsAs::Bf16);
    let maker = Maker { checkpoint: &checkpoint, blueprint: &blueprint, home: home.path() };
    let held = AtomicU64::new(u64::MAX);
    let told = |_| _ = held.fetch_min(maker.held_bytes().unwrap(), Ordering::Relaxed);
    let layout = maker.make(&team, &told).unwrap().layout().bytes();
    assert!(held.into_inner() >= layout, "taken before the first piece");
}

#[test]
fn a_full_drive_is_named_and_the_store_can_be_made_later() {
    let (checkpoint, home, team) = (checkpoint(), tempfile::tempdir().unwrap(), Team::new(1));
    let blueprint = blueprint(&checkpoint, WeightsAs::Bf16);
    let maker = Maker { checkpoint: &checkpoint, blueprint: &blueprint, home: home.path() };
    let (folder, _) = maker.place().unwrap();
    std::fs::create_dir_all(&folder).unwrap();
    let panels = folder.join("panels.bin");
    std::os::unix::fs::symlink("/dev/full", &panels).unwrap();
    let text = maker.make(&team, &|_| {}).map(drop).unwrap_err().to_string();
    assert!(text.contains("the drive is full") && text.contains("--offload-dir"), "{text}");
    assert!(maker.open().unwrap().is_none(), "what was not written is no store");
    std::fs::remove_file(&panels).unwrap();
    let layout = maker.make(&team, &|_| {}).unwrap().layout().bytes();
    assert_eq!(std::fs::metadata(&panels).unwrap().len(), layout);
}

/// Stores of committed checkpoints: the sum of their panels' checksums. Kernels read panels as they were packed once, maybe by an
/// earlier program: who changes how numbers lie in them raises the version of stores, and writes down the new sums.
const PACKED: (u64, [(&str, WeightsAs, u32); 8]) = (
    1,
    [
        ("llama-gqa-tied", WeightsAs::Bf16, 3_844_957_929),
        ("llama-gqa-tied", WeightsAs::Bf12, 3_215_330_305),
        ("llama-gqa-tied", WeightsAs::Int8, 3_615_159_228),
        ("llama-gqa-tied", WeightsAs::Int4, 3_981_040_745),
        ("gguf-k/model.gguf", WeightsAs::Stored, 1_867_842_956),
        ("gguf-legacy/model.gguf", WeightsAs::Stored, 2_536_491_446),
        ("gguf-q4_0/model.gguf", WeightsAs::Stored, 760_111_219),
        ("gguf-q8_0/model.gguf", WeightsAs::Stored, 535_287_330),
    ],
);

#[test]
fn panels_of_a_version_are_packed_alike() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let packed = |(name, weights): (&str, WeightsAs)| -> (serde_json::Value, u32) {
        let checkpoint = Checkpoint::open(&golden.join(name)).expect("a committed checkpoint");
        let (blueprint, home) = (blueprint(&checkpoint, weights), tempfile::tempdir().unwrap());
        let maker = Maker { checkpoint: &checkpoint, blueprint: &blueprint, home: home.path() };
        maker.make(&Team::new(1), &|_| {}).unwrap();
        let file = |name| std::fs::read(panels(home.path()).with_file_name(name)).unwrap();
        // Behind the header, which has the fingerprint and when the checkpoint's files were written.
        let sums = &file("checksums.bin")[64..];
        (serde_json::from_slice(&file("manifest.json")).unwrap(), crc32fast::hash(sums))
    };
    let stores = PACKED.1.iter().map(|&(name, weights, _)| packed((name, weights)));
    let (manifests, sums): (Vec<_>, Vec<_>) = stores.unzip();
    let wanted: Vec<_> = PACKED.1.iter().map(|(.., sum)| *sum).collect();
    assert_eq!(manifests[0]["version"], PACKED.0, "the version was raised: write it and {sums:?} down");
    assert_eq!(sums, wanted, "panels changed: raise `store::manifest::VERSION`");
}

#[test]
fn a_store_whose_format_cannot_hold_the_weights_leaves_nothing_on_the_drive() {
    let (model, home) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/llama-gqa-tied");
    std::fs::copy(golden.join("config.json"), model.path().join("config.json")).unwrap();
    let mut bytes = std::fs::read(golden.join("model.safetensors")).unwrap();
    let data = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    // 2^-40 to 2^-1, by turns.
    for (i, weight) in bytes[data..].chunks_exact_mut(2).enumerate() {
        weight.copy_from_slice(&((87 + i as u16 % 40) << 7).to_le_bytes());
    }
    std::fs::write(model.path().join("model.safetensors"), &bytes).unwrap();
    let checkpoint = Checkpoint::open(model.path()).unwrap();
    let blueprint = blueprint(&checkpoint, WeightsAs::Bf12);
    let maker = Maker { checkpoint: &checkpoint, blueprint: &blueprint, home: home.path() };
    // Whoever waits for the lock, or comes while its folder goes, finds out why as well.
    let make = || maker.make(&Team::new(1), &|_| {}).map(drop).unwrap_err();
    for _ in 0..20 {
        let all: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(make)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(all.iter().all(|why| matches!(why, model::Error::TooVaried { .. })), "{all:?}");
        assert_eq!(std::fs::read_dir(home.path()).unwrap().count(), 0);
    }
}

#[test]
fn what_stays_in_the_way_of_a_store_is_an_error() {
    let (checkpoint, home) = (checkpoint(), tempfile::tempdir().unwrap());
    let blueprint = blueprint(&checkpoint, WeightsAs::Bf16);
    let maker = Maker { checkpoint: &checkpoint, blueprint: &blueprint, home: home.path() };
    let (folder, _) = maker.place().unwrap();
    let why = || maker.make(&Team::new(1), &|_| {}).map(drop).unwrap_err().to_string();
    std::os::unix::fs::symlink("nowhere", &folder).unwrap();
    assert!(why().contains(folder.to_str().unwrap()));
    std::fs::remove_file(&folder).unwrap();
    std::fs::create_dir(&folder).unwrap();
    std::os::unix::fs::symlink("nowhere/lock", folder.join("lock")).unwrap();
    assert!(why().contains(folder.join("lock").to_str().unwrap()));
    let home = home.path().join("link");
    std::os::unix::fs::symlink("nowhere/else", &home).unwrap();
    let elsewhere = Maker { home: &home, ..maker };
    let why = elsewhere.make(&Team::new(1), &|_| {}).map(drop).unwrap_err().to_string();
    assert!(why.contains(home.to_str().unwrap()), "{why}");
}

#[test]
fn what_is_left_of_a_store_is_removed_once() {
    let home = tempfile::tempdir().unwrap();
    let only = || kept(home.path()).expect("readable").remove(0);
    let folder = home.path().join("0".repeat(32));
    for left in [None, Some("panels.bin")] {
        std::fs::create_dir(&folder).unwrap();
        if let Some(file) = left {
            std::fs::write(folder.join(file), "of who made stores without a lock").unwrap();
        }
        let left = only();
        assert!(matches!(left.remove(), Ok(Removal::Removed)));
        assert!(matches!(left.remove(), Ok(Removal::Gone)));
    }
    // One that is somewhere else stays, and nobody is told otherwise.
    let elsewhere = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(elsewhere.path(), &folder).unwrap();
    assert!(only().remove().is_err());
}
