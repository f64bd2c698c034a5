//! A top-of-rack switch: virtual output queues for each pair of an input and an output, and a
//! round-robin arbiter that in each slot takes at most one packet from an input and gives at most
//! one to an output. A packet that meets no other takes the slot in which it comes, without the
//! arbiter; of two that come in one slot for one output the first wins.
//!
//! Source: Rack-scale disaggregation, §V (arbiter, virtual queues, back-pressure).

use super::Packet;
use super::config::{Fabric, PORTS_MAX};
use super::link::Link;
use rackpool_sim::time::Ps;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

#[derive(Clone, Debug, Serialize, Deserialize)]
struct SwitchInput {
    /// Outputs for which something waits, a bit each.
    waiting: u128,
    /// The output that is looked at first.
    turn: u32,
    /// The slot after the last grant.
    free_from: u64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct SwitchOutput {
    link: Link,
    /// Inputs at which something waits for it.
    waiting: u32,
    free_from: u64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Switch {
    inputs: Vec<SwitchInput>,
    outputs: Vec<SwitchOutput>,
    queues: Vec<VecDeque<Packet>>,
    /// Inputs at which something waits.
    waiting: u128,
    /// The input that is looked at first.
    turn: u32,
    /// The slot of the arbitration that is to come; `u64::MAX` without one.
    asked: u64,
    slot: Ps,
    crossing: Ps,
    output_bytes: u64,
    pub(super) arbitrations: u64,
}

/// A packet may cross to its output.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grant {
    pub(super) input: usize,
    pub(super) output: usize,
    pub(super) packet: Packet,
    /// When it is in the output's queue.
    pub(super) ready: Ps,
}

impl Switch {
    pub(super) fn new(fabric: &Fabric, links: Vec<Link>) -> Switch {
        let ports = links.len();
        assert!(ports <= PORTS_MAX, "a switch has {PORTS_MAX} ports");
        let output = |link| SwitchOutput { link, waiting: 0, free_from: 0 };
        Switch {
            inputs: vec![SwitchInput { waiting: 0, turn: 0, free_from: 0 }; ports],
            outputs: links.into_iter().map(output).collect(),
            queues: vec![VecDeque::new(); ports * ports],
            waiting: 0,
            turn: 0,
            asked: u64::MAX,
            slot: fabric.slot,
            crossing: fabric.crossing,
            output_bytes: fabric.output_bytes,
            arbitrations: 0,
        }
    }

    pub(super) fn link(&mut self, output: usize) -> &mut Link {
        &mut self.outputs[output].link
    }

    /// Packets that wait, in virtual output queues and at outputs.
    pub(super) fn len(&self) -> usize {
        let virtual_queues: usize = self.queues.iter().map(VecDeque::len).sum();
        virtual_queues + self.outputs.iter().map(|output| output.link.len()).sum::<usize>()
    }

    fn has_room(&self, output: usize, packet: &Packet) -> bool {
        let waiting = self.outputs[output].link.queue_bytes();
        waiting + u64::from(packet.bytes) <= self.output_bytes
    }

    /// A packet can be switched from `now` on: granted at once, or it waits; then the time at
    /// which the arbiter wants to be called, if no call is scheduled yet.
    #[inline]
    pub(super) fn come(
        &mut self,
        now: Ps,
        input: usize,
        output: usize,
        packet: Packet,
    ) -> Result<Grant, Option<Ps>> {
        let slot = now.0 / self.slot.0;
        let is_alone = self.inputs[input].waiting == 0 && self.outputs[output].waiting == 0;
        let is_free =
            self.inputs[input].free_from <= slot && self.outputs[output].free_from <= slot;
        if is_alone && is_free && self.has_room(output, &packet) {
            return Ok(self.grant(slot, now, input, output, packet));
        }
        let has_room = self.has_room(output, &packet);
        let queue = &mut self.queues[input * self.outputs.len() + output];
        if queue.is_empty() {
            self.outputs[output].waiting += 1;
            self.inputs[input].waiting |= 1 << output;
            self.waiting |= 1 << input;
        }
        queue.push_back(packet);
        let free = self.outputs[output].free_from.max(self.inputs[input].free_from);
        Err(has_room.then(|| self.ask(free.max(slot + 1))).flatten())
    }

    fn grant(&mut self, slot: u64, now: Ps, input: usize, output: usize, packet: Packet) -> Grant {
        self.inputs[input].free_from = slot + 1;
        self.outputs[output].free_from = slot + 1;
        Grant { input, output, packet, ready: now + self.crossing }
    }

    fn ask(&mut self, slot: u64) -> Option<Ps> {
        (slot < self.asked).then(|| {
            self.asked = slot;
            Ps(slot * self.slot.0)
        })
    }

    /// An output's queue got shorter: the arbiter looks at its inputs again.
    pub(super) fn output_moved(&mut self, now: Ps, output: usize) -> Option<Ps> {
        (self.outputs[output].waiting > 0)
            .then(|| now.0.div_ceil(self.slot.0))
            .and_then(|slot| self.ask(slot.max(self.outputs[output].free_from)))
    }

    /// One slot of the arbiter; the grants go to `granted`, which is empty. Then when it wants to
    /// be called again.
    pub(super) fn arbitrate(&mut self, now: Ps, granted: &mut Vec<Grant>) -> Option<Ps> {
        let slot = now.0 / self.slot.0;
        if slot != self.asked {
            // Asked for an earlier slot since.
            return None;
        }
        self.asked = u64::MAX;
        self.arbitrations += 1;
        let mut inputs = self.waiting.rotate_right(self.turn);
        let mut is_more = false;
        while inputs != 0 {
            let index = inputs.trailing_zeros();
            inputs &= inputs - 1;
            let input = ((index + self.turn) % 128) as usize;
            is_more |= self.arbitrate_input(slot, input, granted);
        }
        if let Some(first) = granted.first() {
            self.turn = (first.input as u32 + 1) % self.inputs.len() as u32;
        }
        is_more.then(|| self.ask(slot + 1)).flatten()
    }

    /// Grants one packet of an input, if any; whether another one could be granted later without
    /// an output's queue getting shorter.
    fn arbitrate_input(&mut self, slot: u64, input: usize, granted: &mut Vec<Grant>) -> bool {
        let (turn, ports) = (self.inputs[input].turn, self.outputs.len());
        let mut outputs = self.inputs[input].waiting.rotate_right(turn);
        let mut is_more = false;
        let mut is_free = self.inputs[input].free_from <= slot;
        while outputs != 0 {
            let index = outputs.trailing_zeros();
            outputs &= outputs - 1;
            let output = ((index + turn) % 128) as usize;
            let queue = input * ports + output;
            let packet = self.queues[queue][0];
            if !self.has_room(output, &packet) {
                continue;
            }
            if !is_free || self.outputs[output].free_from > slot {
                is_more = true;
                continue;
            }
            is_free = false;
            self.queues[queue].pop_front();
            if self.queues[queue].is_empty() {
                self.outputs[output].waiting -= 1;
                self.inputs[input].waiting &= !(1 << output);
                if self.inputs[input].waiting == 0 {
                    self.waiting &= !(1 << input);
                }
            } else {
                is_more = true;
            }
            self.inputs[input].turn = (output as u32 + 1) % ports as u32;
            granted.push(self.grant(slot, Ps(slot * self.slot.0), input, output, packet));
        }
        is_more
    }
}
