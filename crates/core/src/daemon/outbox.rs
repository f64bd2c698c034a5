//! What the engine says: calls to the master, answers to clients, memory for their buffers. In:
//! from the engine, in the middle of its calls. Out: taken by the runtime after them, in order.

pub use super::persist::PersistJob;
use super::{ClientId, WriteBack};
use crate::counts::ProxyCounts;
use crate::wire::{MasterCall, ReplyFrame};

/// Where the engine puts what it says.
pub trait Outbox {
    /// Sends a call to the master. `id` is the engine's, counted from 1 in each process; it comes
    /// back in the answer. While the master is down nothing is sent.
    fn to_master(&mut self, id: u64, call: MasterCall);
    /// Sends an answer. If the client is not connected it is dropped: the client asks again.
    fn reply(&mut self, to: ClientId, frame: ReplyFrame);
    /// Writes memory of this rack into a buffer that a client has exposed, then answers. A world
    /// that cannot answers at once with what is said if the memory is refused.
    fn write_back(&mut self, to: ClientId, job: WriteBack) {
        self.reply(to, job.refused);
    }
    /// Makes pages durable beside the engine, which goes on; the result comes to
    /// [`Daemon::on_persisted`](super::Daemon::on_persisted). `false`: the engine has to wait.
    fn persist(&mut self, _job: PersistJob) -> bool {
        false
    }
}

/// What an engine's world and the loop around it hand to each other.
#[derive(Debug, Default)]
pub struct Handover {
    /// Calls to the master that wait to be sent.
    pub(crate) calls: Vec<(u64, MasterCall)>,
    /// Answers that wait to be sent.
    pub(crate) replies: Vec<(ClientId, ReplyFrame)>,
    /// Memory that is to be written into clients' buffers.
    pub(crate) write_backs: Vec<(ClientId, WriteBack)>,
    /// Pages that are to be made durable, if the loop around has that done beside it.
    pub persists: Option<Vec<PersistJob>>,
    /// What was done for clients without a fabric endpoint.
    pub proxy: ProxyCounts,
}

impl Outbox for Handover {
    fn to_master(&mut self, id: u64, call: MasterCall) {
        self.calls.push((id, call));
    }

    fn reply(&mut self, to: ClientId, frame: ReplyFrame) {
        self.replies.push((to, frame));
    }

    fn write_back(&mut self, to: ClientId, job: WriteBack) {
        self.write_backs.push((to, job));
    }

    fn persist(&mut self, job: PersistJob) -> bool {
        self.persists.as_mut().map(|jobs| jobs.push(job)).is_some()
    }
}
