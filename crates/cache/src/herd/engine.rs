//! The server's engine: takes requests out of slots, does them on the cache as one batch, puts
//! replies into slots. No I/O, no clock, no threads; the caller decides which slots are looked at,
//! and wakes or sends.
//!
//! The requests of a client are done in the order in which it made them, one after the other with
//! those of others. Look-ups that stand together are done together, their memory accesses
//! overlapped; changes ask for their memory first, all of a batch at once.
//!
//! *Once*: for each client and window the engine keeps the number of the last request, and its
//! reply stays in its slot (one that came apart, until the next that does). A request that comes
//! again with that number is answered by that reply and not done again; an older one is dropped.
//!
//! Source: HERD §4.1 (hiding memory accesses); the batch instead of its two-stage pipeline is that
//! of its successor, and needs no no-op to drain. The pipeline is here as the mode to compare with.

mod reply_writer;
mod slots;

pub use slots::ClientSlots;

use super::counters::{HerdCounter, ThreadCounters};
use super::geometry::Geometry;
use super::slot::SlotFormat;
use crate::cache::{Cache, Millis};
use rackpool_core::seam::{Mem, Mutation};
use rackpool_mem::window::Window;
use reply_writer::ReplyWriter;
use slots::{BATCH, DequeuedRequest, RequestBatch, RequestView, Slots, Work};

/// Requests that a two-stage pipeline holds back: one with its bucket on the way, one with its
/// item.
const STAGES: usize = 2;

/// How the waits for memory of different requests overlap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pipeline {
    /// All buckets of a batch are asked for, then all items, then keys are compared: as HERD's
    /// successor does.
    #[default]
    Batched,
    /// HERD's own (§4.1): each new request asks for its bucket and moves the two before it on by a
    /// stage. Their replies wait for further requests, or for [`Engine::no_op`].
    TwoStage,
}

/// A reply that was put into its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replied {
    pub client: u32,
    pub window: u32,
    /// Where in the client's reply slots it is, in ordered form, and its length.
    pub place: (u64, u64),
}

/// When requests are done, and where they are counted.
#[derive(Clone, Copy)]
struct Turn<'a> {
    now: Millis,
    counters: &'a ThreadCounters,
}

/// The engine of one serving thread.
pub struct Engine {
    cache: Cache,
    databases_version: u64,
    form: SlotFormat,
    writer: ReplyWriter,
    batch: RequestBatch,
    pipeline: Pipeline,
    /// Requests at the begin of the batch that are in the pipeline already.
    begun: usize,
}

impl Engine {
    /// An engine for clients 0 to `clients` - 1 with slots of these sizes, which takes requests in
    /// this form. Replies are in ordered form.
    pub fn new(cache: Cache, form: SlotFormat, geometry: Geometry, clients: u32) -> Engine {
        let (batch, writer) =
            (RequestBatch::new(&geometry), ReplyWriter::new(cache.clone(), geometry, clients));
        let databases_version = cache.databases_version();
        let (cache, pipeline) = (cache.in_database(0), Pipeline::default());
        Engine { cache, databases_version, form, writer, batch, pipeline, begun: 0 }
    }

    /// The same with another pipeline.
    pub fn with_pipeline(self, pipeline: Pipeline) -> Engine {
        Engine { pipeline, ..self }
    }

    /// A client begins, with its slots at this thread, all of them as if request 0 had been
    /// answered last. What it left in the batch is dropped if the number was another's before.
    ///
    /// # Panics
    /// If there is no such client, or the windows are no whole slots, or the one apart has other
    /// than [`Geometry::apart_bytes`], or those in ordered form do not begin with a line, or have a
    /// delay.
    pub fn enter(&mut self, client: u32, memory: ClientSlots) {
        let slot_bytes = self.writer.geometry.slot_bytes();
        let ClientSlots { requests, replies, apart } = &memory;
        let windows = requests.bytes() / slot_bytes;
        let bytes = windows * slot_bytes;
        assert!(
            windows > 0
                && bytes == requests.bytes()
                && bytes == replies.bytes()
                && apart
                    .as_ref()
                    .is_none_or(|apart| apart.bytes() == self.writer.geometry.apart_bytes()),
            "whole slots"
        );
        // Here rather than at the first request.
        let _ = (replies.bare(), apart.as_ref().map(Window::bare));
        if self.form == SlotFormat::Ordered {
            let _ = requests.bare();
        }
        self.leave(client);
        self.writer.clients[client as usize] = Some(Slots::new(memory, windows, slot_bytes));
    }

