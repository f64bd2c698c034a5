//! `rackpool kv` as operators run it: doors, a kill and a warm restart, refusals.

use crate::common::{Cluster, Dir, Server, WITHIN, rackpool, run, told, unique};
#[cfg(feature = "lab")]
use rackpool_bench::report::Report;
use rackpool_cache::herd::Client;
use rackpool_mem::memory::HostMemory;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::MetadataExt;
use std::process::Stdio;
use std::time::{Duration, Instant};

/// The address of a door on the ready line.
pub fn door(server: &Server, name: &str) -> String {
    let found = server.addr.split(' ').find_map(|word| word.strip_prefix(&format!("{name}=")));
    found.unwrap_or_else(|| panic!("{}", server.addr)).to_owned()
}

/// Says something and reads until the answer ends so.
pub fn ask(addr: &str, said: &str, end: &str) -> String {
    let mut stream = TcpStream::connect(addr).unwrap();
    stream.set_read_timeout(Some(WITHIN)).unwrap();
    stream.write_all(said.as_bytes()).unwrap();
    let mut heard = Vec::new();
    let mut byte = [0];
    while !heard.ends_with(end.as_bytes()) {
        assert_eq!(stream.read(&mut byte).unwrap(), 1, "{:?}", String::from_utf8_lossy(&heard));
        heard.push(byte[0]);
    }
    String::from_utf8(heard).unwrap()
}

/// Waits until the counters say so: a thread of HERD's counts at the end of a round, after it has
/// answered.
fn wait_for_stat(memcached: &str, line: &str) {
    let start = Instant::now();
    loop {
        let stats = ask(memcached, "stats\r\n", "END\r\n");
        if stats.contains(line) {
            return;
        }
        assert!(start.elapsed() < WITHIN, "no {line} in {stats}");
    }
}

/// A file of shared memory that goes with the test.
struct Shared(String);

