//! `COMMAND` and `HELP`: what the table says of its commands, in Redis's forms.

use super::{Command, CommandId, KeySpec, NAME_BYTES_MAX, called, find, find_whole};
use crate::front::glob::Glob;
use crate::front::redis::{CommandResult, RespCall, ResumePoint, syntax, wrong_arity};
use crate::front::resp::{
    Version, push_array, push_bulk, push_integer, push_map, push_set, push_status,
};

/// A command that does nothing without a subcommand.
pub fn no_subcommand(call: &mut RespCall<'_>) -> CommandResult {
    Err(wrong_arity(&call.name()))
}

/// `CLIENT HELP`, and those of other commands with subcommands.
pub fn help(call: &mut RespCall<'_>) -> CommandResult {
    let Some(id) = find(call.arg(0)) else { return no_subcommand(call) };
    let name = id.command().name.to_ascii_uppercase();
    let head = format!("{name} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:");
    let subcommands = id.subcommands().map(CommandId::command);
    let lines = subcommands.flat_map(|subcommand| {
        let name = subcommand.own_name().to_ascii_uppercase();
        let usage = format!("{name} {}", subcommand.syntax).trim_end().to_owned();
        [usage, format!("    {}", subcommand.summary)]
    });
    let lines: Vec<_> = std::iter::once(head).chain(lines).collect();
    call.array(lines.len());
    lines.iter().for_each(|line| push_status(&mut call.core.out.bytes, line));
    Ok(())
}

/// `COMMAND`
pub fn all_commands(call: &mut RespCall<'_>) -> CommandResult {
    call.array(CommandId::all_first().count());
    CommandId::all_first().for_each(|id| push_command(call, id));
    Ok(())
}

pub fn command_count(call: &mut RespCall<'_>) -> CommandResult {
    call.integer(CommandId::all_first().count() as i64)
}

/// `COMMAND INFO [name ...]`
pub fn command_info(call: &mut RespCall<'_>) -> CommandResult {
    if call.count() == 2 {
        return all_commands(call);
    }
    call.array(call.count() - 2);
    command_info_from(call, ResumePoint::at(2))
}

/// Answers with the commands that are named by words from the part's on.
fn command_info_from(call: &mut RespCall<'_>, part: ResumePoint) -> CommandResult {
    for index in part.index as usize..call.count() {
        if call.is_to_pause() {
            return call.go_on_later(ResumePoint::at(index as u64), command_info_from);
        }
        match find_whole(call.arg(index)) {
            Some(id) => push_command(call, id),
            None => call.core.out.bytes.extend_from_slice(match call.client.version {
                Version::Two => b"*-1\r\n",
                Version::Three => b"_\r\n",
            }),
        }
    }
    Ok(())
}

/// Appends what `COMMAND` tells of one: ten elements.
fn push_command(call: &mut RespCall<'_>, id: CommandId) {
    let version = call.client.version;
    let command = id.command();
    let out = &mut call.core.out.bytes;
    push_array(out, 10);
    push_bulk(out, command.name.as_bytes());
    push_integer(out, i64::from(command.arity));
    push_statuses(out, command.flag_names(), version);
    let (first, last, step) = match command.keys {
        [] => (0, 0, 0),
        [spec, .., last] => (i64::from(spec.first), last.last_key(), i64::from(spec.step)),
        [spec] => (i64::from(spec.first), spec.last_key(), i64::from(spec.step)),
    };
    [first, last, step].into_iter().for_each(|number| push_integer(out, number));
    push_statuses(out, command.categories(), version);
    let tips = command.tips.split_ascii_whitespace();
    push_set(out, tips.clone().count(), version);
    tips.for_each(|tip| push_bulk(out, tip.as_bytes()));
    push_set(out, command.keys.len(), version);
    command.keys.iter().for_each(|spec| push_key_spec(out, spec, version));
    push_set(out, id.subcommands().count(), version);
    id.subcommands().for_each(|subcommand| push_command(call, subcommand));
}

fn push_statuses(out: &mut Vec<u8>, names: impl Iterator<Item = &'static str>, version: Version) {
    let names: Vec<_> = names.collect();
    push_set(out, names.len(), version);
    names.into_iter().for_each(|name| push_status(out, name));
}

