//! The verbs fabric: one-sided operations executed by RDMA devices (InfiniBand, RoCE, and Soft-RoCE
//! of the kernel), over libibverbs, which is loaded when it is first used.
//!
//! | module | owns |
//! |---|---|
//! | `ffi`, `library` | the library's binary interface, and its functions |
//! | `device` | devices, ports, addresses, protection domains |
//! | `memory` | registered memory |
//! | `queue` | completion queues and queue pairs (RC, UC, UD) |
//! | `wire`, `control` | the bytes of both channels; the control line |
//! | `lane` | a reliable queue pair with credits, slots, and a way back after a failure |
//! | `local`, `work`, `connection`, `endpoint` | the initiator's end; implements `Fabric` |
//! | `keys`, `serve`, `target` | the target's end |
//!
//! Keys: each connection of a target has a protection domain of its own, and a frame is registered
//! in it when that initiator first asks, under its present generation. To revoke, the target's
//! thread ends the registrations; when the device has confirmed, it executes nothing more under
//! them, whatever the initiator does. Until then the frame is announced in a cell, where the thread
//! that frees it looks. So a key is its client's, and the guarantee is the device's.
//!
//! Atomics run on a processor of the target unless the device says that its own are atomic with
//! those; Soft-RoCE and most network cards say that they are not.
//!
//! The ends prove the pool's secret to one another on the control line, before a queue pair is
//! told of. What devices then send one another is neither encrypted nor authenticated.
//!
//! Source: DESIGN §1 (`Fabric`), §3 (a key's revocation completes); decision 0034.
#![allow(
    clippy::multiple_unsafe_ops_per_block,
    reason = "a call by a context's table reads the entry and calls it: one step, one reason"
)]

mod connection;
mod control;
pub mod device;
pub mod endpoint;
mod ffi;
mod keys;
mod lane;
mod library;
mod local;
pub mod memory;
pub mod queue;
mod serve;
mod target;
pub(super) mod wire;
mod work;

pub use device::{Device, DeviceChoice, device_names};
pub use endpoint::VerbsEndpoint;
pub use target::start_target;

use super::FabricError;
use crate::secret::Secret;
use rustix::io::Errno;

/// What executes CAS and FAA.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Atomics {
    /// The device where its atomics are atomic with processors' too, else the target's processor.
    #[default]
    Safe,
    /// The device, though its atomics may be so only among themselves: right where no processor
    /// touches the words, wrong else.
    Device,
}

/// What an endpoint or a target uses of this machine's devices.
#[derive(Clone, Debug, Default)]
pub struct DeviceOptions {
    pub device: DeviceChoice,
    pub atomics: Atomics,
}

impl DeviceOptions {
    /// Opens the device; whether it may execute atomics.
    fn open(&self, secret: Option<&Secret>) -> Result<(Device, bool), FabricError> {
        require_plain(secret)?;
        let device = Device::open(&self.device)?;
        let limits = &device.limits;
        let is_global = limits.atomics_global || self.atomics == Atomics::Device;
        let atomics = limits.has_atomics && is_global;
        Ok((device, atomics))
    }
}

/// Refuses to be what a secret asks for that encrypts.
fn require_plain(secret: Option<&Secret>) -> Result<(), FabricError> {
    let encrypts = secret.is_some_and(Secret::encrypts);
    if encrypts { Err(FabricError::NotEncrypted) } else { Ok(()) }
}

