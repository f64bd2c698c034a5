//! The server's engine: takes requests out of slots, does them on the cache as one batch, puts
//! replies into slots. No I/O, no clock, no threads; who calls it decides whose slots are looked at
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

use super::geometry::{AHEAD, APART_VALUE_AT, Geometry, LINE_BYTES};
use super::long::{Found, Long, refusal};
use super::message::{HEAD_BYTES, Head, Kind, reply_number};
use super::part::{PART_HEAD_BYTES, PartHead, part_bytes};
use super::slot::{self, Form, Read};
use super::tally::{Tally, What};
use crate::cache::{Cache, Error, Item, Millis};
use rackpool_core::seam::{Mem, Mutation};
use rackpool_hw::window::Window;

/// Requests of a batch: as many as the cache looks up together.
const BATCH: usize = 64;

/// Requests that a two-stage pipeline holds back: one whose bucket is on its way, one whose item
/// is.
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
    /// Whose.
    pub client: u32,
    /// Which window.
    pub window: u32,
    /// Where in the client's reply slots it is, in ordered form, and its length.
    pub place: (u64, u64),
}

/// The engine of one serving thread.
pub struct Engine {
    cache: Cache,
    /// Of requests.
    form: Form,
    geometry: Geometry,
    clients: Vec<Option<Slots>>,
    batch: Batch,
    pipeline: Pipeline,
    /// Requests at the begin of the batch that are in the pipeline already.
    begun: usize,
    /// Where the value of a reply is put together.
    reply: Box<[u8]>,
    /// Clients with a long value under way.
    long: Vec<u32>,
}

/// The slots of a client at a thread.
#[derive(Clone, Debug)]
pub struct ClientSlots {
    /// As many as it has windows.
    pub requests: Window,
    /// As many; in ordered form they may be the same.
    pub replies: Window,
    /// One for the reply to a request that says so ([`Head::apart`]), with the value from the
    /// second line on.
    pub apart: Option<Window>,
}

impl ClientSlots {
    /// These slots, and none for replies that come apart.
    pub fn new(requests: Window, replies: Window) -> ClientSlots {
        ClientSlots { requests, replies, apart: None }
    }
}

/// The slots of a client at this thread, and what is known of each.
struct Slots {
    memory: ClientSlots,
    windows: Box<[Last]>,
    /// The window that comes next.
    next: u32,
    /// Bytes of one.
    slot_bytes: u64,
    long: Option<Box<Long>>,
}

impl Slots {
    /// Asks for what comes next, where it is another processor that writes the requests and reads
    /// the replies: the slot of the window's reply, to write there, and a request that was made
    /// after it.
    #[inline]
    fn ask_ahead(&self, at: u64) {
        self.memory.replies.prefetch_write(at);
        self.memory.replies.prefetch_write(at + LINE_BYTES);
        let ahead = at + AHEAD * self.slot_bytes;
        if ahead < self.memory.requests.bytes() {
            self.memory.requests.prefetch(ahead);
        }
    }

    /// Requests are made window by window: behind a gap there is nothing.
    #[inline(always)]
    fn gather_ordered(
        &mut self,
        client: u32,
        geometry: &Geometry,
        batch: &mut Batch,
        tally: &Tally,
    ) {
        for _ in 0..self.windows.len() {
            let is_first = batch.taken.is_empty();
            let Some(to) = batch.room() else { return };
            let window = self.next;
            let at = u64::from(window) * self.slot_bytes;
            let last = self.windows[window as usize].number;
            let Some(read) = Form::Ordered.read(&self.memory.requests, at, geometry, last, to)
            else {
                return;
            };
            // Who makes one request at a time looks at its slot all the time.
            if !is_first {
                self.ask_ahead(at);
            }
            if let Some(taken) = self.take((client, window), read, geometry, tally) {
                batch.taken.push(taken);
            }
        }
    }

