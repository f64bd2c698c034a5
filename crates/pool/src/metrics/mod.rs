//! The counters as text in the exposition format of Prometheus (version 0.0.4), and the endpoint
//! that serves them. In: snapshots of counters. Out: text; nothing here counts. Other servers of
//! rackpool, as the cache, report theirs by [`Text`] and [`Endpoint`] too.
//!
//! Names: `rackpool_` and what counts (`rack`, `master`, `handle`, `kv`), counters end in `_total`.
//! A daemon reports its own, the master its own and what is alive, `stats` all of them; every
//! server of its process ([`Text::process`]).

mod http;

pub use http::{Endpoint, Page, Pages};
pub(crate) use http::{Place, SnapshotRequests, start};

use crate::paths::{PathCounts, PathStats};
use crate::stats::{HandleStats, PoolStats};
use rackpool_core::RackId;
use rackpool_core::tier::{TierReport, TierStats};
use rackpool_core::wire::{DaemonStats, MasterStats, RackInfo};
use std::fmt::{Display, Write};

/// A counter that has no label of its own: name, whether it only grows, what it says, its value.
type Metric<T> = (&'static str, Kind, &'static str, fn(&T) -> u64);

/// What a metric is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Goes up and down.
    Gauge,
    /// Only grows, while the process lives.
    Counter,
    /// Durations by how long they were.
    Histogram,
}

macro_rules! metrics {
    ($($name:literal $kind:ident $help:literal, $($field:ident).+;)*) => {
        &[$(($name, Kind::$kind, $help, |of| of.$($field).+)),*]
    };
}

const RACK: &[Metric<DaemonStats>] = metrics! {
    "epoch" Gauge "Attach count of the region", epoch;
    "page_bytes" Gauge "Size of a page", page_bytes;
    "frames" Gauge "Frames in all", frames;
    "frames_free" Gauge "Frames that are free", frames_free;
    "frames_backable" Gauge "Free frames that the host has memory for", frames_backable;
    "frames_quarantined" Gauge
        "Frames that wait for a stopped reader or writer", frames_quarantined;
    "frames_slab" Gauge "Frames that hold slabs", frames_slab;
    "allocated_bytes" Gauge "Bytes of live allocations", allocated_bytes;
    "allocations" Gauge "Live allocations", allocations;
    "client_quota_bytes" Gauge "What one client may have, 0 for no limit", client_quota_bytes;
    "client_held_bytes_max" Gauge
        "The most that one client has of its quota", client_held_bytes_max;
    "metadata_bytes" Gauge "Backed bytes of the metadata", metadata_bytes;
    "metadata_check_rounds_total" Counter "Times all metadata was compared", metadata.rounds;
    "metadata_repaired_total" Counter
        "Metadata words repaired from their copies", metadata.repaired;
    "metadata_damaged" Gauge "Metadata words lost, their memory not handed out", metadata.damaged;
    "slots_used" Gauge "Slots of local clients in use", slots_used;
    "remote_sessions" Gauge "Sessions of remote clients known", remote_sessions;
    "locks_held" Gauge "Locks that are held", locks_held;
    "lock_waiters" Gauge "Requests that wait for a lock", lock_waiters;
    "heat_pages" Gauge "Pages of which use is known", moves.heat_pages;
    "moves_asked_total" Counter "Pages that this rack asked others for", moves.asked;
    "moved_bytes_total" Counter "Bytes of pages moved for this rack", moves.moved_bytes;
    "moves_failed_total" Counter "Pages that could not be moved for this rack", moves.failed;
    "frames_replicas" Gauge "Frames of replicas, a cache that gives way", replicas.frames;
    "shared_pages" Gauge "Pages with replicas", replicas.shared_pages;
    "replicas_made_total" Counter "Replicas made", replicas.made;
    "replicas_dropped_total" Counter "Replicas that ended", replicas.dropped;
    "replica_updates_total" Counter "Writes sent to replicas", replicas.updates;
    "replica_waits_total" Counter "Requests that replicas held up", replicas.waited;
    "replica_leases_total" Counter
        "Leases of replicas that were waited for", replicas.leases_waited;
    "sessions_made_total" Counter "Sessions made", sessions_made;
    "sessions_reaped_total" Counter "Sessions ended", sessions_reaped;
    "allocations_total" Counter "Allocations answered", answers.allocated;
    "frees_total" Counter "Frees answered", answers.freed;
    "locks_total" Counter "Locks granted", answers.locked;
    "fabric_operations_total" Counter "Operations served to other racks", fabric.operations;
    "fabric_sent_bytes_total" Counter "Bytes sent to other racks", fabric.sent_bytes;
    "fabric_received_bytes_total" Counter "Bytes received from other racks", fabric.received_bytes;
    "fabric_send_calls_total" Counter "System calls that sent", fabric.send_calls;
    "proxy_uplinks" Gauge "Connections shared by proxied clients", proxy.uplinks;
    "proxy_channels" Gauge "Channels of proxied clients", proxy.channels;
    "proxy_operations_total" Counter "Proxied operations", proxy.operations;
    "fabric_receive_calls_total" Counter "System calls that received", fabric.receive_calls;
    "fabric_connections" Gauge "Connections of others", fabric.connections;
};

