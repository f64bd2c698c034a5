//! `rackpool kv --flash`: items beyond memory, also after a kill; what was deleted or changed stays
//! so; what is refused.

use crate::common::{Dir, Server, WITHIN, run, told};
use rackpool_stats::random::Rng;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::FileExt;
use std::time::Duration;

const COUNT: u32 = 8000;

fn start(place: &str) -> Server {
    let words = ["kv", "--memory", "2m", "--memcached", "0", "--threads", "1", "--flash", place];
    Server::start(&words)
}

struct Client(BufReader<TcpStream>);

impl Client {
    fn of(server: &Server) -> Client {
        Client::to(server, "memcached=")
    }

    fn of_resp(server: &Server) -> Client {
        Client::to(server, "resp=")
    }

    fn to(server: &Server, kind: &str) -> Client {
        let addr = server.addr.split(' ').find_map(|word| word.strip_prefix(kind));
        let stream = TcpStream::connect(addr.unwrap()).unwrap();
        stream.set_read_timeout(Some(WITHIN)).unwrap();
        Client(BufReader::new(stream))
    }

    fn say(&mut self, words: &str) {
        self.0.get_mut().write_all(words.as_bytes()).unwrap();
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        line
    }

    fn ask(&mut self, words: &str) -> String {
        self.say(words);
        self.line()
    }

    /// Whether the server lives long enough for an answer of one line.
    fn is_answered(&mut self, words: &str) -> bool {
        let mut line = String::new();
        let is_sent = self.0.get_mut().write_all(words.as_bytes()).is_ok();
        is_sent && self.0.read_line(&mut line).is_ok_and(|_| line.ends_with('\n'))
    }

    fn set(&mut self, number: u32, value: &str) {
        let set = format!("set key{number} 0 0 {}\r\n{value}\r\n", value.len());
        assert_eq!(self.ask(&set), "STORED\r\n");
    }

    fn get(&mut self, number: u32) -> Option<String> {
        let answer = self.ask(&format!("get key{number}\r\n"));
        if answer == "END\r\n" {
            return None;
        }
        let len: usize = answer.trim_end().rsplit_once(' ').unwrap().1.parse().unwrap();
        let mut value = vec![0; len + 2];
        self.0.read_exact(&mut value).unwrap();
        assert_eq!(self.line(), "END\r\n");
        value.truncate(len);
        Some(String::from_utf8(value).unwrap())
    }
}

fn value(number: u32) -> String {
    format!("{number:0>1000}")
}

#[test]
fn more_than_memory_is_there_also_after_a_kill_and_what_was_deleted_is_not() {
    let dir = Dir::new();
    let place = format!("{}?size=128m&admit=all", dir.file("flash"));
    let server = start(&place);
    let mut client = Client::of(&server);
    (0..COUNT).for_each(|number| client.set(number, &value(number)));
    let mut found = 0;
    for number in 0..COUNT {
        if let Some(there) = client.get(number) {
            assert_eq!(there, value(number));
            found += 1;
        }
    }
    assert!(found > COUNT / 2, "{found} of {COUNT}, and memory holds some 1800");
    for number in (0..COUNT).step_by(2) {
        match number % 4 {
            0 => drop(client.ask(&format!("delete key{number}\r\n"))),
            _ => client.set(number, "new"),
        }
    }
    drop(client);
    // By a kill.
    drop(server);
    let server = start(&place);
    let mut client = Client::of(&server);
    let mut found = 0;
    for number in 0..COUNT {
        match (number % 4, client.get(number)) {
            (_, None) => {}
            (0, Some(_)) => panic!("{number} was deleted"),
            (2, Some(there)) => assert_eq!(there, "new"),
            (_, Some(there)) => {
                assert_eq!(there, value(number));
                found += 1;
            }
        }
    }
    assert!(found > COUNT / 8, "{found}");
}

/// How a server is killed in the midst of changes.
struct Kills {
    place: [String; 2],
    /// Whether nothing that was acknowledged may be missing.
    is_store: bool,
    keys: usize,
    value_bytes: usize,
    /// Changes before a kill: at least, and at most so many more.
    changes: u64,
    rounds: u32,
}

