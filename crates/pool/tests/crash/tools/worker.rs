//! A worker process: a client of the pool under load. It says what was acknowledged to it *after*
//! the pool's call returned, one line each, so that the test knows what must be found whatever
//! happens next. It checks itself what it can: its own records, its scratch memory.
//!
//! | line | meaning |
//! |---|---|
//! | `w SLOT SEQ` | record SLOT holds version SEQ |
//! | `c N` | counter N was added to |
//! | `u N` | counter N may have been added to: the pool answered `outcome-unknown` |
//! | `n` | an allocation or free was done |
//! | `r OP CODE MESSAGE` | a typed error that may be retried; it was |
//! | `e OP CODE MESSAGE` | what must not happen; the worker ends |
//! | `done` | stopped as asked; everything of its own is freed |

use super::{Random, say};
use rackpool::{CasOutcome, Error, FabricChoice, GAddr, Handle, Options, Placement, Pool, RackId};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

/// Bytes of a record: not a divisor of the page, so that some cross pages.
pub const RECORD_BYTES: u64 = 96;
/// Records of one worker in each rack.
pub const RECORDS: u64 = 1500;
pub const COUNTERS: u64 = 4;
/// Bytes from one counter to the next.
pub const COUNTER_BYTES: u64 = 64;
/// Bytes of a worker's block in each rack: a transfer of many pages.
pub const BLOCK_BYTES: u64 = 24 * (64 << 10) - 40;
/// Words of a worker in each rack that name what it holds there.
pub const WORDS: u64 = 8;
/// Scratch allocations that a worker holds at most.
const OWNED: usize = 10;

/// What a worker is told.
#[derive(Clone, Debug)]
pub struct Job {
    pub master: String,
    pub rack: u16,
    pub fabric: FabricChoice,
    pub seed: u64,
    /// Which size classes are its own.
    pub index: u64,
    /// The version of its first write.
    pub first_seq: u64,
    /// Its records in each rack.
    pub records: Vec<GAddr>,
    /// Its block in each rack.
    pub blocks: Vec<GAddr>,
    /// The counters in each rack.
    pub counters: Vec<GAddr>,
    /// What "each rack" means above and below: racks, or shards of a divided one.
    pub homes: Vec<RackId>,
    /// Its words in each rack, and in each what it allocates there.
    pub words: Vec<GAddr>,
    /// How often a second it may leave and join again.
    pub reopens: bool,
    pub timeout_ms: u64,
}

impl Job {
    pub fn args(&self) -> Vec<String> {
        let list = |addrs: &[GAddr]| {
            addrs.iter().map(|addr| addr.0.to_string()).collect::<Vec<_>>().join(",")
        };
        let fabric = match self.fabric {
            FabricChoice::Shm => "shm",
            FabricChoice::Proxied => "proxied",
            _ => "tcp",
        };
        vec![
            self.master.clone(),
            self.rack.to_string(),
            fabric.into(),
            self.seed.to_string(),
            self.index.to_string(),
            self.first_seq.to_string(),
            list(&self.records),
            list(&self.counters),
            list(&self.words),
            self.reopens.to_string(),
            self.timeout_ms.to_string(),
            list(&self.blocks),
            self.homes.iter().map(|home| home.0.to_string()).collect::<Vec<_>>().join(","),
        ]
    }

    fn parse(args: &[&str]) -> Job {
        let number = |text: &str| text.parse::<u64>().expect("a number");
        let list = |text: &str| text.split(',').map(|one| GAddr(number(one))).collect();
        Job {
            master: args[0].into(),
            rack: number(args[1]) as u16,
            fabric: args[2].parse().expect("a fabric"),
            seed: number(args[3]),
            index: number(args[4]),
            first_seq: number(args[5]),
            records: list(args[6]),
            counters: list(args[7]),
            words: list(args[8]),
            reopens: args[9] == "true",
            timeout_ms: number(args[10]),
            blocks: list(args[11]),
            homes: args[12].split(',').map(|one| RackId(number(one) as u16)).collect(),
        }
    }

    fn options(&self) -> Options {
        let options = Options::new(&self.master, self.rack).fabric(self.fabric);
        options.request_timeout_ms(self.timeout_ms)
    }
}

