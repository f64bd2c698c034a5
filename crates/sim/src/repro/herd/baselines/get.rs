//! A GET by READs, one after the other: of the sizes that a plan names, or through a table.

use super::table::{KeyTable, Lookup, Then};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Get {
    /// Emulated: bytes of the READs to come, 0 for those that are not needed.
    Sizes([u64; 4]),
    Table(Lookup),
}

impl Get {
    /// A GET of a key through a table.
    pub fn of(table: &KeyTable, key: u64) -> Get {
        Get::Table(table.look_up(key))
    }

    /// The READ that is due: where in the table, if there is one, and how many bytes.
    pub fn due(&self) -> (u64, u64) {
        match self {
            Get::Sizes(sizes) => (0, sizes[0]),
            Get::Table(lookup) => (lookup.at, lookup.bytes),
        }
    }

    /// Whether what READs bring is looked at.
    pub fn has_table(&self) -> bool {
        matches!(self, Get::Table(_))
    }

    /// Takes what the READ brought that was due; of an emulated one nothing is looked at.
    ///
    /// # Panics
    /// If it goes through a table and there is none, or `data` is shorter than was due.
    #[inline]
    pub fn take(&mut self, table: Option<&KeyTable>, data: &[u8]) -> Then {
        match self {
            Get::Sizes(sizes) => {
                sizes[0] = 0;
                sizes.rotate_left(1);
                // Buckets that were not needed are 0.
                while sizes[0] == 0 && sizes.iter().any(|bytes| *bytes > 0) {
                    sizes.rotate_left(1);
                }
                if sizes[0] == 0 { Then::Found } else { Then::Read }
            }
            Get::Table(lookup) => table.expect("look-ups have a table").step(lookup, data),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_emulated_get_is_the_reads_that_are_needed() {
        let mut get = Get::Sizes([32, 0, 0, 48]);
        assert_eq!(get.due(), (0, 32));
        assert_eq!(get.take(None, &[]), Then::Read);
        assert_eq!(get.due(), (0, 48));
        assert_eq!(get.take(None, &[]), Then::Found);
        let mut get = Get::Sizes([32, 32, 32, 48]);
        let steps: Vec<Then> = (0..4).map(|_| get.take(None, &[])).collect();
        assert_eq!(steps, [Then::Read, Then::Read, Then::Read, Then::Found]);
    }
}
