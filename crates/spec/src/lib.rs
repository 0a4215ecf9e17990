//! Plain data that every side agrees on.
#![forbid(unsafe_code)]
