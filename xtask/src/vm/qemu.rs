//! The command line of one guest.
//!
//! The network is a star: guest 0 has a card for each other guest, joined there by a bridge if
//! there are several; every link is a pair of unix datagram sockets in the run's folder.

use std::path::Path;

use super::machine::{CXL_MIB, Machine, Tier};

/// What all guests of a run have in common.
pub struct Run<'a> {
    pub machine: &'a Machine,
    pub guests: u32,
    pub directory: &'a Path,
    /// The words that start the emulator.
    pub emulator: &'a [String],
    pub kernel: &'a Path,
    pub initramfs: &'a Path,
    /// The kernel's modules, if the host's root does not have them.
    pub modules: Option<&'a Path>,
    pub accelerator: Accelerator,
    /// The host's time-stamp counter, kHz, which the emulator passes through; 0 if not known.
    pub tsc_khz: u64,
    /// How often the power was cut before.
    pub boot: u32,
}

/// What executes the guest's code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accelerator {
    /// Plain emulation, which runs everywhere.
    Tcg,
    Kvm,
}

const KERNEL_LINE: &str = "console=ttyS0 quiet loglevel=4 panic=-1 mitigations=off nokaslr \
    no_timer_check tsc=reliable cryptomgr.notests audit=0 apparmor=0 selinux=0 random.trust_cpu=on \
    net.ifnames=0";

const TCG: &str = "tcg,thread=multi,tb-size=256";

/// Without fast string instructions: emulated they move a byte at a time, and without them kernel
/// and libraries move words.
const TCG_CPU: &str = "max,la57=off,erms=off,fsrm=off";

/// The links of a guest: its own end of each, and the other one.
pub fn links(guest: u32, guests: u32) -> Vec<(String, String)> {
    let end = |from: u32, to: u32| format!("net.{from}.{to}");
    let others: Vec<u32> = if guest == 0 { (1..guests).collect() } else { vec![0] };
    others.into_iter().map(|other| (end(guest, other), end(other, guest))).collect()
}

fn kernel_line(run: &Run<'_>, guest: u32) -> String {
    let Run { machine, guests, .. } = run;
    let tsc = match (run.accelerator, run.tsc_khz) {
        (Accelerator::Tcg, khz) if khz > 0 => format!(" tsc_early_khz={khz}"),
        _ => String::new(),
    };
    // Hosts of a rack.
    let rack = format!(" rig.RACK={}", machine.rack_guests.max(1));
    let own = format!("{tsc} rig.ID={guest} rig.N={guests}{rack}");
    // Of two that contradict one another, the last one holds.
    format!("{KERNEL_LINE}{own} {}", machine.kernel_words).trim_end().to_owned()
}

/// The options of the emulator for a guest.
pub fn arguments(run: &Run<'_>, guest: u32) -> Vec<String> {
    let Run { machine, guests, .. } = run;
    let mut words: Vec<String> = Vec::new();
    let mut add = |option: &str, value: String| words.extend([option.to_owned(), value]);
    let directory = run.directory.display();
    let (accelerator, cpu) = match run.accelerator {
        // A guest that sees a hypervisor refuses to commit a CXL region.
        Accelerator::Tcg if machine.cxl_ports > 0 => (TCG, format!("{TCG_CPU},hypervisor=off")),
        Accelerator::Tcg => (TCG, TCG_CPU.to_owned()),
        Accelerator::Kvm => ("kvm", "host".to_owned()),
    };
    add("-accel", accelerator.into());
    let nvdimm = if machine.has_nvdimm() { ",nvdimm=on" } else { "" };
    let cxl = if machine.cxl_ports > 0 { ",cxl=on" } else { "" };
    let hmat = if machine.tiers.is_empty() { "" } else { ",hmat=on" };
    add("-machine", format!("q35{nvdimm}{cxl}{hmat}"));
    add("-cpu", cpu);
    add("-smp", format!("{},maxcpus={}", machine.cpus, machine.cpus_max));
    let slots = if nvdimm.len() + cxl.len() > 0 { ",slots=4,maxmem=8G" } else { "" };
    add("-m", format!("{}M{slots}", machine.memory_mib));
    add("-serial", format!("file:{directory}/console.{guest}"));
    add("-kernel", run.kernel.display().to_string());
    add("-initrd", run.initramfs.display().to_string());
    add("-append", kernel_line(run, guest));
    add("-device", "isa-debug-exit,iobase=0xf4,iosize=1".into());
    add("-device", "virtio-rng-pci".into());
    let mut shares = vec![("hostroot", Path::new("/"), ",readonly=on,multidevs=remap")];
    shares.push(("rig", run.directory, ""));
    shares.extend(run.modules.map(|modules| ("modules", modules, ",readonly=on")));
    for (tag, path, options) in shares {
        let path = path.display();
        add("-fsdev", format!("local,id={tag},path={path},security_model=none{options}"));
        add("-device", format!("virtio-9p-pci,fsdev={tag},mount_tag={tag}"));
    }
    if *guests > 1 {
        for (index, (own, other)) in links(guest, *guests).into_iter().enumerate() {
            let ends = format!(
                "local.type=unix,local.path={directory}/{own},\
                 remote.type=unix,remote.path={directory}/{other}"
            );
            add("-netdev", format!("dgram,id=n{index},{ends}"));
            let mac = format!("52:54:00:77:{index:02x}:{:02x}", guest + 1);
            let card = format!("virtio-net-pci,netdev=n{index},mac={mac},host_mtu=9000");
            add("-device", format!("{card},romfile=,rx_queue_size=1024"));
        }
    }
    if machine.has_nvdimm() {
        let rack = guest / machine.rack_guests;
        let file = format!("share=on,mem-path={directory}/shared.{rack}");
        add("-object", format!("memory-backend-file,id=nv0,{file},size={}M", machine.shared_mib));
        let node = if machine.far_mib > 0 { ",node=2" } else { "" };
        add("-device", format!("nvdimm,memdev=nv0,id=nvd0{node}"));
    }
    if machine.disk_mib > 0 {
        add("-drive", format!("file={directory}/disk,format=raw,if=virtio"));
    }
    for (option, value) in node_arguments(machine).into_iter().chain(tier_arguments(machine.tiers))
    {
        add(option, value);
    }
    for (option, value) in cxl_arguments(machine, guest, &directory.to_string()) {
        add(option, value);
    }
    let fixed = ["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"];
    words.extend(fixed.map(str::to_owned));
    let domain = if run.boot.is_multiple_of(2) { "mem-ctrl" } else { "cpu" };
    let replaced = |word: &&str| {
        let word = word.replace("%ID%", &guest.to_string()).replace("%DOMAIN%", domain);
        word.replace("%DIR%", &directory.to_string())
    };
    words.extend(machine.more.iter().map(replaced));
    words
}

