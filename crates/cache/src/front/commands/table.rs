//! The commands of Redis that are offered. Sorted by name; subcommands behind their command.

use super::introspection::{
    all_commands, command_count, command_docs, command_getkeys, command_getkeys_and_flags,
    command_info, command_list, help, no_subcommand,
};
use super::{
    ADMIN, ALLOW_BUSY, CONNECTION, CONTAINER, Command, DANGEROUS, DENYOOM, FAST, KEYSPACE, KeySpec,
    LOADING, NO_AUTH, NOSCRIPT, OF_ADMINS, READONLY, STALE, WRITE,
};
use crate::front::core::Core;
use crate::front::redis_client as client;
use crate::front::redis_config as config;
use crate::front::redis_keys::{self, left};
use crate::front::redis_latency as latency;
use crate::front::redis_memory as memory;
use crate::front::redis_server as server;
use crate::front::redis_strings::{self as strings, Unit};

const fn one(flags: &'static str) -> KeySpec {
    KeySpec { flags, first: 1, last: 0, step: 1 }
}

const fn all(flags: &'static str) -> KeySpec {
    KeySpec { flags, first: 1, last: -1, step: 1 }
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
const HELP: u32 = LOADING | STALE;
const ABOUT: u32 = LOADING | STALE | CONNECTION;

const O_1: &str = "O(1)";
const O_KEYS: &str = "O(N) in the keys named";
const O_WORDS: &str = "O(N) in the words";
const O_CLIENTS: &str = "O(N) in the clients";
const O_COMMANDS: &str = "O(N) in the commands";
const O_ENTRIES: &str = "O(N) in the entries";

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
            `maxclients`, `slowlog-log-slower-than`, `slowlog-max-len`, `tiering`, `timeout`; \
            `maxmemory` and its policy stay what they are.";
    "dbsize" 1 READONLY | FAST | KEYSPACE, NONE "server" "1.0.0" O_1
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
    "echo" 2 LOADING | STALE | FAST, NONE "connection" "1.0.0" O_1 => server::echo,
        "text" "Answers the given text.";
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
    "flushall" -1 WRITE | KEYSPACE | DANGEROUS, NONE "server" "1.0.0" O_1
        tips "request_policy:all_shards response_policy:all_succeeded"
        => |call| redis_keys::flush(call, Core::flush),
        "[ASYNC | SYNC]" "Deletes all keys of all databases."
        differs "At once in both modes; memory returns in turns.";
    "flushdb" -1 WRITE | KEYSPACE | DANGEROUS, NONE "server" "1.0.0" O_1
        tips "request_policy:all_shards response_policy:all_succeeded"
        => |call| redis_keys::flush(call, Core::flush_database),
        "[ASYNC | SYNC]" "Deletes all keys of the database." differs "As `flushall`.";
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
        differs "Fields that mean something here. `expires` and `avg_ttl` are estimated where \
            there are more than 8192 keys; percentiles are ends of buckets, each twice as long.";
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
    "move" 3 WRITE | FAST, RW_BOTH "generic" "1.0.0" O_1 => redis_keys::move_key,
        "key database" "Moves a key to another database, if that has none of it.";
    "mset" -3 WRITE | DENYOOM, PAIRS "string" "1.0.1" O_KEYS
        tips "request_policy:multi_shard response_policy:all_succeeded" => strings::mset,
        "key value ..." "Sets the values of several keys."
        differs "One after the other, visible to others in between.";
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
    "quit" -1 LOG_IN, NONE "connection" "1.0.0" O_1 => server::quit,
        "" "Ends the connection.";
    "reset" 1 LOG_IN, NONE "connection" "6.2.0" O_1 => server::reset,
        "" "Makes the connection as a new one.";
    "role" 1 NOSCRIPT | LOADING | STALE | FAST | OF_ADMINS, NONE "server" "2.8.12" O_1
        => server::role,
        "" "Tells that the server is a master, without replicas.";
    "scan" -2 READONLY, NONE "generic" "2.8.0" O_1
        tips "nondeterministic_output request_policy:special" => redis_keys::scan,
        "cursor [MATCH pattern] [COUNT count] [TYPE type]" "Walks over the keys."
        differs "Answers early where keys or pattern are long.";
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
    "swapdb" 3 WRITE | FAST | KEYSPACE | DANGEROUS, NONE "server" "4.0.0" O_1
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
};
