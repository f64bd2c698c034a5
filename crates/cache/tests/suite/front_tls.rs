//! Both protocols over TLS: ordinary clients, values of every length, and clients without TLS.

use crate::peers::{Rng, WITHIN, connect, is_there, set, wait_until};
use rackpool_cache::front::{Count, ListenConfig, Server, Settings, Tls};
use rackpool_cache::{Cache, Options};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

type Client = StreamOwned<ClientConnection, TcpStream>;

/// A server with a certificate of its own making, in a directory that goes with it.
struct Rig {
    server: Server,
    directory: PathBuf,
    certificate: CertificateDer<'static>,
}

impl Drop for Rig {
    fn drop(&mut self) {
        // Left behind it would do no damage.
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// A file that only we may read.
fn write_private(path: &Path, text: &str) {
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap();
}

impl Rig {
    fn start(name: &str) -> Rig {
        Rig::start_with(name, Settings::default())
    }

    fn start_with(name: &str, settings: Settings) -> Rig {
        let directory =
            std::env::temp_dir().join(format!("rackpool-tls-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let (chain, key) = (directory.join("cert.pem"), directory.join("key.pem"));
        std::fs::write(&chain, made.cert.pem()).unwrap();
        write_private(&key, &made.signing_key.serialize_pem());
        let any = Some("127.0.0.1:0".parse().unwrap());
        let tls = Some(Tls::read(&chain, &key).unwrap());
        let doors = ListenConfig { memcached: any, resp: any, tls, ..ListenConfig::default() };
        let options = Options { memory: 256 << 20, max_value: 16 << 20, ..Options::default() };
        let value_bytes_max = options.max_value;
        let settings = Settings { value_bytes_max, ..settings };
        let server = Server::start(Cache::new(options).unwrap(), settings, &doors).unwrap();
        Rig { server, directory, certificate: made.cert.der().clone() }
    }

    fn client(&self, addr: Option<SocketAddr>) -> Client {
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate.clone()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let name = ServerName::try_from("localhost").unwrap();
        let connection = ClientConnection::new(Arc::new(config), name).unwrap();
        StreamOwned::new(connection, connect(addr.unwrap()))
    }

    fn file(&self, name: &str) -> String {
        self.directory.join(name).to_str().unwrap().to_owned()
    }
}

fn read_to(client: &mut Client, expected: &[u8]) {
    let mut got = vec![0; expected.len()];
    client.read_exact(&mut got).unwrap();
    assert!(got == expected, "{} bytes", expected.len());
}

#[test]
fn values_of_every_length_go_in_and_come_out_encrypted() {
    let rig = Rig::start("values");
    let (memcached, resp) = rig.server.addrs();
    let mut rng = Rng(3);
    for len in [0, 1, 16 << 10, (16 << 10) + 1, 128 << 10, 1 << 20, 9_000_000] {
        let value: Vec<u8> = (0..len).map(|_| rng.next() as u8).collect();
        let mut client = rig.client(memcached);
        client.write_all(format!("set key 0 0 {len}\r\n").as_bytes()).unwrap();
        for piece in value.chunks(1 + rng.below(200_000)) {
            client.write_all(piece).unwrap();
        }
        client.write_all(b"\r\n").unwrap();
        read_to(&mut client, b"STORED\r\n");
        let mut client = rig.client(resp);
        for _ in 0..4 {
            client.write_all(b"*2\r\n$3\r\nGET\r\n$3\r\nkey\r\nPING\r\n").unwrap();
            read_to(&mut client, format!("${len}\r\n").as_bytes());
            read_to(&mut client, &value);
            read_to(&mut client, b"\r\n+PONG\r\n");
        }
    }
}

#[test]
fn what_was_answered_before_the_end_comes_whatever_is_sent_behind_it() {
    let rig = Rig::start("end");
    let mut client = rig.client(rig.server.addrs().0);
    let len = 500_000;
    let value = vec![b'v'; len];
    client.write_all(&set("v", &value)).unwrap();
    read_to(&mut client, b"STORED\r\n");
    for _ in 0..2 {
        client.write_all(b"get v\r\nquit\r\n").unwrap();
        std::thread::sleep(Duration::from_millis(50));
    }
    read_to(&mut client, format!("VALUE v 0 {len}\r\n").as_bytes());
    read_to(&mut client, &value);
    read_to(&mut client, b"\r\nEND\r\n");
    // The end was said, not only made.
    assert_eq!(client.read(&mut [0]).unwrap(), 0);
}

#[test]
fn many_commands_in_few_records_are_all_answered() {
    let rig = Rig::start("pipeline");
    let mut client = rig.client(rig.server.addrs().1);
    // More than a channel takes in at once, and more answers than it takes.
    let count = 100_000;
    let asker = std::thread::scope(|scope| {
        let mut socket = client.sock.try_clone().unwrap();
        client.conn.complete_io(&mut client.sock).unwrap();
        client.conn.set_buffer_limit(None);
        for _ in 0..count {
            client.conn.writer().write_all(b"*2\r\n$4\r\nECHO\r\n$8\r\n12345678\r\n").unwrap();
        }
        let mut records = Vec::new();
        while client.conn.wants_write() {
            client.conn.write_tls(&mut records).unwrap();
        }
        scope.spawn(move || socket.write_all(&records).unwrap());
        let mut got = vec![0; count * 14];
        client.read_exact(&mut got).unwrap();
        got
    });
    assert!(asker.chunks(14).all(|answer| answer == b"$8\r\n12345678\r\n"));
}

#[test]
fn who_does_not_speak_tls_is_sent_away_and_others_are_served() {
    let rig = Rig::start("plain");
    for said in [b"set a 0 0 1\r\nb\r\n".to_vec(), vec![22, 3, 1, 255, 255], vec![0; 40_000]] {
        let mut plain = connect(rig.server.addrs().0.unwrap());
        // It may be disconnected while it still sends.
        let _ = plain.write_all(&said);
        let _ = plain.shutdown(std::net::Shutdown::Write);
        plain.set_read_timeout(Some(WITHIN)).unwrap();
        let mut heard = Vec::new();
        // An alert, if anything; reset is as good an end.
        let _ = plain.read_to_end(&mut heard);
        assert!(heard.len() < 64 && !heard.starts_with(b"STORED"), "{heard:?}");
    }
    // A client that stops to speak it in the midst of a conversation is answered that far, and
    // disconnected.
    let mut client = rig.client(rig.server.addrs().1);
    client.write_all(b"PING\r\n").unwrap();
    read_to(&mut client, b"+PONG\r\n");
    client.conn.writer().write_all(b"PING\r\n").unwrap();
    let mut records = Vec::new();
    client.conn.write_tls(&mut records).unwrap();
    records.extend_from_slice(&[b'x'; 400]);
    client.sock.write_all(&records).unwrap();
    client.sock.set_read_timeout(Some(WITHIN)).unwrap();
    let mut heard = Vec::new();
    let end = client.sock.read_to_end(&mut heard).map_err(|error| error.kind());
    assert!(matches!(end, Ok(_) | Err(std::io::ErrorKind::ConnectionReset)), "{end:?}");
    let mut client = rig.client(rig.server.addrs().0);
    client.write_all(b"get a\r\nquit\r\n").unwrap();
    let mut heard = Vec::new();
    // The end is said, so that no attacker can have cut it off.
    client.read_to_end(&mut heard).unwrap();
    assert_eq!(heard, b"END\r\n");
}

#[test]
fn a_handshake_that_does_not_end_gives_its_place_back() {
    let settings = Settings { handshake_ms: 500, connections_max: 3, ..Settings::default() };
    let rig = Rig::start_with("silent", settings);
    let addrs = rig.server.addrs();
    let mut known = rig.client(addrs.1);
    known.write_all(b"PING\r\n").unwrap();
    read_to(&mut known, b"+PONG\r\n");
    let (mut silent, mut slow) = (connect(addrs.0.unwrap()), connect(addrs.1.unwrap()));
    // The beginning of a greeting, and no more of it than keeps the connection busy.
    slow.write_all(&[22, 3, 1, 2, 0, 1]).unwrap();
    let start = std::time::Instant::now();
    while rig.server.shared().count(Count::HandshakeTimeouts) < 2 {
        assert!(start.elapsed() < WITHIN, "they have their places still");
        let _ = slow.write(&[0]);
        std::thread::sleep(Duration::from_millis(50));
    }
    // The end is said, and nothing else.
    let mut heard = Vec::new();
    let _ = silent.read_to_end(&mut heard);
    assert!(heard.len() < 64, "{heard:?}");
    known.write_all(b"PING\r\n").unwrap();
    read_to(&mut known, b"+PONG\r\n");
    let mut next = rig.client(addrs.0);
    next.write_all(b"mn\r\n").unwrap();
    read_to(&mut next, b"MN\r\n");
}

#[test]
fn connections_that_are_reset_leave_nothing_counted() {
    let rig = Rig::start_with("reset", Settings::default());
    let shared = rig.server.shared();
    for index in 0..40 {
        let mut client = connect(rig.server.addrs().0.unwrap());
        if index % 2 == 0 {
            client.write_all(&[22, 3, 1, 0x3f, 0, 1]).unwrap();
        }
        rustix::net::sockopt::set_socket_linger(&client, Some(Duration::ZERO)).unwrap();
    }
    wait_until("none is left", || shared.count(Count::Accepted) >= 40 && shared.connections() == 0);
    // Relaxed: a number.
    assert_eq!(shared.held_bytes.load(std::sync::atomic::Ordering::Relaxed), 0);
    let mut next = rig.client(rig.server.addrs().0);
    next.write_all(b"mn\r\n").unwrap();
    read_to(&mut next, b"MN\r\n");
}

#[test]
fn greetings_that_are_half_sent_take_no_more_than_all_may() {
    // Two descriptors each.
    rackpool_mem::process::raise_descriptor_limit();
    let (count, most) = (1000, 4 << 20);
    let (held_bytes_max, handshake_ms) = (most, 60_000);
    let settings = Settings { held_bytes_max, handshake_ms, ..Settings::default() };
    let rig = Rig::start_with("many", settings);
    let shared = rig.server.shared();
    let mut known = rig.client(rig.server.addrs().1);
    known.write_all(b"PING\r\n").unwrap();
    read_to(&mut known, b"+PONG\r\n");
    // The head of a long record, or of several, and some of what it announces; or nothing.
    let half =
        |bytes: usize| [&[22_u8, 3, 1, 0x3f, 0, 1, 0, 0x3e, 0xfc][..], &vec![0; bytes]].concat();
    let said = [half(10_000), half(300), Vec::new()];
    let mut greeters = Vec::new();
    for index in 0..count {
        let mut greeter = connect(rig.server.addrs().0.unwrap());
        // It may be ended in the midst of this.
        let _ = greeter.write_all(&said[index % said.len()]);
        greeters.push(greeter);
    }
    // Relaxed: a number.
    let held = || shared.held_bytes.load(std::sync::atomic::Ordering::Relaxed);
    wait_until("all came, and hold little", || {
        held() <= most && shared.count(Count::Accepted) > count as u64
    });
    // What is still on its way has come then.
    std::thread::sleep(Duration::from_millis(200));
    // Each of those that are left is counted with all that it takes.
    let left = shared.connections();
    assert!(held() >= left * (12 << 10) && left <= most / (12 << 10), "{left} with {}", held());
    assert_eq!(shared.count(Count::HeldTooMuch), count as u64 + 1 - left);
    // A client that has sent a command stays, and others are admitted.
    known.write_all(b"PING\r\n").unwrap();
    read_to(&mut known, b"+PONG\r\n");
    let mut next = rig.client(rig.server.addrs().0);
    next.write_all(b"mn\r\n").unwrap();
    read_to(&mut next, b"MN\r\n");
    drop((known, next, greeters));
    wait_until("nothing is held of none", || held() == 0);
}

#[test]
fn redis_cli_speaks_tls_to_it() {
    if !is_there("redis-cli") {
        return;
    }
    let rig = Rig::start("cli");
    let port = rig.server.addrs().1.unwrap().port().to_string();
    let certificate = rig.file("cert.pem");
    let ask = |words: &[&str]| {
        let tls = ["--tls", "--sni", "localhost", "--cacert", &certificate, "-p", &port];
        let output = Command::new("redis-cli").args(tls).args(words).output().unwrap();
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    };
    assert_eq!(ask(&["set", "a", "b"]), "OK");
    assert_eq!(ask(&["get", "a"]), "b");
}

#[test]
fn wrong_files_are_named() {
    let rig = Rig::start("files");
    let read = |chain: &str, key: &str| {
        Tls::read(rig.file(chain).as_ref(), rig.file(key).as_ref()).unwrap_err()
    };
    let other = rcgen::KeyPair::generate().unwrap().serialize_pem();
    write_private(rig.file("other.pem").as_ref(), &other);
    let certificate = std::fs::read_to_string(rig.file("cert.pem")).unwrap();
    write_private(rig.file("private.pem").as_ref(), &certificate);
    assert!(read("nothing", "key.pem").contains("nothing"));
    assert!(read("key.pem", "key.pem").contains("no certificate"));
    assert!(read("cert.pem", "private.pem").contains("no key"));
    std::fs::write(rig.file("open.pem"), &other).unwrap();
    let everybody = std::fs::Permissions::from_mode(0o644);
    std::fs::set_permissions(rig.file("open.pem"), everybody).unwrap();
    assert!(read("cert.pem", "open.pem").contains("mode 644): chmod 600"));
    // A pipe without a writer is refused at once.
    let pipe = rig.file("pipe.pem");
    assert!(Command::new("mkfifo").args(["-m", "600", pipe.as_ref()]).status().unwrap().success());
    assert!(read("cert.pem", "pipe.pem").contains("not a regular file"));
    assert!(read("pipe.pem", "key.pem").contains("not a regular file"));
    let mismatch = read("cert.pem", "other.pem");
    assert!(mismatch.contains("other.pem") && mismatch.contains("cert.pem"), "{mismatch}");
}
