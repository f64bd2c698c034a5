//! One data set in the memory of two racks: a client of one rack stores an object in the other,
//! gives it a name, and a client of the other rack finds and reads it.
//!
//! `cargo run --example store_and_read`

use rackpool::cluster::Cluster;
use rackpool::{GAddr, Placement, RackId, Result};

fn main() -> Result<()> {
    // A master and two racks as threads. A program of yours opens a pool that runs already:
    // Pool::open(Options::new("127.0.0.1:7400", 0))
    let cluster = Cluster::start(2)?;

    let mut writer = cluster.pool(0)?.handle()?;
    let text = b"stored in rack 1 by a client of rack 0";
    let addr = writer.alloc(text.len() as u64, Placement::Rack(RackId(1)))?;
    writer.write(addr, text)?;
    writer.set_root("greeting", GAddr::NULL, addr)?;

    let mut reader = cluster.pool(1)?.handle()?;
    let found = reader.root("greeting")?.expect("the writer has named it");
    let mut bytes = vec![0; text.len()];
    reader.read(found, &mut bytes)?;
    println!("{}", String::from_utf8_lossy(&bytes));
    println!("{}", writer.explain(addr)?); // rack, path, and why
    assert_eq!(bytes, text);
    Ok(())
}

#[test]
fn runs() {
    main().unwrap();
}
