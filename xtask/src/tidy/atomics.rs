//! Every atomic names its partner.
//!
//! An ordering in code that is not a test must be explained by a comment on its line or ending at
//! most six lines above it: Acquire, Release, AcqRel and SeqCst by the words `pairs with`, Relaxed
//! by `Relaxed:` and a reason. In a short function one comment above serves all that follow it, and
//! so does the function's own documentation. No comment of another function counts.

use super::{File, Tree, Violation, parts};

const ORDERINGS: &[&str] = &["Acquire", "Release", "AcqRel", "SeqCst", "Relaxed"];

/// Types with an `X::Acquire` that is an ordering: the standard one, and the core's own for `Mem`.
const TYPES: &[&str] = &["Ordering::", "Order::"];

/// How far above the code a comment may end.
const REACH_LINES: usize = 6;

/// Up to this length a function's comments serve the whole function.
const SHORT_FUNCTION_LINES: usize = 25;

/// The shortest reason, in characters, that we believe.
const REASON_CHARS_MIN: usize = 8;

pub fn check(tree: &Tree, violations: &mut Vec<Violation>) {
    for file in tree.sources() {
        let lines: Vec<&str> = file.text.lines().collect();
        for (line, code) in file.code().take_while(|(line, _)| *line < file.tests_line) {
            check_line(file, &lines, line, code, violations);
        }
    }
}

fn check_line(
    file: &File,
    lines: &[&str],
    line: usize,
    code: &str,
    violations: &mut Vec<Violation>,
) {
    // `Order::Acquire => Ordering::Acquire` says one type's name in another's words.
    if code.contains("=>") && TYPES.iter().all(|name| code.contains(name)) {
        return;
    }
    let comment = comment_above(lines, line);
    for name in ORDERINGS.iter().filter(|name| is_used(code, name)) {
        let (explained, what) = match *name {
            "Relaxed" => (has_reason(&comment), "`Relaxed: why that is enough`"),
            _ => (has_partner(&comment), "that says what it `pairs with`"),
        };
        if !explained {
            let message = format!("{name} without a comment {what}");
            let path = file.path.clone();
            violations.push(Violation { rule: "atomic-partner", path, line, message });
        }
    }
}

/// A whole word, in a value: what is imported by its own name is not used so here.
fn is_used(code: &str, name: &str) -> bool {
    !code.trim_start().starts_with("use ")
        && TYPES.iter().any(|of| {
            let name = format!("{of}{name}");
            let mut ends = code.match_indices(&name).map(|(at, _)| at + name.len());
            ends.any(|end| !code[end..].starts_with(char::is_alphanumeric))
        })
}

/// The text of all comments that may explain code on the line, as one line.
fn comment_above(lines: &[&str], line: usize) -> String {
    let head = (0..line).rev().find(|index| is_function(lines[*index])).unwrap_or(0);
    let floor = (0..head).rev().find(|index| !belongs(lines[*index])).map_or(0, |above| above + 1);
    let indent = lines[head].len() - lines[head].trim_start().len();
    let is_end = |text: &str| text.trim_start() == "}" && text.len() == indent + 1;
    let is_short = lines[head..].iter().take(SHORT_FUNCTION_LINES + 1).any(|text| is_end(text));
    let reach = line.saturating_sub(REACH_LINES + 1).max(floor);
    let mut first = if is_short { floor } else { reach };
    while first > floor && is_comment(lines[first]) && is_comment(lines[first - 1]) {
        first -= 1;
    }
    let comments = lines[first..line].iter().map(|text| parts(text).1);
    let words = comments.flat_map(|text| text.trim_start_matches(['/', '!', ' ']).split(' '));
    words.filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ")
}

fn is_function(line: &str) -> bool {
    let words = parts(line).0.trim_start();
    let of = |word: &str| matches!(word, "const" | "async" | "unsafe") || word.starts_with("pub");
    words.split(' ').find(|word| !of(word)) == Some("fn")
}

fn is_comment(line: &str) -> bool {
    line.trim_start().starts_with("//")
}

/// To the function below it: a comment or an attribute.
fn belongs(line: &str) -> bool {
    is_comment(line) || line.trim_start().starts_with("#[")
}

fn has_partner(comment: &str) -> bool {
    let comment = comment.to_lowercase();
    comment.contains("pairs with") || comment.contains("pair with")
}

fn has_reason(comment: &str) -> bool {
    comment.split("Relaxed:").skip(1).any(|reason| reason.trim().len() >= REASON_CHARS_MIN)
}
