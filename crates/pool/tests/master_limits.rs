//! The bound of the master's connections. Alone in its process, since it changes the limit of
//! open descriptors.

mod master_tools;

use master_tools::*;
use rackpool::link::MasterLink;
use rackpool_core::wire::*;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::time::{Duration, Instant};

#[test]
fn one_connection_too_many_is_told_busy_and_served_once_there_is_room() {
    let dir = Dir::new("limit");
    let before = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(192), ..before }).unwrap();
    let master = start(&dir);
    setrlimit(Resource::Nofile, before).unwrap();
    let limit = 192 - 64;
    let mut links: Vec<MasterLink> = (0..limit).map(|_| link(&master)).collect();
    for link in &mut links {
        assert!(call(link, MasterCall::Stats).is_ok());
    }
    let mut late = link(&master);
    let started = Instant::now();
    let busy = late.call(MasterCall::Stats, Instant::now() + Duration::from_millis(200));
    assert_eq!(busy.unwrap_err().code(), "busy");
    assert!(started.elapsed() < Duration::from_secs(2));
    for link in &mut links {
        assert!(call(link, MasterCall::Stats).is_ok());
        assert_eq!(link.connections(), 1);
    }
    links.truncate(limit - 1);
    assert!(call(&mut late, MasterCall::Stats).is_ok());
}
