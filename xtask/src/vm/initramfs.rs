//! The guest's first user space: a static busybox and the few modules with which it mounts the
//! host's root read-only by 9p, lays a tmpfs over it, and runs the rig's script there.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::cpio::Archive;

/// What the first mounts need; with what they depend on.
const MODULES: &[&str] = &["virtio_pci", "9pnet_virtio", "9p", "overlay"];

const INIT: &str = r#"#!/bin/busybox sh
B=/bin/busybox
$B mount -t proc p /proc; $B mount -t sysfs s /sys; $B mount -t devtmpfs d /dev
die() { echo "rig: failed: $*" >/dev/console; $B sleep 1; $B reboot -f; }
for m in $($B cat /mods/order); do $B insmod /mods/$m || die insmod $m; done
P=trans=virtio,version=9p2000.L,msize=512000
$B mount -t 9p -o ro,$P,cache=loose hostroot /lower || die the root of the host
$B mount -t tmpfs -o mode=755,size=50% rw /rw; $B mkdir /rw/up /rw/wk
$B mount -t overlay -o lowerdir=/lower,upperdir=/rw/up,workdir=/rw/wk ov /new || die the overlay
$B mkdir -p /new/rig /new/proc /new/sys /new/dev
if [ -e /mods/tree ]; then
  M=/new/usr/lib/modules/$($B uname -r); $B mkdir -p $M
  $B mount -t 9p -o ro,$P,cache=loose modules $M || die the modules
fi
for d in proc sys dev; do $B mount --move /$d /new/$d; done
$B mount -t 9p -o $P,cache=none rig /new/rig || die the shared folder
exec $B switch_root /new /bin/bash /rig/guest-init
"#;

/// Makes the archive for a kernel, in `cache`; it is quickly made, so it is always made anew. The
/// modules are in `tree`, if the host's root does not have them.
pub fn make(cache: &Path, version: &str, tree: Option<&Path>) -> Result<PathBuf, String> {
    let mut archive = Archive::new();
    for directory in ["bin", "proc", "sys", "dev", "lower", "rw", "new", "mods"] {
        archive.directory(directory);
    }
    let busybox = ["/bin/busybox", "/usr/bin/busybox"].iter().find_map(|path| fs::read(path).ok());
    let busybox = busybox.ok_or("no busybox: apt-get install busybox-static")?;
    archive.file("bin/busybox", true, &busybox);
    archive.file("init", true, INIT.as_bytes());
    let mut order = String::new();
    for module in module_files(version, tree.unwrap_or(Path::new("/")))? {
        let name = module.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let (name, data) = match name.strip_suffix(".xz") {
            Some(name) => (name.to_owned(), unpacked(&module)?),
            None => (name, fs::read(&module).map_err(|e| format!("{}: {e}", module.display()))?),
        };
        archive.file(&format!("mods/{name}"), false, &data);
        order += &format!("{name}\n");
    }
    if tree.is_some() {
        archive.file("mods/tree", false, &[]);
    }
    archive.file("mods/order", false, order.as_bytes());
    let path = cache.join(format!("initramfs-{version}"));
    let part = path.with_extension(format!("part-{}", std::process::id()));
    fs::write(&part, archive.finish()).map_err(|e| format!("{}: {e}", part.display()))?;
    fs::rename(&part, &path).map_err(|e| format!("{}: {e}", path.display()))?;
    Ok(path)
}

/// Busybox loads no packed modules.
fn unpacked(module: &Path) -> Result<Vec<u8>, String> {
    let output = Command::new("xz").arg("-dc").arg(module).output();
    let output = output.map_err(|e| format!("cannot start xz: {e}: apt-get install xz-utils"))?;
    let why = || format!("{}: xz ended with {}", module.display(), output.status);
    output.status.success().then_some(output.stdout).ok_or_else(why)
}

/// Files of the modules in the order in which they are to be loaded, each once.
fn module_files(version: &str, root: &Path) -> Result<Vec<PathBuf>, String> {
    let mut files = Vec::new();
    for module in MODULES {
        let output = Command::new("modprobe")
            .arg("--dirname")
            .arg(root)
            .args(["--show-depends", "--set-version", version, module])
            .output()
            .map_err(|e| format!("cannot start modprobe: {e}: apt-get install kmod"))?;
        if !output.status.success() {
            let why = String::from_utf8_lossy(&output.stderr).into_owned();
            return Err(format!("modprobe knows no module {module} of {version}: {why}"));
        }
        for file in insmod_files(&String::from_utf8_lossy(&output.stdout)) {
            if !files.contains(&file) {
                files.push(file);
            }
        }
    }
    Ok(files)
}

fn insmod_files(depends: &str) -> Vec<PathBuf> {
    let file = |line: &str| {
        let mut words = line.split_whitespace();
        (words.next() == Some("insmod")).then(|| words.next().map(PathBuf::from)).flatten()
    };
    depends.lines().filter_map(file).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_to_be_loaded_are_taken_from_what_modprobe_says() {
        let said = "builtin virtio\ninsmod /lib/modules/6.1/a.ko \ninsmod /lib/b.ko option=1\n";
        assert_eq!(
            insmod_files(said),
            [Path::new("/lib/modules/6.1/a.ko"), Path::new("/lib/b.ko")]
        );
        assert!(insmod_files("").is_empty());
    }
}
