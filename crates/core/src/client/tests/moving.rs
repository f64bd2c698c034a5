//! What clients do when a page that they use moves: which peers they ask, how often, and what they
//! believe.

use super::*;
use crate::member::MemberCall;

/// Short names of what was asked, in order.
pub(super) type Log = Vec<String>;

pub(super) fn name(need: &Need) -> String {
    match need {
        Need::Link(rack) => format!("link {rack}"),
        Need::Master(MasterCall::Resolve { .. }) => "master resolve".into(),
        Need::Master(MasterCall::BeginMove { to, .. }) => format!("begin {to}"),
        Need::Master(MasterCall::PickRack { .. }) => "pick".into(),
        Need::Master(MasterCall::Member(MemberCall::Leave(_))) => "leave".into(),
        Need::Master(MasterCall::Member(MemberCall::Load)) => "load".into(),
        Need::Daemon(link, request) => {
            let what = match request {
                Request::Resolve { .. } => "resolve",
                Request::Free { .. } => "free",
                Request::AllocInto { .. } => "alloc-into",
                Request::FreeFrom { .. } => "free-from",
                Request::FreeApart { .. } => "free-apart",
                Request::CheckFree { .. } => "check",
                Request::Lock { .. } => "lock",
                Request::MoveIn { .. } => "in",
                Request::MoveOut { .. } => "out",
                Request::MoveCommit { .. } => "commit",
                Request::MoveSettle { .. } => "settle",
                Request::NextMove(_) => "next",
                Request::DecideMove(_) => "decide",
                other => panic!("{other:?}"),
            };
            format!("{what} {}", link.0)
        }
        other => panic!("{other:?}"),
    }
}

/// Runs an operation to its end against a script; what was asked.
pub(super) fn drive<O: Operation<TestMem>>(
    world: &mut World,
    client: &mut Client<TestMem>,
    op: &mut O,
    script: &mut dyn FnMut(&mut World, &Need) -> Said,
) -> (crate::Result<O::Output>, Log) {
    let mut log = Log::new();
    let result = ask(world, client, op, &mut |world, client, need| match need {
        Need::Completions => Said::Completed(world.complete()),
        Need::Link(rack) => {
            log.push(name(need));
            world.down = false;
            client.add_link(*rack, Reach::OneSided(world.remote.layout)).unwrap();
            Said::Linked
        }
        need => {
            log.push(name(need));
            script(world, need)
        }
    });
    (result, log)
}

pub(super) fn names(homes: &[PageHome]) -> Said {
    Said::Master(Ok(MasterAnswer::Homes(homes.iter().copied().map(Resolved::Home).collect())))
}

pub(super) fn knows(homes: &[PageHome]) -> Said {
    Said::Daemon(Ok(Reply::Homes(homes.to_vec())))
}

fn refuses(error: Error) -> Said {
    Said::Daemon(Err(error))
}

/// A client with a link to rack 1, that knows `at`.
fn knowing(at: PageHome, buffers: Vec<Vec<u8>>) -> (World, Client<TestMem>) {
    let (world, mut client) = World::new(buffers);
    let link = client.add_link(RackId(1), Reach::OneSided(layout())).unwrap();
    client.install(if at.rack == RackId(0) { OWN } else { link }, &[at]).unwrap();
    (world, client)
}

fn open(view: &RackView<TestMem>, at: PageHome, value: u64) {
    view.table.store(table_word(at.frame), at.generation.0);
    view.pages.store(u64::from(at.frame.0) * PAGE, value);
}

const PAGE_7: u64 = 7;

fn read(world: &mut World, client: &mut Client<TestMem>, log: &mut Log, mut script: Script) -> u64 {
    let mut tables = TransferTables::default();
    let pieces = [Piece { addr: addr(PAGE_7, 0), bytes: 8 }];
    let mut op = Transfer::new(&mut tables, 1, Access::Read, &pieces);
    let (result, asked) = drive(world, client, &mut op, &mut script);
    result.unwrap();
    *log = asked;
    u64::from_le_bytes(world.buffers[0][..8].try_into().unwrap())
}

