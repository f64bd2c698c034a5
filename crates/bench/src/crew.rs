//! The client processes of a run: started by a command of the caller, told what to do in lines
//! of JSON, and gone when their owner is dropped. A client that says nothing for too long, says
//! what it should not or ends by itself fails the run with its number and its last words.
//!
//! Each client has two threads here, which read its standard output and its standard error; they
//! end with it.

use crate::run::{BenchError, io_error};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::{BufRead, BufReader, Read, Write};
use std::marker::PhantomData;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a client may be silent beyond the time that its order takes.
const SILENCE_MAX: Duration = Duration::from_secs(120);
/// How long a client may take to end by itself.
const END_WITHIN: Duration = Duration::from_secs(5);
/// How long the last answer of a client that has ended may be on its way.
const LAST_ANSWER_WITHIN: Duration = Duration::from_secs(1);
/// Bytes of a client's standard error that an error shows.
const LAST_WORDS_BYTES: u64 = 2000;

pub(crate) trait WorkerReply: DeserializeOwned {
    /// Code and reason, if it says that the client failed.
    fn failure(&self) -> Option<(&str, &str)>;
    /// Whether it says that the client waits for a run to begin.
    fn is_ready(&self) -> bool;
}

/// The clients, which answer with `A`.
pub(crate) struct Crew<A> {
    clients: Vec<ClientProcess>,
    lines: Receiver<Line>,
    answers: PhantomData<A>,
}

/// A line of a client's standard output, or its end.
type Line = (u32, Option<String>);

struct ClientProcess {
    child: Child,
    orders: Option<ChildStdin>,
    last_words: Option<JoinHandle<String>>,
}

impl<A: WorkerReply> Crew<A> {
    pub(crate) fn start(
        count: u32,
        command: &mut dyn FnMut(u32) -> Command,
    ) -> Result<Self, BenchError> {
        let (sender, lines) = channel();
        let mut crew = Self { clients: Vec::new(), lines, answers: PhantomData };
        for client in 0..count {
            crew.clients.push(ClientProcess::start(client, command(client), sender.clone())?);
        }
        Ok(crew)
    }

    #[cfg(feature = "lab")]
    pub(crate) fn pids(&self) -> Vec<u32> {
        self.clients.iter().map(|client| client.child.id()).collect()
    }

    /// Says a line to one client.
    pub(crate) fn tell(&mut self, client: u32, what: &impl Serialize) -> Result<(), BenchError> {
        let mut line = serde_json::to_string(what).expect("orders are plain data");
        line.push('\n');
        let process = &mut self.clients[client as usize];
        let orders = process.orders.as_mut().expect("open until the end");
        match orders.write_all(line.as_bytes()).and_then(|()| orders.flush()) {
            Ok(()) => Ok(()),
            // Its own words tell more than the broken pipe.
            Err(_) => Err(self.ended(client)),
        }
    }

    /// Says a line to all clients.
    pub(crate) fn tell_all(&mut self, order: &impl Serialize) -> Result<(), BenchError> {
        (0..self.clients.len() as u32).try_for_each(|client| self.tell(client, order))
    }

    /// Waits until all clients are ready for a run.
    pub(crate) fn await_ready(&mut self) -> Result<(), BenchError> {
        self.gather(Duration::ZERO, |answer| if answer.is_ready() { Ok(()) } else { Err(answer) })
    }

    /// Lets the clients end, and waits for them.
    pub(crate) fn end(mut self) -> Result<(), BenchError> {
        for process in &mut self.clients {
            process.orders = None;
        }
        for client in 0..self.clients.len() as u32 {
            if !self.clients[client as usize].ends_well() {
                return Err(self.ended(client));
            }
        }
        Ok(())
    }

