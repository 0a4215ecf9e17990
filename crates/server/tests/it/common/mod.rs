//! A server on loopback with a tiny model, and a client that shows what is on the wire.
#![allow(dead_code, reason = "each test file uses its part")]

pub(crate) mod spool;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use engine::{Claim, Engine, EngineConfig, Event, Planned, PrefixCaching};
use model::Checkpoint;
use model::api::OwnTemplates;
use model::config::read_generation;
use model::sampling::SamplingParams;
use model::template::{SpecialTexts, Templates, Tools};
use model::tokenizer::Tokenizer;
use model::tools::ToolFormat;
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
        max_model_len: Some(CONTEXT),
        max_num_seqs: 16,
        max_num_batched_tokens: 512,
        max_num_queued_reqs: 1 << 20,
        prefix_caching: PrefixCaching::On,
        kv_tokens: Some(16 * CONTEXT),
        ..EngineConfig::plain(4 << 30, 2)
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
        settings: [("the model".to_string(), model.to_string())].into(),
        max_logprobs: 20,
        own_templates: OwnTemplates::Refused,
        thoughts: model::thoughts::Manner::default(),
        tokenizer: Arc::new(tokenizer),
    }
}

/// Longer than anything takes on a machine that is busy with other things: who waits for less tests that.
const PATIENCE: Duration = Duration::from_secs(600);

pub(crate) fn config() -> Config {
    Config {
        header_timeout: PATIENCE,
        body_timeout: PATIENCE,
        send_timeout: PATIENCE,
        format_timeout: PATIENCE,
        shutdown_timeout: PATIENCE,
        ..Config::new(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))
    }
}

/// A server on a thread of its own; it is ended when dropped.
pub(crate) struct Running {
    pub(crate) address: SocketAddr,
    pub(crate) stopper: Stopper,
    brake: Option<Brake>,
    thread: Option<JoinHandle<Result<Ended, ServeError>>>,
}

impl Running {
    /// How it ended, once it has.
    pub(crate) fn end(self) -> Ended {
        self.ended().unwrap()
    }

