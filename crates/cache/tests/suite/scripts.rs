//! Scripts and functions, beside redis-server's answers to the same commands.

use crate::peers::{self, ask, ask_text, connect, memcached_of, ours, resp_of, wait_until, words};
use rackpool_cache::front::Settings;
use std::io::Write;
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// What is answered to a command, as it comes.
fn say(stream: &mut TcpStream, command: &[&str]) -> String {
    let command: Vec<_> = command.iter().map(|word| word.as_bytes()).collect();
    let bytes = [words(&command), words(&[b"ECHO", b"the end"])].concat();
    let all = ask(stream, &bytes, b"$7\r\nthe end\r\n");
    let text = String::from_utf8_lossy(&all).into_owned();
    text.strip_suffix("$7\r\nthe end\r\n").expect("the end").to_owned()
}

fn compare(theirs: &mut TcpStream, client: &mut TcpStream, command: &[&str]) {
    assert_eq!(say(client, command), say(theirs, command), "{command:?}");
}

/// As redis-py's Lock sends them.
const RELEASE: &str = "
    local token = redis.call('get', KEYS[1])
    if not token or token ~= ARGV[1] then
        return 0
    end
    redis.call('del', KEYS[1])
    return 1
";
const EXTEND: &str = "
    local token = redis.call('get', KEYS[1])
    if not token or token ~= ARGV[1] then
        return 0
    end
    local expiration = redis.call('pttl', KEYS[1])
    if not expiration then
        expiration = 0
    end
    if expiration < 0 then
        return 0
    end

    local newttl = ARGV[2]
    if ARGV[3] == \"0\" then
        newttl = ARGV[2] + expiration
    end
    redis.call('pexpire', KEYS[1], newttl)
    return 1
