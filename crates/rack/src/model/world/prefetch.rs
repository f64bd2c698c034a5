//! Lines that the controller asks for before they are wanted: after an access to the line behind
//! the last one of its page. The buffer is direct-mapped; a line that is on its way is never
//! replaced, so that the accesses that wait for it get it.

use super::access::FROM_BUFFER;
use super::*;
use crate::model::node::NONE;
use crate::model::pages::PAGE_LINES;

impl World {
    /// Whether an access gets its line from the buffer, now or when it comes. A store makes the
    /// buffer forget the line.
    pub(super) fn take_buffered(&mut self, now: Ps, number: u32, slot: u32) -> bool {
        let flight = self.state.flights.all[number as usize];
        let node = &mut self.state.nodes[usize::from(flight.node)];
        let line = line_of(flight.page, flight.line);
        let cell = line as usize & (node.buffer.len() - 1);
        let buffered = &mut node.buffer[cell];
        let mut is_found = false;
        if buffered.line == line {
            match buffered.state {
                LineState::Here if flight.write => buffered.state = LineState::Empty,
                LineState::Here => {
                    is_found = true;
                    let steps = node.controller.lookup_steps();
                    let lookup = Ps(steps * self.times.costs.lookup_step_ps);
                    self.queue.push(now + lookup + self.times.hit, Event::Hit(number));
                }
                LineState::Coming(NONE) if !flight.write => {
                    is_found = true;
                    buffered.state = LineState::Coming(number);
                }
                LineState::Coming(_) | LineState::Empty => {}
            }
        }
        if is_found {
            self.state.flights.all[number as usize].pool = FROM_BUFFER;
        }
        self.prefetch(now, flight, slot);
        is_found
    }

    /// Asks for the next lines, if this one followed its neighbour.
    fn prefetch(&mut self, now: Ps, flight: Flight, slot: u32) {
        let index = usize::from(flight.node);
        let node = &mut self.state.nodes[index];
        let page = node.pages.page_mut(flight.page);
        let is_next = flight.line == page.last_line.wrapping_add(1);
        page.last_line = flight.line;
        let depth = self.config.prefetch.map_or(0, |prefetch| prefetch.depth);
        if !is_next || flight.write {
            return;
        }
        let last = (u32::from(flight.line) + depth).min(PAGE_LINES - 1) as u8;
        for line in flight.line + 1..=last {
            let wanted = line_of(flight.page, line);
            let buffer = &mut self.state.nodes[index].buffer;
            let cell = wanted as usize & (buffer.len() - 1);
            let is_coming = matches!(buffer[cell].state, LineState::Coming(_));
            let is_here = buffer[cell].line == wanted && buffer[cell].state == LineState::Here;
            if is_coming || is_here {
                continue;
            }
            buffer[cell] = Buffered { line: wanted, state: LineState::Coming(NONE) };
            let purpose = Purpose::Prefetch(cell as u32);
            let number = self.state.flights.add(Flight { purpose, line, ..flight });
            self.send_line(now, number, slot);
        }
    }

    /// A line has come: the accesses that waited for it are served.
    pub(super) fn prefetched(&mut self, now: Ps, index: usize, cell: u32) {
        let buffered = &mut self.state.nodes[index].buffer[cell as usize];
        let waiter = match buffered.state {
            LineState::Coming(waiter) => waiter,
            LineState::Empty | LineState::Here => unreachable!("a line on its way stays"),
        };
        buffered.state = LineState::Here;
        match waiter {
            NONE => self.release_if_over(index),
            waiter => self.finish(now, waiter),
        }
    }

    /// Whether lines are on their way to the node's buffer.
    pub(super) fn buffer_is_busy(&self, index: usize) -> bool {
        let mut buffer = self.state.nodes[index].buffer.iter();
        buffer.any(|line| matches!(line.state, LineState::Coming(_)))
    }
}

fn line_of(page: u32, line: u8) -> u64 {
    u64::from(page) * u64::from(PAGE_LINES) + u64::from(line)
}
