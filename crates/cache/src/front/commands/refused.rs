//! Redis's and Valkey's commands that are refused, and why: an application that needs one is told
//! so by name. Subcommands are as in the table, `command|subcommand`.

pub struct Refused {
    pub why: &'static str,
    /// In lower case.
    pub names: &'static [&'static str],
}

/// Why the command of that name, in upper or lower case, is refused; `None` if it is not known.
pub fn why(name: &[u8]) -> Option<&'static str> {
    let is_named = |known: &&str| known.as_bytes().eq_ignore_ascii_case(name);
    let refused = REFUSED.iter().find(|some| some.names.iter().any(is_named))?;
    Some(refused.why)
}

macro_rules! refused {
    ($($why:literal: $($name:literal)*;)*) => {
        &[$(Refused { why: $why, names: &[$($name),*] }),*]
    };
}

pub static REFUSED: &[Refused] = refused! {
    "lists are not offered":
        "blmove" "blmpop" "blpop" "brpop" "brpoplpush" "lindex" "linsert" "llen" "lmove" "lmpop"
        "lpop" "lpos" "lpush" "lpushx" "lrange" "lrem" "lset" "ltrim" "rpop" "rpoplpush" "rpush"
        "rpushx";
    "sets are not offered":
        "sadd" "scard" "sdiff" "sdiffstore" "sinter" "sintercard" "sinterstore" "sismember"
        "smembers" "smismember" "smove" "spop" "srandmember" "srem" "sscan" "sunion" "sunionstore";
    "sorted sets are not offered":
        "bzmpop" "bzpopmax" "bzpopmin" "geoadd" "geodist" "geohash" "geopos" "georadius"
        "georadius_ro" "georadiusbymember" "georadiusbymember_ro" "geosearch" "geosearchstore"
        "zadd" "zcard" "zcount" "zdiff" "zdiffstore" "zincrby" "zinter" "zintercard" "zinterstore"
        "zlexcount" "zmpop" "zmscore" "zpopmax" "zpopmin" "zrandmember" "zrange" "zrangebylex"
        "zrangebyscore" "zrangestore" "zrank" "zrem" "zremrangebylex" "zremrangebyrank"
        "zremrangebyscore" "zrevrange" "zrevrangebylex" "zrevrangebyscore" "zrevrank" "zscan"
        "zscore" "zunion" "zunionstore";
    "streams are not offered":
        "xack" "xackdel" "xadd" "xautoclaim" "xclaim" "xdel" "xdelex" "xgroup" "xinfo" "xlen"
        "xpending" "xrange" "xread" "xreadgroup" "xrevrange" "xsetid" "xtrim";
    "publish and subscribe are not offered":
        "psubscribe" "publish" "pubsub" "punsubscribe" "spublish" "ssubscribe" "subscribe"
        "sunsubscribe" "unsubscribe";
    "transactions are not offered":
        "discard" "exec" "multi" "unwatch" "watch";
    "scripts are not offered":
        "eval" "eval_ro" "evalsha" "evalsha_ro" "fcall" "fcall_ro" "function" "script";
    "parts and bits of a string are not offered":
        "bitcount" "bitfield" "bitfield_ro" "bitop" "bitpos" "getbit" "getrange" "lcs" "pfadd"
        "pfcount" "pfdebug" "pfmerge" "pfselftest" "setbit" "setrange" "substr";
    "a value is compared by no command":
        "delex" "delifeq" "digest";
    "several values are set without a condition":
        "msetex" "msetnx";
    "numbers are integers":
        "incrbyfloat";
    "keys are not renamed, copied or sorted":
        "copy" "rename" "renamenx" "sort" "sort_ro";
    "use SCAN, which is not one long step":
        "keys" "randomkey";
    "values have no form for other servers":
        "dump" "migrate" "restore" "restore-asking";
    "items have one encoding, and their uses are not told":
        "object";
    "a server has no replicas":
        "failover" "psync" "replconf" "replicaof" "role" "slaveof" "sync" "wait" "waitaof";
    "nothing is saved: --warm FILE keeps the cache over a restart":
        "bgrewriteaof" "bgsave" "lastsave" "save";
    "this is no cluster":
        "asking" "readonly" "readwrite";
    "there is one user, whose password is given at the start":
        "acl";
    "signals stop the server":
        "shutdown";
    "see SLOWLOG, and /metrics":
        "latency" "monitor";
    "modules are not offered":
        "module";
    "the server is not debugged by its clients":
        "debug" "lolwut";
    "a connection is reset by a new one":
        "reset";
    "keys are not tracked":
        "client|caching" "client|getredir" "client|tracking" "client|trackinginfo";
    "clients are not managed by others":
        "client|capa" "client|kill" "client|no-evict" "client|no-touch" "client|pause"
        "client|reply" "client|unblock" "client|unpause";
    "see INFO memory":
        "memory|doctor" "memory|malloc-stats" "memory|purge" "memory|stats";
};
