//! What memcached has had since Debian's version (meta flags, dumps, watchers, figures), by models
//! from its protocol description; and beside Debian's where that has it.

use crate::peers::{
    self, Rng, ask, ask_text, connect, memcached_of as memcached, ours, ours_of, read_until,
    resp_of as resp, set, wait_until, words,
};
use rackpool_cache::front::{Server, Settings};
use rackpool_mem::event::{Interest, Poller};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// Sends lines, then `mn`; the answers before that.
fn answers(m: &mut TcpStream, lines: &str) -> String {
    let said = ask_text(m, format!("{lines}mn\r\n").as_bytes(), b"MN\r\n");
    said.strip_suffix("MN\r\n").unwrap().to_owned()
}

/// What `stats` with these words tells, by name.
fn stats(m: &mut TcpStream, words: &str) -> BTreeMap<String, String> {
    let said = ask_text(m, format!("stats {words}\r\n").as_bytes(), b"END\r\n");
    let pairs = said.lines().filter_map(|line| line.strip_prefix("STAT ")?.split_once(' '));
    pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

#[test]
fn versions_are_those_that_clients_give() {
    let server = ours(Settings::default());
    let mut m = memcached(&server);
    for (lines, expected) in [
        ("ms k 2 E100 c\r\nab\r\n", "HD c100\r\n"),
        ("ms k 2 C99\r\nxx\r\n", "EX\r\n"),
        ("ms k 2 C100 E101 c s\r\ncd\r\n", "HD c101 s2\r\n"),
        ("mg k v c\r\n", "VA 2 c101\r\ncd\r\n"),
        ("ma n N0 J5 E7 c v\r\n", "VA 1 c7\r\n5\r\n"),
        ("ma n C7 E9 c v\r\n", "VA 1 c9\r\n6\r\n"),
        ("md k I E200\r\n", "HD\r\n"),
        ("mg k c v\r\n", "VA 2 c200 X W\r\ncd\r\n"),
        ("mg made N60 E300 c t s\r\n", "HD c300 t60 s0 W\r\n"),
        ("ms k 1 Ex\r\nz\r\n", "CLIENT_ERROR bad token in command line format\r\n"),
        ("gets k\r\n", "VALUE k 0 2 200\r\ncd\r\nEND\r\n"),
    ] {
        assert_eq!(answers(&mut m, lines), expected, "{lines}");
    }
    // Also of a value that is written into the cache as it comes.
    let long = "x".repeat(100_000);
    let said = answers(&mut m, &format!("ms long {} E55 c s\r\n{long}\r\n", long.len()));
    assert_eq!(said, "HD c55 s100000\r\n");
    assert_eq!(answers(&mut m, "mg long c s\r\n"), "HD c55 s100000\r\n");
}

/// Whatever a value looks like, it is none of its client's commands: those of a page's users would
/// be executed else.
#[test]
fn the_value_of_a_line_that_is_refused_is_passed_over() {
    let server = ours(Settings::default());
    let mut m = memcached(&server);
    let (format, key) = ("CLIENT_ERROR bad command line format\r\n", "k".repeat(251));
    for (line, expected) in [
        ("set k x 0 11", format),
        ("add k 0 1x 11", format),
        ("replace k 0 0 11 noreply", ""),
        ("append k x 0 11 noreply", ""),
        (&format!("prepend {key} 0 0 11"), format),
        ("cas k 0 0 11", format),
        ("cas k 0 0 11 x", format),
        (&format!("ms {key} 11"), format),
        ("ms k 11 Fx", format),
        ("ms k 11 Tx", "CLIENT_ERROR bad token in command line format\r\n"),
        ("ms k 11 MSx I I", "CLIENT_ERROR duplicate flag\r\n"),
        ("ms k 11 Mx", "CLIENT_ERROR invalid mode for ms M token\r\n"),
        ("ms k 11 y", "CLIENT_ERROR invalid flag\r\n"),
        ("ms k=k 11 b", "CLIENT_ERROR error decoding key\r\n"),
    ] {
        assert_eq!(answers(&mut m, &format!("{line}\r\nflush_all 0\r\n")), expected, "{line}");
    }
    // Where the length is none, or the line has too few words, there is nothing to pass over.
    for line in ["set k 0 0 x noreply", "set k 0 0 +1", "set k 0 0", "ms k +1", "ms k 1 !"] {
        let said = answers(&mut m, &format!("{line}\r\nversion\r\n"));
        assert!(said.starts_with(&format!("{format}VERSION 1.6.45")), "{line}: {said}");
    }
    // As it comes, and however long it is.
    m.write_all(b"set k x 0 3000000\r\n").unwrap();
    assert_eq!(read_until(&mut m, |all| all.ends_with(b"\r\n")), format.as_bytes());
    m.write_all("flush_all\r\n\n".repeat(250_000).as_bytes()).unwrap();
    assert_eq!(answers(&mut m, "\r\nget k\r\n"), "END\r\n");
}

#[test]
fn refusals_and_numbers_are_those_of_the_version_that_is_told() {
    let server = ours(Settings::default());
    let mut m = memcached(&server);
    let format = "CLIENT_ERROR bad command line format\r\n";
    for (lines, expected) in [
        ("\r\nx\r\nmn\n", format.repeat(3)),
        ("get\r\ngets\r\ngat 1\r\ntouch k\r\nincr k\r\ndelete\r\n", format.repeat(6)),
        ("mg\r\nmd\r\nma\r\nme\r\nms k\r\nverbosity\r\n", format.repeat(6)),
        (" get k\r\nnonsense\r\nnonsense noreply\r\n", "ERROR\r\n".repeat(2)),
        ("set k +1 +100 1 more\r\n7\r\nget k\r\n", "STORED\r\nVALUE k 1 1\r\n7\r\nEND\r\n".into()),
        ("incr k +1\r\n", "CLIENT_ERROR invalid numeric delta argument\r\n".into()),
        ("touch k +1\r\ngat +1 k\r\n", "CLIENT_ERROR invalid exptime argument\r\n".repeat(2)),
        ("mg k T+1\r\n", "CLIENT_ERROR bad token in command line format\r\n".into()),
        ("mg k -\r\nmg k !\r\n", format.repeat(2)),
        ("mg k k k\r\nmd k k k\r\n", "CLIENT_ERROR duplicate flag\r\n".repeat(2)),
        ("ma k k k\r\n", "CLIENT_ERROR invalid or duplicate flag\r\n".into()),
        ("shutdown\r\n", "SERVER_ERROR: shutdown not enabled\r\n".into()),
        ("delete k 1\r\n", "DELETED\r\n".into()),
    ] {
        assert_eq!(answers(&mut m, lines), expected, "{lines}");
    }
}

#[test]
fn what_is_touched_was_fetched() {
    let server = ours(Settings::default());
    let mut m = memcached(&server);
    for (line, said, is_fetched) in [
        ("verbosity 0", "OK\r\n", 0),
        ("touch k 100", "TOUCHED\r\n", 1),
        ("gat 100 k", "VALUE k 0 1\r\n1\r\nEND\r\n", 1),
        ("incr k 1", "2\r\n", 0),
    ] {
        let lines = format!("set k 0 0 1\r\n1\r\n{line}\r\nmg k h\r\nmg k h\r\n");
        let expected = format!("STORED\r\n{said}HD h{is_fetched}\r\nHD h1\r\n");
        assert_eq!(answers(&mut m, &lines), expected, "{line}");
    }
}

#[test]
fn a_value_that_the_client_has_is_not_sent() {
    let server = ours(Settings::default());
    let mut m = memcached(&server);
    answers(&mut m, "ms k 2 E5 F3\r\nab\r\n");
    for (line, expected) in [
        ("mg k v C5 c f s\r\n", "HD c5 f3 s2\r\n"),
        ("mg k v C4 c\r\n", "VA 2 c5\r\nab\r\n"),
        ("mg k v C5 T100 t\r\n", "HD t100\r\n"),
        ("mg k t C5\r\n", "HD t100\r\n"),
        ("mg absent v C5 k\r\n", "EN kabsent\r\n"),
    ] {
        assert_eq!(answers(&mut m, line), expected, "{line}");
    }
}

#[test]
fn what_is_put_to_nothing_is_made_where_a_client_wants_it() {
    let server = ours(Settings::default());
    let mut m = memcached(&server);
    for (lines, expected) in [
        ("ms k 1 MA\r\na\r\n", "NS\r\n"),
        ("ms k 1 MA N100 F9 s\r\na\r\n", "HD s1\r\n"),
        ("mg k v f t\r\n", "VA 1 f9 t100\r\na\r\n"),
        ("ms k 2 MA N200 s F1\r\nbc\r\n", "HD s3\r\n"),
        ("ms k 2 MP T5 s\r\nyz\r\n", "HD s5\r\n"),
        ("mg k v f t\r\n", "VA 5 f9 t100\r\nyzabc\r\n"),
        ("ms other 1 MP N0\r\nq\r\n", "HD\r\n"),
        ("mg other v t\r\n", "VA 1 t-1\r\nq\r\n"),
    ] {
        assert_eq!(answers(&mut m, lines), expected, "{lines}");
    }
}

#[test]
fn an_item_may_stay_without_its_value() {
    let server = ours(Settings::default());
    let mut m = memcached(&server);
    for (lines, expected) in [
        ("ms k 2 F5 T100 E8\r\nab\r\n", "HD\r\n"),
        ("md k x C7\r\n", "EX\r\n"),
        ("md k x\r\n", "HD\r\n"),
        ("mg k v f t c\r\n", "VA 0 f0 t-1 c8\r\n\r\n"),
        ("md k x I T30 E9\r\n", "HD\r\n"),
        ("mg k v t c\r\n", "VA 0 t30 c9 X W\r\n\r\n"),
        ("md absent x\r\n", "NF\r\n"),
        ("md k q x\r\n", ""),
    ] {
        assert_eq!(answers(&mut m, lines), expected, "{lines}");
    }
}

#[test]
fn quiet_arithmetic_says_what_is_no_ordinary_answer() {
    let server = ours(Settings::default());
    let mut m = memcached(&server);
    assert_eq!(
        answers(&mut m, "ma n q\r\nma n q N0 J3\r\nma n q\r\nma n v O1\r\n"),
        "NF\r\nVA 1 O1\r\n5\r\n"
    );
}

/// As memcached: by how the key was sent when the item was stored.
#[test]
fn keys_in_base64_are_told_as_they_were_stored() {
    let server = ours(Settings::default());
    let mut m = memcached(&server);
    for (lines, expected) in [
        // "foo"
        ("ms Zm9v 3 b k\r\nabc\r\n", "HD kZm9v b\r\n"),
        ("mg foo k v\r\n", "VA 3 kZm9v b\r\nabc\r\n"),
        ("mg Zm9v b k\r\n", "HD kZm9v b\r\n"),
        ("mg foo T100 k t\r\n", "HD kZm9v b t100\r\n"),
        ("md foo I\r\nmg foo k\r\n", "HD\r\nHD kZm9v b X W\r\n"),
        ("ms foo 1\r\nz\r\nmg Zm9v b k\r\n", "HD\r\nHD kfoo\r\n"),
        ("mg absent k\r\nmg YWJzZW50 b k\r\n", "EN kabsent\r\nEN kYWJzZW50 b\r\n"),
        // A blank and zeros.
        ("ms IAAA 1 b T50\r\nz\r\nmg IAAA b k t v\r\n", "HD\r\nVA 1 kIAAA b t50\r\nz\r\n"),
        ("ma AAEC b N0 k\r\nmg AAEC b k v\r\n", "HD kAAEC b\r\nVA 1 kAAEC b\r\n0\r\n"),
    ] {
        assert_eq!(answers(&mut m, lines), expected, "{lines}");
    }
    let mut r = resp(&server);
    assert_eq!(ask(&mut r, &words(&[b"SET", b"a b", b"1"]), b"\r\n"), b"+OK\r\n");
    assert_eq!(answers(&mut m, "mg YSBi b k v\r\n"), "VA 1 kYSBi b\r\n1\r\n");
}

/// Lines of a dump, without its end.
fn dump(m: &mut TcpStream, command: &str, end: &str) -> Vec<String> {
    let said = ask_text(m, format!("{command}\r\n").as_bytes(), end.as_bytes());
    said.strip_suffix(end).unwrap().lines().map(str::to_owned).collect()
}

fn dumped_keys(lines: &[String]) -> BTreeSet<String> {
    let key = |line: &String| line.split(' ').next().unwrap().strip_prefix("key=").unwrap().into();
    lines.iter().map(key).collect()
}

#[test]
fn dumps_name_every_item_and_what_is_known_of_it() {
    let server = ours(Settings::default());
    let mut m = memcached(&server);
    assert_eq!(dump(&mut m, "lru_crawler metadump all", "END\r\n"), [""; 0]);
    answers(
        &mut m,
        "ms bits%20 3 F7 T1000 E17\r\nabc\r\nms AAE= 2 b q\r\nxy\r\nmg bits%20 v q\r\n",
    );
    let lines = dump(&mut m, "lru_crawler metadump all", "END\r\n");
    assert_eq!(lines.len(), 2, "{lines:?}");
    let line = lines.iter().find(|line| line.starts_with("key=bits%2520 ")).unwrap();
    let fields: BTreeMap<_, _> = line.split(' ').map(|one| one.split_once('=').unwrap()).collect();
    let wall = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let seconds = |name: &str| fields[name].parse::<u64>().unwrap();
    assert!(seconds("exp").abs_diff(wall.as_secs() + 1000) <= 5, "{line}");
    assert!(seconds("la").abs_diff(wall.as_secs()) <= 65, "{line}");
    let others = ["cas", "fetch", "cls", "size", "flags"].map(|name| fields[name]);
    assert_eq!(others, ["17", "yes", "1", "10", "7"]);
    assert!(lines.iter().any(|line| line.starts_with("key=%00%01 exp=-1 ")), "{lines:?}");
    let lines: BTreeSet<_> =
        dump(&mut m, "lru_crawler mgdump hash", "EN\r\n").into_iter().collect();
    let expected = ["mg AAE= b", "mg bits%20"].map(str::to_owned);
    assert_eq!(lines, BTreeSet::from(expected));
    for (line, expected) in [
        ("lru_crawler metadump 0", "BADCLASS invalid class id\r\n"),
        ("lru_crawler mgdump 64", "BADCLASS invalid class id\r\n"),
        ("lru_crawler metadump 2,3", "NOTSTARTED no items to crawl\r\n"),
        ("lru_crawler crawl 1,2", "OK\r\n"),
        ("lru_crawler enable", "OK\r\n"),
        ("lru_crawler disable", "CLIENT_ERROR not offered: expired items go without a crawler\r\n"),
        ("lru_crawler", "ERROR\r\n"),
    ] {
        assert_eq!(answers(&mut m, &format!("{line}\r\n")), expected, "{line}");
    }
}

/// Neither a client that takes nothing of a dump nor one that does keeps others waiting.
#[test]
fn a_large_dump_is_made_beside_others() {
    const ITEMS: usize = 200_000;
    let server = ours(Settings::default());
    let mut m = memcached(&server);
    for some in (0..ITEMS).collect::<Vec<_>>().chunks(10_000) {
        let set = |key: &usize| format!("set key{key} 0 0 1 noreply\r\nx\r\n");
        m.write_all(some.iter().map(set).collect::<String>().as_bytes()).unwrap();
    }
    assert_eq!(answers(&mut m, ""), "");
    let mut idle = memcached(&server);
    idle.write_all(b"lru_crawler metadump all\r\n").unwrap();
    let mut dumping = memcached(&server);
    dumping.write_all(b"lru_crawler metadump all\r\n").unwrap();
    let reader = std::thread::spawn(move || {
        let said = read_until(&mut dumping, |all| all.ends_with(b"END\r\n"));
        String::from_utf8(said).unwrap()
    });
    let mut longest = Duration::ZERO;
    while !reader.is_finished() {
        let start = Instant::now();
        assert_eq!(ask(&mut m, b"get key1\r\n", b"END\r\n"), b"VALUE key1 0 1\r\nx\r\nEND\r\n");
        longest = longest.max(start.elapsed());
    }
    println!("the longest look-up beside a dump took {longest:?}");
    assert!(longest < Duration::from_secs(2), "{longest:?}");
    let said = reader.join().unwrap();
    let lines: Vec<String> =
        said.lines().filter(|line| *line != "END").map(str::to_owned).collect();
    assert_eq!(dumped_keys(&lines).len(), ITEMS);
    // The line behind a dump is answered behind it.
    let said = ask_text(&mut idle, b"mn\r\n", b"MN\r\n");
    assert!(said.ends_with("END\r\nMN\r\n") && said.lines().count() >= ITEMS + 2);
}

/// Lines that a watcher was told, without time and number.
fn told(watcher: &mut TcpStream, last: &str) -> Vec<String> {
    let is_last = |all: &[u8]| {
        all.ends_with(b"\n") && String::from_utf8_lossy(all).lines().any(|line| line.contains(last))
    };
    let said = String::from_utf8(read_until(watcher, is_last)).unwrap();
    let text = |line: &str| {
        let words: Vec<_> = line.split(' ').filter(|word| !word.starts_with("cfd=")).collect();
        assert!(words[0].starts_with("ts=") && words[1].starts_with("gid="), "{line}");
        words[2..].join(" ")
    };
    said.lines().map(text).collect()
}

#[test]
fn watchers_are_told_what_clients_do() {
    let server = ours(Settings::default());
    let mut m = memcached(&server);
    let watch = |kinds: &str| {
        let mut watcher = memcached(&server);
        assert_eq!(ask(&mut watcher, format!("watch {kinds}\r\n").as_bytes(), b"\r\n"), b"OK\r\n");
        watcher
    };
    let mut all = watch("fetchers mutations deletions");
    let mut fetchers = watch("");
    // It is noted from the next wake-up on, at which this is answered.
    assert_eq!(answers(&mut m, ""), "");
    let long = "y".repeat(70_000);
    let commands = format!(
        "set a 0 100 3\r\nabc\r\nget a b\r\nmg a v\r\nms c 2 ME\r\nxy\r\nms c 2 ME\r\nxy\r\n\
         gat 0 a\r\ndelete a\r\ndelete a\r\nmd c\r\nset long 0 0 {}\r\n{long}\r\n\
         append d 0 0 1\r\nz\r\nincr d 1\r\nget last\r\n",
        long.len()
    );
    answers(&mut m, &commands);
    let expected = [
        "type=item_store key=a status=stored cmd=set ttl=100 clsid=1 size=3",
        "type=item_get key=a status=found clsid=1 size=3",
        "type=item_get key=b status=not_found clsid=0 size=0",
        "type=item_get key=a status=found clsid=1 size=3",
        "type=item_store key=c status=stored cmd=add ttl=0 clsid=1 size=2",
        "type=item_store key=c status=not_stored cmd=add ttl=0 clsid=0 size=2",
        "type=item_get key=a status=found clsid=1 size=3",
        "type=deleted key=a cmd=delete clsid=1 size=3",
        "type=deleted key=c cmd=md clsid=1 size=2",
        "type=item_store key=long status=stored cmd=set ttl=0 clsid=1 size=70000",
        "type=item_store key=d status=not_stored cmd=append ttl=0 clsid=0 size=1",
        "type=item_get key=last status=not_found clsid=0 size=0",
    ];
    assert_eq!(told(&mut all, "key=last"), expected);
    let gets = expected.iter().filter(|line| line.starts_with("type=item_get"));
    assert_eq!(told(&mut fetchers, "key=last"), gets.copied().collect::<Vec<_>>());
    let mut connections = watch("connevents");
    drop(memcached(&server));
    let lines = told(&mut connections, "conn_close");
    assert!(lines[0].starts_with("type=conn_new rip=127.0.0.1 rport="), "{lines:?}");
    assert_eq!(stats(&mut m, "")["log_watchers"], "3");
    drop((all, fetchers, connections));
    wait_until("watchers are gone", || stats(&mut m, "")["log_watchers"] == "0");
    for (line, expected) in [
        ("watch nonsense", "ERROR\r\n"),
        ("watch proxyreqs", "CLIENT_ERROR not offered: there are no such events\r\n"),
    ] {
        assert_eq!(answers(&mut m, &format!("{line}\r\n")), expected);
    }
}

#[test]
fn watchers_are_told_which_items_went_for_want_of_room() {
    let server = ours_of(16 << 20, Settings::default());
    let mut m = memcached(&server);
    let mut watcher = memcached(&server);
    assert_eq!(ask(&mut watcher, b"watch evictions\r\n", b"\r\n"), b"OK\r\n");
    let value = "x".repeat(1000);
    for key in 0..40_000 {
        let quiet = format!("set key{key} 0 1000 1000 noreply\r\n{value}\r\n");
        m.write_all(quiet.as_bytes()).unwrap();
    }
    answers(&mut m, "");
    let lines = told(&mut watcher, "type=eviction");
    for line in &lines {
        let rest = line.strip_prefix("type=eviction key=key").unwrap();
        let words: Vec<_> = rest.split(' ').collect();
        assert!(words[0].parse::<u32>().unwrap() < 40_000, "{line}");
        assert_eq!((words[1], words[4], words[5]), ("fetch=no", "clsid=1", "size=1000"), "{line}");
        let ttl = words[2].strip_prefix("ttl=").unwrap().parse::<u32>().unwrap();
        assert!((900..=1000).contains(&ttl), "{line}");
    }
}

#[test]
fn a_watcher_that_reads_nothing_holds_nothing_up() {
    let server = ours(Settings::default());
    let mut m = memcached(&server);
    let mut watcher = memcached(&server);
    assert_eq!(ask(&mut watcher, b"watch fetchers\r\n", b"\r\n"), b"OK\r\n");
    // What a watcher sends is passed over.
    watcher.write_all(b"get a\r\nquit\r\n").unwrap();
    assert_eq!(answers(&mut m, ""), "");
    let line = format!("get {}\r\n", "k".repeat(240));
    let mut rounds = 0;
    wait_until("lines were left out", || {
        answers(&mut m, &line.repeat(500));
        rounds += 1;
        stats(&mut m, "")["log_watcher_skipped"].parse::<u64>().unwrap() > 1000
    });
    println!("lines were left out after {rounds} rounds");
    // What was not left out is there, whole.
    watcher.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    let (mut said, mut buffer) = (Vec::new(), vec![0; 1 << 20]);
    while let Ok(count @ 1..) = watcher.read(&mut buffer) {
        said.extend_from_slice(&buffer[..count]);
    }
    let said = String::from_utf8(said).unwrap();
    assert!(said.ends_with('\n') && said.lines().all(|line| line.contains(" type=item_get key=k")));
    let most: Vec<_> = (0..25).map(|_| memcached(&server)).collect();
    let refused = most.into_iter().map(|mut one| {
        let said = ask(&mut one, b"watch\r\n", b"\r\n");
        let is_refused = said == b"WATCHER_TOO_MANY log watcher limit reached\r\n";
        assert!(is_refused || said == b"OK\r\n", "{}", said.escape_ascii());
        (one, is_refused)
    });
    let refused: Vec<_> = refused.collect();
    assert_eq!(refused.iter().filter(|(_, is_refused)| *is_refused).count(), 6);
}

#[test]
fn figures_are_those_of_what_was_done() {
    let settings = Settings { threads: 2, ..Settings::default() };
    let server = ours(settings);
    let mut m = memcached(&server);
    assert!(stats(&mut m, "items").is_empty() && stats(&mut m, "sizes").is_empty());
    // 31 and 33 bytes with their keys.
    answers(&mut m, "set a1 0 0 29\r\n01234567890123456789012345678\r\n");
    for key in ["b1", "b2"] {
        answers(&mut m, &format!("set {key} 0 0 31\r\n0123456789012345678901234567890\r\n"));
    }
    let sizes = BTreeMap::from([("32", "1"), ("64", "2")]);
    let sizes: BTreeMap<_, _> =
        sizes.into_iter().map(|(size, count)| (size.to_owned(), count.to_owned())).collect();
    assert_eq!(stats(&mut m, "sizes"), sizes);
    assert_eq!(stats(&mut m, "items")["items:1:number"], "3");
    answers(&mut m, "set n 0 0 1\r\n5\r\nincr n 1\r\nincr n 1\r\ndecr n 1\r\ntouch n 100\r\n");
    let slabs = stats(&mut m, "slabs");
    for (name, value) in [("incr_hits", "2"), ("decr_hits", "1"), ("touch_hits", "1")] {
        assert_eq!(slabs[&format!("1:{name}")], value, "{name}");
    }
    answers(&mut m, "verbosity 1\r\n");
    let settings = stats(&mut m, "settings");
    for (name, value) in [
        ("verbosity", "1"),
        ("num_threads", "2"),
        ("shutdown_command", "no"),
        ("detail_enabled", "no"),
        ("stat_key_prefix", ":"),
    ] {
        assert_eq!(settings[name], value, "{name}");
    }
    let own = m.local_addr().unwrap();
    let conns = stats(&mut m, "conns");
    assert!(conns.values().any(|addr| *addr == format!("tcp:{own}")), "{conns:?}");
    assert_eq!(conns["0:state"], "conn_listening");
    assert_eq!(conns["0:addr"], format!("tcp:{}", server.addrs().0.unwrap()));
    let count = |m: &mut TcpStream| {
        let conns = stats(m, "conns");
        conns.keys().filter(|name| name.ends_with(":secs_since_last_cmd")).count()
    };
    assert_eq!(count(&mut m), 1);
    let mut others: Vec<_> = (0..200).map(|_| memcached(&server)).collect();
    for one in &mut others {
        answers(one, "");
    }
    let _redis = resp(&server);
    assert_eq!(count(&mut m), 201);
    drop(others);
    wait_until("they are gone", || count(&mut m) == 1);
}

/// The same to ours and to Debian's memcached; prefixes in order.
#[test]
fn prefixes_are_counted_as_memcached_counts_them() {
    let Some(peer) = peers::memcached(1) else { return };
    let server = ours(Settings::default());
    let prefixes = |m: &mut TcpStream| {
        let said = ask_text(m, b"stats detail dump\r\n", b"END\r\n");
        let lines: BTreeSet<_> = said.lines().map(str::to_owned).collect();
        lines
    };
    let mut both = [memcached(&server), connect(peer.addr)];
    let said = both.each_mut().map(|m| {
        let mut said = vec![answers(m, "stats detail on\r\n")];
        answers(m, "");
        said.push(answers(
            m,
            "set user:1 0 0 1\r\nx\r\nget user:1 user:2 page:x:y none\r\ndelete user:1\r\n\
             delete user:1\r\nadd page:1 0 0 1\r\ny\r\nadd page:1 0 0 1\r\ny\r\ngat 0 page:1\r\n",
        ));
        said.extend(prefixes(m));
        said.push(answers(m, "stats detail off\r\nget user:1\r\n"));
        said.extend(prefixes(m));
        said.push(ask_text(m, b"stats reset\r\n", b"\r\n"));
        said.extend(prefixes(m));
        said
    });
    assert_eq!(said[0], said[1]);
    assert!(said[0].iter().any(|line| line == "PREFIX user get 2 hit 1 set 1 del 2"), "{said:?}");
}

/// What a dump of ours names is what one of Debian's memcached names.
#[test]
fn a_dump_names_what_memcached_names() {
    let Some(peer) = peers::memcached(1) else { return };
    let server = ours(Settings::default());
    let mut both = [memcached(&server), connect(peer.addr)];
    let mut rng = Rng(3);
    let mut commands = String::new();
    for _ in 0..300 {
        let (key, time) = (rng.below(200), rng.pick(&["0", "1000", "2000000000", "-1"]));
        commands += &match rng.below(4) {
            0 => format!("delete key{key}\r\n"),
            1 => format!("get key{key}\r\n"),
            _ => format!("set key{key} {} {time} 1\r\nx\r\n", rng.below(9)),
        };
    }
    let [ours, theirs] = both.each_mut().map(|m| {
        answers(m, &commands);
        answers(m, "lru_crawler enable\r\n");
        let lines = dump(m, "lru_crawler metadump hash", "END\r\n");
        let known = lines.iter().map(|line| {
            let words: Vec<_> = line.split(' ').collect();
            let of = |name: &str| {
                let found = words.iter().find_map(|word| word.strip_prefix(name));
                found.unwrap_or_else(|| panic!("{name} in {line}")).to_owned()
            };
            (of("key="), (of("exp="), of("fetch=")))
        });
        known.collect::<BTreeMap<_, _>>()
    });
    assert!(ours.len() > 50);
    assert_eq!(ours.keys().collect::<Vec<_>>(), theirs.keys().collect::<Vec<_>>());
    for (key, (expires, fetched)) in &ours {
        let (their_expires, their_fetched) = &theirs[key];
        let [one, other] = [expires, their_expires].map(|text| text.parse::<i64>().unwrap());
        // Debian's reads its clock once a second.
        assert!(one.abs_diff(other) <= 3, "{key}: {one} and {other}");
        assert_eq!(fetched, their_fetched, "{key}");
    }
}

#[test]
fn the_limit_of_memory_is_lowered_and_raised() {
    let server = ours_of(64 << 20, Settings::default());
    let mut m = memcached(&server);
    let value = vec![b'x'; 1000];
    let mut fill = |first: usize| {
        let sets: Vec<u8> =
            (first..first + 80_000).flat_map(|key| set(&format!("key{key}"), &value)).collect();
        let mut reader = m.try_clone().unwrap();
        let answers = std::thread::spawn(move || {
            let mut answers = vec![0; b"STORED\r\n".len() * 80_000];
            reader.read_exact(&mut answers).unwrap();
            answers
        });
        m.write_all(&sets).unwrap();
        assert!(answers.join().unwrap() == b"STORED\r\n".repeat(80_000));
    };
    fill(0);
    let mut other = memcached(&server);
    let bytes = |m: &mut TcpStream| stats(m, "")["bytes"].parse::<u64>().unwrap();
    assert!(bytes(&mut other) > 48 << 20);
    assert_eq!(answers(&mut other, "cache_memlimit 24\r\n"), "OK\r\n");
    wait_until("items went", || bytes(&mut other) < 24 << 20);
    assert_eq!(stats(&mut other, "")["limit_maxbytes"], (24 << 20).to_string());
    fill(100_000);
    let kept = bytes(&mut other);
    assert!(kept < 24 << 20 && kept > 12 << 20, "{kept}");
    assert_eq!(answers(&mut other, "cache_memlimit 64 noreply\r\n"), "");
    wait_until("it is raised", || {
        fill(200_000);
        bytes(&mut other) > 48 << 20
    });
    for (line, expected) in [
        ("cache_memlimit 7", "MEMLIMIT_TOO_SMALL cannot set maxbytes to less than 8m\r\n"),
        ("cache_memlimit 65", "MEMLIMIT_ADJUST_FAILED out of bounds or unable to adjust\r\n"),
        ("cache_memlimit x", "ERROR\r\n"),
        ("cache_memlimit", "ERROR\r\n"),
    ] {
        assert_eq!(answers(&mut other, &format!("{line}\r\n")), expected);
    }
}

/// Whether the program that runs the server is asked to stop it.
fn is_asked_to_end(server: &Server) -> bool {
    let poller = Poller::new().unwrap();
    poller.add(server.end_event(), 0, Interest::Read).unwrap();
    poller.wait(Some(Duration::ZERO), &mut Vec::new()).unwrap() > 0
}

#[test]
fn a_client_ends_the_server_where_it_may() {
    let server = ours(Settings::default());
    let mut m = memcached(&server);
    for line in ["shutdown\r\n", "shutdown graceful\r\n"] {
        assert_eq!(answers(&mut m, line), "SERVER_ERROR: shutdown not enabled\r\n");
    }
    assert!(!is_asked_to_end(&server));
    let mut server = ours(Settings { allows_shutdown: true, ..Settings::default() });
    let mut m = memcached(&server);
    assert_eq!(stats(&mut m, "settings")["shutdown_command"], "yes");
    assert_eq!(answers(&mut m, "shutdown now\r\n"), "CLIENT_ERROR invalid shutdown mode\r\n");
    assert!(!is_asked_to_end(&server));
    let said = ask(&mut m, b"get a\r\nshutdown graceful\r\nget a\r\n", b"no answer ends so");
    assert_eq!(said, b"END\r\n");
    wait_until("it is asked to end", || is_asked_to_end(&server));
    assert_eq!(server.failure(), None);
    server.stop();
}
