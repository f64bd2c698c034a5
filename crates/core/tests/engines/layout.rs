//! `docs/layout.md` is what this test makes of `layout.rs`: offsets and lengths from its functions,
//! names and explanations from its text. A layout that changes without its document fails here;
//! `RACKPOOL_BLESS=1 cargo test -p rackpool-core --test engines layout::` writes the document anew.

use rackpool_core::constants::{
    CELLS, DEBTS_MAX, DUES_MAX, FREE_QUEUE, LOANS_MAX, LOCKS_MAX, RING_DATA_BYTES, RING_ENTRIES,
    RING_ENTRY_BYTES, SESSIONS_MAX, SLAB_SHIFT_MIN, SLOTS_MAX,
};
use rackpool_core::copies::COPIES;
use rackpool_core::layout::*;
use rackpool_core::{FrameIndex, PageGeometry};
use std::fmt::Write;

const SOURCE: &str = include_str!("../../src/layout.rs");
const DOCUMENT: &str = include_str!("../../../../docs/layout.md");
const DOCUMENT_PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/layout.md");

/// A field of a struct or a variant of an enum in `layout.rs`.
struct Item {
    name: String,
    /// The type of a field, the number of a variant.
    value: String,
    text: String,
}

/// The items of `struct NAME` or `enum NAME`, with the documentation before each.
fn items(of: &str) -> Vec<Item> {
    let start = SOURCE.find(of).unwrap_or_else(|| panic!("layout.rs has no {of}"));
    let mut items = Vec::new();
    let mut text = String::new();
    for line in SOURCE[start..].lines().skip(1).take_while(|line| *line != "}") {
        let line = line.trim();
        if let Some(words) = line.strip_prefix("///") {
            text = format!("{text} {}", words.trim()).trim().to_owned();
            continue;
        }
        if line.starts_with("#[") {
            continue;
        }
        let line = line.trim_end_matches(',').trim_start_matches("pub ");
        let Some((name, value)) = line.split_once(": ").or_else(|| line.split_once(" = ")) else {
            panic!("{of}: cannot read `{line}`");
        };
        let text = std::mem::take(&mut text).replace("[`", "`").replace("`]", "`");
        items.push(Item { name: name.to_owned(), value: value.to_owned(), text });
    }
    assert!(!items.is_empty(), "{of} has no items");
    items
}

fn type_bytes(name: &str) -> u64 {
    if let Some((element, count)) = name.trim_matches(['[', ']']).split_once("; ") {
        return type_bytes(element) * count.parse::<u64>().unwrap();
    }
    match name {
        "u8" => 1,
        "u16" => 2,
        "u32" => 4,
        "u64" => 8,
        other => panic!("layout.rs uses the type {other}"),
    }
}

/// A table of words that lie one after another.
fn words(out: &mut String, of: &str) {
    let items = items(of);
    out.push_str("| offset | word | meaning |\n|---|---|---|\n");
    for Item { name, value, text } in items {
        let offset = 8 * value.parse::<u64>().unwrap();
        writeln!(out, "| {offset} | `{name}` | {text} |").unwrap();
    }
}

fn numbers(out: &mut String, of: &str) {
    out.push_str("| value | name | meaning |\n|---|---|---|\n");
    for Item { name, value, text } in items(of) {
        writeln!(out, "| {value} | `{name}` | {text} |").unwrap();
    }
}

fn places(out: &mut String, rows: &[(u64, u64, &str)]) {
    out.push_str("| offset | bytes | content |\n|---|---|---|\n");
    let mut end = rows[0].0;
    for (offset, bytes, content) in rows {
        assert!(*offset >= end, "{content} overlaps what is before it");
        end = offset + bytes;
        writeln!(out, "| {offset} | {bytes} | {content} |").unwrap();
    }
}

fn superblock(out: &mut String) {
    out.push_str("| offset | bytes | field | meaning |\n|---|---|---|---|\n");
    let mut offset = 0;
    for Item { name, value, text } in items("pub struct Superblock {") {
        let bytes = type_bytes(&value);
        writeln!(out, "| {offset} | {bytes} | `{name}` | {text} |").unwrap();
        offset += bytes;
    }
    assert_eq!(offset, size_of::<Superblock>() as u64, "the superblock has no padding");
}

