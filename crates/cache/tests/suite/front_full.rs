//! A cache with all of its memory waiting to be sent: what finds no room is answered with an error,
//! and nothing is half done.

use rackpool_cache::front::{ClientInfo, Core, Output, Protocol, Session, Settings, Shared};
use rackpool_cache::{Cache, Options};
use std::sync::Arc;

/// Long enough to be sent from the cache's memory, and to be written there as it comes.
const LEN: usize = 500_000;

/// Units that are left when there is no room for a long value beside what the cache keeps.
const FREE_UNITS: u64 = 11;

/// A cache and two clients of it, without sockets.
struct Full {
    core: Core,
    text: Session,
    resp: Session,
    /// Answers that are not read: they keep the cache's memory.
    kept: Vec<Output>,
}

impl Full {
    fn new() -> Self {
        let options = Options { memory: 16 << 20, max_value: 1 << 20, ..Options::default() };
        let cache = Cache::new(options).unwrap();
        let shared = Arc::new(Shared::new(cache, Settings::default(), (0, 1)));
        let client = || ClientInfo { known: true, ..ClientInfo::default() };
        let text = Session::new(Protocol::Memcached, client());
        let resp = Session::new(Protocol::Resp, client());
        Self { core: Core::new(shared, 0, 1_000_000), text, resp, kept: Vec::new() }
    }

    fn text(&mut self, said: &[u8]) -> String {
        let used = self.text.feed(&mut self.core, said);
        assert_eq!(used, said.len());
        self.answer()
    }

    fn resp(&mut self, said: &[u8]) -> String {
        let used = self.resp.feed(&mut self.core, said);
        assert_eq!(used, said.len());
        self.answer()
    }

    fn answer(&mut self) -> String {
        let out = std::mem::take(&mut self.core.out);
        let answer = String::from_utf8(out.bytes.clone()).unwrap();
        self.kept.push(out);
        answer
    }

    fn set(&mut self, key: &str, len: usize) -> String {
        self.text(&crate::peers::set(key, &vec![b'v'; len]))
    }

    /// Stores values and does not read what looking them up answers, until there is no room for
    /// another one beside what the cache keeps for itself. Nothing is evicted yet.
    fn fill(&mut self) {
        let client = ClientInfo { known: true, ..ClientInfo::default() };
        let before = std::mem::replace(&mut self.text, Session::new(Protocol::Memcached, client));
        for index in 0..200 {
            let stats = self.core.cache().stats();
            assert_eq!(stats.evictions, 0);
            // The last ones are short, so that less is left than a long one takes.
            let len = if stats.free_units < 30 { LEN / 8 } else { LEN };
            if stats.free_units < FREE_UNITS {
                self.text = before;
                return;
            }
            assert_eq!(self.set(&format!("fill{index}"), len), "STORED\r\n");
            assert!(self.text(format!("get fill{index}\r\n").as_bytes()).starts_with("VALUE"));
        }
        panic!("it takes everything");
    }
}

/// A cache with this value; its memory cannot be had, as little as that of any other one.
fn full_with_k() -> Full {
    let mut full = Full::new();
    assert_eq!(full.set("k", LEN), "STORED\r\n");
    assert!(full.text(b"get k\r\n").starts_with("VALUE k"));
    full.fill();
    assert_eq!(full.resp(b"EXISTS k\r\n"), ":1\r\n");
    full
}

#[test]
fn an_expiry_that_cannot_be_changed_is_an_error_in_every_protocol() {
    let oom = "-OOM command not allowed when used memory > 'maxmemory'.\r\n";
    for said in ["EXPIRE k 100\r\n", "GETEX k EX 100\r\n", "PEXPIREAT k 2000000\r\n"] {
        assert_eq!(full_with_k().resp(said.as_bytes()), oom, "{said}");
    }
    let no_memory = "SERVER_ERROR out of memory storing object\r\n";
    for said in ["touch k 100\r\n", "gat 100 k other\r\n", "mg k v T100\r\n"] {
        assert_eq!(full_with_k().text(said.as_bytes()), no_memory, "{said}");
    }
    for opcode in [0x1c, 0x1d] {
        let mut said = vec![0x80, opcode, 0, 1, 4, 0, 0, 0, 0, 0, 0, 5];
        said.extend_from_slice(&[0; 12]);
        said.extend_from_slice(b"\0\0\0\x64k");
        let mut full = full_with_k();
        let mut binary =
            Session::new(Protocol::Memcached, ClientInfo { known: true, ..ClientInfo::default() });
        binary.feed(&mut full.core, &said);
        let answer = std::mem::take(&mut full.core.out).bytes;
        assert_eq!((answer[1], &answer[6..8]), (opcode, &[0, 0x82][..]), "out of memory");
    }
    // With room it is changed.
    let mut full = full_with_k();
    full.kept.clear();
    assert_eq!(full.resp(b"FLUSHALL\r\n"), "+OK\r\n");
    assert_eq!(full.set("k", LEN), "STORED\r\n");
    assert_eq!(full.resp(b"EXPIRE k 100\r\nTTL k\r\n"), ":1\r\n:100\r\n");
}

#[test]
fn a_long_value_whose_expiry_finds_no_room_is_not_stored() {
    let mut full = Full::new();
    let head = format!("*5\r\n$3\r\nSET\r\n$1\r\nk\r\n${LEN}\r\n");
    assert_eq!(full.resp(head.as_bytes()), "");
    assert_eq!(full.resp(&vec![b'v'; LEN]), "");
    full.fill();
    let answer = full.resp(b"\r\n$2\r\nEX\r\n$3\r\n100\r\n");
    assert_eq!(answer, "-OOM command not allowed when used memory > 'maxmemory'.\r\n");
    assert_eq!(full.resp(b"GET k\r\n"), "$-1\r\n");
}

/// It is placed by that, once, and not copied when its end comes later.
#[test]
fn a_long_value_by_memcached_expires_as_its_head_said() {
    let mut full = Full::new();
    let head = format!("set k 0 100 {LEN}\r\n");
    assert_eq!(full.text(head.as_bytes()), "");
    assert_eq!(full.text(&vec![b'v'; LEN]), "");
    // Seconds pass until its end has come.
    full.core.now += 7_000;
    assert_eq!(full.text(b"\r\n"), "STORED\r\n");
    assert_eq!(full.resp(b"TTL k\r\n"), ":93\r\n");
}
