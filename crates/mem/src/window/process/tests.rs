//! Windows of a process: bounds, rights, copies and comparisons.

use super::*;

#[test]
fn private_memory_is_aligned_zeroed_and_refused_at_no_size() {
    let window = Window::private(3 << 20).unwrap();
    assert_eq!(window.bytes(), 3 << 20);
    assert_eq!(window.load((3 << 20) - 8), 0);
    window.store((3 << 20) - 8, 5);
    assert_eq!(window.load((3 << 20) - 8), 5);
    assert_eq!(window.bare().load((3 << 20) - 8), 5);
    let small = Window::private(5000).unwrap();
    small.store(4992, 7);
    assert_eq!((small.bytes(), small.load(0), small.load(4992)), (5000, 0, 7));
    assert!(Window::private(0).is_err());
    assert!(Window::private(u64::MAX).is_err());
}

/// Pages that this thread had to wait for so far.
fn faults() -> u64 {
    let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
    let (_, fields) = stat.rsplit_once(") ").unwrap();
    fields.split(' ').nth(7).unwrap().parse().unwrap()
}

#[test]
fn memory_that_is_taken_ahead_holds_what_it_held_and_costs_no_fault_later() {
    // Too little for huge pages.
    let window = Window::private(1 << 20).unwrap();
    let page = rustix::param::page_size() as u64;
    let pages = window.bytes() / page;
    window.store(page, 5);
    window.populate(0, window.bytes()).unwrap();
    let before = faults();
    (0..pages).for_each(|index| window.store(index * page + 8, index));
    let late = faults() - before;
    assert!(late < pages / 8, "{late} faults for {pages} pages");
    assert_eq!((window.load(page), window.load(page + 8), window.load(0)), (5, 1, 0));
    for refused in [Window::heap(8192).populate(0, 8192), window.populate(8, 8)] {
        assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
}

#[test]
fn memory_that_is_given_back_reads_as_zeros_and_what_lies_beside_it_stays() {
    let page = rustix::param::page_size() as u64;
    let (fd, shared) = Window::shared("test-give-back", 8 * page).unwrap();
    let private = Window::private(8 * page).unwrap();
    for window in [&private, &shared] {
        (0..8).for_each(|index| window.store(index * page, index + 1));
        window.give_back(2 * page, 4 * page).unwrap();
        let found: Vec<u64> = (0..8).map(|index| window.load(index * page)).collect();
        assert_eq!(found, [1, 2, 0, 0, 0, 0, 7, 8]);
        window.store(3 * page, 9);
        assert_eq!(window.load(3 * page), 9);
        let refused = window.give_back(8, page).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
    }
    take_file(fd.as_fd(), 0, 8 * page).unwrap();
    assert_eq!((shared.load(page), shared.load(3 * page)), (2, 9));
    assert!(Window::heap(2 * page).give_back(0, page).is_err());
}

#[test]
fn bytes_are_compared_at_every_length() {
    let window = Window::heap(256);
    let bytes: Vec<u8> = (1..100).collect();
    window.copy_in(8, &bytes);
    for length in 0..bytes.len() {
        assert!(window.equals(8, &bytes[..length]));
        for wrong in 0..length {
            let mut other = bytes[..length].to_vec();
            other[wrong] ^= 0x40;
            assert!(!window.equals(8, &other), "{length} {wrong}");
        }
    }
}

#[test]
fn a_bare_window_has_the_same_bounds_and_rights() {
    let panic_of = |f: &dyn Fn(Bare<'_>), window: &Window| {
        let run = std::panic::AssertUnwindSafe(|| f(window.bare()));
        let text = std::panic::catch_unwind(run).expect_err("it should have panicked");
        text.downcast_ref::<String>().expect("a text").clone()
    };
    let window = Window::heap(192).slice(0, 184);
    let pattern = WordPattern { mask: &(1 << 32), value: &0 };
    let beyond: [&dyn Fn(Bare<'_>); 9] = [
        &|bare| bare.copy_in(180, &[0; 5]),
        &|bare| assert_eq!(bare.line(128).load(0), 0),
        &|bare| bare.line_to_write(u64::MAX - 63).store(0, 1),
        &|bare| bare.store(184, 1),
        &|bare| assert_eq!(bare.load(u64::MAX - 7), 0),
        &|bare| assert_eq!(bare.first_match(None, 128, pattern, 7).0, 0),
        &|bare| bare.copy_out(180, &mut [0; 5]),
        &|bare| bare.append_to(u64::MAX, 2, &mut Vec::new()),
        &|bare| assert!(bare.equals(176, &[0; 9])),
    ];
    for f in beyond {
        let text = panic_of(f, &window);
        assert!(text.contains("outside the window of 184 bytes"), "{text}");
    }
    let misaligned: [&dyn Fn(Bare<'_>); 6] = [
        &|bare| assert_eq!(bare.line(8).load(0), 0),
        &|bare| bare.line_to_write(32).store(0, 1),
        &|bare| bare.store(4, 1),
        &|bare| assert_eq!(bare.load(1), 0),
        &|bare| assert_eq!(bare.first_match(None, 32, pattern, 7).0, 0),
        &|bare| assert!(bare.load_before(4, b"").is_none()),
    ];
    for f in misaligned {
        let text = panic_of(f, &window);
        assert!(text.contains("not aligned"), "{text}");
    }
    assert!(window.bare().load(0) == 0 && window.bare().load(176) == 0);
    window.bare().line_to_write(64).store(7, 5);
    assert!(window.load(120) == 5 && window.bare().line(64).load(7) == 5);
    let file = rustix::fs::memfd_create("bare-test", MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&file, 4096).unwrap();
    let options = MapOptions::default();
    let window = Window::map(file.as_fd(), 4096, Access::ReadOnly, options).unwrap();
    let stores: [&dyn Fn(Bare<'_>); 3] =
        [&|bare| bare.store(0, 1), &|bare| bare.line_to_write(0).store(0, 1), &|bare| {
            bare.copy_in(9, &[1])
        }];
    for f in stores {
        let text = panic_of(f, &window);
        assert!(text.contains("read-only"), "{text}");
    }
}

#[test]
fn a_word_is_told_only_before_the_right_bytes() {
    let window = Window::heap(64);
    window.store(8, 77);
    window.copy_in(16, b"a key of 21 bytes ...");
    let bare = window.bare();
    assert_eq!(bare.load_before(8, b"a key of 21 bytes ..."), Some(77));
    assert_eq!(bare.load_before(8, b""), Some(77));
    assert_eq!(bare.load_before(8, b"a key of 21 bytes .. "), None);
    // What would not fit is not there.
    assert_eq!(bare.load_before(8, &[0; 49]), None);
    assert_eq!(bare.load_before(u64::MAX - 7, b"key"), None);
}

#[test]
#[should_panic(expected = "outside the window")]
fn a_comparison_beyond_the_window_panics_even_if_it_would_end_before() {
    let _ = Window::heap(64).equals(56, &[1; 9]);
}

#[test]
fn the_upper_halves_of_a_line_are_matched_under_the_mask() {
    let window = Window::heap(4096);
    for word in 0..8 {
        window.store(64 + 8 * word, (word << 36) | (7 - word));
    }
    window.store(64 + 56, 3 << 36);
    assert_eq!(window.match_line(64, 0xf << 4, 3 << 4), 0b1000_1000);
    assert_eq!(window.match_line(64, u32::MAX, 3 << 4), 0b1000_1000);
    assert_eq!(window.match_line(64, 0, 0), 0xff);
    assert_eq!(window.match_line(64, u32::MAX, 4), 0);
    for word in 0..7 {
        assert_eq!(window.match_line(64, u32::MAX, word << 4) & 0x7f, 1 << word);
    }
    for wide in [None, Wide::of_this_processor()] {
        let first = |mask: u64, value: u64, words| {
            let pattern = WordPattern { mask: &(mask << 32), value: &(value << 32) };
            window.bare().first_match(wide, 64, pattern, words)
        };
        assert_eq!(first(0xf << 4, 3 << 4, 7), (3, (3 << 36) | 4));
        assert_eq!(first(u32::MAX.into(), 77, 7), (7, 3 << 36));
        assert_eq!(first(u32::MAX.into(), 77, 4), (4, (4 << 36) | 3));
    }
}

#[test]
fn bytes_are_copied_to_another_window() {
    let (from, to) = (Window::heap(256), Window::heap(256));
    let bytes: Vec<u8> = (1..=100).collect();
    from.copy_in(13, &bytes);
    from.copy_to(13, 100, &to, 5);
    let mut there = [0; 102];
    to.copy_out(4, &mut there);
    assert!(there[0] == 0 && there[1..101] == bytes && there[101] == 0);
}

#[test]
fn bytes_are_appended_behind_what_is_there() {
    let window = Window::heap(64);
    window.copy_in(3, b"hello");
    let mut to = b"> ".to_vec();
    window.append_to(3, 5, &mut to);
    window.append_to(3, 0, &mut to);
    assert_eq!(to, b"> hello");
}
