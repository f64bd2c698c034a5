//! What daemons are told of the pages that a handle uses.

use super::{Host, Link, Runtime};
use crate::client::{LinkId, OWN, UseReport};
use crate::constants::USE_WAIT_MS;
use crate::error::{Error, Result};
use crate::heat::PageUse;
use crate::runtime::Environment;
use crate::wire::{Reply, Request};

impl<H: Host> Runtime<'_, H> {
    /// Tells the own rack's daemons which pages this handle used since it last did, and waits for
    /// their answers, up to `timeout_ms` for each.
    ///
    /// # Errors
    /// As [`Runtime::daemon_call`].
    pub async fn tell_use(&mut self, timeout_ms: u64) -> Result<()> {
        let (pages, siblings) = self.client.take_use_by_home();
        for (link, pages) in siblings {
            self.note_use(link, pages, timeout_ms).await?;
        }
        self.note_use(OWN, pages, timeout_ms).await
    }

    async fn note_use(&mut self, link: LinkId, pages: Vec<PageUse>, timeout_ms: u64) -> Result<()> {
        let deadline = self.host.platform().after_ms(timeout_ms);
        match self.daemon_call(link, Request::NoteUse { pages }, deadline).await? {
            Reply::Noted => Ok(()),
            other => Err(Error::Protocol {
                peer: "daemon".into(),
                reason: format!("{other:?} answers a report"),
            }),
        }
    }

    /// Hands a report to the own rack's daemons and waits for nothing, unless the own one has said
    /// nothing for long. What does not arrive is lost: it is a hint.
    pub async fn report_use(&mut self, report: UseReport) {
        let UseReport { pages, siblings, waits } = report;
        for (link, pages) in siblings {
            self.say_use(link, pages);
        }
        if waits {
            let _ = self.note_use(OWN, pages, USE_WAIT_MS).await;
        } else {
            self.say_use(OWN, pages);
        }
    }

    fn say_use(&mut self, link: LinkId, pages: Vec<PageUse>) {
        if let Some(Link::Local(link)) = self.links.get_mut(usize::from(link.0))
            && link.is_heard()
        {
            let _ = link.say(self.host.platform(), Request::NoteUse { pages });
        }
    }
}
