//! Every atomic names its partner.
//!
//! An ordering in code that is not a test must be explained by a comment on its line or ending at
//! most six lines above it: Acquire, Release, AcqRel and SeqCst by the words `pairs with`, Relaxed
//! by `Relaxed:` and a reason. In a short function one comment above serves all that follow it, and
//! so does the function's own documentation. No comment of another function counts.

use super::source::Source;
use super::{File, Tree, Violation};

const ORDERINGS: &[&str] = &["Acquire", "Release", "AcqRel", "SeqCst", "Relaxed"];

/// Types whose `X::Acquire` is an ordering: the standard one, and the core's own for `Mem`.
const TYPES: &[&str] = &["Ordering", "Order", "MemOrder", "MemoryOrder", "atomic"];

/// How far above the code a comment may end.
const REACH_LINES: usize = 6;

/// Up to this length a function's comments serve the whole function.
const SHORT_FUNCTION_LINES: usize = 25;

/// The shortest reason, in characters, that we believe.
const REASON_CHARS_MIN: usize = 8;

pub fn check(tree: &Tree, violations: &mut Vec<Violation>) {
    for (file, source) in tree.sources() {
        check_file(file, source, violations);
    }
}

fn check_file(file: &File, source: &Source, violations: &mut Vec<Violation>) {
    let imported = imported(source);
    for index in 0..source.count() {
        let name = source.token(index);
        let line = source.line(index);
        let counts = ORDERINGS.contains(&name)
            && !file.is_test(line)
            && !source.in_use(index)
            && is_ordering(source, index, &imported)
            && !is_translation(source, index);
        if !counts {
            continue;
        }
        let comment = comment_above(source, line);
        let relaxed = name == "Relaxed";
        let explained = if relaxed { has_reason(&comment) } else { has_partner(&comment) };
        if explained {
            continue;
        }
        let message = match relaxed {
            true => format!("{name} without a comment `Relaxed: why that is enough`"),
            false => format!("{name} without a comment that says what it `pairs with`"),
        };
        let path = file.path.clone();
        violations.push(Violation { rule: "atomic-partner", path, line, message });
    }
}

/// Orderings that the file uses without their type.
fn imported(source: &Source) -> Vec<&str> {
    let mut names = Vec::new();
    for (path, _) in source.imports() {
        match path.as_slice() {
            [.., "Ordering", "*"] => names.extend(ORDERINGS.iter().copied()),
            [.., name] if ORDERINGS.contains(name) => names.push(name),
            _ => {}
        }
    }
    names
}

fn is_ordering(source: &Source, index: usize, imported: &[&str]) -> bool {
    if source.before(index, 1) == ":" && source.before(index, 2) == ":" {
        return TYPES.contains(&source.before(index, 3));
    }
    // A variant of that name in somebody's own enum is declared between commas or brackets, but
    // then the file does not also import the ordering.
    imported.contains(&source.token(index))
}

/// `Order::Acquire => Ordering::Acquire`, either side: one type's name in another's words.
fn is_translation(source: &Source, index: usize) -> bool {
    if source.stands(index + 1, &["=", ">"]) {
        return true;
    }
    let arrow = (2..=7)
        .find(|back| source.before(index, *back) == "=" && source.before(index, *back - 1) == ">");
    arrow.is_some_and(|back| source.before(index, back + 1) == source.token(index))
}

/// The text of all comments that may explain code on the line, as one line.
fn comment_above(source: &Source, line: usize) -> String {
    let function = source.function(line);
    let floor = function.map_or(1, |function| header(source, function.first));
    let short = function.is_some_and(|f| f.last - f.first < SHORT_FUNCTION_LINES);
    let mut first = if short { floor } else { line.saturating_sub(REACH_LINES).max(floor) };
    while first > floor && source.is_comment_only(first) && source.is_comment_only(first - 1) {
        first -= 1;
    }
    let parts = source.comments().range(first..=line);
    let words =
        parts.flat_map(|(_, text)| text.trim_start_matches(['/', '!', '*', ' ']).split(' '));
    words.filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ")
}

/// Where the comments and attributes above a function begin.
fn header(source: &Source, first: usize) -> usize {
    let belongs = |line: usize| {
        source.is_comment_only(line)
            || source.first_token(line).is_some_and(|index| source.token(index) == "#")
    };
    let mut line = first;
    while line > 1 && belongs(line - 1) {
        line -= 1;
    }
    line
}

fn has_partner(comment: &str) -> bool {
    let comment = comment.to_lowercase();
    comment.contains("pairs with") || comment.contains("pair with")
}

fn has_reason(comment: &str) -> bool {
    comment.split("Relaxed:").skip(1).any(|reason| reason.trim().len() >= REASON_CHARS_MIN)
}