    /// Takes one answer of each client, in any order. `take` gives back what is out of turn.
    pub(crate) fn gather(
        &mut self,
        takes: Duration,
        mut take: impl FnMut(A) -> Result<(), A>,
    ) -> Result<(), BenchError> {
        let mut waiting = vec![true; self.clients.len()];
        let deadline = Instant::now() + takes + SILENCE_MAX;
        while waiting.contains(&true) {
            let left = deadline.saturating_duration_since(Instant::now());
            let (client, line) = match self.lines.recv_timeout(left) {
                Ok(line) => line,
                Err(RecvTimeoutError::Timeout) => {
                    let silent = waiting.iter().position(|&waits| waits).unwrap_or(0);
                    let end = format!("client process {silent}");
                    let waited_s = (takes + SILENCE_MAX).as_secs();
                    return Err(BenchError::Silent { end, waited_s });
                }
                Err(RecvTimeoutError::Disconnected) => return Err(self.ended(0)),
            };
            let Some(line) = line else { return Err(self.ended(client)) };
            let wrong = |reason: String| Err(BenchError::Worker { client, reason });
            let answer: A = match serde_json::from_str(&line) {
                Ok(answer) => answer,
                Err(error) => return wrong(format!("it said \"{line}\": {error}")),
            };
            if let Some((code, reason)) = answer.failure() {
                return wrong(format!("{code}: {reason}"));
            }
            if !std::mem::replace(&mut waiting[client as usize], false) {
                return wrong(format!("it answered twice: \"{line}\""));
            }
            if take(answer).is_err() {
                return wrong(format!("an answer out of its turn: \"{line}\""));
            }
        }
        Ok(())
    }

    /// Why a client is gone.
    fn ended(&mut self, client: u32) -> BenchError {
        let process = &mut self.clients[client as usize];
        process.orders = None;
        process.ends_well();
        process.stop();
        let status = process.child.try_wait().ok().flatten();
        let status = status.map_or_else(|| "it ended".to_owned(), |status| status.to_string());
        let words = process.last_words.take().and_then(|words| words.join().ok());
        let words = words.unwrap_or_default();
        // An answer may be on its way that says what went wrong; its end is the last line.
        let deadline = Instant::now() + LAST_ANSWER_WITHIN;
        let left = || deadline.saturating_duration_since(Instant::now());
        while let Ok((from, line)) = self.lines.recv_timeout(left()) {
            let Some(line) = line else {
                if from == client {
                    break;
                }
                continue;
            };
            let answer = serde_json::from_str::<A>(&line).ok().filter(|_| from == client);
            if let Some((code, reason)) = answer.as_ref().and_then(A::failure) {
                return BenchError::Worker { client, reason: format!("{code}: {reason}") };
            }
        }
        BenchError::Worker { client, reason: format!("{status}: {}", words.trim_end()) }
    }
}

impl ClientProcess {
    fn start(client: u32, mut command: Command, lines: Sender<Line>) -> Result<Self, BenchError> {
        let started =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let mut child = started.map_err(io_error(format!("starting client process {client}")))?;
        let (output, errors) = (child.stdout.take(), child.stderr.take());
        let output = output.expect("standard output was asked for");
        let errors = errors.expect("standard error was asked for");
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if lines.send((client, Some(line))).is_err() {
                    return;
                }
            }
            // The receiver is gone when the run is over.
            let _ = lines.send((client, None));
        });
        let last_words = std::thread::spawn(move || {
            let mut errors = BufReader::new(errors);
            let mut words = Vec::new();
            let _ = errors.by_ref().take(LAST_WORDS_BYTES).read_to_end(&mut words);
            // The rest is read too: a full pipe would stop the client.
            let _ = std::io::copy(&mut errors, &mut std::io::sink());
            String::from_utf8_lossy(&words).into_owned()
        });
        let orders = child.stdin.take();
        Ok(Self { child, orders, last_words: Some(last_words) })
    }

    /// Waits for the end of a client after that of its input; whether it was a good one.
    fn ends_well(&mut self) -> bool {
        let deadline = Instant::now() + END_WITHIN;
        while Instant::now() < deadline {
            match self.child.try_wait() {
                Ok(Some(status)) => return status.success(),
                Ok(None) => std::thread::sleep(Duration::from_millis(2)),
                Err(_) => return false,
            }
        }
        false
    }

    fn stop(&mut self) {
        // Fails only if it has ended, which is what is wanted.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl<A> Drop for Crew<A> {
    fn drop(&mut self) {
        self.clients.iter_mut().for_each(ClientProcess::stop);
    }
}

