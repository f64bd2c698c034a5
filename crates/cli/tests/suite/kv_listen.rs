//! `rackpool kv` at Unix sockets, with options from a file, and with its longest value.

use crate::common::{Dir, Server, WITHIN, run, told};
use crate::kv::{ask, door};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;

/// Says something at a Unix socket and reads until the answer ends so.
fn ask_at(path: &str, said: &str, end: &str) -> String {
    let mut stream = UnixStream::connect(path).unwrap();
    stream.set_read_timeout(Some(WITHIN)).unwrap();
    stream.write_all(said.as_bytes()).unwrap();
    let (mut heard, mut byte) = (Vec::new(), [0]);
    while !heard.ends_with(end.as_bytes()) {
        assert_eq!(stream.read(&mut byte).unwrap(), 1, "{:?}", String::from_utf8_lossy(&heard));
        heard.push(byte[0]);
    }
    String::from_utf8(heard).unwrap()
}

#[test]
fn unix_sockets_are_served_replaced_after_a_kill_and_removed_at_the_end() {
    let dir = Dir::new();
    let (memcached, resp) = (dir.file("m.sock"), dir.file("r.sock"));
    let words = ["kv", "--memory", "16m", "--resp", "0", "--socket-mode", "770"];
    let sockets = ["--memcached-socket", &memcached, "--resp-socket", &resp];
    let words = [&words[..], &sockets].concat();
    let server = Server::start(&words);
    assert_eq!(
        (door(&server, "memcached"), door(&server, "resp-socket")),
        ("none".into(), resp.clone())
    );
    assert_eq!(ask_at(&memcached, "set a 0 0 5\r\nhello\r\n", "\r\n"), "STORED\r\n");
    assert_eq!(ask_at(&resp, "GET a\r\n", "hello\r\n"), "$5\r\nhello\r\n");
    assert_eq!(ask(&door(&server, "resp"), "GET a\r\n", "hello\r\n"), "$5\r\nhello\r\n");
    let mode = std::fs::metadata(&resp).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o770);
    let (code, _, err) = told(&run(&words));
    assert_eq!(code, 1, "{err}");
    assert!(err.starts_with("error io listening at ") && err.contains(&memcached), "{err}");
    // SIGKILL.
    drop(server);
    assert!(std::fs::exists(&resp).unwrap());
    let mut server = Server::start(&words);
    assert_eq!(ask_at(&resp, "GET a\r\n", "\r\n"), "$-1\r\n");
    assert_eq!(server.terminate(), Some(0));
    assert!(!std::fs::exists(&resp).unwrap() && !std::fs::exists(&memcached).unwrap());
    let alone = ["kv", "--resp", "0", "--socket-mode", "770"];
    assert_eq!(told(&run(&alone)).0, 2);
}

#[test]
fn a_file_says_what_the_command_line_does_not() {
    let dir = Dir::new();
    let (file, socket) = (dir.file("kv.conf"), dir.file("r.sock"));
    let lines = format!(
        "# A cache\nmaxmemory 32mb\nport 0\nunixsocket {socket}\nmemcached 127.0.0.1:0\n\
         maxclients 123\nrequirepass secret\nthreads 1\nmax-connections-per-address 50\n"
    );
    std::fs::write(&file, &lines).unwrap();
    let words = ["kv", "--config", &file, "--memory", "16m"];
    // Others may read it.
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
    let (code, _, err) = told(&run(&words));
    assert!(code == 1 && err.contains("requirepass") && err.contains("chmod 600"), "{err}");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    let mut server = Server::start(&words);
    let settings = ask(&door(&server, "memcached"), "stats settings\r\n", "END\r\n");
    for line in ["STAT maxbytes 16777216\r\n", "STAT maxconns 123\r\n", "STAT num_threads 1\r\n"] {
        assert!(settings.contains(line), "{line} in {settings}");
    }
    assert!(ask_at(&socket, "PING\r\n", "\r\n").starts_with("-NOAUTH "));
    assert_eq!(ask_at(&socket, "AUTH secret\r\nPING\r\n", "+PONG\r\n"), "+OK\r\n+PONG\r\n");
    assert_eq!(server.terminate(), Some(0));
}

