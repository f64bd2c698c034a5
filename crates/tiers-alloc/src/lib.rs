//! An allocator for machines with unlike memories: an [`Arena`] takes memory from the memory nodes
//! that its [`Policy`] names, by shares that hold for what is in use. For Rust, as arenas and as
//! [`TiersAlloc`] for `#[global_allocator]`; for C by `include/rackpool_tiers.h`.
//!
//! A policy chooses a [`Placement`] by the size of a block or by a hint. A placement (`place`) owns
//! *regions* of addresses (`region`), each an exclusive arena of mimalloc with one heap, which all
//! threads use: mimalloc keeps a cache for each thread, and takes frees from any. When mimalloc
//! first uses a part of a region, the *extents* of 2 MiB under it are given nodes by a [`Placer`],
//! which is the kernel's `mbind` but in tests. Blocks of 32 MiB and more, or aligned to more than
//! 64 KiB, are mappings of their own (`mapped`).
//!
//! Nothing in here allocates by Rust's allocator, which may be this one. Arenas are never taken
//! back. A child of a fork goes on with them: this crate's locks are mended (`locks`), mimalloc's
//! are not. They are held while a thread takes its first block of a placement, and while it ends;
//! where that can be, a child calls `exec` before it allocates. Decision 0053 says why mimalloc,
//! and by which of its interfaces.
//!
//! ```no_run
//! use rackpool_tiers_alloc::{Arena, free};
//!
//! let arena = Arena::new("values", "weighted:0=3,1=1".parse()?)?;
//! let block = arena.malloc(100);
//! assert!(!block.is_null());
//! // SAFETY: a block of an arena, and no longer used.
//! unsafe { free(block) };
//! # Ok::<(), rackpool_tiers_alloc::Error>(())
//! ```

mod arena;
mod c;
mod error;
mod global;
#[cfg(feature = "load")]
pub mod load;
mod locks;
mod mapped;
mod place;
mod placer;
mod policy;
mod recent;
mod region;
mod stats;
mod sys;

pub use arena::{ARENAS_MAX, Arena, NAME_BYTES_MAX, arenas, free, usable_size};
pub use error::Error;
pub use global::TiersAlloc;
pub use placer::{Kernel, Placer};
pub use policy::{Hint, PLACEMENTS_MAX, Placement, Policy, SHARES_MAX, Share};
pub use stats::{CLASSES, Class, NodeBytes, PlaceStatistics, Statistics, prometheus};
