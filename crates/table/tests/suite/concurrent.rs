//! The table used by many clients at once: histories are checked for linearizability key by key,
//! while buckets split, words retire, clients die and compare-and-swaps lose their answers.

use crate::common::{Chaos, Client, Pool, Seat, Turns, leaks, random, survive};
use rackpool_sim::check::keys::{MapKey, MapOp};
use rackpool_sim::check::linear::{self, Event, Verdict};
use rackpool_table::constants::LEFT_BY_DEATH_MAX;
use rackpool_table::{Error, KeyChange, Options, ScanCursor, Table};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

const CONFIGURATIONS_MAX: usize = 2_000_000;

#[derive(Clone, Copy, Debug)]
struct Run {
    seed: u64,
    threads: u64,
    keys: u64,
    ops: u64,
    versions: u32,
    /// One in so many operations is the client's last.
    die_one_in: u64,
    unknown_one_in: u64,
    /// Further keys that each client inserts meanwhile, so that buckets split.
    fillers: u64,
    /// The threads take turns, by the seed; else they run freely.
    turns: bool,
}

#[derive(Default)]
struct Outcome {
    history: BTreeMap<u64, Vec<Event<MapOp>>>,
    /// Fillers with an acknowledged insertion.
    filled: Vec<u64>,
    deaths: u64,
    unknown: u64,
}

/// A value that shows whether it was torn: its number again and again, some of it long.
fn value_of(number: u64) -> Vec<u8> {
    let words = match number % 16 {
        0 => 300 + number as usize % 500,
        rest => 1 + rest as usize * 3,
    };
    number.to_le_bytes().repeat(words)
}

fn number_of(value: &[u8]) -> u64 {
    let number = u64::from_le_bytes(value[..8].try_into().unwrap());
    assert!(value == value_of(number), "a torn value of {} bytes", value.len());
    number
}

fn key_of(key: u64) -> Vec<u8> {
    format!("key-{key}").into_bytes()
}

/// One operation: what it was without an answer, and with the answer that it got.
fn operate(
    client: &mut Client,
    table: &mut Table,
    key: &[u8],
    number: u64,
    kind: u64,
) -> Result<MapOp, Error> {
    let value = value_of(number);
    Ok(match kind {
        0 => MapOp::Insert(number, Some(table.insert(client, key, &value)?)),
        1 => MapOp::Update(number, Some(table.update(client, key, &value)?)),
        2 => MapOp::Put(number, Some(table.put(client, key, &value)?)),
        3 => MapOp::Delete(Some(table.delete(client, key)?)),
        4 => {
            let mut seen = None;
            table.modify(client, key, |there| {
                seen = there.map(number_of);
                KeyChange::Put(value.clone())
            })?;
            MapOp::Modify(number, Some(seen))
        }
        _ => MapOp::Get(table.get(client, key)?.map(|value| number_of(&value))),
    })
}

fn unanswered(number: u64, kind: u64) -> Option<MapOp> {
    match kind {
        0 => Some(MapOp::Insert(number, None)),
        1 => Some(MapOp::Update(number, None)),
        2 => Some(MapOp::Put(number, None)),
        3 => Some(MapOp::Delete(None)),
        4 => Some(MapOp::Modify(number, None)),
        _ => None,
    }
}

fn client_life(
    pool: &Arc<Pool>,
    run: Run,
    thread: u64,
    numbers: &AtomicU64,
    seat: Option<Seat>,
) -> Outcome {
    let mut outcome = Outcome::default();
    let mut rng = (run.seed + 1) * 1_000_003 + thread * 7919;
    let yield_one_in = if run.turns { 1 } else { 5 };
    let chaos = Chaos { yield_one_in, unknown_one_in: run.unknown_one_in, ..Chaos::default() };
    let mut client = pool.client(random(&mut rng), chaos);
    client.seat = seat.clone();
    let mut table = Table::open(&mut client, "t").unwrap();
    for op in 0..run.ops {
        let dies = run.die_one_in != 0 && random(&mut rng).is_multiple_of(run.die_one_in);
        if dies {
            client.chaos.crash_at = Some(client.accesses + 1 + random(&mut rng) % 25);
        }
        let (key, mut kind) = (random(&mut rng) % run.keys, random(&mut rng) % 8);
        if run.unknown_one_in == 2 && kind > 3 {
            // Changes of unknown outcome that may always take effect are too many to look through.
            kind = 5;
        }
        let number = numbers.fetch_add(1, SeqCst);
        let called = pool.now();
        let result = survive(|| operate(&mut client, &mut table, &key_of(key), number, kind));
        let (op_seen, returned) = match result {
            Some(Ok(op)) => (Some(op), Some(pool.now())),
            Some(Err(Error::OutcomeUnknown { .. })) => {
                outcome.unknown += 1;
                (unanswered(number, kind), None)
            }
            Some(Err(error)) => panic!("{error}"),
            None => (unanswered(number, kind), None),
        };
        let events = outcome.history.entry(key).or_default();
        events.extend(op_seen.map(|op| Event::once(called, returned, op)));
        let died = survive(|| fill(&mut client, &mut table, run, thread, op, &mut outcome));
        if result_is_death(&returned, &op_seen, kind) || died.is_none() || dies {
            outcome.deaths += 1;
            client = pool.client(random(&mut rng), chaos);
            client.seat = seat.clone();
            table = Table::open(&mut client, "t").unwrap();
        }
    }
    outcome
}

