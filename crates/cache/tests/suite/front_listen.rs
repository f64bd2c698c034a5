//! Unix sockets: their files, their clients, and who may come in.

use rackpool_cache::front::{ListenConfig, Server, Settings, StartError};
use rackpool_cache::{Cache, Options};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// A folder that goes with the test.
struct Dir(PathBuf);

impl Dir {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        // Relaxed: only the number counts.
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("kv-{}-{number}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn listen(&self) -> ListenConfig {
        ListenConfig {
            memcached_socket: Some(self.0.join("m")),
            resp_socket: Some(self.0.join("r")),
            ..ListenConfig::default()
        }
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn start(settings: Settings, listen: &ListenConfig) -> Result<Server, StartError> {
    let cache = Cache::new(Options { memory: 16 << 20, ..Options::default() }).unwrap();
    Server::start(cache, settings, listen)
}

fn ask(stream: &mut UnixStream, said: &str, end: &str) -> String {
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream.write_all(said.as_bytes()).unwrap();
    let (mut heard, mut byte) = (Vec::new(), [0]);
    while !heard.ends_with(end.as_bytes()) {
        assert_eq!(stream.read(&mut byte).unwrap(), 1, "{}", heard.escape_ascii());
        heard.push(byte[0]);
    }
    String::from_utf8(heard).unwrap()
}

fn connect(path: &Path) -> UnixStream {
    UnixStream::connect(path).unwrap()
}

#[test]
fn both_protocols_are_served_at_sockets_whose_files_go_with_the_server() {
    let dir = Dir::new();
    let listen = dir.listen();
    let (memcached, resp) = (dir.0.join("m"), dir.0.join("r"));
    let mut server = start(Settings::default(), &listen).unwrap();
    assert_eq!(server.addrs(), (None, None));
    for path in [&memcached, &resp] {
        assert_eq!(std::fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o700);
    }
    let (mut m, mut r) = (connect(&memcached), connect(&resp));
    let long = "x".repeat(500_000);
    assert_eq!(ask(&mut m, &format!("set k 0 0 500000\r\n{long}\r\n"), "\r\n"), "STORED\r\n");
    assert_eq!(ask(&mut r, "GET k\r\n", "x\r\n"), format!("$500000\r\n{long}\r\n"));
    let list = ask(&mut r, "CLIENT LIST\r\nPING\r\n", "+PONG\r\n");
    assert!(list.contains(&format!(" addr={}:0 ", resp.display())), "{list}");
    assert!(list.contains(" flags=U "), "{list}");
    let said = ask(&mut r, "CONFIG GET unixsocket\r\nPING\r\n", "+PONG\r\n");
    assert!(said.contains(&resp.display().to_string()), "{said}");
    let said = ask(&mut m, "stats settings\r\n", "END\r\n");
    assert!(said.contains(&format!("STAT domain_socket {}\r\n", memcached.display())), "{said}");
    server.stop();
    assert!(!memcached.exists() && !resp.exists());
}

#[test]
fn a_file_that_is_left_over_gives_way_and_what_is_in_use_or_no_socket_stays() {
    let dir = Dir::new();
    let listen = dir.listen();
    drop(UnixListener::bind(dir.0.join("m")).unwrap());
    assert!(dir.0.join("m").exists());
    let server = start(Settings::default(), &listen).unwrap();
    let refused = |listen: &ListenConfig| match start(Settings::default(), listen) {
        Err(StartError::Io { what, source }) => (what, source.kind()),
        other => panic!("{:?}", other.err()),
    };
    let (what, kind) = refused(&listen);
    assert!(what.contains("/m") && kind == ErrorKind::AddrInUse, "{what}: {kind:?}");
    assert_eq!(ask(&mut connect(&dir.0.join("m")), "mn\r\n", "\r\n"), "MN\r\n");
    // A file that took the place of one is not the server's.
    std::fs::remove_file(dir.0.join("m")).unwrap();
    std::fs::write(dir.0.join("m"), "not yours").unwrap();
    drop(server);
    assert!(!dir.0.join("r").exists());
    assert_eq!(refused(&listen).1, ErrorKind::AddrInUse);
    assert_eq!(std::fs::read(dir.0.join("m")).unwrap(), b"not yours");
}

#[test]
fn rights_are_those_asked_for_and_a_password_is_asked_here_too() {
    let dir = Dir::new();
    let listen = ListenConfig { socket_mode: Some(0o770), ..dir.listen() };
    let password = Some("secret".to_owned());
    let users = vec![("ann".to_owned(), "secret".to_owned())];
    let _server = start(Settings { password, users, ..Settings::default() }, &listen).unwrap();
    let (memcached, resp) = (dir.0.join("m"), dir.0.join("r"));
    assert_eq!(std::fs::metadata(&resp).unwrap().permissions().mode() & 0o777, 0o770);
    let mut r = connect(&resp);
    assert!(ask(&mut r, "GET k\r\n", "\r\n").starts_with("-NOAUTH "));
    assert_eq!(ask(&mut r, "AUTH secret\r\nGET k\r\n", "$-1\r\n"), "+OK\r\n$-1\r\n");
    let mut m = connect(&memcached);
    assert!(ask(&mut m, "get k\r\n", "\r\n").contains("unauthenticated"));
    assert_eq!(ask(&mut m, "set a 0 0 10\r\nann secret\r\n", "\r\n"), "STORED\r\n");
}
