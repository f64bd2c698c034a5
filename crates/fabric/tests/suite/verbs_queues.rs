//! The layer below the verbs fabric on real devices: queue pairs of all three kinds and what they
//! promise. Needs two devices; `cargo xtask vm verbs-one` runs it.
#![cfg(feature = "verbs")]

use rackpool_core::seam::Mem;
use rackpool_fabric::verbs::device::Domain;
use rackpool_fabric::verbs::memory::{Region, Rights};
use rackpool_fabric::verbs::queue::{
    Address, Completion, CompletionStatus, Completions, Depths, Flags, GRH_BYTES, Operation, Peer,
    QueuePair, QueuePairKind,
};
use rackpool_fabric::verbs::{Device, DeviceChoice};
use rackpool_mem::window::Window;
use std::time::{Duration, Instant};

const BYTES: u64 = 1 << 16;
const PATIENCE: Duration = Duration::from_secs(20);

/// An end with memory of its own, of which others may use all.
struct End {
    pair: QueuePair,
    completions: Completions,
    region: Region,
    memory: Window,
    domain: Domain,
    device: Device,
}

impl End {
    fn new(variable: &str, kind: QueuePairKind) -> End {
        let choice: DeviceChoice = std::env::var(variable).unwrap_or_default().parse().unwrap();
        let device = Device::open(&choice).unwrap();
        let domain = Domain::new(&device).unwrap();
        let memory = Window::private(BYTES).unwrap();
        let rights = Rights::Remote { atomics: true };
        let region = Region::of_window(&domain, &memory, 0, rights).unwrap();
        let completions = Completions::new(&device, 256).unwrap();
        let depths = Depths { send: 64, receive: 64, pieces: 4, inline_bytes: 64 };
        let pair = QueuePair::new(&device, &domain, &completions, kind, depths).unwrap();
        End { pair, completions, region, memory, domain, device }
    }

    fn pair(kind: QueuePairKind) -> (End, End) {
        let mut a = End::new("RACKPOOL_VERBS_DEVICE", kind);
        let mut b = End::new("RACKPOOL_VERBS_TARGET_DEVICE", kind);
        a.pair.connect(&b.pair.address()).unwrap();
        b.pair.connect(&a.pair.address()).unwrap();
        (a, b)
    }

    fn push(&mut self, id: u64, operation: Operation<'_>, piece: (u64, u64), flags: Flags) {
        self.pair.push(id, &operation, [(&self.region, piece.0, piece.1)], flags);
    }

    fn wait(&mut self, count: usize) -> Vec<Completion> {
        let (mut found, start) = (Vec::new(), Instant::now());
        while found.len() < count {
            if self.completions.poll(&mut found) == 0 {
                std::thread::sleep(Duration::from_micros(200));
            }
            assert!(start.elapsed() < PATIENCE, "{found:?}");
        }
        found
    }

    fn post_receive(&mut self, id: u64, offset: u64, bytes: u64) {
        self.pair.receive([(id, (&self.region, offset, bytes))]).unwrap();
    }

    fn read(&self, offset: u64, bytes: usize) -> Vec<u8> {
        let mut to = vec![0; bytes];
        self.memory.copy_out(offset, &mut to);
        to
    }
}

const SIGNALLED: Flags = Flags { signalled: true, inline: false, fence: false };

#[test]
#[ignore = "needs RDMA devices: cargo xtask vm verbs-one"]
fn a_reliable_pair_does_every_operation() {
    let (mut a, mut b) = End::pair(QueuePairKind::Reliable);
    let key = b.region.remote_key();
    a.memory.copy_in(0, b"to be written");
    b.memory.copy_in(4096, b"to be read");
    b.post_receive(7, 8192, 100);
    b.post_receive(8, 9000, 100);
    a.push(1, Operation::Write { address: 100, key }, (0, 13), Flags::default());
    a.push(2, Operation::Read { address: 4096, key }, (512, 10), SIGNALLED);
    a.push(3, Operation::FetchAdd { address: 2048, key, n: 5 }, (1024, 8), SIGNALLED);
    let cas = Operation::Cas { address: 2048, key, expected: 5, new: 9 };
    a.push(4, cas, (1032, 8), SIGNALLED);
    let inline = Flags { inline: true, ..SIGNALLED };
    a.push(5, Operation::Send { imm: 77 }, (0, 13), inline);
    a.push(6, Operation::WriteImm { address: 200, key, imm: 88 }, (0, 13), Flags::default());
    a.pair.ring().unwrap();
    let done = a.wait(5);
    let ids: Vec<_> = done.iter().map(|one| (one.id, one.status)).collect();
    assert_eq!(
        ids,
        [2, 3, 4, 5, 6].map(|id| (id, CompletionStatus::Done)),
        "the last of a doorbell too"
    );
    assert_eq!(a.read(512, 10), b"to be read");
    assert_eq!((a.memory.load(1024), a.memory.load(1032), b.memory.load(2048)), (0, 5, 9));
    assert_eq!(
        (b.read(100, 13), b.read(200, 13)),
        (b"to be written".to_vec(), b"to be written".to_vec())
    );
    let got = b.wait(2);
    assert_eq!((got[0].id, got[0].imm, got[0].bytes, got[0].is_write), (7, 77, 13, false));
    assert_eq!((got[1].id, got[1].imm, got[1].is_write), (8, 88, true));
    assert_eq!(b.read(8192, 13), b"to be written");
}

