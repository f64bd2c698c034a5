//! Which users of a host may use a rack's memory there: the user that serves it, root, and those
//! that the operator lists. These users may read and write all of the pool; other users of the host
//! learn nothing and get no descriptor.
//!
//! In: the user at the other end of a control connection, as the kernel reports it. Out: nothing,
//! or `denied`. Daemons and agents ask it about the process that connects, clients about the one
//! that they find there.

use crate::error::{Error, Result};
use crate::probe::{Mutation, Probe};

/// The list. Users are the kernel's numbers.
///
/// ```
/// use rackpool_core::access::AccessList;
/// let access = AccessList::new(999, [1001]);
/// assert!(access.check(1001, &()).is_ok());
/// assert_eq!(access.check(1002, &()).unwrap_err().code(), "denied");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessList {
    own: u32,
    users: Box<[u32]>,
}

impl AccessList {
    /// For a process of user `own`, which deals with `users` as well.
    pub fn new(own: u32, users: impl IntoIterator<Item = u32>) -> Self {
        Self { own, users: users.into_iter().collect() }
    }

    /// The user of this process.
    pub fn own(&self) -> u32 {
        self.own
    }

    /// Whether this user is dealt with.
    pub fn admits(&self, user: u32) -> bool {
        user == self.own || user == 0 || self.users.contains(&user)
    }

    /// The same, for a user that wants to use the memory. Errors: `denied`, with the way out.
    pub fn check(&self, user: u32, probe: &impl Probe) -> Result<()> {
        if self.admits(user) || probe.mutated(Mutation::AdmitAnybody) {
            return Ok(());
        }
        let own = self.own;
        Err(Error::Denied {
            reason: format!(
                "user {user} is not on the list of those who may use this memory, which user {own} \
                 serves: have it served with --allow-user {user}"
            ),
        })
    }
}
