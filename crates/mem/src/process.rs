//! Processes of this host: their identity, which are dead, when to stop. Owns the one signal
//! handler of the program; everything else here is stateless.
//!
//! In: process ids out of session records and socket credentials. Out: "dead" only when it is
//! proven, because a slot or a frame is given to another process on that word. Every doubt (no
//! descriptor left, `/proc` hidden) counts as alive. Called by the daemon's poll loop, by clients
//! at join and by the runtime at start.
//!
//! Ordering rule: a pidfd is opened first and the start time read second. While the pidfd says
//! that its process lives, the number cannot have passed to another process, so the start time
//! read in between belongs to the process of the pidfd.
//!
//! Source: DESIGN §3 (liveness), §4.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Resource, Rlimit, getrlimit, pidfd_open, setrlimit};
use rustix::thread::CpuSet;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

/// A process of this boot, named so that a reused process id is another process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ProcessId {
    pub pid: u32,
    /// When it started, in clock ticks after boot (field 22 of `/proc/PID/stat`).
    pub start_time: u64,
}

impl ProcessId {
    /// This process.
    ///
    /// # Errors
    /// If `/proc` is not mounted.
    pub fn own() -> io::Result<Self> {
        Self::of(std::process::id())
    }

    /// The process that has this id now.
    ///
    /// # Errors
    /// `NotFound` if there is none; others if `/proc` cannot be read.
    pub fn of(pid: u32) -> io::Result<Self> {
        Ok(Self { pid, start_time: start_time_of(pid)? })
    }

    /// Whether the process, or any thread of it, may still run. `false` is a proof: its memory
    /// mappings are gone. A stopped process is alive. Does not block.
    pub fn is_alive(self) -> bool {
        match ProcessHandle::open(self.pid) {
            Ok(handle) => handle.id == self && handle.is_alive(),
            Err(error) => error.kind() != io::ErrorKind::NotFound,
        }
    }
}

/// When the process with this id started, in clock ticks after boot.
///
/// # Errors
/// `NotFound` if there is no such process; `InvalidData` if the kernel's text makes no sense.
pub fn start_time_of(pid: u32) -> io::Result<u64> {
    let path = format!("/proc/{pid}/stat");
    let stat = match std::fs::read(&path) {
        Err(error) if error.raw_os_error() == Some(Errno::SRCH.raw_os_error()) => {
            return Err(io::ErrorKind::NotFound.into());
        }
        other => other?,
    };
    start_time_in(&stat).ok_or_else(|| {
        io::Error::new(io::ErrorKind::InvalidData, format!("{path} has no start time in field 22"))
    })
}

/// Field 22 of a stat line. The name in field 2 stands in brackets and may hold anything, blanks
/// and brackets too; so fields are counted after the last closing one.
fn start_time_in(stat: &[u8]) -> Option<u64> {
    const FIELDS_AFTER_NAME: usize = 22 - 3;
    let name_end = stat.iter().rposition(|byte| *byte == b')')?;
    let rest = std::str::from_utf8(&stat[name_end + 1..]).ok()?;
    rest.split_ascii_whitespace().nth(FIELDS_AFTER_NAME)?.parse().ok()
}

/// A process held by a pidfd: it becomes readable in a [`crate::event::Poller`] when the process
/// is dead, with all its threads and mappings.
#[derive(Debug)]
pub struct ProcessHandle {
    fd: OwnedFd,
    id: ProcessId,
}

impl ProcessHandle {
    /// Takes hold of the process that has this id now.
    ///
    /// # Errors
    /// `NotFound` if it is dead; others if descriptors have run out or `/proc` is hidden.
    pub fn open(pid: u32) -> io::Result<Self> {
        let raw = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let raw = raw.ok_or(io::ErrorKind::NotFound)?;
        let fd = match pidfd_open(raw, PidfdFlags::empty()) {
            Err(Errno::SRCH | Errno::INVAL) => return Err(io::ErrorKind::NotFound.into()),
            other => other?,
        };
        let handle = Self { fd, id: ProcessId { pid, start_time: start_time_of(pid)? } };
        // Alive now, so the number was not reused before the start time was read.
        if !handle.is_alive() {
            return Err(io::ErrorKind::NotFound.into());
        }
        Ok(handle)
    }

    /// Takes hold of exactly this process.
    ///
    /// # Errors
    /// `NotFound` if it is dead, also when another process has its number by now.
    pub fn open_exact(id: ProcessId) -> io::Result<Self> {
        let handle = Self::open(id.pid)?;
        if handle.id != id {
            return Err(io::ErrorKind::NotFound.into());
        }
        Ok(handle)
    }

