//! Packages: what people install, made from one command, and with `--check` installed and used.
//!
//! `c` and what contains it is built by this machine's own toolchain; wheels, and the program in
//! them, by zig's linker for glibc 2.28, so that they run on what is older than this machine. The
//! tarball and the .deb hold the program of the wheel `cli-wheel`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::run::{Context, Task};

/// Parts by name, in the order in which they are made.
const PARTS: [&str; 5] = ["c", "wheel", "cli-wheel", "tarball", "deb"];

/// What builds wheels, by version.
const TOOLS: &[&str] = &["maturin==1.16.0", "ziglang==0.17.1"];
const WHEELS_FOR: &str = "manylinux_2_28";

/// The shared library's own name; see `bindings/c/build.rs`.
const SONAME: &str = "librackpool.so.0";

/// What a program in Python does first, of the README.
const QUICK_START: &str = "
import rackpool
with rackpool.cluster(racks=2) as cluster:
    with cluster.connect(0) as here, cluster.connect(1) as there:
        region = here.alloc(1 << 20, placement='rack:1')
        region.write(b'hello')
        here.table('names')[b'greeting'] = region.address.to_bytes(8, 'little')
        address = int.from_bytes(there.table('names')[b'greeting'], 'little')
        assert there.read(address, 5) == b'hello'
print('all done')
";

pub struct Options {
    out: PathBuf,
    parts: Vec<&'static str>,
    check: bool,
}

impl Options {
    pub fn parse(words: &[&str]) -> Option<Self> {
        let mut options = Self { out: PathBuf::new(), parts: Vec::new(), check: false };
        let mut words = words.iter();
        while let Some(word) = words.next() {
            match *word {
                "--out" => options.out = words.next()?.into(),
                "--check" => options.check = true,
                part => options.parts.push(PARTS.iter().find(|known| **known == part)?),
            }
        }
        if options.parts.is_empty() {
            options.parts = PARTS.to_vec();
        }
        (!options.out.as_os_str().is_empty()).then_some(options)
    }

    fn makes(&self, part: &str) -> bool {
        self.parts.contains(&part)
    }
}

/// Of what the tests of the bindings need.
pub fn for_tests(out: &Path) -> Options {
    Options { out: out.to_owned(), parts: vec!["c", "wheel"], check: false }
}

pub fn run(context: &Context, options: &Options) -> Result<(), String> {
    let out = context.root.join(&options.out);
    make_dir(&out)?;
    let packaging = Packaging { context, out, version: env!("CARGO_PKG_VERSION") };
    if options.makes("c") {
        packaging.c(&packaging.out)?;
    }
    if options.makes("wheel") {
        packaging.wheel("bindings/python")?;
    }
    let carries_program = ["cli-wheel", "tarball", "deb"].iter().any(|part| options.makes(part));
    if carries_program {
        packaging.wheel("bindings/cli-wheel")?;
    }
    if options.makes("tarball") {
        packaging.tarball()?;
    }
    if options.makes("deb") {
        packaging.debs()?;
    }
    packaging.bill_of_materials()?;
    packaging.sums()?;
    if options.check { packaging.check(options) } else { Ok(()) }
}

struct Packaging<'a> {
    context: &'a Context,
    out: PathBuf,
    version: &'static str,
}

