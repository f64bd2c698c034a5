//! Racks of two hosts that share memory. In one process: the other host is a name and a boot
//! identity. With real hosts, real devdax and crashes: `cargo xtask vm rack-two`.

use rackpool::agent::{AgentOptions, AgentServer, fence};
use rackpool::daemon::{DaemonOptions, DaemonServer};
use rackpool::master::{MasterOptions, MasterServer};
use rackpool::{Handle, LockMode, LockOptions, Options, Placement, Pool, RackId};
use rackpool_fabric::control::ControlListener;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(20);

struct Rack {
    name: String,
    dir: PathBuf,
    master: Option<MasterServer>,
    daemon: Option<DaemonServer>,
}

impl Rack {
    fn new(what: &str) -> Self {
        let name = format!("rackpool-test-agent-{}-{what}", std::process::id());
        let dir = std::env::temp_dir().join(&name);
        let master = MasterServer::start(MasterOptions::new("127.0.0.1:0", &dir)).unwrap();
        let mut rack = Rack { name, dir, master: Some(master), daemon: None };
        rack.serve();
        rack
    }

    fn memory(&self) -> String {
        format!("shm:/dev/shm/{}?size=4M&pages=64K", self.name)
    }

    fn master(&self) -> String {
        self.master.as_ref().unwrap().local_addr().to_string()
    }

    fn serve(&mut self) {
        let options = DaemonOptions::new(0, &self.master(), &self.memory());
        self.daemon = Some(DaemonServer::start(options).unwrap());
    }

    fn agent_options(&self, boot: &str) -> AgentOptions {
        let options = AgentOptions::new(0, &self.master(), &self.memory(), "host-b");
        AgentOptions { host: Some(format!("{}-{boot}", self.name)), ..options }
    }

    fn agent(&self, boot: &str) -> AgentServer {
        AgentServer::start(self.agent_options(boot)).unwrap()
    }

    fn here(&self) -> Handle {
        Pool::open(Options::new(&self.master(), 0)).unwrap().handle().unwrap()
    }

    fn options_there(&self, boot: &str) -> Options {
        let host = Some(format!("{}-{boot}", self.name));
        Options { host, ..Options::new(&self.master(), 0) }
    }

    fn there(&self, boot: &str) -> Handle {
        Pool::open(self.options_there(boot)).unwrap().handle().unwrap()
    }

    fn slots_used(&self, handle: &mut Handle) -> u64 {
        handle.admin().pool_stats().unwrap().racks[0].daemon.as_ref().unwrap().slots_used
    }

