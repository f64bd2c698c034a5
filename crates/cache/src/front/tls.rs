//! What lies between a connection and its socket: nothing, or TLS 1.2 and 1.3 by rustls. In: bytes
//! of the socket. Out: the client's plain bytes; and the other way round. Called by
//! `worker.rs`.
//!
//! A channel holds at most `CHANNEL_BYTES` in each direction: it takes in no more before that was
//! read, and answers stay where they are until the socket has taken what came before them. What it
//! holds is counted: keys and buffers of each connection, what was decrypted and not read, what has
//! come of a record or greeting that is not whole, and what waits to be sent.

use super::auth::read_private;
use super::core::Output;
use rackpool_core::Error;
use rackpool_core::seam::Mem;
use rackpool_mem::files::open_regular;
use rackpool_mem::window::Piece;
use rustix::io::Errno;
use rustix::net::{SendFlags, send};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

/// Bytes of one direction that a channel holds at most, and one record.
const CHANNEL_BYTES: usize = 64 << 10;

/// Bytes of a connection on which nothing is under way, at most: rustls's state and keys (7.0 to
/// 8.5 KB were measured) and its smallest buffer for what comes.
const SESSION_BYTES: usize = 12 << 10;

/// Longest record of TLS with all around it …
const RECORD_BYTES_MAX: usize = (16 << 10) + 2048 + 5;
/// … and what rustls holds of a ClientHello in several records before it refuses it.
const GREETING_BYTES_MAX: usize = 64 << 10;

#[derive(Debug)]
pub enum Channel {
    Plain,
    Tls(Box<Encrypted>),
}

#[derive(Debug)]
pub struct Encrypted {
    connection: ServerConnection,
    /// Bytes that were decrypted and not read.
    readable: usize,
    /// Bytes that came since something was last decrypted: at most those of what is not whole.
    unfinished: usize,
    /// What came was no TLS: nothing more is taken in.
    is_broken: bool,
}

impl Channel {
    pub fn is_plain(&self) -> bool {
        matches!(self, Channel::Plain)
    }

    /// Whether something waits to be sent.
    pub fn has_output(&self) -> bool {
        match self {
            Channel::Plain => false,
            Channel::Tls(tls) => tls.connection.wants_write(),
        }
    }

    /// Whether [`Channel::read`] would find something without the socket.
    pub fn has_input(&self) -> bool {
        match self {
            Channel::Plain => false,
            Channel::Tls(tls) => tls.readable > 0,
        }
    }

    pub fn is_handshaking(&self) -> bool {
        match self {
            Channel::Plain => false,
            Channel::Tls(tls) => tls.connection.is_handshaking(),
        }
    }

    pub fn held_bytes(&self) -> u64 {
        let Channel::Tls(tls) = self else { return 0 };
        let is_greeting = tls.connection.is_handshaking();
        let most = if is_greeting { GREETING_BYTES_MAX } else { RECORD_BYTES_MAX };
        let sending = if tls.connection.wants_write() { CHANNEL_BYTES } else { 0 };
        (SESSION_BYTES + tls.readable + tls.unfinished.min(most) + sending) as u64
    }

    /// Reads the client's plain bytes. 0: it has ended its side.
    ///
    /// # Errors
    /// `AGAIN` if nothing is there now; `PROTO` after a violation of TLS; and the socket's errors.
    pub fn read(&mut self, fd: &OwnedFd, buffer: &mut [u8]) -> Result<usize, Errno> {
        match self {
            Channel::Plain => rustix::io::read(fd, buffer),
            Channel::Tls(tls) => tls.read(fd, buffer),
        }
    }

    /// Sends what the channel takes; the rest stays in `out`.
    ///
    /// # Errors
    /// The client is gone.
    pub fn send(&mut self, fd: &OwnedFd, out: &mut Output) -> io::Result<()> {
        match self {
            Channel::Plain => Ok(()),
            Channel::Tls(tls) => tls.send(fd, out),
        }
    }

    /// Says that nothing more will come, if the socket takes it.
    pub fn end(&mut self, fd: &OwnedFd) {
        if let Channel::Tls(tls) = self {
            tls.connection.send_close_notify();
            // A client that does not take it at once finds the connection closed.
            let _ = tls.flush(fd);
        }
    }
}

