//! The table of commands of Redis's protocol and of memcached's: how many words each has, what it
//! is called with, how it is executed, and in what it differs from the original or why it is
//! refused. In: the words of a command. Out: its entry. From the table come dispatch, `COMMAND`,
//! `HELP`, errors of arity, the counters by command and the book's page of commands.
//!
//! Plain `GET` and `SET` of Redis, and memcached's `get`, `set` and meta commands, never come here
//! on their way: the session knows them by their first word.
//!
//! Source: the answers of redis 7.0 and of memcached 1.6.18, word by word.

mod introspection;
pub mod memcached;
#[cfg(test)]
mod page;
mod refused;
#[cfg(feature = "scripts")]
pub mod scripted;
mod table;

use super::bytes::unsigned;
use super::counters::Count;
use super::redis::{CommandResult, RespCall, Unfinished, wrong_arity};
use super::resp::{Args, OUT_OF_MEMORY};
use super::transactions;
use std::ops::Range;
pub use table::COMMANDS;

/// Words that are keys: the first one, the last one (from the end if negative, else from the first
/// one), and the step; and what is done to them, in the words of `COMMAND`. With a step of 0 the
/// first word says how many keys follow.
#[derive(Debug)]
pub struct KeySpec {
    flags: &'static str,
    first: u8,
    last: i8,
    step: u8,
}

/// `COMMAND`'s flags, in its order.
static FLAG_NAMES: [&str; 14] = [
    "write",
    "readonly",
    "denyoom",
    "admin",
    "noscript",
    "loading",
    "stale",
    "fast",
    "no_auth",
    "allow_busy",
    "skip_slowlog",
    "skip_monitor",
    "no_mandatory_keys",
    "movablekeys",
];

const WRITE: u32 = 1 << 0;
const READONLY: u32 = 1 << 1;
const DENYOOM: u32 = 1 << 2;
const ADMIN: u32 = 1 << 3;
const NOSCRIPT: u32 = 1 << 4;
const LOADING: u32 = 1 << 5;
const STALE: u32 = 1 << 6;
const FAST: u32 = 1 << 7;
const NO_AUTH: u32 = 1 << 8;
const ALLOW_BUSY: u32 = 1 << 9;
const SKIP_SLOWLOG: u32 = 1 << 10;
const SKIP_MONITOR: u32 = 1 << 11;
const NO_MANDATORY_KEYS: u32 = 1 << 12;
const MOVABLE_KEYS: u32 = 1 << 13;
/// Categories of ACLs that do not follow from the group.
const KEYSPACE: u32 = 1 << 16;
const CONNECTION: u32 = 1 << 17;
const DANGEROUS: u32 = 1 << 18;
/// It has subcommands, which stand behind it.
const CONTAINER: u32 = 1 << 19;
/// It does not wait for `EXEC`.
const AT_ONCE: u32 = 1 << 20;
/// It reads or changes keys that are none of its words.
const UNNAMED: u32 = 1 << 21;
/// A category of ACLs that does not follow from the group, and no flag of `COMMAND`.
const OF_ADMINS: u32 = 1 << 22;
/// It may change an item though it is not one of those that write.
const MAY_REPLICATE: u32 = 1 << 23;

#[derive(Debug)]
pub struct Command {
    /// In lower case; a subcommand's is `command|subcommand`.
    pub name: &'static str,
    /// Words with the name, of a subcommand with both; negative: at least so many.
    arity: i32,
    flags: u32,
    keys: &'static [KeySpec],
    group: &'static str,
    /// The version in which Redis got it.
    since: &'static str,
    complexity: &'static str,
    /// Hints for clients of clusters, with blanks between.
    tips: &'static str,
    /// The words behind the name.
    syntax: &'static str,
    summary: &'static str,
    /// How it differs from Redis's; empty: in nothing.
    #[cfg_attr(not(test), expect(dead_code, reason = "for the book's page, which a test writes"))]
    differs: &'static str,
    run: fn(&mut RespCall<'_>) -> CommandResult,
}

impl Command {
    fn has(&self, flags: u32) -> bool {
        self.flags & flags != 0
    }

    fn flag_names(&self) -> impl Iterator<Item = &'static str> + use<> {
        let flags = self.flags;
        let named = FLAG_NAMES.iter().enumerate();
        named.filter(move |(bit, _)| flags >> bit & 1 == 1).map(|(_, name)| *name)
    }

