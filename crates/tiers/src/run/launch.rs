//! Starts a program with its plan, passes signals on, and looks from time to time where its memory
//! lies. What a process had is gone when its end is known, so the last look before is what a report
//! can say; it says how long before.
//!
//! Looks cost time that grows with the memory: they are seldom enough to take no more than a
//! twentieth of a processor, and frequent at the start, for programs that end soon.

use super::error::io_error;
use super::preload::{Notes, Preload};
use super::program::require_dynamic;
use super::{KernelPolicy, Plan, Reading, RunError, find};
use rackpool_mem::policy::ThreadPolicy;
use rackpool_mem::signals::{Signal, Signals};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{
    Pid, Signal as RawSignal, WaitOptions, WaitStatus, getpgid, kill_process, set_child_subreaper,
    waitpid,
};
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

const FIRST_LOOK: Duration = Duration::from_millis(2);
const LOOKS_APART_MAX: Duration = Duration::from_millis(250);
/// So many times as long as a look takes is between two.
const LOOK_SHARE: u32 = 20;
const EXIT_SIGNAL: u8 = 128;

/// What is run, and how.
#[derive(Debug)]
pub struct Launch<'l> {
    pub plan: &'l Plan,
    pub program: &'l OsString,
    pub args: &'l [OsString],
    pub signals: &'l Signals,
}

/// What happens while a program runs.
pub enum Event<'e> {
    Started,
    /// A report is wanted (SIGUSR1).
    Asked {
        reading: &'e Reading,
        notes: Option<Notes>,
    },
}

#[derive(Debug)]
pub struct Ended {
    /// As a shell has it: 128 and the signal's number if one ended it.
    pub code: u8,
    /// Whether the kernel killed processes for want of memory meanwhile, and this one was killed.
    pub is_out_of_memory: bool,
    /// The last look before its end; none if it ended before the first one.
    pub last: Option<Reading>,
    /// How long before its end that was.
    pub before_end: Duration,
    /// The look with the most memory.
    pub most: Option<Reading>,
    /// What the library counted, if there is one.
    pub notes: Option<Notes>,
}

/// Runs a program to its end. Blocks. Children that it leaves are this process's until this process
/// ends.
///
/// # Errors
/// [`RunError`] if it cannot be started as planned.
pub fn run(launch: &Launch<'_>, told: &mut dyn FnMut(Event<'_>)) -> Result<Ended, RunError> {
    let path = find(launch.program)?;
    let mut command = Command::new(&path);
    command.args(launch.args);
    command.arg0(launch.program);
    let preload = match launch.plan {
        Plan::Kernel(_) => None,
        Plan::Preload(shares) => {
            require_dynamic(&path)?;
            let preload = Preload::prepare()?;
            command.envs(preload.variables(shares));
            Some(preload)
        }
    };
    launch.signals.restore_in(&mut command);
    // What it leaves behind is still its memory; without the call only its own children are seen.
    let _ = set_child_subreaper(Pid::from_raw(1));
    let kills = out_of_memory_kills();
    let policy = policy(launch.plan);
    if let Some(policy) = &policy {
        policy.set().map_err(io_error("setting the memory policy"))?;
    }
    let child = command.spawn();
    if policy.is_some() {
        // What this process takes itself need not lie there; if refused, it does.
        let _ = ThreadPolicy::Default.set();
    }
    let child = child.map_err(|source| RunError::NotRun { path, source })?;
    let child = Pid::from_child(&child);
    let watch = Watch { child, signals: launch.signals, preload: preload.as_ref() };
    told(Event::Started);
    let mut ended = watch.to_its_end(told)?;
    ended.is_out_of_memory =
        ended.code == EXIT_SIGNAL + RawSignal::KILL.as_raw() as u8 && out_of_memory_kills() > kills;
    Ok(ended)
}

/// Processes that the kernel killed for want of memory since it was started.
fn out_of_memory_kills() -> u64 {
    let text = std::fs::read_to_string("/proc/vmstat").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
    line.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
}

