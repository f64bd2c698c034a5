//! `bench migrate` with real client processes. The racks are threads here.

use crate::this_program;
use rackpool::daemon::{DaemonOptions, DaemonServer};
use rackpool::master::{MasterOptions, MasterServer};
use rackpool_bench::migrate::{self, Options, Racks, Wanted};
use rackpool_bench::run::{BenchError, PoolSource, Size};

pub const CLIENT: &str = "migrate-client";

pub fn test() {
    each_load_runs_under_each_policy_and_no_byte_is_foreign();
}

/// In threads of this process; the daemons leave the master before it goes.
struct Threads {
    daemons: Vec<DaemonServer>,
    master: Option<MasterServer>,
    state: std::path::PathBuf,
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.daemons.clear();
        self.master = None;
        std::fs::remove_dir_all(&self.state).expect("the master's state is there");
    }
}

fn racks(wanted: &Wanted) -> Result<Racks, BenchError> {
    let state = std::env::temp_dir().join(format!("rackpool-migrate-{}", std::process::id()));
    let options = MasterOptions::new("127.0.0.1:0", &state);
    let server = MasterServer::start(options)?;
    let master = server.local_addr().to_string();
    let mut threads = Threads { daemons: Vec::new(), master: Some(server), state };
    for rack in 0..2 {
        let memory = format!("heap?size={}&pages={}", wanted.rack_bytes, wanted.page_bytes);
        let mut options = DaemonOptions::new(rack, &master, &memory);
        options.ephemeral = true;
        options.migration = wanted.policy;
        threads.daemons.push(DaemonServer::start(options)?);
    }
    let source = PoolSource { master: Some(master), ..PoolSource::default() };
    Ok(Racks { source, guard: Box::new(threads) })
}

fn each_load_runs_under_each_policy_and_no_byte_is_foreign() {
    let options =
        Options { size: Size::Smoke, page_bytes: vec![4 << 10, 64 << 10], ..Options::default() };
    let mut started = 0;
    let mut command = |_| {
        started += 1;
        this_program(CLIENT)
    };
    let report = migrate::run(&options, &mut racks, &mut command, &mut |_| ());
    let report = report.expect("the run succeeds");
    // Four policies, then three, four and two, with two page sizes and two clients each.
    assert_eq!(started, 13 * 2 * 2);
    for name in [
        "zipf_own_hot_set_migration_gain",
        "cost_over_paper_own_hot_set",
        "cost_over_paper_same_hot_set",
        "oracle_gain_share",
        "uniform_migration_share",
        "even_page_moves",
        "zipf_own_hot_set_migration_gain_65536B",
    ] {
        let row = report.results.iter().find(|row| row.name == name);
        let row = row.unwrap_or_else(|| panic!("{name} is missing:\n{}", report.table()));
        assert!(row.ours.is_finite() && row.n == 1, "{row:?}");
    }
    let gain = &report.results[0];
    assert!(gain.ours > 0.0 && gain.peer > Some(0.0) && gain.ratio > Some(0.0), "{gain:?}");
}
