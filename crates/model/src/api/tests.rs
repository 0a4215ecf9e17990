//! Bodies in, plain requests and bodies out.

use serde_json::{Value, json};

use super::*;
use crate::output::{Finish, FinishReason, StopCause};
use crate::sampling::{Overrides, SamplingParams, TokenLogprobs};
use crate::tokenizer::{Special, TokenizerConfig};

pub(super) struct Model {
    pub(super) tokenizer: Tokenizer,
    pub(super) template: ChatTemplate,
    generation: GenerationConfig,
    served: Vec<String>,
}

pub(super) fn model() -> Model {
    let fixture = include_str!("../../tests/fixtures/tokenizer/llama-bpe.json");
    let fixture: Value = serde_json::from_str(fixture).unwrap();
    let json = serde_json::to_vec(&fixture["hf"]).unwrap();
    let template = include_str!("../../tests/fixtures/templates/qwen2.5.jinja");
    Model {
        tokenizer: Tokenizer::from_hf(&json, &TokenizerConfig::default()).unwrap(),
        template: ChatTemplate::new(template).unwrap(),
        generation: GenerationConfig {
            overrides: Overrides { temperature: Some(0.6), top_k: Some(20), ..Overrides::default() },
            eos: None,
        },
        served: vec!["tiny".to_owned(), "alias".to_owned()],
    }
}

impl Model {
    pub(super) fn context(&self, context_len: usize, streaming: Streaming) -> Context<'_> {
        Context {
            tokenizer: &self.tokenizer,
            template: Some(&self.template),
            tool_template: None,
            special: SpecialTexts::default(),
            generation: &self.generation,
            served: &self.served,
            vocab_size: self.tokenizer.vocab_size(),
            context_len,
            max_logprobs: 20,
            own_templates: OwnTemplates::Refused,
            thoughts: Manner::default(),
            streaming,
            now: WallClock::default(),
        }
    }

    fn encode(&self, text: &str) -> Vec<u32> {
        self.tokenizer.encode(text, Special::With).unwrap()
    }
}