fn push_key_spec(out: &mut Vec<u8>, spec: &KeySpec, version: Version) {
    push_map(out, 3, version);
    push_bulk(out, b"flags");
    push_statuses(out, spec.flags.split(' '), version);
    push_bulk(out, b"begin_search");
    push_search(out, "index", &[("index", i64::from(spec.first))], version);
    push_bulk(out, b"find_keys");
    let range =
        [("lastkey", i64::from(spec.last)), ("keystep", i64::from(spec.step)), ("limit", 0)];
    push_search(out, "range", &range, version);
}

fn push_search(out: &mut Vec<u8>, kind: &str, spec: &[(&str, i64)], version: Version) {
    push_map(out, 2, version);
    push_bulk(out, b"type");
    push_bulk(out, kind.as_bytes());
    push_bulk(out, b"spec");
    push_map(out, spec.len(), version);
    for (name, value) in spec {
        push_bulk(out, name.as_bytes());
        push_integer(out, *value);
    }
}

impl KeySpec {
    /// The last word that is a key; from the end if negative.
    fn last_key(&self) -> i64 {
        let last = i64::from(self.last);
        if last < 0 { last } else { i64::from(self.first) + last }
    }

    /// Which of `count` words are keys.
    pub(super) fn words(&self, count: usize) -> impl ExactSizeIterator<Item = usize> + use<> {
        let last = match self.last_key() {
            last if last < 0 => count as i64 + last,
            last => last,
        };
        let behind = usize::try_from(last + 1).unwrap_or(0);
        (usize::from(self.first)..behind).step_by(usize::from(self.step))
    }
}

/// `COMMAND DOCS [name ...]`
pub fn command_docs(call: &mut RespCall<'_>) -> CommandResult {
    if call.count() > 2 {
        return command_docs_counted(call, ResumePoint::at(2));
    }
    let version = call.client.version;
    push_map(&mut call.core.out.bytes, CommandId::all_first().count(), version);
    CommandId::all_first().for_each(|id| push_docs(call, id));
    Ok(())
}

/// Counts the commands that are named by words from the part's on.
fn command_docs_counted(call: &mut RespCall<'_>, mut part: ResumePoint) -> CommandResult {
    let is_done = call.each_word(&mut part, 1, |call, index, known| {
        Ok(known + i64::from(find_whole(call.arg(index)).is_some()))
    })?;
    if !is_done {
        return call.go_on_later(part, command_docs_counted);
    }
    let version = call.client.version;
    push_map(&mut call.core.out.bytes, part.sum as usize, version);
    command_docs_from(call, ResumePoint::at(2))
}

fn command_docs_from(call: &mut RespCall<'_>, part: ResumePoint) -> CommandResult {
    for index in part.index as usize..call.count() {
        if (index as u64 - part.index).is_multiple_of(WORDS_AT_ONCE)
            && index as u64 > part.index
            && call.is_to_pause()
        {
            return call.go_on_later(ResumePoint::at(index as u64), command_docs_from);
        }
        if let Some(id) = find_whole(call.arg(index)) {
            push_docs(call, id);
        }
    }
    Ok(())
}

/// Words between two looks at the clock.
const WORDS_AT_ONCE: u64 = 64;

fn push_docs(call: &mut RespCall<'_>, id: CommandId) {
    let version = call.client.version;
    let &Command { name, summary, since, group, complexity, .. } = id.command();
    let subcommands = id.subcommands().count();
    let out = &mut call.core.out.bytes;
    push_bulk(out, name.as_bytes());
    let pairs =
        [("summary", summary), ("since", since), ("group", group), ("complexity", complexity)];
    push_map(out, pairs.len() + usize::from(subcommands > 0), version);
    for (what, text) in pairs {
        push_bulk(out, what.as_bytes());
        push_bulk(out, text.as_bytes());
    }
    if subcommands > 0 {
        push_bulk(out, b"subcommands");
        push_map(out, subcommands, version);
        id.subcommands().for_each(|subcommand| push_docs(call, subcommand));
    }
}

