//! Random streams of Redis's protocol: keys of all databases, strings, bits, hashes and their
//! fields' expiry, transactions, scripts and functions, dumps.

use crate::peers::Rng;
use crate::streams::{PeerVersions, Stream, value};

/// Redis's protocol. Left out: what lists everything in its own order (hashes with long values, or
/// with fields that expire), what is drawn by chance, what differs by nature (`INFO`, `COMMAND`,
/// `CONFIG`, `TIME`, `DBSIZE`), commands of types that are not offered, ranges of `GETRANGE` that
/// end before the value (Redis has changed what they show), how values are kept. Dumps, which may
/// be shortened in several ways, are restored where they were made.
pub fn resp(rng: &mut Rng, index: usize, peers: PeerVersions) -> Stream {
    let mut stream = Stream::new(false);
    for _ in 0..1 + rng.below(14) {
        stream.commands += 1;
        let words = resp_words(rng, peers);
        let printable = words.iter().all(|word| {
            // A line of 64 KiB is too long or not, depending on how it arrives.
            (1..1000).contains(&word.len())
                && word.iter().all(|byte| byte.is_ascii_graphic() && *byte != b'"')
        });
        let printable = printable && !words.iter().any(|word| word.contains(&b'\''));
        if rng.chance(6) && printable {
            let quote = rng.pick(&["", "\"", "'"]);
            for word in &words {
                stream.push(quote);
                stream.push(word);
                stream.push(quote);
                stream.push(" ");
            }
            stream.push("\r\n");
        } else {
            stream.push(format!("*{}\r\n", words.len()));
            for word in words {
                stream.push(format!("${}\r\n", word.len()));
                stream.push(word);
                stream.push("\r\n");
            }
        }
    }
    if rng.chance(60) {
        stream.push(rng.pick(&[
            "*1\r\n+PING\r\n",
            "*x\r\n",
            "*1\r\n$-5\r\n",
            "*1\r\n$9999999999\r\n",
            "get 'a\r\n",
            "set \"a\"b c\r\n",
            "*9999999999\r\n",
        ]));
        stream.ends_connection = true;
        stream.end = b"no answer ends like this".to_vec();
        return stream;
    }
    // An open transaction would let it wait.
    stream.push("discard\r\n");
    stream.push(format!("*2\r\n$4\r\nECHO\r\n$9\r\nend{index:06}\r\n"));
    stream.end = format!("$9\r\nend{index:06}\r\n").into_bytes();
    stream
}