/// Leaves the turns also when the thread fails, so that the others go on.
fn in_turn(
    pool: &Arc<Pool>,
    run: Run,
    thread: u64,
    numbers: &AtomicU64,
    seat: Option<Seat>,
) -> Outcome {
    seat.iter().for_each(Seat::enter);
    let life = || client_life(pool, run, thread, numbers, seat.clone());
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(life));
    seat.iter().for_each(Seat::leave);
    result.unwrap_or_else(|cause| std::panic::resume_unwind(cause))
}

fn result_is_death(returned: &Option<u64>, op: &Option<MapOp>, kind: u64) -> bool {
    returned.is_none() && (op.is_none() || kind > 4)
}

fn fill(
    client: &mut Client,
    table: &mut Table,
    run: Run,
    thread: u64,
    op: u64,
    outcome: &mut Outcome,
) {
    let share = run.fillers / run.ops + u64::from(op < run.fillers % run.ops);
    for index in 0..share {
        let filler = (thread << 40) | (op << 20) | index;
        match table.insert(client, &filler.to_le_bytes(), &value_of(filler)) {
            Ok(created) => {
                assert!(created);
                outcome.filled.push(filler);
            }
            Err(Error::OutcomeUnknown { .. }) => outcome.unknown += 1,
            Err(error) => panic!("{error}"),
        }
    }
}

fn run(run: Run) {
    println!("{run:?}");
    let pool = Pool::new(1 << 30);
    let mut client = pool.client(99, Chaos::default());
    let options = Options {
        level_first: 1,
        versions_per_word: run.versions,
        seed: Some(run.seed),
        ..Options::default()
    };
    let mut table = Table::create(&mut client, "t", options).unwrap();
    let turns = run.turns.then(|| Turns::new(run.threads as usize, run.seed));
    let numbers = AtomicU64::new(1);
    let mut total = Outcome::default();
    std::thread::scope(|scope| {
        let lives: Vec<_> = (0..run.threads)
            .map(|thread| {
                let (pool, numbers) = (&pool, &numbers);
                let seat = turns.as_ref().map(|turns| turns.seat(thread as usize));
                scope.spawn(move || in_turn(pool, run, thread, numbers, seat))
            })
            .collect();
        for life in lives {
            let outcome = life.join().unwrap();
            for (key, events) in outcome.history {
                total.history.entry(key).or_default().extend(events);
            }
            total.filled.extend(outcome.filled);
            total.deaths += outcome.deaths;
            total.unknown += outcome.unknown;
        }
    });
    let report = table.check(&mut client).unwrap();
    let listed = table.list(&mut client, b"").unwrap();
    assert!(listed.windows(2).all(|pair| pair[0].0 < pair[1].0), "a key is listed twice");
    for filler in &total.filled {
        let value = table.get(&mut client, &filler.to_le_bytes()).unwrap();
        assert_eq!(value.map(|value| number_of(&value)), Some(*filler));
    }
    for (key, mut events) in total.history {
        let called = pool.now();
        let last = operate(&mut client, &mut table, &key_of(key), 0, 9).unwrap();
        events.push(Event::once(called, Some(pool.now()), last));
        let verdict = linear::check::<MapKey>(None, &events, CONFIGURATIONS_MAX);
        assert_eq!(verdict, Verdict::Linearizable, "key {key} of {run:?}: {events:#?}");
    }
    let lost = leaks(&mut client, &mut [&mut table]);
    println!("{report:?}, {} deaths, {} unknown, {} lost", total.deaths, total.unknown, lost.len());
    if run.unknown_one_in == 0 {
        assert!(lost.len() as u64 <= LEFT_BY_DEATH_MAX * total.deaths, "{lost:?}");
    }
    // What the dead left frozen does not hinder a successor.
    for key in 0..run.keys {
        table.put(&mut client, &key_of(key), b"end").unwrap();
        assert_eq!(table.get(&mut client, &key_of(key)).unwrap().unwrap(), b"end");
    }
}

const QUIET: Run = Run {
    seed: 0,
    threads: 4,
    keys: 3,
    ops: 250,
    versions: 65_536,
    die_one_in: 0,
    unknown_one_in: 0,
    fillers: 0,
    turns: false,
};

#[test]
fn histories_of_a_few_hot_keys_are_linearizable() {
    for seed in 0..6 {
        run(Run { seed, turns: seed % 4 < 3, ..QUIET });
    }
}

