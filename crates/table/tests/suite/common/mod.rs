//! A pool in memory, shared by threads, as hostile as the contract of `Words` permits: copies tear
//! at every word, freed addresses are handed out again at once (last freed first), pages vanish,
//! a client may die at any access or in the middle of a copy, a compare-and-swap may answer that
//! its outcome is unknown and take effect later or never. Writes to memory that is not allocated,
//! and frees of what is no allocation, panic.
#![allow(dead_code)]

use rackpool::CasOutcome;
use rackpool::protocol::Error as WireError;
use rackpool_table::words::{GAddr, Placement, PoolResult, WordSwap, Words};
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, RwLock};

pub const PAGE_BYTES: u64 = 16 << 10;
const PAGE_WORDS: usize = PAGE_BYTES as usize / 8;

type Page = Arc<[AtomicU64; PAGE_WORDS]>;

#[derive(Default)]
struct Book {
    page_next: u64,
    /// Free objects by log2 of their size.
    free: BTreeMap<u32, Vec<u64>>,
    /// Allocations: address and bytes as asked.
    live: BTreeMap<u64, u64>,
    used_bytes: u64,
    limit_bytes: u64,
    delayed: Vec<(u64, u64, u64)>,
}

pub struct Pool {
    pages: RwLock<HashMap<u64, Page>>,
    book: Mutex<Book>,
    roots: Mutex<HashMap<String, u64>>,
    clock: AtomicU64,
}

/// What a client does to itself.
#[derive(Clone, Copy, Debug, Default)]
pub struct Chaos {
    pub crash_at: Option<u64>,
    /// Yields at one in so many accesses; 0 for never.
    pub yield_one_in: u64,
    /// One in so many compare-and-swaps answers that its outcome is unknown; 0 for never.
    pub unknown_one_in: u64,
    /// One in so many allocations finds the pool full; 0 for never.
    pub full_one_in: u64,
}

pub struct Client {
    pool: Arc<Pool>,
    rng: u64,
    pub chaos: Chaos,
    pub seat: Option<Seat>,
    pub accesses: u64,
    /// What would be a round trip if all but new blobs were in another rack: reads, swaps and
    /// additions; a batch is one.
    pub waits: u64,
    pub allocs: u64,
}

/// Lets exactly one of several threads run at a time and changes at every access, by a seed: an
/// interleaving that is wilder than a real one and can be repeated. Now and then a thread sleeps
/// for many accesses of the others, as if it were stopped.
pub struct Turns {
    state: Mutex<TurnState>,
    wake: Vec<Condvar>,
}

struct TurnState {
    rng: u64,
    turn: u64,
    running: usize,
    /// By thread: sleeps until this turn, or `None` if it is gone.
    asleep: Vec<Option<u64>>,
}

/// A thread's part in the turns; it leaves them when this is dropped.
#[derive(Clone)]
pub struct Seat {
    turns: Arc<Turns>,
    thread: usize,
}

impl Turns {
    pub fn new(threads: usize, seed: u64) -> Arc<Turns> {
        let rng = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let state = TurnState { rng, turn: 0, running: 0, asleep: vec![Some(0); threads] };
        let wake = (0..threads).map(|_| Condvar::new()).collect();
        Arc::new(Turns { state: Mutex::new(state), wake })
    }

    pub fn seat(self: &Arc<Turns>, thread: usize) -> Seat {
        Seat { turns: self.clone(), thread }
    }

    fn pass_on(&self, state: &mut TurnState) {
        state.turn += 1;
        let here = |thread: &usize| state.asleep[*thread].is_some();
        let present: Vec<usize> = (0..state.asleep.len()).filter(here).collect();
        let awake: Vec<usize> = present
            .iter()
            .copied()
            .filter(|thread| state.asleep[*thread] <= Some(state.turn))
            .collect();
        let from = if awake.is_empty() { &present } else { &awake };
        if !from.is_empty() {
            state.running = from[random(&mut state.rng) as usize % from.len()];
            self.wake[state.running].notify_one();
        }
    }
}

impl Seat {
    /// Waits until it is this thread's turn.
    pub fn enter(&self) {
        let mut state = self.turns.state.lock().unwrap();
        while state.running != self.thread {
            state = self.turns.wake[self.thread].wait(state).unwrap();
        }
    }

