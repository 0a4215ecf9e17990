//! Every committed checkpoint opens, and all its weights can be read.

use model::Checkpoint;
use model::config::read_config;
use model::source::{Places, Silent, locate};
use std::path::Path;

#[test]
fn golden_checkpoints_open() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let entries = std::fs::read_dir(&golden).expect("the golden checkpoints");
    let folders: Vec<_> = entries.filter_map(|e| Some(e.ok()?.path())).filter(|p| p.is_dir()).collect();
    assert!(folders.len() >= 57, "only {} golden checkpoints", folders.len());
    for folder in folders {
        let places = Places::from_env();
        let path = locate(Some(&folder.display().to_string()), &places, &mut Silent).expect("a checkpoint");
        let checkpoint = Checkpoint::open(&path).unwrap_or_else(|e| panic!("{e}"));
        for (tensor, info) in checkpoint.tensors() {
            let mut bytes = vec![0; info.shape.rows() * info.row_bytes];
            let read = checkpoint.read_rows(tensor, 0..info.shape.rows(), &mut bytes);
            read.unwrap_or_else(|e| panic!("{tensor:?}: {e}"));
        }
        if path.is_file() || read_config(&path).expect("read before").quantized.is_some() {
            continue; // blocks: no width of a number
        }
        let width = checkpoint.spec().dtype.bytes() as u64;
        assert_eq!(checkpoint.bytes(), width * checkpoint.spec().parameters(), "{}", folder.display());
    }
}
