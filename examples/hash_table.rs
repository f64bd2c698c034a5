//! A hash table in the pool: clients of two racks insert, change and look up at once, and the table
//! grows meanwhile.
//!
//! `cargo run -p rackpool-table --example hash_table`

use rackpool::cluster::Cluster;
use rackpool_table::{Options, Table};
use std::error::Error;

const KEYS: u32 = 2_000;

fn main() -> Result<(), Box<dyn Error>> {
    let cluster = Cluster::start(2)?;
    let mut near = cluster.pool(0)?.handle()?;
    let mut far = cluster.pool(1)?.handle()?;

    let mut users = Table::create(&mut near, "users", Options::default())?;
    for number in 0..KEYS {
        let (key, value) = (format!("user {number}"), format!("{number} points"));
        users.insert(&mut near, key.as_bytes(), value.as_bytes())?;
    }

    // Another client finds the table by its name.
    let mut same = Table::open(&mut far, "users")?;
    assert_eq!(same.get(&mut far, b"user 7")?.as_deref(), Some(&b"7 points"[..]));
    assert!(same.update(&mut far, b"user 7", b"8 points")?);
    assert!(same.delete(&mut far, b"user 8")?);

    let seen = users.get(&mut near, b"user 7")?.expect("it was updated, not removed");
    println!("user 7 has {}", String::from_utf8_lossy(&seen));
    assert_eq!(users.get(&mut near, b"user 8")?, None);
    println!("about {} keys", users.len_estimate(&mut near)?);
    Ok(())
}

#[test]
fn runs() {
    main().unwrap();
}
