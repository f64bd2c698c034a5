//! `rackpool kv --flash`: items beyond memory, also after a kill; what was deleted or changed stays
//! so; what is refused.

use crate::common::{Dir, Server, WITHIN, run, told};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::FileExt;

const COUNT: u32 = 8000;

fn start(place: &str) -> Server {
    let words = ["kv", "--memory", "2m", "--memcached", "0", "--threads", "1", "--flash", place];
    Server::start(&words)
}

struct Client(BufReader<TcpStream>);

impl Client {
    fn of(server: &Server) -> Client {
        let addr = server.addr.split(' ').find_map(|word| word.strip_prefix("memcached="));
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