impl Drop for Shared {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn both_doors_one_cache_and_the_counters() {
    let mut server = Server::start(&[
        "kv",
        "--memory",
        "32m",
        "--memcached",
        "0",
        "--resp",
        "0",
        "--metrics",
        "0",
        "--policy",
        "s3fifo",
    ]);
    let (memcached, resp) = (door(&server, "memcached"), door(&server, "resp"));
    assert_eq!(ask(&memcached, "set a 0 0 5\r\nhello\r\n", "\r\n"), "STORED\r\n");
    assert_eq!(ask(&resp, "GET a\r\n", "hello\r\n"), "$5\r\nhello\r\n");
    let stats = ask(&memcached, "stats settings\r\n", "END\r\n");
    assert!(stats.contains("s3fifo") && stats.contains("33554432"), "{stats}");
    let request = "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    let mut stream = TcpStream::connect(door(&server, "metrics")).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert!(text.contains("# TYPE"), "{text}");
    assert_eq!(server.terminate(), Some(0));
}

#[test]
fn without_eviction_a_full_server_refuses_and_keeps_what_it_has() {
    let words = ["kv", "--memory", "8m", "--threads", "1", "--memcached", "0", "--resp", "0"];
    let mut server = Server::start(&[&words[..], &["--policy", "noeviction"]].concat());
    let (memcached, resp) = (door(&server, "memcached"), door(&server, "resp"));
    let value = "v".repeat(10_000);
    let set = |index: u32| format!("set key{index} 0 0 10000\r\n{value}\r\n");
    let count = (0..2000).find(|index| {
        let said = ask(&memcached, &set(*index), "\r\n");
        assert!(said == "STORED\r\n" || said.starts_with("SERVER_ERROR out of memory"), "{said}");
        said != "STORED\r\n"
    });
    let count = count.expect("8 MiB are full some time");
    let set = format!("*3\r\n$3\r\nSET\r\n$4\r\nmore\r\n$10000\r\n{value}\r\n");
    assert!(ask(&resp, &set, "\r\n").starts_with("-OOM "));
    for index in 0..count {
        assert_eq!(ask(&resp, &format!("STRLEN key{index}\r\n"), "\r\n"), ":10000\r\n");
    }
    let info = ask(&resp, "INFO\r\nPING\r\n", "+PONG\r\n");
    assert!(info.contains("maxmemory_policy:noeviction") && info.contains("evicted_keys:0"));
    assert!(ask(&memcached, "stats settings\r\n", "END\r\n").contains("evictions off"));
    assert_eq!(ask(&memcached, "delete key3\r\n", "\r\n"), "DELETED\r\n");
    assert_eq!(ask(&resp, &set, "\r\n"), "+OK\r\n");
    assert_eq!(server.terminate(), Some(0));
}

#[test]
fn herds_index_replaces_items_where_the_usual_one_grows() {
    const ITEMS: u32 = 20_000;
    let words = ["kv", "--memory", "16m", "--threads", "1", "--memcached", "0", "--items", "1000"];
    for lossy in [&[][..], &["--lossy-index"]] {
        let mut server = Server::start(&[&words[..], lossy].concat());
        let memcached = door(&server, "memcached");
        let of_all = |line: fn(u32) -> String| {
            let numbers: Vec<u32> = (0..ITEMS).collect();
            let batches = numbers.chunks(1000);
            let lines = batches.map(|batch| batch.iter().map(|index| line(*index)).collect());
            let asks = lines.map(|lines: String| ask(&memcached, &(lines + "mn\r\n"), "MN\r\n"));
            asks.map(|said| said.replace("MN\r\n", "")).collect::<String>()
        };
        let said = of_all(|index| format!("ms key{index} 5 q\r\n{index:05}\r\n"));
        assert_eq!(said, "");
        let said = of_all(|index| format!("mg key{index} k v q\r\n"));
        let lines: Vec<&str> = said.lines().collect();
        for item in lines.chunks(2) {
            let index: u32 = item[1].parse().unwrap();
            assert_eq!(item[0], format!("VA 5 kkey{index}"));
        }
        let found = lines.len() as u32 / 2;
        let stats = ask(&memcached, "stats\r\n", "END\r\n");
        assert!(stats.contains(&format!("STAT evictions {}\r\n", ITEMS - found)), "{stats}");
        assert_eq!(found == ITEMS, lossy.is_empty(), "{found} of {ITEMS} items");
        // The index was made for so many.
        assert!(found >= 1000, "{found} items");
        assert_eq!(server.terminate(), Some(0));
    }
}

#[test]
fn herds_door_opens_the_same_cache_to_processes_of_this_host() {
    let name = format!("rackpool/test/{}", unique("herd"));
    let words = ["kv", "--memory", "32m", "--memcached", "0", "--threads", "2", "--herd", &name];
    let mut server = Server::start(&words);
    assert_eq!(door(&server, "herd"), name);
    let memcached = door(&server, "memcached");
    assert_eq!(ask(&memcached, "set a 9 0 5\r\nhello\r\n", "\r\n"), "STORED\r\n");
    let mut client = Client::connect(&name).unwrap();
    let mut value = Vec::new();
    assert_eq!(client.get(b"a", &mut value).unwrap(), Some(9));
    assert_eq!(value, b"hello");
    client.put(b"b", b"back", 3, 0).unwrap();
    assert_eq!(ask(&memcached, "get b\r\n", "END\r\n"), "VALUE b 3 4\r\nback\r\nEND\r\n");
    for line in ["STAT herd_gets 1\r\n", "STAT herd_hits 1\r\n", "STAT herd_puts 1\r\n"] {
        wait_for_stat(&memcached, line);
    }
    assert_eq!(server.terminate(), Some(0));
    assert_eq!(client.delete(b"b").unwrap_err().code(), "gone");
}

#[test]
fn herds_door_over_the_fabric_opens_the_same_cache() {
    let words = ["kv", "--memory", "32m", "--memcached", "0", "--threads", "2"];
    let mut server = Server::start(&[&words[..], &["--herd-listen", "0"]].concat());
    let memcached = door(&server, "memcached");
    let mut client = Client::connect_to(door(&server, "herd-fabric").parse().unwrap(), 0).unwrap();
    assert_eq!(ask(&memcached, "set a 9 0 5\r\nhello\r\n", "\r\n"), "STORED\r\n");
    let mut value = Vec::new();
    assert_eq!(client.get(b"a", &mut value).unwrap(), Some(9));
    assert_eq!(value, b"hello");
    wait_for_stat(&memcached, "STAT herd_gets 1\r\n");
    assert_eq!(server.terminate(), Some(0));
    assert_eq!(client.delete(b"b").unwrap_err().code(), "gone");
}

/// `rackpool kv` as a shell with this limit of descriptors starts it; its standard error is `log`.
fn kv_under(limit: &str, log: std::fs::File) -> Server {
    let program = rackpool().get_program().to_owned();
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", &format!("ulimit {limit} && exec \"$0\" \"$@\"")]).arg(program);
    shell.args(["kv", "--memory", "32m", "--memcached", "0", "--max-connections", "400"]);
    Server::by(shell.stderr(log))
}

