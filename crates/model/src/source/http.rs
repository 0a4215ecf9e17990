//! HTTP with resumable downloads.

use super::Progress;
use crate::error::{Error, Result};
use serde::Deserialize;
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};
use ureq::config::RedirectAuthHeaders;
use ureq::http::{HeaderMap, Response};
use ureq::tls::{RootCerts, TlsConfig};
use ureq::{Agent, Body};

const TEXT_BYTES_MAX: u64 = 64 << 20;
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a server may send nothing in the middle of an answer; a download goes on with another connection then.
const SILENCE: Duration = Duration::from_secs(60);
/// After how many attempts in a row that bring nothing a download is given up.
const RESUMES: u32 = 5;
/// The pause after the first such attempt, which doubles with each: a network that is away for a minute is waited for.
const PAUSE: Duration = Duration::from_secs(5);

/// A client.
#[derive(Clone, Debug)]
pub(super) struct Http {
    agent: Agent,
    token: Option<String>,
    pause: Duration,
    /// Somebody answered, whatever it was: there is a network.
    reached: Arc<AtomicBool>,
}

/// Why an attempt to download ended early.
enum Stopped {
    /// There is no connection, for this reason: another may go on.
    Broken(String),
    /// Another attempt would end as this one.
    Final(Error),
}

impl From<Error> for Stopped {
    fn from(error: Error) -> Stopped {
        Stopped::Final(error)
    }
}

/// A short answer.
#[derive(Debug)]
pub(super) struct Text {
    pub(super) body: String,
    pub(super) headers: HeaderMap,
}

impl Http {
    /// A client that gives up on a server which it cannot connect to within `connect`.
    pub(super) fn new(connect: Duration, token: Option<String>) -> Http {
        Http::patient(connect, SILENCE, token)
    }

    /// The same, with another limit of silence.
    fn patient(connect: Duration, silence: Duration, token: Option<String>) -> Http {
        let tls = TlsConfig::builder().root_certs(RootCerts::PlatformVerifier).build();
        let config = Agent::config_builder()
            .timeout_resolve(Some(connect))
            .timeout_connect(Some(connect))
            .timeout_recv_response(Some(RESPONSE_TIMEOUT))
            .timeout_per_read(Some(silence))
            .http_status_as_error(false)
            // A repository that was renamed is a redirect of the hub to itself, and needs the token as before.
            .redirect_auth_headers(RedirectAuthHeaders::SameHost)
            .user_agent(concat!("ballast/", env!("CARGO_PKG_VERSION")))
            .tls_config(tls)
            .build();
        Http { agent: config.into(), token, pause: PAUSE, reached: Arc::default() }
    }

    /// The answer, or why there is none.
    fn get(&self, url: &str, headers: &[(&str, &str)]) -> std::result::Result<Response<Body>, String> {
        let mut request = self.agent.get(url);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        // Dropped by the client when a redirect leads to another host.
        if let Some(token) = &self.token {
            if !token.bytes().all(|b| b.is_ascii_graphic()) {
                let why = "the token (HF_TOKEN, or the file of HF_TOKEN_PATH) has letters that no token has";
                return Err(why.into());
            }
            request = request.header("Authorization", format!("Bearer {token}"));
        }
        let call = request.call().inspect(|_| self.reached.store(true, Relaxed));
        call.map_err(|error| match error {
            ureq::Error::Http(_) | ureq::Error::BadUri(_) | ureq::Error::Protocol(_) => error.to_string(),
            _ => format!("{error}; is there a network? HTTPS_PROXY and HF_ENDPOINT may lead around"),
        })
    }

    /// Fetches a short text.
    pub(super) fn text(&self, url: &str, accept: &str) -> Result<Text> {
        let mut response = self.get(url, &[("Accept", accept)]).map_err(|why| failed(url, why))?;
        check_status(url, response.status().as_u16())?;
        let headers = response.headers().clone();
        let body = response.body_mut().with_config().limit(TEXT_BYTES_MAX).read_to_string();
        Ok(Text { body: body.map_err(|e| failed(url, e.to_string()))?, headers })
    }

    /// Fetches a file of `size` bytes into `to`, going on where an earlier attempt stopped.
    /// The caller checks its digest. Once anything was answered, a network or a server that is away for a while is waited for.
    pub(super) fn download(
        &self,
        url: &str,
        to: &Path,
        size: Option<u64>,
        progress: &mut dyn Progress,
    ) -> Result<()> {
        // Bytes that are lost and come again are no headway, or this might never end.
        let (mut most, mut in_vain) = (length(to), 0);
        loop {
            let why = match self.go_on(url, to, size, progress) {
                Ok(()) => return Ok(()),
                Err(Stopped::Final(error)) => return Err(error),
                Err(Stopped::Broken(why)) => why,
            };
            let have = length(to);
            in_vain = if have > most { 0 } else { in_vain + 1 };
            most = most.max(have);
            if most == 0 && !self.reached.load(Relaxed) || in_vain == RESUMES {
                return Err(given_up(url, why, have));
            }
            // After headway there is a network: only what brought nothing is worth a pause.
            if in_vain > 0 {
                let pause = self.pause * 2_u32.pow(in_vain - 1);
                progress.waits(&why, pause);
                wait(pause);
            }
        }
    }

