//! Patterns of keys with `*`, `?`, `[...]` and `\`, as Redis has them. In: a pattern, made ready
//! once; then texts. Out: whether all of a text matches.
//!
//! All ways in which a text may match are followed at once, one bit for each place in the pattern,
//! so that the time is in proportion to the text times a 64th of the pattern, whatever both are:
//! no pattern makes it try again.

#[derive(Debug)]
pub struct Glob {
    /// Words of one set of places.
    words: usize,
    stars: Vec<u64>,
    /// The places of what matches any byte.
    any: Vec<u64>,
    /// For each byte the places of what else it matches, `words` a byte.
    matched: Vec<u64>,
    /// Where a text must have come to.
    end: usize,
    /// Longest text that can match; `None` if a star takes any.
    longest: Option<usize>,
    shortest: usize,
}

type Bytes = [u64; 4];

fn has(bytes: &Bytes, byte: u8) -> bool {
    bytes[usize::from(byte / 64)] >> (byte % 64) & 1 == 1
}

/// What a place in a pattern matches.
#[derive(Debug)]
enum Element {
    Star,
    Any,
    Byte(u8),
    Class(Bytes),
}

impl Glob {
    /// Makes a pattern for texts of at most `text_bytes_max` ready, in a time in proportion to its
    /// length. It takes 32 bytes for each of its places, of which no more are kept than the longest
    /// text could match.
    pub fn new(pattern: &[u8], text_bytes_max: usize) -> Self {
        let (mut elements, mut rest) = (Vec::new(), pattern);
        while let Some((element, behind)) = take(rest) {
            rest = behind;
            let is_further_star =
                matches!((&element, elements.last()), (Element::Star, Some(Element::Star)));
            if !is_further_star {
                elements.push(element);
            }
            if elements.len() > 2 * text_bytes_max + 1 {
                break;
            }
        }
        let stars = elements.iter().filter(|element| matches!(element, Element::Star)).count();
        let shortest = elements.len() - stars;
        let mut glob = Self {
            words: elements.len() / 64 + 1,
            stars: Vec::new(),
            any: Vec::new(),
            matched: Vec::new(),
            end: elements.len(),
            longest: (stars == 0).then_some(shortest),
            shortest,
        };
        if shortest <= text_bytes_max {
            glob.place(&elements);
        }
        glob
    }

    fn place(&mut self, elements: &[Element]) {
        self.stars = vec![0; self.words];
        self.any = vec![0; self.words];
        self.matched = vec![0; 256 * self.words];
        for (index, element) in elements.iter().enumerate() {
            let (word, bit) = (index / 64, 1 << (index % 64));
            let row = |byte: u8| usize::from(byte) * self.words + word;
            match element {
                Element::Star => self.stars[word] |= bit,
                Element::Any => self.any[word] |= bit,
                Element::Byte(byte) => self.matched[row(*byte)] |= bit,
                Element::Class(bytes) => {
                    let all = (0..=u8::MAX).filter(|byte| has(bytes, *byte));
                    all.for_each(|byte| self.matched[row(byte)] |= bit);
                }
            }
        }
    }

    /// Steps that [`Glob::matches`] takes for a text of so many bytes at most, of 1 ns or so.
    pub fn steps(&self, text_bytes: usize) -> u64 {
        text_bytes as u64 * self.words as u64
    }

    pub fn matches(&self, text: &[u8]) -> bool {
        if text.len() < self.shortest || self.longest.is_some_and(|longest| text.len() > longest) {
            return false;
        }
        if self.stars.is_empty() {
            // More than any key has is asked for.
            return false;
        }
        let mut places = vec![0u64; self.words];
        places[0] = 1;
        self.pass_stars(&mut places);
        for byte in text {
            let row = &self.matched[usize::from(*byte) * self.words..][..self.words];
            let (mut carry, mut left) = (0, 0);
            let rows = row.iter().zip(&self.any).zip(&self.stars);
            for (place, ((row, any), star)) in places.iter_mut().zip(rows) {
                let moved = *place & (row | any);
                // A star stays where it is, what matched goes on by one place …
                let next = moved << 1 | carry | *place & star;
                carry = moved >> 63;
                *place = next;
                left |= next;
            }
            if left == 0 {
                return false;
            }
            self.pass_stars(&mut places);
        }
        places[self.end / 64] >> (self.end % 64) & 1 == 1
    }

    /// … and a star that was come to may take nothing. No two stand side by side.
    fn pass_stars(&self, places: &mut [u64]) {
        let mut carry = 0;
        for (place, star) in places.iter_mut().zip(&self.stars) {
            let at_star = *place & star;
            *place |= at_star << 1 | carry;
            carry = at_star >> 63;
        }
    }
}