fn sections(out: &mut String) {
    out.push_str(
        "| memory | pages | metadata before slab bitmaps | share | slab bitmaps at most |\n\
         |---|---|---|---|---|\n",
    );
    for (shift, frame_count, name) in [
        (21, 512, "1 GiB of 2 MiB pages"),
        (21, 1 << 19, "1 TiB of 2 MiB pages"),
        (16, 1 << 14, "1 GiB of 64 KiB pages"),
        (12, 1 << 18, "1 GiB of 4 KiB pages"),
    ] {
        let layout = RegionLayout { pages: PageGeometry::new(shift).unwrap(), frame_count };
        let metadata = COPIES * layout.bitmaps_offset() + layout.table_bytes() + BELL_BYTES;
        let bitmaps = layout.private_bytes() - COPIES * layout.bitmaps_offset();
        let millionths = metadata * 1_000_000 / layout.pages_bytes();
        let percent = format!("{}.{:04} %", millionths / 10_000, millionths % 10_000);
        let pages = layout.pages_bytes();
        writeln!(out, "| {name} | {pages} | {metadata} | {percent} | {bitmaps} |").unwrap();
    }
}

fn private_section(out: &mut String) {
    let first = FRAMES_OFFSET;
    places(
        out,
        &[
            (SUPERBLOCK_OFFSET, size_of::<Superblock>() as u64, "superblock"),
            (STATE_OFFSET, DEBTS_OFFSET - STATE_OFFSET, "words that change (`StateWord`)"),
            (DEBTS_OFFSET, DEBT_BYTES * DEBTS_MAX as u64, "debts (`DebtWord`)"),
            (DUES_OFFSET, DEBT_BYTES * DUES_MAX as u64, "dues (`DebtWord`)"),
            (REDO_OFFSET, REDO_BYTES, "redo record"),
            (SESSIONS_OFFSET, SESSION_BYTES * u64::from(SESSIONS_MAX), "session records"),
            (LOCKS_OFFSET, LOCK_BYTES * u64::from(LOCKS_MAX), "lock entries"),
            (first, FRAME_BYTES, "frame entry of frame 0; the others follow"),
        ],
    );
    writeln!(
        out,
        "\nBehind the last frame entry, at the next multiple of {BLOCK_BYTES}: one slab bitmap a \
         frame, one bit\nfor each object of {} bytes.\n",
        1 << SLAB_SHIFT_MIN
    )
    .unwrap();
}

fn document() -> String {
    let mut out = String::from(
        "# Byte map of a region\n\n\
         Generated from `crates/core/src/layout.rs` by `crates/core/tests/engines/layout.rs`; do\n\
         not edit. All numbers are bytes and decimal. All words are little-endian, aligned to 8.\n\
         \n\
         | section | file | daemon | clients |\n|---|---|---|---|\n",
    );
    let table = SOURCE.lines().filter_map(|line| line.strip_prefix("//! | "));
    for row in table.filter(|row| !row.starts_with("section")) {
        writeln!(out, "| {row}").unwrap();
    }
    writeln!(out, "\nLayout version {LAYOUT_VERSION}. Lengths:\n").unwrap();
    sections(&mut out);
    out.push_str("\n## Private section\n\n");
    out.push_str(
        "Three parts of equal length. This is the first; the others hold every word of it but the\n\
         superblock once more (`crates/core/src/copies.rs`).\n\n",
    );
    private_section(&mut out);
    out.push_str("### Superblock\n\n");
    superblock(&mut out);
    writeln!(out, "\n### Words that change, from {STATE_OFFSET}\n").unwrap();
    words(&mut out, "pub enum StateWord {");
    writeln!(out, "\n### Words of a debt or a due, {DEBT_BYTES} bytes each\n").unwrap();
    words(&mut out, "pub enum DebtWord {");
    writeln!(out, "\n### Redo record, from {REDO_OFFSET}\n").unwrap();
    places(
        &mut out,
        &[
            (0, 8, "sequence number"),
            (8, 8, "stores in the record; 0: none is under way"),
            (16, 8, "xxh3 of sequence, count and stores"),
            (24, 8, "reserved, zero"),
            (
                REDO_HEADER_BYTES,
                16 * REDO_STORES_MAX as u64,
                "stores: offset, value; bit 0 of an offset says: in the pages section",
            ),
        ],
    );
    writeln!(out, "\n### Session record, {SESSION_BYTES} bytes; {SESSIONS_MAX} of them\n").unwrap();
    writeln!(
        out,
        "Records 0 to {} are the local slots, the others remote clients.\n",
        SLOTS_MAX - 1
    )
    .unwrap();
    words(&mut out, "pub enum SessionWord {");
    out.push_str("\nResult kinds:\n\n");
    numbers(&mut out, "pub enum ResultKind {");
    writeln!(out, "\n### Lock entry, {LOCK_BYTES} bytes; {LOCKS_MAX} of them\n").unwrap();
    words(&mut out, "pub enum LockWord {");
    writeln!(out, "\n### Frame entry, {FRAME_BYTES} bytes; one a frame\n").unwrap();
    words(&mut out, "pub enum FrameWord {");
    frame_numbers(&mut out);
    table_section(&mut out);
    out.push_str("## Slot section\n\n");
    slot_section(&mut out);
    bell_section(&mut out);
    out
}

