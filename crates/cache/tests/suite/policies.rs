//! What each policy promises: which items stay when room is needed, and what that costs for each
//! item.

use rackpool_cache::{Cache, Error, Item, Mode, Options, Policy};

const VALUE: [u8; 400] = [7; 400];

/// About 40 units, so 6000 items.
fn cache(policy: Policy) -> Cache {
    Cache::new(Options { memory: 3 << 20, policy, seed: 5, ..Options::default() }).unwrap()
}

fn put(cache: &Cache, key: u64) {
    cache.set(&key.to_le_bytes(), &VALUE, 0, 0, 1).unwrap();
}

fn ask(cache: &Cache, key: u64) -> bool {
    cache.get(&key.to_le_bytes(), 1, |_| ()).is_some()
}

fn is_there(cache: &Cache, key: u64) -> bool {
    // Not a use.
    cache.entry(&key.to_le_bytes(), 1).unwrap().item().is_some()
}

fn share(cache: &Cache, keys: std::ops::Range<u64>) -> f64 {
    let count = keys.end - keys.start;
    keys.filter(|key| is_there(cache, *key)).count() as f64 / count as f64
}

/// Puts keys from `from` on until `count` items had to go.
fn press(cache: &Cache, from: u64, count: u64) {
    let goal = cache.stats().evictions + count;
    let mut key = from;
    while cache.stats().evictions < goal {
        put(cache, key);
        key += 1;
    }
}

/// 1000 items, each used `uses` times, and others, until 3000 items had to go; which share of the
/// thousand is there.
fn kept(policy: Policy, uses: u32) -> f64 {
    let cache = cache(policy);
    (0..1000).for_each(|key| put(&cache, key));
    (0..uses).for_each(|_| (0..1000).for_each(|key| assert!(ask(&cache, key))));
    press(&cache, 10_000, 3000);
    share(&cache, 0..1000)
}

#[test]
fn fifo_drops_the_oldest_whatever_its_use() {
    assert_eq!((kept(Policy::Fifo, 0), kept(Policy::Fifo, 15)), (0.0, 0.0));
}

#[test]
fn reinsertion_keeps_what_was_used_as_often_as_its_threshold_says() {
    for threshold in [1, 2, 5, 15] {
        let policy = Policy::FifoReinsertion { threshold };
        assert_eq!(kept(policy, u32::from(threshold) - 1), 0.0, "{policy:?}");
        assert_eq!(kept(policy, u32::from(threshold)), 1.0, "{policy:?}");
    }
}

#[test]
fn sieve_keeps_what_was_used_where_it_is_and_drops_what_was_not_used_again() {
    assert_eq!((kept(Policy::Sieve, 0), kept(Policy::Sieve, 1)), (0.0, 1.0));
    let cache = cache(Policy::Sieve);
    (0..1000).for_each(|key| put(&cache, key));
    (0..1000).for_each(|key| assert!(ask(&cache, key)));
    // The hand passes the thousand once and meets what is younger; those go first.
    press(&cache, 10_000, 3000);
    assert_eq!((share(&cache, 0..1000), share(&cache, 10_000..12_000)), (1.0, 0.0));
    // It follows the newcomers until it has to pass over some that were used, comes round, and
    // finds the thousand unused.
    let younger: Vec<u64> = (10_000..20_000).filter(|key| ask(&cache, *key)).collect();
    press(&cache, 100_000, 700);
    assert!(share(&cache, 0..1000) <= 0.5, "{}", share(&cache, 0..1000));
    assert!(younger.len() > 3000 && younger.iter().all(|key| is_there(&cache, *key)));
}

#[test]
fn s3_fifo_lets_newcomers_pass_through_a_tenth_and_takes_back_what_returns() {
    let cache = cache(Policy::S3Fifo);
    (0..1000).for_each(|key| put(&cache, key));
    (0..1000).for_each(|key| assert!(ask(&cache, key)));
    // Once they are in the main queue, a scan of any length goes by in the small one.
    press(&cache, 10_000, 3000);
    assert_eq!(share(&cache, 0..1000), 1.0);
    press(&cache, 100_000, 20_000);
    assert!(share(&cache, 0..1000) > 0.9, "{}", share(&cache, 0..1000));
    // What comes back soon after it was dropped goes to the main queue, where scans do not reach.
    (200_000..200_300).for_each(|key| put(&cache, key));
    (0..).step_by(200).take_while(|_| share(&cache, 200_000..200_300) > 0.0).for_each(|more| {
        press(&cache, 300_000 + more, 200);
    });
    (200_000..200_300).for_each(|key| put(&cache, key));
    press(&cache, 400_000, 10_000);
    assert_eq!((share(&cache, 200_000..200_300), share(&cache, 400_000..401_000)), (1.0, 0.0));
}

