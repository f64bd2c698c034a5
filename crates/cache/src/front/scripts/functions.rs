//! `FUNCTION` and `FCALL`. In: a [`RespCall`]. Out: its answer, or an error's text.

use super::calls::{ScriptCall, load};
use super::commands::{WRITES, given};
use super::interpreter::{Registered, Task};
use super::store::{Flags, Library, RunningFunction, TEXT_BYTES_MAX};
use crate::front::clients::ClientInfo;
use crate::front::core::Core;
use crate::front::glob::Glob;
use crate::front::redis::{CommandResult, RespCall, wrong_words};
use crate::front::resp::{
    Args, Version, push_array, push_bulk, push_integer, push_map, push_null, push_set, push_status,
};
use crate::front::values::dump;
use rackpool_mem::process::monotonic_ns;
use std::sync::Arc;

/// `FCALL function count [key ...] [word ...]`
pub fn fcall(call: &mut RespCall<'_>) -> CommandResult {
    run(call, false)
}

pub fn fcall_ro(call: &mut RespCall<'_>) -> CommandResult {
    run(call, true)
}

fn run(call: &mut RespCall<'_>, reads_only: bool) -> CommandResult {
    let library = call.core.shared.scripts.library_of(call.arg(1));
    let library = library.ok_or("ERR Function not found")?;
    let count = call.number(2).map_err(|_| "ERR Bad number of keys provided")?;
    let given = given(call, count)?;
    let is_called = |one: &&Registered| one.name.eq_ignore_ascii_case(call.arg(1));
    let function = library.functions.iter().find(is_called).ok_or("ERR Function not found")?;
    let name = function.name.clone();
    let flags = Flags::of(function.flags.iter().map(String::as_str));
    if reads_only && !flags.no_writes {
        return Err(WRITES.into());
    }
    flags.check_memory(&call.core.shared)?;
    let version = call.client.version;
    let job = ScriptCall {
        task: Task::Function { library, name, given, version },
        database: call.client.database,
        reads_only: flags.no_writes,
        allows_oom: flags.allow_oom,
        is_function: true,
        is_short: false,
    };
    job.run(call)
}

pub fn function_load(call: &mut RespCall<'_>) -> CommandResult {
    let last = call.count() - 1;
    let mut replaces = false;
    for index in 2..last {
        if !call.is(index, "replace") {
            let word = String::from_utf8_lossy(call.arg(index)).into_owned();
            return Err(format!("ERR Unknown option given: {word}"));
        }
        replaces = true;
    }
    let text: Arc<[u8]> = call.arg(last).into();
    let name = library_name(&text)?;
    if !replaces {
        call.core.shared.scripts.check_is_new(&name)?;
    }
    // Its text is run: that may take long.
    call.run_apart(
        text.len() as u64,
        Box::new(move |core: &mut Core, _: &mut ClientInfo| {
            let library = loaded(core, name.clone(), text)?;
            core.shared.scripts.add_libraries(vec![library], replaces, false)?;
            push_bulk(&mut core.out.bytes, &name);
            Ok(())
        }),
    )
}

fn loaded(core: &mut Core, name: Vec<u8>, text: Arc<[u8]>) -> Result<Arc<Library>, String> {
    let functions = load(core, Arc::clone(&text))?;
    if functions.is_empty() {
        return Err("ERR No functions registered".into());
    }
    Ok(core.shared.scripts.new_library(name, text, functions))
}

/// The name in a library's first line, `#!lua name=...`.
fn library_name(text: &[u8]) -> Result<Vec<u8>, String> {
    if !text.starts_with(b"#!") {
        return Err("ERR Missing library metadata".into());
    }
    let end = memchr::memchr(b'\n', text).ok_or("ERR Invalid library metadata")?;
    let line = Args::of_line(&text[..end]).ok_or("ERR Invalid library metadata")?;
    let mut words = line.words(b"").map(String::from_utf8_lossy);
    let engine = words.next().unwrap_or_default();
    let engine = engine.strip_prefix("#!").unwrap_or_default();
    let mut name = None;
    for word in words {
        match word.strip_prefix("name=").map(str::to_owned) {
            Some(_) if name.is_some() => {
                return Err("ERR Invalid metadata value, name argument was given multiple \
                            times"
                    .into());
            }
            Some(given) => name = Some(given),
            None => return Err(format!("ERR Invalid metadata value given: {word}")),
        }
    }
    let name = name.ok_or("ERR Library name was not given")?;
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    if name.is_empty() || !name.bytes().all(is_word) {
        return Err("ERR Library names can only contain letters, numbers, or underscores(_) and \
                    must be at least one character long"
            .into());
    }
    if !engine.eq_ignore_ascii_case("lua") {
        return Err(format!("ERR Engine '{engine}' not found"));
    }
    Ok(name.into_bytes())
}

pub fn function_delete(call: &mut RespCall<'_>) -> CommandResult {
    if !call.core.shared.scripts.remove_library(call.arg(2)) {
        return Err("ERR Library not found".into());
    }
    call.status("OK")
}

pub fn function_flush(call: &mut RespCall<'_>) -> CommandResult {
    let is_known = call.count() == 2 || call.is(2, "async") || call.is(2, "sync");
    if call.count() > 3 {
        return Err(wrong_words(call));
    }
    if !is_known {
        return Err("ERR FUNCTION FLUSH only supports SYNC|ASYNC option".into());
    }
    call.core.shared.scripts.remove_libraries();
    call.status("OK")
}

