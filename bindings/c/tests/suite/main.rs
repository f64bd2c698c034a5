//! The library as programs see it: staged as it is installed, found by pkg-config, and used by
//! programs in C and C++ over pools in their own processes.

mod abi;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const WARNINGS: &[&str] = &["-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pedantic"];
const C11: &[&str] = &["-std=c11"];
const CPP17: &[&str] = &["-std=c++17", "-x", "c++"];
const SANITIZERS: &[&str] = &["-fsanitize=address,undefined", "-fno-sanitize-recover=all"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// A file that cargo built with the tests: beside them, or above.
fn built(name: &str) -> PathBuf {
    let program = std::env::current_exe().unwrap();
    let mut folders = program.ancestors().skip(1).take(2).map(|folder| folder.join(name));
    folders.find(|path| path.exists()).unwrap_or_else(|| panic!("{name} is built with its tests"))
}

fn said(output: &Output) -> String {
    [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes)).concat()
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}\n{}", output.status, said(&output));
    said(&output)
}

/// A prefix with header, libraries and file for pkg-config, as they are installed.
struct Stage(PathBuf);

impl Stage {
    fn new(name: &str) -> Stage {
        let name = format!("rackpool-c-{name}-{}", std::process::id());
        let stage = Stage(std::env::temp_dir().join(name));
        let (include, library) = (stage.0.join("include"), stage.0.join("lib"));
        std::fs::create_dir_all(library.join("pkgconfig")).unwrap();
        std::fs::create_dir_all(&include).unwrap();
        for header in ["rackpool.h", "rackpool.hpp"] {
            std::fs::copy(root().join("include").join(header), include.join(header)).unwrap();
        }
        for name in ["librackpool.so", "librackpool.so.0"] {
            std::os::unix::fs::symlink(built("librackpool_c.so"), library.join(name)).unwrap();
        }
        let template = std::fs::read_to_string(root().join("rackpool.pc.in")).unwrap();
        let file = template.replace("@VERSION@", env!("CARGO_PKG_VERSION"));
        std::fs::write(library.join("pkgconfig/rackpool.pc"), file).unwrap();
        stage
    }

    /// What a compiler is told of the library, by pkg-config alone.
    fn flags(&self) -> Vec<String> {
        let mut command = Command::new("pkg-config");
        command.env("PKG_CONFIG_PATH", self.0.join("lib/pkgconfig"));
        let flags = run(command.args(["--cflags", "--libs", "rackpool"]));
        flags.split_whitespace().map(str::to_owned).collect()
    }

    /// Compiles a program and runs it.
    fn run(&self, source: &Path, header: Option<&Path>, flags: &[&[&str]]) -> String {
        let stem = source.file_stem().unwrap().to_string_lossy();
        let program = self.0.join(format!("{stem}-{}", flags.concat().concat().len()));
        let mut compile = Command::new("cc");
        compile.args(WARNINGS).args(flags.concat());
        if let Some(folder) = header {
            compile.arg("-I").arg(folder);
        }
        compile.arg("-I").arg(root().join("tests/suite/c")).arg(source);
        if source.extension().is_some_and(|end| end == "cpp") {
            compile.args(["-x", "none", "-lstdc++"]);
        }
        run(compile.arg("-o").arg(&program).args(self.flags()).arg("-lpthread"));
        let mut command = Command::new(&program);
        command.env("LD_LIBRARY_PATH", self.0.join("lib"));
        // What the library keeps until the process ends is no leak of the program.
        command.env("ASAN_OPTIONS", "detect_leaks=0");
        run(&mut command)
    }

    fn passes(&self, source: &str, flags: &[&[&str]]) {
        let path = root().join("tests/suite/c").join(source);
        assert_eq!(self.run(&path, None, flags), "all done\n", "{source}");
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn every_function_does_what_the_header_says() {
    let stage = Stage::new("all");
    stage.passes("all.c", &[C11]);
    stage.passes("all.c", &[C11, SANITIZERS]);
}

#[test]
fn every_status_of_the_header_is_provoked() {
    Stage::new("statuses").passes("statuses.c", &[C11]);
}

#[test]
fn structures_of_older_and_newer_headers_are_read_as_far_as_they_go() {
    Stage::new("sizes").passes("sizes.c", &[C11]);
}

#[test]
fn a_program_in_cpp_uses_the_wrapper_with_exceptions_and_without() {
    let stage = Stage::new("cpp");
    stage.passes("wrapper.cpp", &[CPP17]);
    stage.passes("wrapper.cpp", &[CPP17, &["-DRACKPOOL_NO_EXCEPTIONS", "-fno-exceptions"]]);
}

#[test]
fn a_program_of_the_first_header_runs_with_this_library() {
    let (stage, first) = (Stage::new("first"), root().join("tests/abi/0"));
    let source = root().join("tests/suite/c/all.c");
    assert_eq!(stage.run(&source, Some(&first), &[C11]), "all done\n");
}

#[test]
fn the_example_that_people_copy_runs() {
    let source = root().join("../../examples/c/shared_table.c");
    let told = Stage::new("example").run(&source, None, &[C11]);
    assert_eq!(told, "the sky is blue\n");
}