    pub fn id(&self) -> ProcessId {
        self.id
    }

    /// Whether it may still run. `false` is a proof. Does not block.
    pub fn is_alive(&self) -> bool {
        let mut fds = [PollFd::new(&self.fd, PollFlags::IN)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        !matches!(poll(&mut fds, Some(&now)), Ok(1))
    }
}

impl AsFd for ProcessHandle {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// A name of this boot and network namespace. Two processes with equal names reach each other's
/// abstract sockets, see the same process start times and lose their memory at the same reboot.
///
/// # Errors
/// If `/proc` is not mounted.
pub fn boot_id() -> io::Result<String> {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let namespace = rustix::fs::stat("/proc/self/ns/net")?.st_ino;
    Ok(format!("{}/{namespace}", boot.trim_end()))
}

/// Fills `bytes` with random bytes of the kernel.
///
/// # Errors
/// If the kernel has no `getrandom` or a filter forbids it.
pub fn random_bytes(bytes: &mut [u8]) -> io::Result<()> {
    let mut filled = 0;
    while filled < bytes.len() {
        let rest = &mut bytes[filled..];
        // SAFETY: `rest` is a live, writable slice, and the kernel writes at most its length.
        let got = unsafe { libc::getrandom(rest.as_mut_ptr().cast(), rest.len(), 0) };
        match usize::try_from(got) {
            Ok(got) => filled += got,
            Err(_) => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => {}
                error => return Err(error),
            },
        }
    }
    Ok(())
}

/// A random number that is not 0, fit for session and region ids.
///
/// # Errors
/// As [`random_bytes`].
pub fn random_u64() -> io::Result<u64> {
    let mut bytes = [0; 8];
    // 0 comes once in 2^64 draws; a second draw that is 0 as well means a broken source.
    for _ in 0..2 {
        random_bytes(&mut bytes)?;
        match u64::from_ne_bytes(bytes) {
            0 => {}
            value => return Ok(value),
        }
    }
    Err(io::Error::other("the kernel's random source gives only zeros"))
}

/// Monotonic time in nanoseconds, the same for all processes of this host. Never goes back; does
/// not count while the machine is suspended.
#[inline]
pub fn monotonic_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let seconds = u64::try_from(now.tv_sec).expect("monotonic time is not negative");
    let nanos = u64::try_from(now.tv_nsec).expect("the kernel normalises nanoseconds");
    seconds * 1_000_000_000 + nanos
}

/// Lets this process have as many descriptors as its user may: several thousand connections need
/// more than a shell usually grants. How many that are.
pub fn raise_descriptor_limit() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    // If it fails, there are as many as before.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// The processor's name, as the kernel tells it; `unknown` where it does not.
pub fn processor_name() -> String {
    let cpus = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = cpus.lines().find(|line| line.starts_with("model name"));
    let name = line.and_then(|line| line.split_once(':'));
    name.map_or("unknown", |(_, name)| name.trim()).to_owned()
}

/// The processor cores that this thread may run on, ascending.
///
/// # Errors
/// If the machine has more cores than the set of the C library can name (1024).
pub fn allowed_cores() -> io::Result<Vec<usize>> {
    let set = rustix::thread::sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU).filter(|core| set.is_set(*core)).collect())
}

/// Binds this thread to one core.
///
/// # Errors
/// `InvalidInput` if the thread may not run there.
pub fn pin_to_core(core: usize) -> io::Result<()> {
    if core >= CpuSet::MAX_CPU {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("core {core}: cores 0 to {} can be named", CpuSet::MAX_CPU - 1),
        ));
    }
    let mut set = CpuSet::new();
    set.set(core);
    Ok(rustix::thread::sched_setaffinity(None, &set)?)
}

/// Descriptor that the signal handler writes to; -1 before it is installed.
static SHUTDOWN_FD: AtomicI32 = AtomicI32::new(-1);
/// SIGINT, SIGTERM and SIGHUP received.
static SHUTDOWN_SIGNALS: AtomicU32 = AtomicU32::new(0);
/// The first of them; 0 before it.
static SHUTDOWN_SIGNAL: AtomicI32 = AtomicI32::new(0);
static SHUTDOWN: OnceLock<Result<crate::event::WakeEvent, i32>> = OnceLock::new();

/// From this signal on the handler ends the process itself: an operator that asks three times gets
/// no answer from the poll loop.
const SHUTDOWN_SIGNALS_PATIENT: u32 = 2;

