//! Pages that leave the rig's rack and come back: the other rack and the mover are played.

use super::{PAGE, Rig};
use rackpool_core::wire::{PageHome, PageMetadata, Reply, Request};
use rackpool_core::{Error, FrameIndex, GAddr, Generation, PageId, RackId, Result};

/// The rack that the test plays.
pub const ELSEWHERE: RackId = RackId(77);

pub fn home_of(rig: &Rig, addr: GAddr) -> PageHome {
    let page = rig.world.layout.pages.page(addr);
    rig.world.master.pages[&page.0]
}

pub fn move_out(rig: &mut Rig, mover: u32, addr: GAddr) -> Result<Reply> {
    let PageHome { page, generation, .. } = home_of(rig, addr);
    rig.ask(mover, Request::MoveOut { page, generation })
}

pub fn settle(rig: &mut Rig, mover: u32, page: PageId) -> Result<Reply> {
    rig.ask(mover, Request::MoveSettle { page })
}

pub fn words_of_frame(rig: &Rig, frame: FrameIndex) -> Vec<u64> {
    let first = rig.world.layout.frame_offset(frame);
    (first..first + PAGE).step_by(8).map(|at| rig.world.pages_mem().peek(at)).collect()
}

/// A page that the other rack has.
pub struct Away {
    pub home: PageHome,
    pub keep: PageMetadata,
    pub words: Vec<u64>,
}

/// Moves the page of `addr` to the other rack, however often the daemon dies meanwhile.
pub fn send_away(rig: &mut Rig, mover: u32, addr: GAddr) -> Away {
    loop {
        let from = home_of(rig, addr);
        let page = from.page;
        let Ok(Reply::Shut { keep, .. }) = move_out(rig, mover, addr) else {
            settle(rig, mover, page).ok();
            rig.turn();
            continue;
        };
        let words = words_of_frame(rig, from.frame);
        let generation = Generation(from.generation.0 + 1_000_000);
        let home = PageHome { rack: ELSEWHERE, frame: FrameIndex(3), generation, ..from };
        rig.world.master.swap(from, home);
        let settled = settle(rig, mover, page).unwrap();
        let here = home_of(rig, addr).rack != ELSEWHERE;
        assert_eq!(settled, Reply::Settled { here });
        if !here {
            return Away { home, keep, words };
        }
    }
}

pub fn bring_back(rig: &mut Rig, mover: u32, away: &Away) {
    let page = away.home.page;
    loop {
        let Ok(Reply::Room { frame, generation }) = rig.ask(mover, Request::MoveIn { page }) else {
            settle(rig, mover, page).unwrap();
            rig.turn();
            continue;
        };
        if rig.world.table_word(frame) != generation.0 {
            // The daemon died after the answer: no mover may write under the old key.
            settle(rig, mover, page).unwrap();
            rig.turn();
            continue;
        }
        let first = rig.world.layout.frame_offset(frame);
        for (at, word) in (first..).step_by(8).zip(&away.words) {
            rig.world.pages_mem().poke(at, *word);
        }
        let (from, keep) = (away.home, away.keep.clone());
        match rig.ask(mover, Request::MoveCommit { from, generation, keep }) {
            Ok(Reply::Moved(home)) => {
                assert_eq!(home, rig.world.master.pages[&page.0]);
                return;
            }
            Ok(other) => panic!("{other:?}"),
            // It died and had to ask the directory: perhaps the page had come.
            Err(_) if rig.world.master.pages[&page.0].rack != ELSEWHERE => return,
            Err(Error::Stays { .. }) => rig.turn(),
            Err(other) => panic!("{other:?}"),
        }
    }
}
