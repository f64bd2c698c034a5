//! Racks with memory that persists, in ordinary files, killed and started again by other boots of
//! the host as far as they can tell: what is durable is there, whatever else is told.

use crate::common::{Dir, Server, rackpool, run, told};
use rackpool_core::durability::{PMEM_COPY_BYTES, PmemHeader};
use std::fs::File;
use std::os::unix::fs::FileExt;

/// Killed without a warning.
fn kill(mut server: Server) {
    server.child.kill().expect("our own child");
    server.child.wait().expect("our own child");
}

/// The file was served last by another boot of the host.
fn boot_anew(path: &str) {
    let file = File::options().read(true).write(true).open(path).expect("the region's");
    let copy = |index| {
        let mut bytes = [0; size_of::<PmemHeader>()];
        file.read_exact_at(&mut bytes, index * PMEM_COPY_BYTES).expect("within the file");
        bytes
    };
    let mut header = PmemHeader::newest(copy).expect("a header");
    assert_eq!(header.in_use, 1, "its daemon was killed");
    header.boot[1] ^= 1;
    let (header, at) = header.next();
    file.write_all_at(&header.to_bytes(), at).expect("within the file");
}

struct Host {
    master: Server,
    daemons: [Server; 2],
    // Last: the others have files in it.
    dir: Dir,
}

impl Host {
    fn start(dir: Dir) -> Self {
        let state = dir.file("state");
        let master = Server::start(&["master", "--listen", "127.0.0.1:0", "--state", &state]);
        let memory = [format!("pmem:{}", Self::memory(&dir)), "heap?size=4M&pages=64K".into()];
        let daemon = |rack: usize| {
            let (number, memory) = (rack.to_string(), &memory[rack]);
            let words = ["daemon", "--rack", &number, "--master", &master.addr, "--memory", memory];
            Server::start(&words)
        };
        let daemons = [daemon(0), daemon(1)];
        Self { dir, master, daemons }
    }

    fn memory(dir: &Dir) -> String {
        format!("{}?size=4M&pages=64K&domain=msync", dir.file("rack0"))
    }

    /// All processes end at once, as with the power.
    fn lose_power(self) -> Dir {
        let Self { dir, master, daemons } = self;
        daemons.into_iter().for_each(kill);
        kill(master);
        boot_anew(&dir.file("rack0"));
        dir
    }

    fn shell(&self, rack: &str, text: &str) -> (i32, String, String) {
        told(&run(&["shell", "--rack", rack, "--master", &self.master.addr, "-c", text]))
    }

    /// What a command that succeeds says.
    fn says(&self, rack: &str, text: &str) -> String {
        let (code, out, error) = self.shell(rack, text);
        assert_eq!((code, error.as_str()), (0, ""), "{text}");
        out.trim().to_owned()
    }
}

#[test]
fn what_was_made_durable_is_there_after_kills_and_losses_of_power() {
    let mut host = Host::start(Dir::new());
    // By its own rack over the ring, and by another over the fabric.
    let near = host.says("0", "alloc 64 local");
    let far = host.says("1", "alloc 200K rack:0");
    for (rack, addr) in [("0", &near), ("1", &far)] {
        let text = format!("write {addr} text:kept{rack}; persist {addr} 5");
        assert_eq!(host.says(rack, &text), "ok\nok");
    }
    assert_eq!(host.says("1", &format!("persist {far} 200K")), "ok");
    let name = "put name text:named; get name";
    assert!(host.says("0", name).ends_with("named"));
    let look = |host: &Host| {
        for (rack, addr) in [("0", &near), ("1", &near), ("0", &far), ("1", &far)] {
            let kept = if *addr == near { "kept0" } else { "kept1" };
            assert_eq!(host.says(rack, &format!("read {addr} 5 text")), kept, "{addr} by {rack}");
        }
    };
    look(&host);
    // The daemon alone is killed.
    let [first, second] = host.daemons;
    kill(first);
    let words = ["daemon", "--rack", "0", "--master", &host.master.addr, "--memory"];
    let memory = format!("pmem:{}", host.dir.file("rack0"));
    let again = Server::start(&[&words[..], &[&memory]].concat());
    host.daemons = [again, second];
    look(&host);

    // All processes are, twice, and the host boots.
    for round in 0..2 {
        host = Host::start(host.lose_power());
        look(&host);
        let (code, racks, error) = told(&run(&["racks", "--master", &host.master.addr, "--json"]));
        assert_eq!((code, error.as_str()), (0, ""));
        assert!(racks.contains("\"alive\": true"), "{racks}");
        let fresh = host.says("1", "alloc 64 rack:0");
        assert!(fresh != near && fresh != far, "{round}: handed out already");
        assert_eq!(host.says("0", &format!("free {fresh} 64")), "ok");
    }
    assert_eq!(host.says("0", &format!("free {near} 64; free {far} 200K")), "ok\nok");
    for daemon in &mut host.daemons {
        assert_eq!(daemon.terminate(), Some(0));
    }
}

