//! One connection's session: which protocol, where in it, and what to do with the bytes that
//! arrive. In: bytes. Out: how many were understood, answers in [`Core::out`]. Knows no socket, so
//! that tests and the fuzzer drive it with any split of any bytes.
//!
//! What is not whole yet stays with the caller, which gives it again with more behind it. Nothing
//! of unbounded length is kept: long values go into the cache as they arrive, and what is refused
//! is passed over.

mod behind;
mod binary_requests;
mod gate;
mod lasting;
mod look_up;
mod refused;
mod streamed;

use super::auth::{self, Attempt};
use super::binary::{self, MAGIC_REQUEST};
use super::clients::{ClientInfo, ReplyMode};
use super::commands::CommandId;
use super::core::{Core, PendingSet, ReplyFormat, SetReply};
use super::counters::Count;
use super::jobs::Job;
use super::listing::ListingInProgress;
use super::memcached::AfterCommand;
use super::outcome::Verb;
use super::redis::{RespCall, Unfinished};
use super::resp::{self, Args, Limits, Scan};
use super::shared::Protocol;
use super::store::StoreValue;
use super::text::{self, Command, Store};
use super::timer::TimedBatch;
use super::too_long::TooLong;
use super::watch::Watcher;
use super::{commands, redis_strings};
use crate::cache::{Error, Millis, StoredWith, Writer};
use crate::clock::{PAST, expiry};
use crate::constants::{BATCH_KEYS_MAX, OUTPUT_SOFT_BYTES, STREAM_BYTES_MIN, TURN_STEPS};
use std::sync::Arc;
use streamed::{binary_name, finish_binary, finish_text};

/// Words kept of the first of several commands that were timed together.
const FIRST_WORDS: usize = 16;
/// Steps towards room for a long value: one for so many bytes of it …
const ROOM_STEP_BYTES: u64 = 32 << 10;
/// … and so many more.
const ROOM_STEPS_MIN: u64 = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dialect {
    /// memcached's; the first byte decides which.
    Memcached,
    Text,
    Binary,
    Resp,
}

/// What the next bytes are, if not a command. One a connection.
#[derive(Debug)]
enum Pending {
    None,
    /// To be passed over: so many bytes, and words of RESP behind them.
    Skip {
        bytes: u64,
        words: usize,
    },
    /// A value that goes into the cache.
    Value(Box<Incoming>),
    /// The words behind such a value, of a RESP command; no memory for it: it was refused already.
    Rest(Box<Incoming>),
    /// A look-up with its first keys answered.
    Keys(Retrieval),
    /// A command of RESP with its first words answered.
    Words(Box<SuspendedCommand>),
    /// A listing with its first parts answered.
    List(Box<ListingInProgress>),
    /// A command that waits for items to come back.
    Fetch(Arc<Job>),
    /// Nothing that counts: the client is told of events.
    Watch(Watcher),
}

/// A line of `get`, `gets`, `gat` or `gats` that goes on when its client has taken answers. It
/// stays in the input until it is done.
#[derive(Clone, Copy, Debug)]
struct Retrieval {
    used: usize,
    end: usize,
    /// Bytes before that which were not looked at.
    left: usize,
    cas: bool,
    touch: Option<i32>,
}

/// A command of RESP that goes on when its client has taken answers. It stays in the input until it
/// is done.
#[derive(Debug)]
struct SuspendedCommand {
    used: usize,
    args: Args,
    next: Unfinished,
}

struct AnnouncedValue<'a> {
    /// As [`Incoming::head`].
    head: &'a [u8],
    key: &'a [u8],
    len: u64,
    with: StoredWith,
    /// As [`Incoming::rest`].
    rest: usize,
}

#[derive(Debug)]
struct Incoming {
    /// The command's bytes before the value; of RESP the key.
    head: Vec<u8>,
    /// Where it goes; `None`: it is not to be stored, for this reason.
    writer: Result<Writer, Error>,
    bytes: u64,
    missing: u64,
    began: Millis,
    /// Words behind it, of a RESP command.
    rest: usize,
    /// When it expires, if its head says so.
    expires: Millis,
    took_ns: u64,
}