impl Encrypted {
    fn read(&mut self, fd: &OwnedFd, buffer: &mut [u8]) -> Result<usize, Errno> {
        let mut count = 0;
        loop {
            match self.connection.reader().read(&mut buffer[count..]) {
                // The client has ended its side.
                Ok(0) if count < buffer.len() => return Ok(count),
                Ok(read) => {
                    count += read;
                    // Before what is no record more may have come than was told.
                    self.readable = self.readable.saturating_sub(read);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                // It ended in the midst of something.
                Err(_) => return Ok(count),
            }
            if count == buffer.len() {
                return Ok(count);
            }
            match self.take_in(fd) {
                Ok(()) => {}
                Err(_) if count > 0 => return Ok(count),
                Err(error) => return Err(error),
            }
        }
    }

    /// Takes in what the socket has, and answers what is not for us.
    fn take_in(&mut self, fd: &OwnedFd) -> Result<(), Errno> {
        if self.is_broken {
            return Err(Errno::PROTO);
        }
        let came = self.connection.read_tls(&mut Socket(fd)).map_err(|error| errno(&error))?;
        let was_greeting = self.connection.is_handshaking();
        let processed = self.connection.process_new_packets();
        self.is_broken = processed.is_err();
        let flushed = self.flush(fd);
        let readable = processed.map_err(|_| Errno::PROTO)?.plaintext_bytes_to_read();
        let is_whole = readable > self.readable || was_greeting != self.connection.is_handshaking();
        self.unfinished = if is_whole { came } else { self.unfinished + came };
        self.readable = readable;
        flushed.map_err(|error| errno(&error))
    }

    fn send(&mut self, fd: &OwnedFd, out: &mut Output) -> io::Result<()> {
        loop {
            self.flush(fd)?;
            if self.connection.wants_write() || out.is_empty() {
                return Ok(());
            }
            out.load().map_err(io::Error::other)?;
            let taken = encrypt(&mut self.connection, out)?;
            out.advance(taken);
        }
    }

    /// Sends records until all are sent or the socket takes no more.
    fn flush(&mut self, fd: &OwnedFd) -> io::Result<()> {
        while self.connection.wants_write() {
            match self.connection.write_tls(&mut Socket(fd)) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Encrypts the beginning of `out`; how many bytes.
fn encrypt(connection: &mut ServerConnection, out: &Output) -> io::Result<u64> {
    let mut taken = 0;
    let mut result = Ok(());
    out.pieces(|piece| {
        let room = CHANNEL_BYTES - taken;
        let copied;
        let bytes = match piece {
            Piece::Private(bytes) => &bytes[..bytes.len().min(room)],
            Piece::Shared(window, offset, len) => {
                let mut copy = vec![0; (len as usize).min(room)];
                window.copy_out(offset, &mut copy);
                copied = copy;
                &copied
            }
        };
        match connection.writer().write(bytes) {
            Ok(written) => {
                taken += written;
                written == bytes.len() && taken < CHANNEL_BYTES
            }
            Err(error) => {
                result = Err(error);
                false
            }
        }
    });
    result.map(|()| taken as u64)
}

fn errno(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::PROTO)
}

/// A socket that does not block; its other end may be gone.
struct Socket<'a>(&'a OwnedFd);

impl Read for Socket<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        Ok(rustix::io::read(self.0, buffer)?)
    }
}

impl Write for Socket<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(send(self.0, bytes, SendFlags::NOSIGNAL)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[derive(Clone, Debug)]
pub struct Tls {
    config: Arc<ServerConfig>,
}

impl Tls {
    /// Reads a chain of certificates, the server's own first, and its private key, from PEM files.
    ///
    /// # Errors
    /// Which file is wrong, and how.
    pub fn read(chain: &Path, key: &Path) -> Result<Tls, String> {
        let told = |path: &Path, error: pem::Error| match error {
            pem::Error::NoItemsFound => format!("{}: holds no key in PEM form", path.display()),
            error => format!("{}: {error}", path.display()),
        };
        let certificates = open_regular(chain)
            .map_err(pem::Error::Io)
            .and_then(|file| CertificateDer::pem_reader_iter(file).collect::<Result<Vec<_>, _>>())
            .map_err(|error| told(chain, error))?;
        if certificates.is_empty() {
            return Err(format!("{}: holds no certificate in PEM form", chain.display()));
        }
        let private = read_private(key, "key file").map_err(|error| match error {
            Error::Config { reason } => reason,
            error => error.to_string(),
        })?;
        let private = PrivateKeyDer::from_pem_slice(private.as_bytes());
        let private = private.map_err(|error| told(key, error))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .and_then(|builder| {
                builder.with_no_client_auth().with_single_cert(certificates, private)
            })
            .map_err(|error| format!("{} with {}: {error}", chain.display(), key.display()))?;
        Ok(Tls { config: Arc::new(config) })
    }

    /// The channel of a new connection.
    ///
    /// # Errors
    /// If the system has no random numbers.
    pub fn channel(&self) -> io::Result<Channel> {
        let connection = ServerConnection::new(Arc::clone(&self.config));
        let mut connection = connection.map_err(io::Error::other)?;
        connection.set_buffer_limit(Some(CHANNEL_BYTES));
        let encrypted = Encrypted { connection, readable: 0, unfinished: 0, is_broken: false };
        Ok(Channel::Tls(Box::new(encrypted)))
    }
}