    fn step(&self) {
        let mut state = self.turns.state.lock().unwrap();
        if random(&mut state.rng).is_multiple_of(60) {
            let turns = 1 + random(&mut state.rng) % 400;
            state.asleep[self.thread] = Some(state.turn + turns);
        }
        self.turns.pass_on(&mut state);
        while state.running != self.thread {
            state = self.turns.wake[self.thread].wait(state).unwrap();
        }
    }

    pub fn leave(&self) {
        let mut state = self.turns.state.lock().unwrap();
        state.asleep[self.thread] = None;
        self.turns.pass_on(&mut state);
    }
}

/// What a client dies of.
pub struct Crash;

/// A small generator of random words (xorshift64*).
pub fn random(state: &mut u64) -> u64 {
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    state.wrapping_mul(0x2545_f491_4f6c_dd1d)
}

impl Pool {
    pub fn new(limit_bytes: u64) -> Arc<Pool> {
        Arc::new(Pool {
            pages: RwLock::default(),
            book: Mutex::new(Book { page_next: 1, limit_bytes, ..Book::default() }),
            roots: Mutex::default(),
            clock: AtomicU64::new(1),
        })
    }

    pub fn client(self: &Arc<Pool>, seed: u64, chaos: Chaos) -> Client {
        let rng = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        Client { pool: self.clone(), rng, chaos, seat: None, accesses: 0, waits: 0, allocs: 0 }
    }

    pub fn now(&self) -> u64 {
        self.clock.fetch_add(1, SeqCst)
    }

    pub fn live(&self) -> BTreeMap<u64, u64> {
        self.book.lock().unwrap().live.clone()
    }

    pub fn set_limit(&self, limit_bytes: u64) {
        self.book.lock().unwrap().limit_bytes = limit_bytes;
    }

    pub fn used_bytes(&self) -> u64 {
        self.book.lock().unwrap().used_bytes
    }

    /// Flips bits of a word unseen by all clients.
    pub fn damage(&self, addr: u64, bits: u64) {
        let page = self.pages.read().unwrap()[&(addr / PAGE_BYTES)].clone();
        page[(addr % PAGE_BYTES / 8) as usize].fetch_xor(bits, SeqCst);
    }

    fn page(&self, addr: u64) -> PoolResult<Page> {
        let found = self.pages.read().unwrap().get(&(addr / PAGE_BYTES)).cloned();
        Ok(found.ok_or(WireError::NotMapped { addr: GAddr(addr) })?)
    }

    fn is_live(&self, addr: u64, bytes: u64) -> bool {
        let book = self.book.lock().unwrap();
        book.live
            .range(..=addr)
            .next_back()
            .is_some_and(|(start, length)| addr + bytes <= start + length)
    }

    fn map(&self, book: &mut Book, pages: u64) -> u64 {
        let first = book.page_next;
        book.page_next += pages;
        let mut map = self.pages.write().unwrap();
        for page in first..first + pages {
            map.insert(page, Arc::new(std::array::from_fn(|_| AtomicU64::new(0))));
        }
        first * PAGE_BYTES
    }

    fn alloc(&self, bytes: u64) -> PoolResult<GAddr> {
        let mut book = self.book.lock().unwrap();
        let charged = charge(bytes);
        if book.used_bytes + charged > book.limit_bytes {
            let free_bytes = book.limit_bytes - book.used_bytes;
            return Err(WireError::Full { bytes, free_bytes, place: "test".into() }.into());
        }
        book.used_bytes += charged;
        let addr = if bytes > PAGE_BYTES / 2 {
            self.map(&mut book, charged / PAGE_BYTES)
        } else {
            let class = charged.ilog2();
            if book.free.entry(class).or_default().is_empty() {
                let page = self.map(&mut book, 1);
                let objects = (0..PAGE_BYTES / charged).map(|i| page + i * charged);
                book.free.get_mut(&class).unwrap().extend(objects);
            }
            book.free.get_mut(&class).unwrap().pop().unwrap()
        };
        book.live.insert(addr, bytes);
        drop(book);
        for word in 0..charged / 8 {
            let at = addr + 8 * word;
            let page = self.page(at).unwrap();
            page[(at % PAGE_BYTES / 8) as usize].store(0, SeqCst);
        }
        Ok(GAddr(addr))
    }

