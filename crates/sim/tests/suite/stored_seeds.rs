//! Seeds that failed once, run again: what was mended stays mended. `cargo xtask sim` writes them.

use rackpool_sim::stored::{StoredSeed, files};
use rackpool_sim::world::run_seed;
use std::path::Path;

#[test]
fn seeds_that_failed_once_pass() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds");
    let files = files(&directory).expect("the directory can be read");
    let mut failed = Vec::new();
    for path in &files {
        let stored = StoredSeed::read(path).expect("xtask wrote it, or somebody with care");
        println!("{}: {}", path.display(), stored.config.replay_command(stored.seed));
        failed.extend(stored.replay(path, &run_seed).err().map(|error| error.to_string()));
    }
    assert!(failed.is_empty(), "{} of {}: {failed:#?}", failed.len(), files.len());
}
