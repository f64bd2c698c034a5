//! Text into commands, commands into words: quotes, escapes, semicolons, comments. In: what a user
//! typed. Out: [`Words`], or a sentence about what is wrong. Pure; called by the shell alone.
//!
//! `'…'` is taken as it is. In `"…"` the escapes `\n \t \r \0 \\ \" \xNN` stand for bytes. A `;`
//! or a line end outside quotes ends a command; `#` at the start of a word begins a comment.

/// One word as bytes, and where it stood in its command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Word {
    /// The word without quotes and escapes. Bytes, because `"\xff"` is a word too.
    pub bytes: Vec<u8>,
    /// White space before the word, as typed.
    pub gap: String,
}

/// The words of one command.
pub type Words = Vec<Word>;

/// Splits text into commands and each into words; commands without words are left out.
///
/// # Errors
/// A sentence if a quote is not closed or an escape is unknown. Commands before it are lost: the
/// caller hands over whole lines.
pub fn split(text: &str) -> Vec<Result<Words, String>> {
    let mut scanner = Scanner { rest: text, commands: Vec::new(), words: Vec::new() };
    loop {
        match scanner.step() {
            Ok(true) => {}
            Ok(false) => break,
            Err(wrong) => {
                scanner.end_command();
                scanner.commands.push(Err(wrong));
                break;
            }
        }
    }
    scanner.end_command();
    scanner.commands
}

struct Scanner<'a> {
    rest: &'a str,
    commands: Vec<Result<Words, String>>,
    words: Words,
}

impl Scanner<'_> {
    /// Takes a gap and what follows it; `false` at the end.
    fn step(&mut self) -> Result<bool, String> {
        let trimmed = self.rest.trim_start_matches([' ', '\t', '\r']);
        let gap = self.rest[..self.rest.len() - trimmed.len()].to_owned();
        self.rest = trimmed;
        match self.rest.chars().next() {
            None => return Ok(false),
            Some(';' | '\n') => {
                self.rest = &self.rest[1..];
                self.end_command();
            }
            Some('#') => {
                let end = self.rest.find('\n').unwrap_or(self.rest.len());
                self.rest = &self.rest[end..];
            }
            Some(_) => {
                let word = self.word();
                // What follows a broken word is not run: it may be the inside of a quote.
                if word.is_err() {
                    self.words.clear();
                }
                self.words.push(Word { bytes: word?, gap });
            }
        }
        Ok(true)
    }

    fn end_command(&mut self) {
        if !self.words.is_empty() {
            self.commands.push(Ok(std::mem::take(&mut self.words)));
        }
    }

    fn word(&mut self) -> Result<Vec<u8>, String> {
        let mut bytes = Vec::new();
        while let Some(character) = self.rest.chars().next() {
            match character {
                ' ' | '\t' | '\r' | '\n' | ';' => break,
                '\'' => {
                    let inside = &self.rest[1..];
                    let end = inside.find('\'').ok_or("a ' is not closed")?;
                    bytes.extend_from_slice(&inside.as_bytes()[..end]);
                    self.rest = &inside[end + 1..];
                }
                '"' => {
                    self.rest = &self.rest[1..];
                    self.double_quoted(&mut bytes)?;
                }
                _ => {
                    let end = character.len_utf8();
                    bytes.extend_from_slice(&self.rest.as_bytes()[..end]);
                    self.rest = &self.rest[end..];
                }
            }
        }
        Ok(bytes)
    }

    fn double_quoted(&mut self, bytes: &mut Vec<u8>) -> Result<(), String> {
        loop {
            let special = self.rest.find(['"', '\\']).ok_or("a \" is not closed")?;
            bytes.extend_from_slice(&self.rest.as_bytes()[..special]);
            let is_end = self.rest.as_bytes()[special] == b'"';
            self.rest = &self.rest[special + 1..];
            if is_end {
                return Ok(());
            }
            let (byte, taken) = escape(self.rest)?;
            bytes.push(byte);
            self.rest = &self.rest[taken..];
        }
    }
}

/// The byte that an escape stands for, and how long the escape is behind its backslash.
fn escape(text: &str) -> Result<(u8, usize), String> {
    let byte = match text.bytes().next() {
        Some(b'n') => b'\n',
        Some(b't') => b'\t',
        Some(b'r') => b'\r',
        Some(b'0') => 0,
        Some(byte @ (b'\\' | b'"')) => byte,
        Some(b'x') => {
            let digits = text.get(1..3).filter(|two| two.bytes().all(|b| b.is_ascii_hexdigit()));
            let byte = digits.and_then(|two| u8::from_str_radix(two, 16).ok());
            return byte.map(|byte| (byte, 3)).ok_or_else(|| "\\x needs two hex digits".into());
        }
        _ => {
            let found: String = text.chars().take(1).collect();
            return Err(format!(
                "\\{found} is no escape; there are \\n \\t \\r \\0 \\\\ \\\" \\xNN"
            ));
        }
    };
    Ok((byte, 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(text: &str) -> Vec<Result<Vec<String>, String>> {
        let text_of = |word: Word| String::from_utf8_lossy(&word.bytes).into_owned();
        let commands = split(text).into_iter();
        commands.map(|command| command.map(|ws| ws.into_iter().map(text_of).collect())).collect()
    }

    fn words(text: &str) -> Vec<Vec<String>> {
        plain(text).into_iter().map(|command| command.unwrap()).collect()
    }

    #[test]
    fn semicolons_and_line_ends_separate_and_quotes_protect_them() {
        assert_eq!(
            words("a b;c\n\n ;; 'd;e' \"f;\ng\" # h; i\nj"),
            [vec!["a", "b"], vec!["c"], vec!["d;e", "f;\ng"], vec!["j"]]
        );
    }

    #[test]
    fn quotes_may_begin_inside_a_word_and_may_be_empty() {
        assert_eq!(words("text:'a b'c\"d e\" ''"), [vec!["text:a bcd e", ""]]);
        assert_eq!(words("text:a#b"), [vec!["text:a#b"]]);
    }

    #[test]
    fn escapes_mean_bytes_in_double_quotes_only() {
        let commands = split(r#""\n\t\r\0\\\"\xff" '\n' \n"#);
        let bytes: Vec<_> = commands[0].as_ref().unwrap().iter().map(|w| &w.bytes[..]).collect();
        assert_eq!(bytes, [b"\n\t\r\0\\\"\xff" as &[u8], b"\\n", b"\\n"]);
    }

    #[test]
    fn commands_before_a_broken_one_survive_and_nothing_after_it_does() {
        for broken in ["'b; c", "\"b; c", "\"b\\q\"; c", "\"\\x1\"; c", "x \"\\xé\"; c"] {
            let commands = plain(&format!("a; {broken}"));
            assert_eq!(commands.len(), 2, "{commands:?}");
            assert_eq!(commands[0], Ok(vec!["a".to_owned()]));
            assert!(commands[1].is_err(), "{commands:?}");
        }
    }

    #[test]
    fn gaps_are_kept_as_typed() {
        let commands = split("put n  text:a \t b");
        let gaps: Vec<_> = commands[0].as_ref().unwrap().iter().map(|w| w.gap.as_str()).collect();
        assert_eq!(gaps, ["", " ", "  ", " \t "]);
    }
}
