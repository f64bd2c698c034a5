//! The master as a process: the engine, a disk that keeps what was stored, and the links of
//! daemons and clients to it.

use super::Cluster;
use super::kernel::{ConnId, Ctx, Input, Message};
use crate::time::Ps;
use rackpool_core::Result;
use rackpool_core::master::{ConnId as PeerConn, Loader, Master, State, StateWrite, Table};
use rackpool_core::runtime::master_link::{self, Advance};
use rackpool_core::wire::{MasterAnswer, MasterCall, MasterReply};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::ops::Deref;
use std::rc::Rc;

/// What the master stored: it outlives the process.
#[derive(Default)]
pub struct Disk(BTreeMap<(Table, Vec<u8>), Vec<u8>>);

impl Disk {
    fn store(&mut self, writes: Vec<StateWrite>) {
        for StateWrite { table, key, value } in writes {
            match value {
                Some(value) => self.0.insert((table, key), value),
                None => self.0.remove(&(table, key)),
            };
        }
    }

    /// Keys and values, without what a store adds.
    pub fn bytes(&self) -> u64 {
        self.0.iter().map(|((_, key), value)| (key.len() + value.len()) as u64).sum()
    }

    /// The state, as a master finds it at its start.
    pub fn load(&self) -> Option<State> {
        if self.0.is_empty() {
            return None;
        }
        let mut loader = Loader::default();
        for table in Table::ALL {
            let from = (table, Vec::new());
            for ((of, key), value) in self.0.range(from..).take_while(|((of, _), _)| *of == table) {
                loader.insert(*of, key, value).expect("the disk keeps what was stored");
            }
        }
        Some(loader.finish().expect("the disk keeps what was stored"))
    }
}

pub async fn main(ctx: Ctx, cluster: Rc<Cluster>) {
    let stored = cluster.disk.borrow().load();
    let mut state = match stored {
        Some(state) => state,
        None => {
            let (state, writes) = State::create([7, cluster.seed]);
            cluster.disk.borrow_mut().store(writes);
            state
        }
    };
    let write = state.begin_term();
    cluster.disk.borrow_mut().store(vec![write]);
    let config = cluster.master_config();
    let mut master = Master::with_probe(state, config, ctx.clock_ns(), cluster.hooks.clone());
    let costs = cluster.costs.clone();
    let mut out = Vec::new();
    let mut tick_at = ctx.now();
    loop {
        let mut input = ctx.recv(Some(tick_at)).await;
        while let Some(one) = input {
            match one {
                Input::Message(ConnId(conn), message) => {
                    let Message::Call(request) = *message else { unreachable!("only calls come") };
                    ctx.cpu.charge(costs.master_request);
                    cluster.count_master_call(&request.call);
                    let conn = PeerConn(u64::from(conn));
                    master.on_call(ctx.clock_ns(), conn, request, &mut out);
                }
                Input::Closed(ConnId(conn)) => master.on_closed(PeerConn(u64::from(conn))),
                _ => {}
            }
            // A turn takes what is there, but no more than a batch.
            let more = !master.batch_is_full() && ctx.has_input();
            input = if more { ctx.recv(None).await } else { None };
        }
        // A pause of the master expires no peer that has spoken meanwhile.
        if ctx.now() >= tick_at && !ctx.has_input() {
            master.tick(ctx.clock_ns(), &mut out);
            tick_at = ctx.now() + Ps::ms(50);
        }
        let store = async |writes| {
            // The disk takes its time; a crash before its end loses the batch, unanswered.
            ctx.sleep(costs.disk_commit).await;
            cluster.disk.borrow_mut().store(writes);
            Ok::<_, Infallible>(())
        };
        let Ok(_) = master.commit(store, &mut out).await;
        for notice in master.take_notices() {
            ctx.kernel.say(|| format!("master: {notice:?}"));
        }
        for (PeerConn(conn), reply) in out.drain(..) {
            cluster.count_rack_answer(&reply);
            ctx.send(ConnId(conn as u32), Message::Answer(reply));
        }
    }
}

