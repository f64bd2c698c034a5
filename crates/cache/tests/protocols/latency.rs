//! What others' look-ups wait for while one client has the server do something long: the p99 of
//! single GETs alone, and meanwhile. Told, and not asserted: it depends on the machine.

use crate::peers::{self, ask, resp_of, words};
use rackpool_cache::front::{Server, Settings};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const MEMORY_BYTES: u64 = 1 << 30;
/// Fields of the hash that is told as a whole.
const FIELDS: usize = 1_000_000;
/// Commands of the transaction.
const QUEUED: usize = 10_000;
const END: &[u8] = b"$7\r\nthe end\r\n";

/// What the other client does until it is told to end.
type Load = fn(&mut TcpStream);

const LOADS: [(&str, Load); 3] = [
    ("a script that is stopped after 5 s", |client| {
        say(client, &words(&[b"EVAL", b"while true do end", b"0"]));
    }),
    ("EXEC of 10,000 commands", |client| {
        let commands = [b"multi\r\n", &b"incr long\r\n".repeat(QUEUED)[..], b"exec\r\n"];
        say(client, &commands.concat());
    }),
    ("HGETALL of 1,000,000 fields", |client| {
        say(client, b"hgetall large\r\n");
    }),
];

/// Has a command executed, to its end.
fn say(client: &mut TcpStream, bytes: &[u8]) {
    ask(client, &[bytes, &words(&[b"ECHO", b"the end"])].concat(), END);
}

/// Measures for so many seconds each time.
pub fn run(seconds: u64) {
    let settings = Settings { threads: 2, ..Settings::default() };
    let server = &peers::ours_of(MEMORY_BYTES, settings);
    let time = Duration::from_secs(seconds);
    let mut client = resp_of(server);
    say(&mut client, b"set other value\r\n");
    for first in (0..FIELDS).step_by(1000) {
        let fields = (first..first + 1000).map(|field| format!(" f{field} value{field}"));
        say(&mut client, format!("hset large{}\r\n", fields.collect::<String>()).as_bytes());
    }
    for (name, load) in LOADS {
        let alone = p99_us(server, time);
        let is_over = AtomicBool::new(false);
        let meanwhile = std::thread::scope(|scope| {
            scope.spawn(|| {
                // Relaxed: a flag without data.
                while !is_over.load(Ordering::Relaxed) {
                    load(&mut client);
                }
            });
            std::thread::sleep(Duration::from_millis(100));
            let meanwhile = p99_us(server, time);
            // Relaxed: as above.
            is_over.store(true, Ordering::Relaxed);
            meanwhile
        });
        let times = meanwhile / alone;
        println!("latency: {name}: GET's p99 {alone:.0} us alone, {meanwhile:.0} us: {times:.2}x");
    }
}

/// The p99 of look-ups one after the other, by clients of both threads in turn.
fn p99_us(server: &Server, time: Duration) -> f64 {
    let mut clients = [resp_of(server), resp_of(server)];
    let begin = Instant::now();
    let mut took = Vec::new();
    while begin.elapsed() < time {
        for client in &mut clients {
            let start = Instant::now();
            ask(client, b"get other\r\n", b"value\r\n");
            took.push(start.elapsed());
        }
    }
    took.sort_unstable();
    took[took.len() * 99 / 100].as_secs_f64() * 1e6
}
