//! The checksum of dumps: CRC-64 with the polynomial of Jones, 0xad93d23594c935a9, bits reflected,
//! starting from 0 with nothing added at the end. Eight bytes a step, by tables.

const POLYNOMIAL: u64 = 0x95ac_9329_ac4b_c9b5;

/// For each byte what it adds with so many bytes behind it.
static TABLES: [[u64; 256]; 8] = tables();

const fn tables() -> [[u64; 256]; 8] {
    let mut tables = [[0; 256]; 8];
    let mut byte = 0;
    while byte < 256 {
        let (mut sum, mut bit) = (byte as u64, 0);
        while bit < 8 {
            sum = if sum & 1 == 1 { sum >> 1 ^ POLYNOMIAL } else { sum >> 1 };
            bit += 1;
        }
        tables[0][byte] = sum;
        byte += 1;
    }
    let mut behind = 1;
    while behind < 8 {
        let mut byte = 0;
        while byte < 256 {
            let sum = tables[behind - 1][byte];
            tables[behind][byte] = sum >> 8 ^ tables[0][(sum & 0xff) as usize];
            byte += 1;
        }
        behind += 1;
    }
    tables
}

pub fn checksum(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let by_words = words.iter().fold(0, |sum, word| {
        let mixed = (sum ^ u64::from_le_bytes(*word)).to_le_bytes();
        let tables = TABLES.iter().rev();
        mixed.iter().zip(tables).fold(0, |sum, (byte, table)| sum ^ table[usize::from(*byte)])
    });
    rest.iter()
        .fold(by_words, |sum, byte| sum >> 8 ^ TABLES[0][usize::from((sum & 0xff) as u8 ^ byte)])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_checksum_is_the_one_of_redis() {
        assert_eq!(checksum(b""), 0);
        assert_eq!(checksum(b"123456789"), 0xe9c6_d914_c4b8_d9ca);
        // With the zero at the end, as the published value has it.
        let text =
            b"Lorem ipsum dolor sit amet, consectetur adipiscing elit, sed do eiusmod tempor \
            incididunt ut labore et dolore magna aliqua. Ut enim ad minim veniam, quis nostrud \
            exercitation ullamco laboris nisi ut aliquip ex ea commodo consequat. Duis aute irure \
            dolor in reprehenderit in voluptate velit esse cillum dolore eu fugiat nulla pariatur. \
            Excepteur sint occaecat cupidatat non proident, sunt in culpa qui officia deserunt \
            mollit anim id est laborum.\0";
        assert_eq!(checksum(text), 0xc779_4709_e696_83b3);
    }

    proptest! {
        #[test]
        fn eight_bytes_at_once_are_as_bit_by_bit(
            bytes in proptest::collection::vec(any::<u8>(), 0..40),
        ) {
            let expected = bytes.iter().fold(0u64, |sum, byte| {
                (0..8).fold(sum ^ u64::from(*byte), |sum, _| {
                    sum >> 1 ^ if sum & 1 == 1 { POLYNOMIAL } else { 0 }
                })
            });
            prop_assert_eq!(checksum(&bytes), expected);
        }
    }
}
