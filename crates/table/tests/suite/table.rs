//! The table used by one client at a time: against a model, at its limits, with damaged memory,
//! in a full pool, and abandoned at every single access.

use crate::common::{Chaos, Client, Pool, leaks, random, survive};
use proptest::prelude::*;
use rackpool_table::constants::LEFT_BY_DEATH_MAX;
use rackpool_table::words::{GAddr, Words};
use rackpool_table::{Error, KeyChange, Options, Table};
use std::collections::BTreeMap;
use std::sync::Arc;

fn small(versions_per_word: u32) -> Options {
    Options { level_first: 2, versions_per_word, ..Options::default() }
}

/// The table has a fixed seed: under a random one, one small table in 64 doubles at its first key,
/// and then its accesses cannot be counted exactly.
fn fresh(versions_per_word: u32) -> (Arc<Pool>, Client, Table) {
    let pool = Pool::new(64 << 20);
    let mut client = pool.client(1, Chaos::default());
    let options = Options { seed: Some(1), ..small(versions_per_word) };
    let table = Table::create(&mut client, "t", options).unwrap();
    (pool, client, table)
}

fn assert_no_leak(client: &mut Client, table: &mut Table) {
    assert_eq!(leaks(client, &mut [table]), []);
}

#[derive(Clone, Debug)]
enum Op {
    Insert(u16, usize),
    Update(u16, usize),
    Put(u16, usize),
    Delete(u16),
    Get(u16),
    List(u8),
    Reopen,
}

fn op() -> impl Strategy<Value = Op> {
    let length = prop_oneof![5 => 0usize..200, 1 => 2000usize..2100, 1 => 4000usize..9000];
    let key = 0u16..400;
    prop_oneof![
        4 => (key.clone(), length.clone()).prop_map(|(k, n)| Op::Insert(k, n)),
        2 => (key.clone(), length.clone()).prop_map(|(k, n)| Op::Update(k, n)),
        4 => (key.clone(), length).prop_map(|(k, n)| Op::Put(k, n)),
        3 => key.clone().prop_map(Op::Delete),
        3 => key.prop_map(Op::Get),
        1 => (0u8..10).prop_map(Op::List),
        1 => Just(Op::Reopen),
    ]
}

fn key_of(key: u16) -> Vec<u8> {
    format!("{}/{}", key % 10, "k".repeat(1 + key as usize / 7) + &key.to_string()).into_bytes()
}

fn value_of(serial: usize, bytes: usize) -> Vec<u8> {
    let mut state = serial as u64 + 1;
    (0..bytes).map(|_| random(&mut state) as u8).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn a_table_does_what_a_map_does_and_leaks_nothing(
        ops in prop::collection::vec(op(), 1..600), versions in 2u32..9
    ) {
        let (pool, mut client, mut table) = fresh(versions);
        let mut model = BTreeMap::new();
        for (serial, op) in ops.into_iter().enumerate() {
            let m = &mut client;
            match op {
                Op::Insert(k, n) => {
                    let (key, value) = (key_of(k), value_of(serial, n));
                    let absent = !model.contains_key(&key);
                    prop_assert_eq!(table.insert(m, &key, &value).unwrap(), absent);
                    model.entry(key).or_insert(value);
                }
                Op::Update(k, n) => {
                    let (key, value) = (key_of(k), value_of(serial, n));
                    let there = model.contains_key(&key);
                    prop_assert_eq!(table.update(m, &key, &value).unwrap(), there);
                    model.entry(key).and_modify(|old| *old = value);
                }
                Op::Put(k, n) => {
                    let (key, value) = (key_of(k), value_of(serial, n));
                    prop_assert_eq!(table.put(m, &key, &value).unwrap(), !model.contains_key(&key));
                    model.insert(key, value);
                }
                Op::Delete(k) => {
                    let key = key_of(k);
                    prop_assert_eq!(table.delete(m, &key).unwrap(), model.remove(&key).is_some());
                }
                Op::Get(k) => {
                    let key = key_of(k);
                    let there = model.get(&key).map(|value| value.len() as u64);
                    prop_assert_eq!(table.get(m, &key).unwrap(), model.get(&key).cloned());
                    prop_assert_eq!(table.value_bytes(m, &key).unwrap(), there);
                }
                Op::List(prefix) => {
                    let prefix = format!("{prefix}/").into_bytes();
                    let expected: Vec<_> = model
                        .iter()
                        .filter(|(key, _)| key.starts_with(&prefix))
                        .map(|(key, value)| (key.clone(), value.len() as u64))
                        .collect();
                    prop_assert_eq!(table.list(m, &prefix).unwrap(), expected);
                }
                Op::Reopen => table = Table::open(m, "t").unwrap(),
            }
        }
        prop_assert_eq!(table.len(&mut client).unwrap(), model.len() as u64);
        let report = table.check(&mut client).unwrap();
        prop_assert_eq!(report.keys, model.len() as u64);
        prop_assert_eq!(report.buckets_frozen, 0);
        assert_no_leak(&mut client, &mut table);
        table.destroy(&mut client).unwrap();
        prop_assert!(pool.live().is_empty());
        let gone = Table::open(&mut client, "t").map(drop);
        prop_assert_eq!(gone, Err(Error::NotFound { name: "t".into() }));
    }
}

