//! What scripts may call of the table.

use super::refused;
use super::{CommandId, NOSCRIPT, WRITE, called, find};
use crate::front::redis::RespCall;

/// Whether there is a command of that name.
pub fn is_known(name: &[u8]) -> bool {
    find(name).is_some()
}

/// The command that a script calls, if it may.
///
/// # Errors
/// In the words that Redis has for scripts.
pub fn admit(call: &RespCall<'_>, reads_only: bool) -> Result<CommandId, String> {
    let Some(id) = called(call, 0) else {
        let why = refused::why(call.arg(0)).map_or(String::new(), |why| format!(": {why}"));
        return Err(format!("ERR Unknown Redis command called from script{why}"));
    };
    let command = id.command();
    let why = if !id.takes(call.count()) {
        "ERR Wrong number of args calling Redis command from script"
    } else if command.has(NOSCRIPT) {
        "ERR This Redis command is not allowed from script"
    } else if reads_only && command.has(WRITE) {
        "ERR Write commands are not allowed from read-only scripts."
    } else {
        return Ok(id);
    };
    call.core.counters().rejected(id);
    Err(why.into())
}

pub fn writes(id: CommandId) -> bool {
    id.command().has(WRITE)
}
