//! What the bindings of other languages share: one error for all that can fail ([`Failure`]), one
//! thread's way into the pool with its tables and named objects ([`Session`]), and the word by
//! which a child of a fork knows what is not its own ([`fork`]).
//!
//! Called by `bindings/c` and `bindings/python`; uses the public API of the pool and of the table.

mod failure;
pub mod fork;
mod session;

pub use failure::{Failure, Outcome, Status};
pub use session::{OBJECTS, PutMode, Session};
