//! Values in another tier of memory: what is found, what it may take, what comes back, and what a
//! tier that fails does to callers.

use rackpool_cache::{
    Cache, Error, Mode, Options, Pinned, Policy, Put, ReadCost, Speeds, Tier, TierConfig,
    TierError, TierRule,
};
use rackpool_mem::window::Piece;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

const FAR_BYTES: u64 = 1024;

/// A tier in this process that counts, and fails on demand.
#[derive(Debug, Default)]
pub struct Store {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    values: BTreeMap<u64, Vec<u8>>,
    last: u64,
    bytes: u64,
    limit: Option<u64>,
    is_broken: bool,
    reads: u64,
}

impl Store {
    fn bytes(&self) -> u64 {
        self.inner.lock().unwrap().bytes
    }

    fn set_broken(&self, is_broken: bool) {
        self.inner.lock().unwrap().is_broken = is_broken;
    }

    fn access<R>(&self, f: impl FnOnce(&mut Inner) -> R) -> Result<R, TierError> {
        let mut inner = self.inner.lock().unwrap();
        if inner.is_broken {
            return Err(TierError::Failed("broken on demand".into()));
        }
        Ok(f(&mut inner))
    }
}

impl Tier for Store {
    fn alloc(&self, bytes: u64) -> Result<u64, TierError> {
        self.access(|inner| {
            if inner.limit.is_some_and(|limit| inner.bytes + bytes > limit) {
                return Err(TierError::Full);
            }
            // Places are used again at once, as an allocator may.
            let place = (0..).find(|place| !inner.values.contains_key(place)).unwrap();
            inner.values.insert(place, vec![0; bytes as usize]);
            inner.bytes += bytes;
            inner.last = place;
            Ok(place)
        })?
    }

    fn free(&self, place: u64, bytes: u64) {
        let mut inner = self.inner.lock().unwrap();
        let value = inner.values.remove(&place).expect("freed once");
        assert_eq!(value.len() as u64, bytes);
        inner.bytes -= bytes;
    }

    fn write(&self, place: u64, offset: u64, from: &[u8]) -> Result<(), TierError> {
        self.access(|inner| {
            let value = inner.values.get_mut(&place).expect("allocated");
            value[offset as usize..][..from.len()].copy_from_slice(from);
        })
    }

    fn read(&self, place: u64, offset: u64, to: &mut [u8]) -> Result<(), TierError> {
        self.access(|inner| {
            inner.reads += 1;
            to.copy_from_slice(&inner.values[&place][offset as usize..][..to.len()]);
        })
    }
}

pub fn tiered(options: Options, memory: u64) -> (Cache, Arc<Store>) {
    ruled(options, memory, TierRule::Length)
}

fn ruled(options: Options, memory: u64, rule: TierRule) -> (Cache, Arc<Store>) {
    let store = Arc::new(Store::default());
    let tier: Arc<dyn Tier> = Arc::clone(&store) as _;
    let tier_config = TierConfig { tier, min_bytes: FAR_BYTES, memory, max_value: 0, rule };
    (Cache::new(options).unwrap().with_tier(&tier_config).unwrap(), store)
}

fn value(len: usize, seed: u64) -> Vec<u8> {
    (0..len as u64).map(|i| (i.wrapping_mul(seed | 1) >> 3) as u8 ^ seed as u8).collect()
}

fn get(cache: &Cache, key: &[u8], now: u64) -> Option<Result<Vec<u8>, Error>> {
    cache.get(key, now, |item| {
        let mut bytes = Vec::new();
        let read = item.append_to(&mut bytes);
        assert!(read.is_err() || bytes.len() as u64 == item.len());
        read.map(|()| bytes)
    })
}

fn sent(pinned: &mut Pinned) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    while (bytes.len() as u64) < pinned.len() {
        let at = bytes.len() as u64;
        pinned.load(at)?;
        pinned.pieces(at, |piece| {
            let Piece::Private(chunk) = piece else { panic!("it lies in the tier") };
            bytes.extend_from_slice(chunk);
            true
        });
    }
    Ok(bytes)
}

