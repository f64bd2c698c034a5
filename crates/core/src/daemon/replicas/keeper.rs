//! What a home remembers of a keeper of replicas of its pages: what it was told, and what it will
//! be told next.

use crate::addr::{PageId, RackId};
use crate::constants::REPLICA_ORDERS_BYTES_MAX;
use crate::replica::ReplicaOrder;
use crate::seam::Nanos;
use std::collections::VecDeque;

/// A keeper of replicas of this rack's pages, by its session.
#[derive(Debug)]
pub(super) struct KeeperState {
    pub(super) rack: RackId,
    pub(super) room: u32,
    /// The number of its last poll.
    pub(super) number: u64,
    /// The request that it came with.
    pub(super) seq: u64,
    /// The request that is not answered yet, and since when it waits.
    pub(super) parked: Option<(u32, u64)>,
    pub(super) parked_since: Option<Nanos>,
    /// What the last answer told.
    pub(super) told: Vec<ReplicaOrder>,
    /// What the next one tells.
    pub(super) orders: VecDeque<ReplicaOrder>,
    pub(super) orders_bytes: usize,
    /// Ticks since the last answer.
    pub(super) ticks: u8,
    /// A time after the last answer.
    pub(super) answered: Option<Nanos>,
}

impl KeeperState {
    pub(super) fn new(rack: RackId) -> KeeperState {
        KeeperState {
            rack,
            room: 0,
            number: 0,
            seq: 0,
            parked: None,
            parked_since: None,
            told: Vec::new(),
            orders: VecDeque::new(),
            orders_bytes: 0,
            ticks: 0,
            answered: None,
        }
    }

    pub(super) fn tell(&mut self, order: ReplicaOrder) {
        self.orders_bytes += order.wire_bytes();
        self.orders.push_back(order);
    }

    /// Takes back what it was not told yet about a page.
    pub(super) fn untell(&mut self, page: PageId) {
        self.orders.retain(|order| order.page() != page);
        self.orders_bytes = self.orders.iter().map(ReplicaOrder::wire_bytes).sum();
    }

    pub(super) fn take_orders(&mut self) -> Vec<ReplicaOrder> {
        let mut bytes = 0;
        let mut taken = Vec::new();
        while let Some(order) = self.orders.pop_front() {
            bytes += order.wire_bytes();
            if bytes > REPLICA_ORDERS_BYTES_MAX && !taken.is_empty() {
                self.orders.push_front(order);
                break;
            }
            self.orders_bytes -= order.wire_bytes();
            taken.push(order);
        }
        taken
    }
}