/// `COMMAND LIST [FILTERBY MODULE name|ACLCAT category|PATTERN pattern]`
pub fn command_list(call: &mut RespCall<'_>) -> CommandResult {
    let is_asked: Box<dyn Fn(&Command) -> bool> = match call.count() {
        2 => Box::new(|_: &Command| true),
        5 if call.is(2, "filterby") && call.is(3, "module") => Box::new(|_: &Command| false),
        5 if call.is(2, "filterby") && call.is(3, "aclcat") => {
            let category = [b"@", call.arg(4)].concat();
            Box::new(move |command: &Command| {
                let is = |known: &str| known.as_bytes().eq_ignore_ascii_case(&category);
                command.categories().any(is)
            })
        }
        5 if call.is(2, "filterby") && call.is(3, "pattern") => {
            let pattern = Glob::new(&call.arg(4).to_ascii_lowercase(), NAME_BYTES_MAX);
            Box::new(move |command: &Command| pattern.matches(command.name.as_bytes()))
        }
        _ => return Err(syntax()),
    };
    let names = CommandId::all().map(CommandId::command).filter(|command| is_asked(command));
    let names: Vec<_> = names.map(|command| command.name).collect();
    call.array(names.len());
    names.iter().for_each(|name| push_bulk(&mut call.core.out.bytes, name.as_bytes()));
    Ok(())
}

/// `COMMAND GETKEYS name word ...`
pub fn command_getkeys(call: &mut RespCall<'_>) -> CommandResult {
    let count = asked_keys(call)?.words().count();
    call.array(count);
    getkeys_from(call, ResumePoint::default())
}

fn getkeys_from(call: &mut RespCall<'_>, part: ResumePoint) -> CommandResult {
    push_keys(call, part, getkeys_from, |out, key, _, _| push_bulk(out, key))
}

/// `COMMAND GETKEYSANDFLAGS name word ...`
pub fn command_getkeys_and_flags(call: &mut RespCall<'_>) -> CommandResult {
    let count = asked_keys(call)?.words().count();
    call.array(count);
    getkeys_and_flags_from(call, ResumePoint::default())
}

fn getkeys_and_flags_from(call: &mut RespCall<'_>, part: ResumePoint) -> CommandResult {
    push_keys(call, part, getkeys_and_flags_from, |out, key, flags, version| {
        push_array(out, 2);
        push_bulk(out, key);
        push_statuses(out, flags.split(' '), version);
    })
}

/// The command in the words from the second on whose keys are asked for.
struct AskedKeys {
    command: &'static Command,
    /// Words of the command.
    count: usize,
    /// What is done to keys of which that depends on the command's words.
    variable_flags: &'static str,
}

impl AskedKeys {
    /// Each word that is a key, and what is done to it.
    fn words(&self) -> impl Iterator<Item = (usize, &'static str)> {
        self.command.keys.iter().flat_map(|spec| {
            let is_variable = spec.flags.ends_with("variable_flags");
            let flags = if is_variable { self.variable_flags } else { spec.flags };
            spec.words(self.count).map(move |word| (word, flags))
        })
    }
}

/// Where the command begins whose keys are asked for.
const ASKED: usize = 2;

fn asked_keys(call: &RespCall<'_>) -> Result<AskedKeys, String> {
    let command = called(call, ASKED).ok_or("ERR Invalid command specified")?.command();
    if command.keys.is_empty() {
        return Err("ERR The command has no key arguments".into());
    }
    let count = call.count() - ASKED;
    let least = command.arity.unsigned_abs() as usize;
    if count < least || command.arity > 0 && count != least {
        return Err("ERR Invalid number of arguments specified for command".into());
    }
    let has = |word| (ASKED + 2..call.count()).any(|index| call.is(index, word));
    let variable_flags = match command.name {
        "bitfield" if has("set") || has("incrby") => "RW access update",
        "bitfield" => "RO access",
        // A `SET` without `GET` does not read its key.
        _ if (ASKED + 3..call.count()).any(|index| call.is(index, "get")) => "RW access update",
        _ => "OW update",
    };
    Ok(AskedKeys { command, count, variable_flags })
}

/// Answers with each key behind the part's by `push`.
fn push_keys(
    call: &mut RespCall<'_>,
    part: ResumePoint,
    go_on: fn(&mut RespCall<'_>, ResumePoint) -> CommandResult,
    push: fn(&mut Vec<u8>, &[u8], &'static str, Version),
) -> CommandResult {
    let asked = asked_keys(call)?;
    for (index, (word, flags)) in asked.words().enumerate().skip(part.index as usize) {
        let index = index as u64;
        if index > part.index && index.is_multiple_of(WORDS_AT_ONCE) && call.is_to_pause() {
            return call.go_on_later(ResumePoint::at(index), go_on);
        }
        let key = call.args.get(call.input, ASKED + word);
        push(&mut call.core.out.bytes, key, flags, call.client.version);
    }
    Ok(())
}