/// Node 0 with the processors, node 1 with memory alone, node 2 for what is plugged in.
fn node_arguments(machine: &Machine) -> Vec<(&'static str, String)> {
    if machine.far_mib == 0 {
        return Vec::new();
    }
    let near_mib = machine.memory_mib - machine.far_mib;
    let mut words = Vec::new();
    for (node, mib) in [near_mib, machine.far_mib].into_iter().enumerate() {
        words.push(("-object", format!("memory-backend-ram,id=m{node},size={mib}M")));
    }
    let cpus = machine.cpus_max - 1;
    words.push(("-numa", format!("node,nodeid=0,cpus=0-{cpus},memdev=m0")));
    words.push(("-numa", "node,nodeid=1,memdev=m1".to_owned()));
    words.push(("-numa", "node,nodeid=2".to_owned()));
    for (from, to, distance) in [(0, 1, 20), (0, 2, 30), (1, 2, 40)] {
        words.push(("-numa", format!("dist,src={from},dst={to},val={distance}")));
    }
    words
}

/// Node 0 with the processors, and nodes with memory alone; the firmware's tables (SRAT, SLIT and
/// HMAT) tell what each is to the processors.
fn tier_arguments(tiers: &[Tier]) -> Vec<(&'static str, String)> {
    let mut words = Vec::new();
    for (node, tier) in tiers.iter().enumerate() {
        let Tier { mib, latency_ns, bandwidth_gb } = tier;
        words.push(("-object", format!("memory-backend-ram,id=m{node},size={mib}M")));
        let cpus = if node == 0 { "cpus=0-1," } else { "" };
        words.push(("-numa", format!("node,nodeid={node},{cpus}memdev=m{node},initiator=0")));
        let table = format!("hmat-lb,initiator=0,target={node},hierarchy=memory");
        words.push(("-numa", format!("{table},data-type=access-latency,latency={latency_ns}")));
        let mb = 1000 * bandwidth_gb;
        let bandwidth = format!("data-type=access-bandwidth,bandwidth={mb}M");
        words.push(("-numa", format!("{table},{bandwidth}")));
    }
    for (to, from) in (0..tiers.len()).flat_map(|to| (0..to).map(move |from| (to, from))) {
        // 10 is a node's distance from itself.
        let distance = 10 + 10 * (from + to);
        words.push(("-numa", format!("dist,src={from},dst={to},val={distance}")));
    }
    words
}

/// A host bridge with root ports, memory devices behind them, and a window for all.
fn cxl_arguments(machine: &Machine, guest: u32, directory: &str) -> Vec<(&'static str, String)> {
    if machine.cxl_ports == 0 {
        return Vec::new();
    }
    let mut words = vec![("-device", "pxb-cxl,bus_nr=12,bus=pcie.0,id=cxl.1".to_owned())];
    for port in 0..machine.cxl_ports {
        let root = format!("cxl-rp,port={port},bus=cxl.1,id=rp{port},chassis=0,slot={}", port + 2);
        words.push(("-device", root));
        // The device's options that name memory, the files behind them, and their lengths, MiB.
        let memories = match (machine.is_shared_cxl, port) {
            (false, _) => vec![
                ("memdev", format!("cxl.{guest}.{port}"), CXL_MIB),
                ("lsa", format!("lsa.{guest}.{port}"), 1),
            ],
            (true, 0) => {
                let shared = format!("shared.{}", guest / machine.rack_guests);
                vec![("volatile-memdev", shared, machine.shared_mib)]
            }
            (true, _) => continue,
        };
        let mut device = format!("cxl-type3,bus=rp{port},id=cx{port},sn=1{port}");
        for (option, file, mib) in memories {
            let backend = format!("memory-backend-file,id={option}{port},share=on");
            let file = format!("mem-path={directory}/{file},size={mib}M");
            words.push(("-object", format!("{backend},{file}")));
            device += &format!(",{option}={option}{port}");
        }
        words.push(("-device", device));
    }
    words.push(("-machine", "cxl-fmw.0.targets.0=cxl.1,cxl-fmw.0.size=4G".to_owned()));
    words
}