#[test]
fn long_values_lie_in_the_tier_and_short_ones_do_not() {
    let (cache, store) = tiered(Options::default(), 64 << 20);
    cache.set(b"short", &value(FAR_BYTES as usize - 1, 1), 7, 0, 1).unwrap();
    assert_eq!((store.bytes(), cache.stats().tier_items), (0, 0));
    cache.set(b"long", &value(FAR_BYTES as usize, 2), 8, 0, 1).unwrap();
    assert_eq!((store.bytes(), cache.stats().tier_items), (FAR_BYTES, 1));
    assert_eq!(get(&cache, b"short", 1).unwrap().unwrap(), value(FAR_BYTES as usize - 1, 1));
    assert_eq!(get(&cache, b"long", 1).unwrap().unwrap(), value(FAR_BYTES as usize, 2));
    let seen = cache.get(b"long", 1, |item| (item.flags(), item.len(), item.is_far()));
    assert_eq!(seen, Some((8, FAR_BYTES, true)));
    let mut middle = [0; 10];
    let count = cache.get(b"long", 1, |item| item.copy_to(1020, &mut middle).unwrap());
    assert_eq!((count, &middle[..4]), (Some(4), &value(FAR_BYTES as usize, 2)[1020..]));
    // A look-up of a short value and of a long one's length touches nothing there.
    let reads = store.inner.lock().unwrap().reads;
    cache.get(b"short", 1, |item| item.append_to(&mut Vec::new()).unwrap()).unwrap();
    cache.get(b"long", 1, |item| item.len()).unwrap();
    assert_eq!(store.inner.lock().unwrap().reads, reads);
    // Replaced by a short one, its memory comes back.
    cache.set(b"long", b"now short", 0, 0, 1).unwrap();
    assert_eq!((store.bytes(), cache.stats().tier_bytes), (0, 0));
}

#[test]
fn a_batch_is_stored_each_by_itself_where_the_tier_takes_it_or_its_key_is_refused() {
    let (cache, store) = tiered(Options { partitions: 4, ..Options::default() }, 64 << 20);
    let long = FAR_BYTES as usize;
    let keys: Vec<Vec<u8>> = (0..200_usize)
        .map(|i| if i % 50 == 7 { vec![b'k'; 40_000] } else { format!("key {i}").into_bytes() })
        .collect();
    let values: Vec<Vec<u8>> =
        (0..200).map(|i| value(if i % 3 == 0 { long + 7 * i } else { i }, i as u64)).collect();
    let put = |i: usize| Put { key: &keys[i], value: &values[i], flags: i as u32, expires: 0 };
    let mut told = Vec::new();
    cache.set_many(keys.len(), put, 1, |i, result| told.push((i, result.map(|cas| cas != 0))));
    assert!(told.iter().map(|(i, _)| *i).eq(0..200));
    for (i, result) in told {
        match keys[i].len() == 40_000 {
            true => assert!(matches!(result, Err(Error::KeySize { bytes: 40_000, .. }))),
            false => {
                assert!(result.unwrap());
                assert_eq!(get(&cache, &keys[i], 1).unwrap().unwrap(), values[i]);
                assert_eq!(cache.get(&keys[i], 1, |item| item.flags()), Some(i as u32));
            }
        }
    }
    let far = (0..200).filter(|i| i % 3 == 0 && i % 50 != 7).count();
    assert_eq!(
        (store.inner.lock().unwrap().values.len(), cache.stats().tier_items),
        (far, far as u64)
    );
}

#[test]
fn what_is_removed_expires_or_is_cleared_gives_its_memory_back() {
    let (cache, store) = tiered(Options::default(), 64 << 20);
    let keys: Vec<String> = (0..30).map(|i| format!("key {i}")).collect();
    for (index, key) in keys.iter().enumerate() {
        let expires = if index < 10 { 100 } else { 0 };
        cache.set(key.as_bytes(), &value(2000 + index, 3), 0, expires, 1).unwrap();
    }
    assert_eq!(cache.stats().tier_items, 30);
    assert!(cache.remove(keys[20].as_bytes(), 1));
    cache.expire(1_000_000);
    assert_eq!(cache.stats().tier_items, 19);
    let left: u64 = (10..30).filter(|i| *i != 20).map(|i| 2000 + i).sum();
    assert_eq!(store.bytes(), left);
    // What a flush leaves there comes back where room is needed, or when it is tidied up.
    cache.flush_all();
    assert_eq!((store.bytes(), cache.stats().tier_items), (left, 0));
    assert!(cache.get(keys[15].as_bytes(), 1_000_000, |_| ()).is_none());
    cache.set(keys[0].as_bytes(), &value(3000, 3), 0, 0, 1).unwrap();
    cache.expire(1_000_000);
    assert_eq!((store.bytes(), cache.stats().tier_bytes), (3000, 3000));
    cache.clear(1_000_000);
    assert_eq!((store.bytes(), cache.stats().tier_bytes), (0, 0));
    cache.set(b"again", &value(5000, 4), 0, 0, 1).unwrap();
    drop(cache);
    assert_eq!(store.bytes(), 0);
}

