//! Files that commands write: through devices, pipes and links, whole or as they were, refused
//! before the work; and what happens when no process reads the answers.
#![cfg(feature = "lab")]

use crate::common::{Cluster, Dir, WITHIN, rackpool, run, told};
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::process::{Output, Stdio};
use std::time::Instant;

/// A run that takes no time, with what else is asked of it, in a directory.
fn quick(dir: &Dir, words: &[&str]) -> Output {
    let sim = ["sim", "run", "--seeds", "1", "--operations", "20", "--threads", "1"];
    rackpool().current_dir(&dir.0).args(sim).args(words).output().unwrap()
}

fn is_report(bytes: &[u8]) -> bool {
    serde_json::from_slice::<serde_json::Value>(bytes).is_ok_and(|value| value["seeds"] == 1)
}

#[test]
fn links_devices_and_pipes_stay_and_files_keep_their_mode() {
    let dir = Dir::new();
    let file = |name: &str| dir.file(name);
    fs::create_dir(file("real")).unwrap();
    fs::write(file("real/report"), "old").unwrap();
    fs::set_permissions(file("real/report"), fs::Permissions::from_mode(0o604)).unwrap();
    symlink("real/report", file("link")).unwrap();
    symlink("/dev/null", file("null")).unwrap();
    assert_eq!(told(&quick(&dir, &["--json", &file("link"), "--html", &file("null")])).0, 0);
    assert!(is_report(&fs::read(file("real/report")).unwrap()));
    assert_eq!(fs::metadata(file("real/report")).unwrap().mode() & 0o777, 0o604);
    assert!(fs::symlink_metadata(file("link")).unwrap().is_symlink());
    assert!(fs::metadata("/dev/null").unwrap().file_type().is_char_device());
    let pipe = file("pipe");
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, mode).unwrap();
    let reader = std::thread::spawn({
        let pipe = pipe.clone();
        move || fs::read(pipe).unwrap()
    });
    assert_eq!(told(&quick(&dir, &["--json", &pipe])).0, 0);
    assert!(is_report(&reader.join().unwrap()));
    assert!(fs::metadata(&pipe).unwrap().file_type().is_fifo());
    assert_eq!(fs::read_dir(&dir.0).unwrap().count(), 4, "nothing else was made");
}

#[test]
fn a_dash_and_the_name_of_standard_output_are_standard_output() {
    let dir = Dir::new();
    for name in ["-", "/dev/stdout"] {
        let output = quick(&dir, &["--json", name]);
        assert!(output.status.success(), "{name}");
        let (_, out, err) = told(&output);
        assert!(is_report(&output.stdout), "{name}: {out}");
        assert!(err.contains("1 seeds, 1 to 1"), "{name}: {err}");
    }
    // A shell's file behind standard output is written behind what is there.
    let log = dir.file("log");
    fs::write(&log, "head\n").unwrap();
    let file = fs::OpenOptions::new().append(true).open(&log).unwrap();
    let words = ["sim", "run", "--seeds", "1", "--operations", "20", "--json", "/dev/stdout"];
    assert!(rackpool().args(words).stdout(file).status().unwrap().success());
    let text = fs::read_to_string(&log).unwrap();
    assert!(text.starts_with("head\n{") && is_report(&text.as_bytes()[5..]), "{text}");
    let (csv, kernel) = (dir.file("a.csv"), ["trace", "kernel", "lbm", "--footprint"]);
    let small = ["64K", "--threads", "2", "--limit", "5000", "--out"];
    let (code, _, err) = told(&run(&[&kernel[..], &small, &[&csv]].concat()));
    assert_eq!(code, 0, "{err}");
    let through = run(&[&kernel[..], &small, &["-"]].concat());
    assert!(through.status.success() && through.stdout == fs::read(&csv).unwrap());
    assert_eq!(fs::read_dir(&dir.0).unwrap().count(), 2, "no file is called -");
}

