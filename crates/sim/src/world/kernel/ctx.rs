//! What a process can do: wait, send, ring, post work.

use super::{ConnId, Ctx, Input, ProcessId, SEND_ID};
use crate::net::{Connection, EndpointId, Executed};
use crate::time::Ps;
use rackpool_core::seam::{BufId, Exposure, Nanos, PeerId, PostError, Sge, Verb, WorkRequest};
use std::task::Poll;

impl Ctx {
    /// The moment at which this process is.
    pub fn now(&self) -> Ps {
        self.kernel.now.get() + self.cpu.cost()
    }

    /// The host's clock, which the engines are handed.
    pub fn clock_ns(&self) -> Nanos {
        self.kernel.clock_ns(self.host, self.now())
    }

    /// The next input, or `None` when the deadline has come.
    pub async fn recv(&self, deadline: Option<Ps>) -> Option<Input> {
        std::future::poll_fn(|_| {
            let kernel = &self.kernel;
            let index = kernel.processes.borrow_mut()[self.id.0 as usize].inbox.pop_front();
            if let Some(index) = index {
                let input = Some(kernel.inputs.borrow_mut().take(index));
                if let Some(Input::Message(..)) = input {
                    self.cpu.charge(kernel.calls.get().receive);
                }
                return Poll::Ready(input);
            }
            match deadline {
                Some(at) if at <= self.now() => Poll::Ready(None),
                Some(at) => {
                    kernel.run_at(self.id, at);
                    Poll::Pending
                }
                None => Poll::Pending,
            }
        })
        .await
    }

    /// Lets time pass; inputs wait.
    pub async fn sleep(&self, time: Ps) {
        let until = self.now() + time;
        std::future::poll_fn(|_| {
            let is_over = until <= self.now();
            self.kernel.processes.borrow_mut()[self.id.0 as usize].deaf = !is_over;
            if is_over {
                return Poll::Ready(());
            }
            self.kernel.wake_at(self.id, until);
            Poll::Pending
        })
        .await;
    }

    /// In performance mode a process runs ahead of the world by what it has charged since it was
    /// resumed; this lets the world catch up if that is more than `ahead`. In checking mode time
    /// passes in between, and no process is ahead.
    pub async fn sync(&self, ahead: Ps) {
        if self.cpu.cost() <= ahead {
            return;
        }
        let until = self.now();
        std::future::poll_fn(|_| {
            if self.kernel.now.get() >= until {
                return Poll::Ready(());
            }
            self.kernel.wake_at(self.id, until);
            Poll::Pending
        })
        .await;
    }

    /// Hands an input to another process of this host, a line away.
    pub fn ring(&self, to: ProcessId, input: Input) {
        // Setting a bell's bit, waking a sleeper: atomic operations.
        self.cpu.drain();
        if !self.kernel.jitter {
            // The line of a reply is charged where it is loaded; one delay for all keeps order.
            let is_loaded = matches!(input, Input::Ring(_));
            let delay = if is_loaded { Ps::ZERO } else { self.kernel.costs.line };
            return self.kernel.post(to, self.now() + delay, input);
        }
        let mut rings = self.kernel.rings.borrow_mut();
        let last = rings.entry((self.id, to)).or_default();
        *last = (self.now() + self.kernel.line_delay()).max(*last);
        self.kernel.post(to, *last, input);
    }

    /// Connects to a process; whether it listens shows in what comes back.
    pub fn connect(&self, to: ProcessId) -> ConnId {
        self.kernel.connect(self.id, to, self.now())
    }

    /// Whether something waits in the inbox.
    pub fn has_input(&self) -> bool {
        !self.kernel.processes.borrow()[self.id.0 as usize].inbox.is_empty()
    }

    /// Connects an endpoint of this process with another process's.
    pub fn connect_peer(&self, from: EndpointId, to: EndpointId) -> PeerId {
        let now = self.now();
        self.kernel.with_net(|net, wires| net.connect(now, from, to, Connection::Reliable, wires))
    }

    /// Ends a connection of an endpoint.
    pub fn close_peer(&self, endpoint: EndpointId, peer: PeerId) {
        let now = self.now();
        self.kernel.with_net(|net, wires| net.close(now, endpoint, peer, wires));
    }

    /// Posts work under one doorbell.
    pub fn post_work(
        &self,
        endpoint: EndpointId,
        peer: PeerId,
        batch: &[WorkRequest<'_>],
    ) -> Result<(), (usize, PostError)> {
        // The card must find what was stored before.
        self.cpu.drain();
        let costs = self.kernel.calls.get();
        self.cpu.charge(costs.post_request.times(batch.len() as u64));
        let now = self.now();
        let posted = self.kernel.with_net(|net, wires| net.post(now, endpoint, peer, batch, wires));
        self.cpu.charge(costs.post_doorbell);
        posted
    }

    /// Sends a message from a buffer of its own, which [`Ctx::sent`] gives back; the number of its
    /// completion.
    pub fn send_message(
        &self,
        endpoint: EndpointId,
        peer: PeerId,
        message: Vec<u8>,
    ) -> Result<u64, PostError> {
        let bytes = message.len() as u64;
        let buf = self.kernel.register(endpoint, message);
        let local = [Sge { buf, offset: 0, bytes }];
        let id = SEND_ID | u64::from(buf.0);
        let request = WorkRequest { id, verb: Verb::Send, local: &local, signalled: true };
        match self.post_work(endpoint, peer, &[request]) {
            Ok(()) => Ok(id),
            Err((_, error)) => {
                self.kernel.take_buffer(endpoint, buf);
                Err(error)
            }
        }
    }

    /// Writes into a buffer that the other end has exposed, in order with messages; [`Ctx::sent`]
    /// gives the data's buffer back.
    pub fn write_back(
        &self,
        endpoint: EndpointId,
        peer: PeerId,
        to: Exposure,
        data: Vec<u8>,
    ) -> Result<(), PostError> {
        let bytes = data.len() as u64;
        let buf = self.kernel.register(endpoint, data);
        let local = [Sge { buf, offset: 0, bytes }];
        let id = SEND_ID | u64::from(buf.0);
        let work = WorkRequest { id, verb: Verb::Send, local: &local, signalled: true };
        self.cpu.drain();
        let now = self.now();
        let posted = self
            .kernel
            .with_net(|net, wires| net.post_write_back(now, endpoint, peer, to, work, wires));
        if posted.is_err() {
            self.kernel.take_buffer(endpoint, buf);
        }
        posted
    }

    /// Whether a completion was a message's; its buffer is free then.
    pub fn sent(&self, endpoint: EndpointId, id: u64) -> bool {
        let is_send = id & SEND_ID == SEND_ID;
        if is_send {
            let bytes = self.kernel.take_buffer(endpoint, BufId(id as u32));
            self.kernel.recycle(bytes);
        }
        is_send
    }

    /// Answers an operation that was executed.
    pub fn executed(&self, token: u32, result: Executed<'_>) {
        let now = self.now();
        self.kernel.with_net(|net, wires| net.executed(now, token, result, wires));
    }

    /// Sends over a connection; what is sent to a dead process is lost.
    pub fn send(&self, conn: ConnId, message: Vec<u8>) {
        // A system call.
        self.cpu.drain();
        if self.kernel.conns.borrow()[conn.0 as usize].open {
            self.kernel.deliver(conn, self.id, self.now(), Input::Message(conn, message));
        }
        self.cpu.charge(self.kernel.calls.get().send);
    }

    pub fn close(&self, conn: ConnId) {
        self.cpu.drain();
        self.kernel.close(conn, self.id, self.now());
    }
}