    fn free(&self, addr: u64, bytes: u64, unmap: bool) {
        let mut book = self.book.lock().unwrap();
        let had = book.live.remove(&addr);
        assert_eq!(had, Some(bytes), "free of {addr:#x} with {bytes} bytes: is no allocation");
        let charged = charge(bytes);
        book.used_bytes -= charged;
        if bytes > PAGE_BYTES / 2 {
            let mut map = self.pages.write().unwrap();
            for page in 0..charged / PAGE_BYTES {
                map.remove(&(addr / PAGE_BYTES + page));
            }
            return;
        }
        book.free.entry(charged.ilog2()).or_default().push(addr);
        let page = addr / PAGE_BYTES * PAGE_BYTES;
        let empty = book.live.range(page..page + PAGE_BYTES).next().is_none();
        if unmap && empty {
            for objects in book.free.values_mut() {
                objects.retain(|object| object / PAGE_BYTES * PAGE_BYTES != page);
            }
            self.pages.write().unwrap().remove(&(page / PAGE_BYTES));
        }
    }
}

fn charge(bytes: u64) -> u64 {
    if bytes > PAGE_BYTES / 2 {
        bytes.next_multiple_of(PAGE_BYTES)
    } else {
        bytes.next_power_of_two().max(64)
    }
}

impl Client {
    pub fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    pub fn random(&mut self) -> u64 {
        random(&mut self.rng)
    }

    fn one_in(&mut self, n: u64) -> bool {
        n != 0 && self.random().is_multiple_of(n)
    }

    /// A moment at which others may run and this client may die.
    fn step(&mut self) {
        self.accesses += 1;
        if self.chaos.crash_at == Some(self.accesses) {
            std::panic::resume_unwind(Box::new(Crash));
        }
        self.let_others_run(self.chaos.yield_one_in);
        if self.chaos.unknown_one_in != 0 && self.one_in(4) {
            self.run_delayed();
        }
    }

    fn let_others_run(&mut self, one_in: u64) {
        if self.one_in(one_in) {
            match &self.seat {
                Some(seat) => seat.step(),
                None => std::thread::yield_now(),
            }
        }
    }

    /// Carries out a compare-and-swap after its client was told that the outcome is unknown.
    fn run_delayed(&mut self) {
        let delayed = self.pool.book.lock().unwrap().delayed.pop();
        if let Some((addr, expected, new)) = delayed
            && let Ok(page) = self.pool.page(addr)
        {
            let word = &page[(addr % PAGE_BYTES / 8) as usize];
            let _ = word.compare_exchange(expected, new, SeqCst, SeqCst);
        }
    }

    fn word(&mut self, addr: GAddr, written: bool) -> PoolResult<(Page, usize)> {
        self.step();
        if !addr.0.is_multiple_of(8) {
            return Err(WireError::Misaligned { addr, align_bytes: 8 }.into());
        }
        let page = self.pool.page(addr.0)?;
        if written {
            assert!(self.pool.is_live(addr.0, 8), "a write to {addr}, which is not allocated");
        }
        Ok((page, (addr.0 % PAGE_BYTES / 8) as usize))
    }
}

impl Words for Client {
    fn alloc(&mut self, bytes: u64, _: Placement) -> PoolResult<GAddr> {
        self.step();
        self.allocs += 1;
        if self.one_in(self.chaos.full_one_in) {
            return Err(WireError::Full { bytes, free_bytes: 0, place: "chaos".into() }.into());
        }
        self.pool.alloc(bytes)
    }

    fn free(&mut self, addr: GAddr, bytes: u64) -> PoolResult<()> {
        self.step();
        let unmap = self.one_in(4);
        self.pool.free(addr.0, bytes, unmap);
        Ok(())
    }

    fn read(&mut self, addr: GAddr, buf: &mut [u8]) -> PoolResult<()> {
        self.waits += 1;
        self.step();
        let mut at = 0;
        while at < buf.len() {
            let from = addr.0 + at as u64;
            let page = self.pool.page(from)?;
            let word = page[(from % PAGE_BYTES / 8) as usize].load(SeqCst).to_le_bytes();
            let skip = (from % 8) as usize;
            let part = (8 - skip).min(buf.len() - at);
            buf[at..at + part].copy_from_slice(&word[skip..skip + part]);
            at += part;
            self.let_others_run(16 * self.chaos.yield_one_in);
        }
        Ok(())
    }