/// The wish of SIGINT, SIGTERM or SIGHUP (unless the process was started with SIGHUP ignored, as by
/// `nohup`) that this process stops. Its descriptor becomes readable and stays so, for every poll
/// loop of the process. The third signal ends the process at once.
#[derive(Clone, Copy, Debug)]
pub struct Shutdown {
    event: &'static crate::event::WakeEvent,
}

impl Shutdown {
    /// Installs the handler of the signals, once in a process; later calls give the same.
    ///
    /// # Errors
    /// If no descriptor is left for the event.
    pub fn install() -> io::Result<Self> {
        let event = SHUTDOWN.get_or_init(|| install_handlers().map_err(raw_error));
        match event {
            Ok(event) => Ok(Self { event }),
            Err(raw) => Err(io::Error::from_raw_os_error(*raw)),
        }
    }

    /// Whether the process shall stop.
    pub fn is_requested(&self) -> bool {
        // The event's descriptor orders for threads that sleep.
        Self::was_requested()
    }

    /// Whether this process was asked to stop, if the handler is installed at all.
    pub fn was_requested() -> bool {
        // Relaxed: the flag carries no data.
        SHUTDOWN_SIGNALS.load(Ordering::Relaxed) > 0
    }

    /// How often the process was asked to stop.
    pub fn requests(&self) -> u32 {
        // Relaxed: the count carries no data.
        SHUTDOWN_SIGNALS.load(Ordering::Relaxed)
    }

    /// The number of the first signal that asked for the stop.
    pub fn signal(&self) -> Option<u8> {
        // Relaxed: the number carries no other data.
        u8::try_from(SHUTDOWN_SIGNAL.load(Ordering::Relaxed)).ok().filter(|number| *number > 0)
    }

    /// Asks for the stop from inside, as a signal would.
    pub fn request(&self) {
        // Relaxed: the flag carries no data.
        SHUTDOWN_SIGNALS.fetch_max(1, Ordering::Relaxed);
        self.event.notify();
    }
}

