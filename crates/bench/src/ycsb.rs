//! YCSB core workloads A, B, C, D and F as deterministic streams of operations.
//!
//! One [`OperationStream`] a client: it owns its random numbers and the key numbers it inserts.
//! Out come operations on key *numbers*; [`key_name`] turns a number into the bytes `user…`. The
//! client performs each operation and, for an insert, calls [`OperationStream::acknowledge`] when
//! it was answered: keys are read only once they are known to exist.
//!
//! Where several clients insert, client c of n owns the key numbers `records + c + i·n`. A client
//! cannot know which of the others' inserts were answered, so that it reads the loaded records
//! and its own inserts. With one client this is YCSB. Two more differences: the rank space of
//! `latest` includes key 0 (YCSB never reads it), and `zipfian` with inserts stays on the loaded
//! records (YCSB draws over a guessed later size and draws again when it misses).
//!
//! Source: Cooper et al., "Benchmarking cloud serving systems with YCSB", SoCC 2010; YCSB
//! `CoreWorkload`.

use rackpool_stats::random::Rng;
use rackpool_stats::zipf::{
    SCRAMBLED_ITEMS, SCRAMBLED_ZETA, THETA, Zipfian, hash_number, scrambled,
};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Inserts of one client that may be unanswered at once: one bit each in a word.
pub const INSERTS_OUTSTANDING_MAX: u64 = 64;
/// Bytes of the longest key name: `user` and 19 digits.
pub const KEY_NAME_BYTES_MAX: usize = 23;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Workload {
    /// Update heavy: half reads, half updates.
    A,
    /// Read mostly: 95 % reads, 5 % updates.
    B,
    /// Reads only.
    C,
    /// Read latest: 95 % reads, 5 % inserts.
    D,
    /// Short ranges; refused by [`Workload::mix`].
    E,
    F,
}

/// The workloads that a hash table can serve.
pub const WORKLOADS: [Workload; 5] =
    [Workload::A, Workload::B, Workload::C, Workload::D, Workload::F];

/// How often each operation comes, in percent; the four add up to 100.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mix {
    pub read_percent: u32,
    pub update_percent: u32,
    pub insert_percent: u32,
    pub read_modify_write_percent: u32,
}

impl Workload {
    /// How often each operation comes.
    ///
    /// # Errors
    /// [`YcsbError::ScansUnsupported`] for workload E.
    pub const fn mix(self) -> Result<Mix, YcsbError> {
        let (read_percent, update_percent, insert_percent, read_modify_write_percent) = match self {
            Self::A => (50, 50, 0, 0),
            Self::B => (95, 5, 0, 0),
            Self::C => (100, 0, 0, 0),
            Self::D => (95, 0, 5, 0),
            Self::E => return Err(YcsbError::ScansUnsupported),
            Self::F => (50, 0, 0, 50),
        };
        Ok(Mix { read_percent, update_percent, insert_percent, read_modify_write_percent })
    }

    /// The distribution that YCSB's own file for this workload names.
    #[must_use]
    pub const fn default_distribution(self) -> Distribution {
        match self {
            Self::D => Distribution::Latest,
            _ => Distribution::Zipfian,
        }
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

impl FromStr for Workload {
    type Err = YcsbError;

    fn from_str(text: &str) -> Result<Self, YcsbError> {
        match text.trim().to_ascii_lowercase().as_str() {
            "a" => Ok(Self::A),
            "b" => Ok(Self::B),
            "c" => Ok(Self::C),
            "d" => Ok(Self::D),
            "e" => Ok(Self::E),
            "f" => Ok(Self::F),
            _ => Err(YcsbError::UnknownWorkload { given: text.to_owned() }),
        }
    }
}

/// Which keys are asked for how often.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Distribution {
    /// Each loaded key equally often.
    Uniform,
    /// Zipfian with skew 0.99, the popular keys scattered over the key space by FNV-1a.
    Zipfian,
    /// Zipfian with skew 0.99 over age: the newest key most often.
    Latest,
}

impl fmt::Display for Distribution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Uniform => "uniform",
            Self::Zipfian => "zipfian",
            Self::Latest => "latest",
        })
    }
}