/// Why devices cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum VerbsError {
    /// No library. Install it, or use another fabric.
    #[error(
        "there is no libibverbs.so.1 ({why}): install libibverbs1 and ibverbs-providers, or use \
         another fabric"
    )]
    NoLibrary { why: String },
    /// A library that is too old.
    #[error("libibverbs has no ibv_{function}: rdma-core 28 or later is needed")]
    OldLibrary { function: &'static str },
    /// The kernel has no verbs.
    #[error("the kernel offers no verbs: modprobe ib_uverbs, or use another fabric")]
    NoKernel,
    #[error(
        "no RDMA device {}; there are: {there:?}. Soft-RoCE makes one of any network card: \
         modprobe rdma_rxe, rdma link add rxe0 type rxe netdev eth0",
        .asked.as_deref().unwrap_or("at all")
    )]
    NoDevice { asked: Option<String>, there: Vec<String> },
    /// No port that is up.
    #[error("device {device} has no active port{}", numbered(*.asked))]
    NoPort { device: String, asked: Option<u8> },
    #[error(
        "port {port} of device {device} has no address{}: its network card needs one",
        numbered(*.asked)
    )]
    NoGid { device: String, port: u8, asked: Option<u8> },
    /// No name of a device.
    #[error("`{text}` does not name a device: NAME[:PORT][/GID], ports from 1")]
    Choice { text: String },
    /// Memory that the device may not use.
    #[error("{bytes} bytes cannot be registered: {source}; {}", pin_advice(*.source))]
    Pin { bytes: u64, source: SystemCode },
    /// The system or the device refused. Whether to retry depends on the code.
    #[error("{what}: {}", SystemCode(*.code))]
    Os { what: &'static str, code: i32 },
}

/// A number of the system that is shown in words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SystemCode(pub i32);

impl std::fmt::Display for SystemCode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::io::Error::from_raw_os_error(self.0).fmt(f)
    }
}

impl std::error::Error for SystemCode {}

impl From<std::io::Error> for SystemCode {
    fn from(error: std::io::Error) -> Self {
        SystemCode(error.raw_os_error().unwrap_or(0))
    }
}

impl VerbsError {
    /// Whether it says that what was asked for is not on this machine: retrying is of no use.
    pub(super) fn is_absence(&self) -> bool {
        !matches!(self, VerbsError::Pin { .. } | VerbsError::Os { .. })
    }

    /// What the system said last.
    fn os(what: &'static str) -> Self {
        VerbsError::Os { what, code: last_os_error().raw_os_error().unwrap_or(0) }
    }

    /// Functions of the library answer 0 or a number of the system.
    fn check(code: i32, what: &'static str) -> Result<(), VerbsError> {
        if code == 0 { Ok(()) } else { Err(VerbsError::Os { what, code: code.abs() }) }
    }
}

/// The number that was asked for, in a message.
fn numbered(asked: Option<u8>) -> String {
    asked.map_or(String::new(), |number| format!(" {number}"))
}

fn last_os_error() -> std::io::Error {
    std::io::Error::last_os_error()
}

/// What to do about memory that cannot be registered.
fn pin_advice(code: SystemCode) -> &'static str {
    match Errno::from_raw_os_error(code.0) {
        Errno::NOMEM | Errno::AGAIN => {
            "registered memory is pinned: raise `ulimit -l` (LimitMEMLOCK of the service)"
        }
        Errno::OPNOTSUPP => {
            "a file of a file system on persistent memory (fsdax) may not be pinned for long: use \
             the devdax of the same memory"
        }
        Errno::FAULT => {
            "a device's memory window (a BAR, such as ivshmem's) has no pages to pin: use devdax \
             with its page map in memory (ndctl --map=mem)"
        }
        Errno::INVAL => "its start or length does not fit the pages that it consists of",
        _ => "anonymous memory, tmpfs, huge pages and devdax can be",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_refusal_to_pin_says_what_to_do() {
        let said = |code: Errno| {
            let source = SystemCode(code.raw_os_error());
            VerbsError::Pin { bytes: 4096, source }.to_string()
        };
        assert!(said(Errno::NOMEM).contains("ulimit -l"));
        assert!(said(Errno::OPNOTSUPP).contains("fsdax"));
        assert!(said(Errno::FAULT).contains("BAR"));
        assert!(said(Errno::IO).contains("devdax"));
    }
}
