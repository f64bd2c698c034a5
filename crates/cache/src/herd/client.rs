//! The client's end: submits requests into slots, rings once for many, takes replies as they come.
//! Its link is the transport to the server. Used by one thread at a time.
//!
//! A key belongs to one server thread. Requests to one thread are done and answered in the order in
//! which they were submitted; requests to different threads in any order.
//!
//! *Long values*: what does not fit into a slot is put and read in parts, in all windows at once
//! (`client/long.rs`), by [`Client::put`] and [`Client::get`].
//!
//! *Retry*: nothing is lost in shared memory, but a server may be stopped, or a client may have
//! died before a wake-up that it was to send. Each server thread has a timer (`client/timer.rs`),
//! which belongs to the oldest request that is waited for there, whatever other threads answer
//! meanwhile. The client repeats the doorbell (over a fabric, the requests as well) after
//! [`REMIND_AFTER_MS`], then after twice that time and so on, [`REMINDERS_MAX`] times; then the
//! answer is [`Error::Silent`]. A repeated request has its old number and is applied once. Both
//! [`Client::wait`] and [`Client::poll`] look at the timers, where a clock is read anyway, or at
//! every so many polls.
//!
//! Source: HERD §4.2 (windows; the client chooses the server by the key), §4.3 (retries are the
//! application's).

mod first_look;
mod long;
mod timer;

pub use timer::{REMIND_AFTER_MS, REMINDERS_MAX};

use super::error::{Error, Result};
use super::geometry::{AHEAD, APART_VALUE_AT, Geometry, HEAD_BYTES, KEY_BYTES_MAX, LINE_BYTES};
use super::message::{Head, Message, MessageKind, reply_number, request_number};
use super::shm::ShmTransport;
use super::slot::{self, SlotFormat};
use super::transport::{Lane, Transport};
use first_look::FirstLook;
use rackpool_core::seam::Mem;
use rackpool_mem::wait::{Pause, Waiter, look_again};
use rackpool_mem::window::Window;
use std::time::Duration;
use timer::{Due, Timer};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Names a request until its answer was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket {
    server: u32,
    number: u64,
}

/// An answer. What it borrows is valid until the call that gave it returns.
#[derive(Debug)]
pub enum Answer<'a> {
    /// The value of a key.
    Found {
        value: &'a [u8],
        /// What was stored with it.
        flags: u32,
        /// When it expires, milliseconds since the epoch; 0 for never.
        expires: u64,
    },
    /// There is no such key.
    Missing,
    Stored,
    /// The key was there and is removed.
    Deleted,
    Refused(Error),
}

/// An answer; its value, if it has one, is still in its slot.
struct ReceivedReply {
    /// Its request's, as in [`Ticket`].
    number: u64,
    /// Whether the caller waits for it.
    is_wanted: bool,
    head: Head,
    kind: MessageKind,
    is_apart: bool,
    value_at: u64,
}

/// Sizes derived from the geometry.
#[derive(Clone, Copy)]
struct Sizes {
    slot: u64,
    /// Bytes of all slots of a lane.
    lane: u64,
}

impl Sizes {
    /// Where the slot behind the one at `at` begins.
    #[inline(always)]
    fn after(self, at: u64) -> u64 {
        let next = at + self.slot;
        if next == self.lane { 0 } else { next }
    }
}

/// A client of a server on this host, or, with another link, elsewhere.
pub struct Client<L = ShmTransport> {
    link: L,
    lanes: Vec<Lane>,
    /// Of each lane; apart, since submitting and taking do not touch them.
    timers: Vec<Timer>,
    geometry: Geometry,
    sizes: Sizes,
    seed: u64,
    message: Vec<u8>,
    waiter: Waiter,
    first_look: FirstLook,
    /// Polls in a row without an answer.
    polls: u32,
    /// Polls since the timers were looked at.
    untimed: u32,
    reminders: u64,
}

impl Client {
    /// Connects to the server of this name, with as many windows as it gives. Blocks for 5 s at
    /// most.
    ///
    /// # Errors
    /// [`Error::Control`] if no server has the name; [`Error::Full`], [`Error::Version`],
    /// [`Error::OutOfMemory`], [`Error::Silent`], [`Error::Gone`], [`Error::Io`].
    pub fn connect(name: &str) -> Result<Client> {
        Client::connect_with(name, 0)
    }

