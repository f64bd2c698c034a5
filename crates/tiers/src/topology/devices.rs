//! What lies behind memory nodes: dax devices that the kernel took as memory, and CXL regions that
//! the firmware made memory of.

use super::files::Files;
use super::{Bus, Device};
use rackpool_mem::numa::NODES_MAX;
use std::collections::BTreeSet;
use std::path::Path;

const DAX: &str = "bus/dax/devices";
const CXL: &str = "bus/cxl/devices";
/// The driver that makes a dax device a part of the system's memory.
const KMEM: &str = "kmem";

pub(super) fn dax(sys: &Files<'_>, regions: &[CxlRegion]) -> Vec<Device> {
    let device = |name: String| {
        let at = Path::new(DAX).join(&name);
        let path = sys.target(&at).unwrap_or_default();
        let driver = sys.link_name(at.join("driver"));
        let bytes = sys.number_not_0(at.join("size"));
        let region_around = || {
            // Only root may read it, and elsewhere the path says more.
            let start = sys.number(at.join("resource"))?;
            let mut regions = regions.iter().filter(|region| region.start <= start);
            let region = regions.find(|region| start - region.start < region.bytes)?;
            Some((Some(Bus::Cxl), Some(region.name.clone())))
        };
        let (bus, region) = match bus_of(&path) {
            (None, _) if !regions.is_empty() => region_around().unwrap_or((None, None)),
            found => found,
        };
        // The kernel writes -1 where it knows no node.
        let target_node = sys.parsed(at.join("target_node"), "the number of a node", |text| {
            let number: i64 = text.parse().ok()?;
            (number < i64::from(NODES_MAX)).then_some(u16::try_from(number).ok())
        });
        Device {
            align_bytes: sys.number_not_0(at.join("align")),
            is_memory: driver.as_ref().map(|driver| driver == KMEM),
            target_node: target_node.flatten(),
            name,
            bus,
            region,
            bytes,
            driver,
        }
    };
    sys.names(DAX).into_iter().map(device).collect()
}

/// How a dax device is attached, by the folders that it lies in, and its CXL region.
fn bus_of(path: &Path) -> (Option<Bus>, Option<String>) {
    let mut folders = path.iter().map(|part| part.to_string_lossy());
    if folders.clone().any(|folder| folder.starts_with("ndbus")) {
        return (Some(Bus::Nd), None);
    }
    let region = folders.find_map(|folder| {
        let number = folder.strip_prefix("dax_region").or(folder.strip_prefix("region"))?;
        number.parse::<u32>().is_ok().then(|| format!("region{number}"))
    });
    (region.is_some().then_some(Bus::Cxl), region)
}

/// A range of physical addresses on CXL devices.
pub(super) struct CxlRegion {
    name: String,
    start: u64,
    bytes: u64,
}

pub(super) fn cxl_regions(sys: &Files<'_>) -> Vec<CxlRegion> {
    let numbers = sys.numbered(CXL, "region").into_iter();
    let regions = numbers.filter_map(|number| {
        let name = format!("region{number}");
        let at = Path::new(CXL).join(&name);
        // A region that is not committed has no address.
        let start = sys.text(at.join("resource")).filter(|text| text.starts_with("0x"));
        let start = start.and_then(|_| sys.number_not_0(at.join("resource")))?;
        let bytes = sys.number_not_0(at.join("size"))?;
        start.checked_add(bytes)?;
        Some(CxlRegion { name, start, bytes })
    });
    regions.collect()
}

/// CXL regions with memory of a node that has these blocks.
pub(super) fn regions_of(
    regions: &[CxlRegion],
    blocks: &BTreeSet<u64>,
    block_bytes: Option<u64>,
) -> Vec<Device> {
    let Some(block_bytes) = block_bytes else { return Vec::new() };
    let is_of_node = |region: &&CxlRegion| {
        let (first, last) = (region.start, region.start + (region.bytes - 1));
        blocks.range(first / block_bytes..=last / block_bytes).next().is_some()
    };
    let device = |region: &CxlRegion| Device {
        name: region.name.clone(),
        bus: Some(Bus::Cxl),
        region: Some(region.name.clone()),
        bytes: Some(region.bytes),
        align_bytes: None,
        driver: None,
        target_node: None,
        is_memory: Some(true),
    };
    regions.iter().filter(is_of_node).map(device).collect()
}
