//! Bytes through a TCP socket with non-blocking, spinning ends: the floor under the TCP fabric.
//!
//! A [`TcpServer`] answers requests of 64 bytes; each says how many bytes follow it and how many to
//! send back, so that one protocol gives the ping-pong (64 B each way), the read of 1 MiB (64 B
//! out, 1 MiB back), the write (1 MiB out, 64 B back) and, with several requests under way, the
//! stream. It does nothing else: no copy beyond the socket's, no check beyond the bounds of a
//! request. Run [`serve`] in a process of its own, or [`TcpServer::spawn`] for a thread. Both ends
//! wait by the same [`Wait`].
//!
//! The client owns its buffers; the server discards what it receives.

use super::Wait;
use super::pin::{PinError, pin_to};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

/// Bytes of a request, and of the smallest answer.
pub const MESSAGE_BYTES: usize = 64;
/// Most bytes that a request may carry or ask for.
pub const TRANSFER_BYTES_MAX: u64 = 64 << 20;
/// Most requests under way in a stream: their 64 bytes each always fit in the socket's buffer.
pub const DEPTH_MAX: usize = 64;

/// Silence after which an end gives up.
const SILENCE_MAX: Duration = Duration::from_secs(30);
/// Memory of the server, moved again and again.
const PIECE_BYTES: usize = 1 << 20;
const SERVER_BYTE: u8 = 0x3C;
/// Turns of waiting between two looks at the clock.
const TURNS_PER_CLOCK_LOOK: u32 = 1 << 12;

/// What the speed of a stream depends on beside the machine. A raw reference should try several
/// and take the best.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tuning {
    /// Socket buffers asked for; the kernel may give less. `None` lets it find the size by
    /// itself, which then may grow beyond what can be asked for.
    pub socket_buffer_bytes: Option<usize>,
    /// Bytes that one system call moves at most.
    pub piece_bytes: usize,
}

impl Default for Tuning {
    fn default() -> Self {
        Self { socket_buffer_bytes: Some(4 << 20), piece_bytes: 1 << 20 }
    }
}

/// Why an exchange ended. A retry needs a new connection.
#[derive(Debug, thiserror::Error)]
pub enum TcpError {
    /// The socket failed or the peer closed it.
    #[error("socket: {0}")]
    Io(#[from] io::Error),
    /// Nothing moved for 30 s.
    #[error("the peer was silent for {} s", SILENCE_MAX.as_secs())]
    Silent,
    /// The peer asked for more than this protocol moves.
    #[error("a request for {asked_bytes} bytes, at most {TRANSFER_BYTES_MAX} are moved")]
    TooLarge { asked_bytes: u64 },
    /// A thread could not be put on its core.
    #[error(transparent)]
    Pin(#[from] PinError),
    #[error("the server's thread is gone")]
    ServerGone,
}

/// Answers one connection on `listener` until the peer closes it; blocks until then. The line
/// for a process of its own; [`TcpServer::spawn`] does the same in a thread.
///
/// # Errors
/// [`TcpError`] when no peer comes or it breaks the protocol.
pub fn serve(listener: &TcpListener, wait: Wait, tuning: Tuning) -> Result<(), TcpError> {
    let stream = accept(listener, wait)?;
    let mut end = TcpEnd::new(stream, wait, tuning)?;
    // Not zero: a page that was never written would be read from one shared zero page.
    let source = vec![SERVER_BYTE; PIECE_BYTES];
    let mut sink = vec![0xA5u8; PIECE_BYTES];
    let mut request = [0u8; MESSAGE_BYTES];
    while end.receive_or_end(&mut request)? {
        let incoming = bounded(&request, 0)?;
        let outgoing = bounded(&request, 8)?;
        for piece in pieces(incoming) {
            end.receive(&mut sink[..piece])?;
        }
        for piece in pieces(outgoing) {
            end.send(&source[..piece])?;
        }
    }
    Ok(())
}

/// A server in a thread of this process.
#[derive(Debug)]
pub struct TcpServer {
    address: SocketAddr,
    thread: thread::JoinHandle<Result<(), TcpError>>,
}

impl TcpServer {
    /// Listens on a free port of the loopback and serves one connection, on `core` if given.
    ///
    /// # Errors
    /// [`TcpError::Io`] when there is no port.
    pub fn spawn(wait: Wait, core: Option<usize>) -> Result<Self, TcpError> {
        Self::spawn_tuned(wait, core, Tuning::default())
    }

    /// As [`TcpServer::spawn`], tuned.
    ///
    /// # Errors
    /// [`TcpError::Io`] when there is no port.
    pub fn spawn_tuned(wait: Wait, core: Option<usize>, tuning: Tuning) -> Result<Self, TcpError> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let address = listener.local_addr()?;
        let thread = thread::Builder::new().name("raw-tcp".into()).spawn(move || {
            core.map_or(Ok(()), pin_to)?;
            serve(&listener, wait, tuning)
        })?;
        Ok(Self { address, thread })
    }

    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Waits for the end of the connection; drop the client first.
    ///
    /// # Errors
    /// What ended the server, if it was not the client's close.
    pub fn join(self) -> Result<(), TcpError> {
        self.thread.join().map_err(|_| TcpError::ServerGone)?
    }
}

/// The asking end, and the memory that it reads into and writes from.
#[derive(Debug)]
pub struct TcpClient {
    end: TcpEnd,
    buffer: Vec<u8>,
}

impl TcpClient {
    /// Connects to a [`TcpServer`] or to a process that runs [`serve`].
    ///
    /// # Errors
    /// [`TcpError::Io`].
    pub fn connect(address: SocketAddr, wait: Wait) -> Result<Self, TcpError> {
        Self::connect_tuned(address, wait, Tuning::default())
    }

