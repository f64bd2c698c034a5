//! Workloads and measurements, each beside its raw limit in the same run.
//!
//! What is here needs no pool: operation streams ([`ycsb`]), values that prove themselves
//! ([`value`]), the interleaved comparison of two measurements ([`interleave`]), reports for
//! programs ([`report`]) and for people ([`html`]), and the raw references of a machine
//! ([`micro`]). The runners put these together with a pool:
//! [`local`], [`ring`], [`remote`], [`rrpc`], [`locks`], [`mod@table`], [`ycsb_run`], [`migrate`] and
//! [`kv`], each an options structure and a function `run` that answers with a report ([`mod@run`] has
//! what they share).
//! [`verbs`] measures a fabric without a pool on it, [`tiers`] weights of interleaving and the
//! allocator of arenas, [`dram`] how quickly memory channels are simulated; [`hmsdk`] runs the
//! cache over unlike memories in virtual time, [`optane`] the figures of a guide to persistent
//! memory, [`pmem`] its rules. [`sim_table`] puts the pool's hash table into
//! simulated runs; [`sim_runs`] makes many of these.
//!
//! Rule of the crate: no `unsafe`, and every random choice comes from a seed that the caller
//! names, so that a run can be repeated.

#![forbid(unsafe_code)]

mod arena;
#[cfg(feature = "lab")]
pub mod baselines;
#[cfg(feature = "lab")]
pub mod cache;
mod crew;
#[cfg(feature = "rack")]
pub mod dram;
#[cfg(feature = "rack")]
pub mod hmsdk;
pub mod html;
pub mod interleave;
#[cfg(feature = "lab")]
pub mod kv;
pub mod local;
pub mod locks;
pub mod micro;
#[cfg(feature = "lab")]
pub mod migrate;
#[cfg(feature = "rack")]
pub mod optane;
#[cfg(feature = "rack")]
pub mod pmem;
pub mod probe;
pub mod remote;
pub mod report;
pub mod ring;
pub mod rrpc;
pub mod run;
#[cfg(feature = "lab")]
pub mod sim_runs;
#[cfg(feature = "lab")]
pub mod sim_table;
pub mod table;
#[cfg(feature = "lab")]
pub mod tiers;
pub mod value;
#[cfg(feature = "lab")]
pub mod verbs;
pub mod ycsb;
pub mod ycsb_run;
