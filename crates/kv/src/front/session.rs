//! One connection's conversation: which protocol, where in it, and what to do with the bytes that
//! arrive. In: bytes. Out: how many were understood, answers in [`Core::out`]. Knows no socket, so
//! that tests and the fuzzer drive it with any split of any bytes.
//!
//! What is not whole yet stays with the caller, who gives it again with more behind it. Nothing of
//! unbounded length is kept: long values go into the cache as they arrive, and what is refused is
//! passed over.

use super::auth::{self, Attempt};
use super::batch::{Answer, Form, Set};
use super::binary::{self, MAGIC_REQUEST, Request};
use super::binary_run::Opcode;
use super::core::{Core, Door, PAST, expiry};
use super::counters::Count;
use super::memcached::Next;
use super::redis::{Call, Client, GoOn};
use super::redis_strings;
use super::resp::{self, Args, Limits, Scan, push_error};
use super::store::Value;
use super::text::{self, Command, Get, Store, Verb};
use crate::cache::{Error, Writer};
use crate::constants::{BATCH_KEYS_MAX, OUTPUT_SOFT_BYTES, STREAM_BYTES_MIN};

/// What is spoken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    /// memcached's; the first byte will tell.
    Memcached,
    Text,
    Binary,
    Resp,
}

/// What the next bytes are, if not a command. One a connection.
#[allow(clippy::large_enum_variant)]
#[derive(Debug)]
enum Pending {
    /// A command.
    None,
    /// Nothing that anybody wants.
    Skip(u64),
    /// A value that goes into the cache.
    Value(Box<Incoming>),
    /// The words behind such a value, of a RESP command; no value: it was refused already.
    Rest(Option<Writer>, usize),
    /// A look-up whose first keys were answered.
    Keys(Keys),
    /// A command of RESP whose first words were answered.
    Words(Words),
}

/// A line of `get`, `gets`, `gat` or `gats` that goes on when its client has taken answers. It
/// stays in the input until it is done.
#[derive(Clone, Copy, Debug)]
struct Keys {
    /// Bytes of the line.
    used: usize,
    /// Where its keys end.
    end: usize,
    /// Bytes before that which were not looked at.
    left: usize,
    cas: bool,
    touch: Option<i32>,
}

/// A command of RESP that goes on when its client has taken answers. It stays in the input until it
/// is done.
#[derive(Debug)]
struct Words {
    /// Bytes of the command.
    used: usize,
    args: Args,
    /// With which word, and how.
    next: (usize, GoOn),
}

/// A value on its way.
#[derive(Debug)]
struct Incoming {
    /// The command's bytes before the value.
    head: Vec<u8>,
    /// Where it goes; `None`: it is not to be stored, for this reason.
    writer: Result<Writer, Error>,
    /// Bytes of the value that are missing.
    missing: u64,
    /// Words behind it, of a RESP command.
    rest: usize,
}

/// How one step went.
enum Step {
    /// So many bytes were understood.
    Used(usize),
    /// So many must be there.
    Need(usize),
}

/// One connection's conversation.
#[derive(Debug)]
pub struct Session {
    /// Who it is with.
    pub client: Client,
    protocol: Protocol,
    pending: Pending,
    /// Bytes of a line that are known to hold no end.
    seen: usize,
    /// How far a command of RESP was looked at.
    scan: Scan,
    /// Fewer bytes than these are not worth a look.
    need: usize,
    closing: bool,
}

impl Session {
    /// A conversation at this door.
    pub fn new(door: Door, client: Client) -> Self {
        let protocol = match door {
            Door::Memcached => Protocol::Memcached,
            Door::Resp => Protocol::Resp,
        };
        let (pending, scan) = (Pending::None, Scan::default());
        Self { client, protocol, pending, seen: 0, scan, need: 0, closing: false }
    }

    /// Whether it ends as soon as the answers are sent.
    pub fn is_closing(&self) -> bool {
        self.closing
    }

    /// Ends it.
    pub fn close(&mut self) {
        self.closing = true;
    }

