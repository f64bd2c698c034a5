//! Moving pages by hand: the handle is the mover, both racks' daemons and the master take part.
//! `core::client::Migrate` says what to do; here it is driven, and driven to its end as well if it
//! fails, so that no rack waits for a mover that has given up.

use crate::handle::{ATOMIC_ID, Handle};
use rackpool_core::client::{Migrate, Operation};
use rackpool_core::{GAddr, RackId, Result};
use rackpool_hw::fabric::LocalBuffer;

impl Handle {
    /// Moves the page of `addr` to the rack `to`, with everything that is in it: its address stays,
    /// and so does what other handles read and write there meanwhile, which takes longer while the
    /// page is on its way. The rack where the page is then: `to`, also if it was there already.
    /// `addr` may be any address in the page. Pages of one allocation move one by one, and so do
    /// a word and what it names (`alloc_into`).
    ///
    /// Blocks: one call to the master, two requests to each of the racks, and one copy of a page
    /// (2 MiB by default) through this process, all within `request_timeout_ms`. A failed move
    /// leaves the page where it was; telling racks and master so takes one more second each if they
    /// do not answer.
    ///
    /// ```
    /// # fn main() -> rackpool::Result<()> {
    /// use rackpool::{Placement, RackId, cluster::Cluster};
    /// let cluster = Cluster::start(2)?;
    /// let mut handle = cluster.pool(0)?.handle()?;
    /// let page_bytes = handle.page_bytes();
    /// let addr = handle.alloc(page_bytes, Placement::Local)?;
    /// handle.write(addr, b"goes along")?;
    /// assert_eq!(handle.migrate(addr, RackId(1))?, RackId(1));
    /// let mut bytes = [0; 10];
    /// handle.read(addr, &mut bytes)?;
    /// assert_eq!(&bytes, b"goes along");
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// `stays` if the page cannot move, or not now, and the message says why: it is a session's own
    /// memory, locked or pinned, a client has not finished with it, something in it is being freed
    /// for another rack, or another client moves it. `busy` if too much moves at once; `full` if
    /// `to` has no free page; `no-such-rack`; `not-mapped` and `lost` for the page; `moving` if it
    /// was moved meanwhile; `denied` if the pool is read-only here; `peer-dead` and `timeout` if
    /// one of the racks does not answer: then the page is in one of them, whole, and moving it
    /// again tells where.
    pub fn migrate(&mut self, addr: GAddr, to: RackId) -> Result<RackId> {
        self.client.check(addr, 1)?;
        if self.links.is_read_only() {
            return Err(self.links.read_only_error());
        }
        self.give_locks_back();
        self.links.tell_loss()?;
        let mut buffer = vec![0; Migrate::buffer_bytes(&self.client) as usize];
        self.rounds += 1;
        let mut op = Migrate::new(&self.client, addr, to, ATOMIC_ID | self.rounds);
        self.wait_with(&mut [LocalBuffer::Into(&mut buffer)], async |cx, _| op.run(cx).await)
            .map(|home| home.rack)
    }
}