#[test]
fn a_table_grows_with_its_keys_and_finds_them_through_old_handles() {
    let (_pool, mut client, mut table) = fresh(65_536);
    let mut old = Table::open(&mut client, "t").unwrap();
    for key in 0u32..6000 {
        assert!(table.insert(&mut client, &key.to_le_bytes(), &key.to_be_bytes()).unwrap());
    }
    let report = table.check(&mut client).unwrap();
    assert_eq!(report.keys, 6000);
    assert!(report.depth_max >= 12 && report.bucket_keys_max < 30, "{report:?}");
    let estimate = table.len_estimate(&mut client).unwrap();
    assert!((3000..12_000).contains(&estimate), "{estimate}");
    for key in 0u32..6000 {
        let value = old.get(&mut client, &key.to_le_bytes()).unwrap();
        assert_eq!(value.as_deref(), Some(&key.to_be_bytes()[..]));
        assert!(old.delete(&mut client, &key.to_le_bytes()).unwrap());
    }
    assert!(table.is_empty(&mut client).unwrap());
    assert_eq!(table.len_estimate(&mut client).unwrap(), 0);
    assert_no_leak(&mut client, &mut table);
}

#[test]
fn a_warm_get_is_two_accesses_at_once_and_one_if_the_bucket_is_empty() {
    let (_pool, mut client, mut table) = fresh(65_536);
    table.put(&mut client, b"key", &[7; 1000]).unwrap();
    let mut value = Vec::new();
    for (there, accesses) in [(true, 2), (false, 1)] {
        let before = (client.accesses, client.waits);
        assert_eq!(table.get_into(&mut client, b"key", &mut value).unwrap(), there);
        assert_eq!((client.accesses - before.0, client.waits - before.1), (accesses, 1));
        table.delete(&mut client, b"key").unwrap();
    }
}

/// Waits, one after the other, of a handle that has seen everything once.
#[test]
fn what_was_seen_costs_one_wait_to_read_and_two_to_change() {
    for versions in [65_536, 3] {
        let (_pool, mut client, mut table) = fresh(versions);
        let mut other = Table::open(&mut client, "t").unwrap();
        let mut value = Vec::new();
        let mut waits = |client: &mut Client, table: &mut Table, change: &[u8]| {
            let before = client.waits;
            match change {
                b"get" => assert!(table.get_into(client, b"key", &mut value).unwrap()),
                b"update" => assert!(table.update(client, b"key", &[8; 1000]).unwrap()),
                b"modify" => {
                    let change = |_: Option<&[u8]>| KeyChange::Put(vec![9; 1000]);
                    assert!(table.modify(client, b"key", change).unwrap());
                }
                _ => assert!(!table.put(client, b"key", &[7; 1000]).unwrap()),
            }
            client.waits - before
        };
        assert!(table.insert(&mut client, b"key", &[7; 1000]).unwrap());
        if versions == 3 {
            // The word is retired now and then: its changes are not counted here.
            waits(&mut client, &mut table, b"put");
            waits(&mut client, &mut table, b"put");
            assert!(waits(&mut client, &mut table, b"get") <= 3);
            continue;
        }
        for (change, wanted) in
            [(&b"get"[..], 1), (b"update", 2), (b"put", 2), (b"modify", 2), (b"get", 1)]
        {
            assert_eq!(waits(&mut client, &mut table, change), wanted, "{change:?}");
        }
        // Another handle, which knows the index: the first time, then as the first one, and after
        // its change.
        other.get(&mut client, b"none").unwrap();
        assert_eq!(waits(&mut client, &mut other, b"get"), 2);
        assert_eq!(waits(&mut client, &mut other, b"get"), 1);
        waits(&mut client, &mut table, b"update");
        assert_eq!(waits(&mut client, &mut other, b"get"), 2);
        waits(&mut client, &mut table, b"update");
        assert_eq!(waits(&mut client, &mut other, b"update"), 3);
    }
}