    /// Whether the rest of a value is awaited for which the cache has set memory aside.
    pub fn is_receiving(&self) -> bool {
        match &self.pending {
            Pending::Value(incoming) => incoming.writer.is_ok(),
            Pending::Rest(writer, _) => writer.is_some(),
            _ => false,
        }
    }

    /// Bytes that it makes us hold, beside the cache's.
    pub fn held_bytes(&self) -> u64 {
        match &self.pending {
            Pending::Value(incoming) => incoming.head.capacity() as u64,
            Pending::Words(words) => words.args.held_bytes(),
            Pending::None | Pending::Skip(_) | Pending::Rest(..) | Pending::Keys(_) => 0,
        }
    }

    /// How many bytes there must be before [`Session::feed`] can do anything.
    pub fn need(&self) -> usize {
        self.need
    }

    /// Understands what it can of `input` and answers; how many bytes that was. The rest is to be
    /// given again with more behind it, or, if there is much to be sent, when that was sent.
    pub fn feed(&mut self, core: &mut Core, input: &[u8]) -> usize {
        let mut args = std::mem::take(&mut core.args);
        let mut at = 0;
        self.need = 0;
        while !self.closing && at < input.len() && core.out.len() < OUTPUT_SOFT_BYTES {
            match self.step(core, &mut args, input, at) {
                Step::Used(used) => at += used,
                Step::Need(need) => {
                    self.need = need;
                    break;
                }
            }
            if core.batch.len().max(core.sets.len()) >= BATCH_KEYS_MAX {
                core.flush_batch(input);
            }
        }
        core.flush_batch(input);
        core.args = args;
        if self.closing { input.len() } else { at }
    }

    fn step(&mut self, core: &mut Core, args: &mut Args, input: &[u8], at: usize) -> Step {
        let rest = &input[at..];
        match &mut self.pending {
            Pending::None => {}
            Pending::Skip(left) => {
                let used = (*left).min(rest.len() as u64);
                *left -= used;
                if *left == 0 {
                    self.pending = Pending::None;
                }
                return Step::Used(used as usize);
            }
            Pending::Value(_) => {
                core.flush_batch(input);
                return self.value(core, rest);
            }
            Pending::Rest(..) => {
                core.flush_batch(input);
                return self.rest(core, args, rest);
            }
            Pending::Keys(keys) => {
                let keys = *keys;
                self.pending = Pending::None;
                return self.look_up_from(core, input, at, keys);
            }
            Pending::Words(_) => return self.words(core, rest),
        }
        match self.protocol {
            Protocol::Memcached => {
                self.protocol = match rest[0] {
                    MAGIC_REQUEST if core.shared.settings.users.is_empty() => Protocol::Binary,
                    _ => Protocol::Text,
                };
                Step::Used(0)
            }
            Protocol::Text if !self.client.known => self.log_in(core, rest),
            Protocol::Text => self.text(core, input, at),
            Protocol::Binary => {
                core.flush_batch(input);
                self.binary(core, rest)
            }
            Protocol::Resp => self.resp(core, args, input, at),
        }
    }

    fn next(&mut self, next: Next) {
        match next {
            Next::Command => {}
            Next::Skip(0) => {}
            Next::Skip(bytes) => self.pending = Pending::Skip(bytes),
            Next::Close => self.closing = true,
        }
    }

    fn fail(&mut self, core: &Core) -> Step {
        core.count(Count::ProtocolErrors);
        self.closing = true;
        Step::Used(0)
    }

    fn log_in(&mut self, core: &mut Core, rest: &[u8]) -> Step {
        match auth::attempt(rest, &core.shared.settings.users) {
            Attempt::Need(need) => Step::Need(need),
            Attempt::TooLong => self.fail(core),
            Attempt::Done(used, answer, right) => {
                if let Some(right) = right {
                    core.count(Count::AuthCmds);
                    core.add(Count::AuthErrors, u64::from(!right));
                    self.client.known = right;
                }
                core.out.bytes.extend_from_slice(answer.as_bytes());
                core.out.bytes.extend_from_slice(b"\r\n");
                Step::Used(used)
            }
        }
    }

