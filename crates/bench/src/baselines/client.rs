//! A client: so many GETs, PUTs or ECHOs under way as it has windows. Used by one thread, which
//! submits and polls; nothing happens in between.

use super::error::{Error, Result};
use super::places::{LANE_BYTES, Outgoing, Places, READ_BYTES, now_ns, post, post_bytes};
use super::rings::Rings;
use super::spec::{Carrier, ServerAddress, Spec};
use rackpool_core::addr::Generation;
use rackpool_core::seam::{
    BufId, Fabric, FabricEvent, Mem, PeerId, RemoteAddr, Sge, Verb, WorkRequest, WorkStatus,
};
use rackpool_fabric::shm::ShmEndpoint;
use rackpool_fabric::{Endpoint, LocalBuffers, Target};
use rackpool_mem::window::Window;
use rackpool_sim::repro::herd::baselines::{
    Ack, Get, KeyTable, KvRequest, LANES_MAX, Plan, SLOT_BYTES, System, Then, hash,
};
use rackpool_stats::random::Rng;

/// Polls between two looks whether the server is still there.
const POLLS_PER_LOOK: u32 = 4096;
/// How long nothing may be answered, nanoseconds.
const SILENCE_NS_MAX: u64 = 5_000_000_000;
/// Times that a GET begins again at most.
const REPEATS_MAX: u32 = 100_000;
/// In the numbers of work requests: it is a request, not a READ.
const REQUEST: u64 = 1 << 32;

/// A fabric's end as a client uses it.
pub trait ClientEndpoint: Fabric + LocalBuffers {
    /// Looks for an answer without giving way, before those with.
    const LOOKS_EAGER: u32;

    /// Nothing has come: gives way, or sleeps for a short while, unless the caller polls memory.
    fn idle(&mut self, polls_memory: bool, events: &mut Vec<FabricEvent>);
}

/// What a client has of its connection.
pub(super) struct Ends<E> {
    pub end: E,
    pub peer: PeerId,
    /// The key of the server's page.
    pub key: Generation,
    /// The page that answers are written to.
    pub answers: Window,
    pub is_gone: Box<dyn FnMut() -> bool>,
    /// Kept open: the page is its.
    pub _target: Option<Target>,
}

/// Exact numbers of what was done, since the client was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Counts {
    pub gets: u64,
    /// PUTs and ECHOs that are done.
    pub asked: u64,
    pub reads: u64,
    /// Requests posted, by WRITE or SEND.
    pub requests: u64,
    /// Answers taken, by WRITE or SEND.
    pub answers: u64,
    /// GETs that began again, because a PUT was half done.
    pub repeats: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome<'a> {
    /// The value of a GET; empty if it was emulated.
    Found(&'a [u8]),
    /// The table has no such key.
    Absent,
    Stored,
    Echoed,
}

/// A request that is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done<'a> {
    pub key: u64,
    pub outcome: Outcome<'a>,
    /// How long it took, nanoseconds, until it was seen.
    pub took_ns: u64,
}

/// A client of any carrier.
#[expect(clippy::large_enum_variant, reason = "there are few, and they stay where they are")]
pub enum Client {
    Near(ClientOver<ShmEndpoint<Rings>>),
    /// Over a fabric with a target.
    Far(ClientOver<Endpoint>),
}

/// Calls the same of each.
macro_rules! each {
    ($self:expr, $one:ident => $call:expr) => {
        match $self {
            Client::Near($one) => $call,
            Client::Far($one) => $call,
        }
    };
}

impl Client {
    /// Connects. Blocks for 10 s at most.
    ///
    /// # Errors
    /// [`Error::Gone`] if no such server serves there; [`Error::Silent`],
    /// [`Error::Control`], [`Error::Fabric`], [`Error::Io`], [`Error::Spec`].
    pub fn connect(spec: Spec, address: &ServerAddress) -> Result<Client> {
        match address {
            ServerAddress::Near(name) => ClientOver::connect_near(spec, name).map(Client::Near),
            ServerAddress::Far(addr, carrier) => {
                let carrier: Carrier = *carrier;
                ClientOver::connect_far(spec, *addr, carrier).map(Client::Far)
            }
        }
    }

    /// Begins a GET, or of an ECHO a message without a value. Errors: [`Error::Busy`],
    /// [`Error::Gone`].
    pub fn submit_get(&mut self, key: u64) -> Result<()> {
        each!(self, one => one.submit(key, None))
    }

    /// Begins a PUT, or an ECHO with a value. Errors: [`Error::Busy`], [`Error::Gone`],
    /// [`Error::ValueSize`].
    pub fn submit_put(&mut self, key: u64, value: &[u8]) -> Result<()> {
        each!(self, one => one.submit(key, Some(value)))
    }