#[test]
fn a_handle_that_remembers_nothing_reads_word_and_blob_one_after_the_other() {
    let (_pool, mut client, mut table) = fresh(65_536);
    table.put(&mut client, b"key", b"value").unwrap();
    let options = Options { seen_bytes_max: 0, ..small(65_536) };
    let mut forgetful = Table::open_with(&mut client, "t", options).unwrap();
    forgetful.get(&mut client, b"none").unwrap();
    for _ in 0..3 {
        let before = client.waits;
        assert_eq!(forgetful.get(&mut client, b"key").unwrap().unwrap(), b"value");
        assert_eq!(client.waits - before, 2);
    }
}

#[test]
fn a_warm_update_is_one_allocation_one_free_and_four_other_accesses() {
    let (_pool, mut client, mut table) = fresh(65_536);
    table.put(&mut client, b"key", &[7; 1000]).unwrap();
    let (accesses, allocs) = (client.accesses, client.allocs);
    assert!(table.update(&mut client, b"key", &[8; 1000]).unwrap());
    // Allocation, word and blob, write (two steps in the test pool), swap, free.
    assert_eq!((client.accesses - accesses, client.allocs - allocs), (7, 1));
}

#[test]
fn a_batch_of_keys_waits_as_often_as_one_key() {
    let (_pool, mut client, mut table) = fresh(65_536);
    // Few enough for the table not to grow, each in its bucket or with others.
    let keys: Vec<[u8; 4]> = (0u32..3).map(u32::to_le_bytes).collect();
    let pairs = |byte: u8| keys.iter().map(move |key| (*key, vec![byte; 100])).collect::<Vec<_>>();
    assert!(table.put_many(&mut client, &pairs(1)).into_iter().all(|done| done == Ok(true)));
    assert!(table.put_many(&mut client, &pairs(2)).into_iter().all(|done| done == Ok(false)));
    for _ in 0..2 {
        table.get_many(&mut client, &keys);
    }
    let before = client.waits;
    let values = table.get_many(&mut client, &keys);
    assert!(values.into_iter().all(|value| value == Ok(Some(vec![2; 100]))));
    assert_eq!(client.waits - before, 1);
    // A key that shares its bucket has a turn of its own.
    let mut alone = Table::open(&mut client, "t").unwrap();
    alone.get_many(&mut client, &keys[..1]);
    let before = client.waits;
    assert_eq!(alone.put_many(&mut client, &pairs(3)[..1]), [Ok(false)]);
    assert_eq!(client.waits - before, 2);
}

#[test]
fn a_batch_answers_for_each_key_in_the_order_of_the_batch() {
    let (_pool, mut client, mut table) = fresh(4);
    let m = &mut client;
    let long = value_of(1, 5000);
    let pairs: [(&[u8], &[u8]); 6] =
        [(b"a", b"1"), (b"b", &long), (b"", b"no"), (b"a", b"2"), (b"c", b""), (b"b", b"short")];
    let done = table.put_many(m, &pairs);
    let created: Vec<_> = done.iter().map(|done| done.as_ref().ok().copied()).collect();
    let wanted = [Some(true), Some(true), None, Some(false), Some(true), Some(false)];
    assert_eq!(created, wanted);
    assert!(matches!(done[2], Err(Error::KeySize { bytes: 0, .. })));
    let found = table.get_many(m, &[&b"b"[..], b"none", b"a", b"", b"c"]);
    assert_eq!(found[0], Ok(Some(b"short".to_vec())));
    assert_eq!(found[1], Ok(None));
    assert_eq!(found[2], Ok(Some(b"2".to_vec())));
    assert!(found[3].is_err());
    assert_eq!(found[4], Ok(Some(Vec::new())));
    let gone = table.delete_many(m, &[&b"a"[..], b"none", b"a", b"b", b"c"]);
    assert_eq!(gone, [Ok(true), Ok(false), Ok(false), Ok(true), Ok(true)]);
    assert!(table.is_empty(m).unwrap());
    assert_no_leak(m, &mut table);
}

