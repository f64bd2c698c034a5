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
    "hashes are not offered":
        "hdel" "hexists" "hexpire" "hexpireat" "hexpiretime" "hget" "hgetall" "hgetdel" "hgetex"
        "hincrby" "hincrbyfloat" "hkeys" "hlen" "hmget" "hmset" "hpersist" "hpexpire" "hpexpireat"
        "hpexpiretime" "hpttl" "hrandfield" "hscan" "hset" "hsetex" "hsetnx" "hstrlen" "httl"
        "hvals";
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
    "scripts are not offered":
        "eval" "eval_ro" "evalsha" "evalsha_ro" "fcall" "fcall_ro" "function" "script";
    "several values are set by MSET and MSETNX":
        "msetex";
    "keys are not sorted":
        "sort" "sort_ro";
    "use DUMP and RESTORE":
        "migrate" "restore-asking";
    "a server has no replicas":
        "failover" "psync" "replconf" "replicaof" "role" "slaveof" "sync" "waitaof";
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
        "lolwut" "pfdebug" "pfselftest";
    "keys are not tracked":
        "client|caching" "client|getredir" "client|tracking" "client|trackinginfo";
    "clients are not managed by others":
        "client|capa" "client|kill" "client|no-evict" "client|no-touch" "client|pause"
        "client|reply" "client|unblock" "client|unpause";
    "see INFO memory":
        "memory|doctor" "memory|malloc-stats" "memory|purge" "memory|stats";
};
