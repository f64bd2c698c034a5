//! One thread's part of a server: the look-ups and plain changes gathered from one read of a
//! connection, the cache on which they are done together, and the answers on their way to a client.
//! A [`Core`] lends itself to one connection at a time.
//!
//! The cache fetches the memory of a whole batch before it looks at the first key, which hides most
//! of the waiting. A batch holds places in the input, no copies; its owner flushes it before any
//! other command runs, so that answers stay in order. [`Output`] holds bytes of our own, and large
//! values that stay in the cache's memory until they are sent; it makes no system call: `worker.rs`
//! sends what [`Output::pieces`] names and says how much went.

use super::bytes::push_u64;
use super::clients::ClientInfo;
use super::commands::{self, CommandId};
use super::counters::{Count, Counters, TimeBucket};
use super::latency::{self, LatencySample};
use super::outcome::{StoreOutcome, Verb, stored_text};
use super::pause::Pause;
use super::resp::{self, Args, Version, push_bulk_head, push_error, push_null};
use super::scripts::ScriptState;
use super::shared::Shared;
use super::slowlog::SlowCommand;
use super::text::{Get, WordIter};
use super::timer::CommandTimer;
use super::transactions::Queue;
use super::watch::EventLog;
use crate::cache::{Cache, Error, Item, Millis, PartitionShare, Pinned, Put, Section};
use crate::clock::{Times, seconds_left};
use crate::constants::{BATCH_KEYS_MAX, PIN_BYTES_MIN};
use rackpool_mem::window::Piece;
use std::sync::Arc;

pub struct Core {
    pub shared: Arc<Shared>,
    /// The cache, as the database of the connection that is served.
    pub db: Cache,
    /// Which one that is, and the version of the databases when `db` was made.
    db_is: (u8, u64),
    /// The one in which `db` is: see [`Core::atomically`].
    pub section: Option<Section>,
    pub thread: usize,
    /// Now, by the items' clock; read once for each wake-up.
    pub now: Millis,
    pub out: Output,
    pub args: Args,
    pub batch: LookupBatch,
    /// Memory for the commands of the next transaction.
    pub spare_queue: Queue,
    /// Stores that wait to be done in a batch; never while look-ups wait.
    pub sets: Vec<PendingSet>,
    /// Whether something may be left to do for what was flushed or has expired.
    pub has_to_tidy: bool,
    /// Whether that is so for the shares of other threads, too.
    pub tidies_all: bool,
    /// The clock of the read that brought the running commands.
    pub timer: CommandTimer,
    /// What commands note for watchers.
    pub log: EventLog,
    pub scratch: Vec<u8>,
    /// What runs scripts here, once there was one.
    pub scripts: Option<Box<ScriptState>>,
    /// Plain stores of RESP since the counters last heard of them.
    resp_sets: u64,
    /// Whether commands of RESP are to be looked at one by one before they run.
    pub is_watched: bool,
    pub pause: Pause,
}

impl Core {
    pub fn new(shared: Arc<Shared>, thread: usize, now: Millis) -> Self {
        let version = shared.cache.databases_version();
        Self {
            db: shared.cache.in_database(0),
            db_is: (0, version),
            section: None,
            shared,
            thread,
            now,
            out: Output::default(),
            args: Args::default(),
            batch: LookupBatch::default(),
            spare_queue: Queue::default(),
            sets: Vec::new(),
            has_to_tidy: false,
            tidies_all: false,
            timer: CommandTimer::default(),
            log: EventLog::default(),
            scratch: Vec::new(),
            scripts: None,
            resp_sets: 0,
            is_watched: false,
            pause: Pause::default(),
        }
    }

    pub fn count(&self, count: Count) {
        self.add(count, 1);
    }

    pub fn add(&self, count: Count, by: u64) {
        self.counters().add(count, by);
    }

    pub fn counters(&self) -> &Counters {
        &self.shared.counters[self.thread]
    }

    /// Counts how long commands took together.
    pub fn took(&self, commands: u64, ns: u64) -> TimeBucket {
        self.counters().took(commands, ns)
    }