const TIER: &[Metric<TierStats>] = metrics! {
    "tier_frames" Gauge "Frames of one of the rack's memories, if it has several", frames;
    "tier_frames_free" Gauge "Of these, the ones that are free", frames_free;
};

const MASTER: &[Metric<MasterStats>] = metrics! {
    "pages" Gauge "Pages in the directory", pages;
    "pages_lost" Gauge "Pages on regions that are gone", pages_lost;
    "roots" Gauge "Named roots", roots;
    "daemons" Gauge "Daemons that are alive", daemons;
    "clients" Gauge "Clients connected", clients;
    "answers_total" Counter "Requests answered", requests;
    "commands_total" Counter "Commands applied since the pool was made", index;
};

const HANDLE: &[Metric<HandleStats>] = metrics! {
    "ring_requests_total" Counter "Requests through rings", ring_requests;
    "master_requests_total" Counter "Requests to the master", master_requests;
    "fabric_operations_total" Counter "Operations and messages of the fabric", fabric_operations;
    "fabric_send_calls_total" Counter "System calls that sent", fabric_send_calls;
    "fabric_receive_calls_total" Counter "System calls that received", fabric_receive_calls;
    "buffered_writes_total" Counter
        "Writes buffered under locks of ranges", coupled.buffered_writes;
    "buffered_bytes_total" Counter "Bytes of buffered writes", coupled.buffered_bytes;
    "flushes_total" Counter "Halves of the write buffer brought home", coupled.flushes;
    "flush_batches_total" Counter "Doorbells of those", coupled.flush_batches;
    "buffer_reads_total" Counter "Reads served by the write buffer", coupled.buffer_reads;
    "cache_hits_total" Counter "Reads served by the page cache", coupled.cache_hits;
    "cache_misses_total" Counter "Blocks read by the page cache", coupled.cache_misses;
};

const PATH: &[Metric<PathCounts>] = metrics! {
    "accesses_total" Counter "Accesses by path", accesses;
    "access_bytes_total" Counter "Bytes of accesses by path", bytes;
    "accesses_failed_total" Counter "Calls that failed by path", failed;
};

/// The counters of a whole pool, as `stats --prometheus` prints them.
pub(crate) fn pool_text(stats: &PoolStats) -> String {
    let mut text = Text::default();
    text.master(&stats.master);
    let up = stats.racks.iter().map(|rack| (rack.rack, rack.alive));
    text.racks_up(up);
    let asked: Vec<&DaemonStats> = stats.racks.iter().filter_map(|r| r.daemon.as_ref()).collect();
    text.racks(&asked);
    let tiers = stats.racks.iter().map(|rack| (rack.rack, &rack.tiers));
    text.tiers(&tiers.filter(|(_, tiers)| !tiers.is_empty()).collect::<Vec<_>>());
    text.plain("handle", HANDLE, &stats.handle);
    text.paths(&stats.handle.paths);
    text.out
}

