//! What callers see: requests in, events and whole answers out.

pub(crate) mod answer;
pub(crate) mod request;
