//! Small models of the protocols, over all interleavings (loom) or random schedules (shuttle).

#[cfg(any(loom, shuttle))]
mod engines;
#[cfg(loom)]
mod loom_page;
#[cfg(loom)]
mod loom_ring;
#[cfg(loom)]
mod loom_slot;
#[cfg(loom)]
mod loom_version;
#[cfg(loom)]
mod loom_watch;
#[cfg(shuttle)]
mod shuttle_pool;
