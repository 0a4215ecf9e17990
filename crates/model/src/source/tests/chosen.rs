use super::*;

/// The same hub with other files at the top of its repository, and a folder of templates.
fn hub_of(files: &[(&str, &[u8])]) -> BTreeMap<String, Answer> {
    let mut answers = tiny_hub();
    let entry = |path: &str, body: &[u8]| json!({"type": "file", "path": path, "size": body.len(), "oid": git_digest(body)});
    let mut top: Vec<_> = files.iter().map(|(path, body)| entry(path, body)).collect();
    top.push(
        json!({"type": "directory", "path": "additional_chat_templates", "size": 0, "oid": git_digest(b"")}),
    );
    let template = entry("additional_chat_templates/tool_use.jinja", b"tools");
    let hidden = entry("additional_chat_templates/../x.jinja", b"tools");
    let trees = [("", json!(top)), ("/additional_chat_templates", json!([template, hidden]))];
    for (folder, tree) in trees {
        let path = format!("/api/models/org/tiny/tree/{COMMIT}{folder}");
        answers.insert(path, answer("application/json", tree.to_string()));
    }
    let all = files.iter().copied().chain([("additional_chat_templates/tool_use.jinja", &b"tools"[..])]);
    for (path, body) in all {
        answers.insert(format!("/org/tiny/resolve/{COMMIT}/{path}"), answer("text/plain", body));
    }
    answers
}

/// A hub of these answers, and an empty cache beside it.
fn served(answers: BTreeMap<String, Answer>) -> (TempDir, Server, Places) {
    let (folder, server) = (tempfile::tempdir().expect("a folder"), Server::start(answers));
    let places = places(&folder, &server.url());
    (folder, server, places)
}

/// A configuration, a tokenizer, and weights that nobody reads.
fn whole_model(config: &[u8]) -> BTreeMap<String, Answer> {
    hub_of(&[("config.json", config), ("tokenizer.json", b"{}"), ("model.safetensors", b"weights")])
}

#[test]
fn one_of_several_gguf_files_is_chosen_by_name_or_format() {
    let files: [(&str, &[u8]); 4] = [
        ("tiny-Q4_K_M.gguf", b"4"),
        ("tiny-Q8_0.gguf", b"8"),
        ("tiny-f16-00001-of-00002.gguf", b"1"),
        ("tiny-f16-00002-of-00002.gguf", b"2"),
    ];
    let (_folder, server, mut places) = served(hub_of(&files[..2]));
    let found = |name: &str, places: &Places| {
        let path = locate(Some(name), places, &mut Silent)?;
        Ok::<_, Error>(path.file_name().expect("a name").to_string_lossy().into_owned())
    };
    let several = found("org/tiny", &places).expect_err("which?").to_string();
    assert!(
        several.contains("org/tiny/tiny-Q4_K_M.gguf") && several.contains("org/tiny:Q4_K_M"),
        "{several}"
    );
    assert_eq!(found("org/tiny:Q8_0", &places).expect("by format"), "tiny-Q8_0.gguf");
    assert_eq!(server.count("tiny-q4_k_m.gguf"), 0, "only what is asked for is fetched");
    assert_eq!(found("org/tiny/tiny-Q4_K_M.gguf", &places).expect("by name"), "tiny-Q4_K_M.gguf");
    // Both are in the cache now: the same names find them there, and without one it is said what is missing.
    places.offline = true;
    assert_eq!(found("org/tiny:q8_0", &places).expect("cached"), "tiny-Q8_0.gguf");
    let several = found("org/tiny", &places).expect_err("which?").to_string();
    assert!(several.contains("tiny-Q8_0.gguf") && !several.contains("HF_HUB_OFFLINE"), "{several}");

    let (_folder, server, split) = served(hub_of(&files));
    assert_eq!(found("org/tiny:F16", &split).expect("all parts"), files[2].0);
    assert_eq!(server.count("-of-00002.gguf"), 2);
}

/// As transformers does, where an index was left of what the file was made from.
#[test]
fn one_file_counts_before_an_index() {
    let index: &[u8] = br#"{"weight_map": {"a": "model-00001-of-00001.safetensors"}}"#;
    let files = [("config.json", llama_config(json!({}))), ("tokenizer.json", "{}".into())];
    let mut all: Vec<(&str, &[u8])> = files.iter().map(|(name, text)| (*name, text.as_bytes())).collect();
    all.extend([("model.safetensors.index.json", index), ("model.safetensors", b"weights")]);
    let (_folder, _server, mut places) = served(hub_of(&all));
    let path = locate(Some("org/tiny"), &places, &mut Silent).expect("the shard is not asked for");
    places.offline = true;
    assert_eq!(locate(Some("org/tiny"), &places, &mut Silent).expect("whole"), path);
}

