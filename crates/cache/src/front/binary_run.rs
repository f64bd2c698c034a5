//! memcached's binary protocol, executed. In: a request of `binary`, its value. Out: its answer;
//! quiet requests have none when they succeed (or, for look-ups, when they find nothing).

use super::binary::{BinaryReply, BinaryRequest, ReplyBody, Status};
use super::commands::memcached;
use super::core::{Core, push_value};
use super::counters::Count;
use super::memcached::AfterCommand;
use super::outcome::{StoreOutcome, Verb};
use super::stats;
use super::store::{Change, CounterStep, StoreValue, set_expiry};
use super::text::VERSION;
use super::too_long::{Limit, TooLong};
use crate::cache::{Item, Millis};
use crate::clock::expiry;
use crate::constants::MEMCACHED_KEY_BYTES_MAX;

/// The commands, with their quiet forms folded in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opcode {
    /// Look-up: with the key in the answer, with a new expiry.
    Get {
        key: bool,
        touch: bool,
    },
    Touch,
    Store(Verb),
    Delete,
    Count {
        down: bool,
    },
    Quit,
    Flush,
    Noop,
    Version,
    Stat,
    /// Passwords in a form that is not offered.
    Sasl,
    Unknown,
}

impl Opcode {
    /// Whether a request for it has the parts that it must have.
    fn is_whole(self, request: &BinaryRequest<'_>) -> bool {
        let (extras, key) = (request.extras.len(), request.key.len());
        let value = request.value_bytes;
        match self {
            Opcode::Get { touch: false, .. } | Opcode::Delete => {
                extras == 0 && key > 0 && value == 0
            }
            Opcode::Get { touch: true, .. } | Opcode::Touch => extras == 4 && key > 0,
            Opcode::Store(Verb::Append | Verb::Prepend) => extras == 0 && key > 0,
            Opcode::Store(_) => extras == 8 && key > 0,
            Opcode::Count { .. } => extras == 20 && key > 0 && value == 0,
            Opcode::Quit | Opcode::Noop | Opcode::Version => extras + key == 0 && value == 0,
            Opcode::Flush => matches!(extras, 0 | 4) && key == 0 && value == 0,
            Opcode::Stat => extras == 0,
            Opcode::Sasl | Opcode::Unknown => true,
        }
    }
}

/// What a look-up answers with, beside the flags, and whether it sets the expiry.
#[derive(Clone, Copy)]
struct GetForm {
    key: bool,
    value: bool,
    touch: bool,
}

impl Core {
    /// The command of a request's header, or what to do after it was refused.
    pub fn binary_check(
        &mut self,
        request: &BinaryRequest<'_>,
    ) -> Result<(Opcode, bool), AfterCommand> {
        let (opcode, quiet) = memcached::binary(request.opcode);
        if request.broken {
            self.binary_error(request, Status::UnknownCommand);
            return Err(AfterCommand::Close);
        }
        if request.key.len() > MEMCACHED_KEY_BYTES_MAX || !opcode.is_whole(request) {
            self.binary_error(request, Status::Invalid);
            return Err(AfterCommand::Close);
        }
        match opcode {
            Opcode::Sasl | Opcode::Unknown => {
                self.binary_error(request, Status::UnknownCommand);
                Err(AfterCommand::Skip(u64::from(request.value_bytes)))
            }
            _ => Ok((opcode, quiet)),
        }
    }

