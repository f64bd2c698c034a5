//! A Rust file as tokens and comments: enough of a lexer for tidy's rules, and no more.
//!
//! Literals become one token without their content, so that no rule sees code in a string; comments
//! are kept apart by line. It need not reject wrong programs: the compiler has seen them before.

use std::collections::BTreeMap;
use std::ops::Range;

/// The file, taken apart. Lines count from 1.
pub struct Source {
    text: String,
    tokens: Vec<Token>,
    /// For each opening bracket's token the index of the closing one, and for all others 0.
    closing: Vec<usize>,
    /// The comment's text on a line, with its slashes; several on a line are joined.
    comments: BTreeMap<usize, String>,
    /// In the order of their beginnings.
    pub functions: Vec<Function>,
    /// Lines of the items under `#[cfg(test)]` or `#[test]`.
    tests: Vec<Range<usize>>,
    /// Names in `#[cfg(test)] mod name;`.
    pub test_modules: Vec<String>,
    /// Line of the first `#[cfg(test)]` on a module with a body.
    pub tests_line: Option<usize>,
    /// Whether `#![cfg(test)]` stands in the file.
    pub all_test: bool,
    /// Ranges of tokens of `use` items.
    uses: Vec<Range<usize>>,
}

/// A function with a body.
pub struct Function {
    pub name: String,
    /// Line of the word `fn`.
    pub first: usize,
    /// Line of the closing brace.
    pub last: usize,
}

struct Token {
    at: Range<usize>,
    line: usize,
    literal: bool,
}

impl Source {
    pub fn parse(text: &str) -> Self {
        let mut source = Self {
            text: text.to_owned(),
            tokens: Vec::new(),
            closing: Vec::new(),
            comments: BTreeMap::new(),
            functions: Vec::new(),
            tests: Vec::new(),
            test_modules: Vec::new(),
            tests_line: None,
            all_test: false,
            uses: Vec::new(),
        };
        Lexer { bytes: text.as_bytes(), at: 0, line: 1, source: &mut source }.run();
        source.match_brackets();
        source.find_functions();
        source.find_tests();
        source.find_uses();
        source
    }

    pub fn count(&self) -> usize {
        self.tokens.len()
    }

    /// The token's text; `""` for any literal, and for an index past either end nothing.
    pub fn token(&self, index: usize) -> &str {
        match self.tokens.get(index) {
            Some(token) if token.literal => "\"\"",
            Some(token) => &self.text[token.at.clone()],
            None => "",
        }
    }

    /// The token `back` places before `index`, or nothing.
    pub fn before(&self, index: usize, back: usize) -> &str {
        index.checked_sub(back).map_or("", |index| self.token(index))
    }

    /// Whether these tokens stand at `index`.
    pub fn stands(&self, index: usize, words: &[&str]) -> bool {
        words.iter().enumerate().all(|(offset, word)| self.token(index + offset) == *word)
    }

    pub fn line(&self, index: usize) -> usize {
        self.tokens[index].line
    }

    /// Comments by line.
    pub fn comments(&self) -> &BTreeMap<usize, String> {
        &self.comments
    }

    /// Whether the line holds a comment and no code.
    pub fn is_comment_only(&self, line: usize) -> bool {
        self.comments.contains_key(&line) && self.first_token(line).is_none()
    }

    /// The first token that begins on the line.
    pub fn first_token(&self, line: usize) -> Option<usize> {
        let index = self.tokens.partition_point(|token| token.line < line);
        (self.tokens.get(index)?.line == line).then_some(index)
    }

    pub fn is_test(&self, line: usize) -> bool {
        self.tests.iter().any(|lines| lines.contains(&line))
    }

    /// The innermost function around the line.
    pub fn function(&self, line: usize) -> Option<&Function> {
        let around = |function: &&Function| (function.first..=function.last).contains(&line);
        self.functions.iter().filter(around).max_by_key(|function| function.first)
    }

    pub fn in_use(&self, index: usize) -> bool {
        self.uses.iter().any(|tokens| tokens.contains(&index))
    }

    /// All imported paths, each with the token where its own part begins. A glob ends in `*`.
    pub fn imports(&self) -> Vec<(Vec<&str>, usize)> {
        let mut paths = Vec::new();
        for item in &self.uses {
            self.use_tree(item.start + 1, item.end, &[], &mut paths);
        }
        paths
    }

