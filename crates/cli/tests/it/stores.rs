//! Packed weights on the drive, listed and removed.

use crate::common::{Folder, ballast, golden};

/// Has a model's weights packed there.
fn pack(packed: &str, more: &[&str]) {
    let model = golden("llama");
    let args = ["run", &model, "the sea", "--raw", "--max-tokens", "2", "--offload-dir", packed];
    ballast(&[&args, &["--percent", "0", "0", "100", "0", "100", "0"][..], more].concat()).fine();
}

#[test]
fn stores_are_listed_and_removed_by_their_names() {
    let folder = Folder::new();
    let packed = folder.name("packed");
    let stores = |more: &[&str]| ballast(&[&["stores", "--offload-dir", &packed], more].concat());
    let list =
        || -> Vec<serde_json::Value> { serde_json::from_str(&stores(&["--json", "-"]).fine()).unwrap() };
    assert!(stores(&[]).fine().contains("no packed weights"));

    pack(&packed, &["--weights", "bf16"]);
    let first = list()[0]["name"].as_str().unwrap().to_string();
    pack(&packed, &["--weights", "int8"]);
    let listed = list();
    assert_eq!(listed.len(), 2);
    // What was used last comes first.
    assert_eq!(listed[1]["name"], *first);
    for (store, of) in listed.iter().zip(["llama, int8", "llama, bf16"]) {
        assert!(store["of"].as_str().unwrap().ends_with(of), "{store}");
        assert!(store["bytes"].as_u64() > Some(10_000) && store["whole"] == true, "{store}");
    }
    assert!(stores(&[]).fine().contains("2 stores in"));
    pack(&packed, &["--weights", "bf16"]);
    assert_eq!(list()[0]["name"], *first, "it was used again");
    pack(&packed, &["--weights", "bf16", "--load-format", "dummy"]);
    assert_eq!(list()[0]["of"], "random weights of LlamaForCausalLM, 2 layers of 64, bf16");
    stores(&["--remove", list()[0]["name"].as_str().unwrap()]).fine();

    stores(&["--remove", "nothing"]).refused(2, &["--remove nothing", "ballast stores"]);
    // What is not whole, and what is none of ours, beside them.
    let torn = ["0123456789abcdef0123456789abcdef", "01234567000000000000000000000000"];
    for torn in torn {
        std::fs::create_dir(folder.path(&format!("packed/{torn}"))).unwrap();
        folder.write(&format!("packed/{torn}/panels.bin"), "half");
    }
    stores(&["--remove", "01234567"]).refused(2, &["2 names begin so"]);
    folder.write("packed/notes.txt", "mine");
    let other = "f".repeat(32);
    std::fs::create_dir(folder.path(&format!("packed/{other}"))).unwrap();
    folder.write(&format!("packed/{other}/manifest.json"), r#"{"version": 1000}"#);
    let removed = stores(&["--remove", "unwhole"]).fine();
    assert!(torn.iter().all(|torn| removed.contains(torn)), "{removed}");
    assert_eq!(list().len(), 3, "one of another version is not torn");
    // A file that is not a store's stays, with its folder.
    let own = folder.write(&format!("packed/{first}/own.txt"), "mine");
    let removed = stores(&["--remove", &first[..8]]);
    assert!(removed.out.contains("the drive has ") && !removed.out.contains("has 0"), "{}", removed.out);
    removed.refused(1, &["ballast: cannot remove"]);
    // It does not keep others.
    stores(&["--remove", "all"]).refused(1, &["cannot remove", &first]);
    assert!(std::path::Path::new(&own).exists());
    assert_eq!(list().len(), 1);
    pack(&packed, &["--weights", "int8"]);
    std::fs::remove_file(&own).unwrap();
    stores(&["--remove", "all"]).fine();
    assert!(list().is_empty() && folder.read("packed/notes.txt") == "mine");
    pack(&packed, &["--weights", "bf16"]);
    assert_eq!(list()[0]["name"], *first);
    // As of a variable that holds nothing.
    stores(&["--remove", ""]).refused(2, &["--remove", "value is required"]);
    assert_eq!(list().len(), 1);
}

#[test]
fn a_store_that_is_being_made_stays() {
    let folder = Folder::new();
    let packed = folder.name("packed");
    let name = "0123456789abcdef0123456789abcdef";
    std::fs::create_dir_all(folder.path(&format!("packed/{name}"))).unwrap();
    let path = folder.write(&format!("packed/{name}/lock"), "");
    let lock = std::fs::File::options().write(true).open(&path).unwrap();
    lock.lock().unwrap();
    let ran = ballast(&["stores", "--offload-dir", &packed, "--remove", name]);
    assert!(ran.code == Some(1) && ran.out.contains("stays"), "{} {}", ran.out, ran.err);
    assert!(std::path::Path::new(&path).exists());
}
