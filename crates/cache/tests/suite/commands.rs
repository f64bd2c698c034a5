//! What the server tells of its commands, beside redis-server's answers to the same.

use crate::peers::{self, ask, ask_text, connect, memcached_of, ours, resp_of, words};
use rackpool_cache::front::Settings;
use rackpool_cache::{Cache, Options, PartitionShare};
use std::collections::BTreeMap;
use std::io::Write;
use std::net::TcpStream;
use std::path::Path;

/// An answer of RESP2.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    Text(String),
    Number(i64),
    Array(Vec<Answer>),
    Null,
}

impl Answer {
    pub fn text(&self) -> &str {
        match self {
            Answer::Text(text) => text,
            other => panic!("{other:?} is no text"),
        }
    }

    pub fn array(&self) -> &[Answer] {
        match self {
            Answer::Array(all) => all,
            other => panic!("{other:?} is no array"),
        }
    }
}

/// Takes one answer off `bytes`.
fn take(bytes: &mut &[u8]) -> Answer {
    let end = bytes.windows(2).position(|two| two == b"\r\n").expect("a line");
    let line = std::str::from_utf8(&bytes[..end]).expect("text");
    *bytes = &bytes[end + 2..];
    let (kind, rest) = line.split_at(1);
    let number = || rest.parse::<i64>().expect("a number");
    match kind {
        "+" | "-" => Answer::Text(rest.to_owned()),
        ":" => Answer::Number(number()),
        "$" | "*" if number() < 0 => Answer::Null,
        "$" => {
            let (text, behind) = bytes.split_at(number() as usize);
            *bytes = &behind[2..];
            Answer::Text(String::from_utf8(text.to_vec()).expect("text"))
        }
        "*" => Answer::Array((0..number()).map(|_| take(bytes)).collect()),
        other => panic!("{other} begins no answer"),
    }
}

pub fn told(stream: &mut TcpStream, command: &str) -> Answer {
    let split: Vec<_> = command.split(' ').map(str::as_bytes).collect();
    let bytes = [words(&split), words(&[b"ECHO", b"the end"])].concat();
    let all = ask(stream, &bytes, b"$7\r\nthe end\r\n");
    take(&mut &all[..])
}

/// All commands of an answer to `COMMAND` by name, with those behind them.
fn by_name(all: &Answer, into: &mut BTreeMap<String, Vec<Answer>>) {
    for command in all.array() {
        let elements = command.array();
        assert_eq!(elements.len(), 10, "{:?}", elements[0]);
        by_name(&elements[9], into);
        into.insert(elements[0].text().to_owned(), elements[1..9].to_vec());
    }
}

/// Without the notes of key specifications and the order of what are sets.
fn plain(elements: &[Answer]) -> Vec<Answer> {
    let mut elements = elements.to_vec();
    for index in [1, 5, 6] {
        let mut all = elements[index].array().to_vec();
        all.sort_by(|a, b| a.text().cmp(b.text()));
        elements[index] = Answer::Array(all);
    }
    let specs = elements[7].array().iter().map(|spec| {
        let pairs = spec.array().chunks(2).filter(|pair| pair[0].text() != "notes");
        Answer::Array(pairs.flatten().cloned().collect())
    });
    elements[7] = Answer::Array(specs.collect());
    elements
}

#[test]
fn commands_have_the_words_flags_and_keys_that_they_have_in_redis() {
    let Some(redis) = peers::redis() else { return };
    let server = ours(Settings::default());
    let (mut theirs, mut commands) = (BTreeMap::new(), BTreeMap::new());
    by_name(&told(&mut connect(redis.addr), "COMMAND"), &mut theirs);
    by_name(&told(&mut resp_of(&server), "COMMAND"), &mut commands);
    assert!(commands.len() > 60, "{}", commands.len());
    for (name, elements) in &commands {
        // They came later.
        if !["client|setinfo", "delex", "delifeq", "digest"].contains(&&name[..]) {
            assert_eq!(plain(elements), plain(&theirs[name]), "{name}");
        }
    }
}

