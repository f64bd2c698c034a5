//! A master and two rack daemons as real processes, used through the shell of both racks.

use crate::common::{Cluster, Dir, Server, rackpool, run, told, unique};

fn value<'a>(lines: &'a str, key: &str) -> &'a str {
    let found = lines.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    found.unwrap_or_else(|| panic!("no {key} in {lines}"))
}

fn both_racks_see_the_same_memory(fabric: &str) {
    let cluster = Cluster::start(fabric);
    let addr = cluster.ok(0, "alloc 4K");
    assert!(addr.starts_with("0x") && addr.len() == 18, "{addr}");
    assert_eq!(cluster.ok(0, &format!("read {addr} 8")), "0000000000000000", "zero on allocation");
    assert_eq!(cluster.ok(1, &format!("write {addr} text:\"a\\tb é\"")), "ok");
    assert_eq!(cluster.ok(0, &format!("read {addr} 7 text")), "a\\tb é\\x00");
    assert_eq!(cluster.ok(0, &format!("write {addr} hex:0500000000000000")), "ok");
    assert_eq!(cluster.ok(1, &format!("cas {addr} 5 9; cas {addr} 5 1")), "ok\nfailed 9");
    assert_eq!(cluster.ok(0, &format!("add {addr} -1; add {addr} 2")), "9\n8");
    assert_eq!(cluster.ok(1, &format!("read {addr} 8")), "0a00000000000000");

    let here = cluster.ok(0, &format!("explain {addr}"));
    let there = cluster.ok(1, &format!("explain {addr}"));
    assert_eq!((value(&here, "rack"), value(&there, "rack")), ("0", "0"));
    assert_eq!((value(&here, "own_rack"), value(&there, "own_rack")), ("true", "false"));
    assert_eq!(value(&here, "path"), "mapped");

    let pages = cluster.ok(0, "alloc 64K");
    assert_eq!(cluster.ok(0, &format!("write {pages} text:moves")), "ok");
    for rack in ["1", "1", "0", "1"] {
        let moved = cluster.ok(0, &format!("migrate {pages} rack:{rack}"));
        assert_eq!(moved, format!("ok rack {rack}"));
        let now = cluster.ok(1, &format!("explain {pages}; read {pages} 5 text"));
        assert_eq!((value(&now, "rack"), now.lines().last()), (rack, Some("moves")));
    }
    assert_eq!(cluster.ok(0, &format!("free {pages} 64K")), "ok");

    let other = cluster.ok(0, "alloc 64 rack:1");
    assert_eq!(value(&cluster.ok(0, &format!("explain {other}")), "rack"), "1");
    assert_eq!(cluster.ok(1, &format!("free {other} 64; free {addr} 4096")), "ok\nok");
    let stats = cluster.ok(1, "stats --json");
    let stats: serde_json::Value = serde_json::from_str(&stats).unwrap();
    assert_eq!(stats["racks"].as_array().unwrap().len(), 2);
    assert_eq!(stats["racks"][1]["alive"], true);
}

#[test]
fn both_racks_see_the_same_memory_over_tcp() {
    both_racks_see_the_same_memory("tcp");
}

#[test]
fn both_racks_see_the_same_memory_over_shm() {
    both_racks_see_the_same_memory("shm");
}

#[test]
fn objects_go_in_through_one_rack_and_come_out_of_the_other() {
    let cluster = Cluster::start("tcp");
    let dir = Dir::new();
    let (given, got) = (dir.file("given"), dir.file("got"));
    let bytes: Vec<u8> = (0..3_000_000u32).map(|i| (i ^ (i >> 7)) as u8).collect();
    std::fs::write(&given, &bytes).unwrap();
    assert_eq!(cluster.ok(0, &format!("put big file:{given}; put small text:two words")), "ok\nok");
    assert_eq!(cluster.ok(1, "ls"), "big\t3000000\nsmall\t9");
    assert_eq!(cluster.ok(1, "ls s"), "small\t9");
    assert_eq!(cluster.ok(1, &format!("get big file:{got}")), "ok");
    assert!(std::fs::read(&got).unwrap() == bytes, "byte for byte");
    // One object is exactly its bytes; before a further answer comes a line end.
    assert_eq!(cluster.shell(1, "get small").1, "two words");
    assert_eq!(cluster.shell(1, "get small; get small").1, "two words\ntwo words");
    let explained = cluster.ok(1, "explain big");
    assert_eq!((value(&explained, "name"), value(&explained, "bytes")), ("big", "3000000"));
    assert_eq!(value(&explained, "rack"), "0");
    assert_eq!(cluster.ok(1, "put small text:''; del big; ls"), "ok\nok\nsmall\t0");
    for command in ["get big", "del big", "explain big"] {
        let (code, _, err) = cluster.shell(0, command);
        assert_eq!(code, 1);
        assert!(err.starts_with("error not-found "), "{err}");
    }

    let tree = dir.file("tree");
    for index in 0..150usize {
        let below = format!("{tree}/{}/deep", index % 7);
        std::fs::create_dir_all(&below).unwrap();
        // Within a bucket's blob, beside it, and piece by piece.
        let length = match index {
            9 => 1 << 21,
            _ if index % 2 == 1 => 5000,
            _ => 10,
        };
        let part = &bytes[index..index + length];
        std::fs::write(format!("{below}/{index}"), part).unwrap();
    }
    let put = cluster.ok(0, &format!("put -r {tree}"));
    assert!(put.starts_with("ok 150 files ") && put.ends_with(" bytes"), "{put}");
    assert_eq!(
        cluster.ok(1, "ls tree/3/deep/10"),
        "tree/3/deep/10\t10\ntree/3/deep/101\t5000\ntree/3/deep/108\t10"
    );
    let out = dir.file("out");
    assert_eq!(cluster.ok(1, &format!("get -r tree {out}")), put);
    for index in 0..150 {
        let name = format!("{}/deep/{index}", index % 7);
        let [given, got] = [&tree, &out].map(|root| std::fs::read(format!("{root}/{name}")));
        assert!(given.unwrap() == got.unwrap(), "{name}");
    }
    cluster.ok(0, "put ../escaped text:no");
    let (code, _, err) = cluster.shell(1, &format!("get -r '' {out}"));
    assert!(code == 1 && err.starts_with("error denied "), "{err}");
    // What does not fit is refused before it is read: the file has no bytes on the disk.
    let huge = std::fs::File::create(dir.file("huge")).unwrap();
    huge.set_len(32 << 30).unwrap();
    let (code, _, err) = cluster.shell(0, &format!("put huge file:{}", dir.file("huge")));
    assert!(code == 1 && err.starts_with("error full "), "{err}");
}

