//! What the workers were told, and whether the pool still knows it: the test's side of
//! `worker.rs`. A crew is some worker places with their shared objects; each place has one worker
//! at a time, and a new one after a kill.

use super::stage::Stage;
use super::worker::{
    BLOCK_BYTES, COUNTER_BYTES, COUNTERS, Job, RECORD_BYTES, RECORDS, WORDS, all_words,
    counter_addr, named_bytes, record, record_addr, word_addr,
};
use super::{PATIENCE, Proc, Random};
use rackpool::{DaemonStats, FabricChoice, GAddr, Handle, Placement, RackId};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// What was said by all workers so far.
#[derive(Debug, Default)]
pub struct Tally {
    pub writes: u64,
    pub adds: u64,
    pub unknowns: u64,
    pub allocs: u64,
    pub retries: BTreeMap<String, u64>,
    pub kills: u64,
    /// The longest time until every worker went on after a server had come back.
    pub slowest: Duration,
    /// Allocations that the words of the dead named.
    pub inherited: u64,
}

struct Place {
    job: Job,
    proc: Option<Proc>,
    /// The process that was killed here last, until the daemons have seen its end.
    ending: Option<u32>,
    /// Acknowledged versions of its records.
    written: BTreeMap<u64, u64>,
    /// The last version that was acknowledged.
    last_seq: u64,
}

pub struct Crew {
    places: Vec<Place>,
    pub tally: Tally,
    /// Acknowledged additions to each counter.
    added: Vec<u64>,
    counters: Vec<GAddr>,
    /// The daemons' counters before the first worker came.
    baseline: Vec<DaemonStats>,
    /// Daemons move pages by themselves: what is held is compared over all racks, not by rack.
    pub pages_wander: bool,
    random: Random,
}

impl Crew {
    /// Worker places in the racks and over the fabrics named; no worker runs yet.
    pub fn new(
        stage: &Stage,
        handle: &mut Handle,
        places: &[(u16, FabricChoice)],
        seed: u64,
    ) -> Crew {
        let homes = stage.homes.clone();
        let racks = homes.len();
        let per_rack = |handle: &mut Handle, bytes: u64| -> Vec<GAddr> {
            let alloc = |home: &RackId| handle.alloc(bytes, Placement::Rack(*home));
            homes.iter().map(alloc).collect::<Result<_, _>>().expect("room")
        };
        // A page of their own: beside memory that a word names it would not move.
        assert!(COUNTERS * COUNTER_BYTES <= handle.page_bytes());
        let page_bytes = handle.page_bytes();
        let counters = per_rack(handle, page_bytes);
        let mut jobs = Vec::new();
        for (index, &(rack, fabric)) in places.iter().enumerate() {
            let records = per_rack(handle, RECORDS * RECORD_BYTES);
            jobs.push(Job {
                master: stage.addr.clone(),
                rack,
                fabric,
                seed: seed ^ (index as u64) << 20,
                index: index as u64,
                first_seq: 0,
                records,
                blocks: per_rack(handle, BLOCK_BYTES),
                counters: counters.clone(),
                homes: homes.clone(),
                words: per_rack(handle, WORDS * 8),
                reopens: false,
                timeout_ms: 10_000,
            });
        }
        let place =
            |job| Place { job, proc: None, ending: None, written: BTreeMap::new(), last_seq: 0 };
        let stats = handle.admin().pool_stats().expect("the pool answers").racks;
        Crew {
            places: jobs.into_iter().map(place).collect(),
            tally: Tally::default(),
            added: vec![0; racks * COUNTERS as usize],
            counters,
            baseline: stats.into_iter().map(|one| one.daemon.expect("it answers")).collect(),
            pages_wander: false,
            random: Random::new(seed),
        }
    }

    /// Changes every job that is started from now on.
    pub fn change_jobs(&mut self, change: impl Fn(&mut Job)) {
        self.places.iter_mut().for_each(|place| change(&mut place.job));
    }

    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// The pages of records and counters, each with the rack where it was made.
    pub fn pages(&self, page_bytes: u64) -> BTreeMap<GAddr, RackId> {
        let records = self.places.iter().map(|place| &place.job.records);
        let homes = records.chain([&self.counters]).flat_map(|of_racks| {
            let racks = self.places[0].job.homes.clone();
            of_racks.iter().map(|addr| GAddr(addr.0 / page_bytes * page_bytes)).zip(racks)
        });
        homes.collect()
    }

    /// Puts a worker into a place.
    pub fn start(&mut self, index: usize) {
        let place = &mut self.places[index];
        place.job.seed = self.random.next() >> 16;
        // Further on than what may be under way of the last one.
        place.job.first_seq = place.last_seq + 2;
        place.last_seq = place.job.first_seq;
        let proc = Proc::start(&format!("worker {index}"), "worker", &place.job.args());
        place.proc = Some(proc);
    }

