//! The simulator: its parts, its checks, and runs with known results.

mod coro;
mod fabric_conformance;
mod interleaving;
mod litmus;
mod memory;
mod net_example;
mod net_faults;
mod net_latency;
mod net_rig;
mod net_speed;
mod performance;
mod placement;
mod processes;
mod profiles;
mod repro;
mod repro_herd;
mod stored_seeds;
mod sweep;
mod table;
mod wheel;