    /// As [`Client::connect`], with so many windows at each server thread: requests that may be
    /// under way.
    ///
    /// # Errors
    /// As [`Client::connect`]; [`Error::BadOption`].
    pub fn connect_with(name: &str, windows: u32) -> Result<Client> {
        let (near, geometry, seed) = ShmTransport::connect(name, windows)?;
        Ok(Client::over(near, geometry, seed))
    }
}

impl<L: Transport> Client<L> {
    /// A client that has been let in.
    pub(super) fn over(link: L, geometry: Geometry, seed: u64) -> Client<L> {
        Client {
            link,
            lanes: vec![Lane::default(); geometry.servers as usize],
            timers: vec![Timer::default(); geometry.servers as usize],
            geometry,
            sizes: Sizes {
                slot: geometry.slot_bytes(),
                lane: u64::from(geometry.windows) * geometry.slot_bytes(),
            },
            seed,
            message: vec![0; geometry.message_bytes()],
            waiter: Waiter::new(),
            first_look: FirstLook::default(),
            polls: 0,
            untimed: 0,
            reminders: 0,
        }
    }

    /// How often requests were repeated because no answer came in time: those of one server thread
    /// together, once for each reminder.
    pub fn reminders(&self) -> u64 {
        self.reminders
    }

    /// The transport to the server.
    pub fn link(&mut self) -> &mut L {
        &mut self.link
    }

    /// Requests that may be under way at each server thread.
    pub fn windows(&self) -> u32 {
        self.geometry.windows
    }

    /// Longest value that goes through a slot, bytes.
    pub fn value_bytes_max(&self) -> u32 {
        self.geometry.value_bytes
    }

    /// Requests that were submitted, with answers that were not taken.
    pub fn under_way(&self) -> u64 {
        self.lanes.iter().map(|lane| lane.wanted()).sum()
    }

    /// Submits a look-up. Does not block. A value that is longer than
    /// [`Client::value_bytes_max`] is answered by [`Error::ValueSize`] with its length: it is to be
    /// had by [`Client::get`].
    ///
    /// # Errors
    /// [`Error::KeySize`], [`Error::Busy`].
    #[inline]
    pub fn submit_get(&mut self, key: &[u8]) -> Result<Ticket> {
        self.submit(MessageKind::Get, key, &[], 0, 0)
    }

    /// Submits a value of at most [`Client::value_bytes_max`] that expires at `expires`
    /// (milliseconds since the epoch, 0 = never). Does not block.
    ///
    /// # Errors
    /// [`Error::KeySize`], [`Error::ValueSize`], [`Error::Busy`].
    #[inline]
    pub fn submit_put(
        &mut self,
        key: &[u8],
        value: &[u8],
        flags: u32,
        expires: u64,
    ) -> Result<Ticket> {
        self.submit(MessageKind::Put, key, value, flags, expires)
    }

    /// Submits the removal of a key. Does not block.
    ///
    /// # Errors
    /// [`Error::KeySize`], [`Error::Busy`].
    #[inline]
    pub fn submit_delete(&mut self, key: &[u8]) -> Result<Ticket> {
        self.submit(MessageKind::Delete, key, &[], 0, 0)
    }

    #[inline]
    fn check_key(&self, key: &[u8]) -> Result<()> {
        if key.is_empty() || key.len() > KEY_BYTES_MAX {
            return Err(Error::KeySize { bytes: key.len(), max_bytes: KEY_BYTES_MAX });
        }
        Ok(())
    }

    #[inline(always)]
    fn submit(
        &mut self,
        kind: MessageKind,
        key: &[u8],
        value: &[u8],
        flags: u32,
        extra: u64,
    ) -> Result<Ticket> {
        self.check_key(key)?;
        if value.len() > self.geometry.value_bytes as usize {
            let max_bytes = self.geometry.value_bytes.into();
            return Err(Error::ValueSize { bytes: value.len() as u64, max_bytes });
        }
        let server = self.server_of(key);
        let lane = &mut self.lanes[server as usize];
        let windows = self.geometry.windows;
        let is_alone = self.link.apart(server).is_some() && !lane.is_waiting();
        if lane.submitted - lane.answered == u64::from(windows) {
            return Err(Error::Busy { windows });
        }
        let at = lane.request_at;
        lane.request_at = self.sizes.after(at);
        lane.submitted += 1;
        let (number, place) = (request_number(lane.submitted), lane.submitted);
        if is_alone {
            lane.apart = place;
        }
        let head = Head::new(number, kind).apart(is_alone);
        let head = head.with_lengths(key.len() as u8, value.len() as u16);
        let head = head.with_flags(flags).with_extra(extra);
        self.link.publish(server, at, &head, key, value);
        Ok(Ticket { server, number: place })
    }