    #[inline(never)]
    fn gather_sealed(
        &mut self,
        client: u32,
        geometry: &Geometry,
        batch: &mut Batch,
        tally: &Tally,
        mutated: impl Fn(Mutation) -> bool,
    ) {
        let count = self.windows.len() as u32;
        let (mut window, mut left) = (self.next, count);
        // The first window that had nothing, and the last one that was looked at again.
        let (mut gap, mut again) = (None, None);
        while left > 0 {
            let Some(to) = batch.room() else { return };
            let at = u64::from(window) * self.slot_bytes;
            let last = self.windows[window as usize].number;
            if let Some((first, left_then)) = gap {
                // What was made before one that is here has come meanwhile, unless it was lost.
                if Form::Sealed.is_published(&self.memory.requests, at, geometry, last) {
                    (gap, again) = (None, Some(first));
                    (window, left) = (first, left_then);
                    continue;
                }
            } else if let Some(read) =
                Form::Sealed.read(&self.memory.requests, at, geometry, last, to)
            {
                if mutated(Mutation::ApplyRepeatedRequest) {
                    self.windows[window as usize].number = 0;
                }
                if let Some(taken) = self.take((client, window), read, geometry, tally) {
                    batch.taken.push(taken);
                }
                if mutated(Mutation::DropRepeatedRequest) {
                    batch.taken.pop_if(|taken| taken.work == Work::Repeat);
                }
            } else if again != Some(window) {
                gap = Some((window, left));
            }
            (window, left) = (self.after(window), left - 1);
        }
    }

    /// Where the reply to a request goes: where its head does, and where its value.
    #[inline(always)]
    fn reply_place(&self, taken: &Taken) -> (&Window, u64, u64) {
        if let Some(apart) = &self.memory.apart
            && taken.head.is_apart()
        {
            return (apart, 0, APART_VALUE_AT);
        }
        let at = u64::from(taken.window) * self.slot_bytes;
        (&self.memory.replies, at, at + HEAD_BYTES as u64)
    }

    /// Answers with an item that is copied into its slot; where the reply is. `None` if that cannot
    /// be.
    #[inline(always)]
    fn answer_in_place(
        &mut self,
        taken: &Taken,
        item: &Item<'_>,
        geometry: &Geometry,
    ) -> Option<(u64, u64)> {
        let (replies, at, value_at) = self.reply_place(taken);
        let bytes = item.copy_into(replies.bare(), value_at, geometry.value_bytes.into())?;
        slot::publish_head(replies, at, &found(taken, item, bytes));
        let place = (at, HEAD_BYTES as u64 + bytes);
        self.windows[taken.window as usize].reply = place;
        Some(place)
    }

    #[inline(always)]
    fn after(&self, window: u32) -> u32 {
        if window as usize + 1 == self.windows.len() { 0 } else { window + 1 }
    }

    /// What was read out of a client's window, if it is to be done or refused.
    #[inline(always)]
    fn take(
        &mut self,
        (client, window): (u32, u32),
        read: Read,
        geometry: &Geometry,
        tally: &Tally,
    ) -> Option<Taken> {
        let next = self.after(window);
        let last = &mut self.windows[window as usize].number;
        // What nearly all are: one check instead of all.
        if let Read::Message(mut head) = read
            && head.is_get()
            && head.number > *last
        {
            head.number = reply_number(head.number);
            (self.next, *last) = (next, head.number);
            if let Some(apart) = &self.memory.apart
                && head.is_apart()
            {
                // Its client does not look yet: `client/first_look.rs`.
                apart.prefetch_write(0);
                apart.prefetch_write(APART_VALUE_AT);
            }
            return Some(Taken { client, window, work: Work::Get, head });
        }
        let (head, work) = judge(read, geometry, *last, tally);
        // One that came again says nothing about which window is next.
        if head.number > *last {
            self.next = next;
        }
        let work = work?;
        *last = head.number;
        Some(Taken { client, window, work, head })
    }
}

/// The last request of a window.
#[derive(Clone, Copy, Default)]
struct Last {
    /// That of its reply.
    number: u64,
    /// Where its reply is.
    reply: (u64, u64),
}

/// What is to be done with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    Get,
    Put,
    Delete,
    PutPart,
    GetPart,
    /// Its reply again.
    Repeat,
    /// It is no request.
    Refuse,
}

struct Taken {
    client: u32,
    window: u32,
    work: Work,
    /// With the number of its reply.
    head: Head,
}

/// Requests that were taken and not done.
struct Batch {
    taken: Vec<Taken>,
    /// Their messages, one every `stride` bytes.
    bytes: Box<[u8]>,
    stride: usize,
}

