//! A server on loopback with a tiny model, and a client that shows what is on the wire.
#![allow(dead_code, reason = "each test file uses its part")]

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use engine::{EngineConfig, KvMemory, Offload, Planned, PrefixCaching};
use kernels::Isa;
use model::Checkpoint;
use model::config::read_generation;
use model::decoder::WeightsAs;
use model::template::{SpecialTexts, Templates, Tools};
use model::tokenizer::Tokenizer;
use serde_json::{Value, json};
use server::{Config, Ended, ServeError, Served, Server, Signals, Stopper};

/// Tokens that a sequence may have.
pub(crate) const CONTEXT: usize = 512;

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/golden").join(name)
}

pub(crate) fn served(model: &str) -> Served {
    let folder = folder(model);
    let checkpoint = Checkpoint::open(&folder).unwrap();
    let config = EngineConfig {
        weights: WeightsAs::Bf16,
        memory: 4 << 30,
        threads: 2,
        isa: Isa::detect(),
        device: engine::DeviceChoice::Cpu,
        max_model_len: Some(CONTEXT),
        max_num_seqs: 16,
        max_num_batched_tokens: 512,
        max_num_queued_reqs: 1 << 20,
        prefix_caching: PrefixCaching::On,
        steps_in_flight: 1,
        kv_tokens: Some(16 * CONTEXT),
        kv_memory: KvMemory::AsUsed,
        host_kv_tokens: 0,
        offload: Offload::default(),
        record: None,
    };
    let (tokenizer, tokenizer_config) = Tokenizer::from_dir(&folder).unwrap();
    let templates = Templates::find(&folder, &tokenizer_config).unwrap();
    let special = tokenizer.special_ids();
    let text = |id: Option<u32>| id.and_then(|id| tokenizer.token(id));
    Served {
        engine: Planned::new(&checkpoint, config).unwrap().start(&|_| {}).unwrap(),
        names: vec![model.to_string(), "org/alias".to_string()],
        template: Some(templates.choose(Tools::Absent).unwrap()),
        tool_template: Some(templates.choose(Tools::Given).unwrap()),
        special: SpecialTexts { bos: text(special.bos), eos: text(special.eos), pad: None, unk: None },
        generation: read_generation(&folder).unwrap(),
        tokenizer: Arc::new(tokenizer),
    }
}

pub(crate) fn config() -> Config {
    Config::new(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))
}

/// A server on a thread of its own; it is ended when dropped.
pub(crate) struct Running {
    pub(crate) address: SocketAddr,
    pub(crate) stopper: Stopper,
    thread: Option<JoinHandle<Result<Ended, ServeError>>>,
}

impl Running {
    /// How it ended, once it has.
    pub(crate) fn end(mut self) -> Ended {
        self.thread.take().unwrap().join().unwrap().unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stopper.stop();
        self.stopper.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

pub(crate) fn start_with(config: Config, load: impl FnOnce() -> Served + Send + 'static) -> Running {
    let server = Server::bind(config).unwrap();
    let (address, stopper) = (server.address().unwrap(), server.stopper());
    let thread = thread::spawn(move || server.run(|| Ok(load()), Signals::Ignored));
    Running { address, stopper, thread: Some(thread) }
}

/// A server whose model is there.
pub(crate) fn start(model: &'static str, config: Config) -> Running {
    let running = start_with(config, move || served(model));
    until(|| get(running.address, "/ready").status == 200);
    running
}

/// Asks again until it is so; what is waited for needs no more than a moment.
pub(crate) fn until(mut so: impl FnMut() -> bool) {
    for _ in 0..100_000 {
        if so() {
            return;
        }
        thread::yield_now();
    }
    panic!("it never came to be");
}

#[derive(Clone, Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Response {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let field =
            |line: &'_ str| line.split_once(':').map(|(n, _)| n.eq_ignore_ascii_case(name)) == Some(true);
        self.head.lines().find(|line| field(line)).map(|line| line.split_once(':').unwrap().1.trim())
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.body))
    }

    /// The data of each event.
    pub(crate) fn events(&self) -> Vec<String> {
        self.body.split("\n\n").filter_map(|event| event.strip_prefix("data: ")).map(str::to_string).collect()
    }
}

pub(crate) fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
    stream
}

/// A request as bytes.
pub(crate) fn request(method: &str, path: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {}\r\n{headers}\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

/// Sends bytes and reads all that comes back.
pub(crate) fn send(address: SocketAddr, bytes: &[u8]) -> Response {
    let mut stream = connect(address);
    // A server that refuses early closes early.
    let _ = stream.write_all(bytes);
    read(&mut stream)
}

pub(crate) fn read(stream: &mut TcpStream) -> Response {
    let mut raw = Vec::new();
    let mut piece = [0; 4096];
    while let Ok(n @ 1..) = stream.read(&mut piece) {
        raw.extend_from_slice(&piece[..n]);
    }
    parse(&raw)
}

fn parse(raw: &[u8]) -> Response {
    let end = raw.windows(4).position(|w| w == b"\r\n\r\n").expect("a whole head");
    let head = String::from_utf8(raw[..end].to_vec()).unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let mut response = Response { status, head, body: String::new() };
    let body = &raw[end + 4..];
    let chunked = response.header("transfer-encoding") == Some("chunked");
    response.body = String::from_utf8(if chunked { unchunked(body) } else { body.to_vec() }).unwrap();
    response
}

fn unchunked(mut raw: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    while let Some(end) = raw.windows(2).position(|w| w == b"\r\n") {
        let size = usize::from_str_radix(std::str::from_utf8(&raw[..end]).unwrap(), 16).unwrap();
        body.extend_from_slice(&raw[end + 2..][..size]);
        raw = &raw[end + 2 + size + 2..];
    }
    body
}

pub(crate) fn get(address: SocketAddr, path: &str) -> Response {
    send(address, &request("GET", path, "", b""))
}

pub(crate) fn post(address: SocketAddr, path: &str, body: &Value) -> Response {
    let body = body.to_string();
    send(address, &request("POST", path, "Content-Type: application/json\r\n", body.as_bytes()))
}

/// A gauge or counter of `/metrics`.
pub(crate) fn metric(address: SocketAddr, name: &str) -> f64 {
    let text = get(address, "/metrics").body;
    let line =
        text.lines().find(|line| line.starts_with(&format!("{name}{{"))).unwrap_or_else(|| panic!("{name}"));
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

/// Whether nothing runs, waits or holds a block.
pub(crate) fn is_idle(address: SocketAddr) -> bool {
    let gauges = ["vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"];
    gauges.iter().all(|name| metric(address, name) == 0.0)
        && metric(address, "ballast_queued_requests") == 0.0
        && get(address, "/load").json() == json!({"server_load": 0})
}