/// The policy of the thread that starts the program.
fn policy(plan: &Plan) -> Option<ThreadPolicy> {
    let Plan::Kernel(policy) = plan else { return None };
    match policy {
        KernelPolicy::Unchanged => None,
        KernelPolicy::Preferred(node) => Some(ThreadPolicy::Preferred(*node)),
        KernelPolicy::Bind(nodes) => Some(ThreadPolicy::Bind(nodes.clone())),
        KernelPolicy::Interleave(nodes) => Some(ThreadPolicy::Interleave(nodes.clone())),
        KernelPolicy::WeightedInterleave(nodes) => {
            Some(ThreadPolicy::WeightedInterleave(nodes.clone()))
        }
    }
}

struct Watch<'w> {
    child: Pid,
    signals: &'w Signals,
    preload: Option<&'w Preload>,
}

impl Watch<'_> {
    fn look(&self) -> Reading {
        Reading::of_descendants(self.preload.map(Preload::library))
    }

    fn notes(&self) -> Option<Notes> {
        self.preload.map(Preload::notes)
    }

    fn to_its_end(&self, told: &mut dyn FnMut(Event<'_>)) -> Result<Ended, RunError> {
        let (mut last, mut most): (Option<Reading>, Option<Reading>) = (None, None);
        let mut apart = FIRST_LOOK;
        let mut next_look = Instant::now() + apart;
        loop {
            self.wait(next_look)?;
            let mut is_asked = false;
            while let Some(signal) = self.signals.next() {
                match signal {
                    Signal::Report => is_asked = true,
                    Signal::Pass { signal, is_to_group } => self.pass(signal, is_to_group),
                    Signal::Child => {}
                }
            }
            if let Some(code) = self.reap()? {
                let before_end = last.as_ref().map_or(Duration::ZERO, |r| r.at.elapsed());
                let notes = self.notes();
                let is_out_of_memory = false;
                return Ok(Ended { code, is_out_of_memory, last, before_end, most, notes });
            }
            if !is_asked && Instant::now() < next_look {
                continue;
            }
            let reading = self.look();
            if is_asked {
                told(Event::Asked { reading: &reading, notes: self.notes() });
            }
            apart = (apart * 2).min(LOOKS_APART_MAX).max(reading.took * LOOK_SHARE);
            next_look = Instant::now() + apart;
            // One that is about to end has no memory any more.
            if reading.processes == 0 {
                continue;
            }
            let bytes = |reading: &Reading| reading.private_bytes();
            if most.as_ref().is_none_or(|most| bytes(most) < bytes(&reading)) {
                most = Some(reading.clone());
            }
            last = Some(reading);
        }
    }

    /// Waits for a signal, or until it is time to look.
    fn wait(&self, until: Instant) -> Result<(), RunError> {
        let left = until.saturating_duration_since(Instant::now());
        let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        let mut fds = [PollFd::new(self.signals, PollFlags::IN)];
        match poll(&mut fds, Some(&left)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(io_error("waiting for a signal")(error.into())),
        }
    }

    /// Ctrl-C goes to a whole process group: a program of our group has got it.
    fn pass(&self, signal: i32, is_to_group: bool) {
        let has_it = is_to_group && getpgid(None).ok() == getpgid(Some(self.child)).ok();
        if let (false, Some(signal)) = (has_it, RawSignal::from_named_raw(signal)) {
            // It may have ended meanwhile.
            let _ = kill_process(self.child, signal);
        }
    }

    /// Takes in what has ended; the program's code if it is among that.
    fn reap(&self) -> Result<Option<u8>, RunError> {
        let mut ended = None;
        loop {
            match waitpid(None, WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if pid == self.child => ended = code_of(status).or(ended),
                Ok(Some(_)) | Err(rustix::io::Errno::INTR) => {}
                // Others are left, ours perhaps.
                Ok(None) => return Ok(ended),
                // None is left, and ours was among them.
                Err(rustix::io::Errno::CHILD) if ended.is_some() => return Ok(ended),
                Err(error) => return Err(io_error("waiting for the program")(error.into())),
            }
        }
    }
}

fn code_of(status: WaitStatus) -> Option<u8> {
    let code = status.exit_status().map(|code| code as u8);
    code.or_else(|| status.terminating_signal().map(|signal| EXIT_SIGNAL + signal as u8))
}
