//! The reader of `--config FILE` with what people write and worse: lines that are changed, cut,
//! repeated and mixed. Nothing panics, what is refused is refused with a line that is there, and
//! what is taken is taken by the command line as well.

use super::*;
use rackpool_stats::random::Rng;

/// Inputs of an ordinary run.
const INPUTS: u64 = 2000;

const LINES: [&str; 27] = [
    "# a cache",
    "",
    "port 6380",
    "bind 127.0.0.1 -::1",
    "maxmemory 100mb",
    "maxmemory-policy allkeys-lru",
    "maxclients 77",
    "timeout 300",
    "databases 4",
    "requirepass \"a \\\"b\\\"\\n\"",
    "slowlog-log-slower-than -1",
    "io-threads 3",
    "unixsocket '/tmp/a b.sock'",
    "unixsocketperm 770",
    "proto-max-bulk-len 1k",
    "appendonly no",
    "save \"\"",
    "memcached 11212",
    "insecure-open yes",
    "protected-mode no",
    "items 10",
    "tls-port 6381",
    "tls-cert-file /c",
    "tls-key-file /k",
    "tls-auth-clients no",
    "resp 127.0.0.1:1",
    "\u{e9}\u{2003}x \u{1f600}",
];

/// Pieces that mean something to the reader, and numbers at the ends of their ranges.
const PIECES: [&str; 16] = [
    "\"",
    "'",
    "\\",
    "\n",
    "\r",
    "\0",
    "#",
    " ",
    "\t",
    "\u{a0}",
    "-1",
    "0",
    "65536",
    "18446744073709551616",
    "99999999999gb",
    "=",
];

fn pick<'a>(rng: &mut Rng, all: &[&'a str]) -> &'a str {
    all[rng.below(all.len() as u64) as usize]
}

/// The place of a letter, or the end.
fn place(rng: &mut Rng, text: &str) -> usize {
    let at = rng.below(text.len() as u64 + 1) as usize;
    (0..=at).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0)
}

fn text(rng: &mut Rng) -> String {
    let mut text = String::new();
    for _ in 0..rng.below(6) {
        text += pick(rng, &LINES);
        text += if rng.below(8) == 0 { "\r\n" } else { "\n" };
    }
    for _ in 0..rng.below(4) {
        let (from, to) = (place(rng, &text), place(rng, &text));
        let (from, to) = (from.min(to), from.max(to));
        match rng.below(4) {
            0 => text.insert_str(from, pick(rng, &PIECES)),
            1 => text.replace_range(from..to, ""),
            2 => {
                let piece = text[from..to].to_owned();
                text.insert_str(from, &piece);
            }
            _ => text.insert_str(from, pick(rng, &LINES)),
        }
    }
    text
}

fn read_text(text: &str) -> Result<Configuration, String> {
    let at = |line: usize, what: &str| Failure::usage(format!("{line}: {what}"));
    configuration_of(text, at).map_err(|failure| failure.message().to_owned())
}

/// The word in quotes, from which it is read again.
fn in_quotes(word: &str) -> String {
    let escaped = |letter: char| match letter {
        '\n' => "\\n".to_owned(),
        '"' | '\\' => format!("\\{letter}"),
        other => other.to_string(),
    };
    format!("\"{}\"", word.chars().map(escaped).collect::<String>())
}

fn check_read(text: &str) -> bool {
    let read = match read_text(text) {
        Ok(read) => read,
        Err(said) => {
            let line = said.split_once(": ").and_then(|(line, _)| line.parse::<usize>().ok());
            let count = text.lines().count();
            assert!(line.is_some_and(|line| (1..=count).contains(&line)), "{text:?}: {said}");
            return false;
        }
    };
    let command = KvArgs::augment_args(Command::new("kv"));
    for directive in &read.directives {
        assert_eq!(check(&command, directive), Ok(()), "{text:?}");
    }
    // Notes and blanks between the lines say nothing, and quotes only keep words together.
    let quoted = |line: &str| -> String {
        let words = words_of(line).expect("it was read");
        words.iter().map(|word| in_quotes(word)).collect::<Vec<_>>().join("\t ")
    };
    let lines = text.lines().map(quoted);
    let spaced: String = lines.map(|line| format!(" # \"a note\n\n  {line} \n")).collect();
    let again = read_text(&spaced).expect("it means the same");
    assert_eq!(again.directives, read.directives, "{text:?}");
    assert_eq!(again.password, read.password, "{text:?}");
    true
}

/// `RACKPOOL_CONFIG_INPUTS` for more of them.
#[test]
fn every_file_is_read_or_refused_with_its_line() {
    let inputs = std::env::var("RACKPOOL_CONFIG_INPUTS").ok();
    let inputs = inputs.map_or(INPUTS, |count| count.parse().expect("a number"));
    let mut rng = Rng::new(1);
    let taken = (0..inputs).filter(|_| check_read(&text(&mut rng))).count() as u64;
    println!("fuzz: {inputs} files, {taken} were read");
    assert!((inputs / 20..inputs * 19 / 20).contains(&taken), "{taken} of {inputs} were read");
}
