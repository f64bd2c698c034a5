//! Control connections: how a client joins a daemon of its host, how it gets the region's
//! descriptors, and how its death is seen.
//!
//! In: a name in the kernel's abstract socket namespace (nothing in the file system, so nothing is
//! left behind by `kill -9`). Out: messages with file descriptors, credentials that the kernel
//! vouches for, and the end of the peer. Packets keep their bounds (`SOCK_SEQPACKET`), every
//! descriptor is non-blocking and does not survive `exec`. The daemon's poll loop owns the
//! listener and one connection a handle; the client library owns the other ends.
//!
//! Ordering rule: **a client unmaps before it closes**. The kernel closes a dead process's
//! descriptors only after its memory mappings are gone or while no thread runs in them any more; so
//! [`Received::Closed`] means that the handle touches nothing any more. An error of a connection
//! that is not closed proves nothing: drop the connection, and give the slot away only when
//! [`rackpool_mem::process::ProcessId::is_alive`] says no.
//!
//! Abstract names have no owner: the connecting side checks which process it reached, the accepting
//! side which one came ([`ControlConn::check_peer`]).
//!
//! Source: DESIGN §2 (sections handed over as descriptors), §3 (liveness), §4.

use rackpool_core::access::AccessList;
use rackpool_core::constants::{CONTROL_BACKLOG, CONTROL_FDS_MAX, MESSAGE_BYTES_MAX};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use std::collections::BTreeSet;
use std::io::{self, IoSlice, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// Longest name of a control socket, bytes: what a socket address holds behind its leading zero.
pub const CONTROL_NAME_BYTES_MAX: usize = 107;

/// What can go wrong with a control connection.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ControlError {
    /// The name cannot be a socket's. Do not retry.
    #[error(
        "control socket name of {bytes} bytes: 1 to {CONTROL_NAME_BYTES_MAX} bytes without a \
             zero byte are possible, such as rackpool/pool0/rack0"
    )]
    BadName { bytes: usize },
    /// Another process serves this name. Stop it, or choose another name.
    #[error(
        "control socket {name} is served by another process: stop that daemon, or start \
             this one for another rack"
    )]
    NameInUse { name: String },
    /// No process serves this name. Retry when the daemon is up.
    #[error("control socket {name}: no daemon serves it on this host")]
    NobodyListens { name: String },
    /// Too many connections wait to be accepted, or the peer does not read. Retry after a pause.
    #[error("{what} is full; retry after a pause")]
    Busy { what: &'static str },
    /// The peer closed. Do not retry on this connection.
    #[error("the peer closed the control connection")]
    Closed,
    /// Longer than a message can be; nothing was sent. Do not retry.
    #[error(
        "a control message of {bytes} bytes and {fds} descriptors: 1 to {MESSAGE_BYTES_MAX} \
             bytes and at most {CONTROL_FDS_MAX} descriptors fit"
    )]
    TooLong { bytes: usize, fds: usize },
    /// The peer sent what no message is. Close the connection.
    #[error("the peer broke the control protocol: {reason}")]
    Protocol { reason: &'static str },
    /// The peer runs as another user. Do not retry.
    #[error(
        "the peer (process {pid}) runs as user {uid}, this process as user {own_uid}: run \
             both as the same user"
    )]
    ForeignUser {
        /// Its process id, 0 if it is not visible from here.
        pid: u32,
        uid: u32,
        own_uid: u32,
    },
    /// A system call failed, most often because descriptors or kernel memory ran out.
    #[error("control socket: {operation}: {source}")]
    Io { operation: &'static str, source: io::Error },
}

/// Result of a control connection.
pub type Result<T, E = ControlError> = std::result::Result<T, E>;

fn failed(operation: &'static str) -> impl FnOnce(Errno) -> ControlError {
    move |errno| ControlError::Io { operation, source: errno.into() }
}

/// The process at the other end, as the kernel recorded it when the connection was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerCredentials {
    /// Process id; 0 if the peer lives in a process namespace that is not visible from here.
    pub pid: u32,
    pub uid: u32,
    pub gid: u32,
}

/// Users that this process deals with: its own user, root, and `users`.
pub fn access(users: impl IntoIterator<Item = u32>) -> AccessList {
    AccessList::new(rustix::process::geteuid().as_raw(), users)
}

/// A name that clients connect to.
#[derive(Debug)]
pub struct ControlListener {
    fd: OwnedFd,
}

