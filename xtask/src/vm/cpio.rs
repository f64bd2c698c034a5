//! An archive in the kernel's initramfs format ("newc"), written in memory.
//!
//! Source: Linux `Documentation/driver-api/early-userspace/buffer-format.rst`.

const DIRECTORY: u32 = 0o040_000;
const FILE: u32 = 0o100_000;

pub struct Archive {
    bytes: Vec<u8>,
    entries: u32,
}

impl Archive {
    pub fn new() -> Self {
        Self { bytes: Vec::new(), entries: 0 }
    }

    /// Adds a directory, after the one that it is in.
    pub fn directory(&mut self, name: &str) {
        self.entry(name, DIRECTORY | 0o755, &[]);
    }

    pub fn file(&mut self, name: &str, is_executable: bool, data: &[u8]) {
        let rights = if is_executable { 0o755 } else { 0o644 };
        self.entry(name, FILE | rights, data);
    }

    pub fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, &[]);
        self.bytes
    }

    fn entry(&mut self, name: &str, mode: u32, data: &[u8]) {
        self.entries += 1;
        let links = if mode & DIRECTORY != 0 { 2 } else { 1 };
        let bytes = u32::try_from(data.len()).expect("a file of the initramfs is below 4 GiB");
        let name_bytes = name.len() as u32 + 1;
        // inode, mode, uid, gid, links, mtime, bytes, device (2), special (2), name, checksum
        let fields = [self.entries, mode, 0, 0, links, 0, bytes, 0, 0, 0, 0, name_bytes, 0];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes.extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.align();
        self.bytes.extend_from_slice(data);
        self.align();
    }

    fn align(&mut self) {
        let bytes = self.bytes.len().next_multiple_of(4);
        self.bytes.resize(bytes, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_aligned_and_say_their_length() {
        let mut archive = Archive::new();
        archive.directory("bin");
        archive.file("bin/init", true, b"hello");
        let bytes = archive.finish();
        assert_eq!(bytes.len() % 4, 0);
        assert_eq!(&bytes[..6], b"070701");
        // A header of 110 bytes and "bin\0" are 114, aligned 116.
        let second = &bytes[116..];
        assert_eq!(&second[..6], b"070701");
        assert_eq!(&second[14..22], format!("{:08x}", 0o100_755).as_bytes());
        assert_eq!(&second[54..62], b"00000005");
        assert_eq!(&second[94..102], b"00000009");
        assert_eq!(&second[110..119], b"bin/init\0");
        assert_eq!(&second[120..125], b"hello");
        assert!(second.windows(10).any(|window| window == b"TRAILER!!!"));
    }
}
