//! Calls for data against real daemons over tcp: each mode, objects with a length that only their
//! home knows, pages that move or go meanwhile, and what is refused.

use rackpool::cluster::Cluster;
use rackpool::{
    FabricChoice, FetchMode, GAddr, Handle, Options, Placement, Pool, RackId, RrpcThreshold,
};

const MODES: [FetchMode; 3] = [FetchMode::Inline, FetchMode::OneSidedRead, FetchMode::WriteBack];

fn pattern(bytes: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    (0..bytes).map(|_| next()).collect()
}

fn tcp(cluster: &Cluster) -> Handle {
    cluster.pool_over(0, FabricChoice::Tcp).unwrap().handle().unwrap()
}

fn with_threshold(cluster: &Cluster, threshold: RrpcThreshold) -> Handle {
    let options = Options::new(&cluster.master_addr().to_string(), 0);
    let options = options.fabric(FabricChoice::Tcp).rrpc_threshold(threshold);
    Pool::open(options).unwrap().handle().unwrap()
}

#[test]
fn every_mode_brings_the_bytes_of_every_size_and_the_place_with_them() {
    let cluster = Cluster::start(2).unwrap();
    let mut writer = cluster.pool(1).unwrap().handle().unwrap();
    let addr = writer.alloc(1 << 20, Placement::Local).unwrap();
    let data = pattern(1 << 20, 7);
    writer.write(addr, &data).unwrap();
    let mut reader = tcp(&cluster);
    for mode in MODES {
        for bytes in [0, 1, 8, 63, 512, 513, 4096, 8192, 8193, 60_000, 65_536] {
            if mode == FetchMode::Inline && bytes > 8192 {
                continue;
            }
            let offset = if bytes < 65_536 { 5 } else { 0 };
            let mut found = vec![0xee; bytes];
            reader.fetch(GAddr(addr.0 + offset), &mut found, mode).unwrap();
            let offset = offset as usize;
            assert!(found == data[offset..offset + bytes], "{mode:?} of {bytes} bytes");
        }
    }
    let before = reader.handle_stats();
    reader.read(addr, &mut [0; 64]).unwrap();
    let after = reader.handle_stats();
    assert_eq!(after.fabric_operations - before.fabric_operations, 1, "one-sided by now");
    assert_eq!(after.master_requests, before.master_requests);
    let stats = reader.rrpc_stats();
    // A write-back of nothing is carried by the answer.
    assert_eq!((stats.calls, stats.inline, stats.written), (30, 8 + 2, 10));
}

#[test]
fn a_store_is_seen_by_everybody_when_it_returns() {
    let cluster = Cluster::start(2).unwrap();
    let mut home = cluster.pool(1).unwrap().handle().unwrap();
    let addr = home.alloc(64 << 10, Placement::Local).unwrap();
    let mut writer = tcp(&cluster);
    for bytes in [0, 1, 7, 64, 8192] {
        let data = pattern(bytes, bytes as u64);
        writer.store(GAddr(addr.0 + 3), &data).unwrap();
        let mut found = vec![0; bytes];
        home.read(GAddr(addr.0 + 3), &mut found).unwrap();
        assert!(found == data, "{bytes} bytes");
    }
    let too_long = writer.store(addr, &[0; 8193]).unwrap_err();
    assert_eq!(too_long.code(), "out-of-bounds");
}

#[test]
fn objects_of_unknown_length_come_with_one_call_or_a_call_and_a_read() {
    let cluster = Cluster::start(2).unwrap();
    let mut writer = cluster.pool(1).unwrap().handle().unwrap();
    let lengths = [0, 1, 100, 504, 512, 513, 4000, 100_000, 5 << 20];
    let objects: Vec<(GAddr, Vec<u8>)> = lengths
        .iter()
        .map(|length| {
            let addr = writer.alloc(*length as u64 + 8, Placement::Local).unwrap();
            let data = pattern(*length, *length as u64 + 1);
            writer.write_object(addr, &data).unwrap();
            (addr, data)
        })
        .collect();
    let mut reader = with_threshold(&cluster, RrpcThreshold::Paper);
    // The first access finds the rack.
    reader.read_u64(objects[0].0).unwrap();
    for (addr, data) in &objects[1..] {
        let before = reader.handle_stats();
        let known = reader.explain(*addr).unwrap().translation_cached;
        assert!(reader.read_object(*addr).unwrap() == *data, "{} bytes", data.len());
        let after = reader.handle_stats();
        if !known {
            assert!(after.master_requests - before.master_requests <= 3, "explain asks as well");
        }
        // Now the place is known: no call any more, unless it spans pages.
        let calls = reader.rrpc_stats().calls;
        assert!(reader.read_object(*addr).unwrap() == *data);
        let spans = data.len() as u64 + 8 > reader.page_bytes();
        assert_eq!(reader.rrpc_stats().calls - calls, u64::from(spans), "{} bytes", data.len());
    }
    let mut local = cluster.pool(1).unwrap().handle().unwrap();
    for (addr, data) in &objects {
        assert!(local.read_object(*addr).unwrap() == *data, "mapped");
    }
}

