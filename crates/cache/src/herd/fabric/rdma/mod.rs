//! The path over RDMA devices with HERD's own verbs: requests by WRITE over unreliable connections
//! (UC) or by SEND over datagrams (UD), replies by SEND over datagrams. Nothing is sent again by a
//! device; what is lost is repeated by the client (`client.rs`) and applied once by the engine.
//!
//! A client comes in over tcp as any other, and its connection stays: for its greeting, for its
//! doorbells to a thread that sleeps, for what is longer than a packet, and to see its end. Then it
//! asks for one of the two ways by one message, a [`ConnectRequest`], which is answered by a
//! [`ConnectReply`].
//!
//! - [`TransportKind::Connected`]: WRITE over UC into the client's frame. The server has one
//!   UC queue pair a client, and threads look at the slots of clients that ask.
//! - [`TransportKind::Datagrams`]: SEND over UD. A thread looks at one completion queue,
//!   whatever the number of clients, and has no queue pair for each.
//!
//! Replies leave either way by the thread's UD queue pair.
//!
//! - `datagrams.rs`: a datagram queue pair with its memory, of either end; `wire.rs`: the client's
//!   end; `listener.rs`: the server's.
//!
//! Keys: a client's frame is registered in a protection domain of its own, so no other client has
//! its key. A datagram has the key of the client's frame in it. Neither hides anything from an
//! attacker that can listen to the network.
//!
//! Source: HERD §4.2 (WRITE over UC, SEND over UD, NC connections), §4.3 (application retry), §5.5
//! (SEND/SEND for many clients).

mod datagrams;
mod listener;
mod wire;

pub(in crate::herd) use listener::RdmaListener;
pub use wire::{Options, Rdma};

use rackpool_fabric::verbs::queue::Address;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TransportKind {
    /// By WRITE over an unreliable connection.
    #[default]
    Connected,
    Datagrams,
}

impl TransportKind {
    fn number(self) -> u32 {
        match self {
            TransportKind::Connected => 1,
            TransportKind::Datagrams => 2,
        }
    }
}

/// An [`Address`] as it travels.
#[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct WireAddress {
    gid: [u8; 16],
    lid: u32,
    number: u32,
    first_packet: u32,
    mtu_bytes: u32,
}

impl From<Address> for WireAddress {
    fn from(address: Address) -> WireAddress {
        let Address { gid, lid, number, first_packet, mtu_bytes } = address;
        WireAddress { gid, lid: lid.into(), number, first_packet, mtu_bytes }
    }
}

impl WireAddress {
    /// The address, if it may be one.
    fn address(&self) -> Option<Address> {
        let WireAddress { gid, number, first_packet, mtu_bytes, .. } = *self;
        let lid = u16::try_from(self.lid).ok()?;
        let is_possible = number < 1 << 24 && first_packet < 1 << 24;
        let is_possible = is_possible && (256..=4096).contains(&mtu_bytes);
        is_possible.then_some(Address { gid, lid, number, first_packet, mtu_bytes })
    }
}

/// The client asks for a way.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct ConnectRequest {
    kind: u32,
    reserved: u32,
    /// Its unreliable connection; zeros for datagrams.
    connected: WireAddress,
    datagrams: WireAddress,
}

/// The server's answer; behind it the place of each thread's datagram queue pair.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct ConnectReply {
    /// As asked; 0: it is refused.
    kind: u32,
    /// Key of the client's frame; its first byte has the address 0.
    key: u32,
    connected: WireAddress,
}
const _: () = assert!(size_of::<WireAddress>() == 32 && size_of::<ConnectRequest>() == 72);
const _: () = assert!(size_of::<ConnectReply>() == 40);

/// What stands before a request that comes by datagram.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct DatagramHeader {
    client: u32,
    window: u32,
    /// The generation of the client's frame.
    key: u64,
}
const DATAGRAM_HEADER_BYTES: usize = size_of::<DatagramHeader>();
const _: () = assert!(DATAGRAM_HEADER_BYTES == 16);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_travels_whole_and_one_that_cannot_be_is_none() {
        let address =
            Address { gid: [7; 16], lid: 9, number: 77, first_packet: 5, mtu_bytes: 1024 };
        let place = WireAddress::from(address);
        assert_eq!(place.address(), Some(address));
        assert_eq!(WireAddress { lid: 1 << 16, ..place }.address(), None);
        assert_eq!(WireAddress { number: 1 << 24, ..place }.address(), None);
        assert_eq!(WireAddress::default().address(), None);
    }
}
