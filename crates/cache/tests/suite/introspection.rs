//! What the server says of itself and lets itself be told, beside redis-server where it says it in
//! the same words.

use crate::commands::{Answer, told};
use crate::front::{has_module, python};
use crate::peers::{
    self, ask, ask_text, connect, memcached_of, ours, ours_of, read_until, resp_of, wait_until,
    words,
};
use rackpool_cache::front::{Count, Settings};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::net::TcpStream;
use std::time::Duration;

const SAME: &[&str] = &[
    "CONFIG SET maxmemory x",
    "CONFIG SET timeout 10 timeout 11",
    "CONFIG SET nonsense 1",
    "CONFIG SET timeout 10 nonsense 1",
    "CONFIG SET timeout 10 databases",
    "CONFIG SET timeout 10 databases 1",
    "CONFIG GET timeout",
    "CONFIG SET databases 16",
    "CONFIG SET maxclients 0",
    "CONFIG SET maxclients x",
    "CONFIG SET timeout -1",
    "CONFIG SET timeout 100 maxclients 700",
    "CONFIG GET timeout",
    "CONFIG GET maxclients",
    "CONFIG SET timeout 0",
    "CONFIG SET client-output-buffer-limit nonsense",
    "CONFIG SET slowlog-log-slower-than -2",
    "CONFIG SET slowlog-log-slower-than x",
    "CONFIG SET slowlog-log-slower-than -1",
    "CONFIG GET slowlog-log-slower-than",
    "CONFIG SET slowlog-max-len 17",
    "CONFIG GET slowlog-max-len",
    "CONFIG SET latency-monitor-threshold -1",
    "CONFIG SET Latency-Monitor-Threshold 0",
    "CONFIG SET save  appendonly no",
    "CONFIG REWRITE",
    "CONFIG nonsense",
    "SLOWLOG RESET",
    "SLOWLOG GET -2",
    "SLOWLOG GET x",
    "SLOWLOG GET 1 2",
    "SLOWLOG GET -1",
    "SLOWLOG nonsense",
    "LATENCY LATEST",
    "LATENCY HISTORY nonsense",
    "LATENCY HISTORY",
    "LATENCY RESET nonsense other",
    "LATENCY RESET",
    "LATENCY nonsense",
    "LATENCY HISTOGRAM nonsense",
    "MEMORY PURGE",
    "MEMORY STATS x",
    "MEMORY nonsense",
    "MEMORY USAGE nonsense",
    "INFO nonsense",
    "OBJECT HELP",
    "OBJECT HELP x",
    "CONFIG SET maxmemory 10000002",
    "CONFIG GET maxmemory",
    "CONFIG SET maxmemory 10000001 maxmemory-clients 200% client-query-buffer-limit x",
    "CONFIG GET maxmemory",
    "CONFIG SET maxmemory 1",
    "CONFIG GET maxmemory",
    "CONFIG GET key-load-delay",
    "CONFIG SET key-load-delay 0",
    "CONFIG GET key-load-d*",
    "CONFIG GET daemonize",
    "CONFIG SET daemonize yes",
    "CONFIG SET port x",
];

#[test]
fn options_and_logs_are_answered_as_by_redis() {
    let Some(redis) = peers::redis() else { return };
    let server = ours(Settings::default());
    let (mut theirs, mut client) = (connect(redis.addr), resp_of(&server));
    for command in SAME {
        assert_eq!(told(&mut client, command), told(&mut theirs, command), "{command}");
    }
    for limit in ["normal 1 2", "nonsense 1 2 3", "normal x 2 3", "normal 1mb 2kb 60"] {
        let set = words(&[b"CONFIG", b"SET", b"client-output-buffer-limit", limit.as_bytes()]);
        let said = ask(&mut client, &set, b"\r\n");
        assert_eq!(said, ask(&mut theirs, &set, b"\r\n"), "{limit}");
    }
    let shown = told(&mut client, "CONFIG GET client-output-buffer-limit");
    assert_eq!(shown.array()[1].text(), "normal 1048576 2048 60");
}

