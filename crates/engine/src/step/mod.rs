//! A step while it is done: the `world` binds it to sequences and tables, `lanes` run its program, `run` is what each node does.

pub(crate) mod bound;
pub(crate) mod choose;
pub(crate) mod hash;
pub mod lanes;
pub(crate) mod late;
pub(crate) mod run;
pub(crate) mod sequence;
pub(crate) mod tables;
pub(crate) mod world;