/// Version `seq` of a record.
pub fn record(slot: u64, seq: u64) -> Vec<u8> {
    if seq == 0 {
        return vec![0; RECORD_BYTES as usize];
    }
    let mut random = Random::new(slot << 40 ^ seq);
    let mut bytes: Vec<u8> = [seq, slot].into_iter().flat_map(u64::to_le_bytes).collect();
    while bytes.len() < RECORD_BYTES as usize {
        bytes.extend(random.next().to_le_bytes());
    }
    bytes
}

/// The address of a record of a worker: slots count through the racks.
pub fn record_addr(records: &[GAddr], slot: u64) -> GAddr {
    GAddr(records[(slot / RECORDS) as usize].0 + slot % RECORDS * RECORD_BYTES)
}

pub fn counter_addr(counters: &[GAddr], counter: u64) -> GAddr {
    GAddr(counters[(counter / COUNTERS) as usize].0 + counter % COUNTERS * COUNTER_BYTES)
}

static STOP: AtomicBool = AtomicBool::new(false);

/// The role: works until it is told to stop or dies.
pub fn run(args: &[&str]) -> Result<(), String> {
    let job = Job::parse(args);
    std::thread::spawn(|| {
        let mut line = String::new();
        match std::io::stdin().read_line(&mut line) {
            // Relaxed: the flag carries no data.
            Ok(1..) => STOP.store(true, Ordering::Relaxed),
            _ => std::process::exit(3),
        }
    });
    let handle = open(&job).map_err(|error| format!("{} {error}", error.code()))?;
    say("ready worker");
    let random = Random::new(job.seed);
    let (seq, held) = (job.first_seq, Vec::new());
    let mut worker = Worker { job, handle, random, seq, marks: 0, written: BTreeMap::new(), held };
    // Relaxed: the flag carries no data.
    while !STOP.load(Ordering::Relaxed) {
        worker.step();
    }
    worker.end();
    say("done");
    Ok(())
}

fn open(job: &Job) -> rackpool::Result<Handle> {
    Pool::open(job.options())?.handle()
}

struct Worker {
    job: Job,
    handle: Handle,
    random: Random,
    /// Version of the last record written, without gaps.
    seq: u64,
    /// Tells patterns of everything else apart.
    marks: u64,
    written: BTreeMap<u64, u64>,
    held: Vec<(GAddr, u64, u64)>,
}

impl Worker {
    fn step(&mut self) {
        match self.random.below(100) {
            0..35 => self.write(),
            35..45 => self.read(),
            45..62 => self.add(),
            62..70 => self.increment(),
            70..84 => self.scratch(),
            84..98 => self.plain(),
            98 => self.block(),
            _ if self.job.reopens && self.random.below(4) == 0 => self.reopen(),
            _ => {}
        }
    }

    /// Repeats a call until it ends well; what may be retried is, and is told.
    fn insist<R>(
        &mut self,
        op: &str,
        mut call: impl FnMut(&mut Handle) -> rackpool::Result<R>,
    ) -> R {
        for _ in 0..20 {
            match call(&mut self.handle) {
                Ok(result) => return result,
                Err(error) if error.may_retry() => {
                    say(&format!("r {op} {} {error}", error.code()));
                    std::thread::sleep(std::time::Duration::from_millis(20));
                }
                Err(error) => fail(op, &error),
            }
        }
        say(&format!("e {op} retried 20 times in vain"));
        std::process::exit(4);
    }

    fn write(&mut self) {
        let slot = self.random.below(RECORDS * self.job.records.len() as u64);
        self.seq += 1;
        let bytes = record(slot, self.seq);
        let addr = record_addr(&self.job.records, slot);
        self.insist("write", |handle| handle.write(addr, &bytes));
        say(&format!("w {slot} {}", self.seq));
        self.written.insert(slot, self.seq);
    }

    fn read(&mut self) {
        let from = self.random.below(RECORDS * self.job.records.len() as u64);
        let Some((&slot, &seq)) = self.written.range(from..).next() else { return };
        let addr = record_addr(&self.job.records, slot);
        let mut found = vec![0; RECORD_BYTES as usize];
        self.insist("read", |handle| handle.read(addr, &mut found));
        if found != record(slot, seq) {
            say(&format!("e read mismatch in slot {slot}: not version {seq} but {found:?}"));
            std::process::exit(4);
        }
    }

