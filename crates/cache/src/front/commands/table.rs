//! The commands of Redis that are offered. Sorted by name; subcommands behind their command.

use super::introspection::{
    all_commands, command_count, command_docs, command_getkeys, command_getkeys_and_flags,
    command_info, command_list, help, no_subcommand,
};
use super::{
    ADMIN, ALLOW_BUSY, AT_ONCE, CONNECTION, CONTAINER, Command, DANGEROUS, DENYOOM, FAST, KEYSPACE,
    KeySpec, LOADING, MAY_REPLICATE, MOVABLE_KEYS, NO_AUTH, NO_MANDATORY_KEYS, NOSCRIPT, OF_ADMINS,
    READONLY, SKIP_MONITOR, SKIP_SLOWLOG, STALE, UNNAMED, WRITE,
};
use crate::front::core::Core;
use crate::front::redis_bits as bits;
use crate::front::redis_client as client;
use crate::front::redis_compare as compare;
use crate::front::redis_config as config;
use crate::front::redis_hash_expiry as hash_expiry;
use crate::front::redis_hash_walks as hash_walks;
use crate::front::redis_hashes as hashes;
use crate::front::redis_hyperloglog as hyperloglog;
use crate::front::redis_keys::{self, left};
use crate::front::redis_keyspace as keyspace;
use crate::front::redis_latency as latency;
use crate::front::redis_memory as memory;
use crate::front::redis_objects as objects;
use crate::front::redis_ranges as ranges;
use crate::front::redis_server as server;
use crate::front::redis_strings::{self as strings, Unit};
use crate::front::scripts;
use crate::front::transactions;

const fn one(flags: &'static str) -> KeySpec {
    KeySpec { flags, first: 1, last: 0, step: 1 }
}