#[test]
#[ignore = "needs RDMA devices: cargo xtask vm verbs-one"]
fn a_region_that_was_ended_refuses_at_once_and_the_pair_can_be_renewed() {
    let (mut a, mut b) = End::pair(QueuePairKind::Reliable);
    let old = b.region.remote_key();
    let rights = Rights::Remote { atomics: false };
    b.region = Region::of_window(&b.domain, &b.memory, 0, rights).unwrap();
    a.push(1, Operation::Write { address: 0, key: old }, (0, 64), SIGNALLED);
    a.push(2, Operation::Write { address: 64, key: b.region.remote_key() }, (0, 64), SIGNALLED);
    a.pair.ring().unwrap();
    let done = a.wait(2);
    assert_eq!((done[0].id, done[0].status), (1, CompletionStatus::Access));
    assert!(matches!(done[1].status, CompletionStatus::Failed(_)), "{done:?}");
    b.pair.fail().unwrap();
    a.pair.renew().unwrap();
    b.pair.renew().unwrap();
    a.pair.connect(&b.pair.address()).unwrap();
    b.pair.connect(&a.pair.address()).unwrap();
    a.memory.copy_in(0, b"again");
    a.push(3, Operation::Write { address: 64, key: b.region.remote_key() }, (0, 5), SIGNALLED);
    a.pair.ring().unwrap();
    assert_eq!(a.wait(1)[0].status, CompletionStatus::Done);
    assert_eq!(b.read(64, 5), b"again");
}

#[test]
#[ignore = "needs RDMA devices: cargo xtask vm verbs-one"]
fn a_key_of_another_domain_is_refused() {
    let (mut a, b) = End::pair(QueuePairKind::Reliable);
    let other = Domain::new(&b.device).unwrap();
    let rights = Rights::Remote { atomics: false };
    let foreign = Region::of_window(&other, &b.memory, 0, rights).unwrap();
    a.push(1, Operation::Write { address: 0, key: foreign.remote_key() }, (0, 64), SIGNALLED);
    a.pair.ring().unwrap();
    assert_eq!(a.wait(1)[0].status, CompletionStatus::Access);
    assert_eq!(b.read(0, 64), [0; 64]);
}

#[test]
#[ignore = "needs RDMA devices: cargo xtask vm verbs-one"]
fn an_unreliable_pair_writes_and_sends() {
    let (mut a, mut b) = End::pair(QueuePairKind::Unreliable);
    let key = b.region.remote_key();
    a.memory.copy_in(0, &[5; 9000]);
    b.post_receive(1, 32768, 10_000);
    b.post_receive(2, 50_000, 100);
    a.push(1, Operation::Write { address: 100, key }, (0, 9000), Flags::default());
    a.push(2, Operation::Send { imm: 3 }, (0, 9000), Flags::default());
    a.push(3, Operation::WriteImm { address: 20_000, key, imm: 4 }, (0, 50), Flags::default());
    a.pair.ring().unwrap();
    assert_eq!(a.wait(1)[0].id, 3, "only the last was to be completed");
    let got = b.wait(2);
    assert_eq!((got[0].bytes, got[0].imm, got[1].imm), (9000, 3, 4));
    assert_eq!((b.read(100, 9000), b.read(32768, 9000)), (vec![5; 9000], vec![5; 9000]));
    assert_eq!(b.read(20_000, 50), [5; 50]);
}

#[test]
#[ignore = "needs RDMA devices: cargo xtask vm verbs-one"]
fn datagrams_come_behind_forty_bytes_and_are_no_longer_than_a_packet() {
    let mut a = End::new("RACKPOOL_VERBS_DEVICE", QueuePairKind::Datagram);
    let mut b = End::new("RACKPOOL_VERBS_TARGET_DEVICE", QueuePairKind::Datagram);
    let nobody = Address { number: 0, ..b.pair.address() };
    a.pair.connect(&nobody).unwrap();
    b.pair.connect(&nobody).unwrap();
    let mtu = u64::from(a.device.limits.mtu_bytes.min(b.device.limits.mtu_bytes));
    let to_b = Peer::new(&a.device, &a.domain, &b.pair.address()).unwrap();
    b.post_receive(1, 0, GRH_BYTES + mtu);
    b.post_receive(2, 8192, GRH_BYTES + mtu);
    a.memory.copy_in(0, &vec![6; mtu as usize]);
    a.push(1, Operation::SendTo { to: &to_b, imm: 9 }, (0, 5), SIGNALLED);
    a.push(2, Operation::SendTo { to: &to_b, imm: 10 }, (0, mtu), SIGNALLED);
    a.pair.ring().unwrap();
    assert!(a.wait(2).iter().all(|one| one.status == CompletionStatus::Done));
    let got = b.wait(2);
    assert_eq!(got[0].bytes, 5 + GRH_BYTES as u32);
    assert_eq!(u64::from(got[1].bytes), mtu + GRH_BYTES);
    assert_eq!(got[0].source, a.pair.address().number);
    assert_eq!((got[0].imm, got[1].imm), (9, 10));
    assert_eq!(b.read(GRH_BYTES, 5), [6; 5]);
    assert_eq!(b.read(8192 + GRH_BYTES, mtu as usize), vec![6; mtu as usize]);
    let too_long = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        a.push(3, Operation::SendTo { to: &to_b, imm: 0 }, (0, mtu + 1), SIGNALLED);
    }));
    assert!(too_long.is_err(), "a datagram longer than a packet was taken");
}

#[test]
#[ignore = "needs RDMA devices: cargo xtask vm verbs-one"]
fn a_peer_that_is_not_there_is_given_up() {
    let (mut a, b) = End::pair(QueuePairKind::Reliable);
    let key = b.region.remote_key();
    drop(b.pair);
    let start = Instant::now();
    a.push(1, Operation::Write { address: 0, key }, (0, 8), SIGNALLED);
    a.pair.ring().unwrap();
    let done = a.wait(1);
    assert_eq!(done[0].status, CompletionStatus::Failed(12), "retries are not without end");
    println!("result: given up after {:?}", start.elapsed());
}
