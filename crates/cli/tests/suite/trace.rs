//! `rackpool trace` as a person uses it: made, recorded, converted, counted.
#![cfg(feature = "lab")]

use crate::common::{Dir, rackpool, run, told};

/// Runs it and gives what it says; it must not fail.
fn said(words: &[&str]) -> String {
    let (code, out, err) = told(&run(words));
    assert_eq!((code, err.as_str()), (0, ""), "{words:?}: {out}");
    out
}

fn json(words: &[&str]) -> serde_json::Value {
    serde_json::from_str(&said(words)).expect("JSON")
}

#[test]
fn a_kernel_is_traced_counted_and_converted_with_nothing_lost() {
    let directory = Dir::new();
    for kernel in ["lbm", "fdtd", "fft", "fmm"] {
        let (parquet, csv) = (directory.file("a.parquet"), directory.file("a.csv"));
        let caches = "cores=4,l1=4K,l2=16K,l3=64K";
        let size = ["--footprint", "256K", "--threads", "4", "--filter", caches];
        let words = ["trace", "kernel", kernel, "--out", &parquet];
        let out = said(&[&words[..], &size[..]].concat());
        let records: u64 = out.split(' ').next().unwrap().parse().expect("a number of records");
        let stat = json(&["trace", "stat", &parquet, "--json"]);
        assert_eq!(stat["records"], records, "{kernel}");
        assert_eq!(stat["threads"], 4);
        assert!(stat["writes"].as_u64() > Some(0) && stat["span_ns"].as_u64() > Some(0));
        said(&["trace", "convert", &parquet, &csv]);
        assert_eq!(json(&["trace", "stat", &csv, "--json"]), stat, "{kernel}");
        let back = directory.file("b.parquet");
        said(&["trace", "convert", &csv, &back, "--limit", "100"]);
        assert_eq!(json(&["trace", "stat", &back, "--json"])["records"], 100);
        // The same line makes the same file.
        let bytes = std::fs::read(&parquet).unwrap();
        said(&[&words[..], &size[..], &["--workers", "1"]].concat());
        assert!(std::fs::read(&parquet).unwrap() == bytes, "{kernel}");
    }
}

#[test]
fn a_program_is_recorded_through_a_pipe() {
    let directory = Dir::new();
    let file = directory.file("true.parquet");
    let out = said(&["trace", "run", "--out", &file, "--", "/bin/true"]);
    assert!(out.contains("exit status: 0"), "{out}");
    let stat = json(&["trace", "stat", &file, "--json"]);
    let records = stat["records"].as_u64().unwrap();
    assert!(records > 10_000 && stat["reads"].as_u64() > stat["writes"].as_u64(), "{stat}");
    assert!(stat["span_ns"].as_u64() > Some(1000), "{stat}");
    let out = said(&["trace", "run", "--out", &file, "--limit", "5000", "--", "/bin/sleep", "600"]);
    assert!(out.contains("5000 records") && out.contains("stopped at the limit"), "{out}");
    let out = said(&["trace", "run", "--out", &file, "--filter", "dracksim", "--", "/bin/true"]);
    let misses = json(&["trace", "stat", &file, "--json"])["records"].as_u64().unwrap();
    assert!(misses > 100 && misses < records / 4, "{out}");
}

#[test]
fn without_valgrind_the_way_out_is_told() {
    let directory = Dir::new();
    let file = directory.file("a.parquet");
    let mut command = rackpool();
    command.args(["trace", "run", "--out", &file, "--", "/bin/true"]).env("PATH", "/nowhere");
    let (code, out, err) = told(&command.output().unwrap());
    assert_eq!((code, out.as_str()), (1, ""));
    assert!(err.starts_with("error missing valgrind is not installed; install it"), "{err}");
    assert!(err.contains("rackpool trace kernel"), "{err}");
}