impl FromStr for Distribution {
    type Err = YcsbError;

    fn from_str(text: &str) -> Result<Self, YcsbError> {
        match text.trim().to_ascii_lowercase().as_str() {
            "uniform" => Ok(Self::Uniform),
            "zipfian" => Ok(Self::Zipfian),
            "latest" => Ok(Self::Latest),
            _ => Err(YcsbError::UnknownDistribution { given: text.to_owned() }),
        }
    }
}

/// Why there is no such stream. None of these goes away by a retry.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum YcsbError {
    /// Workload E reads ranges of keys in order.
    #[error(
        "workload E scans ranges of keys in order, and a hash table has no order: \
         choose among A, B, C, D and F"
    )]
    ScansUnsupported,
    /// No workload of this name.
    #[error("unknown workload \"{given}\": choose among A, B, C, D and F")]
    UnknownWorkload { given: String },
    /// No distribution of this name.
    #[error("unknown distribution \"{given}\": choose among uniform, zipfian and latest")]
    UnknownDistribution { given: String },
    /// Nothing was loaded, so that no read can succeed.
    #[error("a workload needs at least one loaded record")]
    NoRecords,
    /// The client's number is not below the number of clients.
    #[error("client {client} of {clients}: clients count from 0")]
    NoSuchClient { client: u64, clients: u64 },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum OperationKind {
    Read,
    Update,
    /// Store a new key; acknowledge it when it was answered.
    Insert,
    /// Read the value, then overwrite it.
    ReadModifyWrite,
}

/// What to do, and to which key number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Operation {
    pub kind: OperationKind,
    /// The key number; its name is [`key_name`].
    pub key: u64,
}

/// What one client of a run is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamOptions {
    pub workload: Workload,
    pub distribution: Distribution,
    /// Records loaded before the run: key numbers `0..records`.
    pub records: u64,
    /// This client's number, from 0.
    pub client: u64,
    pub clients: u64,
    /// Names the run; each client derives its own stream from it.
    pub seed: u64,
}

/// The operations of one client, without end. Drawing one never allocates.
#[derive(Debug, Clone)]
pub struct OperationStream {
    options: StreamOptions,
    mix: Mix,
    rng: Rng,
    chooser: Chooser,
    inserts_issued: u64,
    inserts_acknowledged: u64,
    /// Bit i: insert `inserts_acknowledged + i` was answered before an earlier one.
    answered_early: u64,
}

#[derive(Debug, Clone)]
enum Chooser {
    Uniform,
    Scrambled(Zipfian),
    Latest(Zipfian),
}

impl OperationStream {
    /// A stream that `options` determine completely.
    ///
    /// # Errors
    /// [`YcsbError`] for workload E, for a run without records, for a client out of range.
    pub fn new(options: StreamOptions) -> Result<Self, YcsbError> {
        let mix = options.workload.mix()?;
        let StreamOptions { records, client, clients, seed, .. } = options;
        if records == 0 {
            return Err(YcsbError::NoRecords);
        }
        if client >= clients {
            return Err(YcsbError::NoSuchClient { client, clients });
        }
        let chooser = match options.distribution {
            Distribution::Uniform => Chooser::Uniform,
            Distribution::Zipfian => {
                Chooser::Scrambled(Zipfian::with_zeta(SCRAMBLED_ITEMS, THETA, SCRAMBLED_ZETA))
            }
            Distribution::Latest => Chooser::Latest(Zipfian::new(records, THETA)),
        };
        Ok(Self {
            options,
            mix,
            rng: Rng::for_party(seed, client),
            chooser,
            inserts_issued: 0,
            inserts_acknowledged: 0,
            answered_early: 0,
        })
    }

    /// The next operation.
    ///
    /// # Panics
    /// When [`INSERTS_OUTSTANDING_MAX`] inserts are unanswered: the client acknowledges too
    /// late.
    #[inline]
    pub fn next_operation(&mut self) -> Operation {
        let kind = self.next_kind();
        let key = match kind {
            OperationKind::Insert => self.next_insert_key(),
            _ => self.next_known_key(),
        };
        Operation { kind, key }
    }