fn take(pattern: &[u8]) -> Option<(Element, &[u8])> {
    Some(match pattern {
        [] => return None,
        [b'*', rest @ ..] => (Element::Star, rest),
        [b'?', rest @ ..] => (Element::Any, rest),
        [b'\\', escaped, rest @ ..] => (Element::Byte(*escaped), rest),
        [b'[', rest @ ..] => {
            let (class, rest) = class(rest);
            (Element::Class(class), rest)
        }
        [exact, rest @ ..] => (Element::Byte(*exact), rest),
    })
}

/// The bytes of a class behind its bracket, and what is behind the closing one, which may be left
/// out at the end.
fn class(rest: &[u8]) -> (Bytes, &[u8]) {
    let (is_negated, mut rest) = match rest {
        [b'^', rest @ ..] => (true, rest),
        rest => (false, rest),
    };
    let mut bytes = [0; 4];
    let mut set = |low: u8, high: u8| {
        for byte in low.min(high)..=low.max(high) {
            bytes[usize::from(byte / 64)] |= 1 << (byte % 64);
        }
    };
    let rest = loop {
        rest = match rest {
            [] => break rest,
            [b'\\', escaped, rest @ ..] => {
                set(*escaped, *escaped);
                rest
            }
            [b']', rest @ ..] => break rest,
            [low, b'-', high, rest @ ..] => {
                set(*low, *high);
                rest
            }
            [exact, rest @ ..] => {
                set(*exact, *exact);
                rest
            }
        };
    };
    if is_negated {
        bytes = bytes.map(|word: u64| !word);
    }
    (bytes, rest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::KEY_BYTES_MAX;
    use proptest::prelude::*;

    fn matches(pattern: &[u8], text: &[u8]) -> bool {
        Glob::new(pattern, KEY_BYTES_MAX).matches(text)
    }

    #[test]
    fn patterns_match_as_in_a_shell() {
        for (pattern, text, expected) in [
            ("*", "", true),
            ("a*c", "abbc", true),
            ("a*c", "abb", false),
            ("h[ae]llo", "hallo", true),
            ("h[^e]llo", "hello", false),
            ("h[a-c]llo", "hbllo", true),
            ("h[c-a]llo", "hbllo", true),
            ("h?llo", "hllo", false),
            ("a\\*", "a*", true),
            ("a\\*", "ab", false),
            ("a[\\]]", "a]", true),
            ("a[b", "ab", true),
            ("a[", "a", false),
            ("a\\", "a\\", true),
            ("*a*b*", "xaxbx", true),
            ("**a**", "a", true),
            ("", "a", false),
            ("", "", true),
        ] {
            assert_eq!(matches(pattern.as_bytes(), text.as_bytes()), expected, "{pattern} {text}");
        }
        let stars = "*a".repeat(50);
        assert!(!matches(stars.as_bytes(), &[b'a'; 49]));
        assert!(matches(stars.as_bytes(), &[b'a'; 200]));
    }

    #[test]
    fn a_long_pattern_is_one_set_of_places_and_one_that_no_key_fits_takes_none() {
        let class = [b"*[".as_slice(), &[b'y'; 32_000], b"]"].concat();
        let glob = Glob::new(&class, KEY_BYTES_MAX);
        assert_eq!((glob.words, glob.steps(30_000)), (1, 30_000));
        assert!(!glob.matches(&[b'k'; 30_000]) && glob.matches(b"kky"));
        let glob = Glob::new(&vec![b'?'; KEY_BYTES_MAX + 1], KEY_BYTES_MAX);
        assert!(glob.matched.is_empty() && !glob.matches(&vec![b'k'; KEY_BYTES_MAX + 1]));
        let glob = Glob::new(&b"*a".repeat(KEY_BYTES_MAX), KEY_BYTES_MAX);
        assert!(glob.matches(&[b'a'; KEY_BYTES_MAX]) && !glob.matches(&[b'a'; KEY_BYTES_MAX - 1]));
    }

    /// By the definition, trying again at each star.
    fn slowly(pattern: &[u8], text: &[u8]) -> bool {
        let Some((element, rest)) = take(pattern) else { return text.is_empty() };
        let is_one = |byte: u8| match &element {
            Element::Star => false,
            Element::Any => true,
            Element::Byte(exact) => *exact == byte,
            Element::Class(bytes) => has(bytes, byte),
        };
        match element {
            Element::Star => (0..=text.len()).any(|taken| slowly(rest, &text[taken..])),
            _ => text.split_first().is_some_and(|(byte, text)| is_one(*byte) && slowly(rest, text)),
        }
    }

    proptest! {
        #[test]
        fn what_matches_is_what_trying_everything_finds(
            pattern in "[ab*?]{0,10}(\\[[ab^-]{0,3}\\])?[ab*]{0,3}",
            text in "[abc]{0,12}",
            long in 0usize..130,
        ) {
            // Also where the places are more than one word.
            let (pattern, text) = ("a".repeat(long) + &pattern, "a".repeat(long) + &text);
            let (pattern, text) = (pattern.as_bytes(), text.as_bytes());
            prop_assert_eq!(matches(pattern, text), slowly(pattern, text));
        }
    }
}
