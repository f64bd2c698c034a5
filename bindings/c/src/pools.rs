//! Pools, handles, and clusters for tests: how they are opened and closed.

use crate::arguments::{Input, Output, Text, sized};
use crate::call::{call, write_text};
use crate::client::Client;
use crate::registry::{Name, insert};
use rackpool::cluster::{Cluster, ClusterOptions};
use rackpool::{Connections, Options, Pool};
use rackpool_bindings::{Failure, Outcome, Session, Status, fork};

const READ_ONLY: u32 = 1;
const SHARED_CONNECTIONS: u32 = 2;
const FROM_ENVIRONMENT: u32 = 4;

/// As the header has it: `rp_options`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct OpenOptions {
    size: usize,
    master: Text,
    rack: u16,
    shard_plus_one: u16,
    flags: u32,
    timeout_ms: u64,
    fabric: Text,
    secret_file: Text,
}

/// As the header has it: `rp_cluster_options`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct StartOptions {
    size: usize,
    racks: u16,
    reserved: [u16; 3],
    rack_bytes: u64,
    page_bytes: u64,
}

// As the header's.
const _: () = assert!(size_of::<OpenOptions>() == 48 && size_of::<StartOptions>() == 32);

impl OpenOptions {
    fn read(&self) -> Outcome<Options> {
        if self.flags & !(READ_ONLY | SHARED_CONNECTIONS | FROM_ENVIRONMENT) != 0 {
            return Err(Failure::invalid("a flag is unknown"));
        }
        let mut options = match self.flags & FROM_ENVIRONMENT {
            0 => Options::default(),
            _ => Options::from_env()?,
        };
        if let Some(master) = self.master.optional()? {
            options.master = Options::new(master, 0).master;
        }
        if self.rack != 0 {
            options.rack = self.rack;
        }
        options.shard = self.shard_plus_one.checked_sub(1).or(options.shard);
        options.read_only |= self.flags & READ_ONLY != 0;
        if self.flags & SHARED_CONNECTIONS != 0 {
            options.connections = Connections::Shared;
        }
        if self.timeout_ms != 0 {
            options.request_timeout_ms = self.timeout_ms;
        }
        if let Some(fabric) = self.fabric.optional()? {
            options.fabric = fabric.parse()?;
        }
        if let Some(path) = self.secret_file.optional()? {
            options.secret_file = Some(path.into());
        }
        Ok(options)
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn rp_open(options: Input<OpenOptions>, mut pool: Output<Name<Pool>>) -> i32 {
    call(|| {
        fork::watch();
        let (options, place) = (sized(&options)?.read()?, pool.place()?);
        place.write(insert(Pool::open(options)?)?);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn rp_close(pool: Name<Pool>) -> i32 {
    call(|| pool.take_shared().map(drop))
}

#[unsafe(no_mangle)]
pub extern "C" fn rp_handle_open(pool: Name<Pool>, mut handle: Output<Name<Client>>) -> i32 {
    call(|| {
        let place = handle.place()?;
        let pool = pool.with_shared(|pool| Ok(pool.clone()))?;
        place.write(insert(Client::new(Session::new(pool.handle()?)))?);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn rp_handle_close(handle: Name<Client>) -> i32 {
    call(|| handle.take().map(drop))
}

#[unsafe(no_mangle)]
pub extern "C" fn rp_set_timeout(handle: Name<Client>, timeout_ms: u64) -> i32 {
    call(|| {
        handle.with(|client| {
            let timeout_ms = (timeout_ms != 0).then_some(timeout_ms);
            client.session.handle.set_timeout_ms(timeout_ms);
            Ok(())
        })
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn rp_page_bytes(handle: Name<Client>, mut bytes: Output<u64>) -> i32 {
    call(|| {
        let place = bytes.place()?;
        handle.with(|client| {
            place.write(client.session.handle.page_bytes());
            Ok(())
        })
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn rp_cluster_start(
    options: Input<StartOptions>,
    mut cluster: Output<Name<Cluster>>,
) -> i32 {
    call(|| {
        fork::watch();
        let (options, place) = (sized(&options)?, cluster.place()?);
        if options.reserved != [0; 3] {
            return Err(Failure::invalid("a reserved field is not zero"));
        }
        let or = |given: u64, default| if given == 0 { default } else { given };
        let rack_bytes = or(options.rack_bytes, 64 << 20);
        let page_bytes = or(options.page_bytes, 64 << 10);
        let started = Cluster::with(ClusterOptions {
            racks: if options.racks == 0 { 2 } else { options.racks },
            memory: format!("heap?size={rack_bytes}&pages={page_bytes}"),
            ..ClusterOptions::default()
        })?;
        place.write(insert(started)?);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn rp_cluster_stop(cluster: Name<Cluster>) -> i32 {
    call(|| cluster.take().map(drop))
}

#[unsafe(no_mangle)]
pub extern "C" fn rp_cluster_master(
    cluster: Name<Cluster>,
    mut text: Output<u8>,
    size: usize,
) -> i32 {
    call(|| {
        let to = text.slice(size)?;
        let master = cluster.with(|cluster| Ok(cluster.master_addr()))?;
        if to.len() <= master.len() {
            return Err(Failure::Own(Status::TooSmall, "an address needs up to 64 bytes"));
        }
        write_text(to, &master);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn rp_cluster_stop_rack(cluster: Name<Cluster>, rack: u16) -> i32 {
    call(|| cluster.with(|cluster| Ok(cluster.stop_rack(rack)?)))
}

#[unsafe(no_mangle)]
pub extern "C" fn rp_cluster_start_rack(cluster: Name<Cluster>, rack: u16) -> i32 {
    call(|| cluster.with(|cluster| Ok(cluster.start_rack(rack)?)))
}
