//! Hashes, fields that expire and several databases over a kill of `rackpool kv` and its warm
//! restart.

use crate::common::{Server, unique};
use crate::kv::{ask, door};
use std::fmt::Write;

/// A file of shared memory that goes with the test.
struct Shared(String);

impl Drop for Shared {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// What is answered to these lines.
fn told(server: &Server, lines: &str) -> String {
    let said = format!("{}\r\nECHO end-of-all\r\n", lines.replace('\n', "\r\n"));
    let end = "$10\r\nend-of-all\r\n";
    let heard = ask(&door(server, "resp"), &said, end);
    heard.strip_suffix(end).unwrap().to_owned()
}

/// Fields of a large hash.
const FIELDS: usize = 5000;
/// Databases that have hashes.
const DATABASES: [usize; 3] = [0, 3, 15];

fn value(database: usize, field: usize) -> String {
    format!("{database}-{field}-").repeat(1 + field % 9)
}

/// Packed and large hashes, with fields that expire soon, late, and never.
fn fill(server: &Server) {
    for database in DATABASES {
        let mut lines = format!("SELECT {database}\nSET text {database}\nHSET small a 1 b 2 c 3\n");
        for some in (0..FIELDS).collect::<Vec<_>>().chunks(100) {
            lines += "HSET large";
            for field in some {
                write!(lines, " f{field} {}", value(database, *field)).unwrap();
            }
            lines.push('\n');
        }
        lines += "HPEXPIRE small 1 FIELDS 1 a\nHEXPIRE small 10000 FIELDS 1 b\n";
        lines += "HPEXPIRE large 1 FIELDS 2 f1 f2\nHEXPIRE large 20000 FIELDS 1 f3\n";
        lines += "EXPIRE large 30000\nHDEL large f4";
        let heard = told(server, &lines);
        assert!(heard.ends_with("*1\r\n:1\r\n:1\r\n:1\r\n") && !heard.contains('-'), "{heard}");
    }
}

fn seconds(answer: &str) -> Vec<i64> {
    answer.lines().filter_map(|line| line.strip_prefix(':')?.parse().ok()).collect()
}

fn check(server: &Server) {
    for database in DATABASES {
        let select = format!("SELECT {database}\n");
        let told = |lines: &str| told(server, &(select.clone() + lines)).replacen("+OK\r\n", "", 1);
        let text = database.to_string();
        assert_eq!(told("GET text"), format!("${}\r\n{text}\r\n", text.len()));
        assert_eq!(told("HMGET small a b c"), "*3\r\n$-1\r\n$1\r\n2\r\n$1\r\n3\r\n");
        assert_eq!(told("HGETALL small"), "*4\r\n$1\r\nb\r\n$1\r\n2\r\n$1\r\nc\r\n$1\r\n3\r\n");
        let left =
            seconds(&told("HTTL small FIELDS 3 a b c\nHTTL large FIELDS 2 f3 f5\nTTL large"));
        assert_eq!((left[0], left[2], left[4]), (-2, -1, -1), "{left:?}");
        for (index, most) in [(1, 10_000), (3, 20_000), (5, 30_000)] {
            assert!((most - 600..=most).contains(&left[index]), "{left:?}");
        }
        // One of them: it is read byte by byte.
        if database == DATABASES[1] {
            let all = told("HGETALL large");
            assert!(all.starts_with(&format!("*{}\r\n", 2 * (FIELDS - 3))), "{}", &all[..20]);
        }
        for field in (5..FIELDS).step_by(97) {
            let value = value(database, field);
            let found = told(&format!("HGET large f{field}"));
            assert_eq!(found, format!("${}\r\n{value}\r\n", value.len()));
        }
        assert_eq!(told("DBSIZE"), ":3\r\n");
    }
    assert_eq!(told(server, "SELECT 7\nDBSIZE"), "+OK\r\n:0\r\n");
}

#[test]
fn hashes_of_several_databases_are_there_after_a_kill() {
    let shared = Shared(format!("/dev/shm/{}", unique("hashes")));
    let options = ["kv", "--memory", "64m", "--memcached", "0", "--resp", "0", "--threads", "2"];
    let words = [&options[..], &["--warm", &shared.0]].concat();
    let server = Server::start(&words);
    fill(&server);
    // Past the fields that expire soon.
    std::thread::sleep(std::time::Duration::from_millis(10));
    check(&server);
    // SIGKILL.
    drop(server);
    let server = Server::start(&words);
    check(&server);
    // memcached's clients see database 0, and no hash.
    let said = ask(&door(&server, "memcached"), "get text small large\r\n", "END\r\n");
    assert_eq!(said, "VALUE text 0 1\r\n0\r\nEND\r\n");
    // They change as before, and are there again after a second kill.
    let lines = "SELECT 3\nHSET small a 9\nSWAPDB 3 7\nSELECT 15\nFLUSHDB\nSELECT 7\nHGET small a";
    let said = told(&server, lines);
    assert_eq!(said, "+OK\r\n:1\r\n+OK\r\n+OK\r\n+OK\r\n+OK\r\n$1\r\n9\r\n");
    drop(server);
    let server = Server::start(&words);
    let lines =
        "SELECT 3\nDBSIZE\nSELECT 15\nDBSIZE\nSELECT 7\nDBSIZE\nHGET small a\nHEXISTS large f5";
    let said = told(&server, lines);
    assert_eq!(said, "+OK\r\n:0\r\n+OK\r\n:0\r\n+OK\r\n:3\r\n$1\r\n9\r\n:1\r\n");
}