impl Kills {
    /// What was found, in all rounds together.
    fn run(&self) -> u32 {
        let &Kills { is_store, keys, value_bytes, changes: least, rounds, .. } = self;
        let [option, place] = &self.place;
        let words = ["kv", "--memory", "2m", "--memcached", "0", "--threads", "1", option, place];
        let mut random = Rng::new(7);
        // What each key has; the second, if its last change may not have been answered.
        let mut may_be = vec![[None; 2]; keys];
        let (mut version, mut found_in_all) = (0, 0);
        for round in 0..rounds {
            let server = Server::start(&words);
            let mut client = Client::of(&server);
            for (key, may_be) in may_be.iter_mut().enumerate() {
                let found = client.get(key as u32).map(|value| value.parse::<u32>().unwrap());
                let may_be_missing = !is_store && found.is_none();
                assert!(
                    may_be_missing || may_be.contains(&found),
                    "{round} {key} {found:?} {may_be:?}"
                );
                found_in_all += u32::from(found.is_some());
                *may_be = [found; 2];
            }
            let pid = rustix::process::Pid::from_child(&server.child);
            // Enough for batches to be written, however slow the machine is, and a moment more.
            let enough = least + random.below(least);
            let (tell, told) = std::sync::mpsc::channel();
            let after = Duration::from_micros(random.below(2000));
            let killer = std::thread::spawn(move || {
                told.recv().unwrap();
                std::thread::sleep(after);
                rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
            });
            let mut changes = 0;
            loop {
                let key = random.below(keys as u64) as usize;
                version += 1;
                let next = (random.below(6) > 0).then_some(version);
                let words = match next {
                    Some(version) => {
                        let value = format!("{version:0>value_bytes$}");
                        format!("set key{key} 0 0 {value_bytes}\r\n{value}\r\n")
                    }
                    None => format!("delete key{key}\r\n"),
                };
                may_be[key][1] = next;
                if !client.is_answered(&words) {
                    break;
                }
                may_be[key] = [next; 2];
                changes += 1;
                if changes == enough {
                    tell.send(()).unwrap();
                }
            }
            println!("round {round}: {changes} changes in {after:?}");
            killer.join().unwrap();
        }
        found_in_all
    }
}

#[test]
fn kills_in_the_midst_of_changes_bring_nothing_back() {
    let dir = Dir::new();
    let place = format!("{}?size=128m&admit=all", dir.file("flash"));
    let place = ["--flash".to_owned(), place];
    let kills =
        Kills { place, is_store: false, keys: 4000, value_bytes: 1000, changes: 6000, rounds: 6 };
    let found = kills.run();
    assert!(found > 500, "{found}");
}

#[test]
fn a_store_on_flash_loses_nothing_that_it_has_acknowledged_by_kills() {
    let dir = Dir::new();
    let place = format!("{}?size=128m&mode=store", dir.file("flash"));
    let place = ["--flash".to_owned(), place];
    let kills =
        Kills { place, is_store: true, keys: 400, value_bytes: 8000, changes: 250, rounds: 4 };
    let found = kills.run();
    assert!(found > 400, "{found}");
}

#[test]
fn a_store_and_a_cache_in_memory_that_persists_keep_what_they_promise_by_kills() {
    for (mode, is_store) in [("store", true), ("cache&admit=all", false)] {
        let dir = Dir::new();
        let place = format!("pmem:{}?size=32m&mode={mode}", dir.file("pmem"));
        let place = ["--value-tier".to_owned(), place];
        let kills =
            Kills { place, is_store, keys: 400, value_bytes: 8000, changes: 250, rounds: 4 };
        let found = kills.run();
        assert!(found > 200, "{found}");
    }
}

#[test]
fn a_store_has_more_than_memory_says_when_it_is_full_and_refuses_what_it_does_not_keep() {
    for (option, place) in [("--flash", "flash?size=128m"), ("--value-tier", "pmem:pmem?size=32m")]
    {
        let dir = Dir::new();
        let (path, size) = place.split_once('?').unwrap();
        let (kind, name) = path.rsplit_once(':').map_or(("", path), |(_, name)| ("pmem:", name));
        let place = format!("{kind}{}?{size}&mode=store", dir.file(name));
        let words = ["kv", "--memory", "4m", "--memcached", "0", "--resp", "0", option, &place];
        let mut server = Server::start(&words);
        let mut client = Client::of(&server);
        let long = "v".repeat(100_000);
        let mut count = 0;
        // Without an answer for each: many become durable together.
        let refused = loop {
            for number in count..count + 16 {
                client.say(&format!("set key{number} 0 0 100000\r\n{long}\r\n"));
            }
            let answers: Vec<String> = (0..16).map(|_| client.line()).collect();
            count += answers.iter().filter(|answer| *answer == "STORED\r\n").count() as u32;
            if let Some(refused) = answers.into_iter().find(|answer| answer != "STORED\r\n") {
                break refused;
            }
            assert!(count < 2000);
        };
        assert!(refused.starts_with("SERVER_ERROR"), "{refused}");
        assert!(count > 100, "{count}");
        let mut resp = Client::of_resp(&server);
        resp.say("SET more x\r\nHSET h f v\r\nDBSIZE\r\nSELECT 1\r\nSET a b\r\nSELECT 0\r\n");
        assert_eq!(resp.line(), "+OK\r\n", "a short one has room");
        assert!(resp.line().starts_with("-ERR a hash cannot be stored"));
        assert!(resp.line().starts_with("-ERR DBSIZE would see"));
        assert_eq!(resp.line(), "+OK\r\n");
        assert!(resp.line().starts_with("-ERR an item of another database"));
        assert_eq!(resp.line(), "+OK\r\n");
        resp.say("MULTI\r\nSTRLEN key0\r\nSTRLEN key1\r\nEXEC\r\n");
        let answers: Vec<String> = (0..6).map(|_| resp.line()).collect();
        assert_eq!(answers[3..], ["*2\r\n", ":100000\r\n", ":100000\r\n"]);
        assert_eq!(client.ask("delete key3\r\n"), "DELETED\r\n");
        assert_eq!(server.terminate(), Some(0));
        let server = Server::start(&words);
        let mut client = Client::of(&server);
        for number in 0..count {
            assert_eq!(client.get(number).is_some(), number != 3, "{number} of {count}");
        }
    }
    let words = ["kv", "--memory", "4m", "--memcached", "0", "--herd", "h3/test", "--flash"];
    let place = "nowhere?size=128m&mode=store";
    let (code, _, err) = told(&run(&[&words[..], &[place]].concat()));
    assert!(code == 2 && err.contains("HERD does not wait"), "{code}: {err}");
}

