//! The conformance suite (`conformance/`) on `tcp`, on `tcp` encrypted and with a shared
//! connection, on `shm`,
//! and, where there are RDMA devices, on `verbs`. The last are ignored elsewhere; `cargo xtask vm`
//! runs them in virtual machines. The simulated network is tested in `rackpool-sim`.

use crate::fabric_rig::conformance::table;
use crate::fabric_rig::{EncryptedRig, SharedRig, ShmRig, TcpRig};
use std::path::Path;

mod checks {
    pub use crate::fabric_lent::*;
    pub use crate::fabric_rig::conformance::checks::*;
}

/// Makes tests of checks, and one that no check is missing.
macro_rules! conformance {
    ($attribute:meta, $module:ident, $rig:ty, $row:expr; $($name:ident),* $(,)?) => {
        mod $module {
            use super::*;
            $(#[test] #[$attribute] fn $name() { checks::$name::<$rig>(); })*
            #[test]
            fn no_check_is_missing() {
                table::require_all(&$row, &[$(stringify!($name)),*]);
            }
        }
    };
}
/// The same for fabrics that are excused from nothing.
macro_rules! all_conformance {
    ($attribute:meta, $module:ident, $rig:ty, $row:expr) => {
        conformance!($attribute, $module, $rig, $row;
            every_size_is_written_and_read_back_unaligned,
            atomics_answer_the_old_value,
            accesses_outside_one_frame_are_refused_and_touch_nothing,
            a_wrong_key_is_refused_and_touches_nothing,
            what_is_posted_around_a_refused_key_is_executed_exactly_once,
            pieces_are_gathered_and_scattered_in_order,
            messages_and_immediate_values_arrive_in_order_after_their_data,
            the_applications_messages_are_received,
            who_sees_a_flag_sees_the_data_written_before_it,
            completions_come_in_the_order_of_posting,
            unsignalled_work_is_silent_unless_it_fails,
            a_full_queue_answers_busy_and_keeps_what_was_posted,
            ten_thousand_operations_in_batches_all_take_effect,
            a_key_revoked_in_the_midst_of_a_write_lets_no_later_byte_through,
            a_key_revoked_in_the_midst_of_a_read_shows_nothing_of_the_next_page,
            a_dead_peer_ends_all_work_and_can_be_connected_to_again,
            lent_buffers_carry_data_and_are_let_go_even_while_work_is_under_way,
        );
    };
}

all_conformance!(cfg(all()), tcp, TcpRig, table::TCP);
all_conformance!(cfg(all()), encrypted, EncryptedRig, table::ENCRYPTED);
all_conformance!(cfg(all()), shm, ShmRig, table::SHM);
conformance!(cfg(all()), shared, SharedRig, table::SHARED;
    every_size_is_written_and_read_back_unaligned,
    atomics_answer_the_old_value,
    accesses_outside_one_frame_are_refused_and_touch_nothing,
    a_wrong_key_is_refused_and_touches_nothing,
    pieces_are_gathered_and_scattered_in_order,
    who_sees_a_flag_sees_the_data_written_before_it,
    unsignalled_work_is_silent_unless_it_fails,
    a_full_queue_answers_busy_and_keeps_what_was_posted,
    ten_thousand_operations_in_batches_all_take_effect,
    a_key_revoked_in_the_midst_of_a_write_lets_no_later_byte_through,
    a_key_revoked_in_the_midst_of_a_read_shows_nothing_of_the_next_page,
    a_dead_peer_ends_all_work_and_can_be_connected_to_again,
    lent_buffers_carry_data_and_are_let_go_even_while_work_is_under_way,
);
#[cfg(feature = "verbs")]
all_conformance!(
    ignore = "needs RDMA devices: cargo xtask vm verbs-one",
    verbs,
    crate::fabric_verbs::LocalRig,
    table::VERBS
);
#[cfg(feature = "verbs")]
all_conformance!(
    ignore = "needs two hosts with RDMA devices: cargo xtask vm verbs-two",
    verbs_far,
    crate::fabric_verbs::far::FarRig,
    table::VERBS
);

#[test]
fn the_table_in_the_documents_is_what_the_suite_says() {
    const BEGIN: &str = "<!-- table: begin -->\n";
    const END: &str = "<!-- table: end -->";
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/fabrics.md");
    let text = std::fs::read_to_string(&path).expect("docs/fabrics.md is there");
    let (before, rest) = text.split_once(BEGIN).expect("it has the table's begin");
    let (found, after) = rest.split_once(END).expect("it has the table's end");
    let table = table::render();
    if std::env::var_os("RACKPOOL_BLESS").is_some() {
        let anew = format!("{before}{BEGIN}{table}{END}{after}");
        std::fs::write(&path, anew).expect("docs/fabrics.md can be written");
        return;
    }
    assert!(
        found == table,
        "docs/fabrics.md differs from the suite:\n    \
         RACKPOOL_BLESS=1 cargo test -p rackpool-fabric --test suite"
    );
}
