//! Safetensors files: a JSON header of names, types and offsets, then the bytes.

use crate::error::{Error, Result};
use crate::file::{RegularFile, read_text};
use crate::stored::Stored;
use serde::Deserialize;
use serde::de::{DeserializeOwned, Deserializer, MapAccess, Visitor};
use std::collections::{BTreeMap, BTreeSet};
use std::marker::PhantomData;
use std::path::{Path, PathBuf};

const HEADER_BYTES_MAX: u64 = 100_000_000;
const INDEX_BYTES_MAX: u64 = 100_000_000;

/// A tensor that a header announces.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// Its name in the file.
    pub name: String,
    /// Its format; the name of one that we do not read otherwise.
    pub stored: std::result::Result<Stored, String>,
    /// Its dimensions, outermost first.
    pub dims: Vec<u64>,
    /// Where its bytes begin in the file.
    pub offset: u64,
    /// How many there are.
    pub bytes: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Announced {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

/// A value of a header: a tensor, or (under `__metadata__`) anything.
#[derive(Deserialize)]
#[serde(untagged)]
enum HeaderValue {
    Tensor(Announced),
    Metadata {},
}

/// Reads the header of an open file.
///
/// # Errors
/// If it breaks a rule of the format; see [`parse_header`].
pub fn read_header(file: &RegularFile) -> Result<Vec<Entry>> {
    let mut length = [0; 8];
    if file.len() < 8 {
        return Err(Error::malformed(&file.name(), format!("{} bytes long", file.len()), "at least 8 bytes"));
    }
    file.read_at(0, &mut length)?;
    let length = u64::from_le_bytes(length);
    if length > HEADER_BYTES_MAX || length > file.len() - 8 {
        let most = HEADER_BYTES_MAX.min(file.len() - 8);
        return Err(Error::malformed(
            &file.name(),
            format!("a header of {length} bytes"),
            format!("at most {most}; is it complete?"),
        ));
    }
    let mut header = vec![0; length as usize];
    file.read_at(8, &mut header)?;
    parse_header(&header, 8 + length, file.len(), &file.name())
}

/// Reads a header. The bytes of its tensors follow at `data_at` and must fill the file to `file_len`
/// without gap or overlap.
///
/// # Errors
/// If it is no JSON, names a tensor twice, or types, shapes and offsets disagree.
pub fn parse_header(header: &[u8], data_at: u64, file_len: u64, file: &str) -> Result<Vec<Entry>> {
    let announced: Unique<HeaderValue> = serde_json::from_slice(header)
        .map_err(|e| Error::malformed(file, format!("header: {e}"), "a JSON object of tensors"))?;
    let mut entries = Vec::with_capacity(announced.0.len());
    for (name, value) in announced.0 {
        match value {
            HeaderValue::Metadata {} if name == "__metadata__" => {}
            HeaderValue::Tensor(tensor) if name != "__metadata__" => {
                entries.push(entry(name, tensor, data_at, file)?);
            }
            _ => return Err(Error::malformed(file, format!("`{name}` in the header"), "a tensor")),
        }
    }
    entries.sort_by_key(|e| (e.offset, e.bytes));
    check_contiguous(&entries, data_at, file_len, file)?;
    Ok(entries)
}

fn entry(name: String, tensor: Announced, data_at: u64, file: &str) -> Result<Entry> {
    let (from, to) = tensor.data_offsets;
    let elements = tensor.shape.iter().try_fold(1u64, |n, d| n.checked_mul(*d));
    let wanted =
        elements.zip(width_bits(&tensor.dtype)).and_then(|(n, bits)| n.checked_mul(bits)).map(|b| b / 8);
    let bytes = to.checked_sub(from);
    let known = width_bits(&tensor.dtype).is_some();
    let offset = data_at.checked_add(from);
    match (bytes, offset) {
        (Some(bytes), Some(offset)) if !known || wanted == Some(bytes) => {
            Ok(Entry { stored: stored(&tensor.dtype), name, dims: tensor.shape, offset, bytes })
        }
        _ => Err(Error::malformed(
            file,
            format!("`{name}` of {} {:?} at bytes {from} to {to}", tensor.dtype, tensor.shape),
            "offsets that fit its size",
        )),
    }
}

fn check_contiguous(entries: &[Entry], data_at: u64, file_len: u64, file: &str) -> Result<()> {
    let mut at = data_at;
    for entry in entries {
        if entry.offset != at {
            let found = format!("`{}` begins at byte {}", entry.name, entry.offset);
            return Err(Error::malformed(file, found, format!("{at}, where the one before ends")));
        }
        at = at.saturating_add(entry.bytes);
    }
    if at != file_len {
        let found = format!("the file is {file_len} bytes long");
        // In the hub's cache a name is a link: what it leads to is what is to be fetched again.
        let real = std::fs::canonicalize(file).unwrap_or_else(|_| file.into());
        let remove = format!("{at} bytes; remove {} and fetch it again", real.display());
        return Err(Error::malformed(file, found, remove));
    }
    Ok(())
}

fn stored(dtype: &str) -> std::result::Result<Stored, String> {
    match dtype {
        "F32" => Ok(Stored::F32),
        "F16" => Ok(Stored::F16),
        "BF16" => Ok(Stored::Bf16),
        other => Err(other.to_owned()),
    }
}

/// Bits of an element; `None` for types that the format did not know when this was written.
fn width_bits(dtype: &str) -> Option<u64> {
    Some(match dtype {
        "F64" | "I64" | "U64" | "C64" => 64,
        "F32" | "I32" | "U32" => 32,
        "F16" | "BF16" | "I16" | "U16" => 16,
        "I8" | "U8" | "BOOL" | "F8_E4M3" | "F8_E5M2" | "F8_E8M0" | "F8_E4M3FNUZ" | "F8_E5M2FNUZ" => 8,
        _ => return None,
    })
}

/// The one file of a checkpoint.
pub(crate) const SINGLE: &str = "model.safetensors";
/// What lists its shards, where it has several.
pub(crate) const INDEX: &str = "model.safetensors.index.json";

/// The safetensors files of a folder, and which tensors to take from each.
#[derive(Debug)]
pub struct Folder {
    /// The open files.
    pub files: Vec<RegularFile>,
    /// Every tensor, with the number of its file.
    pub entries: Vec<(usize, Entry)>,
}

impl Folder {
    /// Opens the checkpoint of a folder: `model.safetensors`, or `model.safetensors.index.json` and its shards, or the only
    /// `*.safetensors` there is.
    ///
    /// # Errors
    /// If there is none, or a header or the index breaks a rule.
    pub fn open(folder: &Path) -> Result<Folder> {
        let index = folder.join(INDEX);
        if index.is_file() && !folder.join(SINGLE).is_file() {
            return Folder::open_shards(folder, &index);
        }
        let file = RegularFile::open(&only_file(folder)?)?;
        let entries = read_header(&file)?.into_iter().map(|e| (0, e)).collect();
        Ok(Folder { files: vec![file], entries })
    }

    fn open_shards(folder: &Path, index: &Path) -> Result<Folder> {
        let name = index.display().to_string();
        let map = parse_index(&read_text(index, INDEX_BYTES_MAX)?, &name)?;
        let shards: BTreeSet<&String> = map.values().collect();
        let missing: Vec<&str> =
            shards.iter().filter(|shard| !folder.join(shard).exists()).map(|shard| shard.as_str()).collect();
        if let [first, ..] = missing.as_slice() {
            let found = format!("{} of its {} shards missing, {first} first", missing.len(), shards.len());
            return Err(Error::malformed(&name, found, "all of them beside it: fetch the model again"));
        }
        let mut open = Folder { files: vec![], entries: vec![] };
        for shard in shards {
            let file = RegularFile::open(&folder.join(shard))?;
            let here = |e: &Entry| map.get(&e.name) == Some(shard);
            let entries = read_header(&file)?.into_iter().filter(here);
            open.entries.extend(entries.map(|e| (open.files.len(), e)));
            open.files.push(file);
        }
        open.check_against(&map, &name)?;
        Ok(open)
    }

    fn check_against(&self, map: &BTreeMap<String, String>, index: &str) -> Result<()> {
        let found: BTreeSet<&str> = self.entries.iter().map(|(_, e)| e.name.as_str()).collect();
        let lacking = map.iter().filter(|(name, _)| !found.contains(name.as_str()));
        let problems: Vec<_> = lacking.map(|(name, shard)| format!("`{name}` is not in {shard}")).collect();
        if problems.is_empty() { Ok(()) } else { Err(Error::Tensors { file: index.into(), problems }) }
    }
}

#[derive(Deserialize)]
struct Index {
    weight_map: Unique<String>,
}

/// Reads an index: which file holds which tensor.
///
/// # Errors
/// If it is no such JSON, names a tensor twice, or a file outside its folder.
pub fn parse_index(text: &str, file: &str) -> Result<BTreeMap<String, String>> {
    let index: Index = serde_json::from_str(text)
        .map_err(|e| Error::malformed(file, e.to_string(), "a JSON object with `weight_map`"))?;
    for shard in index.weight_map.0.values() {
        let bare = Path::new(shard).file_name().is_some_and(|name| name == shard.as_str());
        if !bare || shard.contains(['/', '\\', '\0']) || !shard.ends_with(".safetensors") {
            let found = format!("the file name {shard:?}");
            return Err(Error::malformed(
                file,
                found,
                "the bare name of a .safetensors file beside the index",
            ));
        }
    }
    Ok(index.weight_map.0)
}

/// How files end that can run code when they are read.
pub(crate) const PICKLED: [&str; 3] = ["bin", "pth", "pt"];

fn only_file(folder: &Path) -> Result<PathBuf> {
    let usual = folder.join(SINGLE);
    if usual.is_file() {
        return Ok(usual);
    }
    let listing = std::fs::read_dir(folder).map_err(Error::io("list", folder))?;
    let names: Vec<PathBuf> = listing.filter_map(|e| Some(e.ok()?.path())).collect();
    let has =
        |end: &str| names.iter().filter(|p| p.extension().is_some_and(|e| e == end)).collect::<Vec<_>>();
    match has("safetensors").as_slice() {
        [one] if one.file_name().is_some_and(|name| name == "consolidated.safetensors") => {
            Err(Error::unsupported(
                &one.display().to_string(),
                "weights by Mistral's own names",
                "those that transformers has written: model.safetensors, or its shards and their index",
            ))
        }
        [one] => Ok((*one).clone()),
        [] if PICKLED.iter().any(|end| !has(end).is_empty()) => Err(Error::unsupported(
            &folder.display().to_string(),
            "a checkpoint of pickle files (.bin, .pth, .pt), which can run code when read,",
            "safetensors and GGUF; convert it with transformers' save_pretrained",
        )),
        [] => Err(Error::NoModel {
            name: folder.display().to_string(),
            why: "there is no *.safetensors in it; `--load-format dummy` makes random weights".into(),
        }),
        many => Err(Error::malformed(
            &folder.display().to_string(),
            format!("{} .safetensors files without an index", many.len()),
            "model.safetensors.index.json, or one file",
        )),
    }
}

/// A JSON object in which no key occurs twice.
struct Unique<V>(BTreeMap<String, V>);

impl<'de, V: DeserializeOwned> Deserialize<'de> for Unique<V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        deserializer.deserialize_map(UniqueVisitor(PhantomData))
    }
}