impl Batch {
    /// Where the next message goes: no longer than a slot.
    #[inline(always)]
    fn room(&mut self) -> Option<&mut [u8]> {
        let count = self.taken.len();
        (count < BATCH).then(|| &mut self.bytes[count * self.stride..][..self.stride])
    }

    #[inline(always)]
    fn message(&self, index: usize) -> (&[u8], &[u8]) {
        let head = &self.taken[index].head;
        let message = &self.bytes[index * self.stride + HEAD_BYTES..];
        let (key, rest) = message.split_at(head.key_bytes());
        (key, &rest[..head.value_bytes()])
    }

    /// Drops the first `count` requests; what stays moves to the front.
    fn drop_first(&mut self, count: usize) {
        self.taken.drain(..count);
        let stride = self.stride;
        self.bytes.copy_within(count * stride..(count + self.taken.len()) * stride, 0);
    }
}

impl Engine {
    /// An engine for clients 0 to `clients` - 1 with slots of these sizes, which takes requests in
    /// this form. Replies are in ordered form.
    pub fn new(cache: Cache, form: Form, geometry: Geometry, clients: u32) -> Engine {
        let stride = geometry.message_bytes().next_multiple_of(64);
        let batch = Batch {
            taken: Vec::with_capacity(BATCH),
            bytes: vec![0; stride * BATCH].into(),
            stride,
        };
        let clients = (0..clients).map(|_| None).collect();
        let reply = vec![0; geometry.value_bytes as usize].into();
        let (pipeline, begun) = (Pipeline::default(), 0);
        let long = Vec::new();
        Engine { cache, form, geometry, clients, batch, pipeline, begun, reply, long }
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
        let slot_bytes = self.geometry.slot_bytes();
        let ClientSlots { requests, replies, apart } = &memory;
        let windows = requests.bytes() / slot_bytes;
        let bytes = windows * slot_bytes;
        assert!(
            windows > 0
                && bytes == requests.bytes()
                && bytes == replies.bytes()
                && apart.as_ref().is_none_or(|apart| apart.bytes() == self.geometry.apart_bytes()),
            "whole slots"
        );
        // Here rather than at the first request.
        let _ = (replies.bare(), apart.as_ref().map(Window::bare));
        if self.form == Form::Ordered {
            let _ = requests.bare();
        }
        let windows = (0..windows).map(|_| Last::default()).collect();
        self.leave(client);
        self.clients[client as usize] =
            Some(Slots { memory, windows, next: 0, slot_bytes, long: None });
    }

    /// A client ends: its slots are not touched any more when this returns. Requests of it that
    /// were taken and not done are not done.
    ///
    /// # Panics
    /// If there is no such client.
    pub fn leave(&mut self, client: u32) {
        self.clients[client as usize] = None;
        self.long.retain(|other| *other != client);
        for taken in self.batch.taken.iter_mut().filter(|taken| taken.client == client) {
            taken.work = Work::Repeat;
        }
    }

    /// Whether long values are under way.
    #[inline]
    pub fn holds_long(&self) -> bool {
        !self.long.is_empty()
    }