#[test]
fn tiny_lfu_keeps_what_was_asked_for_most_also_before_it_came() {
    let cache = cache(Policy::TinyLfu);
    (0..5000).for_each(|key| put(&cache, key));
    let often = || (0..5000).step_by(8);
    (0..8).for_each(|_| often().for_each(|key| assert!(ask(&cache, key))));
    press(&cache, 10_000, 6000);
    assert!(often().all(|key| is_there(&cache, key)));
    assert!(share(&cache, 0..5000) < 0.5, "{}", share(&cache, 0..5000));
    // Asked for when they were not there: the sketch remembers, and they stay once they come.
    let (asked, strangers) = (200_000..200_500, 200_500..201_000);
    (0..8).for_each(|_| asked.clone().for_each(|key| assert!(!ask(&cache, key))));
    (200_000..201_000).for_each(|key| put(&cache, key));
    press(&cache, 300_000, 6000);
    let (asked, strangers) = (share(&cache, asked), share(&cache, strangers));
    assert!(asked > 0.9 && strangers < 0.5, "{asked} and {strangers}");
}

#[test]
fn a_change_takes_a_round_on_by_little_and_none_waits_for_a_whole_one() {
    let cache =
        Cache::new(Options { memory: 8 << 20, partitions: 1, ..Options::default() }).unwrap();
    let (mut gone, mut most, mut rounds) = (0, 0, 0);
    for key in 0..400_000_u64 {
        cache.set(&key.to_le_bytes(), b"as long as its key, twice", 0, 0, 1).unwrap();
        ask(&cache, key % 50_000);
        let stats = cache.stats();
        most = most.max(stats.evictions + stats.moved - gone);
        rounds += u64::from(gone != stats.evictions + stats.moved);
        gone = stats.evictions + stats.moved;
    }
    // One is 40 bytes; 4096 are gone through at once, or 16 times what was stored.
    assert!(gone > 400_000 && rounds > 5000, "{gone} by {rounds} changes");
    assert!(most <= 4096 / 40 + 17, "{most} by one change");
}

fn holds(item: &Item<'_>, value: &[u8]) -> bool {
    let mut held = Vec::new();
    item.append_to(&mut held).unwrap();
    held == value
}

#[test]
fn a_value_that_is_late_for_a_round_of_eviction_is_stored_or_evicted_at_each_of_its_steps() {
    let cache = cache(Policy::TinyLfu);
    let mut others = 0_u64;
    let mut others_come = |count: u64| {
        for key in others..others + count {
            cache.set(&key.to_le_bytes(), &key.to_be_bytes(), 0, 0, 1).unwrap();
        }
        others += count;
        // What is there is right.
        for key in others.saturating_sub(100_000)..others {
            cache.get(&key.to_le_bytes(), 1, |item| assert!(holds(item, &key.to_be_bytes())));
        }
    };
    others_come(100_000);
    let (mut stored, mut evicted) = (0, 0);
    for late in 0..120_u64 {
        let value = vec![late as u8; if late % 3 == 0 { 10_000 } else { 300 }];
        let mut writer = cache.reserve(b"late", value.len() as u64, 0, 0, 1).unwrap();
        others_come(late * 67);
        writer.write(&value);
        if late % 4 == 1 {
            drop(writer);
            continue;
        }
        match writer.commit(&cache, 1) {
            Ok(_) => {
                cache.get(b"late", 1, |item| assert!(holds(item, &value))).expect("just stored");
                stored += 1;
            }
            Err(Error::Evicted { .. }) => evicted += 1,
            Err(error) => panic!("{error}"),
        }
    }
    others_come(100_000);
    assert!(stored > 10 && evicted > 10, "{stored} stored, {evicted} evicted");
}

#[test]
fn metadata_is_counted_by_policy_and_stays_below_its_bound() {
    let each = |policy: Policy| {
        let cache = cache(policy);
        (0..5000).for_each(|key| put(&cache, key));
        let stats = cache.stats();
        assert_eq!((stats.items, stats.evictions), (5000, 0));
        (0..5000).for_each(|key| assert!(cache.remove(&u64::to_le_bytes(key), 1)));
        // Headers go with their items: 8 bytes each.
        assert_eq!(stats.metadata_bytes - cache.stats().metadata_bytes, 5000 * 8);
        stats.metadata_bytes as f64 / stats.items as f64
    };
    let (fifo, sieve) = (each(Policy::Fifo), each(Policy::Sieve));
    let (s3_fifo, tiny_lfu) = (each(Policy::S3Fifo), each(Policy::TinyLfu));
    println!("bytes an item: FIFO {fifo}, SIEVE {sieve}, S3-FIFO {s3_fifo}, TinyLFU {tiny_lfu}");
    // The first two mark the entry alone; ghosts take 512 bytes a unit, the sketch 768.
    assert!(fifo == sieve && fifo < s3_fifo && s3_fifo < tiny_lfu);
    assert!(tiny_lfu < 45.0, "{tiny_lfu} bytes an item of 408");
}

#[test]
fn a_store_has_no_policy() {
    for policy in [Policy::Fifo, Policy::Sieve, Policy::TinyLfu] {
        let options = Options { memory: 3 << 20, policy, mode: Mode::Store, ..Options::default() };
        let cache = Cache::new(options).unwrap();
        let count = (0_u64..).find(|key| cache.set(&key.to_le_bytes(), &VALUE, 0, 0, 1).is_err());
        assert!((0..count.unwrap()).all(|key| is_there(&cache, key)), "{policy:?}");
        assert_eq!(cache.stats().evictions, 0);
    }
}
