//! Calls for data: where they go, what of an answer is believed, and that no buffer stays exposed.

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

type Script<'s> = &'s mut dyn FnMut(&mut Exposing, &Need) -> Said;

fn call(
    client: &mut Client<TestMem>,
    io: &mut Exposing,
    op: &mut Rpc,
    say: Script<'_>,
) -> Result<Brought, Error> {
    ask(io, client, op, &mut |io, _, need| say(io, need))
}

/// Runs a call that is answered at the first question.
fn call_once(
    client: &mut Client<TestMem>,
    io: &mut Exposing,
    op: &mut Rpc,
    reply: Result<Reply, Error>,
) -> Result<Brought, Error> {
    call(client, io, op, &mut |_, need| match need {
        Need::Batch(LINK, requests) if requests.len() == 1 => Said::Batch(vec![reply.clone()]),
        Need::Daemon(LINK, Request::Fetch(_) | Request::Store { .. }) => {
            Said::Daemon(reply.clone())
        }
        other => panic!("{other:?}"),
    })
}

fn brought(said: Result<Brought, Error>) -> Fetched {
    match said {
        Ok(Brought::Fetched(fetched)) => fetched,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_call_goes_to_the_rack_of_the_pages_beside_and_brings_the_place() {
    let (mut client, mut io) = (guessing(), Exposing::default());
    let what = What::Fetch(FetchExtent::Bytes(3), 512);
    let mut op = Rpc::new(&client, addr(FAR, 8), what);
    let into = None;
    let expected =
        Fetch { addr: addr(FAR, 8), extent: FetchExtent::Bytes(3), inline_bytes_max: 512, into };
    let said = call(&mut client, &mut io, &mut op, &mut |_, need| {
        assert_eq!(*need, Need::Batch(LINK, vec![Request::Fetch(expected)]));
        Said::Batch(vec![inline(b"abc")])
    });
    assert_eq!(brought(said).carried, Carried::Inline(Bytes(b"abc".to_vec())));
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
        let mut asked = vec![];
        let said = call(&mut client, &mut io, &mut op, &mut |_, need| {
            let (name, said) = match need {
                Need::Batch(LINK, _) => ("guess", Said::Batch(vec![Err(refusal.clone())])),
                Need::Daemon(OWN, Request::Resolve { .. }) => {
                    ("own", Said::Daemon(Ok(Reply::Homes(vec![]))))
                }
                Need::Master(_) => {
                    let homes = vec![Resolved::Home(place())];
                    ("master", Said::Master(Ok(MasterAnswer::Homes(homes))))
                }
                Need::Daemon(LINK, Request::Store { .. }) => {
                    ("there", Said::Daemon(Ok(Reply::Stored(place()))))
                }
                other => panic!("{other:?}"),
            };
            asked.push(name);
            said
        });
        assert_eq!(said, Ok(Brought::Stored));
        assert_eq!(asked, ["guess", "own", "master", "there"]);
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
        call_once(&mut client, &mut io, &mut op, reply).unwrap();
    }
    let both = [addr(FAR, 0), addr(101, 0)];
    client.forget(PageId(FAR));
    let mut calls = Calls::new(&both, FetchExtent::Bytes(3), 512);
    let beside = Fetched { home: home(101, 1, 4, 40), bytes: 3, carried: Carried::Not };
    ask(&mut io, &mut client, &mut calls, &mut |_, _, need| match need {
        Need::Batch(LINK, _) => {
            Said::Batch(vec![inline(b"abc"), Ok(Reply::Fetched(beside.clone()))])
        }
        other => panic!("{other:?}"),
    })
    .unwrap();
    let told = |client: &mut Client<TestMem>| {
        let told = client.take_use();
        let of = told.iter().find(|one| one.page == PageId(FAR)).expect("it was used");
        assert_eq!(told.len(), 1, "{told:?}");
        (of.counts.reads, of.counts.writes)
    };
    // What was forgotten is not told; the call in the batch was answered since.
    assert_eq!(told(&mut client), (1, 0));
    let mut op = Rpc::without_guess(addr(FAR, 8), What::Store(Bytes(vec![1])));
    call_once(&mut client, &mut io, &mut op, Ok(Reply::Stored(place()))).unwrap();
    assert_eq!(told(&mut client), (0, 1));
}

#[test]
fn a_page_that_has_moved_is_looked_up_again_and_asked_for_there() {
    let (mut client, mut io) = (guessing(), Exposing::default());
    client.install(LINK, &[place()]).unwrap();
    let mut op = Rpc::new(&client, addr(FAR, 0), What::Fetch(FetchExtent::Bytes(8), 64));
    let here = home(FAR, 0, 5, 50);
    let mut asked = vec![];
    let said = call(&mut client, &mut io, &mut op, &mut |_, need| {
        let (name, reply) = match need {
            Need::Daemon(LINK, Request::Fetch(_)) => {
                ("there", Err(Error::NotMapped { addr: addr(FAR, 0) }))
            }
            Need::Daemon(OWN, Request::Resolve { .. }) => ("own", Ok(Reply::Homes(vec![here]))),
            Need::Daemon(OWN, Request::Fetch(_)) => {
                let carried = Carried::Inline(Bytes(vec![9; 8]));
                ("here", Ok(Reply::Fetched(Fetched { home: here, bytes: 8, carried })))
            }
            other => panic!("{other:?}"),
        };
        asked.push(name);
        Said::Daemon(reply)
    });
    brought(said);
    assert_eq!(asked, ["there", "own", "here"]);
    assert_eq!(client.home_of(PageId(FAR)), Some(here));
}

#[test]
fn written_counts_only_if_all_of_it_has_come() {
    for (come, expected) in [(1000, Carried::Written), (999, Carried::Not), (0, Carried::Not)] {
        let (mut client, mut io) = (guessing(), Exposing { come, ..Exposing::default() });
        let mut op = Rpc::new(&client, addr(FAR, 0), What::FetchInto(1000, 512));
        let said = call(&mut client, &mut io, &mut op, &mut |io, need| match need {
            Need::Batch(LINK, requests) => {
                let Request::Fetch(asked) = &requests[0] else { panic!("a fetch") };
                assert_eq!(asked.into, Some(io.open[0].1));
                Said::Batch(vec![fetched(1000, Carried::Written)])
            }
            other => panic!("{other:?}"),
        });
        assert_eq!(brought(said).carried, expected, "{come} bytes have come");
        assert!(io.open.is_empty());
    }
}

#[test]
fn a_buffer_is_exposed_only_while_its_call_is_under_way() {
    let expose = |mutation| {
        let (_, mut client) = World::without(mutation, vec![]);
        client.add_link(RackId(1), Reach::OneSided(layout())).unwrap();
        client.install(LINK, &[place()]).unwrap();
        let mut io = Exposing::default();
        let mut op = Rpc::new(&client, addr(FAR, 0), What::FetchInto(1000, 512));
        call(&mut client, &mut io, &mut op, &mut |io, _| {
            assert_eq!(io.open.len(), 1);
            Said::Fails(Error::Timeout { peer: "it".into(), waited_ms: 1 })
        })
        .unwrap_err();
        io.open.len()
    };
    assert_eq!(expose(None), 0);
    assert_eq!(expose(Some(Mutation::KeepExposure)), 1);
    // After a refusal the next call has an exposure of its own.
    let here = home(FAR, 0, 5, 50);
    let (mut client, mut io) = (guessing(), Exposing::default());
    client.install(LINK, &[place()]).unwrap();
    let mut op = Rpc::new(&client, addr(FAR, 0), What::FetchInto(1000, 0));
    call(&mut client, &mut io, &mut op, &mut |io, need| match need {
        Need::Daemon(LINK, Request::Fetch(_)) if io.made == 1 => {
            Said::Daemon(Err(Error::Moving { addr: addr(FAR, 0), retries: 0 }))
        }
        Need::Daemon(OWN, Request::Resolve { .. }) => {
            assert_eq!((io.open.len(), io.made), (0, 1));
            Said::Daemon(Ok(Reply::Homes(vec![here])))
        }
        _ => {
            assert_eq!((io.open.len(), io.made), (1, 2));
            let carried = Carried::Not;
            Said::Daemon(Ok(Reply::Fetched(Fetched { home: here, bytes: 1000, carried })))
        }
    })
    .unwrap();
    assert_eq!((io.open.len(), io.made), (0, 2));
    // Short data needs none, and without room for one the call goes without.
    for (bytes, is_full) in [(512, false), (513, true)] {
        let mut io = Exposing { is_full, ..Exposing::default() };
        let mut op = Rpc::new(&guessing(), addr(FAR, 0), What::FetchInto(bytes, 512));
        let said = call(&mut guessing(), &mut io, &mut op, &mut |_, need| match need {
            Need::Batch(LINK, requests) => {
                let Request::Fetch(asked) = &requests[0] else { panic!("a fetch") };
                assert_eq!(asked.into, None);
                Said::Batch(vec![fetched(bytes, Carried::Not)])
            }
            other => panic!("{other:?}"),
        });
        assert_eq!(brought(said).carried, Carried::Not);
        assert_eq!(io.made, 0);
    }
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
        let said = call_once(&mut client, &mut io, &mut op, reply.clone());
        assert_eq!(said.unwrap_err().code(), "protocol", "{reply:?}");
    }
    let (mut client, mut io) = (guessing(), Exposing::default());
    let mut op = Rpc::new(&client, addr(FAR, 0), What::Fetch(FetchExtent::Object, 4));
    let said = call_once(&mut client, &mut io, &mut op, inline(&[0; 5]));
    assert!(said.is_err(), "more than was wished for");
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
    let said = ask(&mut io, &mut client, &mut op, &mut |_, _, need| {
        let Need::Batch(link, requests) = need else { panic!("{need:?}") };
        batches.push((*link, requests.len()));
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
        Said::Batch(requests.iter().map(answer).collect())
    })
    .unwrap();
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
