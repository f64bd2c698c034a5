//! Frames on a stream: a length of 4 bytes, little-endian, then so many bytes; before them the
//! proof of the secret, if there is one. Owns one connection and its buffers; its poll loop calls.
//! Bounded on both sides: a longer frame than allowed is an error before any of it is kept, and the
//! writer says how much waits.

use rackpool_core::constants::MASTER_MESSAGE_BYTES_MAX;
use rackpool_core::{Error, Result, wire};
use rackpool_fabric::handshake::{Failure, Handshake, Progress};
use rackpool_fabric::secure_stream::{RecordLayer, SecureStream};
use serde::de::DeserializeOwned;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;

const HEAD_BYTES: usize = 4;
/// Bytes asked of the socket at once.
const READ_BYTES: usize = 16 << 10;
/// Buffered bytes from which on nothing more is read: the longest frame is complete by then.
const BUFFER_BYTES_MAX: usize = MASTER_MESSAGE_BYTES_MAX as usize + HEAD_BYTES;

/// What a read from a socket came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadEnd {
    /// The socket is empty for now.
    Empty,
    /// The buffer is full, or the share of one turn is taken; there may be more.
    More,
    Closed,
}

/// A frame longer than allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameTooLong {
    /// What its head says.
    pub bytes: u32,
}

/// Takes frames out of a stream.
#[derive(Default)]
pub(crate) struct FrameReader {
    buffer: Vec<u8>,
    start: usize,
}

