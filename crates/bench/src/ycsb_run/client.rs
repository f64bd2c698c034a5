//! One client process: takes a job and orders, works on the table, answers. Every value that it
//! reads is verified; the first one that is wrong, or missing, ends it with an error.

use super::store::{KeyValue, PeerStore, PoolTable};
use super::{ClientLoad, YcsbCommand, YcsbJob, YcsbMeasurement, YcsbReply, stream_options};
use crate::crew::{end_with, next_order, say};
use crate::run::BenchError;
use crate::value;
use crate::ycsb::{KEY_NAME_BYTES_MAX, OperationKind, OperationStream, key_name, load_keys};
use rackpool::{Options, Pool};
use std::collections::BTreeSet;
use std::io::{BufRead, Write};
use std::time::{Duration, Instant};

/// Operations between two looks at the clock for the end of a run.
const OPERATIONS_PER_LOOK: u32 = 16;
/// Records that a client reads before its first run: it learns where pages are.
const WARMUP_READS: u64 = 1000;
/// Versions of a client's values begin at a number of its own, so that no two clients ever write
/// the same bytes.
const VERSIONS_PER_CLIENT: u64 = 1 << 40;

/// The stores of a client, of which one is used at a time.
struct ClientStores {
    all: Vec<Box<dyn KeyValue>>,
    now: usize,
}

impl ClientStores {
    /// The pool's table, tables with everything in another rack and in the own one, and the peers,
    /// as far as the job has them.
    fn open(job: &YcsbJob) -> Result<Self, BenchError> {
        let mut options = Options::new(&job.master, job.rack);
        options.fabric = job.fabric.parse()?;
        let pool = Pool::open(options)?;
        let mut all: Vec<Box<dyn KeyValue>> = Vec::new();
        for table in std::iter::once(&job.table).chain(&job.more_tables) {
            all.push(Box::new(PoolTable::open(pool.handle()?, table)?));
        }
        for (protocol, addrs) in &job.peers {
            all.push(Box::new(PeerStore::open(*protocol, addrs)?));
        }
        Ok(Self { all, now: 0 })
    }
}

impl KeyValue for ClientStores {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), BenchError> {
        self.all[self.now].put(key, value)
    }

    fn insert(&mut self, key: &[u8], value: &[u8]) -> Result<bool, BenchError> {
        self.all[self.now].insert(key, value)
    }

    fn update(&mut self, key: &[u8], value: &[u8]) -> Result<bool, BenchError> {
        self.all[self.now].update(key, value)
    }

    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool, BenchError> {
        self.all[self.now].get(key, value)
    }

    fn delete(&mut self, key: &[u8]) -> Result<bool, BenchError> {
        self.all[self.now].delete(key)
    }

    fn get_many(&mut self, keys: &[Vec<u8>]) -> Result<Vec<Option<Vec<u8>>>, BenchError> {
        self.all[self.now].get_many(keys)
    }

    fn put_many(&mut self, pairs: &[(Vec<u8>, Vec<u8>)]) -> Result<(), BenchError> {
        self.all[self.now].put_many(pairs)
    }
}

/// A client process of [`super::run`]: serves orders from `input` until it ends, and answers on
/// `output`. An error goes to the parent as well as to the caller.
///
/// # Errors
/// [`BenchError`]: the first thing that went wrong.
pub fn worker(input: &mut dyn BufRead, output: &mut dyn Write) -> Result<(), BenchError> {
    let outcome = serve(input, output);
    end_with(outcome, output, |code, reason| YcsbReply::Failed { code, reason })
}

