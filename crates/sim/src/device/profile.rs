//! What a machine and its network cost: every number that the performance mode charges, read from
//! a file in which each has a unit and a source. Five profiles come with the program; others are
//! read from a path. A profile says whether it is calibrated, and every output prints that.
//!
//! Source: Rcmp §6.2 for `rcmp-testbed`, HERD figures 2 to 6 for `herd-apt` and `herd-susitna`.

use super::error::ProfileError;
use super::reader::{Parameter, Reader};
use super::units::{Bandwidth, Bytes, Count, Rate};
use crate::time::Ps;
use std::fmt::Write as _;

macro_rules! groups {
    ($(
        $(#[$doc:meta])*
        $group:ident: $Group:ident { $( $(#[$field_doc:meta])* $field:ident: $kind:ty, )* }
    )*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy, Debug, PartialEq, Eq)]
            pub struct $Group { $( $(#[$field_doc])* pub $field: $kind, )* }
        )*

        /// All numbers of one machine and network.
        #[derive(Clone, Debug, PartialEq)]
        pub struct Profile {
            pub name: String,
            /// Whether its sums were compared with measurements of such a machine.
            pub calibrated: bool,
            /// Against what, or why not.
            pub against: String,
            $( $(#[$doc])* pub $group: $Group, )*
            parameters: Vec<Parameter>,
        }

        const KNOWN: &[(&str, &[&str])] = &[
            ("profile", &["name", "calibrated", "against"]),
            $( (stringify!($group), &[$( stringify!($field), )*]), )*
        ];

        fn read(mut reader: Reader<'_>) -> Result<Profile, ProfileError> {
            reader.check_unknown(KNOWN)?;
            $(
                let $group = $Group {
                    $( $field: reader.quantity(stringify!($group), stringify!($field))?, )*
                };
            )*
            Ok(Profile {
                name: reader.text("profile", "name")?,
                calibrated: reader.flag("profile", "calibrated")?,
                against: reader.text("profile", "against")?,
                $( $group, )*
                parameters: reader.into_parameters(),
            })
        }
    };
}

groups! {
    /// Loads and stores of one processor, and what one thread can stream.
    memory: MemoryCosts {
        /// A load that hits the nearest cache.
        hit: Ps,
        /// A store that hits the nearest cache.
        store: Ps,
        /// A load of a line from local memory that depends on the one before.
        dram_load: Ps,
        /// The same for a store with its write-back.
        dram_store: Ps,
        /// A load of a line from the rack's shared memory.
        cxl_load_line: Ps,
        /// The same for a store.
        cxl_store_line: Ps,
        /// Copying from local memory, one thread, after the first line.
        dram_bandwidth: Bandwidth,
        /// Copying from the rack's shared memory, one thread, after the first line.
        cxl_bandwidth: Bandwidth,
        /// A locked instruction on a line that this processor has.
        atomic: Ps,
        /// A full fence with nothing to wait for.
        fence: Ps,
        /// Writing one line back.
        flush_line: Ps,
        /// A line that another processor of the rack has just written: one way of a ring.
        line_transfer: Ps,
    }
    /// Between a processor and its network card.
    pcie: PcieCosts {
        /// A store to the card's doorbell, until the card sees it.
        doorbell: Ps,
        /// Work requests written by the processor, in lines of 64 bytes: how many the card takes.
        pio_lines: Rate,
        /// From the card's request for host memory to the first byte.
        dma_read: Ps,
        /// From the card to host memory, one way.
        dma_write: Ps,
        /// Payload that goes over it, in each direction.
        bandwidth: Bandwidth,
    }
    /// The network card.
    rnic: RnicCosts {
        /// READ requests sent.
        out_read: Rate,
        /// WRITE and WRITE_IMM requests sent.
        out_write: Rate,
        /// SENDs over connections sent.
        out_send: Rate,
        /// Datagrams sent.
        out_datagram: Rate,
        /// Atomics sent.
        out_atomic: Rate,
        /// WRITEs and SENDs sent with a payload that the card fetches, if that is slower.
        out_fetched: Rate,
        /// READ requests served, up to 64 bytes.
        in_read: Rate,
        /// What each further line of 64 bytes adds to serving a READ.
        in_read_line: Ps,
        /// WRITE requests taken.
        in_write: Rate,
        /// SENDs taken, with the receive that they consume.
        in_send: Rate,
        /// Atomics executed.
        in_atomic: Rate,
        /// Packets that are nothing of the above: answers, and all but the first of a message.
        packets: Rate,
        /// What a message takes, in either direction, of what both directions share; 0 if they
        /// share nothing. It passes there while its engine works on it.
        message: Ps,
        /// What an acknowledgement takes of the engines, at both ends.
        acknowledge: Ps,
        /// From taking a work request to its first bit, without waiting.
        send_delay: Ps,
        /// From a packet's last bit to its effect or completion, without waiting and without DMA.
        receive_delay: Ps,
        /// Connections that the card holds the state of.
        qp_cache: Count,
        /// What a connection that is not held adds when a request is sent.
        qp_miss_out: Ps,
        /// The same when a request is received.
        qp_miss_in: Ps,
        /// What it then adds where both directions pass.
        qp_miss_message: Ps,
        /// Longest payload inside a work request.
        inline_max: Bytes,
        /// Work requests outstanding on one connection.
        send_queue: Count,
        /// READs and atomics under way on one connection.
        reads_per_connection: Count,
        /// Until a request without an answer is sent again.
        retransmit: Ps,
        /// How often, without progress, before the connection ends.
        retries: Count,
        /// Until a revoked key opens nothing, with no request under way.
        revoke: Ps,
    }
    /// Cables and packets.
    link: LinkCosts {
        /// Of one direction.
        bandwidth: Bandwidth,
        /// One cable.
        propagation: Ps,
        /// Payload of one packet.
        mtu: Bytes,
        /// What each packet of a connection adds.
        header: Bytes,
        datagram_header: Bytes,
    }
    /// The switch between all nodes.
    switch: SwitchCosts {
        /// From a packet's first bit in to its first bit out.
        latency: Ps,
        /// What waits for one output at most; then senders wait.
        buffer: Bytes,
    }
    /// Processor time of one step of an engine, without the memory that it touches.
    cpu: CpuCosts {
        /// A client starts an operation.
        client_submit: Ps,
        /// A client or daemon takes one completion.
        completion: Ps,
        /// A daemon serves one request.
        daemon_request: Ps,
        /// The master serves one request.
        master_request: Ps,
        post_doorbell: Ps,
        /// Writing one work request.
        post_request: Ps,
    }
    /// One round of a poll loop that finds nothing: how late a loop notices.
    poll: PollCosts {
        /// A client that waits.
        client: Ps,
        daemon: Ps,
        master: Ps,
    }
    /// Messages of the control plane, over sockets.
    tcp: TcpCosts {
        /// From one program's call to the other's, a short message.
        message: Ps,
        bandwidth: Bandwidth,
        /// Processor time to send one.
        send: Ps,
        /// Processor time to receive one.
        receive: Ps,
        /// Until something lost is sent again.
        retransmit: Ps,
        /// How often before the connection ends.
        retries: Count,
    }
}

/// The profiles of the program: name and file.
const EMBEDDED: &[(&str, &str)] = &[
    ("rcmp-testbed", include_str!("../../profiles/rcmp-testbed.toml")),
    ("herd-apt", include_str!("../../profiles/herd-apt.toml")),
    ("herd-susitna", include_str!("../../profiles/herd-susitna.toml")),
    ("laptop", include_str!("../../profiles/laptop.toml")),
    ("modern", include_str!("../../profiles/modern.toml")),
];

impl Profile {
    /// The names of the program's own profiles.
    pub fn names() -> impl Iterator<Item = &'static str> {
        EMBEDDED.iter().map(|(name, _)| *name)
    }

    /// A profile of the program by name, else the file at that path. Blocks on the file.
    pub fn load(name_or_path: &str) -> Result<Profile, ProfileError> {
        if let Some((name, text)) = EMBEDDED.iter().find(|(name, _)| *name == name_or_path) {
            return Profile::parse(name, text);
        }
        let text = std::fs::read_to_string(name_or_path).map_err(|error| {
            let known = Profile::names().collect::<Vec<_>>().join(", ");
            ProfileError::NotFound {
                name: name_or_path.to_owned(),
                reason: error.to_string(),
                known,
            }
        })?;
        Profile::parse(name_or_path, &text)
    }

    /// A profile from its text; `path` is for messages.
    pub fn parse(path: &str, text: &str) -> Result<Profile, ProfileError> {
        let profile = read(Reader::new(path, text)?)?;
        profile.check().map_err(|(key, reason)| ProfileError::Invalid {
            path: path.to_owned(),
            line: line_of_key(text, key),
            reason: format!("`{key}`: {reason}"),
        })?;
        Ok(profile)
    }

    /// What the numbers must fulfil together.
    fn check(&self) -> Result<(), (&'static str, String)> {
        let packet = self.link.mtu.0 + self.link.header.0.max(self.link.datagram_header.0);
        let conditions = [
            ("link.mtu", self.link.mtu.0 >= 64, "at least 64 B".to_owned()),
            ("switch.buffer", self.switch.buffer.0 >= packet, format!("at least {packet} B")),
            ("rnic.qp_cache", (1..1 << 24).contains(&self.rnic.qp_cache.0), "1 or more".to_owned()),
            ("rnic.send_queue", self.rnic.send_queue.0 >= 1, "at least 1".to_owned()),
            (
                "rnic.reads_per_connection",
                self.rnic.reads_per_connection.0 >= 1,
                "at least 1".to_owned(),
            ),
            // 7 means for ever on real cards, and a pool must learn of dead peers.
            ("rnic.retries", self.rnic.retries.0 <= 6, "at most 6".to_owned()),
            ("rnic.retransmit", self.rnic.retransmit.0 > 0, "more than 0".to_owned()),
            ("tcp.retransmit", self.tcp.retransmit.0 > 0, "more than 0".to_owned()),
            ("poll.client", self.poll.client.0 > 0, "more than 0".to_owned()),
            ("poll.daemon", self.poll.daemon.0 > 0, "more than 0".to_owned()),
            ("poll.master", self.poll.master.0 > 0, "more than 0".to_owned()),
        ];
        match conditions.into_iter().find(|(_, holds, _)| !holds) {
            Some((key, _, reason)) => Err((key, reason)),
            None => Ok(()),
        }
    }

    /// One line for every output.
    pub fn label(&self) -> String {
        match self.calibrated {
            true => format!("profile {}: calibrated against {}", self.name, self.against),
            false => format!("profile {}: uncalibrated ({})", self.name, self.against),
        }
    }

    /// Every number with its unit and source, in the order of the file's tables.
    pub fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    /// The file's text, with these `parameters`.
    pub(super) fn write(
        name: &str,
        calibrated: bool,
        against: &str,
        parameters: &[Parameter],
    ) -> String {
        // What JSON escapes, TOML escapes the same way.
        let quoted = |text: &str| serde_json::Value::String(text.to_owned()).to_string();
        let mut text = format!(
            "[profile]\nname = {}\ncalibrated = {calibrated}\nagainst = {}\n",
            quoted(name),
            quoted(against)
        );
        let mut group = "";
        for parameter in parameters {
            if parameter.group != group {
                group = &parameter.group;
                let _ = write!(text, "\n[{group}]\n");
            }
            let Parameter { key, value, unit, source, .. } = parameter;
            let (unit, source) = (quoted(unit), quoted(source));
            let _ =
                writeln!(text, "{key} = {{ value = {value}, unit = {unit}, source = {source} }}");
        }
        text
    }
}

/// The line of `group.key`, as the file is usually written; 1 if it is written otherwise.
fn line_of_key(text: &str, name: &str) -> usize {
    let (wanted, key) = name.split_once('.').unwrap_or(("", name));
    let mut group = "";
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if let Some(header) = line.strip_prefix('[') {
            group = header.trim_end_matches(']').trim();
        } else if group == wanted && line.split('=').next().map(str::trim) == Some(key) {
            return index + 1;
        }
    }
    1
}
