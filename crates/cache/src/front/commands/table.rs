//! The commands of Redis that are offered. Sorted by name; subcommands behind their command.

use super::introspection::{
    all_commands, command_count, command_docs, command_getkeys, command_getkeys_and_flags,
    command_info, command_list, help, no_subcommand,
};
use super::{
    ADMIN, ALLOW_BUSY, AT_ONCE, CONNECTION, CONTAINER, Command, DANGEROUS, DENYOOM, FAST, KEYSPACE,
    KeySpec, LOADING, MAY_REPLICATE, MOVABLE_KEYS, NO_AUTH, NO_MANDATORY_KEYS, NOSCRIPT, READONLY,
    SKIP_MONITOR, SKIP_SLOWLOG, STALE, UNNAMED, WRITE,
};
use crate::front::core::Core;
use crate::front::redis_keys::{self, left};
use crate::front::redis_server as server;
use crate::front::redis_strings::{self as strings, Unit};
use crate::front::scripts;
use crate::front::transactions;

const fn one(flags: &'static str) -> KeySpec {
    KeySpec { flags, first: 1, last: 0, step: 1 }
}

const fn all(flags: &'static str) -> KeySpec {
    KeySpec { flags, first: 1, last: -1, step: 1 }
}

/// Keys behind the word that says how many they are.
const fn counted(flags: &'static str) -> KeySpec {
    KeySpec { flags, first: 2, last: 0, step: 0 }
}

const NONE: &[KeySpec] = &[];
const RO: &[KeySpec] = &[one("RO")];
const RO_ACCESS: &[KeySpec] = &[one("RO access")];
const RW_UPDATE: &[KeySpec] = &[one("RW update")];
const RW_BOTH: &[KeySpec] = &[one("RW access update")];
const RW_DELETE: &[KeySpec] = &[one("RW access delete")];
const RW_INSERT: &[KeySpec] = &[one("RW insert")];
const OW_UPDATE: &[KeySpec] = &[one("OW update")];
const OW_INSERT: &[KeySpec] = &[one("OW insert")];
const OF_SET: &[KeySpec] = &[one("RW access update variable_flags")];
const ALL_RO: &[KeySpec] = &[all("RO")];
const ALL_READ: &[KeySpec] = &[all("RO access")];
const ALL_REMOVED: &[KeySpec] = &[all("RM delete")];
const PAIRS: &[KeySpec] = &[KeySpec { flags: "OW update", first: 1, last: -1, step: 2 }];
const SECOND: &[KeySpec] = &[KeySpec { flags: "RO", first: 2, last: 0, step: 1 }];

const CLIENT: u32 = NOSCRIPT | LOADING | STALE;
const ADMINS: u32 = ADMIN | NOSCRIPT | LOADING | STALE;
const LOG_IN: u32 = NOSCRIPT | LOADING | STALE | FAST | NO_AUTH | ALLOW_BUSY;
const COUNTED: &[KeySpec] = &[counted("RW access update")];
const COUNTED_RO: &[KeySpec] = &[counted("RO access")];

const TRANSACTION: u32 = NOSCRIPT | LOADING | STALE | FAST | ALLOW_BUSY;
const RUNS: u32 =
    NOSCRIPT | SKIP_MONITOR | MAY_REPLICATE | NO_MANDATORY_KEYS | STALE | MOVABLE_KEYS | UNNAMED;
const RUNS_RO: u32 = RUNS & !MAY_REPLICATE | READONLY;
const HELP: u32 = LOADING | STALE;
const ABOUT: u32 = LOADING | STALE | CONNECTION;

const O_1: &str = "O(1)";
const O_KEYS: &str = "O(N) in the keys named";
const O_SCRIPT: &str = "Depends on the script that is executed.";
const O_TEXT: &str = "O(N) in the text's bytes";
const O_WORDS: &str = "O(N) in the words";
const O_CLIENTS: &str = "O(N) in the clients";
const O_COMMANDS: &str = "O(N) in the commands";
const O_QUEUED: &str = "O(N) in the commands that wait";
const O_ENTRIES: &str = "O(N) in the entries";

