//! Random lives of a rack against the rig's model: several clients, full regions, bad frees,
//! stopped readers, deaths of clients and of the daemon at random effects.

use crate::daemon_world::{PAGE, Rig, kind_of};
use proptest::prelude::*;
use rackpool_core::constants::{CELLS, SLOTS_MAX};
use rackpool_core::daemon::ClientId;
use rackpool_core::layout::AllocationKind;
use rackpool_core::wire::{Reply, Request};
use rackpool_core::{GAddr, seam};

#[derive(Clone, Debug)]
enum Op {
    Join { remote: bool },
    Kill { client: usize },
    KillAtWork { client: usize, bytes: u64 },
    Alloc { client: usize, bytes: u64, owned: bool },
    Together { bytes: u64 },
    Free { client: usize, which: usize },
    AllocInto { client: usize, which: usize, bytes: u64 },
    TogetherInto { which: usize, bytes: u64 },
    FreeFrom { client: usize, which: usize },
    KillAtWord { client: usize, which: usize, bytes: u64, frees: bool },
    BadFree { client: usize, which: usize, inside: bool },
    Add { client: usize, which: usize, n: u64 },
    Crash { effects: u64, loses: bool },
    Stop { which: usize },
    Continue,
}

fn bytes() -> impl Strategy<Value = u64> {
    prop_oneof![8..=64u64, 65..=PAGE / 2, PAGE / 2 + 1..=3 * PAGE]
}

fn op() -> impl Strategy<Value = Op> {
    let index = any::<usize>;
    prop_oneof![
        2 => any::<bool>().prop_map(|remote| Op::Join { remote }),
        1 => index().prop_map(|client| Op::Kill { client }),
        1 => (index(), bytes()).prop_map(|(client, bytes)| Op::KillAtWork { client, bytes }),
        12 => (index(), bytes(), prop::bool::weighted(0.3))
            .prop_map(|(client, bytes, owned)| Op::Alloc { client, bytes, owned }),
        3 => bytes().prop_map(|bytes| Op::Together { bytes }),
        8 => (index(), index()).prop_map(|(client, which)| Op::Free { client, which }),
        5 => (index(), index(), bytes())
            .prop_map(|(client, which, bytes)| Op::AllocInto { client, which, bytes }),
        2 => (index(), bytes()).prop_map(|(which, bytes)| Op::TogetherInto { which, bytes }),
        4 => (index(), index()).prop_map(|(client, which)| Op::FreeFrom { client, which }),
        1 => (index(), index(), bytes(), any::<bool>()).prop_map(
            |(client, which, bytes, frees)| Op::KillAtWord { client, which, bytes, frees }
        ),
        2 => (index(), index(), any::<bool>())
            .prop_map(|(client, which, inside)| Op::BadFree { client, which, inside }),
        4 => (index(), index(), any::<u64>())
            .prop_map(|(client, which, n)| Op::Add { client, which, n }),
        2 => (0..150u64, any::<bool>())
            .prop_map(|(effects, loses)| Op::Crash { effects, loses }),
        1 => index().prop_map(|which| Op::Stop { which }),
        2 => Just(Op::Continue),
    ]
}

fn client(rig: &Rig, index: usize) -> Option<u32> {
    let count = rig.clients.len();
    (count > 0).then(|| *rig.clients.keys().nth(index % count).unwrap())
}

fn allocation(rig: &Rig, index: usize) -> Option<(GAddr, u64)> {
    let count = rig.live.len();
    let nth = || rig.live.iter().nth(index % count).unwrap();
    (count > 0).then(|| (GAddr(*nth().0), nth().1.bytes))
}

/// A word that names a live allocation, and that one's bytes.
fn named(rig: &Rig, index: usize) -> Option<(GAddr, u64)> {
    let names = |(word, value): (&u64, &u64)| {
        let holds = rig.live.contains_key(word) && word != value;
        let live = rig.live.get(value).filter(|_| holds)?;
        Some((GAddr(*word), live.bytes))
    };
    let all: Vec<_> = rig.words.iter().filter_map(names).collect();
    (!all.is_empty()).then(|| all[index % all.len()])
}

const STOPPED_CELL: usize = (SLOTS_MAX * CELLS - 1) as usize;

