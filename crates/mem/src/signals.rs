//! Signals as data, for a program that runs another one in its place: kept from this process, and
//! read one by one. The other program gets them as they were before: its mask is put back between
//! fork and exec.
//!
//! Called by `rackpool tiers run`.

use libc::{SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, c_int, sigset_t};
use std::io;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Those that are passed on, and two that are for this process.
const TAKEN: [c_int; 7] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR2, SIGUSR1, SIGCHLD];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    Child,
    /// SIGUSR1.
    Report,
    /// For the program.
    Pass {
        signal: i32,
        /// From the kernel, as by Ctrl-C: the whole process group has got it.
        is_to_group: bool,
    },
}

/// Signals that are kept from this process from now on.
#[derive(Debug)]
pub struct Signals {
    fd: OwnedFd,
    before: sigset_t,
    /// What was done at SIGCHLD.
    at_child: libc::sighandler_t,
}

impl Signals {
    /// Keeps them from the calling thread and from those that it starts: call it before there are
    /// others.
    ///
    /// # Errors
    /// If no descriptor is left.
    pub fn take() -> io::Result<Signals> {
        let mut set = MaybeUninit::<sigset_t>::uninit();
        // SAFETY: initialises the set.
        unsafe { libc::sigemptyset(set.as_mut_ptr()) };
        for signal in TAKEN {
            // SAFETY: the set is initialised, the number is a signal's.
            unsafe { libc::sigaddset(set.as_mut_ptr(), signal) };
        }
        // SAFETY: initialised above.
        let set = unsafe { set.assume_init() };
        let mut before = set;
        // SAFETY: both sets are initialised and live.
        let code = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &set, &mut before) };
        assert_eq!(code, 0, "the way is a known one");
        // SAFETY: the set is initialised; a new descriptor is made.
        let fd = unsafe { libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: new, and owned by nothing else.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        // If it is ignored, which is inherited, the kernel keeps no child's exit code.
        // SAFETY: the default action: no code of ours is called.
        let at_child = unsafe { libc::signal(SIGCHLD, libc::SIG_DFL) };
        Ok(Signals { fd, before, at_child })
    }

    /// The next one that came, if any.
    pub fn next(&self) -> Option<Signal> {
        let mut info = MaybeUninit::<libc::signalfd_siginfo>::uninit();
        let bytes = size_of::<libc::signalfd_siginfo>();
        // SAFETY: as many bytes as the structure has, which the kernel fills.
        let got = unsafe { libc::read(self.fd.as_raw_fd(), info.as_mut_ptr().cast(), bytes) };
        if got != bytes as isize {
            return None;
        }
        // SAFETY: filled by the kernel, whole.
        let info = unsafe { info.assume_init() };
        Some(match info.ssi_signo as c_int {
            SIGCHLD => Signal::Child,
            SIGUSR1 => Signal::Report,
            signal => Signal::Pass { signal, is_to_group: info.ssi_code == libc::SI_KERNEL },
        })
    }

    /// Has a program start with its signals as they were.
    pub fn restore_in(&self, command: &mut Command) {
        let (before, at_child) = (self.before, self.at_child);
        let restore = move || {
            // SAFETY: as it was; the call is allowed between fork and exec.
            unsafe { libc::signal(SIGCHLD, at_child) };
            // SAFETY: the set is initialised; the call is allowed between fork and exec.
            let code =
                unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut()) };
            if code == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(code)) }
        };
        // SAFETY: two system calls, no memory is allocated, no lock is taken.
        unsafe { command.pre_exec(restore) };
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
