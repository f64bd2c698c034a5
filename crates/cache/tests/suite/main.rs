//! The cache, its servers and HERD.

mod cache;
mod cache_restart;
mod cache_threads;
mod commands;
mod engines;
mod far;
mod front;
mod front_clock;
mod front_end;
mod front_full;
mod front_limits;
mod front_loan;
mod front_tls;
mod hashes;
mod herd;
mod herd_engine;
mod herd_fabric;
mod herd_long;
mod herd_processes;
mod herd_rdma;
mod numa;
mod peers;
mod policies;
mod reuse;
mod switch;
mod tier;
