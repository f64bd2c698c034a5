//! Tests of the engines against worlds that forget, crash and reorder. One program, since each
//! would carry the worlds and the engines again.

mod daemon_audit;
mod daemon_crash;
mod daemon_damage;
mod daemon_heat;
mod daemon_leaving;
mod daemon_locks;
mod daemon_model;
mod daemon_moves;
mod daemon_orphans;
mod daemon_proxy;
mod daemon_refusals;
mod daemon_remotes;
mod daemon_replicas;
mod daemon_rrpc;
mod daemon_tiers;
mod daemon_words;
mod daemon_world;
mod layout;
mod master_engine;
mod master_link;
mod master_members;
mod master_model;
mod master_moves;
mod master_orphans;
mod master_shards;
mod master_world;
mod mutations;
mod persist_log;
mod policy_world;
mod policy_worlds;
mod rcmp_defects;
mod rcmp_defects_heat;
mod rcmp_defects_peers;
mod remote_link;
mod safeguards;
