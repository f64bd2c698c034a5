//! Configurations that need no file.

use super::config::{Config, Preset, Workload};
use crate::source::{KernelSpec, Pattern};

pub const NAMES: [&str; 2] = ["wl-mix", "wl-mix-64th"];

/// A configuration by its name.
pub fn named(name: &str) -> Option<Config> {
    match name {
        "wl-mix" => Some(wl_mix(1)),
        "wl-mix-64th" => Some(wl_mix(64)),
        _ => None,
    }
}

/// The seed's mixed load: 64 nodes with 256 MiB each and 6 pools, 16 nodes for each of four
/// programs. Ours only resemble its programs in their patterns. The seed's table of programs could
/// not be read, so footprints are chosen: more than a node has, those of lbm and fmm the larger
/// ones, as its text says. The pace is chosen, too: pools' links in use for 70 percent of the time
/// if every other access were remote.
///
/// With a divisor, a power of two up to 64, memories, footprints, the third level of cache, chunks
/// and windows are that much smaller, so that the same happens in as much less time.
///
/// Source: Rack-scale disaggregation, §V.
pub fn wl_mix(divisor: u64) -> Config {
    let kernel = |name: &str, footprint_mib: u64| Workload {
        name: name.to_owned(),
        nodes: 16,
        pattern: Pattern::Kernel(KernelSpec {
            name: name.to_owned(),
            footprint_kib: (footprint_mib << 10) / divisor,
            l3_kib: (16 << 10) / divisor,
            memory_cycles: 288,
        }),
        stagger_us: 320 / divisor,
    };
    let name = if divisor == 1 { "wl-mix".to_owned() } else { format!("wl-mix-{divisor}th") };
    let programs = [("lbm", 640), ("fdtd", 448), ("fft", 384), ("fmm", 640)];
    Config {
        name,
        preset: Preset::Corrected,
        seed: 1,
        placement: "alternate+smart-idle".parse().expect("it is a placement"),
        racks: 1,
        pools: 6,
        local_mib: 256 / divisor,
        pool_mib: 32_768 / divisor,
        chunk_kib: 4096 / divisor,
        // Twice as many as the largest footprint has lines, there and back.
        accesses: 42_000_000 / divisor,
        pool_load_percent: Some(70),
        end_ms: None,
        local_memory: None,
        pool_memory: None,
        local_channels: 1,
        pool_channels: 1,
        costs: None,
        injection: None,
        hot: None,
        prefetch: None,
        pool_holds_back: None,
        fabric: None,
        window_us: (417_000 / divisor).div_ceil(1_000),
        workloads: programs.map(|(name, mib)| kernel(name, mib)).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = include_str!("wl-mix-64th.toml");

    #[test]
    fn the_built_in_ones_can_be_meant_and_are_as_published() {
        for name in NAMES {
            let config = named(name).unwrap();
            assert_eq!(config.check(), Ok(()), "{name}");
            assert_eq!((config.nodes(), config.pools, config.name.as_str()), (64, 6, name));
        }
        assert_eq!(Config::from_toml(FILE), Ok(wl_mix(64)), "as a file");
        // What the file has as remarks can be meant, too.
        for line in FILE.lines().filter_map(|line| line.strip_prefix("# ")).skip(1) {
            let text = FILE.replacen("[[workloads]]", &format!("{line}\n[[workloads]]"), 1);
            assert!(Config::from_toml(&text).is_ok(), "{line}: {:?}", Config::from_toml(&text));
        }
        let whole = named("wl-mix").unwrap();
        assert_eq!((whole.local_mib, whole.chunk_kib), (256, 4096));
        assert_eq!(named("wl-mux"), None);
    }

    #[test]
    fn what_cannot_be_meant_is_answered_with_line_or_field() {
        let wrong = |from: &str, to: &str| {
            assert!(FILE.contains(from), "{from}");
            Config::from_toml(&FILE.replace(from, to)).unwrap_err().to_string()
        };
        assert!(wrong("pools = 6", "pools = -6").contains("line"));
        assert!(wrong("pools = 6", "pouls = 6").contains("pouls"));
        assert!(wrong("pools = 6", "pools = 100").contains("`workloads`: 164 ports"));
        assert!(wrong("chunk_kib = 64", "chunk_kib = 65").contains("`chunk_kib`"));
        assert!(wrong("{ name = \"lbm\"", "{ name = \"lmb\"").contains("kernel"));
        assert!(wrong("alternate+smart-idle", "nearest").contains("nearest"));
    }
}