#[test]
fn what_cannot_be_changed_may_be_said_and_all_is_read_before_anything_changes() {
    let server = ours_of(64 << 20, Settings { policy: "tinylfu".into(), ..Settings::default() });
    let mut client = resp_of(&server);
    let mut says = |command: &str| told(&mut client, command).text().to_owned();
    assert_eq!(says("CONFIG SET maxmemory 64mb maxmemory-policy TinyLFU"), "OK");
    for (command, why) in [
        ("CONFIG SET timeout 7 maxmemory 65mb", "the cache has the 67108864 bytes"),
        ("CONFIG SET timeout 7 maxmemory-policy allkeys-lru", "it is `tinylfu`"),
        ("CONFIG SET timeout 7 appendonly yes", "it is `no`"),
        ("CONFIG SET timeout 7 tiering data", "started without far memory"),
        ("CONFIG SET timeout 7 bind 0.0.0.0", "it is `127.0.0.1`"),
        ("CONFIG SET timeout 7 port 1", "as the server was started"),
        ("CONFIG SET timeout 7 maxmemory-clients 3mb", "it is `"),
        ("CONFIG SET timeout 7 maxmemory-samples 10", "not found by samples"),
        ("CONFIG SET timeout 7 key-load-delay 100", "it is `0`"),
        ("CONFIG SET timeout 7 tcp-keepalive 1", "as the server was started"),
        ("CONFIG SET timeout 7 proto-max-bulk-len 3mb", "as the server was started"),
        ("CONFIG SET timeout 7 client-query-buffer-limit 1", "as the server was started"),
    ] {
        let said = says(command);
        assert!(
            said.starts_with("ERR CONFIG SET failed (possibly") && said.contains(why),
            "{command}: {said}"
        );
    }
    let shown = told(&mut resp_of(&server), "CONFIG GET timeout maxmemory-policy");
    let shown: Vec<_> = shown.array().iter().map(Answer::text).collect();
    assert_eq!(shown, ["maxmemory-policy", "tinylfu", "timeout", "0"]);
}

/// Less than an empty cache needs is less than it uses, whatever is evicted.
#[test]
fn below_what_the_cache_needs_what_may_need_memory_is_refused_as_by_redis() {
    let Some(redis) = peers::redis() else { return };
    let server = ours(Settings::default());
    let (mut theirs, mut client) = (connect(redis.addr), resp_of(&server));
    let functions = "#!lua name=lib\n\
        redis.register_function('f', function() return redis.call('set', 'x', 2) end)\n\
        redis.register_function{function_name = 'g', flags = {'allow-oom'},\
          callback = function() return redis.call('set', 'x', 3) end}\n\
        redis.register_function{function_name = 'h', flags = {'no-writes'},\
          callback = function() return redis.call('get', 'x') end}";
    let long = "v".repeat(100_000);
    let writes = "redis.call('del', 'gone') return redis.call('set', 'x', 5)";
    let eval = |text: &'static str| vec!["EVAL", text, "1", "x"];
    let all = [
        vec!["SET", "x", "123"],
        vec!["FUNCTION", "LOAD", functions],
        vec!["MULTI"],
        vec!["SET", "x", "124"],
        vec!["CONFIG", "SET", "maxmemory", "1"],
        vec!["EXEC"],
        vec!["CONFIG", "SET", "maxmemory", "1"],
        vec!["MULTI"],
        vec!["GET", "x"],
        vec!["INCR", "x"],
        vec!["GET", "x"],
        vec!["EXEC"],
        vec!["MULTI"],
        vec!["GET", "x"],
        vec!["EXEC"],
        vec!["SET", "x", "1"],
        vec!["SET", "x", &long],
        vec!["SET", "x", "1", "EX", "10"],
        vec!["SET", "x"],
        vec!["HSET", "h", "f", "1"],
        vec!["EXPIRE", "x", "100"],
        vec!["GET", "x"],
        eval("return redis.call('set', 'x', 1)"),
        eval("return redis.pcall('set', 'x', 1)"),
        eval("return redis.call('get', 'x')"),
        eval(writes),
        eval("#!lua\nreturn 1"),
        eval("#!lua flags=\nreturn 1"),
        eval("#!lua flags=no-writes\nreturn redis.call('get', 'x')"),
        eval("#!lua flags=allow-oom\nreturn redis.call('set', 'x', 4)"),
        vec!["EVAL_RO", "#!lua flags=no-writes\nreturn 1", "0"],
        vec!["EVAL_RO", "return redis.call('get', 'x')", "1", "x"],
        vec!["FCALL", "f", "0"],
        vec!["FCALL", "g", "0"],
        vec!["FCALL", "h", "0"],
        vec!["FCALL_RO", "h", "0"],
        vec!["CONFIG", "SET", "maxmemory", "0"],
        vec!["SET", "x", &long],
        vec!["FCALL", "f", "0"],
        vec!["GET", "x"],
    ];
    for command in all {
        let bytes: Vec<_> = command.iter().map(|word| word.as_bytes()).collect();
        let command = &command[..2.min(command.len())];
        let said = |stream: &mut TcpStream| ask(stream, &words(&bytes), b"\r\n");
        let (ours, theirs) = (said(&mut client), said(&mut theirs));
        let text = |answer: &[u8]| String::from_utf8_lossy(answer).into_owned();
        assert_eq!(text(&ours), text(&theirs), "{command:?}");
    }
}

