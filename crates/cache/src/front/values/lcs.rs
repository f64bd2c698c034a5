//! `LCS`: the longest text of which all bytes are in two strings in this order. The work is in
//! proportion to the product of their lengths and is done in parts, so that others have their turn
//! in between: [`Lcs::advance`] until it is done, then [`Lcs::bytes`] or [`Lcs::matches`].
//!
//! Redis keeps 4 bytes for each pair of bytes, and refuses pairs of strings that need more than
//! its longest value; the same are refused here, where one bit a pair is kept, and none for `LEN`.

use super::ValueError;

#[derive(Debug)]
pub struct Lcs {
    /// For the bytes of the first string so far, and each number of bytes of the second one: how
    /// long what they have in common is.
    row: Vec<u32>,
    /// For each pair of bytes that differ, first string by first string: whether more is in common
    /// without the one of the first than without the one of the second. Empty for `LEN`.
    without_first: Vec<u64>,
    is_traced: bool,
    rows_done: usize,
}

/// What both strings have, as the longest pieces, with its first and its last byte in each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LcsMatch {
    pub first: (u64, u64),
    pub second: (u64, u64),
}

impl LcsMatch {
    pub fn length(&self) -> u64 {
        self.first.1 - self.first.0 + 1
    }
}

impl Lcs {
    /// `is_traced`: not only the length is wanted. `bytes_max`: longest value.
    pub fn new(
        first: &[u8],
        second: &[u8],
        is_traced: bool,
        bytes_max: u64,
    ) -> Result<Self, ValueError> {
        let pairs = (first.len() as u64 + 1).checked_mul(second.len() as u64 + 1);
        if pairs.and_then(|pairs| pairs.checked_mul(4)).is_none_or(|bytes| bytes > bytes_max) {
            return Err(ValueError::LcsTooLong);
        }
        let words = if is_traced { (first.len() * second.len()).div_ceil(64) } else { 0 };
        Ok(Self {
            row: vec![0; second.len() + 1],
            without_first: vec![0; words],
            is_traced,
            rows_done: 0,
        })
    }

    /// Goes on with the same two strings, for about so many pairs of bytes, of 1 ns or so; whether
    /// all is done.
    pub fn advance(&mut self, first: &[u8], second: &[u8], pairs: u64) -> bool {
        let rows = (pairs / (second.len() as u64 + 1)).max(1);
        let end = first.len().min(self.rows_done.saturating_add(rows as usize));
        while self.rows_done < end {
            self.advance_row(first[self.rows_done], second);
        }
        self.rows_done == first.len()
    }

    fn advance_row(&mut self, byte: u8, second: &[u8]) {
        let start = self.rows_done * second.len();
        let (mut diagonal, mut left) = (0, 0);
        for (index, (other, above)) in second.iter().zip(&mut self.row[1..]).enumerate() {
            let up = *above;
            let here = if byte == *other { diagonal + 1 } else { up.max(left) };
            if self.is_traced && up > left {
                self.without_first[(start + index) / 64] |= 1 << ((start + index) % 64);
            }
            *above = here;
            (diagonal, left) = (up, here);
        }
        self.rows_done += 1;
    }

    /// Memory that it takes, bytes.
    pub fn held_bytes(&self) -> u64 {
        (self.row.capacity() * size_of::<u32>() + self.without_first.capacity() * size_of::<u64>())
            as u64
    }

    /// How long it is, once all is done.
    pub fn length(&self) -> u64 {
        u64::from(self.row.last().copied().unwrap_or(0))
    }

    /// The pieces, the last one first; those of fewer bytes than `bytes_min` are left out.
    pub fn matches(&self, first: &[u8], second: &[u8], bytes_min: u64) -> Vec<LcsMatch> {
        let mut pieces = Vec::new();
        self.trace(first, second, |piece| {
            if piece.length() >= bytes_min {
                pieces.push(piece);
            }
        });
        pieces
    }

    pub fn bytes(&self, first: &[u8], second: &[u8]) -> Vec<u8> {
        let mut pieces = self.matches(first, second, 0);
        pieces.reverse();
        let piece = |piece: &LcsMatch| &first[piece.first.0 as usize..=piece.first.1 as usize];
        pieces.iter().map(piece).collect::<Vec<_>>().concat()
    }