/// What a daemon reports of itself: its counters, and whether the master knows it.
pub(crate) struct DaemonSnapshot {
    pub stats: DaemonStats,
    pub tiers: TierReport,
    pub is_joined: bool,
}

pub(crate) fn daemon_text(DaemonSnapshot { stats, tiers, .. }: &DaemonSnapshot) -> String {
    let mut text = Text::default();
    text.process("daemon");
    text.racks(&[stats]);
    let tiers = (!tiers.is_empty()).then_some((stats.rack, tiers));
    text.tiers(tiers.as_slice());
    text.out
}

/// Why a daemon should not be sent clients.
pub(crate) fn daemon_ready(daemon: &DaemonSnapshot) -> Result<(), String> {
    if daemon.is_joined { Ok(()) } else { Err("the master does not answer".into()) }
}

/// What an agent reports of itself.
pub(crate) struct AgentSnapshot {
    pub rack: u16,
    pub clients: u64,
    pub has_daemon: bool,
}

pub(crate) fn agent_text(agent: &AgentSnapshot) -> String {
    let mut text = Text::default();
    text.process("agent");
    text.one("agent_rack", Kind::Gauge, "The rack whose memory is shared", agent.rack.into());
    text.one("agent_clients", Kind::Gauge, "Clients of this host", agent.clients);
    let help = "Whether the rack's daemon is connected";
    text.one("agent_daemon_up", Kind::Gauge, help, agent.has_daemon.into());
    text.out
}

/// Why an agent should not be sent clients.
pub(crate) fn agent_ready(agent: &AgentSnapshot) -> Result<(), String> {
    if agent.has_daemon { Ok(()) } else { Err("the rack's daemon does not answer".into()) }
}

/// What a master reports of itself.
pub(crate) type MasterSnapshot = (MasterStats, Vec<RackInfo>);

/// Why a master should not be asked for changes.
pub(crate) fn master_ready((stats, _): &MasterSnapshot) -> Result<(), String> {
    match stats.storage_full {
        true => Err("the state's disk is full: no change is taken".to_owned()),
        false => Ok(()),
    }
}

/// The master's own counters, and which racks are alive.
pub(crate) fn master_text((stats, racks): &MasterSnapshot) -> String {
    let mut text = Text::default();
    text.process("master");
    text.master(stats);
    text.racks_up(racks.iter().map(|info| (info.rack, info.alive)));
    text.out
}

/// Text under way. All samples of a metric stand together, behind what it means.
///
/// ```
/// use rackpool::metrics::{Kind, Text};
/// let mut text = Text::default();
/// text.one("kv_items", Kind::Gauge, "Items", 3);
/// let expected = "# HELP rackpool_kv_items Items\n# TYPE rackpool_kv_items gauge\n\
///                 rackpool_kv_items 3\n";
/// assert_eq!(text.finish(), expected);
/// ```
#[derive(Debug, Default)]
pub struct Text {
    out: String,
}

impl Text {
    /// The text.
    pub fn finish(self) -> String {
        self.out
    }

    /// A metric without labels. Its name goes without `rackpool_`.
    pub fn one(&mut self, name: &str, kind: Kind, help: &str, value: u64) {
        self.head(name, kind, help);
        self.line(format_args!("rackpool_{name} {value}"));
    }

    /// A metric with one label, by whose values it is counted.
    pub fn by(
        &mut self,
        name: &str,
        kind: Kind,
        help: &str,
        label: &str,
        values: impl Iterator<Item = (impl Display, u64)>,
    ) {
        self.head(name, kind, help);
        for (word, value) in values {
            self.line(format_args!("rackpool_{name}{{{label}=\"{word}\"}} {value}"));
        }
    }

    /// Durations without labels: the end of each bucket in ns, `None` for the last one, how many
    /// are in it; and the sum of all, ns.
    pub fn durations(
        &mut self,
        name: &str,
        help: &str,
        buckets: impl Iterator<Item = (Option<u64>, u64)>,
        sum_ns: u64,
    ) {
        self.head(name, Kind::Histogram, help);
        self.buckets(name, "", buckets, sum_ns);
    }

