//! Where a server listens: addresses of TCP, and Unix sockets, which have a file for as long as
//! they listen. In: addresses and paths. Out: listeners for the thread that accepts. A file that a
//! killed server has left gives way, if none answers there.

use super::server::{ListenConfig, StartError};
use super::shared::Protocol;
use rustix::fs::{Mode, chmod};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, getsockname, socket_with,
};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Clients that wait to be let in: bursts of them are not sent away; the system knows its own
/// limit.
const WAITING_MAX: i32 = 1024;
/// Rights of a socket's file if nothing else is said: its user's alone.
const SOCKET_MODE: u32 = 0o700;

pub struct Listener {
    protocol: Protocol,
    file: Option<SocketFile>,
    fd: OwnedFd,
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Listener {
    /// The protocol of its clients, and what all of a Unix socket are called, as in Redis.
    pub fn clients(&self) -> (Protocol, Option<String>) {
        let name = self.file.as_ref().map(|file| format!("{}:0", file.path.display()));
        (self.protocol, name)
    }

    fn tcp(protocol: Protocol, addr: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind(addr)?;
        rustix::net::listen(&listener, WAITING_MAX)?;
        listener.set_nonblocking(true)?;
        Ok(Self { protocol, file: None, fd: listener.into() })
    }

    fn unix(protocol: Protocol, path: &Path, mode: u32) -> io::Result<Self> {
        // Clients, and the end, find it from any folder.
        let path = std::path::absolute(path)?;
        let (fd, addr) = (unix_socket()?, SocketAddrUnix::new(path.as_path())?);
        match bind(&fd, &addr) {
            Err(Errno::ADDRINUSE) if is_left_over(&path) => {
                std::fs::remove_file(&path)?;
                bind(&fd, &addr)?;
            }
            bound => bound?,
        }
        let found = std::fs::symlink_metadata(&path)?;
        let file = SocketFile { path, id: (found.dev(), found.ino()) };
        // Before it listens no client is let in.
        chmod(file.path.as_path(), Mode::from_raw_mode(mode))?;
        rustix::net::listen(&fd, WAITING_MAX)?;
        Ok(Self { protocol, file: Some(file), fd })
    }
}

/// The file of a Unix socket; it goes with it.
struct SocketFile {
    path: PathBuf,
    /// Device and number of the file: another one in its place is not ours.
    id: (u64, u64),
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let found = std::fs::symlink_metadata(&self.path);
        if found.is_ok_and(|found| (found.dev(), found.ino()) == self.id) {
            // One that stays gives way to the next server.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn unix_socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?)
}

/// Whether this is the file of a socket at which no server listens any more.
fn is_left_over(path: &Path) -> bool {
    let is_refused = || -> io::Result<bool> {
        let connected = connect(unix_socket()?, &SocketAddrUnix::new(path)?);
        Ok(connected == Err(Errno::CONNREFUSED))
    };
    let found = std::fs::symlink_metadata(path);
    let is_socket = found.is_ok_and(|found| found.file_type().is_socket());
    is_socket && is_refused().unwrap_or(false)
}

/// Refuses a path at which a Unix socket could not be made now.
///
/// # Errors
/// `AddrInUse` if a server listens there, or if it is no socket.
pub fn check_socket(path: &Path) -> io::Result<()> {
    let is_free = !path.try_exists()? || is_left_over(path);
    if is_free { Ok(()) } else { Err(Errno::ADDRINUSE.into()) }
}

/// All listeners of memcached's protocols and of RESP.
///
/// # Errors
/// [`StartError::Io`], with the address or path.
pub fn open(listen: &ListenConfig) -> Result<Vec<Listener>, StartError> {
    let mode = listen.socket_mode.unwrap_or(SOCKET_MODE);
    let mut listeners = Vec::new();
    for (protocol, addr, path) in [
        (Protocol::Memcached, listen.memcached, &listen.memcached_socket),
        (Protocol::Resp, listen.resp, &listen.resp_socket),
    ] {
        let failed = |at: String| {
            move |source| StartError::Io { what: format!("listening at {at}"), source }
        };
        if let Some(addr) = addr {
            let opened = Listener::tcp(protocol, addr);
            listeners.push(opened.map_err(failed(addr.to_string()))?);
        }
        if let Some(path) = path {
            let opened = Listener::unix(protocol, path, mode);
            listeners.push(opened.map_err(failed(path.display().to_string()))?);
        }
    }
    Ok(listeners)
}

/// The address of TCP at which clients of this protocol come in.
pub fn addr_of(listeners: &[Listener], protocol: Protocol) -> Option<SocketAddr> {
    let found = listeners.iter().find(|one| one.protocol == protocol && one.file.is_none())?;
    SocketAddr::try_from(getsockname(found).ok()?).ok()
}

/// The Unix sockets of a server, for those that ask.
#[derive(Clone, Debug, Default)]
pub struct SocketPaths {
    pub memcached: Option<PathBuf>,
    pub resp: Option<PathBuf>,
    /// Rights of their files.
    pub mode: u32,
}

impl SocketPaths {
    pub fn of(listeners: &[Listener], listen: &ListenConfig) -> Self {
        let path = |protocol| {
            let mut found = listeners.iter().filter(|one| one.protocol == protocol);
            found.find_map(|one| one.file.as_ref().map(|file| file.path.clone()))
        };
        let mode = listen.socket_mode.unwrap_or(SOCKET_MODE);
        Self { memcached: path(Protocol::Memcached), resp: path(Protocol::Resp), mode }
    }
}
