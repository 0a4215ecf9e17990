//! Virtual runs, in one program: its tests share the cores.

mod block;
mod common;
mod draw;
mod flexgen;
mod flexgen_scheduler;
mod plain;
mod plan;
mod programs;
mod random;
mod replay;
mod rules;
mod virtual_time;
mod zigzag;