    /// The server thread of a key: that of the key's partition of the cache, so that a thread keeps
    /// to partitions of its own where their number is a multiple of the threads', as
    /// [`partitions_for`](crate::cache::partitions_for) makes it. (Of `k` partitions a thread,
    /// those of a thread are `k` that follow one another: `Cache::index_of` divides by as much.)
    #[inline]
    fn server_of(&self, key: &[u8]) -> u32 {
        match self.geometry.servers {
            1 => 0,
            servers => {
                let hash = xxh3_64_with_seed(key, self.seed);
                ((hash & 0xffff) as u32 * servers) >> 16
            }
        }
    }

    /// Tells the server of everything that was submitted. To be called after the last submission of
    /// a batch; does not block, and enters the kernel only if the server sleeps (over a fabric:
    /// once for each server thread).
    #[inline]
    pub fn ring(&mut self) {
        for (server, lane) in (0..).zip(&mut self.lanes) {
            // What fails here is over when answers are waited for.
            if lane.rung < lane.submitted && self.link.ring(server, lane).is_ok() {
                lane.rung = lane.submitted;
            }
        }
    }

    /// Takes the answers that are there and gives them to `f`; how many. Does not block.
    ///
    /// What a server thread does not answer is repeated, as the module says, also by a client that
    /// only polls, and whatever other threads answer: at the first of every 256 calls (over a
    /// fabric, at every call) that comes after the time.
    ///
    /// # Errors
    /// [`Error::Silent`] if a server thread has not answered for 6.35 s and was reminded six times,
    /// looked at as often; answers of others were given to `f` before. The next call starts that
    /// thread's time anew. [`Error::Gone`], found out within some thousand calls if nothing comes;
    /// [`Error::Corrupt`].
    #[inline]
    pub fn poll(&mut self, mut f: impl FnMut(Ticket, Answer<'_>)) -> Result<usize> {
        let geometry = self.geometry;
        self.poll_replies(|ticket, reply| f(ticket, answer_of(reply, &geometry)))
    }

    #[inline]
    fn poll_replies(&mut self, mut f: impl FnMut(Ticket, &Message<'_>)) -> Result<usize> {
        let pumped = self.link.pump(&self.lanes);
        let mut count = 0;
        for server in 0..self.lanes.len() {
            while let Some(taken) = self.take(server)? {
                count += 1;
                if taken.is_wanted {
                    let ticket = Ticket { server: server as u32, number: taken.number };
                    f(ticket, &self.reply_of(server, &taken));
                }
            }
        }
        self.look_after_poll(pumped, count)?;
        Ok(count)
    }

    /// What every so many polls, and every so many in a row without an answer, is to be looked at.
    #[inline]
    fn look_after_poll(&mut self, pumped: Result<()>, count: usize) -> Result<()> {
        self.untimed += 1;
        if self.untimed >= L::POLLS_PER_CLOCK {
            self.untimed = 0;
            if pumped.is_ok() {
                self.look_after(self.link.now_ns(), false)?;
            }
        }
        if count > 0 {
            self.polls = 0;
            return Ok(());
        }
        pumped?;
        self.polls += 1;
        if self.polls >= L::POLLS_MAX {
            self.polls = 0;
            if self.link.is_gone() && !self.is_ready() {
                return Err(Error::Gone);
            }
        }
        Ok(())
    }

    /// Takes the next answer of a server thread, if it is there.
    #[inline(always)]
    fn take(&mut self, server: usize) -> Result<Option<ReceivedReply>> {
        let lane = &mut self.lanes[server];
        if !lane.is_waiting() {
            return Ok(None);
        }
        let (is_apart, replies, at) = reply_place(&self.link, server as u32, lane);
        let asked = request_number(lane.answered + 1);
        let Some(head) = slot::read_head(replies, at, asked) else { return Ok(None) };
        let (ahead, value_at) = match is_apart {
            true => (u64::MAX, APART_VALUE_AT),
            false => (at + AHEAD * self.sizes.slot, at + HEAD_BYTES as u64),
        };
        lane.answer_at = self.sizes.after(lane.answer_at);
        lane.answered += 1;
        if lane.submitted - lane.answered > AHEAD && ahead < replies.bytes() {
            // Probably there as well.
            replies.prefetch(ahead);
            replies.prefetch(ahead + LINE_BYTES);
        }
        let kind = match head.is_found(&self.geometry) {
            true => Some(MessageKind::Found),
            false => head.checked(&self.geometry),
        };
        match kind {
            Some(kind) if head.number == reply_number(asked) && !kind.is_request() => {
                let (number, is_wanted) = (lane.answered, lane.answered > lane.given_up);
                Ok(Some(ReceivedReply { number, is_wanted, head, kind, is_apart, value_at }))
            }
            _ => Err(Error::Corrupt { what: "a reply" }),
        }
    }

    /// The message of an answer, with its value in private memory.
    #[inline(always)]
    fn reply_of(&mut self, server: usize, taken: &ReceivedReply) -> Message<'_> {
        let ReceivedReply { head, kind, .. } = *taken;
        let value = &mut self.message[..head.value_bytes()];
        let replies = replies_of(&self.link, server as u32, taken.is_apart);
        replies.bare().copy_out(taken.value_at, value);
        Message { head, kind, key: &[], value }
    }

    /// Whether an answer is there.
    #[inline(always)]
    fn is_ready(&self) -> bool {
        Self::has_answer(&self.link, &self.lanes, &self.geometry)
    }

    #[inline(always)]
    fn has_answer(link: &L, lanes: &[Lane], geometry: &Geometry) -> bool {
        (0..).zip(lanes).any(|(server, lane)| {
            let (_, replies, at) = reply_place(link, server, lane);
            let asked = request_number(lane.answered + 1);
            lane.is_waiting() && SlotFormat::Ordered.is_published(replies, at, geometry, asked)
        })
    }

    /// Waits until an answer can be taken; at once if nothing is under way. Rings first. Blocks: it
    /// spins some 50 µs, then sleeps; repeats what a server thread does not answer, as the module
    /// says. Where another thread's answer can be taken it returns at once and leaves that to
    /// [`Client::poll`].
    ///
    /// # Errors
    /// [`Error::Silent`] if a server thread has not answered for 6.35 s, of which what was waited
    /// in earlier calls is a part; the next call starts that thread's time anew. [`Error::Gone`] at
    /// once when the server's process ends.
    pub fn wait(&mut self) -> Result<()> {
        self.ring();
        if !self.lanes.iter().any(Lane::is_waiting) {
            return Ok(());
        }
        if self.look_eagerly(|client| Ok(client.is_ready().then_some(())))?.is_some() {
            return Ok(());
        }
        loop {
            let pumped = self.link.pump(&self.lanes);
            if self.is_ready() {
                self.waiter.progressed();
                return Ok(());
            }
            pumped?;
            let pause = self.waiter.pause();
            if pause == Pause::Spun {
                continue;
            }
            let now_ns = self.link.now_ns();
            let due_ns = self.look_after(now_ns, true)?;
            if pause == Pause::Sleep {
                let Client { link, lanes, geometry, .. } = self;
                let timeout = Duration::from_nanos(due_ns.saturating_sub(now_ns));
                link.sleep(timeout, |link| Self::has_answer(link, lanes, geometry))?;
            }
        }
    }

    /// Polls without a pause instruction, which takes longer than the server, as a rule.
    #[inline(always)]
    fn look_eagerly<T>(
        &mut self,
        mut look: impl FnMut(&mut Client<L>) -> Result<Option<T>>,
    ) -> Result<Option<T>> {
        for _ in 0..L::LOOKS_EAGER {
            self.link.pump(&self.lanes)?;
            let found = look(self)?;
            if found.is_some() {
                self.waiter.progressed();
                return Ok(found);
            }
            self.ask_for_rests();
            look_again();
        }
        Ok(None)
    }

    /// Asks for the second lines of the next answers, so that they come together with the first.
    #[inline]
    fn ask_for_rests(&self) {
        if self.geometry.slot_bytes() < 2 * LINE_BYTES {
            return;
        }
        for (server, lane) in (0..).zip(&self.lanes) {
            if lane.is_waiting() {
                let (_, replies, at) = reply_place(&self.link, server, lane);
                replies.prefetch(at + LINE_BYTES);
            }
        }
    }

    /// Repeats what is due; when something is due next. A thread that has only abandoned requests
    /// to answer is reminded as well, since they hold windows, but its silence is an error only for
    /// a caller that waits (`blocks`) for nothing else.
    fn look_after(&mut self, now_ns: u64, blocks: bool) -> Result<u64> {
        let waits_for_windows = blocks && self.under_way() == 0;
        let mut next_ns = u64::MAX;
        for server in 0..self.lanes.len() {
            let lane = &self.lanes[server];
            if !lane.is_waiting() {
                continue;
            }
            match self.timers[server].look(lane.awaited(), now_ns) {
                Due::Later(due_ns) => next_ns = next_ns.min(due_ns),
                Due::Reminder(due_ns) => {
                    next_ns = next_ns.min(due_ns);
                    self.reminders += 1;
                    self.link.remind(server as u32, lane)?;
                }
                Due::Silence { waited_ms, reminders } if lane.wanted() > 0 || waits_for_windows => {
                    return Err(Error::Silent { waited_ms, reminders });
                }
                Due::Silence { .. } => next_ns = now_ns,
            }
        }
        Ok(next_ns)
    }

    /// The value of a key, however long, appended to `value`, and its flags; `None` if there is no
    /// such key. Blocks for one round trip; for a value that is longer than a slot for one more,
    /// and for as many requests, in all windows at once, as it has parts. These are of one value,
    /// whatever happens to the key meanwhile.
    ///
    /// # Errors
    /// As [`Client::wait`]; [`Error::KeySize`]; [`Error::Tier`]; [`Error::Lapsed`];
    /// [`Error::OutOfMemory`] if this process has no memory for the value; [`Error::Busy`] while
    /// submissions are under way with answers that were not taken. `value` is as it was then.
    pub fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<Option<u32>> {
        self.check_idle()?;
        let ticket = self.submit_get(key)?;
        let found = self.call(ticket, |client, taken| {
            if taken.kind != MessageKind::Found {
                return client.absence(taken).map(|()| None);
            }
            let slots = replies_of(&client.link, ticket.server, taken.is_apart);
            slots.bare().append_to(taken.value_at, taken.head.value_bytes() as u64, value);
            Ok(Some(taken.head.flags()))
        });
        match found {
            Ok(flags) => Ok(flags),
            Err(Error::ValueSize { bytes, .. }) if self.part_bytes() > 0 => {
                self.get_long(key, bytes, value)
            }
            Err(error) => Err(error),
        }
    }

    /// Stores a value, however long, that expires at `expires` (milliseconds since the epoch, 0 =
    /// never). Blocks for one round trip; for a value that is longer than a slot until its parts
    /// were taken, in all windows at once. Others see it from the last one on, and not before.
    ///
    /// # Errors
    /// As [`Client::get`]; [`Error::OutOfMemory`]; [`Error::ValueSize`] if it is longer than the
    /// cache takes.
    pub fn put(&mut self, key: &[u8], value: &[u8], flags: u32, expires: u64) -> Result<()> {
        self.check_idle()?;
        if value.len() > self.geometry.value_bytes as usize && self.part_bytes() > 0 {
            return self.put_long(key, value, flags, expires);
        }
        let ticket = self.submit_put(key, value, flags, expires)?;
        self.call(ticket, |client, taken| match client.answer(taken) {
            Answer::Refused(error) => Err(error),
            _ => Ok(()),
        })
    }

    /// Removes a key; whether it was there. Blocks for one round trip.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub fn delete(&mut self, key: &[u8]) -> Result<bool> {
        self.check_idle()?;
        let ticket = self.submit_delete(key)?;
        self.call(ticket, |client, taken| match client.answer(taken) {
            Answer::Refused(error) => Err(error),
            answer => Ok(matches!(answer, Answer::Deleted)),
        })
    }