    /// What every server reports of its process: which release it is of, and what went wrong in it
    /// that ended nothing.
    pub fn process(&mut self, server: &str) {
        self.head("build_info", Kind::Gauge, "The release, and what the process serves as");
        let version = env!("CARGO_PKG_VERSION");
        self.line(format_args!(
            "rackpool_build_info{{version=\"{version}\",server=\"{server}\"}} 1"
        ));
        let help = "Times that a disk, or the share of it that is ours, was full";
        self.one("disk_full_total", Kind::Counter, help, rackpool_mem::counted::disk_full());
        let lines = rackpool_mem::log::counts();
        let help = "Lines written to the log";
        self.one("log_lines_total", Kind::Counter, help, lines.written);
        let help = "Lines of the log that were held back or could not be written";
        self.one("log_lines_dropped_total", Kind::Counter, help, lines.dropped);
    }

    fn buckets(
        &mut self,
        name: &str,
        label: &str,
        buckets: impl Iterator<Item = (Option<u64>, u64)>,
        sum_ns: u64,
    ) {
        let (open, close, comma) = if label.is_empty() { ("", "", "") } else { ("{", "}", ",") };
        let mut below = 0;
        for (end_ns, count) in buckets {
            below += count;
            let le = end_ns.map_or("+Inf".to_owned(), seconds);
            self.line(format_args!("rackpool_{name}_bucket{{{label}{comma}le=\"{le}\"}} {below}"));
        }
        let sum = seconds(sum_ns);
        self.line(format_args!("rackpool_{name}_sum{open}{label}{close} {sum}"));
        self.line(format_args!("rackpool_{name}_count{open}{label}{close} {below}"));
    }

    fn head(&mut self, name: &str, kind: Kind, help: &str) {
        let kind = match kind {
            Kind::Gauge => "gauge",
            Kind::Counter => "counter",
            Kind::Histogram => "histogram",
        };
        self.line(format_args!("# HELP rackpool_{name} {help}"));
        self.line(format_args!("# TYPE rackpool_{name} {kind}"));
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        writeln!(self.out, "{line}").expect("a string takes everything");
    }

    fn plain<T>(&mut self, prefix: &str, metrics: &[Metric<T>], of: &T) {
        for (name, kind, help, value) in metrics {
            self.one(&format!("{prefix}_{name}"), *kind, help, value(of));
        }
    }

    fn master(&mut self, stats: &MasterStats) {
        self.plain("master", MASTER, stats);
        self.head("master_calls_total", Kind::Counter, "Calls by kind");
        for (kind, count) in stats.calls_by_kind.by_kind() {
            self.line(format_args!("rackpool_master_calls_total{{kind=\"{kind}\"}} {count}"));
        }
        self.head("master_refusals_total", Kind::Counter, "Refusals by the word of their error");
        for (code, count) in &stats.refused.0 {
            self.line(format_args!("rackpool_master_refusals_total{{code=\"{code}\"}} {count}"));
        }
        self.head("rack_standing", Kind::Gauge, "What racks are that do not just serve");
        for (rack, standing) in &stats.standings {
            let standing = standing.name();
            self.line(format_args!(
                "rackpool_rack_standing{{rack=\"{rack}\",standing=\"{standing}\"}} 1"
            ));
        }
    }

    fn racks_up(&mut self, racks: impl Iterator<Item = (RackId, bool)>) {
        self.head("rack_up", Kind::Gauge, "Whether the rack's daemon is connected to the master");
        for (rack, alive) in racks {
            let up = u8::from(alive);
            self.line(format_args!("rackpool_rack_up{{rack=\"{rack}\"}} {up}"));
        }
    }

