//! The master as a process: the engine, a disk that keeps what was stored, and the links of
//! daemons and clients to it.

use super::Cluster;
use super::kernel::{ConnId, Ctx, Input, Message};
use crate::time::Ps;
use rackpool_core::master::{ConnId as PeerConn, Loader, Master, State, StateWrite, Table};
use rackpool_core::wire::{MasterAnswer, MasterCall, MasterReply, MasterRequest, WIRE_VERSION};
use rackpool_core::{Error, Result};
use std::collections::BTreeMap;
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
        let batch = master.take_batch();
        if !batch.is_empty() {
            let writes = master.apply(batch);
            // The disk takes its time; a crash before its end loses the batch, unanswered.
            ctx.sleep(costs.disk_commit).await;
            cluster.disk.borrow_mut().store(writes);
            master.committed(&mut out);
        }
        for notice in master.take_notices() {
            ctx.kernel.say(|| format!("master: {notice:?}"));
        }
        for (PeerConn(conn), reply) in out.drain(..) {
            cluster.count_rack_answer(&reply);
            ctx.send(ConnId(conn as u32), Message::Answer(reply));
        }
    }
}

/// A link to the master: connects again after its end, says what it is, and numbers its calls.
pub struct MasterLink {
    conn: Option<ConnId>,
    join: MasterCall,
    join_id: u64,
    next_id: u64,
    /// The answer to the join.
    pub welcome: Option<MasterAnswer>,
    /// Why the master does not want us.
    pub refused: Option<Error>,
    retry_at: Ps,
    pause: Ps,
}

impl MasterLink {
    /// A link that says `join` first.
    pub fn new(join: MasterCall) -> MasterLink {
        MasterLink {
            conn: None,
            join,
            join_id: 0,
            next_id: 1,
            welcome: None,
            refused: None,
            retry_at: Ps::ZERO,
            pause: Ps::ms(1),
        }
    }

    /// Whether calls can be sent.
    pub fn is_up(&self) -> bool {
        self.conn.is_some() && self.welcome.is_some()
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
        self.welcome = None;
        self.send(ctx, MasterCall::Hello { version: WIRE_VERSION });
        self.join_id = self.send(ctx, self.join.clone()).expect("it was just connected");
    }

    /// Sends a call; its number.
    pub fn send(&mut self, ctx: &Ctx, call: MasterCall) -> Option<u64> {
        let conn = self.conn?;
        let id = self.next_id;
        self.next_id += 1;
        ctx.send(conn, Message::Call(MasterRequest { id, call }));
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
        self.welcome = None;
        self.retry_at = ctx.now() + self.pause;
        self.pause = Ps((self.pause.0 * 2).min(Ps::ms(128).0));
    }

    /// Takes an answer; `None` if it was to the greeting.
    pub fn on_answer(&mut self, ctx: &Ctx, reply: MasterReply) -> Option<MasterReply> {
        if reply.id != self.join_id {
            let greets = matches!(reply.answer, Ok(MasterAnswer::Welcome { .. }));
            return (!greets).then_some(reply);
        }
        match reply.answer {
            Ok(answer) => {
                self.welcome = Some(answer);
                self.refused = None;
                self.pause = Ps::ms(1);
            }
            Err(error) => {
                self.refused = Some(error);
                if let Some(conn) = self.conn {
                    ctx.close(conn);
                }
                self.on_closed(ctx);
            }
        }
        None
    }
}

/// The master said something that does not answer the call.
pub fn unexpected<T>(answer: &MasterAnswer) -> Result<T> {
    let reason = format!("unexpected answer {answer:?}");
    Err(Error::Protocol { peer: "master".into(), reason })
}
