//! Clients that vanish, and servers that begin and end.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::mpsc::channel;
use std::time::Duration;

use crate::common::spool::{Spool, begin, ended, lines};
use crate::common::{
    self, Brake, Running, config, connect, get, heard, is_idle, metric, post, read, request, start,
    start_braked, start_with, until,
};
use serde_json::{Value, json};
use server::{Config, Ended};

/// A request that takes a while.
fn long(stream: bool) -> Vec<u8> {
    let body = json!({"prompt": vec![7; 40], "max_tokens": 460, "n": 4, "ignore_eos": true, "stream": stream,
                      "temperature": 0});
    request("POST", "/v1/completions", "Content-Type: application/json\r\n", body.to_string().as_bytes())
}

fn ask(server: &Running, bytes: &[u8]) -> TcpStream {
    let mut client = connect(server.address);
    client.write_all(bytes).unwrap();
    client
}

fn generated(server: &Running) -> f64 {
    metric(server.address, "vllm:generation_tokens_total")
}

/// Sequences that have brought nothing yet.
fn queued(server: &Running) -> f64 {
    metric(server.address, "ballast_queued_requests")
}

/// Those in the engine's steps, the brake among them.
fn running(server: &Running) -> f64 {
    metric(server.address, "vllm:num_requests_running")
}

/// Waits until a [`long`] request is in a step.
fn begins(server: &Running, brake: &Brake) {
    until(|| queued(server) == 4.0);
    until(|| {
        brake.step();
        running(server) == 5.0
    });
}

/// A server that is in a step of a stream, which goes on until the brake is released.
fn in_a_step(config: Config) -> (Running, Brake, TcpStream) {
    let (server, brake) = start_braked("llama", config);
    let stream = ask(&server, &long(true));
    begins(&server, &brake);
    (server, brake, stream)
}

#[test]
fn a_vanished_client_frees_everything_at_once() {
    let (server, brake) = start_braked("llama", config());
    for stream in [true, false] {
        // Before its body is complete, while it waits, while it generates.
        let whole = long(stream);
        drop(ask(&server, &whole[..whole.len() - 5]));
        let waiting = ask(&server, &whole);
        until(|| queued(&server) == 4.0);
        drop(waiting);
        until(|| queued(&server) == 0.0);
        let mut client = ask(&server, &whole);
        begins(&server, &brake);
        if stream {
            assert!(client.read(&mut [0; 200]).unwrap() > 0);
        }
        drop(client);
        // Steps go on while the server has not noticed yet.
        until(|| get(server.address, "/load").json() == json!({"server_load": 0}));
        until(|| {
            brake.step();
            running(&server) == 1.0 && queued(&server) == 0.0
        });
    }
    assert!(generated(&server) < 4.0 * 460.0, "none of them ran to its end");
    brake.release();
    until(|| is_idle(server.address));
    let aborted = get(server.address, "/metrics").body;
    let line =
        aborted.lines().find(|l| l.starts_with("vllm:request_success_total") && l.contains("abort")).unwrap();
    assert_eq!(line.rsplit(' ').next().unwrap().parse::<f64>().unwrap(), 16.0, "{line}");
}