/// What a command answers to a script is counted there, caught or not, and not again.
#[test]
fn errors_in_scripts_are_counted_once_as_by_redis() {
    let Some(redis) = peers::redis() else { return };
    let server = ours(Settings::default());
    let (mut theirs, mut client) = (connect(redis.addr), resp_of(&server));
    for (text, maxmemory) in [
        ("return redis.call('select', 99)", "0"),
        ("return redis.pcall('select', 99)", "0"),
        ("redis.pcall('select', 99) return 1", "0"),
        ("redis.pcall('nosuch') return 1", "0"),
        ("redis.pcall('get') return 1", "0"),
        ("redis.call('get')", "0"),
        ("return redis.error_reply('MINE why')", "0"),
        ("error('x')", "0"),
        ("return redis.call('set', 'a', 1)", "1"),
        ("redis.pcall('set', 'a', 1) return 1", "1"),
    ] {
        let counted = |stream: &mut TcpStream| {
            told(stream, &format!("CONFIG SET maxmemory {maxmemory}"));
            told(stream, "CONFIG RESETSTAT");
            ask(stream, &words(&[b"EVAL", text.as_bytes(), b"0"]), b"\r\n");
            let shown = told(stream, "INFO all");
            let lines = shown.text().lines().filter_map(|line| {
                let of_command = line.strip_prefix("cmdstat_");
                let is_count = line.starts_with("errorstat_") || line.starts_with("total_error");
                match of_command
                    .and_then(|of| Some((of.split_once(':')?.0, of.rsplit_once("rej")?.1)))
                {
                    Some(("eval" | "get" | "select" | "set", counts)) => {
                        Some(format!("{} {counts}", of_command?.split_once(':')?.0))
                    }
                    _ => is_count.then(|| line.to_owned()),
                }
            });
            lines.collect::<BTreeSet<_>>()
        };
        assert_eq!(counted(&mut client), counted(&mut theirs), "{text}");
    }
}

/// Tools write back what they have read; what is none of Redis's to change says so, as there.
#[test]
fn options_may_be_set_to_what_they_are() {
    let server = ours(Settings::default());
    let mut client = resp_of(&server);
    let shown = told(&mut client, "CONFIG GET *");
    let immutable = ["cluster-enabled", "daemonize", "databases", "io-threads"];
    let immutable = |name: &str| immutable.contains(&name) || name.starts_with("unixsocket");
    for pair in shown.array().chunks(2) {
        let (name, value) = (pair[0].text(), pair[1].text());
        let set = words(&[b"CONFIG", b"SET", name.as_bytes(), value.as_bytes()]);
        let said = String::from_utf8(ask(&mut client, &set, b"\r\n")).unwrap();
        assert_eq!(said == "+OK\r\n", !immutable(name), "{name} {value}: {said}");
        assert!(said == "+OK\r\n" || said.contains("immutable"), "{said}");
    }
    assert_eq!(told(&mut client, "CONFIG GET *"), shown);
}