/// A link to the master over a connection of virtual time.
pub struct MasterLink {
    link: master_link::MasterLink,
    conn: Option<ConnId>,
    retry_at: Ps,
}

/// What it knows, and what it refuses.
impl Deref for MasterLink {
    type Target = master_link::MasterLink;

    fn deref(&self) -> &Self::Target {
        &self.link
    }
}

impl MasterLink {
    /// A link that says `join` first.
    pub fn new(join: MasterCall) -> MasterLink {
        let mut link = master_link::MasterLink::new(vec!["master".into()]);
        link.join = Some(join);
        MasterLink { link, conn: None, retry_at: Ps::ZERO }
    }

    /// When [`MasterLink::connect`] has something to do.
    pub fn due(&self) -> Option<Ps> {
        self.conn.is_none().then_some(self.retry_at)
    }

    /// Connects if it is time.
    pub fn connect(&mut self, ctx: &Ctx, cluster: &Cluster) {
        if self.conn.is_some() || ctx.now() < self.retry_at {
            return;
        }
        let conn = ctx.connect(cluster.master.get());
        self.conn = Some(conn);
        self.link.on_open(ctx.now().as_ns());
        self.link.connected().for_each(|request| ctx.send(conn, Message::Call(request)));
    }

    /// Sends a call; its number.
    pub fn send(&mut self, ctx: &Ctx, call: MasterCall) -> Option<u64> {
        let request = self.link.send(ctx.now().as_ns(), call).ok()?;
        let id = request.id;
        ctx.send(self.conn?, Message::Call(request));
        Some(id)
    }

    /// Whether a connection is this link's.
    pub fn owns(&self, conn: ConnId) -> bool {
        self.conn == Some(conn)
    }

    /// Closes the connection, if there is one.
    pub fn close(&mut self, ctx: &Ctx) {
        if let Some(conn) = self.conn.take() {
            ctx.close(conn);
        }
    }

    pub fn on_closed(&mut self, ctx: &Ctx) {
        self.conn = None;
        self.retry_at = ctx.now() + Ps::ns(self.link.on_closed(ctx.now().as_ns(), true));
        // Calls under way are the caller's, which sees the same end.
        drop(self.link.take_replies());
    }

    fn on_message(&mut self, ctx: &Ctx, reply: MasterReply) {
        if !self.link.on_reply(reply) {
            self.close(ctx);
            self.on_closed(ctx);
        }
    }

    /// Takes an answer; `None` if it was to hello or the join.
    pub fn on_answer(&mut self, ctx: &Ctx, reply: MasterReply) -> Option<MasterReply> {
        self.on_message(ctx, reply);
        self.link.take_replies().pop()
    }

    /// Takes what comes next, for a process that has no other connection.
    pub async fn next(&mut self, ctx: &Ctx, until: Ps) {
        match ctx.recv(Some(self.due().unwrap_or(until).min(until))).await {
            Some(Input::Message(_, message)) => {
                if let Message::Answer(reply) = *message {
                    self.on_message(ctx, reply);
                }
            }
            Some(Input::Closed(conn)) if self.owns(conn) => self.on_closed(ctx),
            _ => {}
        }
    }

    /// Makes a call of such a process; the answer, if it comes in time.
    pub async fn call(
        &mut self,
        ctx: &Ctx,
        cluster: &Cluster,
        call: MasterCall,
        until: Ps,
    ) -> Option<Result<MasterAnswer>> {
        let mut call = self.link.begin(call);
        while ctx.now() < until {
            self.connect(ctx, cluster);
            match self.link.advance(ctx.now().as_ns(), &mut call) {
                Advance::Send(request) => {
                    ctx.send(self.conn.expect("it is up"), Message::Call(request));
                }
                Advance::Answered(answer) => return Some(answer),
                Advance::Waits => {}
            }
            self.next(ctx, until).await;
        }
        None
    }
}