/// What scripts have in common that Redis's have not.
const APART: &str =
    "Stopped after `--script-ms` even if it has written; others are served meanwhile.";

/// The one difference of the commands whose work grows with their words.
const IN_TURNS: &str = "A long one is not one step to others.";

macro_rules! commands {
    ($($name:literal $arity:literal $flags:expr, $keys:ident $group:literal $since:literal
        $complexity:ident $(tips $tips:literal)? => $run:expr,
        $syntax:literal $summary:literal $(differs $differs:expr)?;)*) => {
        &[$(Command {
            name: $name,
            arity: $arity,
            flags: $flags,
            keys: $keys,
            group: $group,
            since: $since,
            complexity: $complexity,
            tips: concat!($($tips)?),
            syntax: $syntax,
            summary: $summary,
            differs: or_nothing(&[$($differs)?]),
            run: $run,
        }),*]
    };
}

const fn or_nothing(text: &[&'static str]) -> &'static str {
    if text.is_empty() { "" } else { text[0] }
}

pub const COMMANDS: &[Command] = commands! {
    "append" 3 WRITE | DENYOOM | FAST, RW_INSERT "string" "2.0.0" O_1 => strings::append,
        "key value" "Appends to a value; there need not be one.";
    "auth" -2 LOG_IN, NONE "connection" "1.0.0" O_1 => server::auth,
        "[user] password" "Authenticates the connection."
        differs "There is one user, `default`.";
    "client" -2 CONTAINER, NONE "connection" "2.4.0" O_1 => no_subcommand,
        "subcommand ..." "Names the connection, or tells of all.";
    "client|getname" 2 CLIENT, NONE "connection" "2.6.9" O_1 => server::client_getname,
        "" "Tells the connection's name.";
    "client|help" 2 HELP, NONE "connection" "5.0.0" O_1 => help,
        "" "Prints this help.";
    "client|id" 2 CLIENT, NONE "connection" "5.0.0" O_1 => server::client_id,
        "" "Tells the connection's number.";
    "client|info" 2 CLIENT, NONE "connection" "6.2.0" O_1
        tips "nondeterministic_output" => server::client_info,
        "" "Tells of the connection, as LIST does." differs "As `client list`.";
    "client|list" -2 ADMINS, NONE "connection" "2.4.0" O_CLIENTS
        tips "nondeterministic_output" => server::client_list,
        "[TYPE type | ID number ...]" "Tells of all connections."
        differs "Buffers and memory of a client are not told.";
    "client|setinfo" 4 CLIENT, NONE "connection" "7.2.0" O_1
        tips "request_policy:all_nodes response_policy:all_succeeded" => server::client_setinfo,
        "LIB-NAME name | LIB-VER version" "Names the library that the client uses.";
    "client|setname" 3 CLIENT, NONE "connection" "2.6.9" O_1 => server::client_setname,
        "name" "Names the connection." differs "256 bytes of it are kept.";
    "cluster" -2 0, NONE "cluster" "3.0.0" O_1 => server::cluster,
        "subcommand ..." "Is refused, in the words of a server that is no cluster.";
    "command" -1 ABOUT | CONTAINER, NONE "server" "2.8.13" O_COMMANDS
        tips "nondeterministic_output_order" => all_commands,
        "[subcommand ...]" "Tells of all commands that are offered.";
    "command|count" 2 ABOUT, NONE "server" "2.8.13" O_1 => command_count,
        "" "Counts the commands.";
    "command|docs" -2 ABOUT, NONE "server" "7.0.0" O_COMMANDS
        tips "nondeterministic_output_order" => command_docs,
        "[name ...]" "Documents commands, all if none is named."
        differs "Without `arguments` and `history`.";
    "command|getkeys" -4 ABOUT, NONE "server" "2.8.13" O_WORDS => command_getkeys,
        "name word ..." "Tells which of a command's words are keys.";
    "command|getkeysandflags" -4 ABOUT, NONE "server" "7.0.0" O_WORDS
        => command_getkeys_and_flags,
        "name word ..." "Tells the keys, and what is done to them.";
    "command|help" 2 ABOUT, NONE "server" "5.0.0" O_1 => help,
        "" "Prints this help.";
    "command|info" -2 ABOUT, NONE "server" "2.8.13" O_COMMANDS
        tips "nondeterministic_output_order" => command_info,
        "[name ...]" "Tells of commands, all if none is named.";
    "command|list" -2 ABOUT, NONE "server" "7.0.0" O_COMMANDS
        tips "nondeterministic_output_order" => command_list,
        "[FILTERBY MODULE name | ACLCAT category | PATTERN pattern]" "Names the commands.";
    "config" -2 CONTAINER, NONE "server" "2.0.0" O_1 => no_subcommand,
        "subcommand ..." "Tells how the server was started, or resets what it counts.";
    "config|get" -3 ADMINS, NONE "server" "2.0.0" O_WORDS => server::config_get,
        "pattern ..." "Tells options and their values."
        differs "Options that mean something here.";
    "config|help" 2 HELP, NONE "server" "5.0.0" O_1 => help,
        "" "Prints this help.";
    "config|resetstat" 2 ADMINS, NONE "server" "2.0.0" O_1 => server::config_resetstat,
        "" "Resets all that INFO counts.";
    "config|rewrite" 2 ADMINS, NONE "server" "2.8.0" O_1 => server::config_rewrite,
        "" "Is refused: options are given at the start."
        differs "Is always an error.";
    "config|set" -4 ADMINS, NONE "server" "2.0.0" O_1
        tips "request_policy:all_nodes response_policy:all_succeeded" => server::config_set,
        "tiering mode" "Changes an option of the running server."
        differs "`tiering` alone.";
    "dbsize" 1 READONLY | FAST | KEYSPACE | UNNAMED, NONE "server" "1.0.0" O_1
        tips "request_policy:all_shards response_policy:agg_sum" => redis_keys::dbsize,
        "" "Counts the keys of the database.";
    "decr" 2 WRITE | DENYOOM | FAST, RW_BOTH "string" "1.0.0" O_1
        => |call| strings::count(call, -1),
        "key" "Takes one from an integer, which is 0 at first.";
    "decrby" 3 WRITE | DENYOOM | FAST, RW_BOTH "string" "1.0.0" O_1 => strings::decrby,
        "key number" "Takes a number from an integer, which is 0 at first.";
    "del" -2 WRITE, ALL_REMOVED "generic" "1.0.0" O_KEYS
        tips "request_policy:multi_shard response_policy:agg_sum" => redis_keys::del,
        "key ..." "Deletes keys." differs IN_TURNS;
    "discard" 1 TRANSACTION | AT_ONCE, NONE "transactions" "2.0.0" O_QUEUED
        => transactions::discard,
        "" "Forgets the commands since MULTI, and watched keys.";
    "echo" 2 LOADING | STALE | FAST, NONE "connection" "1.0.0" O_1 => server::echo,
        "text" "Answers the given text.";
    "eval" -3 RUNS, COUNTED "scripting" "2.6.0" O_SCRIPT => scripts::eval,
        "script count [key ...] [word ...]" "Runs a script in Lua as one step."
        differs APART;
    "eval_ro" -3 RUNS_RO, COUNTED_RO "scripting" "7.0.0" O_SCRIPT => scripts::eval_ro,
        "script count [key ...] [word ...]" "Runs a script that changes nothing."
        differs APART;
    "evalsha" -3 RUNS, COUNTED "scripting" "2.6.0" O_SCRIPT => scripts::evalsha,
        "sha1 count [key ...] [word ...]" "Runs a script that is known."
        differs APART;
    "evalsha_ro" -3 RUNS_RO, COUNTED_RO "scripting" "7.0.0" O_SCRIPT => scripts::evalsha_ro,
        "sha1 count [key ...] [word ...]" "Runs a script that is known and changes nothing."
        differs APART;
    "exec" 1 NOSCRIPT | LOADING | STALE | SKIP_SLOWLOG | AT_ONCE, NONE "transactions" "1.2.0"
        O_QUEUED => transactions::exec,
        "" "Executes the commands since MULTI as one step, unless a watched key was changed."
        differs "Looks for memory, which commands that wait do not; stands in the slow log itself.";
    "exists" -2 READONLY | FAST, ALL_RO "generic" "1.0.0" O_KEYS
        tips "request_policy:multi_shard response_policy:agg_sum" => redis_keys::exists,
        "key ..." "Counts those of the keys that exist." differs IN_TURNS;
    "expire" -3 WRITE | FAST, RW_UPDATE "generic" "1.0.0" O_1
        => |call| redis_keys::expire(call, Unit::EX),
        "key seconds [NX | XX | GT | LT]" "Sets when a key expires, seconds from now.";
    "expireat" -3 WRITE | FAST, RW_UPDATE "generic" "1.2.0" O_1
        => |call| redis_keys::expire(call, Unit::EXAT),
        "key seconds [NX | XX | GT | LT]" "Sets when a key expires, seconds since 1970.";
    "expiretime" 2 READONLY | FAST, RO_ACCESS "generic" "7.0.0" O_1
        => |call| left(call, |_, at| (at + 500) / 1000),
        "key" "Tells when a key expires, seconds since 1970.";
    "fcall" -3 RUNS, COUNTED "scripting" "7.0.0" O_SCRIPT => scripts::fcall,
        "function count [key ...] [word ...]" "Calls a function of a library."
        differs "As `eval`; local variables of a library are those of a thread.";
    "fcall_ro" -3 RUNS_RO, COUNTED_RO "scripting" "7.0.0" O_SCRIPT => scripts::fcall_ro,
        "function count [key ...] [word ...]" "Calls a function that changes nothing."
        differs "As `fcall`.";
    "flushall" -1 WRITE | KEYSPACE | DANGEROUS | UNNAMED, NONE "server" "1.0.0" O_1
        tips "request_policy:all_shards response_policy:all_succeeded"
        => |call| redis_keys::flush(call, Core::flush),
        "[ASYNC | SYNC]" "Deletes all keys of all databases."
        differs "At once in both modes; memory returns in turns.";
    "flushdb" -1 WRITE | KEYSPACE | DANGEROUS | UNNAMED, NONE "server" "1.0.0" O_1
        tips "request_policy:all_shards response_policy:all_succeeded"
        => |call| redis_keys::flush(call, Core::flush_database),
        "[ASYNC | SYNC]" "Deletes all keys of the database." differs "As `flushall`.";
    "function" -2 CONTAINER, NONE "scripting" "7.0.0" O_1 => no_subcommand,
        "subcommand ..." "Loads, lists and deletes libraries of functions.";
    "function|delete" 3 NOSCRIPT | WRITE, NONE "scripting" "7.0.0" O_1
        tips "request_policy:all_shards response_policy:all_succeeded"
        => scripts::function_delete,
        "library" "Deletes a library.";
    "function|flush" -2 NOSCRIPT | WRITE, NONE "scripting" "7.0.0" O_TEXT
        tips "request_policy:all_shards response_policy:all_succeeded" => scripts::function_flush,
        "[ASYNC | SYNC]" "Deletes all libraries.";
    "function|help" 2 HELP, NONE "scripting" "7.0.0" O_1 => help,
        "" "Prints this help.";
    "function|kill" 2 NOSCRIPT | ALLOW_BUSY, NONE "scripting" "7.0.0" O_1
        tips "request_policy:all_shards response_policy:one_succeeded" => scripts::function_kill,
        "" "Stops functions that run and have written nothing." differs "All that run.";
    "function|list" -2 NOSCRIPT, NONE "scripting" "7.0.0" O_TEXT
        tips "nondeterministic_output_order" => scripts::function_list,
        "[LIBRARYNAME pattern] [WITHCODE]" "Tells of all libraries.";
    "function|load" -3 NOSCRIPT | WRITE | DENYOOM, NONE "scripting" "7.0.0" O_TEXT
        tips "request_policy:all_shards response_policy:all_succeeded" => scripts::function_load,
        "[REPLACE] text" "Loads a library." differs "Until the server ends; 64 MiB with scripts.";
    "get" 2 READONLY | FAST, RO_ACCESS "string" "1.0.0" O_1 => strings::get,
        "key" "Tells a value.";
    "getdel" 2 WRITE | FAST, RW_DELETE "string" "6.2.0" O_1 => strings::getdel,
        "key" "Tells a value and deletes its key.";
    "getex" -2 WRITE | FAST, RW_BOTH "string" "6.2.0" O_1 => strings::getex,
        "key [EX seconds | PX ms | EXAT seconds | PXAT ms | PERSIST]"
        "Tells a value and sets when its key expires.";
    "getset" 3 WRITE | DENYOOM | FAST, RW_BOTH "string" "1.0.0" O_1 => strings::getset,
        "key value" "Sets a value and tells what it was.";
    "hello" -1 LOG_IN, NONE "connection" "6.0.0" O_1 => server::hello,
        "[version [AUTH user password] [SETNAME name]]"
        "Chooses the version of the protocol, and authenticates.";
    "incr" 2 WRITE | DENYOOM | FAST, RW_BOTH "string" "1.0.0" O_1
        => |call| strings::count(call, 1),
        "key" "Adds one to an integer, which is 0 at first.";
    "incrby" 3 WRITE | DENYOOM | FAST, RW_BOTH "string" "1.0.0" O_1
        => |call| strings::count(call, call.number(2)?),
        "key number" "Adds a number to an integer, which is 0 at first.";
    "info" -1 LOADING | STALE | DANGEROUS, NONE "server" "1.0.0" O_1
        tips "nondeterministic_output request_policy:all_shards response_policy:special"
        => server::info,
        "[section ...]" "Tells what the server is and counts."
        differs "Fields that mean something here.";
    "memory" -2 CONTAINER, NONE "server" "4.0.0" O_1 => no_subcommand,
        "subcommand ..." "Tells how much memory a key takes.";
    "memory|help" 2 HELP, NONE "server" "4.0.0" O_1 => help,
        "" "Prints this help.";
    "memory|usage" -3 READONLY, SECOND "server" "4.0.0" O_1 => redis_keys::memory_usage,
        "key [SAMPLES count]" "Tells how many bytes key and value take.";
    "mget" -2 READONLY | FAST, ALL_READ "string" "1.0.0" O_KEYS
        tips "request_policy:multi_shard" => strings::mget,
        "key ..." "Tells the values of several keys." differs IN_TURNS;
    "move" 3 WRITE | FAST | UNNAMED, RW_BOTH "generic" "1.0.0" O_1 => redis_keys::move_key,
        "key database" "Moves a key to another database, if that has none of it.";
    "mset" -3 WRITE | DENYOOM, PAIRS "string" "1.0.1" O_KEYS
        tips "request_policy:multi_shard response_policy:all_succeeded" => strings::mset,
        "key value ..." "Sets the values of several keys."
        differs "One after the other, visible to others in between.";
    "multi" 1 TRANSACTION | AT_ONCE, NONE "transactions" "1.2.0" O_1 => transactions::multi,
        "" "Has the commands that follow wait for EXEC."
        differs "131,072 commands and 32 MiB at most.";
    "persist" 2 WRITE | FAST, RW_UPDATE "generic" "2.2.0" O_1 => redis_keys::persist,
        "key" "Has a key never expire.";
    "pexpire" -3 WRITE | FAST, RW_UPDATE "generic" "2.6.0" O_1
        => |call| redis_keys::expire(call, Unit::PX),
        "key ms [NX | XX | GT | LT]" "Sets when a key expires, milliseconds from now.";
    "pexpireat" -3 WRITE | FAST, RW_UPDATE "generic" "2.6.0" O_1
        => |call| redis_keys::expire(call, Unit::PXAT),
        "key ms [NX | XX | GT | LT]" "Sets when a key expires, milliseconds since 1970.";
    "pexpiretime" 2 READONLY | FAST, RO_ACCESS "generic" "7.0.0" O_1
        => |call| left(call, |_, at| at),
        "key" "Tells when a key expires, milliseconds since 1970.";
    "ping" -1 FAST, NONE "connection" "1.0.0" O_1
        tips "request_policy:all_shards response_policy:all_succeeded" => server::ping,
        "[text]" "Answers PONG, or the given text.";
    "psetex" 4 WRITE | DENYOOM, OW_UPDATE "string" "2.6.0" O_1
        => |call| strings::set_for(call, Unit::PX),
        "key ms value" "Sets a value that expires, milliseconds from now.";
    "pttl" 2 READONLY | FAST, RO_ACCESS "generic" "2.6.0" O_1
        tips "nondeterministic_output" => |call| left(call, |left, _| left),
        "key" "Tells how long a key has, milliseconds.";
    "quit" -1 LOG_IN | AT_ONCE, NONE "connection" "1.0.0" O_1 => server::quit,
        "" "Ends the connection.";
    "reset" 1 LOG_IN | AT_ONCE, NONE "connection" "6.2.0" O_1 => server::reset,
        "" "Has the connection be as a new one.";
    "scan" -2 READONLY | UNNAMED, NONE "generic" "2.8.0" O_1
        tips "nondeterministic_output request_policy:special" => redis_keys::scan,
        "cursor [MATCH pattern] [COUNT count] [TYPE type]" "Walks over the keys."
        differs "Answers early where keys or pattern are long.";
    "script" -2 CONTAINER, NONE "scripting" "2.6.0" O_1 => no_subcommand,
        "subcommand ..." "Loads scripts, forgets and stops them.";
    "script|exists" -3 NOSCRIPT, NONE "scripting" "2.6.0" O_WORDS
        tips "request_policy:all_shards response_policy:agg_logical_and"
        => scripts::script_exists,
        "sha1 ..." "Tells which scripts are known.";
    "script|flush" -2 NOSCRIPT, NONE "scripting" "2.6.0" O_TEXT
        tips "request_policy:all_nodes response_policy:all_succeeded" => scripts::script_flush,
        "[ASYNC | SYNC]" "Forgets all scripts.";
    "script|help" 2 HELP, NONE "scripting" "5.0.0" O_1 => help,
        "" "Prints this help.";
    "script|kill" 2 NOSCRIPT | ALLOW_BUSY, NONE "scripting" "2.6.0" O_1
        tips "request_policy:all_shards response_policy:one_succeeded" => scripts::script_kill,
        "" "Stops scripts that run and have written nothing." differs "All that run.";
    "script|load" 3 NOSCRIPT | STALE, NONE "scripting" "2.6.0" O_TEXT
        tips "request_policy:all_nodes response_policy:all_succeeded" => scripts::script_load,
        "text" "Remembers a script, and tells its name." differs "64 MiB of them.";
    "select" 2 LOADING | STALE | FAST, NONE "connection" "1.0.0" O_1 => server::select,
        "database" "Chooses a database.";
    "set" -3 WRITE | DENYOOM, OF_SET "string" "1.0.0" O_1 => strings::set,
        "key value [NX | XX] [GET] [EX seconds | PX ms | EXAT seconds | PXAT ms | KEEPTTL]"
        "Sets a value, if asked so only if there is one, or none.";
    "setex" 4 WRITE | DENYOOM, OW_UPDATE "string" "2.0.0" O_1
        => |call| strings::set_for(call, Unit::EX),
        "key seconds value" "Sets a value that expires, seconds from now.";
    "setnx" 3 WRITE | DENYOOM | FAST, OW_INSERT "string" "1.0.0" O_1 => strings::setnx,
        "key value" "Sets a value if there is none.";
    "slowlog" -2 CONTAINER, NONE "server" "2.2.12" O_1 => no_subcommand,
        "subcommand ..." "Tells of commands that took long.";
    "slowlog|get" -2 ADMIN | LOADING | STALE, NONE "server" "2.2.12" O_ENTRIES
        tips "request_policy:all_nodes nondeterministic_output" => server::slowlog_get,
        "[count]" "Tells the last slow commands, 10 if no number is given."
        differs "Commands that came together may stand under the first one.";
    "slowlog|help" 2 HELP, NONE "server" "6.2.0" O_1 => help,
        "" "Prints this help.";
    "slowlog|len" 2 ADMIN | LOADING | STALE, NONE "server" "2.2.12" O_1
        tips "request_policy:all_nodes response_policy:agg_sum nondeterministic_output"
        => server::slowlog_len,
        "" "Counts the slow commands that are remembered." differs "128 are.";
    "slowlog|reset" 2 ADMIN | LOADING | STALE, NONE "server" "2.2.12" O_ENTRIES
        tips "request_policy:all_nodes response_policy:all_succeeded" => server::slowlog_reset,
        "" "Forgets them.";
    "strlen" 2 READONLY | FAST, RO "string" "2.2.0" O_1 => strings::strlen,
        "key" "Tells how long a value is.";
    "swapdb" 3 WRITE | FAST | KEYSPACE | DANGEROUS | UNNAMED, NONE "server" "4.0.0" O_1
        => redis_keys::swapdb,
        "database database" "Has two databases change their places.";
    "time" 1 LOADING | STALE | FAST, NONE "server" "2.6.0" O_1
        tips "nondeterministic_output" => server::time,
        "" "Tells the time." differs "To the millisecond.";
    "touch" -2 READONLY | FAST, ALL_RO "generic" "3.2.1" O_KEYS
        tips "request_policy:multi_shard response_policy:agg_sum" => redis_keys::exists,
        "key ..." "Counts those of the keys that exist; they are used." differs IN_TURNS;
    "ttl" 2 READONLY | FAST, RO_ACCESS "generic" "1.0.0" O_1
        tips "nondeterministic_output" => |call| left(call, |left, _| (left + 500) / 1000),
        "key" "Tells how long a key has, seconds.";
    "type" 2 READONLY | FAST, RO "generic" "1.0.0" O_1 => redis_keys::type_of,
        "key" "Tells what kind of value a key has." differs "`string`, or `none`.";
    "unlink" -2 WRITE | FAST, ALL_REMOVED "generic" "4.0.0" O_KEYS
        tips "request_policy:multi_shard response_policy:agg_sum" => redis_keys::del,
        "key ..." "Deletes keys." differs IN_TURNS;
    "unwatch" 1 TRANSACTION, NONE "transactions" "2.2.0" O_1 => transactions::unwatch,
        "" "Forgets watched keys.";
    "watch" -2 TRANSACTION | AT_ONCE, ALL_RO "transactions" "2.2.0" O_KEYS
        => transactions::watch,
        "key ..." "Has EXEC do nothing if one of the keys is changed before."
        differs "1024 keys at most.";
};
