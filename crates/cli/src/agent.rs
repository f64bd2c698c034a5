//! `rackpool agent` and `rackpool fence`: hosts that share a rack's memory with its daemon's. In:
//! options. Out: one line `ready NAME` when clients can join; how many clients were given up.

use crate::agent_args::{AgentArgs, FenceArgs};
use crate::args::MasterAt;
use crate::connect::{find_master, found_options, token};
use crate::failure::Result;
use crate::interrupt;
use crate::output;
use crate::servers::{few_descriptors, say_ready, wait_for_end};
use rackpool::agent::{AgentOptions, AgentServer};
use rackpool_core::constants::SLOTS_MAX;
use tracing::{info, warn};

/// Serves the clients of this host until a signal.
pub fn agent(args: &AgentArgs) -> Result<()> {
    if let Some(few) = few_descriptors(4 * u64::from(SLOTS_MAX), "clients")? {
        warn!(target: "agent", "{few}");
    }
    let shutdown = interrupt::shutdown()?;
    let agent = start_agent(args)?;
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
    let options = agent_options(args.rack, &args.at, "", "")?;
    let clients = rackpool::agent::fence(&options, &args.host)?;
    output::print(&format!("{clients} clients of host {} were given up\n", args.host))
}

fn start_agent(args: &AgentArgs) -> Result<AgentServer> {
    let name = args
        .name
        .clone()
        .unwrap_or_else(|| rustix::system::uname().nodename().to_string_lossy().into_owned());
    let mut options = agent_options(args.rack, &args.at, &args.memory, &name)?;
    options.verbs_device = args.verbs_device.clone().or(options.verbs_device);
    options.allowed_users.clone_from(&args.allow_user);
    options.metrics = args.metrics;
    options.metrics_token = token(args.metrics_token_file.as_deref())?;
    Ok(AgentServer::start(options)?)
}

fn agent_options(rack: u16, at: &MasterAt, memory: &str, name: &str) -> Result<AgentOptions> {
    let found = found_options(at.master.as_deref(), at.secret_file.as_deref())?;
    find_master(&found.master)?;
    let mut options = AgentOptions::new(rack, &found.master.join(","), memory, name);
    (options.secret, options.verbs_device) = (found.secret, found.verbs_device);
    options.host = found.host;
    Ok(options)
}