    /// Takes what has come, and goes on with what it brought; how many requests are over. Does not
    /// wait. Errors: [`Error::Gone`], [`Error::Silent`], [`Error::Corrupt`], [`Error::Torn`].
    pub fn poll(&mut self, done: impl FnMut(Done<'_>)) -> Result<u64> {
        each!(self, one => one.poll(done))
    }

    /// As [`Client::poll`]; if nothing has come, gives way before the next look.
    pub fn wait(&mut self, done: impl FnMut(Done<'_>)) -> Result<u64> {
        each!(self, one => one.wait(done))
    }

    #[must_use]
    pub fn under_way(&self) -> u32 {
        each!(self, one => one.under_way())
    }

    /// What was done so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        each!(self, one => one.counts)
    }

    /// A GET alone. Blocks for 5 s at most.
    ///
    /// # Errors
    /// As [`Client::submit_get`] and [`Client::poll`].
    pub fn get(&mut self, key: u64, mut take: impl FnMut(Outcome<'_>)) -> Result<()> {
        self.submit_get(key)?;
        while self.under_way() > 0 {
            self.wait(|done| take(done.outcome))?;
        }
        Ok(())
    }

    /// A PUT alone; whether the table has the key. Blocks for 5 s at most.
    ///
    /// # Errors
    /// As [`Client::submit_put`] and [`Client::poll`].
    pub fn put(&mut self, key: u64, value: &[u8]) -> Result<bool> {
        self.submit_put(key, value)?;
        let mut is_stored = false;
        while self.under_way() > 0 {
            self.wait(|done| is_stored = done.outcome == Outcome::Stored)?;
        }
        Ok(is_stored)
    }
}

#[derive(Clone, Default)]
struct Lane {
    is_busy: bool,
    key: u64,
    begun_ns: u64,
    /// The way of a GET.
    get: Option<Get>,
    repeats: u32,
    /// What was asked, as bytes.
    request: Vec<u8>,
}

/// A client over one fabric.
pub struct ClientOver<E> {
    spec: Spec,
    system: System,
    table: Option<KeyTable>,
    places: Places,
    number: u32,
    ends: Ends<E>,
    buf: BufId,
    lanes: Vec<Lane>,
    free: Vec<u8>,
    rng: Rng,
    counts: Counts,
    polls: u32,
    /// When a request was over, or nothing was under way before.
    heard_ns: u64,
    events: Vec<FabricEvent>,
    answer: Vec<u8>,
}

impl<E: ClientEndpoint> ClientOver<E> {
    pub(super) fn over(spec: Spec, number: u32, mut ends: Ends<E>) -> Result<Self> {
        let buf = ends.end.register(vec![0; (LANES_MAX as u64 * LANE_BYTES) as usize])?;
        Ok(ClientOver {
            system: spec.system(),
            table: spec.table().filter(|_| spec.is_full),
            places: Places::of(&spec),
            number,
            ends,
            buf,
            lanes: vec![Lane::default(); spec.window as usize],
            free: (0..spec.window as u8).rev().collect(),
            rng: Rng::for_party(0x6261_7365, number.into()),
            counts: Counts::default(),
            polls: 0,
            heard_ns: now_ns(),
            events: Vec::new(),
            answer: Vec::new(),
            spec,
        })
    }

    fn under_way(&self) -> u32 {
        self.spec.window - self.free.len() as u32
    }

    fn submit(&mut self, key: u64, value: Option<&[u8]>) -> Result<()> {
        let needed_bytes = self.spec.value_bytes;
        if let Some(bytes) = value.map(|value| value.len() as u64)
            && bytes != needed_bytes
        {
            return Err(Error::ValueSize { bytes, needed_bytes });
        }
        let Some(lane) = self.free.pop() else {
            return Err(Error::Busy { window: self.spec.window });
        };
        let begun_ns = now_ns();
        if self.under_way() == 1 {
            self.heard_ns = begun_ns;
        }
        let rng = &mut self.rng;
        let chance = |ppm: u32| rng.below(1_000_000) < u64::from(ppm);
        let plan = self.system.plan(value.is_some(), needed_bytes, chance);
        let one = &mut self.lanes[usize::from(lane)];
        (one.is_busy, one.key, one.begun_ns, one.repeats) = (true, key, begun_ns, 0);
        match plan {
            Plan::Ask { .. } => {
                one.get = None;
                self.ask(lane, key, value)
            }
            Plan::Read(sizes) => {
                let table = self.table.as_ref();
                one.get = Some(table.map_or(Get::Sizes(sizes), |table| Get::of(table, key)));
                self.read(lane)
            }
        }
    }

    fn ask(&mut self, lane: u8, key: u64, value: Option<&[u8]>) -> Result<()> {
        let value = value.map(<[u8]>::to_vec);
        let request = KvRequest { key, lane, value, client: self.number, peer: 0 }.encode();
        let exchange = self.system.exchange();
        if exchange.answer.is_write {
            // What says that an answer is there: its first byte, or an echo's last word.
            let slot = u64::from(lane) * SLOT_BYTES;
            self.ends.answers.store(slot, 0);
            self.ends.answers.store(slot + SLOT_BYTES - 8, 0);
        }
        let at = exchange.request.is_write.then(|| {
            let end = self.places.slot_at(self.number, lane) + SLOT_BYTES;
            RemoteAddr { offset: end - request.len() as u64, key: self.ends.key }
        });
        let Ends { end, peer, .. } = &mut self.ends;
        let offset = u64::from(lane) * LANE_BYTES + READ_BYTES;
        let (peer, buf, id) = (*peer, self.buf, REQUEST | u64::from(lane));
        let outgoing = Outgoing { peer, buf, offset, at, id, bytes: &request };
        post_bytes(end, &outgoing, &mut self.events)?;
        self.counts.requests += 1;
        self.lanes[usize::from(lane)].request = request;
        Ok(())
    }

    /// Posts the READ of a GET that is due.
    fn read(&mut self, lane: u8) -> Result<()> {
        let one = &self.lanes[usize::from(lane)];
        let get = one.get.expect("it reads");
        let (mut at, bytes) = get.due();
        if !get.has_table() {
            // Somewhere, as keys of a table would be.
            let room = (self.places.table_bytes.saturating_sub(bytes) / 64).max(1);
            at = hash(one.key, self.counts.reads) % room * 64;
        }
        let offset = self.places.table_at + at;
        let local = [Sge { buf: self.buf, offset: u64::from(lane) * LANE_BYTES, bytes }];
        let verb = Verb::Read(RemoteAddr { offset, key: self.ends.key });
        let work = WorkRequest { id: lane.into(), verb, local: &local, signalled: true };
        post(&mut self.ends.end, self.ends.peer, &work, &mut self.events)?;
        self.counts.reads += 1;
        Ok(())
    }

    fn wait(&mut self, mut done: impl FnMut(Done<'_>)) -> Result<u64> {
        for _ in 0..E::LOOKS_EAGER {
            let count = self.poll(&mut done)?;
            if count > 0 {
                return Ok(count);
            }
        }
        let polls_memory = self.system.exchange().answer.is_write && self.asks();
        self.ends.end.idle(polls_memory, &mut self.events);
        self.poll(done)
    }

    /// Whether an answer is owed, by whatever way.
    fn asks(&self) -> bool {
        self.lanes.iter().any(|lane| lane.is_busy && lane.get.is_none())
    }

    fn poll(&mut self, mut done: impl FnMut(Done<'_>)) -> Result<u64> {
        let mut events = std::mem::take(&mut self.events);
        let now = now_ns();
        self.ends.end.poll(now, &mut events);
        let mut count = 0;
        let mut heard = Ok(());
        for event in events.drain(..) {
            if heard.is_ok() {
                heard = self.hear(event, now, &mut done).map(|is_over| count += u64::from(is_over));
            }
        }
        // What came while a full queue was polled is behind them.
        events.append(&mut self.events);
        self.events = events;
        heard?;
        if self.system.exchange().answer.is_write {
            for lane in 0..self.spec.window as u8 {
                count += u64::from(self.look(lane, now, &mut done)?);
            }
        }
        self.watch(count, now)?;
        Ok(count)
    }

    /// Whether the server is there and answers.
    fn watch(&mut self, count: u64, now: u64) -> Result<()> {
        if count > 0 {
            self.heard_ns = now;
        }
        // Also if all is well: memory that is mapped outlives its server.
        self.polls = self.polls.wrapping_add(1);
        let waited_ns = now.saturating_sub(self.heard_ns);
        if self.polls.is_multiple_of(POLLS_PER_LOOK) || waited_ns > SILENCE_NS_MAX {
            if (self.ends.is_gone)() {
                return Err(Error::Gone);
            }
            if self.under_way() > 0 && waited_ns > SILENCE_NS_MAX {
                return Err(Error::Silent { waited_ms: waited_ns / 1_000_000 });
            }
        }
        Ok(())
    }

    /// Takes an event; whether a request is over.
    fn hear(
        &mut self,
        event: FabricEvent,
        now: u64,
        done: &mut impl FnMut(Done<'_>),
    ) -> Result<bool> {
        match event {
            FabricEvent::Completed { status: WorkStatus::Flushed { .. }, .. }
            // Its key is revoked: the server has ended.
            | FabricEvent::Completed { status: WorkStatus::BadKey, .. }
            | FabricEvent::Closed { .. } => Err(Error::Gone),
            FabricEvent::Completed { status: WorkStatus::BadRange, .. } => {
                Err(Error::Corrupt { what: "the size of its page" })
            }
            FabricEvent::Completed { id, .. } if id < REQUEST => self.go_on(id as u8, now, done),
            FabricEvent::Received { message, .. } => self.answered(&message, now, done),
            _ => Ok(false),
        }
    }

    fn go_on(&mut self, lane: u8, now: u64, done: &mut impl FnMut(Done<'_>)) -> Result<bool> {
        let index = usize::from(lane);
        let Lane { key, begun_ns, repeats, get, .. } = &mut self.lanes[index];
        let (key, took_ns) = (*key, now.saturating_sub(*begun_ns));
        let get = get.as_mut().expect("it reads");
        let at = index * LANE_BYTES as usize;
        let data = &self.ends.end.buffer(self.buf)[at..at + get.due().1 as usize];
        let table = self.table.as_ref();
        let outcome = match get.take(table, data) {
            Then::Read => return self.read(lane).map(|()| false),
            Then::Wrong => {
                *repeats += 1;
                self.counts.repeats += 1;
                if *repeats == REPEATS_MAX {
                    return Err(Error::Torn { key, repeats: *repeats });
                }
                *get = Get::of(table.expect("only a table's READ is wrong"), key);
                return self.read(lane).map(|()| false);
            }
            Then::Absent => Outcome::Absent,
            Then::Found => match (&*get, table) {
                (Get::Table(lookup), Some(table)) => Outcome::Found(table.value(lookup, data)),
                _ => Outcome::Found(&[]),
            },
        };
        done(Done { key, outcome, took_ns });
        self.counts.gets += 1;
        self.release(lane);
        Ok(true)
    }

    /// Looks whether an answer was written.
    fn look(&mut self, lane: u8, now: u64, done: &mut impl FnMut(Done<'_>)) -> Result<bool> {
        let one = &self.lanes[usize::from(lane)];
        if !one.is_busy || one.get.is_some() {
            return Ok(false);
        }
        let (slot, answers) = (u64::from(lane) * SLOT_BYTES, &self.ends.answers);
        let is_echo = matches!(self.system, System::Echo(_));
        let bytes = if is_echo { one.request.len() } else { 1 };
        let mark = if is_echo { slot + SLOT_BYTES - 8 } else { slot };
        if answers.load(mark) == 0 {
            return Ok(false);
        }
        let mut answer = std::mem::take(&mut self.answer);
        answer.resize(bytes, 0);
        answers
            .copy_out(if is_echo { slot + SLOT_BYTES - bytes as u64 } else { slot }, &mut answer);
        // Of an echo the rest may still be on its way.
        let is_there = !is_echo || answer == one.request;
        let answered = if is_there { self.answered(&answer, now, done) } else { Ok(false) };
        self.answer = answer;
        answered
    }

    fn answered(
        &mut self,
        answer: &[u8],
        now: u64,
        done: &mut impl FnMut(Done<'_>),
    ) -> Result<bool> {
        let corrupt = Error::Corrupt { what: "its answer" };
        let is_echo = matches!(self.system, System::Echo(_));
        let (lane, outcome) = match (is_echo, answer) {
            (true, _) => match KvRequest::decode(answer, 0) {
                Some(request) => (request.lane, Outcome::Echoed),
                None => return Err(corrupt),
            },
            (false, [byte]) => match Ack::decode(*byte) {
                Some(Ack { lane, is_stored: true }) => (lane, Outcome::Stored),
                Some(Ack { lane, .. }) => (lane, Outcome::Absent),
                None => return Err(corrupt),
            },
            _ => return Err(corrupt),
        };
        let Some(one) = self.lanes.get(usize::from(lane)) else { return Err(corrupt) };
        let is_owed = one.is_busy && one.get.is_none();
        if !is_owed || is_echo && answer != one.request {
            return Err(corrupt);
        }
        let took_ns = now.saturating_sub(one.begun_ns);
        done(Done { key: one.key, outcome, took_ns });
        self.counts.asked += 1;
        self.counts.answers += 1;
        self.release(lane);
        Ok(true)
    }

    fn release(&mut self, lane: u8) {
        self.lanes[usize::from(lane)].is_busy = false;
        self.free.push(lane);
    }
}
