//! Sleeping and waking: [`WakeEvent`] wakes a poll loop from other threads of its process,
//! [`Poller`] waits for many descriptors at once.
//!
//! In: descriptors with a token each. Out: which tokens are ready. A poll loop owns its
//! `Poller`; a `WakeEvent` is shared by all threads that may wake it. It never leaves its process:
//! a process that has an eventfd can make it blocking, fill it, or take its count. Other processes
//! wake by a word on a control connection.
//!
//! Ordering rule: the waking thread stores its work first and notifies second; the sleeping thread
//! drains the event first and looks for work second. The kernel's counter orders the two, so no
//! wake-up is lost. Readiness is level-triggered: what is not taken is reported again, but for
//! [`Interest::Edges`].
//!
//! Source: DESIGN §3 (adaptive waiting).

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, epoll, eventfd, poll};
use rustix::io::Errno;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// A counter in the kernel that wakes any thread that waits for its descriptor.
#[derive(Debug)]
pub struct WakeEvent {
    fd: OwnedFd,
}

impl WakeEvent {
    /// A new event, not notified. Its descriptor does not survive `exec`.
    ///
    /// # Errors
    /// If no descriptor is left.
    pub fn new() -> io::Result<Self> {
        Ok(Self { fd: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)? })
    }

    /// Wakes the waiting thread, or makes its next wait return at once. Never blocks; many
    /// notifications before one drain count as one.
    pub fn notify(&self) {
        // The only failure: a full counter, which is notified anyway.
        let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
    }

    /// Takes all notifications back; how many there were, 0 if none. Never blocks.
    pub fn drain(&self) -> u64 {
        let mut count = [0; 8];
        match rustix::io::read(&self.fd, &mut count) {
            Ok(8) => u64::from_ne_bytes(count),
            _ => 0,
        }
    }

    /// A second handle on the same event.
    ///
    /// # Errors
    /// If no descriptor is left.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self { fd: self.fd.try_clone()? })
    }
}

impl AsFd for WakeEvent {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// What to wait for on a descriptor. Its end is always reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    /// Its end alone.
    Nothing,
    /// Something to read, a connection to accept.
    Read,
    Write,
    ReadWrite,
    /// Both, each reported once when it comes about (edge-triggered): something to read, room to
    /// write where there was none. Descriptors are reported in the order in which they became
    /// ready; level-triggered, the one reported last comes again before those that became ready
    /// meanwhile. For a caller that reads until a read brings less than was asked for, and writes
    /// until there is no room; a caller that leaves something to read, or sees
    /// [`Readiness::ended`], asks for [`Interest::Read`] again.
    Edges,
}

impl Interest {
    fn flags(self) -> epoll::EventFlags {
        let read = epoll::EventFlags::IN | epoll::EventFlags::RDHUP;
        match self {
            Interest::Nothing => epoll::EventFlags::empty(),
            Interest::Read => read,
            Interest::Write => epoll::EventFlags::OUT,
            Interest::ReadWrite => read | epoll::EventFlags::OUT,
            Interest::Edges => read | epoll::EventFlags::OUT | epoll::EventFlags::ET,
        }
    }
}

/// What happened on a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Readiness {
    /// The token that the descriptor was added with.
    pub token: u64,
    /// A read would not block: there is data, or the end.
    pub readable: bool,
    /// A write would not block.
    pub writable: bool,
    /// Nothing more comes behind what there is to read.
    pub ended: bool,
    /// The other side closed both directions, or the descriptor failed.
    pub closed: bool,
}

/// The most descriptors that one wait reports as ready; the others come with the next.
const READY_MAX: usize = 128;

/// Waits for many descriptors. A descriptor is removed before it is closed: the kernel keeps an
/// entry for as long as any copy of the descriptor is open, in any process.
pub struct Poller {
    epoll: OwnedFd,
}

