//! A handle with a small write buffer and page cache under random locks, beside plain memory.

use proptest::prelude::*;
use rackpool::cluster::Cluster;
use rackpool::{
    FabricChoice, GAddr, Handle, LockGuard, LockMode, LockOptions, Options, Placement, Pool, RackId,
};
use std::sync::{Mutex, OnceLock};

const BYTES: u64 = 4096;
const LINES: u64 = BYTES / 64;

#[derive(Clone, Debug)]
enum Op {
    Lock { first: u64, lines: u64, write: bool },
    Unlock { index: usize, drops: bool },
    Write { at: u64, bytes: u64, value: u8 },
    Read { at: u64, bytes: u64 },
    Word { at: u64, value: u64 },
    Add { at: u64, n: u64 },
    Batch { at: u64, other: u64, value: u8 },
}

fn op() -> impl Strategy<Value = Op> {
    let at = || 0..BYTES - 600;
    prop_oneof![
        2 => (0..LINES, 1..24u64, any::<bool>())
            .prop_map(|(first, lines, write)| Op::Lock { first, lines, write }),
        2 => (any::<usize>(), any::<bool>())
            .prop_map(|(index, drops)| Op::Unlock { index, drops }),
        8 => (at(), 1..300u64, any::<u8>())
            .prop_map(|(at, bytes, value)| Op::Write { at, bytes, value }),
        8 => (at(), 1..600u64).prop_map(|(at, bytes)| Op::Read { at, bytes }),
        3 => (0..LINES * 8, any::<u64>()).prop_map(|(at, value)| Op::Word { at: 8 * at, value }),
        1 => (0..LINES * 8, any::<u64>()).prop_map(|(at, n)| Op::Add { at: 8 * at, n }),
        1 => (at(), at(), any::<u8>())
            .prop_map(|(at, other, value)| Op::Batch { at, other, value }),
    ]
}

struct Model {
    handle: Handle,
    addr: GAddr,
    plain: Vec<u8>,
    guards: Vec<LockGuard>,
}

impl Model {
    fn at(&self, offset: u64) -> GAddr {
        GAddr(self.addr.0 + offset)
    }

    fn set(&mut self, at: u64, from: &[u8]) {
        self.plain[at as usize..at as usize + from.len()].copy_from_slice(from);
    }

    fn act(&mut self, op: Op) {
        match op {
            Op::Lock { first, lines, write } => {
                let (at, bytes) = (self.at(64 * first), 64 * lines.min(LINES - first));
                let guard = match write {
                    true => self.handle.lock(at, LockMode::Write, LockOptions::range(bytes)),
                    false => self.handle.lock(at, LockMode::Read, LockOptions::range(bytes)),
                };
                match guard {
                    Ok(guard) => self.guards.push(guard),
                    Err(error) => assert_eq!(error.code(), "already-locked"),
                }
            }
            Op::Unlock { index, drops } => {
                if !self.guards.is_empty() {
                    let guard = self.guards.swap_remove(index % self.guards.len());
                    if drops { drop(guard) } else { self.handle.unlock(guard).unwrap() }
                }
            }
            Op::Write { at, bytes, value } => {
                let from: Vec<u8> = (0..bytes).map(|i| value.wrapping_add(i as u8)).collect();
                self.handle.write(self.at(at), &from).unwrap();
                self.set(at, &from);
            }
            Op::Read { at, bytes } => {
                let mut to = vec![0xcc; bytes as usize];
                self.handle.read(self.at(at), &mut to).unwrap();
                assert_eq!(to, self.plain[at as usize..(at + bytes) as usize]);
            }
            Op::Word { at, value } => {
                self.handle.write_u64(self.at(at), value).unwrap();
                self.set(at, &value.to_le_bytes());
                assert_eq!(self.handle.read_u64(self.at(at)), Ok(value));
            }
            Op::Add { at, n } => {
                let old = self.handle.fetch_add(self.at(at), n).unwrap();
                let word = self.plain[at as usize..][..8].try_into().unwrap();
                assert_eq!(old, u64::from_le_bytes(word));
                self.set(at, &old.wrapping_add(n).to_le_bytes());
            }
            Op::Batch { at, other, value } => {
                let from = [value; 40];
                self.handle.write_batch(&mut [(self.at(at), &from[..])]).unwrap();
                self.set(at, &from);
                let mut to = [[0; 40]; 2];
                let (first, second) = (self.at(at), self.at(other));
                let [one, two] = &mut to;
                self.handle.read_batch(&mut [(first, one), (second, two)]).unwrap();
                assert_eq!(to[0], from);
                assert_eq!(to[1], self.plain[other as usize..][..40]);
            }
        }
    }
}

fn cluster() -> &'static Mutex<Cluster> {
    static CLUSTER: OnceLock<Mutex<Cluster>> = OnceLock::new();
    CLUSTER.get_or_init(|| Mutex::new(Cluster::start(2).unwrap()))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn whatever_is_locked_a_handle_reads_what_it_wrote_and_home_has_it_in_the_end(
        ops in prop::collection::vec(op(), 1..150),
        half in prop_oneof![Just(300u32), Just(2048)],
        blocks in 0..3u32,
    ) {
        let cluster = cluster().lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let options = Options::new(&cluster.master_addr().to_string(), 0)
            .fabric(FabricChoice::Tcp)
            .write_buffer_bytes(2 * half)
            .page_cache_blocks(blocks);
        let mut handle = Pool::open(options).unwrap().handle().unwrap();
        let addr = handle.alloc(BYTES, Placement::Rack(RackId(1))).unwrap();
        let (plain, guards) = (vec![0; BYTES as usize], Vec::new());
        let mut model = Model { handle, addr, plain, guards };
        ops.into_iter().for_each(|op| model.act(op));
        let Model { handle, plain, guards, .. } = model;
        drop(handle);
        drop(guards);
        let mut other = cluster.pool(1).unwrap().handle().unwrap();
        let mut home = vec![0; BYTES as usize];
        let guard = other.lock(addr, LockMode::Read, LockOptions::range(BYTES)).unwrap();
        other.read(addr, &mut home).unwrap();
        other.unlock(guard).unwrap();
        other.free(addr, BYTES).unwrap();
        prop_assert_eq!(home, plain);
    }
}