fn serve(input: &mut dyn BufRead, output: &mut dyn Write) -> Result<(), BenchError> {
    let Some(job) = next_order::<YcsbJob>(input)? else { return Ok(()) };
    let stores = ClientStores::open(&job)?;
    let mut client = YcsbClient::new(job, stores);
    while let Some(order) = next_order::<YcsbCommand>(input)? {
        match order {
            YcsbCommand::Load { store } => {
                client.store.now = store;
                let records = client.load()?;
                say(output, &YcsbReply::Loaded { records })?;
            }
            YcsbCommand::Run { workload, distribution, run_ms, store, load } => {
                let options = stream_options(&client.job, workload, distribution);
                let stream = OperationStream::new(options)?;
                client.store.now = store;
                client.warm_up(store)?;
                say(output, &YcsbReply::Ready)?;
                if next_order::<YcsbCommand>(input)? != Some(YcsbCommand::Go) {
                    return Ok(());
                }
                let run = Duration::from_millis(run_ms);
                let ran = match load {
                    ClientLoad::Single => client.run(stream, run)?,
                    ClientLoad::Batches(keys) => client.run_batches(stream, run, keys)?,
                    ClientLoad::HotKey => client.run_hot_key(run)?,
                };
                say(output, &YcsbReply::Ran(Box::new(ran)))?;
            }
            YcsbCommand::Go => {
                let reason = "there is no run to begin".into();
                return Err(BenchError::Option { option: "order", reason });
            }
        }
    }
    Ok(())
}

struct YcsbClient<S> {
    job: YcsbJob,
    store: S,
    record: Vec<u8>,
    found: Vec<u8>,
    version: u64,
    /// Stores of which it has read a part.
    warm: BTreeSet<usize>,
}

impl<S: KeyValue> YcsbClient<S> {
    fn new(job: YcsbJob, store: S) -> Self {
        let record = vec![0; job.value_bytes];
        let found = Vec::with_capacity(job.value_bytes);
        let version = (job.client + 1) * VERSIONS_PER_CLIENT;
        Self { job, store, record, found, version, warm: BTreeSet::new() }
    }

    fn load(&mut self) -> Result<u64, BenchError> {
        let mut name = [0; KEY_NAME_BYTES_MAX];
        let mut count = 0;
        for key in load_keys(self.job.records, self.job.client, self.job.clients) {
            self.next_record(key);
            self.store.put(key_name(key, &mut name), &self.record)?;
            count += 1;
        }
        Ok(count)
    }

    fn warm_up(&mut self, store: usize) -> Result<(), BenchError> {
        if !self.warm.insert(store) {
            return Ok(());
        }
        let step = (self.job.records / WARMUP_READS).max(1) as usize;
        for key in (0..self.job.records).step_by(step) {
            self.read(key)?;
        }
        Ok(())
    }

    /// A value that was not written yet.
    fn next_record(&mut self, key: u64) {
        self.version += 1;
        value::fill(&mut self.record, key, self.version);
    }

    /// Reads a key and verifies what came; how long the store took.
    fn read(&mut self, key: u64) -> Result<u64, BenchError> {
        let mut name = [0; KEY_NAME_BYTES_MAX];
        let name = key_name(key, &mut name);
        let start = Instant::now();
        let there = self.store.get(name, &mut self.found)?;
        let elapsed_ns = ns_since(start);
        if !there {
            return Err(BenchError::Missing { key, operation: "read" });
        }
        value::verify(&self.found, key)?;
        Ok(elapsed_ns)
    }

    /// Writes a new value of a key; how long the store took.
    fn write(&mut self, kind: OperationKind, key: u64) -> Result<u64, BenchError> {
        self.next_record(key);
        let mut name = [0; KEY_NAME_BYTES_MAX];
        let name = key_name(key, &mut name);
        let start = Instant::now();
        let (done, operation) = match kind {
            OperationKind::Insert => (self.store.insert(name, &self.record)?, "insert"),
            _ => (self.store.update(name, &self.record)?, "update"),
        };
        let elapsed_ns = ns_since(start);
        // An insert that finds the key has met a key that was never stored: as wrong.
        if done { Ok(elapsed_ns) } else { Err(BenchError::Missing { key, operation }) }
    }

    fn run(
        &mut self,
        mut stream: OperationStream,
        run: Duration,
    ) -> Result<YcsbMeasurement, BenchError> {
        let mut ran = YcsbMeasurement::default();
        let start = Instant::now();
        while start.elapsed() < run {
            for _ in 0..OPERATIONS_PER_LOOK {
                let operation = stream.next_operation();
                let (kind, key) = (operation.kind, operation.key);
                match kind {
                    OperationKind::Read => {
                        ran.reads.record(self.read(key)?);
                        ran.values_verified += 1;
                    }
                    OperationKind::ReadModifyWrite => {
                        let read_ns = self.read(key)?;
                        ran.writes.record(read_ns + self.write(kind, key)?);
                        ran.values_verified += 1;
                    }
                    OperationKind::Update => ran.writes.record(self.write(kind, key)?),
                    OperationKind::Insert => {
                        ran.writes.record(self.write(kind, key)?);
                        stream.acknowledge(key);
                    }
                }
                ran.operations += 1;
            }
        }
        ran.elapsed_ns = ns_since(start);
        self.remove_inserted(&stream)?;
        Ok(ran)
    }