    fn text(&mut self, core: &mut Core, input: &[u8], at: usize) -> Step {
        let rest = &input[at..];
        let (used, command) = match text::parse(rest, self.seen) {
            text::Parsed::Need => {
                self.seen = rest.len();
                return Step::Need(rest.len() + 1);
            }
            text::Parsed::TooLong => return self.fail(core),
            text::Parsed::Command { used, command } => (used, command),
        };
        let Command::Store(store) = command else {
            self.seen = 0;
            if let Command::Get(get) = &command {
                return self.look_up(core, input, at, get, used);
            }
            core.flush_batch(input);
            let start = core.coarse_us();
            let next = core.text(&command);
            let took = core.coarse_us() - start;
            if took >= core.shared.settings.slow_us {
                core.note_slow(&self.client, took, text::Words(&rest[..used]));
            }
            self.next(next);
            return Step::Used(used);
        };
        // The line end is found again if the value is not there yet.
        self.seen = used - 1;
        let len = u64::from(store.len);
        if len > core.shared.settings.value_bytes_max {
            core.flush_batch(input);
            core.text_too_large(&store);
            self.next(Next::Skip(len + 2));
        } else if len >= STREAM_BYTES_MIN && streams(store.verb) {
            core.flush_batch(input);
            self.stream_text(core, &store, &rest[..used]);
        } else {
            let end = used + store.len as usize + 2;
            let Some(value) = rest.get(used..end) else { return Step::Need(end) };
            self.seen = 0;
            let (value, line_end) = value.split_at(store.len as usize);
            let expires = expiry(i64::from(store.exptime), core.now);
            let plain = store.verb == Verb::Set && store.meta.is_none() && expires != PAST;
            if plain && line_end == b"\r\n" {
                let place = |word: &[u8]| {
                    let start = word.as_ptr() as usize - input.as_ptr() as usize;
                    (start as u32, word.len() as u32)
                };
                let answer = if store.quiet { Answer::Quiet } else { Answer::Text };
                let (key, value, flags) = (place(store.key), place(value), store.flags);
                set_later(core, input, Set { key, value, flags, expires, answer });
                return Step::Used(end);
            }
            core.flush_batch(input);
            core.text_store(&store, Value::Bytes(value), line_end == b"\r\n");
            return Step::Used(end);
        }
        self.seen = 0;
        Step::Used(used)
    }

    /// Looks up the keys of a line, of which `used` bytes begin at `at`.
    fn look_up(
        &mut self,
        core: &mut Core,
        input: &[u8],
        at: usize,
        get: &Get<'_>,
        used: usize,
    ) -> Step {
        if !core.sets.is_empty() {
            core.flush_batch(input);
        }
        let Some(keys) = core.text_get(get, input) else { return Step::Used(used) };
        let (start, left) = (keys.0.as_ptr() as usize - input.as_ptr() as usize, keys.0.len());
        let (end, cas, touch) = (start + left - at, get.cas, get.touch);
        self.pending = Pending::Keys(Keys { used, end, left, cas, touch });
        Step::Used(0)
    }

    fn look_up_from(&mut self, core: &mut Core, input: &[u8], at: usize, rest: Keys) -> Step {
        let Keys { used, end, left, cas, touch } = rest;
        let keys = text::Words(&input[at + end - left..at + end]);
        self.look_up(core, input, at, &Get { keys, cas, touch }, used)
    }

    fn stream_text(&mut self, core: &Core, store: &Store<'_>, head: &[u8]) {
        let key = store.meta.as_ref().map_or(store.key, |meta| meta.key.bytes());
        let expires = expiry(i64::from(store.exptime), core.now);
        let len = u64::from(store.len);
        self.stream(core, head, key, (len, store.flags, expires), 0);
    }

    fn stream(
        &mut self,
        core: &Core,
        head: &[u8],
        key: &[u8],
        (len, flags, expires): (u64, u32, u64),
        rest: usize,
    ) {
        // What is expired at once is never seen; it still has to be taken in.
        let kept = if expires == PAST { 0 } else { expires };
        let writer = core.cache().reserve(key, len, flags, kept, core.now);
        let head = head.to_vec();
        self.pending = Pending::Value(Box::new(Incoming { head, writer, missing: len, rest }));
    }

