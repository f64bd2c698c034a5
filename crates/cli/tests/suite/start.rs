//! What servers and commands say when they begin: names and addresses, memory and descriptors that
//! are not there, peers that are dead, the environment. Real processes over loopback.

use crate::common::{Cluster, Dir, Server, WITHIN, rackpool, run, told, unique};
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How long calls ride through a restart by default: what is refused at once is sooner.
const PATIENCE: Duration = Duration::from_secs(10);

fn master(listen: &str) -> Server {
    Server::start(&["master", "--listen", listen, "--ephemeral"])
}

/// Puts and gets in one rack what is in another.
fn works(master: &str) {
    let shell = |rack, text| {
        let (code, out, err) =
            told(&run(&["shell", "--rack", rack, "--master", master, "-c", text]));
        assert_eq!(code, 0, "{err}");
        out
    };
    shell("0", "put greeting text:hello");
    assert_eq!(shell("1", "get greeting"), "hello");
}

#[test]
fn names_and_addresses_of_both_kinds_lead_to_servers() {
    let listens = ["localhost:0", "127.0.0.1:0", "[::1]:0"];
    for listen in listens {
        if std::net::TcpListener::bind(listen).is_err() {
            eprintln!("skipped: this host has no {listen}");
            continue;
        }
        let mut servers = vec![master(listen)];
        let addr = servers[0].addr.clone();
        let port = addr.rsplit_once(':').unwrap().1;
        let by_name = if addr.contains('[') { addr.clone() } else { format!("localhost:{port}") };
        for rack in ["0", "1"] {
            let words = ["--memory", "heap:64M", "--listen", listen, "--metrics", listen];
            let mut command = rackpool();
            command.args(["daemon", "--rack", rack, "--master", &by_name]).args(words);
            servers.push(Server::by(command.stderr(Stdio::null())));
        }
        works(&by_name);
        let (code, out, err) = told(&run(&["racks", "--json", "--master", &addr]));
        assert_eq!(code, 0, "{err}");
        let host = listen.replace("localhost", "127.0.0.1").replace(":0", ":");
        assert!(out.contains(&format!("\"{host}")), "others are told {host}: {out}");
    }
}

#[test]
fn a_name_that_leads_nowhere_is_refused_by_every_command_with_the_name() {
    let memory = ["--memory", "heap:64M"];
    let dax = ["--memory", "dax:/dev/dax9.9"];
    for words in [
        &["daemon", "--rack", "0", memory[0], memory[1]][..],
        &["agent", "--rack", "0", dax[0], dax[1]],
        &["fence", "--rack", "0", "--host", "x"],
        &["shell", "-c", "ls"],
        &["racks"],
        &["top", "--once"],
        &["drain", "--rack", "0"],
    ] {
        for (at, said) in [
            ("rackpool.invalid:7400", "`rackpool.invalid`"),
            ("localhost", "`localhost`"),
            ("::1:7400", "`::1:7400`"),
            ("127.0.0.1:99999", "`127.0.0.1:99999`"),
            (",", "no address is given"),
        ] {
            let (code, out, err) = told(&run(&[words, &["--master", at]].concat()));
            assert_eq!((code, out.as_str()), (1, ""), "{words:?} {at}: {err}");
            assert!(err.starts_with("error config ") && err.contains(said), "{words:?}: {err}");
        }
    }
    for at in ["rackpool.invalid:0", "localhost", "99999", "[::1"] {
        let (code, _, err) = told(&run(&["master", "--ephemeral", "--listen", at]));
        assert!(code == 2 && err.starts_with("error usage ") && err.contains(at), "{err}");
    }
}

#[test]
fn a_dead_master_is_refused_with_the_reason_before_anything_is_made() {
    let path = format!("/dev/shm/{}", unique("dead-master"));
    let memory = format!("shm:{path}?size=64M");
    let start = Instant::now();
    let words = ["daemon", "--rack", "0", "--memory", &memory, "--master", "127.0.0.1:1"];
    let (code, out, err) = told(&run(&words));
    assert_eq!((code, out.as_str()), (1, ""), "{err}");
    assert!(err.starts_with("error peer-dead no master answers at 127.0.0.1:1: "), "{err}");
    assert!(err.contains("refused"), "{err}");
    assert!(start.elapsed() < PATIENCE, "{:?}", start.elapsed());
    assert!(!std::path::Path::new(&format!("{path}.meta")).exists());
}

