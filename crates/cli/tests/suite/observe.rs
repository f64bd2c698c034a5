//! What a pool tells about itself, asked of real processes: counters over HTTP, `stats`, `top`.

use crate::common::{Cluster, Dir, Server, WITHIN, run, told, unique};
use std::collections::BTreeMap;
use std::fs::Permissions;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

/// The body of `GET /metrics`, which succeeds.
fn scrape(addr: &str) -> String {
    let mut stream = TcpStream::connect(addr).expect("the metrics endpoint listens");
    stream.set_read_timeout(Some(WITHIN)).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: rackpool\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{answer}"));
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    assert!(head.contains(&format!("Content-Length: {}\r\n", body.len())), "{head}");
    body.to_owned()
}

/// Samples by name and labels.
fn samples(text: &str) -> BTreeMap<String, u64> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let whole = lines.filter_map(|line| {
        let (name, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("{line}"));
        Some((name.to_owned(), value.parse().ok()?))
    });
    whole.collect()
}

/// The two addresses of `ready ADDR metrics=ADDR`.
fn both(server: &Server) -> (String, String) {
    let (addr, metrics) = server.addr.split_once(" metrics=").expect("metrics were asked for");
    (addr.to_owned(), metrics.to_owned())
}

#[test]
fn master_and_daemon_tell_their_counters_over_http() {
    let words = ["master", "--listen", "127.0.0.1:0", "--ephemeral", "--metrics", "0"];
    let mut master = Server::start(&words);
    let (master_addr, master_metrics) = both(&master);
    let memory = format!("shm:/dev/shm/{}?size=16M&pages=64K", unique("metrics"));
    let mut daemon = Server::start(&[
        "daemon",
        "--rack",
        "3",
        "--master",
        &master_addr,
        "--memory",
        &memory,
        "--ephemeral",
        "--metrics",
        "127.0.0.1:0",
    ]);
    let (_, daemon_metrics) = both(&daemon);
    let before = samples(&scrape(&daemon_metrics));
    assert_eq!(before["rackpool_rack_allocations_total{rack=\"3\"}"], 0);
    let shell = |commands: &str| {
        told(&run(&["shell", "--rack", "3", "--master", &master_addr, "-c", commands]))
    };
    assert_eq!(shell("alloc 100K; alloc 64; alloc 64").0, 0);
    assert_eq!(shell("alloc 1G local").0, 1);
    let after = samples(&scrape(&daemon_metrics));
    assert_eq!(after["rackpool_rack_allocations_total{rack=\"3\"}"], 3);
    assert_eq!(after["rackpool_rack_allocations{rack=\"3\"}"], 3);
    assert_eq!(after["rackpool_rack_allocated_bytes{rack=\"3\"}"], (128 << 10) + 128);
    assert_eq!(after["rackpool_rack_requests_total{rack=\"3\",kind=\"alloc\"}"], 4);
    assert_eq!(after["rackpool_rack_refusals_total{rack=\"3\",code=\"full\"}"], 1);
    assert_eq!(after["rackpool_rack_sessions_made_total{rack=\"3\"}"], 2);
    let names = |samples: &BTreeMap<String, u64>| samples.keys().cloned().collect::<Vec<_>>();
    assert!(names(&before).iter().all(|name| after.contains_key(name)), "none goes away");

    let of_master = samples(&scrape(&master_metrics));
    assert_eq!(of_master["rackpool_rack_up{rack=\"3\"}"], 1);
    assert_eq!(of_master["rackpool_master_calls_total{kind=\"join_client\"}"], 2);
    assert!(of_master["rackpool_master_pages"] >= 3);
    assert_eq!(daemon.terminate(), Some(0));
    let start = std::time::Instant::now();
    while samples(&scrape(&master_metrics))["rackpool_rack_up{rack=\"3\"}"] != 0 {
        assert!(start.elapsed() < WITHIN, "the rack's end is never told");
    }
    assert_eq!(master.terminate(), Some(0));
}

/// A master, a daemon and a cache that serves its counters at `metrics`, with further words; and
/// where.
fn servers(metrics: &str, more: &[&str]) -> (Vec<Server>, Vec<SocketAddr>) {
    let with = |words: &[&str]| Server::start(&[words, &["--metrics", metrics], more].concat());
    let master = with(&["master", "--listen", "127.0.0.1:0", "--ephemeral"]);
    let master_addr = master.addr.split(' ').next().unwrap().to_owned();
    let memory = format!("shm:/dev/shm/{}?size=16M&pages=64K", unique("probed"));
    let daemon = ["daemon", "--rack", "0", "--master", &master_addr, "--memory", &memory];
    let daemon = with(&[&daemon[..], &["--ephemeral"]].concat());
    let kv = with(&["kv", "--memory", "8m", "--threads", "1", "--resp", "0"]);
    let servers = vec![master, daemon, kv];
    let addr = |server: &Server| {
        let addr = server.addr.split(' ').find_map(|word| word.strip_prefix("metrics=")).unwrap();
        let port = addr.rsplit_once(':').unwrap().1.parse().unwrap();
        SocketAddr::from(([127, 0, 0, 1], port))
    };
    let addrs = servers.iter().map(addr).collect();
    (servers, addrs)
}

