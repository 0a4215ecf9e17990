//! An HTTP client of one server: short questions, and streams whose every event is timed.

use std::io::{self, Read};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;
use ureq::http::{HeaderName, HeaderValue, Response, Uri};
use ureq::tls::{RootCerts, TlsConfig};
use ureq::{Agent, Body};

use super::wire::Target;
use crate::args::TargetArgs;
use crate::console::Misuse;
use crate::stop::Stop;

/// How long a connection may take.
pub(super) const CONNECT: Duration = Duration::from_secs(10);
/// How long a server may say nothing.
pub(super) const SILENCE: Duration = Duration::from_secs(6 * 3600);
/// Buffers of each connection: there may be a thousand.
const BUFFER_BYTES: usize = 16 << 10;
const AGENT: &str = concat!("ballast/", env!("CARGO_PKG_VERSION"));
/// Of an error's text that is kept.
const ERROR_BYTES: u64 = 2000;

/// Asks one server.
pub(super) struct Client {
    agent: Agent,
    base: String,
    endpoint: String,
    headers: Vec<(String, String)>,
}

/// One answered (or failed) request; times in seconds.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Answer {
    /// Since the run began.
    pub(super) start: f64,
    /// Waiting for a place among --max-concurrency.
    pub(super) queued: f64,
    /// To the first token.
    pub(super) ttft: f64,
    /// To the last.
    pub(super) latency: f64,
    /// From each token to the next.
    pub(super) itl: Vec<f64>,
    pub(super) text: String,
    /// As the server counts them.
    pub(super) input_tokens: Option<usize>,
    pub(super) output_tokens: Option<usize>,
    pub(super) error: Option<String>,
}

/// An event of a stream, of either API, as far as it is of interest.
#[derive(Deserialize)]
struct Event {
    #[serde(default)]
    choices: Vec<Choice>,
    usage: Option<Usage>,
    error: Option<Value>,
}

