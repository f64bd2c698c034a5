//! Writes into memory that persists: durable when they return, when it is asked for, or never for
//! sure; by the own rack and by another one; and what a daemon that is started again has.

use rackpool::cluster::Cluster;
use rackpool::daemon::{DaemonOptions, DaemonServer};
use rackpool::{
    CasOutcome, Durability, GAddr, Handle, LockMode, LockOptions, Options, Placement, Pool, RackId,
};
use rackpool_core::durability::{PMEM_COPY_BYTES, PmemHeader};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

const PAGE: u64 = 64 << 10;

/// A rack 1 with memory that persists, beside rack 0 of the cluster, which has none.
struct Stage {
    daemon: Option<DaemonServer>,
    cluster: Cluster,
    path: PathBuf,
}

impl Stage {
    fn start(name: &str) -> Self {
        let name = format!("rackpool-persist-{}-{name}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let cluster = Cluster::start(1).unwrap();
        let mut stage = Self { daemon: None, cluster, path };
        stage.start_daemon();
        stage
    }

    fn start_daemon(&mut self) {
        let memory = format!("pmem:{}?size=4M&pages=64K", self.path.display());
        let options = DaemonOptions::new(1, &self.cluster.master_addr(), &memory);
        self.daemon = Some(DaemonServer::start(options).unwrap());
    }

    /// What is left of it if all processes of the host end now.
    fn cut_power(&self) -> PathBuf {
        let left = self.path.with_extension("left");
        std::fs::copy(&self.path, &left).unwrap();
        let file = File::options().read(true).write(true).open(&left).unwrap();
        let header = PmemHeader::newest(|copy| {
            let mut bytes = [0; size_of::<PmemHeader>()];
            file.read_exact_at(&mut bytes, copy * PMEM_COPY_BYTES).unwrap();
            bytes
        });
        let header = header.unwrap();
        assert_eq!(header.in_use, 1);
        // Served by another boot of the host.
        let boot = [!header.boot[0], header.boot[1]];
        let (header, at) = PmemHeader { boot, ..header }.next();
        file.write_all_at(&header.to_bytes(), at).unwrap();
        left
    }

    /// The host boots with that.
    fn boot_with(&mut self, left: PathBuf) {
        self.daemon.take().unwrap().stop();
        std::fs::rename(left, &self.path).unwrap();
        self.start_daemon();
    }

    fn handle(&self, rack: u16, durability: Durability) -> Handle {
        let options = Options::new(&self.cluster.master_addr(), rack).durability(durability);
        Pool::open(options).unwrap().handle().unwrap()
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.daemon = None;
        let _ = std::fs::remove_file(&self.path);
    }
}

/// How many requests a piece of work makes over the ring.
fn requests(handle: &mut Handle, work: impl FnOnce(&mut Handle)) -> u64 {
    let before = handle.handle_stats().ring_requests;
    work(handle);
    handle.handle_stats().ring_requests - before
}

/// Every kind of write to mapped pages that are known; how many requests each makes.
fn writes(handle: &mut Handle, addr: GAddr) -> [u64; 5] {
    handle.write(addr, &[1; 64]).unwrap();
    [
        requests(handle, |handle| handle.write(addr, b"kept").unwrap()),
        requests(handle, |handle| handle.write_u64(GAddr(addr.0 + 8), 7).unwrap()),
        requests(handle, |handle| {
            let outcome = handle.cas(GAddr(addr.0 + 8), 7, 8).unwrap();
            assert_eq!(outcome, CasOutcome::Swapped);
        }),
        requests(handle, |handle| {
            assert_eq!(handle.fetch_add(GAddr(addr.0 + 8), 2).unwrap(), 8);
        }),
        requests(handle, |handle| {
            let pieces = &mut [(GAddr(addr.0 + 16), &b"one"[..]), (GAddr(addr.0 + 32), b"two")];
            handle.write_batch(pieces).unwrap();
        }),
    ]
}

#[test]
fn writes_are_durable_when_they_return_or_when_it_is_asked_for() {
    let stage = Stage::start("kinds");
    for (durability, expected) in [
        (Durability::None, [0; 5]),
        (Durability::Flush, [0; 5]),
        (Durability::Write, [1, 1, 1, 1, 2]),
    ] {
        let mut handle = stage.handle(1, durability);
        let addr = handle.alloc(64, Placement::Local).unwrap();
        assert_eq!(writes(&mut handle, addr), expected, "{durability:?}");
        let asked = requests(&mut handle, |handle| handle.persist(addr, 64).unwrap());
        assert_eq!(asked, u64::from(durability != Durability::None), "{durability:?}");
        let mut found = [0; 64];
        handle.read(addr, &mut found).unwrap();
        assert_eq!((&found[..4], found[8], &found[32..35]), (&b"kept"[..], 10, &b"two"[..]));
        // One request a page, and no more than a page.
        let run = handle.alloc(3 * PAGE, Placement::Local).unwrap();
        handle.write_durable(run, &vec![3; 3 * PAGE as usize]).unwrap();
        let submitted = handle.submit_write(run, vec![4; 8]);
        assert_eq!(submitted.is_err(), durability == Durability::Write);
        while handle.wait_completion(1000).unwrap().is_some() {}
        handle.free(run, 3 * PAGE).unwrap();
    }
}

#[test]
fn another_racks_writes_are_made_durable_by_the_home_and_are_there_after_a_restart() {
    let mut stage = Stage::start("restart");
    let mut far = stage.handle(0, Durability::Flush);
    let addr = far.alloc(3 * PAGE, Placement::Rack(RackId(1))).unwrap();
    let bytes: Vec<u8> = (0..3 * PAGE).map(|at| (at % 251) as u8).collect();
    far.write(addr, &bytes).unwrap();
    far.persist(addr, 3 * PAGE).unwrap();
    let mut sure = stage.handle(0, Durability::Write);
    sure.write(GAddr(addr.0 + 100), b"sure").unwrap();
    let old = sure.fetch_add(GAddr(addr.0 + 2 * PAGE), 1).unwrap();
    assert_eq!(old.to_le_bytes()[0], bytes[2 * PAGE as usize]);
    // What is beyond the allocation's pages, or nowhere, is told.
    assert_eq!(far.persist(GAddr(1 << 40), 8).unwrap_err().code(), "not-mapped");
    stage.daemon.take().unwrap().stop();
    stage.start_daemon();
    let mut near = stage.handle(1, Durability::Flush);
    let mut found = vec![0; 3 * PAGE as usize];
    near.read(addr, &mut found).unwrap();
    assert_eq!(&found[100..104], b"sure");
    assert_eq!(found[..100], bytes[..100]);
    let before_word = 104..2 * PAGE as usize;
    assert_eq!(found[before_word.clone()], bytes[before_word]);
    near.free(addr, 3 * PAGE).unwrap();
}

#[test]
fn after_a_loss_of_power_the_pages_are_there_and_locks_sessions_and_slots_are_free() {
    let mut stage = Stage::start("power");
    let mut far = stage.handle(0, Durability::Flush);
    let mut near = stage.handle(1, Durability::Flush);
    let [first, second] = [&mut far, &mut near].map(|handle| {
        let addr = handle.alloc(PAGE, Placement::Rack(RackId(1))).unwrap();
        handle.write(addr, b"kept").unwrap();
        handle.persist(addr, 4).unwrap();
        addr
    });
    let guards = [
        far.lock(second, LockMode::Write, LockOptions::range(64)).unwrap(),
        near.lock(first, LockMode::Write, LockOptions::range(64)).unwrap(),
    ];
    let left = stage.cut_power();
    for (handle, guard) in [&mut far, &mut near].into_iter().zip(guards) {
        handle.unlock(guard).unwrap();
    }
    drop(near);
    stage.boot_with(left);
    let mut near = stage.handle(1, Durability::Flush);
    for handle in [&mut far, &mut near] {
        for addr in [first, second] {
            let mut found = [0; 4];
            handle.read(addr, &mut found).unwrap();
            assert_eq!(&found, b"kept");
            let guard = handle.lock(addr, LockMode::Write, LockOptions::range(64)).unwrap();
            handle.unlock(guard).unwrap();
        }
    }
    let stats = near.admin().pool_stats().unwrap();
    let rack = stats.racks.iter().find(|rack| rack.rack == RackId(1));
    let rack = rack.and_then(|rack| rack.daemon.as_ref()).unwrap();
    assert_eq!((rack.slots_used, rack.remote_sessions, rack.locks_held), (1, 1, 0), "{rack:?}");
    far.free(first, PAGE).unwrap();
    near.free(second, PAGE).unwrap();
}

#[test]
fn memory_that_does_not_persist_refuses_to_promise_and_keeps_its_pages() {
    let stage = Stage::start("refused");
    let mut flush = stage.handle(0, Durability::Flush);
    let addr = flush.alloc(PAGE, Placement::Local).unwrap();
    assert_eq!(flush.persist(addr, 8).unwrap_err().code(), "denied");
    let mut write = stage.handle(1, Durability::Write);
    let error = write.write(addr, b"volatile").unwrap_err();
    assert!(error.to_string().contains("does not outlive a loss of power"), "{error}");
    let mut none = stage.handle(1, Durability::None);
    none.write(addr, b"volatile").unwrap();
    none.persist(addr, 8).unwrap();
    // What is durable is not moved to where it would not be; the other way it may go.
    let kept = write.alloc(PAGE, Placement::Local).unwrap();
    write.write(kept, b"durable").unwrap();
    let error = write.admin().migrate(kept, RackId(0)).unwrap_err();
    assert!(error.to_string().contains("only a drain takes it elsewhere"), "{error}");
    assert_eq!(write.admin().migrate(addr, RackId(1)).unwrap(), RackId(1));
    flush.persist(addr, 8).unwrap();
}

#[test]
fn writes_that_a_locked_range_still_buffers_are_persisted_at_their_home() {
    let stage = Stage::start("buffered");
    for (durability, asks) in [(Durability::Flush, true), (Durability::Write, false)] {
        let mut far = stage.handle(0, durability);
        let mut near = stage.handle(1, Durability::None);
        let addr = far.alloc(4096, Placement::Rack(RackId(1))).unwrap();
        near.read(addr, &mut [0; 8]).unwrap();
        let guard = far.lock(addr, LockMode::Write, LockOptions::range(1024)).unwrap();
        far.write(addr, b"buffered").unwrap();
        if asks {
            assert_eq!(near.read_u64(addr), Ok(0), "it is not at home yet");
            far.persist(addr, 8).unwrap();
        }
        let mut found = [0; 8];
        near.read(addr, &mut found).unwrap();
        assert_eq!(&found, b"buffered", "{durability:?}");
        far.unlock(guard).unwrap();
        far.free(addr, 4096).unwrap();
    }
}

#[test]
fn a_durable_write_does_not_hang_on_the_pools_durability() {
    let stage = Stage::start("durable");
    let mut handle = stage.handle(1, Durability::None);
    let addr = handle.alloc(64, Placement::Local).unwrap();
    handle.write(addr, b"known").unwrap();
    let asked = requests(&mut handle, |handle| handle.write_durable(addr, b"kept").unwrap());
    assert_eq!(asked, 1);
    let mut elsewhere = stage.handle(0, Durability::None);
    let volatile = elsewhere.alloc(64, Placement::Local).unwrap();
    assert_eq!(elsewhere.write_durable(volatile, b"lost").unwrap_err().code(), "denied");
}