    /// Takes bytes of a value; at its end executes its command.
    fn value(&mut self, core: &mut Core, rest: &[u8]) -> Step {
        let Pending::Value(incoming) = &mut self.pending else { return Step::Used(0) };
        if incoming.missing > 0 {
            let used = incoming.missing.min(rest.len() as u64);
            if let Ok(writer) = &mut incoming.writer {
                writer.write(&rest[..used as usize]);
            }
            incoming.missing -= used;
            return Step::Used(used as usize);
        }
        let line_end = if self.protocol == Protocol::Binary { 0 } else { 2 };
        let Some(end) = rest.get(..line_end) else { return Step::Need(line_end) };
        let Pending::Value(incoming) = std::mem::replace(&mut self.pending, Pending::None) else {
            return Step::Used(0);
        };
        let Incoming { head, writer, rest, .. } = *incoming;
        match self.protocol {
            Protocol::Binary => finish_binary(core, &head, writer),
            Protocol::Resp => match writer {
                Ok(writer) if rest > 0 => self.pending = Pending::Rest(Some(writer), rest),
                Ok(writer) => self.finish_resp(core, &Args::default(), b"", writer),
                Err(error) => {
                    push_error(&mut core.out.bytes, super::redis::failed(&error).as_bytes());
                    if rest > 0 {
                        self.pending = Pending::Rest(None, rest);
                    }
                }
            },
            _ => finish_text(core, &head, writer, end == b"\r\n"),
        }
        Step::Used(line_end)
    }

    fn rest(&mut self, core: &mut Core, args: &mut Args, rest: &[u8]) -> Step {
        let Pending::Rest(_, count) = &self.pending else { return Step::Used(0) };
        let limits = Limits::new(self.client.known);
        match resp::parse_rest(rest, *count, limits, args, &mut self.scan) {
            resp::Parsed::Need(need) => Step::Need(need),
            resp::Parsed::Command { used } => {
                let pending = std::mem::replace(&mut self.pending, Pending::None);
                if let Pending::Rest(Some(writer), _) = pending {
                    self.finish_resp(core, args, rest, writer);
                }
                Step::Used(used)
            }
            resp::Parsed::Violation(violation) => {
                push_error(&mut core.out.bytes, format!("ERR {violation}").as_bytes());
                self.fail(core)
            }
            resp::Parsed::Large { .. } => unreachable!("words behind a value are not streamed"),
        }
    }

    fn finish_resp(&mut self, core: &mut Core, args: &Args, input: &[u8], writer: Writer) {
        core.count(Count::Commands);
        let client = &mut self.client;
        let mut call = Call { core, client, input, args };
        if let Err(text) = redis_strings::set_streamed(&mut call, writer) {
            push_error(&mut core.out.bytes, text.as_bytes());
        }
    }

    fn resp(&mut self, core: &mut Core, args: &mut Args, input: &[u8], at: usize) -> Step {
        let rest = &input[at..];
        let limits = Limits::new(self.client.known);
        match resp::parse(rest, limits, args, &mut self.scan) {
            resp::Parsed::Need(need) => Step::Need(need),
            resp::Parsed::Command { used } => {
                self.command(core, args, input, at);
                let Some(next) = core.unfinished.take() else { return Step::Used(used) };
                let args = std::mem::take(args);
                self.pending = Pending::Words(Words { used, args, next });
                Step::Used(0)
            }
            resp::Parsed::Large { used, len, rest: words } => {
                core.flush_batch(input);
                let key = args.get(rest, 1).to_vec();
                self.stream(core, b"", &key, (len, 0, 0), words);
                Step::Used(used)
            }
            resp::Parsed::Violation(violation) => {
                core.flush_batch(input);
                push_error(&mut core.out.bytes, format!("ERR {violation}").as_bytes());
                self.fail(core)
            }
        }
    }