    /// Counts plain look-ups and stores of RESP that took so long together, each as its share;
    /// which of the two there were, look-ups if both.
    pub fn took_plain(&mut self, commands: u64, ns: u64, bucket: TimeBucket) -> CommandId {
        let sets = std::mem::take(&mut self.resp_sets);
        let sets_ns = ns / commands.max(1) * sets;
        if sets > 0 {
            self.counters().ran(commands::SET, sets, sets_ns, bucket);
        }
        if sets == commands {
            return commands::SET;
        }
        self.counters().ran(commands::GET, commands - sets, ns - sets_ns, bucket);
        commands::GET
    }

    pub fn note_slow<'a>(
        &self,
        client: &ClientInfo,
        took_ns: u64,
        words: impl Iterator<Item = &'a [u8]>,
    ) {
        let took_us = took_ns / 1000;
        if took_us < self.shared.tunables.noted_us() {
            return;
        }
        let mut words = words.peekable();
        let name = words.peek().copied().unwrap_or_default();
        self.note_latency(took_us / 1000, name);
        if self.shared.tunables.slow_us().is_none_or(|slow_us| took_us < slow_us) {
            return;
        }
        self.count(Count::Slow);
        let mut log = self.shared.slow();
        let command = SlowCommand {
            at_s: self.shared.wall(self.now) / 1000,
            took_us,
            client: client.addr.to_string(),
            name: String::from_utf8_lossy(&client.name).into_owned(),
            ..SlowCommand::default()
        };
        log.push(command, words);
    }

    /// A command of this name took so long: an event, if it is as long as one.
    #[cold]
    fn note_latency(&self, took_ms: u64, name: &[u8]) {
        if self.shared.tunables.latency_ms().is_none_or(|latency_ms| took_ms < latency_ms) {
            return;
        }
        let is_fast = commands::find(name).is_some_and(CommandId::is_fast);
        let kind = if is_fast { latency::FAST_COMMAND } else { latency::COMMAND };
        let at_s = self.shared.wall(self.now) / 1000;
        self.shared.latency().note(kind, LatencySample { at_s, took_ms });
    }

    /// Looks whether commands are to be held back or told; `is_watched` says so.
    pub fn look_at_watchers(&mut self) {
        self.pause = self.shared.pause.get();
        self.is_watched = self.pause.left(self.now) > 0 || self.shared.monitors.are_any();
    }

    pub fn cache(&self) -> &Cache {
        &self.db
    }

    /// Commands are on this database from now on.
    #[inline]
    pub fn use_database(&mut self, number: u8) {
        let version = self.shared.cache.databases_version();
        if self.db_is != (number, version) {
            (self.db, self.db_is) = (self.shared.cache.in_database(number), (number, version));
            self.db.enter_section(self.section.as_ref());
        }
    }

    pub fn database(&self) -> u8 {
        self.db_is.0
    }

    /// Whether `db` is this database, as of this version of the databases.
    pub fn is_on(&self, number: u8, version: u64) -> bool {
        self.db_is == (number, version)
    }

    /// Empties the cache; what that leaves to do is done in turns.
    pub fn flush(&mut self) {
        self.cache().flush_all();
        self.tidy_all();
    }

    /// As [`Core::flush`], of the database alone on which commands are.
    pub fn flush_database(&mut self) {
        let (number, _) = self.db_is;
        self.cache().flush_database(number, self.now);
        self.use_database(number);
        self.tidy_all();
    }

    /// Another space may be the database on which commands are.
    pub fn swap_databases(&mut self, one: u8, other: u8) {
        self.cache().swap_databases(one, other, self.now);
        self.use_database(self.db_is.0);
    }

    /// The whole cache is to be tidied by this thread: others may sleep.
    pub fn tidy_all(&mut self) {
        (self.has_to_tidy, self.tidies_all) = (true, true);
    }

    /// Goes on, for as long as a turn, with what is left to do for what was flushed or has expired
    /// in this thread's share of the cache.
    pub fn tidy(&mut self) {
        let count = self.shared.settings.threads.max(1);
        let own = PartitionShare { index: self.thread, count };
        let share = if self.tidies_all { PartitionShare::ALL } else { own };
        self.timer.others_wait = false;
        self.timer.begin_turn();
        self.has_to_tidy = self.cache().tidy(share, self.now, || !self.timer.is_turn_over());
        self.tidies_all &= self.has_to_tidy;
    }

    /// Sees what is watched from now on.
    pub fn look_at_watch(&mut self) {
        self.log.begin(self.shared.watch.watched(), self.shared.wall(self.now));
    }

    /// Tells watchers which items of database 0 went for want of room.
    pub fn tell_of_evictions(&mut self) {
        let (cache, times) = (self.shared.cache.in_database(0), self.times());
        let dropped = cache.take_evicted(|item| self.log.evicted(item, times));
        self.log.drop_events(dropped);
        self.log.publish(&self.shared.watch, 0);
    }

    pub fn times(&self) -> Times {
        Times { now: self.now, wall: self.shared.wall(self.now) }
    }

    /// Looks up keys that lie in `input`, or lets them wait in the batch. The keys that are left
    /// if that is full, or if the client is to take answers first.
    pub fn text_get<'a>(&mut self, get: &Get<'a>, input: &[u8]) -> Option<WordIter<'a>> {
        let base = input.as_ptr() as usize;
        let mut keys = get.keys;
        let mut key = keys.next();
        while let Some(this) = key {
            let left = keys;
            key = keys.next();
            let format = ReplyFormat::Text { cas: get.cas, last: key.is_none() };
            self.batch.push(this.as_ptr() as usize - base, this.len(), format);
            if key.is_some() && self.batch.len() >= BATCH_KEYS_MAX {
                return Some(left);
            }
        }
        None
    }

    /// Does the stores that wait; their values lie in `input`.
    fn flush_sets<const IS_WATCHED: bool>(&mut self, input: &[u8]) {
        let waiting = std::mem::take(&mut self.sets);
        let slice =
            |(start, len): (u32, u32)| &input[start as usize..start as usize + len as usize];
        let put = |index: usize| {
            let PendingSet { key, value, flags, expires, .. } = waiting[index];
            Put { key: slice(key), value: slice(value), flags, expires }
        };
        let (out, counters) = (&mut self.out.bytes, &self.shared.counters[self.thread]);
        let (log, shared, now) = (&mut self.log, &self.shared, self.now);
        self.db.set_many(waiting.len(), put, now, |index, stored| {
            if IS_WATCHED && waiting[index].answer != SetReply::Resp {
                let Put { key, value, expires, .. } = put(index);
                let outcome = match &stored {
                    Ok(cas) => StoreOutcome::Stored(*cas),
                    Err(error) => StoreOutcome::of(error),
                };
                let ttl_s = seconds_left(expires, Times { now, wall: shared.wall(now) });
                log.stored(key, Verb::Set, outcome, ttl_s, value.len() as u64);
            }
            let (answer, error) = (waiting[index].answer, stored.err());
            if let Some(count) = answer_set(out, answer, error.as_ref()) {
                counters.add(count, 1);
                if let (SetReply::Resp, Some(error)) = (answer, &error) {
                    counters.failed(commands::SET);
                    shared.errors.count(resp::failed(error).as_bytes());
                }
            }
        });
        let texts = waiting.iter().filter(|set| set.answer != SetReply::Resp).count();
        self.add(Count::CmdSet, texts as u64);
        self.resp_sets += (waiting.len() - texts) as u64;
        self.sets = waiting;
        self.sets.clear();
    }

    /// Does the look-ups and changes that wait; their keys lie in `input`.
    pub fn flush_batch(&mut self, input: &[u8]) {
        if !self.sets.is_empty() {
            match self.log.watches_commands() {
                true => self.flush_sets::<true>(input),
                false => self.flush_sets::<false>(input),
            }
        }
        if !self.batch.is_empty() {
            match self.log.watches_commands() {
                true => self.flush_lookups::<true>(input),
                false => self.flush_lookups::<false>(input),
            }
        }
    }

    /// Does the look-ups that wait.
    fn flush_lookups<const IS_WATCHED: bool>(&mut self, input: &[u8]) {
        let waiting = std::mem::take(&mut self.batch.keys);
        let mut hits = 0;
        let mut texts = 0;
        let mut text_hits = 0;
        for some in waiting.chunks(BATCH_KEYS_MAX) {
            let mut keys = [&[][..]; BATCH_KEYS_MAX];
            for (key, (start, len, _)) in keys.iter_mut().zip(some) {
                *key = &input[*start as usize..*start as usize + *len as usize];
            }
            let keys = &keys[..some.len()];
            let (out, log) = (&mut self.out, &mut self.log);
            self.db.get_many(keys, self.now, |index, item| {
                let (.., form) = some[index];
                match form {
                    ReplyFormat::Text { cas, last } => {
                        let shown =
                            item.is_some_and(|it| push_text_item(out, keys[index], it, cas));
                        texts += 1;
                        text_hits += usize::from(shown);
                        hits += usize::from(shown);
                        if IS_WATCHED {
                            log.fetched(keys[index], item.filter(|_| shown).map(|it| it.len()));
                        }
                        if last {
                            out.bytes.extend_from_slice(b"END\r\n");
                        }
                    }
                    ReplyFormat::Resp(version) => {
                        hits += usize::from(push_resp_item(out, item, version));
                    }
                }
            });
        }
        let resp = waiting.len() - texts;
        self.add(Count::CmdGet, texts as u64);
        self.add(Count::GetHits, text_hits as u64);
        self.add(Count::GetMisses, (texts - text_hits) as u64);
        self.add(Count::KeyHits, (hits - text_hits) as u64);
        self.add(Count::KeyMisses, (resp + text_hits - hits) as u64);
        self.batch.keys = waiting;
        self.batch.keys.clear();
    }
}