#[test]
fn a_full_tier_drops_what_came_first_and_was_not_used() {
    let (cache, store) = tiered(Options::default(), 100 * 2048);
    let key = |i: u64| format!("key {i}").into_bytes();
    for i in 0..100 {
        cache.set(&key(i), &value(2048, i), 0, 0, 1).unwrap();
    }
    assert_eq!(cache.stats().evictions, 0);
    for i in 0..50 {
        assert!(get(&cache, &key(i), 1).is_some());
    }
    for i in 100..150 {
        cache.set(&key(i), &value(2048, i), 0, 0, 1).unwrap();
    }
    assert_eq!((cache.stats().evictions, store.bytes()), (50, 100 * 2048));
    for i in 0..150 {
        let found = get(&cache, &key(i), 1).map(|value| value.unwrap());
        assert_eq!(found, (!(50..100).contains(&i)).then(|| value(2048, i)), "key {i}");
    }
}

#[test]
fn no_value_stays_in_the_tier_because_it_was_forgotten() {
    let (cache, _) = tiered(Options::default(), 64 * 2048);
    // What was replaced often leaves many places in the order behind, which are cleared at times.
    for i in 0..5000_u64 {
        cache.set(&(i % 40).to_le_bytes(), &value(2048, i), 0, 0, 1).unwrap();
    }
    for i in 1000..1300_u64 {
        cache.set(&i.to_le_bytes(), &value(2048, i), 0, 0, 1).unwrap();
    }
    let old = (0..40_u64).filter(|i| get(&cache, &i.to_le_bytes(), 1).is_some());
    assert_eq!(old.collect::<Vec<_>>(), [0; 0]);
}

#[test]
fn what_has_expired_goes_before_what_lives_and_makes_room_in_a_store_too() {
    for mode in [Mode::Cache, Mode::Store] {
        let (cache, _) = tiered(Options { mode, ..Options::default() }, 16 * 2048);
        for i in 0..16_u64 {
            let expires = if i < 8 { 0 } else { 1000 };
            cache.set(&i.to_le_bytes(), &value(2048, i), 0, expires, 1).unwrap();
        }
        for i in 16..24_u64 {
            cache.set(&i.to_le_bytes(), &value(2048, i), 0, 0, 1000).unwrap();
        }
        assert_eq!((cache.stats().evictions, cache.stats().expired), (0, 8), "{mode:?}");
        assert!((0..8_u64).all(|i| get(&cache, &i.to_le_bytes(), 1000).is_some()));
    }
}

#[test]
fn a_store_that_never_loses_says_that_the_tier_is_full() {
    let (cache, store) = tiered(Options { mode: Mode::Store, ..Options::default() }, 16 * 2048);
    for i in 0..16_u64 {
        cache.set(&i.to_le_bytes(), &value(2048, i), 0, 0, 1).unwrap();
    }
    let error = cache.set(b"more", &value(2048, 1), 0, 0, 1).unwrap_err();
    assert_eq!((error.code(), error.may_retry()), ("tier-full", true), "{error}");
    let error = cache.set(b"long", &value(20_000, 1), 0, 0, 1).unwrap_err();
    assert_eq!(error.code(), "value-size", "{error}");
    assert_eq!(store.bytes(), 16 * 2048);
    assert!(cache.remove(&3_u64.to_le_bytes(), 1));
    cache.set(b"more", &value(2048, 1), 0, 0, 1).unwrap();
}

#[test]
fn a_value_that_is_sent_stays_until_it_was_sent() {
    let (cache, store) = tiered(Options::default(), 64 << 20);
    let long = value(1 << 20, 9);
    let mut writer = cache.reserve(b"long", long.len() as u64, 0, 0, 1).unwrap();
    long.chunks(100_000).for_each(|chunk| writer.write(chunk));
    writer.commit(&cache, 1).unwrap();
    let mut pinned = cache.get(b"long", 1, |item| item.pin().unwrap()).unwrap();
    assert!(cache.remove(b"long", 1));
    assert_eq!((store.bytes(), cache.stats().tier_items), (1 << 20, 0));
    assert_eq!(sent(&mut pinned).unwrap(), long);
    assert_eq!(store.inner.lock().unwrap().reads, 8, "128 KiB at once");
    drop(pinned);
    assert_eq!((store.bytes(), cache.stats().tier_bytes), (0, 0));
    // A writer that is dropped leaves nothing behind.
    drop(cache.reserve(b"never", 1 << 20, 0, 0, 1).unwrap());
    assert_eq!(store.bytes(), 0);
}