    /// The insert of `key` was answered: from now on the key may be read.
    ///
    /// # Panics
    /// When `key` is not an unanswered insert of this stream.
    pub fn acknowledge(&mut self, key: u64) {
        let StreamOptions { records, client, clients, .. } = self.options;
        let offset = key.checked_sub(records + client);
        let index = offset.filter(|offset| offset.is_multiple_of(clients)).map(|o| o / clients);
        let ahead = index.and_then(|index| index.checked_sub(self.inserts_acknowledged));
        let window = self.inserts_issued - self.inserts_acknowledged;
        let ahead = match ahead {
            Some(ahead) if ahead < window && self.answered_early >> ahead & 1 == 0 => ahead,
            _ => panic!("key {key} is not an unanswered insert of client {client}"),
        };
        self.answered_early |= 1 << ahead;
        while self.answered_early & 1 == 1 {
            self.answered_early >>= 1;
            self.inserts_acknowledged += 1;
        }
    }

    /// Inserts that were answered, without gaps.
    #[must_use]
    pub const fn inserts_acknowledged(&self) -> u64 {
        self.inserts_acknowledged
    }

    /// The key number of this client's insert number `index`.
    #[must_use]
    pub const fn insert_key(&self, index: u64) -> u64 {
        self.options.records + self.options.client + index * self.options.clients
    }

    #[inline]
    fn next_kind(&mut self) -> OperationKind {
        let mix = self.mix;
        let mut draw = self.rng.below(100) as u32;
        for (percent, kind) in [
            (mix.read_percent, OperationKind::Read),
            (mix.update_percent, OperationKind::Update),
            (mix.insert_percent, OperationKind::Insert),
        ] {
            if draw < percent {
                return kind;
            }
            draw -= percent;
        }
        OperationKind::ReadModifyWrite
    }

    fn next_insert_key(&mut self) -> u64 {
        assert!(
            self.inserts_issued - self.inserts_acknowledged < INSERTS_OUTSTANDING_MAX,
            "{INSERTS_OUTSTANDING_MAX} inserts are unanswered: acknowledge them"
        );
        let key = self.insert_key(self.inserts_issued);
        self.inserts_issued += 1;
        key
    }

    #[inline]
    fn next_known_key(&mut self) -> u64 {
        let (records, acknowledged) = (self.options.records, self.inserts_acknowledged);
        match &mut self.chooser {
            Chooser::Uniform => self.rng.below(records),
            Chooser::Scrambled(zipfian) => scrambled(zipfian.next_rank(&mut self.rng), records),
            Chooser::Latest(zipfian) => {
                zipfian.grow_to(records + acknowledged);
                let age = zipfian.next_rank(&mut self.rng);
                match acknowledged.checked_sub(age + 1) {
                    Some(index) => self.insert_key(index),
                    None => records - 1 - (age - acknowledged),
                }
            }
        }
    }
}

/// The key numbers that client `client` of `clients` loads before the run.
pub fn load_keys(records: u64, client: u64, clients: u64) -> impl Iterator<Item = u64> {
    (0..).map(move |index: u64| client + index * clients).take_while(move |&key| key < records)
}

