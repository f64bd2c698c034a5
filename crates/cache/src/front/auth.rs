//! Authentication: passwords compared in constant time, memcached's file of users, and its way to
//! say a password (`set anything 0 0 LENGTH`, then `user password` as the value).

use super::bytes::unsigned32;
use super::http;
use super::text::WordIter;
use crate::constants::LINE_BYTES_MAX;
use rackpool_core::Error;
use rackpool_fabric::secret::read_file;
use std::path::Path;
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

/// Whether two byte strings are the same, in a time that does not tell where they differ.
pub fn same(expected: &[u8], given: &[u8]) -> bool {
    expected.ct_eq(given).into()
}

/// Users that one file may hold, as in memcached.
const USERS_MAX: usize = 8;
/// Longest password value, bytes.
const TOKEN_BYTES_MAX: u32 = 2048;

/// Longest file of passwords or with a key, bytes.
const FILE_BYTES_MAX: usize = 256 << 10;

/// The text of a file that holds a secret, under the rule of a pool's secret.
///
/// # Errors
/// [`Error::Io`], [`Error::Config`].
pub fn read_private(path: &Path, kind: &str) -> Result<Zeroizing<String>, Error> {
    let bytes = read_file(path, kind, FILE_BYTES_MAX)?;
    let text = std::str::from_utf8(&bytes);
    let text = text.map_err(|error| wrong(format!("{}: {error}", path.display())))?;
    Ok(Zeroizing::new(text.to_owned()))
}

fn wrong(reason: String) -> Error {
    Error::Config { reason }
}

/// Reads the password of RESP's `AUTH`: the first line of a file.
///
/// # Errors
/// As `read_private`.
pub fn read_password(path: &Path) -> Result<String, Error> {
    let text = read_private(path, "password file")?;
    match text.lines().next() {
        Some(line) if !line.is_empty() => Ok(line.to_owned()),
        _ => Err(wrong(format!("{}: the first line holds no password", path.display()))),
    }
}

/// Reads users and passwords: one `user:password` a line.
///
/// # Errors
/// As `read_private`; with the line.
pub fn read_users(path: &Path) -> Result<Vec<(String, String)>, Error> {
    let text = read_private(path, "auth file")?;
    let mut users = Vec::new();
    for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.is_empty()) {
        let wrong_line = || wrong(format!("{}:{}: not user:password", path.display(), index + 1));
        let (user, password) = line.split_once(':').ok_or_else(wrong_line)?;
        if user.is_empty() || user.contains(' ') || password.contains(' ') {
            return Err(wrong_line());
        }
        users.push((user.to_owned(), password.to_owned()));
    }
    if users.is_empty() || users.len() > USERS_MAX {
        let count = users.len();
        return Err(wrong(format!("{}: {count} users, 1 to {USERS_MAX} may be", path.display())));
    }
    Ok(users)
}

#[derive(Debug, PartialEq, Eq)]
pub enum Attempt {
    /// So many bytes must be there.
    Need(usize),
    /// An attempt of so many bytes; the answer, and whether the password was right. `None`: not an
    /// attempt.
    Done(usize, &'static str, Option<bool>),
    /// Not this text: a line without end, or one of HTTP.
    Foreign,
}

pub fn attempt(input: &[u8], users: &[(String, String)]) -> Attempt {
    let Some(end) = memchr::memchr(b'\n', input) else {
        let too_long = input.len() > LINE_BYTES_MAX;
        return if too_long { Attempt::Foreign } else { Attempt::Need(input.len() + 1) };
    };
    if http::is_line(&input[..end]) {
        return Attempt::Foreign;
    }
    let mut words = WordIter(&input[..end]);
    let set = words.next() == Some(b"set");
    let length = words.nth(3).and_then(|word| unsigned32(word.trim_ascii_end()));
    let Some(length) = length.filter(|length| set && *length <= TOKEN_BYTES_MAX) else {
        return Attempt::Done(end + 1, "CLIENT_ERROR unauthenticated", None);
    };
    let used = end + 1 + length as usize + 2;
    let Some(value) = input.get(end + 1..used) else { return Attempt::Need(used) };
    let Some(value) = value.strip_suffix(b"\r\n") else {
        return Attempt::Done(used, "CLIENT_ERROR bad command line termination", None);
    };
    let mut words = WordIter(value);
    let (Some(user), Some(password)) = (words.next(), words.next()) else {
        return Attempt::Done(used, "CLIENT_ERROR bad authentication token format", None);
    };
    let right = users.iter().fold(false, |found, (name, secret)| {
        found | (same(name.as_bytes(), user) & same(secret.as_bytes(), password))
    });
    let answer = if right { "STORED" } else { "CLIENT_ERROR authentication failure" };
    Attempt::Done(used, answer, Some(right))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_said_as_a_value() {
        let users = [("ann".to_owned(), "secret".to_owned())];
        let said = |text: &str| attempt(text.as_bytes(), &users);
        assert_eq!(said("set x 0 0 10\r\nann secret\r\n"), Attempt::Done(26, "STORED", Some(true)));
        assert_eq!(
            said("set x 0 0 9\r\nann wrong\r\n"),
            Attempt::Done(24, "CLIENT_ERROR authentication failure", Some(false))
        );
        let refused = Attempt::Done(7, "CLIENT_ERROR unauthenticated", None);
        assert_eq!(said("get x\r\n"), refused);
        assert_eq!(said("set x 0 0 10\r\nann se"), Attempt::Need(26));
        assert_eq!(attempt(&[0x80; 3000], &users), Attempt::Foreign);
    }

    #[test]
    fn only_equal_bytes_are_the_same() {
        assert!(same(b"abc", b"abc") && same(b"", b""));
        assert!(!same(b"abc", b"abd") && !same(b"abc", b"ab") && !same(b"ab", b"abc"));
        assert!(!same(b"", b"a") && !same(b"a", b""));
    }
}