#[test]
fn what_cannot_persist_is_told_and_a_file_is_served_once() {
    let host = Host::start(Dir::new());
    let heap = host.says("1", "alloc 64 local");
    for rack in ["0", "1"] {
        let (code, _, error) = host.shell(rack, &format!("persist {heap} 8"));
        assert_eq!(code, 1, "{error}");
        assert!(error.contains("does not outlive a loss of power"), "{error}");
    }
    let daemon = |memory: &str| {
        told(&run(&["daemon", "--rack", "0", "--master", &host.master.addr, "--memory", memory]))
    };
    let path = host.dir.file("rack0");
    let (code, _, error) = daemon(&format!("pmem:{path}"));
    assert!(code == 1 && error.contains("is served by"), "{error}");
    for (keys, expected) in [
        ("?size=8M&pages=64K", "is served by"),
        ("?size=8M&domain=dram", "none, adr, eadr or msync"),
    ] {
        let (code, _, error) = daemon(&format!("pmem:{path}{keys}"));
        assert!(code != 0 && error.contains(expected), "{keys}: {error}");
    }
    let foreign = host.dir.file("foreign");
    std::fs::write(&foreign, [7; 1 << 16]).expect("a directory of ours");
    let (code, _, error) = daemon(&format!("pmem:{foreign}?size=4M&pages=64K"));
    assert!(code == 1 && error.contains("choose another path"), "{error}");
    assert_eq!(std::fs::read(&foreign).unwrap(), [7; 1 << 16], "it is left alone");
}

#[test]
fn a_daemon_that_is_killed_in_the_middle_of_writes_keeps_what_was_acknowledged() {
    let mut host = Host::start(Dir::new());
    let mut expected = 0;
    let addr = host.says("0", "alloc 64 local");
    for (round, rack) in ["0", "1", "0"].into_iter().enumerate() {
        let text = format!("add {addr} 1; persist {addr} 8\n").repeat(3000);
        let commands = host.dir.file("commands");
        std::fs::write(&commands, text).expect("a directory of ours");
        let writer = rackpool()
            .args(["shell", "--rack", rack, "--master", &host.master.addr])
            .stdin(File::open(&commands).expect("written above"))
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .expect("the binary runs");
        std::thread::sleep(std::time::Duration::from_millis(120 + 70 * round as u64));
        let [first, second] = host.daemons;
        kill(first);
        let memory = format!("pmem:{}", host.dir.file("rack0"));
        let words = ["daemon", "--rack", "0", "--master", &host.master.addr, "--memory", &memory];
        host.daemons = [Server::start(&words), second];
        let (_, out, error) = told(&writer.wait_with_output().expect("our own child"));
        let acknowledged = out.lines().filter(|line| *line == "ok").count() as u64;
        let word = host.says("0", &format!("read {addr} 8"));
        let found = u64::from_str_radix(&word, 16).expect("eight bytes in hex").swap_bytes();
        // One more may have been under way.
        let counted = expected + acknowledged..=expected + acknowledged + 1;
        assert!(counted.contains(&found), "{found} of {counted:?}: {error}");
        expected = found;
    }
    assert!(expected > 0, "no write was acknowledged before its daemon was killed");
}