#[test]
fn histories_are_linearizable_while_words_retire() {
    for seed in 0..6 {
        run(Run { seed, turns: seed % 4 < 3, versions: 2 + seed as u32 % 3, ..QUIET });
    }
}

#[test]
fn histories_are_linearizable_while_buckets_split() {
    for seed in 0..6 {
        run(Run {
            seed,
            turns: seed % 4 < 3,
            keys: 6,
            fillers: 700,
            versions: 2 + seed as u32 * 2,
            ..QUIET
        });
    }
}

#[test]
fn histories_are_linearizable_while_clients_die() {
    for seed in 0..8 {
        let versions = if seed % 2 == 0 { 3 } else { 65_536 };
        run(Run {
            seed,
            turns: seed % 4 < 3,
            keys: 12,
            die_one_in: 20,
            fillers: 400,
            versions,
            ..QUIET
        });
    }
}

#[test]
fn histories_are_linearizable_while_swaps_lose_their_answers() {
    for seed in 0..8 {
        let versions = if seed % 2 == 0 { 3 } else { 65_536 };
        run(Run {
            seed,
            turns: seed % 4 < 3,
            keys: 12,
            unknown_one_in: 15,
            fillers: 200,
            versions,
            ..QUIET
        });
    }
}

#[test]
fn histories_are_linearizable_where_most_swaps_lose_their_answers() {
    for seed in 0..8 {
        let run_ = Run { seed, turns: true, unknown_one_in: 2, versions: 3, ..QUIET };
        run(Run { keys: 1, ops: 40, ..run_ });
        run(Run { keys: 12, ops: 60, fillers: 120, ..run_ });
    }
}

#[test]
fn of_many_clients_that_insert_the_same_key_exactly_one_succeeds() {
    let pool = Pool::new(64 << 20);
    let mut client = pool.client(1, Chaos::default());
    let options = Options { level_first: 0, versions_per_word: 3, ..Options::default() };
    let mut table = Table::create(&mut client, "t", options).unwrap();
    let inserted = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (pool, inserted) = (&pool, &inserted);
            scope.spawn(move || {
                let chaos = Chaos { yield_one_in: 3, ..Chaos::default() };
                let mut client = pool.client(thread, chaos);
                let mut table = Table::open(&mut client, "t").unwrap();
                for key in 0..600 {
                    let created = table.insert(&mut client, &key_of(key), &[thread as u8; 40]);
                    inserted.fetch_add(u64::from(created.unwrap()), SeqCst);
                }
            });
        }
    });
    assert_eq!(inserted.load(SeqCst), 600);
    assert_eq!(table.check(&mut client).unwrap().keys, 600);
    assert_eq!(leaks(&mut client, &mut [&mut table]), []);
    table.destroy(&mut client).unwrap();
    assert!(pool.live().is_empty());
}

#[test]
fn a_scan_sees_every_lasting_key_once_while_others_come_and_go() {
    let pool = Pool::new(256 << 20);
    let mut client = pool.client(1, Chaos { yield_one_in: 50, ..Chaos::default() });
    let options = Options { level_first: 0, versions_per_word: 4, ..Options::default() };
    let mut table = Table::create(&mut client, "t", options).unwrap();
    for key in 0..200 {
        table.insert(&mut client, &key_of(key), &value_of(key)).unwrap();
    }
    let stop = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 1..3u64 {
            let (pool, stop) = (&pool, &stop);
            scope.spawn(move || {
                let mut client = pool.client(thread, Chaos { yield_one_in: 9, ..Chaos::default() });
                let mut table = Table::open(&mut client, "t").unwrap();
                for round in 0.. {
                    if stop.load(SeqCst) != 0 {
                        return;
                    }
                    let key = (thread << 32 | round).to_le_bytes();
                    table.put(&mut client, &key, &value_of(round)).unwrap();
                    table.update(&mut client, &key_of(round % 200), &value_of(round)).unwrap();
                    if round % 3 == 0 {
                        table.delete(&mut client, &key).unwrap();
                    }
                }
            });
        }
        for round in 1..9 {
            let listed = table.list(&mut client, b"key-").unwrap();
            assert_eq!(listed.len(), 200);
            table.check(&mut client).unwrap();
            // By cursor, and each page by another handle.
            let (mut keys, mut from) = (Vec::new(), Some(ScanCursor::default()));
            while let Some(cursor) = from {
                let mut other = Table::open(&mut client, "t").unwrap();
                let page = other.scan_from(&mut client, cursor, 7 * round).unwrap();
                assert!(page.next > from || page.next.is_none());
                keys.extend(page.keys.into_iter().map(|(key, _)| key));
                from = page.next;
            }
            let total = keys.len();
            keys.sort();
            keys.dedup();
            assert_eq!(keys.len(), total, "a key is found twice");
            assert_eq!(keys.iter().filter(|key| key.starts_with(b"key-")).count(), 200);
        }
        stop.store(1, SeqCst);
    });
    table.check(&mut client).unwrap();
    assert_eq!(leaks(&mut client, &mut [&mut table]), []);
}
