//! Ten times more streams than may wait, a fifth of the clients vanishing: nothing is lost or mixed up, and everything
//! is given back. `clients/load.py` does the same with a thousand at a time.

use std::io::{Read, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use crate::common::{config, connect, is_idle, post, read, request, start, start_braked, until};
use serde_json::{Value, json};
use server::Config;

const CLIENTS: usize = 60;
const REQUESTS: usize = 600;
const PROMPTS: usize = 12;
/// Of the choice of prompts and of those who vanish.
const SEED: u64 = 11;

fn body(prompt: usize, stream: bool) -> Value {
    json!({"prompt": vec![5 + prompt; 1 + 3 * prompt], "max_tokens": 24, "temperature": 0, "ignore_eos": true,
           "stream": stream})
}

/// A number for each request, the same in every run.
fn drawn(request: usize) -> u64 {
    let x = (request as u64 + SEED).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (x ^ (x >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9) >> 17
}

/// What a whole stream says.
fn text(events: &[String]) -> String {
    let (last, chunks) = events.split_last().expect("a stream has an end");
    assert_eq!(last, "[DONE]");
    let piece = |chunk: &String| serde_json::from_str::<Value>(chunk).unwrap()["choices"][0]["text"].clone();
    chunks.iter().map(|chunk| piece(chunk).as_str().unwrap().to_string()).collect()
}

#[test]
fn overload_and_vanishing_clients_lose_and_keep_nothing() {
    let calm = start("llama", config());
    let answer = |prompt| post(calm.address, "/v1/completions", &body(prompt, false)).json();
    let want: Vec<String> = (0..PROMPTS)
        .map(|prompt| answer(prompt)["choices"][0]["text"].as_str().unwrap().to_string())
        .collect();
    drop(calm);
    // Nothing is answered before something was refused: however fast the engine is, there is too much.
    let (server, brake) = start_braked("llama", Config { max_num_queued_reqs: CLIENTS / 10, ..config() });
    let [next, served, refused, vanished] = [const { AtomicUsize::new(0) }; 4];
    let one = |draw: u64| {
        let prompt = draw as usize % PROMPTS;
        let bytes = body(prompt, true).to_string();
        let bytes =
            request("POST", "/v1/completions", "Content-Type: application/json\r\n", bytes.as_bytes());
        let mut client = connect(server.address);
        client.write_all(&bytes).unwrap();
        if (draw / 64).is_multiple_of(5) {
            // Gone before, in or after its answer.
            let _ = client.read(&mut vec![0; 1 + draw as usize % 3000]);
            vanished.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let response = read(&mut client);
        match response.status {
            200 => {
                assert_eq!(text(&response.events()), want[prompt]);
                served.fetch_add(1, Ordering::Relaxed);
            }
            status => {
                assert_eq!((status, response.header("retry-after")), (503, Some("1")));
                refused.fetch_add(1, Ordering::Relaxed);
                brake.release();
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                loop {
                    let request = next.fetch_add(1, Ordering::Relaxed);
                    if request >= REQUESTS {
                        break;
                    }
                    one(drawn(request));
                }
            });
        }
    });
    let [served, refused, vanished] = [served, refused, vanished].map(AtomicUsize::into_inner);
    assert_eq!(served + refused + vanished, REQUESTS);
    assert!(served > 0 && refused > 0 && vanished > REQUESTS / 10, "{served} {refused} {vanished}");
    until(|| is_idle(server.address));
}
