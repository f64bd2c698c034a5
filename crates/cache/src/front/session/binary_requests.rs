//! Requests of memcached's binary protocol, one after the other.

use super::{AnnouncedValue, ParseStep, Session, streams};
use crate::cache::StoredWith;
use crate::clock::expiry;
use crate::constants::STREAM_BYTES_MIN;
use crate::front::binary;
use crate::front::binary_run::Opcode;
use crate::front::core::Core;
use crate::front::memcached::AfterCommand;
use crate::front::store::StoreValue;
use crate::front::too_long::TooLong;

impl Session {
    pub(super) fn binary(&mut self, core: &mut Core, input: &[u8], at: usize) -> ParseStep {
        let rest = &input[at..];
        let (used, request) = match binary::parse(rest) {
            binary::ParsedBinary::Need(need) => return ParseStep::Need(need),
            binary::ParsedBinary::Magic => return self.fail(core),
            binary::ParsedBinary::Request { used, request } => (used, request),
        };
        let (opcode, quiet) = match core.binary_check(&request) {
            Ok(known) => known,
            Err(next) => {
                core.timer.commands += 1;
                self.next(next);
                return ParseStep::Used(used);
            }
        };
        if self.fetches_binary(core, &request, opcode, input) {
            return ParseStep::Used(0);
        }
        let Opcode::Store(verb) = opcode else {
            core.timer.commands += 1;
            let next = core.binary(&request, opcode, quiet);
            self.next(next);
            return ParseStep::Used(used);
        };
        let len = u64::from(request.value_bytes);
        let expires = expiry(i64::from(request.extra32(4)), core.times());
        if let Some(why) = TooLong::of(core, len, streams(verb)) {
            core.timer.commands += 1;
            core.binary_too_large(&request, verb, why);
            self.next(AfterCommand::Skip(len));
        } else if len >= STREAM_BYTES_MIN && streams(verb) {
            self.end_batch(core, input, at);
            if !self.has_room(core, request.key, len) {
                return ParseStep::Used(0);
            }
            let (head, key, flags) = (&rest[..used], request.key, request.extra32(0));
            let with = StoredWith { flags, expires, ..StoredWith::default() };
            self.stream(core, &AnnouncedValue { head, key, len, with, rest: 0 });
        } else {
            let end = used + request.value_bytes as usize;
            let Some(value) = rest.get(used..end) else { return ParseStep::Need(end) };
            core.timer.commands += 1;
            core.binary_store(&request, verb, quiet, StoreValue::Bytes(value), expires);
            return ParseStep::Used(end);
        }
        ParseStep::Used(used)
    }
}
