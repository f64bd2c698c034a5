//! An engine, its disk and its clock, for tests.
#![allow(dead_code, reason = "each test file uses its part")]

use rackpool_core::master::{
    ConnId, Loader, Master, MasterConfig, State, StateError, StateWrite, Table,
};
use rackpool_core::placement::Policy;
use rackpool_core::seam::{Mutation, Probe};
use rackpool_core::wire::*;
use rackpool_core::{FrameIndex, GAddr, Generation, PageId, RackId, Result};
use std::collections::BTreeMap;

pub const LEASE_MS: u64 = 1000;
pub const LEASE: u64 = LEASE_MS * 1_000_000;

/// What a journal would hold.
pub type Disk = BTreeMap<(Table, Vec<u8>), Vec<u8>>;

/// A safeguard that the engine leaves out.
#[derive(Clone, Copy, Debug, Default)]
pub struct Without(pub Option<Mutation>);

impl Probe for Without {
    fn mutated(&self, mutation: Mutation) -> bool {
        self.0 == Some(mutation)
    }
}

pub struct World {
    pub master: Master<Without>,
    without: Without,
    pub disk: Disk,
    pub now: u64,
    conn_next: u64,
    id_next: u64,
}

fn store(disk: &mut Disk, writes: Vec<StateWrite>) {
    for StateWrite { table, key, value } in writes {
        match value {
            Some(value) => drop(disk.insert((table, key), value)),
            None => drop(disk.remove(&(table, key))),
        }
    }
}

pub fn load(disk: &Disk) -> Result<State, StateError> {
    let mut loader = Loader::default();
    for ((table, key), value) in disk {
        loader.insert(*table, key, value)?;
    }
    loader.finish()
}

fn engine(disk: &mut Disk, now: u64, without: Without) -> Master<Without> {
    let mut state = load(disk).expect("what was stored can be loaded");
    let term = state.begin_term();
    store(disk, vec![term]);
    let config = MasterConfig { lease_ms: LEASE_MS, policy: Policy::default(), seed: 1 };
    Master::with_probe(state, config, now, without)
}

impl World {
    pub fn new() -> Self {
        Self::without(None)
    }

    /// One with an engine that leaves a safeguard out.
    pub fn without(mutation: Option<Mutation>) -> Self {
        let without = Without(mutation);
        let mut disk = Disk::new();
        store(&mut disk, State::create([7, 8]).1);
        let now = 10 * LEASE;
        let master = engine(&mut disk, now, without);
        World { master, without, disk, now, conn_next: 1, id_next: 1 }
    }

    /// Everything in memory is gone; the disk stays.
    pub fn crash(&mut self) {
        self.now += 1;
        self.master = engine(&mut self.disk, self.now, self.without);
    }

    /// A lease passes in which the master runs; what it says meanwhile is not looked at.
    pub fn wait_for_a_lease(&mut self) {
        for _ in 0..4 {
            self.now += LEASE / 4;
            self.master.tick(self.now, &mut Vec::new());
        }
    }

    /// A connection that said hello.
    pub fn connect(&mut self) -> ConnId {
        let conn = ConnId(self.conn_next);
        self.conn_next += 1;
        let hello = MasterCall::Hello { version: WIRE_VERSION };
        assert!(matches!(self.call(conn, hello), Ok(MasterAnswer::Welcome { .. })));
        conn
    }

    /// Hands a call in; reads are answered at once.
    pub fn submit(
        &mut self,
        conn: ConnId,
        call: MasterCall,
    ) -> (u64, Option<Result<MasterAnswer>>) {
        let id = self.id_next;
        self.id_next += 1;
        let mut out = Vec::new();
        self.master.on_call(self.now, conn, MasterRequest { id, call }, &mut out);
        assert!(out.iter().all(|(to, reply)| *to == conn && reply.id == id));
        assert!(out.len() <= 1);
        (id, out.pop().map(|(_, reply)| reply.answer))
    }

    /// Stores what was proposed; the answers.
    pub fn commit(&mut self) -> Vec<(ConnId, MasterReply)> {
        let mut out = Vec::new();
        let batch = self.master.take_batch();
        let writes = self.master.apply(batch);
        store(&mut self.disk, writes);
        self.master.committed(&mut out);
        out
    }

    /// A call with its answer, stored if need be.
    pub fn call(&mut self, conn: ConnId, call: MasterCall) -> Result<MasterAnswer> {
        let (id, answer) = self.submit(conn, call);
        if let Some(answer) = answer {
            return answer;
        }
        let found = self.commit().into_iter().find(|(to, r)| *to == conn && r.id == id);
        found.expect("a mutating call is answered with its batch").1.answer
    }

    pub fn daemon(&mut self, info: RackInfo) -> ConnId {
        let conn = self.connect();
        self.call(conn, MasterCall::JoinDaemon(info)).expect("the join is admitted");
        conn
    }

    pub fn page_ids(&mut self, conn: ConnId, count: u64) -> PageId {
        match self.call(conn, MasterCall::LeasePageIds { count }) {
            Ok(MasterAnswer::PageIds { first, count: got }) if got == count => first,
            other => panic!("{other:?}"),
        }
    }

    pub fn resolve(&mut self, page: PageId) -> Resolved {
        let conn = self.connect();
        let answer = self.call(conn, MasterCall::Resolve { page, count: 1 });
        self.master.on_closed(conn);
        match answer {
            Ok(MasterAnswer::Homes(homes)) => homes[0],
            other => panic!("{other:?}"),
        }
    }

    pub fn rack(&mut self, rack: u16) -> RackInfo {
        let conn = self.connect();
        let Ok(MasterAnswer::Racks(racks)) = self.call(conn, MasterCall::Racks) else { panic!() };
        racks.into_iter().find(|info| info.rack == RackId(rack)).unwrap()
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

pub fn code<T: std::fmt::Debug>(result: Result<T>) -> &'static str {
    result.expect_err("a refusal").code()
}
