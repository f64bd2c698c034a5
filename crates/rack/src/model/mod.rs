//! The rack model: nodes with memory of their own and a controller of remote memory, pools behind
//! a top-of-rack switch, and the manager that gives out chunks of them.
//!
//! Source: Rack-scale disaggregation; where its published code differs from its text the text
//! holds, and each such place is named by its letter: (a) to (i).

pub mod builtin;
pub mod config;
pub mod manager;
pub mod media;
pub mod memory;
mod node;
pub mod pages;
pub mod stats;
pub mod world;

pub use config::{Config, ConfigError, Preset};
pub use world::{Outcome, RunError, World};
