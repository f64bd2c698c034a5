//! `rackpool agent` and `rackpool fence`: hosts that share a rack's memory with its daemon's. In:
//! options. Out: one line `ready NAME` when clients can join; how many clients were given up.

use crate::agent_args::{AgentArgs, FenceArgs};
use crate::api;
use crate::failure::Result;
use crate::interrupt;
use crate::output::{self, Level, log};
use crate::servers::{raise_descriptors, say_ready, wait_for_end};
use rackpool_core::constants::SLOTS_MAX;

/// Serves the clients of this host until a signal.
pub fn agent(args: &AgentArgs) -> Result<()> {
    raise_descriptors("agent", 4 * u64::from(SLOTS_MAX), "clients")?;
    let shutdown = interrupt::shutdown()?;
    let agent = api::start_agent(args)?;
    let source = format!("agent of rack {}", args.rack);
    let metrics = agent.metrics_addr();
    let metrics = metrics.map_or(String::new(), |metrics| format!(" metrics={metrics}"));
    say_ready(&format!("{}{metrics}", agent.control()))?;
    log(Level::Info, &source, format!("memory {}", args.memory));
    let why = wait_for_end(None, shutdown, false)?;
    log(Level::Info, &source, format!("{why}: stopping"));
    drop(agent);
    Ok(())
}

/// Says that a host will never touch the rack's memory again.
pub fn fence(args: &FenceArgs) -> Result<()> {
    let clients = api::fence(args)?;
    output::print(&format!("{clients} clients of host {} were given up\n", args.host))
}