/// An old client's end of a line, or the beginning of its next request.
#[test]
fn what_comes_behind_a_request_hides_no_end_of_its_client() {
    let (server, brake) = start_braked("llama", config());
    let stays = |request: &[u8]| String::from_utf8_lossy(request).replacen("Connection: close\r\n", "", 1);
    for behind in ["\r\n", "GET /ver"] {
        let waiting = ask(&server, (stays(&long(false)) + behind).as_bytes());
        until(|| queued(&server) == 4.0);
        drop(waiting);
        until(|| queued(&server) == 0.0);
    }
    // Nothing of it is lost, however much it is.
    let (body, headers) = (br#"{"prompt": [5], "max_tokens": 2}"#, "Content-Type: application/json\r\n");
    let first = stays(&request("POST", "/v1/completions", headers, body));
    let last = request("GET", "/version", "", b"");
    let many = first + &stays(&last).repeat(300) + &String::from_utf8_lossy(&last);
    let mut client = ask(&server, many.as_bytes());
    until(|| queued(&server) == 1.0);
    brake.release();
    let mut answers = String::new();
    client.read_to_string(&mut answers).unwrap();
    assert_eq!(answers.matches("HTTP/1.1 200").count(), 302, "{answers}");
}

#[test]
fn requests_are_turned_away_while_the_model_is_loaded() {
    let (go, wait) = channel::<()>();
    let server = start_with(Config { model_name: "soon".into(), ..config() }, move || {
        wait.recv().unwrap();
        common::served("llama")
    });
    let body = json!({"prompt": [5]});
    assert_eq!(get(server.address, "/health").status, 200);
    // What autoscalers look at.
    for name in ["vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"] {
        assert_eq!(metric(server.address, name), 0.0, "{name}");
    }
    assert!(get(server.address, "/metrics").body.contains("vllm:num_requests_waiting{model_name=\"soon\","));
    for response in [
        get(server.address, "/ready"),
        get(server.address, "/v1/models"),
        post(server.address, "/v1/completions", &body),
    ] {
        assert_eq!((response.status, response.header("retry-after")), (503, Some("5")));
        assert_eq!(response.json()["error"]["code"], "model_loading");
    }
    go.send(()).unwrap();
    until(|| get(server.address, "/ready").status == 200);
    assert_eq!(post(server.address, "/v1/completions", &body).status, 200);
}

fn events(client: &mut TcpStream) -> Vec<String> {
    read(client).events()
}

#[test]
fn a_server_that_ends_finishes_what_is_under_way() {
    let (server, brake) = start_braked("llama", config());
    let mut streams: Vec<TcpStream> = (0..2).map(|_| ask(&server, &long(true))).collect();
    let mut whole = ask(&server, &long(false));
    until(|| queued(&server) == 12.0);
    until(|| {
        brake.step();
        running(&server) == 13.0
    });
    let mut kept = connect(server.address);
    kept.write_all(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    assert!(kept.read(&mut [0; 10]).unwrap() > 0);
    server.stopper.stop();
    until(|| heard(server.address, "/ready").is_some_and(|ready| ready.status == 503));
    assert_eq!(get(server.address, "/health").status, 200, "it lives");
    let late = post(server.address, "/v1/completions", &json!({"prompt": [5]}));
    assert_eq!((late.status, late.json()["error"]["code"].as_str()), (503, Some("server_shutting_down")));
    assert!(late.header("retry-after").is_some());
    brake.release();
    for stream in &mut streams {
        assert_eq!(events(stream).last().map(String::as_str), Some("[DONE]"));
    }
    assert_eq!(read(&mut whole).status, 200);
    let address = server.address;
    assert_eq!(server.end(), Ended::Drained);
    assert!(TcpStream::connect(address).is_err());
}

#[test]
fn who_was_silent_when_the_end_began_is_answered_while_others_are_finished() {
    let (server, brake) = start_braked("llama", config());
    let mut stream = ask(&server, &long(true));
    begins(&server, &brake);
    let mut silent = connect(server.address);
    // Accepted after it.
    assert_eq!(get(server.address, "/health").status, 200);
    server.stopper.stop();
    until(|| heard(server.address, "/ready").is_some_and(|ready| ready.status == 503));
    let body = br#"{"prompt": [5]}"#;
    let head =
        format!("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n", body.len());
    silent.write_all(&[head.as_bytes(), body].concat()).unwrap();
    // To its end: the connection is closed with it.
    let late = read(&mut silent);
    assert_eq!((late.status, late.json()["error"]["code"].as_str()), (503, Some("server_shutting_down")));
    // This one is not waited for.
    let _silent = connect(server.address);
    brake.release();
    assert_eq!(events(&mut stream).last().map(String::as_str), Some("[DONE]"));
    assert_eq!(server.end(), Ended::Drained);
}

#[test]
fn what_is_not_finished_in_time_ends_with_an_error() {
    let (server, brake) = start_braked("llama", Config { shutdown_timeout: Duration::ZERO, ..config() });
    let mut stream = ask(&server, &long(true));
    let mut whole = ask(&server, &long(false));
    until(|| queued(&server) == 8.0);
    until(|| {
        brake.step();
        running(&server) == 9.0
    });
    server.stopper.stop();
    let events = events(&mut stream);
    let last: Value = serde_json::from_str(events.last().unwrap()).unwrap();
    assert_eq!(last["error"]["code"], "server_shutting_down", "no [DONE] after an error");
    assert_eq!(read(&mut whole).status, 503);
    brake.release();
    assert_eq!(server.end(), Ended::CutShort);
}

#[test]
fn a_second_signal_ends_at_once() {
    let (server, brake, _stream) = in_a_step(config());
    server.stopper.stop();
    server.stopper.stop();
    brake.release();
    assert_eq!(server.end(), Ended::CutShort);
}

#[test]
fn a_second_signal_waits_for_no_step() {
    let (server, brake, _stream) = in_a_step(config());
    (0..2).for_each(|_| server.stopper.stop());
    assert_eq!(server.end(), Ended::CutShort);
    drop(brake);
}

#[test]
fn the_end_of_the_time_waits_for_no_step() {
    let (server, brake, _stream) = in_a_step(Config { shutdown_timeout: Duration::ZERO, ..config() });
    server.stopper.stop();
    assert_eq!(server.end(), Ended::CutShort);
    drop(brake);
}

/// A batch ends between two lines, and its engine's step goes on like any other.
#[test]
fn nobody_waits_for_the_step_of_a_batch_either_which_goes_on_in_the_next_server() {
    let spool = Spool::new();
    let config = || Config { shutdown_timeout: Duration::ZERO, ..spool.config() };
    let (server, brake) = start_braked("llama", config());
    let id = begin(&server, &lines(3, 5));
    until(|| metric(server.address, "ballast_requests_under_way") > 0.0);
    server.stopper.stop();
    server.end();
    drop(brake);
    spool.wait_until_free();
    let next = start("llama", config());
    assert_eq!(ended(&next, &id)["request_counts"]["completed"], 3);
}