#[test]
fn a_soft_limit_of_descriptors_does_not_bound_the_connections_and_a_hard_one_is_told() {
    let dir = Dir::new();
    let log = dir.file("log");
    for (limit, is_told) in [("-Sn 64", false), ("-n 300", true)] {
        let mut server = kv_under(limit, std::fs::File::create(&log).unwrap());
        let memcached = door(&server, "memcached");
        let count = if is_told { 10 } else { 300 };
        let streams: Vec<_> = (0..count).map(|_| TcpStream::connect(&memcached).unwrap()).collect();
        for mut stream in &streams {
            stream.set_read_timeout(Some(WITHIN)).unwrap();
            stream.write_all(b"mn\r\n").unwrap();
            let mut answer = [0; 4];
            stream.read_exact(&mut answer).unwrap();
            assert_eq!(&answer, b"MN\r\n");
        }
        drop(streams);
        assert_eq!(server.terminate(), Some(0));
        let said = std::fs::read_to_string(&log).unwrap();
        assert_eq!(said.contains("LimitNOFILE="), is_told, "{said}");
    }
}

#[test]
fn memory_that_is_not_free_now_is_warned_of() {
    let dir = Dir::new();
    let log = dir.file("log");
    // The system itself uses more than is left out here.
    let most = HostMemory::now().unwrap().total_bytes - (4 << 20);
    for (memory, is_told) in [(most, true), (32 << 20, false)] {
        let mut command = rackpool();
        command.args(["kv", "--memcached", "0", "--memory", &memory.to_string()]);
        let mut server = Server::by(command.stderr(std::fs::File::create(&log).unwrap()));
        assert_eq!(ask(&door(&server, "memcached"), "mn\r\n", "MN\r\n"), "MN\r\n");
        assert_eq!(server.terminate(), Some(0));
        let said = std::fs::read_to_string(&log).unwrap();
        assert_eq!(said.contains("are free: "), is_told, "{said}");
    }
}

/// Bytes of a process that are in memory.
fn resident_bytes(server: &Server) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.child.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

#[test]
fn memory_is_taken_at_the_start_unless_it_is_to_come_on_demand() {
    const MEMORY: u64 = 128 << 20;
    let words = ["kv", "--memory", "128m", "--resp", "0"];
    let mut ahead = Server::start(&words);
    let mut on_demand = Server::start(&[&words[..], &["--memory-on-demand"]].concat());
    let start = Instant::now();
    while resident_bytes(&ahead) < MEMORY {
        assert!(start.elapsed() < WITHIN, "{} bytes of {MEMORY}", resident_bytes(&ahead));
        std::thread::sleep(Duration::from_millis(5));
    }
    let taken = resident_bytes(&on_demand);
    assert!(taken < MEMORY / 2, "{taken} bytes");
    assert_eq!((ahead.terminate(), on_demand.terminate()), (Some(0), Some(0)));
    // What takes it ends when it is told to.
    assert_eq!(Server::start(&["kv", "--memory", "1g", "--resp", "0"]).terminate(), Some(0));
}

#[test]
fn a_warm_cache_is_ready_before_its_memory_is_taken_and_takes_all_of_it() {
    let shared = Shared(format!("/dev/shm/{}", unique("later")));
    let words = ["kv", "--memory", "1g", "--resp", "0", "--threads", "1", "--warm", &shared.0];
    let missing = || {
        let found = std::fs::metadata(&shared.0).unwrap();
        found.len() - found.blocks() * 512
    };
    // A machine that is busy may take all of it before another process can look.
    let is_later = (0..5).any(|_| {
        let _ = std::fs::remove_file(&shared.0);
        let server = Server::start(&words);
        let is_later = missing() > 0;
        assert_eq!(ask(&door(&server, "resp"), "SET a b\r\n", "\r\n"), "+OK\r\n");
        let start = Instant::now();
        while missing() > 0 {
            assert!(start.elapsed() < WITHIN, "{} bytes are missing", missing());
            std::thread::sleep(Duration::from_millis(5));
        }
        is_later
    });
    assert!(is_later, "all of it was there when the cache was ready");
    let server = Server::start(&words);
    assert_eq!(ask(&door(&server, "resp"), "GET a\r\n", "b\r\n"), "$1\r\nb\r\n");
}

