//! Pools with servers that are threads of this process.

mod agent;
mod costs;
mod coupled;
mod coupled_model;
mod futures;
mod hosts;
mod locks;
mod master_crash;
mod master_link;
mod master_server;
mod master_tools;
mod members;
mod migrate;
mod mover;
mod persist;
mod pool;
mod proxied;
mod rcmp_defects;
mod rebalance;
mod rrpc;
mod runs;
mod secret;
mod shards;
mod shared;
mod verbs;