    /// Goes back from the ends of both strings, as Redis does: of two ways that are as long the one
    /// without the byte of the second string.
    fn trace(&self, first: &[u8], second: &[u8], mut found: impl FnMut(LcsMatch)) {
        let (mut i, mut j) = (first.len(), second.len());
        let mut piece: Option<LcsMatch> = None;
        while i > 0 && j > 0 {
            if first[i - 1] == second[j - 1] {
                (i, j) = (i - 1, j - 1);
                let (a, b) = (i as u64, j as u64);
                let begun = piece.unwrap_or(LcsMatch { first: (a, a), second: (b, b) });
                let (first, second) = ((a, begun.first.1), (b, begun.second.1));
                piece = Some(LcsMatch { first, second });
                continue;
            }
            piece.take().into_iter().for_each(&mut found);
            let pair = (i - 1) * second.len() + j - 1;
            if self.without_first[pair / 64] >> (pair % 64) & 1 == 1 {
                i -= 1;
            } else {
                j -= 1;
            }
        }
        piece.into_iter().for_each(&mut found);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MAX: u64 = 512 << 20;

    fn lcs(first: &[u8], second: &[u8], pairs: u64) -> Lcs {
        let mut lcs = Lcs::new(first, second, true, MAX).unwrap();
        while !lcs.advance(first, second, pairs) {}
        lcs
    }

    #[test]
    fn the_longest_common_text_and_its_pieces_are_those_of_redis() {
        let (first, second) = (b"ohmytext".as_slice(), b"mynewtext".as_slice());
        let lcs = lcs(first, second, 20);
        assert_eq!((lcs.bytes(first, second).as_slice(), lcs.length()), (b"mytext".as_slice(), 6));
        let text = LcsMatch { first: (4, 7), second: (5, 8) };
        let my = LcsMatch { first: (2, 3), second: (0, 1) };
        assert_eq!(lcs.matches(first, second, 0), [text, my]);
        assert_eq!((lcs.matches(first, second, 4), text.length()), (vec![text], 4));
    }

    #[test]
    fn empty_strings_have_nothing_in_common_and_long_ones_are_refused() {
        assert_eq!((lcs(b"", b"a", 1).length(), lcs(b"a", b"", 1).length()), (0, 0));
        assert!(lcs(b"abc", b"def", 1).bytes(b"abc", b"def").is_empty());
        let long = vec![0; 1 << 14];
        assert_eq!(Lcs::new(&long, &long, false, MAX).unwrap_err(), ValueError::LcsTooLong);
        assert!(Lcs::new(&long[..1 << 13], &long[..(1 << 14) - 4], false, MAX).is_ok());
    }

    fn longest(first: &[u8], second: &[u8]) -> u64 {
        let (Some((a, firsts)), Some((b, seconds))) = (first.split_first(), second.split_first())
        else {
            return 0;
        };
        if a == b {
            return longest(firsts, seconds) + 1;
        }
        longest(firsts, second).max(longest(first, seconds))
    }

    proptest! {
        #[test]
        fn what_is_found_is_in_both_and_as_long_as_can_be(
            first in "[abc]{0,10}",
            second in "[abc]{0,10}",
            pairs in 0u64..60,
        ) {
            let (first, second) = (first.as_bytes(), second.as_bytes());
            let lcs = lcs(first, second, pairs);
            prop_assert_eq!(lcs.length(), longest(first, second));
            let bytes = lcs.bytes(first, second);
            prop_assert_eq!(bytes.len() as u64, lcs.length());
            for text in [first, second] {
                let mut rest = text.iter();
                prop_assert!(bytes.iter().all(|byte| rest.any(|other| other == byte)));
            }
            let mut only_length = Lcs::new(first, second, false, MAX).unwrap();
            while !only_length.advance(first, second, pairs) {}
            prop_assert_eq!(only_length.length(), lcs.length());
            for piece in lcs.matches(first, second, 0) {
                let range = |(start, end): (u64, u64)| start as usize..=end as usize;
                prop_assert_eq!(&first[range(piece.first)], &second[range(piece.second)]);
            }
        }
    }
}
