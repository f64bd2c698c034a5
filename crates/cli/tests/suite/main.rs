//! The program `rackpool`, as processes: what users type, see and send signals to.

mod attack;
mod cluster;
mod common;
mod demo;
mod examples;
mod kv;
mod kv_files;
mod kv_hashes;
mod kv_listen;
mod members;
mod migrate;
mod observe;
mod outputs;
mod plan_live;
mod pmem;
mod region;
mod secret;
mod servers;
mod signals;
mod start;
mod tiers;
mod tiers_advise;
mod tiers_balance;
mod tiers_run;
mod trace;
mod usage;
