//! Unchanged programs on an arena for minutes: python3 with its own tests, redis-server under its
//! own benchmark while it forks to save. Only if `RACKPOOL_TIERS_PROGRAMS` is set, as
//! `cargo xtask soak alloc` does.

use crate::c::{Dir, may_place, preload, text};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

const VARIABLE: &str = "RACKPOOL_TIERS_PROGRAMS";
const POLICY: &str = "size:4096;preferred:0;bind:0";
/// Containers, texts, buffers, C extensions, threads and forks.
const MODULES: [&str; 25] = [
    "test_array",
    "test_bytes",
    "test_ctypes",
    "test_decimal",
    "test_deque",
    "test_dict",
    "test_exceptions",
    "test_fork1",
    "test_gc",
    "test_io",
    "test_json",
    "test_list",
    "test_memoryview",
    "test_mmap",
    "test_pickle",
    "test_queue",
    "test_re",
    "test_set",
    "test_sqlite3",
    "test_subprocess",
    "test_thread",
    "test_threading",
    "test_unicode",
    "test_xml_etree_c",
    "test_zlib",
];
const START_WITHIN: Duration = Duration::from_secs(30);

/// Whether these tests are wanted and can be made.
fn is_wanted() -> bool {
    if std::env::var_os(VARIABLE).is_none() {
        println!("NOT TESTED: {VARIABLE} is not set");
        return false;
    }
    may_place()
}

fn on_arena(program: &str, library: &Path) -> Command {
    let mut command = Command::new(program);
    command.env("LD_PRELOAD", library).env("RACKPOOL_TIERS_POLICY", POLICY);
    command
}

#[test]
fn python3_passes_its_own_tests_on_an_arena() {
    if !is_wanted() {
        return;
    }
    let dir = Dir::new("python3");
    let library = preload(&dir);
    let run = |mut command: Command, module: &str| -> Output {
        // Objects are blocks of the arena, not parts of python's own.
        command.args(["-m", "test", "--timeout", "300", module]);
        command.env("PYTHONMALLOC", "malloc").current_dir(&dir.0);
        command.output().expect("python3")
    };
    let mut passed = 0;
    for module in MODULES {
        // Some fail on some machines anyway, or are not installed.
        if !run(Command::new("python3"), module).status.success() {
            println!("NOT TESTED: {module} fails without an arena (Debian: libpython3-testsuite)");
            continue;
        }
        let output = run(on_arena("python3", &library), module);
        assert!(output.status.success(), "{module}: {}", text(&output));
        passed += 1;
    }
    println!("{passed} of {} modules passed", MODULES.len());
    assert!(passed > 0, "python3 has no tests: install libpython3-testsuite");
}

/// A server, which ends with this.
struct Redis<'a> {
    child: Child,
    dir: &'a Dir,
}

impl Redis<'_> {
    fn start<'a>(dir: &'a Dir, library: &Path) -> Redis<'a> {
        let mut command = on_arena("redis-server", library);
        command.args(["--port", "0", "--unixsocket", "redis.sock", "--save", ""]);
        command.args(["--io-threads", "2", "--lazyfree-lazy-user-del", "yes"]);
        command.args(["--logfile", "redis.log"]).current_dir(&dir.0);
        let child = command.stdin(Stdio::null()).spawn().expect("redis-server");
        let redis = Redis { child, dir };
        let start = Instant::now();
        while redis.say(&["PING"]) != "PONG" {
            assert!(start.elapsed() < START_WITHIN, "{}", redis.log());
            std::thread::sleep(Duration::from_millis(50));
        }
        redis
    }

    fn tool(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.args(["-s", "redis.sock"]).current_dir(&self.dir.0);
        command
    }

    fn say(&self, words: &[&str]) -> String {
        let output = self.tool("redis-cli").args(words).output().expect("redis-cli");
        text(&output).trim().to_owned()
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.dir.0.join("redis.log")).unwrap_or_default()
    }

    /// Writes its keys to disk, and ends.
    fn save_and_end(mut self) {
        self.say(&["SHUTDOWN", "SAVE"]);
        assert!(self.child.wait().unwrap().success(), "{}", self.log());
    }
}

impl Drop for Redis<'_> {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn redis_serves_its_benchmark_saves_and_loads_on_an_arena() {
    if !is_wanted() {
        return;
    }
    let dir = Dir::new("redis");
    let library = preload(&dir);
    let redis = Redis::start(&dir, &library);
    let maps = std::fs::read_to_string(format!("/proc/{}/numa_maps", redis.child.id())).unwrap();
    assert!(maps.contains("prefer"), "it is on no arena: {maps}");
    let tests = "set,get,incr,lpush,rpush,lpop,rpop,sadd,hset,spop,zadd,zpopmin,lrange_100,mset";
    let mut command = redis.tool("redis-benchmark");
    command.args(["-t", tests, "-n", "300000", "-r", "100000", "-d", "700", "-P", "16", "-q"]);
    let mut benchmark = command.stdout(Stdio::null()).spawn().expect("redis-benchmark");
    let mut forks = 0;
    let status = loop {
        if let Some(status) = benchmark.try_wait().unwrap() {
            break status;
        }
        // Its child writes all keys, from memory that it shares with its parent.
        forks += u32::from(redis.say(&["BGSAVE"]).contains("started"));
        std::thread::sleep(Duration::from_millis(300));
    };
    assert!(status.success() && forks > 0, "{forks} forks, {}", redis.log());
    let is_saving = || redis.say(&["INFO", "persistence"]).contains("rdb_bgsave_in_progress:1");
    while is_saving() {
        std::thread::sleep(Duration::from_millis(100));
    }
    let info = redis.say(&["INFO", "persistence"]);
    assert!(info.contains("rdb_last_bgsave_status:ok"), "{info}\n{}", redis.log());
    let keys = redis.say(&["DBSIZE"]);
    assert!(keys.parse::<u64>().unwrap() > 50_000, "{keys}");
    redis.save_and_end();
    let redis = Redis::start(&dir, &library);
    assert_eq!(redis.say(&["DBSIZE"]), keys);
    assert_eq!(redis.say(&["FLUSHALL", "ASYNC"]), "OK");
    assert_eq!(redis.say(&["DBSIZE"]), "0");
    println!("{keys} keys, {forks} forks");
    redis.save_and_end();
}
