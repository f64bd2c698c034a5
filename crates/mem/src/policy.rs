//! Whether this process may choose where its memory comes from: containers often refuse the system
//! calls by a seccomp filter, and kernels without memory nodes do not have them. Each call is tried
//! in a form that changes nothing.
//!
//! And the policy of a thread, which a program that it starts inherits.
//!
//! Called by `rackpool tiers` and `doctor`.

use std::ffi::{c_int, c_long, c_ulong};
use std::fmt::{self, Display, Formatter};
use std::io;

/// Nodes that Linux can have at most.
pub const NODES_MAX: u32 = 1024;
/// A mode that no kernel has: the call is looked at, and nothing is set.
const NO_MODE: c_long = 0x1000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyCall {
    /// Where a process and its children take memory from.
    SetMempolicy,
    /// Where a range of addresses takes memory from.
    Mbind,
    /// Where pages are, and moves them.
    MovePages,
}

impl PolicyCall {
    pub const ALL: [PolicyCall; 3] =
        [PolicyCall::SetMempolicy, PolicyCall::Mbind, PolicyCall::MovePages];

    pub fn name(self) -> &'static str {
        match self {
            PolicyCall::SetMempolicy => "set_mempolicy",
            PolicyCall::Mbind => "mbind",
            PolicyCall::MovePages => "move_pages",
        }
    }

    /// Asks the kernel for nothing by this call.
    ///
    /// # Errors
    /// What the kernel, or a seccomp filter before it, says to every such call of this thread:
    /// mostly `EPERM` by a filter, `ENOSYS` by a kernel without memory nodes.
    pub fn try_it(self) -> io::Result<()> {
        let none: c_long = 0;
        let code = match self {
            PolicyCall::SetMempolicy => {
                // SAFETY: the kernel refuses the mode before it looks at the mask, which is null.
                unsafe { libc::syscall(libc::SYS_set_mempolicy, NO_MODE, none, none) }
            }
            PolicyCall::Mbind => {
                // SAFETY: a range of no bytes at address 0: no mapping is changed.
                unsafe { libc::syscall(libc::SYS_mbind, none, none, none, none, none, none) }
            }
            PolicyCall::MovePages => {
                // SAFETY: of this process no pages are asked for: no list is read or written.
                unsafe { libc::syscall(libc::SYS_move_pages, none, none, none, none, none, none) }
            }
        };
        let error = io::Error::last_os_error();
        // What a kernel says that was reached and has the call.
        let is_answer = matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EFAULT));
        if code >= 0 || is_answer { Ok(()) } else { Err(error) }
    }
}

impl Display for PolicyCall {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A call that this process may not use.
#[derive(Debug)]
pub struct Refused {
    pub call: PolicyCall,
    pub error: io::Error,
}

/// Those of the calls that are refused to this thread.
#[must_use]
pub fn refused() -> Vec<Refused> {
    let refusal = |call: PolicyCall| call.try_it().err().map(|error| Refused { call, error });
    PolicyCall::ALL.into_iter().filter_map(refusal).collect()
}

/// Where a thread takes memory from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ThreadPolicy {
    /// As if there were no policy.
    Default,
    /// From others if it is full.
    Preferred(u16),
    /// From no others.
    Bind(Vec<u16>),
    /// Page by page from each in turn.
    Interleave(Vec<u16>),
    /// By the weights that the kernel has for the whole machine; Linux 6.9.
    WeightedInterleave(Vec<u16>),
}

/// Of `linux/mempolicy.h`.
const MPOL_WEIGHTED_INTERLEAVE: c_int = 6;
const WORD_BITS: usize = c_ulong::BITS as usize;