impl Packaging<'_> {
    /// Runs a program to its end.
    fn call(&self, program: impl AsRef<Path>, words: &[&str]) -> Result<(), String> {
        self.task(program, words).run(self.context)
    }

    fn task(&self, program: impl AsRef<Path>, words: &[&str]) -> Task {
        Task::new(&program.as_ref().to_string_lossy(), words).minutes(60)
    }

    fn target(&self, name: &str) -> PathBuf {
        self.context.target.join(name)
    }

    /// Headers, libraries and the files that find them, under a prefix.
    fn c(&self, prefix: &Path) -> Result<(), String> {
        let words = ["build", "--profile", "dist", "-p", "rackpool-c"];
        Task::cargo(&words).minutes(60).run(self.context)?;
        let source = self.context.root.join("bindings/c");
        for header in ["rackpool.h", "rackpool.hpp"] {
            copy(&source.join("include").join(header), &prefix.join("include").join(header))?;
        }
        let library = prefix.join("lib");
        let shared = format!("librackpool.so.{}", self.version);
        copy(&self.target("dist/librackpool_c.so"), &library.join(&shared))?;
        copy(&self.target("dist/librackpool_c.a"), &library.join("librackpool.a"))?;
        self.call("strip", &["--strip-debug", &text(&library.join(&shared))])?;
        self.call("strip", &["--strip-debug", &text(&library.join("librackpool.a"))])?;
        link(&shared, &library.join(SONAME))?;
        link(SONAME, &library.join("librackpool.so"))?;
        let found_by = read(&source.join("rackpool.pc.in"))?.replace("@VERSION@", self.version);
        write(&library.join("pkgconfig/rackpool.pc"), &found_by)?;
        let config = "rackpoolConfig.cmake";
        copy(&source.join("cmake").join(config), &library.join("cmake/rackpool").join(config))?;
        copy(&source.join("rackpool.3"), &prefix.join("share/man/man3/rackpool.3"))
    }

    /// An environment of Python with the tools, made once.
    fn tools(&self) -> Result<PathBuf, String> {
        let tools = self.target("dist-tools");
        if !tools.join("bin/maturin").exists() {
            self.call("python3", &["-m", "venv", "--clear", &text(&tools)])?;
            let words = [&["install", "--quiet"], TOOLS].concat();
            self.call(tools.join("bin/pip"), &words)?;
        }
        Ok(tools)
    }

    fn wheel(&self, project: &str) -> Result<(), String> {
        let tools = self.tools()?;
        let path = std::env::var("PATH").unwrap_or_default();
        let path = format!("{}:{path}", tools.join("bin").display());
        // It looks for its project where it is started.
        let script = "cd \"$0\" && exec \"$@\"";
        let project = text(&self.context.root.join(project));
        let (maturin, out) = (text(&tools.join("bin/maturin")), text(&self.out));
        let words = ["build", "--profile", "dist", "--zig", "--compatibility", WHEELS_FOR];
        let words = [&["-c", script, &project, &maturin], &words[..], &["--out", &out]].concat();
        let target = text(&self.context.target);
        let task = self.task("sh", &words).env("PATH", &path).env("CARGO_TARGET_DIR", &target);
        task.run(self.context)
    }

    /// The one file of the output that begins and ends so.
    fn made(&self, begin: &str, end: &str) -> Result<PathBuf, String> {
        let entries = fs::read_dir(&self.out).map_err(|e| said(&self.out, &e))?;
        let mut found = entries.flatten().filter(|entry| {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            name.starts_with(begin) && name.ends_with(end)
        });
        match (found.next(), found.next()) {
            (Some(one), None) => Ok(one.path()),
            (None, _) => Err(format!("no {begin}*{end} in {}", self.out.display())),
            _ => Err(format!("{} has several {begin}*{end}: empty it", self.out.display())),
        }
    }

    /// The program of the wheel, in a folder.
    fn program(&self, to: &Path) -> Result<(), String> {
        let wheel = self.made("rackpool_cli-", ".whl")?;
        let unpacked = self.target("dist-unpacked");
        clear(&unpacked)?;
        self.call("python3", &["-m", "zipfile", "-e", &text(&wheel), &text(&unpacked)])?;
        let scripts = format!("rackpool_cli-{}.data/scripts/rackpool", self.version);
        copy(&unpacked.join(scripts), &to.join("rackpool"))?;
        self.call("chmod", &["755", &text(&to.join("rackpool"))])
    }

    fn tarball(&self) -> Result<(), String> {
        let name = format!("rackpool-{}-{}-linux", self.version, std::env::consts::ARCH);
        let staged = self.target("dist-tarball");
        clear(&staged)?;
        let folder = staged.join(&name);
        self.program(&folder.join("bin"))?;
        for file in ["README.md", "LICENSE-MIT", "LICENSE-APACHE", "SECURITY.md"] {
            copy(&self.context.root.join(file), &folder.join(file))?;
        }
        self.units(&folder.join("systemd"))?;
        let file = text(&self.out.join(format!("{name}.tar.gz")));
        let owner = ["--owner=0", "--group=0", "--numeric-owner", "--sort=name"];
        let staged = text(&staged);
        let words = [&owner[..], &["-C", &staged, "-czf", &file, &name]].concat();
        self.call("tar", &words)
    }

    fn units(&self, to: &Path) -> Result<(), String> {
        let from = self.context.root.join("dist/systemd");
        for unit in ["rackpool-master.service", "rackpool-daemon@.service"] {
            copy(&from.join(unit), &to.join(unit))?;
        }
        Ok(())
    }

    /// The program with its units, and the library with its headers.
    fn debs(&self) -> Result<(), String> {
        let staged = self.target("dist-deb");
        clear(&staged)?;
        let (program, library) = (staged.join("rackpool"), staged.join("librackpool-dev"));
        self.program(&program.join("usr/bin"))?;
        self.units(&program.join("usr/lib/systemd/system"))?;
        let dist = self.context.root.join("dist");
        copy(&dist.join("rackpool.default"), &program.join("etc/default/rackpool"))?;
        write(&program.join("DEBIAN/conffiles"), "/etc/default/rackpool\n")?;
        for script in ["postinst", "postrm"] {
            copy(&dist.join("deb").join(script), &program.join("DEBIAN").join(script))?;
        }
        self.deb(&program, "rackpool", "net", "adduser | passwd")?;
        self.c(&library.join("usr"))?;
        self.call("gzip", &["-9nf", &text(&library.join("usr/share/man/man3/rackpool.3"))])?;
        self.deb(&library, "librackpool-dev", "libdevel", "")
    }

    fn deb(&self, tree: &Path, name: &str, section: &str, needs: &str) -> Result<(), String> {
        let license = read(&self.context.root.join("LICENSE-MIT"))?;
        write(&tree.join("usr/share/doc").join(name).join("copyright"), &license)?;
        let architecture = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => return Err(format!("no .deb for {other}: amd64 and arm64 are made")),
        };
        let depends = match needs {
            "" => "libc6 (>= 2.28), libgcc-s1".to_owned(),
            needs => format!("libc6 (>= 2.28), libgcc-s1, {needs}"),
        };
        let about = "memory pool for clusters: shared memory in a rack, RDMA or TCP between racks";
        let control = format!(
            "Package: {name}\nVersion: {}\nSection: {section}\nPriority: optional\n\
             Architecture: {architecture}\nDepends: {depends}\n\
             Maintainer: the rackpool developers <rackpool@localhost>\nDescription: {about}\n",
            self.version
        );
        write(&tree.join("DEBIAN/control"), &control)?;
        let file = self.out.join(format!("{name}_{}_{architecture}.deb", self.version));
        let words = ["--root-owner-group", "--build", &text(tree), &text(&file)];
        self.call("dpkg-deb", &words)
    }

    /// All that the packages were built from, in CycloneDX's form.
    fn bill_of_materials(&self) -> Result<(), String> {
        let output = Command::new("cargo")
            .args(["metadata", "--format-version", "1", "--locked"])
            .current_dir(&self.context.root)
            .output()
            .map_err(|e| format!("cannot start cargo: {e}"))?;
        let metadata: serde_json::Value =
            serde_json::from_slice(&output.stdout).map_err(|e| format!("cargo metadata: {e}"))?;
        let packages = metadata["packages"].as_array().ok_or("cargo names no packages")?;
        let components = packages.iter().map(|package| {
            let (name, version) = (&package["name"], &package["version"]);
            let plain = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
            let id = format!("pkg:cargo/{}@{}", plain(name), plain(version));
            let licenses = serde_json::json!([{ "expression": package["license"] }]);
            serde_json::json!({
                "type": "library", "name": name, "version": version, "purl": id,
                "licenses": licenses,
            })
        });
        let bill = serde_json::json!({
            "bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1,
            "metadata": { "component": {
                "type": "application", "name": "rackpool", "version": self.version,
            } },
            "components": components.collect::<Vec<_>>(),
        });
        write(&self.out.join("rackpool.cdx.json"), &format!("{bill:#}\n"))
    }

    fn sums(&self) -> Result<(), String> {
        let script = "cd \"$0\" && find . -type f ! -name SHA256SUMS -printf '%P\\0' | sort -z \
                      | xargs -0 sha256sum > SHA256SUMS";
        self.call("sh", &["-c", script, &text(&self.out)])
    }

    /// Installs what was made into clean places, and does there what people do first.
    fn check(&self, options: &Options) -> Result<(), String> {
        let clean = self.target("dist-check");
        clear(&clean)?;
        if options.makes("c") {
            self.check_c(&self.out, &clean)?;
        }
        if options.makes("wheel") {
            let place = clean.join("python");
            self.call("python3", &["-m", "venv", &text(&place)])?;
            let wheel = text(&self.made("rackpool-", ".whl")?);
            self.call(place.join("bin/pip"), &["install", "--quiet", &wheel])?;
            self.call(place.join("bin/python"), &["-c", QUICK_START])?;
        }
        if options.makes("cli-wheel") {
            let place = clean.join("cli");
            self.call("python3", &["-m", "venv", &text(&place)])?;
            let wheel = text(&self.made("rackpool_cli-", ".whl")?);
            self.call(place.join("bin/pip"), &["install", "--quiet", &wheel])?;
            self.call(place.join("bin/rackpool"), &["--version"])?;
        }
        if options.makes("tarball") {
            let file = text(&self.made("rackpool-", "-linux.tar.gz")?);
            self.call("tar", &["-C", &text(&clean), "-xzf", &file])?;
            let name = format!("rackpool-{}-{}-linux", self.version, std::env::consts::ARCH);
            self.call(clean.join(name).join("bin/rackpool"), &["--version"])?;
        }
        if options.makes("deb") {
            let root = clean.join("root");
            for name in ["rackpool_", "librackpool-dev_"] {
                let deb = text(&self.made(name, ".deb")?);
                self.call("dpkg-deb", &["-x", &deb, &text(&root)])?;
            }
            self.call(root.join("usr/bin/rackpool"), &["--version"])?;
            self.check_c(&root.join("usr"), &clean)?;
        }
        Ok(())
    }

    /// Compiles a program with what pkg-config says alone, and runs it.
    fn check_c(&self, prefix: &Path, clean: &Path) -> Result<(), String> {
        let script = "PKG_CONFIG_PATH=\"$0/lib/pkgconfig\" && export PKG_CONFIG_PATH && \
                      cc -std=c11 -Wall -Wextra -Werror -pedantic -o \"$1\" \"$2\" \
                      $(pkg-config --cflags --libs rackpool) && \
                      LD_LIBRARY_PATH=\"$0/lib\" \"$1\"";
        let source = self.context.root.join("bindings/c/tests/suite/c/all.c");
        let words = [&text(prefix), &text(&clean.join("all")), &text(&source)];
        self.call("sh", &["-c", script, words[0], words[1], words[2]])
    }
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