    fn any_counter(&mut self) -> (u64, GAddr) {
        let counter = self.random.below(COUNTERS * self.job.counters.len() as u64);
        (counter, counter_addr(&self.job.counters, counter))
    }

    fn add(&mut self) {
        let (counter, addr) = self.any_counter();
        match self.handle.fetch_add(addr, 1) {
            Ok(_) => say(&format!("c {counter}")),
            Err(error) if error.code() == "outcome-unknown" => say(&format!("u {counter}")),
            Err(error) if error.may_retry() => say(&format!("r add {} {error}", error.code())),
            Err(error) => fail("fetch_add", &error),
        }
    }

    fn increment(&mut self) {
        let (counter, addr) = self.any_counter();
        let mut old = self.insist("read_u64", |handle| handle.read_u64(addr));
        for _ in 0..100 {
            match self.handle.cas(addr, old, old + 1) {
                Ok(CasOutcome::Swapped) => return say(&format!("c {counter}")),
                Ok(CasOutcome::Found(other)) => old = other,
                Err(error) if error.code() == "outcome-unknown" => {
                    return say(&format!("u {counter}"));
                }
                Err(error) if error.may_retry() => {
                    return say(&format!("r cas {} {error}", error.code()));
                }
                Err(error) => fail("cas", &error),
            }
        }
    }

    fn any_home(&mut self) -> RackId {
        let rack = self.any_rack();
        self.job.homes[rack]
    }

    fn any_rack(&mut self) -> usize {
        self.random.below(self.job.homes.len() as u64) as usize
    }

    /// Memory that comes back by itself: marked at both ends, looked at before it is freed.
    fn scratch(&mut self) {
        let page = self.handle.page_bytes();
        if self.held.len() < OWNED && self.random.below(2) == 0 {
            let bytes = match self.random.below(8) {
                0 => page * (1 + self.random.below(4)),
                1 => page,
                _ => 64 << self.random.below(9),
            };
            let rack = self.any_home();
            let addr = self
                .insist("alloc_owned", |handle| handle.alloc_owned(bytes, Placement::Rack(rack)));
            self.marks += 1;
            let mark = self.job.seed << 32 ^ self.marks;
            for at in [addr.0, addr.0 + bytes - 8] {
                let found = self.insist("read_u64 of new memory", |h| h.read_u64(GAddr(at)));
                if found != 0 && bytes > 8 {
                    say(&format!("e scratch {addr} of {bytes} bytes is not zero: {found:#x}"));
                    std::process::exit(4);
                }
            }
            for at in [addr.0, addr.0 + bytes - 8] {
                self.insist("write_u64", |handle| handle.write_u64(GAddr(at), mark));
            }
            self.held.push((addr, bytes, mark));
        } else if !self.held.is_empty() {
            let index = self.random.below(self.held.len() as u64) as usize;
            let held = self.held.swap_remove(index);
            self.give_back(held);
        }
        say("n");
    }

    fn give_back(&mut self, (addr, bytes, mark): (GAddr, u64, u64)) {
        for at in [addr.0, addr.0 + bytes - 8] {
            let found = self.insist("read_u64 of scratch", |h| h.read_u64(GAddr(at)));
            if found != mark {
                say(&format!("e scratch {addr} of {bytes} bytes: {found:#x} is not {mark:#x}"));
                std::process::exit(4);
            }
        }
        self.insist("free of scratch", |handle| handle.free(addr, bytes));
    }

    /// A transfer of many pages, there and back.
    fn block(&mut self) {
        let rack = self.any_rack();
        let block = self.job.blocks[rack];
        self.marks += 1;
        let mut random = Random::new(self.job.seed ^ self.marks);
        let words = BLOCK_BYTES / 8;
        let bytes: Vec<u8> = (0..words).flat_map(|_| random.next().to_le_bytes()).collect();
        self.insist("write of a block", |handle| handle.write(block, &bytes));
        let mut found = vec![0; bytes.len()];
        self.insist("read of a block", |handle| handle.read(block, &mut found));
        if found != bytes {
            let at = found.iter().zip(&bytes).position(|(found, byte)| found != byte);
            say(&format!("e block {block} differs at byte {at:?}"));
            std::process::exit(4);
        }
        say("n");
    }

