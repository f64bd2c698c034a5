//! A report that a person would rather look at than read: one HTML file, nothing else needed.
//!
//! A command fills a [`DemoReport`] (plain data, serde both ways) and writes what [`render`]
//! makes of it: inline CSS and SVG, no script, no font, no image, no address of anything. Light
//! and dark scheme, wide and narrow screens, paper. Every text is escaped where it enters the
//! page, so that file names and host names may hold anything.
//!
//! [`model`] holds what to say, `bars`, `series` and `picture` draw it. All are pure functions.

mod bars;
pub mod model;
mod picture;
mod series;

use crate::report::{Kind, Machine};
pub use model::*;
use rackpool_stats::format::Unit;
use rackpool_stats::html::Escaped;

/// Appends formatted text to a `String`: every text argument must be [`Escaped`] or ours.
macro_rules! put {
    ($out:expr, $($arg:tt)*) => {
        $out.push_str(&format!($($arg)*))
    };
}
use put;

const STYLE: &str = include_str!("style.css");

#[must_use]
pub fn render(report: &DemoReport) -> String {
    let mut out = String::with_capacity(64 * 1024);
    put!(
        out,
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <meta http-equiv=\"Content-Security-Policy\" \
         content=\"default-src 'none'; style-src 'unsafe-inline'\">\
         <meta name=\"color-scheme\" content=\"light dark\">\
         <title>{}</title><style>{STYLE}</style></head><body><div class=\"page\">",
        Escaped(&report.title)
    );
    header(&mut out, report);
    out.push_str("<main>");
    if let Some(picture) = &report.picture {
        out.push_str("<section class=\"block\"><h2>What was running</h2>");
        picture::draw(&mut out, picture);
        out.push_str("</section>");
    }
    for one in &report.sections {
        section(&mut out, one, report.kind);
    }
    out.push_str("</main>");
    footer(&mut out, report);
    out.push_str("</div></body></html>\n");
    out
}

fn header(out: &mut String, report: &DemoReport) {
    let Verdict { good, headline, detail } = &report.verdict;
    let (class, mark) =
        if *good { ("good", "M6 12.5l4 4 8-9") } else { ("bad", "M7.5 7.5l9 9m0-9l-9 9") };
    put!(out, "<header><div class=\"top\"><span class=\"brand\">{}</span>", Escaped(&report.title));
    badge(out, report.kind);
    put!(
        out,
        "</div><div class=\"verdict {class}\"><svg class=\"mark\" viewBox=\"0 0 24 24\" \
         aria-hidden=\"true\"><circle cx=\"12\" cy=\"12\" r=\"12\"/><path d=\"{mark}\"/></svg>\
         <div><h1>{}</h1><p>{}</p></div></div>",
        Escaped(headline),
        Escaped(detail)
    );
    machine(out, report);
    if !report.key_numbers.is_empty() {
        numbers(out, &report.key_numbers, "hero");
    }
    out.push_str("</header>");
}

fn machine(out: &mut String, report: &DemoReport) {
    let Machine { cpu, cores, memory_bytes, kernel } = &report.machine;
    let memory = Unit::Bytes.show(*memory_bytes as f64);
    let duration = Unit::Seconds.show(report.duration_seconds);
    let cores = format!("{cores} {}", if *cores == 1 { "core" } else { "cores" });
    out.push_str("<dl class=\"facts\">");
    for (term, text) in [
        ("Processor", cpu),
        ("Cores", &cores),
        ("Memory", &memory),
        ("Kernel", kernel),
        ("Took", &duration),
        ("When", &report.finished_at),
    ] {
        if !text.is_empty() {
            put!(out, "<div><dt>{term}</dt><dd>{}</dd></div>", Escaped(text));
        }
    }
    out.push_str("</dl>");
}