    /// How many inline modules (`mod name { … }`) enclose the token.
    pub fn module_depth(&self, index: usize) -> usize {
        let encloses = |open: &usize| {
            self.before(*open, 2) == "mod" && *open < index && index < self.closing[*open]
        };
        (2..index).filter(|i| self.token(*i) == "{").filter(encloses).count()
    }

    fn use_tree<'a>(
        &'a self,
        mut at: usize,
        end: usize,
        prefix: &[&'a str],
        paths: &mut Vec<(Vec<&'a str>, usize)>,
    ) {
        let mut path = prefix.to_vec();
        let first = at;
        while at < end {
            match self.token(at) {
                ":" => at += 1,
                "{" => {
                    let close = self.closing[at];
                    for part in self.split_commas(at + 1, close) {
                        self.use_tree(part.start, part.end, &path, paths);
                    }
                    return;
                }
                "as" => break,
                word => {
                    path.push(word);
                    at += 1;
                }
            }
        }
        if path.len() > prefix.len() {
            paths.push((path, first));
        }
    }

    fn split_commas(&self, start: usize, end: usize) -> Vec<Range<usize>> {
        let (mut parts, mut from, mut at) = (Vec::new(), start, start);
        while at < end {
            if self.token(at) == "," {
                parts.push(from..at);
                from = at + 1;
            }
            at = if self.token(at) == "{" { self.closing[at] + 1 } else { at + 1 };
        }
        parts.push(from..end);
        parts
    }

    fn match_brackets(&mut self) {
        let mut closing = vec![0; self.tokens.len()];
        let mut open = Vec::new();
        for index in 0..self.tokens.len() {
            match self.token(index) {
                "{" | "(" | "[" => open.push(index),
                "}" | ")" | "]" => {
                    if let Some(start) = open.pop() {
                        closing[start] = index;
                    }
                }
                _ => {}
            }
        }
        // Only in a file that does not compile.
        for start in open {
            closing[start] = self.tokens.len() - 1;
        }
        self.closing = closing;
    }

    /// The next of these tokens at the same depth of brackets.
    fn next_of(&self, mut index: usize, words: &[&str]) -> Option<usize> {
        while index < self.tokens.len() {
            let word = self.token(index);
            if words.contains(&word) {
                return Some(index);
            }
            index = if matches!(word, "{" | "(" | "[") { self.closing[index] } else { index } + 1;
        }
        None
    }

    fn find_functions(&mut self) {
        for index in 0..self.tokens.len() {
            let is_name = |name: &str| name.starts_with(|c: char| c.is_alphabetic() || c == '_');
            if self.token(index) != "fn" || !is_name(self.token(index + 1)) {
                continue;
            }
            let Some(body) = self.next_of(index + 2, &["{", ";"]) else {
                continue;
            };
            if self.token(body) == "{" {
                let name = self.token(index + 1).to_owned();
                let (first, last) = (self.line(index), self.line(self.closing[body]));
                self.functions.push(Function { name, first, last });
            }
        }
    }

    fn find_tests(&mut self) {
        for index in 0..self.tokens.len() {
            if self.stands(index, &["#", "!", "["]) && self.is_cfg_test(index + 2) {
                self.all_test = true;
            }
            let test = self.stands(index, &["#", "[", "test", "]"]);
            let cfg_test = self.stands(index, &["#", "["]) && self.is_cfg_test(index + 1);
            if test || cfg_test {
                self.add_test_item(index, cfg_test);
            }
        }
    }

    /// Whether the attribute's bracket holds a `cfg` that is true in tests only.
    fn is_cfg_test(&self, open: usize) -> bool {
        let words: Vec<&str> = (open + 1..self.closing[open]).map(|i| self.token(i)).collect();
        words.first() == Some(&"cfg")
            && words.contains(&"test")
            && !words.contains(&"not")
            && !words.contains(&"any")
    }

    fn add_test_item(&mut self, attribute: usize, cfg: bool) {
        let mut item = attribute;
        while self.stands(item, &["#", "["]) {
            item = self.closing[item + 1] + 1;
        }
        if self.token(item) == "pub" {
            item += 1;
            if self.token(item) == "(" {
                item = self.closing[item] + 1;
            }
        }
        let Some(end) = self.next_of(item, &["{", ";"]) else {
            return;
        };
        let body = self.token(end) == "{";
        let last = if body { self.closing[end] } else { end };
        if cfg && self.token(item) == "mod" {
            if body {
                self.tests_line.get_or_insert(self.line(attribute));
            } else {
                self.test_modules.push(self.token(item + 1).to_owned());
            }
        }
        self.tests.push(self.line(attribute)..self.line(last) + 1);
    }

    fn find_uses(&mut self) {
        for index in 0..self.tokens.len() {
            let begins = matches!(self.before(index, 1), "" | ";" | "{" | "}" | "]" | "pub" | ")");
            // `use<'a>` in a return type is no item.
            if self.token(index) == "use" && begins && self.token(index + 1) != "<" {
                let end = self.next_of(index, &[";"]).unwrap_or(self.tokens.len());
                self.uses.push(index..end);
            }
        }
    }
}

struct Lexer<'a> {
    bytes: &'a [u8],
    at: usize,
    line: usize,
    source: &'a mut Source,
}