    /// Takes so many operations at a time: its reads together, then its writes. Each takes as long
    /// as its batch.
    fn run_batches(
        &mut self,
        mut stream: OperationStream,
        run: Duration,
        keys: u32,
    ) -> Result<YcsbMeasurement, BenchError> {
        let mut ran = YcsbMeasurement::default();
        let start = Instant::now();
        while start.elapsed() < run {
            let operations: Vec<_> = (0..keys).map(|_| stream.next_operation()).collect();
            let is_read =
                |kind| matches!(kind, OperationKind::Read | OperationKind::ReadModifyWrite);
            let reads: Vec<u64> =
                operations.iter().filter(|one| is_read(one.kind)).map(|one| one.key).collect();
            let began = Instant::now();
            self.read_many(&reads)?;
            ran.values_verified += reads.len() as u64;
            let mut pairs = Vec::new();
            for one in operations.iter().filter(|one| one.kind != OperationKind::Read) {
                self.next_record(one.key);
                pairs.push((name_of(one.key), self.record.clone()));
            }
            if !pairs.is_empty() {
                self.store.put_many(&pairs)?;
            }
            let elapsed_ns = ns_since(began);
            for one in &operations {
                let times =
                    if one.kind == OperationKind::Read { &mut ran.reads } else { &mut ran.writes };
                times.record(elapsed_ns);
                if one.kind == OperationKind::Insert {
                    stream.acknowledge(one.key);
                }
            }
            ran.operations += operations.len() as u64;
        }
        ran.elapsed_ns = ns_since(start);
        self.remove_inserted(&stream)?;
        Ok(ran)
    }

    fn read_many(&mut self, keys: &[u64]) -> Result<(), BenchError> {
        if keys.is_empty() {
            return Ok(());
        }
        let names: Vec<_> = keys.iter().map(|key| name_of(*key)).collect();
        for (key, found) in keys.iter().zip(self.store.get_many(&names)?) {
            let missing = BenchError::Missing { key: *key, operation: "read" };
            value::verify(&found.ok_or(missing)?, *key)?;
        }
        Ok(())
    }

    /// Updates one key, the same in all clients.
    fn run_hot_key(&mut self, run: Duration) -> Result<YcsbMeasurement, BenchError> {
        let mut ran = YcsbMeasurement::default();
        let start = Instant::now();
        while start.elapsed() < run {
            for _ in 0..OPERATIONS_PER_LOOK {
                ran.writes.record(self.write(OperationKind::Update, 0)?);
                ran.operations += 1;
            }
        }
        ran.elapsed_ns = ns_since(start);
        self.read(0)?;
        ran.values_verified = 1;
        Ok(ran)
    }

    /// The next run inserts the same keys again. Each is looked at once more before it goes.
    fn remove_inserted(&mut self, stream: &OperationStream) -> Result<(), BenchError> {
        let mut name = [0; KEY_NAME_BYTES_MAX];
        for index in 0..stream.inserts_acknowledged() {
            let key = stream.insert_key(index);
            self.read(key)?;
            if !self.store.delete(key_name(key, &mut name))? {
                return Err(BenchError::Missing { key, operation: "delete" });
            }
        }
        Ok(())
    }
}

fn name_of(key: u64) -> Vec<u8> {
    key_name(key, &mut [0; KEY_NAME_BYTES_MAX]).to_vec()
}

