//! Connections of bytes in order: control sockets and links to the master. What was sent before a
//! close arrives before it; while a cut lasts, everything waits.

use super::{ConnId, HostId, Input, Kernel, ProcessId};
use crate::time::Ps;

pub(super) struct Conn {
    pub(super) ends: [ProcessId; 2],
    pub(super) open: bool,
    /// When the last message of each direction arrives.
    pub(super) last: [Ps; 2],
}

/// After what time the end of a connection is said again.
const END_REPEATED: Ps = Ps::ms(8);

/// How long control messages take.
#[derive(Clone, Copy, Debug)]
pub struct ControlCosts {
    /// Within a host, one way.
    pub local: Ps,
    pub remote: Ps,
    /// A line from one core to another: bells and rings.
    pub line: Ps,
}

impl Kernel {
    /// One way between two hosts for a control message.
    fn control_delay(&self, from: HostId, to: HostId) -> Ps {
        self.about(if from == to { self.costs.local } else { self.costs.remote })
    }

    /// The other end of a connection.
    pub fn other_end(&self, conn: ConnId, me: ProcessId) -> ProcessId {
        let ends = self.conns.borrow()[conn.0 as usize].ends;
        if ends[0] == me { ends[1] } else { ends[0] }
    }

    /// Whether a process was connected to, and so did not open the connection.
    pub fn is_accepted(&self, conn: ConnId, me: ProcessId) -> bool {
        self.conns.borrow()[conn.0 as usize].ends[1] == me
    }

    pub(super) fn connect(&self, from: ProcessId, to: ProcessId, at: Ps) -> ConnId {
        let mut conns = self.conns.borrow_mut();
        let id = ConnId(conns.len() as u32);
        conns.push(Conn { ends: [from, to], open: true, last: [at; 2] });
        drop(conns);
        self.deliver(id, from, at, Input::Opened(id));
        id
    }

    /// Sends an input over a connection, in order.
    pub(super) fn deliver(&self, id: ConnId, from: ProcessId, at: Ps, input: Input) {
        let (to, side, last) = {
            let conns = self.conns.borrow();
            let conn = &conns[id.0 as usize];
            let side = usize::from(conn.ends[0] != from);
            (conn.ends[1 - side], side, conn.last[side])
        };
        let (here, there) = (self.host_of(from), self.host_of(to));
        let held = self.cuts.borrow().get(&(here, there)).copied().unwrap_or(Ps::ZERO);
        let arrival = (at.max(held) + self.control_delay(here, there)).max(last);
        self.conns.borrow_mut()[id.0 as usize].last[side] = arrival;
        self.post(to, arrival, input);
    }

    pub(super) fn close(&self, id: ConnId, from: ProcessId, at: Ps) {
        let was_open = std::mem::take(&mut self.conns.borrow_mut()[id.0 as usize].open);
        if was_open {
            let ends = self.conns.borrow()[id.0 as usize].ends;
            let apart = self.host_of(ends[0]) != self.host_of(ends[1]);
            let ppm = self.ends_lost_ppm.get();
            let lost = apart && ppm != 0 && self.rng.borrow_mut().chance_ppm(ppm);
            let at = if lost { at + END_REPEATED } else { at };
            self.deliver(id, from, at, Input::Closed(id));
        }
    }
}
