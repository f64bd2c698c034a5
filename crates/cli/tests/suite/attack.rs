//! Attacks that hurt an earlier release, each a script in `attack/`: its messages are made by hand,
//! not by our code, and it runs against the real program.

use crate::common::{is_root, rackpool};
use rackpool_core::wire::WIRE_VERSION;
use std::process::Command;

/// Debian's interpreter, which other users may run as well.
const PYTHON: &str = "/usr/bin/python3";

fn is_withstood(script: &str) {
    if !std::path::Path::new(PYTHON).exists() {
        assert_ne!(std::env::var("CI").as_deref(), Ok("true"), "this test needs {PYTHON}");
        println!("NOT TESTED: needs {PYTHON}");
        return;
    }
    let path = format!("{}/tests/attack/{script}", env!("CARGO_MANIFEST_DIR"));
    // -B: nothing is written beside the scripts.
    let mut attack = Command::new(PYTHON);
    attack.args(["-B", &path]).env("RACKPOOL_BIN", rackpool().get_program());
    attack.env("RACKPOOL_WIRE_VERSION", WIRE_VERSION.to_string());
    let output = attack.output().expect("python3 starts");
    assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn silent_slow_and_strange_readers_of_counters_keep_no_other_waiting() {
    is_withstood("counters_http.py");
}

#[test]
fn a_client_that_closes_half_of_its_connection_costs_no_processor() {
    is_withstood("half_close.py");
}

#[test]
fn thousands_of_idle_and_half_spoken_connections_keep_nobody_out() {
    is_withstood("master_hold.py");
}

#[test]
fn puts_that_end_in_the_midst_give_their_memory_back() {
    is_withstood("put_kill.py");
}

#[test]
fn a_client_is_given_memory_alone() {
    is_withstood("wake_block.py");
}

#[test]
fn one_wrong_word_of_a_warm_file_changes_no_item() {
    is_withstood("warm_min.py");
}

// As another user.

#[test]
fn a_master_keeps_no_state_in_a_directory_that_another_user_placed() {
    if is_root() {
        is_withstood("ephemeral.py");
    }
}

#[test]
fn silent_connections_of_another_user_keep_nobody_from_joining() {
    if is_root() {
        is_withstood("pending.py");
    }
}

#[test]
fn a_squatted_name_keeps_no_daemon_away_and_memory_that_is_cut_is_told() {
    if is_root() {
        is_withstood("squat.py");
    }
}

// On a disk of its own.

#[test]
fn a_master_whose_state_has_no_room_answers_reads_and_comes_back() {
    if is_root() {
        is_withstood("state_full.py");
    }
}

#[test]
fn servers_whose_log_has_no_room_go_on() {
    if is_root() {
        is_withstood("stderr_disk_full.py");
    }
}
