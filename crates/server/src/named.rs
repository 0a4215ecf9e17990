//! What a path names.

use std::convert::Infallible;

use axum::extract::{FromRequestParts, Path};
use hyper::http::request::Parts;

/// The name of a file, batch or model in a path. One that is no text names nothing, and there is nothing of this name: whoever
/// asks for it hears what everybody hears who asks for what is not there.
pub(crate) struct Id(pub(crate) String);

impl<S: Send + Sync> FromRequestParts<S> for Id {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Id, Infallible> {
        let name = Path::<String>::from_request_parts(parts, state).await;
        Ok(Id(name.map_or_else(|_| char::REPLACEMENT_CHARACTER.into(), |Path(name)| name)))
    }
}
