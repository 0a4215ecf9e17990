//! What SECURITY.md promises and no other file tests; and that the tests which it names are there. Only one test here
//! has a server: it looks at all that this process listens on.

#[path = "it/common/mod.rs"]
mod common;

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::path::Path;

use common::{config, connect, get, post, read, start};
use serde_json::json;

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

#[test]
fn every_test_that_the_list_names_is_there() {
    let text = fs::read_to_string(root().join("SECURITY.md")).unwrap();
    let named: Vec<(&str, &str)> = text
        .split('`')
        .filter_map(|word| word.split_once("::"))
        .filter(|(file, _)| file.ends_with(".rs"))
        .collect();
    assert!(named.len() >= 20, "{}", named.len());
    for (file, test) in named {
        let source =
            fs::read_to_string(root().join("crates").join(file)).unwrap_or_else(|e| panic!("{file}: {e}"));
        assert!(source.contains(&format!("fn {test}(")), "{file} has no {test}");
    }
}

/// Addresses that this process listens on, of IPv4 and IPv6, as the system writes them.
fn listening() -> BTreeSet<String> {
    let own: BTreeSet<String> = fs::read_dir("/proc/self/fd")
        .unwrap()
        .filter_map(|entry| fs::read_link(entry.ok()?.path()).ok()?.to_str().map(str::to_string))
        .filter_map(|link| Some(link.strip_prefix("socket:[")?.strip_suffix(']')?.to_string()))
        .collect();
    let tables =
        ["tcp", "tcp6", "udp", "udp6"].map(|table| fs::read_to_string(format!("/proc/self/net/{table}")));
    let lines: Vec<String> =
        tables.iter().flatten().flat_map(|text| text.lines().skip(1)).map(str::to_string).collect();
    let fields = lines.iter().map(|line| line.split_whitespace().collect::<Vec<_>>());
    // State 0A listens; 07 is a socket without connection.
    let bound = fields.filter(|f| ["0A", "07"].contains(&f[3]) && own.contains(f[9]));
    bound.map(|f| f[1].to_string()).collect()
}

#[test]
fn only_the_api_port_listens_and_hostile_heads_are_refused() {
    let server = start("llama", config());
    let body = json!({"prompt": [5, 9], "max_tokens": 2, "temperature": 0});
    assert_eq!(post(server.address, "/v1/completions", &body).status, 200);
    assert_eq!(listening(), BTreeSet::from([format!("0100007F:{:04X}", server.address.port())]));

    // A head of a mebibyte, then one of ten thousand fields: refused or cut, never read to its end.
    for head in [format!("X: {}\r\n", "y".repeat(1 << 20)), "X: y\r\n".repeat(10_000)] {
        let mut client = connect(server.address);
        let _ =
            client.write_all(format!("GET /version HTTP/1.1\r\nHost: localhost\r\n{head}\r\n").as_bytes());
        let mut answer = Vec::new();
        let _ = client.read_to_end(&mut answer);
        let answer = String::from_utf8_lossy(&answer);
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431"), "{answer}");
    }
    // Compressed bodies are not unpacked: there is nothing that grows.
    let mut client = connect(server.address);
    let packed =
        common::request("POST", "/v1/completions", "Content-Encoding: gzip\r\n", b"\x1f\x8b\x08\x00aaaa");
    client.write_all(&packed).unwrap();
    assert_eq!(read(&mut client).status, 415);
    assert_eq!(get(server.address, "/version").status, 200);
}