    pub fn binary(
        &mut self,
        request: &BinaryRequest<'_>,
        opcode: Opcode,
        quiet: bool,
    ) -> AfterCommand {
        match opcode {
            Opcode::Get { key, touch } => {
                self.binary_get(request, GetForm { key, value: true, touch }, quiet)
            }
            Opcode::Touch => {
                self.binary_get(request, GetForm { key: false, value: false, touch: true }, quiet)
            }
            Opcode::Delete => {
                let outcome = self.delete(request.key, request.cas, "delete");
                let gone = matches!(outcome, StoreOutcome::Stored(_));
                self.binary_stored(
                    request,
                    if gone { StoreOutcome::Stored(0) } else { outcome },
                    quiet,
                );
            }
            Opcode::Count { down } => self.binary_count(request, down, quiet),
            Opcode::Flush => {
                self.flush_all(i64::from(request.extra32(0)));
                self.binary_stored(request, StoreOutcome::Stored(0), quiet);
            }
            Opcode::Noop => self.binary_stored(request, StoreOutcome::Stored(0), false),
            Opcode::Quit => {
                self.binary_stored(request, StoreOutcome::Stored(0), quiet);
                return AfterCommand::Close;
            }
            Opcode::Version => {
                let body = ReplyBody { value: VERSION.as_bytes(), ..ReplyBody::default() };
                self.binary_reply(request, Status::Success, body, 0);
            }
            Opcode::Stat => {
                stats::binary(self, request);
                return AfterCommand::Skip(u64::from(request.value_bytes));
            }
            Opcode::Store(_) | Opcode::Sasl | Opcode::Unknown => {
                unreachable!("`binary_check` and the session see to them")
            }
        }
        AfterCommand::Command
    }

    /// Executes a storage request with its value, which expires then.
    pub fn binary_store(
        &mut self,
        request: &BinaryRequest<'_>,
        verb: Verb,
        quiet: bool,
        value: StoreValue<'_>,
        expires: Millis,
    ) {
        let adds = matches!(verb, Verb::Append | Verb::Prepend);
        let conditional = request.cas != 0 && !adds;
        let outcome = self.store(
            &Change {
                verb: if conditional { Verb::Cas(request.cas) } else { verb },
                key: request.key,
                flags: if adds { 0 } else { request.extra32(0) },
                expires,
                stale: false,
                if_cas: (request.cas != 0).then_some(request.cas),
                tells_cas: !quiet,
                new_cas: 0,
                vivifies: false,
                has_binary_key: false,
            },
            value,
        );
        let outcome = match (outcome, verb, conditional) {
            (StoreOutcome::NotStored, Verb::Add, false) => StoreOutcome::Exists,
            (StoreOutcome::NotStored, Verb::Replace, false) => StoreOutcome::NotFound,
            (other, ..) => other,
        };
        self.binary_stored(request, outcome, quiet);
    }

    /// Answers to a value that is too long, before it came.
    pub fn binary_too_large(&mut self, request: &BinaryRequest<'_>, verb: Verb, why: TooLong) {
        self.count(Count::TooLarge);
        if verb == Verb::Set {
            self.cache().remove(request.key, self.now);
        }
        if why.limit == Limit::MaxValue {
            return self.binary_error(request, Status::TooLarge);
        }
        let text = why.to_string();
        let body = ReplyBody { key: b"", value: text.as_bytes() };
        self.binary_reply(request, Status::TooLarge, body, 0);
    }

