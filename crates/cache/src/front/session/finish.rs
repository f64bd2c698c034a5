//! The end of a value of memcached's protocols that came in pieces: its command, which was kept, is
//! executed, or answered with why there was no memory. Called by `session.rs`.

use crate::cache::{Error, Millis, Writer};
use crate::front::binary::{BinaryRequest, Status};
use crate::front::binary_run::Opcode;
use crate::front::commands;
use crate::front::core::Core;
use crate::front::counters::Count;
use crate::front::store::StoreValue;
use crate::front::text::{self, Command};

pub(super) fn finish_text(
    core: &mut Core,
    head: &[u8],
    writer: Result<Writer, Error>,
    expires: Millis,
    whole: bool,
) {
    let text::ParsedText::Command { command: Command::Store(store), .. } = text::parse(head, 0)
    else {
        unreachable!("the line was a storage command when it came")
    };
    match writer {
        Ok(writer) => core.text_store(&store, StoreValue::Written(writer), expires, whole),
        Err(_) => core.text_no_memory(&store),
    }
}

pub(super) fn finish_binary(
    core: &mut Core,
    request: &BinaryRequest<'_>,
    writer: Result<Writer, Error>,
    expires: Millis,
) {
    let (Opcode::Store(verb), quiet) = commands::memcached::binary(request.opcode) else {
        unreachable!("only values are streamed")
    };
    match writer {
        Ok(writer) => core.binary_store(request, verb, quiet, StoreValue::Written(writer), expires),
        Err(_) => no_memory(core, request),
    }
}

/// How a binary request is called among commands that took long.
pub(super) fn binary_name(request: &BinaryRequest<'_>) -> String {
    format!("binary {:#04x}", request.opcode)
}

fn no_memory(core: &mut Core, request: &BinaryRequest<'_>) {
    core.count(Count::NoMemory);
    core.binary_error(request, Status::OutOfMemory);
}