type Script = Box<dyn FnMut(&mut World, &Need) -> Said>;

#[test]
fn a_page_that_is_shut_in_another_rack_is_waited_for_at_its_home() {
    let old = home(PAGE_7, 1, 3, 30);
    for (new, expected) in [
        // It stays: the old home opens it under another generation, and says so.
        (home(PAGE_7, 1, 3, 31), vec!["resolve 0", "master resolve", "resolve 1"]),
        // It goes: the old home has it no more, and the master knows.
        (
            home(PAGE_7, 0, 5, 50),
            vec!["resolve 0", "master resolve", "resolve 1", "master resolve", "resolve 0"],
        ),
    ] {
        let (mut world, mut client) = knowing(old, vec![vec![0; 8]]);
        open(&world.remote, PageHome { generation: Generation(99), ..old }, 1);
        let mut settled = false;
        let script: Script = Box::new(move |world, need| match need {
            Need::Daemon(OWN, _) if settled && new.rack == RackId(0) => knows(&[new]),
            Need::Daemon(OWN, _) => knows(&[]),
            Need::Daemon(..) => {
                settled = true;
                let view = if new.rack == RackId(0) { &world.own } else { &world.remote };
                open(view, new, 42);
                knows(if new.rack == RackId(1) { std::slice::from_ref(&new) } else { &[] })
            }
            _ => names(&[if settled { new } else { old }]),
        });
        let mut log = Log::new();
        assert_eq!(read(&mut world, &mut client, &mut log, script), 42);
        assert_eq!(log, expected);
        assert_eq!(client.home_of(PageId(PAGE_7)), Some(new));
    }
}

#[test]
fn a_page_that_has_left_the_own_rack_is_found_without_asking_its_new_home() {
    let (old, new) = (home(PAGE_7, 0, 3, 30), home(PAGE_7, 1, 4, 40));
    let (mut world, mut client) = knowing(old, vec![vec![0; 8]]);
    open(&world.remote, new, 42);
    let script: Script = Box::new(move |_, need| match need {
        Need::Daemon(OWN, _) => knows(&[]),
        Need::Master(_) => names(&[new]),
        other => panic!("{other:?}"),
    });
    let mut log = Log::new();
    assert_eq!(read(&mut world, &mut client, &mut log, script), 42);
    assert_eq!(log, ["resolve 0", "master resolve"]);
}

#[test]
fn an_atomic_waits_at_the_home_of_a_shut_page_and_gives_up_in_the_end() {
    let old = home(PAGE_7, 1, 3, 30);
    let (mut world, mut client) = knowing(old, vec![]);
    let new = home(PAGE_7, 1, 3, 31);
    let mut op = Atomic::new(addr(PAGE_7, 0), AtomicOp::FetchAdd { n: 5 }, 9);
    let (result, log) = drive(&mut world, &mut client, &mut op, &mut |world, need| match need {
        Need::Daemon(OWN, _) => knows(&[]),
        Need::Daemon(..) => {
            open(&world.remote, new, 42);
            knows(&[new])
        }
        _ => names(&[old]),
    });
    assert_eq!(result, Ok(42));
    assert_eq!(log, ["resolve 0", "master resolve", "resolve 1"]);

    // A home with a key that is never right.
    let (mut world, mut client) = knowing(old, vec![]);
    let mut op = Atomic::new(addr(PAGE_7, 0), AtomicOp::FetchAdd { n: 5 }, 9);
    let (result, log) = drive(&mut world, &mut client, &mut op, &mut |_, need| match need {
        Need::Daemon(OWN, _) => knows(&[]),
        Need::Daemon(..) => knows(&[old]),
        _ => names(&[old]),
    });
    assert_eq!(result.unwrap_err().code(), "moving");
    assert_eq!(log.len(), 3 * crate::constants::STALE_RETRIES_MAX as usize);
}

