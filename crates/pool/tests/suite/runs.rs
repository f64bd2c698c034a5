//! Runs with pages in several racks, and words with memory in another one, through the public API
//! and over both fabrics; servers in threads of this process.

use rackpool::cluster::Cluster;
use rackpool::{DaemonStats, FabricChoice, GAddr, Handle, Placement, RackId};
use std::time::{Duration, Instant};

const PAGE: u64 = 64 << 10;
const FABRICS: [FabricChoice; 2] = [FabricChoice::Tcp, FabricChoice::Shm];
const PAGES: u64 = 16;

fn open(cluster: &Cluster, rack: u16, fabric: FabricChoice) -> Handle {
    cluster.pool_over(rack, fabric).unwrap().handle().unwrap()
}

fn pattern(bytes: u64, seed: u64) -> Vec<u8> {
    (0..bytes).map(|i| (i.wrapping_mul(seed | 1) >> 3) as u8).collect()
}

fn at(addr: GAddr, pages: u64) -> GAddr {
    GAddr(addr.0 + pages * PAGE)
}

/// What each rack holds: frames that are free, allocations, bytes of them.
fn holdings(handle: &mut Handle) -> Vec<(u64, u64, u64)> {
    let of = |one: DaemonStats| (one.frames_free, one.allocations, one.allocated_bytes);
    let racks = handle.admin().pool_stats().unwrap().racks;
    racks.into_iter().map(|rack| of(rack.daemon.expect("it answers"))).collect()
}

/// Waits until the frames that are on their way back have come.
fn wait_for(handle: &mut Handle, expected: &[(u64, u64, u64)]) {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let found = holdings(handle);
        if found == expected {
            return;
        }
        assert!(Instant::now() < deadline, "racks hold {found:?}, not {expected:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_run_that_is_spread_over_three_racks_is_read_written_and_freed_as_a_whole() {
    for fabric in FABRICS {
        let cluster = Cluster::start(3).unwrap();
        let mut handles: Vec<Handle> = (0..3).map(|rack| open(&cluster, rack, fabric)).collect();
        let start = holdings(&mut handles[0]);
        let run = handles[0].alloc(PAGES * PAGE, Placement::Local).unwrap();
        let mut data = pattern(PAGES * PAGE, 77);
        handles[0].write(run, &data).unwrap();
        for page in 0..PAGES {
            let (mover, to) = (page as usize % 2, RackId((page % 3) as u16));
            assert_eq!(handles[mover].admin().migrate(at(run, page), to), Ok(to));
        }
        let spread = holdings(&mut handles[0]);
        let bytes: Vec<u64> = spread.iter().map(|held| held.2).collect();
        assert_eq!(bytes, [6 * PAGE, 5 * PAGE, 5 * PAGE], "pages count where they are");
        for writer in 0..3 {
            let mark = pattern(3 * PAGE, writer as u64 + 5);
            let offset = PAGE / 2 + writer as u64 * 4 * PAGE;
            handles[writer].write(GAddr(run.0 + offset), &mark).unwrap();
            data[offset as usize..][..mark.len()].copy_from_slice(&mark);
            for reader in &mut handles {
                let mut found = vec![0; data.len()];
                reader.read(run, &mut found).unwrap();
                assert!(found == data, "after writer {writer}");
            }
        }
        // The first page moves too: its home is asked for the free.
        assert_eq!(handles[2].admin().migrate(run, RackId(1)), Ok(RackId(1)));
        for (addr, bytes) in [(at(run, 1), PAGE), (run, PAGE), (at(run, 4), 12 * PAGE)] {
            assert_eq!(handles[1].free(addr, bytes).unwrap_err().code(), "bad-free");
        }
        handles[2].free(run, PAGES * PAGE).unwrap();
        // When it has returned no handle finds any of it, whatever it remembers.
        for handle in &mut handles {
            for page in 0..PAGES {
                let read = handle.read(at(run, page), &mut [0; 8]);
                assert_eq!(read.unwrap_err().code(), "not-mapped", "page {page}");
            }
        }
        wait_for(&mut handles[0], &start);
        let again = handles[0].free(run, PAGES * PAGE).unwrap_err();
        assert!(["bad-free", "not-mapped"].contains(&again.code()), "{again}");
    }
}

#[test]
fn a_word_and_what_it_names_part_and_are_freed_together() {
    for fabric in FABRICS {
        let cluster = Cluster::start(3).unwrap();
        let mut handles: Vec<Handle> = (0..3).map(|rack| open(&cluster, rack, fabric)).collect();
        let start = holdings(&mut handles[0]);
        for (round, bytes) in [64, 9000, PAGE, 5 * PAGE - 9].into_iter().enumerate() {
            let word = handles[0].alloc(64, Placement::Local).unwrap();
            let addr = handles[1].alloc_into(word, bytes).unwrap();
            let data = pattern(bytes, 3);
            handles[2].write(addr, &data).unwrap();
            let last = GAddr(addr.0 + bytes - 1);
            assert_eq!(handles[0].admin().migrate(last, RackId(1)), Ok(RackId(1)));
            if round % 2 == 0 {
                assert_eq!(handles[1].admin().migrate(word, RackId(2)), Ok(RackId(2)));
            }
            let mut found = vec![0; data.len()];
            handles[1].read(addr, &mut found).unwrap();
            assert!(found == data, "{bytes} bytes");
            for wrong in [bytes + 2 * PAGE, 20 * PAGE] {
                let error = handles[2].free_from(word, wrong).unwrap_err();
                assert_eq!(error.code(), "bad-free", "{error}");
            }
            assert_eq!(handles[2].read_u64(word), Ok(addr.0), "nothing was done");
            handles[2].free_from(word, bytes).unwrap();
            assert_eq!(handles[0].read_u64(word), Ok(0));
            if bytes > PAGE / 2 {
                let gone = handles[1].read(addr, &mut [0]).unwrap_err();
                assert_eq!(gone.code(), "not-mapped");
            }
            assert_eq!(handles[2].free_from(word, bytes).unwrap_err().code(), "bad-free");
            handles[1].free(word, 64).unwrap();
        }
        // Slab pages keep one empty page for their class where it is.
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            let held = holdings(&mut handles[0]);
            if held.iter().all(|(_, allocations, bytes)| (*allocations, *bytes) == (0, 0)) {
                break;
            }
            assert!(Instant::now() < deadline, "{held:?}, at the start {start:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