    /// In the order of `ACL CAT`.
    fn categories(&self) -> impl Iterator<Item = &'static str> + use<> {
        let is_of_connection = self.group == "connection" && !self.has(CONTAINER);
        let is_of_keys = self.group == "generic" && !self.has(CONTAINER | CONNECTION);
        let all = [
            ("@keyspace", is_of_keys || self.has(KEYSPACE)),
            ("@read", self.has(READONLY) && self.group != "scripting"),
            ("@write", self.has(WRITE)),
            ("@hash", self.group == "hash"),
            ("@string", self.group == "string"),
            ("@bitmap", self.group == "bitmap"),
            ("@hyperloglog", self.group == "hyperloglog"),
            ("@admin", self.has(ADMIN | OF_ADMINS)),
            ("@fast", self.has(FAST)),
            ("@slow", !self.has(FAST)),
            ("@dangerous", self.has(ADMIN | OF_ADMINS | DANGEROUS)),
            ("@connection", is_of_connection || self.has(CONNECTION)),
            ("@transaction", self.group == "transactions"),
            ("@scripting", self.group == "scripting" && !self.has(CONTAINER)),
        ];
        all.into_iter().filter(|(_, is)| *is).map(|(name, _)| name)
    }

    fn is_subcommand(&self) -> bool {
        self.name.contains('|')
    }

    /// Its name without that of its container command.
    fn own_name(&self) -> &'static str {
        self.name.rsplit('|').next().unwrap_or(self.name)
    }
}

/// A place in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommandId(u16);

pub const GET: CommandId = id("get");
pub const SET: CommandId = id("set");
pub const SELECT: CommandId = id("select");

impl CommandId {
    pub fn all() -> impl ExactSizeIterator<Item = CommandId> {
        (0..COMMANDS.len() as u16).map(CommandId)
    }

    /// Those that are not subcommands.
    fn all_first() -> impl Iterator<Item = CommandId> {
        Self::all().filter(|id| !id.command().is_subcommand())
    }

    pub fn index(self) -> usize {
        usize::from(self.0)
    }

    /// The command at a place in the table, if there is one.
    pub fn at(index: u64) -> Option<CommandId> {
        (index < COMMANDS.len() as u64).then_some(CommandId(index as u16))
    }

    /// Whether it may change an item, also by commands that it runs.
    pub fn may_write(self) -> bool {
        self.command().has(WRITE | MAY_REPLICATE)
    }

    pub fn is_of_admins(self) -> bool {
        self.command().has(ADMIN)
    }

    pub fn is_fast(self) -> bool {
        self.command().has(FAST)
    }

    /// Whether it is called with so many words.
    pub fn takes(self, words: usize) -> bool {
        let (words, arity) = (i32::try_from(words).unwrap_or(i32::MAX), self.command().arity);
        if arity < 0 { words >= -arity } else { words == arity }
    }

    pub fn command(self) -> &'static Command {
        &COMMANDS[self.index()]
    }

    /// Which of `count` words are keys.
    pub fn keys(self, count: usize) -> impl Iterator<Item = usize> {
        self.command().keys.iter().flat_map(move |spec| spec.words(count))
    }

    /// Whether all keys that it uses are among its words.
    pub fn names_its_keys(self) -> bool {
        !self.command().has(UNNAMED)
    }

    pub fn may_need_memory(self) -> bool {
        self.command().has(DENYOOM)
    }

    fn subcommands(self) -> impl Iterator<Item = CommandId> {
        let name = self.command().name;
        let is_own = move |id: &CommandId| {
            id.command().name.strip_prefix(name).is_some_and(|rest| rest.starts_with('|'))
        };
        Self::all().skip(self.index() + 1).take_while(is_own)
    }

    fn subcommand(self, name: &[u8]) -> Option<CommandId> {
        let is_named =
            |id: &CommandId| id.command().own_name().as_bytes().eq_ignore_ascii_case(name);
        self.subcommands().find(is_named)
    }
}

/// The command of that name, which is in the table.
const fn id(name: &str) -> CommandId {
    let mut index = 0;
    while !is_same(COMMANDS[index].name.as_bytes(), name.as_bytes()) {
        index += 1;
    }
    CommandId(index as u16)
}

const fn is_same(a: &[u8], b: &[u8]) -> bool {
    let mut at = 0;
    while at < a.len() && at < b.len() && a[at] == b[at] {
        at += 1;
    }
    at == a.len() && at == b.len()
}

/// Slots of the hash table of names; more than twice as many as there are names.
const SLOTS_COUNT: usize = 1 << SLOT_BITS;
const SLOT_BITS: u32 = 9;
const EMPTY: u16 = u16::MAX;

/// The place of each command in the table at the slot of its name's hash, or behind it.
static SLOTS: [u16; SLOTS_COUNT] = slots();

/// Names have at most so many bytes.
const NAME_BYTES_MAX: usize = 32;