    fn binary_get(
        &mut self,
        request: &BinaryRequest<'_>,
        GetForm { key, value, touch }: GetForm,
        quiet: bool,
    ) {
        let begin = self.out.bytes.len();
        let (now, times, out) = (self.now, self.times(), &mut self.out);
        let mut bytes = 0;
        let mut show = |item: &Item<'_>| {
            let (len, start) = (item.len(), out.bytes.len());
            bytes = len;
            let key_bytes = if key { request.key.len() } else { 0 };
            let value_bytes = if value { len } else { 0 };
            let head = BinaryReply {
                opcode: request.opcode,
                opaque: request.opaque,
                status: Status::Success,
                extras_bytes: 4,
                key_bytes: key_bytes as u16,
                body_bytes: (4 + key_bytes as u64 + value_bytes) as u32,
                cas: item.cas(),
            };
            out.bytes.extend_from_slice(&head.bytes());
            out.bytes.extend_from_slice(&item.flags().to_be_bytes());
            out.bytes.extend_from_slice(&request.key[..key_bytes]);
            let pushed = if value { push_value(out, item, len) } else { Ok(()) };
            pushed.inspect_err(|error| out.fail(start, error)).is_ok()
        };
        let mut failed = None;
        let found = if touch {
            let expires = expiry(i64::from(request.extra32(0)), times);
            self.db.entry(request.key, now).is_ok_and(|mut entry| {
                let item = entry.read().filter(|item| !item.is_typed());
                let Some(item) = item else { return false };
                let shown = show(&item);
                failed = set_expiry(&mut entry, expires).err();
                shown
            })
        } else {
            self.db.get(request.key, now, show) == Some(true)
        };
        if self.log.watches_commands() {
            self.log.fetched(request.key, found.then_some(bytes));
        }
        let (all, hits, misses) = if touch {
            (Count::CmdTouch, Count::TouchHits, Count::TouchMisses)
        } else {
            (Count::CmdGet, Count::GetHits, Count::GetMisses)
        };
        self.count(all);
        self.count(if found { hits } else { misses });
        if let Some(error) = failed {
            let outcome = StoreOutcome::of(&error);
            self.count_no_memory(outcome);
            self.out.truncate(begin);
            return self.binary_stored(request, outcome, quiet);
        }
        match (found, quiet, key) {
            (true, ..) | (_, true, _) => {}
            (.., false) => self.binary_error(request, Status::NotFound),
            (.., true) => {
                let body = ReplyBody { key: request.key, value: b"" };
                self.binary_reply(request, Status::NotFound, body, 0);
            }
        }
    }

    fn binary_count(&mut self, request: &BinaryRequest<'_>, down: bool, quiet: bool) {
        let exptime = request.extra32(16);
        let expires = expiry(i64::from(exptime), self.times());
        let first = (exptime != u32::MAX).then_some((request.extra64(8), expires));
        let (key, delta, cas) = (request.key, request.extra64(0), request.cas);
        let (new_cas, expires, has_binary_key) = (0, None, false);
        let step = CounterStep { key, delta, down, cas, new_cas, first, expires, has_binary_key };
        match self.count_by(&step) {
            Ok(_) if quiet => {}
            Ok(counted) => {
                let body = ReplyBody { key: b"", value: &counted.value.to_be_bytes() };
                self.binary_reply(request, Status::Success, body, counted.cas);
            }
            Err(outcome) => self.binary_stored(request, outcome, quiet),
        }
    }

    fn binary_stored(&mut self, request: &BinaryRequest<'_>, outcome: StoreOutcome, quiet: bool) {
        let status = match outcome {
            StoreOutcome::Stored(_) if quiet => return,
            StoreOutcome::Stored(cas) => {
                return self.binary_reply(request, Status::Success, ReplyBody::default(), cas);
            }
            StoreOutcome::NotStored => Status::NotStored,
            StoreOutcome::Exists => Status::Exists,
            StoreOutcome::NotFound => Status::NotFound,
            StoreOutcome::TooLarge => Status::TooLarge,
            StoreOutcome::NoMemory => Status::OutOfMemory,
            StoreOutcome::NotNumber => Status::BadDelta,
        };
        self.binary_error(request, status);
    }

    pub fn binary_error(&mut self, request: &BinaryRequest<'_>, status: Status) {
        self.binary_reply(request, status, ReplyBody { key: b"", value: status.text() }, 0);
    }

    /// Appends an answer without extras.
    pub fn binary_reply(
        &mut self,
        request: &BinaryRequest<'_>,
        status: Status,
        ReplyBody { key, value }: ReplyBody<'_>,
        cas: u64,
    ) {
        let head = BinaryReply {
            opcode: request.opcode,
            opaque: request.opaque,
            status,
            extras_bytes: 0,
            key_bytes: key.len() as u16,
            body_bytes: (key.len() + value.len()) as u32,
            cas,
        };
        self.out.bytes.extend_from_slice(&head.bytes());
        self.out.bytes.extend_from_slice(key);
        self.out.bytes.extend_from_slice(value);
    }
}