    /// A client ends: its slots are not touched any more when this returns. Requests of it that
    /// were taken and not done are not done.
    ///
    /// # Panics
    /// If there is no such client.
    pub fn leave(&mut self, client: u32) {
        self.writer.clients[client as usize] = None;
        self.writer.long.retain(|other| *other != client);
        for taken in self.batch.taken.iter_mut().filter(|taken| taken.client == client) {
            taken.work = Work::Repeat;
        }
    }

    /// Whether long values are under way.
    #[inline]
    pub fn holds_long(&self) -> bool {
        !self.writer.long.is_empty()
    }

    /// Gives up long values of which nothing was heard for 30 s: their memory is the cache's again.
    pub fn lapse(&mut self, now: Millis) {
        let ReplyWriter { clients, long, .. } = &mut self.writer;
        long.retain(|client| {
            let Some(slots) = &mut clients[*client as usize] else { return false };
            slots.long.take_if(|long| long.is_idle(now));
            slots.long.is_some()
        });
    }

    /// Whether [`Engine::gather`] has no room for more: [`Engine::run`] comes first.
    pub fn is_full(&self) -> bool {
        self.batch.taken.len() == BATCH
    }

    /// Requests that wait for [`Engine::run`].
    pub fn gathered(&self) -> usize {
        self.batch.taken.len() - self.begun
    }

    /// Requests in the pipeline: they wait for others, or for [`Engine::no_op`].
    pub fn begun(&self) -> usize {
        self.begun
    }

    /// Whether a client has a request that was not taken, or, in sealed slots, may have.
    pub fn is_ready(&self, client: u32) -> bool {
        let ReplyWriter { geometry, clients, .. } = &self.writer;
        let slots = clients.get(client as usize).and_then(Option::as_ref);
        slots.is_some_and(|slots| slots.is_ready(self.form, geometry))
    }

    /// Takes the new requests of a client, as long as there is room; how many. A client that is not
    /// there has none.
    #[inline(always)]
    pub fn gather(&mut self, client: u32, counters: &ThreadCounters) -> usize {
        self.gather_in(client, counters, 1, |_| false)
    }

    /// The same in a world that may leave a safeguard out. In ordered slots it is looked `looks`
    /// times, at once one after the other, if nothing was gathered before; if that is more than
    /// once, a request that says that it is alone is taken alone.
    #[inline(always)]
    pub(super) fn gather_in(
        &mut self,
        client: u32,
        counters: &ThreadCounters,
        looks: u32,
        mutated: impl Fn(Mutation) -> bool,
    ) -> usize {
        let Engine { form, writer: ReplyWriter { geometry, clients, .. }, batch, .. } = self;
        let Some(Some(slots)) = clients.get_mut(client as usize) else { return 0 };
        let before = batch.taken.len();
        match form {
            SlotFormat::Ordered => slots.gather_ordered(client, geometry, batch, counters, looks),
            SlotFormat::Sealed => slots.gather_sealed(client, geometry, batch, counters, &mutated),
        }
        batch.taken.len() - before
    }

    /// Does what was gathered; `replied` is told of every reply, in order. Nothing of the batch is
    /// left when this returns, but for two requests in a two-stage pipeline.
    #[inline(always)]
    pub fn run(
        &mut self,
        now: Millis,
        counters: &ThreadCounters,
        replied: &mut impl FnMut(Replied),
    ) {
        let turn = Turn { now, counters };
        if self.batch.taken.is_empty() {
            return;
        }
        self.look_at_databases();
        if self.pipeline == Pipeline::TwoStage {
            return self.run_staged(turn, replied);
        }
        match &self.batch.taken[..] {
            [DequeuedRequest { work: Work::Get, .. }] => self.run_get(0, turn, replied),
            _ => self.run_many(turn, replied),
        }
        counters.add(HerdCounter::Batches, 1);
        self.batch.taken.clear();
    }

