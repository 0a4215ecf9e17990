//! Servers for the tests of clients: the real one, and one that says what it is told to.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;

use serde_json::Value;

use super::{command, limited, on_a_disk};

/// `ballast serve` on a free port; it ends with the test.
pub(crate) struct Serving {
    pub(crate) url: String,
    child: Child,
    log: Arc<Mutex<String>>,
    reader: Option<thread::JoinHandle<()>>,
}

impl Serving {
    /// Starts it and waits until it is ready.
    pub(crate) fn start(args: &[&str]) -> Serving {
        Serving::start_with(args, &[])
    }

    pub(crate) fn start_with(args: &[&str], env: &[(&str, &str)]) -> Serving {
        let mut command = command(&[&["serve"], args, &["--port", "0"]].concat());
        command.envs(env.iter().copied());
        Serving::of(command)
    }

    /// Starts it with files that may have so many bytes each.
    pub(crate) fn start_limited(args: &[&str], bytes: usize) -> Serving {
        Serving::of(limited(&command(&[&["serve"], args, &["--port", "0"]].concat()), bytes))
    }

    /// Starts it with `folder` a disk of so many bytes, if there can be one.
    pub(crate) fn start_on_a_disk(args: &[&str], folder: &str, bytes: usize) -> Option<Serving> {
        let command = command(&[&["serve"], args, &["--port", "0"]].concat());
        on_a_disk(&command, folder, bytes).map(Serving::of)
    }

    fn of(mut command: Command) -> Serving {
        command.stderr(Stdio::piped()).stdout(Stdio::null());
        let mut child = command.spawn().expect("the binary starts");
        let mut err = BufReader::new(child.stderr.take().expect("piped"));
        let (mut url, mut seen) = (String::new(), String::new());
        while !seen.contains("ready: ") {
            let mut line = String::new();
            assert!(err.read_line(&mut line).expect("UTF-8") > 0, "it ended: {seen}");
            if let Some(at) = line.find("http://") {
                url = line[at..].split([' ', '"', '\n']).next().expect("an address").to_string();
            }
            seen += &line;
        }
        let log = Arc::new(Mutex::new(seen));
        let kept = Arc::clone(&log);
        let reader = thread::spawn(move || {
            let mut line = String::new();
            while err.read_line(&mut line).is_ok_and(|n| n > 0) {
                kept.lock().expect("no panic").push_str(&line);
                line.clear();
            }
        });
        Serving { url, child, log, reader: Some(reader) }
    }

    /// The process.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Asks it to end, and gives all that it said on standard error.
    pub(crate) fn end(self) -> String {
        let kill = Command::new("kill").args(["-TERM", &self.id().to_string()]).status();
        assert!(kill.expect("kill").success());
        self.ended(0)
    }

    /// It ends by itself with this code: all that it said on standard error.
    pub(crate) fn ended(mut self, code: i32) -> String {
        assert_eq!(self.child.wait().expect("it ends").code(), Some(code));
        self.reader.take().expect("a reader").join().expect("no panic");
        self.log.lock().expect("no panic").clone()
    }

    /// A request over a connection of its own; the whole response.
    pub(crate) fn ask(&self, method: &str, path: &str, headers: &str, body: &str) -> String {
        let mut stream = TcpStream::connect(self.url.trim_start_matches("http://")).expect("it listens");
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {}\r\n{headers}\r\n",
            body.len()
        );
        stream.write_all(&[head.as_bytes(), body.as_bytes()].concat()).expect("sent");
        let mut response = String::new();
        stream.read_to_string(&mut response).expect("UTF-8");
        response
    }
}

impl Serving {
    /// A file of requests, as a form brings it; the whole response.
    pub(crate) fn upload(&self, text: &str) -> String {
        let body = format!(
            "--B\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n\
             --B\r\nContent-Disposition: form-data; name=\"file\"; filename=\"in.jsonl\"\r\n\r\n{text}\r\n--B--\r\n"
        );
        self.ask("POST", "/v1/files", "Content-Type: multipart/form-data; boundary=B\r\n", &body)
    }

    /// Begins a batch of completions over these lines; its path.
    pub(crate) fn batch(&self, lines: &str) -> String {
        let file = json_of(&self.upload(lines));
        let body = serde_json::json!({
            "input_file_id": file["id"], "endpoint": "/v1/completions", "completion_window": "24h"});
        let batch = json_of(&self.ask("POST", "/v1/batches", "", &body.to_string()));
        format!("/v1/batches/{}", batch["id"].as_str().expect("an id"))
    }

    /// What is there by now.
    pub(crate) fn get(&self, path: &str) -> Value {
        json_of(&self.ask("GET", path, "", ""))
    }
}

/// The body of a response.
pub(crate) fn json_of(response: &str) -> Value {
    let body = response.split_once("\r\n\r\n").expect("a head").1;
    serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {response}"))
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A request that a scripted server got.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) head: String,
    pub(crate) body: String,
}

/// What a scripted server answers to a request.
pub(crate) type Script = fn(&Asked) -> String;

/// A server that answers as its script says; it lives as long as the process.
pub(crate) struct Scripted {
    pub(crate) url: String,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl Scripted {
    pub(crate) fn start(script: Script) -> Scripted {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("bound"));
        let asked = Arc::new(Mutex::new(Vec::new()));
        let all = Arc::clone(&asked);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let all = Arc::clone(&all);
                thread::spawn(move || answer(&stream, script, &all));
            }
        });
        Scripted { url, asked }
    }

    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.asked.lock().expect("no panic").clone()
    }
}

/// Answers one request after another on a connection.
fn answer(stream: &TcpStream, script: Script, all: &Mutex<Vec<Asked>>) {
    let mut reader = BufReader::new(stream);
    loop {
        let (mut head, mut length) = (String::new(), 0);
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).unwrap_or(0) == 0 {
                return;
            }
            if let Some(n) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = n.trim().parse().expect("a length");
            }
            if line == "\r\n" {
                break;
            }
            head += &line;
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).expect("a whole body");
        let asked = Asked { head, body: String::from_utf8(body).expect("UTF-8") };
        all.lock().expect("no panic").push(asked.clone());
        let mut to = stream;
        let said = script(&asked);
        // A client that has enough leaves. Where an answer does not say where it ends, the connection does.
        let ends = said.contains("Content-Length") || said.ends_with("0\r\n\r\n");
        if to.write_all(said.as_bytes()).is_err() || !ends {
            return;
        }
    }
}

/// A whole response.
pub(crate) fn response(status: &str, body: &str) -> String {
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// A stream in chunks of HTTP, one each.
pub(crate) fn stream(events: &[&str]) -> String {
    let chunk = |event: &&str| format!("{:x}\r\n{event}\r\n", event.len());
    let chunks: String = events.iter().map(chunk).collect();
    format!(
        "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n{chunks}0\r\n\r\n"
    )
}
