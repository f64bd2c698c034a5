//! A kernel's files in a temporary tree; what it does beyond keeping a number is played.

use super::*;

/// A `/sys` that goes with the test.
struct Sys(PathBuf);

impl Sys {
    fn new(name: &str, files: &[(&str, &str)]) -> Sys {
        let name = format!("rackpool-weights-{}-{name}", std::process::id());
        let sys = Sys(std::env::temp_dir().join(name));
        fs::create_dir_all(sys.0.join(FOLDER)).unwrap();
        for (file, text) in files {
            fs::write(sys.file(file), text).unwrap();
        }
        sys
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(FOLDER).join(name)
    }

    fn read(&self) -> KernelWeights {
        KernelWeights::read(&self.0).unwrap()
    }

    /// As a kernel of Linux 6.16 writes: a weight takes the choice from it.
    fn write(&self, path: &Path, text: &str) -> io::Result<()> {
        super::write(path, text)?;
        match path.file_name().unwrap().to_str().unwrap() {
            "auto" => Ok(()),
            _ => super::write(&self.file("auto"), "false"),
        }
    }
}

impl Drop for Sys {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

const THREE: [(&str, &str); 4] =
    [("node0", "5\n"), ("node1", "2\n"), ("node10", "1\n"), ("auto", "true\n")];

fn state(weights: &[(u16, u16)], auto: Option<bool>) -> KernelWeights {
    KernelWeights { weights: weights.iter().copied().collect(), auto }
}

fn set(weights: &[(u16, u16)]) -> WeightsChange {
    WeightsChange::Set(weights.iter().copied().collect())
}

fn refused(error: i32) -> io::Result<()> {
    Err(io::Error::from_raw_os_error(error))
}

fn name(path: &Path) -> &str {
    path.file_name().unwrap().to_str().unwrap()
}

#[test]
fn what_is_set_is_read_by_either_name_and_nonsense_is_named() {
    let before = state(&[(0, 5), (1, 2), (10, 1)], Some(true));
    assert_eq!(Sys::new("read", &THREE).read(), before);
    let second = [("node0", "1\n"), ("__auto_type", "false\n"), ("nodes", "x"), ("node+1", "x")];
    assert_eq!(Sys::new("second", &second).read(), state(&[(0, 1)], Some(false)));
    assert_eq!(Sys::new("old", &[("node3", "7")]).read(), state(&[(3, 7)], None));
    for (file, text) in [("node1", "0\n"), ("node1", "256"), ("node1", ""), ("auto", "maybe")] {
        let sys = Sys::new("garbage", &THREE);
        fs::write(sys.file(file), text).unwrap();
        let error = KernelWeights::read(&sys.0).unwrap_err();
        assert!(error.code() == "bad-file" && error.to_string().contains(file), "{error}");
    }
}

#[test]
fn a_kernel_without_weights_is_answered_with_one_that_has_them_and_another_way() {
    let sys = Sys::new("none", &[]);
    for root in [sys.0.clone(), sys.0.join("nowhere")] {
        let error = KernelWeights::read(&root).unwrap_err();
        assert_eq!(error.code(), "unsupported");
        let text = error.to_string();
        assert!(text.contains("Linux 6.9") && text.contains("rackpool tiers run"), "{text}");
    }
}

#[test]
fn weights_are_set_and_others_stay() {
    let sys = Sys::new("set", &THREE);
    let change = set(&[(0, 255), (10, 4)]);
    let changed = sys.read().change_by(&sys.0, &change, &mut |path, text| sys.write(path, text));
    let now = state(&[(0, 255), (1, 2), (10, 4)], Some(false));
    assert_eq!(changed.unwrap(), Changed { now, is_auto_refused: false });
    // No longer text is left behind a shorter one.
    let changed = sys.read().change(&sys.0, &set(&[(0, 7)])).unwrap();
    assert_eq!(changed.now.weights[&0], 7);
}

#[test]
fn all_is_checked_before_anything_is_written() {
    let sys = Sys::new("check", &THREE);
    let old = Sys::new("check-old", &[("node0", "1")]);
    for (sys, change, code, part) in [
        (&sys, set(&[(0, 3), (2, 1)]), "no-node", "node 2; nodes that have one: 0-1,10"),
        (&sys, set(&[(0, 3), (1, 0)]), "usage", "1 to 255"),
        (&sys, set(&[(0, 3), (1, 256)]), "usage", "1 to 255"),
        (&sys, WeightsChange::Restore(state(&[(0, 3), (4, 1)], None)), "no-node", "node 4"),
        (&old, WeightsChange::Auto, "unsupported", "Linux 6.16"),
        (&old, WeightsChange::Restore(state(&[(0, 3)], Some(true))), "unsupported", "--weighted"),
    ] {
        let before = sys.read();
        let error = before.change_by(&sys.0, &change, &mut |path, _| panic!("wrote {path:?}"));
        let error = error.unwrap_err();
        assert_eq!(error.code(), code, "{error}");
        assert!(error.to_string().contains(part), "{error}");
    }
}

#[test]
fn what_was_written_before_a_refusal_is_put_back() {
    let sys = Sys::new("half", &THREE);
    let before = sys.read();
    let change = set(&[(0, 9), (1, 8), (10, 7)]);
    let mut written = Vec::new();
    let error = before.change_by(&sys.0, &change, &mut |path, text| {
        written.push(format!("{}={text}", name(path)));
        if text == "7" { refused(Errno::NOMEM.raw_os_error()) } else { sys.write(path, text) }
    });
    let error = error.unwrap_err();
    assert_eq!(written, ["node0=9", "node1=8", "node10=7", "node0=5", "node1=2", "auto=true"]);
    assert_eq!(sys.read(), before);
    assert!(matches!(&error, KernelWeightsError::Write { back: PutBack::Done, .. }), "{error}");
    assert_eq!(error.code(), "io");
    let text = error.to_string();
    assert!(text.contains("node10: ") && text.ends_with("is set again"), "{text}");
}

#[test]
fn what_cannot_be_put_back_is_said() {
    let sys = Sys::new("stuck", &THREE);
    let before = sys.read();
    let mut of_node0 = 0;
    let error = before.change_by(&sys.0, &set(&[(0, 9), (1, 8)]), &mut |path, text| {
        of_node0 += u32::from(name(path) == "node0");
        let is_refused = name(path) == "node1" || of_node0 == 2;
        if is_refused { refused(Errno::IO.raw_os_error()) } else { sys.write(path, text) }
    });
    let text = error.unwrap_err().to_string();
    assert!(text.contains("not all that was set before is set again ("), "{text}");
    // The choice was the kernel's, which has no bandwidths to take it back with.
    let sys = Sys::new("lost", &THREE);
    let mut write = |path: &Path, text: &str| match (name(path), text) {
        ("node1", "8") => refused(Errno::IO.raw_os_error()),
        ("auto", _) => refused(Errno::NODEV.raw_os_error()),
        _ => sys.write(path, text),
    };
    let error = before.change_by(&sys.0, &set(&[(0, 9), (1, 8)]), &mut write).unwrap_err();
    let is_lost = matches!(&error, KernelWeightsError::Write { back: PutBack::WithoutAuto, .. });
    assert!(is_lost, "{error}");
    assert_eq!(sys.read(), state(&[(0, 5), (1, 2), (10, 1)], Some(false)));
}

#[test]
fn missing_rights_name_those_that_are_needed() {
    let sys = Sys::new("rights", &THREE);
    for error in [Errno::ACCESS, Errno::PERM, Errno::ROFS] {
        let mut write = |_: &Path, _: &str| refused(error.raw_os_error());
        let change = set(&[(0, 9), (1, 8)]);
        let denied = sys.read().change_by(&sys.0, &change, &mut write).unwrap_err();
        assert_eq!(denied.code(), "denied", "{denied}");
        let text = denied.to_string();
        let parts = ["needs root", "CAP_DAC_OVERRIDE", "nothing was changed"];
        assert!(parts.iter().all(|part| text.contains(part)), "{text}");
    }
}

#[test]
fn the_choice_is_given_back_where_the_kernel_has_bandwidths() {
    let sys = Sys::new("auto", &[("node0", "3"), ("auto", "false\n")]);
    let before = sys.read();
    let changed = before.change(&sys.0, &WeightsChange::Auto).unwrap();
    assert_eq!(changed.now, state(&[(0, 3)], Some(true)));
    let no_bandwidth = &mut |_: &Path, _: &str| refused(Errno::NODEV.raw_os_error());
    let error = before.change_by(&sys.0, &WeightsChange::Auto, no_bandwidth).unwrap_err();
    assert!(matches!(error, KernelWeightsError::NoBandwidth), "{error}");
    assert!(error.to_string().contains("HMAT"), "{error}");
}

#[test]
fn what_was_saved_is_restored() {
    let sys = Sys::new("restore", &THREE);
    let before = sys.read();
    let mut write = |path: &Path, text: &str| sys.write(path, text);
    let set = set(&[(0, 1), (1, 1), (10, 1)]);
    assert_ne!(before.change_by(&sys.0, &set, &mut write).unwrap().now, before);
    let path = sys.0.join("saved.json");
    fs::write(&path, before.saved()).unwrap();
    let saved = KernelWeights::load(&path).unwrap();
    assert_eq!(saved, before);
    let restore = WeightsChange::Restore(saved);
    let changed = sys.read().change_by(&sys.0, &restore, &mut write).unwrap();
    assert_eq!(changed, Changed { now: before.clone(), is_auto_refused: false });
    // Where the kernel chooses, nothing takes its choice away.
    for change in [&restore, &WeightsChange::Auto] {
        let changed = before.change_by(&sys.0, change, &mut |path, _| panic!("wrote {path:?}"));
        assert_eq!(changed.unwrap(), Changed { now: before.clone(), is_auto_refused: false });
    }
    // A kernel that cannot choose any more has the same weights, and it is said.
    assert!(before.change_by(&sys.0, &set, &mut write).is_ok());
    let changed = sys.read().change_by(&sys.0, &restore, &mut |path, text| match name(path) {
        "auto" => refused(Errno::NODEV.raw_os_error()),
        _ => sys.write(path, text),
    });
    let now = KernelWeights { auto: Some(false), ..before };
    assert_eq!(changed.unwrap(), Changed { now, is_auto_refused: true });
}

#[test]
fn files_that_were_not_saved_here_are_refused() {
    let sys = Sys::new("saved", &[]);
    let path = sys.0.join("saved.json");
    let good = state(&[(0, 3), (2, 1)], None).saved();
    let none = state(&[], None).saved();
    for (text, part) in [
        (good[..20].to_owned(), "no saved weights"),
        ("[]".to_owned(), "its schema is null"),
        (good.replace("weights/1", "weights/2"), "its schema is \"rackpool.tiers.kernel-weights/2"),
        (good.replace("\"auto\"", "\"auot\""), "unknown field `auot`"),
        (good.replace(": 3", ": 0"), "node 0 has weight 0"),
        (good.replace(": 3", ": 256"), "node 0 has weight 256"),
        (good.replace("\"id\": 2", "\"id\": 0"), "node 0 comes twice"),
        (none, "it has no weights"),
        (" ".repeat(SAVED_BYTES_MAX as usize + 1), "longer than 1048576 bytes"),
    ] {
        fs::write(&path, text).unwrap();
        let error = KernelWeights::load(&path).unwrap_err();
        assert_eq!(error.code(), "bad-file", "{error}");
        let text = error.to_string();
        assert!(text.contains(part) && text.contains("--save FILE"), "{text}");
    }
    fs::remove_file(&path).unwrap();
    assert_eq!(KernelWeights::load(&path).unwrap_err().code(), "io");
}