#[test]
fn a_tier_that_fails_is_a_typed_error_and_changes_nothing() {
    let (cache, store) = tiered(Options::default(), 64 << 20);
    cache.set(b"key", &value(200_000, 5), 0, 0, 1).unwrap();
    let mut writer = cache.reserve(b"key", 2048, 0, 0, 1).unwrap();
    let mut pinned = cache.get(b"key", 1, |item| item.pin().unwrap()).unwrap();
    store.set_broken(true);
    assert_eq!(get(&cache, b"key", 1).unwrap().unwrap_err().code(), "tier");
    assert_eq!(cache.get(b"key", 1, |item| item.pin().unwrap_err().code()), Some("tier"));
    assert_eq!(sent(&mut pinned).unwrap_err().code(), "tier");
    assert_eq!(cache.set(b"key", &value(3000, 6), 0, 0, 1).unwrap_err().code(), "tier");
    writer.write(&value(2048, 7));
    let error = writer.commit(&cache, 1).unwrap_err();
    assert!(error.to_string().contains("broken on demand"), "{error}");
    cache.set(b"short", b"needs no tier", 0, 0, 1).unwrap();
    store.set_broken(false);
    assert_eq!(get(&cache, b"key", 1).unwrap().unwrap(), value(200_000, 5));
    drop(pinned);
    assert_eq!(store.bytes(), 200_000);
}

#[test]
fn a_full_pool_behind_a_larger_budget_makes_room_as_the_budget_would() {
    let (cache, store) = tiered(Options::default(), 1 << 30);
    store.inner.lock().unwrap().limit = Some(10 * 4096);
    for i in 0..100_u64 {
        cache.set(&i.to_le_bytes(), &value(4096, i), 0, 0, 1).unwrap();
    }
    assert_eq!((store.bytes(), cache.stats().evictions), (10 * 4096, 90));
}

#[test]
fn whatever_happens_the_tier_holds_what_the_cache_says_and_values_are_right() {
    let policies = [
        Policy::Fifo,
        Policy::Sieve,
        Policy::S3Fifo,
        Policy::TinyLfu,
        Policy::FifoReinsertion { threshold: 1 },
    ];
    for policy in policies {
        // So little of both that log and tier make room all the time, and items are moved.
        let options = Options { memory: 3 << 19, partitions: 2, policy, ..Options::default() };
        // With copies of some, and without.
        let rule = if policy == Policy::Fifo { TierRule::Length } else { copies(64 << 10) };
        let (cache, store) = ruled(options, 512 << 10, rule);
        let mut model: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % below
        };
        let mut hits = [0; 2];
        for step in 0..60_000_u64 {
            let (key, now) = (random(8000) * random(100) / 100, 1 + step / 100);
            let name = key.to_le_bytes();
            match random(10) {
                0..=3 => {
                    let len = if random(3) == 0 { 1024 + random(9000) } else { random(1000) };
                    let new = value(len as usize, step);
                    let expires = if random(4) == 0 { now + 1 + random(50) } else { 0 };
                    cache.set(&name, &new, 0, expires, now).unwrap();
                    model.insert(key, new);
                }
                4 => _ = cache.remove(&name, now) && model.remove(&key).is_some(),
                5 => {
                    let mut entry = cache.entry(&name, now).unwrap();
                    // It may find no room for its copy, and is evicted then.
                    let _ = entry.set_expiry(now + random(100));
                }
                _ => {
                    // So often that it gets a copy, if there are any.
                    for _ in 0..3 {
                        let Some(found) = get(&cache, &name, now) else { break };
                        let found = found.unwrap();
                        hits[usize::from(found.len() >= 1024)] += 1;
                        assert!(model[&key] == found, "{policy:?}, step {step}");
                    }
                }
            }
            if step % 500 == 0 {
                assert_eq!(store.bytes(), cache.stats().tier_bytes, "{policy:?}, step {step}");
                assert!(store.bytes() <= 512 << 10 && cache.stats().tier_near_bytes <= 64 << 10);
            }
        }
        let is_copied = cache.stats().tier_promotions > 100 && cache.stats().tier_near_hits > 100;
        assert_eq!(is_copied, rule != TierRule::Length, "{policy:?}: {:?}", cache.stats());
        assert!(hits[0] > 100 && hits[1] > 100, "{policy:?}: {hits:?}");
        assert!(policy == Policy::Fifo || cache.stats().moved > 100, "{policy:?}");
        drop(cache);
        assert_eq!(store.bytes(), 0);
    }
}