    /// The answers to earlier submissions would be lost in a call that waits for its own.
    #[inline]
    fn check_idle(&mut self) -> Result<()> {
        if self.lanes.iter().any(Lane::is_waiting) { self.become_idle() } else { Ok(()) }
    }

    #[cold]
    fn become_idle(&mut self) -> Result<()> {
        if self.under_way() > 0 {
            return Err(Error::Busy { windows: self.geometry.windows });
        }
        // Answers to abandoned requests hold windows until they are taken.
        self.poll(|_, _| {}).map(drop)
    }

    /// Why a look-up's answer has no value: an error, unless there is none.
    #[inline(never)]
    fn absence(&self, taken: &ReceivedReply) -> Result<()> {
        match self.answer(taken) {
            Answer::Refused(error) => Err(error),
            _ => Ok(()),
        }
    }

    /// What an answer says beside its value.
    fn answer(&self, taken: &ReceivedReply) -> Answer<'_> {
        let ReceivedReply { head, kind, .. } = *taken;
        answer_of(&Message { head, kind, key: &[], value: &[] }, &self.geometry)
    }

    #[inline(always)]
    fn call<R>(
        &mut self,
        ticket: Ticket,
        take: impl FnOnce(&Client<L>, &ReceivedReply) -> Result<R>,
    ) -> Result<R> {
        self.ring();
        for _ in 0..self.first_look.pauses() {
            look_again();
        }
        let mut looks = 0;
        let found = self.look_eagerly(|client| {
            looks += 1;
            client.take(ticket.server as usize)
        });
        if L::LOOKS_EAGER > 0 {
            self.first_look.learn(looks == 1);
        }
        let taken = match found {
            Ok(Some(taken)) if taken.number == ticket.number => taken,
            Ok(_) => self.await_answer(ticket)?,
            Err(error) => return Err(self.give_up(ticket, error)),
        };
        take(self, &taken)
    }

    /// Waits for the answer to a request, and takes it.
    #[inline(never)]
    fn await_answer(&mut self, ticket: Ticket) -> Result<ReceivedReply> {
        self.await_only(ticket).map_err(|error| self.give_up(ticket, error))
    }

    fn await_only(&mut self, ticket: Ticket) -> Result<ReceivedReply> {
        loop {
            self.wait()?;
            match self.take(ticket.server as usize)? {
                Some(taken) if taken.number == ticket.number => return Ok(taken),
                _ => self.drop_answers_beside(ticket.server as usize)?,
            }
        }
    }

    /// Abandons a request: its answer is not waited for any more, because of an error.
    #[cold]
    fn give_up(&mut self, ticket: Ticket, error: Error) -> Error {
        self.lanes[ticket.server as usize].given_up = ticket.number;
        error
    }

    /// Takes the answers of all threads but this one: they are not waited for any more.
    #[cold]
    fn drop_answers_beside(&mut self, server: usize) -> Result<()> {
        let mut count = 0;
        for other in (0..self.lanes.len()).filter(|other| *other != server) {
            while self.take(other)?.is_some() {
                count += 1;
            }
        }
        self.look_after_poll(Ok(()), count)
    }
}