impl AsFd for Shutdown {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

fn raw_error(error: io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}

fn install_handlers() -> io::Result<crate::event::WakeEvent> {
    let event = crate::event::WakeEvent::new()?;
    // Release: pairs with the Acquire in process.rs::on_signal. The event lives in a static, so
    // the descriptor stays open for the life of the process.
    SHUTDOWN_FD.store(event.as_fd().as_raw_fd(), Ordering::Release);
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: all-zero bytes are a valid `sigaction`: no flags, empty mask.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        let mut before = action;
        // SAFETY: a null action changes nothing; `before` takes the present one.
        let status = unsafe { libc::sigaction(signal, std::ptr::null(), &mut before) };
        if signal == libc::SIGHUP && status == 0 && before.sa_sigaction == libc::SIG_IGN {
            // Started to outlive its terminal.
            continue;
        }
        action.sa_sigaction = on_signal as extern "C" fn(libc::c_int) as usize;
        action.sa_flags = libc::SA_RESTART;
        // SAFETY: `action` is initialised, and its handler calls only what signal handlers may.
        let status = unsafe { libc::sigaction(signal, &action, std::ptr::null_mut()) };
        if status != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(event)
}

/// Says why before it ends the process (exit code 1) when memory of a file is gone under it
/// (SIGBUS: the file was cut, or its disk is full or broken), and has writes beyond the limit of a
/// file's length (SIGXFSZ) fail with an error instead. For the start of a program.
///
/// # Errors
/// What the system says; it has no reason to refuse.
pub fn install_fault_handlers() -> io::Result<()> {
    let lost: extern "C" fn(libc::c_int) = on_lost_memory;
    for (signal, handler) in [(libc::SIGBUS, lost as usize), (libc::SIGXFSZ, libc::SIG_IGN)] {
        // SAFETY: all-zero bytes are a valid `sigaction`: no flags, empty mask.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = handler;
        action.sa_flags = libc::SA_ONSTACK;
        // SAFETY: `action` is initialised, and its handler calls only what signal handlers may.
        let status = unsafe { libc::sigaction(signal, &action, std::ptr::null_mut()) };
        if status != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Runs in whatever touched the memory: a look, a write that does not wait, the end.
extern "C" fn on_lost_memory(_: libc::c_int) {
    const WHAT: &[u8] =
        b"error io memory of a file is gone (SIGBUS): a region or cache was cut or \
        removed while it was in use, or its disk is full or broken; mend that and start anew\n";
    let mut errors = libc::pollfd { fd: 2, events: libc::POLLOUT, revents: 0 };
    // A log that is not read must not keep the process here.
    // SAFETY: `errors` is one descriptor to be polled, as said.
    if unsafe { libc::poll(&mut errors, 1, 0) } == 1 {
        // SAFETY: all bytes of `WHAT` are readable; a failed write is harmless.
        unsafe { libc::write(2, WHAT.as_ptr().cast(), WHAT.len()) };
    }
    // SAFETY: `_exit` may be called in a signal handler and takes any status.
    unsafe { libc::_exit(1) };
}

/// Runs inside whatever the signal interrupted: an atomic add, one write, nothing that allocates
/// or locks.
extern "C" fn on_signal(signal: libc::c_int) {
    // Relaxed: a number; the first one stays.
    let _ = SHUTDOWN_SIGNAL.compare_exchange(0, signal, Ordering::Relaxed, Ordering::Relaxed);
    // Relaxed: a count; a thread that sleeps is woken by the write below.
    let before = SHUTDOWN_SIGNALS.fetch_add(1, Ordering::Relaxed);
    if before >= SHUTDOWN_SIGNALS_PATIENT {
        // SAFETY: `_exit` may be called in a signal handler and takes any status.
        unsafe { libc::_exit(128 + signal) };
    }
    // Acquire: pairs with the Release in process.rs::install_handlers.
    let fd = SHUTDOWN_FD.load(Ordering::Acquire);
    // SAFETY: the C library gives every thread a valid address of its error number.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above; the interrupted code must find its error number unchanged.
    let saved = unsafe { errno.read() };
    let one = 1u64;
    // SAFETY: `one` is 8 readable bytes; a failed write is harmless, the flag is set.
    unsafe { libc::write(fd, std::ptr::from_ref(&one).cast(), 8) };
    // SAFETY: as above.
    unsafe { errno.write(saved) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_time_is_found_behind_any_process_name() {
        let rest = " S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 987654 20 21";
        for name in ["sh", "a b", ") S 1 (", "))", "\u{fe}"] {
            let line = format!("12 ({name}){rest}");
            assert_eq!(start_time_in(line.as_bytes()), Some(987_654), "{name}");
        }
        let mut raw = b"12 (\xff\xfe)".to_vec();
        raw.extend_from_slice(rest.as_bytes());
        assert_eq!(start_time_in(&raw), Some(987_654));
    }

    #[test]
    fn a_stat_line_without_a_start_time_is_refused() {
        for line in [
            "",
            "12",
            "12 (sh",
            "12 (sh) S 1 2",
            "12 (sh) S 1 2 3 4 5 6 7 8 9 10 11 12 \
                      13 14 15 16 17 18 x",
        ] {
            assert_eq!(start_time_in(line.as_bytes()), None, "{line}");
        }
    }

    #[test]
    fn this_process_is_alive_and_its_number_with_another_start_time_is_not() {
        let own = ProcessId::own().unwrap();
        assert!(own.is_alive());
        assert!(!ProcessId { start_time: own.start_time + 1, ..own }.is_alive());
        assert!(!ProcessId { pid: 0, start_time: 0 }.is_alive());
        assert!(!ProcessId { pid: u32::MAX, start_time: 0 }.is_alive());
        let other = ProcessId { start_time: 1 + own.start_time, ..own };
        assert_eq!(ProcessHandle::open_exact(other).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert_eq!(ProcessHandle::open_exact(own).unwrap().id(), own);
    }

    #[test]
    fn random_numbers_differ_and_time_goes_forward() {
        assert_ne!(random_u64().unwrap(), random_u64().unwrap());
        let mut bytes = [0; 300];
        random_bytes(&mut bytes).unwrap();
        assert!(bytes.iter().any(|byte| *byte != 0));
        let first = monotonic_ns();
        assert!(monotonic_ns() >= first);
    }

    #[test]
    fn the_boot_id_is_the_same_twice_and_names_the_network_namespace() {
        let id = boot_id().unwrap();
        assert_eq!(id, boot_id().unwrap());
        let (boot, namespace) = id.split_once('/').unwrap();
        assert_eq!(boot.len(), 36);
        assert!(namespace.parse::<u64>().unwrap() > 0);
    }

    #[test]
    fn a_thread_can_be_pinned_to_an_allowed_core_and_to_no_other() {
        std::thread::spawn(|| {
            let cores = allowed_cores().unwrap();
            let core = *cores.last().unwrap();
            pin_to_core(core).unwrap();
            assert_eq!(allowed_cores().unwrap(), [core]);
            assert!(pin_to_core(CpuSet::MAX_CPU).is_err());
            assert!(pin_to_core(CpuSet::MAX_CPU - 1).is_err());
        })
        .join()
        .unwrap();
    }
}