/// A hash of a name that is the same for upper and lower case; its upper bits are the good ones.
const fn hash(name: &[u8]) -> u32 {
    let (mut hash, mut at) = (0_u32, 0);
    while at < name.len() {
        hash = (hash ^ (name[at] | 0x20) as u32).wrapping_mul(0x9e37_79b1);
        at += 1;
    }
    hash
}

/// Where the command of that name is first looked for.
const fn slot(name: &[u8]) -> usize {
    (hash(name) >> (u32::BITS - SLOT_BITS)) as usize
}

const fn slots() -> [u16; SLOTS_COUNT] {
    assert!(COMMANDS.len() < SLOTS_COUNT / 2);
    let (mut slots, mut index) = ([EMPTY; SLOTS_COUNT], 0);
    while index < COMMANDS.len() {
        let name = COMMANDS[index].name.as_bytes();
        assert!(name.len() <= NAME_BYTES_MAX);
        if bar(name) == name.len() {
            let mut at = slot(name);
            while slots[at] != EMPTY {
                at = (at + 1) % SLOTS_COUNT;
            }
            slots[at] = index as u16;
        }
        index += 1;
    }
    slots
}

/// Where a subcommand's own name is cut off, or the end.
const fn bar(name: &[u8]) -> usize {
    let mut at = 0;
    while at < name.len() && name[at] != b'|' {
        at += 1;
    }
    at
}

/// The command of that name, in upper or lower case, or the subcommand of a name as in the table.
pub fn find_whole(name: &[u8]) -> Option<CommandId> {
    match name.get(bar(name) + 1..) {
        Some(own_name) => find(&name[..bar(name)])?.subcommand(own_name),
        None => find(name),
    }
}

/// The command of that name, in upper or lower case, and no subcommand.
pub fn find(name: &[u8]) -> Option<CommandId> {
    if name.len() > NAME_BYTES_MAX {
        return None;
    }
    let mut at = slot(name);
    loop {
        let index = SLOTS[at];
        // An empty slot names no place.
        let command = COMMANDS.get(usize::from(index))?;
        if command.name.as_bytes().eq_ignore_ascii_case(name) {
            return Some(CommandId(index));
        }
        at = (at + 1) % SLOTS_COUNT;
    }
}

/// Executes a command, or lets it wait for `EXEC`; what is left of it, and which one it was, if it
/// ran.
pub fn run(mut call: RespCall<'_>) -> (Option<Unfinished>, Option<CommandId>) {
    match admit(&call) {
        Ok(id) if call.client.has_begun() && !id.command().has(AT_ONCE) => {
            call.client.runs(id, call.core.now);
            let answer = transactions::queue(&mut call, id);
            (call.finish(None, answer), None)
        }
        Ok(id) => {
            call.client.runs(id, call.core.now);
            let answer = execute(&mut call, id);
            (call.finish(Some(id), answer), Some(id))
        }
        Err(text) => {
            let text = transactions::refuse(&mut call, text);
            call.core.timer.refused += 1;
            (call.finish(None, Err(text)), None)
        }
    }
}

/// Refused where a store lies behind memory.
const BEYOND_STORE: [&str; 11] = [
    "dbsize",
    "eval",
    "eval_ro",
    "evalsha",
    "evalsha_ro",
    "fcall",
    "fcall_ro",
    "keys",
    "randomkey",
    "scan",
    "swapdb",
];

/// Executes a command that was admitted.
pub fn execute(call: &mut RespCall<'_>, id: CommandId) -> CommandResult {
    (id.command().run)(call)
}

/// The command that is called, if it may be.
fn admit(call: &RespCall<'_>) -> Result<CommandId, String> {
    let Some(id) = called(call, 0) else {
        call.core.count(Count::RespUnknown);
        return Err(unknown(call));
    };
    let rejected = |text: String| {
        call.core.counters().rejected(id);
        Err(text)
    };
    let command = id.command();
    if !id.takes(call.count()) {
        return rejected(wrong_arity(command.name));
    }
    if !call.client.known && !command.has(NO_AUTH) {
        return rejected("NOAUTH Authentication required.".into());
    }
    if call.core.shared.is_over_maxmemory() && needs_memory(call, id) {
        return rejected(OUT_OF_MEMORY.into());
    }
    if call.core.cache().has_store() && BEYOND_STORE.contains(&command.name) {
        let name = command.name.to_ascii_uppercase();
        return rejected(format!("ERR {name} would see what is in memory alone, not the store"));
    }
    Ok(id)
}

/// As Redis sees it: a command that waits takes some as well.
fn needs_memory(call: &RespCall<'_>, id: CommandId) -> bool {
    let waits = call.client.has_begun() && !id.command().has(AT_ONCE);
    let executes = id.command().name == "exec" && call.client.may_need_memory();
    id.may_need_memory() || waits || executes
}

