//! `bench files`: a tree of small files and some long ones into rack 0 and out of rack 1, by the
//! shell's `put -r` and `get -r`, beside `cp -r` to and from a directory in memory. Both sides are
//! processes that are started and waited for, in turn. What comes out is compared byte by byte.

use crate::args::BenchArgs;
use crate::bench::{own_command, watch};
use crate::children::{Cluster, ClusterOptions, Residue};
use crate::connect::OBJECTS;
use crate::failure::{Failure, Result};
use rackpool::{Emulate, Handle, Options, Pool};
use rackpool_bench::report::{Better, Kind, Reference, Report, Row};
use rackpool_bench::run::{Progress, Size};
use rackpool_mem::temporary::TemporaryDir;
use rackpool_stats::random::Rng;
use rackpool_stats::sample::quantile;
use rackpool_table::Table;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

/// Where the raw side copies to and from: memory, as on its side of ours.
const MEMORY_DIR: &str = "/dev/shm";
const LONG_FILE_BYTES: usize = 64 << 20;
/// Objects that are removed at once.
const REMOVE_BATCH: usize = 64;
/// Names the files' contents; any other would do.
const SEED: u64 = 38;

struct FileTree {
    name: &'static str,
    path: PathBuf,
    files: u64,
    bytes: u64,
}

/// Small files, bytes of the long ones, rounds.
fn shape(size: Size) -> (u64, usize, usize) {
    match size {
        Size::Smoke => (50, LONG_FILE_BYTES, 1),
        Size::Quick => (3_000, 4 * LONG_FILE_BYTES, 3),
        Size::Full => (3_000, 16 * LONG_FILE_BYTES, 5),
    }
}

pub fn measure(args: &BenchArgs) -> Result<Report> {
    let size = Size::quick(args.quick);
    let (files, long_bytes, rounds) = shape(size);
    let residue = Residue::prepare()?;
    // The long files in whole pages, the small ones in slabs of powers of two.
    let rack_bytes = long_bytes as u64 + (256 << 20);
    let options = ClusterOptions::new(2, rack_bytes, args.fabric, args.emulate);
    let cluster = Cluster::start(&options, &residue)?;
    let failed = |error| Failure::io("a directory in memory", &error);
    let directory = TemporaryDir::new(Path::new(MEMORY_DIR), "files").map_err(failed)?;
    let mut handle = Pool::open(Options::new(&cluster.master_addr, 0))?.handle()?;
    watch(|say| {
        let mut done = 0;
        let mut begin = |name: &str| {
            say(Progress { name: name.to_owned(), done, steps: 2 + 2 * rounds });
            done += 1;
        };
        begin("making files");
        let trees = [
            small_files(directory.path(), files)?,
            long_files(directory.path(), long_bytes / LONG_FILE_BYTES)?,
        ];
        let kind = match args.emulate {
            Some(emulate) if emulate != Emulate::default() => Kind::Emulated,
            _ => Kind::Measured,
        };
        let mut report = Report::here(kind);
        for tree in &trees {
            let mut rounds_of = FileRounds::default();
            for round in 0..rounds {
                begin(tree.name);
                let run = FileRun { tree, master: &cluster.master_addr, to: directory.path() };
                run.round(&mut handle, round, &mut rounds_of)?;
            }
            report.results.extend(rounds_of.rows(tree));
        }
        report.extra.insert("rounds".into(), rounds.into());
        report.extra.insert("size".into(), size.name().into());
        Ok(report)
    })
}

fn write_file(path: &Path, bytes: usize, rng: &mut Rng) -> Result<()> {
    let mut data = vec![0; bytes];
    for chunk in data.chunks_mut(8) {
        chunk.copy_from_slice(&rng.next_u64().to_le_bytes()[..chunk.len()]);
    }
    fs::write(path, data).map_err(|error| Failure::file(path, &error))
}

/// As in a tree of sources: most files have some thousand bytes, a few many more.
fn small_files(directory: &Path, files: u64) -> Result<FileTree> {
    let path = directory.join("tree");
    let mut rng = Rng::new(SEED);
    let mut bytes = 0;
    for index in 0..files {
        let below = path.join(format!("dir{}/sub{}", index / 256, index / 32 % 8));
        fs::create_dir_all(&below).map_err(|error| Failure::file(&below, &error))?;
        let shift = rng.next_u64() % 7;
        let length = 256 + (rng.next_u64() % (512 << shift)) as usize;
        write_file(&below.join(format!("file{index}.rs")), length, &mut rng)?;
        bytes += length as u64;
    }
    Ok(FileTree { name: "tree", path, files, bytes })
}

fn long_files(directory: &Path, files: usize) -> Result<FileTree> {
    let path = directory.join("big");
    fs::create_dir_all(&path).map_err(|error| Failure::file(&path, &error))?;
    let mut rng = Rng::new(SEED + 1);
    for index in 0..files {
        write_file(&path.join(format!("file{index}")), LONG_FILE_BYTES, &mut rng)?;
    }
    let bytes = (files * LONG_FILE_BYTES) as u64;
    Ok(FileTree { name: "big", path, files: files as u64, bytes })
}