/// A client's next order; `None` once its parent has no more.
pub(crate) fn next_order<T: DeserializeOwned>(
    input: &mut dyn BufRead,
) -> Result<Option<T>, BenchError> {
    let mut line = String::new();
    if input.read_line(&mut line).map_err(io_error("the parent's orders"))? == 0 {
        return Ok(None);
    }
    serde_json::from_str(&line).map(Some).map_err(|error| {
        let reason = format!("\"{}\": {error}", line.trim_end());
        BenchError::Option { option: "order", reason }
    })
}

pub(crate) fn say(output: &mut dyn Write, answer: &impl Serialize) -> Result<(), BenchError> {
    let mut line = serde_json::to_string(answer).expect("answers are plain data");
    line.push('\n');
    let written = output.write_all(line.as_bytes()).and_then(|()| output.flush());
    written.map_err(io_error("an answer to the parent"))
}

/// How a client ends; a failure is said as the answer that `failed` makes of code and reason.
pub(crate) fn end_with<A: Serialize>(
    outcome: Result<(), BenchError>,
    output: &mut dyn Write,
    failed: impl FnOnce(String, String) -> A,
) -> Result<(), BenchError> {
    if let Err(error) = &outcome {
        // If even that cannot be said, the parent sees the end of the process.
        let _ = say(output, &failed(error.code().into(), error.to_string()));
    }
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(serde::Deserialize)]
    #[serde(tag = "answer", rename_all = "snake_case")]
    enum TestReply {
        Loaded,
        Ready,
        Failed { code: String, reason: String },
    }

    impl WorkerReply for TestReply {
        fn failure(&self) -> Option<(&str, &str)> {
            match self {
                TestReply::Failed { code, reason } => Some((code, reason)),
                TestReply::Loaded | TestReply::Ready => None,
            }
        }

        fn is_ready(&self) -> bool {
            matches!(self, TestReply::Ready)
        }
    }

    fn load(crew: &mut Crew<TestReply>) -> Result<(), BenchError> {
        crew.tell_all(&"load")?;
        crew.gather(Duration::ZERO, |answer| match answer {
            TestReply::Loaded => Ok(()),
            other => Err(other),
        })
    }

    fn shell(script: &str) -> Crew<TestReply> {
        let mut command = |_| {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            command
        };
        Crew::start(1, &mut command).unwrap()
    }

    #[test]
    fn a_client_that_dies_fails_the_run_with_its_last_words() {
        let mut crew = shell("read order; echo no memory >&2; exit 3");
        let error = load(&mut crew).unwrap_err();
        assert_eq!(error.code(), "worker");
        let text = error.to_string();
        assert!(text.contains("no memory") && text.contains('3'), "{text}");
    }

    #[test]
    fn a_client_that_says_why_it_failed_is_quoted() {
        let script = r#"read order; echo '{"answer":"failed","code":"full","reason":"no room"}'"#;
        let text = load(&mut shell(script)).unwrap_err().to_string();
        assert!(text.contains("full: no room"), "{text}");
    }

    #[test]
    fn nonsense_and_answers_out_of_turn_are_errors() {
        for said in ["hello", r#"{"answer":"ready"}"#] {
            let mut crew = shell(&format!("read order; echo '{said}'; cat > /dev/null"));
            assert!(load(&mut crew).unwrap_err().to_string().contains(said));
        }
    }

    #[test]
    fn a_client_that_cannot_be_started_is_an_error() {
        let mut command = |_| Command::new("/nonexistent/program");
        assert_eq!(Crew::<TestReply>::start(1, &mut command).err().unwrap().code(), "io");
    }
}