    /// Gives up long values of which nothing was heard for 30 s: their memory is the cache's again.
    pub fn lapse(&mut self, now: Millis) {
        let clients = &mut self.clients;
        self.long.retain(|client| {
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
        let Some(Some(slots)) = self.clients.get(client as usize) else { return false };
        let is_published = |window: usize| {
            let at = window as u64 * self.geometry.slot_bytes();
            let last = slots.windows[window].number;
            self.form.is_published(&slots.memory.requests, at, &self.geometry, last)
        };
        match self.form {
            Form::Ordered => is_published(slots.next as usize),
            Form::Sealed => (0..slots.windows.len()).any(is_published),
        }
    }

    /// Takes the new requests of a client, as long as there is room; how many. A client that is not
    /// there has none.
    #[inline(always)]
    pub fn gather(&mut self, client: u32, tally: &Tally) -> usize {
        self.gather_in(client, tally, |_| false)
    }

    /// The same in a world that may leave a safeguard out.
    #[inline(always)]
    pub(super) fn gather_in(
        &mut self,
        client: u32,
        tally: &Tally,
        mutated: impl Fn(Mutation) -> bool,
    ) -> usize {
        let Engine { form, geometry, clients, batch, .. } = self;
        let Some(Some(slots)) = clients.get_mut(client as usize) else { return 0 };
        let before = batch.taken.len();
        match form {
            Form::Ordered => slots.gather_ordered(client, geometry, batch, tally),
            Form::Sealed => slots.gather_sealed(client, geometry, batch, tally, &mutated),
        }
        batch.taken.len() - before
    }

    /// Does what was gathered; `replied` is told of every reply, in order. Nothing of the batch is
    /// left when this returns, but for two requests in a two-stage pipeline.
    #[inline(always)]
    pub fn run(&mut self, now: Millis, tally: &Tally, replied: &mut impl FnMut(Replied)) {
        if self.pipeline == Pipeline::TwoStage {
            return self.run_staged(now, tally, replied);
        }
        match &self.batch.taken[..] {
            [] => return,
            [Taken { work: Work::Get, .. }] => self.run_get(0, now, tally, replied),
            _ => self.run_many(now, tally, replied),
        }
        tally.add(What::Batches, 1);
        self.batch.taken.clear();
    }

    /// Each new request goes into the pipeline, whose oldest one leaves it.
    #[inline(never)]
    fn run_staged(&mut self, now: Millis, tally: &Tally, replied: &mut dyn FnMut(Replied)) {
        let count = self.batch.taken.len();
        for new in self.begun..count {
            self.cache.ask_bucket(self.batch.message(new).0);
            if new >= 1 {
                self.cache.ask_item(self.batch.message(new - 1).0);
            }
            if new >= STAGES {
                self.finish(new - STAGES, now, tally, replied);
            }
        }
        self.begun = count.min(STAGES);
        self.batch.drop_first(count - self.begun);
        tally.add(What::Batches, 1);
    }

    /// Moves the requests in the pipeline on as if another one had come, which is none: HERD's way
    /// to drain it when nobody asks.
    pub fn no_op(&mut self, now: Millis, tally: &Tally, replied: &mut dyn FnMut(Replied)) {
        if self.begun == 0 {
            return;
        }
        self.cache.ask_item(self.batch.message(self.begun - 1).0);
        self.finish(0, now, tally, replied);
        self.batch.drop_first(1);
        self.begun -= 1;
    }

    /// Does one request of the batch.
    fn finish(
        &mut self,
        index: usize,
        now: Millis,
        tally: &Tally,
        replied: &mut dyn FnMut(Replied),
    ) {
        if self.batch.taken[index].work == Work::Get {
            return self.run_get(index, now, tally, &mut |reply| replied(reply));
        }
        let Engine { cache, geometry, clients, batch, reply, long, .. } = self;
        let mut answers = Answers { geometry, clients, reply, replied, long };
        change(cache, batch, index, now, tally, &mut answers);
    }

    /// Does one look-up by itself.
    #[inline(always)]
    fn run_get(
        &mut self,
        index: usize,
        now: Millis,
        tally: &Tally,
        replied: &mut impl FnMut(Replied),
    ) {
        let Engine { cache, geometry, clients, batch, reply, long, .. } = self;
        let taken = &batch.taken[index];
        let mut place = None;
        let found = cache.get(batch.message(index).0, now, |item| {
            if let Some(Some(slots)) = clients.get_mut(taken.client as usize) {
                place = slots.answer_in_place(taken, item, geometry);
            }
            if place.is_none() {
                let mut answers = Answers { geometry, clients, reply, replied, long };
                answers.item_apart(taken, item);
            }
        });
        if let Some(place) = place {
            replied(Replied { client: taken.client, window: taken.window, place });
        } else if found.is_none() {
            let mut answers = Answers { geometry, clients, reply, replied, long };
            answers.put(taken, Kind::Missing, 0);
        }
        tally.add(What::Gets, 1);
        tally.add(What::Hits, u64::from(found.is_some()));
    }

    #[inline(never)]
    fn run_many(&mut self, now: Millis, tally: &Tally, replied: &mut dyn FnMut(Replied)) {
        let Engine { cache, geometry, clients, batch, reply, long, .. } = self;
        let count = batch.taken.len();
        let mut keys: [&[u8]; BATCH] = [&[]; BATCH];
        let mut changes = false;
        for (index, key) in keys[..count].iter_mut().enumerate() {
            *key = batch.message(index).0;
            changes |= batch.taken[index].work != Work::Get;
        }
        if changes && count > 1 {
            cache.prefetch(&keys[..count]);
        }
        let mut answers = Answers { geometry, clients, reply, replied, long };
        let (mut from, mut hits) = (0, 0);
        while from < count {
            let rest = &batch.taken[from..];
            let gets = rest.iter().take_while(|taken| taken.work == Work::Get).count();
            match gets {
                0 => {
                    change(cache, batch, from, now, tally, &mut answers);
                    from += 1;
                }
                _ => {
                    let keys = &keys[from..from + gets];
                    // Each answer has a place of its own.
                    cache.get_many_unordered(keys, now, |index, item| match item {
                        Some(item) => {
                            hits += 1;
                            answers.item(&rest[index], item);
                        }
                        None => answers.put(&rest[index], Kind::Missing, 0),
                    });
                }
            }
            tally.add(What::Gets, gets as u64);
            from += gets;
        }
        tally.add(What::Hits, hits);
    }
}

/// The head of what was read out of a slot, with the number of its reply, and what to do with it,
/// if anything. `last` is the number of the window's last reply.
#[inline(never)]
fn judge(read: Read, geometry: &Geometry, last: u64, tally: &Tally) -> (Head, Option<Work>) {
    let (mut head, kind) = match read {
        Read::Message(head) => (head, head.checked(geometry).filter(|kind| kind.is_request())),
        Read::Malformed(number) => (Head::new(number, Kind::Malformed), None),
    };
    let number = reply_number(head.number);
    let Some(kind) = kind else {
        tally.add(What::Malformed, 1);
        // A number tells which request is refused; without one nobody waits.
        let work = (number > last).then_some(Work::Refuse);
        return (Head::new(number, Kind::Malformed).apart(head.is_apart()), work);
    };
    head.number = number;
    if number <= last {
        tally.add(What::Repeated, 1);
        return (head, (number == last).then_some(Work::Repeat));
    }
    let work = match kind {
        Kind::Put => Work::Put,
        Kind::Delete => Work::Delete,
        Kind::PutPart => Work::PutPart,
        Kind::GetPart => Work::GetPart,
        _ => Work::Get,
    };
    (head, Some(work))
}

/// The head of the answer with an item of so many bytes.
#[inline(always)]
fn found(taken: &Taken, item: &Item<'_>, bytes: u64) -> Head {
    let head = Head::new(taken.head.number, Kind::Found).with_lengths(0, bytes as u16);
    head.with_flags(item.flags()).with_extra(item.expires())
}

/// Where replies go.
struct Answers<'a> {
    geometry: &'a Geometry,
    clients: &'a mut [Option<Slots>],
    reply: &'a mut [u8],
    replied: &'a mut dyn FnMut(Replied),
    long: &'a mut Vec<u32>,
}

impl Answers<'_> {
    #[inline(always)]
    fn item(&mut self, taken: &Taken, item: &Item<'_>) {
        // It may have left meanwhile.
        let Some(slots) = &mut self.clients[taken.client as usize] else { return };
        match slots.answer_in_place(taken, item, self.geometry) {
            Some(place) => self.tell(taken, place),
            None => self.item_apart(taken, item),
        }
    }

