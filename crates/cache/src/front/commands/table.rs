//! The commands of Redis that are offered. Sorted by name; subcommands behind their command.

use super::introspection::{
    all_commands, command_count, command_docs, command_getkeys, command_getkeys_and_flags,
    command_info, command_list, help, no_subcommand,
};
use super::{
    ADMIN, ALLOW_BUSY, CONNECTION, CONTAINER, Command, DANGEROUS, DENYOOM, FAST, KEYSPACE, KeySpec,
    LOADING, NO_AUTH, NOSCRIPT, READONLY, STALE, WRITE,
};
use crate::front::core::Core;
use crate::front::redis_hash_expiry as hash_expiry;
use crate::front::redis_hash_walks as hash_walks;
use crate::front::redis_hashes as hashes;
use crate::front::redis_keys::{self, left};
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
const O_FIELDS: &str = "O(N) in the fields named";
const O_HASH: &str = "O(N) in the fields of the hash";
const O_ENTRIES: &str = "O(N) in the entries";

/// The one difference of the commands whose work grows with their words.
const IN_TURNS: &str = "A long one is not one step to others.";
/// That of the commands that answer with all of a hash, in turns.
const FLUSHED: &str = "A long answer ends with its connection if all is flushed meanwhile.";

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
    "hdel" -3 WRITE | FAST, RW_DELETE "hash" "2.0.0" O_FIELDS => hashes::hdel,
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
        "key" "Tells all fields and values of a hash."
        differs FLUSHED;
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
        "key" "Tells all fields of a hash." differs FLUSHED;
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
        "key" "Tells all values of a hash." differs FLUSHED;
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
    "move" 3 WRITE | FAST, RW_BOTH "generic" "1.0.0" O_1 => redis_keys::move_key,
        "key database" "Moves a key to another database, if that has none of it."
        differs "A hash of more than 2 KiB is not moved.";
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
        "key" "Tells what kind of value a key has." differs "`string`, `hash`, or `none`.";
    "unlink" -2 WRITE | FAST, ALL_REMOVED "generic" "4.0.0" O_KEYS
        tips "request_policy:multi_shard response_policy:agg_sum" => redis_keys::del,
        "key ..." "Deletes keys." differs IN_TURNS;
};