/// As little memory as there can be is not as little as a client may ask for.
#[test]
fn maxmemory_may_be_less_than_the_cache_needs() {
    let server = ours(Settings::default());
    let mut client = resp_of(&server);
    let most = server.shared().cache.memory_limit();
    let value = "v".repeat(1000);
    for key in 0..20_000 {
        let set = words(&[b"SET", format!("key{key}").as_bytes(), value.as_bytes()]);
        assert_eq!(ask(&mut client, &set, b"\r\n"), b"+OK\r\n");
    }
    assert_eq!(told(&mut client, "CONFIG SET maxmemory 1").text(), "OK");
    assert_eq!(told(&mut client, "CONFIG GET maxmemory").array()[1].text(), "1");
    let least = server.shared().cache.memory_limit();
    assert!((2..most).contains(&least));
    wait_until("items go", || server.shared().cache.stats().live_bytes < least);
    let kept = server.shared().cache.stats().items;
    assert!(kept > 0 && told(&mut client, "SET no room").text().starts_with("OOM"));
    // Another limit that is said otherwise holds, and is told.
    let mut m = memcached_of(&server);
    assert_eq!(ask(&mut m, b"cache_memlimit 16\r\n", b"\r\n"), b"OK\r\n");
    let shown = |client: &mut TcpStream| told(client, "CONFIG GET maxmemory").array()[1].clone();
    assert_eq!(shown(&mut client).text(), (16 << 20).to_string());
    told(&mut client, "CONFIG SET maxmemory 0");
    assert_eq!(shown(&mut client).text(), most.to_string());
}

#[test]
fn the_slow_log_is_set_while_commands_run() {
    let server = ours(Settings::default());
    let mut client = resp_of(&server);
    let logged = |client: &mut TcpStream| told(client, "SLOWLOG GET -1").array().len();
    told(&mut client, "CONFIG SET slowlog-log-slower-than 0 slowlog-max-len 3");
    (0..9).for_each(|_| drop(told(&mut client, "PING")));
    assert_eq!(logged(&mut client), 3);
    told(&mut client, "CONFIG SET slowlog-max-len 1");
    assert_eq!(logged(&mut client), 1);
    told(&mut client, "CONFIG SET slowlog-max-len 100 slowlog-log-slower-than -1");
    told(&mut client, "SLOWLOG RESET");
    assert_eq!((told(&mut client, "PING"), logged(&mut client)), (Answer::Text("PONG".into()), 0));
    // Words and ends of words that are left out are counted, as in Redis.
    let Some(redis) = peers::redis() else { return };
    let long = [b'x'; 200];
    let many: Vec<&[u8]> = [&b"MGET"[..], &long].into_iter().chain([&b"k"[..]; 40]).collect();
    let entry = |mut client: TcpStream| {
        told(&mut client, "CONFIG SET slowlog-log-slower-than 0");
        ask(&mut client, &[words(&many), words(&[b"ECHO", b"end"])].concat(), b"end\r\n");
        let all = told(&mut client, "SLOWLOG GET -1");
        let entries = all.array().iter().map(|entry| entry.array()[3].clone());
        entries.filter(|words| words.array()[0].text() == "MGET").collect::<Vec<_>>()
    };
    assert_eq!(entry(client), entry(connect(redis.addr)));
}

#[test]
fn clients_that_are_silent_or_too_many_go_by_what_is_set_now() {
    let server = ours(Settings { threads: 2, ..Settings::default() });
    let mut client = resp_of(&server);
    let mut silent = resp_of(&server);
    told(&mut silent, "CONFIG SET timeout 1");
    wait_until("it is ended", || {
        assert_eq!(told(&mut client, "PING"), Answer::Text("PONG".into()));
        std::thread::sleep(Duration::from_millis(50));
        server.shared().count(Count::IdleKicks) == 1
    });
    assert_eq!(read_until(&mut silent, |_| false), b"");
    told(&mut client, "CONFIG SET timeout 0 maxclients 1");
    let refused = read_until(&mut resp_of(&server), |_| false);
    assert_eq!(refused, b"-ERR max number of clients reached\r\n");
    told(&mut client, "CONFIG SET maxclients 2");
    assert_eq!(told(&mut resp_of(&server), "PING"), Answer::Text("PONG".into()));
}

#[test]
fn a_client_that_leaves_more_than_its_limit_is_ended() {
    let server = ours(Settings::default());
    let (mut client, mut greedy) = (resp_of(&server), resp_of(&server));
    ask(&mut client, &words(&[b"SET", b"key", &vec![b'x'; 900_000]]), b"\r\n");
    let limit = words(&[b"CONFIG", b"SET", b"client-output-buffer-limit", b"normal 100kb 0 0"]);
    ask(&mut client, &limit, b"\r\n");
    greedy.write_all(&words(&[b"GET", b"key"]).repeat(50)).unwrap();
    wait_until("it is ended", || server.shared().count(Count::SlowReaders) == 1);
    assert_eq!(told(&mut client, "PING"), Answer::Text("PONG".into()));
}

