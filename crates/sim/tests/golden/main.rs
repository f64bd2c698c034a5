//! What the release build has in common with the tests' build, and mutations, which it has not:
//! apart from the suite, since `cargo xtask sim` builds it once more.

mod determinism;
#[path = "../suite/processes/mod.rs"]
mod processes;
mod ring;
