//! The rig's part that is about words that name allocations.

use super::{Client, Rig};
use rackpool_core::GAddr;
use rackpool_core::wire::{Reply, Request};

impl Rig {
    pub fn alloc_into(&mut self, name: u32, word: GAddr, bytes: u64) -> GAddr {
        match self.ask(name, Request::AllocInto { word, bytes }) {
            Ok(Reply::Allocated { addr }) => addr,
            other => panic!("{bytes} bytes into {word} for {name}: {other:?}"),
        }
    }

    pub fn free_from(&mut self, name: u32, word: GAddr, bytes: u64) {
        let reply = self.ask(name, Request::FreeFrom { word, bytes });
        assert_eq!(reply, Ok(Reply::Freed), "what {word} names, {bytes}");
    }

    /// The first of some words that is 0.
    pub fn empty_word(&self, words: &[GAddr]) -> GAddr {
        *words.iter().find(|word| self.word(**word) == 0).expect("one is free")
    }

    /// What a word holds.
    pub fn word(&self, word: GAddr) -> u64 {
        self.world.pages.peek(self.world.offset_of(word))
    }

    /// An allocation is there together with the word that names it.
    pub(super) fn named(&mut self, word: GAddr, addr: GAddr, bytes: u64) {
        self.words.insert(word.0, addr.0);
        self.born(addr, bytes, None);
    }

    /// An allocation that a refused free did not free.
    pub fn born_again(&mut self, addr: GAddr, bytes: u64) {
        let name = *self.clients.keys().next().expect("somebody asked");
        let (at, live, word) = self.clients.get_mut(&name).unwrap().freeing.take().unwrap();
        assert_eq!((at, live.bytes), (addr.0, bytes));
        self.live.insert(at, live);
        self.words.insert(at, word);
    }

    /// What a client that died had under way about a word is done or not, and the word tells.
    pub(super) fn end_of_word(&mut self, client: Client) {
        match client.pending {
            Some(Request::AllocInto { word, bytes }) => match self.word(word) {
                addr if addr != self.words[&word.0] => self.named(word, GAddr(addr), bytes),
                _ => {}
            },
            Some(Request::FreeFrom { word, .. }) => {
                let left = self.word(word);
                if let (true, Some((addr, live, value))) = (left != 0, client.freeing) {
                    self.live.insert(addr, live);
                    self.words.insert(addr, value);
                }
                self.words.insert(word.0, left);
            }
            _ => {}
        }
    }
}
