//! The transport to a server of the same host: memory that both map.
//!
//! Nothing is lost here; a reminder only repeats a wake-up that another client may not have sent
//! because it died.

use super::error::{Error, Result, io_error};
use super::geometry::Geometry;
use super::handshake::{FDS, Hello, Welcome};
use super::message::Head;
use super::pair;
use super::slot;
use super::transport::{Lane, Transport, WELCOME_WITHIN};
use rackpool_core::seam::Mem;
use rackpool_fabric::control::{ControlConn, Drained, Received};
use rackpool_mem::event::{Interest, Poller, Readiness};
use rackpool_mem::process::monotonic_ns;
use rackpool_mem::ring::bitmap::Bitmap;
use rackpool_mem::ring::watch;
use rackpool_mem::window::{Access, MapOptions, Window};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;
use zerocopy::IntoBytes;

const CONN: u64 = 0;

/// Memory shared with the server.
pub struct ShmTransport {
    // Dropped before the connection: a client unmaps before it closes.
    memory: Window,
    slots: Vec<Window>,
    apart: Vec<Window>,
    bells: Vec<Bitmap>,
    number: u32,
    poller: Poller,
    conn: ControlConn,
}

impl ShmTransport {
    /// Connects; the sizes and the seed of the hash that says which thread a key belongs to.
    pub(super) fn connect(name: &str, windows: u32) -> Result<(ShmTransport, Geometry, u64)> {
        let conn = ControlConn::connect(name)?;
        conn.check_peer()?;
        conn.send(Hello::new(windows).as_bytes(), &[])?;
        let mut buffer = [0; 256];
        let (bytes, fds) = await_welcome(&conn, &mut buffer)?;
        let (welcome, geometry) = Welcome::read(&buffer[..bytes], windows)?;
        let Ok::<[_; FDS], _>([memory, bell]) = fds.try_into() else {
            return Err(Error::Corrupt { what: "its descriptors" });
        };
        let map = |fd: &OwnedFd, bytes| {
            let options = MapOptions { populate: true, ..MapOptions::default() };
            Window::map(fd.as_fd(), bytes, Access::ReadWrite, options)
                .map_err(io_error("mapping the server's memory"))
        };
        let memory = map(&memory, pair::pair_bytes(&geometry))?;
        let bell = map(&bell, pair::bell_bytes(geometry.servers, welcome.clients))?;
        let poller = Poller::new().map_err(io_error("waiting"))?;
        poller.add(&conn, CONN, Interest::Read).map_err(io_error("waiting"))?;
        let servers = 0..geometry.servers;
        let near = ShmTransport {
            slots: servers.clone().map(|s| pair::slots(&memory, &geometry, s)).collect(),
            apart: servers.clone().map(|s| pair::apart(&memory, &geometry, s)).collect(),
            bells: servers.map(|s| pair::bitmap(&bell, s, welcome.clients)).collect(),
            memory,
            number: welcome.client,
            poller,
            conn,
        };
        Ok((near, geometry, welcome.seed))
    }
}

impl Transport for ShmTransport {
    const POLLS_MAX: u32 = 4096;
    // A look at the clock takes as long as some polls.
    const POLLS_PER_CLOCK: u32 = 256;
    const LOOKS_EAGER: u32 = 64;

    #[inline(always)]
    fn publish(&mut self, server: u32, at: u64, head: &Head, key: &[u8], value: &[u8]) {
        slot::publish_parts(&self.slots[server as usize], at, head, key, value);
    }

    #[inline]
    fn ring(&mut self, server: u32, _: &Lane) -> Result<()> {
        if !watch::is_watched(&self.memory, pair::watch_at(server)) {
            pair::ring(&self.bells[server as usize], self.number);
        }
        Ok(())
    }

    /// Rings whether the server watches or not.
    fn remind(&mut self, server: u32, _: &Lane) -> Result<()> {
        pair::ring(&self.bells[server as usize], self.number);
        Ok(())
    }

    #[inline(always)]
    fn pump(&mut self, _: &[Lane]) -> Result<()> {
        Ok(())
    }

    fn now_ns(&self) -> u64 {
        monotonic_ns()
    }

    #[inline]
    fn replies(&self, server: u32) -> &Window {
        &self.slots[server as usize]
    }

    #[inline]
    fn apart(&self, server: u32) -> Option<&Window> {
        Some(&self.apart[server as usize])
    }

    fn is_gone(&mut self) -> bool {
        self.conn.is_closed()
    }

    fn sleep(&mut self, timeout: Duration, is_ready: impl Fn(&ShmTransport) -> bool) -> Result<()> {
        self.memory.store(pair::SLEEPING, 1);
        // Pairs with the fence in acceptor.rs::settle: one of the two sees the other.
        self.memory.fence();
        let mut events: Vec<Readiness> = Vec::new();
        if !is_ready(self) {
            let waited = self.poller.wait(Some(timeout), &mut events);
            waited.map_err(io_error("waiting"))?;
        }
        self.memory.store(pair::SLEEPING, 0);
        if self.conn.drain() != Drained::Open && !is_ready(self) {
            return Err(Error::Gone);
        }
        Ok(())
    }
}

fn await_welcome(conn: &ControlConn, buffer: &mut [u8]) -> Result<(usize, Vec<OwnedFd>)> {
    let start_ns = monotonic_ns();
    loop {
        let waited = Duration::from_nanos(monotonic_ns() - start_ns);
        let Some(left) = WELCOME_WITHIN.checked_sub(waited) else {
            return Err(Error::Silent { waited_ms: waited.as_millis() as u64, reminders: 0 });
        };
        match conn.recv_timeout(buffer, left)? {
            Received::Message { bytes, fds } => return Ok((bytes, fds)),
            Received::Nothing => {}
            Received::Closed => return Err(Error::Gone),
        }
    }
}