#[test]
fn what_a_file_cannot_mean_is_refused_with_its_line() {
    let dir = Dir::new();
    let file = dir.file("kv.conf");
    for (lines, said) in [
        (
            "port 0\nmaxmemmory 1gb\n",
            ":2: no directive is named `maxmemmory`; is `maxmemory` meant?",
        ),
        ("port 0\n\nmaxclients many\n", ":3: invalid value 'many' for '--max-connections <N>'"),
        ("appendonly yes\n", ":1: `appendonly` takes only \"no\""),
    ] {
        std::fs::write(&file, lines).unwrap();
        let (code, out, err) = told(&run(&["kv", "--config", &file]));
        assert_eq!((code, out.as_str()), (2, ""), "{err}");
        assert!(err.starts_with("error usage ") && err.contains(&format!("{file}{said}")), "{err}");
    }
    // Its door is asked for as if there were no file.
    std::fs::write(&file, "maxclients 7\n").unwrap();
    let (code, _, err) = told(&run(&["kv", "--config", &file]));
    assert!(code == 2 && err.contains("--resp <"), "{err}");
    let (code, _, err) = told(&run(&["kv", "--config", &dir.file("none"), "--resp", "0"]));
    assert!(code == 1 && err.starts_with("error io "), "{err}");
}

/// How long a value may be, as the server says.
fn longest(memory: &str, more: &[&str]) -> u64 {
    let words = ["kv", "--memory", memory, "--memcached", "0", "--memory-on-demand"];
    let mut server = Server::start(&[&words[..], more].concat());
    let settings = ask(&door(&server, "memcached"), "stats settings\r\n", "END\r\n");
    let line = settings.lines().find_map(|line| line.strip_prefix("STAT item_size_max "));
    let bytes = line.unwrap_or_else(|| panic!("{settings}")).parse().unwrap();
    assert_eq!(server.terminate(), Some(0));
    bytes
}

#[test]
fn the_longest_value_follows_from_the_memory_or_is_what_was_asked_for() {
    for memory in ["64m", "1g"] {
        let by_threads = ["1", "3", "16"].map(|threads| longest(memory, &["--threads", threads]));
        assert!(by_threads.iter().all(|bytes| *bytes == by_threads[0]), "{memory}: {by_threads:?}");
        assert!(by_threads[0] > 1 << 20, "{memory}: {by_threads:?}");
    }
    for threads in ["1", "16"] {
        assert_eq!(longest("256m", &["--threads", threads, "--max-value", "50m"]), 50 << 20);
    }
    let words = ["kv", "--memory", "64m", "--resp", "0", "--max-value", "100m"];
    let (code, _, err) = told(&run(&words));
    assert!(code == 2 && err.contains("--max-value is 104857600"), "{err}");
    let words = ["kv", "--memory", "64m", "--resp", "0", "--max-value", "513m"];
    assert_eq!(told(&run(&words)).0, 2);
}

#[test]
fn a_long_value_is_stored_with_many_threads_and_one_byte_more_is_refused() {
    const BYTES: usize = 40 << 20;
    let words = ["kv", "--memory", "256m", "--threads", "16", "--memcached", "0", "--resp", "0"];
    let mut server = Server::start(&[&words[..], &["--max-value", "40m"]].concat());
    let value = "v".repeat(BYTES);
    let set = format!("set a 0 0 {BYTES}\r\n{value}\r\n");
    assert_eq!(ask(&door(&server, "memcached"), &set, "\r\n"), "STORED\r\n");
    let resp = door(&server, "resp");
    assert_eq!(ask(&resp, "STRLEN a\r\n", "\r\n"), format!(":{BYTES}\r\n"));
    let set = format!("*3\r\n$3\r\nSET\r\n$1\r\nb\r\n${BYTES}\r\n{value}\r\n");
    assert_eq!(ask(&resp, &set, "\r\n"), "+OK\r\n");
    // Nothing of the value has come.
    let head = format!("*3\r\n$3\r\nSET\r\n$1\r\nb\r\n${}\r\n", BYTES + 1);
    let said = ask(&resp, &head, "\r\n");
    assert!(said.contains(&format!("--max-value is {BYTES}")), "{said}");
    let mut stream = TcpStream::connect(&resp).unwrap();
    stream.set_read_timeout(Some(WITHIN)).unwrap();
    stream.write_all(format!("{head}{value}v\r\nPING\r\n").as_bytes()).unwrap();
    let mut heard = vec![0; said.len() + "+PONG\r\n".len()];
    stream.read_exact(&mut heard).unwrap();
    assert_eq!(String::from_utf8(heard).unwrap(), said + "+PONG\r\n");
    assert_eq!(server.terminate(), Some(0));
}