fn play(rig: &mut Rig, op: Op, name: u32) -> Option<()> {
    match op {
        Op::Join { .. } if rig.clients.len() > 5 => {}
        Op::Join { remote: true } => rig.join_remote(name),
        Op::Join { remote: false } => rig.join(name),
        Op::Kill { client: c } => rig.kill(client(rig, c)?),
        Op::KillAtWork { client: c, bytes } => {
            let name = client(rig, c)?;
            if matches!(rig.clients[&name].id, ClientId::Slot(_)) {
                rig.submit(name, Request::Alloc { bytes, kind: AllocationKind::User });
                rig.kill(name);
            }
        }
        Op::Alloc { client: c, bytes, owned } => {
            let name = client(rig, c)?;
            let reply = rig.ask(name, Request::Alloc { bytes, kind: kind_of(owned) });
            let free = rig.daemon.as_ref().unwrap().frames_free();
            match reply {
                Ok(Reply::Allocated { .. }) => {}
                Err(error) if error.code() == "full" => {
                    assert!(u64::from(free) * PAGE < bytes.max(PAGE) + 3 * PAGE, "{error}");
                }
                other => panic!("{other:?}"),
            }
        }
        Op::Together { bytes } => {
            let names: Vec<_> = rig.clients.keys().copied().collect();
            for name in names {
                rig.submit(name, Request::Alloc { bytes, kind: AllocationKind::User });
            }
        }
        Op::Free { client: c, which } => {
            let (addr, bytes) = allocation(rig, which)?;
            rig.free(client(rig, c)?, addr, bytes);
        }
        Op::AllocInto { .. }
        | Op::TogetherInto { .. }
        | Op::FreeFrom { .. }
        | Op::KillAtWord { .. } => play_word(rig, op)?,
        Op::BadFree { client: c, which, inside } => {
            let (addr, bytes) = allocation(rig, which)?;
            let (addr, bytes) =
                if inside { (GAddr(addr.0 + 8), bytes) } else { (addr, bytes + 2 * PAGE) };
            let reply = rig.ask(client(rig, c)?, Request::Free { addr, bytes });
            assert_eq!(reply.unwrap_err().code(), "bad-free");
        }
        Op::Add { client: c, which, n } => {
            let (addr, _) = allocation(rig, which)?;
            rig.ask(client(rig, c)?, Request::FetchAdd { addr, n }).ok();
        }
        Op::Crash { effects, loses } => {
            rig.loses = loses;
            rig.world.fuse.arm(effects);
        }
        Op::Stop { which } => {
            let (addr, _) = allocation(rig, which)?;
            rig.world.cells[STOPPED_CELL] = rig.world.offset_of(addr) / PAGE + 1;
        }
        Op::Continue => rig.world.cells[STOPPED_CELL] = 0,
    }
    rig.settle();
    rig.verify();
    Some(())
}

/// The operations about words that name allocations.
fn play_word(rig: &mut Rig, op: Op) -> Option<()> {
    match op {
        Op::AllocInto { client: c, which, bytes } => {
            let (word, _) = allocation(rig, which)?;
            let was = rig.words[&word.0];
            match rig.ask(client(rig, c)?, Request::AllocInto { word, bytes }) {
                Ok(Reply::Allocated { .. }) => assert_eq!(was, 0),
                Err(error) if error.code() == "occupied" => assert_ne!(was, 0),
                Err(error) => assert_eq!(error.code(), "full"),
                Ok(other) => panic!("{other:?}"),
            }
        }
        Op::TogetherInto { which, bytes } => {
            let (word, _) = allocation(rig, which)?;
            let names: Vec<_> = rig.clients.keys().copied().collect();
            for name in names {
                rig.submit(name, Request::AllocInto { word, bytes });
            }
        }
        Op::FreeFrom { client: c, which } => {
            let (word, bytes) = named(rig, which)?;
            let reply = rig.ask(client(rig, c)?, Request::FreeFrom { word, bytes });
            assert_eq!(reply, Ok(Reply::Freed), "{word}");
        }
        Op::KillAtWord { client: c, which, bytes, frees } => {
            let name = client(rig, c)?;
            let request = match frees {
                true => named(rig, which).map(|(word, bytes)| Request::FreeFrom { word, bytes })?,
                false => Request::AllocInto { word: allocation(rig, which)?.0, bytes },
            };
            // What the word lies in must outlive its session for the model to read it.
            let (Request::FreeFrom { word, .. } | Request::AllocInto { word, .. }) = request else {
                unreachable!("it is one of the two")
            };
            let owned = rig.live[&word.0].owner == Some(rig.clients[&name].session);
            if matches!(rig.clients[&name].id, ClientId::Slot(_)) && !owned {
                rig.submit(name, request);
                rig.kill(name);
            }
        }
        other => unreachable!("{other:?}"),
    }
    Some(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn random_lives_agree_with_the_model_and_leave_nothing(
        frames in 6u32..20,
        ops in prop::collection::vec(op(), 1..80),
    ) {
        let mut rig = Rig::new(frames);
        rig.join(0);
        for (index, op) in ops.into_iter().enumerate() {
            play(&mut rig, op, index as u32 + 1);
        }
        rig.world.fuse.disarm();
        rig.world.cells[STOPPED_CELL] = 0;
        rig.finish();
    }

    /// Rare branches change costs and orders, never what the model says.
    #[test]
    fn random_lives_with_rare_branches_forced_agree_with_the_model(
        frames in 6u32..20,
        dice in 1..u64::MAX,
        ops in prop::collection::vec(op(), 1..80),
    ) {
        let mut rig = Rig::new(frames);
        let answers = &rig.world.fuse.answers;
        answers.dice.set(dice);
        // `Busy` and sessions that are forgotten, which this model does not know.
        let unknown = [seam::Rare::QuarantineFull, seam::Rare::RemoteTableFull];
        answers.never.borrow_mut().extend(unknown);
        rig.join(0);
        for (index, op) in ops.into_iter().enumerate() {
            play(&mut rig, op, index as u32 + 1);
        }
        rig.world.fuse.disarm();
        rig.world.cells[STOPPED_CELL] = 0;
        rig.finish();
    }
}
