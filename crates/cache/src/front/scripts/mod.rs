//! Scripts in Lua 5.1, and functions of libraries, as Redis has them
//! ([decision 0061](../../../../../docs/decisions/0061-scripts-end-or-run-apart.md)).
//!
//! ```text
//! EVAL -> ScriptCall -> Core::atomically -> Interpreter <-> commands on the keys -> answer
//! commands.rs           atomic.rs           interpreter.rs  calls.rs                convert.rs
//! functions.rs
//! ```
//!
//! One that ends soon by its text runs where its connection is served; every other one, and one
//! that takes longer than was thought and has changed nothing, on the thread for what takes long.
//! `prelude.lua` is what scripts see; `api.rs` has Redis's own functions; `bits.rs`, `json.rs`,
//! `msgpack.rs`, `structs.rs` are their libraries, `patterns.rs` what `string` has of them;
//! `pace.rs` ends a script; `store.rs` knows the texts. Lua's memory and its stack are limited; what a script cannot be given by Lua safely
//! (files, compiled code, the functions of C that neither end nor look at a clock) it has not.

mod api;
mod bits;
mod calls;
mod commands;
mod convert;
mod functions;
mod interpreter;
mod json;
mod library;
mod msgpack;
mod pace;
mod patterns;
mod sha1;
mod store;
mod structs;
#[cfg(test)]
mod tests;

pub use calls::ScriptState;
pub use commands::{
    eval, eval_ro, evalsha, evalsha_ro, script_exists, script_flush, script_kill, script_load,
};
pub use functions::{
    fcall, fcall_ro, function_delete, function_dump, function_flush, function_kill, function_list,
    function_load, function_restore, function_stats,
};
pub use store::ScriptStore;
