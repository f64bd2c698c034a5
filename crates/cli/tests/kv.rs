//! `rackpool kv` as operators run it: doors, a kill and a warm restart, refusals.

mod common;

use common::{Dir, Server, WITHIN, rackpool, run, told, unique};
use rackpool_kv::herd::Client;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Stdio;

/// The address of a door on the ready line.
fn door(server: &Server, name: &str) -> String {
    let found = server.addr.split(' ').find_map(|word| word.strip_prefix(&format!("{name}=")));
    found.unwrap_or_else(|| panic!("{}", server.addr)).to_owned()
}

/// Says something and reads until the answer ends so.
fn ask(addr: &str, said: &str, end: &str) -> String {
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
    let stats = ask(&memcached, "stats\r\n", "END\r\n");
    for line in ["STAT herd_gets 1\r\n", "STAT herd_hits 1\r\n", "STAT herd_puts 1\r\n"] {
        assert!(stats.contains(line), "{stats}");
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
    let stats = ask(&memcached, "stats\r\n", "END\r\n");
    assert!(stats.contains("STAT herd_gets 1\r\n"), "{stats}");
    assert_eq!(server.terminate(), Some(0));
    assert_eq!(client.delete(b"b").unwrap_err().code(), "gone");
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
        (&["--resp", "0", "--policy", "lru"], "usage", "tinylfu"),
        (&["--resp", "0", "--tls-cert", &nowhere], "usage", "--tls-key"),
        (&["--memory", "1g"], "usage", "--memcached"),
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
