//! In place of scripts where the feature `scripts` is off: its commands answer that.

use super::redis::{CommandResult, RespCall};

pub type ScriptStore = ();
pub type ScriptState = std::convert::Infallible;

macro_rules! absent {
    ($($name:ident)*) => {
        $(pub fn $name(_: &mut RespCall<'_>) -> CommandResult {
            Err("ERR this server was built without scripts".into())
        })*
    };
}

absent! {
    eval eval_ro evalsha evalsha_ro script_exists script_flush script_kill script_load
    fcall fcall_ro function_delete function_flush function_kill function_list function_load
}