/// Where the next answer of a server thread comes: whether apart, and where its slot begins.
#[inline(always)]
fn reply_place<'a, L: Transport>(link: &'a L, server: u32, lane: &Lane) -> (bool, &'a Window, u64) {
    match link.apart(server) {
        Some(apart) if lane.apart == lane.answered + 1 => (true, apart, 0),
        _ => (false, link.replies(server), lane.answer_at),
    }
}

/// Where the value of an answer is that was taken.
#[inline(always)]
fn replies_of<L: Transport>(link: &L, server: u32, is_apart: bool) -> &Window {
    match link.apart(server) {
        Some(apart) if is_apart => apart,
        _ => link.replies(server),
    }
}

#[inline]
fn answer_of<'a>(reply: &Message<'a>, geometry: &Geometry) -> Answer<'a> {
    let (flags, extra) = (reply.head.flags(), reply.head.extra);
    match reply.kind {
        MessageKind::Found => Answer::Found { value: reply.value, flags, expires: extra },
        MessageKind::Missing => Answer::Missing,
        MessageKind::Stored => Answer::Stored,
        MessageKind::Deleted => Answer::Deleted,
        MessageKind::TooLarge => {
            let max_bytes = geometry.value_bytes.into();
            Answer::Refused(Error::ValueSize { bytes: extra, max_bytes })
        }
        MessageKind::TooLong => {
            Answer::Refused(Error::ValueSize { bytes: flags.into(), max_bytes: extra })
        }
        MessageKind::NoMemory => Answer::Refused(Error::OutOfMemory),
        MessageKind::Unreachable => Answer::Refused(Error::Tier),
        _ => Answer::Refused(Error::Malformed),
    }
}
