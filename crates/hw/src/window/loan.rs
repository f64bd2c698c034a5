//! Bytes of a window on their way to a socket without a copy: the socket is lent the pages
//! themselves. What they hold must not change before the peer has read it, which nobody is told:
//! not the socket, which on the same host hands the peer the very pages. So who lends overwrites
//! such pages never again: [`Window::renew`] puts others in their place.
//!
//! In: pieces of private windows. Out: bytes in a socket. Called by the key-value cache's front.
//!
//! A lent page costs a reference where a copy costs 4096 bytes of two caches, and all peers read
//! the same lines.

#[cfg(doc)]
use super::Window;
use super::{Piece, SEND_PIECES_MAX};
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

/// Bytes that are under way at once: what a pipe may have without privileges.
const PIPE_BYTES: usize = 1 << 20;

/// What a thread lends by: a pipe, which is empty between two calls. Made at first use.
#[derive(Debug, Default)]
pub struct Loans {
    /// The end that is read, and the end that is written.
    pipe: Option<(OwnedFd, OwnedFd)>,
}

impl Loans {
    /// Lends the pieces in front that lie in private windows to a socket; how many bytes it took,
    /// perhaps in the midst of a piece. `more`: the rest of a packet follows at once. `None`: the
    /// system, or the first piece, does not allow it; nothing was sent. Whether it blocks is the
    /// socket's own setting. The process has to ignore SIGPIPE, as Rust's programs do.
    ///
    /// # Errors
    /// What the socket says.
    ///
    /// # Panics
    /// With more than [`SEND_PIECES_MAX`] pieces, or a piece outside its window.
    pub fn send(
        &mut self,
        fd: BorrowedFd<'_>,
        pieces: &[Piece<'_>],
        more: bool,
    ) -> io::Result<Option<usize>> {
        assert!(pieces.len() <= SEND_PIECES_MAX, "{} pieces in one loan", pieces.len());
        let empty = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        let mut vectors = [empty; SEND_PIECES_MAX];
        let mut count = 0;
        for piece in pieces {
            let Piece::Shared(window, offset, bytes) = *piece else { break };
            if !window.is_private() {
                break;
            }
            let at = window.readable(offset, bytes).cast();
            let iov_len = usize::try_from(bytes).expect("inside a window");
            vectors[count] = libc::iovec { iov_base: at, iov_len };
            count += 1;
        }
        let Some((from, to)) = Self::pipe(&mut self.pipe).filter(|_| count > 0) else {
            return Ok(None);
        };
        // SAFETY: the vectors name checked parts of windows, alive during the call, which the
        // kernel only reads; it keeps the pages behind them as long as it refers to them.
        let lent = unsafe {
            libc::vmsplice(to.as_raw_fd(), vectors.as_ptr(), count, libc::SPLICE_F_NONBLOCK)
        };
        let Some(lent) = usize::try_from(lent).ok().filter(|lent| *lent > 0) else {
            return Ok(None);
        };
        let mut flags = SpliceFlags::empty();
        flags.set(SpliceFlags::MORE, more);
        let sent = splice(from, None, fd, None, lent, flags);
        if sent != Ok(lent) {
            // What the socket did not take must not be taken for the next one's.
            self.pipe = None;
        }
        match sent {
            Ok(sent @ 1..) => Ok(Some(sent)),
            Ok(0) | Err(Errno::INVAL | Errno::NOSYS | Errno::PERM) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn pipe(pipe: &mut Option<(OwnedFd, OwnedFd)>) -> Option<&(OwnedFd, OwnedFd)> {
        if pipe.is_none() {
            let ends = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).ok()?;
            // A shorter one does as well, in more calls.
            let _ = fcntl_setpipe_size(&ends.1, PIPE_BYTES);
            *pipe = Some(ends);
        }
        pipe.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::super::Window;
    use super::*;
    use rackpool_core::seam::Mem;
    use std::io::Read;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    const UNIT: u64 = 64 << 10;

    fn filled(bytes: u64) -> Window {
        let window = Window::private(bytes).expect("memory");
        for unit in 0..bytes / UNIT {
            window.copy_in(unit * UNIT, &[b'a' + unit as u8; UNIT as usize]);
        }
        window
    }

    /// What a peer reads of pages that were renewed and written to since.
    fn read_after_change(bytes: u64) {
        let window = filled(bytes);
        let (near, mut far) = UnixStream::pair().expect("a pair");
        let mut loans = Loans::default();
        let at = UNIT - 100;
        let sent = loans.send(near.as_fd(), &[Piece::Shared(&window, at, 5000)], false);
        assert_eq!(sent.expect("a socket"), Some(5000));
        window.renew(0, 2 * UNIT).expect("private pages");
        let mut zeros = vec![1; 2 * UNIT as usize];
        window.copy_out(0, &mut zeros);
        assert!(zeros.iter().all(|byte| *byte == 0));
        window.copy_in(0, &[b'z'; 2 * UNIT as usize]);
        let mut read = vec![0; 5000];
        far.read_exact(&mut read).expect("what was lent");
        assert!(read[..100].iter().all(|byte| *byte == b'a'));
        assert!(read[100..].iter().all(|byte| *byte == b'b'));
        let mut beside = [0; 8];
        window.copy_out(bytes - 8, &mut beside);
        assert_eq!(beside, [b'a' + (bytes / UNIT - 1) as u8; 8], "only what was named changes");
    }

    #[test]
    fn what_was_lent_is_read_as_it_was() {
        read_after_change(3 * UNIT);
        // Aligned to huge pages, one of which is cut.
        read_after_change(4 << 20);
    }

    #[test]
    fn a_full_socket_takes_a_part_and_the_rest_follows() {
        let window = filled(16 * UNIT);
        let (near, mut far) = UnixStream::pair().expect("a pair");
        near.set_nonblocking(true).expect("a socket");
        let (mut loans, mut sent, mut read) = (Loans::default(), 0, Vec::new());
        while sent < 16 * UNIT {
            let piece = Piece::Shared(&window, sent, 16 * UNIT - sent);
            match loans.send(near.as_fd(), &[piece], true) {
                Ok(took) => sent += took.expect("a loan") as u64,
                Err(error) => {
                    assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
                    let mut part = vec![0; (sent - read.len() as u64) as usize];
                    far.read_exact(&mut part).expect("all that was sent, and no more");
                    read.extend_from_slice(&part);
                }
            }
        }
        drop(near);
        far.read_to_end(&mut read).expect("the rest");
        let mut all = vec![0; 16 * UNIT as usize];
        window.copy_out(0, &mut all);
        assert!(read == all);
    }

    #[test]
    fn other_memory_is_not_lent_and_not_renewed() {
        let (near, _far) = UnixStream::pair().expect("a pair");
        let (mut loans, heap) = (Loans::default(), Window::heap(2 * UNIT));
        let shared = Window::shared("loan-test", UNIT).expect("memory").1;
        for piece in [
            Piece::Private(b"bytes"),
            Piece::Shared(&heap, 0, UNIT),
            Piece::Shared(&shared, 0, UNIT),
        ] {
            let sent = loans.send(near.as_fd(), &[piece], false).expect("nothing is tried");
            assert_eq!(sent, None, "{piece:?}");
        }
        assert_eq!(loans.send(near.as_fd(), &[], false).expect("nothing is tried"), None);
        for window in [&heap, &shared] {
            let refused = window.renew(0, UNIT).expect_err("it is no private one");
            assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
        }
        let window = filled(2 * UNIT);
        window.renew(8, UNIT).expect_err("no whole pages");
        window.renew(0, UNIT + 8).expect_err("no whole pages");
    }

    #[test]
    fn a_peer_that_is_gone_is_an_error() {
        let window = filled(UNIT);
        let (near, far) = UnixStream::pair().expect("a pair");
        drop(far);
        let mut loans = Loans::default();
        let sent = loans.send(near.as_fd(), &[Piece::Shared(&window, 0, UNIT)], false);
        assert_eq!(sent.expect_err("nobody is there").kind(), io::ErrorKind::BrokenPipe);
    }
}