#[test]
fn batches_fill_a_table_that_grows_and_empty_it_again() {
    let (_pool, mut client, mut table) = fresh(8);
    let m = &mut client;
    let keys: Vec<[u8; 4]> = (0u32..3000).map(u32::to_le_bytes).collect();
    // New memory is zero, so no value is.
    for round in 1..4u8 {
        let pairs: Vec<_> =
            keys.iter().map(|key| (*key, vec![round; key[0] as usize * 20])).collect();
        let done = table.put_many(m, &pairs);
        assert!(done.into_iter().all(|done| done == Ok(round == 1)));
        for (key, value) in keys.iter().zip(table.get_many(m, &keys)) {
            assert!(value == Ok(Some(vec![round; key[0] as usize * 20])), "{key:?}");
        }
        table.check(m).unwrap();
        assert_no_leak(m, &mut table);
    }
    assert!(table.delete_many(m, &keys).into_iter().all(|done| done == Ok(true)));
    assert!(table.is_empty(m).unwrap());
    assert_no_leak(m, &mut table);
}

#[test]
fn long_values_come_and_go_in_pieces_and_what_does_not_fit_is_refused_before_any() {
    let (pool, mut client, mut table) = fresh(4);
    let m = &mut client;
    for (round, bytes) in [0, 5, 2048, 2049, (1 << 20) + 7, 3 << 20].into_iter().enumerate() {
        let value = value_of(round + 1, bytes);
        let mut from = &value[..];
        let stored = table.put_stream(m, b"key", bytes as u64, |piece| {
            let (now, later) = from.split_at(piece.len());
            piece.copy_from_slice(now);
            from = later;
            true
        });
        assert_eq!(stored, Ok(Some(round == 0)));
        assert_eq!(table.get(m, b"key").unwrap().as_ref(), Some(&value));
        let mut found = Vec::new();
        let take = |at: u64, piece: &[u8]| {
            found.truncate(at as usize);
            found.extend_from_slice(piece);
        };
        assert_eq!(table.get_stream(m, b"key", take), Ok(Some(bytes as u64)));
        assert!(found == value);
        assert_no_leak(m, &mut table);
    }
    assert_eq!(table.get_stream(m, b"none", |_, _| unreachable!()), Ok(None));
    let kept = table.get(m, b"key").unwrap();
    let mut pieces = 0;
    let gave_up = table.put_stream(m, b"key", 5 << 20, |_| {
        pieces += 1;
        pieces < 3
    });
    assert_eq!(gave_up, Ok(None));
    pool.set_limit(pool.used_bytes() + (4 << 20));
    let full = table.put_stream(m, b"key", 5 << 20, |_| unreachable!()).unwrap_err();
    assert_eq!(full.code(), "full");
    assert_eq!(table.get(m, b"key").unwrap(), kept);
    assert_no_leak(m, &mut table);
}