pub fn function_kill(call: &mut RespCall<'_>) -> CommandResult {
    call.core.shared.scripts.kill(true)?;
    call.status("OK")
}

pub fn function_dump(call: &mut RespCall<'_>) -> CommandResult {
    let libraries = call.core.shared.scripts.libraries();
    let dump = dump::dump_libraries(libraries.iter().map(|library| &*library.text));
    push_bulk(&mut call.core.out.bytes, &dump);
    Ok(())
}

/// `FUNCTION RESTORE dump [APPEND|FLUSH|REPLACE]`
pub fn function_restore(call: &mut RespCall<'_>) -> CommandResult {
    if call.count() > 4 {
        return Err(wrong_words(call));
    }
    let is = |word| call.count() == 4 && call.is(3, word);
    let (replaces, flushes) = (is("replace"), is("flush"));
    if call.count() == 4 && !replaces && !flushes && !is("append") {
        return Err("ERR Wrong restore policy given, value should be either FLUSH, APPEND or \
                    REPLACE."
            .into());
    }
    let texts = dump::restore_libraries(call.arg(2), TEXT_BYTES_MAX as u64);
    let texts = texts.map_err(|error| error.to_string())?;
    let bytes: usize = texts.iter().map(Vec::len).sum();
    call.run_apart(
        bytes as u64,
        Box::new(move |core: &mut Core, _: &mut ClientInfo| {
            let mut libraries = Vec::new();
            for text in texts {
                libraries.push(loaded(core, library_name(&text)?, text.into())?);
            }
            let added = core.shared.scripts.add_libraries(libraries, replaces, flushes);
            // Redis has the name in quotes for FUNCTION LOAD alone.
            added.map_err(|text| text.replace('\'', ""))?;
            push_status(&mut core.out.bytes, "OK");
            Ok(())
        }),
    )
}

pub fn function_stats(call: &mut RespCall<'_>) -> CommandResult {
    let version = call.client.version;
    let scripts = &call.core.shared.scripts;
    let (counts, running) = (scripts.counts(), scripts.running_function());
    let out = &mut call.core.out.bytes;
    push_map(out, 2, version);
    push_bulk(out, b"running_script");
    match &running {
        Some(running) => push_running(out, running, version),
        None => push_null(out, version),
    }
    push_bulk(out, b"engines");
    push_map(out, 1, version);
    push_bulk(out, b"LUA");
    push_map(out, 2, version);
    push_bulk(out, b"libraries_count");
    push_integer(out, counts.libraries as i64);
    push_bulk(out, b"functions_count");
    push_integer(out, counts.functions as i64);
    Ok(())
}

fn push_running(out: &mut Vec<u8>, running: &RunningFunction, version: Version) {
    let RunningFunction { name, given, began_ns } = running;
    push_map(out, 3, version);
    push_bulk(out, b"name");
    push_bulk(out, name);
    push_bulk(out, b"command");
    push_array(out, 3 + given.all().count());
    push_bulk(out, b"FCALL");
    push_bulk(out, name);
    push_bulk(out, given.keys().count().to_string().as_bytes());
    given.all().for_each(|word| push_bulk(out, word));
    push_bulk(out, b"duration_ms");
    push_integer(out, (monotonic_ns().saturating_sub(*began_ns) / 1_000_000) as i64);
}

/// `FUNCTION LIST [LIBRARYNAME pattern] [WITHCODE]`
pub fn function_list(call: &mut RespCall<'_>) -> CommandResult {
    let (mut pattern, mut with_text, mut index) = (None, false, 2);
    while index < call.count() {
        if !with_text && call.is(index, "withcode") {
            with_text = true;
        } else if pattern.is_none() && call.is(index, "libraryname") {
            index += 1;
            if index == call.count() {
                return Err("ERR library name argument was not given".into());
            }
            pattern = Some(Glob::new(call.arg(index), LIBRARY_NAME_BYTES_MAX));
        } else {
            let word = String::from_utf8_lossy(call.arg(index)).into_owned();
            return Err(format!("ERR Unknown argument {word}"));
        }
        index += 1;
    }
    let mut libraries = call.core.shared.scripts.libraries();
    libraries.retain(|one| pattern.as_ref().is_none_or(|pattern| pattern.matches(&one.name)));
    call.array(libraries.len());
    for library in &libraries {
        push_library(&mut call.core.out.bytes, library, with_text, call.client.version);
    }
    Ok(())
}

/// Names of libraries that a pattern is compared with; longer ones are not.
const LIBRARY_NAME_BYTES_MAX: usize = 4096;

fn push_library(out: &mut Vec<u8>, library: &Library, with_text: bool, version: Version) {
    push_map(out, 3 + usize::from(with_text), version);
    push_bulk(out, b"library_name");
    push_bulk(out, &library.name);
    push_bulk(out, b"engine");
    push_bulk(out, b"LUA");
    push_bulk(out, b"functions");
    push_array(out, library.functions.len());
    for Registered { name, flags, about } in &library.functions {
        push_map(out, 3, version);
        push_bulk(out, b"name");
        push_bulk(out, name);
        push_bulk(out, b"description");
        match about {
            Some(about) => push_bulk(out, about),
            None => push_null(out, version),
        }
        push_bulk(out, b"flags");
        push_set(out, flags.len(), version);
        flags.iter().for_each(|flag| push_status(out, flag));
    }
    if with_text {
        push_bulk(out, b"library_code");
        push_bulk(out, &library.text);
    }
}