fn not_mapped() -> Error {
    Error::NotMapped { addr: addr(PAGE_7, 64) }
}

fn bad_free() -> Error {
    Error::BadFree { addr: addr(PAGE_7, 64), bytes: 64, reason: "a script says so".into() }
}

fn moving() -> Error {
    Error::Moving { addr: addr(PAGE_7, 64), retries: 0 }
}

/// Frees an object in a page that the client believes to be at `old`, while it is at `new`.
fn free_from(old: PageHome, new: PageHome, refusal: &Error) -> (crate::Result<()>, Log) {
    let (mut world, mut client) = knowing(old, vec![]);
    let mut op = Free::new(addr(PAGE_7, 64), 64);
    let mut asked = 0;
    drive(&mut world, &mut client, &mut op, &mut |_, need| match need {
        Need::Daemon(_, Request::Free { .. }) => {
            asked += 1;
            let here = client_rack(need) == new.rack;
            if here && (old != new || asked > 1) {
                Said::Daemon(Ok(Reply::Freed))
            } else {
                refuses(refusal.clone())
            }
        }
        Need::Daemon(..) if client_rack(need) == new.rack => knows(&[new]),
        Need::Daemon(..) => knows(&[]),
        _ => names(&[new]),
    })
}

fn client_rack(need: &Need) -> RackId {
    let Need::Daemon(link, _) = need else { panic!("{need:?}") };
    RackId(link.0)
}

#[test]
fn a_request_follows_its_page_to_the_new_home() {
    let (own, other) = (home(PAGE_7, 0, 3, 30), home(PAGE_7, 1, 4, 40));
    for refusal in [not_mapped(), bad_free(), moving()] {
        let (result, log) = free_from(own, other, &refusal);
        assert_eq!(result, Ok(()), "{refusal}");
        assert_eq!(log[..4], ["free 0", "resolve 0", "master resolve", "free 1"]);
        let (result, log) = free_from(other, own, &refusal);
        assert_eq!(result, Ok(()), "{refusal}");
        assert_eq!(log[..3], ["free 1", "resolve 0", "free 0"]);
    }
}

#[test]
fn a_refusal_by_the_home_itself_is_final_unless_the_page_was_shut() {
    for (at, found) in [
        (home(PAGE_7, 0, 3, 30), vec!["resolve 0"]),
        (home(PAGE_7, 1, 3, 30), vec!["resolve 0", "master resolve", "resolve 1"]),
    ] {
        let free = format!("free {}", at.rack);
        for refusal in [not_mapped(), bad_free()] {
            let (result, log) = free_from(at, at, &refusal);
            assert_eq!(result, Err(refusal));
            assert_eq!(log[0], free);
            assert_eq!(log[1..], found);
        }
        let (result, log) = free_from(at, at, &moving());
        assert_eq!(result, Ok(()), "it is asked again when it is open");
        assert_eq!(log.last(), Some(&free));
        assert_eq!(log[1..log.len() - 1], found);
    }
}

#[test]
fn what_was_freed_elsewhere_is_told_as_its_last_home_said() {
    for (refusal, told) in
        [(bad_free(), "bad-free"), (not_mapped(), "not-mapped"), (moving(), "not-mapped")]
    {
        let (mut world, mut client) = knowing(home(PAGE_7, 0, 3, 30), vec![]);
        let mut op = Free::new(addr(PAGE_7, 64), 64);
        let (result, log) = drive(&mut world, &mut client, &mut op, &mut |_, need| match need {
            Need::Daemon(_, Request::Free { .. }) => refuses(refusal.clone()),
            Need::Daemon(..) => knows(&[]),
            _ => Said::Master(Ok(MasterAnswer::Homes(vec![Resolved::Unmapped]))),
        });
        assert_eq!(result.unwrap_err().code(), told);
        assert_eq!(log, ["free 0", "resolve 0", "master resolve"]);
    }
}

