//! The document knows every route, and names nothing that it does not define.

use super::*;

/// Paths of the router, from its source: what is routed must be documented.
fn routed() -> Vec<String> {
    let source = include_str!("../routes.rs");
    let paths = source.split(".route(\"").skip(1).filter_map(|rest| rest.split('"').next());
    paths.map(|path| path.replace("{*id}", "{id}")).collect()
}

const OFFERED: schema::Offered =
    schema::Offered { vocab: 256, max_logprobs: 20, own_templates: OwnTemplates::Refused };

#[test]
fn every_route_is_in_it_and_nothing_else() {
    let document = whole(1, &OFFERED);
    let mut documented: Vec<&String> = document["paths"].as_object().unwrap().keys().collect();
    let mut routed = routed();
    documented.sort();
    routed.sort();
    assert!(routed.len() > 10);
    assert_eq!(documented, routed.iter().collect::<Vec<_>>());
}

fn references(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(map) => map.iter().for_each(|(key, value)| match value {
            Value::String(text) if key == "$ref" => found.push(text.clone()),
            _ => references(value, found),
        }),
        Value::Array(list) => list.iter().for_each(|value| references(value, found)),
        _ => (),
    }
}

#[test]
fn what_it_refers_to_is_there() {
    let document = whole(1, &OFFERED);
    let mut found = Vec::new();
    references(&document, &mut found);
    assert!(found.len() > 50);
    for reference in found {
        let pointer = reference.strip_prefix('#').unwrap();
        assert!(document.pointer(pointer).is_some(), "{reference}");
    }
}

#[test]
fn every_answer_has_a_schema() {
    let document = whole(1, &OFFERED);
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            let responses = operation["responses"].as_object().unwrap();
            assert!(responses.contains_key("200") && responses.contains_key("503"), "{method} {path}");
            assert!(responses.values().all(|r| r["content"].is_object()), "{method} {path}");
        }
    }
}
