//! The link to a daemon with mapped memory: requests through the slot's rings, and taking the slot
//! up again at the daemon's successor.

use super::{Link, RETRY_PAUSE_MAX, SimHandle};
use crate::mem::SimMem;
use crate::time::Ps;
use crate::world::kernel::{ConnId, Input};
use crate::world::rack::Rack;
use rackpool_core::client::{LinkId, LinkLoss, OWN, RackView, Reach, Session};
use rackpool_core::constants::MESSAGE_BYTES_MAX;
use rackpool_core::error::DeathCause;
use rackpool_core::ring::{Consumer, Producer};
use rackpool_core::wire::{self, Reply, ReplyFrame, Request};
use rackpool_core::{Error, Result, SessionId};
use std::rc::Rc;

/// How long after a bell the ring is looked at again at first, and at last: the pause doubles,
/// because the bell may have been for something else.
const RING_LOOK: Ps = Ps::us(1);
const RING_LOOK_MAX: Ps = Ps::ms(1);
/// Nearly all requests are shorter.
const MESSAGE_BYTES_USUAL: usize = 64;

pub(super) struct LocalLink {
    pub(super) rack: Rc<Rack>,
    pub(super) conn: Option<ConnId>,
    pub(super) session_id: SessionId,
    pub(super) session: Session,
    pub(super) slot: u32,
    pub(super) region_id: [u64; 2],
    pub(super) view: RackView<SimMem>,
    pub(super) producer: Producer<SimMem>,
    pub(super) consumer: Consumer<SimMem>,
    /// The connection ended and the slot was not taken up again, as in the pool's link.
    pub(super) lapsed: bool,
}

impl SimHandle {
    fn local(&mut self, id: LinkId) -> &mut LocalLink {
        match &mut self.links[id.0 as usize] {
            Link::Local(link) => link,
            Link::Remote(_) => unreachable!("only called for mapped links"),
        }
    }

    pub(super) async fn local_call(
        &mut self,
        id: LinkId,
        request: Request,
        deadline: Ps,
    ) -> Result<Reply> {
        let started = self.ctx.now();
        self.local(id).session.begin(request);
        let mut sent = !self.local(id).lapsed;
        if sent && let Err(error) = self.send_local(id) {
            self.local(id).session.abandon_unsent();
            return Err(error);
        }
        loop {
            let lapsed = self.local(id).lapsed;
            match if lapsed { Waited::Closed } else { self.wait_local(id, deadline).await } {
                Waited::Reply(frame) => {
                    let link = self.local(id);
                    if let Some(reply) = link.session.take_reply(frame, &link.view.slot) {
                        return reply;
                    }
                }
                Waited::Closed => {
                    self.local(id).lapsed = true;
                    let loss = Box::pin(self.resume(id, deadline)).await;
                    let session = &mut self.local(id).session;
                    if sent {
                        if let Some(ended) = session.on_loss(loss) {
                            return ended;
                        }
                    } else if let LinkLoss::Gone(cause) = loss {
                        session.abandon_unsent();
                        return Err(Error::PeerDead { peer: session.peer().into(), cause });
                    }
                    sent = true;
                    if let Err(error) = self.send_local(id) {
                        return Err(self.local(id).session.give_up(error));
                    }
                }
                Waited::TimeUp => {
                    let waited_ms = (self.ctx.now() - started).as_ns() / 1_000_000;
                    let loss = LinkLoss::TimeUp { waited_ms };
                    let ended = self.local(id).session.on_loss(loss);
                    return ended.expect("time up ends a request");
                }
            }
        }
    }

    fn send_local(&mut self, id: LinkId) -> Result<()> {
        let mut message = self.ctx.kernel.spare();
        message.resize(MESSAGE_BYTES_USUAL, 0);
        let link = self.local(id);
        let frame = link.session.under_way().expect("only called with a request under way");
        if wire::encode(frame, &mut message).is_err() {
            message.resize(MESSAGE_BYTES_MAX as usize, 0);
        }
        let result = wire::encode(frame, &mut message).and_then(|bytes| {
            link.producer.push(bytes).map_err(|_| Error::Busy {
                what: "request ring".into(),
                limit: u64::from(rackpool_core::constants::RING_ENTRIES),
            })
        });
        let (slot, rack) = (link.slot, link.rack.clone());
        self.sent.0 += 1;
        self.ctx.kernel.recycle(message);
        result?;
        // Setting the bell's bit is an atomic operation.
        self.ctx.cpu.drain();
        if let Some((daemon, _)) = rack.daemon.get() {
            self.ctx.ring(daemon, Input::Bell(slot));
        }
        Ok(())
    }