    fn wait_slots(&self, handle: &mut Handle, slots: u64) {
        let start = Instant::now();
        while self.slots_used(handle) != slots {
            assert!(start.elapsed() < PATIENCE, "{} slots", self.slots_used(handle));
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Rack {
    fn drop(&mut self) {
        self.daemon = None;
        self.master = None;
        let _ = std::fs::remove_dir_all(&self.dir);
        for entry in std::fs::read_dir("/dev/shm").unwrap().flatten() {
            if entry.file_name().to_string_lossy().starts_with(&self.name) {
                let _ = std::fs::remove_file(entry.path());
            }
        }
    }
}

#[test]
fn clients_of_two_hosts_share_memory_atomics_and_locks_by_load_and_store() {
    let rack = Rack::new("share");
    let agent = rack.agent("1");
    let (mut here, mut there) = (rack.here(), rack.there("1"));
    let addr = there.alloc(4096, Placement::Local).unwrap();
    there.write(addr, b"from the other host").unwrap();
    let mut back = [0; 19];
    here.read(addr, &mut back).unwrap();
    assert_eq!(&back, b"from the other host");
    let at = there.explain(addr).unwrap();
    assert_eq!((at.rack, at.own_rack, at.path.as_str()), (0, true, "mapped"));
    let word = here.alloc(8, Placement::Local).unwrap();
    std::thread::scope(|scope| {
        for handle in [&mut here, &mut there] {
            scope.spawn(move || (0..20_000).for_each(|_| _ = handle.fetch_add(word, 1).unwrap()));
        }
    });
    assert_eq!(here.read_u64(word).unwrap(), 40_000);
    let before = there.handle_stats();
    for _ in 0..100 {
        there.read(addr, &mut back).unwrap();
    }
    assert_eq!(there.handle_stats(), before, "warm accesses need no other process");
    let guard = there.lock(addr, LockMode::Write, LockOptions::line()).unwrap();
    assert_eq!(
        here.lock(addr, LockMode::Write, LockOptions::line().within_ms(50)).unwrap_err().code(),
        "lock-timeout"
    );
    there.unlock(guard).unwrap();
    let guard = here.lock(addr, LockMode::Write, LockOptions::line()).unwrap();
    here.unlock(guard).unwrap();
    drop(there);
    rack.wait_slots(&mut here, 1);
    drop(agent);
}

#[test]
fn what_clients_hold_outlives_their_agent_and_the_daemon() {
    let mut rack = Rack::new("outlive");
    let agent = rack.agent("1");
    let (mut here, mut there) = (rack.here(), rack.there("1"));
    let addr = there.alloc_owned(4096, Placement::Local).unwrap();
    there.write_u64(addr, 7).unwrap();
    let guard = there.lock(addr, LockMode::Write, LockOptions::line()).unwrap();
    drop(agent);
    there.write_u64(addr, 8).unwrap();
    assert_eq!(
        here.lock(addr, LockMode::Write, LockOptions::line().within_ms(300)).unwrap_err().code(),
        "lock-timeout"
    );
    let agent = rack.agent("1");
    there.check_lock(&guard).unwrap();
    let more = there.alloc(64, Placement::Local).unwrap();
    drop(rack.daemon.take());
    rack.serve();
    there.check_lock(&guard).unwrap();
    there.free(more, 64).unwrap();
    assert_eq!(
        here.lock(addr, LockMode::Write, LockOptions::line().within_ms(300)).unwrap_err().code(),
        "lock-timeout"
    );
    assert_eq!(here.read_u64(addr).unwrap(), 8);
    there.unlock(guard).unwrap();
    let guard = here.lock(addr, LockMode::Write, LockOptions::line()).unwrap();
    here.unlock(guard).unwrap();
    drop(there);
    rack.wait_slots(&mut here, 1);
    assert!(here.read_u64(addr).is_err(), "what it owned went with it");
    drop(agent);
}

#[test]
fn a_dead_hosts_lock_goes_to_others_when_it_is_fenced_or_booted_anew_and_not_before() {
    let rack = Rack::new("fence");
    let agent = rack.agent("1");
    let (mut here, mut there) = (rack.here(), rack.there("1"));
    let addr = here.alloc(4096, Placement::Local).unwrap();
    let held = there.lock(addr, LockMode::Write, LockOptions::line()).unwrap();
    let refused = fence(&rack.agent_options("1"), "host-b").unwrap_err();
    assert_eq!(refused.code(), "denied", "{refused}");
    drop(agent);
    assert_eq!(
        here.lock(addr, LockMode::Write, LockOptions::line().within_ms(1_500)).unwrap_err().code(),
        "lock-timeout"
    );
    let start = Instant::now();
    // Its connection's end may not be heard of yet.
    let clients = loop {
        match fence(&rack.agent_options("1"), "host-b") {
            Ok(clients) => break clients,
            Err(error) => assert!(start.elapsed() < PATIENCE, "{error}"),
        }
    };
    assert_eq!(clients, 1);
    let guard = here.lock(addr, LockMode::Write, LockOptions::line()).unwrap();
    here.unlock(guard).unwrap();
    std::mem::forget(held);
    std::mem::forget(there);
    // A boot of the host begins with nothing of the one before.
    let agent = rack.agent("2");
    let mut there = rack.there("2");
    let held = there.lock(addr, LockMode::Write, LockOptions::line()).unwrap();
    drop(agent);
    let agent = rack.agent("3");
    let guard = here.lock(addr, LockMode::Write, LockOptions::line()).unwrap();
    here.unlock(guard).unwrap();
    assert_eq!(rack.slots_used(&mut here), 1);
    std::mem::forget((held, there));
    drop(agent);
}

#[test]
fn a_host_without_an_agent_and_an_agent_beside_the_daemon_are_told_the_way_out() {
    let rack = Rack::new("refuse");
    let options = rack.options_there("1").request_timeout_ms(300);
    let error = Pool::open(options).map(drop).unwrap_err();
    assert_eq!(error.code(), "config");
    assert!(error.to_string().contains("rackpool agent"), "{error}");
    let beside = AgentOptions { host: None, ..rack.agent_options("1") };
    let error = AgentServer::start(beside).map(drop).unwrap_err();
    assert_eq!(error.code(), "config", "{error}");
    let nowhere = AgentOptions { memory: "shm:/dev/shm/none".into(), ..rack.agent_options("1") };
    assert_eq!(AgentServer::start(nowhere).map(drop).unwrap_err().code(), "bad-region");
    let agent = rack.agent("1");
    let error = AgentServer::start(rack.agent_options("1")).map(drop).unwrap_err();
    assert_eq!(error.code(), "denied", "{error}");
    drop(agent);
}

#[test]
fn an_agent_whose_name_another_user_has_serves_its_host_all_the_same() {
    if !rustix::process::geteuid().is_root() {
        println!("NOT TESTED: another user, because only root is another one at will");
        return;
    }
    let rack = Rack::new("squat");
    let agent = rack.agent("1");
    let name = agent.control().to_string();
    let mut before = rack.there("1");
    drop(agent);
    let squat = || {
        let user = rustix::fs::Uid::from_raw(65_534);
        rustix::thread::set_thread_res_uid(user, user, user).unwrap();
        ControlListener::bind(&name).unwrap()
    };
    let squatter = std::thread::scope(|scope| scope.spawn(squat).join().unwrap());
    let options = rack.options_there("1");
    let error = Pool::open(options).and_then(|pool| pool.handle()).err().unwrap();
    assert_eq!(error.code(), "denied");
    assert!(error.to_string().contains("user 65534"), "{error}");
    let agent = rack.agent("1");
    assert_ne!(agent.control(), name);
    assert!(agent.control().starts_with(&name));
    let second = AgentServer::start(rack.agent_options("1")).unwrap_err();
    assert_eq!(second.code(), "denied", "{second}");
    let mut new = rack.there("1");
    let addr = new.alloc(64, Placement::Local).unwrap();
    before.write_u64(addr, 7).unwrap();
    before.free(addr, 64).unwrap();
    // Without the other user it is found as before, where it is.
    drop(squatter);
    let mut last = rack.there("1");
    last.alloc(64, Placement::Local).unwrap();
    drop(agent);
    let agent = rack.agent("1");
    assert_eq!(agent.control(), name);
    assert!(new.alloc(64, Placement::Local).is_ok());
}

#[test]
fn a_client_of_another_host_reads_no_replica_because_its_end_is_told_by_the_daemons_clock() {
    let mut rack = Rack::new("replica");
    rack.daemon = None;
    let shares = |rack_number, memory: &str, rack: &Rack| {
        let mut options = DaemonOptions::new(rack_number, &rack.master(), memory);
        options.migration = "cost".parse().unwrap();
        DaemonServer::start(options).unwrap()
    };
    rack.daemon = Some(shares(0, &rack.memory(), &rack));
    let far = shares(1, "heap?size=4M&pages=64K", &rack);
    let agent = rack.agent("1");
    let (mut here, mut there) = (rack.here(), rack.there("1"));
    let mut user = Pool::open(Options::new(&rack.master(), 1)).unwrap().handle().unwrap();
    let addr = user.alloc(64 << 10, Placement::Local).unwrap();
    user.write_u64(addr, 7).unwrap();
    let start = Instant::now();
    while here.handle_stats().replica_reads == 0 {
        assert!(start.elapsed() < PATIENCE, "no replica was read");
        if user.explain(addr).unwrap().rack != 1 {
            let _ = user.admin().migrate(addr, RackId(1));
        }
        // It may not be made just now.
        let _ = user.admin().replicate(addr, RackId(0));
        // As clients that use the page alike, so that it stays.
        for _ in 0..200 {
            for handle in [&mut here, &mut there, &mut user] {
                assert_eq!(handle.read_u64(addr).unwrap(), 7);
            }
        }
    }
    assert_eq!(there.handle_stats().replica_reads, 0);
    drop((here, there, user));
    drop((agent, far));
}

/// The answer to a request.
fn ask(addr: SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(addr).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn an_agent_tells_how_many_clients_it_has_and_whether_its_daemon_is_there() {
    let mut rack = Rack::new("metrics");
    let metrics = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
    let options = AgentOptions { metrics, ..rack.agent_options("1") };
    let agent = AgentServer::start(options).unwrap();
    let addr = agent.metrics_addr().unwrap();
    let there = rack.there("1");
    let told = ask(addr, "/metrics");
    for line in
        ["rackpool_agent_clients 1\n", "rackpool_agent_daemon_up 1\n", "server=\"agent\"} 1\n"]
    {
        assert!(told.contains(line), "{told}");
    }
    assert!(ask(addr, "/readyz").ends_with("ready\n"));
    rack.daemon = None;
    let start = Instant::now();
    while !ask(addr, "/readyz").ends_with("the rack's daemon does not answer\n") {
        assert!(start.elapsed() < PATIENCE);
    }
    assert!(ask(addr, "/livez").ends_with("live\n"));
    drop(there);
}