/// The first line and the body that a request is answered with.
fn http(addr: SocketAddr, request: &str) -> (String, String) {
    let mut stream = TcpStream::connect(addr).expect("the endpoint listens");
    stream.set_read_timeout(Some(WITHIN)).unwrap();
    stream.write_all(format!("{request} HTTP/1.1\r\n\r\n").as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{answer}"));
    (head.lines().next().unwrap().to_owned(), body.to_owned())
}

#[test]
fn every_server_tells_its_counters_and_whether_it_is_ready_however_many_readers_are_silent() {
    let (mut servers, addrs) = servers("127.0.0.1:0", &[]);
    for (addr, name) in addrs.iter().zip(["master", "daemon", "kv"]) {
        let silent: Vec<TcpStream> = (0..100).map(|_| TcpStream::connect(addr).unwrap()).collect();
        let start = std::time::Instant::now();
        for request in
            ["GET /metrics", "HEAD /metrics", "GET /metrics?a=b", "GET /livez", "GET /readyz"]
        {
            let (line, body) = http(*addr, request);
            assert_eq!(line, "HTTP/1.1 200 OK", "{name}: {request}: {body}");
            assert_eq!(body.is_empty(), request.starts_with("HEAD"), "{name}: {request}: {body}");
        }
        // Each silent one before cost half a second.
        assert!(start.elapsed() < WITHIN / 2, "{name}: {:?}", start.elapsed());
        assert_eq!(http(*addr, "POST /livez").0, "HTTP/1.1 405 Method Not Allowed");
        assert_eq!(http(*addr, "GET /").0, "HTTP/1.1 404 Not Found");
        let (_, text) = http(*addr, "GET /metrics");
        assert!(text.contains(&format!(",server=\"{name}\"}} 1\n")), "{text}");
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let name = line.split(['{', ' ']).next().unwrap();
            let parts = ["_bucket", "_sum", "_count"].map(|part| name.strip_suffix(part));
            let said = |name: &str, what: &str| text.contains(&format!("# {what} {name} "));
            let is_said = |name| said(name, "HELP") && said(name, "TYPE");
            assert!(is_said(name) || parts.into_iter().flatten().any(is_said), "{line}");
        }
        drop(silent);
    }
    // A daemon without its master lives, and should not be given clients.
    servers[0].terminate();
    let start = std::time::Instant::now();
    while http(addrs[1], "GET /readyz").0 != "HTTP/1.1 503 Service Unavailable" {
        assert!(start.elapsed() < WITHIN, "the daemon says that it is ready");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert_eq!(http(addrs[1], "GET /livez").0, "HTTP/1.1 200 OK");
    // Its region goes with it.
    assert_eq!(servers[1].terminate(), Some(0));
}

#[test]
fn where_other_machines_can_ask_the_counters_are_for_those_who_have_the_token() {
    let dir = Dir::new();
    let (token, path) = ("a token that is long enough", dir.file("token"));
    std::fs::write(&path, format!("{token}\n")).unwrap();
    let set_mode = |mode| std::fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
    set_mode(0o644);
    let words = ["kv", "--memory", "8m", "--resp", "0", "--metrics", "0.0.0.0:0"];
    let with = |more: &[&str]| told(&run(&[&words[..], more].concat()));
    let (code, _, err) = with(&["--metrics-token-file", &path]);
    assert!(code == 1 && err.starts_with("error config "), "{code} {err}");
    // Nothing else opens them.
    let (code, _, err) = with(&["--insecure-open"]);
    assert!(code == 1 && err.starts_with("error denied "), "{code} {err}");
    set_mode(0o600);
    let (mut servers, addrs) = servers("0.0.0.0:0", &["--metrics-token-file", &path]);
    for addr in addrs {
        assert_eq!(http(addr, "GET /metrics").0, "HTTP/1.1 401 Unauthorized");
        let with =
            |token: &str| format!("GET /metrics HTTP/1.1\r\nAuthorization: Bearer {token}\r\nX:");
        assert_eq!(http(addr, &with("another token of its length")).0, "HTTP/1.1 401 Unauthorized");
        assert_eq!(http(addr, &with(token)).0, "HTTP/1.1 200 OK");
        assert_eq!(http(addr, "GET /livez").0, "HTTP/1.1 200 OK");
    }
    for server in servers.iter_mut().rev() {
        assert_eq!(server.terminate(), Some(0));
    }
}

#[test]
fn metrics_are_refused_where_others_could_read_them_or_somebody_listens() {
    let state = Dir::new();
    let words = ["master", "--listen", "127.0.0.1:0", "--state", &state.file("state")];
    let with = |metrics: &str| told(&run(&[&words[..], &["--metrics", metrics]].concat()));
    let (code, out, err) = with("0.0.0.0:0");
    assert_eq!((code, out.as_str()), (1, ""), "{err}");
    assert!(err.starts_with("error denied "), "{err}");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let (code, out, err) = with(&taken.local_addr().unwrap().port().to_string());
    assert_eq!((code, out.as_str()), (1, ""), "{err}");
    assert!(err.contains("error io serving metrics at 127.0.0.1:"), "{err}");
}

#[test]
fn stats_tell_requests_by_kind_refusals_and_paths_and_keep_what_they_told_before() {
    let cluster = Cluster::start("tcp");
    let addr = cluster.ok(0, "alloc 64 rack:1");
    let (_, _, err) = cluster.shell(0, "alloc 80M local");
    assert!(err.starts_with("error full "), "{err}");
    let work = format!("write {addr} text:there; read {addr} 5 text; stats --json");
    let told = cluster.ok(0, &work);
    let json = told.strip_prefix("ok\nthere\n").unwrap_or_else(|| panic!("{told}"));
    let stats: serde_json::Value = serde_json::from_str(json).unwrap();
    for field in ["pages", "pages_lost", "roots", "daemons", "clients", "requests", "index"] {
        assert!(stats["master"][field].is_u64(), "{field}: {stats}");
    }
    let (here, there) = (&stats["racks"][0]["daemon"], &stats["racks"][1]["daemon"]);
    for field in ["frames", "frames_free", "allocated_bytes", "slots_used", "requests"] {
        assert!(here[field].is_u64(), "{field}: {stats}");
    }
    assert_eq!(here["answers"]["refused"]["full"], 1);
    assert_eq!(there["requests_by_kind"]["alloc"], 1);
    assert!(there["fabric"]["operations"].as_u64() >= Some(2), "{there}");
    let paths = &stats["handle"]["paths"];
    assert_eq!(paths["other_rack_fabric"]["accesses"], 2);
    assert_eq!(paths["other_rack_fabric"]["bytes"], 10);
    assert_eq!(paths["other_rack_fabric"]["latency"]["count"], 2);
    assert_eq!(paths["own_rack"]["accesses"], 0);
    assert!(stats["master"]["calls_by_kind"]["resolve"].as_u64() >= Some(1), "{stats}");

    let text = cluster.ok(1, "stats --prometheus");
    let found = samples(&text);
    assert_eq!(found["rackpool_rack_up{rack=\"0\"}"], 1);
    assert_eq!(found["rackpool_rack_refusals_total{rack=\"0\",code=\"full\"}"], 1);
    assert!(text.contains("# TYPE rackpool_handle_access_seconds histogram"), "{text}");
}

fn row<'t>(text: &'t str, rack: &str) -> Vec<&'t str> {
    let rows = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let found = rows.into_iter().find(|cells| cells.len() == 13 && cells[0] == rack);
    found.unwrap_or_else(|| panic!("no rack {rack} in {text}"))
}