#[test]
fn further_templates_are_fetched_and_a_tokenizer_that_lacks() {
    let (_folder, server, mut places) = served(whole_model(llama_config(json!({})).as_bytes()));
    let path = locate(Some("org/tiny"), &places, &mut Silent).expect("downloaded");
    let template = path.join("additional_chat_templates/tool_use.jinja");
    assert_eq!(std::fs::read(&template).expect("linked to its blob"), b"tools");
    assert!(!path.join("x.jinja").exists());
    // What transformers leaves where only the model was loaded.
    let (requests, tokenizer) = (server.count("get "), path.join("tokenizer.json"));
    std::fs::remove_file(&tokenizer).expect("removed");
    assert_eq!(locate(Some("org/tiny"), &places, &mut Silent).expect("there"), path);
    assert!(tokenizer.is_file() && server.count("get ") > requests, "it was asked for");
    std::fs::remove_file(&tokenizer).expect("removed");
    places.offline = true;
    assert_eq!(locate(Some("org/tiny"), &places, &mut Silent).expect("the weights are there"), path);
}

#[test]
fn gguf_files_are_found_in_folders() {
    let files: [(&str, &[u8]); 5] = [
        ("Q8_0/tiny-Q8_0-00001-of-00002.gguf", b"1"),
        ("Q8_0/tiny-Q8_0-00002-of-00002.gguf", b"2"),
        ("Q4_0/tiny-Q4_0.gguf", b"4"),
        ("a/b/tiny-Q2_K.gguf", b"too deep"),
        ("tiny-F16.gguf", b"16"),
    ];
    let mut answers = hub_of(&files);
    let tree = format!("/api/models/org/tiny/tree/{COMMIT}");
    let whole = answers.remove(&tree).expect("listed").body;
    let all: Vec<serde_json::Value> = serde_json::from_slice(&whole).expect("JSON");
    let top = all.iter().filter(|file| !file["path"].as_str().expect("a path").contains('/')).cloned();
    let folder = json!({"type": "directory", "path": "Q8_0", "size": 0, "oid": git_digest(b"")});
    let top: Vec<_> = top.chain([folder]).collect();
    answers.insert(tree.clone(), answer("application/json", json!(top).to_string()));
    answers.insert(format!("{tree}?recursive=true"), answer("application/json", whole));
    let (_folder, server, mut places) = served(answers);
    let found = |name: &str, places: &Places| locate(Some(name), places, &mut Silent);
    assert!(found("org/tiny:F16", &places).expect("at the top").ends_with("tiny-F16.gguf"));
    assert_eq!(server.count("recursive"), 0, "folders are looked into for what is not at the top");
    let path = found("org/tiny:Q8_0", &places).expect("in a folder");
    assert!(path.ends_with(files[0].0), "{path:?}");
    let second = path.with_file_name("tiny-Q8_0-00002-of-00002.gguf");
    assert_eq!(std::fs::read(second).expect("linked to its blob"), b"2");
    assert_eq!(server.count("tiny-q4_0.gguf"), 0, "only what is asked for is fetched");
    let error = found("org/tiny:Q5_0", &places).expect_err("none").to_string();
    assert!(error.contains("org/tiny/tiny-Q4_0.gguf") && !error.contains("Q2_K"), "{error}");
    assert!(found("org/tiny/tiny-Q4_0.gguf", &places).expect("by name").ends_with(files[2].0));
    places.offline = true;
    assert_eq!(found("org/tiny:q8_0", &places).expect("cached"), path);
}

#[test]
fn what_is_refused_is_refused_before_its_weights_come() {
    let config = llama_config(json!({"architectures": ["NobodyForCausalLM"], "model_type": "nobody"}));
    let (_folder, server, places) = served(whole_model(config.as_bytes()));
    let error = locate(Some("org/tiny"), &places, &mut Silent).expect_err("unknown").to_string();
    assert!(error.contains("NobodyForCausalLM"), "{error}");
    assert_eq!(server.count("model.safetensors"), 0);
}