/// What a client reads.
pub(super) fn parsed(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

pub(super) fn complete(body: Value) -> Result<Generate, ApiError> {
    completion(&body, &model().context(1000, Streaming::Offered))
}

pub(super) fn talk(mut body: Value) -> Result<Generate, ApiError> {
    if body.get("messages").is_none() {
        body["messages"] = json!([{"role": "user", "content": "Hi"}]);
    }
    chat(&body, &model().context(1000, Streaming::Offered))
}

pub(super) fn refused(result: Result<Generate, ApiError>) -> String {
    let error = result.unwrap_err();
    assert_eq!(error.status, 400, "{error}");
    error.param.unwrap_or_default()
}

#[test]
fn prompts_come_in_four_shapes() {
    let m = model();
    let prompts = |prompt: Value| complete(json!({"prompt": prompt})).unwrap().prompts;
    assert_eq!(prompts(json!("hello")), [m.encode("hello")]);
    assert_eq!(prompts(json!(["hello", "b"])), [m.encode("hello"), m.encode("b")]);
    assert_eq!(prompts(json!([5, 6])), [[5, 6]]);
    assert_eq!(prompts(json!([[5], [6, 7]])), [vec![5], vec![6, 7]]);
    assert_eq!(prompts(json!(["", [3]])), [vec![0], vec![3]], "an empty text still has its bos");
    let bare = complete(json!({"prompt": "hello", "add_special_tokens": false})).unwrap();
    assert_eq!(bare.prompts[0], m.encode("hello")[1..]);
    let cut = complete(json!({"prompt": [1, 2, 3, 4], "truncate_prompt_tokens": 2.0})).unwrap();
    assert_eq!(cut.prompts, [[3, 4]]);
}

#[test]
fn bad_prompts_are_refused() {
    for prompt in [
        json!(null),
        json!([]),
        json!([[]]),
        json!(5),
        json!({}),
        json!([1, "a"]),
        json!([-1]),
        json!([1.5]),
        json!([100_000]),
        json!([[1], [true]]),
        json!(vec!["a"; MAX_PROMPTS + 1]),
    ] {
        assert_eq!(refused(complete(json!({ "prompt": prompt }))), "prompt", "{prompt}");
    }
    assert_eq!(refused(complete(json!({"prompt": "", "add_special_tokens": false}))), "prompt");
    assert_eq!(refused(complete(json!([]))), "");
}

#[test]
fn every_parameter_arrives() {
    let body = json!({
        "model": "alias", "prompt": [9], "max_tokens": 7, "min_tokens": 2, "temperature": 0.25, "top_p": 0.5,
        "top_k": -1, "min_p": 0.125, "repetition_penalty": 1.5, "presence_penalty": -0.5,
        "frequency_penalty": 2, "seed": -3, "stop": "x", "stop_token_ids": [4], "ignore_eos": true,
        "include_stop_str_in_output": true, "skip_special_tokens": false, "logit_bias": {"5": -100},
        "allowed_token_ids": [1, 2], "logprobs": 3, "n": 4, "best_of": 4, "echo": true, "user": "me",
        "stream": true, "stream_options": {"include_usage": true, "continuous_usage_stats": true},
        "return_token_ids": true, "return_tokens_as_token_ids": true, "cache_salt": "s", "request_id": "r",
        "frobnicate": 1, "response_format": {"type": "text"}, "suffix": null, "priority": 0,
    });
    let g = complete(body).unwrap();
    let expected = SamplingParams {
        temperature: 0.25,
        top_p: 0.5,
        top_k: None,
        min_p: 0.125,
        repetition_penalty: 1.5,
        presence_penalty: -0.5,
        frequency_penalty: 2.0,
        seed: Some(-3i64 as u64),
        max_tokens: Some(7),
        min_tokens: 2,
        stop: ["x".to_owned()].into(),
        stop_token_ids: [4].into(),
        ignore_eos: true,
        include_stop_str_in_output: true,
        skip_special_tokens: false,
        logit_bias: [(5, -100.0)].into(),
        allowed_token_ids: Some([1, 2].into()),
        bad_words: [].into(),
        logprobs: Some(3),
        prompt_logprobs: Some(3), // for the echo
        grammar: None,
    };
    assert_eq!(g.params, expected);
    assert_eq!(g.params_of(2).seed, Some(-1i64 as u64), "each choice its own seed");
    assert_eq!((g.model.as_str(), g.n, g.return_token_ids, g.tokens_as_ids), ("alias", 4, true, true));
    assert_eq!(g.delivery, Delivery::Stream { usage: true, continuous_usage: true });
    assert_eq!((g.cache_salt.is_some(), g.request_id.as_deref()), (true, Some("r")));
    assert_eq!((g.echo.unwrap()[0].clone(), g.unknown_fields.len()), (0..1, 1), "what is ignored is counted");
}

#[test]
fn names_of_llama_cpp_hold_where_there_is_no_other() {
    let read = |body: Value| {
        let g = complete(body).unwrap();
        assert!(g.unknown_fields.is_empty());
        (g.params.max_tokens, g.params.repetition_penalty)
    };
    assert_eq!(read(json!({"prompt": [9], "n_predict": 5, "repeat_penalty": 1.25})), (Some(5), 1.25));
    let both = json!({"prompt": [9], "n_predict": 5, "max_tokens": 7, "repeat_penalty": 2, "repetition_penalty": 1.5});
    assert_eq!(read(both), (Some(7), 1.5));
    let free = complete(json!({"prompt": [9]})).unwrap().params.max_tokens;
    assert_eq!(read(json!({"prompt": [9], "n_predict": -1})), (free, 1.0));
}

#[test]
fn defaults_are_the_publishers_then_openais() {
    let g = complete(json!({"prompt": [9], "temperature": null, "stop": null})).unwrap();
    assert_eq!((g.params.temperature, g.params.top_k, g.params.top_p), (0.6, Some(20), 1.0));
    assert_eq!((g.params.max_tokens, g.model.as_str(), g.n), (Some(16), "tiny", 1));
    let g = talk(json!({})).unwrap();
    let prompt = g.prompts[0].len();
    assert_eq!((g.params.max_tokens, g.answer_len(prompt)), (None, 1000 - prompt), "what there is room for");
}

#[test]
fn answers_are_no_longer_than_the_publisher_and_the_field_say() {
    let longest = |max_new_tokens: u32| {
        let mut model = model();
        model.generation.overrides.max_tokens = Some(max_new_tokens);
        let context = model.context(1000, Streaming::Offered);
        let plain = completion(&json!({"prompt": "Hi"}), &context).unwrap();
        let said = chat(&json!({"messages": [{"role": "user", "content": "Hi"}]}), &context).unwrap();
        [plain, said].map(|request| request.params.max_tokens.unwrap())
    };
    assert_eq!((longest(400), longest(8)), ([16, 400], [8, 8]));
}

#[test]
fn what_is_wrong_is_named() {
    let cases = [
        ("temperature", json!("hot")),
        ("temperature", json!(-1)),
        ("top_p", json!(0)),
        ("top_k", json!(1.5)),
        ("n", json!(0)),
        ("n", json!(129)),
        ("best_of", json!(2)),
        ("max_tokens", json!(-1)),
        ("max_tokens", json!(0)),
        ("max_tokens", json!(100_000)),
        ("min_tokens", json!(17)),
        ("seed", json!(1e30)),
        ("stop", json!([1])),
        ("stop", json!("")),
        ("stop", json!(vec!["a"; 129])),
        ("logit_bias", json!({"x": 1})),
        ("logit_bias", json!({"99999": 1})),
        ("logprobs", json!(21)),
        ("logprobs", json!(true)),
        ("echo", json!("yes")),
        ("stream_options", json!({})),
        ("response_format", json!({"type": "frog"})),
        ("guided_json", json!(5)),
        ("suffix", json!("end")),
        ("priority", json!(5)),
        ("use_beam_search", json!(true)),
    ];
    for (param, value) in cases {
        let found = refused(complete(json!({"prompt": [9], param: value})));
        assert_eq!(found, param, "{value}");
    }
    let streamed = json!({"prompt": [9], "stream": true, "prompt_logprobs": 1});
    assert_eq!(refused(complete(streamed)), "prompt_logprobs");
    let error = complete(json!({"prompt": [9], "model": "gpt-9"})).unwrap_err();
    assert_eq!((error.status, error.code), (404, Some("model_not_found")));
    let error = complete(json!({"prompt": vec![9; 1000]})).unwrap_err();
    assert_eq!((error.code, error.param.as_deref()), (Some("context_length_exceeded"), Some("prompt")));
    complete(json!({"prompt": vec![9; 999]})).unwrap();
    let body = error.body();
    assert_eq!(body["error"]["type"], "invalid_request_error");
    assert!(body["error"]["code"].is_string());
}

#[test]
fn chats_go_through_the_template() {
    let m = model();
    let g = talk(
        json!({"messages": [{"role": "user", "content": "Hi"}], "max_completion_tokens": 5, "max_tokens": 9}),
    )
    .unwrap();
    assert_eq!(g.params.max_tokens, Some(5), "the newer name wins");
    let text = m.tokenizer.decode(&g.prompts[0], Special::With);
    assert!(text.ends_with("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"), "{text}");
    let tools = json!([{"type": "function", "function": {"name": "f", "parameters": {}}}]);
    let with_tools = |choice: Value| {
        let g = talk(json!({"tools": tools, "tool_choice": choice})).unwrap();
        m.tokenizer.decode(&g.prompts[0], Special::With).contains("# Tools")
    };
    assert!(with_tools(json!("auto")) && with_tools(json!(null)) && !with_tools(json!("none")));
    let plain = talk(json!({"add_generation_prompt": false})).unwrap();
    assert!(m.tokenizer.decode(&plain.prompts[0], Special::With).ends_with("Hi<|im_end|>\n"));
    let messages = json!([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Well,"}]);
    let going_on =
        talk(json!({"messages": messages, "continue_final_message": true, "add_generation_prompt": false}));
    assert!(m.tokenizer.decode(&going_on.unwrap().prompts[0], Special::With).ends_with("assistant\nWell,"));
}

#[test]
fn bad_chats_are_named() {
    let cases = [
        ("messages", json!({"messages": []})),
        ("messages", json!({"messages": "Hi"})),
        ("messages", json!({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]})),
        ("tools", json!({"tools": [{}]})),
        ("tool_choice", json!({"tool_choice": "required"})),
        ("top_logprobs", json!({"top_logprobs": 3})),
        ("top_logprobs", json!({"logprobs": true, "top_logprobs": 21})),
        ("max_tokens", json!({"max_tokens": 0})),
        ("chat_template", json!({"chat_template": "{{ 1 }}"})),
        ("chat_template_kwargs", json!({"chat_template_kwargs": {"tokenize": true}})),
        ("continue_final_message", json!({"continue_final_message": true, "add_generation_prompt": true})),
        ("modalities", json!({"modalities": ["text", "audio"]})),
    ];
    for (param, body) in cases {
        assert_eq!(refused(talk(body.clone())), param, "{body}");
    }
    let m = model();
    let context = Context { template: None, ..m.context(100, Streaming::Offered) };
    let error = chat(&json!({"messages": [{"role": "user", "content": "Hi"}]}), &context).unwrap_err();
    assert!(error.message.contains("no chat template"));
}

fn logprobs(token: u32, logprob: f32, top: &[(u32, f32)]) -> TokenLogprobs {
    TokenLogprobs { token, logprob, rank: 2, top: top.to_vec() }
}

pub(super) fn choice(tokens: &[u32], text: &str) -> Choice {
    Choice {
        prompt: 0,
        text: text.to_owned(),
        tokens: tokens.to_vec(),
        logprobs: Vec::new(),
        prompt_logprobs: Vec::new(),
        finish: Finish { reason: FinishReason::Length, cause: None },
    }
}

pub(super) fn meta() -> Meta {
    Meta { id: "7".to_owned(), created: 1_700_000_000, cached_tokens: None, timings: None }
}

#[test]
fn completion_bodies() {
    let m = model();
    let (a, b) = (m.encode("a")[1], m.encode("b")[1]);
    let g = complete(json!({"prompt": [[a], [b]], "echo": true, "logprobs": 1, "max_tokens": 1})).unwrap();
    assert_eq!(g.params.prompt_logprobs, Some(1));
    let mut one = choice(&[b], "b");
    one.logprobs = vec![logprobs(b, -1.5, &[(a, -0.5)])];
    one.prompt_logprobs = vec![None];
    let mut two = Choice { prompt: 1, ..choice(&[a], "a") };
    two.finish = Finish { reason: FinishReason::Stop, cause: Some(StopCause::Text("!".to_owned())) };
    two.logprobs = vec![logprobs(a, f32::NEG_INFINITY, &[(b, -0.25)])];
    let body = parsed(&response(&g, &[one, two], &meta(), &m.tokenizer));
    let expected = json!({
        "id": "cmpl-7", "object": "text_completion", "created": 1_700_000_000, "model": "tiny",
        "choices": [
            {"index": 0, "text": "ab", "finish_reason": "length", "stop_reason": null, "prompt_logprobs": [null],
             "logprobs": {"tokens": ["a", "b"], "token_logprobs": [null, -1.5],
                          "top_logprobs": [null, {"a": -0.5, "b": -1.5}], "text_offset": [0, 1]}},
            {"index": 1, "text": "ba", "finish_reason": "stop", "stop_reason": "!", "prompt_logprobs": [],
             "logprobs": {"tokens": ["b", "a"], "token_logprobs": [null, -9999.0],
                          "top_logprobs": [null, {"b": -0.25, "a": -9999.0}], "text_offset": [0, 1]}},
        ],
        "usage": {"prompt_tokens": 2, "completion_tokens": 2, "total_tokens": 4},
    });
    assert_eq!(body, expected);
}

#[test]
fn choices_repeat_no_more_of_prompts_than_anybody_reads() {
    let g = complete(json!({"prompt": "a", "n": 4, "best_of": 4, "max_tokens": 1})).unwrap();
    let of = |n: u32, len: usize, return_token_ids: bool, echo: bool| {
        let echo = echo.then(|| std::iter::once(0..len).collect());
        Generate { n, prompts: vec![vec![1; len]], return_token_ids, echo, ..g.clone() }.checked().is_ok()
    };
    let most = 1 << 20;
    assert!(of(4, most / 4, true, false) && of(1, most + 1, true, true) && of(4, most, false, false));
    assert!(!of(4, most / 4 + 1, true, false) && !of(4, most, false, true));
}

#[test]
fn only_the_prompt_is_evaluated_with_no_tokens_and_echo() {
    let m = model();
    let ids = m.encode("ab");
    let g = complete(json!({"prompt": ids, "echo": true, "logprobs": 1, "max_tokens": 0})).unwrap();
    assert_eq!((g.params.max_tokens, g.params.prompt_logprobs), (Some(0), Some(1)));
    let mut only = choice(&[], "");
    only.prompt_logprobs =
        ids.iter().enumerate().map(|(i, &id)| (i > 0).then(|| logprobs(id, -1.0, &[(id, -1.0)]))).collect();
    let body = parsed(&response(&g, &[only], &meta(), &m.tokenizer));
    assert_eq!(body["choices"][0]["text"], "<|endoftext|>ab", "all that the client gave");
    let shown = &body["choices"][0]["logprobs"];
    assert_eq!(shown["token_logprobs"].as_array().unwrap().len(), ids.len());
    assert_eq!(shown["token_logprobs"][0], json!(null));
    assert_eq!(body["usage"]["completion_tokens"], 0);
}

#[test]
fn chat_bodies() {
    let m = model();
    let a = m.encode("a")[1];
    let g =
        talk(json!({"logprobs": true, "top_logprobs": 1, "prompt_logprobs": 0, "return_token_ids": true}))
            .unwrap();
    assert_eq!((g.params.logprobs, g.params.prompt_logprobs), (Some(1), Some(0)));
    let mut only = choice(&[a, 2], "a");
    only.finish = Finish { reason: FinishReason::Stop, cause: Some(StopCause::Token(2)) };
    only.logprobs = vec![logprobs(a, -1.0, &[(a, -1.0)])];
    only.prompt_logprobs = vec![None, Some(logprobs(a, -2.0, &[]))];
    let meta = Meta { cached_tokens: Some(3), ..meta() };
    let body = parsed(&response(&g, &[only], &meta, &m.tokenizer));
    let n = g.prompts[0].len();
    let token = json!({"token": "a", "logprob": -1.0, "bytes": [97]});
    let mut with_top = token.clone();
    with_top["top_logprobs"] = json!([token]);
    let prompt_logprob = json!({(a.to_string()): {"logprob": -2.0, "rank": 2, "decoded_token": "a"}});
    let expected = json!({
        "id": "chatcmpl-7", "object": "chat.completion", "created": 1_700_000_000, "model": "tiny",
        "choices": [{
            "index": 0, "message": {"role": "assistant", "content": "a", "refusal": null},
            "logprobs": {"content": [with_top]}, "finish_reason": "stop", "stop_reason": 2, "token_ids": [a, 2],
        }],
        "usage": {"prompt_tokens": n, "completion_tokens": 2, "total_tokens": n + 2,
                  "prompt_tokens_details": {"cached_tokens": 3}},
        "prompt_logprobs": [null, prompt_logprob],
        "prompt_token_ids": g.prompts[0],
    });
    assert_eq!(body, expected);
}

#[test]
fn tokens_are_shown_as_ids_on_request() {
    let m = model();
    let a = m.encode("a")[1];
    let g = talk(json!({"logprobs": true, "return_tokens_as_token_ids": true})).unwrap();
    let mut only = choice(&[a], "a");
    only.logprobs = vec![logprobs(a, -1.0, &[])];
    let body = parsed(&response(&g, &[only], &meta(), &m.tokenizer));
    assert_eq!(body["choices"][0]["logprobs"]["content"][0]["token"], format!("token_id:{a}"));
}

#[test]
fn a_small_request_is_not_answered_with_millions_of_scores() {
    // 900 tokens, 20 rivals and the token itself, 55 and 56 times.
    let scored = |n: u32, stream: bool| {
        let mut body = json!({"prompt": vec![5; 900], "max_tokens": 1, "n": n, "logprobs": 1});
        match stream {
            true => {
                (body["echo"], body["logprobs"], body["stream"]) = (json!(true), json!(20), json!(true));
            }
            false => body["prompt_logprobs"] = json!(20),
        }
        complete(body).map(|_| ()).map_err(|e| e.param)
    };
    let refused = |field: &str| Err(Some(field.to_owned()));
    assert_eq!([scored(55, false), scored(56, false)], [Ok(()), refused("prompt_logprobs")]);
    assert_eq!([scored(3, true), scored(4, true)], [Ok(()), refused("logprobs")]);
}

#[test]
fn batch_lines() {
    let m = model();
    let context = m.context(1000, Streaming::Refused);
    let line = |url: &str, body: Value| {
        json!({"custom_id": "c1", "method": "POST", "url": url, "body": body}).to_string()
    };
    let good = BatchLine::parse(&line("/v1/completions", json!({"prompt": [9]}))).unwrap();
    assert_eq!((good.custom_id.as_str(), good.endpoint), ("c1", Endpoint::Completions));
    let out = parsed(&batch_output("1", "c1", &Ok(r#"{"x":1}"#.to_owned())));
    let response = json!({"status_code": 200, "request_id": "batch_1", "body": {"x": 1}});
    assert_eq!(out, json!({"id": "batch_req_1", "custom_id": "c1", "response": response, "error": null}));
    assert_eq!(good.generate(&context).unwrap().prompts, [[9]]);
    let streamed =
        BatchLine::parse(&line("/v1/completions", json!({"prompt": [9], "stream": true}))).unwrap();
    let error = streamed.generate(&context).unwrap_err();
    assert_eq!(error.param.as_deref(), Some("stream"));
    let out = parsed(&batch_output("2", "c1", &Err(error)));
    assert_eq!((&out["response"]["status_code"], &out["error"]["param"]), (&json!(400), &json!("stream")));
    let unstreamed =
        BatchLine::parse(&line("/v1/completions", json!({"prompt": [9], "stream": false}))).unwrap();
    unstreamed.generate(&context).unwrap();
    for (param, bad) in [
        ("", "{".to_owned()),
        ("", format!("{{\"a\":{}", "[".repeat(100_000))),
        ("custom_id", "{}".to_owned()),
        ("url", line("/v1/embeddings", json!({}))),
        ("body", line("/v1/completions", json!([]))),
        ("method", line("/v1/completions", json!({})).replace("POST", "GET")),
    ] {
        assert_eq!(BatchLine::parse(&bad).unwrap_err().param.unwrap_or_default(), param, "{bad:.80}");
    }
}
