//! Regions, rings, control sockets and fabrics.

mod child;
mod control_processes;
mod fabric_conformance;
mod fabric_rig;
mod fabric_secret;
mod fabric_shared;
mod fabric_tcp;
#[cfg(feature = "verbs")]
mod fabric_verbs;
mod fabric_write_back;
mod region_files;
mod ring_corrupt;
mod ring_model;
mod ring_threads;
mod verbs_queues;