";
/// As a limiter with a fixed window sends it.
const LIMIT: &str = "
    local current
    local amount = tonumber(ARGV[2])
    current = redis.call(\"incrby\", KEYS[1], amount)
    if tonumber(current) == amount then
        redis.call(\"expire\", KEYS[1], ARGV[1])
    end
    return current
";

#[test]
fn locks_and_limiters_of_libraries_work() {
    let server = ours(Settings { threads: 2, ..Settings::default() });
    let mut client = resp_of(&server);
    let load = |client: &mut TcpStream, text: &str| {
        let sha = say(client, &["SCRIPT", "LOAD", text]);
        sha.trim_end().rsplit("\r\n").next().unwrap().to_owned()
    };
    let (release, extend) = (load(&mut client, RELEASE), load(&mut client, EXTEND));
    assert_eq!(say(&mut client, &["SET", "lock", "mine", "NX", "PX", "10000"]), "+OK\r\n");
    assert_eq!(
        say(&mut client, &["EVALSHA", &extend, "1", "lock", "mine", "60000", "0"]),
        ":1\r\n"
    );
    let left = say(&mut client, &["PTTL", "lock"]);
    let left: i64 = left[1..].trim_end().parse().unwrap();
    assert!((60_000..=70_000).contains(&left), "{left}");
    assert_eq!(say(&mut client, &["EVALSHA", &release, "1", "lock", "other"]), ":0\r\n");
    assert_eq!(say(&mut client, &["EVALSHA", &release, "1", "lock", "mine"]), ":1\r\n");
    assert_eq!(say(&mut client, &["EVALSHA", &release, "1", "lock", "mine"]), ":0\r\n");
    let none = "-NOSCRIPT No matching script. Please use EVAL.\r\n";
    assert_eq!(say(&mut client, &["EVALSHA", &"0".repeat(40), "0"]), none);
    for count in 1..=3 {
        let said = say(&mut client, &["EVAL", LIMIT, "1", "limit", "60", "1"]);
        assert_eq!(said, format!(":{count}\r\n"));
    }
    assert_eq!(say(&mut client, &["TTL", "limit"]), ":60\r\n");
    // It is what memcached's clients see.
    let found = ask_text(&mut memcached_of(&server), b"get limit\r\n", b"END\r\n");
    assert_eq!(found, "VALUE limit 0 1\r\n3\r\nEND\r\n");
}

const SCRIPTS: &[&str] = &[
    "return 1",
    "return {1,2,{3,'four'},nil,5}",
    "return redis.call('set', KEYS[1], ARGV[1])",
    "return redis.call('get', KEYS[1])",
    "return redis.call('mget', KEYS[1], 'none')",
    "return redis.call('incrby', KEYS[2], 3.0)",
    "return redis.call('incr', KEYS[1])",
    "return redis.pcall('incr', KEYS[1])",
    "return {redis.pcall('incr', KEYS[1])['err']}",
    "local is, why = pcall(redis.call, 'incr', KEYS[1]) return why",
    "local is, why = pcall(function() return redis.call('nonsense') end) return why",
    "return redis.call('nonsense')",
    "return redis.call('get')",
    "return redis.call('multi')",
    "return redis.call()",
    "return redis.call({})",
    "return redis.error_reply('MY bad')",
    "return redis.error_reply('bad')",
    "return redis.status_reply('fine')",
    "return {err='MY bad'}",
    "error('bad')",
    "error({err='MY bad'})",
    "return nothing",
    "a = 10",
    "redis.call = 1",
    "return cjson.encode({a={1,2,'x/y'}})",
    "return cjson.decode('[1')",
    "return cjson.decode('{\"a\":[1,2,{\"b\":null}]}').a[2]",
    "return cmsgpack.pack({1,2,'three',false,1.5,-100,{a=70000}})",
    "return {cmsgpack.unpack(cmsgpack.pack(1,'a',{1,2}))}",
    "return {struct.unpack('>I2bs', struct.pack('>I2bs', 513, -3, 'abc'))}",
    "return struct.size('!4bi')",
    "return {bit.band(0xff, 0x0f), bit.bor(1, 2), bit.bxor(3, 1), bit.bnot(0), \
     bit.lshift(1, 31), bit.rshift(-1, 28), bit.arshift(-8, 1), bit.rol(1, 33), \
     bit.ror(1, 1), bit.bswap(1), bit.tobit(2^32 + 5), bit.tohex(255, -4)}",
    "math.randomseed(ARGV[1] == 'word' and 7 or 8) return {math.random(1000), \
     math.random(5, 900), tostring(math.random())}",
    "return loadstring(string.dump(function() return 1 end))()",
    "return redis.sha1hex('abc')",
    "return redis.REDIS_VERSION_NUM >= 0x00070000",
    "return type(os.clock())",
    "return os.time()",
    "return io",
    "return tostring(redis.call('select', 1)) and redis.call('get', KEYS[1])",
    "return 3.99",
    "return tostring(1e15) .. tostring(0.1) .. tostring(1/0)",
    "redis.setresp(3) return redis.call('get', 'none')",
    "redis.setresp(3) return {double=3.25}",
    "return {map={a='b'}}",
    "redis.setresp(3) return true",
    "return redis.setresp(5)",
    "return ('hello world'):gsub('o', '0')",
    "return {('k=v'):match('(%w)=(%w)')}",
    "return string.format('%5.2f|%q|%-4d|%x', 3.14159, 'a\"b', 7, 255)",
    "return #KEYS .. #ARGV",
    "return redis.call('time')[3]",
    "return redis.error_reply('a b c')",
    "return redis.error_reply('')",
    "return redis.error_reply()",
    "return redis.sha1hex()",
    "return redis.setresp('3')",
    "return redis.log('x')",
    "return redis.acl_check_cmd('nonsense')",
    "return bit.band()",
    "return struct.unpack('i', 'a')",
    "return struct.size('s')",
    "return {cmsgpack.unpack_limit(cmsgpack.pack(5, 6), 0, 1)}",
    "return cjson.decode('\"a')",
    "return ('a'):match('[')",
    "return ('a'):rep({})",
    "for word in string.gmatch('a') do end",
    "local is, why = pcall(function() return cjson.decode('[') end) return why",
    "local is, why = pcall(string.rep) return why",
    "local is, why = xpcall(function() return redis.call('get') end, function(why) \
     return {type(why), why.err} end) return why",
    "local is, why = coroutine.resume(coroutine.create(function() redis.call('get') end)) \
     return {type(why), why.err}",
    "local f = loadstring('error(\"x\")', '=chunk') f()",
    "rawset(redis, 'a', 1)",
    "redis.setresp(3) redis.call('hset', 'h', 'a', '1') return redis.call('hgetall', 'h').map.a",
    "#!lua flags=no-writes,\nreturn 1",
    "#!lua flags=no-writes\nreturn redis.call('set', KEYS[1], 'x')",
    "#!lua flags=nonsense\nreturn 1",
    "#!js\nreturn 1",
];

#[test]
fn scripts_answer_as_in_redis() {
    let Some(redis) = peers::redis() else { return };
    let server = ours(Settings::default());
    let (mut theirs, mut client) = (connect(redis.addr), resp_of(&server));
    for script in SCRIPTS {
        let command = ["EVAL", script, "2", "key", "other", "word"];
        compare(&mut theirs, &mut client, &command);
    }
    for command in [
        &["EVAL", "return 1", "x"][..],
        &["EVAL", "return 1", "1"],
        &["EVAL", "return 1", "-1"],
        &["EVAL", "return 1"],
        &["EVAL_RO", "return redis.call('set', KEYS[1], 1)", "1", "key"],
        &["EVAL_RO", "return redis.call('get', KEYS[1])", "1", "key"],
        &["EVALSHA_RO", "e0e1f9fabfc9d4800c877a703b823ac0578ff8db", "0"],
        &["EVALSHA", "short", "0"],
        &["SCRIPT", "EXISTS", "e0e1f9fabfc9d4800c877a703b823ac0578ff8db", "short"],
        &["SCRIPT", "LOAD", "return 7"],
        &["SCRIPT", "LOAD", "return ("],
        &["SCRIPT", "FLUSH", "nonsense"],
        &["SCRIPT", "FLUSH"],
        &["SCRIPT", "EXISTS", "e0e1f9fabfc9d4800c877a703b823ac0578ff8db"],
        &["SCRIPT", "KILL"],
        &["GET", "key"],
        &["COMMAND", "GETKEYS", "EVAL", "return 1", "2", "a", "b", "c"],
    ] {
        // Where a chunk ends is told in other words.
        let shown = |said: String| said.split("near ").next().unwrap_or("").to_owned();
        let (ours, theirs) = (say(&mut client, command), say(&mut theirs, command));
        assert_eq!(shown(ours), shown(theirs), "{command:?}");
    }
}

const LIBRARY: &str = "#!lua name=mylib
local count = 0
redis.register_function('put', function(keys, args)
    return redis.call('set', keys[1], args[1])
end)
redis.register_function{
    function_name = 'read',
    callback = function(keys, args) return redis.call('get', keys[1]) end,
    flags = {'no-writes'},
    description = 'Reads.',
}
redis.register_function('fails', function() return nothing end)
";

#[test]
fn functions_answer_as_in_redis() {
    let Some(redis) = peers::redis() else { return };
    let server = ours(Settings::default());
    let (mut theirs, mut client) = (connect(redis.addr), resp_of(&server));
    for command in [
        &["FUNCTION", "LOAD", LIBRARY][..],
        &["FUNCTION", "LOAD", LIBRARY],
        &["FUNCTION", "LOAD", "REPLACE", LIBRARY],
        &["FUNCTION", "LOAD", "NONSENSE", LIBRARY],
        &["FUNCTION", "LOAD", "return 1"],
        &["FUNCTION", "LOAD", "#!lua\nreturn 1"],
        &["FUNCTION", "LOAD", "#!lua name=a b\nreturn 1"],
        &["FUNCTION", "LOAD", "#!lua name=a\nreturn 1"],
        &["FUNCTION", "LOAD", "#!js name=a\nreturn 1"],
        &["FUNCTION", "LOAD", "#!lua name=a-b\nreturn 1"],
        &["FUNCTION", "LOAD", "#! name=a\nreturn 1"],
        &["FUNCTION", "LOAD", "#! lua name=a\nreturn 1"],
        &["FUNCTION", "LOAD", "#!js\nreturn 1"],
        &["FUNCTION", "LOAD", "#!lua name=\"a b\"\nreturn 1"],
        &["FUNCTION", "LOAD", "#!lua name=a\"\nreturn 1"],
        &[
            "FUNCTION",
            "LOAD",
            "#!lua \"name=quoted\"\nredis.register_function('q', function() end)",
        ],
        &["FUNCTION", "LOAD", "#!lua name=a\nredis.call('ping')"],
        &["FUNCTION", "LOAD", "#!lua name=a\nredis.register_function('put', function() end)"],
        &["FCALL", "put", "1", "key", "word"],
        &["FCALL", "READ", "1", "key"],
        &["FCALL", "read", "1", "key"],
        &["FCALL_RO", "read", "1", "key"],
        &["FCALL_RO", "put", "1", "key", "word"],
        &["FCALL", "fails", "0"],
        &["FCALL", "nonsense", "0"],
        &["FCALL", "put", "x"],
        &["FCALL", "put", "3", "key"],
        &["FUNCTION", "STATS"],
        &["FUNCTION", "LIST", "LIBRARYNAME", "other*"],
        &["FUNCTION", "LIST", "NONSENSE"],
        &["FUNCTION", "DELETE", "nonsense"],
        &["FUNCTION", "DELETE", "mylib"],
        &["FUNCTION", "LIST"],
        &["FUNCTION", "FLUSH", "nonsense"],
        &["FUNCTION", "FLUSH"],
        &["FUNCTION", "KILL"],
    ] {
        compare(&mut theirs, &mut client, command);
    }
    say(&mut client, &["FUNCTION", "LOAD", LIBRARY]);
    let list = say(&mut client, &["FUNCTION", "LIST", "WITHCODE"]);
    for part in ["mylib", "LUA", "put", "read", "no-writes", "Reads.", "local count = 0"] {
        assert!(list.contains(part), "{part}: {list}");
    }
}

/// The text that is answered to a command.
fn payload(stream: &mut TcpStream, command: &[&[u8]]) -> Vec<u8> {
    let end = b"\r\n$7\r\nthe end\r\n";
    let said = ask(stream, &[words(command), words(&[b"ECHO", b"the end"])].concat(), end);
    let start = said.iter().position(|byte| *byte == b'\n').expect("a length") + 1;
    said[start..said.len() - end.len()].to_vec()
}

#[test]
fn functions_are_dumped_and_restored_as_in_redis() {
    let Some(redis) = peers::redis() else { return };
    let server = ours(Settings::default());
    let (mut theirs, mut client) = (connect(redis.addr), resp_of(&server));
    for command in [
        &["FUNCTION", "STATS"][..],
        &["FUNCTION", "LOAD", LIBRARY],
        &["FUNCTION", "STATS"],
        &["FUNCTION", "STATS", "x"],
        &["FUNCTION", "DUMP", "x"],
        &["SET", "key", "value"],
    ] {
        compare(&mut theirs, &mut client, command);
    }
    let dump = payload(&mut client, &[b"FUNCTION", b"DUMP"]);
    // Texts may be shortened in several ways: both are read.
    let their_dump = payload(&mut theirs, &[b"FUNCTION", b"DUMP"]);
    let of_key = payload(&mut client, &[b"DUMP", b"key"]);
    for (dump, policy) in [
        (&dump[..], &[][..]),
        (&dump, &[&b"APPEND"[..]]),
        (&dump, &[b"replace"]),
        (&their_dump, &[b"FLUSH"]),
        (&dump, &[b"FLUSH"]),
        (&dump, &[b"nonsense"]),
        (&dump, &[b"FLUSH", b"x"]),
        (&dump[1..], &[]),
        (b"", &[]),
        (&of_key, &[b"FLUSH"]),
    ] {
        let command = [&[&b"FUNCTION"[..], b"RESTORE", dump][..], policy].concat();
        let [own, expected] = [&mut client, &mut theirs].map(|stream| {
            let end = b"$7\r\nthe end\r\n";
            ask(stream, &[words(&command), words(&[b"ECHO", b"the end"])].concat(), end)
        });
        assert_eq!(own.escape_ascii().to_string(), expected.escape_ascii().to_string());
        compare(&mut theirs, &mut client, &["FUNCTION", "STATS"]);
        compare(&mut theirs, &mut client, &["FCALL", "put", "1", "key", "word"]);
    }
    for stream in [&mut client, &mut theirs] {
        let told = say(stream, &["INFO", "memory"]);
        for (name, count) in [("cached_scripts", 0), ("functions", 3), ("libraries", 1)] {
            assert!(told.contains(&format!("\nnumber_of_{name}:{count}\r")), "{name}: {told}");
        }
    }
    // None of a payload is loaded if one cannot be.
    let small = "#!lua name=small\nredis.register_function('f', function() end)";
    compare(&mut theirs, &mut client, &["FUNCTION", "LOAD", small]);
    let dump = payload(&mut client, &[b"FUNCTION", b"DUMP"]);
    compare(&mut theirs, &mut client, &["FUNCTION", "DELETE", "mylib"]);
    for stream in [&mut client, &mut theirs] {
        let end = b"-ERR Library small already exists\r\n";
        ask(stream, &words(&[b"FUNCTION", b"RESTORE", &dump]), end);
    }
    compare(&mut theirs, &mut client, &["FUNCTION", "STATS"]);
}

#[test]
fn a_function_that_runs_is_told_of() {
    let server = ours(Settings { script_ms: 20_000, ..Settings::default() });
    let (mut client, mut other) = (resp_of(&server), resp_of(&server));
    let text = "#!lua name=long\nredis.register_function('f', function() while true do end end)";
    say(&mut client, &["FUNCTION", "LOAD", text]);
    other.write_all(&words(&[b"FCALL", b"f", b"1", b"key", b"word"])).unwrap();
    let mut told = String::new();
    wait_until("it runs", || {
        told = say(&mut client, &["FUNCTION", "STATS"]);
        told.contains("duration_ms")
    });
    for word in ["running_script", "FCALL\r\n$1\r\nf\r\n$1\r\n1\r\n$3\r\nkey\r\n$4\r\nword"] {
        assert!(told.contains(word), "{told}");
    }
    assert_eq!(say(&mut client, &["FUNCTION", "KILL"]), "+OK\r\n");
    wait_until("it ends", || !say(&mut client, &["FUNCTION", "STATS"]).contains("duration_ms"));
}

/// Of the GETs of one connection, the slowest but for 1 of 100, microseconds.
fn slow_get_us(client: &mut TcpStream, goes_on: impl Fn() -> bool) -> u128 {
    let mut all = Vec::new();
    while goes_on() {
        let start = Instant::now();
        assert_eq!(say(client, &["GET", "other"]), "$-1\r\n");
        all.push(start.elapsed().as_micros());
    }
    all.sort_unstable();
    all[all.len() * 99 / 100]
}

#[test]
fn a_long_script_is_stopped_and_others_are_served_meanwhile() {
    let server = ours(Settings { script_ms: 1000, ..Settings::default() });
    let (mut client, mut other) = (resp_of(&server), resp_of(&server));
    let begin = Instant::now();
    let script = "redis.call('set', KEYS[1], 1) while true do end";
    client.write_all(&words(&[b"EVAL", script.as_bytes(), b"1", b"key"])).unwrap();
    let slow_us = slow_get_us(&mut other, || begin.elapsed() < Duration::from_millis(600));
    println!("99 of 100 GETs beside a script took {slow_us} us at most");
    assert!(slow_us < 100_000, "{slow_us} us");
    let unkillable = say(&mut other, &["SCRIPT", "KILL"]);
    assert!(unkillable.starts_with("-UNKILLABLE "), "{unkillable}");
    let said = ask_text(&mut client, b"", b"\r\n");
    assert!(said.starts_with("-ERR Script ran for more than 1000 ms and was stopped."), "{said}");
    assert!((900..5000).contains(&begin.elapsed().as_millis()));
    assert_eq!(say(&mut client, &["GET", "key"]), "$1\r\n1\r\n");
}

#[test]
fn a_script_that_has_written_nothing_can_be_killed() {
    let server = ours(Settings::default());
    let (mut client, mut other) = (resp_of(&server), resp_of(&server));
    let script = b"while true do redis.pcall('get', KEYS[1]) end";
    client.write_all(&words(&[b"EVAL", script, b"1", b"key"])).unwrap();
    wait_until("it runs", || say(&mut other, &["SCRIPT", "KILL"]) == "+OK\r\n");
    let said = ask_text(&mut client, b"", b"\r\n");
    assert!(said.starts_with("-ERR Script killed by user with SCRIPT KILL."), "{said}");
    assert_eq!(say(&mut client, &["PING"]), "+PONG\r\n");
}

#[test]
fn a_script_is_one_step_to_others() {
    let server = ours(Settings { threads: 2, ..Settings::default() });
    let addr = server.addrs().1.unwrap();
    // Long enough for a thread of its own, and short enough for the one that serves.
    let long = "for i = 1, 50 do redis.call('incr', KEYS[1]) redis.call('incr', KEYS[2]) end";
    let short = "redis.call('incr', KEYS[1]) redis.call('incr', KEYS[2]) return 1";
    let undeclared = "redis.call('incr', 'a') redis.call('incr', 'b') return 1";
    let writers = [(long, "2"), (short, "2"), (undeclared, "0")].map(|(script, count)| {
        std::thread::spawn(move || {
            let mut client = connect(addr);
            for _ in 0..200 {
                let command = ["EVAL", script, count, "a", "b"];
                let said = say(&mut client, &command);
                assert!(!said.starts_with('-'), "{said}");
            }
        })
    });
    let mut observer = connect(addr);
    let mut seen = 0;
    while writers.iter().any(|writer| !writer.is_finished()) {
        let script = "return {redis.call('get', KEYS[1]), redis.call('get', KEYS[2])}";
        let both = say(&mut observer, &["EVAL", script, "2", "a", "b"]);
        let lines: Vec<_> = both.split("\r\n").collect();
        let half = (lines.len() - 2) / 2;
        assert_eq!(lines[1..1 + half], lines[1 + half..1 + 2 * half], "{both}");
        seen += 1;
    }
    writers.into_iter().for_each(|writer| writer.join().unwrap());
    println!("{seen} looks");
    assert_eq!(say(&mut observer, &["GET", "a"]), "$5\r\n10400\r\n");
    assert_eq!(say(&mut observer, &["GET", "b"]), "$5\r\n10400\r\n");
}

#[test]
fn scripts_wait_for_exec_like_other_commands() {
    let server = ours(Settings::default());
    let mut client = resp_of(&server);
    assert_eq!(ask_text(&mut client, b"MULTI\r\n", b"\r\n"), "+OK\r\n");
    let script =
        "for i = 1, 3 do redis.call('incr', KEYS[1]) end return redis.call('get', KEYS[1])";
    let command = words(&[b"EVAL", script.as_bytes(), b"1", b"key"]);
    let said = ask_text(&mut client, &command, b"+QUEUED\r\n");
    assert!(said.ends_with("+QUEUED\r\n"), "{said}");
    let said = ask_text(&mut client, &words(&[b"EXEC"]), b"$1\r\n3\r\n");
    assert!(said.ends_with("$1\r\n3\r\n"), "{said}");
}

#[test]
fn long_values_and_long_answers_pass_through_scripts() {
    let server = ours(Settings { value_bytes_max: 8 << 20, ..Settings::default() });
    let mut client = resp_of(&server);
    let value = "v".repeat(3 << 20);
    let script = "redis.call('set', KEYS[1], ARGV[1]) return redis.call('get', KEYS[1])";
    let said = say(&mut client, &["EVAL", script, "1", "key", &value]);
    assert!(said == format!("${}\r\n{value}\r\n", value.len()), "{} bytes", said.len());
    let script = "return {redis.call('get', KEYS[1]), #redis.call('get', KEYS[1])}";
    let said = say(&mut client, &["EVAL", script, "1", "key"]);
    assert!(said.ends_with(&format!(":{}\r\n", value.len())), "{} bytes", said.len());
    let bomb = "local t = {} for i = 1, 1000 do t[i] = redis.call('get', KEYS[1]) end return t";
    let said = say(&mut client, &["EVAL", bomb, "1", "key"]);
    assert!(said.contains("not enough memory"), "{}", &said[..said.len().min(200)]);
    assert_eq!(say(&mut client, &["PING"]), "+PONG\r\n");
}
