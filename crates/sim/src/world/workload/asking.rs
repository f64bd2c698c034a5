//! Clients ask the master for names and their daemon whether it is there, and for what must be
//! refused.

use super::Worker;
use rackpool_core::client::DaemonQuery;
use rackpool_core::{Error, GAddr};

impl Worker {
    pub(super) async fn root(&mut self) {
        let name = format!("root {}", self.rng.below(4));
        self.begin("root");
        let found = self.handle.root(&name).await;
        self.end("root", &found).await;
        self.check_error("root", &found);
        let Ok(found) = found else { return };
        self.next_value += 1;
        let addr = GAddr(self.next_value << 16);
        self.begin("set_root");
        let set = self.handle.set_root(&name, found.unwrap_or(GAddr::NULL), addr).await;
        self.end("set_root", &set).await;
        self.check_error("set_root", &set);
    }

    pub(super) async fn ask(&mut self) {
        self.begin("ask");
        let answer = self.handle.ask(&DaemonQuery::ping()).await;
        self.end("ask", &answer).await;
        self.check_error("ask", &answer);
        if let Err(error @ Error::Protocol { .. }) = &answer {
            self.violated("wire", format!("a ping is answered: {error}"));
        }
    }

    /// The address of a freed page is an error for ever.
    pub(super) async fn read_gone(&mut self) {
        let Some(addr) = self.gone.last().copied() else { return self.read_mine().await };
        let mut found = [0; 16];
        let called = self.begin("read-freed");
        let result = self.handle.read(addr, &mut found).await;
        self.end("read-freed", &result).await;
        if result.is_ok() {
            let (id, now) = (self.ctx.id.0, self.ctx.now());
            let model = &self.scene.model.bytes;
            let checked = model.borrow_mut().read(id, addr.0, &found, called, now);
            self.must(checked);
        }
        self.refused(addr, called, &result);
    }

    /// Frees what this client has under another size, which is no allocation.
    pub(super) async fn free_wrong(&mut self) {
        let Some((addr, bytes)) = self.pick_mine() else { return self.alloc().await };
        let page_bytes = self.handle.page_bytes();
        let wrong = if bytes > page_bytes / 2 { bytes + page_bytes } else { page_bytes };
        self.begin("free-wrong");
        let result = self.handle.free(addr, wrong).await;
        self.end("free-wrong", &result).await;
        match result {
            Ok(()) => {
                self.violated("errors", format!("{wrong} of {bytes} bytes at {addr} are freed"))
            }
            // What is owned ends with a session.
            Err(Error::BadFree { .. } | Error::NotMapped { .. }) => {}
            result => self.check_error("free-wrong", &result),
        }
    }
}
