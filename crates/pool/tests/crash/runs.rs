//! Daemons and the master are killed at random moments while runs with pages in both racks, and
//! memory with its word in the other rack, are freed: nothing is freed twice, and every frame comes
//! back. Real processes; see `tools`.

use crate::tools::stage::Stage;
use crate::tools::{PATIENCE, Random, busy, seed, wait_until};
use rackpool::FabricChoice::{Shm, Tcp};
use rackpool::{Error, GAddr, Handle, Options, Placement, Pool, RackId};
use std::time::Duration;

const MEMORY: &str = "size=32M&pages=64K";
const PAGE: u64 = 64 << 10;
/// Frees with a kill each, in each role.
const ROUNDS: u32 = 15;
/// Pages of a run.
const PAGES: u64 = 5;
/// Pages that are freed at once: each rack has some of all of them.
const FREES: usize = 4;

/// Something that is about to be freed.
#[derive(Clone, Copy)]
struct Piece {
    addr: GAddr,
    bytes: u64,
    /// The word that names it; null if it is freed by its address.
    word: GAddr,
}

/// Makes one, with its pages in both racks.
fn new_piece(handle: &mut Handle, random: &mut Random) -> Piece {
    let rack = RackId(random.below(2) as u16);
    let (bytes, word, addr) = match random.below(3) {
        0 => {
            let bytes = PAGES * PAGE;
            (bytes, GAddr(0), handle.alloc(bytes, Placement::Rack(rack)).unwrap())
        }
        kind => {
            let bytes = if kind == 1 { 2 * PAGE } else { 1000 };
            let word = handle.alloc(64, Placement::Rack(rack)).unwrap();
            (bytes, word, handle.alloc_into(word, bytes).unwrap())
        }
    };
    handle.write(addr, &vec![7; bytes as usize]).unwrap();
    for page in 0..bytes.div_ceil(PAGE) {
        let to = RackId(random.below(2) as u16);
        move_page(handle, GAddr(addr.0 + page * PAGE), to);
    }
    if bytes < PAGE || random.below(2) == 0 {
        move_page(handle, addr, RackId(1 - rack.0));
    }
    Piece { addr, bytes, word }
}

fn move_page(handle: &mut Handle, addr: GAddr, to: RackId) {
    wait_until("a page moves", PATIENCE, || match handle.admin().migrate(addr, to) {
        Ok(_) => None,
        Err(error) if error.code() == "stays" || error.may_retry() => Some(error.to_string()),
        Err(error) => panic!("{addr}: {error}"),
    });
}

/// Frees it, whichever process dies meanwhile: afterwards it is free, and was freed once.
fn free_piece(handle: &mut Handle, piece: Piece) {
    let Piece { addr, bytes, word } = piece;
    let is_done = |error: &Error| matches!(error.code(), "bad-free" | "not-mapped");
    loop {
        let freed = match word {
            GAddr(0) => handle.free(addr, bytes),
            word => handle.free_from(word, bytes),
        };
        match freed {
            Ok(()) => break,
            Err(error) if is_done(&error) => break,
            Err(error) if error.may_retry() || error.code() == "outcome-unknown" => {}
            Err(error) => panic!("{addr}: {error}"),
        }
    }
    if word != GAddr(0) {
        assert_eq!(handle.read_u64(word), Ok(0));
        handle.free(word, 64).unwrap();
    }
}

/// Every frame that is not free is the home of one page of the directory, and nothing is allocated.
fn check_all_free(handle: &mut Handle) {
    wait_until("everything is free", PATIENCE, || {
        let stats = handle.admin().pool_stats().unwrap();
        let (mut used, mut live) = (0, 0);
        for rack in &stats.racks {
            // A master that was just started does not know all daemons yet.
            let Some(rack) = &rack.daemon else { return Some("a daemon is not known".into()) };
            used += rack.frames - rack.frames_free;
            live += rack.allocations;
        }
        let pages = stats.master.pages;
        let free = used == pages && live == 0;
        (!free).then(|| format!("{used} frames, {pages} pages, {live} allocations"))
    });
}

/// Frees under kills: `victims` says which processes die in a round (racks 0 and 1, the master as
/// 2).
fn frees_under_kills(test: &str, victims: impl Fn(&mut Random) -> Vec<usize>) {
    let _turn = busy();
    let mut random = Random::new(seed(test));
    let mut stage = Stage::new(&[MEMORY, MEMORY]);
    let pool = |options: Options| Pool::open(options.request_timeout_ms(60_000)).unwrap();
    let pools = [pool(stage.options(0, Tcp)), pool(stage.options(1, Shm))];
    let mut handles: Vec<Handle> = pools.iter().map(|pool| pool.handle().unwrap()).collect();
    for _ in 0..ROUNDS {
        let pieces: Vec<Piece> =
            (0..FREES).map(|_| new_piece(&mut handles[0], &mut random)).collect();
        let (ours, theirs) = pieces.split_at(FREES / 2);
        let pause = random.below(6000);
        let chosen = victims(&mut random);
        let back = random.below(50);
        std::thread::scope(|scope| {
            for (handle, pieces) in handles.iter_mut().zip([ours, theirs]) {
                scope.spawn(move || pieces.iter().for_each(|piece| free_piece(handle, *piece)));
            }
            std::thread::sleep(Duration::from_micros(pause));
            for victim in &chosen {
                match victim {
                    2 => stage.kill_master(),
                    rack => stage.kill_daemon(*rack),
                }
            }
            std::thread::sleep(Duration::from_millis(back));
            for victim in &chosen {
                match victim {
                    2 => stage.start_master(),
                    rack => stage.start_daemon(*rack),
                }
            }
        });
        check_all_free(&mut handles[0]);
    }
    drop((handles, pools));
    stage.finish();
}

#[test]
fn a_killed_daemon_of_either_rack_frees_its_part_when_it_is_back() {
    frees_under_kills("runs_daemons", |random| vec![random.below(2) as usize]);
}

#[test]
fn a_killed_master_has_everything_freed_that_it_was_told_and_nothing_twice() {
    frees_under_kills("runs_master", |_| vec![2]);
}

#[test]
fn whoever_dies_in_whatever_order_every_frame_comes_back() {
    frees_under_kills("runs_chaos", |random| {
        let mut victims: Vec<usize> = (0..3).filter(|_| random.below(2) == 0).collect();
        // A daemon joins a master that is there.
        victims.sort_unstable_by_key(|victim| 2 - *victim);
        victims
    });
}