struct UniqueVisitor<V>(PhantomData<V>);

impl<'de, V: DeserializeOwned> Visitor<'de> for UniqueVisitor<V> {
    type Value = Unique<V>;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Self::Value, A::Error> {
        let mut all = BTreeMap::new();
        while let Some((key, value)) = map.next_entry::<String, V>()? {
            if all.contains_key(&key) {
                return Err(serde::de::Error::custom(format!("`{key}` occurs twice")));
            }
            all.insert(key, value);
        }
        Ok(Unique(all))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{counting, safetensors, write};

    fn parse(bytes: &[u8]) -> Result<Vec<Entry>> {
        let folder = tempfile::tempdir().expect("a folder");
        write(folder.path(), "x.safetensors", bytes);
        read_header(&RegularFile::open(&folder.path().join("x.safetensors"))?)
    }

    fn with_header(header: &str, data: usize) -> Vec<u8> {
        [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &vec![0; data]].concat()
    }

    #[track_caller]
    fn check_refused(header: &str, data: usize, why: &str) {
        let error = parse(&with_header(header, data)).expect_err("refused").to_string();
        assert!(error.contains(why), "{error}\nlacks {why:?}");
    }

    #[test]
    fn entries_by_offset() {
        let file = safetensors(&[
            ("b".into(), "F32", vec![2, 1], counting(0, 2)),
            ("a".into(), "F8_E4M3", vec![3], vec![0; 3]),
            ("empty".into(), "BF16", vec![0, 7], vec![]),
        ]);
        let entries = parse(&file).expect("sound");
        let names: Vec<_> = entries.iter().map(|e| (e.name.as_str(), e.bytes)).collect();
        assert_eq!(names, [("b", 8), ("a", 3), ("empty", 0)]);
        assert_eq!(entries[1].stored, Err("F8_E4M3".into()));
        assert_eq!(entries[0].offset + 11, file.len() as u64);
    }

    #[test]
    fn hostile_headers() {
        check_refused("[]", 0, "a JSON object");
        check_refused(r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}"#, 4, "EOF");
        check_refused(r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,8]}}"#, 8, "fit its size");
        check_refused(r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}}"#, 4, "fit its size");
        check_refused(r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}"#, 8, "begins at byte");
        check_refused(r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#, 3, "fetch it again");
        check_refused(r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#, 5, "fetch it again");
        check_refused(r#"{"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}"#, 4, "`a` in the header");
        let big = r#"{"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}}"#;
        check_refused(big, 0, "fit its size");
        let far =
            r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[18446744073709551612,18446744073709551616]}}"#;
        check_refused(far, 4, "`a` in the header");
        let one = r#""a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}"#;
        check_refused(&format!("{{{one},{one}}}"), 4, "`a` occurs twice");
        let overlap = one.replace("\"a\"", "\"b\"");
        check_refused(&format!("{{{one},{overlap}}}"), 4, "begins at byte");
        check_refused(&"[".repeat(10_000), 0, "header");
    }

    #[test]
    fn lengths_beyond_the_file() {
        for length in [9, 100_000_001, u64::MAX] {
            let bytes = [&length.to_le_bytes()[..], b"{}      "].concat();
            let error = parse(&bytes).expect_err("refused").to_string();
            assert!(error.contains(&format!("a header of {length} bytes")), "{error}");
        }
    }

    #[test]
    fn a_file_cut_anywhere_is_refused() {
        let file = safetensors(&[("a".into(), "F32", vec![2], counting(0, 2))]);
        for length in 0..file.len() {
            assert!(parse(&file[..length]).is_err(), "cut to {length}");
        }
        assert!(parse(&file).is_ok());
    }

    #[test]
    fn shards_that_are_not_there_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let index = r#"{"weight_map":{"a":"1.safetensors","b":"2.safetensors","c":"3.safetensors"}}"#;
        write(folder.path(), INDEX, index);
        write(folder.path(), "1.safetensors", safetensors(&[("a".into(), "F32", vec![2], counting(0, 2))]));
        let why = Folder::open(folder.path()).map(drop).unwrap_err().to_string();
        assert!(why.contains("2 of its 3 shards missing, 2.safetensors first"), "{why}");
    }

    #[test]
    fn an_index_names_bare_files() {
        let index = |name: &str| format!(r#"{{"metadata":{{}},"weight_map":{{"a":{name:?}}}}}"#);
        assert!(parse_index(&index("model-00001-of-00002.safetensors"), "i").is_ok());
        for name in
            ["../a.safetensors", "/a.safetensors", "b/a.safetensors", "..", "", "a.bin", "b\\a.safetensors"]
        {
            let error = parse_index(&index(name), "i").expect_err("refused").to_string();
            assert!(error.contains("bare name"), "{name}: {error}");
        }
        let twice = r#"{"weight_map":{"a":"x.safetensors","a":"y.safetensors"}}"#;
        assert!(parse_index(twice, "i").expect_err("refused").to_string().contains("occurs twice"));
    }
}