#[test]
fn what_was_stored_is_there_after_a_kill() {
    let shared = Shared(format!("/dev/shm/{}", unique("warm")));
    let options = ["kv", "--memory", "32m", "--memcached", "0", "--threads", "2"];
    let words = [&options[..], &["--warm", &shared.0]].concat();
    let server = Server::start(&words);
    let addr = door(&server, "memcached");
    let mut said = String::new();
    for key in 0..1000 {
        said += &format!("set key{key} {key} 0 4 noreply\r\n{key:04}\r\n");
    }
    assert!(ask(&addr, &(said + "mn\r\n"), "MN\r\n").ends_with("MN\r\n"));
    // A second server on the same file would be another writer.
    let (code, _, err) = told(&run(&words));
    assert_eq!(code, 1, "{err}");
    assert!(err.starts_with("error io ") && err.contains(&shared.0), "{err}");
    // SIGKILL.
    drop(server);
    let server = Server::start(&words);
    let addr = door(&server, "memcached");
    for key in (0..1000).step_by(37) {
        let expected = format!("VALUE key{key} {key} 4\r\n{key:04}\r\nEND\r\n");
        assert_eq!(ask(&addr, &format!("get key{key}\r\n"), "END\r\n"), expected);
    }
    drop(server);
    let mut other = words.clone();
    other[2] = "64m";
    let (code, _, err) = told(&run(&other));
    assert_eq!(code, 1, "{err}");
    assert!(err.starts_with("error corrupt ") && err.contains("or remove it to start"), "{err}");
}

#[test]
fn long_values_on_a_memory_node_are_there_after_a_kill() {
    let name = unique("node");
    let shared = Shared(format!("/dev/shm/{name}"));
    let values = Shared(format!("/dev/shm/{name}.values"));
    let options = ["kv", "--memory", "32m", "--memcached", "0", "--interleave", "numa:0=3"];
    let tier = ["--value-tier", "numa:0", "--value-tier-memory", "16m", "--warm", &shared.0];
    let rule = ["--value-tier-rule", "bandwidth", "--value-tier-near", "1m"];
    let words = [&options[..], &tier, &rule].concat();
    let server = Server::start(&words);
    let addr = door(&server, "memcached");
    let value = |key: usize| format!("{key:03}").repeat(4000);
    for key in 0..100 {
        let set = format!("set key{key} 0 0 12000\r\n{}\r\n", value(key));
        assert_eq!(ask(&addr, &set, "\r\n"), "STORED\r\n");
    }
    // SIGKILL.
    drop(server);
    assert!(std::fs::metadata(&values.0).is_ok_and(|file| file.len() == (16 << 20) + 4096));
    let server = Server::start(&words);
    let addr = door(&server, "memcached");
    for key in (0..100).step_by(7) {
        let expected = format!("VALUE key{key} 0 12000\r\n{}\r\nEND\r\n", value(key));
        assert_eq!(ask(&addr, &format!("get key{key}\r\n"), "END\r\n"), expected);
    }
    // One node is as quick as itself.
    for name in ["tier_promotions", "tier_near_hits", "tier_near_bytes"] {
        assert_eq!(stat(&addr, name), 0, "{name}");
    }
    assert!(stat(&addr, "tier_bytes_read") > 0);
}

#[test]
fn what_reads_cost_in_a_value_tier_is_of_the_profile_or_measured_and_said_at_the_start() {
    let dir = Dir::new();
    let (log, profile) = (dir.file("log"), dir.file("profile.json"));
    std::fs::write(&profile, crate::tiers::profile().to_string()).unwrap();
    let stored = format!("90 ns and 3 ps a byte there, 90 ns and 3 ps a byte here, by {profile} (");
    let now = " here, by a measurement of now".to_owned();
    let cache = ["kv", "--memcached", "0", "--memory", "8m", "--value-tier", "numa:0"];
    let words = [&cache[..], &["--value-tier-rule", "bandwidth"]].concat();
    for (options, said) in [(&["--profile", &profile][..], stored), (&[][..], now)] {
        let mut command = rackpool();
        command.args(&words).args(options).stderr(std::fs::File::create(&log).unwrap());
        let mut server = Server::by(&mut command);
        assert_eq!(server.terminate(), Some(0));
        let log = std::fs::read_to_string(&log).unwrap();
        assert!(log.contains(&said), "{log}");
    }
}

