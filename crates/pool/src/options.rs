//! How a program joins a pool: [`Options`] from defaults, a file, the environment and code, each
//! overriding the one before.

use crate::error::{Error, Result, WireError, WireResult};
use rackpool_core::RackId;
use rackpool_core::constants::{
    BUFFERED_WRITE_BYTES_MAX_DEFAULT, CACHED_BLOCKS_DEFAULT, REQUEST_TIMEOUT_MS_DEFAULT,
    TRANSLATION_ENTRIES_DEFAULT, WRITE_BUFFER_BYTES_DEFAULT,
};
use rackpool_core::durability::Durability;
use rackpool_fabric::secret::Secret;
use serde::Deserialize;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// Longest file of options, bytes.
const CONFIG_BYTES_MAX: u64 = 1 << 20;

/// How handles reach racks other than their own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FabricChoice {
    /// As the other rack's daemon says (its `--fabric`).
    #[default]
    Auto,
    /// Map the other rack's memory; it must be on this host.
    Shm,
    /// One-sided operations over TCP.
    Tcp,
    /// One-sided operations by an RDMA device of this host; the other rack's daemon must offer it.
    /// Refused if the own rack's memory is kept coherent by software (`docs/coherence.md`).
    Verbs,
    /// Through the own rack's daemon, which shares its connections among all handles of the rack:
    /// one ring round trip more for each access (Rcmp §4.2, methods b and c).
    Proxied,
}

impl std::str::FromStr for FabricChoice {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self> {
        match text {
            "auto" => Ok(Self::Auto),
            "shm" => Ok(Self::Shm),
            "tcp" => Ok(Self::Tcp),
            "verbs" => Ok(Self::Verbs),
            "proxied" => Ok(Self::Proxied),
            other => Err(wrong(format!(
                "fabric `{other}` is unknown; use `auto`, `tcp`, `shm` or `verbs`"
            ))),
        }
    }
}

/// Whether handles share the connections (queue pairs) to other racks, with a fabric that has any.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Connections {
    /// Each handle has its own: handles times racks of them.
    #[default]
    Own,
    /// All handles of a [`crate::Pool`] share one to each other rack. A thread that waits moves the
    /// others' data as well as its own; no thread waits for one that is not in a call.
    Shared,
}

/// Up to which length a call to another rack's daemon carries the data itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RrpcThreshold {
    /// As each rack is measured after 32 calls: some milliseconds, once for each handle and rack.
    /// Until then 512 bytes. Where calls turn out to be slower than looking a page up, the handle
    /// makes none for first touches.
    #[default]
    Calibrated,
    /// The paper's 512 bytes.
    Paper,
    /// So many bytes; at most 8 KiB are carried.
    Bytes(u32),
}