    /// As [`TcpClient::connect`], tuned.
    ///
    /// # Errors
    /// [`TcpError::Io`].
    pub fn connect_tuned(
        address: SocketAddr,
        wait: Wait,
        tuning: Tuning,
    ) -> Result<Self, TcpError> {
        let end = TcpEnd::new(TcpStream::connect(address)?, wait, tuning)?;
        Ok(Self { end, buffer: Vec::new() })
    }

    /// One message of 64 bytes there and back.
    ///
    /// # Errors
    /// [`TcpError`].
    #[inline]
    pub fn ping(&mut self) -> Result<(), TcpError> {
        let mut answer = [0u8; MESSAGE_BYTES];
        self.end.send(&request(0, MESSAGE_BYTES as u64))?;
        self.end.receive(&mut answer)
    }

    /// Asks for `bytes` and waits until they are all here.
    ///
    /// # Errors
    /// [`TcpError`].
    pub fn read(&mut self, bytes: usize) -> Result<(), TcpError> {
        self.read_stream(bytes, 1, 1)
    }

    /// Sends `bytes` and waits for the answer of 64 bytes.
    ///
    /// # Errors
    /// [`TcpError`].
    pub fn write(&mut self, bytes: usize) -> Result<(), TcpError> {
        self.write_stream(bytes, 1, 1)
    }

    /// Reads `count` times `bytes`, with `depth` requests under way.
    ///
    /// # Errors
    /// [`TcpError`].
    pub fn read_stream(
        &mut self,
        bytes: usize,
        count: usize,
        depth: usize,
    ) -> Result<(), TcpError> {
        self.make_room(bytes)?;
        let mut asked = 0;
        for done in 0..count {
            while asked < count && asked < done + depth.clamp(1, DEPTH_MAX) {
                self.end.send(&request(0, bytes as u64))?;
                asked += 1;
            }
            self.end.receive(&mut self.buffer[..bytes])?;
        }
        Ok(())
    }

    /// Writes `count` times `bytes`, with `depth` of them unanswered.
    ///
    /// # Errors
    /// [`TcpError`].
    pub fn write_stream(
        &mut self,
        bytes: usize,
        count: usize,
        depth: usize,
    ) -> Result<(), TcpError> {
        self.make_room(bytes)?;
        let mut answer = [0u8; MESSAGE_BYTES];
        let mut sent = 0;
        for done in 0..count {
            while sent < count && sent < done + depth.clamp(1, DEPTH_MAX) {
                self.end.send(&request(bytes as u64, MESSAGE_BYTES as u64))?;
                self.end.send(&self.buffer[..bytes])?;
                sent += 1;
            }
            self.end.receive(&mut answer)?;
        }
        Ok(())
    }