    /// Waits until a worker has joined.
    pub fn wait_ready(&self, index: usize) {
        let proc = self.places[index].proc.as_ref().expect("it was started");
        proc.ready().unwrap_or_else(|error| panic!("worker {index}: {error}"));
    }

    pub fn start_all(&mut self) {
        (0..self.len()).for_each(|index| self.start(index));
        (0..self.len()).for_each(|index| self.wait_ready(index));
    }

    pub fn proc(&mut self, index: usize) -> &mut Proc {
        self.places[index].proc.as_mut().expect("it runs")
    }

    /// Takes what the workers have said until now.
    pub fn listen(&mut self) {
        for index in 0..self.len() {
            while let Some(line) = self.places[index].proc.as_ref().and_then(Proc::try_line) {
                self.take(index, &line);
            }
        }
    }

    pub fn work(&mut self, pause: Duration) {
        let until = Instant::now() + pause;
        while Instant::now() < until {
            self.listen();
            std::thread::sleep(Duration::from_millis(5).min(until - Instant::now()));
        }
        self.listen();
    }

    /// Every worker makes progress: each says something within the time.
    pub fn expect_progress(&mut self, patience: Duration) {
        self.listen();
        let started = Instant::now();
        for index in 0..self.len() {
            if let Some(proc) = &self.places[index].proc {
                let line = proc.line(patience);
                let line = line.unwrap_or_else(|| panic!("worker {index} ended"));
                self.take(index, &line);
            }
        }
        self.tally.slowest = self.tally.slowest.max(started.elapsed());
    }

    fn take(&mut self, index: usize, line: &str) {
        let place = &mut self.places[index];
        let mut words = line.split(' ');
        let kind = words.next().unwrap_or_default();
        let mut number = || words.next().and_then(|word| word.parse::<u64>().ok());
        match kind {
            "w" => {
                let (slot, seq) = (number().expect("a slot"), number().expect("a version"));
                place.written.insert(slot, seq);
                place.last_seq = seq;
                self.tally.writes += 1;
            }
            "c" => {
                self.added[number().expect("a counter") as usize] += 1;
                self.tally.adds += 1;
            }
            "u" => self.tally.unknowns += 1,
            "n" => self.tally.allocs += 1,
            "r" => {
                eprintln!("worker {index} {line}");
                let what: Vec<&str> = line.split(' ').skip(1).take(2).collect();
                *self.tally.retries.entry(what.join(" ")).or_default() += 1;
            }
            "done" | "ready" => {}
            _ => panic!("worker {index}: {line}"),
        }
    }

    /// `kill -9` of a worker, and all that it still said.
    pub fn kill(&mut self, index: usize) {
        self.proc(index).kill();
        self.tally.kills += 1;
        let proc = self.places[index].proc.take().expect("it was killed");
        self.places[index].ending = Some(proc.pid().as_raw_nonzero().get() as u32);
        while let Some(line) = proc.line(PATIENCE) {
            self.take(index, &line);
        }
    }

    /// Stops a worker as it wants to be: it gives everything back.
    pub fn stop_all(&mut self) {
        for index in 0..self.len() {
            if self.places[index].proc.is_some() {
                self.proc(index).tell("stop");
            }
        }
        for index in 0..self.len() {
            let Some(mut proc) = self.places[index].proc.take() else { continue };
            while let Some(line) = proc.line(PATIENCE) {
                self.take(index, &line);
            }
            assert_eq!(proc.exit_code(PATIENCE), Some(0), "worker {index}: {}", proc.stderr());
        }
    }

    /// Waits until no daemon has a connection of the worker that was killed in this place: what it
    /// had sent and was not answered is executed until then, and never after it.
    pub fn wait_ended(&mut self, handle: &mut Handle, index: usize) {
        let Some(pid) = self.places[index].ending.take() else { return };
        let homes = self.places[index].job.homes.clone();
        super::wait_until("the daemons see a worker's end", PATIENCE, || {
            homes.iter().find_map(|rack| {
                let sessions = handle.admin().sessions(*rack).expect("the daemon answers");
                let found = sessions.into_iter().find(|one| one.connected && one.pid == pid);
                found.map(|one| format!("rack {rack} has {one:?}"))
            })
        });
    }