/// Commands; capital letters stand for a key, a value, a time in seconds, one in milliseconds, a
/// number, an option, a condition, a script, a library, and for a field of a hash (`X`) with its
/// short value (`W`); `P` for a script that restores a dump. `L` is a hash with long values, `J`
/// one with fields that expire. `gt` and `lt` stand with points in time: 500 seconds from now, said
/// twice, is equal or later, depending on how many milliseconds are between.
const TEMPLATES: &[&str] = &[
    "get K",
    "get K",
    "get K",
    "set K V",
    "set K V",
    "set K V",
    "set K V O",
    "set K V O O",
    "set K V ex T",
    "set K V px M",
    "set K V exat T",
    "set K V pxat 9000000000000 O",
    "set K V O ex T",
    "set K V keepttl O",
    "setex K T V",
    "psetex K M V",
    "setnx K V",
    "getset K V",
    "getdel K",
    "getex K",
    "getex K ex T",
    "getex K persist",
    "getex K px M",
    "getex K O",
    "mget K K K",
    "mget K",
    "mset K V K V",
    "mset K V K",
    "del K K",
    "unlink K",
    "exists K K K",
    "touch K K",
    "expire K T",
    "expire K T C",
    "expire K T C C",
    "pexpireat K 5000000000000 gt",
    "expireat K 5000000000 LT",
    "expire K 9000 gt lt",
    "pexpire K M",
    "pexpire K M C",
    "expireat K 9000000000",
    "expireat K 5 C",
    "pexpireat K 9000000000000",
    "ttl K",
    "pttl K",
    "persist K",
    "type K",
    "incr K",
    "decr K",
    "incrby K N",
    "decrby K N",
    "append K V",
    "strlen K",
    "ping",
    "ping V",
    "echo V",
    "select 0",
    "select 1",
    "select x",
    "select 99",
    "move K 0",
    "move K 1",
    "move K 99",
    "swapdb 0 1",
    "swapdb 1 K",
    "flushdb",
    "flushall",
    "flushdb async",
    "flushall now",
    "multi",
    "multi",
    "exec",
    "exec",
    "exec",
    "discard",
    "watch K",
    "watch K K",
    "unwatch",
    "exec K",
    "discard K",
    "watch",
    "reset",
    "client setname some",
    "client getname",
    "client setname N",
    "auth x",
    "auth a b c",
    "get",
    "get K K",
    "set K",
    "nonsense V K V",
    "nonsense",
    "incr",
    "mset",
    "hello 9",
    "hello x",
    "expiretime K",
    "pexpiretime K",
    "memory usage",
    "client nonsense",
    "expire K",
    "scan x",
    "scan 0 count 0",
    "scan 0 match",
    "config get",
    "getrange K I E",
    "substr K I E",
    "setrange K R V",
    "incrbyfloat K F",
    "setbit K B D",
    "getbit K B",
    "bitcount K",
    "bitcount K I I",
    "bitcount K I I bit",
    "bitcount K I",
    "bitpos K D",
    "bitpos K D I",
    "bitpos K D I I",
    "bitpos K D I I BIT",
    "bitop and K K K",
    "bitop OR K K K",
    "bitop xor K K K K",
    "bitop not K K",
    "bitop not K K K",
    "bitop nand K K",
    "bitfield K get u8 0 set i5 3 7 incrby u4 #1 3",
    "bitfield K overflow fail incrby u2 B N",
    "bitfield K overflow sat set i8 B N get u8 B",
    "bitfield K set u63 B N",
    "bitfield K get u64 0",
    "bitfield_ro K get u16 B",
    "bitfield_ro K set u8 0 1",
    "pfadd H V V",
    "pfadd H",
    "pfadd K V",
    "pfcount H",
    "pfcount H H K",
    "pfmerge H H",
    "get H",
    "msetnx K V K V",
    "msetnx K V K",
    "rename K K",
    "renamenx K K",
    "copy K K",
    "copy K K replace",
    "copy K K db 1 replace",
    "copy K K DB 99",
    "copy K K x",
    "lcs K K",
    "lcs K K len",
    "lcs K K idx minmatchlen 2 withmatchlen",
    "lcs K K idx len",
    "keys r0",
    "keys nonsense*",
    "restore K 0 V",
    "restore K N V",
    "restore K 0 V x",
    "object encoding",
    "object nonsense K",
    "wait 0 0",
    "wait x 0",
    "wait 0 -1",
    "wait 0 x",
    "hset K X W",
    "hset K X W X W",
    "hset K X W X",
    "hmset K X W X W",
    "hsetnx K X W",
    "hget K X",
    "hmget K X X X",
    "hgetall K",
    "hgetall K",
    "hkeys K",
    "hvals K",
    "hlen K",
    "hstrlen K X",
    "hexists K X",
    "hdel K X",
    "hdel K X X X",
    "hincrby K X N",
    "hincrby K X 1",
    "hincrbyfloat K X F",
    "hscan K 0 count 100",
    "hscan K 0 match f1*",
    "hscan K x",
    "hrandfield K 0",
    "hrandfield K 100 withvalues",
    "hrandfield K x",
    "hset L X V X V",
    "hset L X V X W X V",
    "hget L X",
    "hmget L X X",
    "hdel L X X",
    "hlen L",
    "hstrlen L X",
    "hincrby L X 7",
    "copy L L replace",
    "rename L L",
    "move L 1",
    "strlen L",
    "hset",
    "hget K",
    "hdel K",
    "eval S 1 K V",
    "eval S 2 K K V 1000000",
    "eval P 2 L L 0",
    "eval P 2 K K 1000000",
    "eval S 3 K K K",
    "eval S 0",
    "eval S x",
    "eval S -1 K",
    "eval_ro S 1 K V",
    "evalsha 2c629a5643c0ace57f8c519b71e47c51e4552ffe 1 K",
    "evalsha_ro 2C629A5643C0ACE57F8C519B71E47C51E4552FFE 1 K",
    "evalsha nonsense 0",
    "script load S",
    "script exists 2c629a5643c0ace57f8c519b71e47c51e4552ffe x",
    "script flush",
    "script flush x",
    "script nonsense",
    "script kill",
    "function load A",
    "function load replace A",
    "function load replace A",
    "function load S",
    "function list libraryname nothing",
    "function list nothing",
    "function delete some",
    "function flush",
    "function kill",
    "fcall put 1 K V",
    "fcall look 1 K",
    "fcall_ro put 1 K V",
    "fcall_ro look 1 K",
    "fcall nonsense 0",
    "fcall put x",
    "dump K V",
    "restore K 0 V replace",
    "restore K -1 V",
    "command getkeys set K V",
    "command getkeys eval S 2 K K V",
    "command getkeysandflags copy K K",
    "command getkeys ping",
    "client reply x",
    "client no-evict x",
    "role",
    "expire K T gt lt",
    "expireat K T C",
    "pexpireat K 9100000000000 C",
    "bitfield K",
    "bitfield K get",
    "bitfield K get u8 #2 get i64 0 overflow bad",
    "bitfield K incrby i64 0 N incrby u63 B 1",
    "bitfield K overflow wrap incrby i8 0 N set u1 #7 D",
    "bitfield_ro K get Y B",
    "bitfield K set Y B N",
];

