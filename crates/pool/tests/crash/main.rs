//! Processes that are killed or stopped at random moments, and what the others then find. One
//! program, since each would carry the tools and the pool again.

mod coupled;
mod drain;
mod load;
mod locks;
mod migrate;
mod objects;
mod proxied;
mod region;
mod replicas;
mod rrpc;
mod runs;
mod shards;
mod shared;
mod software;
mod stop;
mod tools;