/// The fields of a text of `INFO`.
fn fields(text: &str) -> BTreeMap<&str, &str> {
    text.lines().filter_map(|line| line.split_once(':')).collect()
}

#[test]
fn the_figures_of_info_are_there_and_true() {
    let server = ours_of(64 << 20, Settings::default());
    let (mut client, mut memcached) = (resp_of(&server), memcached_of(&server));
    for key in 0..200 {
        let expiry = if key % 4 == 0 { " EX 1000" } else { "" };
        ask(
            &mut client,
            format!("SET key:{key} {}{expiry}\r\n", "v".repeat(9000)).as_bytes(),
            b"\n",
        );
    }
    for command in ["SELECT 5", "SET a b PX 100000", "INCR a", "GET", "nonsense", "SELECT 0"] {
        told(&mut client, command);
    }
    ask(&mut memcached, b"set other 0 0 1\r\nx\r\n", b"\r\n");
    let info = told(&mut client, "INFO everything");
    let all = fields(info.text());
    assert_eq!((all["maxmemory"], all["maxmemory_human"]), ("67108864", "64.00M"));
    assert_eq!(
        (all["redis_version"], all["rackpool_version"]),
        ("7.0.15", env!("CARGO_PKG_VERSION"))
    );
    assert_eq!((all["errorstat_ERR"], all["total_error_replies"]), ("count=3", "3"));
    assert_eq!((all["role"], all["loading"], all["blocked_clients"]), ("master", "0", "0"));
    let run_id = all["run_id"];
    assert!(run_id.len() == 40 && run_id.bytes().all(|byte| byte.is_ascii_hexdigit()), "{run_id}");
    let number = |name: &str| all[name].parse::<u64>().unwrap_or_else(|_| panic!("{}", all[name]));
    assert!(number("used_memory_peak") >= number("used_memory") && number("used_memory") > 1 << 20);
    let parts = ["used_memory_overhead", "used_memory_dataset"].map(number);
    assert_eq!(parts[0] + parts[1], number("used_memory"));
    assert!(number("total_system_memory") > 1 << 28 && number("used_memory_rss") > 1 << 20);
    let keys = |name: &str| {
        let (counts, left_ms) = all[name].split_once(",avg_ttl=").unwrap();
        (counts.to_owned(), left_ms.parse::<u64>().unwrap())
    };
    let (counts, left_ms) = keys("db0");
    assert_eq!(counts, "keys=201,expires=50");
    assert!((900_000..=1_000_000).contains(&left_ms), "{left_ms}");
    let (counts, left_ms) = keys("db5");
    assert!(counts == "keys=1,expires=1" && (50_000..=100_000).contains(&left_ms), "{left_ms}");
    let percentiles = all["latency_percentiles_usec_set"];
    assert!(percentiles.starts_with("p50=") && percentiles.contains(",p99.9="), "{percentiles}");
    // As many as there were, in buckets that go up.
    let histogram = told(&mut client, "LATENCY HISTOGRAM set incr nonsense");
    let by_name: Vec<_> = histogram.array().chunks(2).map(|pair| pair[0].text()).collect();
    assert_eq!(by_name, ["incr", "set"]);
    let set = histogram.array()[3].array();
    assert_eq!((set[0].text(), &set[1]), ("calls", &Answer::Number(201)));
    assert_eq!(set[3].array().last(), Some(&Answer::Number(201)));
    told(&mut client, "CONFIG RESETSTAT");
    let info = told(&mut client, "INFO errorstats stats");
    assert_eq!(fields(info.text())["total_error_replies"], "0");
    assert!(!info.text().contains("errorstat_"));
}

