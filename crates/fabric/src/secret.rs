//! The secret that all processes of a pool share, as they were given it in a file. Owns the rules
//! of that file and the key that is derived from it, SHA-256 over a label and the secret;
//! [`crate::handshake`] proves with it that both ends of a connection have it.
//!
//! It never travels, and nothing prints it. Source: DESIGN §4; decisions 0035, 0038.

use rackpool_core::error::{Error, Result};
use ring::digest;
use rustix::fs::{FileType, Mode, OFlags};
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

/// Bytes of the key that Noise is given.
pub(crate) const PSK_BYTES: usize = 32;

/// Shortest secret, bytes: fewer could be found by trying.
pub const SECRET_BYTES_MIN: usize = 16;
pub const SECRET_BYTES_MAX: usize = 4096;
/// At the beginning of a file: connections are encrypted.
const ENCRYPT: &[u8] = b"encrypt:";
/// What the secret's hash begins with, so that it is no hash of the file alone.
const PSK_LABEL: &[u8] = b"rackpool psk 2";
/// What no user but the file's owner may do to it: its group may read it, others nothing.
const MODE_REFUSED: u32 = 0o037;

/// What a server logs when it starts with a secret that does not encrypt.
pub const CLEAR_TEXT: &str = "both ends of a connection prove the secret, and what follows is \
                              clear text: the secret's file does not begin with `encrypt:`";

/// The secret of a pool. A copy costs one count; two are equal if the bytes are, and if both or
/// none encrypt.
///
/// ```
/// use rackpool_fabric::secret::Secret;
/// let secret = Secret::new(b"sixteen bytes or more")?;
/// assert_eq!(format!("{secret:?}"), "Secret(..)");
/// assert!(Secret::new(b"too short").is_err());
/// # Ok::<(), rackpool_core::Error>(())
/// ```
#[derive(Clone)]
pub struct Secret {
    /// Overwritten when the last copy is dropped.
    psk: Arc<Zeroizing<[u8; PSK_BYTES]>>,
    encrypts: bool,
}

impl Secret {
    /// A secret of 16 to 4096 bytes, which should be random. Errors: `config`.
    pub fn new(bytes: &[u8]) -> Result<Self> {
        if !(SECRET_BYTES_MIN..=SECRET_BYTES_MAX).contains(&bytes.len()) {
            let found = bytes.len();
            return Err(Error::Config {
                reason: format!(
                    "a secret of {found} bytes: {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX} may be, \
                     such as of `head -c 32 /dev/urandom | base64`"
                ),
            });
        }
        Ok(Self { psk: Arc::new(derive_psk(bytes)), encrypts: false })
    }

    /// Whether connections are encrypted as well, with keys that it vouches for. Off at first; all
    /// processes of a pool have to say the same.
    ///
    /// ```
    /// use rackpool_fabric::secret::Secret;
    /// assert!(Secret::new(b"sixteen bytes or more")?.encrypting(true).encrypts());
    /// # Ok::<(), rackpool_core::Error>(())
    /// ```
    pub fn encrypting(mut self, encrypts: bool) -> Self {
        self.encrypts = encrypts;
        self
    }

    /// As [`Secret::encrypting`] has it.
    pub fn encrypts(&self) -> bool {
        self.encrypts
    }

    /// The secret in a file, without white space before and after it; one that begins with
    /// `encrypt:` is what follows that, and [`Secret::encrypting`]. Errors: `io` if it cannot be
    /// read; `config` if it is not a regular file, if others than its owner and its group may read
    /// it, or as of [`Secret::new`].
    pub fn from_file(path: &Path) -> Result<Self> {
        let wrong = |reason: &str| Error::Config {
            reason: format!("secret file {}: {reason}", path.display()),
        };
        let bytes = read_file(path, "secret file", SECRET_BYTES_MAX)?;
        let text = bytes.trim_ascii();
        let (encrypts, key) = match text.strip_prefix(ENCRYPT) {
            Some(rest) => (true, rest.trim_ascii()),
            None => (false, text),
        };
        let secret = Self::new(key).map_err(|error| match error {
            Error::Config { reason } => wrong(&reason),
            other => other,
        })?;
        Ok(secret.encrypting(encrypts))
    }

    /// Whether these bytes are the secret; compared in constant time.
    ///
    /// ```
    /// use rackpool_fabric::secret::Secret;
    /// let secret = Secret::new(b"sixteen bytes or more")?;
    /// assert!(secret.is(b"sixteen bytes or more") && !secret.is(b"sixteen bytes or less"));
    /// # Ok::<(), rackpool_core::Error>(())
    /// ```
    pub fn is(&self, given: &[u8]) -> bool {
        self.psk.ct_eq(derive_psk(given).as_slice()).into()
    }

    /// The key that Noise mixes in.
    pub(crate) fn psk(&self) -> &[u8; PSK_BYTES] {
        &self.psk
    }
}

/// SHA-256 over a label and the bytes.
fn derive_psk(bytes: &[u8]) -> Zeroizing<[u8; PSK_BYTES]> {
    let mut hash = digest::Context::new(&digest::SHA256);
    hash.update(PSK_LABEL);
    hash.update(bytes);
    let mut psk = Zeroizing::new([0; PSK_BYTES]);
    psk.copy_from_slice(hash.finish().as_ref());
    psk
}