    /// Another space may be database 0 by now.
    #[inline(always)]
    fn look_at_databases(&mut self) {
        let version = self.cache.databases_version();
        if version != self.databases_version {
            (self.cache, self.databases_version) = (self.cache.in_database(0), version);
        }
    }

    /// Each new request goes into the pipeline, and the oldest one leaves it.
    #[inline(never)]
    fn run_staged(&mut self, turn: Turn<'_>, replied: &mut dyn FnMut(Replied)) {
        let count = self.batch.taken.len();
        for new in self.begun..count {
            self.cache.ask_bucket(self.batch.request(new).key);
            if new >= 1 {
                self.cache.ask_item(self.batch.request(new - 1).key);
            }
            if new >= STAGES {
                self.finish(new - STAGES, turn, replied);
            }
        }
        self.begun = count.min(STAGES);
        self.batch.drop_first(count - self.begun);
        turn.counters.add(HerdCounter::Batches, 1);
    }

    /// Moves the requests in the pipeline on as if another one had come, which is none: HERD's way
    /// to drain it when no request comes.
    pub fn no_op(
        &mut self,
        now: Millis,
        counters: &ThreadCounters,
        replied: &mut dyn FnMut(Replied),
    ) {
        if self.begun == 0 {
            return;
        }
        self.cache.ask_item(self.batch.request(self.begun - 1).key);
        self.finish(0, Turn { now, counters }, replied);
        self.batch.drop_first(1);
        self.begun -= 1;
    }

    /// Does one request of the batch.
    fn finish(&mut self, index: usize, turn: Turn<'_>, mut replied: &mut dyn FnMut(Replied)) {
        if self.batch.taken[index].work == Work::Get {
            return self.run_get(index, turn, &mut replied);
        }
        let Engine { cache, batch, writer, .. } = self;
        writer.change(cache, batch.request(index), turn, replied);
    }

    /// Does one look-up by itself.
    #[inline(always)]
    fn run_get(&mut self, index: usize, turn: Turn<'_>, replied: &mut impl FnMut(Replied)) {
        let Turn { now, counters } = turn;
        let Engine { cache, batch, writer, .. } = self;
        let RequestView { taken, key, .. } = batch.request(index);
        let is_hit = writer.answer_unlocked(cache, taken, key, now, replied)
            || cache.get(key, now, |item| writer.answer(taken, item, replied)).is_some();
        if !is_hit {
            writer.answer_missing(taken, replied);
        }
        counters.add(HerdCounter::Gets, 1);
        counters.add(HerdCounter::Hits, u64::from(is_hit));
    }

    #[inline(never)]
    fn run_many(&mut self, turn: Turn<'_>, mut replied: &mut dyn FnMut(Replied)) {
        let Turn { now, counters } = turn;
        let Engine { cache, batch, writer, .. } = self;
        let count = batch.taken.len();
        let mut keys: [&[u8]; BATCH] = [&[]; BATCH];
        let mut changes = false;
        for (index, key) in keys[..count].iter_mut().enumerate() {
            *key = batch.request(index).key;
            changes |= batch.taken[index].work != Work::Get;
        }
        if changes && count > 1 {
            cache.prefetch(&keys[..count]);
        }
        let (mut from, mut hits) = (0, 0);
        while from < count {
            let rest = &batch.taken[from..];
            let gets = rest.iter().take_while(|taken| taken.work == Work::Get).count();
            match gets {
                0 => {
                    writer.change(cache, batch.request(from), turn, replied);
                    from += 1;
                }
                _ => {
                    let keys = &keys[from..from + gets];
                    // Each answer has a place of its own.
                    cache.get_many_unordered(keys, now, |index, item| match item {
                        Some(item) => {
                            hits += 1;
                            writer.answer(&rest[index], item, &mut replied);
                        }
                        None => writer.answer_missing(&rest[index], replied),
                    });
                }
            }
            counters.add(HerdCounter::Gets, gets as u64);
            from += gets;
        }
        counters.add(HerdCounter::Hits, hits);
    }
}
