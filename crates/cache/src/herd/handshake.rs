//! How a client gets its memory: one message each way over the control socket. The client says
//! which version it speaks and how many windows it wants; the server answers with the sizes, the
//! client's number and two descriptors (the client's memory, the bell), or with the reason why not.
//! Afterwards the server's messages only wake the client; the socket's end is the end.

use super::error::{Error, Result};
use super::geometry::{CLIENTS_MAX, Geometry};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Version of slots, memory and greetings together.
pub(super) const VERSION: u32 = 7;
/// Marks a greeting of the fast path.
const MAGIC: u64 = u64::from_le_bytes(*b"rpherd\0\0");
pub(super) const FDS: usize = 2;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct Hello {
    magic: u64,
    version: u32,
    /// Windows that the client wants; 0 for the default of the server.
    pub windows: u32,
}

impl Hello {
    pub(super) fn new(windows: u32) -> Hello {
        Hello { magic: MAGIC, version: VERSION, windows }
    }

    /// The hello in a message; why there is no welcome, if there is none.
    pub(super) fn read(bytes: &[u8]) -> std::result::Result<Hello, Verdict> {
        match Hello::read_from_bytes(bytes) {
            Ok(hello) if hello.magic == MAGIC && hello.version == VERSION => Ok(hello),
            _ => Err(Verdict::Version),
        }
    }
}

/// Whether a client is let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Verdict {
    Welcome = 0,
    /// Another version, or no hello.
    Version = 1,
    Full = 2,
    /// More windows than there may be; `windows` says how many.
    Windows = 3,
    NoMemory = 4,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct Welcome {
    magic: u64,
    version: u32,
    verdict: u32,
    servers: u32,
    /// Windows of the client at each thread.
    pub windows: u32,
    value_bytes: u32,
    pub client: u32,
    /// How many clients there may be.
    pub clients: u32,
    reserved: u32,
    /// Seed of the hash that says which thread a key belongs to.
    pub seed: u64,
}
const _: () = assert!(size_of::<Welcome>() == 48 && size_of::<Hello>() == 16);

impl Welcome {
    pub(super) fn new(verdict: Verdict, geometry: Geometry, clients: u32) -> Welcome {
        Welcome {
            magic: MAGIC,
            version: VERSION,
            verdict: verdict as u32,
            servers: geometry.servers,
            windows: geometry.windows,
            value_bytes: geometry.value_bytes,
            client: 0,
            clients,
            reserved: 0,
            seed: 0,
        }
    }

    /// The welcome in a message, with the sizes of the client's memory, checked.
    pub(super) fn read(bytes: &[u8], asked_windows: u32) -> Result<(Welcome, Geometry)> {
        let corrupt = |what| Error::Corrupt { what };
        let welcome = Welcome::read_from_bytes(bytes).map_err(|_| corrupt("its greeting"))?;
        if welcome.magic != MAGIC {
            return Err(corrupt("its greeting"));
        }
        if welcome.version != VERSION || welcome.verdict == Verdict::Version as u32 {
            return Err(Error::Version { ours: VERSION, theirs: welcome.version });
        }
        let Welcome { servers, windows, value_bytes, .. } = welcome;
        match welcome.verdict {
            0 => {}
            2 => return Err(Error::Full { clients: welcome.clients }),
            3 => {
                let (value, max) = (asked_windows.into(), windows.into());
                return Err(Error::BadOption { option: "windows", value, min: 1, max });
            }
            4 => return Err(Error::OutOfMemory),
            _ => return Err(corrupt("its verdict")),
        }
        let geometry = Geometry { servers, clients: 1, windows, value_bytes };
        let geometry = geometry.checked().map_err(|_| corrupt("its sizes"))?;
        if welcome.client >= welcome.clients || welcome.clients > CLIENTS_MAX {
            return Err(corrupt("the client's number"));
        }
        Ok((welcome, geometry))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GEOMETRY: Geometry = Geometry { servers: 2, clients: 1, windows: 8, value_bytes: 1000 };

    #[test]
    fn a_welcome_of_another_version_or_with_impossible_sizes_is_refused() {
        let good = Welcome::new(Verdict::Welcome, GEOMETRY, 10);
        assert_eq!(Welcome::read(good.as_bytes(), 0).unwrap().1, GEOMETRY);
        let code = |welcome: Welcome| Welcome::read(welcome.as_bytes(), 99).err().unwrap().code();
        assert_eq!(code(Welcome { version: 1, ..good }), "version");
        assert_eq!(code(Welcome { magic: 1, ..good }), "corrupt");
        assert_eq!(code(Welcome { windows: 0, ..good }), "corrupt");
        assert_eq!(code(Welcome { servers: u32::MAX, ..good }), "corrupt");
        assert_eq!(code(Welcome { client: 10, ..good }), "corrupt");
        assert_eq!(code(Welcome { verdict: 9, ..good }), "corrupt");
        assert_eq!(code(Welcome::new(Verdict::Version, GEOMETRY, 10)), "version");
        assert_eq!(code(Welcome::new(Verdict::Full, GEOMETRY, 10)), "busy");
        assert_eq!(code(Welcome::new(Verdict::Windows, GEOMETRY, 10)), "bad-option");
        assert!(Welcome::read(&good.as_bytes()[1..], 0).is_err());
    }

    #[test]
    fn a_hello_of_another_version_is_told_apart() {
        let hello = Hello::new(4);
        assert_eq!(Hello::read(hello.as_bytes()).map(|hello| hello.windows), Ok(4));
        let other = Hello { version: 1, ..hello };
        assert_eq!(Hello::read(other.as_bytes()).err(), Some(Verdict::Version));
        assert_eq!(Hello::read(b"GET / HTTP/1.1\r\n").err(), Some(Verdict::Version));
        assert_eq!(Hello::read(b"").err(), Some(Verdict::Version));
    }
}
