//! What a handle tells its daemon of the pages that it uses, and what daemons decided about pages.

use crate::handle::Handle;

impl Handle {
    /// After an access: tells the daemon which pages were used, if it is time.
    #[inline(always)]
    pub(crate) fn report_if_due(&mut self) {
        if self.client.use_is_due() {
            self.report_use();
        }
    }

    #[cold]
    #[inline(never)]
    fn report_use(&mut self) {
        self.links.report_use(&mut self.client, &mut self.endpoint);
    }

    /// What this handle does says nothing of where pages are used.
    pub(crate) fn never_count_use(&mut self) {
        self.links.never_count_use();
        self.client.count_use(false);
    }
}
