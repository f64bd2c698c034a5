//! What was written into the cache as it arrived is made the value of its key: the command is
//! parsed once more from its head.

use crate::cache::{Error, Millis, Writer};
use crate::front::binary::{self, BinaryRequest};
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

fn no_memory(core: &mut Core, request: &BinaryRequest<'_>) {
    core.count(Count::NoMemory);
    core.binary_error(request, binary::Status::OutOfMemory);
}