#[test]
fn a_first_read_of_a_short_object_is_one_message_to_its_home_and_none_to_the_master() {
    let cluster = Cluster::start(2).unwrap();
    let mut writer = cluster.pool(1).unwrap().handle().unwrap();
    let page = writer.page_bytes();
    let pages: Vec<GAddr> = (0..3).map(|_| writer.alloc(page, Placement::Local).unwrap()).collect();
    for addr in &pages {
        writer.write_object(*addr, &pattern(400, addr.0)).unwrap();
    }
    let long = pattern(60_000, 3);
    writer.write_object(pages[2], &long).unwrap();
    let mut reader = with_threshold(&cluster, RrpcThreshold::Paper);
    reader.read_u64(pages[0]).unwrap();
    let before = reader.handle_stats();
    assert_eq!(reader.read_object(pages[1]).unwrap(), pattern(400, pages[1].0));
    let first = reader.handle_stats();
    assert_eq!(first.master_requests, before.master_requests);
    assert_eq!(first.ring_requests, before.ring_requests);
    assert_eq!(first.fabric_operations - before.fabric_operations, 1, "one SEND");
    assert!(reader.read_object(pages[2]).unwrap() == long);
    let second = reader.handle_stats();
    assert_eq!(second.master_requests, before.master_requests);
    assert_eq!(second.fabric_operations - first.fabric_operations, 2, "one SEND and one READ");
}

#[test]
fn many_objects_share_doorbells() {
    let cluster = Cluster::start(2).unwrap();
    let mut writer = cluster.pool(1).unwrap().handle().unwrap();
    let page = writer.page_bytes();
    let addrs: Vec<GAddr> =
        (0..40).map(|_| writer.alloc(page, Placement::Local).unwrap()).collect();
    for (index, addr) in addrs.iter().enumerate() {
        writer.write_object(*addr, &pattern(index * 40, index as u64)).unwrap();
    }
    let mut reader = with_threshold(&cluster, RrpcThreshold::Paper);
    reader.read_u64(addrs[0]).unwrap();
    let before = reader.handle_stats();
    let objects = reader.read_objects(&addrs).unwrap();
    let after = reader.handle_stats();
    for (index, object) in objects.iter().enumerate() {
        assert!(*object == pattern(index * 40, index as u64), "object {index}");
    }
    assert_eq!(after.master_requests, before.master_requests);
    // 39 calls and the reads of what is longer than 512 bytes; a few doorbells carry them all.
    let sends = after.fabric_send_calls - before.fabric_send_calls;
    assert!(sends <= 6, "{sends} calls to the system sent 39 calls and 27 reads");
    assert!(reader.read_objects(&addrs).unwrap() == objects, "one-sided");
    assert!(reader.read_objects(&[]).unwrap().is_empty());
}

#[test]
fn what_is_no_object_is_refused_with_numbers_and_nothing_else_happens() {
    let cluster = Cluster::start(2).unwrap();
    let mut writer = cluster.pool(1).unwrap().handle().unwrap();
    let page = writer.page_bytes();
    let seen = writer.alloc(page, Placement::Local).unwrap();
    let object = writer.alloc(1024, Placement::Local).unwrap();
    let run = writer.alloc(3 * page, Placement::Local).unwrap();
    let mut reader = tcp(&cluster);
    reader.read_u64(seen).unwrap();
    for hostile in [1017, page, u64::MAX - 7, u64::MAX] {
        writer.write_u64(object, hostile).unwrap();
        let mut fresh = tcp(&cluster);
        fresh.read_u64(seen).unwrap();
        let error = fresh.read_object(object).unwrap_err();
        assert_eq!(error.code(), "out-of-bounds", "{error}");
        if hostile == 1017 {
            assert!(error.to_string().ends_with("out of bounds: 1024 bytes are there"), "{error}");
            continue;
        }
        assert!(fresh.read_object(object).is_err(), "also when the place is known");
    }
    writer.write_u64(object, 1016).unwrap();
    assert_eq!(tcp(&cluster).read_object(object).unwrap().len(), 1016);
    // Inside a run the rest of the run is there.
    let inside = GAddr(run.0 + page + 16);
    writer.write_u64(inside, 2 * page - 24).unwrap();
    assert_eq!(reader.read_object(inside).unwrap().len() as u64, 2 * page - 24);
    writer.write_u64(inside, 2 * page - 23).unwrap();
    assert_eq!(reader.read_object(inside).unwrap_err().code(), "out-of-bounds");
    assert_eq!(reader.read_object(GAddr(object.0 + 4)).unwrap_err().code(), "misaligned");
    writer.free(run, 3 * page).unwrap();
    assert_eq!(reader.read_object(run).unwrap_err().code(), "not-mapped");
    for mode in MODES {
        let freed = reader.fetch(run, &mut [0; 100], mode);
        assert_eq!(freed.unwrap_err().code(), "not-mapped", "{mode:?}");
    }
    let past = reader.fetch(seen, &mut vec![0; page as usize + 1], FetchMode::WriteBack);
    assert_eq!(past.unwrap_err().code(), "out-of-bounds");
    reader.read_u64(seen).unwrap();
}

