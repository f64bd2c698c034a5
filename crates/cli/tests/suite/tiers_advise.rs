//! `rackpool tiers advise` of a running `kv`, and `kv --tiering auto`.

use crate::common::{Dir, Server, rackpool, run, told};
use crate::kv::{ask, door};
use serde_json::Value;

fn profile(dir: &Dir) -> String {
    let file = dir.file("profile.json");
    std::fs::write(&file, crate::tiers::profile().to_string()).unwrap();
    file
}

fn names(answer: &Value) -> Vec<&str> {
    let modes = answer["modes"].as_array().unwrap().iter();
    modes.map(|mode| mode["mode"].as_str().unwrap()).collect()
}

#[test]
fn a_running_cache_is_told_what_each_mode_would_do_for_its_load() {
    const KEYS: u32 = 5000;
    let dir = Dir::new();
    let profile = profile(&dir);
    let words = ["kv", "--memory", "32m", "--memcached", "0", "--metrics", "0", "--threads", "1"];
    let mut server = Server::start(&[&words[..], &["--advise", "--profile", &profile]].concat());
    let (memcached, metrics) = (door(&server, "memcached"), door(&server, "metrics"));
    let value = "v".repeat(200);
    let sets: String = (0..KEYS).map(|key| format!("ms key{key} 200 q\r\n{value}\r\n")).collect();
    ask(&memcached, &(sets + "mn\r\n"), "MN\r\n");
    let gets: String = (0..KEYS).map(|key| format!("mg key{key} q\r\n")).collect();
    for _ in 0..3 {
        ask(&memcached, &(gets.clone() + "mg none\r\nmn\r\n"), "EN\r\nMN\r\n");
    }
    let words = ["tiers", "advise", "--kv", &metrics, "--seconds", "0.1", "--profile", &profile];
    let (code, text, err) = told(&run(&[&words[..], &["--json", "-"]].concat()));
    assert_eq!(code, 0, "{err}");
    let answer: Value = serde_json::from_str(&text).unwrap();
    // All that is read is in the cache, and nothing is asked for just now.
    assert_eq!(answer["chosen"], "dram", "{text}");
    assert_eq!(names(&answer), ["dram", "data", "transparent"]);
    assert_eq!(answer["near"]["bytes"], 32 << 20);
    assert_eq!(answer["far"]["latency_ns"], 250.0);
    let hits = answer["modes"][0]["hit_ratio"].as_f64().unwrap();
    assert!(hits > 0.9, "{text}");
    assert!(err.contains("use dram") && err.contains("a look-up takes"), "{err}");
    // The same counters by another plan.
    let more = ["--gets", "1e12", "--far", "numa:2", "--far-memory", "1g"];
    let (code, text, err) = told(&run(&[&words[..], &more].concat()));
    assert_eq!(code, 0, "{err}");
    assert!(text.contains("at full load"), "{text}");
    assert_eq!(server.terminate(), Some(0));
}

#[test]
fn a_server_without_these_counters_is_refused_with_the_way_out() {
    let dir = Dir::new();
    let profile = profile(&dir);
    let words = ["kv", "--memory", "8m", "--memcached", "0", "--metrics", "0", "--threads", "1"];
    let mut server = Server::start(&words);
    let (memcached, metrics) = (door(&server, "memcached"), door(&server, "metrics"));
    let asked = |addr: &str| {
        let words = ["tiers", "advise", "--kv", addr, "--profile", &profile, "--seconds", "0.1"];
        let (code, _, err) = told(&run(&words));
        assert_eq!(code, 1, "{err}");
        err
    };
    assert!(asked(&metrics).contains("error no-load"));
    ask(&memcached, "set a 0 0 1\r\nb\r\nget a\r\n", "END\r\n");
    let err = asked(&metrics);
    assert!(err.contains("error config") && err.contains("with --advise"), "{err}");
    assert!(asked(&memcached).contains("kv --metrics"));
    assert_eq!(server.terminate(), Some(0));
    assert!(asked(&metrics).contains("error io"));
}

#[test]
#[cfg(feature = "lab")]
fn a_workload_is_advised_without_a_server() {
    let dir = Dir::new();
    let profile = profile(&dir);
    let words = ["tiers", "advise", "--workload"];
    let others = ["--near-memory", "8g", "--far-memory", "24g", "--profile", &profile];
    let (code, text, err) =
        told(&run(&[&words[..], &["follower_assocs", "--json", "-"], &others].concat()));
    assert_eq!(code, 0, "{err}");
    let answer: Value = serde_json::from_str(&text).unwrap();
    let hits = |mode: usize| answer["modes"][mode]["hit_ratio"].as_f64().unwrap();
    assert!(hits(0) > 0.3 && hits(0) <= hits(1) && hits(1) < 1.0, "{text}");
    // No stores but of what is missed; headers and keys of 8 to 64 bytes are in its items.
    let load = |name: &str| answer["load"][name].as_f64().unwrap();
    assert_eq!((load("sets_per_get"), load("fills_per_miss")), (0.0, 1.0), "{text}");
    assert!(load("item_bytes") > 567.0 + 8.0 + 20.0, "{text}");
    let refused = |more: &[&str], why: &str| {
        let (code, _, err) = told(&run(&[&words[..], more, &others].concat()));
        assert!(code == 2 && err.contains(why), "{err}");
    };
    refused(&["tapes"], "is none of");
    refused(&["cdn", "--miss-us", "500"], "give --gets");
}

#[test]
fn the_default_mode_is_said_with_its_reason() {
    let dir = Dir::new();
    let log = dir.file("log");
    let mut command = rackpool();
    command.args(["kv", "--memcached", "0", "--memory", "8m"]);
    let mut server = Server::by(command.stderr(std::fs::File::create(&log).unwrap()));
    assert_eq!(server.terminate(), Some(0));
    let said = std::fs::read_to_string(&log).unwrap();
    // A machine of a test may have such nodes.
    assert!(said.contains("tiering dram: ") || said.contains("tiering data: "), "{said}");
}