impl Poller {
    /// A poller of nothing.
    ///
    /// # Errors
    /// If no descriptor is left.
    pub fn new() -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        Ok(Self { epoll })
    }

    /// Waits for `fd` from now on and reports it as `token`.
    ///
    /// # Errors
    /// `AlreadyExists` if it was added before; if it cannot be waited for, as a regular file.
    pub fn add(&self, fd: impl AsFd, token: u64, interest: Interest) -> io::Result<()> {
        let data = epoll::EventData::new_u64(token);
        Ok(epoll::add(&self.epoll, fd, data, interest.flags())?)
    }

    /// Changes token and interest of a descriptor.
    ///
    /// # Errors
    /// `NotFound` if it was not added.
    pub fn modify(&self, fd: impl AsFd, token: u64, interest: Interest) -> io::Result<()> {
        let data = epoll::EventData::new_u64(token);
        Ok(epoll::modify(&self.epoll, fd, data, interest.flags())?)
    }

    /// Waits for it no more.
    ///
    /// # Errors
    /// `NotFound` if it was not added.
    pub fn remove(&self, fd: impl AsFd) -> io::Result<()> {
        Ok(epoll::delete(&self.epoll, fd)?)
    }

    /// Waits until something is ready or `timeout` is over (`None`: for as long as it takes,
    /// zero: not at all), and replaces `events` by what is. A signal ends the wait early with
    /// nothing. Returns how many are ready.
    ///
    /// # Errors
    /// Only if the kernel is out of memory.
    pub fn wait(
        &self,
        timeout: Option<Duration>,
        events: &mut Vec<Readiness>,
    ) -> io::Result<usize> {
        events.clear();
        let timeout = timeout.map(|timeout| Timespec {
            tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(timeout.subsec_nanos()),
        });
        let mut space = [MaybeUninit::uninit(); READY_MAX];
        let ready = match epoll::wait(&self.epoll, &mut space, timeout.as_ref()) {
            Ok((ready, _)) => ready,
            Err(Errno::INTR) => return Ok(0),
            Err(error) => return Err(error.into()),
        };
        events.extend(ready.iter().map(readiness_of));
        Ok(events.len())
    }

    /// Whether a wait would find something ready. Takes nothing: what [`Interest::Edges`] reports
    /// once is still to be reported.
    #[must_use]
    pub fn has_ready(&self) -> bool {
        let mut polled = [PollFd::new(&self.epoll, PollFlags::IN)];
        poll(&mut polled, Some(&Timespec::default())).is_ok_and(|count| count > 0)
    }
}

impl std::fmt::Debug for Poller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Poller").field("epoll", &self.epoll).finish_non_exhaustive()
    }
}

