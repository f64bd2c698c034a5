//! The server's end of its connections: what each fabric does for the serving thread.

use super::error::{Error, Result};
use super::places::read_greeting;
use super::spec::Spec;
use std::thread::Thread;
use std::time::Duration;

pub(super) enum ServerEvent {
    Joined(u32),
    /// A client is gone; its number is free after [`Connections::vacate`].
    Left(u32),
    Message(u32, Vec<u8>),
}

/// The server's end of its connections.
pub(super) trait Connections: Send {
    /// Appends what came. Only a thorough look finds clients that come and go.
    fn poll(&mut self, is_thorough: bool, came: &mut Vec<ServerEvent>) -> Result<()>;
    /// The serving thread begins; what comes by SEND wakes it.
    fn begin(&mut self, thread: Thread);
    /// How long the serving thread sleeps between rounds when nothing comes, if a thread beside it
    /// executes READs and WRITEs.
    fn nap(&self) -> Option<Duration>;
    /// Gives the number of a client that has left to the next.
    fn vacate(&mut self, client: u32);
    /// SENDs to a client. A message to one that is gone is dropped.
    fn send(&mut self, client: u32, message: &[u8]);
    /// WRITEs into a client's page.
    fn write(&mut self, client: u32, at: u64, bytes: &[u8]);
}

/// The number that a new client gets, if there is one.
pub(super) fn free_number<T>(clients: &[Option<T>]) -> Option<u32> {
    clients.iter().position(Option::is_none).map(|index| index as u32)
}

/// Checks what a client said first against what runs here; its second and third word.
pub(super) fn check_hello(spec: &Spec, message: &[u8]) -> Result<[u64; 2]> {
    let [fingerprint, one, two] = read_greeting(message)?;
    match fingerprint == spec.fingerprint() {
        true => Ok([one, two]),
        false => Err(Error::Corrupt { what: "it runs something else" }),
    }
}