#[test]
fn what_is_wrong_is_told_and_no_file_is_left() {
    let directory = Dir::new();
    let (bad, out) = (directory.file("bad.trace"), directory.file("out.parquet"));
    std::fs::write(&bad, "0x10 READ 5\n0x10 READ 4\n").unwrap();
    let (code, _, err) = told(&run(&["trace", "convert", &bad, &out]));
    assert_eq!(code, 1);
    let expected = format!("error trace {bad}, record 2: unsorted: time 4 comes after 5");
    assert!(err.starts_with(&expected), "{err}");
    std::fs::write(&bad, "LD 1\n").unwrap();
    let (code, _, err) = told(&run(&["trace", "convert", &bad, &out]));
    assert_eq!(code, 2);
    assert!(err.contains("say how they are injected"), "{err}");
    let (code, _, err) = told(&run(&["trace", "run", "--out", &out, "--", "/no/such/program"]));
    assert_eq!(code, 1, "{err}");
    assert!(err.contains("nothing was recorded"), "{err}");
    let left: Vec<_> = std::fs::read_dir(&directory.0).unwrap().collect();
    assert_eq!(left.len(), 1, "{left:?}");
}

#[test]
fn a_pipe_gives_all_its_bytes_whether_its_format_is_said_or_guessed() {
    let directory = Dir::new();
    let (pipe, out) = (directory.file("pipe"), directory.file("out.csv"));
    let made = std::process::Command::new("mkfifo").arg(&pipe).status().unwrap();
    assert!(made.success());
    for (text, words) in [
        ("0x1000 READ 5\n0x2000 WRITE 9\n", vec![]),
        ("0x1000 READ 5\n0x2000 WRITE 9\n", vec!["--from", "dramsim3"]),
        ("t_ns,addr,rw\n4,0x1000,R\n7,0x2000,W\n", vec![]),
        ("LD 0x1000\nST 0x2000", vec!["--inject", "gap:3ns"]),
        ("I  1,3\n L 1000,64\nI  4,3\n S 2000,64\n", vec!["--inject", "cpi:1@1GHz"]),
    ] {
        let to = pipe.clone();
        let writer = std::thread::spawn(move || std::fs::write(to, text).unwrap());
        said(&[&["trace", "convert", &pipe, &out], &words[..]].concat());
        writer.join().unwrap();
        let csv = std::fs::read_to_string(&out).unwrap();
        let rows: Vec<&str> = csv.lines().filter(|line| line.contains("0x")).collect();
        assert_eq!(rows.len(), 2, "{text}: {csv}");
        assert!(rows[0].contains(",0x1000,R,64") && rows[1].contains(",0x2000,W,64"), "{csv}");
    }
    let to = pipe.clone();
    let writer = std::thread::spawn(move || std::fs::write(to, "PAR1\0\0").unwrap());
    let (code, _, err) = told(&run(&["trace", "convert", &pipe, &out]));
    writer.join().unwrap();
    assert_eq!(code, 1);
    assert!(err.contains("it is read from a file"), "{err}");
}