/// Commands that Redis had not from 7.0.15 on: the version with which they came, and they.
const NEWER: &[(u32, &str)] = &[
    (70_400, "hset J X W X W"),
    (70_400, "hget J X"),
    (70_400, "hmget J X X X"),
    (70_400, "hlen J"),
    (70_400, "hdel J X"),
    (70_400, "hincrby J X N"),
    (70_400, "hexpire J T fields 1 X"),
    (70_400, "hexpire J T fields 2 X X"),
    (70_400, "hexpire J T C fields 2 X X"),
    (70_400, "hexpire J 9000 gt fields 1 X"),
    (70_400, "hexpire K T fields 1 X X"),
    (70_400, "hexpire K T fields 0 X"),
    (70_400, "hexpire K T X X X"),
    (70_400, "hpexpire J M fields 2 X X"),
    (70_400, "hpexpire J M LT fields 1 X"),
    (70_400, "hexpireat J 9000000000 fields 2 X X"),
    (70_400, "hexpireat J 5 fields 1 X"),
    (70_400, "hpexpireat J 9000000000000 C fields 1 X"),
    (70_400, "httl J fields 2 X X"),
    (70_400, "httl K fields 1 X"),
    (70_400, "httl K fields 2 X"),
    (70_400, "hpttl J fields 1 X"),
    (70_400, "hexpiretime J fields 1 X"),
    (70_400, "hpersist J fields 2 X X"),
    (70_400, "copy J J replace"),
    (70_400, "rename J J"),
    (70_400, "move J 1"),
    (80_000, "hgetdel J fields 2 X X"),
    (80_000, "hgetdel K fields 1 X"),
    (80_000, "hgetex J fields 2 X X"),
    (80_000, "hgetex J ex T fields 1 X"),
    (80_000, "hgetex J persist fields 2 X X"),
    (80_000, "hgetex J px M exat 9 fields 1 X"),
    (80_000, "hsetex J fields 1 X W"),
    (80_000, "hsetex J fnx fields 2 X W X W"),
    (80_000, "hsetex J fxx ex T fields 1 X W"),
    (80_000, "hsetex J keepttl fields 2 X W X W"),
    (80_000, "hsetex J px M fields 1 X W"),
    (80_000, "hsetex J fields 2 X W"),
    (80_400, "delex K"),
    (80_400, "delex K ifeq V"),
    (80_400, "set K V ifne V"),
    (80_400, "digest K"),
];

/// What `S` stands for.
const SCRIPTS: &[&str] = &[
    "return redis.call('incrby', KEYS[1], 2)",
    "return redis.call('get', KEYS[1])",
    "return redis.call('set', KEYS[1], ARGV[1])",
    "return redis.pcall('set', KEYS[1], ARGV[1], 'ex', ARGV[2])",
    "return {KEYS[1], #KEYS, ARGV[1], #ARGV, redis.call('exists', KEYS[1])}",
    "redis.call('incr', KEYS[1]) return redis.call('append', KEYS[1], ARGV[1])",
    "local v = redis.call('hgetall', KEYS[1]) return v",
    "redis.setresp(3) return redis.call('hgetall', KEYS[1])",
    "return redis.call('hset', KEYS[1], 'f1', string.sub(ARGV[1], 1, 60), 'f2', 2)",
    "return redis.call('select', 1) and redis.call('set', KEYS[1], 'x')",
    "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0",
    "return redis.call('mget', KEYS[1], 'r1', 'r2')",
    "return redis.call('nonsense', KEYS[1])",
    "return redis.pcall('multi')",
    "return redis.status_reply(ARGV[1])",
    "return redis.sha1hex(ARGV[1])",
    "return cjson.encode({ARGV[1], #ARGV, {a = redis.call('type', KEYS[1])}})",
    "return cmsgpack.pack({ARGV[1], 1, false})",
    "return 3.7",
    "return {1, {2, {}}, 'x', nil, 4}",
    "return nothing",
    "return (",
    // A value under another key, by way of its dump.
    "local d = redis.call('dump', KEYS[1]) if not d then return 'none' end \
     return redis.call('restore', KEYS[2], string.sub(ARGV[1], 1, 9), d, 'replace')",
    "local d = redis.call('dump', KEYS[1]) if not d then return 'none' end \
     return redis.call('restore', KEYS[2], 0, d)",
    "local d = redis.call('dump', KEYS[1]) if not d then return 'none' end \
     return redis.pcall('restore', KEYS[2], 0, string.sub(d, 1, -2) .. 'x')",
];