/// How to join a pool.
///
/// ```
/// use rackpool::Options;
/// let options = Options::new("127.0.0.1:7400", 0).request_timeout_ms(2_000);
/// assert_eq!(options.master, ["127.0.0.1:7400"]);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    /// Addresses of the master, tried in turn.
    pub master: Vec<String>,
    /// The rack that this program runs in.
    pub rack: u16,
    /// In a rack that is divided into shards, the one with the daemon that is each handle's own;
    /// without it each handle's is chosen by a hash of its session.
    pub shard: Option<u16>,
    /// How other racks are reached.
    pub fabric: FabricChoice,
    /// With fabric `verbs`, the RDMA device: `NAME[:PORT][/GID]`, such as `mlx5_0`; without it the
    /// first one with a port that is up.
    pub verbs_device: Option<String>,
    /// Whether handles share the connections to other racks.
    pub connections: Connections,
    /// Boot identity of this host to go by instead of the kernel's, the same as its agent's: for
    /// hosts that share a kernel, as containers do.
    pub host: Option<String>,
    /// Pages that a handle's translation cache holds (rounded up to a power of two).
    pub translation_entries: u32,
    /// How long a call rides through the restart of a daemon or master before it answers with a
    /// typed error, ms.
    pub request_timeout_ms: u64,
    /// How long a rack that is dead when a handle first wants it is waited for, ms; without it as
    /// long as any call waits.
    pub dead_rack_ms: Option<u64>,
    /// Whether pages are mapped read-only; writes then answer `denied`.
    pub read_only: bool,
    /// When writes into memory that persists (`daemon --memory pmem:`) are durable: `write`, when
    /// they return; `flush`, when [`Handle::persist`](crate::Handle::persist) does; `none`: never
    /// for sure, and `persist` does nothing. With `write`, a write into other memory is an error.
    pub durability: Durability,
    /// Bytes of a handle's write buffer, both halves together; taken when it first buffers a write
    /// under a range lock. 0 is none.
    pub write_buffer_bytes: u32,
    /// The longest write that is buffered, bytes.
    pub buffered_write_bytes_max: u32,
    /// Blocks of 16 KiB that a handle's page cache keeps under its read locks of ranges. 0 is none.
    pub page_cache_blocks: u32,
    /// Up to which length calls carry data.
    pub rrpc_threshold: RrpcThreshold,
    /// The user, by number, that is trusted to run daemons and agents on this host, in addition to
    /// our own user and root.
    pub daemon_user: Option<u32>,
    /// The file that holds the pool's secret, read when the pool is opened, if `secret` is not
    /// given.
    pub secret_file: Option<PathBuf>,
    /// The pool's secret, which its master and daemons have too.
    #[serde(skip)]
    pub secret: Option<Secret>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            master: vec!["127.0.0.1:7400".into()],
            rack: 0,
            shard: None,
            fabric: FabricChoice::Auto,
            verbs_device: None,
            connections: Connections::default(),
            host: None,
            translation_entries: TRANSLATION_ENTRIES_DEFAULT,
            request_timeout_ms: REQUEST_TIMEOUT_MS_DEFAULT,
            dead_rack_ms: None,
            read_only: false,
            durability: Durability::default(),
            write_buffer_bytes: WRITE_BUFFER_BYTES_DEFAULT,
            buffered_write_bytes_max: BUFFERED_WRITE_BYTES_MAX_DEFAULT,
            page_cache_blocks: CACHED_BLOCKS_DEFAULT,
            rrpc_threshold: RrpcThreshold::default(),
            daemon_user: None,
            secret_file: None,
            secret: None,
        }
    }
}

impl Options {
    /// Options for a master (one address, or several separated by commas) and a rack.
    pub fn new(master: &str, rack: u16) -> Self {
        Self { master: split_addrs(master), rack, ..Self::default() }
    }

    /// Defaults, then the file named by `RACKPOOL_CONFIG` if set, then the environment:
    /// `RACKPOOL_MASTER`, `RACKPOOL_RACK`, `RACKPOOL_FABRIC`, `RACKPOOL_VERBS_DEVICE`,
    /// `RACKPOOL_DAEMON_USER`, `RACKPOOL_REQUEST_TIMEOUT_MS`.
    pub fn from_env() -> Result<Self> {
        let mut options = match std::env::var_os("RACKPOOL_CONFIG") {
            Some(path) => Self::from_file(Path::new(&path))?,
            None => Self::default(),
        };
        if let Ok(master) = std::env::var("RACKPOOL_MASTER") {
            options.master = split_addrs(&master);
        }
        if let Ok(rack) = std::env::var("RACKPOOL_RACK") {
            options.rack = number("RACKPOOL_RACK", &rack)?;
        }
        if let Ok(fabric) = std::env::var("RACKPOOL_FABRIC") {
            options.fabric = fabric.parse()?;
        }
        if let Ok(device) = std::env::var("RACKPOOL_VERBS_DEVICE") {
            options.verbs_device = Some(device);
        }
        if let Ok(timeout) = std::env::var("RACKPOOL_REQUEST_TIMEOUT_MS") {
            options.request_timeout_ms = number("RACKPOOL_REQUEST_TIMEOUT_MS", &timeout)?;
        }
        if let Ok(user) = std::env::var("RACKPOOL_DAEMON_USER") {
            options.daemon_user = Some(number("RACKPOOL_DAEMON_USER", &user)?);
        }
        Ok(options)
    }

    /// Options from a TOML file with the fields of this struct; missing ones keep their defaults,
    /// unknown ones are an error.
    ///
    /// ```
    /// # let dir = std::env::temp_dir().join(format!("rackpool-doc-{}", std::process::id()));
    /// # std::fs::create_dir_all(&dir).unwrap();
    /// let path = dir.join("rackpool.toml");
    /// std::fs::write(&path, "master = ['127.0.0.1:7400']\nrack = 1\n").unwrap();
    /// assert_eq!(rackpool::Options::from_file(&path).unwrap().rack, 1);
    /// # std::fs::remove_dir_all(&dir).unwrap();
    /// ```
    pub fn from_file(path: &Path) -> Result<Self> {
        let text = read_config(path).map_err(|error| WireError::Io {
            what: format!("reading {}", path.display()),
            reason: error.to_string(),
        })?;
        let mut options: Self = toml::from_str(&text).map_err(|error| {
            let before = error.span().and_then(|span| text.get(..span.start));
            let line = before.map_or(1, |before| before.matches('\n').count() + 1);
            let (path, what) = (path.display(), error.message());
            wrong(format!("{path} line {line}: {what}"))
        })?;
        options.load_secret()?;
        Ok(options)
    }

