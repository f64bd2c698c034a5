//! A process whose memory is balanced: whether it still runs.

use super::kernel::{Kernel, is_absent};
use super::{BalanceError, Target};

/// A process by its number and when it started, since numbers are used again.
pub(super) struct WatchedProcess {
    pid: u32,
    start_time: u64,
}

/// What the kernel says of a process.
struct Stat {
    state: char,
    start_time: u64,
}

impl WatchedProcess {
    /// That of a target; none if it is another target.
    pub(super) fn of(
        kernel: &dyn Kernel,
        target: &Target,
    ) -> Result<Option<WatchedProcess>, BalanceError> {
        let Target::Process(pid) = *target else { return Ok(None) };
        match stat(kernel, pid) {
            Some(Stat { state, start_time }) if !has_ended(state) => {
                Ok(Some(WatchedProcess { pid, start_time }))
            }
            _ => Err(BalanceError::NoProcess { pid }),
        }
    }

    /// A file that cannot be read says nothing: it counts as alive.
    pub(super) fn is_alive(&self, kernel: &dyn Kernel) -> bool {
        match kernel.read(&path(self.pid)) {
            Err(error) => !is_absent(&error) && error.raw_os_error() != Some(ESRCH),
            Ok(text) => parse(&text).is_none_or(|Stat { state, start_time }| {
                start_time == self.start_time && !has_ended(state)
            }),
        }
    }
}

/// A process that ended while its file was open.
const ESRCH: i32 = rustix::io::Errno::SRCH.raw_os_error();

fn path(pid: u32) -> String {
    format!("/proc/{pid}/stat")
}

fn stat(kernel: &dyn Kernel, pid: u32) -> Option<Stat> {
    parse(&kernel.read(&path(pid)).ok()?)
}

/// The name in brackets may hold anything, brackets too.
fn parse(text: &str) -> Option<Stat> {
    let (_, rest) = text.rsplit_once(')')?;
    let mut fields = rest.split_whitespace();
    let state = fields.next()?.chars().next()?;
    // Field 22 of all, and the state is field 3.
    let start_time = fields.nth(22 - 3 - 1)?.parse().ok()?;
    Some(Stat { state, start_time })
}

/// A process that waits to be reaped has no memory.
fn has_ended(state: char) -> bool {
    matches!(state, 'Z' | 'X' | 'x')
}
