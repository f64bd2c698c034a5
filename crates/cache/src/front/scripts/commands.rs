//! `EVAL` and its like, and `SCRIPT`. In: a [`RespCall`]. Out: its answer, or an error's text.

use super::calls::{ScriptCall, checked};
use super::interpreter::{Task, Words};
use super::sha1::Sha1;
use super::store::Script;
use crate::front::redis::{CommandResult, RespCall, wrong_arity};
use crate::front::resp::{push_bulk, push_integer};
use std::sync::Arc;

const NOSCRIPT: &str = "NOSCRIPT No matching script. Please use EVAL.";

/// `EVAL script count [key ...] [word ...]`
pub fn eval(call: &mut RespCall<'_>) -> CommandResult {
    run_text(call, false)
}

pub fn eval_ro(call: &mut RespCall<'_>) -> CommandResult {
    run_text(call, true)
}

/// `EVALSHA sha1 count [key ...] [word ...]`
pub fn evalsha(call: &mut RespCall<'_>) -> CommandResult {
    run_known(call, false)
}

pub fn evalsha_ro(call: &mut RespCall<'_>) -> CommandResult {
    run_known(call, true)
}

fn run_text(call: &mut RespCall<'_>, reads_only: bool) -> CommandResult {
    let count = call.number(2)?;
    let given = given(call, count)?;
    let text = call.args.get(call.input, 1);
    let sha = Sha1::of(text);
    let known = call.core.shared.scripts.script(sha);
    let script = match known {
        Some(script) => script,
        None => remember(call, sha, 1, false)?,
    };
    run(call, &script, given, reads_only)
}

fn run_known(call: &mut RespCall<'_>, reads_only: bool) -> CommandResult {
    let sha = Sha1::parse(call.arg(1)).ok_or(NOSCRIPT)?;
    let count = call.number(2)?;
    let given = given(call, count)?;
    let script = call.core.shared.scripts.script(sha).ok_or(NOSCRIPT)?;
    run(call, &script, given, reads_only)
}

fn run(
    call: &mut RespCall<'_>,
    script: &Script,
    given: Arc<Words>,
    reads_only: bool,
) -> CommandResult {
    if reads_only && script.flags.is_declared && !script.flags.no_writes {
        return Err(WRITES.into());
    }
    script.flags.check_memory(&call.core.shared)?;
    let version = call.client.version;
    ScriptCall {
        task: Task::Script { sha: script.sha, text: Arc::clone(&script.body), given, version },
        database: call.client.database,
        reads_only: reads_only || script.flags.no_writes,
        allows_oom: script.flags.allow_oom,
        is_function: false,
        is_short: script.is_short,
    }
    .run(call)
}

pub const WRITES: &str = "ERR Can not execute a script with write flag using *_ro command.";

/// Word `index` is the text of a script: it is known from now on, if it is one.
fn remember(
    call: &mut RespCall<'_>,
    sha: Sha1,
    index: usize,
    is_loaded: bool,
) -> Result<Arc<Script>, String> {
    let script = Arc::new(Script::new(sha, call.arg(index))?);
    checked(call.core, Task::Check { text: Arc::clone(&script.body) })?;
    call.core.shared.scripts.remember(Arc::clone(&script), is_loaded)?;
    Ok(script)
}

/// The words behind the third, the first `count` of which are keys.
pub fn given(call: &RespCall<'_>, count: i64) -> Result<Arc<Words>, String> {
    if count > call.count() as i64 - 3 {
        return Err("ERR Number of keys can't be greater than number of args".into());
    }
    let count = usize::try_from(count).map_err(|_| "ERR Number of keys can't be negative")?;
    Ok(Arc::new(Words::new(call.args.words(call.input).skip(3), count)))
}

pub fn script_load(call: &mut RespCall<'_>) -> CommandResult {
    let sha = Sha1::of(call.arg(2));
    remember(call, sha, 2, true)?;
    push_bulk(&mut call.core.out.bytes, sha.hex().as_bytes());
    Ok(())
}

/// `SCRIPT EXISTS sha1 [sha1 ...]`
pub fn script_exists(call: &mut RespCall<'_>) -> CommandResult {
    call.array(call.count() - 2);
    for index in 2..call.count() {
        let sha = Sha1::parse(call.arg(index));
        let found = sha.and_then(|sha| call.core.shared.scripts.script(sha));
        push_integer(&mut call.core.out.bytes, i64::from(found.is_some()));
    }
    Ok(())
}

pub fn script_flush(call: &mut RespCall<'_>) -> CommandResult {
    if call.count() > 3 {
        return Err(wrong_arity("script|flush"));
    }
    if call.count() == 3 && !call.is(2, "async") && !call.is(2, "sync") {
        return Err("ERR SCRIPT FLUSH only support SYNC|ASYNC option".into());
    }
    call.core.shared.scripts.forget_scripts();
    call.status("OK")
}

pub fn script_kill(call: &mut RespCall<'_>) -> CommandResult {
    call.core.shared.scripts.kill(false)?;
    call.status("OK")
}