const fn second(flags: &'static str) -> KeySpec {
    KeySpec { flags, first: 2, last: 0, step: 1 }
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
const RM_DELETE: &[KeySpec] = &[one("RM access delete")];
const RW_DELETED: &[KeySpec] = &[one("RW delete")];
const ALL_COUNTED: &[KeySpec] = &[all("RW access")];
const NEW_PAIRS: &[KeySpec] = &[KeySpec { flags: "OW insert", first: 1, last: -1, step: 2 }];
const TWO_READ: &[KeySpec] = &[KeySpec { flags: "RO access", first: 1, last: 1, step: 1 }];
const COPIED: &[KeySpec] = &[one("RO access"), second("OW update")];
const RENAMED: &[KeySpec] = &[one("RW access delete"), second("OW update")];
const RENAMED_NEW: &[KeySpec] = &[one("RW access delete"), second("OW insert")];
const MERGED: &[KeySpec] =
    &[one("RW access insert"), KeySpec { flags: "RO access", first: 2, last: -1, step: 1 }];
const JOINED: &[KeySpec] =
    &[second("OW update"), KeySpec { flags: "RO access", first: 3, last: -1, step: 1 }];

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
const O_FIELDS: &str = "O(N) in the fields named";
const O_HASH: &str = "O(N) in the fields of the hash";
const O_QUEUED: &str = "O(N) in the commands that wait";
const O_ENTRIES: &str = "O(N) in the entries";
const O_BYTES: &str = "O(N) in the bytes of values";
const O_PAIRS: &str = "O(N*M) in the bytes of two values";
const O_ALL_KEYS: &str = "O(N) in the keys of the database";

/// The one difference of those that see several values at one moment.
const OF_SO_MANY: &str = "At most 512 MB of values.";
/// What scripts have in common that Redis's have not.
const APART: &str =
    "Stopped after `--script-ms` even if it has written; others are served meanwhile.";

/// The one difference of the commands that take longer with more words.
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
    "bitcount" -2 READONLY, RO_ACCESS "bitmap" "2.6.0" O_BYTES => bits::bitcount,
        "key [start end [BYTE | BIT]]" "Counts the bits of a value that are set.";
    "bitfield" -2 WRITE | DENYOOM, OF_SET "bitmap" "3.2.0" O_BYTES => bits::bitfield,
        "key [GET type offset | [OVERFLOW WRAP | SAT | FAIL] SET type offset number | INCRBY type \
         offset number ...]"
        "Reads and changes integers of any width in a value.";
    "bitfield_ro" -2 READONLY | FAST, RO_ACCESS "bitmap" "6.0.0" O_BYTES => bits::bitfield_ro,
        "key [GET type offset ...]" "Reads integers of any width in a value.";
    "bitop" -4 WRITE | DENYOOM, JOINED "bitmap" "2.6.0" O_BYTES => bits::bitop,
        "AND | OR | XOR | NOT | DIFF | DIFF1 | ANDOR | ONE target key ..."
        "Combines values bit by bit and stores the result."
        differs "Also with Redis 8.2's operations; at most 512 MB of values.";
    "bitpos" -3 READONLY, RO_ACCESS "bitmap" "2.8.7" O_BYTES => bits::bitpos,
        "key bit [start [end [BYTE | BIT]]]" "Finds the first bit that is set, or is not.";
    "client" -2 CONTAINER, NONE "connection" "2.4.0" O_1 => no_subcommand,
        "subcommand ..." "Names the connection, or tells of all.";
    "client|getname" 2 CLIENT, NONE "connection" "2.6.9" O_1 => client::getname,
        "" "Tells the connection's name.";
    "client|help" 2 HELP, NONE "connection" "5.0.0" O_1 => help,
        "" "Prints this help.";
    "client|id" 2 CLIENT, NONE "connection" "5.0.0" O_1 => client::id,
        "" "Tells the connection's number.";
    "client|info" 2 CLIENT, NONE "connection" "6.2.0" O_1
        tips "nondeterministic_output" => client::info,
        "" "Tells of the connection, as LIST does." differs "As `client list`.";
    "client|kill" -3 ADMINS, NONE "connection" "2.4.0" O_CLIENTS => client::kill,
        "address | [ID number] [TYPE type] [ADDR address] [LADDR address] [USER name]"
        "Ends connections: those for which all holds that is said, but this one."
        differs "Also by `MAXAGE seconds`. Clients of memcached stay.";
    "client|list" -2 ADMINS, NONE "connection" "2.4.0" O_CLIENTS
        tips "nondeterministic_output" => client::list,
        "[TYPE type | ID number ...]" "Tells of all connections."
        differs "Those by RESP. A client without something to send or take has no buffer.";
    "client|no-evict" 3 ADMINS, NONE "connection" "7.0.0" O_1 => client::no_evict,
        "ON | OFF" "Has the connection be among the last that are ended for memory or for others."
        differs "It may still go.";
    "client|no-touch" 3 CLIENT, NONE "connection" "7.2.0" O_1 => client::no_touch,
        "ON | OFF" "Is refused if `ON`: every read counts as a use of its item."
        differs "`ON` is an error.";
    "client|pause" -3 ADMINS, NONE "connection" "3.0.0" O_1 => client::pause,
        "ms [WRITE | ALL]" "Has commands, or those that write, wait for so long."
        differs "Those by RESP. What had begun ends, and items expire and go.";
    "client|reply" 3 CLIENT, NONE "connection" "3.2.0" O_1 => client::reply,
        "ON | OFF | SKIP" "Says whether commands are answered; SKIP: the next one is not.";
    "client|setinfo" 4 CLIENT, NONE "connection" "7.2.0" O_1
        tips "request_policy:all_nodes response_policy:all_succeeded" => client::setinfo,
        "LIB-NAME name | LIB-VER version" "Names the library that the client uses.";
    "client|setname" 3 CLIENT, NONE "connection" "2.6.9" O_1 => client::setname,
        "name" "Names the connection." differs "256 bytes of it are kept.";
    "client|unblock" -3 ADMINS, NONE "connection" "5.0.0" O_1 => client::unblock,
        "number [TIMEOUT | ERROR]" "Ends the waiting of a command, of which none waits."
        differs "Answers 0.";
    "client|unpause" 2 ADMINS, NONE "connection" "6.2.0" O_1 => client::unpause,
        "" "Ends a pause.";
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
    "config|get" -3 ADMINS, NONE "server" "2.0.0" O_WORDS => config::get,
        "pattern ..." "Tells options and their values."
        differs "Options that mean something here.";
    "config|help" 2 HELP, NONE "server" "5.0.0" O_1 => help,
        "" "Prints this help.";
    "config|resetstat" 2 ADMINS, NONE "server" "2.0.0" O_1 => config::resetstat,
        "" "Resets all that INFO counts.";
    "config|rewrite" 2 ADMINS, NONE "server" "2.8.0" O_1 => config::rewrite,
        "" "Is refused: options are given at the start."
        differs "Is always an error.";
    "config|set" -4 ADMINS, NONE "server" "2.0.0" O_WORDS
        tips "request_policy:all_nodes response_policy:all_succeeded" => config::set,
        "option value [option value ...]" "Changes options of the running server."
        differs "`client-output-buffer-limit` (of normal clients), `latency-monitor-threshold`, \
            `maxclients`, `maxmemory` (at most, and 0 is, what it was started with; below what \
            the empty index needs, Redis's commands that may need memory are refused), \
            `slowlog-*`, `tiering`, `timeout`; the policy stays.";
    "copy" -3 WRITE | DENYOOM | UNNAMED, COPIED "generic" "6.2.0" O_BYTES => keyspace::copy,
        "key target [DB database] [REPLACE]" "Copies a key.";
    "dbsize" 1 READONLY | FAST | KEYSPACE | UNNAMED, NONE "server" "1.0.0" O_1
        tips "request_policy:all_shards response_policy:agg_sum" => redis_keys::dbsize,
        "" "Counts the keys of the database.";
    "debug" -2 ADMINS | UNNAMED, NONE "server" "1.0.0" O_1 => objects::debug,
        "POPULATE count [prefix [bytes]] | OBJECT key | ERROR text | PROTOCOL type | HELP"
        "Fills the database, or answers in a given form, for tests."
        differs "POPULATE, OBJECT (without addresses), ERROR, PROTOCOL and HELP alone.";
    "decr" 2 WRITE | DENYOOM | FAST, RW_BOTH "string" "1.0.0" O_1
        => |call| strings::count(call, -1),
        "key" "Takes one from an integer, which is 0 at first.";
    "decrby" 3 WRITE | DENYOOM | FAST, RW_BOTH "string" "1.0.0" O_1 => strings::decrby,
        "key number" "Takes a number from an integer, which is 0 at first.";
    "del" -2 WRITE, ALL_REMOVED "generic" "1.0.0" O_KEYS
        tips "request_policy:multi_shard response_policy:agg_sum" => redis_keys::del,
        "key ..." "Deletes keys." differs IN_TURNS;
    "delex" -2 WRITE | FAST, RW_DELETED "string" "8.4.0" O_BYTES => compare::delex,
        "key [IFEQ value | IFNE value | IFDEQ digest | IFDNE digest]"
        "Deletes a key if its value is what was thought." differs "As of Redis 8.4.";
    "delifeq" 3 WRITE, RM_DELETE "string" "9.0.0" O_BYTES => compare::delifeq,
        "key value" "Deletes a key if it has this value." differs "As of Valkey 9.";
    "digest" 2 READONLY | FAST, RO_ACCESS "string" "8.4.0" O_BYTES => compare::digest_of,
        "key" "Tells the hash (XXH3) of a value." differs "As of Redis 8.4.";
    "discard" 1 TRANSACTION | AT_ONCE, NONE "transactions" "2.0.0" O_QUEUED
        => transactions::discard,
        "" "Forgets the commands since MULTI, and watched keys.";
    "dump" 2 READONLY, RO_ACCESS "generic" "2.6.0" O_BYTES
        tips "nondeterministic_output" => objects::dump,
        "key" "Tells a value in Redis's form for other servers.";
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
    "exec" 1 NOSCRIPT | LOADING | STALE | SKIP_SLOWLOG | AT_ONCE | MAY_REPLICATE, NONE
        "transactions" "1.2.0" O_QUEUED => transactions::exec,
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
    "function|dump" 2 NOSCRIPT, NONE "scripting" "7.0.0" O_TEXT => scripts::function_dump,
        "" "Tells all libraries in Redis's format.";
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
    "function|restore" -3 NOSCRIPT | WRITE | DENYOOM, NONE "scripting" "7.0.0" O_TEXT
        tips "request_policy:all_shards response_policy:all_succeeded"
        => scripts::function_restore,
        "dump [APPEND | FLUSH | REPLACE]" "Loads the libraries that FUNCTION DUMP has told.";
    "function|stats" 2 NOSCRIPT | ALLOW_BUSY, NONE "scripting" "7.0.0" O_1
        tips "nondeterministic_output request_policy:all_shards response_policy:special"
        => scripts::function_stats,
        "" "Tells of the function that runs, and how many there are."
        differs "Of several that run, the one that began first, as a call by FCALL.";
    "get" 2 READONLY | FAST, RO_ACCESS "string" "1.0.0" O_1 => strings::get,
        "key" "Tells a value.";
    "getbit" 3 READONLY | FAST, RO_ACCESS "bitmap" "2.2.0" O_1 => bits::getbit,
        "key offset" "Tells a bit of a value.";
    "getdel" 2 WRITE | FAST, RW_DELETE "string" "6.2.0" O_1 => strings::getdel,
        "key" "Tells a value and deletes its key.";
    "getex" -2 WRITE | FAST, RW_BOTH "string" "6.2.0" O_1 => strings::getex,
        "key [EX seconds | PX ms | EXAT seconds | PXAT ms | PERSIST]"
        "Tells a value and sets when its key expires.";
    "getrange" 4 READONLY, RO_ACCESS "string" "2.4.0" O_BYTES => ranges::getrange,
        "key start end" "Tells a part of a value."
        differs "An end before the first byte shows nothing, as of Redis 8.";
    "getset" 3 WRITE | DENYOOM | FAST, RW_BOTH "string" "1.0.0" O_1 => strings::getset,
        "key value" "Sets a value and tells what it was.";
    "hdel" -3 WRITE | FAST, RW_DELETED "hash" "2.0.0" O_FIELDS => hashes::hdel,
        "key field ..." "Deletes fields of a hash." differs IN_TURNS;
    "hello" -1 LOG_IN, NONE "connection" "6.0.0" O_1 => server::hello,
        "[version [AUTH user password] [SETNAME name]]"
        "Chooses the version of the protocol, and authenticates.";
    "hexists" 3 READONLY | FAST, RO "hash" "2.0.0" O_1 => hashes::hexists,
        "key field" "Tells whether a hash has a field.";
    "hexpire" -6 WRITE | DENYOOM | FAST, RW_UPDATE "hash" "7.4.0" O_FIELDS
        => hash_expiry::hexpire,
        "key seconds [NX | XX | GT | LT] FIELDS count field ..."
        "Sets when fields expire, seconds from now." differs IN_TURNS;
    "hexpireat" -6 WRITE | DENYOOM | FAST, RW_UPDATE "hash" "7.4.0" O_FIELDS
        => hash_expiry::hexpire,
        "key seconds [NX | XX | GT | LT] FIELDS count field ..."
        "Sets when fields expire, seconds since 1970." differs IN_TURNS;
    "hexpiretime" -5 READONLY | FAST, RO_ACCESS "hash" "7.4.0" O_FIELDS => hash_expiry::httl,
        "key FIELDS count field ..." "Tells when fields expire, seconds since 1970."
        differs IN_TURNS;
    "hget" 3 READONLY | FAST, RO_ACCESS "hash" "2.0.0" O_1 => hashes::hget,
        "key field" "Tells a field's value.";
    "hgetall" 2 READONLY, RO_ACCESS "hash" "2.0.0" O_HASH
        tips "nondeterministic_output_order" => hash_walks::hgetall,
        "key" "Tells all fields and values of a hash.";
    "hgetdel" -5 WRITE | FAST, RW_DELETE "hash" "8.0.0" O_FIELDS => hash_expiry::hgetdel,
        "key FIELDS count field ..." "Tells the values of fields and deletes them."
        differs IN_TURNS;
    "hgetex" -5 WRITE | FAST, RW_BOTH "hash" "8.0.0" O_FIELDS => hash_expiry::hgetex,
        "key [EX seconds | PX ms | EXAT seconds | PXAT ms | PERSIST] FIELDS count field ..."
        "Tells the values of fields and sets when they expire." differs IN_TURNS;
    "hincrby" 4 WRITE | DENYOOM | FAST, RW_BOTH "hash" "2.0.0" O_1 => hashes::hincrby,
        "key field number" "Adds a number to a field's integer, which is 0 at first.";
    "hincrbyfloat" 4 WRITE | DENYOOM | FAST, RW_BOTH "hash" "2.6.0" O_1
        => hashes::hincrbyfloat,
        "key field number" "Adds a number to a field's number, which is 0 at first.";
    "hkeys" 2 READONLY, RO_ACCESS "hash" "2.0.0" O_HASH
        tips "nondeterministic_output_order" => hash_walks::hkeys,
        "key" "Tells all fields of a hash.";
    "hlen" 2 READONLY | FAST, RO "hash" "2.0.0" O_1 => hashes::hlen,
        "key" "Counts the fields of a hash.";
    "hmget" -3 READONLY | FAST, RO_ACCESS "hash" "2.0.0" O_FIELDS => hashes::hmget,
        "key field ..." "Tells the values of several fields." differs IN_TURNS;
    "hmset" -4 WRITE | DENYOOM | FAST, RW_UPDATE "hash" "2.0.0" O_FIELDS => hashes::hmset,
        "key field value ..." "Sets the values of several fields." differs IN_TURNS;
    "hpersist" -5 WRITE | FAST, RW_UPDATE "hash" "7.4.0" O_FIELDS => hash_expiry::hpersist,
        "key FIELDS count field ..." "Has fields never expire." differs IN_TURNS;
    "hpexpire" -6 WRITE | DENYOOM | FAST, RW_UPDATE "hash" "7.4.0" O_FIELDS
        => hash_expiry::hexpire,
        "key ms [NX | XX | GT | LT] FIELDS count field ..."
        "Sets when fields expire, milliseconds from now." differs IN_TURNS;
    "hpexpireat" -6 WRITE | DENYOOM | FAST, RW_UPDATE "hash" "7.4.0" O_FIELDS
        => hash_expiry::hexpire,
        "key ms [NX | XX | GT | LT] FIELDS count field ..."
        "Sets when fields expire, milliseconds since 1970." differs IN_TURNS;
    "hpexpiretime" -5 READONLY | FAST, RO_ACCESS "hash" "7.4.0" O_FIELDS => hash_expiry::httl,
        "key FIELDS count field ..." "Tells when fields expire, milliseconds since 1970."
        differs IN_TURNS;
    "hpttl" -5 READONLY | FAST, RO_ACCESS "hash" "7.4.0" O_FIELDS
        tips "nondeterministic_output" => hash_expiry::httl,
        "key FIELDS count field ..." "Tells how long fields have, milliseconds."
        differs IN_TURNS;
    "hrandfield" -2 READONLY, RO_ACCESS "hash" "6.2.0" O_HASH
        tips "nondeterministic_output" => hash_walks::hrandfield,
        "key [count [WITHVALUES]]" "Tells fields that are drawn by chance."
        differs "One field of a large hash is drawn out of a part that is drawn.";
    "hscan" -3 READONLY, RO_ACCESS "hash" "2.8.0" O_HASH
        tips "nondeterministic_output" => hash_walks::hscan,
        "key cursor [MATCH pattern] [COUNT count] [NOVALUES]" "Walks over the fields of a hash."
        differs "Answers early where fields or pattern are long.";
    "hset" -4 WRITE | DENYOOM | FAST, RW_UPDATE "hash" "2.0.0" O_FIELDS => hashes::hset,
        "key field value ..." "Sets fields of a hash, and counts those that are new."
        differs IN_TURNS;
    "hsetex" -6 WRITE | DENYOOM | FAST, RW_UPDATE "hash" "8.0.0" O_FIELDS
        => hash_expiry::hsetex,
        "key [FNX | FXX] [EX seconds | PX ms | EXAT seconds | PXAT ms | KEEPTTL] FIELDS count \
         field value ..."
        "Sets fields of a hash that expire, if asked so only if all are there, or none."
        differs IN_TURNS;
    "hsetnx" 4 WRITE | DENYOOM | FAST, RW_INSERT "hash" "2.0.0" O_1 => hashes::hsetnx,
        "key field value" "Sets a field of a hash if it has none.";
    "hstrlen" 3 READONLY | FAST, RO "hash" "3.2.0" O_1 => hashes::hstrlen,
        "key field" "Tells how long a field's value is.";
    "httl" -5 READONLY | FAST, RO_ACCESS "hash" "7.4.0" O_FIELDS
        tips "nondeterministic_output" => hash_expiry::httl,
        "key FIELDS count field ..." "Tells how long fields have, seconds." differs IN_TURNS;
    "hvals" 2 READONLY, RO_ACCESS "hash" "2.0.0" O_HASH
        tips "nondeterministic_output_order" => hash_walks::hvals,
        "key" "Tells all values of a hash.";
    "incr" 2 WRITE | DENYOOM | FAST, RW_BOTH "string" "1.0.0" O_1
        => |call| strings::count(call, 1),
        "key" "Adds one to an integer, which is 0 at first.";
    "incrby" 3 WRITE | DENYOOM | FAST, RW_BOTH "string" "1.0.0" O_1
        => |call| strings::count(call, call.number(2)?),
        "key number" "Adds a number to an integer, which is 0 at first.";
    "incrbyfloat" 3 WRITE | DENYOOM | FAST, RW_BOTH "string" "2.6.0" O_1
        => ranges::incrbyfloat,
        "key number" "Adds a number with a point to one, which is 0 at first.";
    "info" -1 LOADING | STALE | DANGEROUS, NONE "server" "1.0.0" O_1
        tips "nondeterministic_output request_policy:all_shards response_policy:special"
        => server::info,
        "[section ...]" "Tells what the server is and counts."
        differs "Fields that mean something here. `expires` and `avg_ttl` are estimated where \
            there are more than 8192 keys; percentiles are ends of buckets, each twice as long.";
    "keys" 2 READONLY | DANGEROUS | UNNAMED, NONE "generic" "1.0.0" O_ALL_KEYS
        tips "request_policy:all_shards nondeterministic_output_order" => keyspace::keys,
        "pattern" "Tells all keys that match."
        differs "In turns: keys that come or go meanwhile may be told or not.";
    "lastsave" 1 LOADING | STALE | FAST | OF_ADMINS, NONE "server" "1.0.0" O_1
        tips "nondeterministic_output" => server::lastsave,
        "" "Tells when the server began: nothing is saved.";
    "latency" -2 CONTAINER, NONE "server" "2.8.13" O_1 => no_subcommand,
        "subcommand ..." "Tells of commands that took long, and how long all took.";
    "latency|doctor" 2 ADMINS, NONE "server" "2.8.13" O_ENTRIES
        tips "nondeterministic_output request_policy:all_nodes response_policy:special"
        => latency::doctor,
        "" "Says in words what took long." differs "In words of its own.";
    "latency|help" 2 HELP, NONE "server" "2.8.13" O_1 => help,
        "" "Prints this help.";
    "latency|histogram" -2 ADMINS, NONE "server" "7.0.0" O_COMMANDS
        tips "nondeterministic_output request_policy:all_nodes response_policy:special"
        => latency::histogram,
        "[name ...]" "Tells how long commands took, in buckets each twice as long."
        differs "What came together counts as its share of the time.";
    "latency|history" 3 ADMINS, NONE "server" "2.8.13" O_ENTRIES
        tips "nondeterministic_output request_policy:all_nodes response_policy:special"
        => latency::history,
        "event" "Tells the last events of a kind." differs "`command` and `fast-command`.";
    "latency|latest" 2 ADMINS, NONE "server" "2.8.13" O_1
        tips "nondeterministic_output request_policy:all_nodes response_policy:special"
        => latency::latest,
        "" "Tells the last event of each kind, and the longest." differs "As `latency history`.";
    "latency|reset" -2 ADMINS, NONE "server" "2.8.13" O_WORDS
        tips "request_policy:all_nodes response_policy:all_succeeded" => latency::reset,
        "[event ...]" "Forgets the events of these kinds, or all.";
    "lcs" -3 READONLY, TWO_READ "string" "7.0.0" O_PAIRS => ranges::lcs,
        "key key [LEN] [IDX] [MINMATCHLEN bytes] [WITHMATCHLEN]"
        "Finds the longest text that two values have in common.";
    "memory" -2 CONTAINER, NONE "server" "4.0.0" O_1 => no_subcommand,
        "subcommand ..." "Tells where memory is.";
    "memory|doctor" 2 0, NONE "server" "4.0.0" O_1
        tips "nondeterministic_output request_policy:all_shards response_policy:special"
        => memory::doctor,
        "" "Says in words what is wrong with memory." differs "In words of its own.";
    "memory|help" 2 HELP, NONE "server" "4.0.0" O_1 => help,
        "" "Prints this help.";
    "memory|purge" 2 0, NONE "server" "4.0.0" O_1
        tips "request_policy:all_shards response_policy:all_succeeded" => memory::purge,
        "" "Has the memory of what was flushed or has expired come back, in turns."
        differs "Nothing goes back to the system.";
    "memory|stats" 2 0, NONE "server" "4.0.0" O_1
        tips "nondeterministic_output request_policy:all_shards response_policy:special"
        => memory::stats,
        "" "Tells how much memory is used for what." differs "Figures that mean something here.";
    "memory|usage" -3 READONLY, SECOND "server" "4.0.0" O_1 => redis_keys::memory_usage,
        "key [SAMPLES count]" "Tells how many bytes key and value take.";
    "mget" -2 READONLY | FAST, ALL_READ "string" "1.0.0" O_KEYS
        tips "request_policy:multi_shard" => strings::mget,
        "key ..." "Tells the values of several keys." differs IN_TURNS;
    "monitor" 1 ADMINS, NONE "server" "1.0.0" O_1 => server::monitor,
        "" "Tells the commands of all clients as they come."
        differs "Of 16 clients at most, of RESP; to the millisecond, words cut at 4096 bytes. One \
            that takes them too slowly is disconnected.";
    "move" 3 WRITE | FAST | UNNAMED, RW_BOTH "generic" "1.0.0" O_1 => keyspace::move_key,
        "key database" "Moves a key to another database, if that has none of it.";
    "mset" -3 WRITE | DENYOOM, PAIRS "string" "1.0.1" O_KEYS
        tips "request_policy:multi_shard response_policy:all_succeeded" => strings::mset,
        "key value ..." "Sets the values of several keys."
        differs IN_TURNS;
    "msetnx" -3 WRITE | DENYOOM, NEW_PAIRS "string" "1.0.1" O_KEYS
        tips "request_policy:multi_shard response_policy:agg_min" => keyspace::msetnx,
        "key value ..." "Sets the values of several keys, if there is none of them.";
    "multi" 1 TRANSACTION | AT_ONCE, NONE "transactions" "1.2.0" O_1 => transactions::multi,
        "" "Has the commands that follow wait for EXEC."
        differs "131,072 commands and 32 MiB at most.";
    "object" -2 CONTAINER, NONE "generic" "2.2.3" O_1 => no_subcommand,
        "subcommand ..." "Tells how a value is kept.";
    "object|encoding" 3 READONLY, SECOND "generic" "2.2.3" O_1
        tips "nondeterministic_output" => objects::object_encoding,
        "key" "Tells how Redis would keep the value."
        differs "As of a value that was set as a whole.";
    "object|freq" 3 READONLY, SECOND "generic" "4.0.0" O_1
        tips "nondeterministic_output" => objects::object_freq,
        "key" "Tells how often a key was used."
        differs "Under any policy; as far as that counts, at most 15.";
    "object|help" 2 HELP, NONE "generic" "6.2.0" O_1 => objects::object_help,
        "" "Prints this help.";
    "object|idletime" 3 READONLY, SECOND "generic" "2.2.3" O_1
        tips "nondeterministic_output" => objects::object_idletime,
        "key" "Tells how many seconds ago a key was used."
        differs "Since the value came, about, unless uses are kept.";
    "object|refcount" 3 READONLY, SECOND "generic" "2.2.3" O_1
        tips "nondeterministic_output" => objects::object_refcount,
        "key" "Tells how many keys share the value." differs "1: none is shared.";
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
    "pfadd" -2 WRITE | DENYOOM | FAST, RW_INSERT "hyperloglog" "2.8.9" O_WORDS
        => hyperloglog::pfadd,
        "key [text ...]" "Counts texts that were not seen before.";
    "pfcount" -2 READONLY | MAY_REPLICATE, ALL_COUNTED "hyperloglog" "2.8.9" O_KEYS
        => hyperloglog::pfcount,
        "key ..." "Tells how many different texts were seen, about." differs OF_SO_MANY;
    "pfmerge" -2 WRITE | DENYOOM, MERGED "hyperloglog" "2.8.9" O_KEYS => hyperloglog::pfmerge,
        "target [key ...]" "Has one key count what others have seen." differs OF_SO_MANY;
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
    "randomkey" 1 READONLY | UNNAMED, NONE "generic" "1.0.0" O_1
        tips "request_policy:all_shards nondeterministic_output" => keyspace::randomkey,
        "" "Tells one of the keys by chance.";
    "rename" 3 WRITE, RENAMED "generic" "1.0.0" O_BYTES
        => |call| keyspace::rename(call, false),
        "key name" "Gives a key another name.";
    "renamenx" 3 WRITE | FAST, RENAMED_NEW "generic" "1.0.0" O_BYTES
        => |call| keyspace::rename(call, true),
        "key name" "Gives a key another name that no key has.";
    "reset" 1 LOG_IN | AT_ONCE, NONE "connection" "6.2.0" O_1 => server::reset,
        "" "Has the connection be as a new one.";
    "restore" -4 WRITE | DENYOOM | DANGEROUS, OW_UPDATE "generic" "2.6.0" O_BYTES
        => objects::restore,
        "key ms dump [REPLACE] [ABSTTL] [IDLETIME seconds] [FREQ uses]"
        "Sets a value that DUMP has told." differs "IDLETIME and FREQ change nothing.";
    "role" 1 NOSCRIPT | LOADING | STALE | FAST | OF_ADMINS, NONE "server" "2.8.12" O_1
        => server::role,
        "" "Tells that the server is a master, without replicas.";
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
        "key value [NX | XX | IFEQ value | IFNE value | IFDEQ digest | IFDNE digest] [GET] [EX \
         seconds | PX ms | EXAT seconds | PXAT ms | KEEPTTL]"
        "Sets a value, if asked so only if there is one, or none, or a certain one."
        differs "Also with the conditions of Redis 8.4.";
    "setbit" 4 WRITE | DENYOOM, RW_BOTH "bitmap" "2.2.0" O_BYTES => bits::setbit,
        "key offset bit" "Sets a bit of a value and tells what it was.";
    "setex" 4 WRITE | DENYOOM, OW_UPDATE "string" "2.0.0" O_1
        => |call| strings::set_for(call, Unit::EX),
        "key seconds value" "Sets a value that expires, seconds from now.";
    "setnx" 3 WRITE | DENYOOM | FAST, OW_INSERT "string" "1.0.0" O_1 => strings::setnx,
        "key value" "Sets a value if there is none.";
    "setrange" 4 WRITE | DENYOOM, RW_UPDATE "string" "2.2.0" O_BYTES => ranges::setrange,
        "key offset text" "Writes a text into a value.";
    "slowlog" -2 CONTAINER, NONE "server" "2.2.12" O_1 => no_subcommand,
        "subcommand ..." "Tells of commands that took long.";
    "slowlog|get" -2 ADMIN | LOADING | STALE, NONE "server" "2.2.12" O_ENTRIES
        tips "request_policy:all_nodes nondeterministic_output" => latency::slowlog_get,
        "[count]" "Tells the last slow commands, 10 if no number is given."
        differs "Commands that came together may stand under the first one.";
    "slowlog|help" 2 HELP, NONE "server" "6.2.0" O_1 => help,
        "" "Prints this help.";
    "slowlog|len" 2 ADMIN | LOADING | STALE, NONE "server" "2.2.12" O_1
        tips "request_policy:all_nodes response_policy:agg_sum nondeterministic_output"
        => latency::slowlog_len,
        "" "Counts the slow commands that are remembered." differs "At most 10,000 are.";
    "slowlog|reset" 2 ADMIN | LOADING | STALE, NONE "server" "2.2.12" O_ENTRIES
        tips "request_policy:all_nodes response_policy:all_succeeded" => latency::slowlog_reset,
        "" "Forgets them.";
    "strlen" 2 READONLY | FAST, RO "string" "2.2.0" O_1 => strings::strlen,
        "key" "Tells how long a value is.";
    "substr" 4 READONLY, RO_ACCESS "string" "1.0.0" O_BYTES => ranges::getrange,
        "key start end" "Tells a part of a value." differs "As `getrange`.";
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
        "key" "Tells what kind of value a key has." differs "`string`, `hash`, or `none`.";
    "unlink" -2 WRITE | FAST, ALL_REMOVED "generic" "4.0.0" O_KEYS
        tips "request_policy:multi_shard response_policy:agg_sum" => redis_keys::del,
        "key ..." "Deletes keys." differs IN_TURNS;
    "unwatch" 1 TRANSACTION, NONE "transactions" "2.2.0" O_1 => transactions::unwatch,
        "" "Forgets watched keys.";
    "wait" 3 NOSCRIPT | CONNECTION, NONE "generic" "3.0.0" O_1
        tips "request_policy:all_shards response_policy:agg_min" => keyspace::wait,
        "replicas ms" "Tells how many replicas have what was written."
        differs "0, at once: there are none.";
    "watch" -2 TRANSACTION | AT_ONCE, ALL_RO "transactions" "2.2.0" O_KEYS
        => transactions::watch,
        "key ..." "Has EXEC do nothing if one of the keys is changed before."
        differs "1024 keys at most.";
};