    /// Sets [`Options::shard`].
    pub fn shard(mut self, shard: u16) -> Self {
        self.shard = Some(shard);
        self
    }

    /// Sets [`Options::fabric`].
    pub fn fabric(mut self, fabric: FabricChoice) -> Self {
        self.fabric = fabric;
        self
    }

    /// Sets [`Options::connections`].
    pub fn connections(mut self, connections: Connections) -> Self {
        self.connections = connections;
        self
    }

    /// Sets [`Options::request_timeout_ms`].
    pub fn request_timeout_ms(mut self, ms: u64) -> Self {
        self.request_timeout_ms = ms;
        self
    }

    /// Sets [`Options::read_only`].
    pub fn read_only(mut self, read_only: bool) -> Self {
        self.read_only = read_only;
        self
    }

    /// Sets when writes are durable: [`Options::durability`].
    pub fn durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }

    /// Sets [`Options::write_buffer_bytes`].
    pub fn write_buffer_bytes(mut self, bytes: u32) -> Self {
        self.write_buffer_bytes = bytes;
        self
    }

    /// Sets [`Options::page_cache_blocks`].
    pub fn page_cache_blocks(mut self, blocks: u32) -> Self {
        self.page_cache_blocks = blocks;
        self
    }

    /// Sets [`Options::rrpc_threshold`].
    pub fn rrpc_threshold(mut self, threshold: RrpcThreshold) -> Self {
        self.rrpc_threshold = threshold;
        self
    }

    /// Sets [`Options::secret`].
    pub fn secret(mut self, secret: Secret) -> Self {
        self.secret = Some(secret);
        self
    }

    /// Reads [`Options::secret_file`], if there is one and no secret yet.
    pub(crate) fn load_secret(&mut self) -> WireResult<()> {
        if let (None, Some(path)) = (&self.secret, &self.secret_file) {
            self.secret = Some(Secret::from_file(path)?);
        }
        Ok(())
    }

    pub(crate) fn rack_id(&self) -> RackId {
        RackId(self.rack)
    }
}

/// The text of an options file, which may be a pipe and may be endless.
fn read_config(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(CONFIG_BYTES_MAX + 1).read_to_string(&mut text)?;
    if text.len() as u64 > CONFIG_BYTES_MAX {
        return Err(io::Error::other(format!("more than {CONFIG_BYTES_MAX} bytes")));
    }
    Ok(text)
}

fn split_addrs(text: &str) -> Vec<String> {
    text.split(',').map(|addr| addr.trim().to_string()).filter(|addr| !addr.is_empty()).collect()
}

fn number<T: std::str::FromStr>(name: &str, text: &str) -> Result<T> {
    text.parse().map_err(|_| wrong(format!("{name}=`{text}` is not a number in range")))
}

fn wrong(reason: String) -> Error {
    WireError::Config { reason }.into()
}

/// Latency that is injected to stand for hardware that is not there. Every figure made with it is
/// labelled "emulated".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Emulate {
    /// Added to each access of the own rack, ns.
    pub cxl_ns: u32,
    /// Added to each one-sided operation of another rack, ns.
    pub rdma_ns: u32,
}

/// What an access to persistent memory takes more than one to DRAM, ns. Source: the Optane guide,
/// figure 2, 305.0 and 101.5 ns at random; of CXL memory a link as of `cxl=140ns`.
const PMEM_NS: [(&str, u32); 3] = [("optane100", 204), ("cxl-nv-ddr5", 140), ("cxl-nv-ddr4", 140)];

impl Emulate {
    /// Whether anything is injected.
    pub fn is_on(&self) -> bool {
        *self != Self::default()
    }
}

