//! Control sockets and fabrics.

#[path = "../../../mem/tests/suite/child.rs"]
mod child;
mod control_processes;
mod fabric_allocations;
mod fabric_conformance;
mod fabric_lent;
mod fabric_rig;
mod fabric_secret;
mod fabric_shared;
mod fabric_tcp;
#[cfg(feature = "verbs")]
mod fabric_verbs;
mod fabric_write_back;
mod verbs_queues;