/// The name of key number `key` as YCSB writes it: `user` and the decimal FNV hash of the number,
/// written into `buffer`.
///
/// ```
/// use rackpool_bench::ycsb::{KEY_NAME_BYTES_MAX, key_name};
/// let mut buffer = [0; KEY_NAME_BYTES_MAX];
/// assert_eq!(key_name(0, &mut buffer), b"user6284781860667377211");
/// ```
#[inline]
pub fn key_name(key: u64, buffer: &mut [u8; KEY_NAME_BYTES_MAX]) -> &[u8] {
    buffer[..4].copy_from_slice(b"user");
    let mut hash = hash_number(key);
    let digits = hash.checked_ilog10().map_or(1, |log| log as usize + 1);
    for slot in buffer[4..4 + digits].iter_mut().rev() {
        *slot = b'0' + (hash % 10) as u8;
        hash /= 10;
    }
    &buffer[..4 + digits]
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    const SEED: u64 = 20_260_730;

    fn stream(workload: Workload, distribution: Distribution) -> OperationStream {
        let options = StreamOptions {
            workload,
            distribution,
            records: 1000,
            client: 0,
            clients: 1,
            seed: SEED,
        };
        OperationStream::new(options).unwrap()
    }

    #[test]
    fn workload_e_is_refused_with_the_reason() {
        let options = StreamOptions {
            workload: "e".parse().unwrap(),
            distribution: Distribution::Uniform,
            records: 1,
            client: 0,
            clients: 1,
            seed: 0,
        };
        let error = OperationStream::new(options).unwrap_err();
        assert_eq!(error, YcsbError::ScansUnsupported);
        assert!(error.to_string().contains("a hash table has no order"));
    }

    #[test]
    fn a_run_without_records_or_with_an_impossible_client_is_refused() {
        let good = stream(Workload::A, Distribution::Uniform).options;
        let none = OperationStream::new(StreamOptions { records: 0, ..good });
        assert_eq!(none.unwrap_err(), YcsbError::NoRecords);
        let beyond = OperationStream::new(StreamOptions { client: 2, clients: 2, ..good });
        assert_eq!(beyond.unwrap_err(), YcsbError::NoSuchClient { client: 2, clients: 2 });
        assert!("g".parse::<Workload>().is_err());
        assert!("zipf".parse::<Distribution>().is_err());
    }

    #[test]
    fn names_of_workloads_and_distributions_are_read_back() {
        for workload in WORKLOADS {
            assert_eq!(workload.to_string().parse(), Ok(workload));
        }
        for one in [Distribution::Uniform, Distribution::Zipfian, Distribution::Latest] {
            assert_eq!(one.to_string().parse(), Ok(one));
        }
    }

    #[test]
    fn every_workload_mixes_its_operations_as_published() {
        const DRAWS: u32 = 200_000;
        // Reads, updates, inserts, and reads that are followed by an update, of a hundred
        // operations: YCSB's core workloads.
        let published = [
            (Workload::A, [50, 50, 0, 0]),
            (Workload::B, [95, 5, 0, 0]),
            (Workload::C, [100, 0, 0, 0]),
            (Workload::D, [95, 0, 5, 0]),
            (Workload::F, [50, 0, 0, 50]),
        ];
        assert_eq!(published.map(|one| one.0), WORKLOADS);
        for (workload, percents) in published {
            let mut stream = stream(workload, workload.default_distribution());
            let mut counts = [0u32; 4];
            for _ in 0..DRAWS {
                let operation = stream.next_operation();
                counts[operation.kind as usize] += 1;
                if operation.kind == OperationKind::Insert {
                    stream.acknowledge(operation.key);
                }
            }
            for (count, percent) in counts.into_iter().zip(percents) {
                let share = f64::from(percent) / 100.0;
                let mean = f64::from(DRAWS) * share;
                let allowed = 5.0 * (mean * (1.0 - share)).sqrt();
                let off = (f64::from(count) - mean).abs();
                assert!(off <= allowed, "seed {SEED}, {workload}: {counts:?}");
            }
        }
    }

    #[test]
    fn uniform_touches_every_key_about_equally() {
        let mut stream = stream(Workload::C, Distribution::Uniform);
        let mut counts = [0u32; 1000];
        for _ in 0..1_000_000 {
            counts[stream.next_operation().key as usize] += 1;
        }
        // Chi squared with 999 degrees of freedom: mean 999, standard deviation 44.7.
        let chi: f64 = counts.iter().map(|&c| (f64::from(c) - 1000.0).powi(2) / 1000.0).sum();
        assert!((775.0..1223.0).contains(&chi), "seed {SEED}: chi squared {chi}");
    }

    #[test]
    fn zipfian_is_hottest_at_the_hash_of_rank_zero() {
        let mut stream = stream(Workload::C, Distribution::Zipfian);
        let mut counts = [0u32; 1000];
        for _ in 0..1_000_000 {
            counts[stream.next_operation().key as usize] += 1;
        }
        let hottest = (0..1000).max_by_key(|&key| counts[key]).unwrap();
        assert_eq!(hottest, 211, "the hash of 0 ends in 211");
        let share = f64::from(counts[211]) / 1e6;
        // Its own rank, plus a thousandth of all the others.
        let expected = 1.0 / SCRAMBLED_ZETA;
        assert!((share - expected - 0.001).abs() < 0.002, "{share} seen, {expected} expected");
    }

    #[test]
    fn latest_reads_the_newest_acknowledged_key_most() {
        let mut stream = stream(Workload::D, Distribution::Latest);
        let (mut reads, mut newest_reads, mut expected) = (0u32, 0u32, 0.0);
        for _ in 0..300_000 {
            let operation = stream.next_operation();
            let newest = 999 + stream.inserts_acknowledged();
            if operation.kind == OperationKind::Insert {
                assert_eq!(operation.key, newest + 1);
                stream.acknowledge(operation.key);
            } else {
                assert!(operation.key <= newest);
                reads += 1;
                newest_reads += u32::from(operation.key == newest);
                let Chooser::Latest(zipfian) = &stream.chooser else { panic!("latest") };
                expected += 1.0 / zipfian.zeta();
            }
        }
        assert!(reads > 280_000 && stream.inserts_acknowledged() > 14_000);
        let off = (f64::from(newest_reads) - expected).abs() / expected.sqrt();
        assert!(off < 5.0, "seed {SEED}: {newest_reads} reads of the newest, {expected} expected");
    }

    #[test]
    fn a_key_is_read_only_after_its_insert_was_acknowledged() {
        let mut stream = stream(Workload::D, Distribution::Latest);
        let mut waiting = Vec::new();
        let mut known: HashSet<u64> = (0..1000).collect();
        for _ in 0..100_000 {
            let operation = stream.next_operation();
            if operation.kind == OperationKind::Insert {
                waiting.push(operation.key);
            } else {
                assert!(known.contains(&operation.key), "key {} was read", operation.key);
            }
            // Answers come back in the opposite order.
            if waiting.len() == INSERTS_OUTSTANDING_MAX as usize {
                while let Some(key) = waiting.pop() {
                    stream.acknowledge(key);
                    known.insert(key);
                }
            }
        }
    }

    #[test]
    fn clients_insert_different_keys() {
        let mut seen = HashSet::new();
        for client in 0..4 {
            let base = stream(Workload::D, Distribution::Latest).options;
            let options = StreamOptions { client, clients: 4, ..base };
            let mut stream = OperationStream::new(options).unwrap();
            for _ in 0..10_000 {
                let operation = stream.next_operation();
                if operation.kind == OperationKind::Insert {
                    assert!(operation.key >= 1000 && seen.insert(operation.key));
                    stream.acknowledge(operation.key);
                }
            }
        }
    }

    #[test]
    #[should_panic(expected = "is not an unanswered insert")]
    fn an_insert_is_acknowledged_once() {
        let mut stream = stream(Workload::D, Distribution::Latest);
        let key = loop {
            let operation = stream.next_operation();
            if operation.kind == OperationKind::Insert {
                break operation.key;
            }
        };
        stream.acknowledge(key);
        stream.acknowledge(key);
    }

    #[test]
    fn the_same_seed_gives_the_same_operations_and_another_client_others() {
        let draw = |client| {
            let base = stream(Workload::A, Distribution::Zipfian).options;
            let options = StreamOptions { client, clients: 2, ..base };
            let mut stream = OperationStream::new(options).unwrap();
            (0..100).map(|_| stream.next_operation()).collect::<Vec<_>>()
        };
        assert_eq!(draw(0), draw(0));
        assert_ne!(draw(0), draw(1));
    }

    #[test]
    fn loading_shares_every_record_among_the_clients_once() {
        let mut keys: Vec<u64> = (0..3).flat_map(|client| load_keys(10, client, 3)).collect();
        keys.sort_unstable();
        assert_eq!(keys, (0..10).collect::<Vec<_>>());
    }

    #[test]
    fn key_names_are_those_of_ycsb_and_differ() {
        let mut buffer = [0; KEY_NAME_BYTES_MAX];
        assert_eq!(key_name(1, &mut buffer), b"user8517097267634966620");
        let names: HashSet<Vec<u8>> =
            (0..100_000).map(|key| key_name(key, &mut buffer).to_vec()).collect();
        assert_eq!(names.len(), 100_000);
    }
}
