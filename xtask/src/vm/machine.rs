//! What a guest is made of, and what is refused because it is known to be wrong.

use std::path::Path;

/// The guests of a scenario. All are alike but for what is shared or numbered.
#[derive(Clone, Debug)]
pub struct Machine {
    /// Processors that run and that could be added: emulated code is only atomic with other
    /// machines' if there could be more than one.
    pub cpus: u32,
    pub cpus_max: u32,
    pub memory_mib: u32,
    /// Persistent memory that all guests of a rack share, MiB; 0 for none.
    pub shared_mib: u32,
    /// Instead it is volatile memory of a CXL device behind the first root port; behind the others
    /// there is nothing.
    pub is_shared_cxl: bool,
    /// Guests that share it: number k belongs to rack k / `rack_guests`.
    pub rack_guests: u32,
    /// Memory of `memory_mib` that is node 1's, which has no processors, MiB; 0 for none. The
    /// persistent memory is then node 2's.
    pub far_mib: u32,
    /// Memory nodes of which `memory_mib` is the sum, that of the processors first, if the firmware
    /// is to tell their latencies and bandwidths.
    pub tiers: &'static [Tier],
    /// Root ports with a CXL memory device each, unless `is_shared_cxl`; 0 for none.
    pub cxl_ports: u32,
    /// Further words for the kernel.
    pub kernel_words: &'static str,
    /// A disk, MiB; 0 for none. Its file is `disk` in the run's folder.
    pub disk_mib: u32,
    /// Further arguments, with `%ID%` for the guest, `%DIR%` for the run's folder, and `%DOMAIN%`
    /// for the persistence domain of an nvdimm, in turn.
    pub more: &'static [&'static str],
}

/// A memory node, as the processors see it.
#[derive(Clone, Copy, Debug)]
pub struct Tier {
    pub mib: u32,
    pub latency_ns: u32,
    /// GB/s.
    pub bandwidth_gb: u32,
}

pub const MACHINE: Machine = Machine {
    cpus: 1,
    cpus_max: 2,
    memory_mib: 1024,
    shared_mib: 0,
    is_shared_cxl: false,
    rack_guests: 2,
    far_mib: 0,
    tiers: &[],
    cxl_ports: 0,
    kernel_words: "",
    disk_mib: 0,
    more: &[],
};

/// Length of a CXL memory device, MiB: two hold a region's fixed sections, half a GiB in units of
/// 2 MiB, and pages.
pub const CXL_MIB: u32 = 512;
/// Longest path of a unix socket, bytes.
const SOCKET_PATH_BYTES: usize = 107;
/// The sizes that an nvdimm without a label may have are multiples of this, MiB.
const SHARED_STEP_MIB: u32 = 16;
/// Those of a CXL device, MiB.
const CXL_STEP_MIB: u32 = 256;

impl Machine {
    /// Why this must not be run, if so.
    pub fn refusal(&self, guests: u32, directory: &Path) -> Option<String> {
        if self.cpus_max < 2 {
            return Some(
                "-smp 1 without maxcpus: the emulator then makes no atomic instructions, and \
                 what several machines add up in shared memory comes out wrong (measured: 19.3 \
                 of 20 million)"
                    .into(),
            );
        }
        if self.cpus == 0 || self.cpus > self.cpus_max {
            return Some(format!("{} processors of at most {}", self.cpus, self.cpus_max));
        }
        if self.cxl_ports == 1 {
            return Some(
                "one CXL root port: the kernel then leaves the decoders alone and what is written \
                 is lost; two are needed"
                    .into(),
            );
        }
        let step_mib = if self.is_shared_cxl { CXL_STEP_MIB } else { SHARED_STEP_MIB };
        if !self.shared_mib.is_multiple_of(step_mib) {
            let Self { shared_mib, .. } = self;
            return Some(format!(
                "shared memory of {shared_mib} MiB: only multiples of {step_mib} MiB align"
            ));
        }
        if self.is_shared_cxl && (self.shared_mib == 0 || self.cxl_ports == 0) {
            return Some("a shared CXL device without memory or without a root port".into());
        }
        let tiers_mib: u32 = self.tiers.iter().map(|tier| tier.mib).sum();
        if tiers_mib > 0 && (tiers_mib != self.memory_mib || self.far_mib > 0) {
            return Some(format!("nodes of {tiers_mib} MiB, not {} alone", self.memory_mib));
        }
        if self.shared_mib > 0 && self.rack_guests == 0 {
            return Some("shared memory that no guest shares".into());
        }
        if guests == 0 {
            return Some("no guests".into());
        }
        if self.more.iter().any(|word| word.contains("mcast") || word.contains("230.0.0.")) {
            return Some("a multicast network: guests of other runs would hear it".into());
        }
        let longest = directory.join("net.00.00").as_os_str().len();
        (longest > SOCKET_PATH_BYTES).then(|| {
            format!(
                "{}: sockets in there would have paths of {longest} bytes, at most \
                 {SOCKET_PATH_BYTES} are allowed: set TMPDIR to something shorter",
                directory.display()
            )
        })
    }