impl ControlListener {
    /// Serves `name` in the abstract namespace. The name is free again when the listener is
    /// dropped or its process dies.
    ///
    /// # Errors
    /// [`ControlError::NameInUse`], [`ControlError::BadName`], [`ControlError::Io`].
    pub fn bind(name: &str) -> Result<Self> {
        let address = address_of(name)?;
        let fd = new_socket()?;
        match rustix::net::bind(&fd, &address) {
            Err(Errno::ADDRINUSE) => Err(ControlError::NameInUse { name: name.to_owned() }),
            other => other.map_err(failed("bind")),
        }?;
        rustix::net::listen(&fd, CONTROL_BACKLOG).map_err(failed("listen"))?;
        Ok(Self { fd })
    }

    /// The next connection that waits; `None` if none does. Does not block. The peer is not
    /// checked yet: call [`ControlConn::check_peer`].
    ///
    /// # Errors
    /// [`ControlError::Io`] if no descriptor is left; the connection keeps waiting.
    pub fn accept(&self) -> Result<Option<ControlConn>> {
        match rustix::net::accept_with(&self.fd, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(fd) => Ok(Some(ControlConn { fd })),
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => Ok(None),
            Err(errno) => Err(failed("accept")(errno)),
        }
    }
}

impl AsFd for ControlListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// What [`ControlConn::recv`] found.
#[derive(Debug)]
pub enum Received {
    /// A message of `bytes` bytes at the start of the buffer, and what came with it.
    Message {
        /// Its length; never 0.
        bytes: usize,
        /// Its descriptors, none of which survives `exec`.
        fds: Vec<OwnedFd>,
    },
    Nothing,
    /// The peer closed or died, and all its messages have been taken.
    Closed,
}

/// What [`ControlConn::drain`] found behind the notifications.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drained {
    Open,
    /// The peer closed or died.
    Closed,
    /// The peer said what is no notification, or closed one direction. It may be alive: drop the
    /// connection, and see the module for what the peer holds.
    Broken,
}

/// A message that only wakes.
const NOTICE: [u8; 1] = [1];
/// Messages that one call of [`ControlConn::drain`] takes.
const NOTICES_MAX: usize = 16;

/// One end of a control connection.
#[derive(Debug)]
pub struct ControlConn {
    fd: OwnedFd,
}

impl ControlConn {
    /// Connects to a listener of this host. Does not block. The process that serves the name is not
    /// checked yet: call [`ControlConn::check_peer`] before anything is believed.
    ///
    /// # Errors
    /// [`ControlError::NobodyListens`], [`ControlError::Busy`], [`ControlError::BadName`],
    /// [`ControlError::Io`].
    pub fn connect(name: &str) -> Result<Self> {
        let address = address_of(name)?;
        let fd = new_socket()?;
        match rustix::net::connect(&fd, &address) {
            Ok(()) => Ok(Self { fd }),
            Err(Errno::CONNREFUSED) => Err(ControlError::NobodyListens { name: name.to_owned() }),
            Err(Errno::AGAIN) => Err(ControlError::Busy { what: "the listener's backlog" }),
            Err(errno) => Err(failed("connect")(errno)),
        }
    }

