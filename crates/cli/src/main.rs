//! The `rackpool` command: servers, a shell, benchmarks, and a demonstration that puts all of
//! them together. The command line is a contract (DESIGN §5): programs outside call it.
//!
//! `main` parses, runs one command and prints its failure as `error CODE message`. Exit codes:
//! 0 done, or a server that was asked to stop; 1 failed; 2 wrong usage; 128 and its number if a
//! signal ended a command that is no server (130 for SIGINT); `tiers run` ends as its program does.
//! Nothing here is called elsewhere.
#![forbid(unsafe_code)]

mod agent;
mod agent_args;
mod args;
mod bench;
mod children;
mod connect;
mod demo;
mod doctor;
mod environment;
mod failure;
mod fsck;
mod inspect;
mod interrupt;
mod kv;
mod kv_args;
mod kv_behind;
mod kv_config;
mod kv_directives;
mod kv_files;
mod kv_flash;
mod kv_pmem;
mod kv_switch;
mod kv_tiering;
#[cfg(feature = "lab")]
mod lab;
#[cfg(not(feature = "lab"))]
#[path = "without_lab.rs"]
mod lab;
mod log_args;
mod member_args;
mod members;
mod memory_speeds;
mod output;
mod periodic;
mod servers;
mod shell;
mod tiers;
mod tiers_advise;
mod tiers_apply;
mod tiers_args;
mod tiers_balance;
mod tiers_measure;
mod tiers_run;
mod tiers_weights;
mod top;
mod values;
mod worker;

use args::{Cli, Command};
use clap::Parser;
use failure::{EXIT_FAILED, EXIT_USAGE, Failure, Result};
use rackpool_mem::log;
use std::process::ExitCode;

fn main() -> ExitCode {
    // The system does not refuse handlers of signals that it knows.
    let _ = rackpool_mem::process::install_fault_handlers();
    log::report_panics();
    // A panic has been said.
    let code = std::panic::catch_unwind(run_command).unwrap_or(ExitCode::from(EXIT_FAILED));
    log::flush();
    code
}

fn run_command() -> ExitCode {
    let words = match kv_config::expanded(std::env::args_os().collect()) {
        Ok(words) => words,
        Err(failure) => return finish(Err(failure)),
    };
    let cli = match Cli::try_parse_from(words) {
        Ok(cli) => cli,
        Err(error) => return usage(&error),
    };
    if let Some(args) = program(&cli.command) {
        return tiers_run::run(args);
    }
    let is_server = is_server(&cli.command);
    if is_server {
        log::end_at_panic();
    }
    let logs = cli.log.start(is_server).map_err(Failure::usage);
    finish(logs.and_then(|()| interrupt::install(is_server)).and_then(|()| run(&cli.command)))
}

/// The exit code of a command, and its last line if it failed.
fn finish(ended: Result<()>) -> ExitCode {
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        // The reader closed the pipe: it has read enough.
        Err(failure) if failure.is_broken_pipe() => ExitCode::SUCCESS,
        Err(failure) => {
            interrupt::end_if_asked();
            // Not written here: a server does not wait for a reader of its log.
            log::line(failure.to_string());
            ExitCode::from(failure.exit_code())
        }
    }
}

/// A program that is run in our place: signals are its own.
fn program(command: &Command) -> Option<&tiers_run::TiersRunArgs> {
    let Command::Tiers(args::TiersArgs { command: args::TiersCommand::Run(args) }) = command else {
        return None;
    };
    Some(args)
}

fn is_server(command: &Command) -> bool {
    use Command::{Agent, Daemon, Kv, Master};
    matches!(command, Master(_) | Daemon(_) | Agent(_) | Kv(_))
}

fn run(command: &Command) -> Result<()> {
    match command {
        Command::Demo(args) => demo::run(args),
        Command::Master(args) => servers::master(args),
        Command::Daemon(args) => servers::daemon(args),
        Command::Agent(args) => agent::agent(args),
        Command::Fence(args) => agent::fence(args),
        Command::Shell(args) => shell::run(args),
        Command::Racks(args) => members::racks(args),
        Command::Drain(args) => members::drain(args),
        Command::Undrain(args) => members::undrain(args),
        Command::Forget(args) => members::forget(args),
        Command::Tiers(args) => tiers::run(args),
        Command::Top(args) => top::run(args),
        Command::Kv(args) => kv::run(args),
        Command::Bench(args) => bench::run(args),
        Command::Lab(command) => lab::run(command),
        Command::Doctor(args) => doctor::run(args),
        Command::Fsck(args) => fsck::run(args),
        Command::Inspect(args) => inspect::run(args),
        Command::Worker(args) => worker::run(args),
        Command::YcsbWorker => worker::run_ycsb(),
        Command::LocksWorker => worker::run_locks(),
    }
}

/// Help and version are answers; everything else that clap says is wrong usage.
fn usage(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() {
        return finish(output::print(&error.to_string()));
    }
    let text = error.to_string();
    output::say(&match text.strip_prefix("error: ") {
        Some(rest) => format!("error usage {}", rest.trim_end()),
        None => text.trim_end().to_owned(),
    });
    ExitCode::from(EXIT_USAGE)
}
