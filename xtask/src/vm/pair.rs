//! What boots a guest: a kernel with its modules, and an emulator. Either those of this machine or
//! a pair that `versions.toml` pins, which is fetched from Debian into the cache, once for each
//! version.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::{initramfs, kernel};
use crate::run::{Context, Task};

/// The pair of this machine's own packages.
pub const OWN: &str = "own";

#[derive(Deserialize)]
struct Versions {
    pair: Vec<Pin>,
}

/// A line of `versions.toml`.
#[derive(Deserialize)]
struct Pin {
    name: String,
    suite: String,
    kernel: String,
    qemu: String,
}

fn pins() -> Vec<Pin> {
    toml::from_str::<Versions>(include_str!("versions.toml")).expect("a test reads it").pair
}

/// The names that `--kernel` takes; the first is the default.
pub fn names() -> Vec<String> {
    pins().into_iter().map(|pin| pin.name).chain([OWN.to_owned()]).collect()
}

pub struct Pair {
    pub name: String,
    /// The kernel's version, as `uname -r` says.
    pub version: String,
    /// The kernel without its compression.
    pub kernel: PathBuf,
    pub initramfs: PathBuf,
    /// The kernel's modules, if the host's root does not have them.
    pub modules: Option<PathBuf>,
    /// The words that start the emulator.
    pub emulator: Vec<String>,
}

impl Pair {
    /// Makes what is not in the cache yet.
    pub fn new(context: &Context, cache: &Path, name: &str) -> Result<Self, String> {
        let pin = pins().into_iter().find(|pin| pin.name == name);
        let tree = pin.as_ref().map(|pin| fetched(context, cache, pin)).transpose()?;
        let Some(tree) = tree else {
            let (version, image) = kernel::newest(Path::new("/"))?;
            return Ok(Self {
                name: name.to_owned(),
                kernel: kernel::unpacked(cache, &version, &image)?,
                initramfs: initramfs::make(cache, &version, None)?,
                version,
                modules: None,
                emulator: vec!["qemu-system-x86_64".to_owned()],
            });
        };
        let root = tree.join("kernel");
        let (version, image) = kernel::newest(&root)?;
        Ok(Self {
            name: name.to_owned(),
            kernel: kernel::unpacked(cache, &version, &image)?,
            initramfs: initramfs::make(cache, &version, Some(&root))?,
            modules: Some(root.join("lib/modules").join(&version)),
            version,
            emulator: emulator(&tree.join("qemu/usr")),
        })
    }

    /// Whether its kernel is at least that old.
    pub fn is_at_least(&self, (major, minor): (u64, u64)) -> bool {
        kernel::sort_key(&self.version) >= vec![major, minor]
    }
}

/// The emulator by its own loader, with its own libraries.
fn emulator(usr: &Path) -> Vec<String> {
    let place = |name: &str| usr.join(name).display().to_string();
    let libraries = place("lib/x86_64-linux-gnu");
    let loader = format!("{libraries}/ld-linux-x86-64.so.2");
    let mut words = vec![loader, "--library-path".to_owned(), libraries];
    words.extend([place("bin/qemu-system-x86_64"), "-L".to_owned(), place("share/qemu")]);
    words.extend(["-L".to_owned(), place("share/seabios")]);
    words
}

/// The folder with the trees of a pair.
fn fetched(context: &Context, cache: &Path, pin: &Pin) -> Result<PathBuf, String> {
    let Pin { name, suite, kernel, qemu } = pin;
    // The loader takes a colon for the end of a path.
    let qemu_version = qemu.rsplit(':').next().unwrap_or(qemu);
    let tree = cache.join(format!("trees-{kernel}-{qemu_version}"));
    if !tree.exists() {
        let part = cache.join(format!("trees.part-{}", std::process::id()));
        let place = part.to_string_lossy();
        println!("vm: fetches Linux {kernel} and QEMU {qemu_version}: 160 MB, 300 MB unpacked");
        let script = ["-c", include_str!("fetch.sh"), "fetch", suite, kernel, qemu, &place];
        let fetch = Task::new("bash", &script).called("fetch.sh").minutes(15).run(context);
        if let Err(why) = fetch {
            let _ = fs::remove_dir_all(&part);
            return Err(format!(
                "cannot fetch Linux {name} and its emulator: {why}, see above: it needs apt-get, \
                 dpkg-deb, depmod and the mirror of Debian that `apt-get indextargets` names; \
                 `cargo xtask vm --kernel {OWN}` fetches nothing and runs what this machine's own \
                 kernel and emulator suffice for"
            ));
        }
        fs::rename(&part, &tree).map_err(|e| format!("{}: {e}", tree.display()))?;
    }
    for line in fs::read_to_string(tree.join("note")).unwrap_or_default().lines() {
        println!("vm: warning: {line}");
    }
    Ok(tree)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pair_has_a_name_of_its_own_and_a_version_that_its_kernel_has() {
        let names = names();
        assert!(names.len() > 2 && names.last().is_some_and(|name| name == OWN));
        for (index, pin) in pins().iter().enumerate() {
            assert!(pin.kernel.starts_with(&format!("{}.", pin.name)), "{}", pin.kernel);
            assert!(!names[..index].contains(&pin.name));
        }
    }

    #[test]
    fn a_kernel_is_old_enough_by_its_numbers() {
        let pair = |version: &str| Pair {
            name: String::new(),
            version: version.to_owned(),
            kernel: PathBuf::new(),
            initramfs: PathBuf::new(),
            modules: None,
            emulator: Vec::new(),
        };
        assert!(pair("7.3.4+deb13-amd64").is_at_least((6, 16)));
        assert!(pair("6.16.1").is_at_least((6, 16)));
        assert!(!pair("6.1.0-56-amd64").is_at_least((6, 16)));
    }
}
