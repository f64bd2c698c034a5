//! Racks side by side: processes above, memory as a field of pages below, paths with numbers.
//!
//! Drawn for two racks and good for three or four; more make a wide picture that scrolls.

use super::model::{MemoryPicture, PathPicture, Picture, ProcessPicture, RackPicture, Tone};
use super::{Escaped, legend, put};
use rackpool_stats::format::Unit;

const RACK_WIDTH: f64 = 400.0;
const RACK_HEIGHT: f64 = 334.0;
const GAP: f64 = 240.0;
const MASTER_HEIGHT: f64 = 92.0;
const PAD: f64 = 22.0;
const PROCESSES_MAX: usize = 4;
const PATHS_MAX: usize = 3;
const PAGES_ACROSS: usize = 30;
const PAGES_DOWN: usize = 7;
const PAGE: f64 = 11.9;
/// Longest text in a box of a given width, in characters of the given width each.
const CHARACTER_WIDTH: f64 = 7.2;

pub(super) fn draw(out: &mut String, picture: &Picture) {
    let racks = picture.racks.len() as f64;
    let width = racks * RACK_WIDTH + (racks - 1.0).max(0.0) * GAP;
    let top = if picture.master.is_some() { MASTER_HEIGHT } else { 0.0 };
    let height = top + RACK_HEIGHT;
    put!(
        out,
        "<div class=\"scroll\"><svg class=\"picture\" viewBox=\"-1 -1 {} {}\" role=\"img\" \
         aria-label=\"Processes, memories and paths of the racks\">",
        width + 2.0,
        height + 2.0
    );
    if let Some(master) = &picture.master {
        draw_master(out, master, picture.racks.len(), width);
    }
    for (index, rack) in picture.racks.iter().enumerate() {
        let left = index as f64 * (RACK_WIDTH + GAP);
        draw_rack(out, rack, left, top);
        if index + 1 < picture.racks.len() {
            draw_between(out, &picture.between, left + RACK_WIDTH, top);
        }
    }
    out.push_str("</svg></div>");
    let mut entries: Vec<(Tone, &str)> = Vec::new();
    for part in picture.racks.iter().flat_map(|rack| &rack.memory.parts) {
        if !entries.contains(&(part.tone, part.label.as_str())) {
            entries.push((part.tone, &part.label));
        }
    }
    legend(out, &entries);
}

fn draw_master(out: &mut String, master: &ProcessPicture, racks: usize, width: f64) {
    let (center, box_width, box_height) = (width / 2.0, 210.0, 54.0);
    for index in 0..racks {
        let x = index as f64 * (RACK_WIDTH + GAP) + RACK_WIDTH / 2.0;
        put!(
            out,
            "<path class=\"control\" d=\"M{center} {0}H{x}V{MASTER_HEIGHT}\"/>",
            box_height / 2.0
        );
    }
    process(out, master, center - box_width / 2.0, 0.0, box_width, box_height);
}

fn draw_rack(out: &mut String, rack: &RackPicture, left: f64, top: f64) {
    put!(
        out,
        "<rect class=\"rack\" x=\"{left}\" y=\"{top}\" width=\"{RACK_WIDTH}\" \
         height=\"{RACK_HEIGHT}\" rx=\"14\"/><text class=\"rackname\" x=\"{}\" y=\"{}\">{}</text>",
        left + PAD,
        top + 30.0,
        Escaped(&rack.name)
    );
    let count = rack.processes.len().min(PROCESSES_MAX);
    let gap = 10.0;
    let inner = RACK_WIDTH - 2.0 * PAD;
    let width = (inner - gap * count.saturating_sub(1) as f64) / count.max(1) as f64;
    for (index, one) in rack.processes.iter().take(count).enumerate() {
        let x = left + PAD + index as f64 * (width + gap);
        process(out, one, x, top + 46.0, width, 54.0);
    }
    draw_inside(out, &rack.inside, left, top + 100.0);
    draw_memory(out, &rack.memory, left + PAD, top + 192.0, inner);
}

/// The double arrow between processes and memory, its numbers to the right.
fn draw_inside(out: &mut String, paths: &[PathPicture], left: f64, top: f64) {
    let (x, bottom) = (left + PAD + 34.0, top + 84.0);
    put!(
        out,
        "<path class=\"arrow near\" d=\"M{x} {0}V{1}M{2} {3}L{x} {0}L{4} {3}M{2} {5}L{x} {1}\
         L{4} {5}\"/>",
        top + 9.0,
        bottom - 1.0,
        x - 6.0,
        top + 17.0,
        x + 6.0,
        bottom - 9.0
    );
    let shown = paths.len().min(PATHS_MAX);
    let first = top + 42.0 - (shown as f64 - 1.0) * 10.5 + 5.0;
    for (index, path) in paths.iter().take(shown).enumerate() {
        let y = first + index as f64 * 21.0;
        put!(
            out,
            "<text class=\"pathlabel\" x=\"{}\" y=\"{y}\">{}</text>\
             <text class=\"pathnumber\" x=\"{}\" y=\"{y}\" text-anchor=\"end\">{}</text>",
            x + 26.0,
            Escaped(&shortened(&path.label, 210.0)),
            left + RACK_WIDTH - PAD,
            Escaped(&path.number)
        );
    }
}

