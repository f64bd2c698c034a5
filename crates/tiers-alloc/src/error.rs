//! Why there is no arena. A block that cannot be had is a null pointer.

use crate::arena::{ARENAS_MAX, NAME_BYTES_MAX};
use std::ffi::{CStr, c_int};

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Do not retry.
    #[error(
        "not a policy: `bind:1`, `preferred:1`, `weighted:0=3,1=1`, \
         `size:4096;preferred:0;preferred:1`, `hint;preferred:0;preferred:1` are some"
    )]
    Policy,
    /// Do not retry.
    #[error("not a name: it has 1 to {} letters, digits, `.`, `_` and `-`", NAME_BYTES_MAX)]
    Name,
    /// Do not retry.
    #[error("node {node} has no memory for this process: `rackpool tiers show` lists the nodes")]
    Node { node: u16 },
    /// Do not retry.
    #[error(
        "the kernel refuses mbind (error {errno}): start a container with `--cap-add SYS_NICE`; a \
         kernel needs CONFIG_NUMA"
    )]
    Refused { errno: i32 },
    /// Retry with fewer arenas, or a higher limit.
    #[error("no addresses, or no memory for the arena's books: raise the limit (`ulimit -v`)")]
    Addresses,
    /// Do not retry: arenas are never taken back.
    #[error("no room beside the arenas that are there, at most {}: use one of them", ARENAS_MAX)]
    Arenas,
}

impl Error {
    /// As the C interface says it.
    pub fn code(self) -> c_int {
        match self {
            Error::Policy => 1,
            Error::Name => 2,
            Error::Node { .. } => 3,
            Error::Refused { .. } => 4,
            Error::Addresses => 5,
            Error::Arenas => 6,
        }
    }
}

/// What a code says to a C program.
pub(crate) fn text(code: c_int) -> &'static CStr {
    match code {
        0 => c"no error",
        1 => c"not a policy: bind:1, preferred:1, weighted:0=3,1=1 are some",
        2 => c"not a name: 1 to 32 letters, digits, '.', '_' and '-'",
        3 => c"a node has no memory for this process: rackpool tiers show lists the nodes",
        4 => c"the kernel refuses mbind: start a container with --cap-add SYS_NICE",
        5 => c"no addresses, or no memory for the arena's books: raise the limit (ulimit -v)",
        6 => c"no room beside the arenas that are there: use one of them",
        _ => c"not a code of rackpool_tiers",
    }
}