    /// Answers with an item whose value is put together apart from the slot.
    #[inline(never)]
    fn item_apart(&mut self, taken: &Taken, item: &Item<'_>) {
        let bytes = item.len();
        if bytes > u64::from(self.geometry.value_bytes) {
            return self.put(taken, Kind::TooLarge, bytes);
        }
        let to = &mut self.reply[..bytes as usize];
        if let Err(error) = item.copy_to(0, to) {
            let (kind, extra) = refusal(&error);
            return self.put(taken, kind, extra);
        }
        self.publish(taken, found(taken, item, bytes));
    }

    #[inline(never)]
    fn put(&mut self, taken: &Taken, kind: Kind, extra: u64) {
        self.publish(taken, Head::new(taken.head.number, kind).with_extra(extra));
    }

    /// Refuses a value of so many bytes.
    fn too_long(&mut self, taken: &Taken, bytes: u32, max_bytes: u64) {
        let head = Head::new(taken.head.number, Kind::TooLong);
        self.publish(taken, head.with_flags(bytes).with_extra(max_bytes));
    }

    #[inline]
    fn publish(&mut self, taken: &Taken, head: Head) {
        // It may have left meanwhile.
        let Some(slots) = &mut self.clients[taken.client as usize] else { return };
        let bytes = head.value_bytes();
        let (replies, at, value_at) = slots.reply_place(taken);
        replies.copy_in(value_at, &self.reply[..bytes]);
        slot::publish_head(replies, at, &head);
        let place = (at, (HEAD_BYTES + bytes) as u64);
        slots.windows[taken.window as usize].reply = place;
        self.tell(taken, place);
    }