#[test]
fn files_as_the_peers_have_them_are_read_by_name_and_content() {
    let directory = Dir::new();
    let (cpi, gap) = (["--inject", "cpi:1@1GHz"], ["--inject", "gap:10ns"]);
    for (name, text, words, rows) in [
        ("bom.csv", "\u{feff}t_ns,addr,rw\n1,16,R\n", &[] as &[_], &["1,0x10,R"] as &[_]),
        (
            "other-words.trc",
            "0x1000 IFETCH 5\n0x2000 P_FETCH 6\n0x3000 BOFF 7\n",
            &[],
            // Cycles of 1.2 GHz.
            &["4,0x1000,R", "5,0x2000,R", "5,0x3000,W"],
        ),
        ("old.trace", "0x1000 R\n0x2000 W\n", &gap, &["0,0x1000,R", "10,0x2000,W"]),
        ("cut.trace", "LD 0x1000\nST 0x2000", &gap, &["0,0x1000,R", "10,0x2000,W"]),
        ("a.lackey", "I  04000000,3\nSB 04000003\n L 10,4\n", &cpi, &["1,0x10,R"]),
        ("b.lackey", "==1== Lackey\nI  04000000,3\nhello\n L 10,4\n", &cpi, &["1,0x10,R"]),
    ] {
        let (from, to) = (directory.file(name), directory.file("out.csv"));
        std::fs::write(&from, text).unwrap();
        said(&[&["trace", "convert", &from, &to], words].concat());
        let csv = std::fs::read_to_string(&to).unwrap();
        let mut found = Vec::new();
        for line in csv.lines().filter(|line| line.contains("0x")) {
            let cells: Vec<&str> = line.split(',').collect();
            found.push([cells[0], cells[4], cells[5]].join(","));
        }
        assert_eq!(found, rows, "{name}");
    }
}

#[test]
fn times_of_instructions_that_no_line_names_are_refused_and_leave_no_file() {
    let directory = Dir::new();
    let (data, out) = (directory.file("data.lackey"), directory.file("out.csv"));
    std::fs::write(&data, " L 10,4\n S 20,4\n L 30,4\n").unwrap();
    let cpi = ["trace", "convert", &data, &out, "--inject", "cpi:1@3.6GHz"];
    for limit in [&[][..], &["--limit", "1"]] {
        let (code, _, err) = told(&run(&[&cpi[..], limit].concat()));
        assert_eq!(code, 2);
        assert!(err.contains("record 1: no instructions are counted here"), "{err}");
    }
    assert_eq!(std::fs::read_dir(&directory.0).unwrap().count(), 1);
    said(&["trace", "convert", &data, &out, "--inject", "gap:10ns"]);
    assert_eq!(json(&["trace", "stat", &data, "--json"])["records"], 3);
}

#[test]
fn other_text_is_told_and_a_name_that_says_no_type_is_refused_before_the_work() {
    let directory = Dir::new();
    let (data, out) = (directory.file("a.lackey"), directory.file("out.csv.gz"));
    std::fs::write(&data, "==1== Lackey\nI  04000000,3\nhello\n L 10,4\n").unwrap();
    let words = ["trace", "convert", &data, &out, "--inject", "cpi:1@1GHz"];
    assert!(said(&words).starts_with("1 records, 1 lines of other text left out: "));
    assert_eq!(json(&["trace", "stat", &data, "--json"])["other_lines"], 1);
    assert_eq!(json(&["trace", "stat", &out, "--json"])["records"], 1);
    for name in ["x.txt", "x", "x.parquet.gz"] {
        let to = directory.file(name);
        let kernel = ["trace", "kernel", "lbm", "--footprint", "64K", "--out", &to];
        let record = ["trace", "run", "--out", &to, "--", "/bin/true"];
        for words in [&["trace", "convert", "/no/such/file", &to][..], &kernel, &record] {
            let (code, _, err) = told(&run(words));
            assert_eq!(code, 2, "{words:?}");
            assert!(err.contains("ends in one of .parquet, .csv, .csv.gz"), "{err}");
        }
    }
}

#[test]
fn a_made_trace_of_virtual_machines_has_both_tables() {
    let directory = Dir::new();
    let out = said(&["trace", "packing", "much", "--machines", "5", "--out", &directory.file("m")]);
    assert!(out.contains("virtual machines of 16 types"), "{out}");
    let table = |name: &str| std::fs::read_to_string(directory.0.join("m").join(name)).unwrap();
    assert!(table("vm.csv").starts_with("vmId,tenantId,vmTypeId,priority,starttime,endtime\n"));
    assert!(table("vmType.csv").starts_with("vmTypeId,machineId,core,memory,hdd,ssd,nic\n"));
    assert!(table("vm.csv").contains(",-7157,"));
}