    fn make_room(&mut self, bytes: usize) -> Result<(), TcpError> {
        if bytes as u64 > TRANSFER_BYTES_MAX {
            return Err(TcpError::TooLarge { asked_bytes: bytes as u64 });
        }
        if self.buffer.len() < bytes {
            // Not zero: a page that was never written would be read from one shared zero page.
            self.buffer.resize(bytes, 0xA5);
        }
        Ok(())
    }
}

/// One end of a connection: whole messages over a non-blocking socket.
#[derive(Debug)]
struct TcpEnd {
    stream: TcpStream,
    wait: Wait,
    piece_bytes: usize,
}

impl TcpEnd {
    fn new(stream: TcpStream, wait: Wait, tuning: Tuning) -> Result<Self, TcpError> {
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        if let Some(bytes) = tuning.socket_buffer_bytes {
            // What the kernel gives less shows in the speed; tuning tries several.
            let _ = rustix::net::sockopt::set_socket_send_buffer_size(&stream, bytes);
            let _ = rustix::net::sockopt::set_socket_recv_buffer_size(&stream, bytes);
        }
        Ok(Self { stream, wait, piece_bytes: tuning.piece_bytes.max(1) })
    }

    #[inline]
    fn send(&mut self, bytes: &[u8]) -> Result<(), TcpError> {
        let (mut patience, mut sent) = (Patience::new(self.wait), 0);
        while sent < bytes.len() {
            let piece = bytes.len().min(sent + self.piece_bytes);
            match self.stream.write(&bytes[sent..piece]) {
                Ok(0) => return Err(io::Error::from(ErrorKind::WriteZero).into()),
                Ok(count) => {
                    sent += count;
                    patience = Patience::new(self.wait);
                }
                Err(error) => patience.after(error)?,
            }
        }
        Ok(())
    }

    #[inline]
    fn receive(&mut self, bytes: &mut [u8]) -> Result<(), TcpError> {
        match self.receive_or_end(bytes)? {
            true => Ok(()),
            false => Err(io::Error::from(ErrorKind::UnexpectedEof).into()),
        }
    }

    /// False when the peer closed between two messages.
    #[inline]
    fn receive_or_end(&mut self, bytes: &mut [u8]) -> Result<bool, TcpError> {
        let (mut patience, mut got) = (Patience::new(self.wait), 0);
        while got < bytes.len() {
            let piece = bytes.len().min(got + self.piece_bytes);
            match self.stream.read(&mut bytes[got..piece]) {
                Ok(0) if got == 0 => return Ok(false),
                Ok(0) => return Err(io::Error::from(ErrorKind::UnexpectedEof).into()),
                Ok(count) => {
                    got += count;
                    patience = Patience::new(self.wait);
                }
                Err(error) => patience.after(error)?,
            }
        }
        Ok(true)
    }
}

/// Counts the turns of one wait and ends it after [`SILENCE_MAX`].
struct Patience {
    wait: Wait,
    turn: u32,
    looks: u32,
    deadline: Option<Instant>,
}

impl Patience {
    const fn new(wait: Wait) -> Self {
        Self { wait, turn: 0, looks: 0, deadline: None }
    }

    /// Pauses when `error` says that nothing is there yet.
    #[inline]
    fn after(&mut self, error: io::Error) -> Result<(), TcpError> {
        match error.kind() {
            ErrorKind::WouldBlock => self.pause(),
            ErrorKind::Interrupted => Ok(()),
            _ => Err(error.into()),
        }
    }