/// The number that `stats` has under a name.
fn stat(addr: &str, name: &str) -> u64 {
    let stats = ask(addr, "stats\r\n", "END\r\n");
    let start = format!("STAT {name} ");
    let value = stats.lines().find_map(|line| line.strip_prefix(&start));
    value.unwrap_or_else(|| panic!("no {name}: {stats}")).parse().unwrap()
}

#[test]
fn items_of_every_length_in_far_memory_are_there_after_a_kill() {
    let shared = Shared(format!("/dev/shm/{}", unique("far")));
    let options = ["kv", "--memory", "4m", "--threads", "1", "--memcached", "0"];
    let far = ["--tiering", "data:numa:0", "--far-memory", "32m", "--warm", &shared.0];
    let words = [&options[..], &far].concat();
    let server = Server::start(&words);
    let addr = door(&server, "memcached");
    let length = |key: usize| 1 + key * 37 % 5000;
    let value = |key: usize| format!("{key}-").repeat(length(key))[..length(key)].to_owned();
    let set =
        |key: usize| format!("set key{key} 0 0 {} noreply\r\n{}\r\n", length(key), value(key));
    for keys in (0..5000).collect::<Vec<_>>().chunks(500) {
        let said: String = keys.iter().map(|key| set(*key)).collect();
        assert!(ask(&addr, &(said + "mn\r\n"), "\r\n").starts_with("MN"));
    }
    assert!(stat(&addr, "far_bytes") > 7 << 20 && stat(&addr, "demotions") > 2000);
    assert_eq!(stat(&addr, "evictions"), 0);
    // SIGKILL.
    drop(server);
    let server = Server::start(&words);
    let addr = door(&server, "memcached");
    for key in 0..5000 {
        let expected = format!("VALUE key{key} 0 {}\r\n{}\r\nEND\r\n", length(key), value(key));
        assert_eq!(ask(&addr, &format!("get key{key}\r\n"), "END\r\n"), expected);
    }
    assert!(stat(&addr, "far_bytes") > 7 << 20);
}

#[test]
fn the_rule_for_far_memory_is_told_at_the_start_with_its_reason() {
    let dir = Dir::new();
    let (log, profile) = (dir.file("log"), dir.file("profile.json"));
    std::fs::write(&profile, crate::tiers::profile().to_string()).unwrap();
    let split = "by bandwidth while near memory is saturated: 300000 MB/s near (node 0) and 300000 \
                 MB/s far";
    let none = "what is read most for its bytes lies near: without --profile";
    for (options, rule) in [(&["--profile", &profile][..], split), (&[][..], none)] {
        let mut command = rackpool();
        command.args(["kv", "--memcached", "0", "--memory", "8m", "--tiering", "data:numa:0"]);
        command.args(options).stderr(std::fs::File::create(&log).unwrap());
        let mut server = Server::by(&mut command);
        let addr = door(&server, "memcached");
        ask(&addr, "set a 0 0 1\r\nb\r\n", "STORED\r\n");
        let gets = "get a\r\n".repeat(100) + "mn\r\n";
        ask(&addr, &gets, "MN\r\n");
        assert_eq!(stat(&addr, "near_bytes_read") > 0, !options.is_empty());
        assert_eq!(server.terminate(), Some(0));
        let said = std::fs::read_to_string(&log).unwrap();
        assert!(said.contains(rule), "{said}");
    }
}

