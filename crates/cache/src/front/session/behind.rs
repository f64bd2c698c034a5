//! Commands whose items lie behind the cache's memory: such a command waits, with nothing of it
//! done, while other connections are served; when its items are back it is executed as any other.
//! What did not come back is a miss.

use super::{Dialect, ParseStep, Pending, Session};
use crate::constants::{FETCH_KEYS_MAX, FETCH_TRIES_MAX};
use crate::front::binary::BinaryRequest;
use crate::front::binary_run::Opcode;
use crate::front::commands;
use crate::front::core::Core;
use crate::front::jobs::JobEnd;
use crate::front::outcome::Verb;
use crate::front::resp::Args;
use crate::front::text::{Command, Store, WordIter, line_words};
use std::sync::Arc;

impl Session {
    /// Has items of these keys come back; whether there are any: the command waits for them.
    fn fetch<'k>(
        &mut self,
        core: &mut Core,
        input: &[u8],
        keys: impl Iterator<Item = &'k [u8]>,
    ) -> bool {
        let (tries, is_store) = (std::mem::take(&mut self.fetches), core.cache().has_store());
        if tries > 0 && !is_store {
            return false;
        }
        // What was stored before is not looked for.
        if !core.sets.is_empty() {
            core.flush_batch(input);
        }
        let (cache, now) = (core.cache(), core.now);
        let mut behind = keys.take(FETCH_KEYS_MAX).filter(|key| cache.lies_behind(key, now));
        let Some(first) = behind.next() else { return false };
        if tries >= FETCH_TRIES_MAX {
            self.lose_store(core, "an item cannot be read");
            return true;
        }
        let (job, end) = JobEnd::begin(core);
        for key in std::iter::once(first).chain(behind) {
            let (shared, end) = (Arc::clone(&core.shared), Arc::clone(&end));
            cache.fetch(key, move || shared.look_at_clock(), move || drop(end));
        }
        drop(end);
        (self.pending, self.fetches) = (Pending::Fetch(job), tries + 1);
        true
    }

    /// Whether the next command waits until the store behind memory keeps up.
    pub(super) fn waits_for_store(&mut self, core: &Core) -> bool {
        if !matches!(self.pending, Pending::None) {
            return false;
        }
        let Some(change) = core.cache().store_is_behind() else { return false };
        let (job, end) = JobEnd::begin(core);
        core.cache().when_durable(change, move |_| drop(end));
        self.pending = Pending::Fetch(job);
        true
    }

    /// The store behind memory has failed a command: what became of it is not known, and the
    /// connection ends.
    pub fn lose_store(&mut self, core: &mut Core, why: &str) {
        match self.dialect {
            Dialect::Resp => core.fail(&format!("ERR the store behind memory has failed: {why}")),
            Dialect::Text | Dialect::Memcached => {
                let text = format!("SERVER_ERROR the store behind memory has failed: {why}\r\n");
                core.out.bytes.extend_from_slice(text.as_bytes());
            }
            // Its answers bear the numbers of requests.
            Dialect::Binary => {}
        }
        self.closing = true;
    }

    /// Looks whether what the command at `rest` waits for is there.
    pub(super) fn fetching(&mut self, rest: &[u8]) -> ParseStep {
        match &self.pending {
            Pending::Fetch(job) if !job.is_done() => ParseStep::Need(rest.len() + 1),
            _ => {
                self.pending = Pending::None;
                ParseStep::Used(0)
            }
        }
    }

    /// Whether a command of RESP at `at` waits.
    pub(super) fn fetches_resp(
        &mut self,
        core: &mut Core,
        args: &Args,
        input: &[u8],
        at: usize,
    ) -> bool {
        let rest = &input[at..];
        if !core.cache().has_backing() || !self.client.known || args.is_empty() {
            return false;
        }
        if self.client.has_begun() {
            // What waits for it is one step then, with what is in memory.
            if !args.get(rest, 0).eq_ignore_ascii_case(b"exec") {
                return false;
            }
            let keys = self.client.queued_keys(core.shared.settings.databases);
            return self.fetch(core, input, keys.iter().map(Vec::as_slice));
        }
        if args.len() == 2 && args.get(rest, 0).eq_ignore_ascii_case(b"get") {
            return self.fetch(core, input, std::iter::once(args.get(rest, 1)));
        }
        let Some(command) = commands::named(args, rest, 0) else { return false };
        // A plain store asks for nothing.
        if !command.takes(args.len()) || (command == commands::SET && args.len() == 3) {
            return false;
        }
        let named = command.keys(args.len());
        let told = commands::keys_told(command, args, rest);
        self.fetch(core, input, named.chain(told).map(|word| args.get(rest, word)))
    }

    /// Whether a store of the text protocol waits: one that depends on what is there.
    pub(super) fn fetches_store(
        &mut self,
        core: &mut Core,
        store: &Store<'_>,
        input: &[u8],
    ) -> bool {
        let depends = store.verb != Verb::Set || store.meta.is_some();
        depends
            && core.cache().has_backing()
            && self.fetch(core, input, std::iter::once(store.key()))
    }

    /// Whether another command of the text protocol waits, which begins at `at`.
    pub(super) fn fetches_text(
        &mut self,
        core: &mut Core,
        command: &Command<'_>,
        input: &[u8],
        at: usize,
    ) -> bool {
        if !core.cache().has_backing() {
            return false;
        }
        match command {
            Command::Get(get) => self.fetch(core, input, WordIter(get.keys.0)),
            Command::Meta(meta) => self.fetch(core, input, std::iter::once(meta.key.bytes())),
            Command::Delete(_) | Command::Count(_) | Command::Touch(..) => {
                self.fetch(core, input, line_words(&input[at..]).skip(1).take(1))
            }
            _ => false,
        }
    }

    /// Whether a request of the binary protocol waits.
    pub(super) fn fetches_binary(
        &mut self,
        core: &mut Core,
        request: &BinaryRequest<'_>,
        opcode: Opcode,
        input: &[u8],
    ) -> bool {
        let depends = !matches!(opcode, Opcode::Store(Verb::Set)) || request.cas != 0;
        depends
            && core.cache().has_backing()
            && self.fetch(core, input, std::iter::once(request.key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::{BackingStore, Cache, FetchDone, KeptItem, KeptWith, LeavingItem, Options};
    use crate::front::clients::ClientInfo;
    use crate::front::shared::{Protocol, Settings, Shared};
    use std::collections::BTreeMap;
    use std::sync::Mutex;

    /// Has an item of each key; a read waits until the test goes on.
    #[derive(Debug, Default)]
    struct Behind(Mutex<BehindState>);

    #[derive(Default)]
    struct BehindState {
        gone: Vec<u64>,
        are_all_gone: bool,
        reads: BTreeMap<Vec<u8>, FetchDone>,
    }

    impl std::fmt::Debug for BehindState {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            write!(f, "{} reads", self.reads.len())
        }
    }

    impl Behind {
        fn reads(&self) -> BTreeMap<Vec<u8>, FetchDone> {
            std::mem::take(&mut self.0.lock().unwrap().reads)
        }

        /// The reads that wait are done; of which keys.
        fn go_on(&self) -> Vec<String> {
            let read = |(key, done): (Vec<u8>, FetchDone)| {
                let with = KeptWith { flags: 7, cas: 9, ..KeptWith::default() };
                done(Some(KeptItem { value: b"41".to_vec(), with, version: 0 }));
                String::from_utf8(key).unwrap()
            };
            self.reads().into_iter().map(read).collect()
        }
    }

    impl BackingStore for Behind {
        fn admits(&self, _: u64, _: u64, _: bool) -> bool {
            false
        }

        fn keep(&self, _: &LeavingItem<'_>) {}

        fn forget(&self, hash: u64) -> u64 {
            self.0.lock().unwrap().gone.push(hash);
            0
        }

        fn forget_all(&self) -> u64 {
            self.0.lock().unwrap().are_all_gone = true;
            0
        }

        fn contains(&self, hash: u64) -> bool {
            let state = self.0.lock().unwrap();
            !state.are_all_gone && !state.gone.contains(&hash)
        }

        fn is_current(&self, hash: u64, _: &KeptItem) -> bool {
            self.contains(hash)
        }

        fn fetch(&self, _: u64, key: &[u8], told: FetchDone) {
            self.0.lock().unwrap().reads.insert(key.to_vec(), told);
        }
    }

    /// A thread that serves, with what is behind its cache.
    struct Rig {
        behind: Arc<Behind>,
        core: Core,
    }

    impl Rig {
        fn new() -> Rig {
            let behind = Arc::new(Behind::default());
            let store: Arc<dyn BackingStore> = behind.clone();
            let options = Options { memory: 4 << 20, ..Options::default() };
            let cache = Cache::new(options).unwrap().with_backing(store);
            let shared = Arc::new(Shared::new(cache, Settings::default(), (0, 1)));
            Rig { behind, core: Core::new(shared, 0, 1_700_000_000_000) }
        }

        /// Feeds commands until one waits; what is left of them, and the answers.
        fn feed(&mut self, session: &mut Session, input: &[u8]) -> (Vec<u8>, String) {
            let (mut rest, mut said) = (input.to_vec(), Vec::new());
            while !rest.is_empty() {
                let used = session.feed(&mut self.core, &rest);
                rest.drain(..used);
                said.extend_from_slice(self.core.out.own_bytes().expect("no answer is long"));
                self.core.out.clear();
                if session.job().is_some_and(|job| !job.is_done()) {
                    assert!(session.need() > rest.len());
                    break;
                }
            }
            (rest, String::from_utf8(said).unwrap())
        }
    }

    fn session(protocol: Protocol) -> Session {
        Session::new(protocol, ClientInfo { known: true, ..ClientInfo::default() })
    }

    /// Feeds commands; the keys that were read for each wait, and all answers.
    fn answers(protocol: Protocol, input: &[u8]) -> (Vec<Vec<String>>, String) {
        let (mut rig, mut session) = (Rig::new(), session(protocol));
        let (mut rest, mut said) = rig.feed(&mut session, input);
        let mut waits = Vec::new();
        while !rest.is_empty() {
            let job = session.job().cloned().unwrap();
            // Nothing goes on before.
            assert_eq!(session.feed(&mut rig.core, &rest), 0);
            waits.push(rig.behind.go_on());
            assert!(job.is_done());
            let (left, more) = rig.feed(&mut session, &rest);
            rest = left;
            said += &more;
        }
        (waits, said)
    }

    #[test]
    fn commands_of_redis_wait_for_their_items_and_find_them() {
        let input = b"SET a 1\r\nGET a\r\nGET b\r\nINCR c\r\nMGET a d e\r\nDEL f\r\nGET f\r\n\
                      EXISTS g g\r\nSET h 1 NX\r\nPING\r\n";
        let (waits, said) = answers(Protocol::Resp, input);
        let wanted = [vec!["b"], vec!["c"], vec!["d", "e"], vec!["f"], vec!["g"], vec!["h"]];
        assert_eq!(waits, wanted);
        let wanted = "+OK\r\n$1\r\n1\r\n$2\r\n41\r\n:42\r\n\
                      *3\r\n$1\r\n1\r\n$2\r\n41\r\n$2\r\n41\r\n\
                      :1\r\n$-1\r\n:2\r\n$-1\r\n+PONG\r\n";
        assert_eq!(said, wanted);
    }

    #[test]
    fn what_asks_for_no_value_waits_too_and_a_hash_does_not_take_the_place_of_a_string() {
        let input = b"RENAME a b\r\nGET b\r\nGET a\r\nTTL c\r\nEXPIRE c 100\r\nTTL c\r\n\
                      OBJECT ENCODING d\r\nAPPEND e x\r\nHSET f g 1\r\nGETDEL h\r\nGET h\r\n\
                      WATCH i\r\nMULTI\r\nGET i\r\nEXEC\r\nSELECT 1\r\nGET j\r\n";
        let (waits, said) = answers(Protocol::Resp, input);
        let wanted =
            [vec!["a", "b"], vec!["c"], vec!["d"], vec!["e"], vec!["f"], vec!["h"], vec!["i"]];
        assert_eq!(waits, wanted);
        let wanted = "+OK\r\n$2\r\n41\r\n$-1\r\n:-1\r\n:1\r\n:100\r\n$3\r\nint\r\n:3\r\n\
                      -WRONGTYPE Operation against a key holding the wrong kind of value\r\n\
                      $2\r\n41\r\n$-1\r\n\
                      +OK\r\n+OK\r\n+QUEUED\r\n*1\r\n$2\r\n41\r\n+OK\r\n$-1\r\n";
        assert_eq!(said, wanted);
    }

    #[test]
    fn what_waits_for_exec_has_its_keys_come_back_before_it_is_one_step() {
        let input = b"MULTI\r\nGET a\r\nSELECT 1\r\nGET b\r\nSELECT 0\r\nINCR c\r\nEXEC\r\n";
        let (waits, said) = answers(Protocol::Resp, input);
        let queued = "+QUEUED\r\n".repeat(5);
        let wanted = format!("+OK\r\n{queued}*5\r\n$2\r\n41\r\n+OK\r\n$-1\r\n+OK\r\n:42\r\n");
        assert_eq!((waits, said), (vec![vec!["a".to_owned(), "c".to_owned()]], wanted));
    }

    #[test]
    fn commands_of_memcached_wait_for_their_items_and_find_them() {
        let input = b"set a 0 0 1\r\n1\r\nget a b\r\nincr c 1\r\nadd d 0 0 1\r\n1\r\ndelete e\r\n\
                      get e\r\ncas f 0 0 1 9\r\n2\r\nmg g v\r\ngat 100 h\r\ntouch i 100\r\n\
                      gets j\r\nappend k 0 0 1\r\nx\r\nget k\r\n";
        let (waits, said) = answers(Protocol::Memcached, input);
        let keys = ["b", "c", "d", "e", "f", "g", "h", "i", "j", "k"];
        assert_eq!(waits, keys.map(|key| vec![key]));
        let wanted = "STORED\r\nVALUE a 0 1\r\n1\r\nVALUE b 7 2\r\n41\r\nEND\r\n\
                      42\r\nNOT_STORED\r\n\
                      DELETED\r\nEND\r\nSTORED\r\nVA 2\r\n41\r\n\
                      VALUE h 7 2\r\n41\r\nEND\r\nTOUCHED\r\n\
                      VALUE j 7 2 9\r\n41\r\nEND\r\nSTORED\r\nVALUE k 7 3\r\n41x\r\nEND\r\n";
        assert_eq!(said, wanted);
    }

    #[test]
    fn what_others_do_meanwhile_is_what_a_command_that_waited_finds() {
        for (others, found) in [
            (&b"SET a new\r\n"[..], "$3\r\nnew\r\n"),
            (b"SETEX a 1000000000 soon\r\n", "$4\r\nsoon\r\n"),
            (b"FLUSHALL\r\n", "$-1\r\n"),
            (b"FLUSHDB\r\n", "$-1\r\n"),
            (b"SWAPDB 0 1\r\n", "$-1\r\n"),
            (b"MULTI\r\nDEL a\r\nEXEC\r\n", "$-1\r\n"),
            (b"SELECT 3\r\nSET a other\r\nSWAPDB 0 3\r\n", "$5\r\nother\r\n"),
        ] {
            let mut rig = Rig::new();
            let [mut one, mut other] = [(); 2].map(|()| session(Protocol::Resp));
            let (rest, said) = rig.feed(&mut one, b"GET a\r\n");
            assert_eq!((rest.len(), said.as_str()), (7, ""));
            // A store that asks for what is there reads it too; that one is not answered here.
            let reads = rig.behind.reads();
            let (rest, _) = rig.feed(&mut other, others);
            if !rest.is_empty() {
                rig.behind.go_on();
                assert!(rig.feed(&mut other, &rest).0.is_empty());
            }
            for (_, done) in reads {
                let with = KeptWith::default();
                done(Some(KeptItem { value: b"41".to_vec(), with, version: 0 }));
            }
            let what = String::from_utf8_lossy(others);
            assert_eq!(rig.feed(&mut one, b"GET a\r\n"), (Vec::new(), found.into()), "{what}");
        }
    }

    #[test]
    fn where_too_many_wait_it_is_a_miss() {
        let (mut rig, mut session) = (Rig::new(), session(Protocol::Resp));
        let input = b"GET a\r\nINCR b\r\nPING\r\n";
        let (rest, said) = rig.feed(&mut session, input);
        assert_eq!(said, "");
        drop(rig.behind.reads());
        let (rest, said) = rig.feed(&mut session, &rest);
        assert_eq!(said, "$-1\r\n");
        drop(rig.behind.reads());
        assert_eq!(rig.feed(&mut session, &rest), (Vec::new(), ":1\r\n+PONG\r\n".into()));
    }
}
