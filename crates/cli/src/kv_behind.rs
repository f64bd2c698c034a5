//! What lies behind the memory of `rackpool kv`: flash (`--flash`), or memory that persists
//! (`--value-tier pmem:`). In: the options. Out: it, opened, and a cache before it.

use crate::failure::{Failure, Result};
use crate::kv_args::{KvArgs, ValueTierRule};
use crate::kv_pmem::ValueTierPlace;
use crate::{kv_flash, kv_pmem};
use rackpool_cache::pmem_tier::PmemTier;
use rackpool_cache::{Cache, Mode};
use rackpool_flash::Flash;
use std::sync::Arc;

/// What lies behind the memory of a cache.
pub enum BehindMemory {
    Flash(Arc<Flash>),
    Pmem(Arc<PmemTier>),
}

impl BehindMemory {
    /// What the options ask for, if they do; new flash has this seed.
    pub fn open(args: &KvArgs, seed: u64) -> Result<Option<BehindMemory>> {
        let pmem = match &args.value_tier {
            Some(ValueTierPlace::Pmem(pmem)) => Some(pmem),
            _ => None,
        };
        let is_store = match (&args.flash, pmem) {
            (None, None) => return Ok(None),
            (Some(_), Some(_)) => {
                let why = "--flash and --value-tier pmem: both lie behind memory: give one";
                return Err(Failure::usage(why));
            }
            (Some(flash), None) => flash.is_store,
            (None, Some(pmem)) => pmem.is_store,
        };
        refuse_beside(args, is_store)?;
        match (&args.flash, pmem) {
            (Some(flash), _) => Ok(Some(BehindMemory::Flash(kv_flash::open(flash, seed)?))),
            (None, Some(pmem)) => Ok(Some(BehindMemory::Pmem(kv_pmem::open(pmem)?))),
            (None, None) => Ok(None),
        }
    }

    /// Of the hashes of keys.
    pub fn seed(&self) -> u64 {
        match self {
            BehindMemory::Flash(flash) => flash.seed(),
            BehindMemory::Pmem(pmem) => pmem.seed(),
        }
    }

    /// A cache of this seed, with it behind its memory.
    pub fn of(&self, cache: Cache) -> Result<Cache> {
        if cache.options().seed != self.seed() {
            let what = "--warm and what lies behind memory name files that were not made together";
            let hint = "name another --warm file, or remove it to start with an empty one";
            return Err(Failure::new("corrupt", what).with_hint(hint));
        }
        Ok(match self {
            BehindMemory::Flash(flash) => kv_flash::behind(cache, flash),
            BehindMemory::Pmem(pmem) => {
                let pmem: Arc<PmemTier> = Arc::clone(pmem);
                cache.with_backing(pmem)
            }
        })
    }

    /// Ends it in order, with all that it took.
    pub fn close(&self) {
        match self {
            BehindMemory::Flash(flash) => kv_flash::close(flash),
            BehindMemory::Pmem(pmem) => pmem.close(),
        }
    }
}

/// Refuses what goes round what lies behind memory.
fn refuse_beside(args: &KvArgs, is_store: bool) -> Result<()> {
    let has_tier = args.value_tier_nodes().is_some();
    let has_copies = args.value_tier_rule == ValueTierRule::Bandwidth;
    let of_nodes = args.value_tier_memory.is_some() || has_copies;
    let herd = args.herd.is_some() || args.herd_listen.is_some();
    let policy = "it takes items that are evicted: give another --policy than noeviction";
    for (is_given, why) in [
        (args.policy.mode == Mode::Store, policy),
        (of_nodes && !has_tier, "--value-tier-memory and -rule are for memory nodes"),
        (is_store && herd, "HERD does not wait until a change is durable: leave --herd out"),
        (is_store && args.pool.is_some(), "--pool keeps values elsewhere: leave it out"),
        (is_store && has_tier, "--value-tier keeps values elsewhere: leave it out"),
        (is_store && args.warm.is_some(), "a store has all of it: leave --warm out"),
    ] {
        if is_given {
            let option = if args.flash.is_some() { "--flash" } else { "--value-tier pmem:" };
            let mode = if is_store { " with mode=store" } else { "" };
            return Err(Failure::usage(format!("{option}{mode}: {why}")));
        }
    }
    Ok(())
}