#[derive(Deserialize)]
struct Choice {
    text: Option<String>,
    delta: Option<Delta>,
    finish_reason: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct Delta {
    role: Option<IgnoredAny>,
    content: Option<String>,
    #[serde(alias = "reasoning_content")]
    reasoning: Option<String>,
    tool_calls: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct Usage {
    prompt_tokens: Option<usize>,
    completion_tokens: Option<usize>,
}

impl Client {
    pub(super) fn new(args: &TargetArgs) -> Result<Client> {
        let base = args.base_url.clone().unwrap_or_else(|| local(&args.host, args.port));
        let base = base.trim_end_matches('/').to_string();
        let uri: Uri = base.parse().ok().filter(|uri: &Uri| uri.scheme().is_some()).with_context(|| {
            Misuse(format!("`{base}` is no address of a server: write something like http://127.0.0.1:8000"))
        })?;
        let key = args.api_key.clone().or_else(|| std::env::var("OPENAI_API_KEY").ok());
        let key = key.map(|key| ("Authorization".to_string(), format!("Bearer {key}")));
        let more = args.header.iter().map(|pair| (pair.0.clone(), pair.1.clone()));
        let endpoint = args.endpoint.clone().unwrap_or_else(|| args.backend.endpoint().to_string());
        if !endpoint.starts_with('/') {
            bail!(Misuse(format!("--endpoint {endpoint} must begin with a slash")));
        }
        Ok(Client {
            agent: agent(&uri, args.insecure),
            base,
            endpoint,
            headers: key.into_iter().chain(more).collect(),
        })
    }

    /// Where streams are asked for.
    pub(super) fn url(&self) -> String {
        format!("{}{}", self.base, self.endpoint)
    }

    /// A short answer: JSON, or a status and what was said with it.
    pub(super) fn get(&self, path: &str) -> Result<Result<Value, String>> {
        let mut request = self.agent.get(format!("{}{path}", self.base));
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        self.short(request.call())
    }

    /// The same, of a POST.
    pub(super) fn post(&self, path: &str, body: &Value) -> Result<Result<Value, String>> {
        self.short(self.send(&format!("{}{path}", self.base), &body.to_string()))
    }

    fn short(&self, answer: Result<Response<Body>, ureq::Error>) -> Result<Result<Value, String>> {
        let mut answer =
            answer.with_context(|| format!("cannot reach {}: is the server running?", self.base))?;
        if answer.status() != 200 {
            return Ok(Err(refusal(answer)));
        }
        let text = answer.body_mut().read_to_string().context("the server's answer broke off")?;
        Ok(serde_json::from_str(&text).map_err(|error| format!("its answer is not JSON: {error}")))
    }

    fn send(&self, url: &str, body: &str) -> Result<Response<Body>, ureq::Error> {
        let mut request = self.agent.post(url).header("Content-Type", "application/json");
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        request.send(body)
    }

    /// Asks for a stream and follows it to its end; nothing if it was stopped before.
    pub(super) fn stream(&self, body: &str, stop: &Stop) -> Option<Answer> {
        let mut following = Following::begin();
        let outcome = match self.send(&self.url(), body) {
            Ok(answer) if answer.status() == 200 => {
                following.follow(&mut answer.into_body().into_reader(), stop)?
            }
            Ok(answer) => Err(refusal(answer)),
            Err(error) => Err(error.to_string()),
        };
        Some(following.end(outcome))
    }

    /// Where streams are asked for without encryption or a proxy, and all can be followed on one thread; nothing where
    /// they cannot.
    pub(super) fn target(&self) -> Option<Target> {
        let url: Uri = self.url().parse().ok()?;
        let (host, port) = (url.host()?, url.port_u16().unwrap_or(80));
        if url.scheme_str() != Some("http") || self.agent.config().proxy().is_some() {
            return None;
        }
        // The one of its addresses that answers.
        let address = TcpStream::connect((host.trim_matches(['[', ']']), port)).ok()?.peer_addr().ok()?;
        let path = url.path_and_query()?;
        let mut head = format!("POST {path} HTTP/1.1\r\nHost: {}\r\n", url.authority()?);
        let own = [("Content-Type", "application/json"), ("Accept", "*/*"), ("User-Agent", AGENT)];
        let more = self.headers.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        for (name, value) in own.into_iter().chain(more) {
            // What would be another field, or none, is the other client's to refuse.
            (name.parse::<HeaderName>().is_ok() && value.parse::<HeaderValue>().is_ok()).then_some(())?;
            head += &format!("{name}: {value}\r\n");
        }
        Some(Target { address, head })
    }
}

fn local(host: &str, port: u16) -> String {
    if host.contains(':') { format!("http://[{host}]:{port}") } else { format!("http://{host}:{port}") }
}

fn agent(uri: &Uri, believes_any: bool) -> Agent {
    let tls = TlsConfig::builder().root_certs(RootCerts::PlatformVerifier);
    let tls = tls.disable_verification(believes_any).build();
    let config = Agent::config_builder()
        .timeout_resolve(Some(CONNECT))
        .timeout_connect(Some(CONNECT))
        .timeout_per_read(Some(SILENCE))
        .http_status_as_error(false)
        .max_idle_connections(usize::MAX)
        .max_idle_connections_per_host(usize::MAX)
        .input_buffer_size(BUFFER_BYTES)
        .output_buffer_size(BUFFER_BYTES)
        .user_agent(AGENT)
        .tls_config(tls);
    let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
    let here =
        host == "localhost" || host.parse().is_ok_and(|address: std::net::IpAddr| address.is_loopback());
    // A proxy has no way to this machine.
    if here { config.proxy(None).build().into() } else { config.build().into() }
}

/// Status and message of an answer that is none.
fn refusal(mut answer: Response<Body>) -> String {
    let status = answer.status();
    let mut text = String::new();
    let _ = answer.body_mut().as_reader().take(ERROR_BYTES).read_to_string(&mut text);
    said(status.as_u16(), &text)
}

/// The same, of what was read of it.
pub(super) fn said(status: u16, text: &str) -> String {
    let said: Option<Value> = serde_json::from_str(text).ok();
    let said = said.and_then(|body| Some(body["error"]["message"].as_str()?.to_string()));
    format!("HTTP {status}: {}", said.as_deref().unwrap_or(text))
}

/// A stream on its way.
pub(super) struct Following {
    begin: Instant,
    /// The newest token.
    last: Option<Instant>,
    /// Whether the end was announced.
    ended: bool,
    /// The beginning of a line whose end has not come.
    line: Vec<u8>,
    answer: Answer,
}

impl Following {
    /// Its request is sent now.
    pub(super) fn begin() -> Following {
        let (begin, answer) = (Instant::now(), Answer::default());
        Following { begin, last: None, ended: false, line: Vec::new(), answer }
    }

    /// Reads to the end of the body, so that the connection can be used again; nothing if it was stopped before.
    fn follow(&mut self, body: &mut dyn Read, stop: &Stop) -> Option<Result<(), String>> {
        let mut piece = vec![0; BUFFER_BYTES];
        while !stop.is_wanted() {
            let taken = match body.read(&mut piece) {
                Ok(0) => return Some(Ok(())),
                Ok(n) => self.take(&piece[..n], Instant::now()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
                Err(error) => Err(format!("the stream broke off: {error}")),
            };
            if taken.is_err() {
                return Some(taken);
            }
        }
        None
    }

    /// Takes what came at this time.
    ///
    /// # Errors
    /// What is no stream of tokens, and the error that a stream tells of.
    pub(super) fn take(&mut self, mut piece: &[u8], now: Instant) -> Result<(), String> {
        while let Some(end) = piece.iter().position(|&byte| byte == b'\n') {
            if self.line.is_empty() {
                self.line(&piece[..end], now)?;
            } else {
                let mut line = std::mem::take(&mut self.line);
                line.extend_from_slice(&piece[..end]);
                self.line(&line, now)?;
            }
            piece = &piece[end + 1..];
        }
        self.line.extend_from_slice(piece);
        Ok(())
    }

    /// Nothing more comes; `outcome`: of reading it.
    pub(super) fn end(mut self, outcome: Result<(), String>) -> Answer {
        let whole = match (self.ended, self.last) {
            (true, Some(_)) => Ok(()),
            (true, None) => Err("the stream had no token".to_string()),
            (false, _) => Err("the stream ended before its end was announced".to_string()),
        };
        self.answer.error = outcome.and(whole).err();
        self.answer
    }

    fn line(&mut self, line: &[u8], now: Instant) -> Result<(), String> {
        // Comments keep silent streams open; names of events say nothing here.
        let Some(data) = line.strip_prefix(b"data:").map(<[u8]>::trim_ascii) else { return Ok(()) };
        if data == b"[DONE]" {
            self.ended = true;
            return Ok(());
        }
        let event: Event =
            serde_json::from_slice(data).map_err(|error| format!("an event is not JSON: {error}"))?;
        if let Some(error) = event.error {
            let said = error["message"].as_str().unwrap_or("");
            return Err(format!("the stream ended with an error: {said}"));
        }
        if let Some(usage) = event.usage {
            self.answer.input_tokens = usage.prompt_tokens.or(self.answer.input_tokens);
            self.answer.output_tokens = usage.completion_tokens.or(self.answer.output_tokens);
        }
        for choice in event.choices {
            self.ended |= choice.finish_reason.is_some();
            if choice.has_token() {
                self.token(now);
                self.answer.text.push_str(choice.words());
            }
        }
        Ok(())
    }

    fn token(&mut self, now: Instant) {
        match self.last.replace(now) {
            None => self.answer.ttft = (now - self.begin).as_secs_f64(),
            Some(last) => self.answer.itl.push((now - last).as_secs_f64()),
        }
        self.answer.latency = (now - self.begin).as_secs_f64();
    }
}

impl Choice {
    /// Whether something was generated: not so where a chat only names the role, or how it ended.
    fn has_token(&self) -> bool {
        let Some(delta) = &self.delta else { return self.text.is_some() };
        let says = |text: &Option<String>| {
            text.as_ref().is_some_and(|text| !text.is_empty() || delta.role.is_none())
        };
        says(&delta.content) || says(&delta.reasoning) || delta.tool_calls.is_some()
    }

    fn words(&self) -> &str {
        let said = self.delta.as_ref().and_then(|delta| delta.content.as_deref());
        self.text.as_deref().or(said).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives one piece a read.
    struct Pieces<'a>(std::slice::Iter<'a, &'a str>);

    impl Read for Pieces<'_> {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            let piece = self.0.next().map_or(&b""[..], |piece| piece.as_bytes());
            into[..piece.len()].copy_from_slice(piece);
            Ok(piece.len())
        }
    }

    fn follow(pieces: &[&str]) -> (Result<(), String>, Answer) {
        let mut following = Following::begin();
        let outcome = following.follow(&mut Pieces(pieces.iter()), &Stop::default()).unwrap();
        let mut answer = following.end(outcome);
        (answer.error.take().map_or(Ok(()), Err), answer)
    }

    #[test]
    fn events_are_found_wherever_they_are_cut() {
        let (outcome, answer) = follow(&[
            ": ping\n\nda",
            "ta: {\"choices\":[{\"text\":\"a\"}]}\r\n\r\ndata: {\"choices\":[{\"text\":\"\"}]}\n\ndata:{\"choi",
            "ces\":[{\"text\":\"b\",\"finish_reason\":\"length\"}]}\n\n",
            "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":3}}\n\ndata: [DONE]\n\n",
        ]);
        assert_eq!(outcome, Ok(()));
        assert_eq!((answer.text.as_str(), answer.itl.len()), ("ab", 2));
        assert_eq!((answer.input_tokens, answer.output_tokens), (Some(5), Some(3)));
        assert!(answer.latency >= answer.ttft);
    }

    #[test]
    fn chats_begin_with_their_first_word() {
        let (outcome, answer) = follow(&[
            "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n",
            "data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\n\n",
            "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n",
        ]);
        assert_eq!((outcome, answer.text.as_str(), answer.itl.len()), (Ok(()), "x", 0));
    }

    #[test]
    fn streams_that_end_badly_say_so() {
        for (stream, says) in [
            ("data: {\"choices\":[{\"text\":\"a\"}]}\n\n", "before its end"),
            ("data: {\"error\":{\"message\":\"too bad\"}}\n\n", "too bad"),
            ("data: {\"choices\n\n", "not JSON"),
            ("data: [DONE]\n\n", "no token"),
        ] {
            assert!(follow(&[stream]).0.unwrap_err().contains(says), "{stream}");
        }
    }
}