    fn racks(&mut self, racks: &[&DaemonStats]) {
        for (name, kind, help, value) in RACK {
            self.head(&format!("rack_{name}"), *kind, help);
            for stats in racks {
                let (rack, value) = (stats.rack, value(stats));
                self.line(format_args!("rackpool_rack_{name}{{rack=\"{rack}\"}} {value}"));
            }
        }
        self.head("rack_requests_total", Kind::Counter, "Requests of clients by kind");
        for stats in racks {
            for (kind, count) in stats.requests_by_kind.by_kind() {
                self.labelled("rack_requests_total", stats, ("kind", kind), count);
            }
        }
        self.head("rack_refusals_total", Kind::Counter, "Refusals by the word of their error");
        for stats in racks {
            for (code, count) in &stats.answers.refused {
                self.labelled("rack_refusals_total", stats, ("code", code), *count);
            }
        }
        self.head("rack_decisions_total", Kind::Counter, "Decisions about pages of the rack");
        for stats in racks {
            let moves = &stats.moves;
            let done = [
                ("move", moves.decided_move),
                ("swap", moves.decided_swap),
                ("copy", moves.decided_copy),
            ];
            let left = moves.left.iter().map(|(reason, count)| (reason.as_str(), *count));
            for (decision, count) in done.into_iter().chain(left) {
                self.labelled("rack_decisions_total", stats, ("decision", decision), count);
            }
        }
    }

    /// Of racks with several memories, or one and a spill file.
    fn tiers(&mut self, racks: &[(RackId, &TierReport)]) {
        for (name, kind, help, value) in TIER {
            let name = format!("rack_{name}");
            self.head(&name, *kind, help);
            for (rack, report) in racks {
                for (number, tier) in report.tiers.iter().enumerate() {
                    let value = value(tier);
                    let label = if tier.is_file() { "spill".into() } else { number.to_string() };
                    self.line(format_args!(
                        "rackpool_{name}{{rack=\"{rack}\",tier=\"{label}\"}} {value}"
                    ));
                }
            }
        }
        self.head("rack_tier_moves_total", Kind::Counter, "Pages moved between memories");
        for (rack, TierReport { moved, .. }) in racks {
            self.line(format_args!("rackpool_rack_tier_moves_total{{rack=\"{rack}\"}} {moved}"));
        }
    }

    fn labelled(&mut self, name: &str, of: &DaemonStats, label: (&str, &str), value: u64) {
        let ((key, word), rack) = (label, of.rack);
        self.line(format_args!("rackpool_{name}{{rack=\"{rack}\",{key}=\"{word}\"}} {value}"));
    }

    fn paths(&mut self, paths: &PathStats) {
        let all = [
            ("own_rack", &paths.own_rack),
            ("other_rack_mapped", &paths.other_rack_mapped),
            ("other_rack_fabric", &paths.other_rack_fabric),
        ];
        let said = "warm ones to mapped racks are not counted";
        for (name, kind, help, value) in PATH {
            self.head(&format!("handle_{name}"), *kind, &format!("{help}; {said}"));
            for (path, counts) in all {
                let value = value(counts);
                self.line(format_args!("rackpool_handle_{name}{{path=\"{path}\"}} {value}"));
            }
        }
        self.head("handle_access_seconds", Kind::Histogram, &format!("Time of calls; {said}"));
        for (path, counts) in all {
            let (label, latency) = (format!("path=\"{path}\""), &counts.latency);
            self.buckets("handle_access_seconds", &label, latency.buckets(), latency.sum_ns());
        }
    }
}