#[test]
fn a_value_is_changed_by_what_it_is_or_not_at_all() {
    let (_pool, mut client, mut table) = fresh(5);
    let m = &mut client;
    assert!(table.put_if(m, b"key", None, b"one").unwrap());
    assert!(!table.put_if(m, b"key", None, b"other").unwrap());
    let one = table.version(m, b"key").unwrap().unwrap();
    assert_eq!(one, table.version_of(b"one"));
    let long = value_of(2, 9000);
    assert!(table.put_if(m, b"key", Some(one), &long).unwrap());
    assert!(!table.put_if(m, b"key", Some(one), b"other").unwrap());
    assert!(!table.delete_if(m, b"key", one).unwrap());
    assert_eq!(table.version(m, b"key").unwrap(), Some(table.version_of(&long)));
    let doubled = |value: Option<&[u8]>| KeyChange::Put(value.unwrap().repeat(2));
    assert!(table.modify(m, b"key", doubled).unwrap());
    assert_eq!(table.get(m, b"key").unwrap(), Some(long.repeat(2)));
    assert!(!table.modify(m, b"key", |_| KeyChange::Keep).unwrap());
    assert!(table.delete_if(m, b"key", table.version_of(&long.repeat(2))).unwrap());
    assert!(!table.modify(m, b"key", |_| KeyChange::Delete).unwrap());
    assert_eq!(table.version(m, b"key").unwrap(), None);
    assert_no_leak(m, &mut table);
}

#[test]
fn keys_and_values_at_their_limits_are_stored_and_beyond_are_refused() {
    let (_pool, mut client, mut table) = fresh(65_536);
    let m = &mut client;
    let long_key = vec![b'k'; 64 << 10];
    let value = value_of(3, 3 << 20);
    assert!(table.put(m, &long_key, &value).unwrap());
    assert!(table.put(m, b"k", b"").unwrap());
    assert_eq!(table.get(m, &long_key).unwrap(), Some(value));
    assert_eq!(table.get(m, b"k").unwrap(), Some(vec![]));
    let too_long = vec![0; (64 << 10) + 1];
    assert!(matches!(table.put(m, &too_long, b""), Err(Error::KeySize { .. })));
    assert!(matches!(table.get(m, b""), Err(Error::KeySize { bytes: 0, .. })));
    assert!(matches!(table.delete(m, b""), Err(Error::KeySize { .. })));
    assert_no_leak(m, &mut table);
}

#[test]
fn impossible_options_and_taken_names_are_refused() {
    let (pool, mut client, _table) = fresh(65_536);
    let m = &mut client;
    for options in [
        Options { level_first: 13, ..Options::default() },
        Options { versions_per_word: 1, ..Options::default() },
        Options { versions_per_word: 65_537, ..Options::default() },
    ] {
        let refused = Table::create(m, "x", options);
        assert!(matches!(refused, Err(Error::BadOption { .. })), "{options:?}");
    }
    assert!(matches!(Table::create(m, "t", small(9)), Err(Error::Exists { .. })));
    assert!(matches!(Table::open(m, "x"), Err(Error::NotFound { .. })));
    let live = pool.live().len();
    assert!(Table::open_or_create(m, "t", small(9)).is_ok());
    assert_eq!(pool.live().len(), live);
    assert!(Table::open_or_create(m, "y", small(9)).is_ok());
}

#[test]
fn what_is_no_table_is_refused() {
    let (pool, mut client, _table) = fresh(65_536);
    let addr = client.alloc(512, Default::default()).unwrap();
    client.set_root("zero", GAddr::NULL, addr).unwrap();
    assert!(matches!(Table::open(&mut client, "zero"), Err(Error::NotATable { .. })));
    let header = client.root("t").unwrap().unwrap();
    for word in 0..8 {
        pool.damage(header.0 + 8 * word, 1 << 20);
        let refused = Table::open(&mut client, "t");
        assert!(matches!(refused, Err(Error::NotATable { .. })), "word {word}: {refused:?}");
        pool.damage(header.0 + 8 * word, 1 << 20);
    }
    pool.damage(header.0 + 64, 1 << 20);
    assert!(matches!(Table::open(&mut client, "t"), Err(Error::Corrupt { .. })));
}

#[test]
fn damage_is_an_error_and_never_a_wrong_value() {
    let (pool, mut client, mut table) = fresh(3);
    let far = value_of(1, 5000);
    for round in 0..5 {
        table.put(&mut client, b"far", &far).unwrap();
        table.put(&mut client, b"near", &[round; 100]).unwrap();
    }
    let mut state = 5;
    let mut found = 0;
    for (addr, bytes) in pool.live() {
        for _ in 0..20 {
            let at = addr + random(&mut state) % bytes / 8 * 8;
            let bits = 1 << (random(&mut state) % 64);
            pool.damage(at, bits);
            // A handle that knows nothing yet sees the damage.
            if let Ok(mut table) = Table::open(&mut client, "t") {
                let near = table.get(&mut client, b"near");
                assert!(matches!(&near, Ok(None) | Err(_)) || near == Ok(Some(vec![4; 100])));
                found += u64::from(near.is_err() || table.check(&mut client).is_err());
            }
            pool.damage(at, bits);
        }
    }
    assert!(found > 20, "{found}");
    assert_eq!(table.get(&mut client, b"far").unwrap(), Some(far));
    table.check(&mut client).unwrap();
}

