//! `--value-tier pmem:`: items that leave memory, or all of them, in memory that persists. In: what
//! the option says. Out: the items, opened.

use crate::failure::{Failure, Result};
use crate::values::{parse_mode, parse_size};
use rackpool_cache::pmem_tier::{PmemTier, PmemTierError, PmemTierOptions};
use rackpool_core::persist::PersistenceDomain;
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

/// Opens what is there, or makes it; reads all of it.
pub fn open(options: &PmemTierOptions) -> Result<Arc<PmemTier>> {
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