/// Exact, without trailing zeros.
fn seconds(ns: u64) -> String {
    let text = format!("{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::paths::{Call, Path};
    use crate::stats::RackStats;
    use std::collections::BTreeSet;

    fn pool() -> PoolStats {
        let mut daemon = DaemonStats { rack: RackId(3), frames_free: 7, ..Default::default() };
        daemon.requests_by_kind.alloc = 2;
        daemon.answers.refused.insert("full".into(), 5);
        daemon.moves.left.insert("even".into(), 6);
        let near = TierStats { frames: 4, ..Default::default() };
        let far = TierStats { frames: 3, frames_free: 2, ..near };
        let two = TierReport { tiers: vec![near, far], moved: 9 };
        let mut handle = HandleStats::default();
        let call = Call { accesses: 1, bytes: 64, elapsed_ns: 1_500, failed: false };
        handle.paths.note(Path::OtherRackFabric, &call);
        handle.coupled.cache_hits = 11;
        let rack = |rack, daemon: Option<DaemonStats>, tiers| RackStats {
            rack,
            alive: daemon.is_some(),
            fabric: "tcp".into(),
            fabric_addr: "127.0.0.1:1".into(),
            daemon,
            tiers,
            error: None,
        };
        let racks =
            vec![rack(RackId(3), Some(daemon), two), rack(RackId(4), None, TierReport::default())];
        PoolStats { master: MasterStats::default(), racks, handle }
    }

    /// Every sample belongs to the metric with the last head before it, each metric has one head,
    /// and every value is a number.
    pub(super) fn check_format(text: &str) {
        let (mut seen, mut current) = (BTreeSet::new(), String::new());
        for line in text.lines() {
            if let Some(head) = line.strip_prefix("# TYPE ") {
                current = head.split(' ').next().unwrap().to_owned();
                assert!(seen.insert(current.clone()), "{current} twice");
            } else if !line.starts_with("# HELP ") {
                let name = line.split(['{', ' ']).next().unwrap();
                let parts = ["", "_bucket", "_sum", "_count"];
                assert!(parts.iter().any(|part| name == format!("{current}{part}")), "{line}");
                let (labels, value) = line.rsplit_once(' ').unwrap();
                assert!(value.parse::<f64>().is_ok(), "{line}");
                assert_eq!(labels.contains('{'), labels.ends_with("\"}"), "{line}");
            }
        }
        assert!(text.ends_with('\n') && !seen.is_empty());
    }

    #[test]
    fn the_text_is_in_the_exposition_format_and_says_what_was_counted() {
        let text = pool_text(&pool());
        check_format(&text);
        for line in [
            "rackpool_rack_frames_free{rack=\"3\"} 7",
            "rackpool_rack_tier_frames{rack=\"3\",tier=\"0\"} 4",
            "rackpool_rack_tier_frames_free{rack=\"3\",tier=\"1\"} 2",
            "rackpool_rack_tier_moves_total{rack=\"3\"} 9",
            "rackpool_rack_up{rack=\"3\"} 1",
            "rackpool_rack_up{rack=\"4\"} 0",
            "rackpool_rack_requests_total{rack=\"3\",kind=\"alloc\"} 2",
            "rackpool_rack_refusals_total{rack=\"3\",code=\"full\"} 5",
            "rackpool_rack_decisions_total{rack=\"3\",decision=\"even\"} 6",
            "rackpool_handle_cache_hits_total 11",
            "rackpool_handle_access_bytes_total{path=\"other_rack_fabric\"} 64",
            "rackpool_handle_access_seconds_sum{path=\"other_rack_fabric\"} 0.0000015",
            "rackpool_master_calls_total{kind=\"pick_rack\"} 0",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
        for (le, below) in [("0.000001024", 0), ("0.000002048", 1), ("+Inf", 1)] {
            let bucket = "rackpool_handle_access_seconds_bucket{path=\"other_rack_fabric\"";
            let line = format!("{bucket},le=\"{le}\"}} {below}");
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
    }

    #[test]
    fn a_server_tells_of_itself_in_the_same_format() {
        let (stats, tiers) = (DaemonStats::default(), TierReport::default());
        let of_daemon = daemon_text(&DaemonSnapshot { stats, tiers, is_joined: true });
        let of_master = master_text(&(MasterStats::default(), Vec::new()));
        for (text, server) in [(of_daemon, "daemon"), (of_master, "master")] {
            check_format(&text);
            let version = env!("CARGO_PKG_VERSION");
            let build = format!("build_info{{version=\"{version}\",server=\"{server}\"}} 1\n");
            assert!(
                text.contains(&build) && text.contains("\nrackpool_disk_full_total "),
                "{text}"
            );
        }
    }

    #[test]
    fn nanoseconds_are_exact_in_seconds() {
        assert_eq!(seconds(0), "0");
        assert_eq!(seconds(128), "0.000000128");
        assert_eq!(seconds(10_000_000_000), "10");
    }
}