fn ns_since(start: Instant) -> u64 {
    u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ycsb::{Distribution, WORKLOADS, Workload};
    use std::collections::BTreeMap;

    /// A store that may lose or damage what it holds.
    #[derive(Default)]
    struct Model {
        values: BTreeMap<Vec<u8>, Vec<u8>>,
        damage: bool,
        lose: bool,
    }

    impl KeyValue for Model {
        fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), BenchError> {
            self.values.insert(key.to_vec(), value.to_vec());
            Ok(())
        }

        fn insert(&mut self, key: &[u8], value: &[u8]) -> Result<bool, BenchError> {
            Ok(self.values.insert(key.to_vec(), value.to_vec()).is_none())
        }

        fn update(&mut self, key: &[u8], value: &[u8]) -> Result<bool, BenchError> {
            Ok(self.values.insert(key.to_vec(), value.to_vec()).is_some())
        }

        fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool, BenchError> {
            value.clear();
            let found = self.values.get(key).filter(|_| !self.lose);
            value.extend(found.into_iter().flatten());
            if self.damage {
                value[30] ^= 1;
            }
            Ok(found.is_some())
        }

        fn delete(&mut self, key: &[u8]) -> Result<bool, BenchError> {
            Ok(self.values.remove(key).is_some())
        }
    }

    fn client(model: Model) -> YcsbClient<Model> {
        let job = YcsbJob {
            master: String::new(),
            rack: 0,
            fabric: "auto".into(),
            table: String::new(),
            more_tables: Vec::new(),
            peers: Vec::new(),
            client: 0,
            clients: 1,
            records: 50,
            value_bytes: 100,
            seed: 5,
        };
        YcsbClient::new(job, model)
    }

    fn run(
        client: &mut YcsbClient<Model>,
        workload: Workload,
    ) -> Result<YcsbMeasurement, BenchError> {
        let options = stream_options(&client.job, workload, Distribution::Zipfian);
        client.run(OperationStream::new(options).unwrap(), Duration::from_millis(5))
    }

    #[test]
    fn every_workload_leaves_the_loaded_records_and_nothing_else() {
        let mut client = client(Model::default());
        assert_eq!(client.load().unwrap(), 50);
        client.warm_up(0).unwrap();
        for workload in WORKLOADS {
            let ran = run(&mut client, workload).unwrap();
            assert!(ran.operations > 0);
            assert_eq!(ran.operations, ran.reads.count() + ran.writes.count());
            assert!(ran.values_verified >= ran.reads.count());
            assert_eq!(client.store.values.len(), 50, "{workload}");
        }
    }

    #[test]
    fn batches_and_the_hot_key_leave_the_loaded_records_too() {
        let mut client = client(Model::default());
        client.load().unwrap();
        let run = Duration::from_millis(5);
        for workload in WORKLOADS {
            let options = stream_options(&client.job, workload, Distribution::Zipfian);
            let stream = OperationStream::new(options).unwrap();
            let ran = client.run_batches(stream, run, 16).unwrap();
            assert!(ran.operations >= 16 && ran.operations.is_multiple_of(16));
            assert_eq!(ran.operations, ran.reads.count() + ran.writes.count());
            assert_eq!(client.store.values.len(), 50, "{workload}");
        }
        let ran = client.run_hot_key(run).unwrap();
        assert!(ran.operations > 0 && ran.values_verified == 1);
    }

    #[test]
    fn a_damaged_value_and_a_lost_one_end_the_run() {
        let mut client = client(Model::default());
        client.load().unwrap();
        client.store.damage = true;
        assert!(matches!(run(&mut client, Workload::C), Err(BenchError::Corrupt(_))));
        (client.store.damage, client.store.lose) = (false, true);
        let lost = run(&mut client, Workload::C);
        assert!(matches!(lost, Err(BenchError::Missing { operation: "read", .. })));
    }

    #[test]
    fn orders_that_make_no_sense_are_answered_and_end_the_worker() {
        for orders in ["what?\n", "{\"master\": 3}\n"] {
            let mut output = Vec::new();
            let error = worker(&mut orders.as_bytes(), &mut output).unwrap_err();
            assert_eq!(error.code(), "config");
            let answer: YcsbReply = serde_json::from_slice(&output).unwrap();
            assert!(matches!(answer, YcsbReply::Failed { code, .. } if code == "config"));
        }
        assert!(worker(&mut "".as_bytes(), &mut Vec::new()).is_ok());
    }
}
