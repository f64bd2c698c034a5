//! Both ends see the bytes that were sent, in whatever pieces they go, and a line that is full or
//! empty says so.

use super::*;
use proptest::prelude::*;
use std::os::unix::net::UnixStream;

/// Two ends of one connection, and a plain view of neither.
fn ends(is_encrypted: bool) -> (SecureStream, SecureStream) {
    let (one, other) = UnixStream::pair().unwrap();
    let (mut one, mut other) = (SecureStream::new(one), SecureStream::new(other));
    if is_encrypted {
        let records = record_layer::tests::ends();
        one.encrypt(records.0);
        other.encrypt(records.1);
    }
    (one, other)
}

fn bytes(count: usize) -> Vec<u8> {
    (0..count).map(|at| (at * 31 % 251) as u8).collect()
}

#[test]
fn an_empty_line_a_full_one_and_one_that_ended_are_told_apart() {
    for is_encrypted in [false, true] {
        let (mut one, mut other) = ends(is_encrypted);
        let mut to = [0; 100];
        assert_eq!(other.recv(&mut to), Err(Errno::AGAIN));
        let (data, mut sent) = (bytes(1 << 20), 0);
        while let Ok(taken) = one.send(&[IoSlice::new(&data[sent..])]) {
            sent += taken;
        }
        assert!(sent > 0 && sent < data.len(), "{sent}");
        assert_eq!(one.send(&[IoSlice::new(&data[sent..])]), Err(Errno::AGAIN));
        assert_eq!(one.has_unsent(), is_encrypted);
        // What waits here goes when there is room, and all that was taken arrives.
        let (mut back, mut to) = (Vec::new(), vec![0; 50_000]);
        while back.len() < sent {
            match other.recv(&mut to) {
                Ok(taken) => back.extend_from_slice(&to[..taken]),
                Err(Errno::AGAIN) => assert!(one.has_unsent() && one.flush().is_ok()),
                Err(error) => panic!("{error}"),
            }
        }
        assert!(back == data[..sent]);
        assert!(!one.has_unsent());
        drop(one);
        assert_eq!(other.recv(&mut to), Ok(0));
    }
}

#[test]
fn fewer_bytes_than_asked_for_mean_that_none_are_left() {
    let (mut one, mut other) = ends(true);
    let data = bytes(70_000);
    assert!(one.send(&[IoSlice::new(&data)]).unwrap() >= 60_000);
    let mut to = vec![0; 7];
    let mut count = 0;
    loop {
        match other.recv(&mut to) {
            Ok(7) => count += 7,
            Ok(fewer) => {
                count += fewer;
                assert_eq!(other.recv(&mut to), Err(Errno::AGAIN));
                break;
            }
            Err(error) => panic!("{error} after {count}"),
        }
    }
    assert!(count >= 60_000, "{count}");
}

#[test]
fn who_stops_early_gets_what_is_held_here_without_the_socket() {
    let (mut one, mut other) = ends(true);
    let (data, mut to) = (bytes(40_000), vec![0; 100]);
    assert_eq!(one.send(&[IoSlice::new(&data)]), Ok(data.len()));
    assert_eq!(other.recv(&mut to), Ok(100));
    other.take_buffered(&mut to).unwrap();
    assert!(to == data);
    assert_eq!(other.recv(&mut [0; 8]), Err(Errno::AGAIN));
}

#[test]
fn bytes_that_somebody_changed_on_the_way_end_it() {
    let (one, between) = UnixStream::pair().unwrap();
    let (back, other) = UnixStream::pair().unwrap();
    let (mut one, mut other) = (SecureStream::new(one), SecureStream::new(other));
    let records = record_layer::tests::ends();
    one.encrypt(records.0);
    other.encrypt(records.1);
    one.send(&[IoSlice::new(b"pay ten"), IoSlice::new(b" to nobody")]).unwrap();
    let mut taken = [0; 100];
    let count = rustix::io::read(&between, &mut taken).unwrap();
    taken[count / 2] ^= 1;
    rustix::io::write(&back, &taken[..count]).unwrap();
    let mut to = [0; 100];
    assert_eq!(other.recv(&mut to), Err(Errno::BADMSG));
    assert_eq!(to, [0; 100]);
}

proptest! {
    #[test]
    fn whatever_is_sent_in_pieces_arrives(
        is_encrypted in any::<bool>(),
        pieces in proptest::collection::vec((0usize..40_000, 1usize..30_000), 1..12),
    ) {
        let (mut one, mut other) = ends(is_encrypted);
        let (mut sent, mut back) = (Vec::new(), Vec::new());
        for (count, room) in pieces {
            let data = bytes(count + 1);
            let (first, second) = data.split_at(count / 3);
            let taken = match one.send(&[IoSlice::new(first), IoSlice::new(second)]) {
                Ok(taken) => taken,
                Err(Errno::AGAIN) => 0,
                Err(error) => panic!("{error}"),
            };
            sent.extend_from_slice(&data[..taken]);
            let mut to = vec![0; room];
            if let Ok(got) = other.recv(&mut to) {
                back.extend_from_slice(&to[..got]);
            }
        }
        let mut to = vec![0; 100_000];
        while back.len() < sent.len() {
            one.flush().unwrap();
            let got = other.recv(&mut to).unwrap();
            back.extend_from_slice(&to[..got]);
        }
        prop_assert!(back == sent);
    }
}

/// What one end sent, as it was on the way, in pieces that `change` puts together again; how the
/// other end takes it.
fn through(change: impl FnOnce([&[u8]; 3]) -> Vec<u8>) -> (Vec<u8>, Result<usize, Errno>) {
    let (one, between) = UnixStream::pair().unwrap();
    let (back, other) = UnixStream::pair().unwrap();
    let (mut one, mut other) = (SecureStream::new(one), SecureStream::new(other));
    let records = record_layer::tests::ends();
    one.encrypt(records.0);
    other.encrypt(records.1);
    let mut taken = [[0; 100]; 3];
    let mut count = 0;
    for (record, text) in taken.iter_mut().zip([b"first ", b"second", b"third "]) {
        one.send(&[IoSlice::new(text)]).unwrap();
        count = rustix::io::read(&between, record).unwrap();
    }
    let bytes = change([&taken[0][..count], &taken[1][..count], &taken[2][..count]]);
    rustix::io::write(&back, &bytes).unwrap();
    drop(back);
    let mut heard = Vec::new();
    loop {
        let mut to = [0; 6];
        match other.recv(&mut to) {
            Ok(bytes @ 1..) => heard.extend_from_slice(&to[..bytes]),
            end => return (heard, end),
        }
    }
}

#[test]
fn a_stream_that_is_reordered_repeated_or_cut_ends_with_an_error_and_what_was_whole_before() {
    let all = through(|records| records.concat());
    assert_eq!(all, (b"first secondthird ".to_vec(), Ok(0)));
    let first = b"first ".to_vec();
    let reordered = through(|[one, two, three]| [one, three, two].concat());
    assert_eq!(reordered, (first.clone(), Err(Errno::BADMSG)));
    let left_out = through(|[one, _, three]| [one, three].concat());
    assert_eq!(left_out, (first.clone(), Err(Errno::BADMSG)));
    let repeated = through(|[one, two, _]| [one, one, two].concat());
    assert_eq!(repeated, (first.clone(), Err(Errno::BADMSG)));
    for length in 1..first.len() + HEAD_BYTES + TAG_BYTES {
        let cut = through(|[one, two, _]| [one, &two[..length]].concat());
        assert_eq!(cut, (first.clone(), Err(Errno::CONNRESET)), "{length} bytes of the second");
    }
}
