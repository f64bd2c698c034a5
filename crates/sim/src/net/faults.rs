//! What the network does wrong on purpose, with a probability for each class, and what it counts.

use crate::time::Ps;

/// Probabilities a packet, in parts per million.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NetFaults {
    /// It is lost. Acknowledgements, too.
    pub loss_ppm: u32,
    pub duplicate_ppm: u32,
    /// It, and what follows on its connection, is late by up to `delay_max`.
    pub delay_ppm: u32,
    pub delay_max: Ps,
    /// It is overtaken: by other connections, and for datagrams by its own.
    pub reorder_ppm: u32,
    /// By what was sent up to this much later.
    pub reorder_max: Ps,
}

impl NetFaults {
    /// A network that does nothing wrong.
    pub const fn none() -> NetFaults {
        NetFaults {
            loss_ppm: 0,
            duplicate_ppm: 0,
            delay_ppm: 0,
            delay_max: Ps::ZERO,
            reorder_ppm: 0,
            reorder_max: Ps::ZERO,
        }
    }
}

/// What happened, in packets unless said otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NetCounters {
    pub delivered: u64,
    pub lost: u64,
    /// Sent on twice by fault.
    pub duplicated: u64,
    pub delayed: u64,
    pub reordered: u64,
    /// Stopped by a partition, connection messages and acknowledgements included.
    pub partitioned: u64,
    /// Operations sent again after a timeout.
    pub retried: u64,
    /// Connections that ended in an error.
    pub qp_errors: u64,
    /// Duplicates that the receiver recognised.
    pub duplicates_refused: u64,
    /// Arrived after a gap and dropped.
    pub gaps: u64,
    /// Messages dropped because no receive was posted.
    pub no_receive: u64,
    /// Had to wait for room in the switch.
    pub stalled: u64,
    pub executed: u64,
    /// Of these by datagram or unreliable connection a second time.
    pub executed_again: u64,
    /// WRITEs of which a part took effect before their connection ended.
    pub torn: u64,
}
