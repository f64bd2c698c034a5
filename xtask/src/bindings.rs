//! The bindings as people install them, under their own languages' tests: the wheel under pytest
//! and mypy, the Go module under go. The C library has its tests among cargo's.

use std::path::Path;

use crate::dist;
use crate::run::{Context, Task};

/// What the tests in Python use.
const PYTHON: &[&str] = &["pytest", "numpy", "fsspec", "mypy", "typing-extensions"];

pub fn run(context: &Context) -> Result<(), String> {
    let out = context.target.join("bindings");
    if out.exists() {
        std::fs::remove_dir_all(&out).map_err(|e| format!("{}: {e}", out.display()))?;
    }
    dist::run(context, &dist::for_tests(&out))?;
    python(context, &out)?;
    go(context, &out)
}

fn python(context: &Context, out: &Path) -> Result<(), String> {
    let place = context.target.join("bindings-python");
    let script = "python3 -m venv --clear \"$0\" && \"$0/bin/pip\" install --quiet \"$@\" \
                  && \"$0/bin/pip\" install --quiet \"$WHEELS\"/rackpool-*.whl";
    let place = place.to_string_lossy();
    let words = [&["-c", script, &*place][..], PYTHON].concat();
    Task::new("sh", &words).env("WHEELS", &out.to_string_lossy()).minutes(10).run(context)?;
    let interpreter = format!("{place}/bin/python");
    // Without the folder of the sources among what is imported.
    let tests = ["-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", "bindings/python/tests"];
    Task::new(&interpreter, &tests).minutes(20).run(context)?;
    let stubs = ["-P", "-m", "mypy.stubtest", "rackpool._core"];
    Task::new(&interpreter, &stubs).minutes(5).run(context)
}

fn go(context: &Context, out: &Path) -> Result<(), String> {
    let script = "cd bindings/go && go vet ./... && go test -count=1 ./...";
    let library = out.join("lib");
    let task = Task::new("sh", &["-c", script]).minutes(10);
    let found_by = library.join("pkgconfig");
    let task = task.env("PKG_CONFIG_PATH", &found_by.to_string_lossy());
    task.env("LD_LIBRARY_PATH", &library.to_string_lossy()).run(context)
}
