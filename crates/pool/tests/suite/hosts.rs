//! What clients of real hosts do in scenarios of virtual machines (`cargo xtask vm`), where the
//! servers run already. `RACKPOOL_CONFIG` and `RACKPOOL_RACK` say how to join, `RIG_ID` which host
//! this is, `/rig` is a folder of all hosts.

use rackpool::{GAddr, Handle, LockMode, LockOptions, Options, Placement, Pool, RackId};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(120);
/// Bytes that each host stores, and that the writer writes under its lock, again and again.
const BYTES: usize = 1 << 18;

fn open() -> Handle {
    let options = Options::from_env().expect("RACKPOOL_CONFIG names a file of options");
    Pool::open(options).unwrap().handle().unwrap()
}

fn own() -> u64 {
    std::env::var("RIG_ID").unwrap().parse().unwrap()
}

fn hosts() -> u64 {
    std::env::var("RIG_N").unwrap().parse().unwrap()
}

fn file(name: &str) -> PathBuf {
    Path::new("/rig").join(name)
}

fn say(name: &str, text: &str) {
    let part = file(&format!("{name}.part"));
    std::fs::write(&part, text).unwrap();
    std::fs::rename(part, file(name)).unwrap();
}

fn hear(name: &str) -> String {
    let start = Instant::now();
    loop {
        if let Ok(text) = std::fs::read_to_string(file(name)) {
            return text;
        }
        assert!(start.elapsed() < PATIENCE, "nobody says {name}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// All hosts have come so far.
fn meet(name: &str) {
    say(&format!("{name}.{}", own()), "");
    (0..hosts()).for_each(|host| drop(hear(&format!("{name}.{host}"))));
}

fn address(text: &str) -> GAddr {
    GAddr(text.parse().unwrap())
}

fn pattern(seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let words = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.wrapping_mul(0x2545_f491_4f6c_dd1d)
    });
    words.take(BYTES / 8).flat_map(u64::to_le_bytes).collect()
}

/// As many bytes of one word.
fn filled(word: u64) -> Vec<u8> {
    std::iter::repeat_n(word.to_le_bytes(), BYTES / 8).flatten().collect()
}

#[test]
#[ignore = "needs several hosts: cargo xtask vm"]
fn all_hosts_add_to_one_word_under_atomics_and_under_a_lock() {
    // Across racks each is a message, for which emulated processors take long.
    const ADDS: u64 = 200;
    const LOCKED: u64 = 20;
    let mut handle = open();
    if own() == 0 {
        let words = handle.alloc(128, Placement::Local).unwrap();
        say("words", &words.0.to_string());
    }
    let atomic = address(&hear("words"));
    let locked = GAddr(atomic.0 + 64);
    meet("adding");
    let start = Instant::now();
    let unknown: u64 = (0..ADDS).map(|_| add_one(&mut handle, atomic)).sum();
    say(&format!("unknown.{}", own()), &unknown.to_string());
    for _ in 0..LOCKED {
        let guard =
            handle.lock(locked, LockMode::Write, LockOptions::line().within_ms(30_000)).unwrap();
        let value = handle.read_u64(locked).unwrap();
        handle.write_u64(locked, value + 1).unwrap();
        handle.unlock(guard).unwrap();
    }
    let took = start.elapsed();
    meet("added");
    let unknown: u64 =
        (0..hosts()).map(|host| hear(&format!("unknown.{host}")).parse::<u64>().unwrap()).sum();
    let sum = handle.read_u64(atomic).unwrap();
    assert!((ADDS * hosts() - unknown..=ADDS * hosts()).contains(&sum), "{sum}, {unknown} unknown");
    assert_eq!(handle.read_u64(locked).unwrap(), LOCKED * hosts());
    println!("result: {ADDS} atomics and {LOCKED} locked additions in {took:?}, none lost");
    meet("seen");
}

#[test]
#[ignore = "needs several hosts: cargo xtask vm"]
fn a_freed_page_is_nobodys_any_more_on_any_host() {
    let mut handle = open();
    for round in 0..5 {
        let name = format!("page.{round}");
        if own() == 0 {
            let page = handle.alloc(handle.page_bytes(), Placement::Local).unwrap();
            handle.write_u64(page, round).unwrap();
            say(&name, &page.0.to_string());
        }
        let page = address(&hear(&name));
        assert_eq!(handle.read_u64(page).unwrap(), round);
        meet(&format!("{name}.warm"));
        if own() == 0 {
            handle.free(page, handle.page_bytes()).unwrap();
            say(&format!("{name}.freed"), "");
        }
        hear(&format!("{name}.freed"));
        let error = handle.read_u64(page).unwrap_err();
        assert_eq!(error.code(), "not-mapped", "{error}");
        meet(&format!("{name}.over"));
    }
}

/// 1 if a lost connection leaves open whether it was added.
fn add_one(handle: &mut Handle, word: GAddr) -> u64 {
    match handle.fetch_add(word, 1) {
        Err(error) if error.code() == "outcome-unknown" => 1,
        added => {
            added.unwrap();
            0
        }
    }
}

/// Each host's bytes, written by it and acknowledged.
#[test]
#[ignore = "needs several hosts: cargo xtask vm"]
fn every_host_stores_what_all_others_read_back() {
    let mut handle = open();
    let data = pattern(own());
    for rack in 0..2 {
        let placement = Placement::Rack(RackId(rack));
        match handle.alloc(BYTES as u64, placement) {
            Err(error) if error.code() == "no-such-rack" => {}
            place => {
                let place = place.unwrap();
                handle.write(place, &data).unwrap();
                say(&format!("stored.{}.{rack}", own()), &place.0.to_string());
            }
        }
    }
    meet("stored");
    check_stored(&mut handle);
    meet("checked");
}

/// All that was stored and acknowledged is there.
fn check_stored(handle: &mut Handle) {
    let mut back = vec![0; BYTES];
    let mut count = 0;
    for host in 0..hosts() {
        for rack in 0..2 {
            let name = file(&format!("stored.{host}.{rack}"));
            let Ok(place) = std::fs::read_to_string(name) else { continue };
            handle.read(address(&place), &mut back).unwrap();
            assert!(back == pattern(host), "what host {host} stored in rack {rack}");
            count += 1;
        }
    }
    assert!(count > 0);
    println!("result: {count} times {BYTES} bytes stored by {} hosts read back", hosts());
}

#[test]
#[ignore = "needs several hosts: cargo xtask vm"]
fn what_was_stored_is_still_there() {
    check_stored(&mut open());
}

#[test]
#[ignore = "needs several hosts: cargo xtask vm"]
fn write_under_a_lock_until_the_host_dies() {
    let mut handle = open();
    let place = handle.alloc(BYTES as u64, Placement::Local).unwrap();
    let _guard = handle.lock(place, LockMode::Write, LockOptions::line()).unwrap();
    for round in 1.. {
        handle.write(place, &filled(round)).unwrap();
        if round == 3 {
            say("writing", &place.0.to_string());
        }
    }
}

#[test]
#[ignore = "needs several hosts: cargo xtask vm"]
fn a_dead_hosts_lock_is_waited_for_and_granted_when_the_host_is_fenced() {
    let mut handle = open();
    let place = address(&hear("writing"));
    hear("crashed.1");
    // Locks and memory of the dead host go to no other client until it is certain that it is dead.
    let start = Instant::now();
    let error =
        handle.lock(place, LockMode::Write, LockOptions::line().within_ms(2_000)).unwrap_err();
    assert_eq!(error.code(), "lock-timeout", "{error}");
    println!("result: after {:?}: {error}", start.elapsed());
    say("fence", "");
    hear("fenced");
    let start = Instant::now();
    let guard = handle.lock(place, LockMode::Write, LockOptions::line().within_ms(20_000)).unwrap();
    println!("result: granted {:?} after the host was fenced", start.elapsed());
    let mut back = vec![0; BYTES];
    handle.read(place, &mut back).unwrap();
    let words: Vec<u64> =
        back.chunks(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect();
    let (first, last) = (words[0], words[words.len() - 1]);
    let torn = words.windows(2).filter(|pair| pair[0] != pair[1]).count();
    assert!(first >= 3 && (first == last || first == last + 1) && torn <= 1, "{first} {last}");
    println!("result: its last write was number {first}, torn at {torn} places");
    handle.write(place, &filled(0)).unwrap();
    handle.unlock(guard).unwrap();
}

/// A page goes from rack to rack while all hosts add to a word in it.
#[test]
#[ignore = "needs several hosts: cargo xtask vm"]
fn a_page_moves_between_the_racks_while_all_hosts_use_it() {
    const ADDS: u64 = 150;
    let mut handle = open();
    if own() == 0 {
        let page = handle.alloc(handle.page_bytes(), Placement::Local).unwrap();
        handle.write(GAddr(page.0 + 4096), &pattern(99)).unwrap();
        say("moving", &page.0.to_string());
    }
    let page = address(&hear("moving"));
    meet("move");
    let mut unknown = 0;
    for round in 0..ADDS {
        unknown += add_one(&mut handle, page);
        if own() == 0 && round % 50 == 25 {
            let to = RackId((1 + round / 50 % 2) as u16 % 2);
            assert_eq!(handle.admin().migrate(page, to).unwrap(), to);
            println!("result: the page is in rack {to}");
        }
    }
    say(&format!("unsure.{}", own()), &unknown.to_string());
    let unknown: u64 =
        (0..hosts()).map(|host| hear(&format!("unsure.{host}")).parse::<u64>().unwrap()).sum();
    let sum = handle.read_u64(page).unwrap();
    assert!((ADDS * hosts() - unknown..=ADDS * hosts()).contains(&sum), "{sum}, {unknown} unknown");
    let mut back = vec![0; BYTES];
    handle.read(GAddr(page.0 + 4096), &mut back).unwrap();
    assert!(back == pattern(99));
    meet("moved.seen");
}

/// Racks 0 and 1; rack 1 is gone.
#[test]
#[ignore = "needs several hosts: cargo xtask vm"]
fn a_dead_rack_gives_typed_errors_and_the_others_data_stays() {
    let mut options = Options::from_env().unwrap();
    options.request_timeout_ms = 3_000;
    let mut handle = Pool::open(options).unwrap().handle().unwrap();
    let mut back = vec![0; BYTES];
    for host in [0, hosts() - 1] {
        let place = |rack| hear(&format!("stored.{host}.{rack}"));
        let start = Instant::now();
        let error = handle.read(address(&place(1)), &mut back).unwrap_err();
        let is_typed = matches!(error.code(), "peer-dead" | "timeout" | "lost");
        assert!(is_typed, "{error}");
        println!("result: after {:?}: {}: {error}", start.elapsed(), error.code());
        handle.read(address(&place(0)), &mut back).unwrap();
        assert!(back == pattern(host));
    }
    println!("result: all that was stored in rack 0 is there");
}