#[test]
fn a_full_pool_refuses_writes_keeps_everything_and_recovers_by_deletion() {
    let (pool, mut client, mut table) = fresh(4);
    pool.set_limit(200 << 10);
    let mut stored = 0u32;
    let full = loop {
        match table.insert(&mut client, &stored.to_le_bytes(), &[1; 300]) {
            Ok(created) => assert!(created),
            Err(error) => break error,
        }
        stored += 1;
    };
    assert_eq!(full.code(), "full");
    assert!(full.may_retry() && stored > 50, "{stored}");
    assert_no_leak(&mut client, &mut table);
    for key in 0..stored {
        let value = table.get(&mut client, &key.to_le_bytes()).unwrap();
        assert_eq!(value, Some(vec![1; 300]));
    }
    // Keys that share a bucket may need memory to be deleted; others give it back.
    let mut left: Vec<u32> = (0..stored).collect();
    for _ in 0..20 {
        left.retain(|key| match table.delete(&mut client, &key.to_le_bytes()) {
            Ok(there) => !there,
            Err(error) => {
                assert_eq!(error.code(), "full");
                true
            }
        });
    }
    assert_eq!(left, [0; 0]);
    assert_no_leak(&mut client, &mut table);
}

#[test]
fn allocations_that_fail_at_random_change_nothing_and_leak_nothing() {
    let (pool, mut client, mut table) = fresh(3);
    client.chaos.full_one_in = 3;
    let mut model = BTreeMap::new();
    let mut refused = 0;
    for serial in 0..6000usize {
        let key = (client.random() % 300).to_le_bytes();
        let value = value_of(serial, (client.random() % 100 * 30) as usize);
        let result = if serial % 3 == 0 {
            table.delete(&mut client, &key).map(|_| drop(model.remove(&key)))
        } else {
            let put = table.put(&mut client, &key, &value);
            put.map(|created| assert_eq!(model.insert(key, value).is_none(), created))
        };
        if let Err(error) = result {
            assert_eq!(error.code(), "full");
            refused += 1;
        }
        if serial % 500 == 0 {
            assert_no_leak(&mut client, &mut table);
        }
    }
    assert!(refused > 0);
    for (key, value) in &model {
        assert_eq!(table.get(&mut client, key).unwrap().as_ref(), Some(value));
    }
    assert_eq!(table.len(&mut client).unwrap(), model.len() as u64);
    client.chaos.full_one_in = 0;
    table.destroy(&mut client).unwrap();
    assert!(pool.live().is_empty());
}

/// Lets a client die at its n-th access, for every n, in the `work` that it does on a table that
/// `build` has filled; then another client must find a sound table, use it, and find no more than
/// `leaks_max` lost allocations. Answers how many accesses the work takes.
fn die_everywhere(
    versions: u32,
    leaks_max: usize,
    build: impl Fn(&mut Client, &mut Table),
    work: impl Fn(&mut Client, &mut Table),
    verify: impl Fn(&mut Client, &mut Table, bool),
) -> u64 {
    for n in 1.. {
        let (pool, mut client, mut table) = fresh(versions);
        build(&mut client, &mut table);
        let chaos = Chaos { crash_at: Some(n), ..Chaos::default() };
        let mut victim = pool.client(2, chaos);
        let survived = survive(|| {
            let mut table = Table::open(&mut victim, "t").unwrap();
            work(&mut victim, &mut table);
        });
        table.check(&mut client).unwrap();
        let lost = leaks(&mut client, &mut [&mut table]);
        assert!(lost.len() <= leaks_max, "died at access {n}: {lost:?}");
        verify(&mut client, &mut table, survived.is_some());
        table.check(&mut client).unwrap();
        assert_eq!(leaks(&mut client, &mut [&mut table]), lost, "died at access {n}");
        if survived.is_some() {
            assert_eq!(lost, []);
            return n;
        }
    }
    unreachable!("the work ends")
}