#[test]
fn a_rack_that_is_dead_when_a_command_begins_is_not_waited_for() {
    let mut cluster = Cluster::start("tcp");
    let addr = cluster.ok(0, "alloc 64 rack:1");
    drop(cluster.daemons.remove(1));
    for (rack, command) in [(1, "ls"), (0, "alloc 64 rack:1"), (0, &format!("read {addr} 8"))] {
        let start = Instant::now();
        let (code, _, err) = cluster.shell(rack, command);
        assert!(code == 1 && err.starts_with("error peer-dead daemon of rack 1 is dead"), "{err}");
        assert!(start.elapsed() < PATIENCE, "{command}: {:?}", start.elapsed());
    }
    assert!(cluster.ok(0, "alloc 64 local").starts_with("0x"), "the other rack serves");
}

#[test]
fn memory_that_the_machine_does_not_have_is_refused_unless_it_is_meant() {
    let master = master("127.0.0.1:0");
    let path = format!("/dev/shm/{}", unique("large"));
    let shm = format!("shm:{path}?size=64T&pages=1G");
    let words = |memory| ["daemon", "--rack", "0", "--master", &master.addr, "--memory", memory];
    for memory in [&shm, "heap?size=64T&pages=1G", "heap?size=512T&pages=1G"] {
        let (code, out, err) = told(&run(&words(memory)));
        assert_eq!((code, out.as_str()), (1, ""), "{err}");
        assert!(err.starts_with("error config memory "), "{err}");
        assert!(err.contains("--overcommit") && err.contains("MiB free"), "{err}");
        assert!(!std::path::Path::new(&format!("{path}.meta")).exists(), "nothing is left");
    }
    let meant = [&words(&shm)[..], &["--overcommit", "--ephemeral"]].concat();
    let mut daemon = Server::start(&meant);
    let (code, out, err) =
        told(&run(&["top", "--once", "--interval", "0.1", "--master", &master.addr]));
    assert_eq!(code, 0, "{err}");
    assert!(out.contains("rack 0: its host has memory for "), "what is there is shown: {out}");
    let row = out.lines().find(|line| line.trim_start().starts_with("0 ")).unwrap();
    let cells: Vec<&str> = row.split_whitespace().collect();
    let (frames, free): (u64, u64) = (cells[3].parse().unwrap(), cells[4].parse().unwrap());
    assert!(frames == 65_536 && free < frames, "{row}");
    assert_eq!(daemon.terminate(), Some(0));
}

#[test]
fn a_daemon_finds_its_master_by_the_environment_as_every_client_does() {
    let master = master("127.0.0.1:0");
    let dir = Dir::new();
    let file = dir.file("options.toml");
    std::fs::write(&file, format!("master = ['{}']\n", master.addr)).unwrap();
    let mut servers = Vec::new();
    for (rack, (variable, value)) in
        [("RACKPOOL_MASTER", &master.addr), ("RACKPOOL_CONFIG", &file)].into_iter().enumerate()
    {
        let mut command = rackpool();
        command.args(["daemon", "--rack", &rack.to_string(), "--memory", "heap:64M"]);
        servers.push(Server::by(command.env(variable, value).stderr(Stdio::null())));
    }
    works(&master.addr);
    let mut other = rackpool();
    other.args(["daemon", "--rack", "2", "--memory", "heap:64M", "--master", "127.0.0.1:1"]);
    let (code, _, err) = told(&other.env("RACKPOOL_MASTER", &master.addr).output().unwrap());
    assert!(code == 1 && err.contains("127.0.0.1:1"), "an option goes before it: {err}");
}

