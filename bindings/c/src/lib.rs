//! rackpool for C. The header `include/rackpool.h` says what each function promises; here each is
//! what it says, with its arguments checked, its panics caught and its errors noted for the thread.
//!
//! What a program holds are not pointers but names of slots (`registry`), each with the generation
//! in which it was filled, so that what was closed, is of another kind or is used by another thread
//! is told apart before anything is touched. `call` runs a function's body; `arguments` turns what
//! C hands over into what Rust has.

mod arguments;
mod call;
mod client;
mod locks;
mod memory;
mod pools;
mod registry;
mod report;
mod submissions;
mod tables;