#[test]
fn calls_follow_a_page_that_moves() {
    let cluster = Cluster::start(3).unwrap();
    let mut mover = cluster.pool(1).unwrap().handle().unwrap();
    let page = mover.page_bytes();
    let addr = mover.alloc(page, Placement::Local).unwrap();
    let data = pattern(page as usize, 4);
    mover.write(addr, &data).unwrap();
    let mut reader = tcp(&cluster);
    for (round, rack) in [2, 1, 0, 2, 1].into_iter().enumerate() {
        for mode in MODES {
            let bytes = if mode == FetchMode::Inline { 5000 } else { page as usize };
            let mut found = vec![0; bytes];
            reader.fetch(addr, &mut found, mode).unwrap();
            assert!(found == data[..bytes], "{mode:?} in round {round}");
        }
        mover.admin().migrate(addr, RackId(rack)).unwrap();
        // The place that the reader knows is stale now.
        let mode = MODES[round % 3];
        let mut found = vec![0; 5000];
        reader.fetch(addr, &mut found, mode).unwrap();
        assert!(found == data[..5000], "{mode:?} after round {round}");
    }
}

#[test]
fn the_threshold_is_the_papers_a_given_one_or_measured_once() {
    let cluster = Cluster::start(2).unwrap();
    let mut writer = cluster.pool(1).unwrap().handle().unwrap();
    let page = writer.page_bytes();
    let addrs: Vec<GAddr> =
        (0..50).map(|_| writer.alloc(page, Placement::Local).unwrap()).collect();
    for addr in &addrs {
        writer.write_object(*addr, &pattern(1000, addr.0)).unwrap();
    }
    for (threshold, expected) in [
        (RrpcThreshold::Paper, Some(512)),
        (RrpcThreshold::Bytes(999), Some(999)),
        (RrpcThreshold::Bytes(1 << 20), Some(8192)),
        (RrpcThreshold::Calibrated, None),
    ] {
        let mut handle = with_threshold(&cluster, threshold);
        handle.read_u64(addrs[0]).unwrap();
        assert_eq!(handle.rrpc_threshold_of(addrs[0]), Some(expected.unwrap_or(512)));
        let mut most = 0;
        for addr in &addrs[1..] {
            let before = handle.handle_stats().fabric_operations;
            assert!(handle.read_object(*addr).unwrap() == pattern(1000, addr.0));
            most = most.max(handle.handle_stats().fabric_operations - before);
        }
        let found = handle.rrpc_threshold_of(addrs[0]).unwrap();
        assert!(expected.is_none_or(|expected| expected == found), "{threshold:?}: {found}");
        assert!(found <= 8192);
        // After 32 calls the rack is measured, once; nothing else takes more than two operations.
        assert_eq!(most > 2, expected.is_none(), "{most} operations for one object");
        assert!(handle.rrpc_stats().calls >= 32);
    }
}

#[test]
fn mapped_racks_answer_calls_as_well() {
    let cluster = Cluster::start(2).unwrap();
    let mut handle = cluster.pool_over(0, FabricChoice::Shm).unwrap().handle().unwrap();
    for rack in [0, 1] {
        let addr = handle.alloc(64 << 10, Placement::Rack(RackId(rack))).unwrap();
        let data = pattern(20_000, u64::from(rack));
        handle.write(addr, &data).unwrap();
        for mode in MODES {
            let bytes = if mode == FetchMode::Inline { 4000 } else { 20_000 };
            let mut found = vec![0; bytes];
            handle.fetch(addr, &mut found, mode).unwrap();
            assert!(found == data[..bytes], "{mode:?} in rack {rack}");
        }
        handle.store(addr, b"stored").unwrap();
        let mut found = [0; 6];
        handle.read(addr, &mut found).unwrap();
        assert_eq!(&found, b"stored");
    }
}
