//! Decides what runs next, where and in which order. Pure.
#![forbid(unsafe_code)]