#[cfg(test)]
mod tests {
    use super::super::machine::MACHINE;
    use super::*;

    fn line(machine: &Machine, guests: u32, guest: u32) -> String {
        let run = Run {
            machine,
            guests,
            directory: Path::new("/tmp/r"),
            emulator: &[],
            kernel: Path::new("/k"),
            initramfs: Path::new("/i"),
            modules: None,
            accelerator: Accelerator::Tcg,
            tsc_khz: 2_500_000,
            boot: 1,
        };
        arguments(&run, guest).join(" ")
    }

    #[test]
    fn every_link_has_two_ends_that_name_one_another() {
        assert_eq!(links(0, 2), [("net.0.1".to_owned(), "net.1.0".to_owned())]);
        assert_eq!(links(1, 2), [("net.1.0".to_owned(), "net.0.1".to_owned())]);
        assert_eq!(links(0, 4).len(), 3);
        for guest in 1..4 {
            let [(own, other)] = &links(guest, 4)[..] else { panic!("one link") };
            assert!(links(0, 4).contains(&(other.clone(), own.clone())));
        }
    }

    #[test]
    fn a_lone_guest_has_no_network_and_none_ever_uses_multicast() {
        let alone = line(&MACHINE, 1, 0);
        assert!(!alone.contains("-netdev"));
        assert!(alone.contains("-smp 1,maxcpus=2 -m 1024M "));
        assert!(alone.contains("tsc_early_khz=2500000 rig.ID=0 rig.N=1 rig.RACK=2"));
        assert!(alone.contains("path=/,security_model=none,readonly=on"));
        let middle = line(&MACHINE, 3, 0);
        assert_eq!(middle.matches("-netdev dgram").count(), 2);
        assert!(!middle.contains("mcast"));
    }

    #[test]
    fn shared_memory_belongs_to_the_rack_and_a_guest_says_who_it_is() {
        let machine = Machine { shared_mib: 64, more: &["-name", "g%ID%%DOMAIN%"], ..MACHINE };
        assert!(line(&machine, 4, 1).contains("/tmp/r/shared.0,size=64M"));
        assert!(line(&machine, 4, 2).contains("/tmp/r/shared.1,size=64M"));
        assert!(line(&machine, 4, 2).ends_with("-name g2cpu"));
        assert!(line(&machine, 4, 2).contains("q35,nvdimm=on -cpu"));
        let far = Machine { shared_mib: 64, far_mib: 256, ..MACHINE };
        assert!(line(&far, 1, 0).contains("id=m0,size=768M"));
        assert!(line(&far, 1, 0).contains("nvdimm,memdev=nv0,id=nvd0,node=2"));
        let cxl = Machine { cxl_ports: 2, ..MACHINE };
        assert_eq!(line(&cxl, 1, 0).matches("cxl-type3").count(), 2);
        assert!(line(&cxl, 1, 0).contains("hypervisor=off") && !line(&far, 1, 0).contains("hyper"));
        let shared = line(&Machine { shared_mib: 768, is_shared_cxl: true, ..cxl }, 4, 2);
        assert!(shared.contains("/tmp/r/shared.1,size=768M") && !shared.contains("nvdimm"));
        assert_eq!(shared.matches("cxl-rp").count(), 2);
        assert_eq!(shared.matches("cxl-type3").count(), 1);
        assert!(shared.contains(",volatile-memdev=") && !shared.contains("lsa"));
        const TIERS: &[Tier] = &[
            Tier { mib: 512, latency_ns: 80, bandwidth_gb: 200 },
            Tier { mib: 512, latency_ns: 250, bandwidth_gb: 40 },
        ];
        let words = Machine { kernel_words: "pti=on", ..MACHINE };
        assert!(line(&words, 1, 0).contains("rig.RACK=2 pti=on -device"));
        assert!(line(&Machine { disk_mib: 8, ..MACHINE }, 1, 0).contains("file=/tmp/r/disk,"));
        let tiers = line(&Machine { tiers: TIERS, ..MACHINE }, 1, 0);
        assert!(
            tiers.contains("target=1,hierarchy=memory,data-type=access-bandwidth,bandwidth=40000M")
        );
        assert!(tiers.contains("q35,hmat=on ") && tiers.contains("dist,src=0,dst=1,val=20"));
    }
}