fn bell_section(out: &mut String) {
    out.push_str("\n## Bell section\n\n");
    places(
        out,
        &[
            (0, u64::from(SLOTS_MAX) / 8, "ready bitmap: one bit a slot"),
            (BELL_SLEEPING, 8, "1 while the daemon sleeps"),
            (BELL_BYTES, 0, "end"),
        ],
    );
}

fn table_section(out: &mut String) {
    out.push_str("\n## Table section\n\n");
    let step = table_word(FrameIndex(1));
    writeln!(out, "One word a frame, {step} bytes apart: the generation in the frame, or 0.\n")
        .unwrap();
}

fn frame_numbers(out: &mut String) {
    out.push_str("\nFrame states:\n\n");
    numbers(out, "pub enum FrameState {");
    out.push_str("\nKinds of allocations:\n\n");
    numbers(out, "pub enum AllocationKind {");
}

fn slot_section(out: &mut String) {
    places(
        out,
        &[
            (SlotWord::Cells as u64, 8 * u64::from(CELLS), "announce cells: frame + 1, or 0"),
            (SlotWord::ConsumedSeq as u64, 8, "`ConsumedSeq`"),
            (SlotWord::Left as u64, 8, "`Left`"),
            (SlotWord::FabricSleeping as u64, 8, "`FabricSleeping`"),
            (SlotWord::Changing as u64, 8, "`Changing`"),
            (SLOT_REQUEST_RING, RING_BYTES, "request ring, client to daemon"),
            (SLOT_REPLY_RING, RING_BYTES, "reply ring, daemon to client"),
            (SLOT_REMOTE_REQUEST_RING, RING_BYTES, "ring for remote requests, client to daemon"),
            (SLOT_REMOTE_REPLY_RING, RING_BYTES, "ring for their replies, daemon to client"),
            (SLOT_LOANS, LOAN_BYTES * u64::from(LOANS_MAX), "loans: objects to hand out"),
            (SLOT_FREE_QUEUE, 8 * u64::from(FREE_QUEUE), "frees that wait for the daemon"),
            (SLOT_BYTES, 0, "end"),
        ],
    );
    out.push_str("\n| word | meaning |\n|---|---|\n");
    for Item { name, text, .. } in items("pub enum SlotWord {") {
        writeln!(out, "| `{name}` | {text} |").unwrap();
    }
    out.push_str("\nA loan, 16 bytes:\n\n| word | meaning |\n|---|---|\n");
    for Item { name, text, .. } in items("pub enum LoanWord {") {
        writeln!(out, "| `{name}` | {text} |").unwrap();
    }
    let entries = u64::from(RING_ENTRIES * RING_ENTRY_BYTES);
    out.push_str("\nA ring:\n\n");
    places(
        out,
        &[
            (0, BLOCK_BYTES, "control block: incarnation, counts, sleeping word, done words"),
            (BLOCK_BYTES, entries, "poll entries of one cache line"),
            (BLOCK_BYTES + entries, u64::from(RING_DATA_BYTES), "data blocks"),
            (RING_BYTES, 0, "end"),
        ],
    );
}

#[test]
#[expect(clippy::disallowed_methods, reason = "the document is a file, and only a blessing writes")]
fn the_byte_map_says_what_the_layout_is() {
    let document = document();
    if std::env::var_os("RACKPOOL_BLESS").is_some() {
        std::fs::write(DOCUMENT_PATH, &document).unwrap();
        return;
    }
    for (line, (is, shall)) in DOCUMENT.lines().zip(document.lines()).enumerate() {
        assert_eq!(is, shall, "docs/layout.md, line {}: see the head of this test", line + 1);
    }
    assert_eq!(DOCUMENT.len(), document.len(), "docs/layout.md: see the head of this test");
}

#[test]
fn words_lie_where_their_numbers_say() {
    for (at, Item { name, value, .. }) in items("pub enum StateWord {").iter().enumerate() {
        assert_eq!(value, &at.to_string(), "{name}");
    }
    assert_eq!(StateWord::PageIdEnd.offset(), STATE_OFFSET + 8 * 4);
    assert_eq!(session_word(1, SessionWord::IntentSeq), SESSIONS_OFFSET + SESSION_BYTES + 8 * 7);
    assert_eq!(frame_word(FrameIndex(2), FrameWord::Owner), FRAMES_OFFSET + 2 * FRAME_BYTES + 24);
    assert!(8 * items("pub enum SessionWord {").len() as u64 <= SESSION_BYTES);
    assert!(8 * items("pub enum FrameWord {").len() as u64 <= FRAME_BYTES);
}
