//! The allocator as Rust and C programs use it: one program of tests, which links quickly.

mod c;
mod model;
mod policies;
mod programs;
mod support;