    /// Two ends of a connection within one process, for in-process clusters.
    ///
    /// # Errors
    /// [`ControlError::Io`].
    pub fn pair() -> Result<(Self, Self)> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
            .map(|(one, other)| (Self { fd: one }, Self { fd: other }))
            .map_err(failed("socketpair"))
    }

    /// Sends one message with copies of descriptors, whole or not at all. Does not block.
    ///
    /// # Errors
    /// [`ControlError::Busy`] if the peer does not read; [`ControlError::Closed`];
    /// [`ControlError::TooLong`]; [`ControlError::Io`].
    pub fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<()> {
        let fits = (1..=MESSAGE_BYTES_MAX as usize).contains(&bytes.len());
        if !fits || fds.len() > CONTROL_FDS_MAX {
            return Err(ControlError::TooLong { bytes: bytes.len(), fds: fds.len() });
        }
        let mut space = [MaybeUninit::uninit(); ANCILLARY_BYTES];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            let pushed = control.push(SendAncillaryMessage::ScmRights(fds));
            assert!(pushed, "the buffer is made for CONTROL_FDS_MAX descriptors");
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        match rustix::net::sendmsg(&self.fd, &[IoSlice::new(bytes)], &mut control, flags) {
            // A packet is never sent in part.
            Ok(_) => Ok(()),
            Err(Errno::AGAIN | Errno::NOBUFS | Errno::INTR) => {
                Err(ControlError::Busy { what: "the peer's receive queue" })
            }
            Err(Errno::TOOMANYREFS) => {
                Err(ControlError::Busy { what: "the table of descriptors in flight" })
            }
            Err(Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN) => Err(ControlError::Closed),
            Err(errno) => Err(failed("sendmsg")(errno)),
        }
    }

    /// Takes the next message. Does not block.
    ///
    /// # Errors
    /// [`ControlError::Protocol`] if the message does not fit into `buf`, carries more
    /// descriptors than [`CONTROL_FDS_MAX`] or is empty: its descriptors are closed and the
    /// connection should be. [`ControlError::Io`].
    pub fn recv(&self, buf: &mut [u8]) -> Result<Received> {
        let mut space = [MaybeUninit::uninit(); ANCILLARY_BYTES];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut slices = [IoSliceMut::new(buf)];
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let message = match rustix::net::recvmsg(&self.fd, &mut slices, &mut control, flags) {
            Ok(message) => message,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(Received::Nothing),
            // The peer died without having taken all that we sent.
            Err(Errno::CONNRESET) => return Ok(Received::Closed),
            Err(errno) => return Err(failed("recvmsg")(errno)),
        };
        let mut fds = Vec::new();
        for part in control.drain() {
            if let RecvAncillaryMessage::ScmRights(received) = part {
                fds.extend(received);
            }
        }
        if message.flags.contains(ReturnFlags::CTRUNC) {
            // Also when this process has no descriptor left for them.
            let reason = "descriptors were lost on the way: is the limit of open files (ulimit -n) \
                          reached?";
            return Err(ControlError::Protocol { reason });
        }
        if fds.len() > CONTROL_FDS_MAX {
            // The buffer's alignment has room for one more.
            return Err(ControlError::Protocol { reason: "more descriptors than a message has" });
        }
        if message.flags.contains(ReturnFlags::TRUNC) {
            return Err(ControlError::Protocol { reason: "a message longer than the buffer" });
        }
        match message.bytes {
            0 if self.is_closed() => Ok(Received::Closed),
            0 => Err(ControlError::Protocol { reason: "an empty message or half a close" }),
            bytes => Ok(Received::Message { bytes, fds }),
        }
    }

    /// As [`ControlConn::recv`], but waits up to `timeout` for a message or the end.
    /// [`Received::Nothing`] after that time, or earlier if a signal came. Blocks.
    ///
    /// # Errors
    /// As [`ControlConn::recv`].
    pub fn recv_timeout(&self, buf: &mut [u8], timeout: Duration) -> Result<Received> {
        self.poll_for(PollFlags::IN, timeout)?;
        self.recv(buf)
    }

    /// Wakes the peer, which waits for this connection among others. Many before the peer takes
    /// them count as one. Never blocks, whatever the peer did to its end: an eventfd that two
    /// processes share is one file, and either can change its flags and count.
    pub fn notify(&self) {
        // The only failures: a full queue, which is notified anyway, and a peer that is gone.
        let _ = self.send(&NOTICE, &[]);
    }

    /// Takes what [`ControlConn::notify`] sent, as the waiting thread does before it looks for
    /// work; at most so much in one call that others have their turn. Never blocks.
    pub fn drain(&self) -> Drained {
        for _ in 0..NOTICES_MAX {
            match self.recv(&mut [0; NOTICE.len()]) {
                Ok(Received::Message { .. }) => {}
                Ok(Received::Nothing) => break,
                Ok(Received::Closed) => return Drained::Closed,
                Err(_) => return Drained::Broken,
            }
        }
        Drained::Open
    }

    /// Ends it for both sides, also where copies of the descriptor stay open.
    pub fn shutdown(&self) {
        // Not connected any more: as is wanted.
        let _ = rustix::net::shutdown(&self.fd, rustix::net::Shutdown::Both);
    }

    /// A second handle on the same end.
    ///
    /// # Errors
    /// [`ControlError::Io`] if no descriptor is left.
    pub fn try_clone(&self) -> Result<Self> {
        let fd = self.fd.try_clone();
        let failed = |source| ControlError::Io { operation: "dup", source };
        Ok(Self { fd: fd.map_err(failed)? })
    }

    /// Whether the peer closed or died; what it sent before may still wait to be taken. Does not
    /// block. `false` also if that cannot be found out.
    pub fn is_closed(&self) -> bool {
        let end = PollFlags::HUP | PollFlags::ERR;
        self.poll_for(PollFlags::empty(), Duration::ZERO).is_ok_and(|found| found.intersects(end))
    }

    /// The process at the other end: for the accepting side the one that connected, for the
    /// connecting side the one that called `bind`.
    ///
    /// # Errors
    /// [`ControlError::Io`].
    pub fn peer_credentials(&self) -> Result<PeerCredentials> {
        // By libc: a peer in a foreign process namespace has pid 0, which the type that rustix
        // returns cannot hold.
        let mut found = libc::ucred { pid: 0, uid: 0, gid: 0 };
        let mut bytes = size_of::<libc::ucred>() as libc::socklen_t;
        // SAFETY: `found` is writable for `bytes` bytes, which is its size; the descriptor is
        // open as long as `self` lives.
        let status = unsafe {
            libc::getsockopt(
                self.fd.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERCRED,
                std::ptr::from_mut(&mut found).cast(),
                &mut bytes,
            )
        };
        if status != 0 || bytes as usize != size_of::<libc::ucred>() {
            let source = io::Error::last_os_error();
            return Err(ControlError::Io { operation: "peer credentials", source });
        }
        let pid = u32::try_from(found.pid).unwrap_or(0);
        Ok(PeerCredentials { pid, uid: found.uid, gid: found.gid })
    }

    /// The peer's credentials if it is of our own user or root's.
    ///
    /// # Errors
    /// [`ControlError::ForeignUser`]; [`ControlError::Io`].
    pub fn check_peer(&self) -> Result<PeerCredentials> {
        self.check_peer_of(&access([]))
    }

    /// The same of a longer list.
    ///
    /// # Errors
    /// As of [`ControlConn::check_peer`].
    pub fn check_peer_of(&self, access: &AccessList) -> Result<PeerCredentials> {
        let peer = self.peer_credentials()?;
        if !access.admits(peer.uid) {
            let own_uid = access.own();
            return Err(ControlError::ForeignUser { pid: peer.pid, uid: peer.uid, own_uid });
        }
        Ok(peer)
    }

    fn poll_for(&self, flags: PollFlags, timeout: Duration) -> Result<PollFlags> {
        let mut fds = [PollFd::new(&self.fd, flags)];
        let timeout = Timespec {
            tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(timeout.subsec_nanos()),
        };
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) => Ok(fds[0].revents()),
            Err(Errno::INTR) => Ok(PollFlags::empty()),
            Err(errno) => Err(failed("poll")(errno)),
        }
    }
}