enum ParseStep {
    /// So many bytes were understood.
    Used(usize),
    /// So many must be there.
    Need(usize),
}

#[derive(Debug)]
pub struct Session {
    pub client: ClientInfo,
    /// Whether it is known and its commands do not wait for `EXEC`.
    is_plain: bool,
    dialect: Dialect,
    pending: Pending,
    /// Bytes of a line that are known to hold no end.
    seen: usize,
    /// How far a command of RESP was looked at.
    scan: Scan,
    /// With fewer bytes than these nothing can be parsed.
    need: usize,
    /// Steps that were made towards room for the value that comes next.
    room_steps: u64,
    closing: bool,
    /// Whether a command waits until a pause is over.
    is_held: bool,
    /// How often what the next command needs was asked to come back.
    fetches: u32,
}

impl Session {
    pub fn new(protocol: Protocol, client: ClientInfo) -> Self {
        let dialect = match protocol {
            Protocol::Memcached => Dialect::Memcached,
            Protocol::Resp => Dialect::Resp,
        };
        let (pending, scan) = (Pending::None, Scan::default());
        let (is_plain, seen, need, room_steps) = (client.known, 0, 0, 0);
        let (closing, is_held, fetches) = (false, false, 0);
        Self {
            client,
            is_plain,
            dialect,
            pending,
            seen,
            scan,
            need,
            room_steps,
            closing,
            is_held,
            fetches,
        }
    }

    /// Whether it ends as soon as the answers are sent.
    pub fn is_closing(&self) -> bool {
        self.closing
    }

    pub fn close(&mut self) {
        self.closing = true;
    }

    /// If the rest of a value is awaited, since when, and how many bytes of it came.
    pub fn receiving(&self) -> Option<(Millis, u64)> {
        match &self.pending {
            Pending::Value(incoming) | Pending::Rest(incoming) => {
                Some((incoming.began, incoming.bytes - incoming.missing))
            }
            _ => None,
        }
    }

    /// Memory that it takes, bytes, beside the cache's.
    pub fn held_bytes(&self) -> u64 {
        let of_client = self.client.held_bytes();
        match &self.pending {
            Pending::Value(incoming) | Pending::Rest(incoming) => {
                of_client + incoming.head.capacity() as u64
            }
            Pending::Words(words) => {
                of_client + words.args.held_bytes() + words.next.0.held_bytes()
            }
            Pending::List(listing) => of_client + listing.held_bytes(),
            Pending::None
            | Pending::Skip { .. }
            | Pending::Keys(_)
            | Pending::Fetch(_)
            | Pending::Watch(_) => of_client,
        }
    }

    /// What its command waits for that another thread does.
    pub fn job(&self) -> Option<&Arc<Job>> {
        match &self.pending {
            Pending::Words(words) => words.next.0.job.as_ref(),
            Pending::Fetch(job) => Some(job),
            _ => None,
        }
    }

    /// How many bytes there must be before [`Session::feed`] can do anything.
    pub fn need(&self) -> usize {
        self.need
    }

    /// Understands what it can of `input` and answers; how many bytes that was. The rest is to be
    /// given again with more behind it, or, if there is much to be sent, when that was sent.
    pub fn feed(&mut self, core: &mut Core, input: &[u8]) -> usize {
        if core.is_watched || self.client.reply != ReplyMode::On {
            self.feed_steps::<true>(core, input)
        } else {
            self.feed_steps::<false>(core, input)
        }
    }