fn said(path: &Path, error: &std::io::Error) -> String {
    format!("{}: {error}", path.display())
}

fn make_dir(path: &Path) -> Result<(), String> {
    fs::create_dir_all(path).map_err(|e| said(path, &e))
}

fn make_parent(path: &Path) -> Result<(), String> {
    path.parent().map_or(Ok(()), make_dir)
}

fn clear(path: &Path) -> Result<(), String> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(said(path, &error)),
        _ => make_dir(path),
    }
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|e| said(path, &e))
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    make_parent(path)?;
    fs::write(path, text).map_err(|e| said(path, &e))
}

fn copy(from: &Path, to: &Path) -> Result<(), String> {
    make_parent(to)?;
    fs::copy(from, to).map(drop).map_err(|e| said(from, &e))
}

/// A symbolic link, in place of an earlier one.
fn link(to: &str, at: &Path) -> Result<(), String> {
    make_parent(at)?;
    match fs::remove_file(at) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(said(at, &error)),
        _ => {}
    }
    std::os::unix::fs::symlink(to, at).map_err(|e| said(at, &e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_known_by_name_and_all_are_made_without_one() {
        let all = Options::parse(&["--out", "x"]).expect("an output");
        assert_eq!((all.parts.len(), all.check), (PARTS.len(), false));
        let one = Options::parse(&["--out", "x", "wheel", "--check"]).expect("a part");
        assert!(one.check && one.makes("wheel") && !one.makes("c"));
        assert!(Options::parse(&["wheel"]).is_none(), "no output");
        assert!(Options::parse(&["--out", "x", "rpm"]).is_none(), "no such part");
    }
}