fn section(out: &mut String, section: &Section, page_kind: Kind) {
    put!(out, "<section class=\"block\"><h2>{}", Escaped(&section.title));
    if let Some(kind) = section.kind.filter(|&kind| kind != page_kind) {
        badge(out, kind);
    }
    out.push_str("</h2>");
    if !section.lead.is_empty() {
        put!(out, "<p class=\"lead\">{}</p>", Escaped(&section.lead));
    }
    for block in &section.blocks {
        match block {
            Block::Numbers { numbers: all } => numbers(out, all, "cards"),
            Block::Bars(chart) => bars::draw(out, chart, section.kind.unwrap_or(page_kind)),
            Block::Series(chart) => series::draw(out, chart),
            Block::Table(one) => table(out, one),
            Block::Drawing { svg } => put!(out, "<figure class=\"scroll\">{svg}</figure>"),
            Block::Note { text } => put!(out, "<p class=\"note\">{}</p>", Escaped(text)),
        }
    }
    out.push_str("</section>");
}

fn numbers(out: &mut String, numbers: &[KeyNumber], class: &str) {
    put!(out, "<div class=\"{class}\">");
    for KeyNumber { label, value, detail, good } in numbers {
        let state = match good {
            Some(true) => " good",
            Some(false) => " bad",
            None => "",
        };
        // The unit behind the first space is set smaller than the number.
        let (number, unit) = value.split_once(' ').unwrap_or((value, ""));
        put!(
            out,
            "<div class=\"card{state}\"><div class=\"label\">{}</div>\
             <div class=\"value\">{}<span class=\"unit\"> {}</span></div>",
            Escaped(label),
            Escaped(number),
            Escaped(unit)
        );
        if !detail.is_empty() {
            put!(out, "<div class=\"detail\">{}</div>", Escaped(detail));
        }
        out.push_str("</div>");
    }
    out.push_str("</div>");
}

fn table(out: &mut String, table: &Table) {
    out.push_str("<div class=\"scroll\"><table>");
    if !table.title.is_empty() {
        put!(out, "<caption>{}</caption>", Escaped(&table.title));
    }
    out.push_str("<thead><tr>");
    let class = |index: usize| match table.columns.get(index) {
        Some(column) if column.numeric => " class=\"num\"",
        _ => "",
    };
    for (index, column) in table.columns.iter().enumerate() {
        put!(out, "<th scope=\"col\"{}>{}</th>", class(index), Escaped(&column.heading));
    }
    out.push_str("</tr></thead><tbody>");
    for row in &table.rows {
        out.push_str("<tr>");
        for (index, cell) in row.iter().enumerate().take(table.columns.len()) {
            let class = if cell == "NO" { " class=\"no\"" } else { class(index) };
            put!(out, "<td{class}>{}</td>", Escaped(cell));
        }
        out.push_str("</tr>");
    }
    out.push_str("</tbody></table></div>");
}

fn footer(out: &mut String, report: &DemoReport) {
    out.push_str("<footer>");
    for note in &report.notes {
        put!(out, "<p>{}</p>", Escaped(note));
    }
    put!(
        out,
        "<p><code>{}</code></p><p>revision {} · this page needs no script and no network</p>\
         </footer>",
        Escaped(&report.command),
        Escaped(&report.git_revision)
    );
}

fn badge(out: &mut String, kind: Kind) {
    put!(out, "<span class=\"badge {0}\">{0}</span>", kind.name());
}

fn legend(out: &mut String, entries: &[(Tone, &str)]) {
    if entries.len() < 2 {
        return;
    }
    out.push_str("<div class=\"legend\">");
    for (tone, text) in entries {
        put!(out, "<span><i class=\"{}\"></i>{}</span>", tone.class(), Escaped(text));
    }
    out.push_str("</div>");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_style_loads_nothing_from_elsewhere() {
        for forbidden in ["http", "url(", "@import", "@font-face", "</"] {
            assert!(!STYLE.contains(forbidden), "{forbidden}");
        }
    }
}