#[test]
fn the_first_failure_stops_a_script_with_its_code() {
    let cluster = Cluster::start("tcp");
    for (command, code) in [
        ("read 0x7000000000 8", "not-mapped"),
        ("alloc 0", "bad-size"),
        ("alloc 64 rack:9", "no-such-rack"),
        ("alloc 60T", "bad-size"),
        ("alloc 80M local", "full"),
        ("get nothing", "not-found"),
        ("put a file:/nowhere", "io"),
    ] {
        let (exit, out, err) = cluster.shell(0, &format!("put a text:1; {command}; put a text:2"));
        assert_eq!((exit, out.as_str()), (1, "ok\n"), "{command}: {err}");
        assert!(err.starts_with(&format!("error {code} ")), "{command}: {err}");
        assert_eq!(cluster.ok(1, "get a"), "1", "{command}");
    }
    let addr = cluster.ok(0, "alloc 64");
    let (_, _, err) = cluster.shell(1, &format!("cas {}1 0 0", &addr[..17]));
    assert!(err.starts_with("error misaligned "), "{err}");
    let (_, _, err) = cluster.shell(0, &format!("free {addr} 1M"));
    assert!(err.starts_with("error bad-free "), "{err}");

    let script = "put b 'text:two\nlines' # why not\nget b\n\nfly\nls\n";
    let (code, out, err) = cluster.script(1, script);
    assert_eq!((code, out.as_str()), (2, "ok\ntwo\nlines"), "{err}");
    assert!(err.contains("there is no command `fly`"), "{err}");
}

#[test]
fn words_on_the_command_line_are_one_command() {
    let cluster = Cluster::start("tcp");
    let master = cluster.master.addr.as_str();
    let put = run(&["shell", "--master", master, "put", "a;b", "text:it's"]);
    assert_eq!(told(&put), (0, "ok\n".into(), String::new()));
    let get = run(&["shell", "--rack", "1", "--master", master, "get", "a;b"]);
    assert_eq!(told(&get).1, "it's");
    let mut environment = crate::common::rackpool();
    environment.env("RACKPOOL_MASTER", master).env("RACKPOOL_RACK", "1").args(["shell", "ls"]);
    assert_eq!(told(&environment.output().unwrap()).1, "a;b\t4\n");
}

#[test]
fn a_stopped_daemon_keeps_its_region_and_the_next_one_goes_on_with_it() {
    let mut cluster = Cluster::start("tcp");
    assert_eq!(cluster.ok(0, "put kept text:here"), "ok");
    assert_eq!(cluster.daemons[0].terminate(), Some(0));
    let region = cluster.regions[0].to_str().unwrap().to_owned();
    let (code, out, err) = told(&run(&["inspect", &region]));
    assert_eq!((code, err.as_str()), (0, ""));
    assert_eq!((value(&out, "rack"), value(&out, "epoch")), ("0", "1"));
    for name in ["frames_home", "kinds.table.allocations"] {
        assert!(value(&out, name).parse::<u64>().unwrap() > 0, "{out}");
    }
    cluster.daemons[0] = cluster.daemon(0, "tcp");
    assert_eq!(cluster.ok(1, "get kept"), "here");
    assert_eq!(cluster.master.terminate(), Some(0));
}

#[test]
fn an_ephemeral_pool_leaves_nothing() {
    let dir = Dir::new();
    let mut command = rackpool();
    command.args(["master", "--listen", "127.0.0.1:0", "--ephemeral"]).env("TMPDIR", &dir.0);
    let mut master = Server::by(command.stderr(std::process::Stdio::null()));
    let is_empty = || std::fs::read_dir(&dir.0).unwrap().next().is_none();
    assert!(!is_empty(), "its state is there");
    let region = format!("/dev/shm/{}", unique("ephemeral"));
    let memory = format!("shm:{region}?size=16M");
    let mut daemon = Server::start(&[
        "daemon",
        "--rack",
        "0",
        "--master",
        &master.addr,
        "--memory",
        &memory,
        "--ephemeral",
    ]);
    assert!(std::path::Path::new(&region).exists());
    assert_eq!(daemon.terminate(), Some(0));
    assert_eq!(master.terminate(), Some(0));
    let name = region.strip_prefix("/dev/shm/").unwrap();
    let left = std::fs::read_dir("/dev/shm").unwrap().flatten();
    let left: Vec<_> = left
        .map(|entry| entry.file_name().into_string().unwrap_or_default())
        .filter(|found| found.starts_with(name))
        .collect();
    assert_eq!(left, Vec::<String>::new());
    assert!(is_empty());
}