#[test]
fn questions_about_commands_are_answered_as_by_redis() {
    let Some(redis) = peers::redis() else { return };
    let server = ours(Settings::default());
    let (mut theirs, mut client) = (connect(redis.addr), resp_of(&server));
    for command in [
        "COMMAND GETKEYS mset a 1 b 2",
        "COMMAND GETKEYS get",
        "COMMAND GETKEYS get a b",
        "COMMAND GETKEYS nonsense a",
        "COMMAND GETKEYS ping a",
        "COMMAND GETKEYS Memory Usage k",
        "COMMAND GETKEYS client nonsense",
        "COMMAND GETKEYSANDFLAGS set a b",
        "COMMAND GETKEYSANDFLAGS set a b get",
        "COMMAND GETKEYSANDFLAGS del a b c",
        "COMMAND GETKEYSANDFLAGS bitop and a b c",
        "COMMAND GETKEYSANDFLAGS bitfield a get u8 0",
        "COMMAND GETKEYSANDFLAGS bitfield a set u8 0 1",
        "COMMAND GETKEYSANDFLAGS pfmerge a b c",
        "COMMAND GETKEYS copy a b",
        "COMMAND GETKEYS lcs a b len",
        "COMMAND GETKEYS object encoding a",
        "COMMAND INFO nonsense client|nonsense",
        "COMMAND INFO GET getdel",
        "COMMAND INFO client|id",
        "COMMAND LIST FILTERBY MODULE nonsense",
        "COMMAND LIST FILTERBY ACLCAT nonsense",
        "COMMAND LIST FILTERBY PATTERN GETE*",
        "COMMAND LIST FILTERBY nonsense",
        "COMMAND LIST nonsense",
        "COMMAND COUNT nonsense",
        "COMMAND DOCS nonsense",
        "COMMAND nonsense",
        "CLIENT",
        "CLIENT nonsense",
        "CLIENT ID nonsense",
        "CLIENT nonsense|id",
        "client|id",
        "CONFIG GET",
        "CONFIG SET maxmemory",
        "CONFIG RESETSTAT nonsense",
        "SLOWLOG LEN nonsense",
        "MEMORY USAGE",
        "CLUSTER INFO",
        "CLUSTER",
    ] {
        assert_eq!(told(&mut client, command), told(&mut theirs, command), "{command}");
    }
}

#[test]
fn commands_that_are_not_offered_are_refused_with_the_reason() {
    let server = ours(Settings::default());
    let (mut client, mut memcached) = (resp_of(&server), memcached_of(&server));
    for (command, answer) in [
        ("lpush a b", "ERR unknown command 'lpush', lists are not offered"),
        (
            "CLIENT KILL a",
            "ERR unknown subcommand 'KILL': clients are not managed by others. Try CLIENT HELP.",
        ),
        ("nonsense a", "ERR unknown command 'nonsense', with args beginning with: 'a' "),
    ] {
        assert_eq!(told(&mut client, command), Answer::Text(answer.into()));
    }
    let answer = ask(&mut memcached, b"slabs automove 1\r\n", b"\r\n");
    assert_eq!(answer, b"CLIENT_ERROR not offered: memory is not divided by size\r\n");
}

#[test]
fn help_and_documentation_tell_of_each_subcommand() {
    let server = ours(Settings::default());
    let mut client = resp_of(&server);
    let help = told(&mut client, "SLOWLOG HELP");
    let help: Vec<_> = help.array().iter().map(Answer::text).collect();
    assert_eq!(help.len(), 9, "{help:?}");
    let head = "SLOWLOG <subcommand> [<arg> [value] [opt] ...]. Subcommands are:";
    assert_eq!(help[..2], [head, "GET [count]"]);
    let docs = told(&mut client, "COMMAND DOCS memory nonsense get get");
    let names: Vec<_> = docs.array().iter().step_by(2).map(Answer::text).collect();
    assert_eq!(names, ["memory", "get", "get"]);
    let about: Vec<_> = docs.array()[1].array().iter().step_by(2).map(Answer::text).collect();
    assert_eq!(about, ["summary", "since", "group", "complexity", "subcommands"]);
    let Answer::Number(count) = told(&mut client, "COMMAND COUNT") else { panic!() };
    assert_eq!(told(&mut client, "COMMAND DOCS").array().len() as i64, 2 * count);
    assert_eq!(told(&mut client, "COMMAND INFO"), told(&mut client, "COMMAND"));
}