    /// Looks at all records of a worker that is gone: each holds the last acknowledged version,
    /// but for the one write that was under way, which has old or new bytes.
    pub fn check_records(&mut self, handle: &mut Handle, index: usize) {
        self.wait_ended(handle, index);
        let place = &self.places[index];
        let mut under_way = 0;
        let (first, len) = (place.job.records[0], RECORDS * place.job.records.len() as u64);
        assert!(!first.is_null());
        let mut all = Vec::new();
        for records in &place.job.records {
            let mut bytes = vec![0; (RECORDS * RECORD_BYTES) as usize];
            handle.read(*records, &mut bytes).expect("records are read");
            all.extend(bytes);
        }
        for slot in 0..len {
            let seq = place.written.get(&slot).copied().unwrap_or(0);
            let at = (slot * RECORD_BYTES) as usize;
            let found = &all[at..at + RECORD_BYTES as usize];
            let old = record(slot, seq);
            if found == old {
                continue;
            }
            under_way += 1;
            let new = record(slot, place.last_seq + 1);
            let mut bytes = found.iter().zip(old.iter().zip(&new));
            let is_mixed = bytes.all(|(found, (old, new))| found == old || found == new);
            assert!(
                is_mixed,
                "worker {index}, slot {slot}: neither the acknowledged version {seq} nor the \
                 next one ({}): {found:?}",
                place.last_seq + 1
            );
            handle.write(record_addr(&place.job.records, slot), &old).expect("it is written");
        }
        assert!(under_way <= 1, "worker {index}: {under_way} records are not as acknowledged");
    }

    /// Frees what the words of a worker that is gone name: all that it held for longer than its
    /// life, however it died.
    pub fn clear_words(&mut self, handle: &mut Handle, index: usize) {
        self.wait_ended(handle, index);
        let job = &self.places[index].job;
        for (rack, at) in all_words(&job.words) {
            let word = word_addr(&job.words, rack, at);
            if handle.read_u64(word).expect("words are read") == 0 {
                continue;
            }
            let bytes = named_bytes(job.index, at, handle.page_bytes());
            let freed = handle.free_from(word, bytes);
            freed.unwrap_or_else(|error| panic!("worker {index}, word {word}: {error}"));
            self.tally.inherited += 1;
        }
    }

    /// Every addition that was acknowledged is in its counter; to be asked while others add.
    pub fn check_acknowledged(&mut self, handle: &mut Handle) {
        self.listen();
        for counter in 0..self.added.len() as u64 {
            let value = handle.read_u64(counter_addr(&self.counters, counter)).expect("a counter");
            let acked = self.added[counter as usize];
            assert!(value >= acked, "counter {counter}: {value}, but {acked} were acknowledged");
        }
    }

    /// Every addition that was acknowledged is in its counter once; beyond that at most the
    /// unknown ones and one for each killed worker. No worker runs any more.
    pub fn check_counters(&mut self, handle: &mut Handle) {
        assert!(self.places.iter().all(|place| place.proc.is_none()), "others are still adding");
        let mut extra = 0;
        for counter in 0..self.added.len() as u64 {
            let value = handle.read_u64(counter_addr(&self.counters, counter)).expect("a counter");
            let acked = self.added[counter as usize];
            assert!(value >= acked, "counter {counter}: {value}, but {acked} were acknowledged");
            extra += value - acked;
        }
        let allowed = self.tally.unknowns + self.tally.kills;
        assert!(
            extra <= allowed,
            "{extra} additions were not acknowledged; {} unknown, {} workers killed",
            self.tally.unknowns,
            self.tally.kills
        );
    }

    /// Waits until the daemons hold what they held before the first worker came: not an
    /// allocation, a byte, a slot or a session more, whichever process died when.
    pub fn check_memory(&mut self, handle: &mut Handle) {
        let deadline = Instant::now() + Duration::from_secs(30);
        while let Some(more) = self.more_than_before(handle) {
            assert!(Instant::now() < deadline, "memory and slots do not come back: {more}");
            std::thread::sleep(Duration::from_millis(10));
            // The last request of a remote client that died is served until its session ends.
            (0..self.len()).for_each(|index| self.clear_words(handle, index));
        }
    }

    fn more_than_before(&self, handle: &mut Handle) -> Option<String> {
        let racks = handle.admin().pool_stats().expect("the pool answers").racks.into_iter();
        let now: Vec<DaemonStats> =
            racks.map(|rack| rack.daemon.ok_or(rack.error).expect("it answers")).collect();
        let held = |all: &[DaemonStats]| -> Vec<(u64, u64)> {
            let each = all.iter().map(|one| (one.allocations, one.allocated_bytes));
            match self.pages_wander {
                true => vec![each.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))],
                false => each.collect(),
            }
        };
        let (before, after) = (held(&self.baseline), held(&now));
        let lost = before.iter().zip(&after).any(|(before, after)| after.0 < before.0);
        assert!(!lost, "lost: {:?} now {now:?}", self.baseline);
        let back = now.iter().zip(&self.baseline).all(|(now, before)| {
            now.slots_used <= before.slots_used
                && now.frames_quarantined == 0
                && now.remote_sessions <= before.remote_sessions
        });
        (before != after || !back).then(|| format!("{:?} now {now:?}", self.baseline))
    }

    pub fn report(&self, test: &str) {
        eprintln!("{test}: {:?}", self.tally);
    }
}