#[test]
fn random_weights_need_a_description_only() {
    let (_folder, server, mut places) = served(whole_model(llama_config(json!({})).as_bytes()));
    let path = describe(Some("org/tiny"), &places, &mut Silent).expect("described");
    Checkpoint::open_dummy(&path, 0).expect("a model");
    assert_eq!(server.count("model.safetensors"), 0);
    places.offline = true;
    assert_eq!(describe(Some("org/tiny"), &places, &mut Silent).expect("cached"), path);
    let error = locate(Some("org/tiny"), &places, &mut Silent).expect_err("no weights").to_string();
    assert!(error.contains("no whole model"), "{error}");
}

#[test]
fn pickle_files_are_told_from_nothing_at_all() {
    let config = llama_config(json!({})).into_bytes();
    let why = |files: &[(&str, &[u8])]| {
        let (_folder, _server, places) = served(hub_of(files));
        locate(Some("org/tiny"), &places, &mut Silent).expect_err("refused").to_string()
    };
    let pickled = why(&[("config.json", &config), ("pytorch_model.bin", b"x")]);
    assert!(pickled.contains("pytorch_model.bin") && pickled.contains("org/tiny:refs/pr/N"), "{pickled}");
    assert!(why(&[("config.json", &config)]).contains("no safetensors and no GGUF"));
    let named = why(&[("config.json", &config), ("consolidated.safetensors", b"x")]);
    assert!(named.contains("has consolidated.safetensors and no model.safetensors"), "{named}");
    let adapter: &[u8] = b"{\"base_model_name_or_path\": \"org/base\"}";
    let adapted = why(&[("adapter_config.json", adapter), ("adapter_model.safetensors", b"x")]);
    assert!(adapted.contains("an adapter of org/base"), "{adapted}");
}

/// The address of a listing's next page is that of the mirror that is asked, whatever the hub says that it mirrors.
#[test]
fn a_listing_is_read_to_its_end() {
    let config = llama_config(json!({}));
    let mut answers = hub_of(&[("config.json", config.as_bytes()), ("tokenizer.json", b"{}")]);
    let tree = format!("/api/models/org/tiny/tree/{COMMIT}");
    let next = |link: String| Some(format!("<{link}>; rel=\"next\""));
    answers.get_mut(&tree).expect("listed").link =
        next(format!("https://huggingface.co{tree}?cursor=a%3D%3D"));
    let weights = whole_model(config.as_bytes()).remove(&tree).expect("listed");
    answers.insert(format!("{tree}?cursor=a%3D%3D"), weights);
    answers.insert(format!("/org/tiny/resolve/{COMMIT}/model.safetensors"), answer("text/plain", "weights"));
    let (_folder, _server, places) = served(answers.clone());
    locate(Some("org/tiny"), &places, &mut Silent).expect("the weights are on the second page");

    for lost in [next("?cursor=b".into()), next(format!("https://hub{tree}"))] {
        answers.get_mut(&tree).expect("listed").link = lost;
        let (_folder, _server, places) = served(answers.clone());
        let error = locate(Some("org/tiny"), &places, &mut Silent).expect_err("no end").to_string();
        assert!(error.contains("the next page at") || error.contains("more than 20 pages"), "{error}");
    }
}

#[test]
fn files_have_names_of_many_letters() {
    let long = format!("{}.gguf", "x".repeat(120));
    for (name, address) in [(long.as_str(), long.as_str()), ("my 1+2 Q4_0.gguf", "my%201%2B2%20Q4_0.gguf")] {
        let mut answers = hub_of(&[(name, b"weights")]);
        let file = |name: &str| format!("/org/tiny/resolve/{COMMIT}/{name}");
        let body = answers.remove(&file(name)).expect("there");
        answers.insert(file(address), body);
        let (_folder, _server, places) = served(answers);
        for asked in ["org/tiny".into(), format!("org/tiny/{name}")] {
            let path = locate(Some(&asked), &places, &mut Silent).expect(name);
            assert_eq!(path.file_name(), Some(name.as_ref()));
        }
    }
}

#[test]
fn what_is_read_from_nowhere_is_named() {
    let (_folder, _server, mut places) = served(hub_of(&[("a/b/tiny.gguf", b"too deep")]));
    let error =
        |places: &Places| locate(Some("org/tiny"), places, &mut Silent).expect_err("none").to_string();
    let deep = error(&places);
    assert!(deep.contains("a/b/tiny.gguf") && deep.contains("in a folder there"), "{deep}");
    places.token = Some("a\nb".into());
    let token = error(&places);
    assert!(token.contains("HF_TOKEN") && !token.contains("is there a network"), "{token}");
    places.hub = "user:secret@127.0.0.1:80".into();
    assert!(error(&places).contains("HF_ENDPOINT is 127.0.0.1:80: an address begins with"));
}