fn draw_memory(out: &mut String, memory: &MemoryPicture, left: f64, top: f64, width: f64) {
    let size = Unit::Bytes.show(memory.total_bytes as f64);
    put!(
        out,
        "<text class=\"pathlabel\" x=\"{left}\" y=\"{y}\">{}</text>\
         <text class=\"pathnumber\" x=\"{}\" y=\"{y}\" text-anchor=\"end\">{}</text>",
        Escaped(&shortened(&memory.label, width - 90.0)),
        left + width,
        Escaped(&size),
        y = top + 22.0
    );
    let pages = PAGES_ACROSS * PAGES_DOWN;
    let tones = page_tones(memory, pages);
    for (index, tone) in tones.iter().enumerate() {
        let x = left + (index % PAGES_ACROSS) as f64 * PAGE;
        let y = top + 38.0 + (index / PAGES_ACROSS) as f64 * PAGE;
        put!(
            out,
            "<rect class=\"mem {}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"9.9\" height=\"9.9\" \
             rx=\"2\"/>",
            tone.map_or("free", Tone::class)
        );
    }
}

/// Which part each drawn page belongs to. A part that has any bytes shows at least one page.
fn page_tones(memory: &MemoryPicture, pages: usize) -> Vec<Option<Tone>> {
    let mut tones = Vec::with_capacity(pages);
    for part in &memory.parts {
        let share = part.bytes as f64 / memory.total_bytes.max(1) as f64;
        let count = (share * pages as f64).round() as usize;
        let count = count.max(usize::from(part.bytes > 0)).min(pages - tones.len());
        tones.extend(std::iter::repeat_n(Some(part.tone), count));
    }
    tones.resize(pages, None);
    tones
}

/// The band between two racks: one double arrow, each path's label above its number.
fn draw_between(out: &mut String, paths: &[PathPicture], left: f64, top: f64) {
    let (y, right) = (top + 142.0, left + GAP);
    let (from, to) = (left + 10.0, right - 10.0);
    put!(
        out,
        "<path class=\"arrow far\" d=\"M{from} {y}H{to}M{0} {1}L{from} {y}L{0} {2}M{3} {1}\
         L{to} {y}L{3} {2}\"/>",
        from + 9.0,
        y - 6.0,
        y + 6.0,
        to - 9.0
    );
    let middle = (left + right) / 2.0;
    for (index, path) in paths.iter().take(PATHS_MAX).enumerate() {
        // The first above the arrow, the others below it.
        let base = if index == 0 { y - 34.0 } else { y + 30.0 + (index as f64 - 1.0) * 54.0 };
        put!(
            out,
            "<text class=\"bignumber\" x=\"{middle}\" y=\"{}\" text-anchor=\"middle\">{}</text>\
             <text class=\"pathlabel\" x=\"{middle}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
            base,
            Escaped(&path.number),
            base + 19.0,
            Escaped(&shortened(&path.label, GAP - 24.0))
        );
    }
}

fn process(out: &mut String, one: &ProcessPicture, x: f64, y: f64, width: f64, height: f64) {
    put!(
        out,
        "<rect class=\"process\" x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" \
         rx=\"9\"><title>{} {}</title></rect>",
        Escaped(&one.name),
        Escaped(&one.detail)
    );
    let middle = x + width / 2.0;
    let name_y = if one.detail.is_empty() { y + height / 2.0 + 5.0 } else { y + 24.0 };
    put!(
        out,
        "<text class=\"procname\" x=\"{middle}\" y=\"{name_y}\" text-anchor=\"middle\">{}</text>\
         <text class=\"procdetail\" x=\"{middle}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
        Escaped(&shortened(&one.name, width - 12.0)),
        y + 42.0,
        Escaped(&shortened(&one.detail, width - 12.0))
    );
}

/// SVG text does not wrap: what is too long ends in an ellipsis.
fn shortened(text: &str, width: f64) -> String {
    let fits = (width / CHARACTER_WIDTH).max(1.0) as usize;
    if text.chars().count() <= fits {
        return text.to_owned();
    }
    let mut short: String = text.chars().take(fits.saturating_sub(1)).collect();
    short.push('…');
    short
}

#[cfg(test)]
mod tests {
    use super::super::model::MemoryPart;
    use super::*;

    fn part(bytes: u64, tone: Tone) -> MemoryPart {
        MemoryPart { label: String::new(), bytes, tone }
    }

    #[test]
    fn pages_show_the_share_of_each_part_and_small_parts_are_seen() {
        let parts = vec![part(500, Tone::First), part(1, Tone::Second), part(0, Tone::Third)];
        let memory = MemoryPicture { label: String::new(), total_bytes: 1000, parts };
        let tones = page_tones(&memory, 100);
        let count = |tone| tones.iter().filter(|&&one| one == tone).count();
        assert_eq!(count(Some(Tone::First)), 50);
        assert_eq!((count(Some(Tone::Second)), count(Some(Tone::Third))), (1, 0));
        assert_eq!((count(None), tones.len()), (49, 100));
    }

    #[test]
    fn parts_larger_than_their_memory_do_not_overflow_the_field() {
        let parts = vec![part(u64::MAX, Tone::First), part(5, Tone::Second)];
        let memory = MemoryPicture { label: String::new(), total_bytes: 0, parts };
        assert_eq!(page_tones(&memory, 10), vec![Some(Tone::First); 10]);
    }

    #[test]
    fn long_texts_end_in_an_ellipsis() {
        assert_eq!(shortened("daemon", 72.0), "daemon");
        assert_eq!(shortened("a very long name", 36.0), "a ve…");
    }
}
