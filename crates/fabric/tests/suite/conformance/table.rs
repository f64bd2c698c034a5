//! Which checks there are, which fabric is excused from which, and the table of both in
//! `docs/fabrics.md`. `RACKPOOL_BLESS=1 cargo test -p rackpool-fabric --test suite` writes
//! it anew.

use std::fmt::Write;

/// A check and the guarantee that it is about.
pub struct Check {
    pub name: &'static str,
    pub guarantee: &'static str,
}

/// A fabric, and what it does not promise.
pub struct Row {
    pub name: &'static str,
    pub lacks: &'static [(&'static str, &'static str)],
}

const fn check(name: &'static str, guarantee: &'static str) -> Check {
    Check { name, guarantee }
}

/// All checks, in the order of the table.
pub const CHECKS: &[Check] = &[
    check(
        "every_size_is_written_and_read_back_unaligned",
        "READ and WRITE of 0 bytes to a whole page, at any offset",
    ),
    check("atomics_answer_the_old_value", "CAS and FAA answer the old value"),
    check(
        "accesses_outside_one_frame_are_refused_and_touch_nothing",
        "what leaves its frame or is misaligned is `BadRange` and touches nothing",
    ),
    check(
        "a_wrong_key_is_refused_and_touches_nothing",
        "a wrong key is `BadKey` and touches nothing",
    ),
    check(
        "what_is_posted_around_a_refused_key_is_executed_exactly_once",
        "a refused key harms nothing that is posted around it",
    ),
    check("pieces_are_gathered_and_scattered_in_order", "local pieces are gathered and scattered"),
    check(
        "messages_and_immediate_values_arrive_in_order_after_their_data",
        "SEND and WRITE_IMM arrive in order, after what was written before them",
    ),
    check("the_applications_messages_are_received", "the target's application can send"),
    check(
        "who_sees_a_flag_sees_the_data_written_before_it",
        "a processor there that sees a WRITE sees those before it",
    ),
    check(
        "completions_come_in_the_order_of_posting",
        "operations of all kinds run and complete in the order of posting",
    ),
    check(
        "unsignalled_work_is_silent_unless_it_fails",
        "unsignalled work completes only if it fails",
    ),
    check(
        "a_full_queue_answers_busy_and_keeps_what_was_posted",
        "a full queue is `Busy` at once and keeps what was posted",
    ),
    check(
        "ten_thousand_operations_in_batches_all_take_effect",
        "10,000 operations in batches all take effect, once",
    ),
    check(
        "a_key_revoked_in_the_midst_of_a_write_lets_no_later_byte_through",
        "after a revocation has completed no byte is written under the key",
    ),
    check("a_key_revoked_in_the_midst_of_a_read_shows_nothing_of_the_next_page", "nor read"),
    check(
        "a_dead_peer_ends_all_work_and_can_be_connected_to_again",
        "the peer's death ends all work, saying what was surely not executed",
    ),
    check(
        "lent_buffers_carry_data_and_are_let_go_even_while_work_is_under_way",
        "a lent buffer is let go whatever is under way",
    ),
];

const ROUTED: &str = "messages of a shared connection are routed; `fabric_shared.rs` has them";
const BUFFERS: &str = "buffers are the simulated process's";

pub const TCP: Row = Row { name: "tcp", lacks: &[] };
pub const ENCRYPTED: Row = Row { name: "tcp, encrypted", lacks: &[] };
pub const SHARED: Row = Row {
    name: "tcp, shared",
    lacks: &[
        ("messages_and_immediate_values_arrive_in_order_after_their_data", ROUTED),
        ("the_applications_messages_are_received", ROUTED),
        ("completions_come_in_the_order_of_posting", ROUTED),
        ("what_is_posted_around_a_refused_key_is_executed_exactly_once", ROUTED),
    ],
};
pub const SHM: Row = Row { name: "shm", lacks: &[] };
pub const SIMULATED: Row = Row {
    name: "simulated",
    lacks: &[("lent_buffers_carry_data_and_are_let_go_even_while_work_is_under_way", BUFFERS)],
};
pub const VERBS: Row = Row { name: "verbs", lacks: &[] };
const ROWS: &[Row] = &[TCP, ENCRYPTED, SHARED, SHM, SIMULATED, VERBS];

/// Compares the checks that a test binary runs on a fabric with those that it is not excused from.
pub fn require_all(row: &Row, run: &[&str]) {
    for Check { name, .. } in CHECKS {
        let is_excused = row.lacks.iter().any(|(check, _)| check == name);
        assert_ne!(run.contains(name), is_excused, "{name} on {}", row.name);
    }
    for name in run {
        assert!(CHECKS.iter().any(|check| check.name == *name), "{name} is not in the table");
    }
}

pub fn render() -> String {
    let mut text = String::from("| guarantee |");
    ROWS.iter().for_each(|row| _ = write!(text, " {} |", row.name));
    text += "\n|---|";
    text += &"---|".repeat(ROWS.len());
    let mut notes: Vec<&str> = Vec::new();
    for Check { name, guarantee } in CHECKS {
        _ = write!(text, "\n| {guarantee} |");
        for row in ROWS {
            let Some((_, why)) = row.lacks.iter().find(|(check, _)| check == name) else {
                text += " yes |";
                continue;
            };
            let note = notes.iter().position(|note| note == why).unwrap_or_else(|| {
                notes.push(why);
                notes.len() - 1
            });
            _ = write!(text, " ({}) |", note + 1);
        }
    }
    text += "\n\n";
    for (index, note) in notes.iter().enumerate() {
        _ = writeln!(text, "{}. {note}", index + 1);
    }
    text
}
