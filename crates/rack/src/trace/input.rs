//! Bytes of a trace, in lines or in records of a fixed length, out of one buffer.
//!
//! Files that were compressed by gzip, xz or zstd are known by their first bytes and read as what
//! they hold.

use super::error::Cause;
use flate2::read::MultiGzDecoder;
use lzma_rust2::XzReader;
use std::io::{self, Read};

pub(crate) const LINE_BYTES_MAX: usize = 4096;
/// The buffer: the longest line, and enough that system calls do not matter.
const BUFFER_BYTES: usize = 64 << 10;
/// Memory that a file of xz may ask for: its largest preset takes 65 MiB.
const XZ_KIB_MAX: u32 = 100 << 10;
/// The window that a file of zstd may ask for, as a power of two: 128 MiB, as its own command.
const ZSTD_WINDOW_LOG_MAX: u32 = 27;

const GZIP: &[u8] = b"\x1f\x8b";
const XZ: &[u8] = b"\xfd7zXZ\0";
const ZSTD: &[u8] = b"\x28\xb5\x2f\xfd";
/// What some editors and spreadsheets put before a text in UTF-8.
pub(crate) const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// A source of bytes with its buffer.
pub(crate) struct Input {
    source: Box<dyn Read + Send>,
    buffer: Box<[u8]>,
    from: usize,
    to: usize,
    ended: bool,
    /// See [`Input::is_cut`].
    cut: bool,
}

impl Input {
    pub(crate) fn new(source: Box<dyn Read + Send>) -> Result<Input, Cause> {
        let mut raw = Input::plain(source);
        raw.fill(XZ.len())?;
        let head = &raw.buffer[..raw.to];
        if head.starts_with(GZIP) {
            return Ok(Input::plain(Box::new(MultiGzDecoder::new(raw))));
        }
        if head.starts_with(XZ) {
            return Ok(Input::plain(Box::new(XzReader::new_mem_limit(raw, true, XZ_KIB_MAX))));
        }
        if head.starts_with(ZSTD) {
            let mut decoder = zstd::Decoder::new(raw).map_err(Cause::reading)?;
            decoder.window_log_max(ZSTD_WINDOW_LOG_MAX).map_err(Cause::reading)?;
            return Ok(Input::plain(Box::new(decoder)));
        }
        Ok(raw)
    }

    fn plain(source: Box<dyn Read + Send>) -> Input {
        let buffer = vec![0; BUFFER_BYTES].into_boxed_slice();
        Input { source, buffer, from: 0, to: 0, ended: false, cut: false }
    }

    /// Has at least so many bytes in the buffer, or all that there are.
    fn fill(&mut self, bytes: usize) -> Result<(), Cause> {
        if self.from > 0 && self.from + bytes > self.buffer.len() {
            self.buffer.copy_within(self.from..self.to, 0);
            (self.from, self.to) = (0, self.to - self.from);
        }
        while self.to - self.from < bytes && !self.ended {
            match self.source.read(&mut self.buffer[self.to..]) {
                Ok(0) => self.ended = true,
                Ok(count) => self.to += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Cause::reading(error)),
            }
        }
        Ok(())
    }

    /// The first bytes, which stay; up to a line's longest length.
    pub(crate) fn peek(&mut self) -> Result<&[u8], Cause> {
        self.fill(LINE_BYTES_MAX)?;
        Ok(&self.buffer[self.from..self.to.min(self.from + LINE_BYTES_MAX)])
    }

    /// Leaves out a mark of UTF-8 at the begin of a text.
    pub(crate) fn skip_mark(&mut self) -> Result<(), Cause> {
        self.fill(BYTE_ORDER_MARK.len())?;
        if self.buffer[self.from..self.to].starts_with(BYTE_ORDER_MARK) {
            self.from += BYTE_ORDER_MARK.len();
        }
        Ok(())
    }

    /// The next `bytes` bytes; `None` at the end.
    pub(crate) fn exact(&mut self, bytes: usize) -> Result<Option<&[u8]>, Cause> {
        if self.to - self.from < bytes {
            self.fill(bytes)?;
        }
        let there = self.to - self.from;
        if there == 0 {
            return Ok(None);
        }
        if there < bytes {
            let what = format!("{there} bytes of a record of {bytes}");
            return Err(Cause::Truncated(what));
        }
        self.from += bytes;
        Ok(Some(&self.buffer[self.from - bytes..self.from]))
    }

    /// The next line without its end; `None` at the end. The last line needs no end
    /// ([`Input::is_cut`]); after a line that is too long [`Input::skip_line`] goes on.
    pub(crate) fn line(&mut self) -> Result<Option<&[u8]>, Cause> {
        let mut found = memchr::memchr(b'\n', &self.buffer[self.from..self.to]);
        // Small pieces (a pipe's) are looked at again; a line is short.
        while found.is_none() && self.to - self.from <= LINE_BYTES_MAX && !self.ended {
            self.fill(self.to - self.from + 1)?;
            found = memchr::memchr(b'\n', &self.buffer[self.from..self.to]);
        }
        let there = self.to - self.from;
        if there == 0 {
            return Ok(None);
        }
        let length = found.unwrap_or(there);
        if length > LINE_BYTES_MAX {
            let max = LINE_BYTES_MAX as u64;
            return Err(Cause::Oversized { what: "the line in bytes", value: length as u64, max });
        }
        self.cut = found.is_none();
        let line = &self.buffer[self.from..self.from + length];
        self.from += length + usize::from(found.is_some());
        Ok(Some(line.strip_suffix(b"\r").unwrap_or(line)))
    }

    /// The line that was given last is the file's last one, and has no line end.
    pub(crate) fn is_cut(&self) -> bool {
        self.cut
    }

    /// What is wrong with the line that was given last: a cut one is more likely truncated than
    /// malformed.
    pub(crate) fn in_line(&self, cause: Cause) -> Cause {
        match cause {
            Cause::Malformed(what) if self.cut => {
                Cause::Truncated(format!("the last line has no line end: {what}"))
            }
            other => other,
        }
    }

    /// Leaves out the rest of a line, however long it is.
    pub(crate) fn skip_line(&mut self) -> Result<(), Cause> {
        loop {
            let left = &self.buffer[self.from..self.to];
            if let Some(length) = memchr::memchr(b'\n', left) {
                self.from += length + 1;
                return Ok(());
            }
            self.from = self.to;
            self.fill(1)?;
            if self.from == self.to {
                return Ok(());
            }
        }
    }
}

