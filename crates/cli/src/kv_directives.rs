//! What the directives of `rackpool kv --config` mean: Redis's names, and which of our options each
//! is. In: a name and its values. Out: an option and its value, or why it cannot be meant.

/// An option as a file says it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Directive {
    pub option: String,
    /// `None` of one that takes none.
    pub value: Option<String>,
}

impl Directive {
    /// As a word of the command line.
    pub fn word(&self) -> String {
        match &self.value {
            Some(value) => format!("--{}={value}", self.option),
            None => format!("--{}", self.option),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// An option of ours with this name.
    Own,
    /// One that takes no value.
    Flag,
    /// The same as an option of ours.
    Same(&'static str),
    /// Bytes in Redis's units, where `k` is 1000 and `kb` 1024.
    Bytes(&'static str),
    Policy,
    /// Of slow commands, where -1 is never.
    SlowTime,
    Bind,
    Port,
    TlsPort,
    ProtectedMode,
    Password,
    /// What is so in any case: no other value is taken.
    Only(&'static str),
}

const REDIS: [(&str, Meaning); 24] = [
    ("appendonly", Meaning::Only("no")),
    ("bind", Meaning::Bind),
    ("cluster-enabled", Meaning::Only("no")),
    ("daemonize", Meaning::Only("no")),
    ("databases", Meaning::Own),
    ("io-threads", Meaning::Same("threads")),
    ("maxclients", Meaning::Same("max-connections")),
    ("maxmemory", Meaning::Bytes("memory")),
    ("maxmemory-policy", Meaning::Policy),
    ("port", Meaning::Port),
    ("proto-max-bulk-len", Meaning::Bytes("max-value")),
    ("protected-mode", Meaning::ProtectedMode),
    ("requirepass", Meaning::Password),
    ("save", Meaning::Only("")),
    ("slowlog-log-slower-than", Meaning::SlowTime),
    ("slowlog-max-len", Meaning::Only("128")),
    ("supervised", Meaning::Only("no")),
    ("timeout", Meaning::Same("idle-seconds")),
    ("tls-auth-clients", Meaning::Only("no")),
    ("tls-cert-file", Meaning::Same("tls-cert")),
    ("tls-key-file", Meaning::Same("tls-key")),
    ("tls-port", Meaning::TlsPort),
    ("unixsocket", Meaning::Same("resp-socket")),
    ("unixsocketperm", Meaning::Same("socket-mode")),
];

/// What a name of Redis means.
pub fn meaning_of(name: &str) -> Option<Meaning> {
    REDIS.iter().find(|(known, _)| *known == name).map(|(_, meaning)| *meaning)
}

/// The known name that is most like this one, if one is alike.
pub fn nearest<'a>(name: &str, own: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let known = REDIS.iter().map(|(known, _)| *known).chain(own);
    let known = known.map(|known| (distance(name, known), known)).min()?;
    (known.0 <= name.len().div_ceil(3)).then_some(known.1)
}

/// How many letters have to be put in, taken out or replaced to come from one word to the other.
fn distance(from: &str, to: &str) -> usize {
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (index, found) in from.bytes().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], index + 1);
        for (column, wanted) in to.bytes().enumerate() {
            let replaced = diagonal + usize::from(found != wanted);
            diagonal = row[column + 1];
            row[column + 1] = replaced.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[to.len()]
}

impl Meaning {
    /// The option and value that a line with this name says, if it says one by itself; addresses
    /// are put together from several lines.
    pub fn read(
        self,
        name: &str,
        values: &[String],
        addresses: &mut Addresses,
    ) -> Result<Option<(String, Option<String>)>, String> {
        if self == Meaning::Bind {
            return addresses.bind(values).map(|()| None);
        }
        let value = match values {
            [value] => value.as_str(),
            [] if self == Meaning::Flag => "yes",
            _ if matches!(self, Meaning::Only(_)) => return Err(only(self, name)),
            _ => return Err(format!("`{name}` takes one value, and has {}", values.len())),
        };
        let same = |option: &str, value: String| Ok(Some((option.to_owned(), Some(value))));
        match self {
            Meaning::Bind | Meaning::Password => Ok(None),
            Meaning::Own => same(name, value.to_owned()),
            Meaning::Same(option) => same(option, value.to_owned()),
            Meaning::Bytes("memory") if value == "0" => {
                Err("0 is no limit in Redis; here memory always has a limit".into())
            }
            Meaning::Bytes(option) => same(option, bytes(value)?.to_string()),
            Meaning::Policy => same("policy", policy(value)?.to_owned()),
            Meaning::SlowTime if value == "-1" => same("slow-us", u64::MAX.to_string()),
            Meaning::SlowTime => same("slow-us", value.to_owned()),
            Meaning::Port | Meaning::TlsPort => {
                let port = value.parse().map_err(|_| format!("`{value}` is no port"))?;
                let is_tls = self == Meaning::TlsPort;
                *(if is_tls { &mut addresses.tls_port } else { &mut addresses.port }) = Some(port);
                Ok(None)
            }
            Meaning::Flag => Ok(yes(value)?.then(|| (name.to_owned(), None))),
            Meaning::ProtectedMode => {
                Ok((!yes(value)?).then(|| ("insecure-open".to_owned(), None)))
            }
            Meaning::Only(known) if known == value => {
                addresses.asks_no_client |= name == "tls-auth-clients";
                Ok(None)
            }
            Meaning::Only(_) => Err(only(self, name)),
        }
    }
}

fn only(meaning: Meaning, name: &str) -> String {
    let Meaning::Only(known) = meaning else { unreachable!("it takes one value") };
    format!("`{name}` takes only {known:?}: nothing else is offered")
}

fn yes(value: &str) -> Result<bool, String> {
    match value {
        "yes" => Ok(true),
        "no" => Ok(false),
        _ => Err(format!("`{value}` is neither yes nor no")),
    }
}

fn bytes(text: &str) -> Result<u64, String> {
    let lower = text.to_ascii_lowercase();
    let digits = lower.trim_end_matches(|unit: char| unit.is_ascii_alphabetic());
    let unit = match &lower[digits.len()..] {
        "" | "b" => Some(1),
        "k" => Some(1000),
        "kb" => Some(1 << 10),
        "m" => Some(1_000_000),
        "mb" => Some(1 << 20),
        "g" => Some(1_000_000_000),
        "gb" => Some(1 << 30),
        _ => None,
    };
    let number = digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok());
    let bytes =
        number.flatten().zip(unit).and_then(|(number, unit): (u64, u64)| number.checked_mul(unit));
    bytes.ok_or_else(|| format!("`{text}` is no size such as 100mb or 1gb"))
}

/// Our policy for one of Redis's, or for itself.
fn policy(name: &str) -> Result<&str, String> {
    match name {
        // Which items stay is decided by how often and how lately each was used.
        "allkeys-lru" | "allkeys-lfu" => Ok("tinylfu"),
        _ if name.starts_with("allkeys-") || name.starts_with("volatile-") => Err(format!(
            "`{name}` is not offered: allkeys-lru and allkeys-lfu are, as tinylfu, and noeviction"
        )),
        _ => Ok(name),
    }
}

/// Where RESP is served, from several lines.
#[derive(Debug, Default)]
pub struct Addresses {
    host: Option<String>,
    port: Option<u16>,
    tls_port: Option<u16>,
    /// Whether it is said that clients need no certificates.
    asks_no_client: bool,
}

/// Redis's port, if none is given.
const PORT: u16 = 6379;

impl Addresses {
    /// Those with `-` before them need not be there.
    fn bind(&mut self, values: &[String]) -> Result<(), String> {
        let mut needed = values.iter().filter(|value| !value.starts_with('-'));
        let (Some(host), None) = (needed.next(), needed.next()) else {
            return Err("`bind` takes one address, beside those that begin with `-`".into());
        };
        self.host = Some(match host.as_str() {
            "*" => "0.0.0.0".into(),
            "::*" => "[::]".into(),
            host if host.contains(':') => format!("[{host}]"),
            host => host.to_owned(),
        });
        Ok(())
    }

    /// The value of our option for it, if anything was said of it.
    pub fn resp(&self, has_tls: bool) -> Result<Option<String>, &'static str> {
        let port = match (self.port.filter(|port| *port != 0), self.tls_port.unwrap_or(0)) {
            (Some(_), 1..) => return Err("one port is served: with tls-port say port 0"),
            (Some(_), 0) if has_tls => {
                return Err("port is not encrypted in Redis: with certificates say tls-port, or \
                            resp, and port 0");
            }
            (Some(port), 0) => port,
            (None, 0) if self.port == Some(0) || self.host.is_none() => return Ok(None),
            (None, 0) => PORT,
            (None, _) if !has_tls => return Err("tls-port needs tls-cert-file and tls-key-file"),
            (None, _) if !self.asks_no_client => {
                return Err("clients' certificates are not asked for: say tls-auth-clients no");
            }
            (None, port) => port,
        };
        Ok(Some(format!("{}:{port}", self.host.as_deref().unwrap_or("127.0.0.1"))))
    }
}
