//! Small models of the protocols, over all interleavings (loom) or random schedules (shuttle).

#[cfg(feature = "modelled")]
mod engines;
#[cfg(feature = "loom")]
mod loom_page;
#[cfg(feature = "loom")]
mod loom_ring;
#[cfg(feature = "loom")]
mod loom_slot;
#[cfg(feature = "loom")]
mod loom_version;
#[cfg(feature = "loom")]
mod loom_watch;
#[cfg(feature = "shuttle")]
mod shuttle_pool;
