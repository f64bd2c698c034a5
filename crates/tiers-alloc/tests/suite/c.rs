//! The C interface: a program that is compiled with the header, and programs that are preloaded.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The exit code of `driver.c` where memory policies are refused.
const NOT_TESTED: i32 = 77;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Where cargo put the shared library: beside the tests, or above them.
fn library_dir() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    let mut folders = program.ancestors().skip(1).take(2);
    let holds = |folder: &&Path| folder.join("librackpool_tiers_alloc.so").exists();
    folders.find(holds).expect("the library is built with its tests").to_owned()
}

pub struct Dir(pub PathBuf);

impl Dir {
    pub fn new(name: &str) -> Dir {
        let name = format!("rackpool-tiers-alloc-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        Dir(path)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn compile(source: &str, out: &Path, flags: &[&str]) {
    let library = library_dir();
    let mut command = Command::new("cc");
    command.args(["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror"]).args(flags);
    command.arg("-I").arg(root().join("include")).arg(root().join(source)).arg("-o").arg(out);
    command.arg("-L").arg(&library).args(["-lrackpool_tiers_alloc", "-lpthread"]);
    command.arg(format!("-Wl,-rpath,{}", library.display()));
    let built = command.output().unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
}

/// The library that puts an unchanged program on an arena.
pub fn preload(dir: &Dir) -> PathBuf {
    let library = dir.0.join("malloc.so");
    compile("preload/malloc.c", &library, &["-shared", "-fPIC", "-fno-builtin"]);
    library
}

pub fn text(output: &Output) -> String {
    let streams = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    streams.concat()
}

pub fn may_place() -> bool {
    let arena = rackpool_tiers_alloc::Arena::new("may-place", "preferred:0".parse().unwrap());
    if let Err(error) = &arena {
        println!("NOT TESTED: {error}");
    }
    arena.is_ok()
}

#[test]
fn a_c_program_uses_all_functions_of_the_header() {
    let dir = Dir::new("driver");
    let driver = dir.0.join("driver");
    compile("tests/suite/c/driver.c", &driver, &[]);
    let output = Command::new(&driver).output().unwrap();
    if output.status.code() == Some(NOT_TESTED) {
        println!("NOT TESTED: {}", text(&output));
        return;
    }
    assert!(output.status.success(), "{}", text(&output));
}

#[test]
fn unchanged_programs_run_on_an_arena_or_say_why_not() {
    let dir = Dir::new("preload");
    let preload = preload(&dir);
    let with = |policy: &str, program: &str, words: &[&str]| {
        let mut command = Command::new(program);
        command.args(words).env("LD_PRELOAD", &preload).env("RACKPOOL_TIERS_POLICY", policy);
        command.output().ok()
    };
    let absent = with("bind:1023", "cat", &["/dev/null"]).unwrap();
    assert!(!absent.status.success());
    if !may_place() {
        return;
    }
    assert!(text(&absent).contains("no arena for `bind:1023`: node 1023"), "{}", text(&absent));
    let script = "awk 'BEGIN { for (i = 0; i < 100000; i++) a[i] = i \"x\"; print length(a) }'";
    let output = with("size:256;preferred:0;bind:0", "sh", &["-c", script]).unwrap();
    assert_eq!(text(&output), "100000\n");
    let script = "\
import threading
def work():
    kept = [bytearray(n) for n in (10, 5000, 300_000, 50_000_000)]
    kept += [str(n) * 3 for n in range(100_000)]
    assert all(len(text) >= 3 for text in kept)
threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print('done', sum('bind=static:0' in line for line in open('/proc/self/numa_maps')) > 0)";
    if let Some(output) = with("bind:0", "python3", &["-c", script]) {
        assert_eq!(text(&output), "done True\n");
    }
}

#[test]
fn the_file_for_pkg_config_has_the_version_of_the_library() {
    let file = std::fs::read_to_string(root().join("rackpool_tiers.pc")).unwrap();
    let version = format!("Version: {}\n", env!("CARGO_PKG_VERSION"));
    assert!(file.contains(&version), "{file}");
}