/// The format of the answer to one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyFormat {
    /// `VALUE key flags len`, nothing if it is not there.
    Text {
        cas: bool,
        /// `END` behind it.
        last: bool,
    },
    /// A bulk string or null.
    Resp(Version),
}

#[derive(Debug, Default)]
pub struct LookupBatch {
    /// First byte and length of each key in the input, and what is wanted.
    keys: Vec<(u32, u32, ReplyFormat)>,
}

impl LookupBatch {
    pub fn push(&mut self, start: usize, len: usize, form: ReplyFormat) {
        self.keys.push((start as u32, len as u32, form));
    }

    pub fn len(&self) -> usize {
        self.keys.len()
    }

    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }
}

/// An unconditional store that waits to be done in a batch.
#[derive(Clone, Copy, Debug)]
pub struct PendingSet {
    /// First byte and length of the key in the input.
    pub key: (u32, u32),
    /// First byte and length of the value in the input.
    pub value: (u32, u32),
    pub flags: u32,
    pub expires: Millis,
    pub answer: SetReply,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetReply {
    Resp,
    Text,
    Quiet,
}

/// Answers that a value was stored, or why not; what that counts as.
#[inline(always)]
fn answer_set(out: &mut Vec<u8>, answer: SetReply, error: Option<&Error>) -> Option<Count> {
    match (answer, error) {
        (SetReply::Resp, None) => out.extend_from_slice(b"+OK\r\n"),
        (SetReply::Text, None) => out.extend_from_slice(b"STORED\r\n"),
        (SetReply::Quiet, None) => {}
        (_, Some(error)) => {
            let outcome = StoreOutcome::of(error);
            match answer {
                SetReply::Resp => push_error(out, resp::failed(error).as_bytes()),
                SetReply::Text => {
                    out.extend_from_slice(stored_text(outcome).as_bytes());
                    out.extend_from_slice(b"\r\n");
                }
                SetReply::Quiet => {}
            }
            let too_large = outcome == StoreOutcome::TooLarge;
            return Some(if too_large { Count::TooLarge } else { Count::NoMemory });
        }
    }
    None
}

/// Appends `VALUE key flags len [cas]`, the value and a line end. `false`, and nothing, if the
/// value cannot be read: its tier failed, or it is no string.
pub fn push_text_item(out: &mut Output, key: &[u8], item: &Item<'_>, cas: bool) -> bool {
    let (len, start) = (item.len(), out.bytes.len());
    let bytes = &mut out.bytes;
    bytes.extend_from_slice(b"VALUE ");
    bytes.extend_from_slice(key);
    bytes.push(b' ');
    push_u64(bytes, u64::from(item.flags()));
    bytes.push(b' ');
    push_u64(bytes, len);
    if cas {
        bytes.push(b' ');
        push_u64(bytes, item.cas());
    }
    bytes.extend_from_slice(b"\r\n");
    if let Err(error) = push_value(out, item, len) {
        out.fail(start, &error);
        return false;
    }
    out.bytes.extend_from_slice(b"\r\n");
    true
}

/// Appends the value as a bulk string, or null, or why its tier failed. Whether it is the value.
pub fn push_resp_item(out: &mut Output, item: Option<&Item<'_>>, version: Version) -> bool {
    let Some(item) = item else {
        push_null(&mut out.bytes, version);
        return false;
    };
    let (len, start) = (item.len(), out.bytes.len());
    push_bulk_head(&mut out.bytes, len);
    if let Err(error) = push_value(out, item, len) {
        out.fail(start, &error);
        match error {
            Error::WrongType if out.has_nulls_for_types => push_null(&mut out.bytes, version),
            error => push_error(&mut out.bytes, resp::failed(&error).as_bytes()),
        }
        return false;
    }
    out.bytes.extend_from_slice(b"\r\n");
    true
}

/// Appends a value: a copy, or a reference to it if it is long.
///
/// # Errors
/// [`Error::Tier`], [`Error::WrongType`]: nothing was appended.
#[inline]
pub fn push_value(out: &mut Output, item: &Item<'_>, len: u64) -> Result<(), Error> {
    if len >= PIN_BYTES_MIN {
        out.push_pinned(item.pin()?, item.is_far());
        return Ok(());
    }
    item.append_to(&mut out.bytes)
}

/// Bytes of a value in another tier that lie here while it is sent, at most.
const FAR_BYTES_MAX: u64 = 128 << 10;

#[derive(Debug, Default)]
pub struct Output {
    /// Copied bytes, between the pinned values.
    pub bytes: Vec<u8>,
    pins: Vec<PinnedValue>,
    /// Copied bytes that were sent.
    sent: usize,
    /// Values that were sent whole.
    pins_sent: usize,
    /// Bytes of the value after those that were sent.
    pin_sent: u64,
    pinned_bytes: u64,
    failed: u64,
    /// A value that is no string is answered as if it were not there, and not with an error.
    pub has_nulls_for_types: bool,
}

#[derive(Debug)]
struct PinnedValue {
    /// It stands before the byte of this index.
    at: usize,
    len: u64,
    /// It lies in another tier of memory.
    is_far: bool,
    value: Pinned,
}

impl Output {
    /// Bytes that were not sent yet.
    pub fn len(&self) -> u64 {
        let own = (self.bytes.len() - self.sent) as u64;
        own + self.pinned_bytes
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Memory that it takes beside the cache's, bytes.
    pub fn held_bytes(&self) -> u64 {
        let far = self.pins.iter().filter(|pin| pin.is_far);
        let far: u64 = far.map(|pin| pin.len.min(FAR_BYTES_MAX)).sum();
        (self.bytes.capacity() + self.pins.capacity() * size_of::<PinnedValue>()) as u64 + far
    }

    /// Memory of the cache that it keeps from being used for anything else, bytes.
    pub fn kept_bytes(&self) -> u64 {
        self.pins.iter().filter(|pin| !pin.is_far).map(|pin| pin.len).sum()
    }

    /// Puts a value behind what there is, without a copy; `is_far`: it lies in another tier.
    pub fn push_pinned(&mut self, value: Pinned, is_far: bool) {
        let (at, len) = (self.bytes.len(), value.len());
        self.pinned_bytes += len;
        self.pins.push(PinnedValue { at, len, is_far, value });
    }

    /// All that is to be sent, if no value of the cache is among it.
    pub fn own_bytes(&self) -> Option<&[u8]> {
        self.pins.is_empty().then(|| &self.bytes[self.sent..])
    }

    /// Gets what [`Output::pieces`] names first where it lies in another tier of memory.
    ///
    /// # Errors
    /// The tier failed: what was begun cannot be sent whole.
    pub fn load(&mut self) -> Result<(), Error> {
        match self.pins.get_mut(self.pins_sent) {
            Some(PinnedValue { at, value, .. }) if *at == self.sent => {
                value.load(self.pin_sent).inspect_err(|_| self.failed += 1)
            }
            _ => Ok(()),
        }
    }

    /// Calls `piece` with what is to be sent, in order, until it says that it has enough.
    pub fn pieces<'a>(&'a self, mut piece: impl FnMut(Piece<'a>) -> bool) {
        let mut from = self.sent;
        let mut skip = self.pin_sent;
        for PinnedValue { at, value, .. } in &self.pins[self.pins_sent..] {
            if *at > from && !piece(Piece::Private(&self.bytes[from..*at])) {
                return;
            }
            from = *at;
            if !value.pieces(std::mem::take(&mut skip), &mut piece) {
                return;
            }
        }
        if from < self.bytes.len() {
            piece(Piece::Private(&self.bytes[from..]));
        }
    }

    /// Takes away `count` bytes that were sent. Values are unpinned as soon as they are sent.
    pub fn advance(&mut self, count: u64) {
        if self.pins.is_empty() {
            self.sent += count as usize;
        } else {
            self.advance_pins(count);
        }
        if self.is_empty() {
            self.clear();
        }
    }

    fn advance_pins(&mut self, mut count: u64) {
        while count > 0 {
            let next = self.pins.get(self.pins_sent);
            let end = next.map_or(self.bytes.len(), |pin| pin.at);
            let own = count.min((end - self.sent) as u64);
            self.sent += own as usize;
            count -= own;
            let Some(&PinnedValue { len, .. }) = next else {
                assert!(count == 0, "{count} bytes more were sent than there are");
                return;
            };
            let pinned = count.min(len - self.pin_sent);
            self.pin_sent += pinned;
            self.pinned_bytes -= pinned;
            count -= pinned;
            if self.sent == end && self.pin_sent == len {
                (self.pins_sent, self.pin_sent) = (self.pins_sent + 1, 0);
            }
        }
        if self.pins_sent == self.pins.len() {
            self.pins.clear();
            self.pins_sent = 0;
        } else if self.pins_sent >= 64 {
            self.pins.drain(..self.pins_sent);
            self.pins_sent = 0;
        }
    }

    /// Puts answers behind what there is of which nothing was sent.
    pub fn append(&mut self, mut other: Output) {
        let behind = self.bytes.len();
        match behind {
            0 => std::mem::swap(&mut self.bytes, &mut other.bytes),
            _ => self.bytes.extend_from_slice(&other.bytes),
        }
        let pins = other.pins.into_iter();
        self.pins.extend(pins.map(|pin| PinnedValue { at: pin.at + behind, ..pin }));
        self.pinned_bytes += other.pinned_bytes;
        self.failed += other.failed;
    }

    /// Takes back what was put behind own byte `start`, since a value of it could not be read.
    #[cold]
    pub fn fail(&mut self, start: usize, error: &Error) {
        self.truncate(start);
        self.failed += u64::from(!matches!(error, Error::WrongType));
    }

    /// Values that could not be read since this was last asked.
    #[inline]
    pub fn take_failed(&mut self) -> u64 {
        std::mem::take(&mut self.failed)
    }

    pub fn clear(&mut self) {
        self.bytes.clear();
        self.pins.clear();
        (self.sent, self.pins_sent, self.pin_sent, self.pinned_bytes) = (0, 0, 0, 0);
    }

    /// Takes back what was put behind own byte `start`.
    pub fn truncate(&mut self, start: usize) {
        self.bytes.truncate(start);
        while let Some(PinnedValue { at, len, .. }) = self.pins.last()
            && *at > start
        {
            self.pinned_bytes -= len;
            self.pins.pop();
        }
    }
}