impl std::str::FromStr for Emulate {
    type Err = Error;
    /// Parses `cxl=140ns,rdma=2us`; either part may be missing. Instead of the first one
    /// `pmem=NAME`, or `pmem`, which is `optane100`.
    fn from_str(text: &str) -> Result<Self> {
        let wrong = |part| {
            let names = PMEM_NS.map(|(name, _)| name).join(", ");
            wrong(format!(
                "`{part}` in --emulate; write for example cxl=140ns,rdma=2us, or for the first one \
                 pmem=NAME with one of {names}"
            ))
        };
        let mut emulate = Self::default();
        for part in text.split(',').filter(|part| !part.is_empty()) {
            if let Some(name) = part.strip_prefix("pmem") {
                let name = if name.is_empty() { "=optane100" } else { name };
                let known =
                    PMEM_NS.iter().find(|(known, _)| name.strip_prefix('=') == Some(*known));
                let known = known.filter(|_| emulate.cxl_ns == 0).ok_or_else(|| wrong(part))?;
                emulate.cxl_ns = known.1;
                continue;
            }
            let (path, time) = part.split_once('=').ok_or_else(|| wrong(part))?;
            let digits = time.find(|c: char| !c.is_ascii_digit()).ok_or_else(|| wrong(part))?;
            let value: u32 = time[..digits].parse().map_err(|_| wrong(part))?;
            let ns = match &time[digits..] {
                "ns" => Some(value),
                "us" => value.checked_mul(1_000),
                _ => None,
            };
            let ns = ns.filter(|ns| *ns <= 1_000_000).ok_or_else(|| wrong(part))?;
            match path {
                "cxl" => emulate.cxl_ns = ns,
                "rdma" => emulate.rdma_ns = ns,
                _ => return Err(wrong(part)),
            }
        }
        Ok(emulate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn emulated_latencies_are_parsed_with_units_and_nothing_else_is() {
        let emulate: Emulate = "cxl=140ns,rdma=2us".parse().unwrap();
        assert_eq!(emulate, Emulate { cxl_ns: 140, rdma_ns: 2_000 });
        let emulate: Emulate = "pmem,rdma=2us".parse().unwrap();
        assert_eq!(emulate, Emulate { cxl_ns: 204, rdma_ns: 2_000 });
        assert_eq!("pmem=cxl-nv-ddr5".parse::<Emulate>().unwrap().cxl_ns, 140);
        for wrong in [
            "cxl",
            "cxl=140",
            "cxl=-1ns",
            "nic=1us",
            "rdma=2s",
            "rdma=2000000us",
            "pmem=ddr4",
            "pmems",
            "cxl=1ns,pmem",
        ] {
            assert_eq!(wrong.parse::<Emulate>().unwrap_err().code(), "config", "{wrong}");
        }
    }

    #[test]
    fn a_file_says_whose_the_connections_are() {
        let of = |text: &str| toml::from_str::<Options>(text).map(|options| options.connections);
        assert_eq!(of(""), Ok(Connections::Own));
        assert_eq!(of("connections = 'shared'"), Ok(Connections::Shared));
        assert!(of("connections = 'some'").unwrap_err().to_string().contains("shared"));
    }

    #[test]
    fn a_file_names_the_file_of_the_secret_which_nothing_prints() {
        use std::os::unix::fs::PermissionsExt;
        let path = std::env::temp_dir().join(format!("rackpool-options-{}", std::process::id()));
        std::fs::write(&path, "forty-two and forty-two").unwrap();
        let read = |mode| {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            let text = format!("secret_file = '{}'", path.display());
            let mut options: Options = toml::from_str(&text).unwrap();
            assert_eq!(options.secret, None, "no file is read by parsing");
            options.load_secret().map(|()| options)
        };
        let (good, bad) = (read(0o600).unwrap(), read(0o644).unwrap_err());
        std::fs::remove_file(&path).unwrap();
        assert_eq!(good.secret, Some(Secret::new(b"forty-two and forty-two").unwrap()));
        assert!(!format!("{good:?}").contains("forty"));
        assert!(bad.to_string().contains("chmod 600"), "{bad}");
    }

    #[test]
    fn a_mistake_in_a_file_is_told_in_one_line_with_its_place() {
        let path = std::env::temp_dir().join(format!("rackpool-mistake-{}", std::process::id()));
        std::fs::write(&path, "rack = 1\nrak = 2\n").unwrap();
        let error = Options::from_file(&path).unwrap_err().to_string();
        std::fs::remove_file(&path).unwrap();
        assert!(error.contains(" line 2: unknown field `rak`"), "{error}");
        assert!(!error.contains('\n'), "{error}");
    }

    #[test]
    fn an_unknown_key_in_a_file_is_an_error_that_names_it() {
        let error = toml::from_str::<Options>("rak = 1").unwrap_err();
        assert!(error.to_string().contains("rak"));
    }
}
