//! What a server says about itself, and the tokenizer.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use hyper::header::CONTENT_TYPE;
use model::api::{ApiError, Context, count_tokens, detokenize, input_tokens, tokenize};
use serde_json::{Value, json};

use crate::app::{App, Phase};
use crate::body;
use crate::generate::aside;
use crate::named::Id;
use crate::refusal::{self, Refusal};
use crate::routes;

/// `GET /health`: the process works.
pub(crate) async fn health(State(app): State<Arc<App>>) -> Result<Response, Refusal> {
    match &*app.phase.borrow() {
        Phase::Dead(_) => Err(refusal::dead().into()),
        _ => Ok(routes::json(json!({"status": "ok"}).to_string())),
    }
}

/// `GET /ready`: requests are welcome.
pub(crate) async fn ready(State(app): State<Arc<App>>) -> Result<Response, Refusal> {
    app.accepting().map_err(|error| ApiError { status: 503, ..error })?;
    Ok(routes::json(json!({"status": "ready"}).to_string()))
}

/// `GET /version`
pub(crate) async fn version() -> Response {
    routes::json(json!({"version": env!("CARGO_PKG_VERSION")}).to_string())
}

/// `GET /load`: requests under way.
pub(crate) async fn load(State(app): State<Arc<App>>) -> Response {
    routes::json(json!({"server_load": app.metrics.under_way()}).to_string())
}

/// `GET /metrics`
pub(crate) async fn metrics(State(app): State<Arc<App>>) -> Response {
    let text = app.metrics.text(&app);
    ([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response()
}

/// `GET /v1/models`
pub(crate) async fn models(State(app): State<Arc<App>>) -> Result<Response, Refusal> {
    let names = &app.served()?.names;
    let data: Vec<Value> = names.iter().map(|name| card(&app, name)).collect::<Result<_, _>>()?;
    Ok(routes::json(json!({"object": "list", "data": data}).to_string()))
}

/// `GET /v1/models/{id}`; ids may contain slashes.
pub(crate) async fn model(State(app): State<Arc<App>>, Id(name): Id) -> Result<Response, Refusal> {
    let names = &app.served()?.names;
    if !names.contains(&name) {
        return Err(ApiError::model_not_found(&name, names).into());
    }
    Ok(routes::json(card(&app, &name)?.to_string()))
}

fn card(app: &App, name: &str) -> Result<Value, ApiError> {
    let served = app.served()?;
    Ok(json!({
        "id": name,
        "object": "model",
        // As Anthropic's clients read it.
        "type": "model",
        "display_name": name,
        "created": app.created,
        "owned_by": "ballast",
        "root": served.names.first(),
        "parent": null,
        "max_model_len": served.engine.hold().max_model_len,
    }))
}

/// `POST /tokenize`
pub(crate) async fn to_tokens(State(app): State<Arc<App>>, request: Request) -> Result<Response, Refusal> {
    Ok(convert(app, request, tokenize).await?)
}

/// `POST /detokenize`
pub(crate) async fn to_text(State(app): State<Arc<App>>, request: Request) -> Result<Response, Refusal> {
    Ok(convert(app, request, detokenize).await?)
}

/// `POST /v1/responses/input_tokens`
pub(crate) async fn input(State(app): State<Arc<App>>, request: Request) -> Result<Response, Refusal> {
    Ok(convert(app, request, input_tokens).await?)
}

/// `POST /v1/messages/count_tokens`
pub(crate) async fn counted(State(app): State<Arc<App>>, request: Request) -> Result<Response, Refusal> {
    Ok(convert(app, request, count_tokens).await?)
}

/// `GET /tokenizer_info`: what a client needs to cut and render as this server does.
pub(crate) async fn tokenizer(State(app): State<Arc<App>>) -> Result<Response, Refusal> {
    let served = app.served()?;
    let special = &served.special;
    let template = served.template.as_ref().map(|template| template.source());
    Ok(routes::json(
        json!({
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": special.bos,
            "eos_token": special.eos,
            "pad_token": special.pad,
            "unk_token": special.unk,
            "chat_template": template,
            "model_max_length": served.engine.hold().max_model_len,
            "vocab_size": served.engine.spec().vocab,
        })
        .to_string(),
    ))
}

/// Longer bodies wait for each other.
const LONG_BODY_BYTES: usize = 64 << 10;

type Conversion = fn(&Value, &Context) -> Result<Value, ApiError>;

async fn convert(app: Arc<App>, request: Request, convert: Conversion) -> Result<Response, ApiError> {
    app.served()?;
    let body = body::read(request, &app).await?;
    let turn = match body.len() > LONG_BODY_BYTES {
        // It is never closed.
        true => Arc::clone(&app.long_texts).acquire_owned().await.ok(),
        false => None,
    };
    let answer = aside(move || {
        // Until it is done, whoever still waits for the answer.
        let _turn = turn;
        let parsed = body::parse(&body, &app.crowd)?;
        convert(&parsed, &app.served()?.context())
    });
    Ok(routes::json(answer.await??.to_string()))
}