#[test]
fn info_has_the_sections_of_redis_but_for_what_means_nothing_here() {
    let Some(redis) = peers::redis() else { return };
    let server = ours(Settings::default());
    let shown = |mut client: TcpStream| {
        told(&mut client, "SET a b");
        told(&mut client, "nonsense");
        let text = told(&mut client, "INFO");
        let text = text.text();
        let sections = text.lines().filter(|line| line.starts_with("# ")).map(str::to_owned);
        let names = fields(text).into_keys().map(str::to_owned);
        (sections.collect::<Vec<_>>(), names.collect::<Vec<_>>())
    };
    let ((own, names), (mut theirs, their_names)) =
        (shown(resp_of(&server)), shown(connect(redis.addr)));
    theirs.retain(|name| name != "# Modules");
    assert_eq!(own, theirs);
    // Of our own, or of later versions.
    let more = [
        "acl_access_denied_auth",
        "client_output_buffer_limit_disconnections",
        "far_bytes",
        "far_held_bytes",
        "pages_left_bytes",
        "pages_moved_bytes",
        "pages_stayed_bytes",
        "rackpool_version",
        "tiering",
    ];
    for name in names.iter().filter(|name| !more.contains(&name.as_str())) {
        assert!(their_names.contains(name), "{name} is not in Redis's INFO");
    }
}

#[test]
fn commands_that_took_long_are_events_of_latency() {
    let server = ours(Settings { threads: 2, ..Settings::default() });
    let mut client = resp_of(&server);
    assert!(told(&mut client, "LATENCY DOCTOR").text().contains("latency-monitor-threshold"));
    told(&mut client, "CONFIG SET latency-monitor-threshold 8");
    let keys = [&b"MGET"[..]].into_iter().chain(std::iter::repeat_n(&b"k"[..], 1 << 19));
    let long = [words(&keys.collect::<Vec<_>>()), words(&[b"ECHO", b"end"])].concat();
    ask(&mut client, &long, b"end\r\n");
    let latest = told(&mut client, "LATENCY LATEST");
    let [Answer::Array(event)] = latest.array() else { panic!("{latest:?}") };
    let [Answer::Text(kind), Answer::Number(at_s), Answer::Number(took), Answer::Number(most)] =
        &event[..]
    else {
        panic!("{event:?}")
    };
    assert!(kind == "fast-command" && took == most && *took >= 1, "{event:?}");
    let history = told(&mut client, "LATENCY HISTORY fast-command");
    let sample = [at_s, took].map(|number| Answer::Number(*number)).to_vec();
    assert_eq!(history, Answer::Array(vec![Answer::Array(sample)]));
    assert!(told(&mut client, "LATENCY DOCTOR").text().starts_with("fast-command: 1 seconds"));
    assert_eq!(told(&mut client, "LATENCY RESET command"), Answer::Number(0));
    assert_eq!(told(&mut client, "LATENCY RESET"), Answer::Number(1));
    assert_eq!(told(&mut client, "LATENCY LATEST"), Answer::Array(Vec::new()));
}

#[test]
fn memory_is_told_by_names_that_tools_know() {
    let Some(redis) = peers::redis() else { return };
    let server = ours(Settings::default());
    let names = |mut client: TcpStream| {
        told(&mut client, "SET a b");
        let stats = told(&mut client, "MEMORY STATS");
        let names = stats.array().chunks(2).map(|pair| pair[0].text().to_owned());
        names.collect::<Vec<_>>()
    };
    let (own, theirs) = (names(resp_of(&server)), names(connect(redis.addr)));
    let known: Vec<_> = theirs.iter().filter(|name| own.contains(name)).collect();
    assert!(own.len() > 9 && known.len() == own.len(), "{own:?} of {theirs:?}");
    let mut client = resp_of(&server);
    assert_eq!(told(&mut client, "MEMORY DOCTOR").text(), "No problem was found.\n");
    ask(&mut client, b"HELLO 3\r\nMEMORY STATS\r\nPING\r\n", b"+PONG\r\n");
    let started = told(&mut resp_of(&server), "LASTSAVE");
    let Answer::Number(started) = started else { panic!("{started:?}") };
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    assert!(now.as_secs().abs_diff(started as u64) < 60, "{started}");
}

