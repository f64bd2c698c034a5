//! HTTP at a port of a text protocol: a web page, or a server that was talked into a request, can
//! make others send one, and lines of its head and body may look like commands. In: a line. Out:
//! whether a request begins there, or goes on; then the connection ends, and nothing is executed.
//!
//! Called for lines of RESP and of memcached's text protocol. Redis and memcached know two of
//! these signs each; all of them cost one look at the end of a line that is a command.

/// How a client begins to speak TLS: a record of its handshake. An attacker that makes a browser or
/// a server connect here chooses some of its bytes, line ends among them.
const TLS_RECORD: &[u8] = &[0x16, 0x03];

/// Whether no command but a line of HTTP looks like this: a request's first line whatever its
/// method is called, one of HTTP/0.9 that brings a body, or a field of a head. Or the first line of
/// TLS.
pub fn is_line(line: &[u8]) -> bool {
    if line.starts_with(TLS_RECORD) {
        return true;
    }
    let line = line.trim_ascii();
    is_request(line) || {
        let word = &line[..line.iter().position(u8::is_ascii_whitespace).unwrap_or(line.len())];
        word.eq_ignore_ascii_case(b"post") || is_field(word)
    }
}

/// `Host:`; no command ends in a colon.
fn is_field(word: &[u8]) -> bool {
    word.split_last().is_some_and(|(last, name)| *last == b':' && !name.is_empty())
}

/// `METHOD TARGET HTTP/1.1`. A client chooses the method and most of the target, so that it may be
/// `SET`, and what stands between the first blank and the last is the target.
#[inline]
pub fn is_request(line: &[u8]) -> bool {
    const VERSION_BYTES: usize = b" HTTP/1.1".len();
    let Some(at) = line.len().checked_sub(VERSION_BYTES) else { return false };
    line[at..].starts_with(b" HTTP/") && is_target(&line[..at])
}

/// Whether the method is followed by a path, `*`, an address with its scheme, or, of `CONNECT`, one
/// without.
fn is_target(head: &[u8]) -> bool {
    let Some(blank) = memchr::memchr(b' ', head) else { return false };
    let (method, target) = (&head[..blank], head[blank..].trim_ascii());
    target.starts_with(b"/")
        || target == b"*"
        || method.eq_ignore_ascii_case(b"connect")
        || target.split(|byte| *byte == b'/').next().is_some_and(|scheme| scheme.ends_with(b":"))
            && target.windows(3).any(|three| three == b"://")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_first_line_of_http_is_known_and_no_command_is_taken_for_one() {
        for line in [
            "POST / HTTP/1.1",
            "GET /metrics?x=1 HTTP/1.0",
            "get /a HTTP/1.1",
            "SET /owned HTTP/1.1",
            "DEL /a b c HTTP/1.1",
            "OPTIONS * HTTP/1.1",
            "PRI * HTTP/2.0",
            "CONNECT cache:6379 HTTP/1.1",
            "PUT http://cache:6379/ HTTP/1.1",
            "POST /",
            "post",
            "Host: cache",
            "host:",
            "Content-Length: 12",
        ] {
            assert!(is_line(line.as_bytes()), "{line}");
        }
        assert!(is_line(b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03"));
        for line in [
            "get HTTP/1.1",
            "get a HTTP/1.1",
            "set a HTTP/1.1",
            "SET page /index.html",
            "set a 0 0 8",
            "mg a v",
            "PING",
            "",
            ":",
            "echo Host:",
            "postpone",
        ] {
            assert!(!is_line(line.as_bytes()), "{line}");
        }
    }
}
