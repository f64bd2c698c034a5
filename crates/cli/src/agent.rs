//! `rackpool agent` and `rackpool fence`: hosts that share a rack's memory with its daemon's. In:
//! options. Out: one line `ready NAME` when clients can join; how many clients were given up.

use crate::agent_args::{AgentArgs, FenceArgs};
use crate::api;
use crate::failure::Result;
use crate::interrupt;
use crate::output;
use crate::servers::{few_descriptors, say_ready, wait_for_end};
use rackpool_core::constants::SLOTS_MAX;
use tracing::{info, warn};

/// Serves the clients of this host until a signal.
pub fn agent(args: &AgentArgs) -> Result<()> {
    if let Some(few) = few_descriptors(4 * u64::from(SLOTS_MAX), "clients")? {
        warn!(target: "agent", "{few}");
    }
    let shutdown = interrupt::shutdown()?;
    let agent = api::start_agent(args)?;
    let metrics = agent.metrics_addr();
    let metrics = metrics.map_or(String::new(), |metrics| format!(" metrics={metrics}"));
    say_ready(&format!("{}{metrics}", agent.control()))?;
    info!(target: "agent", "rack {}: memory {}", args.rack, args.memory);
    let why = wait_for_end(None, shutdown, false)?;
    info!(target: "agent", "rack {}: {why}: stopping", args.rack);
    drop(agent);
    Ok(())
}

/// Says that a host will never touch the rack's memory again.
pub fn fence(args: &FenceArgs) -> Result<()> {
    let clients = api::fence(args)?;
    output::print(&format!("{clients} clients of host {} were given up\n", args.host))
}