#[test]
fn a_page_that_moves_before_each_request_answers_moving_in_the_end() {
    let (mut world, mut client) = knowing(home(PAGE_7, 0, 3, 30), vec![]);
    let mut generation = 30;
    let mut op = AtWord::alloc(addr(PAGE_7, 64), 64);
    let (result, log) = drive(&mut world, &mut client, &mut op, &mut |_, need| match need {
        Need::Daemon(_, Request::AllocInto { .. }) => refuses(not_mapped()),
        Need::Daemon(..) => {
            generation += 1;
            knows(&[home(PAGE_7, 0, 3, generation)])
        }
        other => panic!("{other:?}"),
    });
    assert_eq!(result.unwrap_err().code(), "moving");
    let asked = log.iter().filter(|one| one.starts_with("alloc-into")).count();
    assert_eq!(asked, 1 + crate::constants::STALE_RETRIES_MAX as usize);
}

#[test]
fn a_lock_is_asked_for_at_the_new_home_and_its_link_is_told() {
    let (own, other) = (home(PAGE_7, 0, 3, 30), home(PAGE_7, 1, 4, 40));
    let (mut world, mut client) = knowing(own, vec![]);
    let lock = Request::Lock { addr: addr(PAGE_7, 64), lines: 1, write: true, wait_ms: 9 };
    let mut op = AtHome::new(addr(PAGE_7, 64), lock);
    let (result, log) = drive(&mut world, &mut client, &mut op, &mut |_, need| match need {
        Need::Daemon(OWN, Request::Lock { .. }) => refuses(not_mapped()),
        Need::Daemon(_, Request::Lock { .. }) => Said::Daemon(Ok(Reply::Locked { token: 8 })),
        Need::Daemon(..) => knows(&[]),
        _ => names(&[other]),
    });
    assert_eq!(result, Ok((LinkId(1), Reply::Locked { token: 8 })));
    assert_eq!(op.link(), Some(LinkId(1)));
    assert_eq!(log, ["lock 0", "resolve 0", "master resolve", "lock 1"]);
}

#[test]
fn what_a_word_names_elsewhere_is_asked_of_its_home_before_the_word_is_cleared() {
    let (own, other) = (home(PAGE_7, 0, 3, 30), home(PAGE_7 + 1, 1, 4, 40));
    let (word, memory) = (addr(PAGE_7, 64), addr(PAGE_7 + 1, 128));
    for known in [true, false] {
        let (mut world, mut client) = knowing(own, vec![]);
        let mut op = AtWord::free(word, 64);
        let (result, log) = drive(&mut world, &mut client, &mut op, &mut |_, need| match need {
            Need::Daemon(OWN, Request::FreeFrom { .. }) => {
                Said::Daemon(Ok(Reply::Apart { addr: memory }))
            }
            Need::Daemon(OWN, Request::FreeApart { addr, bytes: 64, .. }) if *addr == memory => {
                Said::Daemon(Ok(Reply::Freed))
            }
            Need::Daemon(LinkId(1), Request::CheckFree { bytes: 64, .. }) if known => {
                Said::Daemon(Ok(Reply::Known))
            }
            Need::Daemon(LinkId(1), Request::CheckFree { addr, bytes }) => {
                let (addr, bytes, reason) = (*addr, *bytes, "it is not".into());
                refuses(Error::BadFree { addr, bytes, reason })
            }
            Need::Daemon(LinkId(1), Request::Resolve { .. }) => knows(&[other]),
            Need::Daemon(..) => knows(&[]),
            _ => names(&[other]),
        });
        let way = ["free-from 0", "resolve 0", "master resolve", "check 1"];
        if known {
            assert_eq!(result, Ok(GAddr::NULL));
            assert_eq!(log, [&way[..], &["free-apart 0"]].concat());
        } else {
            assert_eq!(result.unwrap_err().code(), "bad-free");
            assert_eq!(log[..4], way, "and nothing was freed");
            assert!(!log.iter().any(|one| one.starts_with("free-apart")), "{log:?}");
        }
    }
}