    fn go_on(
        &self,
        url: &str,
        to: &Path,
        size: Option<u64>,
        progress: &mut dyn Progress,
    ) -> std::result::Result<(), Stopped> {
        let have = length(to);
        if size == Some(have) {
            return Ok(());
        }
        let range = format!("bytes={have}-");
        let headers = [("Range", range.as_str())];
        let response = self.get(url, if have > 0 { &headers } else { &[] }).map_err(Stopped::Broken)?;
        let status = response.status().as_u16();
        let resumed = status == 206 && starts_at(response.headers(), have);
        if status == 416 || (status == 206 && !resumed) || size.is_some_and(|size| have > size) {
            std::fs::remove_file(to).map_err(Error::io("remove", to))?;
            let why = "the server would not go on where an earlier attempt stopped";
            return Err(Stopped::Broken(why.into()));
        }
        // What passes.
        if status == 429 || status >= 500 {
            return Err(Stopped::Broken(refusal(status)));
        }
        check_status(url, status)?;
        let start = if resumed { have } else { 0 };
        let size = size.or_else(|| Some(start + content_length(response.headers())?));
        let mut file = open(to, resumed)?;
        copy(url, response.into_body().into_reader(), &mut file, to, (start, size), progress)
    }
}

fn open(to: &Path, append: bool) -> Result<File> {
    File::options()
        .create(true)
        .write(true)
        .append(append)
        .truncate(!append)
        .open(to)
        .map_err(Error::io("write", to))
}

fn copy(
    url: &str,
    mut from: impl Read,
    file: &mut File,
    to: &Path,
    (start, size): (u64, Option<u64>),
    progress: &mut dyn Progress,
) -> std::result::Result<(), Stopped> {
    let (mut done, mut buffer) = (start, vec![0; 1 << 17]);
    loop {
        let count = from.read(&mut buffer).map_err(|e| Stopped::Broken(e.to_string()))?;
        if count == 0 {
            break;
        }
        done += count as u64;
        if size.is_some_and(|size| done > size) {
            let why = format!("more than the announced {} bytes came", size.unwrap_or(0));
            return Err(failed(url, why).into());
        }
        file.write_all(&buffer[..count]).map_err(Error::io("write", to))?;
        progress.bytes(done, size);
    }
    match size {
        Some(size) if done < size => {
            Err(Stopped::Broken(format!("the connection ended after {done} of {size} bytes")))
        }
        _ => Ok(file.sync_all().map_err(Error::io("write", to))?),
    }
}

/// The error of a download of which `have` bytes are there.
fn given_up(url: &str, why: String, have: u64) -> Error {
    match have {
        0 => failed(url, why),
        _ => failed(url, format!("{why}. {have} bytes are there: the same command goes on from there")),
    }
}

/// Nothing unparks this thread before its time; if something did, it would wait again.
fn wait(time: Duration) {
    let end = Instant::now() + time;
    while let Some(left) = end.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
        std::thread::park_timeout(left);
    }
}

fn length(path: &Path) -> u64 {
    path.metadata().map_or(0, |m| m.len())
}

fn starts_at(headers: &HeaderMap, at: u64) -> bool {
    let range = headers.get("content-range").and_then(|v| v.to_str().ok());
    range.is_some_and(|r| r.trim_start().starts_with(&format!("bytes {at}-")))
}

fn content_length(headers: &HeaderMap) -> Option<u64> {
    headers.get("content-length")?.to_str().ok()?.trim().parse().ok()
}

fn check_status(url: &str, status: u16) -> Result<()> {
    match status {
        200..=299 => Ok(()),
        _ => Err(failed(url, refusal(status))),
    }
}

/// What a status that is none of success means.
fn refusal(status: u16) -> String {
    let why = match status {
        // The hub's answer to whoever is nobody to it, of what there is not as of what is not for all.
        401 => {
            "there is no such repository (check the name), or it is private or gated: set HF_TOKEN to a valid token that may \
             read it, and accept its licence on the hub"
        }
        403 => {
            "access is refused; set HF_TOKEN to a token that may read it, and accept its licence on the hub"
        }
        404 => "there is no such thing",
        429 => "too many requests; try again later, or set HF_TOKEN",
        500..=599 => "the server has a problem; try again later",
        _ => "an unexpected answer",
    };
    format!("{why} (status {status})")
}