/// The command, or subcommand, that the words from `first` on call.
fn called(call: &RespCall<'_>, first: usize) -> Option<CommandId> {
    named(call.args, call.input, first)
}

/// The command, or subcommand, that these words call from word `first` on, which there is.
pub fn named(args: &Args, input: &[u8], first: usize) -> Option<CommandId> {
    let id = find(args.get(input, first))?;
    if !id.command().has(CONTAINER) || args.len() == first + 1 {
        return Some(id);
    }
    id.subcommand(args.get(input, first + 1))
}

/// The places of the keys that a script or function is told, behind their number.
pub fn keys_told(id: CommandId, args: &Args, input: &[u8]) -> Range<usize> {
    let name = id.command().name;
    if args.len() < 3 || !["eval", "fcall"].iter().any(|start| name.starts_with(start)) {
        return 0..0;
    }
    let count = unsigned(args.get(input, 2)).unwrap_or(0).min(args.len() as u64 - 3);
    3..3 + count as usize
}

/// Bytes of its words that a command that is not known gets back.
const UNKNOWN_BYTES_MAX: usize = 128;

fn unknown(call: &RespCall<'_>) -> String {
    let text = |bytes: &[u8], most: usize| {
        let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
        bytes[..end.min(most)].to_vec()
    };
    if let Some(id) = find(call.arg(0)) {
        let name = id.command().name;
        let word = text(call.arg(1), UNKNOWN_BYTES_MAX);
        let why = refused::why(&[name.as_bytes(), b"|", &word].concat());
        let word = String::from_utf8_lossy(&word);
        let why = why.map_or(String::new(), |why| format!(": {why}"));
        let name = name.to_ascii_uppercase();
        return format!("ERR unknown subcommand '{word}'{why}. Try {name} HELP.");
    }
    let mut line = b"ERR unknown command '".to_vec();
    line.extend(text(call.arg(0), UNKNOWN_BYTES_MAX));
    line.extend_from_slice(b"', ");
    if let Some(why) = refused::why(call.arg(0)) {
        line.extend_from_slice(why.as_bytes());
        return String::from_utf8_lossy(&line).into_owned();
    }
    line.extend_from_slice(b"with args beginning with: ");
    let mut shown = 0;
    for index in 1..call.count() {
        if shown >= UNKNOWN_BYTES_MAX {
            break;
        }
        let word = text(call.arg(index), UNKNOWN_BYTES_MAX - shown);
        shown += word.len() + 3;
        line.push(b'\'');
        line.extend(word);
        line.extend_from_slice(b"' ");
    }
    // An error's text is one of bytes; ours are strings, so what is no text is marked.
    String::from_utf8_lossy(&line).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_in_order_and_found_in_any_letters() {
        assert!(COMMANDS.is_sorted_by(|a, b| a.name < b.name));
        for id in CommandId::all() {
            let name = id.command().name;
            assert_eq!(find_whole(name.to_ascii_uppercase().as_bytes()), Some(id), "{name}");
            assert_eq!(find(name.as_bytes()).is_some(), !name.contains('|'), "{name}");
        }
        assert_eq!((find(b"GeT"), find(b"set")), (Some(GET), Some(SET)));
        // Letters are folded for the hash by a bit that other bytes have, too.
        assert!(find(b"lpush").is_none() && find(b"").is_none() && find(b"ge\x54\x00").is_none());
        assert!(find(b"a command of more than as many bytes as names have").is_none());
    }

    #[test]
    fn subcommands_stand_behind_their_command_and_ask_for_as_many_words() {
        for id in CommandId::all_first() {
            let command = id.command();
            let count = id.subcommands().count();
            assert_eq!(count > 0, command.has(CONTAINER), "{}", command.name);
            for subcommand in id.subcommands().map(CommandId::command) {
                assert!(subcommand.arity.abs() >= 2, "{}", subcommand.name);
            }
        }
        let client = find(b"client").unwrap();
        assert_eq!(client.subcommand(b"Id").unwrap().command().name, "client|id");
        assert!(client.subcommand(b"nonsense").is_none() && GET.subcommand(b"id").is_none());
        let first = CommandId::all_first().count();
        let behind: usize = CommandId::all_first().map(|id| id.subcommands().count()).sum();
        assert_eq!(first + behind, COMMANDS.len());
    }

    #[test]
    fn what_is_offered_is_not_refused() {
        let mut refused: Vec<_> = refused::REFUSED.iter().flat_map(|some| some.names).collect();
        let all = refused.len();
        refused.sort_unstable();
        refused.dedup();
        assert_eq!(refused.len(), all, "a command is refused twice");
        for name in refused {
            assert!(find_whole(name.as_bytes()).is_none(), "{name} is offered as well");
        }
    }
}
