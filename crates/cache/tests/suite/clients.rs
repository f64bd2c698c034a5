//! Client libraries and frameworks as Debian packages them, which must need no change: the scripts
//! in `tests/clients` print what they are answered, and print the same of ours as of the original.
//!
//! Django's own suite is in none of its packages, and its back end of Redis (since 4.0) is newer
//! than Debian's: `django_cache.py` goes through the operations of that suite, over django-redis.

use crate::peers::{self, is_there, ours};
use rackpool_cache::front::Settings;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, Stdio};

#[derive(Clone, Copy)]
enum Original {
    Redis,
    Memcached,
}

/// For which Debian's packages are: others may come before them in `PATH`.
const PYTHON: [&str; 2] = ["/usr/bin/python3", "-c"];
const NODE: [&str; 2] = ["/usr/bin/node", "-e"];
const RUBY: [&str; 2] = ["/usr/bin/ruby", "-e"];

/// A script, and what tells whether the packages that it needs are there.
struct Script<'a> {
    interpreter: [&'a str; 2],
    probe: &'a str,
    name: &'a str,
}

fn script(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clients")).join(name)
}

/// The program, where node finds Debian's packages, and ended after a minute.
fn command(program: &str) -> Command {
    let mut command = Command::new("timeout");
    command.args(["60", program]).env("NODE_PATH", "/usr/share/nodejs").stdin(Stdio::null());
    command.env("PYTHONDONTWRITEBYTECODE", "1");
    command
}

/// Whether this is installed; if not, says so, and fails in CI.
fn is_installed(mut probe: Command, what: &str) -> bool {
    let there = probe.output().is_ok_and(|output| output.status.success());
    if !there {
        eprintln!("\n********  {what} is not installed: this test proves nothing here.\n");
        let ci = std::env::var("CI").is_ok_and(|value| value == "true");
        assert!(!ci, "{what} must be installed in CI");
    }
    there
}

fn said(mut command: Command) -> String {
    let output = command.output().expect("it starts");
    let out = String::from_utf8_lossy(&output.stdout).into_owned();
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {out}\n{err}");
    out
}

/// What the client prints of the original and of ours, each behind an address.
fn of_both(
    original: Original,
    client: impl Fn(SocketAddr) -> Command + Sync,
) -> Option<[String; 2]> {
    let server = ours(Settings { value_bytes_max: 1 << 20, ..Settings::default() });
    let (memcached, resp) = server.addrs();
    let (peer, own) = match original {
        Original::Redis => (peers::redis()?, resp?),
        Original::Memcached => (peers::memcached(2)?, memcached?),
    };
    Some(std::thread::scope(|scope| {
        let theirs = scope.spawn(|| said(client(peer.addr)));
        let own = said(client(own));
        [theirs.join().expect("the original is understood"), own]
    }))
}

/// As [`of_both`], by a script that is also told this word.
fn of_script(original: Original, of: &Script<'_>, word: &str) -> Option<[String; 2]> {
    let [program, flag] = of.interpreter;
    let mut loads = command(program);
    loads.args([flag, of.probe]);
    if !is_installed(loads, &format!("what {program} needs for \"{}\"", of.probe)) {
        return None;
    }
    of_both(original, |addr| {
        let mut client = command(program);
        client.arg(script(of.name)).arg(addr.to_string()).arg(word);
        client
    })
}

fn assert_same(of_both: Option<[String; 2]>) {
    let Some([theirs, own]) = of_both else { return };
    assert!(!theirs.is_empty());
    for (index, (theirs, own)) in theirs.lines().zip(own.lines()).enumerate() {
        assert_eq!(theirs, own, "line {} of the original's and of ours", index + 1);
    }
    assert_eq!(theirs, own);
}

#[test]
fn redis_pys_pipelines_locks_and_scripts_do_the_same() {
    let script = Script { interpreter: PYTHON, probe: "import redis", name: "redis_py.py" };
    assert_same(of_script(Original::Redis, &script, ""));
}

#[test]
fn djangos_cache_over_redis_does_the_same() {
    let probe = "import django_redis";
    let script = Script { interpreter: PYTHON, probe, name: "django_cache.py" };
    assert_same(of_script(Original::Redis, &script, "redis"));
}

#[test]
fn djangos_caches_over_memcached_do_the_same() {
    let probe = "import django, pylibmc, pymemcache";
    let script = Script { interpreter: PYTHON, probe, name: "django_cache.py" };
    assert_same(of_script(Original::Memcached, &script, "pymemcache"));
    assert_same(of_script(Original::Memcached, &script, "pylibmc"));
}

#[test]
fn cachelib_and_flask_caching_do_the_same() {
    let probe = "import cachelib, flask_caching, pylibmc, redis";
    let script = Script { interpreter: PYTHON, probe, name: "cachelib_caches.py" };
    assert_same(of_script(Original::Redis, &script, "redis"));
    assert_same(of_script(Original::Memcached, &script, "memcached"));
}

#[test]
fn limits_and_flask_limiter_do_the_same() {
    let probe = "import flask_limiter, limits, pymemcache, redis";
    let script = Script { interpreter: PYTHON, probe, name: "rate_limits.py" };
    assert_same(of_script(Original::Redis, &script, "redis"));
    assert_same(of_script(Original::Memcached, &script, "memcached"));
}

/// In Redis its results are also published, and those of a chord are kept in a sorted set or a
/// list: it needs PUBLISH, SUBSCRIBE and UNSUBSCRIBE, and ZADD, ZCOUNT and ZRANGE or RPUSH, LLEN
/// and LRANGE, which ours does not offer.
#[test]
fn celerys_results_do_the_same_in_memcached_and_need_publish_in_redis() {
    let probe = "import celery, pylibmc, redis";
    let script = Script { interpreter: PYTHON, probe, name: "celery_results.py" };
    assert_same(of_script(Original::Memcached, &script, "memcached"));
    let Some([theirs, own]) = of_script(Original::Redis, &script, "redis") else { return };
    assert!(theirs.contains("SUCCESS"), "{theirs}");
    assert!(own.contains("unknown command") && own.contains("(PUBLISH "), "{own}");
}

#[test]
fn node_redis_does_the_same() {
    let probe = "require('redis')";
    let script = Script { interpreter: NODE, probe, name: "node_redis.js" };
    assert_same(of_script(Original::Redis, &script, ""));
}

#[test]
fn dalli_and_redis_rb_do_the_same() {
    let dalli = Script { interpreter: RUBY, probe: "require 'dalli'", name: "dalli.rb" };
    let redis_rb = Script { interpreter: RUBY, probe: "require 'redis'", name: "redis_rb.rb" };
    assert_same(of_script(Original::Memcached, &dalli, ""));
    assert_same(of_script(Original::Redis, &redis_rb, ""));
}

#[test]
#[ignore = "compiles Go's library: cargo xtask soak clients"]
fn go_redis_and_gomemcache_do_the_same() {
    if !is_there("go") {
        return;
    }
    for (original, name) in [(Original::Redis, "go_redis"), (Original::Memcached, "gomemcache")] {
        let program = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
        let mut build = Command::new("go");
        build.env("GOPATH", "/usr/share/gocode").env("GO111MODULE", "off");
        build.args(["build", "-o"]).arg(&program).arg(script(&format!("{name}.go")));
        said(build);
        assert_same(of_both(original, |addr| {
            let mut client = command(program.to_str().expect("a path in UTF-8"));
            client.arg(addr.to_string());
            client
        }));
    }
}