    /// The same, or why it could not begin.
    pub(crate) fn ended(mut self) -> Result<Ended, ServeError> {
        self.thread.take().unwrap().join().unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stopper.stop();
        self.stopper.stop();
        // A test that failed may have left it.
        self.brake.iter().for_each(Brake::release);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

pub(crate) fn start_with(config: Config, load: impl FnOnce() -> Served + Send + 'static) -> Running {
    let server = Server::bind(config).unwrap();
    let (address, stopper) = (server.address(), server.stopper());
    let thread = thread::spawn(move || server.run(|| Ok(load()), Signals::Ignored));
    Running { address, stopper, brake: None, thread: Some(thread) }
}

/// A server whose model is there.
pub(crate) fn start(model: &'static str, config: Config) -> Running {
    let running = start_with(config, move || served(model));
    until(|| get(running.address, "/ready").status == 200);
    running
}

/// The same of a model of noise whose template says that it writes calls as Hermes does.
pub(crate) fn with_tools(config: Config) -> Running {
    let running = start_with(config, || {
        let mut served = served("llama");
        served.tool_template =
            served.tool_template.take().map(|template| template.with_tool_format(ToolFormat::Hermes));
        served
    });
    until(|| get(running.address, "/ready").status == 200);
    running
}

/// Asks again until it is so. What is waited for comes; how soon is the machine's affair.
#[track_caller]
pub(crate) fn until(mut so: impl FnMut() -> bool) {
    const FOR_EVER: Duration = Duration::from_secs(300);
    let begin = Instant::now();
    while !so() {
        assert!(begin.elapsed() < FOR_EVER, "it never came to be");
        thread::yield_now();
    }
}

/// Stops an engine between two steps, so that what is under way stays so however slow the test is. It is a sequence of
/// its own, whose tokens are taken only when the test lets them be.
#[derive(Clone, Default)]
pub(crate) struct Brake(Arc<Held>);

#[derive(Default)]
struct Held {
    state: Mutex<Grip>,
    changed: Condvar,
    claim: Mutex<Option<Claim>>,
}

#[derive(Default)]
struct Grip {
    released: bool,
    /// The engine has come to a token that is not taken.
    waiting: bool,
    /// It is to panic instead of taking it.
    burst: bool,
}

impl Brake {
    fn hold(&self, engine: &Engine) {
        let held = Arc::clone(&self.0);
        let sink = Box::new(move |event| match event {
            Event::Token(_) => held.wait(),
            Event::Finished(_) | Event::Failed(_) => held.let_go(),
            Event::Began(_) | Event::Prompt(..) => (),
        });
        let params = SamplingParams { ignore_eos: true, ..SamplingParams::greedy() };
        let request = engine::Request { prompt: vec![3], params, seed: 0, salt: 1 };
        *self.0.claim.lock().unwrap() = Some(engine.submit_to(request, sink).unwrap());
    }

    /// Lets the engine take a step, and waits until it has.
    pub(crate) fn step(&self) {
        self.0.state.lock().unwrap().waiting = false;
        self.0.changed.notify_all();
        self.until_held();
    }

    /// Waits until the engine waits.
    fn until_held(&self) {
        let mut state = self.0.state.lock().unwrap();
        while !state.waiting && !state.released {
            state = self.0.changed.wait(state).unwrap();
        }
    }

    /// Lets the engine die of a bug in what it calls, and waits for nothing.
    pub(crate) fn burst(&self) {
        self.0.state.lock().unwrap().burst = true;
        self.0.let_go();
    }

    /// Lets the engine go on for good.
    pub(crate) fn release(&self) {
        self.0.let_go();
        drop(self.0.claim.lock().unwrap().take());
    }
}

impl Held {
    fn wait(&self) {
        let mut state = self.state.lock().unwrap();
        state.waiting = true;
        self.changed.notify_all();
        while state.waiting && !state.released {
            state = self.changed.wait(state).unwrap();
        }
        let burst = state.burst;
        drop(state);
        assert!(!burst, "a bug, as the test wants it");
    }

    /// Nothing is held from here on.
    fn let_go(&self) {
        self.state.lock().unwrap().released = true;
        self.changed.notify_all();
    }
}

/// A server whose engine takes a step only when the brake says so. The brake is one of the sequences that run.
pub(crate) fn start_braked(model: &'static str, config: Config) -> (Running, Brake) {
    let brake = Brake::default();
    let held = brake.clone();
    let mut running = start_with(config, move || {
        let served = served(model);
        held.hold(&served.engine);
        served
    });
    running.brake = Some(brake.clone());
    until(|| get(running.address, "/ready").status == 200);
    brake.until_held();
    (running, brake)
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
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
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

/// The same; nothing where the server closes before it answers.
pub(crate) fn try_send(address: SocketAddr, bytes: &[u8]) -> Option<Response> {
    let mut stream = connect(address);
    let _ = stream.write_all(bytes);
    let raw = read_raw(&mut stream);
    (!raw.is_empty()).then(|| parse(&raw))
}

pub(crate) fn read(stream: &mut TcpStream) -> Response {
    parse(&read_raw(stream))
}

fn read_raw(stream: &mut TcpStream) -> Vec<u8> {
    let mut raw = Vec::new();
    let mut piece = [0; 4096];
    while let Ok(n @ 1..) = stream.read(&mut piece) {
        raw.extend_from_slice(&piece[..n]);
    }
    raw
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

/// What a GET is answered with, if it is: a connection on which nothing was heard yet is closed when the server begins to end.
pub(crate) fn heard(address: SocketAddr, path: &str) -> Option<Response> {
    let mut stream = connect(address);
    stream.write_all(&request("GET", path, "", b"")).ok()?;
    let raw = read_raw(&mut stream);
    (!raw.is_empty()).then(|| parse(&raw))
}

pub(crate) fn get(address: SocketAddr, path: &str) -> Response {
    send(address, &request("GET", path, "", b""))
}

pub(crate) fn post(address: SocketAddr, path: &str, body: &Value) -> Response {
    let body = body.to_string();
    send(address, &request("POST", path, "Content-Type: application/json\r\n", body.as_bytes()))
}

/// A gauge or counter of `/metrics`.
#[track_caller]
pub(crate) fn metric(address: SocketAddr, name: &str) -> f64 {
    let response = get(address, "/metrics");
    assert_eq!(response.status, 200, "{}", response.body);
    gauge(&response, name)
}

/// The same where the server may have no room for another connection: then none.
pub(crate) fn try_metric(address: SocketAddr, name: &str) -> Option<f64> {
    let response = get(address, "/metrics");
    (response.status == 200).then(|| gauge(&response, name))
}

fn gauge(response: &Response, name: &str) -> f64 {
    let mut lines = response.body.lines();
    let line = lines.find(|line| line.starts_with(&format!("{name}{{"))).unwrap_or_else(|| panic!("{name}"));
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

/// Whether nothing runs, waits or holds a block.
pub(crate) fn is_idle(address: SocketAddr) -> bool {
    let gauges = ["vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"];
    gauges.iter().all(|name| metric(address, name) == 0.0)
        && metric(address, "ballast_queued_requests") == 0.0
        && get(address, "/load").json() == json!({"server_load": 0})
}

/// The error's code, its shape checked.
pub(crate) fn code(response: &Response) -> Option<String> {
    let body = response.json();
    let error = body["error"].as_object().expect("an error");
    assert_eq!(error.keys().collect::<Vec<_>>().len(), 4, "{error:?}");
    assert!(error["message"].is_string() && error["type"].is_string(), "{error:?}");
    assert!(error["param"].is_string() || error["param"].is_null());
    assert!(response.header("x-request-id").is_some());
    error["code"].as_str().map(str::to_string).or_else(|| {
        assert!(error["code"].is_null(), "a string or null");
        None
    })
}

/// The next good request succeeds.
pub(crate) fn good(server: &Running) {
    let body = json!({"prompt": [5, 9], "max_tokens": 2, "temperature": 0});
    assert_eq!(post(server.address, "/v1/completions", &body).status, 200);
}