fn failed(url: &str, why: String) -> Error {
    Error::Fetch { url: without_credentials(url), why }
}

/// Drops `user:password@` and everything after `?`, where signatures stand.
pub(super) fn without_credentials(url: &str) -> String {
    let url = url.split(['?', '#']).next().unwrap_or_default();
    let Some((scheme, rest)) = url.split_once("://") else {
        return url.rsplit('@').next().unwrap_or_default().into();
    };
    let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let host = host.rsplit('@').next().unwrap_or_default();
    format!("{scheme}://{host}{path}")
}

/// A path as an address has it.
pub(super) fn encoded(path: &str) -> String {
    let letter = |b: u8| match b {
        b'/' | b'-' | b'.' | b'_' | b'~' => char::from(b).to_string(),
        _ if b.is_ascii_alphanumeric() => char::from(b).to_string(),
        _ => format!("%{b:02X}"),
    };
    path.bytes().map(letter).collect()
}

/// Reads what the hub answers.
pub(super) fn json<T: for<'a> Deserialize<'a>>(url: &str, body: &str) -> Result<T> {
    let told =
        |e: serde_json::Error| Error::malformed(&without_credentials(url), e.to_string(), "the hub's JSON");
    serde_json::from_str(body).map_err(told)
}

/// Feeds all bytes of a file to a digest, after `prefix`; in hexadecimal.
pub(super) fn digest_of<D: Digest>(path: &Path, prefix: &[u8]) -> Result<String> {
    let mut file = File::open(path).map_err(Error::io("open", path))?;
    let (mut digest, mut buffer) = (D::new(), vec![0; 1 << 17]);
    digest.update(prefix);
    loop {
        let count = file.read(&mut buffer).map_err(Error::io("read", path))?;
        if count == 0 {
            return Ok(hex(&digest.finalize()));
        }
        digest.update(&buffer[..count]);
    }
}