/// Debian's exporter, if it is there, shows the same figures of ours as of the original.
#[test]
fn the_exporter_shows_what_it_shows_of_redis() {
    let Some(redis) = peers::redis() else { return };
    let server = ours(Settings::default());
    let shown = |addr: std::net::SocketAddr| {
        for command in
            ["SET a b EX 100", "GET a", "GET b", "INCR a", "GET", "HSET h f v", "nonsense"]
        {
            told(&mut connect(addr), command);
        }
        let exporter = peers::exporter(addr)?;
        let get = b"GET /metrics HTTP/1.0\r\n\r\n";
        let page = ask_text(&mut connect(exporter.addr), get, b"the connection's end");
        let lines = page.lines().filter(|line| line.starts_with("redis_"));
        let name = |line: &str| line.split([' ', '{']).next().unwrap_or("").to_owned();
        let mut figures = std::collections::BTreeMap::<_, Vec<_>>::new();
        for line in lines {
            figures.entry(name(line)).or_default().push(line.to_owned());
        }
        Some(figures)
    };
    let (Some(own), Some(theirs)) = (shown(server.addrs().1.unwrap()), shown(redis.addr)) else {
        return;
    };
    for name in [
        "redis_up",
        "redis_connected_clients",
        "redis_memory_used_bytes",
        "redis_memory_max_bytes",
        "redis_commands_total",
        "redis_db_keys",
        "redis_db_keys_expiring",
        "redis_db_avg_ttl_seconds",
        "redis_keyspace_hits_total",
        "redis_evicted_keys_total",
        "redis_errors_total",
        "redis_uptime_in_seconds",
        "redis_config_maxclients",
        "redis_slowlog_length",
        "redis_instance_info",
        "redis_connected_slaves",
    ] {
        assert!(own.contains_key(name) || !theirs.contains_key(name), "{name} is missing");
        assert!(theirs.contains_key(name), "{name} is not one of the exporter's");
    }
    for name in [
        "redis_up",
        "redis_commands_total",
        "redis_commands_rejected_calls_total",
        "redis_commands_failed_calls_total",
        "redis_db_keys",
        "redis_db_keys_expiring",
        "redis_keyspace_hits_total",
        "redis_keyspace_misses_total",
        "redis_errors_total",
        "redis_evicted_keys_total",
        "redis_expired_keys_total",
        "redis_blocked_clients",
        "redis_connected_slaves",
    ] {
        assert!(theirs.contains_key(name), "{name}");
        assert_eq!(own.get(name), theirs.get(name), "{name}");
    }
}

const REDIS_PY: &str = r"
import sys, redis
r = redis.Redis(port=int(sys.argv[1]))
other = redis.Redis(port=int(sys.argv[1]), client_name='other')
number = other.client_id()
assert number in [int(c['id']) for c in r.client_list() if c['name'] == 'other']
assert r.client_kill_filter(_id=number) == 1 and other.client_id() != number
try:
    r.client_kill('1.2.3.4:5')
    assert False
except redis.ResponseError as error:
    assert str(error) == 'No such client', error
assert r.client_pause(1) and r.client_unpause() and r.flushall()
assert r.set('a', 'b', ex=100) and r.get('a') == b'b' and r.get('none') is None
database = r.info('keyspace')['db0']
assert database['keys'] == 1 and database['expires'] == 1, database
assert 0 <= database['avg_ttl'] <= 100000, database
assert r.info('commandstats')['cmdstat_set']['calls'] >= 1
info = r.info()
assert info['used_memory_peak_human'] and info['maxmemory_policy'] and info['maxclients'] > 0
assert r.config_set('slowlog-log-slower-than', 0) and r.ping()
assert r.slowlog_get(1)[0]['duration'] >= 0 and r.slowlog_len() > 0 and r.slowlog_reset()
assert r.config_set('slowlog-log-slower-than', 10000)
assert r.config_get('slowlog*')['slowlog-log-slower-than'] == '10000'
assert r.memory_stats()['keys.count'] == 1 and r.memory_purge() and r.lastsave()
assert r.execute_command('ROLE')[0] == b'master'
with r.monitor() as monitor:
    r.get('a')
    command = monitor.next_command()
    assert command['command'] == 'GET a' and command['db'] == 0, command
assert r.config_resetstat() and 'errorstat_ERR' not in r.info('errorstats')
print('ok')
";

#[test]
fn redis_py_looks_into_the_server_as_into_the_original() {
    if !has_module("redis") {
        return;
    }
    let server = ours(Settings::default());
    python(REDIS_PY, &[server.addrs().1.unwrap().port().to_string()]);
    if let Some(redis) = peers::redis() {
        python(REDIS_PY, &[redis.addr.port().to_string()]);
    }
}