    /// As [`Session::feed`]; `GATED`: each command passes the gate.
    fn feed_steps<const GATED: bool>(&mut self, core: &mut Core, input: &[u8]) -> usize {
        core.use_database(self.client.database);
        let mut args = std::mem::take(&mut core.args);
        let mut at = 0;
        self.need = 0;
        core.timer.start();
        let (mut steps, has_store) = (0, core.cache().has_store());
        while !self.closing && at < input.len() && core.out.len() < OUTPUT_SOFT_BYTES {
            if GATED && !self.enter_gate(core, &mut args, &input[at..]) {
                break;
            }
            if has_store && self.waits_for_store(core) {
                self.need = input.len() - at + 1;
                break;
            }
            let (reply, start) = (self.client.reply, core.out.bytes.len());
            match self.step(core, &mut args, input, at) {
                ParseStep::Used(used) => {
                    at += used;
                    core.timer.pass(at);
                }
                ParseStep::Need(need) => {
                    self.need = need;
                    break;
                }
            }
            if GATED {
                self.leave_gate(core, input, reply, start);
            }
            if core.batch.len().max(core.sets.len()) >= BATCH_KEYS_MAX {
                core.flush_batch(input);
            }
            steps += 1;
            let is_over = match steps % TURN_STEPS {
                0 => core.timer.is_turn_over(),
                _ => core.timer.was_alone() && core.timer.was_turn_over(),
            };
            if is_over {
                break;
            }
        }
        core.flush_batch(input);
        core.args = args;
        self.end_batch(core, input, at);
        if let Pending::Value(incoming) | Pending::Rest(incoming) = &mut self.pending {
            incoming.took_ns += core.timer.lap_ns();
        }
        core.add(Count::Commands, core.timer.commands - core.timer.refused);
        if !core.log.is_empty() {
            core.log.publish(&core.shared.watch, self.client.id);
        }
        if self.closing { input.len() } else { at }
    }

    fn step(&mut self, core: &mut Core, args: &mut Args, input: &[u8], at: usize) -> ParseStep {
        let rest = &input[at..];
        match &mut self.pending {
            Pending::None => {}
            Pending::Skip { .. } => return self.skip(core, rest),
            Pending::Value(_) => {
                core.flush_batch(input);
                return self.value(core, input, at);
            }
            Pending::Rest(_) => {
                core.flush_batch(input);
                return self.rest(core, args, input, at);
            }
            Pending::Keys(keys) => {
                let keys = *keys;
                self.pending = Pending::None;
                return self.look_up_from(core, input, at, keys);
            }
            Pending::Words(_) => return self.words(core, input, at),
            Pending::List(_) => return self.list(core, rest),
            Pending::Fetch(_) => return self.fetching(rest),
            Pending::Watch(_) => return ParseStep::Used(rest.len()),
        }
        match self.dialect {
            Dialect::Memcached => {
                self.dialect = match rest[0] {
                    MAGIC_REQUEST if core.shared.settings.users.is_empty() => Dialect::Binary,
                    _ => Dialect::Text,
                };
                ParseStep::Used(0)
            }
            Dialect::Text if !self.client.known => self.log_in(core, rest),
            Dialect::Text => self.text(core, input, at),
            Dialect::Binary => {
                core.flush_batch(input);
                self.binary(core, input, at)
            }
            Dialect::Resp => self.resp(core, args, input, at),
        }
    }

    /// Commands before `at` ended: if they took long, that is remembered with the words of the
    /// first.
    fn end_batch(&mut self, core: &mut Core, input: &[u8], at: usize) {
        let Some(batch) = core.timer.end_batch(at) else { return };
        let bucket = core.took(batch.commands, batch.took_ns);
        if self.dialect == Dialect::Resp && !self.client.has_begun() {
            self.client.last = Some(core.took_plain(batch.commands, batch.took_ns, bucket));
        }
        if batch.took_ns / 1000 >= core.shared.tunables.noted_us() {
            self.note_batch(core, &input[batch.from..], batch);
        }
    }

    #[cold]
    fn note_batch(&self, core: &Core, input: &[u8], batch: TimedBatch) {
        let more = format!("... ({} more commands)", batch.commands - 1);
        let more = (batch.commands > 1).then_some(more.as_bytes());
        match self.dialect {
            Dialect::Resp => {
                let (mut args, limits) = (Args::default(), Limits::new(self.client.known));
                // It was a command when it ran.
                let _ = resp::parse(input, limits, &mut args, &mut Scan::default());
                let words = args.words(input).take(FIRST_WORDS).chain(more);
                core.note_slow(&self.client, batch.took_ns, words);
            }
            Dialect::Binary => {
                let binary::ParsedBinary::Request { request, .. } = binary::parse(input) else {
                    return;
                };
                let name = binary_name(&request);
                let words = [name.as_bytes(), request.key].into_iter().chain(more);
                core.note_slow(&self.client, batch.took_ns, words);
            }
            Dialect::Text | Dialect::Memcached => {
                let words = text::line_words(input).take(FIRST_WORDS).chain(more);
                core.note_slow(&self.client, batch.took_ns, words);
            }
        }
    }

