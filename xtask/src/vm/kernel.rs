//! The distribution's kernel, unpacked once: a guest that boots the bare ELF file through PVH need
//! not decompress it under emulation, which saves it two seconds of processor time.
//!
//! Source: Linux `Documentation/arch/x86/boot.rst` (the setup header of a bzImage).

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Number of setup sectors after the first one; 0 stands for 4.
const SETUP_SECTORS: usize = 0x1f1;
/// Magic of the setup header: "HdrS".
const MAGIC: usize = 0x202;
/// Version of the boot protocol.
const VERSION: usize = 0x206;
/// Offset of the compressed kernel from the end of the setup sectors, bytes; since 2.08.
const PAYLOAD_OFFSET: usize = 0x248;
/// Its length with the four bytes of its unpacked length, bytes.
const PAYLOAD_LENGTH: usize = 0x24c;
const SECTOR_BYTES: usize = 512;

/// How the payload is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packing {
    Xz,
    Zstd,
    Gzip,
    Lz4,
    Plain,
}

impl Packing {
    fn of(payload: &[u8]) -> Option<Packing> {
        match payload {
            [0xfd, b'7', b'z', b'X', ..] => Some(Packing::Xz),
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Some(Packing::Zstd),
            [0x1f, 0x8b, ..] => Some(Packing::Gzip),
            [0x04, 0x22, 0x4d, 0x18, ..] | [0x02, 0x21, 0x4c, 0x18, ..] => Some(Packing::Lz4),
            [0x7f, b'E', b'L', b'F', ..] => Some(Packing::Plain),
            _ => None,
        }
    }

    /// The program that unpacks it from standard input to standard output.
    fn program(self) -> &'static str {
        match self {
            Packing::Xz => "xz",
            Packing::Zstd => "zstd",
            Packing::Gzip => "gzip",
            Packing::Lz4 => "lz4",
            Packing::Plain => "cat",
        }
    }
}

/// The compressed kernel inside a bzImage.
pub fn payload(image: &[u8]) -> Result<(&[u8], Packing), String> {
    let short = || format!("a kernel image of {} bytes is cut short", image.len());
    let word = |at: usize| -> Result<usize, String> {
        let bytes = image.get(at..at + 4).ok_or_else(short)?;
        Ok(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]) as usize)
    };
    if image.get(MAGIC..MAGIC + 4) != Some(b"HdrS") {
        return Err("this is no bzImage: the setup header is not there".into());
    }
    let version = word(VERSION)? & 0xffff;
    if version < 0x208 {
        return Err(format!("boot protocol {version:#x} does not say where the payload is"));
    }
    let sectors = match image[SETUP_SECTORS] {
        0 => 4,
        sectors => usize::from(sectors),
    };
    let start = (sectors + 1) * SECTOR_BYTES + word(PAYLOAD_OFFSET)?;
    let bytes = word(PAYLOAD_LENGTH)?.checked_sub(4).ok_or_else(short)?;
    let payload = image.get(start..start + bytes).ok_or_else(short)?;
    let packing = Packing::of(payload).ok_or("the payload is packed in an unknown way")?;
    Ok((payload, packing))
}

/// The newest kernel below a root with modules and an image that can be read: its version and its
/// image.
pub fn newest(root: &Path) -> Result<(String, PathBuf), String> {
    let modules = root.join("lib/modules");
    let versions = fs::read_dir(&modules).into_iter().flatten().flatten();
    let mut versions: Vec<String> =
        versions.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    versions.sort_by_key(|version| sort_key(version));
    let found = versions.into_iter().rev().find_map(|version| {
        let boot = root.join("boot").join(format!("vmlinuz-{version}"));
        let images = [boot, modules.join(&version).join("vmlinuz")];
        let image = images.into_iter().find(|image| fs::File::open(image).is_ok())?;
        Some((version, image))
    });
    found.ok_or_else(|| {
        format!(
            "no kernel in {}boot that can be read with its modules in lib/modules: apt-get install \
             linux-image-amd64, or cargo xtask deps",
            root.join("").display()
        )
    })
}