/// What `A` stands for.
const LIBRARIES: &[&str] = &[
    "#!lua name=some
redis.register_function('put', function(keys, args) return redis.call('set', keys[1], args[1]) end)
redis.register_function{function_name='look', callback=function(keys, args)
    return {redis.call('exists', keys[1]), args[1]} end, flags={'no-writes'}}",
    "#!lua name=some
redis.register_function('look', function(keys) return redis.call('type', keys[1]) end)",
    "#!lua name=some
redis.register_function('put', 1)",
    "#!lua name=bad-name
return 1",
    "#!lua
return 1",
    "return 1",
];

pub fn resp_words(rng: &mut Rng, peers: PeerVersions) -> Vec<Vec<u8>> {
    let key = |rng: &mut Rng| match rng.below(25) {
        0 => vec![b'K'; 300],
        1 => b"\x00\r\n\xff".to_vec(),
        2 => Vec::new(),
        n => format!("r{}", n % 8).into_bytes(),
    };
    let value = |rng: &mut Rng| match rng.below(20) {
        0 => b"\r\n\0\xff".to_vec(),
        _ => value(rng),
    };
    let time = |rng: &mut Rng| {
        rng.pick(&["1000", "1000", "2000000", "0", "-1", "x", "9223372036854775807"]).to_owned()
    };
    // None that passes while streams run: the servers are asked one after the other.
    let millis = |rng: &mut Rng| {
        rng.pick(&["1000000", "1000000", "2000000", "0", "-1", "x", "9223372036854775807"])
    };
    let number = |rng: &mut Rng| {
        let some = ["1", "-7", "100", "x", "9223372036854775807", "-9223372036854775808", "01"];
        rng.pick(&some).to_owned()
    };
    let template = match rng.below(TEMPLATES.len() + NEWER.len()) {
        index if index < NEWER.len() && NEWER[index].0 <= peers.redis => NEWER[index].1,
        _ => rng.pick(TEMPLATES),
    };
    let words = template.split(' ').enumerate().map(|(index, word)| match word {
        "K" => key(rng),
        "V" => value(rng),
        "T" => time(rng).into_bytes(),
        "M" => millis(rng).into(),
        "N" => number(rng).into_bytes(),
        "O" => rng.pick(&["nx", "XX", "get", "KEEPTTL", "ex", "bad", "persist"]).into(),
        "C" => rng.pick(&["nx", "XX", "bad"]).into(),
        "I" => rng.pick(&["0", "1", "-1", "-3", "5", "100", "x"]).into(),
        "E" => rng.pick(&["0", "3", "10", "-1", "100000"]).into(),
        "R" => rng.pick(&["0", "1", "5", "100", "-1", "x"]).into(),
        "B" => rng.pick(&["0", "7", "8", "100", "999", "4294967296", "-1", "x"]).into(),
        "D" => rng.pick(&["0", "1", "1", "0", "2", "x"]).into(),
        "F" => rng.pick(&["1.5", "-0.25", "3.0e3", "0.1", "1e40", "inf", "x"]).into(),
        "H" => rng.pick(&["h0", "h1", "h2", "h3"]).into(),
        "X" => rng.pick(&["f0", "f1", "f2", "f3", "", "\r\n\0", "17"]).into(),
        // None that changes in what order Redis tells the fields.
        "W" => rng.pick(&["", "1", "-12", "1.5", "text", "9223372036854775807", "\0\r\n"]).into(),
        "L" => rng.pick(&["l0", "l1", "l2"]).into(),
        "J" => rng.pick(&["j0", "j1", "j2"]).into(),
        "S" => rng.pick(SCRIPTS).into(),
        "P" => rng.pick(&SCRIPTS[SCRIPTS.len() - 3..]).into(),
        "A" => rng.pick(LIBRARIES).into(),
        "Y" => rng.pick(&["u8", "i64", "u63", "u64", "i65", "i0", "u", "x8", "i7"]).into(),
        name if index == 0 && rng.chance(3) => name.to_ascii_uppercase().into_bytes(),
        word => word.as_bytes().to_vec(),
    });
    words.collect()
}
