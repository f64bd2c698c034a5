//! Two racks with workers in both, while a test kills: what most crash tests begin and end with.

use super::ledger::Crew;
use super::stage::{MEMORY, Stage};
use super::{PATIENCE, Random, seed};
use rackpool::FabricChoice::{self, Tcp};
use rackpool::{Handle, Pool};
use std::time::{Duration, Instant};

pub struct Load {
    test: &'static str,
    pub stage: Stage,
    pool: Pool,
    /// Of rack 0, over tcp.
    pub handle: Handle,
    pub crew: Crew,
    pub random: Random,
    started: Instant,
}

impl Load {
    /// A worker at each of `places`, each rack with its fabric. Those that ride through the death
    /// of a server (`reopens`) may leave and join again.
    pub fn begin(test: &'static str, places: &[(u16, FabricChoice)], reopens: bool) -> Load {
        let seed = seed(test);
        let stage = Stage::new(&[MEMORY, MEMORY]);
        let pool = stage.pool(0, Tcp);
        let mut handle = pool.handle().unwrap();
        let mut crew = Crew::new(&stage, &mut handle, places, seed);
        crew.change_jobs(|job| job.reopens = reopens);
        crew.start_all();
        let (random, started) = (Random::new(seed), Instant::now());
        Load { test, stage, pool, handle, crew, random, started }
    }

    pub fn work(&mut self, from_ms: u64, to_ms: u64) {
        let pause = self.random.millis(from_ms, to_ms);
        self.crew.work(pause);
    }

    pub fn any_worker(&mut self) -> usize {
        self.random.below(self.crew.len() as u64) as usize
    }

    pub fn any_rack(&mut self) -> usize {
        self.random.below(2) as usize
    }

    /// What a killed worker had written is there; another one takes its place, and what all were
    /// told is there as well.
    pub fn replace_worker(&mut self, victim: usize) {
        self.crew.check_records(&mut self.handle, victim);
        self.crew.clear_words(&mut self.handle, victim);
        self.crew.start(victim);
        self.crew.wait_ready(victim);
        self.crew.check_acknowledged(&mut self.handle);
    }

    /// Every worker goes on, and stops then; what was acknowledged is found, and no more memory,
    /// slots and sessions are used than before.
    pub fn check(&mut self) {
        self.crew.work(Duration::from_millis(200));
        self.crew.expect_progress(PATIENCE);
        self.crew.stop_all();
        for index in 0..self.crew.len() {
            self.crew.check_records(&mut self.handle, index);
        }
        self.crew.check_counters(&mut self.handle);
        self.crew.check_memory(&mut self.handle);
        self.crew.report(self.test);
        eprintln!("{}: {:?}", self.test, self.started.elapsed());
    }

    /// After [`Load::check`]: nothing is left.
    pub fn finish(self) {
        drop((self.handle, self.pool));
        self.stage.finish();
    }
}