impl FrameReader {
    /// Reads what is there, up to the buffer's bound.
    pub(crate) fn fill(&mut self, stream: &mut impl Read) -> io::Result<ReadEnd> {
        self.buffer.drain(..std::mem::take(&mut self.start));
        while self.buffer.len() < BUFFER_BYTES_MAX {
            let len = self.buffer.len();
            self.buffer.resize(len + READ_BYTES, 0);
            let got = stream.read(&mut self.buffer[len..]);
            self.buffer.truncate(len + *got.as_ref().unwrap_or(&0));
            match got {
                Ok(0) => return Ok(ReadEnd::Closed),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Ok(ReadEnd::Empty);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(ReadEnd::More)
    }

    /// The same of a secure stream; what it has decrypted already comes as well, because no system
    /// reports it.
    pub(crate) fn fill_of(&mut self, stream: &mut SecureStream) -> io::Result<ReadEnd> {
        let end = self.fill(stream)?;
        if end == ReadEnd::More {
            stream.take_buffered(&mut self.buffer)?;
        }
        Ok(end)
    }

    /// The next complete frame, at most `limit` bytes long.
    pub(crate) fn next(&mut self, limit: u32) -> Result<Option<&[u8]>, FrameTooLong> {
        let waiting = &self.buffer[self.start..];
        let Some(head) = waiting.first_chunk::<HEAD_BYTES>() else { return Ok(None) };
        let bytes = u32::from_le_bytes(*head);
        if bytes > limit {
            return Err(FrameTooLong { bytes });
        }
        let end = HEAD_BYTES + bytes as usize;
        if waiting.len() < end {
            return Ok(None);
        }
        let at = self.start + HEAD_BYTES;
        self.start += end;
        Ok(Some(&self.buffer[at..at + bytes as usize]))
    }

    /// What was read and not taken, for what is no frame.
    pub(crate) fn waiting(&self) -> &[u8] {
        &self.buffer[self.start..]
    }

    /// Takes so many of the waiting bytes.
    pub(crate) fn consume(&mut self, bytes: usize) {
        self.start += bytes;
        assert!(self.start <= self.buffer.len(), "more taken than read");
    }

    /// Whether [`FrameReader::next`] has something to say without another read.
    pub(crate) fn has_frame(&self) -> bool {
        let waiting = &self.buffer[self.start..];
        waiting.first_chunk::<HEAD_BYTES>().is_some_and(|head| {
            let bytes = u32::from_le_bytes(*head);
            bytes > MASTER_MESSAGE_BYTES_MAX || waiting.len() - HEAD_BYTES >= bytes as usize
        })
    }

    /// Gives memory back that one long frame took.
    pub(crate) fn shrink(&mut self) {
        if self.start == self.buffer.len() {
            self.buffer.clear();
            self.start = 0;
            self.buffer.shrink_to(4 * READ_BYTES);
        }
    }
}

pub(crate) fn framed(payload: &[u8]) -> Vec<u8> {
    [&head(payload)[..], payload].concat()
}

fn head(payload: &[u8]) -> [u8; HEAD_BYTES] {
    let bytes = u32::try_from(payload.len()).ok().filter(|b| *b <= MASTER_MESSAGE_BYTES_MAX);
    bytes.expect("every message of ours has fewer entries than fit").to_le_bytes()
}

/// Collects frames for a stream.
#[derive(Default)]
pub(crate) struct FrameWriter {
    buffer: Vec<u8>,
    start: usize,
}

impl FrameWriter {
    pub(crate) fn push(&mut self, payload: &[u8]) {
        self.buffer.extend_from_slice(&head(payload));
        self.buffer.extend_from_slice(payload);
    }

    /// Appends what is no frame.
    pub(crate) fn push_bare(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// Writes as much as the socket takes.
    pub(crate) fn flush(&mut self, stream: &mut impl Write) -> io::Result<()> {
        // What the stream has taken and not sent goes first.
        match stream.flush() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            flushed => flushed?,
        }
        while self.start < self.buffer.len() {
            match stream.write(&self.buffer[self.start..]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(bytes) => self.start += bytes,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.buffer.clear();
        self.buffer.shrink_to(4 * READ_BYTES);
        self.start = 0;
        Ok(())
    }

    /// Bytes that wait for the socket, but for those that the stream has taken.
    pub(crate) fn waiting_bytes(&self) -> usize {
        self.buffer.len() - self.start
    }
}

/// A connection of frames, which may begin with a proof of the secret.
pub(crate) struct FrameStream {
    pub stream: SecureStream,
    pub reader: FrameReader,
    pub writer: FrameWriter,
    /// What is to be proved before any frame is taken.
    pub proof: Option<Handshake>,
}

impl FrameStream {
    pub(crate) fn new(stream: impl Into<OwnedFd>, proof: Option<Handshake>) -> Self {
        let (reader, writer) = (FrameReader::default(), FrameWriter::default());
        Self { stream: SecureStream::new(stream), reader, writer, proof }
    }

    pub(crate) fn fill(&mut self) -> io::Result<ReadEnd> {
        self.reader.fill_of(&mut self.stream)
    }

    pub(crate) fn flush(&mut self) -> io::Result<()> {
        self.writer.flush(&mut self.stream)
    }

    /// Bytes that wait for the socket.
    pub(crate) fn unsent_bytes(&self) -> usize {
        self.writer.waiting_bytes() + usize::from(self.stream.has_unsent())
    }

    /// Goes on with the proof, as far as what was read goes; `Done` if frames may be taken.
    pub(crate) fn prove(&mut self) -> Progress {
        while let Some(proof) = &mut self.proof {
            let step = proof.advance(self.reader.waiting());
            self.reader.consume(step.consumed);
            if let Some(reply) = &step.reply {
                self.writer.push_bare(reply);
            }
            match step.progress {
                Progress::Pending if step.consumed > 0 => {}
                Progress::Done => {
                    let records = self.proof.take().and_then(Handshake::into_records);
                    if records.is_some_and(|records| !self.encrypt(records)) {
                        return Progress::Failed(Failure::Strange);
                    }
                }
                progress => return progress,
            }
        }
        Progress::Done
    }

    /// Encrypts the rest; `false` if what is to go in clear does not go, or more came than should:
    /// our proof is the last that goes in clear, and theirs the last that comes so.
    fn encrypt(&mut self, records: RecordLayer) -> bool {
        let is_sent = self.flush().is_ok() && self.writer.waiting_bytes() == 0;
        self.stream.encrypt(records);
        is_sent && self.reader.waiting().is_empty()
    }

    /// The next message, of at most `limit` bytes, of a peer with this name.
    pub(crate) fn next<T: DeserializeOwned>(
        &mut self,
        limit: u32,
        peer: &str,
    ) -> Result<Option<T>> {
        match self.reader.next(limit) {
            Ok(frame) => frame.map(|frame| wire::decode(frame, peer)).transpose(),
            Err(long) => Err(Error::Protocol {
                peer: peer.into(),
                reason: format!("a frame of {} bytes, at most {limit} go", long.bytes),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_survive_any_cut_of_the_stream() {
        let mut writer = FrameWriter::default();
        let frames: Vec<Vec<u8>> = (0..50u8).map(|n| vec![n; usize::from(n) * 7]).collect();
        for frame in &frames {
            writer.push(frame);
        }
        let mut bytes = Vec::new();
        writer.flush(&mut bytes).unwrap();
        assert_eq!(writer.waiting_bytes(), 0);
        for step in [1, 2, 3, 5, 64, 1000, bytes.len()] {
            let mut reader = FrameReader::default();
            let mut got = Vec::new();
            for mut piece in bytes.chunks(step) {
                reader.fill(&mut piece).unwrap();
                while let Some(frame) = reader.next(1000).unwrap() {
                    got.push(frame.to_vec());
                }
                reader.shrink();
            }
            assert_eq!(got, frames, "pieces of {step}");
        }
    }

    #[test]
    fn a_frame_above_the_limit_is_refused_by_its_head_alone() {
        let mut reader = FrameReader::default();
        reader.fill(&mut &[1, 1, 0, 0][..]).unwrap();
        assert_eq!(reader.next(256), Err(FrameTooLong { bytes: 257 }));
        let mut reader = FrameReader::default();
        reader.fill(&mut &[255; 4][..]).unwrap();
        assert!(reader.next(MASTER_MESSAGE_BYTES_MAX).is_err());
    }

    #[test]
    fn the_buffer_of_a_reader_stays_bounded() {
        let mut reader = FrameReader::default();
        let mut endless = io::repeat(0);
        assert_eq!(reader.fill(&mut endless).unwrap(), ReadEnd::More);
        assert!(reader.buffer.len() <= BUFFER_BYTES_MAX + READ_BYTES);
        assert_eq!(reader.next(10).unwrap(), Some(&[][..]));
    }
}