    #[inline]
    fn pause(&mut self) -> Result<(), TcpError> {
        self.turn = self.turn.saturating_add(1);
        self.looks += 1;
        self.wait.pause(self.turn);
        if self.looks >= TURNS_PER_CLOCK_LOOK {
            self.looks = 0;
            let now = Instant::now();
            if now > *self.deadline.get_or_insert(now + SILENCE_MAX) {
                return Err(TcpError::Silent);
            }
        }
        Ok(())
    }
}

fn accept(listener: &TcpListener, wait: Wait) -> Result<TcpStream, TcpError> {
    listener.set_nonblocking(true)?;
    let mut patience = Patience::new(wait);
    loop {
        match listener.accept() {
            Ok((stream, _)) => return Ok(stream),
            Err(error) => patience.after(error)?,
        }
    }
}

fn request(carries_bytes: u64, asks_bytes: u64) -> [u8; MESSAGE_BYTES] {
    let mut request = [0; MESSAGE_BYTES];
    request[..8].copy_from_slice(&carries_bytes.to_le_bytes());
    request[8..16].copy_from_slice(&asks_bytes.to_le_bytes());
    request
}

/// A length that came over the wire: read once, checked, then used.
fn bounded(request: &[u8; MESSAGE_BYTES], offset: usize) -> Result<usize, TcpError> {
    let mut word = [0; 8];
    word.copy_from_slice(&request[offset..offset + 8]);
    match u64::from_le_bytes(word) {
        bytes if bytes <= TRANSFER_BYTES_MAX => Ok(bytes as usize),
        asked_bytes => Err(TcpError::TooLarge { asked_bytes }),
    }
}

fn pieces(bytes: usize) -> impl Iterator<Item = usize> {
    let whole = std::iter::repeat_n(PIECE_BYTES, bytes / PIECE_BYTES);
    whole.chain(Some(bytes % PIECE_BYTES).filter(|&rest| rest > 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tests share the machine with others: yield.
    fn pair() -> (TcpServer, TcpClient) {
        let server = TcpServer::spawn(Wait::Yield, None).unwrap();
        let client = TcpClient::connect(server.address(), Wait::Yield).unwrap();
        (server, client)
    }

    #[test]
    fn messages_reads_writes_and_streams_come_through_and_the_close_ends_the_server() {
        let (server, mut client) = pair();
        for _ in 0..100 {
            client.ping().unwrap();
        }
        client.read(1 << 20).unwrap();
        client.write((1 << 20) + 17).unwrap();
        client.read_stream(300_000, 20, 4).unwrap();
        client.write_stream(300_000, 20, 4).unwrap();
        client.ping().unwrap();
        drop(client);
        server.join().unwrap();
    }

    #[test]
    fn what_is_read_are_the_server_s_bytes() {
        let (server, mut client) = pair();
        client.read(100_000).unwrap();
        assert!(client.buffer.iter().all(|&byte| byte == SERVER_BYTE));
        drop(client);
        server.join().unwrap();
    }

    #[test]
    fn a_request_beyond_the_bound_is_refused_by_both_ends() {
        let (server, mut client) = pair();
        let too_large = client.read(TRANSFER_BYTES_MAX as usize + 1);
        assert!(matches!(too_large, Err(TcpError::TooLarge { .. })));
        client.end.send(&request(0, u64::MAX)).unwrap();
        let refused = server.join().unwrap_err();
        assert!(matches!(refused, TcpError::TooLarge { asked_bytes: u64::MAX }));
        assert!(client.ping().is_err(), "a closed socket is seen at once");
    }

    #[test]
    fn a_peer_that_closes_within_a_message_is_an_error() {
        let server = TcpServer::spawn(Wait::Yield, None).unwrap();
        let mut stream = TcpStream::connect(server.address()).unwrap();
        stream.write_all(&[0; 10]).unwrap();
        drop(stream);
        assert!(matches!(server.join(), Err(TcpError::Io(_))));
    }

    #[test]
    fn pieces_add_up() {
        for bytes in [0, 1, PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES] {
            assert_eq!(pieces(bytes).sum::<usize>(), bytes);
            assert!(pieces(bytes).all(|piece| piece > 0 && piece <= PIECE_BYTES));
        }
    }
}