impl Lexer<'_> {
    fn run(mut self) {
        while let Some(byte) = self.peek(0) {
            match byte {
                b'/' if self.peek(1) == Some(b'/') => self.line_comment(),
                b'/' if self.peek(1) == Some(b'*') => self.block_comment(),
                b'"' => self.string(),
                b'\'' => self.quote(),
                byte if byte.is_ascii_whitespace() => self.advance(1),
                byte if is_word(byte) => self.word(),
                _ => self.token(1, false),
            }
        }
    }

    fn peek(&self, ahead: usize) -> Option<u8> {
        self.bytes.get(self.at + ahead).copied()
    }

    fn advance(&mut self, bytes: usize) {
        let end = (self.at + bytes).min(self.bytes.len());
        self.line += self.bytes[self.at..end].iter().filter(|byte| **byte == b'\n').count();
        self.at = end;
    }

    fn token(&mut self, bytes: usize, literal: bool) {
        let end = (self.at + bytes).min(self.bytes.len());
        self.source.tokens.push(Token { at: self.at..end, line: self.line, literal });
        self.advance(bytes);
    }

    fn line_comment(&mut self) {
        let rest = &self.bytes[self.at..];
        let length = rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len());
        self.comment(length);
    }

    fn block_comment(&mut self) {
        let (mut length, mut depth) = (2, 1);
        while depth > 0 && self.peek(length).is_some() {
            match (self.peek(length), self.peek(length + 1)) {
                (Some(b'/'), Some(b'*')) => (length, depth) = (length + 2, depth + 1),
                (Some(b'*'), Some(b'/')) => (length, depth) = (length + 2, depth - 1),
                _ => length += 1,
            }
        }
        self.comment(length);
    }

    fn comment(&mut self, length: usize) {
        let end = (self.at + length).min(self.bytes.len());
        let text = String::from_utf8_lossy(&self.bytes[self.at..end]).into_owned();
        for (offset, part) in text.split('\n').enumerate() {
            let line = self.source.comments.entry(self.line + offset).or_default();
            line.push_str(part);
        }
        self.advance(length);
    }

    /// From the opening quote on, with escapes.
    fn string(&mut self) {
        let mut length = 1;
        while let Some(byte) = self.peek(length) {
            length += if byte == b'\\' { 2 } else { 1 };
            if byte == b'"' {
                break;
            }
        }
        self.token(length, true);
    }

    /// From the first hash or quote after `r` on.
    fn raw_string(&mut self) {
        let hashes = self.bytes[self.at..].iter().take_while(|byte| **byte == b'#').count();
        let end = format!("\"{}", "#".repeat(hashes));
        let body = &self.bytes[(self.at + hashes + 1).min(self.bytes.len())..];
        let found = body.windows(end.len()).position(|window| window == end.as_bytes());
        let length = found.map_or(body.len(), |position| position + end.len());
        self.token(hashes + 1 + length, true);
    }

    /// A character or a lifetime.
    fn quote(&mut self) {
        if self.peek(1) == Some(b'\\') {
            let rest = self.bytes.get(self.at + 3..).unwrap_or_default();
            let length = rest.iter().position(|byte| *byte == b'\'').unwrap_or(rest.len());
            return self.token(length + 4, true);
        }
        let mut width = 1;
        while self.peek(1 + width).is_some_and(|byte| byte & 0xC0 == 0x80) {
            width += 1;
        }
        if self.peek(1 + width) == Some(b'\'') {
            return self.token(width + 2, true);
        }
        let name = self.bytes[self.at + 1..].iter().take_while(|byte| is_word(**byte)).count();
        self.token(1 + name, false);
    }

    fn word(&mut self) {
        let length = self.bytes[self.at..].iter().take_while(|byte| is_word(**byte)).count();
        let word = &self.bytes[self.at..self.at + length];
        let (next, second) = (self.peek(length), self.peek(length + 1));
        let raw = matches!(word, b"r" | b"br" | b"cr");
        if raw && (next == Some(b'"') || next == Some(b'#') && matches!(second, Some(b'"' | b'#')))
        {
            self.advance(length);
            self.raw_string();
        } else if matches!(word, b"b" | b"c") && next == Some(b'"') {
            self.advance(length);
            self.string();
        } else if word == b"b" && next == Some(b'\'') {
            self.advance(length);
            self.quote();
        } else {
            self.token(length, false);
        }
    }
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte >= 0x80
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        let source = Source::parse(text);
        (0..source.count()).map(|index| source.token(index).to_owned()).collect()
    }

    #[test]
    fn strings_characters_and_comments_hide_their_content() {
        let text = concat!(
            r##"a("x \" fn y") b'{' '{' '\'' '\u{7d}' "ä" 'ä' "##,
            r##"r#"fn "z"# br"}" c"}" /* fn /* { */ } */ b // fn"##,
        );
        let literal = "\"\"";
        let mut expected = vec!["a", "(", literal, ")"];
        expected.extend([literal; 9]);
        expected.push("b");
        assert_eq!(words(text), expected);
    }

    #[test]
    fn lifetimes_and_raw_names_are_words() {
        assert_eq!(words("&'a r#type 'static"), ["&", "'a", "r", "#", "type", "'static"]);
    }

    #[test]
    fn lines_are_counted_through_strings_and_comments() {
        let source = Source::parse("/* a\nb */ x\n\"c\nd\" y");
        let lines: Vec<usize> = (0..source.count()).map(|index| source.line(index)).collect();
        assert_eq!(lines, [2, 3, 4]);
        assert_eq!(source.comments()[&1], "/* a");
        assert!(source.is_comment_only(1) && !source.is_comment_only(2));
    }

    #[test]
    fn functions_end_at_their_own_brace() {
        let text = "trait T { fn a(); fn b(x: [u8; 3]) {\n if x { }\n }\n}\nfn c<F: Fn(u8)>() {}\n";
        let source = Source::parse(text);
        let found = source.functions.iter().map(|f| (f.name.as_str(), f.first, f.last));
        assert_eq!(found.collect::<Vec<_>>(), [("b", 1, 3), ("c", 5, 5)]);
    }

    #[test]
    fn test_items_are_known_with_and_without_a_body() {
        let text = "fn a() {}\n#[cfg(test)]\nmod tests {\n}\n#[cfg(test)] mod model;\n\
            #[cfg(not(test))]\nfn b() {}\n#[test]\n#[ignore = \"x\"]\nfn c() {\n}\n";
        let source = Source::parse(text);
        let test: Vec<usize> = (1..=11).filter(|line| source.is_test(*line)).collect();
        assert_eq!(test, [2, 3, 4, 5, 8, 9, 10, 11]);
        assert_eq!(source.test_modules, ["model"]);
        assert_eq!(source.tests_line, Some(2));
    }

    #[test]
    fn imports_are_unfolded() {
        let source = Source::parse("pub use crate::{a::{B, C as D}, e::*};\nuse f;");
        let paths: Vec<String> = source.imports().iter().map(|(p, _)| p.join("::")).collect();
        assert_eq!(paths, ["crate::a::B", "crate::a::C", "crate::e::*", "f"]);
    }
}
