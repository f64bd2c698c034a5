//! The ends of memcached's commands with streamed values: the head is parsed again, and the value
//! becomes that of its key.

use crate::cache::{Error, Millis, Writer};
use crate::front::binary::{self, BinaryRequest};
use crate::front::binary_run::Opcode;
use crate::front::commands;
use crate::front::core::Core;
use crate::front::counters::Count;
use crate::front::store::StoreValue;
use crate::front::text::{self, Command};

pub fn finish_text(
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

pub fn finish_binary(
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
pub fn binary_name(request: &BinaryRequest<'_>) -> String {
    format!("binary {:#04x}", request.opcode)
}

fn no_memory(core: &mut Core, request: &BinaryRequest<'_>) {
    core.count(Count::NoMemory);
    core.binary_error(request, binary::Status::OutOfMemory);
}