    async fn wait_local(&mut self, id: LinkId, deadline: Ps) -> Waited {
        let mut look = RING_LOOK;
        loop {
            self.ctx.cpu.charge(self.cluster.costs.client_poll);
            let rack = u32::from(self.local(id).rack.id.0);
            let heard = self.inbox.rung.len();
            self.inbox.rung.retain(|one| *one != rack);
            let rung = self.inbox.rung.len() < heard;
            let link = self.local(id);
            let LocalLink { session, consumer, .. } = link;
            let popped = consumer.pop(|bytes| wire::decode::<ReplyFrame>(bytes, session.peer()));
            match popped {
                Some(Ok(Ok(frame))) => return Waited::Reply(frame),
                Some(Ok(Err(error))) => self.broken(&error.to_string()),
                Some(Err(error)) => self.broken(&error.to_string()),
                None => {}
            }
            let conn = self.local(id).conn;
            if conn.is_none_or(|conn| self.inbox.closed_conns.contains(&conn)) {
                return Waited::Closed;
            }
            let now = self.ctx.now();
            if now >= deadline {
                self.ctx.kernel.say(|| format!("process {}: no answer in time", self.ctx.id.0));
                return Waited::TimeUp;
            }
            let until = if rung { deadline.min(now + look) } else { deadline };
            look = Ps((2 * look.0).min(RING_LOOK_MAX.0));
            self.turn(until).await;
            if rung && !self.inbox.rung.contains(&rack) {
                // What rang without an answer is looked at again.
                self.inbox.rung.push(rack);
            }
        }
    }

    /// Every daemon here keeps to the protocol: a ring that does not is a defect of ours.
    fn broken(&self, what: &str) {
        self.ctx.kernel.fail("ring", format!("client of rack {}: {what}", self.rack));
    }

    /// Finds the next daemon of the region and takes the slot up again there.
    async fn resume(&mut self, id: LinkId, deadline: Ps) -> LinkLoss {
        let link = self.local(id);
        let (rack, slot, session) = (link.rack.clone(), link.slot, link.session_id);
        let region_id = link.region_id;
        let mut pause = Ps::ms(1);
        loop {
            // The control socket's name is the region's.
            let same_region = rack.region.borrow().id == region_id;
            let join = self.join(&rack, deadline);
            let joined = if same_region {
                join.once(&mut self.inbox, &mut self.master, session, Some(slot)).await
            } else {
                Err(Error::Denied { reason: "another region".into() })
            };
            match joined {
                Ok(joined) => return self.rejoined(id, joined, session, LinkLoss::Resumed),
                Err(Error::BadRegion { .. } | Error::Denied { .. }) => {
                    let session = self.cluster.new_session();
                    let (inbox, master) = (&mut self.inbox, &mut self.master);
                    return match join.until(inbox, master, session, None).await {
                        Ok(joined) => {
                            self.rejoined(id, joined, session, LinkLoss::SessionForgotten)
                        }
                        Err(_) => LinkLoss::Gone(DeathCause::Closed),
                    };
                }
                Err(Error::PeerDead { .. } | Error::Timeout { .. })
                    if self.ctx.now() < deadline => {}
                Err(_) => return LinkLoss::Gone(DeathCause::Closed),
            }
            self.ctx.sleep(pause).await;
            pause = Ps((pause.0 * 2).min(RETRY_PAUSE_MAX.0));
        }
    }

    fn rejoined(
        &mut self,
        id: LinkId,
        joined: LocalLink,
        session: SessionId,
        loss: LinkLoss,
    ) -> LinkLoss {
        let link = self.local(id);
        let is_new_region = joined.region_id != link.region_id;
        let under_way = std::mem::replace(&mut link.session, Session::new(String::new()));
        *link = LocalLink { session: under_way, session_id: session, ..joined };
        let view = link.view.clone();
        let rack = self.client.rack_of(id);
        if is_new_region {
            self.client.forget_link(id);
            self.locks.lose(rack, None);
        }
        if id == OWN {
            self.fabric.attach(&view.slot);
        }
        self.client.add_link(rack, Reach::Mapped(view)).expect("a region keeps its geometry");
        loss
    }
}

enum Waited {
    Reply(ReplyFrame),
    Closed,
    TimeUp,
}