    /// Notes that a client has a long value under way.
    fn note_long(&mut self, client: u32) {
        if !self.long.contains(&client) {
            self.long.push(client);
        }
    }

    /// Takes a part of a long value.
    fn put_part(&mut self, cache: &Cache, taken: &Taken, message: (&[u8], &[u8]), now: Millis) {
        let Some(slots) = &mut self.clients[taken.client as usize] else { return };
        let (key, value) = message;
        let Some((head, part)) = PartHead::read(value) else {
            return self.put(taken, Kind::Malformed, 0);
        };
        let stored_with = (taken.head.flags(), taken.head.extra);
        let (kind, extra) = Long::put(&mut slots.long, cache, (key, &head, part), stored_with, now);
        self.note_long(taken.client);
        self.put(taken, kind, extra);
    }

    /// Reads a part of a long value and answers with it.
    fn get_part(&mut self, cache: &Cache, taken: &Taken, message: (&[u8], &[u8]), now: Millis) {
        let Some(slots) = &mut self.clients[taken.client as usize] else { return };
        let (key, value) = message;
        let Some((head, _)) = PartHead::read(value) else {
            return self.put(taken, Kind::Malformed, 0);
        };
        let (head_to, part_to) = self.reply.split_at_mut(PART_HEAD_BYTES);
        let part_to = &mut part_to[..part_bytes(self.geometry)];
        let head = match Long::get(&mut slots.long, cache, (key, &head), part_to, now) {
            Ok(Found { head, flags, expires, part }) => {
                head_to.copy_from_slice(&head.bytes());
                let value_bytes = (PART_HEAD_BYTES + part.len()) as u16;
                let head = Head::new(taken.head.number, Kind::Part).with_lengths(0, value_bytes);
                head.with_flags(flags).with_extra(expires)
            }
            Err((kind, extra)) => Head::new(taken.head.number, kind).with_extra(extra),
        };
        self.note_long(taken.client);
        self.publish(taken, head);
    }

    /// Tells of the reply that is there already.
    fn repeat(&mut self, taken: &Taken) {
        let Some(slots) = &self.clients[taken.client as usize] else { return };
        let place = slots.windows[taken.window as usize].reply;
        if place != (0, 0) {
            self.tell(taken, place);
        }
    }

    fn tell(&mut self, taken: &Taken, place: (u64, u64)) {
        (self.replied)(Replied { client: taken.client, window: taken.window, place });
    }
}

/// Does what is no look-up.
fn change(
    cache: &Cache,
    batch: &Batch,
    index: usize,
    now: Millis,
    tally: &Tally,
    answers: &mut Answers<'_>,
) {
    let taken = &batch.taken[index];
    let (key, value) = batch.message(index);
    let (kind, extra) = match taken.work {
        Work::Put => {
            tally.add(What::Puts, 1);
            match cache.set(key, value, taken.head.flags(), taken.head.extra, now) {
                Ok(_) => (Kind::Stored, 0),
                Err(Error::TooLarge { max_bytes, .. }) => {
                    tally.add(What::Refused, 1);
                    return answers.too_long(taken, value.len() as u32, max_bytes);
                }
                Err(error) => refusal(&error),
            }
        }
        Work::Delete => {
            tally.add(What::Deletes, 1);
            let found = cache.remove(key, now);
            (if found { Kind::Deleted } else { Kind::Missing }, 0)
        }
        Work::PutPart => {
            tally.add(What::Parts, 1);
            return answers.put_part(cache, taken, (key, value), now);
        }
        Work::GetPart => {
            tally.add(What::Parts, 1);
            return answers.get_part(cache, taken, (key, value), now);
        }
        Work::Refuse => (Kind::Malformed, 0),
        Work::Repeat | Work::Get => return answers.repeat(taken),
    };
    if matches!(kind, Kind::NoMemory | Kind::Unreachable) {
        tally.add(What::Refused, 1);
    }
    answers.put(taken, kind, extra);
}
