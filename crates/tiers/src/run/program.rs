//! Which file a program is, and whether a library can be preloaded into it.

use super::RunError;
use rustix::fs::{Access, access};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Scripts that scripts are run by; the kernel's limit.
const SCRIPTS_MAX: u32 = 5;
const PT_INTERP: u32 = 3;
/// What a kernel looks at, to tell a program from a script.
const START_BYTES: u64 = 256;
const HEADER_BYTES: usize = 64;
const SEGMENT_BYTES: usize = 56;
const SEGMENTS_MAX: u16 = 512;
/// What this machine runs: `e_machine`.
const MACHINE: u16 = if cfg!(target_arch = "aarch64") { 183 } else { 62 };

/// The file of a program: as it is named, or the first one in `PATH`.
///
/// # Errors
/// [`RunError::NoProgram`], [`RunError::NotRun`].
pub fn find(program: &OsStr) -> Result<PathBuf, RunError> {
    let no_program = || RunError::NoProgram { program: program.to_string_lossy().into_owned() };
    let named = Path::new(program);
    let candidates: Vec<PathBuf> = if program.as_bytes().contains(&b'/') {
        vec![named.to_owned()]
    } else {
        let path =
            std::env::var_os("PATH").unwrap_or_else(|| "/usr/local/bin:/bin:/usr/bin".into());
        std::env::split_paths(&path).map(|folder| folder.join(named)).collect()
    };
    let there = candidates.into_iter().filter(|path| path.exists() && !program.is_empty());
    let there: Vec<PathBuf> = there.collect();
    let may_run =
        |path: &&PathBuf| path.is_file() && access(path.as_path(), Access::EXEC_OK).is_ok();
    if let Some(path) = there.iter().find(may_run) {
        return Ok(path.clone());
    }
    let path = there.first().ok_or_else(no_program)?.clone();
    Err(RunError::NotRun { path, source: io::ErrorKind::PermissionDenied.into() })
}

/// That a library can be preloaded into a program, or into what runs a script.
pub(super) fn require_dynamic(path: &Path) -> Result<(), RunError> {
    let mut path = path.to_owned();
    for _ in 0..SCRIPTS_MAX {
        match look(&path)? {
            Some(interpreter) => path = interpreter,
            None => return Ok(()),
        }
    }
    Ok(())
}

/// The program that runs this one, if it is a script.
fn look(path: &Path) -> Result<Option<PathBuf>, RunError> {
    let failed = |source: io::Error| RunError::NotRun { path: path.to_owned(), source };
    let unsuited = |why| RunError::Unsuited { path: path.to_owned(), why };
    let file = match File::open(path) {
        // It may be run and not be read: what it is cannot be seen.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Ok(None),
        file => file.map_err(failed)?,
    };
    let about = file.metadata().map_err(failed)?;
    let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
    let is_other_user = about.mode() & 0o4000 != 0 && about.uid() != user.as_raw();
    let is_other_group = about.mode() & 0o2000 != 0 && about.gid() != group.as_raw();
    let mut capability = [0_u8; 64];
    let has_rights = !user.is_root()
        && rustix::fs::getxattr(path, "security.capability", &mut capability[..]).is_ok();
    if is_other_user || is_other_group || has_rights {
        return Err(unsuited("it runs with the rights of another user or more (setuid)"));
    }
    let mut start = Vec::new();
    (&file).take(START_BYTES).read_to_end(&mut start).map_err(failed)?;
    if let Some(line) = start.strip_prefix(b"#!") {
        let line = line.split(|byte| *byte == b'\n').next().unwrap_or_default();
        let word = line.split(|byte| matches!(byte, b' ' | b'\t')).find(|word| !word.is_empty());
        return Ok(word.map(|word| PathBuf::from(OsStr::from_bytes(word))));
    }
    if !start.starts_with(b"\x7fELF") || start.len() < HEADER_BYTES {
        // The kernel will say what it thinks of it.
        return Ok(None);
    }
    if start[4] != 2 || u16::from_le_bytes([start[18], start[19]]) != MACHINE {
        return Err(unsuited("it is for another kind of processor, or for 32 bits"));
    }
    match has_interpreter(&file, &start).map_err(failed)? {
        true => Ok(None),
        false => Err(RunError::Static { path: path.to_owned() }),
    }
}

/// Whether the program is begun by a dynamic loader: it has a segment with the loader's name.
fn has_interpreter(file: &File, header: &[u8]) -> io::Result<bool> {
    let offset = u64::from_le_bytes(header[32..40].try_into().expect("8 bytes"));
    let count = u16::from_le_bytes([header[56], header[57]]).min(SEGMENTS_MAX);
    let bytes = usize::from(u16::from_le_bytes([header[54], header[55]]));
    if bytes < SEGMENT_BYTES {
        return Ok(false);
    }
    let mut segments = vec![0; usize::from(count) * bytes];
    file.read_exact_at(&mut segments, offset)?;
    let kind = |segment: &[u8]| u32::from_le_bytes(segment[..4].try_into().expect("4 bytes"));
    Ok(segments.chunks_exact(bytes).any(|segment| kind(segment) == PT_INTERP))
}