/// Copies of what was read twice, up to so many bytes.
fn copies(memory: u64) -> TierRule {
    let cost = |latency_ns| ReadCost { latency_ns, byte_ps: 0 };
    TierRule::Bandwidth { memory, speeds: Speeds { far: cost(1000), near: cost(10) } }
}

fn reads(store: &Store) -> u64 {
    store.inner.lock().unwrap().reads
}

#[test]
fn values_that_are_read_often_come_near_and_others_do_not() {
    let (cache, store) = ruled(Options::default(), 64 << 20, copies(1 << 20));
    let key = |i: u64| format!("key {i}").into_bytes();
    for i in 0..100 {
        cache.set(&key(i), &value(2048, i), 0, 0, 1).unwrap();
    }
    let get_all = |keys: std::ops::Range<u64>| {
        keys.for_each(|i| assert_eq!(get(&cache, &key(i), 1).unwrap().unwrap(), value(2048, i)));
    };
    get_all(0..100);
    assert_eq!((reads(&store), cache.stats().tier_promotions), (100, 0));
    get_all(0..10);
    assert_eq!((reads(&store), cache.stats().tier_promotions), (110, 10));
    // From now on these are read here, whole, in part and sent, and the tier is not asked.
    get_all(0..10);
    let mut part = [0; 100];
    let count = cache.get(&key(3), 1, |item| item.copy_to(1000, &mut part).unwrap());
    assert_eq!((count, &part[..]), (Some(100), &value(2048, 3)[1000..1100]));
    let mut pinned = cache.get(&key(4), 1, |item| item.pin().unwrap()).unwrap();
    assert_eq!(sent(&mut pinned).unwrap(), value(2048, 4));
    let stats = cache.stats();
    assert_eq!((reads(&store), stats.tier_bytes_read), (110, 110 * 2048));
    assert_eq!((stats.tier_near_hits, stats.tier_near_bytes), (12, 10 * 2048));
    // Values stay in the tier as well, so one that breaks takes the others with it, and not these.
    assert_eq!(store.bytes(), 100 * 2048);
    store.set_broken(true);
    get_all(0..10);
    assert_eq!(get(&cache, &key(50), 1).unwrap().unwrap_err().code(), "tier");
    store.set_broken(false);
    // A value that is put is another one, and has to pay for itself.
    cache.set(&key(0), &value(3000, 7), 0, 0, 1).unwrap();
    assert!(cache.remove(&key(1), 1));
    assert_eq!(cache.stats().tier_near_bytes, 8 * 2048);
    assert_eq!(get(&cache, &key(0), 1).unwrap().unwrap(), value(3000, 7));
    assert_eq!((reads(&store), cache.stats().tier_promotions), (111, 10));
    assert_eq!(cache.stats().tier_bytes_read, 110 * 2048 + 3000);
    // What is still sent keeps its copy, and its value.
    cache.clear(1);
    assert_eq!((cache.stats().tier_near_bytes, store.bytes()), (2048, 2048));
    drop(pinned);
    assert_eq!((cache.stats().tier_near_bytes, store.bytes()), (0, 0));
}

#[test]
fn copies_keep_to_their_memory_and_those_that_are_read_stay() {
    let (cache, store) = ruled(Options::default(), 64 << 20, copies(10 * 2048));
    let key = |i: u64| i.to_le_bytes();
    for i in 0..40 {
        cache.set(&key(i), &value(2048, i), 0, 0, 1).unwrap();
    }
    cache.set(b"long", &value(20 * 2048, 1), 0, 0, 1).unwrap();
    let twice = |keys: std::ops::Range<u64>| {
        for i in keys.clone().chain(keys) {
            assert_eq!(get(&cache, &key(i), 1).unwrap().unwrap(), value(2048, i));
            assert!(cache.stats().tier_near_bytes <= 10 * 2048);
        }
    };
    twice(0..10);
    assert_eq!((cache.stats().tier_promotions, cache.stats().tier_near_bytes), (10, 10 * 2048));
    // Five of these are read once more: the others go for those that come.
    (0..5).for_each(|i| _ = get(&cache, &key(i), 1));
    twice(10..15);
    let before = reads(&store);
    (0..5).chain(10..15).for_each(|i| _ = get(&cache, &key(i), 1));
    assert_eq!((reads(&store), cache.stats().tier_promotions), (before, 15));
    // One that lost its copy pays anew; one that is longer than all copies together has none.
    _ = get(&cache, &key(7), 1);
    (0..5).for_each(|_| _ = get(&cache, b"long", 1));
    assert_eq!((reads(&store), cache.stats().tier_promotions), (before + 6, 15));
    assert_eq!(cache.stats().evictions, 0);
}