pub(super) fn sha256_of(path: &Path) -> Result<String> {
    digest_of::<Sha256>(path, &[])
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// Removes `path` and fails unless its digest is the expected one.
pub(super) fn check_digest(path: &Path, expected: &str, found: String) -> Result<()> {
    if expected.eq_ignore_ascii_case(&found) {
        return Ok(());
    }
    std::fs::remove_file(path).map_err(Error::io("remove", path))?;
    Err(Error::Digest { file: path.display().to_string(), expected: expected.into(), found })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Silent;
    use std::io::{BufRead, BufReader};
    use std::net::{TcpListener, TcpStream};
    use std::sync::atomic::{AtomicUsize, Ordering};

    const BODY: &[u8] = b"so long, and thanks for all the weights";

    /// What a connection gets.
    #[derive(Clone, Copy)]
    enum Answer {
        /// So many of the bytes that it asks for, at most.
        Bytes(usize),
        /// An end, and no answer.
        Nothing,
        /// A refusal.
        Status(&'static str),
    }

    /// The address of a server that gives these answers one after another and then the last one again, and how many it gave.
    fn serving(answers: Vec<Answer>) -> (String, Arc<AtomicUsize>) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
        let url = format!("http://{}/weights", listener.local_addr().expect("an address"));
        let given = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&given);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(mut stream) = stream else { continue };
                let (from, whole) = (asked_from(&stream), BODY.len());
                let number = count.fetch_add(1, Ordering::Relaxed);
                let _ = match answers[number.min(answers.len() - 1)] {
                    Answer::Bytes(most) => {
                        let sent = &BODY[from..whole.min(from.saturating_add(most))];
                        stream.write_all(&[head(from).as_bytes(), sent].concat())
                    }
                    Answer::Nothing => Ok(()),
                    Answer::Status(status) => {
                        write!(stream, "HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
                    }
                };
            }
        });
        (url, given)
    }

    /// The head of an answer with the bytes from there on.
    fn head(from: usize) -> String {
        let whole = BODY.len();
        format!(
            "HTTP/1.1 {}\r\nContent-Length: {}\r\nContent-Range: bytes {from}-{}/{whole}\r\nConnection: close\r\n\r\n",
            if from == 0 { "200 OK" } else { "206 Partial Content" },
            whole - from,
            whole - 1,
        )
    }

    /// A client that gives up on silence after `silence`, and pauses for no time that one would notice.
    fn hasty(silence: Duration) -> Http {
        let http = Http::patient(Duration::from_secs(60), silence, None);
        Http { pause: Duration::from_millis(1), ..http }
    }

    /// How long was waited each time.
    #[derive(Default)]
    struct Waited(Vec<u128>);

    impl Progress for Waited {
        fn stage(&mut self, _: &str) {}
        fn bytes(&mut self, _: u64, _: Option<u64>) {}
        fn waits(&mut self, _: &str, time: Duration) {
            self.0.push(time.as_millis());
        }
    }

    /// What becomes of a download from such a server, what is there then, how many answers it took, and how long was waited each time.
    fn downloaded(answers: Vec<Answer>) -> (Result<()>, Vec<u8>, usize, Vec<u128>) {
        let (url, given) = serving(answers);
        let folder = tempfile::tempdir().expect("a folder");
        let to = folder.path().join("weights");
        let mut waited = Waited::default();
        let result = hasty(SILENCE).download(&url, &to, Some(BODY.len() as u64), &mut waited);
        (result, std::fs::read(&to).unwrap_or_default(), given.load(Ordering::Relaxed), waited.0)
    }

    #[test]
    fn a_download_outlives_breaks_and_a_network_that_is_away() {
        let breaks = vec![Answer::Bytes(3); 2 * RESUMES as usize];
        let away = [vec![Answer::Nothing; RESUMES as usize - 2], vec![Answer::Status("503 Busy")]].concat();
        let (result, there, _, waited) = downloaded([breaks, away, vec![Answer::Bytes(usize::MAX)]].concat());
        result.expect("breaks with headway between them are no end");
        assert_eq!((there.as_slice(), waited), (BODY, vec![1, 2, 4, 8]), "and each pause is told");
    }

    #[test]
    fn a_download_ends_where_waiting_does_not_help() {
        let (result, there, ..) = downloaded(vec![Answer::Bytes(3), Answer::Nothing]);
        let why = result.expect_err("the network stays away").to_string();
        assert!(why.contains("3 bytes are there: the same command goes on from there"), "{why}");
        assert_eq!(there, BODY[..3]);
        let (result, _, given, _) = downloaded(vec![Answer::Bytes(3), Answer::Status("403 Forbidden")]);
        let why = result.expect_err("refused").to_string();
        assert!(why.contains("status 403"), "{why}");
        assert_eq!(given, 2, "who refuses is not asked again");
        let (result, _, given, _) = downloaded(vec![Answer::Nothing]);
        result.expect_err("nothing ever came");
        assert_eq!(given, 1, "who never had a network is told at once");
    }

    #[test]
    fn a_server_that_is_busy_at_the_first_byte_is_waited_for() {
        let answers = vec![Answer::Status("503 Busy"), Answer::Nothing, Answer::Bytes(usize::MAX)];
        let (result, there, _, waited) = downloaded(answers);
        result.expect("it answered: there is a network");
        assert_eq!((there.as_slice(), waited), (BODY, vec![1, 2]));
        let (result, _, given, _) = downloaded(vec![Answer::Status("503 Busy")]);
        assert!(result.expect_err("it stays busy").to_string().contains("status 503"));
        assert_eq!(given, RESUMES as usize);
    }

    #[test]
    fn what_is_not_there_is_told_from_what_is_refused() {
        let why = |status| check_status("u", status).expect_err("refused").to_string();
        let (unknown, refused) = (why(401), why(403));
        assert!(unknown.contains("no such repository") && unknown.contains("HF_TOKEN"), "{unknown}");
        assert!(refused.contains("access is refused") && !refused.contains("no such"), "{refused}");
    }

    /// Where the range begins that a request asks for.
    fn asked_from(stream: &TcpStream) -> usize {
        let lines = BufReader::new(stream).lines().map_while(std::result::Result::ok);
        let head: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
        let range = head
            .iter()
            .find_map(|line| line.to_ascii_lowercase().strip_prefix("range: bytes=").map(str::to_owned));
        range.and_then(|range| range.trim_end_matches('-').parse().ok()).unwrap_or(0)
    }

    #[test]
    fn a_download_whose_server_falls_silent_goes_on_over_another_connection() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
        let url = format!("http://{}/weights", listener.local_addr().expect("an address"));
        std::thread::spawn(move || {
            // Those that are held are open, and silent.
            let mut held = vec![];
            for stream in listener.incoming() {
                let Ok(mut stream) = stream else { continue };
                let from = asked_from(&stream);
                let sent = if from == 0 { &BODY[..10] } else { &BODY[from..] };
                let _ = stream.write_all(&[head(from).as_bytes(), sent].concat());
                held.push(stream);
            }
        });
        let folder = tempfile::tempdir().expect("a folder");
        let to = folder.path().join("weights");
        let http = hasty(Duration::from_millis(500));
        // A machine that stands still for so long may find nothing sent yet: then it is asked again.
        let fetched =
            (0..100).any(|_| http.download(&url, &to, Some(BODY.len() as u64), &mut Silent).is_ok());
        assert!(fetched);
        assert_eq!(std::fs::read(&to).expect("there"), BODY);
    }
}
