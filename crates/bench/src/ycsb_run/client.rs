//! One client process: takes a job and orders, works on the table, answers. Every value that it
//! reads is verified; the first one that is wrong, or missing, ends it with an error.

use super::{YcsbCommand, YcsbJob, YcsbMeasurement, YcsbReply, stream_options};
use crate::crew::{end_with, next_order, say};
use crate::run::BenchError;
use crate::value;
use crate::ycsb::{KEY_NAME_BYTES_MAX, OperationKind, OperationStream, key_name, load_keys};
use rackpool::{Handle, Options, Pool};
use rackpool_table::Table;
use std::io::{BufRead, Write};
use std::time::{Duration, Instant};

/// Operations between two looks at the clock for the end of a run.
const OPERATIONS_PER_LOOK: u32 = 16;
/// Records that a client reads before its first run: it learns where pages are.
const WARMUP_READS: u64 = 1000;
/// Versions of a client's values begin at a number of its own, so that no two clients ever write
/// the same bytes.
const VERSIONS_PER_CLIENT: u64 = 1 << 40;

/// What a client needs of a store: the table of the pool, or a model of it in tests.
pub trait KeyValue {
    /// Adds a key or replaces its value.
    ///
    /// # Errors
    /// [`BenchError`] of the store.
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), BenchError>;
    /// Adds a key; `false` if it was there.
    ///
    /// # Errors
    /// [`BenchError`] of the store.
    fn insert(&mut self, key: &[u8], value: &[u8]) -> Result<bool, BenchError>;
    /// Replaces the value of a key; `false` if it was not there.
    ///
    /// # Errors
    /// [`BenchError`] of the store.
    fn update(&mut self, key: &[u8], value: &[u8]) -> Result<bool, BenchError>;
    /// Reads the value of a key into `value`; `false` if it was not there.
    ///
    /// # Errors
    /// [`BenchError`] of the store.
    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool, BenchError>;
    /// Removes a key; `false` if it was not there.
    ///
    /// # Errors
    /// [`BenchError`] of the store.
    fn delete(&mut self, key: &[u8]) -> Result<bool, BenchError>;
}

/// A hash table of the pool and the handle through which it is used.
#[derive(Debug)]
pub struct PoolTable {
    handle: Handle,
    table: Table,
}

impl PoolTable {
    /// Opens the table under `name`.
    ///
    /// # Errors
    /// [`BenchError::Table`] if there is none.
    pub fn open(mut handle: Handle, name: &str) -> Result<Self, BenchError> {
        let table = Table::open(&mut handle, name)?;
        Ok(Self { handle, table })
    }
}

impl KeyValue for PoolTable {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), BenchError> {
        Ok(self.table.put(&mut self.handle, key, value).map(|_| ())?)
    }

    fn insert(&mut self, key: &[u8], value: &[u8]) -> Result<bool, BenchError> {
        Ok(self.table.insert(&mut self.handle, key, value)?)
    }

    fn update(&mut self, key: &[u8], value: &[u8]) -> Result<bool, BenchError> {
        Ok(self.table.update(&mut self.handle, key, value)?)
    }

    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool, BenchError> {
        Ok(self.table.get_into(&mut self.handle, key, value)?)
    }

    fn delete(&mut self, key: &[u8]) -> Result<bool, BenchError> {
        Ok(self.table.delete(&mut self.handle, key)?)
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
    let mut options = Options::new(&job.master, job.rack);
    options.fabric = job.fabric.parse()?;
    let handle = Pool::open(options)?.handle()?;
    let store = PoolTable::open(handle, &job.table)?;
    let mut client = YcsbClient::new(job, store);
    while let Some(order) = next_order::<YcsbCommand>(input)? {
        match order {
            YcsbCommand::Load => {
                let records = client.load()?;
                say(output, &YcsbReply::Loaded { records })?;
            }
            YcsbCommand::Run { workload, distribution, run_ms } => {
                let options = stream_options(&client.job, workload, distribution);
                let stream = OperationStream::new(options)?;
                client.warm_up()?;
                say(output, &YcsbReply::Ready)?;
                if next_order::<YcsbCommand>(input)? != Some(YcsbCommand::Go) {
                    return Ok(());
                }
                let ran = client.run(stream, Duration::from_millis(run_ms))?;
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
    warm: bool,
}

impl<S: KeyValue> YcsbClient<S> {
    fn new(job: YcsbJob, store: S) -> Self {
        let record = vec![0; job.value_bytes];
        let found = Vec::with_capacity(job.value_bytes);
        let version = (job.client + 1) * VERSIONS_PER_CLIENT;
        Self { job, store, record, found, version, warm: false }
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

    fn warm_up(&mut self) -> Result<(), BenchError> {
        if std::mem::replace(&mut self.warm, true) {
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
        client.warm_up().unwrap();
        for workload in WORKLOADS {
            let ran = run(&mut client, workload).unwrap();
            assert!(ran.operations > 0);
            assert_eq!(ran.operations, ran.reads.count() + ran.writes.count());
            assert!(ran.values_verified >= ran.reads.count());
            assert_eq!(client.store.values.len(), 50, "{workload}");
        }
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
