//! State directories, links, raw connections and sample messages for the tests of the master.
#![allow(dead_code, reason = "each test file uses its part")]

use rackpool::link::MasterLink;
use rackpool::master::{MasterOptions, MasterServer};
use rackpool_core::wire::*;
use rackpool_core::{FrameIndex, GAddr, Generation, PageId, RackId, Result};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// A directory that does not exist yet and is removed in the end.
pub struct Dir(pub PathBuf);

impl Dir {
    pub fn new(name: &str) -> Self {
        let name = format!("rackpool-test-master-{}-{name}", std::process::id());
        let dir = Dir(std::env::temp_dir().join(name));
        let _ = std::fs::remove_dir_all(&dir.0);
        dir
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub fn options(dir: &Dir) -> MasterOptions {
    MasterOptions::new("127.0.0.1:0", &dir.0)
}

pub fn start(dir: &Dir) -> MasterServer {
    MasterServer::start(options(dir)).expect("a master starts")
}

pub fn link(master: &MasterServer) -> MasterLink {
    MasterLink::new(vec![master.local_addr().to_string()])
}

/// A daemon's link that has joined.
pub fn joined(master: &MasterServer, info: RackInfo) -> MasterLink {
    let mut link = link(master);
    link.set_join(MasterCall::JoinDaemon(info));
    call(&mut link, MasterCall::Stats).expect("the join is admitted");
    link
}

pub fn call(link: &mut MasterLink, call: MasterCall) -> Result<MasterAnswer> {
    link.call(call, Instant::now() + Duration::from_secs(20))
}

pub fn lease(link: &mut MasterLink, count: u64) -> PageId {
    match call(link, MasterCall::LeasePageIds { count }) {
        Ok(MasterAnswer::PageIds { first, count: got }) if got == count => first,
        other => panic!("{other:?}"),
    }
}

/// A daemon's rack; `region` tells its regions apart.
pub fn info(rack: u16, region: u64) -> RackInfo {
    RackInfo {
        rack: RackId(rack),
        region_id: [u64::from(rack) + 1, region],
        epoch: 1,
        page_shift: 21,
        frame_count: 1000,
        frames_free: 1000,
        host: "host".into(),
        control: format!("control-{rack}-{region}"),
        fabric: FabricKind::Tcp,
        fabric_addr: "127.0.0.1:1".into(),
        alive: false,
    }
}

pub fn home(page: PageId, rack: u16, n: u64) -> PageHome {
    let frame = FrameIndex((n % 1000) as u32);
    PageHome { page, rack: RackId(rack), frame, generation: Generation(n + 1) }
}

pub fn set_root(name: &str, expected: u64, addr: u64) -> MasterCall {
    let (expected, addr) = (GAddr(expected), GAddr(addr));
    MasterCall::SetRoot { name: name.into(), expected, addr }
}

pub fn frame<T: serde::Serialize>(message: &T) -> Vec<u8> {
    let payload = encode_vec(message);
    let mut bytes = u32::try_from(payload.len()).unwrap().to_le_bytes().to_vec();
    bytes.extend(payload);
    bytes
}

pub fn read_frame<T: serde::de::DeserializeOwned>(stream: &mut TcpStream) -> std::io::Result<T> {
    let mut head = [0; 4];
    stream.read_exact(&mut head)?;
    let mut payload = vec![0; u32::from_le_bytes(head) as usize];
    stream.read_exact(&mut payload)?;
    Ok(decode(&payload, "peer").expect("a message"))
}

/// A connection without the link's manners.
pub struct Raw(pub TcpStream);

impl Raw {
    pub fn connect(master: &MasterServer) -> Self {
        Self::from([127, 0, 0, 1], master)
    }

    /// From this address of this host.
    pub fn from(ip: [u8; 4], master: &MasterServer) -> Self {
        use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
        let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        bind(&socket, &SocketAddr::from((ip, 0))).unwrap();
        connect(&socket, &master.local_addr()).unwrap();
        let stream = TcpStream::from(socket);
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        Raw(stream)
    }

    pub fn receive(&mut self) -> MasterReply {
        read_frame(&mut self.0).expect("an answer")
    }

    pub fn call(&mut self, id: u64, call: MasterCall) -> MasterReply {
        self.0.write_all(&frame(&MasterRequest { id, call })).unwrap();
        self.receive()
    }

    /// The master closes without a word.
    pub fn expect_end(&mut self) {
        let mut byte = [0];
        // A reset is an end as well: the master closed with bytes of ours unread.
        assert!(matches!(self.0.read(&mut byte), Ok(0) | Err(_)));
    }
}

pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) % limit
    }
}
