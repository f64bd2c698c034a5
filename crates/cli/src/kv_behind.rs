//! What lies behind the memory of `rackpool kv`: flash (`--flash`), or memory that persists
//! (`--value-tier pmem:`). In: the options. Out: it, opened, and a cache before it.

use crate::failure::{Failure, Result};
use crate::kv_args::KvArgs;
use crate::kv_flash;
use crate::values::parse_size;
use rackpool_cache::pmem_tier::{PmemTier, PmemTierError, PmemTierOptions};
use rackpool_cache::{Cache, Mode};
use rackpool_core::persist::PersistenceDomain;
use rackpool_flash::Flash;
use rackpool_mem::numa::{NumaError, Placement};
use std::sync::Arc;
use tracing::info;

/// Where `--value-tier` has values lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ValueTierPlace {
    Nodes(Placement),
    Pmem(PmemTierOptions),
}

pub fn parse_value_tier(text: &str) -> Result<ValueTierPlace, String> {
    match text.strip_prefix("pmem:") {
        Some(place) => parse_pmem(place).map(ValueTierPlace::Pmem),
        None => {
            text.parse().map(ValueTierPlace::Nodes).map_err(|error: NumaError| error.to_string())
        }
    }
}

fn parse_pmem(text: &str) -> Result<PmemTierOptions, String> {
    let wrong = || {
        format!(
            "`pmem:{text}` is not pmem:PATH?size=BYTES[&mode=cache|store][&domain=DOMAIN]\
             [&admit=all|again]"
        )
    };
    let (path, options) = text.rsplit_once('?').ok_or_else(wrong)?;
    let (mut bytes, mut domain, mut is_store, mut admits_all) = (None, None, false, false);
    for option in options.split('&') {
        match option.split_once('=').ok_or_else(wrong)? {
            ("size", value) => bytes = Some(parse_size(value)?),
            ("domain", value) => {
                let parsed = value.parse::<PersistenceDomain>();
                domain = Some(parsed.map_err(|error| error.to_string())?);
            }
            ("mode", value) => is_store = parse_mode(value).ok_or_else(wrong)?,
            ("admit", "all") => admits_all = true,
            ("admit", "again") => admits_all = false,
            _ => return Err(wrong()),
        }
    }
    let bytes = bytes.filter(|_| !path.is_empty()).ok_or_else(wrong)?;
    Ok(PmemTierOptions { path: path.into(), bytes, domain, is_store, admits_all })
}

/// Whether a mode is that of a store.
pub fn parse_mode(word: &str) -> Option<bool> {
    match word {
        "cache" => Some(false),
        "store" => Some(true),
        _ => None,
    }
}

/// What lies behind the memory of a cache.
pub enum Behind {
    Flash(Arc<Flash>),
    Pmem(Arc<PmemTier>),
}

impl Behind {
    /// What the options ask for, if they do; new flash has this seed.
    pub fn open(args: &KvArgs, seed: u64) -> Result<Option<Behind>> {
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
            (Some(flash), _) => Ok(Some(Behind::Flash(kv_flash::open(flash, seed)?))),
            (None, Some(pmem)) => Ok(Some(Behind::Pmem(open_pmem(pmem)?))),
            (None, None) => Ok(None),
        }
    }

    /// Of the hashes of keys.
    pub fn seed(&self) -> u64 {
        match self {
            Behind::Flash(flash) => flash.seed(),
            Behind::Pmem(pmem) => pmem.seed(),
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
            Behind::Flash(flash) => kv_flash::behind(cache, flash),
            Behind::Pmem(pmem) => {
                let pmem: Arc<PmemTier> = Arc::clone(pmem);
                cache.with_backing(pmem)
            }
        })
    }

    /// Ends it in order.
    pub fn close(&self) {
        match self {
            Behind::Flash(flash) => kv_flash::close(flash),
            Behind::Pmem(pmem) => pmem.close(),
        }
    }
}

/// Refuses what goes round what lies behind memory.
fn refuse_beside(args: &KvArgs, is_store: bool) -> Result<()> {
    let has_tier = matches!(args.value_tier, Some(ValueTierPlace::Nodes(_)));
    let herd = args.herd.is_some() || args.herd_listen.is_some();
    let policy = "it takes items that are evicted: give another --policy than noeviction";
    for (is_given, why) in [
        (args.policy.mode == Mode::Store, policy),
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

fn open_pmem(options: &PmemTierOptions) -> Result<Arc<PmemTier>> {
    let tier = PmemTier::open(options).map_err(|error| {
        let code = match &error {
            PmemTierError::Items(rackpool_flash::Error::BadOption { .. }) => {
                return Failure::usage(format!("--value-tier: {error}"));
            }
            PmemTierError::Items(_) => "corrupt",
            PmemTierError::Region(_) => "region",
            PmemTierError::Io { .. } => "io",
        };
        Failure::new(code, format!("--value-tier: {error}"))
    })?;
    let (path, items) = (options.path.display(), tier.items());
    info!(target: "kv", "{path}: {items} items found, {} bytes", options.bytes);
    Ok(Arc::new(tier))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_persists_has_a_path_and_a_size_and_nodes_are_as_they_were() {
        let plain = parse_value_tier("pmem:/pmem/a?b?size=1G").unwrap();
        let wanted = PmemTierOptions {
            path: "/pmem/a?b".into(),
            bytes: 1 << 30,
            domain: None,
            is_store: false,
            admits_all: false,
        };
        assert_eq!(plain, ValueTierPlace::Pmem(wanted.clone()));
        let more = parse_value_tier("pmem:/pmem/a?b?size=1G&mode=store&domain=adr&admit=all");
        let domain = Some(PersistenceDomain::Adr);
        let more_wanted = PmemTierOptions { domain, is_store: true, admits_all: true, ..wanted };
        assert_eq!(more, Ok(ValueTierPlace::Pmem(more_wanted)));
        assert!(matches!(parse_value_tier("numa:1"), Ok(ValueTierPlace::Nodes(_))));
        for wrong in ["pmem:a", "pmem:?size=1G", "pmem:a?size=1G&mode=x", "pmem:a?size=1G&b=c"] {
            assert!(parse_value_tier(wrong).is_err(), "{wrong}");
        }
    }
}
