//! The log of a command: options that every command takes, and the variable behind them. In: words
//! and the environment. Out: a log that was started.

use clap::{Args, ValueEnum};
use rackpool_mem::log::{self, LogFormat, parse_filter};

/// A filter: `LEVEL`, or `TARGET=LEVEL` and `LEVEL` with commas between.
pub const VARIABLE: &str = "RACKPOOL_LOG";

/// What is logged, and how. Options of every command.
#[derive(Debug, Args)]
#[command(next_help_heading = "Log, on standard error")]
pub struct LogArgs {
    /// Least grave level that is logged [default: $RACKPOOL_LOG, else info in
    /// servers and warn elsewhere]
    #[arg(long, global = true, value_enum, value_name = "LEVEL")]
    log_level: Option<LogLevel>,
    /// Form of the lines
    #[arg(long, global = true, value_enum, value_name = "text|json", default_value = "text")]
    log_format: LogStyle,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum LogLevel {
    Off,
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum LogStyle {
    Text,
    Json,
}

/// What servers log as a rule.
const SERVER_LOG: &str = "info";
/// What other commands log as a rule: what a connection ended with is in their error, and a
/// master that they started themselves sees its daemons go.
const COMMAND_LOG: &str = "warn,master=off,fabric=off";

impl LogArgs {
    /// Starts the log: what the option says, else the environment, else what is usual.
    pub fn start(&self, is_server: bool) -> Result<(), String> {
        let format = match self.log_format {
            LogStyle::Text => LogFormat::Text,
            LogStyle::Json => LogFormat::Json,
        };
        let usual = if is_server { SERVER_LOG } else { COMMAND_LOG };
        let filter = match (self.log_level, std::env::var(VARIABLE)) {
            (Some(level), _) => parse_filter(&format!("{level:?}"))?,
            (None, Ok(text)) if !text.is_empty() => {
                parse_filter(&text).map_err(|error| format!("{VARIABLE}: {error}"))?
            }
            _ => parse_filter(usual)?,
        };
        log::start(filter, format);
        Ok(())
    }
}
