//! Clients have words of the pool name what they allocate, and free it by the word, while both
//! pages move wherever they like.

use super::Worker;
use rackpool_core::client::Placement;
use rackpool_core::layout::AllocationKind;
use rackpool_core::{Error, GAddr, Result};

/// Words of one client that name something at most.
const NAMES_MAX: usize = 3;
/// Bytes of a word's own allocation.
const WORD_BYTES: u64 = 64;

/// A word, and the allocation that it names.
#[derive(Clone, Copy, Debug)]
pub(super) struct Name {
    word: GAddr,
    addr: GAddr,
    bytes: u64,
}

impl Worker {
    /// Names something, or does something with what is named.
    pub(super) async fn name_step(&mut self) {
        let chosen = match self.names.len() {
            0 => None,
            count => Some(self.rng.below(count as u64) as usize),
        };
        if let Some(at) = chosen {
            self.check_name(self.names[at]).await;
        }
        match (chosen, self.rng.below(5)) {
            (None, _) => self.name().await,
            (Some(_), 0) if self.names.len() < NAMES_MAX => self.name().await,
            (Some(at), 0 | 1) => self.part(self.names[at]).await,
            (Some(at), 2) => self.read_all(self.names[at].addr).await,
            (Some(at), _) => self.free_by_name(at).await,
        }
    }

    /// Allocates a word, and what it names.
    async fn name(&mut self) {
        let placement = Placement::Rack(self.any_rack());
        self.begin("alloc");
        let result = self.handle.alloc(WORD_BYTES, placement, AllocationKind::User).await;
        if let Ok(word) = &result {
            self.took(*word, WORD_BYTES, false);
            // Its bytes are the daemon's business.
            if let Some(object) = self.scene.model.objects.borrow_mut().get_mut(&word.0) {
                object.words = true;
            }
        }
        self.scene.model.leaves_in_doubt(&mut self.handle);
        self.end("alloc", &result).await;
        self.check_error("alloc", &result);
        let Ok(word) = result else { return };
        let page = self.handle.page_bytes();
        let bytes = match self.rng.below(3) {
            0 => self.rng.between(1, page / 2),
            _ => self.rng.between(page / 2 + 1, 3 * page),
        };
        self.begin("alloc-into");
        let result = self.handle.alloc_into(word, bytes).await;
        match &result {
            Ok(addr) => {
                self.took(*addr, bytes, false);
                self.names.push(Name { word, addr: *addr, bytes });
            }
            Err(error) if super::is_refused(error) => {}
            // It may be there, and the word says so to no client any more.
            Err(_) => self.scene.model.maybe_leaked.set(self.scene.model.maybe_leaked.get() + 1),
        }
        self.end("alloc-into", &result).await;
        self.check_error("alloc-into", &result);
        match result {
            Ok(addr) => self.read_all(addr).await,
            Err(_) => self.leave_word(word),
        }
    }

    /// A word holds what it names until that is freed.
    async fn check_name(&mut self, name: Name) {
        self.begin("read-name");
        let read = self.handle.read_u64(name.word).await;
        self.end("read-name", &read).await;
        self.check_error("read-name", &read);
        if matches!(read, Ok(found) if found != name.addr.0) {
            self.violated("names", format!("{name:?} is not what the word holds: {read:?}"));
        }
    }

    /// A word that no client uses any more: the audit gives it back.
    fn leave_word(&self, word: GAddr) {
        if let Some(object) = self.scene.model.objects.borrow_mut().get_mut(&word.0) {
            object.holder = None;
        }
    }

    /// Word and memory part, or meet.
    async fn part(&mut self, name: Name) {
        let racks = &self.scene.cluster.racks;
        let to = racks[self.rng.below(racks.len() as u64) as usize].id;
        let pages = name.bytes.div_ceil(self.handle.page_bytes());
        let addr = match self.rng.below(3) {
            0 => name.word,
            _ => GAddr(name.addr.0 + self.rng.below(pages) * self.handle.page_bytes()),
        };
        self.move_page(addr, to).await;
    }

    /// Frees what a word names; then the word.
    async fn free_by_name(&mut self, at: usize) {
        let Name { word, addr, bytes } = self.names.swap_remove(at);
        self.begin("free-from");
        let serial = self.free_called(addr);
        let result = self.handle.free_from(word, bytes).await;
        self.end("free-from", &result).await;
        self.check_error("free-from", &result);
        // What a lost word named may be in another rack: the audit frees it.
        if !matches!(result, Err(Error::Lost { .. })) {
            self.free_ended((addr, bytes), serial, &result);
        }
        match result {
            Ok(()) => self.free(word, WORD_BYTES).await,
            Err(_) => self.leave_word(word),
        }
    }

    /// Gives all that is named back.
    pub(super) async fn end_names(&mut self) {
        while !self.names.is_empty() {
            self.free_by_name(0).await;
        }
    }

    /// A free begins; what tells the allocation from others.
    pub(super) fn free_called(&self, addr: GAddr) -> Option<u64> {
        let serial = self.scene.model.objects.borrow_mut().get_mut(&addr.0).map(|object| {
            object.freeing = true;
            object.serial
        });
        let now = self.ctx.now();
        self.scene.model.bytes.borrow_mut().free_called(addr.0, now);
        serial
    }

    pub(super) fn free_ended(
        &mut self,
        (addr, bytes): (GAddr, u64),
        serial: Option<u64>,
        result: &Result<()>,
    ) {
        match result {
            Ok(()) | Err(Error::NotMapped { .. } | Error::Lost { .. } | Error::BadFree { .. }) => {}
            // It was refused or its outcome is unknown: the audit finds out.
            Err(_) => return,
        }
        let now = self.ctx.now();
        // Another client may have it again already.
        let mut objects = self.scene.model.objects.borrow_mut();
        if objects.get(&addr.0).map(|object| object.serial) == serial {
            self.scene.model.bytes.borrow_mut().freed(addr.0, now);
            objects.remove(&addr.0);
        }
        drop(objects);
        if bytes > self.handle.page_bytes() / 2 {
            self.gone.push(addr);
        }
    }
}
