//! What single words of the command line mean: sizes, addresses, times, users, memories. Text in, a
//! value or the reason why it is none out. Called by clap.

use rackpool::RackId;
use std::net::SocketAddr;
use std::time::Duration;

/// A user of this host: a number, or a name of /etc/passwd.
pub fn parse_user(text: &str) -> Result<u32, String> {
    if let Ok(number) = text.parse() {
        return Ok(number);
    }
    let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let number = users.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next() == Some(text)).then(|| fields.nth(1)?.parse().ok())?
    });
    number.ok_or_else(|| {
        format!("`{text}` is no number and no user of /etc/passwd; see `id -u {text}`")
    })
}

/// A number of bytes: decimal or 0x…, with K, M, G or T for binary multiples.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let wrong =
        || format!("`{text}` is not a number of bytes; write for example 4096, 0x1000 or 4K");
    rackpool_stats::units::parse_size(text).ok_or_else(wrong)
}

/// The size of a page, bytes.
pub fn parse_page(text: &str) -> Result<u64, String> {
    let bytes = parse_size(text)?;
    let pages = rackpool_core::PageGeometry::from_page_bytes(bytes);
    pages.map(|_| bytes).ok_or_else(|| format!("`{text}` is no power of two from 4K to 1G"))
}

/// An address to serve at; a port alone is one of the loopback address.
pub fn parse_listen(text: &str) -> Result<SocketAddr, String> {
    if let Ok(port) = text.parse::<u16>() {
        return Ok(SocketAddr::from(([127, 0, 0, 1], port)));
    }
    let found = rackpool_mem::names::resolve(text).map_err(|error| error.to_string())?;
    Ok(found[0])
}

/// Seconds, with decimals if needed.
pub fn parse_seconds(text: &str) -> Result<Duration, String> {
    let range = 0.05..=86_400.0;
    let seconds = text.parse::<f64>().ok().filter(|seconds| range.contains(seconds));
    let wrong = || format!("`{text}` is not a number of seconds from 0.05 to 86400");
    seconds.map(Duration::from_secs_f64).ok_or_else(wrong)
}

/// `1/2`: which of how many shards.
pub fn parse_shard(text: &str) -> Result<(u16, u16), String> {
    let numbers = text.split_once('/');
    let numbers = numbers.and_then(|(i, k)| Some((i.parse().ok()?, k.parse().ok()?)));
    numbers
        .filter(|(shard, shards)| RackId::sharded(0, *shard, *shards).is_some())
        .ok_or_else(|| format!("`{text}` is no shard such as 0/2 or 1/2; up to 8 are possible"))
}

/// A memory that makes sense; it is opened later.
pub fn parse_memory(text: &str) -> Result<String, String> {
    let spec = text.parse::<rackpool_mem::region::MemorySpec>();
    // What it is about is said before it.
    let plain = |error: String| error.strip_prefix("memory: ").unwrap_or(&error).to_owned();
    spec.map(|_| text.to_owned()).map_err(|error| plain(error.to_string()))
}

pub fn parse_spill(text: &str) -> Result<String, String> {
    let spec = text.parse::<rackpool_mem::region::SpillSpec>();
    let plain = |error: String| error.strip_prefix("memory: ").unwrap_or(&error).to_owned();
    spec.map(|_| text.to_owned()).map_err(|error| plain(error.to_string()))
}

/// Whether a mode is that of a store.
pub fn parse_mode(word: &str) -> Option<bool> {
    match word {
        "cache" => Some(false),
        "store" => Some(true),
        _ => None,
    }
}