impl AsFd for ControlConn {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Hexadecimal digits behind a name, in one that is served instead of it.
const SPARE_DIGITS: usize = 8;
/// How much of the list of sockets is looked through for such names, bytes: some 100,000 sockets.
const SOCKETS_BYTES_MAX: u64 = 16 << 20;

/// A name to serve instead of `name`, which another user has: one that no other process could
/// guess.
///
/// # Errors
/// [`ControlError::Io`] if the kernel has no random numbers.
pub fn spare_name(name: &str) -> Result<String> {
    let random = rackpool_mem::process::random_u64();
    let random = random.map_err(|source| ControlError::Io { operation: "random", source })?;
    Ok(format!("{name}.{:08x}", random as u32))
}

/// Names on this host that [`spare_name`] may have made of `name`, whichever process serves them.
pub fn spare_names_of(name: &str) -> Vec<String> {
    let mut listed = Vec::new();
    let file = std::fs::File::open("/proc/net/unix");
    let read = file.and_then(|file| file.take(SOCKETS_BYTES_MAX).read_to_end(&mut listed));
    // Without the list no spare name is found; the error is then about the name itself.
    drop(read);
    let is_spare = |found: &&str| {
        let digits = found.strip_prefix(name).and_then(|rest| rest.strip_prefix('.'));
        let is_hex = |digits: &str| digits.bytes().all(|digit| digit.is_ascii_hexdigit());
        digits.is_some_and(|digits| digits.len() == SPARE_DIGITS && is_hex(digits))
    };
    let listed = String::from_utf8_lossy(&listed);
    let names = listed.lines().filter_map(|line| Some(line.split_once(" @")?.1)).filter(is_spare);
    // One for each connection, beside the listener.
    let names: BTreeSet<String> = names.map(str::to_owned).collect();
    names.into_iter().collect()
}

const ANCILLARY_BYTES: usize = rustix::cmsg_space!(ScmRights(CONTROL_FDS_MAX));

fn address_of(name: &str) -> Result<SocketAddrUnix> {
    let bytes = name.as_bytes();
    if bytes.is_empty() || bytes.len() > CONTROL_NAME_BYTES_MAX || bytes.contains(&0) {
        return Err(ControlError::BadName { bytes: bytes.len() });
    }
    SocketAddrUnix::new_abstract_name(bytes).map_err(failed("address"))
}

fn new_socket() -> Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
        .map_err(failed("socket"))
}