/// What a file holds that only its owner and its group may read: a secret, passwords, a key.
/// `kind` says in errors which. Errors: `io` if it cannot be read; `config` if it is not a regular
/// file, if others than its owner and its group may read it, or if it is longer than `bytes_max`.
///
/// The bytes are overwritten when they are dropped. From here on this process leaves no core dump,
/// and other processes of its user cannot attach to it: what is made of the bytes stays in memory.
pub fn read_file(path: &Path, kind: &str, bytes_max: usize) -> Result<Zeroizing<Vec<u8>>> {
    let wrong =
        |reason: &str| Error::Config { reason: format!("{kind} {}: {reason}", path.display()) };
    let failed = |error: std::io::Error| Error::Io {
        what: format!("{kind} {}", path.display()),
        reason: error.to_string(),
    };
    // Without waiting for a writer, should it be a pipe.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = rustix::fs::open(path, flags, Mode::empty()).map_err(|e| failed(e.into()))?;
    let stat = rustix::fs::fstat(&file).map_err(|e| failed(e.into()))?;
    if !FileType::from_raw_mode(stat.st_mode).is_file() {
        return Err(wrong("not a regular file"));
    }
    let mode = stat.st_mode & 0o777;
    if mode & MODE_REFUSED != 0 {
        return Err(wrong(&format!("others may use it (mode {mode:03o}): chmod 600 it")));
    }
    set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(|e| failed(e.into()))?;
    let limit = bytes_max as u64 + 1;
    // All of it at once: a vector that grows leaves its bytes where it was before.
    let room = (stat.st_size as u64 + 1).min(limit) as usize;
    let mut bytes = Zeroizing::new(Vec::with_capacity(room));
    File::from(file).take(limit).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() > bytes_max {
        return Err(wrong(&format!("longer than {bytes_max} bytes")));
    }
    Ok(bytes)
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// In constant time, as everything that looks at the key.
impl PartialEq for Secret {
    fn eq(&self, other: &Self) -> bool {
        bool::from(self.psk.ct_eq(other.psk.as_slice())) && self.encrypts == other.encrypts
    }
}

impl Eq for Secret {}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    /// A file that goes with the test.
    struct Kept(std::path::PathBuf);

    impl Kept {
        fn new(what: &str, mode: u32, bytes: &[u8]) -> Self {
            let name = format!("rackpool-secret-{}-{what}", std::process::id());
            let path = std::env::temp_dir().join(name);
            std::fs::write(&path, bytes).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            Self(path)
        }

        fn read(what: &str, mode: u32, bytes: &[u8]) -> Result<Secret> {
            Secret::from_file(&Self::new(what, mode, bytes).0)
        }
    }

    impl Drop for Kept {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0);
        }
    }

    #[test]
    fn a_file_that_others_may_use_is_refused_with_the_way_out() {
        for mode in [0o644, 0o604, 0o620, 0o666, 0o602, 0o601, 0o777] {
            let error = Kept::read("open", mode, &[b'k'; 32]).unwrap_err();
            assert_eq!(error.code(), "config");
            assert!(error.to_string().contains("chmod 600"), "{error}");
        }
        for mode in [0o600, 0o400, 0o440, 0o640] {
            assert!(Kept::read("closed", mode, &[b'k'; 32]).is_ok(), "{mode:o}");
        }
    }

    #[test]
    fn white_space_around_it_does_not_count_and_length_is_bounded() {
        let bare = Secret::new(&[b'k'; 16]).unwrap();
        let read = |bytes: &[u8]| Kept::read("length", 0o600, bytes);
        assert_eq!(read(b"\n kkkkkkkkkkkkkkkk \r\n").unwrap(), bare);
        assert_ne!(read(b"kkkkkkkk kkkkkkkk").unwrap(), bare);
        assert_eq!(read(b"  kkkkkkkkkkkkkkk   \n").unwrap_err().code(), "config");
        assert!(read(&[b'k'; SECRET_BYTES_MAX]).is_ok());
        assert_eq!(read(&[b'k'; SECRET_BYTES_MAX + 1]).unwrap_err().code(), "config");
        assert_eq!(read(b"").unwrap_err().code(), "config");
    }

    #[test]
    fn a_process_that_read_a_secret_leaves_no_core_dump() {
        let kept = Kept::new("core", 0o600, b"sixteen bytes or more");
        Secret::from_file(&kept.0).unwrap();
        let now = rustix::process::dumpable_behavior().unwrap();
        assert_eq!(now, DumpableBehavior::NotDumpable);
    }

    #[test]
    fn a_file_says_whether_connections_are_encrypted() {
        let bare = Secret::new(&[b'k'; 16]).unwrap();
        let read = |bytes: &[u8]| Kept::read("encrypt", 0o600, bytes);
        for said in [&b"encrypt:kkkkkkkkkkkkkkkk"[..], b" encrypt:\n kkkkkkkkkkkkkkkk\n"] {
            assert_eq!(read(said).unwrap(), bare.clone().encrypting(true));
        }
        assert_ne!(read(b"kkkkkkkkkkkkkkkk").unwrap(), bare.clone().encrypting(true));
        assert_eq!(read(b"encrypt:too short").unwrap_err().code(), "config");
    }

    #[test]
    fn what_is_no_file_is_refused_and_nothing_waits() {
        assert_eq!(Secret::from_file(Path::new("/nowhere")).unwrap_err().code(), "io");
        assert_eq!(Secret::from_file(&std::env::temp_dir()).unwrap_err().code(), "config");
        let error = Secret::from_file(Path::new("/dev/zero")).unwrap_err();
        assert!(error.to_string().contains("regular"), "{error}");
    }

    #[test]
    fn nothing_of_it_is_printed() {
        let secret = Secret::new(b"a secret that nobody sees").unwrap();
        assert_eq!(
            format!("{secret:?} {:#?}", Some(&secret)),
            "Secret(..) Some(\n    Secret(..),\n)"
        );
    }
}
