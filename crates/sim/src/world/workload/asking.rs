//! Clients ask the master for names and their daemon whether it is there.

use super::Worker;
use rackpool_core::GAddr;
use rackpool_core::wire::{Reply, Request};

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
        let reply = self.handle.ask(Request::Ping).await;
        self.end("ask", &reply).await;
        self.check_error("ask", &reply);
        if matches!(&reply, Ok(reply) if *reply != Reply::Pong) {
            self.violated("wire", format!("a ping is answered with {reply:?}"));
        }
    }
}