#[test]
fn top_prints_one_table_in_a_pipe_and_shows_which_rack_is_dead() {
    let mut cluster = Cluster::start("tcp");
    assert_eq!(cluster.ok(0, "put a text:b"), "ok");
    let top =
        |master: &str| told(&run(&["top", "--master", master, "--once", "--interval", "0.2"]));
    let (code, out, err) = top(&cluster.master.addr);
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    assert!(out.contains("2 of 2 racks alive") && !out.contains('\x1b'), "{out}");
    let cells = row(&out, "0");
    assert_eq!((cells[1], cells[2], cells[3]), ("alive", "tcp", "32"), "{out}");
    assert!(cells[10].parse::<u64>().unwrap() >= 1, "its own request is counted: {out}");
    assert_eq!(row(&out, "RACK")[10], "REQ/S");

    assert_eq!(cluster.daemons[0].terminate(), Some(0));
    let (code, out, err) = top(&cluster.master.addr);
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    assert_eq!((row(&out, "0")[1], row(&out, "1")[1]), ("dead", "alive"), "{out}");
    assert!(out.contains("1 of 2 racks alive"), "{out}");

    let (code, out, err) = top("127.0.0.1:1");
    assert_eq!((code, out.as_str()), (1, ""));
    assert!(err.starts_with("error peer-dead "), "{err}");
}

#[test]
fn top_goes_on_while_a_daemon_restarts_and_ends_on_a_signal() {
    let mut cluster = Cluster::start("tcp");
    let words = ["top", "--master", &cluster.master.addr, "--interval", "0.1"];
    let mut child = crate::common::rackpool().args(words).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut until = |wanted: [&str; 2]| {
        let found = lines.by_ref().map(|line| line.expect("text")).find(|line| {
            let cells: Vec<_> = line.split_whitespace().collect();
            cells.starts_with(&wanted)
        });
        assert!(found.is_some(), "top ended before it showed {wanted:?}");
    };
    until(["1", "alive"]);
    assert_eq!(cluster.daemons[1].terminate(), Some(0));
    until(["1", "dead"]);
    cluster.daemons[1] = cluster.daemon(1, "tcp");
    until(["1", "alive"]);
    let mut top = Server { child, addr: String::new() };
    assert_eq!(top.terminate(), Some(0));
}