    /// A command ended that is timed alone; `before_ns` is what it took before, at other reads.
    fn end_alone<'a>(
        &self,
        core: &mut Core,
        before_ns: u64,
        words: impl Iterator<Item = &'a [u8]>,
    ) {
        core.timer.commands += 1;
        self.end_part(core, before_ns, &mut None, None, words);
    }

    /// A part of a command ended, the last one if nothing is left; of RESP this one, if it ran.
    fn end_part<'a>(
        &self,
        core: &mut Core,
        before_ns: u64,
        left: &mut Option<Unfinished>,
        command: Option<CommandId>,
        words: impl Iterator<Item = &'a [u8]>,
    ) {
        let took_ns = before_ns + core.timer.alone();
        match left {
            Some((part, _)) => (part.took_ns, part.command) = (took_ns, command),
            None => {
                let bucket = core.took(1, took_ns);
                if let Some(command) = command {
                    core.counters().ran(command, 1, took_ns, bucket);
                }
                core.note_slow(&self.client, took_ns, words);
            }
        }
    }

    fn next(&mut self, next: AfterCommand) {
        match next {
            AfterCommand::Command => {}
            AfterCommand::Skip(0) => {}
            AfterCommand::Skip(bytes) => self.pending = Pending::Skip { bytes, words: 0 },
            AfterCommand::Close => self.closing = true,
            AfterCommand::List(_) | AfterCommand::Watch(_) => {
                unreachable!("only the text protocol has them")
            }
        }
    }

    fn fail(&mut self, core: &Core) -> ParseStep {
        core.count(Count::ProtocolErrors);
        self.closing = true;
        ParseStep::Used(0)
    }

    fn log_in(&mut self, core: &mut Core, rest: &[u8]) -> ParseStep {
        match auth::attempt(rest, &core.shared.settings.users) {
            Attempt::Need(need) => ParseStep::Need(need),
            Attempt::Foreign => self.fail(core),
            Attempt::Done(used, answer, right) => {
                if let Some(right) = right {
                    core.count(Count::AuthCmds);
                    core.add(Count::AuthErrors, u64::from(!right));
                    self.client.known = right;
                }
                core.out.bytes.extend_from_slice(answer.as_bytes());
                core.out.bytes.extend_from_slice(b"\r\n");
                ParseStep::Used(used)
            }
        }
    }

    fn text(&mut self, core: &mut Core, input: &[u8], at: usize) -> ParseStep {
        let rest = &input[at..];
        let (used, command, quiet) = match text::parse(rest, self.seen) {
            text::ParsedText::Need => {
                self.seen = rest.len();
                return ParseStep::Need(rest.len() + 1);
            }
            text::ParsedText::TooLong => return self.fail(core),
            text::ParsedText::Command { used, command, quiet } => (used, command, quiet),
        };
        let Command::Store(store) = command else {
            self.seen = 0;
            if self.fetches_text(core, &command, input, at) {
                return ParseStep::Used(0);
            }
            if let Command::Get(get) = &command {
                return self.look_up(core, input, at, get, used);
            }
            core.flush_batch(input);
            self.end_batch(core, input, at);
            let next = core.text(&command, quiet);
            self.end_alone(core, 0, text::line_words(rest));
            return self.after_text(core, next, used);
        };
        // The line end is found again if the value is not there yet.
        self.seen = used - 1;
        let len = u64::from(store.len);
        if let Some(why) = TooLong::of(core, len, streams(store.verb)) {
            core.flush_batch(input);
            core.timer.commands += 1;
            core.text_too_large(&store, why);
            self.next(AfterCommand::Skip(len + 2));
        } else if len >= STREAM_BYTES_MIN && streams(store.verb) {
            core.flush_batch(input);
            self.end_batch(core, input, at);
            if !self.has_room(core, store.key(), len) {
                return ParseStep::Used(0);
            }
            self.stream_text(core, &store, &rest[..used]);
        } else {
            let end = used + store.len as usize + 2;
            let Some(value) = rest.get(used..end) else { return ParseStep::Need(end) };
            self.seen = 0;
            if self.fetches_store(core, &store, input) {
                return ParseStep::Used(0);
            }
            core.timer.commands += 1;
            let (value, line_end) = value.split_at(store.len as usize);
            let expires = expiry(i64::from(store.exptime), core.times());
            let plain = store.verb == Verb::Set && store.meta.is_none() && expires != PAST;
            if plain && line_end == b"\r\n" {
                let place = |word: &[u8]| {
                    let start = word.as_ptr() as usize - input.as_ptr() as usize;
                    (start as u32, word.len() as u32)
                };
                let answer = if store.quiet { SetReply::Quiet } else { SetReply::Text };
                let (key, value, flags) = (place(store.key), place(value), store.flags);
                set_later(core, input, PendingSet { key, value, flags, expires, answer });
                return ParseStep::Used(end);
            }
            core.flush_batch(input);
            core.text_store(&store, StoreValue::Bytes(value), expires, line_end == b"\r\n");
            return ParseStep::Used(end);
        }
        self.seen = 0;
        ParseStep::Used(used)
    }

    fn stream_text(&mut self, core: &Core, store: &Store<'_>, head: &[u8]) {
        let expires = expiry(i64::from(store.exptime), core.times());
        let len = u64::from(store.len);
        let (key, flags, cas) = (store.key(), store.flags, store.new_cas());
        let with = StoredWith { flags, expires, cas, has_binary_key: store.has_binary_key() };
        self.stream(core, &AnnouncedValue { head, key, len, with, rest: 0 });
    }

    /// Whether there is room for a long value. It is made step by step: other connections are
    /// served meanwhile. If they use it up for too long, what is missing is made at once.
    fn has_room(&mut self, core: &Core, key: &[u8], len: u64) -> bool {
        self.room_steps += 1;
        let is_enough = self.room_steps > ROOM_STEPS_MIN + len / ROOM_STEP_BYTES;
        let has_room = is_enough || core.cache().approach_room(key, len, core.now);
        if has_room {
            self.room_steps = 0;
        }
        has_room
    }

    fn stream(&mut self, core: &Core, value: &AnnouncedValue<'_>) {
        let &AnnouncedValue { head, key, len, with, rest } = value;
        let expires = with.expires;
        // What is expired at once is never seen; it still has to be taken in.
        let kept = StoredWith { expires: if expires == PAST { 0 } else { expires }, ..with };
        let writer = core.cache().reserve_with(key, len, kept, core.now);
        let (head, bytes, missing, began, took_ns) = (head.to_vec(), len, len, core.now, 0);
        let incoming = Incoming { head, writer, bytes, missing, began, rest, expires, took_ns };
        self.pending = Pending::Value(Box::new(incoming));
    }

    /// Takes bytes of a value; at its end executes its command.
    fn value(&mut self, core: &mut Core, input: &[u8], at: usize) -> ParseStep {
        let rest = &input[at..];
        let Pending::Value(incoming) = &mut self.pending else { return ParseStep::Used(0) };
        let used = incoming.missing.min(rest.len() as u64) as usize;
        if used > 0 {
            if let Ok(writer) = &mut incoming.writer {
                writer.write(&rest[..used]);
            }
            incoming.missing -= used as u64;
        }
        // Nothing stands behind a binary one: its sender may wait for the answer.
        let line_end = if self.dialect == Dialect::Binary { 0 } else { 2 };
        if incoming.missing > 0 || used > 0 && line_end > 0 {
            return ParseStep::Used(used);
        }
        let Some(end) = rest.get(used..used + line_end) else { return ParseStep::Need(line_end) };
        let pending = std::mem::replace(&mut self.pending, Pending::None);
        let Pending::Value(incoming) = pending else { return ParseStep::Used(0) };
        let used = used + line_end;
        let Incoming { took_ns, expires, .. } = *incoming;
        match self.dialect {
            Dialect::Binary => {
                let (head, writer) = (incoming.head, incoming.writer);
                let binary::ParsedBinary::Request { request, .. } = binary::parse(&head) else {
                    unreachable!("the header was a request when it came")
                };
                finish_binary(core, &request, writer, expires);
                let name = binary_name(&request);
                let words = [name.as_bytes(), request.key].into_iter();
                self.end_alone(core, took_ns, words);
            }
            Dialect::Resp => {
                if let Err(error) = &incoming.writer {
                    let text = resp::failed(error);
                    core.fail(&text);
                }
                if incoming.rest > 0 {
                    self.pending = Pending::Rest(incoming);
                } else {
                    self.finish_resp(core, &Args::default(), b"", *incoming);
                }
            }
            Dialect::Text | Dialect::Memcached => {
                let (head, writer) = (incoming.head, incoming.writer);
                finish_text(core, &head, writer, expires, end == b"\r\n");
                self.end_alone(core, took_ns, text::line_words(&head));
            }
        }
        ParseStep::Used(used)
    }

    fn rest(&mut self, core: &mut Core, args: &mut Args, input: &[u8], at: usize) -> ParseStep {
        let rest = &input[at..];
        let Pending::Rest(incoming) = &self.pending else { return ParseStep::Used(0) };
        let limits = Limits::new(self.client.known);
        match resp::parse_rest(rest, incoming.rest, limits, args, &mut self.scan) {
            resp::ParsedResp::Need(need) => ParseStep::Need(need),
            resp::ParsedResp::Command { used } => {
                let pending = std::mem::replace(&mut self.pending, Pending::None);
                if let Pending::Rest(incoming) = pending {
                    self.finish_resp(core, args, rest, *incoming);
                }
                ParseStep::Used(used)
            }
            resp::ParsedResp::Violation(violation) => {
                core.fail(&format!("ERR {violation}"));
                self.fail(core)
            }
            resp::ParsedResp::Large { .. } => unreachable!("words behind a value are not streamed"),
        }
    }

    /// Executes a `SET` with a streamed value, if there was memory for it.
    fn finish_resp(&mut self, core: &mut Core, args: &Args, input: &[u8], incoming: Incoming) {
        let Incoming { head: key, writer, took_ns, .. } = incoming;
        let set = Some(commands::SET);
        self.client.runs(commands::SET, core.now);
        match writer {
            Ok(writer) => {
                let mut call = RespCall::new(core, &mut self.client, input, args);
                let answer = redis_strings::set_streamed(&mut call, writer);
                call.finish(set, answer);
            }
            // It was answered when the value had been passed over.
            Err(_) => core.counters().failed(commands::SET),
        }
        let words = [&b"set"[..], &key, b"(a long value)"].into_iter().chain(args.words(input));
        core.timer.commands += 1;
        self.end_part(core, took_ns, &mut None, set, words);
    }

    fn resp(&mut self, core: &mut Core, args: &mut Args, input: &[u8], at: usize) -> ParseStep {
        let rest = &input[at..];
        let streams = self.is_plain && !core.shared.is_over_maxmemory();
        let limits = Limits::new(self.client.known).with_streams(streams);
        match resp::parse(rest, limits, args, &mut self.scan) {
            resp::ParsedResp::Need(need) if need > core.shared.settings.input_bytes_max() => {
                self.refuse_command(core, input, at, need)
            }
            resp::ParsedResp::Need(need) => ParseStep::Need(need),
            resp::ParsedResp::Command { used } => {
                if self.fetches_resp(core, args, input, at) {
                    return ParseStep::Used(0);
                }
                let left = self.command(core, args, input, at);
                let Some(next) = left else { return ParseStep::Used(used) };
                let args = std::mem::take(args);
                self.pending = Pending::Words(Box::new(SuspendedCommand { used, args, next }));
                ParseStep::Used(0)
            }
            resp::ParsedResp::Large { used, len, rest: words } => {
                core.flush_batch(input);
                self.end_batch(core, input, at);
                let key = args.get(rest, 1);
                if let Some(why) = TooLong::of(core, len, true) {
                    self.refuse_set(core, key, why, Pending::Skip { bytes: len + 2, words });
                    return ParseStep::Used(used);
                }
                if !self.has_room(core, key, len) {
                    return ParseStep::Used(0);
                }
                let (head, with, rest) = (key, StoredWith::default(), words);
                self.stream(core, &AnnouncedValue { head, key, len, with, rest });
                ParseStep::Used(used)
            }
            resp::ParsedResp::Violation(violation) => {
                core.flush_batch(input);
                let is_http = violation == resp::Violation::Http;
                core.add(Count::HttpRefused, u64::from(is_http));
                core.fail(&format!("ERR {violation}"));
                self.fail(core)
            }
        }
    }

    /// Executes a command, or lets it wait in a batch; what is left of it.
    fn command(
        &mut self,
        core: &mut Core,
        args: &Args,
        input: &[u8],
        at: usize,
    ) -> Option<Unfinished> {
        let rest = &input[at..];
        if args.is_empty() {
            return None;
        }
        if args.len() == 2
            && self.is_plain
            && let Some((start, len)) = args.span(1)
            && args.get(rest, 0).eq_ignore_ascii_case(b"get")
        {
            if !core.sets.is_empty() {
                core.flush_batch(input);
            }
            core.timer.commands += 1;
            let form = ReplyFormat::Resp(self.client.version);
            core.batch.push(at + start as usize, len as usize, form);
            return None;
        }
        if args.len() == 3
            && self.is_plain
            && let (Some(key), Some(value)) = (args.span(1), args.span(2))
            && args.get(rest, 0).eq_ignore_ascii_case(b"set")
            && !core.shared.is_over_maxmemory()
        {
            let place = |(start, len): (u32, u32)| (start + at as u32, len);
            let (key, value, answer) = (place(key), place(value), SetReply::Resp);
            core.timer.commands += 1;
            set_later(core, input, PendingSet { key, value, flags: 0, expires: 0, answer });
            return None;
        }
        core.flush_batch(input);
        // What only waits for `EXEC` is timed as a batch.
        let is_quick = self.client.has_begun() && !args.get(rest, 0).eq_ignore_ascii_case(b"exec");
        if !is_quick {
            self.end_batch(core, input, at);
        }
        let call = RespCall::new(core, &mut self.client, rest, args);
        let (mut left, command) = commands::run(call);
        core.timer.commands += 1;
        if !is_quick || command.is_some() || left.is_some() {
            self.end_part(core, 0, &mut left, command, args.words(rest));
        }
        self.note_client();
        left
    }

    /// A command may have changed what is known of the client.
    fn note_client(&mut self) {
        self.closing = self.client.quits;
        self.is_plain = self.client.known && !self.client.has_begun();
    }

    fn words(&mut self, core: &mut Core, input: &[u8], at: usize) -> ParseStep {
        let input = &input[at..];
        if self.job().is_some_and(|job| !job.is_done()) {
            return ParseStep::Need(input.len() + 1);
        }
        let pending = std::mem::replace(&mut self.pending, Pending::None);
        let Pending::Words(suspended) = pending else { return ParseStep::Used(0) };
        let SuspendedCommand { used, args, next: (part, go_on) } = *suspended;
        let job_ns = part.job.as_ref().map_or(0, |job| job.took_ns());
        let (before_ns, command) = (part.took_ns + job_ns, part.command);
        let mut left = RespCall::new(core, &mut self.client, input, &args).go_on(part, go_on);
        self.note_client();
        // It was counted when it began.
        self.end_part(core, before_ns, &mut left, command, args.words(input));
        let Some(next) = left else { return ParseStep::Used(used) };
        self.pending = Pending::Words(Box::new(SuspendedCommand { used, args, next }));
        ParseStep::Used(0)
    }
}

/// Lets a value wait for others, behind look-ups that came before it.
fn set_later(core: &mut Core, input: &[u8], set: PendingSet) {
    if !core.batch.is_empty() {
        core.flush_batch(input);
    }
    core.sets.push(set);
}

/// Whether a value may be written before its condition is known to hold: not if it becomes a part
/// of another one.
fn streams(verb: Verb) -> bool {
    !matches!(verb, Verb::Append | Verb::Prepend)
}

#[cfg(test)]
mod tests;
