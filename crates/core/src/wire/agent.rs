//! What the agent of a host says to the daemon of its rack on another host, and hears. An agent
//! stands for all clients of its host, which have the rack's memory but neither a socket nor a
//! process that the daemon could see. SEND messages over the fabric.
//!
//! Source: DESIGN §2 (processes), §3 (another host's clients are gone when their host is known to
//! have begun anew, or is fenced).

use super::{ControlHello, ControlReply};
use crate::addr::SessionId;
use crate::error::Error;
use serde::{Deserialize, Serialize};

/// A process of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostProcess {
    pub pid: u32,
    /// When it began, in the kernel's ticks since the host did.
    pub start_time: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AgentRequest {
    Hello {
        version: u32,
        /// The host's name, the same after each of its boots and no other host's.
        host: String,
        /// Boot identity: another one means that all processes of before are gone.
        boot: String,
        /// The region that it has the memory of.
        region_id: [u64; 2],
    },
    /// A client of its host says hello.
    Join { number: u64, hello: ControlHello, process: HostProcess },
    /// The client of a slot is gone: it has unmapped the memory, or its process has ended.
    Left { slot: u32, session: SessionId },
    /// A client rang for the daemon, which slept; or the host is alive, said four times in a lease.
    Ring,
    /// First, of an operator: a host will never touch the memory again, because it is switched off
    /// or cut off from it. An operator that says so while it is not so risks the rack's data.
    Fence { version: u32, host: String },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AgentEvent {
    /// To `Hello`: slots of clients of its host. The agent says `Left` for those with a process
    /// that has ended.
    Welcome {
        /// Slots, their sessions and their processes.
        slots: Vec<(u32, SessionId, HostProcess)>,
    },
    Joined {
        number: u64,
        /// To be handed to the client, with descriptors of the host's own.
        reply: ControlReply,
    },
    /// The client of a slot sleeps, and there is an answer.
    Wake { slot: u32 },
    /// To `Fence`: how many clients it had.
    Fenced {
        /// Slots that were given back.
        clients: u32,
    },
    /// To `Hello` and `Fence`: no.
    Refused(Error),
}

/// How a session record says which host's process it is of: in the upper halves of the words for
/// number and start of the process, which are 0 for the daemon's own host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HostTag {
    /// From the name; never 0.
    pub host: u32,
    pub boot: u32,
}

/// Bits of a start time in ticks: 348 years of 100 Hz.
const START_BITS: u32 = 40;

impl HostTag {
    /// The tag of a boot of a host.
    pub fn new(host: &str, boot: &str) -> Self {
        let (host, boot) = (hash(host), hash(boot));
        Self { host: (host as u32).max(1), boot: (boot as u32) & 0xff_ffff }
    }

    /// The words of a session record.
    pub fn pack(self, process: HostProcess) -> (u64, u64) {
        let start = process.start_time & ((1 << START_BITS) - 1);
        let pid = u64::from(self.host) << 32 | u64::from(process.pid);
        (pid, u64::from(self.boot) << START_BITS | start)
    }

    /// The owner of a session record, if it is not one of the daemon's own host.
    pub fn unpack(pid: u64, start_time: u64) -> Option<(Self, HostProcess)> {
        let host = (pid >> 32) as u32;
        let boot = (start_time >> START_BITS) as u32;
        let start_time = start_time & ((1 << START_BITS) - 1);
        let process = HostProcess { pid: pid as u32, start_time };
        (host != 0).then_some((Self { host, boot }, process))
    }
}

/// FNV-1a, folded such that all bits count.
fn hash(text: &str) -> u64 {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325, step);
    hash ^ hash >> 32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_tells_the_hosts_boot_and_process_and_nothing_for_the_own_host() {
        let (tag, again) = (HostTag::new("host-b", "boot 1"), HostTag::new("host-b", "boot 2"));
        assert_eq!(tag.host, again.host);
        assert_ne!((tag.boot, tag.host), (again.boot, HostTag::new("host-c", "boot 1").host));
        let process = HostProcess { pid: 4711, start_time: 123_456_789 };
        let (pid, start_time) = tag.pack(process);
        assert_eq!(HostTag::unpack(pid, start_time), Some((tag, process)));
        assert_eq!(HostTag::unpack(4711, 123_456_789), None);
    }
}