    pub fn has_nvdimm(&self) -> bool {
        self.shared_mib > 0 && !self.is_shared_cxl
    }

    /// Files of shared memory that a run makes, and their lengths in MiB.
    pub fn shared_files(&self, guests: u32) -> Vec<(String, u32)> {
        let racks = if self.shared_mib == 0 { 0 } else { guests.div_ceil(self.rack_guests) };
        let mut files: Vec<_> =
            (0..racks).map(|rack| (format!("shared.{rack}"), self.shared_mib)).collect();
        let own_devices = if self.is_shared_cxl { 0 } else { self.cxl_ports };
        for guest in 0..guests {
            for port in 0..own_devices {
                files.push((format!("cxl.{guest}.{port}"), CXL_MIB));
                // Labels of an earlier run would be in the way, so they are always new.
                files.push((format!("lsa.{guest}.{port}"), 1));
            }
        }
        if self.disk_mib > 0 {
            files.push(("disk".to_owned(), self.disk_mib));
        }
        files
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_to_be_wrong_is_refused_with_the_reason() {
        let refused =
            |machine: Machine| machine.refusal(2, Path::new("/tmp/x")).unwrap_or_default();
        assert_eq!(MACHINE.refusal(2, Path::new("/tmp/x")), None);
        assert!(refused(Machine { cpus_max: 1, ..MACHINE }).contains("maxcpus"));
        assert!(refused(Machine { cpus: 4, ..MACHINE }).contains("at most 2"));
        assert!(refused(Machine { cxl_ports: 1, ..MACHINE }).contains("root port"));
        assert!(refused(Machine { shared_mib: 100, ..MACHINE }).contains("16 MiB"));
        assert_eq!(refused(Machine { shared_mib: 128, cxl_ports: 2, ..MACHINE }), "");
        let cxl = Machine { shared_mib: 768, is_shared_cxl: true, ..MACHINE };
        assert_eq!(refused(Machine { cxl_ports: 2, ..cxl }), "");
        assert!(refused(Machine { shared_mib: 128, ..cxl }).contains("256 MiB"));
        assert!(refused(cxl).contains("root port"));
        let tiers = &[Tier { mib: 768, latency_ns: 80, bandwidth_gb: 200 }];
        assert!(refused(Machine { tiers, ..MACHINE }).contains("768 MiB, not 1024"));
        let loud = Machine { more: &["-netdev", "socket,mcast=230.0.0.1:1"], ..MACHINE };
        assert!(refused(loud).contains("multicast"));
        assert!(MACHINE.refusal(0, Path::new("/tmp")).is_some());
        let deep = "/tmp/".to_owned() + &"d".repeat(120);
        assert!(MACHINE.refusal(1, Path::new(&deep)).unwrap().contains("TMPDIR"));
    }

    #[test]
    fn each_rack_has_one_shared_file_and_each_port_two() {
        let machine = Machine { shared_mib: 64, ..MACHINE };
        let names = |guests| machine.shared_files(guests).into_iter().map(|file| file.0);
        assert_eq!(names(4).collect::<Vec<_>>(), ["shared.0", "shared.1"]);
        assert_eq!(names(1).collect::<Vec<_>>(), ["shared.0"]);
        assert_eq!(Machine { cxl_ports: 2, ..MACHINE }.shared_files(1).len(), 4);
        let cxl = Machine { is_shared_cxl: true, cxl_ports: 2, ..machine };
        assert_eq!(cxl.shared_files(2), [("shared.0".to_owned(), 64)]);
        assert!(MACHINE.shared_files(4).is_empty());
    }
}