impl ThreadPolicy {
    /// Has pages that this thread takes from now on come from there; also those of processes and
    /// threads that it starts, over exec. The kernel passes over nodes that are not there.
    ///
    /// # Errors
    /// The kernel's: it lacks the policy, or none of the nodes has memory, or a filter refuses.
    ///
    /// # Panics
    /// If a node is not below [`NODES_MAX`].
    pub fn set(&self) -> io::Result<()> {
        let one;
        let (mode, nodes) = match self {
            ThreadPolicy::Default => (libc::MPOL_DEFAULT, &[][..]),
            ThreadPolicy::Preferred(node) => {
                one = [*node];
                (libc::MPOL_PREFERRED, &one[..])
            }
            ThreadPolicy::Bind(nodes) => (libc::MPOL_BIND, &nodes[..]),
            ThreadPolicy::Interleave(nodes) => (libc::MPOL_INTERLEAVE, &nodes[..]),
            ThreadPolicy::WeightedInterleave(nodes) => (MPOL_WEIGHTED_INTERLEAVE, &nodes[..]),
        };
        let mut mask = [0 as c_ulong; NODES_MAX as usize / WORD_BITS];
        for node in nodes.iter().map(|node| usize::from(*node)) {
            mask[node / WORD_BITS] |= 1 << (node % WORD_BITS);
        }
        // The kernel leaves out the last one.
        let bits = NODES_MAX as c_long + 1;
        let mode = c_long::from(mode);
        // SAFETY: the kernel reads a mask of as many bits; no page moves.
        let code = unsafe { libc::syscall(libc::SYS_set_mempolicy, mode, mask.as_ptr(), bits) };
        if code == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Has the kernel answer `EPERM` to two of the calls, of this thread alone.
    fn refuse_two_calls() {
        let load = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
        let (equal, end) = (libc::BPF_JMP | libc::BPF_JEQ, libc::BPF_RET);
        let refuse = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
        let line =
            |code: u32, jt: u8, jf: u8, k: u32| libc::sock_filter { code: code as u16, jt, jf, k };
        let mut lines = [
            line(load, 0, 0, 0),
            line(equal, 2, 0, libc::SYS_set_mempolicy as u32),
            line(equal, 1, 0, libc::SYS_mbind as u32),
            line(end, 0, 0, libc::SECCOMP_RET_ALLOW),
            line(end, 0, 0, refuse),
        ];
        let program = libc::sock_fprog { len: lines.len() as u16, filter: lines.as_mut_ptr() };
        // SAFETY: takes rights from this thread alone.
        let code = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
        assert_eq!(code, 0);
        // SAFETY: the program has as many lines as it says, and is copied by the kernel.
        let code =
            unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program) };
        assert_eq!(code, 0, "{}", io::Error::last_os_error());
    }

    /// The policy of this thread as the kernel tells it.
    fn mode() -> i32 {
        let (mut mode, none): (i32, c_long) = (-1, 0);
        // SAFETY: writes one number.
        let code = unsafe {
            libc::syscall(libc::SYS_get_mempolicy, &raw mut mode, none, none, none, none)
        };
        assert_eq!(code, 0);
        mode
    }

    #[test]
    fn a_call_that_a_filter_refuses_is_named_and_what_works_changes_nothing() {
        if !std::path::Path::new("/sys/devices/system/node").exists() || !refused().is_empty() {
            println!("NOT TESTED: memory policies are refused here: {:?}", refused());
            return;
        }
        let before = mode();
        assert!(refused().is_empty());
        assert_eq!(mode(), before);
        let found = std::thread::spawn(|| {
            refuse_two_calls();
            refused()
        });
        let found = found.join().unwrap();
        let calls: Vec<PolicyCall> = found.iter().map(|refused| refused.call).collect();
        assert_eq!(calls, [PolicyCall::SetMempolicy, PolicyCall::Mbind]);
        assert!(found.iter().all(|one| one.error.raw_os_error() == Some(libc::EPERM)));
        assert!(refused().is_empty(), "other threads keep their rights");
    }

    #[test]
    fn a_policy_is_set_and_taken_back_and_one_without_memory_is_refused() {
        if !std::path::Path::new("/sys/devices/system/node").exists() || !refused().is_empty() {
            println!("NOT TESTED: memory policies are refused here: {:?}", refused());
            return;
        }
        let set = || {
            for (policy, expected) in [
                (ThreadPolicy::Preferred(0), libc::MPOL_PREFERRED),
                (ThreadPolicy::Bind(vec![0]), libc::MPOL_BIND),
                (ThreadPolicy::Interleave(vec![0]), libc::MPOL_INTERLEAVE),
                (ThreadPolicy::Default, libc::MPOL_DEFAULT),
            ] {
                policy.set().unwrap();
                assert_eq!(mode(), expected, "{policy:?}");
            }
            let refused = ThreadPolicy::Bind(vec![1023]).set().unwrap_err();
            assert_eq!(refused.raw_os_error(), Some(libc::EINVAL));
        };
        std::thread::spawn(set).join().unwrap();
    }
}
