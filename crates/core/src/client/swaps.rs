//! Compare-and-swaps of many words at once: mapped ones by our own processor, those of other racks
//! all under way together, under one doorbell a rack. What does not go that way (a page that moved,
//! is shared or not known yet, a full queue) is left to an [`Atomic`] of its own after the others.
//!
//! As one by one, each is executed once or not at all, and none is posted again unless it surely
//! was not executed. They have no order among each other.

use super::transfer::BATCH_MAX;
use super::{Access, Atomic, AtomicOp, Client, Context, Io, LinkId, Miss, Operation};
use crate::addr::GAddr;
use crate::constants::FABRIC_OUTSTANDING_MAX;
use crate::error::{Error, Result};
use crate::seam::{Mem, Race, RemoteAddr, Verb, WorkRequest, WorkStatus};

/// A compare-and-swap of one word, among many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WordSwap {
    /// The word, aligned to 8 bytes.
    pub addr: GAddr,
    pub expected: u64,
    pub new: u64,
}

#[derive(Clone, Debug)]
enum SwapState {
    Waiting,
    Posted,
    /// With the value that was there, or why that is not known.
    Ended(Result<u64>),
}

/// Compare-and-swaps under way. How each ended is asked with [`Swaps::into_olds`].
#[derive(Debug)]
pub struct Swaps<'s> {
    swaps: &'s [WordSwap],
    first_id: u64,
    states: Vec<SwapState>,
}

/// A compare-and-swap that goes through the fabric.
#[derive(Clone, Copy, Debug)]
struct RemoteSwap {
    link: LinkId,
    index: usize,
    at: RemoteAddr,
}

impl<'s> Swaps<'s> {
    /// `first_id` and the ids after it, one for each swap, differ from all other work requests of
    /// the handle.
    pub fn new(swaps: &'s [WordSwap], first_id: u64) -> Self {
        Self { swaps, first_id, states: vec![SwapState::Waiting; swaps.len()] }
    }

    /// The value that was in each word: `expected` if it was swapped. `result` is how the operation
    /// ended.
    pub fn into_olds(self, result: Result<()>) -> Vec<Result<u64>> {
        let of_all = match &result {
            // What was done meanwhile counts for as little as any access under the lost lock.
            Err(Error::LockLost { .. }) => result.clone().err(),
            _ => None,
        };
        let states = self.states.into_iter();
        states
            .map(|state| match (state, &of_all, &result) {
                (_, Some(error), _) => Err(error.clone()),
                (SwapState::Ended(old), ..) => old,
                (SwapState::Posted, ..) => Err(outcome_unknown()),
                (SwapState::Waiting, _, Err(error)) => Err(error.clone()),
                (SwapState::Waiting, _, Ok(())) => unreachable!("all were done"),
            })
            .collect()
    }

    /// Does what is mapped; what goes through the fabric, by link.
    fn run_mapped<M: Mem>(&mut self, client: &Client<M>) -> Vec<RemoteSwap> {
        let mut remote = Vec::new();
        for (index, swap) in self.swaps.iter().enumerate() {
            match client.cas_warm(swap.addr, swap.expected, swap.new) {
                Ok(done) => {
                    let old = done.unwrap_or_else(|old| old);
                    self.states[index] = SwapState::Ended(Ok(old));
                }
                Err(Miss::OneSided(link, at)) => remote.push(RemoteSwap { link, index, at }),
                Err(_) => {}
            }
        }
        remote.sort_by_key(|one| one.link);
        remote
    }

    /// Posts what fits into the queues; how many that were.
    fn post<M: Mem>(
        &mut self,
        client: &Client<M>,
        remote: &[RemoteSwap],
        io: &mut impl Io,
    ) -> usize {
        let mut posted = 0;
        for of_link in remote.chunk_by(|a, b| a.link == b.link) {
            let of_link = &of_link[..of_link.len().min(FABRIC_OUTSTANDING_MAX as usize)];
            for batch in of_link.chunks(BATCH_MAX) {
                let requests: Vec<WorkRequest<'_>> =
                    batch.iter().map(|one| self.request(one)).collect();
                let result = io.post(batch[0].link, &requests);
                let count = result.map_or_else(|(count, _)| count, |()| batch.len());
                for one in &batch[..count] {
                    self.states[one.index] = SwapState::Posted;
                    client.note_remote(self.swaps[one.index].addr, Access::Write);
                }
                posted += count;
                if count < batch.len() {
                    break;
                }
            }
        }
        posted
    }

    fn request(&self, one: &RemoteSwap) -> WorkRequest<'static> {
        let WordSwap { expected, new, .. } = self.swaps[one.index];
        let verb = Verb::Cas { at: one.at, expected, new };
        WorkRequest { id: self.first_id + one.index as u64, verb, local: &[], signalled: true }
    }

    /// A work request of the handle ended; whether it was one of these.
    fn on_completion<M: Mem>(&mut self, client: &Client<M>, id: u64, status: WorkStatus) -> bool {
        let index = id.wrapping_sub(self.first_id);
        let state = usize::try_from(index).ok().and_then(|index| self.states.get_mut(index));
        let posted = state.filter(|state| matches!(state, SwapState::Posted));
        let Some(state) = posted else { return false };
        *state = match status {
            WorkStatus::Done(old) => SwapState::Ended(Ok(old)),
            WorkStatus::BadKey => {
                client.met(Race::KeyRefused);
                SwapState::Waiting
            }
            WorkStatus::Flushed { executed: Some(false) } => SwapState::Waiting,
            WorkStatus::Flushed { .. } => {
                client.met(Race::AtomicUnknown);
                SwapState::Ended(Err(outcome_unknown()))
            }
            WorkStatus::BadRange => SwapState::Ended(Err(Error::Protocol {
                peer: "fabric target".into(),
                reason: format!("refused an atomic at {}", self.swaps[index as usize].addr),
            })),
        };
        true
    }
}

fn outcome_unknown() -> Error {
    Error::OutcomeUnknown { operation: "cas".into(), peer: "the page's home rack".into() }
}

impl<M: Mem> Operation<M> for Swaps<'_> {
    type Output = ();

    async fn run(&mut self, cx: &mut impl Context<M>) -> Result<()> {
        cx.end_with_locks();
        let mut under_way = {
            let (client, mut io) = cx.access()?;
            let remote = self.run_mapped(client);
            self.post(client, &remote, &mut io)
        };
        while under_way > 0 {
            let take = |client: &mut Client<M>, id, status| {
                under_way -= usize::from(self.on_completion(client, id, status));
                Ok(())
            };
            cx.completions(take).await?;
        }
        for index in 0..self.swaps.len() {
            if !matches!(self.states[index], SwapState::Waiting) {
                continue;
            }
            let WordSwap { addr, expected, new } = self.swaps[index];
            let id = self.first_id + index as u64;
            let op = AtomicOp::Cas { expected, new };
            let result = Atomic::new(addr, op, id).run(cx).await;
            self.states[index] = SwapState::Ended(result);
            if cx.has_failed() {
                break;
            }
        }
        Ok(())
    }
}