#[test]
fn without_the_rule_or_with_a_tier_as_quick_nothing_is_copied() {
    let cost = ReadCost { latency_ns: 100, byte_ps: 100 };
    let speeds = Speeds { far: cost, near: cost };
    for rule in [TierRule::Length, TierRule::Bandwidth { memory: 1 << 20, speeds }] {
        let (cache, store) = ruled(Options::default(), 64 << 20, rule);
        cache.set(b"key", &value(2048, 1), 0, 0, 1).unwrap();
        (0..100).for_each(|_| _ = get(&cache, b"key", 1));
        assert_eq!((reads(&store), cache.stats().tier_promotions), (100, 0));
    }
    let store: Arc<dyn Tier> = Arc::new(Store::default());
    let rule = TierRule::Bandwidth { memory: FAR_BYTES - 1, speeds };
    let tier_config =
        TierConfig { tier: store, min_bytes: FAR_BYTES, memory: 1 << 20, max_value: 0, rule };
    let refused = Cache::new(Options::default()).unwrap().with_tier(&tier_config).unwrap_err();
    assert!(refused.to_string().contains("memory for copies"), "{refused}");
}

/// Version and key, and what follows from both.
fn versioned(key: u64, version: u64) -> Vec<u8> {
    let mut bytes = [key.to_le_bytes(), version.to_le_bytes()].concat();
    bytes.extend(value(1500 + (version % 7 * 300) as usize, key ^ version << 8));
    bytes
}

#[test]
fn no_copy_is_torn_or_old_while_others_put_values_of_the_same_keys() {
    const KEYS: u64 = 8;
    let options = Options { partitions: 2, shared_reads: true, ..Options::default() };
    // Room for about half of the copies: they come and go all the time.
    let (cache, _) = ruled(options, 64 << 20, copies(2 * 4096));
    let put: Vec<AtomicU64> = (0..KEYS).map(|_| AtomicU64::new(0)).collect();
    let is_over = AtomicBool::new(false);
    for key in 0..KEYS {
        cache.set(&key.to_le_bytes(), &versioned(key, 0), 0, 0, 1).unwrap();
    }
    std::thread::scope(|scope| {
        for reader in 0..3_u64 {
            let (cache, put, is_over) = (&cache, &put, &is_over);
            scope.spawn(move || {
                let mut seen = [0; KEYS as usize];
                let mut step = reader;
                while !is_over.load(Ordering::Acquire) {
                    // Some keys are read much more often than others.
                    let key = (step * step) % KEYS;
                    let least = put[key as usize].load(Ordering::Acquire);
                    let found = match step % 3 {
                        0 => {
                            let pinned = cache.get(&key.to_le_bytes(), 1, |item| item.pin());
                            sent(&mut pinned.unwrap().unwrap()).unwrap()
                        }
                        _ => get(cache, &key.to_le_bytes(), 1).unwrap().unwrap(),
                    };
                    let version = u64::from_le_bytes(found[8..16].try_into().unwrap());
                    assert!(found == versioned(key, version), "{key}: never stored");
                    assert!(version >= least.max(seen[key as usize]), "{key}: an old value");
                    seen[key as usize] = version;
                    step += 1;
                }
            });
        }
        for version in 1..3000 {
            for key in 0..KEYS {
                // One key is put much less often, so that it has a copy most of the time.
                if key != 1 || version % 100 == 0 {
                    cache.set(&key.to_le_bytes(), &versioned(key, version), 0, 0, 1).unwrap();
                    put[key as usize].store(version, Ordering::Release);
                }
            }
        }
        is_over.store(true, Ordering::Release);
    });
    let stats = cache.stats();
    assert!(stats.tier_promotions > 0 && stats.tier_near_bytes <= 2 * 4096, "{stats:?}");
    assert_eq!((stats.items, stats.evictions), (KEYS, 0));
}