/// The command under a limit of descriptors; its standard error goes to a file.
fn limited(limit: &str, words: &[&str], err: &str) -> Command {
    let plain = rackpool();
    let mut command = Command::new("sh");
    command.args(["-c", &format!("ulimit {limit}; exec \"$0\" \"$@\"")]);
    command.arg(plain.get_program()).args(words);
    command.stdin(Stdio::null()).stderr(File::create(err).unwrap());
    command
}

/// Waits for a line in a file: it may be written a little later than `ready`.
fn says(file: &str, what: &str) {
    let start = Instant::now();
    loop {
        let said = std::fs::read_to_string(file).unwrap();
        if said.contains(what) {
            return;
        }
        assert!(start.elapsed() < WITHIN, "{what} is not in: {said}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_wrong_secret_is_told_with_its_reason_and_the_address_of_who_had_it() {
    let dir = Dir::new();
    let secret = |name: &str, text: &str| {
        let path = dir.file(name);
        let mut options = File::options();
        let file = options.write(true).create_new(true).mode(0o600).open(&path);
        file.unwrap().write_all(text.as_bytes()).unwrap();
        path
    };
    let (ours, other) = (secret("ours", &"a".repeat(32)), secret("other", &"b".repeat(32)));
    let words = ["master", "--ephemeral", "--listen", "127.0.0.1:0", "--secret-file", &ours];
    let mut command = rackpool();
    command.args(words).stderr(File::create(dir.file("log")).unwrap());
    let master = Server::by(&mut command);
    let words = ["racks", "--master", &master.addr, "--secret-file", &other];
    let (code, _, err) = told(&run(&words));
    assert_eq!(code, 1, "{err}");
    let line = format!("error denied master at {}: it has another secret", master.addr);
    assert!(err.starts_with(&line), "{err}");
    says(&dir.file("log"), "closing the connection of 127.0.0.1:");
    says(&dir.file("log"), ": it has another secret");
}

#[test]
fn servers_raise_their_limit_of_descriptors_and_say_what_does_not_fit() {
    let dir = Dir::new();
    let said = |name: &str| std::fs::read_to_string(dir.file(name)).unwrap();
    let words = ["master", "--ephemeral", "--listen", "127.0.0.1:0"];
    let soft = Server::by(&mut limited("-Sn 64", &words, &dir.file("soft")));
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", soft.child.id())).unwrap();
    let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    let cells: Vec<&str> = line.split_whitespace().collect();
    assert_eq!(cells[3], cells[4], "as many as its user may have: {line}");
    let master = Server::by(&mut limited("-n 64", &words, &dir.file("master")));
    says(&dir.file("master"), "WARN master: 64 descriptors, ");
    let words = |rack| ["daemon", "--rack", rack, "--master", &master.addr, "--memory", "heap:64M"];
    let daemons = ["0", "1"].map(|rack| {
        Server::by(&mut limited("-n 64", &words(rack), &dir.file(&format!("daemon{rack}"))))
    });
    says(&dir.file("daemon0"), "LimitNOFILE=");
    works(&master.addr);
    let cache = ["kv", "--memory", "32m", "--memcached", "127.0.0.1:0"];
    for words in [&words("2")[..], &cache] {
        let few = limited("-n 16", words, &dir.file("few")).output().unwrap();
        assert_eq!(few.status.code(), Some(1));
        assert!(said("few").starts_with("error config 16 descriptors "), "{}", said("few"));
    }
    drop(daemons);
}

#[test]
fn an_endless_file_is_not_read_beyond_what_the_pool_could_hold() {
    let words = ["master", "--ephemeral", "--listen", "127.0.0.1:0"];
    let master = Server::by(rackpool().args(words).stderr(Stdio::null()));
    let daemon = ["daemon", "--rack", "0", "--master", &master.addr, "--memory", "heap:96M"];
    let _daemon = Server::by(rackpool().args(daemon).stderr(Stdio::null()));
    for command in ["put a file:/dev/zero", "write 0x1000 file:/dev/zero"] {
        let (code, out, err) = told(&run(&["shell", "--master", &master.addr, "-c", command]));
        assert_eq!((code, out.as_str()), (1, ""), "{err}");
        assert!(err.starts_with("error full /dev/zero has more bytes than the 100663296"), "{err}");
    }
}