#[test]
fn a_running_cache_is_switched_and_the_log_says_so() {
    let dir = Dir::new();
    let log = dir.file("log");
    let mut command = rackpool();
    command.args(["kv", "--resp", "0", "--memory", "8m", "--tiering", "dram:numa:0"]);
    command.stderr(std::fs::File::create(&log).unwrap());
    let mut server = Server::by(&mut command);
    let addr = door(&server, "resp");
    let shows = |mode: &str| {
        let end = format!("{mode}\r\n");
        assert!(ask(&addr, "CONFIG GET tiering\r\n", &end).ends_with(&end));
    };
    let says = |what: &str| {
        let start = std::time::Instant::now();
        while !std::fs::read_to_string(&log).unwrap().contains(what) {
            assert!(start.elapsed().as_secs() < 30, "{what} was not said");
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    };
    says("after CONFIG SET tiering data");
    shows("dram");
    for (mode, said) in [
        ("data", "items may go to"),
        ("dram", "went back to the system"),
        ("transparent:numa:0=3", "tiering transparent: 0 B of pages have moved"),
    ] {
        assert_eq!(ask(&addr, &format!("CONFIG SET tiering {mode}\r\n"), "\r\n"), "+OK\r\n");
        shows(mode.split(':').next().unwrap());
        says(said);
    }
    assert_eq!(server.terminate(), Some(0));
}

#[test]
fn what_cannot_be_served_is_refused_with_the_way_out() {
    let dir = Dir::new();
    let nowhere = dir.file("nowhere");
    for (words, code, way_out) in [
        (&["--memcached", "0.0.0.0:0"] as &[&str], "denied", "--auth-file"),
        (&["--resp", "0.0.0.0:0"], "denied", "--password-file"),
        (&["--resp", "0", "--password-file", &nowhere], "io", "nowhere"),
        (&["--resp", "0", "--tls-cert", &nowhere, "--tls-key", &nowhere], "config", "nowhere"),
        (&["--resp", "0", "--warm", &dir.file("no/file")], "io", "no/file"),
        (&["--resp", "0", "--memory", "1k"], "usage", "memory"),
        (&["--resp", "0", "--memory", "900t"], "full", "give less to --memory"),
        (
            &["--resp", "0", "--value-tier", "numa:0", "--value-tier-memory", "900t"],
            "full",
            "what lies beside it",
        ),
        (&["--resp", "0", "--policy", "lru"], "usage", "tinylfu"),
        (&["--resp", "0", "--lossy-index"], "usage", "--items"),
        (
            &["--resp", "0", "--items", "9", "--lossy-index", "--policy", "noeviction"],
            "usage",
            "noeviction",
        ),
        (&["--resp", "0", "--value-tier", "numa:777"], "no-node", "nodes with memory: 0"),
        (&["--resp", "0", "--value-tier-rule", "bandwidth"], "usage", "--value-tier"),
        (&["--resp", "0", "--interleave", "numa:0=1,numa:9=1"], "no-node", "memory: 0"),
        (&["--resp", "0", "--interleave", "0:1"], "usage", "numa:0=3,numa:1=1"),
        (&["--resp", "0", "--interleave", "numa:0", "--grain", "3k"], "usage", "from 4K to 2M"),
        (&["--resp", "0", "--tiering", "dram", "--grain", "4k"], "usage", "--interleave"),
        (&["--resp", "0", "--tiering", "data:numa:777"], "no-node", "nodes with memory: 0"),
        (&["--resp", "0", "--tiering", "near"], "usage", "data:numa:1"),
        (&["--resp", "0", "--tiering", "transparent"], "usage", "rackpool tiers weights"),
        (&["--resp", "0", "--tiering", "data", "--interleave", "numa:0"], "usage", "--interleave"),
        (&["--resp", "0", "--far-memory", "1g"], "usage", "dram:NODES; tiering dram: "),
        (&["--resp", "0", "--tiering", "dram", "--far-memory", "1g"], "usage", "--tiering data"),
        (&["--resp", "0", "--profile", &nowhere], "usage", "--tiering"),
        (&["--resp", "0", "--tiering", "dram", "--profile", &nowhere], "usage", "--tiering data"),
        (&["--resp", "0", "--tiering", "data:numa:0", "--profile", &nowhere], "io", &nowhere),
        (
            &["--resp", "0", "--tiering", "data:numa:0", "--policy", "fifo"],
            "usage",
            "--policy tinylfu",
        ),
        (&["--resp", "0", "--tls-cert", &nowhere], "usage", "--tls-key"),
        (&["--herd-listen", "0", "--herd-clients", "16384"], "config", "16320"),
        (&["--memory", "1g"], "usage", "--memcached"),
        (&["--memcached", "0", "--secret-file", &nowhere], "usage", "--herd-listen"),
        (&["--memcached", "0", "--password-file", &nowhere], "usage", "--resp"),
        (&["--resp", "0", "--auth-file", &nowhere], "usage", "--memcached"),
        (
            &["--herd-listen", "0", "--tls-cert", &nowhere, "--tls-key", &nowhere],
            "usage",
            "--memcached and --resp",
        ),
        (&["--resp", "0", "--herd-clients", "1024"], "usage", "--herd-listen"),
        (&["--resp", "0", "--herd-pipeline", "batched"], "usage", "--herd-listen"),
        (
            &["--resp", "0", "--value-tier", "numa:0", "--value-tier-near", "1m"],
            "usage",
            "--value-tier-rule bandwidth",
        ),
    ] {
        let (exit, out, err) = told(&run(&[&["kv"], words].concat()));
        assert_eq!((exit, out.as_str()), (if code == "usage" { 2 } else { 1 }, ""), "{err}");
        assert!(err.starts_with(&format!("error {code} ")) && err.contains(way_out), "{err}");
    }
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let (exit, _, err) = told(&run(&["kv", "--resp", &port]));
    assert!(exit == 1 && err.starts_with("error io listening at"), "{err}");
}

#[test]
fn it_ends_with_the_process_that_started_it() {
    let mut child = rackpool()
        .args(["kv", "--resp", "0", "--exit-with-parent"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
}

/// A value that says which it is.
fn long_value(index: usize) -> Vec<u8> {
    (0..1_000_000).map(|at| (at / 7 + at * index) as u8).collect()
}

/// Bytes under a key by RESP; `Err` is the error that was answered.
fn get(stream: &mut TcpStream, key: &str) -> Result<Option<Vec<u8>>, String> {
    write!(stream, "GET {key}\r\n").unwrap();
    let (mut line, mut byte) = (Vec::new(), [0]);
    while !line.ends_with(b"\r\n") {
        stream.read_exact(&mut byte).unwrap();
        line.push(byte[0]);
    }
    let line = String::from_utf8(line).unwrap();
    if line.starts_with('-') {
        return Err(line);
    }
    let Ok(len) = line.trim_start_matches('$').trim_end().parse::<usize>() else {
        return Ok(None);
    };
    let mut bytes = vec![0; len + 2];
    stream.read_exact(&mut bytes).unwrap();
    bytes.truncate(len);
    Ok(Some(bytes))
}

fn connect(addr: &str) -> TcpStream {
    let stream = TcpStream::connect(addr).unwrap();
    stream.set_read_timeout(Some(WITHIN)).unwrap();
    stream
}

/// Frames that hold objects of less than a page, in both racks.
fn object_frames(cluster: &Cluster) -> [u64; 2] {
    let stats: serde_json::Value = serde_json::from_str(&cluster.ok(0, "stats --json")).unwrap();
    [0, 1].map(|rack| stats["racks"][rack]["daemon"]["frames_slab"].as_u64().expect("it is there"))
}

#[test]
fn long_values_lie_in_a_pool_of_two_racks_and_its_memory_comes_back_after_a_kill() {
    let mut cluster = Cluster::start("tcp");
    assert_eq!(object_frames(&cluster), [0, 0]);
    let master = cluster.master.addr.clone();
    let words = ["kv", "--memory", "32m", "--memcached", "0", "--resp", "0", "--threads", "1"];
    let pool = ["--pool", &master, "--pool-memory", "100m"];
    let mut server = Server::start(&[&words[..], &pool[..]].concat());
    let mut resp = connect(&door(&server, "resp"));
    let memcached = door(&server, "memcached");
    let values: Vec<Vec<u8>> = (0..90).map(long_value).collect();
    for (index, value) in values.iter().enumerate() {
        let head = format!("*3\r\n$3\r\nSET\r\n$8\r\nvalue-{index:02}\r\n${}\r\n", value.len());
        resp.write_all(&[head.as_bytes(), value, b"\r\n"].concat()).unwrap();
        let mut ok = [0; 5];
        resp.read_exact(&mut ok).unwrap();
        assert_eq!(&ok, b"+OK\r\n");
    }
    assert_eq!(ask(&memcached, "set short 0 0 5\r\nhello\r\n", "\r\n"), "STORED\r\n");
    for (index, value) in values.iter().enumerate() {
        let found = get(&mut resp, &format!("value-{index:02}")).unwrap();
        assert!(found.as_ref() == Some(value), "value {index}");
    }
    let stats = ask(&memcached, "stats\r\n", "END\r\n");
    assert!(stats.contains("STAT tier_items 90\r\nSTAT tier_bytes 90000000\r\n"), "{stats}");
    assert!(stats.contains("STAT tier_failed 0\r\n"), "{stats}");
    // Two values a page: the own rack is full, the rest lies in the other one.
    assert_eq!(object_frames(&cluster), [32, 13]);

    // A rack dies: its values are errors in bounded time, everything else is served.
    cluster.daemons[1].child.kill().unwrap();
    cluster.daemons[1].child.wait().unwrap();
    let mut failed = 0;
    for (index, value) in values.iter().enumerate() {
        match get(&mut resp, &format!("value-{index:02}")) {
            Ok(found) => assert!(found.as_ref() == Some(value), "value {index}"),
            Err(error) => {
                assert!(error.contains("reading a value in the other tier failed"), "{error}");
                failed += 1;
                if failed == 3 {
                    break;
                }
            }
        }
    }
    assert_eq!(failed, 3, "some lie in the rack that is gone");
    assert_eq!(ask(&memcached, "get short\r\n", "END\r\n"), "VALUE short 0 5\r\nhello\r\nEND\r\n");
    assert!(ask(&memcached, "stats\r\n", "END\r\n").contains("STAT tier_failed 3\r\n"));
    // It comes back with its memory, also for a cache that asks only when the grace is over.
    cluster.daemons[1] = cluster.daemon(1, "tcp");
    std::thread::sleep(std::time::Duration::from_millis(5500));
    for (index, value) in values.iter().enumerate() {
        let found = get(&mut resp, &format!("value-{index:02}"));
        assert!(found.as_ref() == Ok(&Some(value.clone())), "value {index}: {:?}", found.err());
    }

    server.child.kill().unwrap();
    server.child.wait().unwrap();
    let start = std::time::Instant::now();
    // The other rack waits for a while whether a connection that ended comes again.
    while object_frames(&cluster) != [0, 0] {
        assert!(start.elapsed() < 2 * WITHIN, "{}", cluster.ok(0, "stats --json"));
        std::thread::sleep(std::time::Duration::from_millis(200));
    }
}

#[test]
fn a_pool_that_is_not_there_is_said_at_once() {
    let words = ["kv", "--memory", "32m", "--resp", "0", "--pool", "127.0.0.1:1"];
    let (code, out, err) = told(&run(&words));
    assert_eq!((code, out.as_str()), (1, ""), "{err}");
    assert!(err.contains("127.0.0.1:1"), "{err}");
    assert!(err.starts_with("error peer-dead ") && err.contains("rackpool master"), "{err}");
    let words = ["kv", "--memory", "32m", "--resp", "0", "--pool-memory", "1g"];
    let (code, _, err) = told(&run(&words));
    assert!(code == 2 && err.contains("--pool"), "{err}");
}

#[cfg(feature = "lab")]
#[test]
fn what_herd_is_compared_with_is_measured_beside_it_and_every_message_counted() {
    let dir = Dir::new();
    let json = dir.file("beside.json");
    let words = ["bench", "kv", "--baselines", "--quick", "--json", &json];
    let (exit, out, err) = told(&run(&words));
    assert_eq!(exit, 0, "{err}");
    let report = Report::read(json.as_ref()).unwrap();
    let number = |name: &str, field: &str| {
        let row = report.results.iter().find(|row| row.name == name);
        let row = row.unwrap_or_else(|| panic!("no {name} in {out}"));
        assert!(row.ours > 0.0 && row.p50.is_some() && row.p99.is_some(), "{name}");
        row.extra[field].as_f64().unwrap()
    };
    for form in ["em_", ""] {
        for (name, least, most) in [("pilaf_", 2.3, 2.9), ("farm_", 1.0, 1.0), ("farm_", 2.0, 2.0)]
        {
            let var = if least == 2.0 { "var_" } else { "" };
            let reads = number(&format!("{name}{form}{var}get"), "reads_per_get");
            assert!((least..=most).contains(&reads), "{name}{form}{var}: {reads}");
            let messages = number(&format!("{name}{form}{var}put"), "messages_per_request");
            assert_eq!(messages, 2.0, "{name}{form}{var}");
        }
    }
    for name in ["echo_write_write", "echo_write_send", "echo_send_send"] {
        assert_eq!(number(name, "messages_per_request"), 2.0);
    }
    // HERD says again what is not answered soon.
    assert!(number("herd_beside_get", "messages_per_request") >= 2.0);
    assert!(number("herd_beside_put", "messages_per_request") >= 2.0);
    let (exit, _, err) = told(&run(&["bench", "kv", "--baselines=proxied", "--quick"]));
    assert_eq!((exit, err.contains("shm, tcp or verbs")), (2, true), "{err}");
}