/// What `stats` says of this.
fn stat(client: &mut Client, name: &str) -> u64 {
    client.say("stats\r\n");
    let mut found = None;
    loop {
        let line = client.line();
        if line == "END\r\n" {
            return found.unwrap_or_else(|| panic!("no {name}"));
        }
        let mut words = line.split_ascii_whitespace().skip(1);
        if words.next() == Some(name) {
            found = words.next().and_then(|word| word.parse().ok());
        }
    }
}

/// The first number from `from` on of which these words are answered so, by an item that is read
/// in flash.
fn first_so(client: &mut Client, from: u32, answer: &str, words: impl Fn(u32) -> String) -> u32 {
    let is_so = |number: &u32| {
        let before = stat(client, "flash_hits");
        client.ask(&words(*number)) == answer && stat(client, "flash_hits") > before
    };
    (from..COUNT).find(is_so).expect("most are in flash")
}

#[test]
fn what_was_closed_is_there_again_and_is_found_by_all_kinds_of_commands() {
    let dir = Dir::new();
    let path = dir.file("flash");
    let place = format!("{path}?size=128m&admit=all");
    let mut server = start(&place);
    let mut client = Client::of(&server);
    (0..COUNT).for_each(|number| client.set(number, &number.to_string().repeat(100)));
    assert!(stat(&mut client, "flash_items") > u64::from(COUNT / 2));
    assert_eq!(stat(&mut client, "flash_bytes") >> 20, 126);
    // Another process is told so.
    let words = ["kv", "--memory", "2m", "--memcached", "0", "--flash", &place];
    let (code, _, err) = told(&run(&words));
    assert!(code == 1 && err.contains("another process"), "{code}: {err}");
    drop(client);
    assert_eq!(server.terminate(), Some(0));
    let other = format!("{path}?size=256m");
    let words = ["kv", "--memory", "2m", "--memcached", "0", "--flash", &other];
    let (code, _, err) = told(&run(&words));
    assert!(code == 1 && err.contains("made with a size"), "{code}: {err}");
    let server = start(&place);
    let mut client = Client::of(&server);
    // All that is there is in flash alone.
    let there = stat(&mut client, "flash_items");
    assert!(stat(&mut client, "curr_items") == 0 && there > u64::from(COUNT / 2));
    let (client, value) = (&mut client, |number: u32| number.to_string().repeat(100));
    let touch = |number| format!("touch key{number} 1000\r\n");
    let number = first_so(client, 0, "TOUCHED\r\n", touch);
    assert_eq!(client.get(number), Some(value(number)));
    let add = |number| format!("add key{number} 0 0 1\r\n1\r\n");
    let number = first_so(client, number + 1, "NOT_STORED\r\n", add);
    assert_eq!(client.get(number), Some(value(number)));
    let append = |number| format!("append key{number} 0 0 1\r\nx\r\n");
    let number = first_so(client, number + 1, "STORED\r\n", append);
    assert_eq!(client.get(number), Some(value(number) + "x"));
    let delete = |number| format!("delete key{number}\r\n");
    let number = first_so(client, number + 1, "DELETED\r\n", delete);
    assert_eq!(client.get(number), None);
    assert_eq!(client.ask("flush_all\r\n"), "OK\r\n");
    assert_eq!((stat(client, "flash_items"), client.get(number + 1)), (0, None));
    assert_eq!(stat(client, "flash_read_errors") + stat(client, "flash_damaged"), 0);
}

#[test]
fn a_place_that_is_not_its_own_or_too_small_is_refused() {
    let dir = Dir::new();
    let path = dir.file("other");
    let words = |place: &str| {
        let place = place.to_owned();
        let words = ["kv", "--memory", "2m", "--memcached", "0", "--flash", &place];
        told(&run(&words))
    };
    let (code, _, err) = words(&format!("{path}?size=1m"));
    assert!(code == 2 && err.contains("bytes of flash"), "{code}: {err}");
    let file = std::fs::File::create(&path).unwrap();
    file.write_all_at(b"letters", 0).unwrap();
    let (code, _, err) = words(&format!("{path}?size=128m"));
    assert!(code == 1 && err.contains("something else"), "{code}: {err}");
    assert_eq!(std::fs::read(&path).unwrap(), b"letters");
    let (code, _, err) = words(&path);
    assert!(code == 2 && err.contains("PATH?size=BYTES"), "{code}: {err}");
}
