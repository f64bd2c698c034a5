//! Reading a replica while another process is at it.

use super::*;
use crate::replica::{
    ENTRY_DATA, ENTRY_PAGE, ENTRY_WORD, EntryWord, HEAD_BITS, HEAD_UNTIL, entry_offset, home_index,
};
use crate::seam::Nanos;

const REPLICATED: PageId = PageId(100);
const DIRECTORY: PageId = PageId(10);
const DATA: PageId = PageId(11);
const BITS: u32 = 6;

/// A client of rack 0, where page 100 of rack 1 has a replica full of sevens that may be read until
/// time 1000, and where the word of its entry lies.
fn replicated(mutation: Option<Mutation>) -> (World, Client<TestMem>, u64) {
    let (world, mut client) = World::without(mutation, Vec::new());
    let link = client.add_link(RackId(1), Reach::OneSided(layout())).unwrap();
    client.install(link, &[home(REPLICATED.0, 1, 3, 7)]).unwrap();
    client.install(OWN, &[home(DIRECTORY.0, 0, 1, 5), home(DATA.0, 0, 2, 6)]).unwrap();
    for (frame, generation) in [(1, 5), (2, 6)] {
        world.own.table.store(table_word(FrameIndex(frame)), generation);
    }
    let address = |page| layout().pages.join(page, 0).0;
    let word = layout().replicas_word(home_index(RackId(1)));
    world.own.table.store(word, address(DIRECTORY));
    let directory = layout().frame_offset(FrameIndex(1));
    let entry = directory + entry_offset(REPLICATED, BITS);
    let pages = &world.own.pages;
    pages.store(directory + HEAD_UNTIL, 1000);
    pages.store(directory + HEAD_BITS, BITS.into());
    pages.store(entry + ENTRY_PAGE, REPLICATED.0);
    pages.store(entry + ENTRY_DATA, address(DATA));
    pages.copy_in(layout().frame_offset(FrameIndex(2)), &[7; PAGE as usize]);
    let open = EntryWord::placed(1).0 + EntryWord::END;
    pages.store(entry + ENTRY_WORD, open);
    (world, client, entry + ENTRY_WORD)
}

/// Reads; `meanwhile` happens after the copy.
fn read(client: &Client<TestMem>, now: Nanos, meanwhile: impl FnOnce()) -> ReplicaRead {
    let mut to = [0; 64];
    let addr = layout().pages.join(REPLICATED, 128);
    let read = client.read_replica(addr, &mut to, || {
        meanwhile();
        now
    });
    assert!(read != ReplicaRead::Done || to == [7; 64]);
    read
}

#[test]
fn a_replica_is_read_while_it_is_open_and_its_time_is_not_over() {
    let (world, client, word) = replicated(None);
    assert_eq!(read(&client, 999, || {}), ReplicaRead::Done);
    assert_eq!(read(&client, 1000, || {}), ReplicaRead::None);
    world.own.pages.fetch_add(word, EntryWord::BEGIN);
    assert_eq!(read(&client, 999, || {}), ReplicaRead::None);
    // A process that was not alone takes it back, and it is as it was.
    world.own.pages.fetch_add(word, EntryWord::UNDO);
    assert_eq!(read(&client, 999, || {}), ReplicaRead::Done);
}

#[test]
fn a_replica_whose_time_was_over_when_it_had_been_read_is_not_believed() {
    for mutation in [None, Some(Mutation::ReadExpiredReplica)] {
        let (_world, client, _) = replicated(mutation);
        assert_eq!(read(&client, 999, || {}), ReplicaRead::Done);
        let believed = read(&client, 1000, || {}) == ReplicaRead::Done;
        assert_eq!(believed, mutation.is_some());
    }
}

#[test]
fn a_replica_that_was_written_or_replaced_while_it_was_read_is_not_believed() {
    for mutation in [None, Some(Mutation::SkipReplicaRecheck)] {
        let (world, client, word) = replicated(mutation);
        let pages = world.own.pages.clone();
        let written = || _ = pages.fetch_add(word, EntryWord::BEGIN + EntryWord::END);
        let believed = read(&client, 999, written) == ReplicaRead::Done;
        assert_eq!(believed, mutation.is_some());
        let replaced = || pages.store(word, EntryWord::placed(2).0 + EntryWord::END);
        let believed = read(&client, 999, replaced) == ReplicaRead::Done;
        assert_eq!(believed, mutation.is_some());
    }
}