fn use_it(client: &mut Client, table: &mut Table) {
    for key in 1000u32..1100 {
        assert!(table.insert(client, &key.to_le_bytes(), b"later").unwrap());
    }
    for key in 1000u32..1100 {
        assert_eq!(table.get(client, &key.to_le_bytes()).unwrap().unwrap(), b"later");
        assert!(table.update(client, &key.to_le_bytes(), &[5; 3000]).unwrap());
        assert!(table.delete(client, &key.to_le_bytes()).unwrap());
    }
}

#[test]
fn a_writer_that_dies_at_any_access_leaves_the_old_or_the_new_value() {
    for (versions, bytes) in [(65_536, 50), (2, 50), (65_536, 5000), (2, 5000)] {
        let steps = die_everywhere(
            versions,
            3, // a blob, a long value, a cell
            |client, table| assert!(table.put(client, b"key", &[1; 40]).unwrap()),
            |client, table| assert!(table.update(client, b"key", &vec![2; bytes]).unwrap()),
            |client, table, done| {
                let value = table.get(client, b"key").unwrap().unwrap();
                assert!(value == [1; 40] && !done || value == vec![2; bytes]);
                use_it(client, table);
                assert_eq!(table.get(client, b"key").unwrap().unwrap(), value);
            },
        );
        assert!(steps > 8);
    }
}

#[test]
fn a_deleter_that_dies_at_any_access_leaves_the_key_or_not() {
    for (versions, bytes) in [(65_536, 50), (2, 5000)] {
        die_everywhere(
            versions,
            2,
            |client, table| assert!(table.put(client, b"key", &vec![1; bytes]).unwrap()),
            |client, table| assert!(table.delete(client, b"key").unwrap()),
            |client, table, done| {
                let value = table.get(client, b"key").unwrap();
                assert!(value.is_none() || !done && value == Some(vec![1; bytes]));
                use_it(client, table);
                assert_eq!(table.get(client, b"key").unwrap(), value);
            },
        );
    }
}

#[test]
fn a_client_that_dies_while_buckets_split_loses_no_key_and_blocks_nobody() {
    for versions in [2, 3, 65_536] {
        let steps = die_everywhere(
            versions,
            LEFT_BY_DEATH_MAX as usize,
            |client, table| {
                // Eleven keys a bucket, and the level says that the table is to grow.
                for key in 0u32..44 {
                    table.insert(client, &key.to_le_bytes(), &[key as u8; 70]).unwrap();
                }
                let header = client.root("t").unwrap().unwrap();
                client.write_u64(GAddr(header.0 + 64), 5).unwrap();
            },
            |client, table| {
                for key in 0u32..8 {
                    assert!(table.update(client, &key.to_le_bytes(), &[key as u8; 71]).unwrap());
                }
            },
            |client, table, _| {
                for key in 0u32..44 {
                    let value = table.get(client, &key.to_le_bytes()).unwrap().unwrap();
                    assert!((70..72).contains(&value.len()) && value[0] == key as u8);
                }
                use_it(client, table);
                assert_eq!(table.len(client).unwrap(), 44);
            },
        );
        assert!(steps > 50, "{steps}");
    }
}

#[test]
fn a_creator_that_dies_at_any_access_leaves_a_name_that_can_be_used() {
    for n in 1..40 {
        let pool = Pool::new(1 << 20);
        let chaos = Chaos { crash_at: Some(n), ..Chaos::default() };
        let mut victim = pool.client(1, chaos);
        survive(|| Table::open_or_create(&mut victim, "t", small(9)).unwrap());
        let mut client = pool.client(2, Chaos::default());
        let mut table = Table::open_or_create(&mut client, "t", small(9)).unwrap();
        use_it(&mut client, &mut table);
        let lost = leaks(&mut client, &mut [&mut table]);
        assert!(lost.len() <= 2, "{lost:?}");
    }
}