impl Read for Input {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        if self.from == self.to && !self.ended {
            (self.from, self.to) = (0, 0);
            self.fill(1).map_err(|cause| match cause {
                Cause::Io(error) => error,
                other => io::Error::other(other.to_string()),
            })?;
        }
        let count = to.len().min(self.to - self.from);
        to[..count].copy_from_slice(&self.buffer[self.from..self.from + count]);
        self.from += count;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    /// Gives a few bytes at a time, as a pipe may.
    struct Drip(Vec<u8>, usize);

    impl Read for Drip {
        fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
            let count = (self.0.len() - self.1).min(to.len()).min(3);
            to[..count].copy_from_slice(&self.0[self.1..self.1 + count]);
            self.1 += count;
            Ok(count)
        }
    }

    fn lines(bytes: Vec<u8>) -> Result<Vec<String>, Cause> {
        let mut input = Input::new(Box::new(Drip(bytes, 0)))?;
        let mut lines = Vec::new();
        while let Some(line) = input.line()? {
            lines.push(String::from_utf8_lossy(line).into_owned());
        }
        Ok(lines)
    }

    #[test]
    fn lines_come_whole_from_any_pieces_and_a_long_one_is_an_error() {
        assert_eq!(lines(b"one\r\n\ntwo words\n".to_vec()).unwrap(), ["one", "", "two words"]);
        assert_eq!(lines(b"one\ntw".to_vec()).unwrap(), ["one", "tw"]);
        let mut long = vec![b'x'; LINE_BYTES_MAX];
        long.push(b'\n');
        assert_eq!(lines(long.clone()).unwrap()[0].len(), LINE_BYTES_MAX);
        long.insert(0, b'x');
        assert!(matches!(lines(long.clone()), Err(Cause::Oversized { .. })));
        let text = [vec![b'x'; 3 * BUFFER_BYTES], b"\nnext".to_vec()].concat();
        let mut input = Input::new(Box::new(Drip(text, 0))).unwrap();
        assert!(matches!(input.line(), Err(Cause::Oversized { .. })));
        input.skip_line().unwrap();
        assert_eq!(input.line().unwrap(), Some(&b"next"[..]));
        assert!(matches!(input.in_line(Cause::Malformed("".into())), Cause::Truncated(_)));
    }

    #[test]
    fn records_are_of_one_length_and_the_rest_is_an_error() {
        let mut input = Input::new(Box::new(Drip(b"abcdefgh12".to_vec(), 0))).unwrap();
        assert_eq!(input.exact(4).unwrap(), Some(&b"abcd"[..]));
        assert_eq!(input.exact(4).unwrap(), Some(&b"efgh"[..]));
        assert!(matches!(input.exact(4), Err(Cause::Truncated(_))));
    }

    #[test]
    fn compressed_bytes_are_read_as_what_they_hold_and_cut_ones_are_an_error() {
        let text = "a line of some length\n".repeat(1000).into_bytes();
        let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gz.write_all(&text).unwrap();
        for packed in [gz.finish().unwrap(), zstd::encode_all(&text[..], 3).unwrap()] {
            assert_eq!(lines(packed.clone()).unwrap().len(), 1000);
            let cut = lines(packed[..packed.len() - 9].to_vec()).unwrap_err();
            assert!(matches!(cut, Cause::Truncated(_) | Cause::Malformed(_)), "{cut}");
        }
    }
}