    /// Memory that outlives us: a word of ours names it from the moment when it is there.
    fn plain(&mut self) {
        let rack = self.any_rack();
        let index = self.random.below(WORDS);
        let word = word_addr(&self.job.words, rack, index);
        let bytes = named_bytes(self.job.index, index, self.handle.page_bytes());
        match self.insist("read_u64 of a word", |handle| handle.read_u64(word)) {
            0 => {
                // A worker that died here may have had the same under way.
                let made =
                    self.insist("alloc_into", |handle| match handle.alloc_into(word, bytes) {
                        Err(error) if error.code() == "occupied" => Ok(None),
                        other => other.map(Some),
                    });
                let held = self.insist("read_u64 of a word", |handle| handle.read_u64(word));
                if made.is_some_and(|addr| addr.0 != held) {
                    say(&format!("e word {word} holds {held:#x}, not {made:?}"));
                    std::process::exit(4);
                }
            }
            _ => self.empty(word, bytes),
        }
        say("n");
    }

    fn empty(&mut self, word: GAddr, bytes: u64) {
        self.insist("free_from", |handle| handle.free_from(word, bytes));
        let left = self.insist("read_u64 of a word", |handle| handle.read_u64(word));
        if left != 0 {
            say(&format!("e word {word} holds {left:#x} after its free"));
            std::process::exit(4);
        }
    }

    /// Leaves and joins again: the next accesses are first touches.
    fn reopen(&mut self) {
        let handle = {
            let job = self.job.clone();
            self.insist("open", |_| open(&job))
        };
        self.handle = handle;
        // They went with the session.
        self.held.clear();
        say("n");
    }

    fn end(&mut self) {
        for held in std::mem::take(&mut self.held) {
            self.give_back(held);
        }
        for (rack, index) in all_words(&self.job.words) {
            let word = word_addr(&self.job.words, rack, index);
            let bytes = named_bytes(self.job.index, index, self.handle.page_bytes());
            if self.insist("read_u64 of a word", |handle| handle.read_u64(word)) != 0 {
                self.empty(word, bytes);
            }
        }
    }
}

/// The racks and indexes of a worker's words.
pub fn all_words(words: &[GAddr]) -> impl Iterator<Item = (usize, u64)> + use<> {
    (0..words.len()).flat_map(|rack| (0..WORDS).map(move |index| (rack, index)))
}

pub fn word_addr(words: &[GAddr], rack: usize, index: u64) -> GAddr {
    GAddr(words[rack].0 + 8 * index)
}

/// What the words of a worker name: sizes that no other worker allocates, runs and objects.
pub fn named_bytes(worker: u64, index: u64, page: u64) -> u64 {
    match index {
        0..2 => page * (1 + index),
        2 => (128 << worker) << 4,
        _ => 128 << worker,
    }
}

fn fail(op: &str, error: &Error) -> ! {
    say(&format!("e {op} {} {error}", error.code()));
    std::process::exit(4);
}

/// Another role: reads the address of a page out of a word and overwrites the page from end to
/// end, again and again; `t` for each time, `x CODE` for each refusal.
pub fn touch(args: &[&str]) -> Result<(), String> {
    super::end_with_parent();
    let [master, rack, fabric, word] = args else { panic!("{args:?}") };
    let options = Options::new(master, rack.parse().expect("a rack"));
    let options = options.fabric(fabric.parse().expect("a fabric"));
    let pool = Pool::open(options).map_err(|error| error.to_string())?;
    let mut handle = pool.handle().map_err(|error| error.to_string())?;
    let word = GAddr(word.parse().expect("an address"));
    let page = vec![0xee; handle.page_bytes() as usize];
    say("ready toucher");
    let (mut touched, mut refused) = (0u64, 0u64);
    loop {
        let target = handle.read_u64(word).map_err(|error| format!("word {error}"))?;
        let result = match target {
            0 => Ok(()),
            addr => handle.write(GAddr(addr), &page),
        };
        match result {
            Ok(()) => touched += 1,
            Err(error) if ["not-mapped", "moving"].contains(&error.code()) => refused += 1,
            Err(error) => return Err(format!("touch {} {error}", error.code())),
        }
        if touched + refused >= 200 {
            say(&format!("t {touched} {refused}"));
            (touched, refused) = (0, 0);
        }
    }
}