#[test]
fn an_output_that_cannot_be_written_is_said_before_the_work() {
    let dir = Dir::new();
    let plan = dir.file("plan.toml");
    assert_eq!(told(&run(&["plan", "init", &plan])).0, 0);
    let (no, below) = ("/nowhere/report", "/dev/null/report");
    let no_trace = "/nowhere/report.csv";
    for words in [
        &["sim", "run", "--seeds", "1000000000", "--json", no] as &[&str],
        &["sim", "run", "--seeds", "1000000000", "--html", no],
        &["sim", "run", "--seeds", "1000000000", "--store", below],
        &["sim", "scale", "--json", no],
        &["sim", "rack", "wl-mix", "--accesses", "1000000000", "--json", no],
        &["sim", "rack", "wl-mix", "--accesses", "1000000000", "--checkpoint", below],
        &["bench", "sim", "--json", no],
        &["bench", "local", "--json", no],
        &["demo", "--json", no],
        &["calibrate", "--out", no],
        &["repro", "rcmp", "--out", below],
        &["repro", "racksim", "--out", below],
        &["repro", "hmsdk", "--out", below],
        &["repro", "optane", "--out", below],
        &["plan", &plan, "--out", below],
        &["plan", "init", no],
        &["trace", "kernel", "lbm", "--footprint", "1G", "--out", no_trace],
        &["trace", "packing", "little", "--out", below],
        &["trace", "convert", &plan, no_trace],
        &["trace", "run", "--out", no_trace, "--", "/bin/sleep", "600"],
        &["shell", "--master", "127.0.0.1:1", "-c", "get a file:/nowhere/report"],
        &["shell", "--master", "127.0.0.1:1", "-c", "read 0x200000 8 file:/dev/null/report"],
    ] {
        let start = Instant::now();
        let output = rackpool().current_dir(&dir.0).args(words).output().unwrap();
        let (code, out, err) = told(&output);
        assert_eq!((code, out.as_str()), (1, ""), "{words:?}: {err}");
        assert!(err.starts_with("error io ") && err.contains("report"), "{words:?}: {err}");
        assert!(start.elapsed() < WITHIN / 6, "{words:?} took {:?}", start.elapsed());
    }
    let (code, _, err) = told(&run(&["plan", &plan, "--out", "-"]));
    assert_eq!(code, 2, "{err}");
    let names: Vec<_> = fs::read_dir(&dir.0).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names, ["plan.toml"], "nothing was made on the way to a refusal");
}

#[test]
fn what_fails_in_the_middle_leaves_the_file_that_was_there() {
    let dir = Dir::new();
    let (trace, kept) = (dir.file("a.csv"), dir.file("kept.parquet"));
    fs::write(&trace, "t_ns,node,pid,tid,addr,rw,size\n1,0,0,0,0x40,R,64\n2,0,0,0,nonsense,R,64\n")
        .unwrap();
    fs::write(&kept, "kept").unwrap();
    let (code, _, err) = told(&run(&["trace", "convert", &trace, &kept]));
    assert_eq!(code, 1, "{err}");
    assert_eq!(fs::read(&kept).unwrap(), b"kept");
    assert_eq!(fs::read_dir(&dir.0).unwrap().count(), 2);
    let (code, _, err) = told(&quick(&dir, &["--json", "/dev/full"]));
    assert!(code == 1 && err.starts_with("error io /dev/full: "), "{err}");
}

/// Runs a command with a standard output that lost its reader.
fn unread(words: &[&str]) -> (i32, String) {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let child = rackpool().args(words).stdout(writer).stderr(Stdio::piped()).spawn().unwrap();
    let (code, _, err) = told(&child.wait_with_output().unwrap());
    (code, err)
}

#[test]
fn a_reader_that_goes_ends_a_command_quietly_and_a_full_disk_does_not() {
    let cluster = Cluster::start("tcp");
    let master = cluster.master.addr.as_str();
    cluster.ok(0, "put a text:apple");
    for words in [
        &["help"] as &[&str],
        &["--version"],
        &["sim", "run", "--help"],
        &["doctor"],
        &["racks", "--master", master],
        &["racks", "--master", master, "--json"],
        &["top", "--master", master],
        &["top", "--master", master, "--once", "--interval", "0.1"],
        &["shell", "--master", master, "-c", "ls; stats"],
        &["shell", "--master", master, "-c", "get a"],
        &["shell", "--master", master, "-c", "get a file:-"],
        &["trace", "kernel", "lbm", "--footprint", "64K", "--limit", "5000", "--out", "-"],
        &["sim", "run", "--seeds", "1", "--operations", "20", "--json", "-"],
    ] {
        assert_eq!(unread(words), (0, String::new()), "{words:?}");
        let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let child = rackpool().args(words).stdout(full).stderr(Stdio::piped()).spawn().unwrap();
        let (code, _, err) = told(&child.wait_with_output().unwrap());
        assert_eq!(code, 1, "{words:?}: {err}");
        assert!(err.starts_with("error io ") && err.lines().count() == 1, "{words:?}: {err}");
    }
    // What a command was asked to do is done all the same, and its failure stays one.
    let dir = Dir::new();
    let json = dir.file("a.json");
    let sim = ["sim", "run", "--seeds", "1", "--operations", "20", "--json", &json];
    assert_eq!(unread(&sim), (0, String::new()));
    assert!(is_report(&fs::read(&json).unwrap()));
    // An answer goes where it shall, and through what is there.
    let (link, real) = (dir.file("link"), dir.file("real"));
    symlink("real", &link).unwrap();
    assert_eq!(cluster.ok(1, &format!("get a file:{link}; get a file:-; ls")), "ok\napple\na\t5");
    assert_eq!(fs::read(&real).unwrap(), b"apple");
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
}

#[test]
fn an_error_that_nobody_reads_changes_no_exit_code() {
    for (words, code) in [(&["fly"] as &[&str], 2), (&["inspect", "/nowhere"], 1)] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let status = rackpool().args(words).stderr(writer).status().unwrap();
        assert_eq!(status.code(), Some(code), "{words:?}");
    }
}
