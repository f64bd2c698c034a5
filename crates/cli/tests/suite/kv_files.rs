//! The files of `rackpool kv` and of a master: their owner, what is refused, what becomes of
//! them when they are damaged, cut or of another version, and of the times in them.

use crate::common::{Dir, Server, WITHIN, rackpool, run, told, unique};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const KV: [&str; 7] = ["kv", "--memory", "2m", "--memcached", "0", "--threads", "1"];

/// A file of shared memory that goes with the test.
struct Shared(String);

impl Shared {
    fn new(what: &str) -> Shared {
        Shared(format!("/dev/shm/{}", unique(what)))
    }

    fn mode(&self) -> u32 {
        std::fs::metadata(&self.0).unwrap().mode() & 0o7777
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// The words of a server with this warm file.
fn warm<'a>(file: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [&KV[..], &["--warm", file], more].concat()
}

/// What the server at its first door answers, up to `end`.
fn ask(server: &Server, said: &str, end: &str) -> String {
    let addr = server.addr.split(' ').find_map(|word| word.strip_prefix("memcached="));
    let mut stream = TcpStream::connect(addr.unwrap()).unwrap();
    stream.set_read_timeout(Some(WITHIN)).unwrap();
    stream.write_all(said.as_bytes()).unwrap();
    let (mut heard, mut byte) = (Vec::new(), [0]);
    while !heard.ends_with(end.as_bytes()) {
        if stream.read(&mut byte).unwrap_or(0) == 0 {
            return String::from_utf8(heard).unwrap() + "(end)";
        }
        heard.push(byte[0]);
    }
    String::from_utf8(heard).unwrap()
}

/// The command in a shell after these words of it.
fn after(shell: &str, words: &[&str]) -> Command {
    let mut command = Command::new("sh");
    let binary = env!("CARGO_BIN_EXE_rackpool");
    command.args(["-c", &format!("{shell}; exec \"$0\" \"$@\""), binary]).args(words);
    command.stdin(Stdio::null()).stderr(Stdio::null());
    command
}

fn refused(output: &Output, parts: &[&str]) {
    let (code, out, err) = told(output);
    assert_eq!((code, out.as_str()), (1, ""), "{err}");
    assert!(err.starts_with("error ") && parts.iter().all(|part| err.contains(part)), "{err}");
}

fn mode_of(path: &str, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn a_warm_file_of_an_earlier_version_is_refused_with_the_way_out_and_stays_as_it_is() {
    let shared = Shared::new("format");
    let data = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/warm-format-1.gz");
    let old = Command::new("gzip").args(["-dc", data]).output().unwrap().stdout;
    std::fs::write(&shared.0, &old).unwrap();
    let output = run(&warm(&shared.0, &[]));
    refused(&output, &[&shared.0, "format 1", "format 3", "name another", "remove it"]);
    assert!(std::fs::read(&shared.0).unwrap() == old);
}

#[test]
fn damage_is_told_and_costs_the_item_alone() {
    let shared = Shared::new("damage");
    let server = Server::start(&warm(&shared.0, &[]));
    for key in ["one", "two", "gone"] {
        let set = format!("set {key} 7 0 5\r\nvalue\r\n");
        assert_eq!(ask(&server, &set, "\r\n"), "STORED\r\n");
    }
    assert_eq!(ask(&server, "delete gone\r\n", "\r\n"), "DELETED\r\n");
    drop(server);
    let mut bytes = std::fs::read(&shared.0).unwrap();
    let mut flip = |key: &[u8], before: usize, bit: u32| {
        let at = bytes.windows(key.len()).position(|window| window == key).unwrap();
        let word = &mut bytes[at - before..][..8];
        let flipped = u64::from_le_bytes(word.try_into().unwrap()) ^ 1 << bit;
        word.copy_from_slice(&flipped.to_le_bytes());
    };
    // A flag of the client's, and the mark of what was deleted.
    flip(b"twovalue", 8, 2);
    flip(b"gonevalue", 16, 38);
    std::fs::write(&shared.0, &bytes).unwrap();
    let log = Dir::new();
    let errors = std::fs::File::create(log.file("log")).unwrap();
    let server = Server::by(rackpool().args(warm(&shared.0, &[])).stderr(errors));
    // The line may be written a little later than `ready`.
    let start = Instant::now();
    let told = || std::fs::read_to_string(log.file("log")).unwrap();
    while !told().contains("2 places in it were damaged") {
        assert!(start.elapsed() < WITHIN, "{}", told());
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(told().contains("1 items"), "{}", told());
    assert_eq!(
        ask(&server, "get one two gone\r\n", "END\r\n"),
        "VALUE one 7 5\r\nvalue\r\nEND\r\n"
    );
}

#[test]
fn what_is_made_is_the_owners_alone_whatever_the_umask() {
    let shared = Shared::new("umask");
    let values = Shared(format!("{}.values", shared.0));
    let tier = ["--value-tier", "numa:0", "--value-tier-memory", "4m"];
    for umask in ["umask 000", "umask 777"] {
        let server = Server::by(&mut after(umask, &warm(&shared.0, &tier)));
        assert_eq!((shared.mode(), values.mode()), (0o600, 0o600), "{umask}");
        drop(server);
        std::fs::remove_file(&shared.0).unwrap();
        std::fs::remove_file(&values.0).unwrap();
    }
    let dir = Dir::new();
    let state = dir.file("state");
    let words = ["master", "--listen", "127.0.0.1:0", "--state", &state];
    let master = Server::by(&mut after("umask 000", &words));
    let file = format!("{state}/master.redb");
    let mode = || std::fs::metadata(&file).unwrap().mode() & 0o7777;
    assert_eq!(mode(), 0o600);
    drop(master);
    // As an earlier version has made it.
    mode_of(&file, 0o644);
    drop(Server::start(&words));
    assert_eq!(mode(), 0o600);
    mode_of(&file, 0o666);
    refused(&run(&words), &[&file, "mode 666", "chmod 600"]);
}

/// A daemon with its region in this directory.
fn run_daemon(dir: &Dir) -> Output {
    let state = dir.file("state");
    let master = Server::start(&["master", "--listen", "127.0.0.1:0", "--state", &state]);
    let region = format!("shm:{}?size=64M", dir.file("region"));
    run(&["daemon", "--rack", "0", "--master", &master.addr, "--memory", &region])
}

#[test]
fn files_that_others_have_placed_are_refused_at_once() {
    let dir = Dir::new();
    mode_of(&dir.file(""), 0o1777);
    let start = Instant::now();
    let at = |name: &str| dir.file(name);
    assert!(Command::new("mkfifo").arg(at("pipe")).status().unwrap().success());
    refused(&run(&warm(&at("pipe"), &[])), &[&at("pipe"), "not a regular file"]);
    refused(&run(&warm(&at(""), &[])), &["irectory"]);
    std::fs::write(at("mine"), "").unwrap();
    std::fs::hard_link(at("mine"), at("second")).unwrap();
    refused(&run(&warm(&at("second"), &[])), &["hard links"]);
    std::fs::write(at("open"), "").unwrap();
    mode_of(&at("open"), 0o666);
    refused(&run(&warm(&at("open"), &[])), &["mode 666"]);
    if rustix::process::geteuid().is_root() {
        symlink(at("elsewhere"), at("link")).unwrap();
        std::os::unix::fs::lchown(at("link"), Some(65534), None).unwrap();
        refused(&run(&warm(&at("link"), &[])), &["link of user 65534"]);
        assert!(!dir.0.join("elsewhere").exists());
        std::fs::write(at("theirs"), "").unwrap();
        std::os::unix::fs::chown(at("theirs"), Some(65534), None).unwrap();
        refused(&run(&warm(&at("theirs"), &[])), &["belongs to user 65534"]);
        std::fs::rename(at("theirs"), at("region.meta")).unwrap();
        refused(&run_daemon(&dir), &["region.meta", "belongs to user 65534"]);
        std::fs::remove_file(at("region.meta")).unwrap();
    }
    assert!(Command::new("mkfifo").arg(at("region.meta")).status().unwrap().success());
    refused(&run_daemon(&dir), &["region.meta", "not a regular file"]);
    assert!(start.elapsed() < WITHIN);
}

#[test]
fn passwords_and_keys_are_read_from_files_that_no_others_may_read() {
    let dir = Dir::new();
    for (name, text) in [("password", "secret\n"), ("users", "a:secret\n"), ("key", "PEM")] {
        std::fs::write(dir.file(name), text).unwrap();
        mode_of(&dir.file(name), 0o644);
    }
    assert!(
        Command::new("mkfifo").args(["-m", "600", &dir.file("pipe")]).status().unwrap().success()
    );
    let kv = [&KV[..], &["--resp", "0"]].concat();
    let run_with = |more: &[&str]| run(&[&kv[..], more].concat());
    let (password, users, key) = (dir.file("password"), dir.file("users"), dir.file("key"));
    let pipe = dir.file("pipe");
    refused(&run_with(&["--password-file", &password]), &[&password, "mode 644", "chmod 600"]);
    refused(&run_with(&["--auth-file", &users]), &[&users, "mode 644", "chmod 600"]);
    refused(&run_with(&["--password-file", &pipe]), &[&pipe, "not a regular file"]);
    refused(&run_with(&["--auth-file", &pipe]), &[&pipe, "not a regular file"]);
    refused(&run_with(&["--tls-cert", &pipe, "--tls-key", &key]), &[&pipe, "not a regular file"]);
    for (option, file) in [("--password-file", &password), ("--auth-file", &users)] {
        mode_of(file, 0o640);
        drop(Server::start(&[&kv[..], &[option, file]].concat()));
    }
}

#[test]
fn a_file_that_is_cut_under_a_server_ends_it_with_a_message() {
    let (shared, log) = (Shared::new("cut"), Dir::new());
    let errors = std::fs::File::create(log.file("log")).unwrap();
    let mut server = Server::by(rackpool().args(warm(&shared.0, &[])).stderr(errors));
    let file = std::fs::OpenOptions::new().write(true).open(&shared.0).unwrap();
    file.set_len(0).unwrap();
    let said = ask(&server, "set a 0 0 1\r\nb\r\n", "\r\n");
    assert_eq!(said, "(end)");
    let start = Instant::now();
    let status = loop {
        match server.child.try_wait().unwrap() {
            Some(status) => break status,
            None => assert!(start.elapsed() < WITHIN, "it goes on"),
        }
    };
    assert_eq!(status.code(), Some(1));
    let told = std::fs::read_to_string(log.file("log")).unwrap();
    assert!(told.contains("error io memory of a file is gone (SIGBUS)"), "{told}");
}

#[test]
fn a_limit_of_the_length_of_files_is_an_error() {
    let shared = Shared::new("limit");
    let mut command = after("ulimit -f 100", &warm(&shared.0, &[]));
    let output = command.stderr(Stdio::piped()).output().unwrap();
    refused(&output, &[&shared.0, "too large"]);
    assert!(!std::path::Path::new(&shared.0).exists(), "an empty file is left");
    // One that was there before stays.
    std::fs::write(&shared.0, "").unwrap();
    mode_of(&shared.0, 0o600);
    let output = after("ulimit -f 100", &warm(&shared.0, &[])).output().unwrap();
    assert_eq!((output.status.code(), std::fs::metadata(&shared.0).unwrap().len()), (Some(1), 0));
}

#[test]
fn a_file_system_that_becomes_full_ends_the_cache_with_a_message_and_no_signal() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let (dir, log) = (Dir::new(), Dir::new());
    // There is room when it is looked for; another program is there first to take it.
    let words = ["kv", "--memory", "512m", "--memcached", "0", "--threads", "1", "--warm"];
    let disk = dir.file("");
    let script = format!("mount -t tmpfs -o size=600m tmpfs {disk} && exec \"$0\" \"$@\"");
    let mut unshared = Command::new("unshare");
    unshared.args(["-m", "sh", "-c", &script]).arg(rackpool().get_program()).args(words);
    unshared.arg(dir.file("warm")).stdin(Stdio::null());
    let errors = std::fs::File::create(log.file("log")).unwrap();
    let mut server = Server::by(unshared.stderr(errors));
    let filler = format!("/proc/{}/root{}", server.child.id(), dir.file("filler"));
    let filler = std::fs::File::create(filler).unwrap();
    let mut taken = 0;
    while rustix::fs::fallocate(&filler, rustix::fs::FallocateFlags::empty(), taken, 1 << 20)
        .is_ok()
    {
        taken += 1 << 20;
    }
    if taken < 100 << 20 {
        println!("not seen: the memory was taken before this had its turn");
        return;
    }
    let start = Instant::now();
    let status = loop {
        match server.child.try_wait().unwrap() {
            Some(status) => break status,
            None => assert!(start.elapsed() < WITHIN, "it goes on"),
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    };
    let told = std::fs::read_to_string(log.file("log")).unwrap();
    assert_eq!(status.code(), Some(1), "{told}");
    assert!(told.contains("error full taking the memory of the file"), "{told}");
}

#[test]
fn what_has_a_time_to_live_lives_by_the_clock_since_the_boot_and_over_a_restart() {
    let probe = ["--time", "--boottime", "1000", "true"];
    let may = Command::new("unshare").args(probe).stderr(Stdio::null()).status();
    if !may.is_ok_and(|status| status.success()) {
        println!("not asked for: no time namespaces for us here");
        return;
    }
    let shared = Shared::new("time");
    let words = warm(&shared.0, &[]);
    // A process with a boot so many seconds earlier; the wall clock is the same.
    let start = |since: &str| {
        let mut command = Command::new("unshare");
        command.args(["--time", "--boottime", since, env!("CARGO_BIN_EXE_rackpool")]).args(&words);
        Server::by(command.stdin(Stdio::null()).stderr(Stdio::null()))
    };
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let server = start("1000000");
    for (key, exptime) in [("hour", 3600), ("day", 86_400), ("wall", wall + 3600)] {
        let set = format!("set {key} 0 {exptime} 1\r\nx\r\n");
        assert_eq!(ask(&server, &set, "\r\n"), "STORED\r\n");
    }
    let there = |server: &Server| {
        let said = ask(server, "get hour day wall\r\n", "END\r\n");
        ["hour", "day", "wall"].map(|key| said.contains(&format!("VALUE {key} ")))
    };
    let left = |server: &Server, key: &str| -> u64 {
        let said = ask(server, &format!("mg {key} t\r\n"), "\r\n");
        said.trim_end().strip_prefix("HD t").unwrap_or_else(|| panic!("{said}")).parse().unwrap()
    };
    assert_eq!(there(&server), [true; 3]);
    drop(server);
    let server = start("1000000");
    assert_eq!(there(&server), [true; 3]);
    assert!((3000..=3600).contains(&left(&server, "hour")), "{}", left(&server, "hour"));
    drop(server);
    // Two hours pass by the clock since the boot, and none by the wall's.
    let server = start("1007200");
    assert_eq!(there(&server), [false, true, true]);
    let day = left(&server, "day");
    assert!((86_400 - 7200 - 600..=86_400 - 7200).contains(&day), "{day}");
    assert!((3000..=3600).contains(&left(&server, "wall")));
    drop(server);
    // A clock that stands before what the file knows is that of another boot: the wall's counts.
    let server = start("1000");
    assert_eq!(there(&server), [false, true, true]);
    assert!(left(&server, "day").abs_diff(day) < 600);
}