    fn write(&mut self, addr: GAddr, bytes: &[u8]) -> PoolResult<()> {
        self.step();
        let mut at = 0;
        while at < bytes.len() {
            if at == bytes.len() / 16 * 8 {
                self.step();
            }
            let to = addr.0 + at as u64;
            let (page, index) = (self.pool.page(to)?, (to % PAGE_BYTES / 8) as usize);
            if at == 0 || at % 128 == 0 {
                let left = bytes.len() as u64 - at as u64;
                assert!(self.pool.is_live(to, left), "a write to {addr}, not allocated");
            }
            let skip = (to % 8) as usize;
            let part = (8 - skip).min(bytes.len() - at);
            let mut word = page[index].load(SeqCst).to_le_bytes();
            word[skip..skip + part].copy_from_slice(&bytes[at..at + part]);
            page[index].store(u64::from_le_bytes(word), SeqCst);
            at += part;
            self.let_others_run(16 * self.chaos.yield_one_in);
        }
        Ok(())
    }

    fn read_u64(&mut self, addr: GAddr) -> PoolResult<u64> {
        self.waits += 1;
        let (page, index) = self.word(addr, false)?;
        Ok(page[index].load(SeqCst))
    }

    fn write_u64(&mut self, addr: GAddr, value: u64) -> PoolResult<()> {
        let (page, index) = self.word(addr, true)?;
        page[index].store(value, SeqCst);
        Ok(())
    }

    fn cas(&mut self, addr: GAddr, expected: u64, new: u64) -> PoolResult<CasOutcome> {
        self.waits += 1;
        let (page, index) = self.word(addr, true)?;
        if self.one_in(self.chaos.unknown_one_in) {
            match self.random() % 3 {
                0 => drop(page[index].compare_exchange(expected, new, SeqCst, SeqCst)),
                1 => self.pool.book.lock().unwrap().delayed.push((addr.0, expected, new)),
                _ => {}
            }
            let (operation, peer) = ("cas".into(), "test".into());
            return Err(WireError::OutcomeUnknown { operation, peer }.into());
        }
        Ok(match page[index].compare_exchange(expected, new, SeqCst, SeqCst) {
            Ok(_) => CasOutcome::Swapped,
            Err(found) => CasOutcome::Found(found),
        })
    }

    fn fetch_add(&mut self, addr: GAddr, n: u64) -> PoolResult<u64> {
        self.waits += 1;
        let (page, index) = self.word(addr, true)?;
        Ok(page[index].fetch_add(n, SeqCst))
    }

    fn read_batch(&mut self, ops: &mut [(GAddr, &mut [u8])]) -> PoolResult<()> {
        let waits = self.waits + 1;
        // They have no order.
        let backwards = self.one_in(2);
        let count = ops.len();
        for index in 0..count {
            let (addr, buf) = &mut ops[if backwards { count - 1 - index } else { index }];
            self.read(*addr, buf)?;
        }
        self.waits = waits;
        Ok(())
    }

    fn cas_batch(&mut self, swaps: &[WordSwap]) -> Vec<PoolResult<CasOutcome>> {
        let waits = self.waits + 1;
        let outcomes = swaps.iter().map(|one| self.cas(one.addr, one.expected, one.new)).collect();
        self.waits = waits;
        outcomes
    }

    fn root(&mut self, name: &str) -> PoolResult<Option<GAddr>> {
        self.step();
        Ok(self.pool.roots.lock().unwrap().get(name).copied().map(GAddr))
    }

    fn set_root(&mut self, name: &str, expected: GAddr, addr: GAddr) -> PoolResult<GAddr> {
        self.step();
        let mut roots = self.pool.roots.lock().unwrap();
        let there = roots.get(name).copied().unwrap_or(0);
        if there != expected.0 {
            return Ok(GAddr(there));
        }
        match addr.is_null() {
            true => drop(roots.remove(name)),
            false => drop(roots.insert(name.into(), addr.0)),
        }
        Ok(addr)
    }
}

/// Runs a client's work; `None` if it died of its chaos. Other panics go on.
pub fn survive<T>(work: impl FnOnce() -> T) -> Option<T> {
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)) {
        Ok(result) => Some(result),
        Err(cause) if cause.is::<Crash>() => None,
        Err(cause) => std::panic::resume_unwind(cause),
    }
}

/// Allocations that belong to no table: (address, bytes).
pub fn leaks(client: &mut Client, tables: &mut [&mut rackpool_table::Table]) -> Vec<(u64, u64)> {
    let mut live = client.pool.live();
    for table in tables {
        table
            .for_each_allocation(client, |_, addr, bytes| {
                assert_eq!(live.remove(&addr.0), Some(bytes), "{addr} is named twice or not live");
            })
            .unwrap();
    }
    live.into_iter().collect()
}