impl AsFd for Poller {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

fn readiness_of(event: &epoll::Event) -> Readiness {
    let flags = event.flags;
    let closed = flags.intersects(epoll::EventFlags::HUP | epoll::EventFlags::ERR);
    let input = epoll::EventFlags::IN | epoll::EventFlags::RDHUP;
    Readiness {
        token: event.data.u64(),
        readable: closed || flags.intersects(input),
        writable: flags.contains(epoll::EventFlags::OUT),
        ended: closed || flags.contains(epoll::EventFlags::RDHUP),
        closed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_notified_event_is_ready_until_it_is_drained() {
        let event = WakeEvent::new().unwrap();
        let poller = Poller::new().unwrap();
        let mut events = Vec::new();
        poller.add(&event, 7, Interest::Read).unwrap();
        assert_eq!(poller.wait(Some(Duration::ZERO), &mut events).unwrap(), 0);
        assert!(!poller.has_ready());
        event.notify();
        event.try_clone().unwrap().notify();
        assert!(poller.has_ready());
        for _ in 0..2 {
            assert_eq!(poller.wait(None, &mut events).unwrap(), 1);
            let (writable, ended, closed) = (false, false, false);
            let expected = Readiness { token: 7, readable: true, writable, ended, closed };
            assert_eq!(events[0], expected);
        }
        assert_eq!(event.drain(), 2);
        assert_eq!(event.drain(), 0);
        assert_eq!(poller.wait(Some(Duration::ZERO), &mut events).unwrap(), 0);
        assert!(events.is_empty());
    }

    #[test]
    fn edges_are_reported_once_each_in_their_order_and_the_end_with_what_is_left() {
        let poller = Poller::new().unwrap();
        let (ours, theirs): (Vec<_>, Vec<_>) = (0..3).map(|_| UnixStream::pair().unwrap()).unzip();
        for (token, stream) in ours.iter().enumerate() {
            poller.add(stream, token as u64, Interest::Edges).unwrap();
        }
        let mut events = Vec::new();
        let mut seen = |count| {
            assert_eq!(poller.wait(Some(Duration::ZERO), &mut events).unwrap(), count);
            events.iter().map(|event| (event.token, event.ended)).collect::<Vec<_>>()
        };
        let say = |index: usize| (&theirs[index]).write_all(b"word").unwrap();
        let hear = |index: usize| (&ours[index]).read_exact(&mut [0; 4]).unwrap();
        // There is room to write.
        assert_eq!(seen(3), [(0, false), (1, false), (2, false)]);
        [0, 1].into_iter().for_each(say);
        assert_eq!(seen(2), [(0, false), (1, false)]);
        assert_eq!(seen(0), []);
        // 2 became ready before the others did again.
        [2, 1, 0].into_iter().for_each(say);
        assert_eq!(seen(3), [(2, false), (1, false), (0, false)]);
        [0, 1, 2, 0, 1].into_iter().for_each(hear);
        // A caller that asks for what was left is told of it.
        say(0);
        assert_eq!(seen(1), [(0, false)]);
        poller.modify(&ours[0], 0, Interest::Read).unwrap();
        for _ in 0..2 {
            assert_eq!(seen(1), [(0, false)]);
        }
        hear(0);
        poller.modify(&ours[0], 0, Interest::Edges).unwrap();
        assert_eq!(seen(1), [(0, false)], "room");
        assert_eq!(seen(0), []);
        say(0);
        theirs[0].shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(seen(1), [(0, true)]);
    }

    #[test]
    fn a_thread_that_sleeps_is_woken_by_another() {
        let event = WakeEvent::new().unwrap();
        let other = event.try_clone().unwrap();
        let poller = Poller::new().unwrap();
        poller.add(&event, 1, Interest::Read).unwrap();
        let waker = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            other.notify();
        });
        let mut events = Vec::new();
        assert_eq!(poller.wait(Some(Duration::from_secs(10)), &mut events).unwrap(), 1);
        waker.join().unwrap();
    }

    #[test]
    fn tokens_change_and_removed_descriptors_are_silent() {
        let event = WakeEvent::new().unwrap();
        let poller = Poller::new().unwrap();
        let mut events = Vec::new();
        assert_eq!(
            poller.modify(&event, 1, Interest::Read).unwrap_err().kind(),
            io::ErrorKind::NotFound
        );
        poller.add(&event, 1, Interest::Read).unwrap();
        assert_eq!(
            poller.add(&event, 2, Interest::Read).unwrap_err().kind(),
            io::ErrorKind::AlreadyExists
        );
        poller.modify(&event, 3, Interest::ReadWrite).unwrap();
        poller.wait(None, &mut events).unwrap();
        assert_eq!((events[0].token, events[0].readable, events[0].writable), (3, false, true));
        poller.remove(&event).unwrap();
        assert_eq!(poller.wait(Some(Duration::ZERO), &mut events).unwrap(), 0);
        assert!(poller.remove(&event).is_err());
    }

    #[test]
    fn a_timeout_ends_a_wait_for_nothing() {
        let poller = Poller::new().unwrap();
        let before = crate::process::monotonic_ns();
        let mut events = Vec::new();
        assert_eq!(poller.wait(Some(Duration::from_millis(30)), &mut events).unwrap(), 0);
        assert!(crate::process::monotonic_ns() - before >= 30_000_000);
    }

    #[test]
    fn more_ready_descriptors_than_one_wait_reports_come_with_the_next() {
        let poller = Poller::new().unwrap();
        let wakes: Vec<_> = (0..READY_MAX + 5).map(|_| WakeEvent::new().unwrap()).collect();
        for (token, event) in wakes.iter().enumerate() {
            event.notify();
            poller.add(event, token as u64, Interest::Read).unwrap();
        }
        let mut events = Vec::new();
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..2 {
            assert_eq!(poller.wait(Some(Duration::ZERO), &mut events).unwrap(), READY_MAX);
            for event in &events {
                seen.insert(event.token);
                wakes[event.token as usize].drain();
            }
            if seen.len() == READY_MAX {
                for event in &wakes[..READY_MAX - 5] {
                    event.notify();
                }
            }
        }
        assert_eq!(seen.len(), wakes.len());
    }
}
