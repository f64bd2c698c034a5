//! Links within the documents lead somewhere: to a file or folder that git tracks, and to a heading
//! of it where they name one. What stands in code is no link, and other sites are not looked at. And
//! every page under `docs` has its place in the book.

use std::collections::{BTreeMap, BTreeSet};

use super::{Tree, Violation};

/// The book's table of contents.
const SUMMARY: &str = "docs/SUMMARY.md";

pub fn check(tree: &Tree, violations: &mut Vec<Violation>) {
    let paths: BTreeSet<&str> = tree.files.iter().map(|file| file.path.as_str()).collect();
    let documents = tree.files.iter().filter(|file| file.path.ends_with(".md"));
    let headings: BTreeMap<&str, BTreeSet<String>> =
        documents.clone().map(|file| (file.path.as_str(), anchors(&file.text))).collect();
    for file in documents {
        for (line, target) in links(&file.text) {
            let (to, anchor) = target.split_once('#').unwrap_or((target, ""));
            let path = match to {
                "" => file.path.clone(),
                _ => resolve(&file.path, to),
            };
            let folder = format!("{path}/");
            let message = if !paths.contains(path.as_str())
                && !paths.range(folder.as_str()..).next().is_some_and(|p| p.starts_with(&folder))
            {
                format!("no file {path}")
            } else if !anchor.is_empty()
                && headings.get(path.as_str()).is_some_and(|known| !known.contains(anchor))
            {
                format!("{path} has no heading `{anchor}`")
            } else {
                continue;
            };
            violations.push(Violation { rule: "link", path: file.path.clone(), line, message });
        }
    }
    in_book(tree, violations);
}

/// Where there is a book, it has all pages.
fn in_book(tree: &Tree, violations: &mut Vec<Violation>) {
    let Some(summary) = tree.files.iter().find(|file| file.path == SUMMARY) else { return };
    let named: BTreeSet<String> =
        links(&summary.text).into_iter().map(|(_, to)| resolve(SUMMARY, to)).collect();
    for file in &tree.files {
        let is_page = file.path.starts_with("docs/") && file.path.ends_with(".md");
        if is_page && file.path != SUMMARY && !named.contains(&file.path) {
            let message = format!("{SUMMARY} does not name it");
            violations.push(Violation { rule: "book", path: file.path.clone(), line: 0, message });
        }
    }
}

/// Lines outside code blocks, counted from 1.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut is_code = false;
    text.lines().enumerate().filter_map(move |(index, line)| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        (!is_code && !is_fence).then_some((index + 1, line))
    })
}

/// Targets of all links that lead to this tree, with their lines.
fn links(text: &str) -> Vec<(usize, &str)> {
    let mut links = Vec::new();
    for (line, prose) in prose(text) {
        // The text of a link may hold code, so that only what stands between `](` and `)` counts.
        for (at, _) in prose.match_indices("](") {
            let is_code = prose[..at].matches('`').count() % 2 == 1;
            let Some((target, _)) = prose[at + 2..].split_once(')') else { continue };
            if !is_code && !target.contains("://") && !target.starts_with("mailto:") {
                links.push((line, target));
            }
        }
    }
    links
}

/// What a link in `from` leads to, from the workspace's directory.
fn resolve(from: &str, to: &str) -> String {
    let folder = from.rsplit_once('/').map_or("", |(folder, _)| folder);
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in to.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            _ => parts.push(part),
        }
    }
    parts.join("/")
}

/// The names under which headings are reached, as GitHub and mdBook make them.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut anchors = BTreeSet::new();
    for (_, line) in prose(text) {
        let title = line.trim_start_matches('#');
        if title.len() == line.len() || !title.starts_with(' ') {
            continue;
        }
        let kept = title.trim().chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        let name: String = kept.map(|c| if c == ' ' { '-' } else { c }).collect();
        let name = name.to_lowercase();
        let again = (1..).map(|count| format!("{name}-{count}"));
        let free = std::iter::once(name.clone()).chain(again).find(|name| !anchors.contains(name));
        anchors.extend(free);
    }
    anchors
}
