//! The commands about racks of several hosts, as data.

use crate::member_args::MasterAt;
use crate::values::{parse_listen, parse_memory, parse_user};
use clap::Args;
use std::net::SocketAddr;
use std::path::PathBuf;

pub const AGENT_EXAMPLES: &str = "\
A rack with memory that several hosts share (CXL or persistent memory as devdax) has its daemon on
one of them and an agent on each other one. Clients there map the memory as those beside the daemon
do. Prints `ready NAME` when clients can join, with --metrics `ready NAME metrics=ADDR`; stops on
SIGINT, SIGTERM and SIGHUP, and clients go on with the next agent.

Examples:
  rackpool agent --rack 0 --master 10.0.0.1:7400 --memory dax:/dev/dax0.0 --secret-file secret
  rackpool shell --rack 0 --master 10.0.0.1:7400 --secret-file secret ls";

pub const FENCE_EXAMPLES: &str = "\
What clients of a host that died hold stays theirs until the host is booted anew and its agent has
said so: only the host itself knows that it no longer touches the memory. This says it in the
agent's place. DATA LOSS if it is not true: switch the host off, or cut it off from the memory,
first. Refused while the host's agent is connected.

Examples:
  rackpool fence --rack 0 --host node7";

#[derive(Debug, Args)]
pub struct AgentArgs {
    /// The rack that shares its memory with this host
    #[arg(long, value_name = "N")]
    pub rack: u16,
    #[command(flatten)]
    pub at: MasterAt,
    /// The rack's memory as this host has it, such as dax:/dev/dax0.0; whether its caches are kept
    /// coherent by software is said in it
    #[arg(long, value_name = "MEMORY", value_parser = parse_memory)]
    pub memory: String,
    /// This host's name, which no other host of the rack has and which outlives its boots
    /// [default: the kernel's]
    #[arg(long, value_name = "HOST")]
    pub name: Option<String>,
    /// The RDMA device by which the daemon is reached, if it is by one
    #[arg(long, value_name = "DEVICE")]
    pub verbs_device: Option<String>,
    /// Let processes of this user of the host use the memory as well (a name, or a number); may be
    /// repeated [default: the agent's own user, and root]
    #[arg(long, value_name = "USER", value_parser = parse_user)]
    pub allow_user: Vec<u32>,
    /// Serve counters in the format of Prometheus over HTTP at /metrics, and /livez and /readyz; a
    /// port alone is one of 127.0.0.1
    #[arg(long, value_name = "ADDR|PORT", value_parser = parse_listen)]
    pub metrics: Option<SocketAddr>,
    /// File with a token of 16 bytes or more that readers of the counters have to send
    /// (`Authorization: Bearer TOKEN`): then other machines may read them
    #[arg(long, value_name = "FILE", requires = "metrics")]
    pub metrics_token_file: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct FenceArgs {
    /// The rack
    #[arg(long, value_name = "N")]
    pub rack: u16,
    #[command(flatten)]
    pub at: MasterAt,
    /// Name of the host that is switched off or cut off
    #[arg(long, value_name = "HOST")]
    pub host: String,
}
