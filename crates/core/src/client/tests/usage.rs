//! Reports of the pages that a client used.

use super::*;

#[test]
fn a_page_that_displaces_another_starts_at_zero_and_is_told_of_once() {
    let (mut world, mut client) = World::new(vec![vec![0; 8]]);
    client.count_use(true);
    // The cache has 64 entries: 1 and 65 share one.
    read_pages(&mut world, &mut client, &[1, 65, 1, 65, 65]);
    assert_eq!(client.take_use(), [used(65, 2, 0)]);
    read_pages(&mut world, &mut client, &[65]);
    client.forget(PageId(65));
    assert_eq!(client.take_use(), []);
    read_pages(&mut world, &mut client, &[65]);
    assert_eq!(client.take_use(), [used(65, 1, 0)]);
}

#[test]
fn a_report_of_many_pages_takes_the_most_used_and_leaves_the_rest_for_the_next() {
    let mut client = Client::new(RackId(0), Reach::Mapped(view()), 1024);
    client.count_use(true);
    let pages: Vec<u64> = (0..600).map(|index| 100 + index).collect();
    for page in pages.iter().copied().chain(650..700) {
        client.install(OWN, &[home(page, 0, 0, page)]).unwrap();
        client.note_remote(GAddr(page * PAGE), Access::Read);
    }
    let first = client.take_use();
    assert_eq!(first.len(), USE_PAGES_MAX);
    assert!(first[..50].iter().all(|one| one.counts.reads == 2 && one.page.0 >= 650));
    let second = client.take_use();
    let mut told: Vec<u64> = first.iter().chain(&second).map(|one| one.page.0).collect();
    told.sort_unstable();
    assert_eq!(told, pages);
    let frame = RequestFrame { seq: u64::MAX, request: Request::NoteUse { pages: first } };
    assert!(crate::wire::encode_vec(&frame).len() < crate::constants::MESSAGE_BYTES_MAX as usize);
}