#[test]
fn commands_are_counted_each_by_itself() {
    let server = ours(Settings::default());
    let mut client = resp_of(&server);
    let some = b"*2\r\n$3\r\nGET\r\n$1\r\na\r\n*3\r\n$3\r\nSET\r\n$1\r\na\r\n$1\r\nb\r\n";
    client.write_all(&some.repeat(3)).unwrap();
    let rest = b"GET a\r\nINCR a\r\nINCR\r\nCLIENT ID\r\nnonsense\r\nlpush a b\r\n";
    ask(&mut client, &[&rest[..], b"PING\r\n"].concat(), b"+PONG\r\n");
    let mut counted = |section: &str| {
        let command = format!("INFO {section}\r\nPING\r\n");
        ask_text(&mut client, command.as_bytes(), b"+PONG\r\n")
    };
    let all = counted("commandstats");
    let of = |name: &str| {
        let head = format!("cmdstat_{name}:");
        let line = all.lines().find_map(|line| line.strip_prefix(&head)).unwrap_or("");
        let numbers = line.split(',').filter(|pair| !pair.starts_with("usec"));
        numbers.map(str::to_owned).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(of("get"), "calls=4 rejected_calls=0 failed_calls=0");
    assert_eq!(of("set"), "calls=3 rejected_calls=0 failed_calls=0");
    assert_eq!(of("incr"), "calls=1 rejected_calls=1 failed_calls=1");
    assert_eq!(of("client|id"), "calls=1 rejected_calls=0 failed_calls=0");
    assert_eq!(of("mget"), "");
    assert!(!counted("default").contains("cmdstat_") && counted("all").contains("cmdstat_get:"));
    // With those that are not known, the sections asked for, and what followed them.
    assert_eq!(server.shared().resp_commands(), 4 + 3 + 2 + 1 + 2 + 1 + 3 * 2);
    assert_eq!(told(&mut client, "CONFIG RESETSTAT"), Answer::Text("OK".into()));
    let mut counted = |section: &str| {
        let command = format!("INFO {section}\r\nPING\r\n");
        ask_text(&mut client, command.as_bytes(), b"+PONG\r\n")
    };
    assert!(!counted("commandstats").contains("cmdstat_get:"));
}

#[test]
fn databases_are_told_apart_swapped_and_flushed_and_memcached_sees_the_first() {
    let server = ours(Settings { threads: 2, ..Settings::default() });
    let (mut client, mut memcached) = (resp_of(&server), memcached_of(&server));
    let mut say = |commands: &str, answers: &str| {
        let said = commands.split('|').map(|command| told(&mut client, command));
        let said: Vec<_> = said
            .map(|answer| match answer {
                Answer::Text(text) => text,
                Answer::Number(number) => number.to_string(),
                other => format!("{other:?}"),
            })
            .collect();
        assert_eq!(said.join("|"), answers, "{commands}");
    };
    say("SET a zero|SELECT 1|GET a|SET a one|GET a|DBSIZE", "OK|OK|Null|OK|one|1");
    say("SELECT 0|GET a|MOVE a 1|MOVE a 2|GET a|DBSIZE", "OK|zero|0|1|Null|0");
    say("SWAPDB 0 2|GET a|SELECT 2|GET a", "OK|zero|OK|Null");
    let found = ask(&mut memcached, b"get a\r\n", b"END\r\n");
    assert_eq!(found, b"VALUE a 0 4\r\nzero\r\nEND\r\n");
    say("SELECT 0|SET b zero|FLUSHDB|GET a|GET b|SELECT 1|GET a", "OK|OK|OK|Null|Null|OK|one");
    assert_eq!(ask(&mut memcached, b"get a\r\n", b"END\r\n"), b"END\r\n");
    assert_eq!(ask(&mut memcached, b"set c 0 0 4\r\nzero\r\n", b"\r\n"), b"STORED\r\n");
    say("GET c|SELECT 0|GET c|SELECT 16|GET c", "Null|OK|zero|ERR DB index is out of range|zero");
    let keyspace = told(&mut resp_of(&server), "INFO keyspace");
    assert_eq!(keyspace.text(), "# Keyspace\r\ndb0:keys=1\r\ndb1:keys=1\r\n");
    assert_eq!(ask(&mut memcached, b"flush_all\r\n", b"\r\n"), b"OK\r\n");
    say("DBSIZE|SELECT 1|GET a|FLUSHALL|GET a", "0|OK|one|OK|Null");
}

#[test]
fn databases_of_a_warm_file_are_there_again_and_what_was_flushed_is_not() {
    let path = format!("/dev/shm/rackpool-cache-test-{}-databases", std::process::id());
    let options = Options { memory: 16 << 20, partitions: 2, ..Options::default() };
    let open = || Cache::open(options.clone(), Path::new(&path)).unwrap().0;
    let value = |cache: &Cache, number: u8| {
        let mut value = Vec::new();
        let item = cache.in_database(number).get(b"key", 1, |item| item.append_to(&mut value));
        item.map(|read| read.map(|()| value).unwrap())
    };
    let cache = open();
    for number in 0..4 {
        cache.in_database(number).set(b"key", &[number], 0, 0, 1).unwrap();
    }
    cache.swap_databases(0, 1, 1);
    cache.flush_database(2, 1);
    drop(cache);
    let cache = open();
    let all = [0, 1, 2, 3].map(|number| value(&cache, number));
    assert_eq!(all, [Some(vec![1]), Some(vec![0]), None, Some(vec![3])]);
    cache.tidy(PartitionShare::ALL, 1, || true);
    assert_eq!([0, 1, 2, 3].map(|number| cache.items_of(number)), [1, 1, 0, 1]);
    assert_eq!(cache.len(), 3);
    drop(cache);
    std::fs::remove_file(&path).unwrap();
}
