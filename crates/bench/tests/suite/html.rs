//! The page as a whole: complete, self-contained, well formed and safe with any text.

#[allow(dead_code, missing_docs)]
#[path = "../../examples/demo_report.rs"]
mod example;

use example::sample;
use rackpool_bench::html::{Block, DemoReport, render};

/// Elements that HTML closes by itself.
const VOID: [&str; 2] = ["meta", "!doctype"];

/// Every tag is closed in order; attributes are quoted.
fn assert_well_formed(page: &str) {
    let mut open: Vec<String> = Vec::new();
    let mut rest = page;
    while let Some(start) = rest.find('<') {
        let end = start + rest[start..].find('>').expect("a tag ends");
        let tag = &rest[start + 1..end];
        rest = &rest[end + 1..];
        let name = tag.trim_start_matches('/').split([' ', '/']).next().unwrap_or_default();
        assert_eq!(tag.matches('"').count() % 2, 0, "<{tag}>");
        if let Some(closed) = tag.strip_prefix('/') {
            assert_eq!(open.pop().as_deref(), Some(closed), "</{closed}>");
        } else if !tag.ends_with('/') && !VOID.contains(&name) {
            open.push(name.to_owned());
        }
    }
    assert_eq!(open, Vec::<String>::new());
}

#[test]
fn the_sample_page_is_well_formed_and_loads_nothing() {
    let page = render(&sample());
    assert_well_formed(&page);
    for forbidden in ["<script", "http://", "https://", "src=", "href=", "url(", "@import"] {
        assert!(!page.contains(forbidden), "{forbidden}");
    }
    for expected in ["viewBox", "prefers-color-scheme:dark", "measured", "emulated", "92.4 ns"] {
        assert!(page.contains(expected), "{expected}");
    }
    assert!(!page.contains("NaN"));
}

#[test]
fn no_text_of_the_data_can_become_markup() {
    // Every string of the data is replaced, by way of JSON, except the words of enumerations.
    let evil = "</title><script>alert('x')</script>\"&";
    fn poison(value: &mut serde_json::Value, evil: &str) {
        match value {
            serde_json::Value::String(text) if text.contains([' ', '.', '_']) => {
                *text = evil.to_owned();
            }
            serde_json::Value::Array(items) => items.iter_mut().for_each(|v| poison(v, evil)),
            serde_json::Value::Object(map) => map
                .iter_mut()
                .filter(|(key, _)| !["unit", "type", "kind", "tone"].contains(&key.as_str()))
                .for_each(|(_, v)| poison(v, evil)),
            _ => {}
        }
    }
    let mut value = serde_json::to_value(sample()).unwrap();
    poison(&mut value, evil);
    let report: DemoReport = serde_json::from_value(value).unwrap();
    let page = render(&report);
    assert_well_formed(&page);
    assert!(page.contains("&lt;script&gt;") && !page.contains("<script"));
}

#[test]
fn the_data_travels_as_json() {
    let text = serde_json::to_string(&sample()).unwrap();
    let back: DemoReport = serde_json::from_str(&text).unwrap();
    // The JSON reader may round the last bit of a fraction: the page must not show it.
    assert_eq!(render(&back), render(&sample()));
}

#[test]
fn a_failed_run_looks_failed_and_an_empty_one_still_renders() {
    let mut report = sample();
    report.verdict.good = false;
    report.picture = None;
    report.key_numbers.clear();
    report.sections.iter_mut().for_each(|section| section.blocks.clear());
    report.sections[0].blocks.push(Block::Note { text: String::new() });
    let page = render(&report);
    assert_well_formed(&page);
    assert!(page.contains("verdict bad"));
}
