//! Calls for data: whom they go to, what of an answer is believed, and that no buffer stays
//! exposed.

use super::*;
use crate::rrpc::{Bytes, Carried, Fetch, FetchExtent, Fetched, INLINE_BYTES_MAX};
use crate::seam::Exposure;

/// A fabric that exposes buffers and does nothing else.
#[derive(Default)]
struct Exposing {
    made: u64,
    open: Vec<(LinkId, Exposure)>,
    /// What will have come when an exposure ends.
    come: u64,
    is_full: bool,
}

impl Io for Exposing {
    fn target(&mut self, _: u32, _: u64, _: u64) -> &mut [u8] {
        unreachable!("calls have no local copies")
    }
    fn source(&self, _: u32, _: u64, _: u64) -> &[u8] {
        unreachable!("calls have no local copies")
    }
    fn sge(&self, _: u32, _: u64, _: u64) -> Sge {
        unreachable!("calls post nothing")
    }
    fn post(
        &mut self,
        _: LinkId,
        _: &[WorkRequest<'_>],
    ) -> std::result::Result<(), (usize, PostError)> {
        unreachable!("calls post nothing")
    }
    fn expose(&mut self, link: LinkId, piece: u32, offset: u64, bytes: u64) -> Option<Exposure> {
        assert_eq!((piece, offset), (0, 0));
        if self.is_full {
            return None;
        }
        self.made += 1;
        let exposure = Exposure { id: 1, key: self.made, bytes };
        self.open.push((link, exposure));
        Some(exposure)
    }
    fn conceal(&mut self, link: LinkId, exposure: Exposure) -> u64 {
        let at = self.open.iter().position(|open| *open == (link, exposure));
        self.open.remove(at.expect("it is open"));
        self.come
    }
}

const FAR: u64 = 107;
const LINK: LinkId = LinkId(1);

/// A client that has seen page 100 in rack 1, so that it guesses for page 107.
fn guessing() -> Client<TestMem> {
    let (_, mut client) = World::new(vec![]);
    assert_eq!(client.add_link(RackId(1), Reach::OneSided(layout())).unwrap(), LINK);
    client.install(LINK, &[home(100, 1, 2, 20)]).unwrap();
    client
}

fn place() -> PageHome {
    home(FAR, 1, 3, 30)
}

fn fetched(bytes: u64, carried: Carried) -> Result<Reply, Error> {
    Ok(Reply::Fetched(Fetched { home: place(), bytes, carried }))
}

fn inline(data: &[u8]) -> Result<Reply, Error> {
    fetched(data.len() as u64, Carried::Inline(Bytes(data.to_vec())))
}

fn step(
    client: &mut Client<TestMem>,
    io: &mut Exposing,
    op: &mut Rpc,
) -> Result<Step<Brought>, Error> {
    op.step(client, io)
}

fn asked_in_batch(step: Result<Step<Brought>, Error>) -> Request {
    match step {
        Ok(Step::Need(Need::Batch(LINK, requests))) => requests[0].clone(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_call_goes_to_the_rack_of_the_pages_beside_and_brings_the_place() {
    let (mut client, mut io) = (guessing(), Exposing::default());
    let what = What::Fetch(FetchExtent::Bytes(3), 512);
    let mut op = Rpc::new(&client, addr(FAR, 8), what);
    let request = asked_in_batch(step(&mut client, &mut io, &mut op));
    let into = None;
    let expected =
        Fetch { addr: addr(FAR, 8), extent: FetchExtent::Bytes(3), inline_bytes_max: 512, into };
    assert_eq!(request, Request::Fetch(expected));
    op.on_replies(&mut client, vec![inline(b"abc")]).unwrap();
    let Ok(Step::Done(Brought::Fetched(said))) = step(&mut client, &mut io, &mut op) else {
        panic!("it is done")
    };
    assert_eq!(said.carried, Carried::Inline(Bytes(b"abc".to_vec())));
    assert_eq!(client.home_of(PageId(FAR)), Some(place()));
    assert_eq!(client.guess(addr(FAR, 8)), None, "no call is needed any more");
}

#[test]
fn a_wrong_guess_or_a_lost_connection_is_followed_by_the_sure_way() {
    for refusal in [
        Error::NotMapped { addr: addr(FAR, 0) },
        Error::Moving { addr: addr(FAR, 0), retries: 0 },
        Error::PeerDead { peer: "x".into(), cause: DeathCause::Closed },
        Error::Timeout { peer: "x".into(), waited_ms: 1 },
    ] {
        let (mut client, mut io) = (guessing(), Exposing::default());
        let mut op = Rpc::new(&client, addr(FAR, 0), What::Store(Bytes(vec![1])));
        asked_in_batch(step(&mut client, &mut io, &mut op));
        op.on_replies(&mut client, vec![Err(refusal)]).unwrap();
        let own = step(&mut client, &mut io, &mut op);
        assert!(matches!(own, Ok(Step::Need(Need::Daemon(OWN, Request::Resolve { .. })))));
        op.on_reply(&mut client, Ok(Reply::Homes(vec![]))).unwrap();
        let master = step(&mut client, &mut io, &mut op);
        assert!(matches!(master, Ok(Step::Need(Need::Master(_)))));
        let homes = vec![Resolved::Home(place())];
        op.on_master(&mut client, Ok(MasterAnswer::Homes(homes))).unwrap();
        let there = step(&mut client, &mut io, &mut op);
        assert!(matches!(there, Ok(Step::Need(Need::Daemon(LINK, Request::Store { .. })))));
        op.on_reply(&mut client, Ok(Reply::Stored(place()))).unwrap();
        assert_eq!(step(&mut client, &mut io, &mut op), Ok(Step::Done(Brought::Stored)));
    }
}

#[test]
fn an_answered_call_is_a_use_of_the_page_unless_its_data_are_still_to_be_read() {
    let (mut client, mut io) = (guessing(), Exposing::default());
    client.count_use(true);
    let (fetch, store) = (What::Fetch(FetchExtent::Bytes(3), 512), What::Store(Bytes(vec![1])));
    let later = What::Fetch(FetchExtent::Bytes(1000), 0);
    for (what, reply) in [
        (fetch.clone(), inline(b"abc")),
        (store, Ok(Reply::Stored(place()))),
        (later, fetched(1000, Carried::Not)),
        (fetch, inline(b"abc")),
    ] {
        let mut op = Rpc::without_guess(addr(FAR, 8), what);
        client.install(LINK, &[place()]).unwrap();
        step(&mut client, &mut io, &mut op).unwrap();
        op.on_reply(&mut client, reply).unwrap();
        assert!(matches!(step(&mut client, &mut io, &mut op), Ok(Step::Done(_))));
    }
    let both = [addr(FAR, 0), addr(101, 0)];
    client.forget(PageId(FAR));
    let mut calls = Calls::new(&both, FetchExtent::Bytes(3), 512);
    assert!(matches!(calls.step(&mut client, &mut io), Ok(Step::Need(Need::Batch(LINK, _)))));
    let beside = Fetched { home: home(101, 1, 4, 40), bytes: 3, carried: Carried::Not };
    calls.on_replies(&mut client, vec![inline(b"abc"), Ok(Reply::Fetched(beside))]).unwrap();
    let told = |client: &mut Client<TestMem>| {
        let told = client.take_use();
        let of = told.iter().find(|one| one.page == PageId(FAR)).expect("it was used");
        assert_eq!(told.len(), 1, "{told:?}");
        (of.counts.reads, of.counts.writes)
    };
    // What was forgotten is not told; the call in the batch was answered since.
    assert_eq!(told(&mut client), (1, 0));
    let mut op = Rpc::without_guess(addr(FAR, 8), What::Store(Bytes(vec![1])));
    step(&mut client, &mut io, &mut op).unwrap();
    op.on_reply(&mut client, Ok(Reply::Stored(place()))).unwrap();
    step(&mut client, &mut io, &mut op).unwrap();
    assert_eq!(told(&mut client), (0, 1));
}

#[test]
fn a_page_that_has_moved_is_looked_up_again_and_asked_for_there() {
    let (mut client, mut io) = (guessing(), Exposing::default());
    client.install(LINK, &[place()]).unwrap();
    let mut op = Rpc::new(&client, addr(FAR, 0), What::Fetch(FetchExtent::Bytes(8), 64));
    let first = step(&mut client, &mut io, &mut op);
    assert!(matches!(first, Ok(Step::Need(Need::Daemon(LINK, Request::Fetch(_))))));
    op.on_reply(&mut client, Err(Error::NotMapped { addr: addr(FAR, 0) })).unwrap();
    let own = step(&mut client, &mut io, &mut op);
    assert!(matches!(own, Ok(Step::Need(Need::Daemon(OWN, Request::Resolve { .. })))));
    let here = home(FAR, 0, 5, 50);
    op.on_reply(&mut client, Ok(Reply::Homes(vec![here]))).unwrap();
    let again = step(&mut client, &mut io, &mut op);
    assert!(matches!(again, Ok(Step::Need(Need::Daemon(OWN, Request::Fetch(_))))));
    let carried = Carried::Inline(Bytes(vec![9; 8]));
    let reply = Reply::Fetched(Fetched { home: here, bytes: 8, carried });
    op.on_reply(&mut client, Ok(reply)).unwrap();
    assert!(matches!(step(&mut client, &mut io, &mut op), Ok(Step::Done(_))));
    assert_eq!(client.home_of(PageId(FAR)), Some(here));
}

#[test]
fn written_counts_only_if_all_of_it_has_come() {
    for (come, expected) in [(1000, Carried::Written), (999, Carried::Not), (0, Carried::Not)] {
        let (mut client, mut io) = (guessing(), Exposing { come, ..Exposing::default() });
        let mut op = Rpc::new(&client, addr(FAR, 0), What::FetchInto(1000, 512));
        let Request::Fetch(asked) = asked_in_batch(step(&mut client, &mut io, &mut op)) else {
            panic!("a fetch")
        };
        assert_eq!(asked.into, Some(io.open[0].1));
        op.on_replies(&mut client, vec![fetched(1000, Carried::Written)]).unwrap();
        let Ok(Step::Done(Brought::Fetched(said))) = step(&mut client, &mut io, &mut op) else {
            panic!("it is done")
        };
        assert_eq!(said.carried, expected, "{come} bytes have come");
        assert!(io.open.is_empty());
    }
}

#[test]
fn a_buffer_is_exposed_only_while_its_call_is_under_way() {
    let expose = |mutation| {
        let (_, mut client) = World::without(mutation, vec![]);
        client.add_link(RackId(1), Reach::OneSided(layout())).unwrap();
        client.install(LINK, &[home(100, 1, 2, 20)]).unwrap();
        let mut io = Exposing::default();
        let mut op = Rpc::new(&client, addr(FAR, 0), What::FetchInto(1000, 512));
        asked_in_batch(step(&mut client, &mut io, &mut op));
        assert_eq!(io.open.len(), 1);
        op.let_go(&client, &mut io);
        io.open.len()
    };
    assert_eq!(expose(None), 0);
    assert_eq!(expose(Some(Mutation::KeepExposure)), 1);
    // After a refusal the next call has an exposure of its own.
    let (mut client, mut io) = (guessing(), Exposing::default());
    client.install(LINK, &[place()]).unwrap();
    let mut op = Rpc::new(&client, addr(FAR, 0), What::FetchInto(1000, 0));
    step(&mut client, &mut io, &mut op).unwrap();
    op.on_reply(&mut client, Err(Error::Moving { addr: addr(FAR, 0), retries: 0 })).unwrap();
    step(&mut client, &mut io, &mut op).unwrap();
    assert_eq!((io.open.len(), io.made), (0, 1));
    // Short data needs none, and without room for one the call goes without.
    let mut op = Rpc::new(&guessing(), addr(FAR, 0), What::FetchInto(512, 512));
    asked_in_batch(step(&mut guessing(), &mut io, &mut op));
    io.is_full = true;
    let mut op = Rpc::new(&guessing(), addr(FAR, 0), What::FetchInto(513, 512));
    let Request::Fetch(asked) = asked_in_batch(step(&mut guessing(), &mut io, &mut op)) else {
        panic!("a fetch")
    };
    assert_eq!((asked.into, io.made), (None, 1));
}

#[test]
fn an_answer_that_does_not_fit_is_a_broken_protocol() {
    let other = |home| {
        let carried = Carried::Inline(Bytes(vec![0; 8]));
        Ok(Reply::Fetched(Fetched { home, bytes: 8, carried }))
    };
    let wrong = [
        Ok(Reply::Pong),
        Ok(Reply::Stored(place())),
        inline(&[0; 7]),
        fetched(9, Carried::Not),
        fetched(8, Carried::Inline(Bytes(vec![0; 9]))),
        other(home(FAR + 1, 1, 3, 30)),
        other(home(FAR, 2, 3, 30)),
        other(home(FAR, 1, FRAMES, 30)),
        other(home(FAR, 1, 3, 0)),
    ];
    for reply in wrong {
        let (mut client, mut io) = (guessing(), Exposing::default());
        let mut op = Rpc::new(&client, addr(FAR, 0), What::Fetch(FetchExtent::Bytes(8), 64));
        asked_in_batch(step(&mut client, &mut io, &mut op));
        op.on_replies(&mut client, vec![reply.clone()]).unwrap();
        let said = step(&mut client, &mut io, &mut op);
        assert_eq!(said.unwrap_err().code(), "protocol", "{reply:?}");
    }
    let (mut client, mut io) = (guessing(), Exposing::default());
    let mut op = Rpc::new(&client, addr(FAR, 0), What::Fetch(FetchExtent::Object, 4));
    asked_in_batch(step(&mut client, &mut io, &mut op));
    op.on_replies(&mut client, vec![inline(&[0; 5])]).unwrap();
    assert!(step(&mut client, &mut io, &mut op).is_err(), "more than was wished for");
}

#[test]
fn many_calls_go_in_batches_to_the_racks_that_are_guessed() {
    let (mut client, mut io) = (guessing(), Exposing::default());
    let second = client.add_link(RackId(2), Reach::OneSided(layout())).unwrap();
    let lease = crate::constants::PAGE_ID_LEASE;
    client.install(second, &[home(lease + 1, 2, 1, 10)]).unwrap();
    let near = |n: u64| addr(200 + n, 0);
    let far = |n: u64| addr(lease + 200 + n, 0);
    let unknown = addr(9 * lease, 0);
    let mut addrs = vec![unknown, addr(100, 0)];
    (0..40).for_each(|n| addrs.extend([near(n), far(n)]));
    let mut op = Calls::new(&addrs, FetchExtent::Object, u32::MAX);
    let mut batches = Vec::new();
    let said = loop {
        let step = op.step(&mut client, &mut io).unwrap();
        let (link, requests) = match step {
            Step::Done(said) => break said,
            Step::Need(Need::Batch(link, requests)) => (link, requests),
            other => panic!("{other:?}"),
        };
        batches.push((link, requests.len()));
        let answer = |request: &Request| {
            let Request::Fetch(Fetch { addr: at, inline_bytes_max, .. }) = request else {
                panic!("{request:?}")
            };
            assert_eq!(*inline_bytes_max, INLINE_BYTES_MAX);
            let page = at.0 / PAGE;
            if page % 10 == 7 {
                return Err(Error::NotMapped { addr: *at });
            }
            let home = home(page, link.0, (page % 16) as u32, page);
            let carried = Carried::Inline(Bytes(page.to_le_bytes().to_vec()));
            Ok(Reply::Fetched(Fetched { home, bytes: 8, carried }))
        };
        let replies = requests.iter().map(answer).collect();
        op.on_replies(&mut client, replies).unwrap();
    };
    assert_eq!(batches, [(LINK, 32), (second, 32), (LINK, 8), (second, 8)]);
    assert_eq!((&said[0], &said[1]), (&None, &None), "not known where, and known");
    for (at, said) in addrs.iter().zip(&said).skip(2) {
        let page = at.0 / PAGE;
        assert_eq!(said.is_none(), page % 10 == 7);
        if let Some(said) = said {
            assert_eq!(said.carried, Carried::Inline(Bytes(page.to_le_bytes().to_vec())));
        }
    }
}