/// Numbers as numbers, so that 6.10 comes after 6.9.
pub fn sort_key(version: &str) -> Vec<u64> {
    version.split(|c: char| !c.is_ascii_digit()).filter_map(|part| part.parse().ok()).collect()
}

/// The unpacked kernel, made in `cache` if it is not there.
pub fn unpacked(cache: &Path, version: &str, image: &Path) -> Result<PathBuf, String> {
    let unpacked = cache.join(format!("vmlinux-{version}"));
    if unpacked.exists() {
        return Ok(unpacked);
    }
    let image = fs::read(image).map_err(|e| format!("cannot read {}: {e}", image.display()))?;
    let (payload, packing) = payload(&image)?;
    let part = unpacked.with_extension(format!("part-{}", std::process::id()));
    let file = fs::File::create(&part).map_err(|e| format!("{}: {e}", part.display()))?;
    let program = packing.program();
    let mut command = Command::new(program);
    if packing != Packing::Plain {
        command.arg("-dc");
    }
    let child = command.stdin(Stdio::piped()).stdout(file).spawn();
    let mut child = child.map_err(|e| format!("cannot start {program}: {e}: install it"))?;
    let written = child.stdin.take().expect("it is piped").write_all(payload);
    let status = child.wait().map_err(|e| format!("{program}: {e}"))?;
    // The programs stop reading at the end of their format, so a broken pipe is no failure.
    if !status.success() {
        let _ = fs::remove_file(&part);
        return Err(format!("{program} ended with {status} ({written:?})"));
    }
    fs::rename(&part, &unpacked).map_err(|e| format!("{}: {e}", unpacked.display()))?;
    Ok(unpacked)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An image with so many setup sectors, a payload at `offset` and junk behind it.
    fn image(setup_sectors: u8, offset: u32, payload: &[u8]) -> Vec<u8> {
        let sectors = if setup_sectors == 0 { 4 } else { usize::from(setup_sectors) };
        let mut image = vec![0; (sectors + 1) * SECTOR_BYTES + offset as usize];
        image[SETUP_SECTORS] = setup_sectors;
        image[MAGIC..MAGIC + 4].copy_from_slice(b"HdrS");
        image[VERSION..VERSION + 2].copy_from_slice(&0x20fu16.to_le_bytes());
        image[PAYLOAD_OFFSET..PAYLOAD_OFFSET + 4].copy_from_slice(&offset.to_le_bytes());
        let length = payload.len() as u32 + 4;
        image[PAYLOAD_LENGTH..PAYLOAD_LENGTH + 4].copy_from_slice(&length.to_le_bytes());
        image.extend_from_slice(payload);
        image.extend_from_slice(b"\0\0\x10\0 and what follows");
        image
    }

    #[test]
    fn the_payload_is_found_behind_the_setup_sectors() {
        for sectors in [0, 1, 27] {
            let image = image(sectors, 700, b"\x1f\x8b and more");
            assert_eq!(payload(&image), Ok((&b"\x1f\x8b and more"[..], Packing::Gzip)));
        }
        let packed = image(4, 8, b"\xfd7zXZ\0");
        assert_eq!(payload(&packed).unwrap().1, Packing::Xz);
    }

    #[test]
    fn what_is_no_bzimage_is_refused() {
        assert!(payload(b"").unwrap_err().contains("no bzImage"));
        assert!(payload(&vec![0; 4096]).unwrap_err().contains("no bzImage"));
        let mut old = image(4, 0, b"\x1f\x8b");
        old[VERSION] = 7;
        old[VERSION + 1] = 2;
        assert!(payload(&old).unwrap_err().contains("0x207"));
        let mut cut = image(4, 0, &[0x1f, 0x8b, 0, 0]);
        cut.truncate(5 * SECTOR_BYTES + 2);
        assert!(payload(&cut).unwrap_err().contains("cut short"));
        let strange = image(4, 0, b"what is this");
        assert!(payload(&strange).unwrap_err().contains("unknown"));
    }

    #[test]
    fn versions_are_compared_as_numbers() {
        assert!(sort_key("6.1.0-56-amd64") > sort_key("6.1.0-9-amd64"));
        assert!(sort_key("6.10.1") > sort_key("6.9.9"));
    }
}