/// Seconds of each round: ours and raw, in and out.
#[derive(Default)]
struct FileRounds {
    ours: [Vec<f64>; 2],
    raw: [Vec<f64>; 2],
}

impl FileRounds {
    fn rows(&self, tree: &FileTree) -> Vec<Row> {
        let rate = |seconds: &[f64]| tree.bytes as f64 / quantile(seconds, 0.5);
        let row = |(index, way): (usize, &str)| {
            Row::new(
                &format!("{}_{way}", tree.name),
                "B/s",
                Better::Higher,
                rate(&self.ours[index]),
            )
            .against(Reference::Raw(rate(&self.raw[index])))
            .samples(self.ours[index].len() as u64)
            .with("files", tree.files)
            .with("bytes", tree.bytes)
            .with("files_per_s", tree.files as f64 / quantile(&self.ours[index], 0.5))
        };
        ["in", "out"].into_iter().enumerate().map(row).collect()
    }
}

struct FileRun<'r> {
    tree: &'r FileTree,
    master: &'r str,
    /// The directory that copies are made in.
    to: &'r Path,
}

impl FileRun<'_> {
    /// In and out, ours and raw; which of the two goes first changes.
    fn round(&self, handle: &mut Handle, round: usize, seen: &mut FileRounds) -> Result<()> {
        let (copy, out) = (self.to.join("copy"), self.to.join("out"));
        let back = self.to.join("back");
        for ours in [round.is_multiple_of(2), !round.is_multiple_of(2)] {
            if ours {
                seen.ours[0].push(self.shell(0, &["put", "-r", &text(&self.tree.path)?])?);
                let prefix = self.tree.name;
                seen.ours[1].push(self.shell(1, &["get", "-r", prefix, &text(&out)?])?);
                same(&self.tree.path, &out, self.tree.files)?;
                remove(&[&out])?;
                clear(handle)?;
            } else {
                seen.raw[0].push(copy_tree(&self.tree.path, &copy)?);
                seen.raw[1].push(copy_tree(&copy, &back)?);
                remove(&[&copy, &back])?;
            }
        }
        Ok(())
    }

    /// Seconds that a command of the shell takes as a client of a rack.
    fn shell(&self, rack: u16, words: &[&str]) -> Result<f64> {
        let mut start = own_command("shell")?;
        let mut command = start(0);
        command.args(["--rack", &rack.to_string(), "--master", self.master]).args(words);
        timed(&mut command, "the shell")
    }
}

fn text(path: &Path) -> Result<String> {
    let text = path.to_str().map(str::to_owned);
    text.ok_or_else(|| Failure::new("io", "the name of a temporary directory is no text"))
}

fn remove(directories: &[&Path]) -> Result<()> {
    let remove =
        |path: &&Path| fs::remove_dir_all(path).map_err(|error| Failure::file(path, &error));
    directories.iter().try_for_each(remove)
}

fn timed(command: &mut Command, what: &str) -> Result<f64> {
    let command = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let start = Instant::now();
    let output = command.output().map_err(|error| Failure::io(what.to_owned(), &error))?;
    let seconds = start.elapsed().as_secs_f64();
    match output.status.success() {
        true => Ok(seconds),
        false => {
            let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            Err(Failure::new("worker", format!("{what}: {said}")))
        }
    }
}

fn copy_tree(from: &Path, to: &Path) -> Result<f64> {
    timed(Command::new("cp").arg("-r").arg(from).arg(to), "cp")
}

/// Whether every file below `from` is below `to` with the same bytes.
fn same(from: &Path, to: &Path, files: u64) -> Result<()> {
    let mut compared = 0;
    let mut directories = vec![PathBuf::new()];
    while let Some(directory) = directories.pop() {
        let here = from.join(&directory);
        let failed = |error| Failure::file(&here, &error);
        for entry in fs::read_dir(&here).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = directory.join(entry.file_name());
            if entry.file_type().map_err(failed)?.is_dir() {
                directories.push(name);
                continue;
            }
            let read =
                |path: PathBuf| fs::read(&path).map_err(|error| Failure::file(&path, &error));
            if read(from.join(&name))? != read(to.join(&name))? {
                let name = name.display();
                return Err(Failure::new("corrupt", format!("{name} came out differently")));
            }
            compared += 1;
        }
    }
    match compared == files {
        true => Ok(()),
        false => Err(Failure::new("corrupt", format!("{compared} of {files} files came out"))),
    }
}

fn clear(handle: &mut Handle) -> Result<()> {
    let mut objects = Table::open(handle, OBJECTS)?;
    let names: Vec<_> = objects.list(handle, b"")?.into_iter().map(|(name, _)| name).collect();
    for names in names.chunks(REMOVE_BATCH) {
        for removed in objects.delete_many(handle, names) {
            removed?;
        }
    }
    objects.flush(handle);
    Ok(())
}