    fn command(&mut self, core: &mut Core, args: &Args, input: &[u8], at: usize) {
        let rest = &input[at..];
        if args.is_empty() {
            return;
        }
        if args.len() == 2
            && self.client.known
            && let Some((start, len)) = args.span(1)
            && args.get(rest, 0).eq_ignore_ascii_case(b"get")
        {
            if !core.sets.is_empty() {
                core.flush_batch(input);
            }
            core.count(Count::Commands);
            let form = Form::Resp(self.client.version);
            return core.batch.push(at + start as usize, len as usize, form);
        }
        if args.len() == 3
            && self.client.known
            && let (Some(key), Some(value)) = (args.span(1), args.span(2))
            && args.get(rest, 0).eq_ignore_ascii_case(b"set")
        {
            let place = |(start, len): (u32, u32)| (start + at as u32, len);
            let (key, value, answer) = (place(key), place(value), Answer::Resp);
            return set_later(core, input, Set { key, value, flags: 0, expires: 0, answer });
        }
        core.flush_batch(input);
        let start = core.coarse_us();
        Call { core, client: &mut self.client, input: rest, args }.run();
        let took = core.coarse_us() - start;
        if took >= core.shared.settings.slow_us {
            core.note_slow(&self.client, took, args.words(rest));
        }
        self.closing = self.client.quits;
    }

    /// Goes on with a command.
    fn words(&mut self, core: &mut Core, input: &[u8]) -> Step {
        let pending = std::mem::replace(&mut self.pending, Pending::None);
        let Pending::Words(Words { used, args, next }) = pending else { return Step::Used(0) };
        Call { core, client: &mut self.client, input, args: &args }.go_on(next);
        let Some(next) = core.unfinished.take() else { return Step::Used(used) };
        self.pending = Pending::Words(Words { used, args, next });
        Step::Used(0)
    }

    fn binary(&mut self, core: &mut Core, rest: &[u8]) -> Step {
        let (used, request) = match binary::parse(rest) {
            binary::Parsed::Need(need) => return Step::Need(need),
            binary::Parsed::Magic => return self.fail(core),
            binary::Parsed::Request { used, request } => (used, request),
        };
        let (opcode, quiet) = match core.binary_check(&request) {
            Ok(known) => known,
            Err(next) => {
                self.next(next);
                return Step::Used(used);
            }
        };
        let Opcode::Store(verb) = opcode else {
            let next = core.binary(&request, opcode, quiet);
            self.next(next);
            return Step::Used(used);
        };
        let len = u64::from(request.value_bytes);
        if len > core.shared.settings.value_bytes_max {
            core.binary_too_large(&request, verb);
            self.next(Next::Skip(len));
        } else if len >= STREAM_BYTES_MIN && streams(verb) {
            let expires = expiry(i64::from(request.extra32(4)), core.now);
            let fields = (len, request.extra32(0), expires);
            self.stream(core, &rest[..used], request.key, fields, 0);
        } else {
            let end = used + request.value_bytes as usize;
            let Some(value) = rest.get(used..end) else { return Step::Need(end) };
            core.binary_store(&request, verb, quiet, Value::Bytes(value));
            return Step::Used(end);
        }
        Step::Used(used)
    }
}

/// Lets a value wait for others, behind look-ups that came before it.
fn set_later(core: &mut Core, input: &[u8], set: Set) {
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

fn finish_text(core: &mut Core, head: &[u8], writer: Result<Writer, Error>, whole: bool) {
    let text::Parsed::Command { command: Command::Store(store), .. } = text::parse(head, 0) else {
        unreachable!("the line was a storage command when it came")
    };
    match writer {
        Ok(writer) => core.text_store(&store, Value::Written(writer), whole),
        Err(_) => core.text_no_memory(&store),
    }
}

fn finish_binary(core: &mut Core, head: &[u8], writer: Result<Writer, Error>) {
    let binary::Parsed::Request { request, .. } = binary::parse(head) else {
        unreachable!("the header was a request when it came")
    };
    let (Opcode::Store(verb), quiet) = Opcode::of(request.opcode) else {
        unreachable!("only values are streamed")
    };
    match writer {
        Ok(writer) => core.binary_store(&request, verb, quiet, Value::Written(writer)),
        Err(_) => no_memory(core, &request),
    }
}

fn no_memory(core: &mut Core, request: &Request<'_>) {
    core.count(Count::NoMemory);
    core.binary_error(request, binary::Status::OutOfMemory);
}
