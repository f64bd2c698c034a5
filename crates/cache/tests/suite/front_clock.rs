//! What jumps of the wall clock do: nothing to what has a time to live, also to what was stored
//! during one; what expires at a point in time does so when the wall clock is there. The clocks are
//! handed in; the sockets are real.

use rackpool_cache::clock::{Clock, HandedTime};
use rackpool_cache::front::{ListenConfig, Server, Settings};
use rackpool_cache::{Cache, Options};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Some day, milliseconds since the epoch.
const WALL: u64 = 1_700_000_000_000;
const DAY: u64 = 86_400_000;
const MS_NS: u64 = 1_000_000;

struct Rig {
    server: Server,
    time: Arc<HandedTime>,
}

impl Rig {
    fn start(cache: Cache, time: Arc<HandedTime>, idle_ms: u64) -> Rig {
        let any = Some("127.0.0.1:0".parse().unwrap());
        let doors = ListenConfig { memcached: any, resp: any, ..ListenConfig::default() };
        let clock = Clock::handed(Arc::clone(&time));
        let settings = Settings { clock, idle_ms, ..Settings::default() };
        Rig { server: Server::start(cache, settings, &doors).unwrap(), time }
    }

    fn connect(addr: Option<SocketAddr>) -> TcpStream {
        let stream = TcpStream::connect(addr.unwrap()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream
    }

    /// The answer of the second listener, without line ends.
    fn resp(&self, words: &str) -> String {
        let mut stream = Rig::connect(self.server.addrs().1);
        ask(&mut stream, &format!("{words}\r\n"))
    }

    fn memcached(&self, words: &str) -> String {
        let mut stream = Rig::connect(self.server.addrs().0);
        ask(&mut stream, words)
    }

    fn number(&self, words: &str) -> i64 {
        let said = self.resp(words);
        said.strip_prefix(':').unwrap_or_else(|| panic!("{words}: {said}")).parse().unwrap()
    }

    fn set_wall(&self, ms: u64) {
        self.time.wall_ns.store(ms * MS_NS, Ordering::Relaxed);
    }

    fn pass(&self, ms: u64) {
        self.pass_ns(ms * MS_NS);
    }

    fn pass_ns(&self, ns: u64) {
        self.time.since_boot_ns.fetch_add(ns, Ordering::Relaxed);
        self.time.wall_ns.fetch_add(ns, Ordering::Relaxed);
    }
}

/// What is answered to `words`, which is one line; of a value the value.
fn ask(stream: &mut TcpStream, words: &str) -> String {
    stream.write_all(words.as_bytes()).unwrap();
    let mut line = || {
        let (mut line, mut byte) = (Vec::new(), [0]);
        while !line.ends_with(b"\r\n") {
            assert_eq!(stream.read(&mut byte).unwrap(), 1, "{words:?}: the connection ended");
            line.push(byte[0]);
        }
        String::from_utf8(line).unwrap().trim_end().to_owned()
    };
    let first = line();
    if first.starts_with('$') && first != "$-1" { line() } else { first }
}

fn time(boot: u64, since_boot: u64, wall: u64) -> Arc<HandedTime> {
    time_ns(boot, since_boot * MS_NS, wall * MS_NS)
}

fn time_ns(boot: u64, since_boot_ns: u64, wall_ns: u64) -> Arc<HandedTime> {
    let (since_boot_ns, wall_ns) = (AtomicU64::new(since_boot_ns), AtomicU64::new(wall_ns));
    Arc::new(HandedTime { boot: [boot, 7], since_boot_ns, wall_ns })
}

/// A client sees the wall clock and names a point in time by it: it is no longer until then.
#[test]
fn no_more_time_is_left_than_a_client_gave() {
    let rig =
        Rig::start(Cache::new(options()).unwrap(), time_ns(1, 5_900_000, WALL * MS_NS + 1), 0);
    assert_eq!(rig.resp("SET k v"), "+OK");
    for _ in 0..20 {
        let now = rig.time.wall_ns.load(Ordering::Relaxed) / MS_NS;
        assert_eq!(rig.number(&format!("PEXPIREAT k {}", now + 10_000)), 1);
        assert_eq!(rig.number("PTTL k"), 10_000);
        assert_eq!(rig.resp("SET k v PX 10000"), "+OK");
        assert_eq!(rig.number("PEXPIRETIME k") as u64, now + 10_000);
        rig.pass_ns(170_000);
    }
}

fn options() -> Options {
    Options { memory: 16 << 20, partitions: 2, ..Options::default() }
}

#[test]
fn a_passing_jump_of_the_wall_clock_ends_nothing_that_has_a_time_to_live() {
    for jump in [DAY as i64, -(DAY as i64), 400 * DAY as i64] {
        let rig = Rig::start(Cache::new(options()).unwrap(), time(1, 5000, WALL), 0);
        assert_eq!(rig.resp("SET before v EX 100"), "+OK");
        rig.set_wall(WALL.saturating_add_signed(jump));
        assert_eq!(rig.resp("SET during v EX 100"), "+OK");
        assert_eq!(rig.resp("SET short v PX 100000"), "+OK");
        assert_eq!(rig.memcached("set mc 0 100 1\r\nv\r\n"), "STORED");
        assert_eq!(rig.number("EXPIRE before 50"), 1);
        for words in ["TTL before", "TTL during", "TTL short", "TTL mc"] {
            let left = if words == "TTL before" { 50 } else { 100 };
            assert_eq!(rig.number(words), left, "{words} by {jump}");
        }
        assert_eq!(rig.memcached("mg mc t\r\n"), "HD t100");
        rig.set_wall(WALL);
        rig.pass(10_000);
        for words in ["TTL before", "TTL during", "TTL short", "TTL mc"] {
            let left = if words == "TTL before" { 40 } else { 90 };
            assert_eq!(rig.number(words), left, "{words} after {jump}");
        }
        assert_eq!(rig.number("EXPIRETIME during") as u64, (WALL + 100_000) / 1000);
        rig.pass(89_000);
        assert_eq!(rig.resp("GET during"), "v");
        rig.pass(1000);
        for key in ["before", "during", "short", "mc"] {
            assert_eq!(rig.resp(&format!("GET {key}")), "$-1", "{key} after {jump}");
        }
    }
}

#[test]
fn a_point_in_time_is_the_wall_clocks_wherever_that_is_set_to() {
    let rig = Rig::start(Cache::new(options()).unwrap(), time(1, 5000, WALL), 0);
    let at = (WALL + 100_000) / 1000;
    assert_eq!(rig.resp(&format!("SET exat v EXAT {at}")), "+OK");
    assert_eq!(rig.resp(&format!("SET pxat v PXAT {}", WALL + 100_001)), "+OK");
    assert_eq!(rig.resp("SET expireat v"), "+OK");
    assert_eq!(rig.number(&format!("EXPIREAT expireat {at}")), 1);
    assert_eq!(rig.memcached(&format!("set mc 0 {at} 1\r\nv\r\n")), "STORED");
    let keys = ["exat", "pxat", "expireat", "mc"];
    let ttls = |rig: &Rig| keys.map(|key| rig.number(&format!("TTL {key}")));
    assert_eq!(ttls(&rig), [100; 4]);
    rig.set_wall(WALL - DAY);
    assert_eq!(ttls(&rig), [100 + DAY as i64 / 1000; 4]);
    assert_eq!(rig.number("PEXPIRETIME pxat") as u64, WALL + 100_001);
    assert_eq!(rig.number("PEXPIRETIME exat") as u64, WALL + 100_000);
    // Later and earlier are compared by the wall clock, whatever an expiry counts by.
    assert_eq!(rig.number("EXPIRE exat 100 GT"), 0);
    assert_eq!(rig.number("EXPIRE expireat 100 LT"), 1);
    assert_eq!(rig.number("TTL expireat"), 100);
    assert_eq!(rig.resp(&format!("SET past v EXAT {}", (WALL - 2 * DAY) / 1000)), "+OK");
    assert_eq!(rig.resp("GET past"), "$-1");
    rig.set_wall(WALL + 99_000);
    assert_eq!(ttls(&rig), [1, 1, 100, 1]);
    rig.set_wall(WALL + 100_002);
    assert_eq!(ttls(&rig), [-2, -2, 100, -2]);
    assert_eq!(rig.resp("TIME"), "*2");
    // Nor is a flush that was ordered for later one for an earlier moment.
    assert_eq!(rig.memcached("flush_all 50\r\n"), "OK");
    rig.set_wall(WALL + DAY);
    assert_eq!(rig.number("TTL expireat"), 100);
    rig.pass(51_000);
    assert_eq!(rig.number("TTL expireat"), -2);
}

#[test]
fn no_client_is_idle_because_the_wall_clock_jumped() {
    let rig = Rig::start(Cache::new(options()).unwrap(), time(1, 5000, WALL), 10_000);
    let mut stream = Rig::connect(rig.server.addrs().1);
    assert_eq!(ask(&mut stream, "PING\r\n"), "+PONG");
    rig.set_wall(WALL + DAY);
    // Connections are looked over once a second of their clock.
    rig.pass(2000);
    std::thread::sleep(Duration::from_millis(2500));
    assert_eq!(ask(&mut stream, "PING\r\n"), "+PONG");
}

#[test]
fn the_times_of_a_file_go_on_over_restarts_and_boots() {
    let path = format!("/dev/shm/rackpool-clock-test-{}", std::process::id());
    let start = |time| {
        let (cache, recovered) = Cache::open(options(), Path::new(&path)).unwrap();
        assert_eq!(recovered.damaged, 0);
        Rig::start(cache, time, 0)
    };
    let rig = start(time(1, 5000, WALL));
    assert_eq!(rig.resp("SET ttl v EX 1000"), "+OK");
    assert_eq!(rig.resp(&format!("SET at v EXAT {}", WALL / 1000 + 1000)), "+OK");
    drop(rig);
    let ttls = |rig: &Rig| ["TTL ttl", "TTL at"].map(|words| rig.number(words));
    // The same boot, 100 s later; the wall clock was set a day ahead.
    let rig = start(time(1, 105_000, WALL + DAY));
    assert_eq!(ttls(&rig), [900, -2]);
    drop(rig);
    // Another boot: 200 s have passed since by the wall clock.
    let rig = start(time(2, 1000, WALL + DAY + 200_000));
    assert_eq!(ttls(&rig), [700, -2]);
    // The wall clock is put right, the file is told, and the process dies.
    rig.set_wall(WALL + 300_000);
    rig.pass(2000);
    std::thread::sleep(Duration::from_millis(2500));
    drop(rig);
    let rig = start(time(3, 1000, WALL + 402_000));
    let [ttl, _] = ttls(&rig);
    assert!((590..=600).contains(&ttl), "{ttl}");
    drop(rig);
    std::fs::remove_file(&path).unwrap();
}
