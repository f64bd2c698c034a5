//! Devices: which there are, which port and which of its addresses is used, what it can do, and
//! protection domains on it.

use super::ffi::{self, Gid, number};
use super::library::{Library, library};
use super::{VerbsError, last_os_error};
use std::ffi::CStr;
use std::fs;
use std::ptr::NonNull;
use std::sync::Arc;

/// A device by its name, and what of it is used. Written `NAME[:PORT][/GID]`, such as `mlx5_0`,
/// `rxe0:1/1`; an empty name is the first device with an active port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceChoice {
    /// The device; the first one that has an active port if it is not given.
    pub name: Option<String>,
    /// Its port, counted from 1; the first active one if it is not given.
    pub port: Option<u8>,
    /// Index of the address; see [`Device::open`] for the choice if it is not given.
    pub gid_index: Option<u8>,
}

impl std::str::FromStr for DeviceChoice {
    type Err = VerbsError;

    fn from_str(text: &str) -> Result<Self, VerbsError> {
        let bad = || VerbsError::Choice { text: text.to_owned() };
        let number = |part: Option<&str>| part.map(str::parse).transpose().map_err(|_| bad());
        let (rest, gid) = match text.split_once('/') {
            Some((rest, gid)) => (rest, Some(gid)),
            None => (text, None),
        };
        let (name, port) = match rest.split_once(':') {
            Some((name, port)) => (name, Some(port)),
            None => (rest, None),
        };
        let port = number(port)?;
        if port == Some(0) {
            return Err(bad());
        }
        let name = Some(name).filter(|name| !name.is_empty()).map(str::to_owned);
        Ok(Self { name, port, gid_index: number(gid)? })
    }
}

/// What a device can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceLimits {
    /// Work requests in one queue.
    pub work_max: u32,
    /// Pieces of one work request.
    pub pieces_max: u32,
    pub completions_max: u32,
    /// READs and atomics that one queue pair answers, and has under way, at once.
    pub reads_max: u8,
    pub message_bytes_max: u32,
    /// Largest packet now, bytes.
    pub mtu_bytes: u32,
    /// Whether there are atomics at all.
    pub has_atomics: bool,
    /// Whether they are atomic with the processors' too, and not only with one another.
    pub atomics_global: bool,
}

/// An open device, one of its ports, and its address there. Clones share it.
#[derive(Clone)]
pub struct Device {
    pub(super) context: Arc<Context>,
    pub name: Arc<str>,
    /// The port, counted from 1.
    pub port: u8,
    pub gid_index: u8,
    pub gid: Gid,
    /// The address within an InfiniBand subnet; 0 on Ethernet.
    pub lid: u16,
    pub limits: DeviceLimits,
}

/// Names of the devices of this machine. Errors: `NoLibrary`, `OldLibrary`, `Os`.
pub fn device_names() -> Result<Vec<String>, VerbsError> {
    let list = List::get()?;
    Ok(list.devices().map(|device| list.name_of(device)).collect())
}

impl Device {
    /// Opens a device. Without a choice of the address it takes that of RoCE version 2 on IPv4,
    /// else of version 2, else the first that is not empty. Errors: `NoLibrary`, `OldLibrary`,
    /// `NoDevice`, `NoPort`, `NoGid`, `Os`.
    pub fn open(choice: &DeviceChoice) -> Result<Device, VerbsError> {
        let list = List::get()?;
        let mut last = VerbsError::NoDevice { asked: choice.name.clone(), there: list.names() };
        for handle in list.devices() {
            let name = list.name_of(handle);
            if choice.name.as_ref().is_some_and(|asked| *asked != name) {
                continue;
            }
            match Self::open_one(list.library, handle, &name, choice) {
                Ok(device) => return Ok(device),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn open_one(
        library: &'static Library,
        handle: *mut ffi::DeviceHandle,
        name: &str,
        choice: &DeviceChoice,
    ) -> Result<Device, VerbsError> {
        // SAFETY: the handle comes from the list, which is still held.
        let context = NonNull::new(unsafe { (library.open_device)(handle) });
        let raw = context.ok_or_else(|| VerbsError::os("opening a device"))?;
        let context = Arc::new(Context { raw, library });
        let attributes = context.device_attributes()?;
        let ports = 1..=attributes.phys_port_cnt;
        let is_asked = |port: &u8| choice.port.is_none_or(|asked| asked == *port);
        let active = ports.filter(is_asked).find_map(|port| {
            let found = context.port_attributes(port).ok()?;
            (found.state == number::PORT_ACTIVE).then_some((port, found))
        });
        let (port, found) = active
            .ok_or_else(|| VerbsError::NoPort { device: name.to_owned(), asked: choice.port })?;
        let (gid_index, gid) = context.choose_gid(name, port, &found, choice.gid_index)?;
        let positive = |value: i32| u32::try_from(value).unwrap_or(0);
        let reads = attributes.max_qp_rd_atom.min(attributes.max_qp_init_rd_atom);
        let limits = DeviceLimits {
            work_max: positive(attributes.max_qp_wr),
            pieces_max: positive(attributes.max_sge),
            completions_max: positive(attributes.max_cqe),
            reads_max: reads.clamp(1, 16) as u8,
            message_bytes_max: found.max_msg_sz.max(4096),
            mtu_bytes: 128 << found.active_mtu.clamp(1, 5),
            has_atomics: attributes.atomic_cap != number::ATOMIC_NONE,
            atomics_global: attributes.atomic_cap == number::ATOMIC_GLOB,
        };
        let (name, lid) = (Arc::from(name), found.lid);
        Ok(Device { context, name, port, gid_index, gid, lid, limits })
    }
}

/// An open device; closed with the last reference to it.
pub(super) struct Context {
    pub(super) raw: NonNull<ffi::Context>,
    pub(super) library: &'static Library,
}

// SAFETY: the library's functions may be called from any thread.
unsafe impl Send for Context {}
// SAFETY: as above, and at the same time.
unsafe impl Sync for Context {}

impl Context {
    fn device_attributes(&self) -> Result<ffi::DeviceAttr, VerbsError> {
        // SAFETY: plain numbers, for which zeros are valid.
        let mut attributes = unsafe { std::mem::zeroed() };
        // SAFETY: the device is open and the structure as long as the library thinks.
        let code = unsafe { (self.library.query_device)(self.raw.as_ptr(), &mut attributes) };
        VerbsError::check(code, "asking a device what it can do")?;
        Ok(attributes)
    }

    fn port_attributes(&self, port: u8) -> Result<ffi::PortAttr, VerbsError> {
        // SAFETY: plain numbers, for which zeros are valid.
        let mut attributes = unsafe { std::mem::zeroed() };
        // SAFETY: as in `device_attributes`.
        let code = unsafe { (self.library.query_port)(self.raw.as_ptr(), port, &mut attributes) };
        VerbsError::check(code, "asking for the state of a port")?;
        Ok(attributes)
    }

    fn gid(&self, port: u8, index: u8) -> Option<Gid> {
        let mut gid = Gid::default();
        // SAFETY: the device is open; the address has 16 bytes.
        let code = unsafe {
            (self.library.query_gid)(self.raw.as_ptr(), port, i32::from(index), &mut gid)
        };
        (code == 0 && gid != Gid::default()).then_some(gid)
    }

    fn choose_gid(
        &self,
        device: &str,
        port: u8,
        attributes: &ffi::PortAttr,
        asked: Option<u8>,
    ) -> Result<(u8, Gid), VerbsError> {
        let none = || VerbsError::NoGid { device: device.to_owned(), port, asked };
        if let Some(index) = asked {
            return self.gid(port, index).map(|gid| (index, gid)).ok_or_else(none);
        }
        let count = attributes.gid_tbl_len.clamp(0, 255) as u8;
        let all = (0..count).filter_map(|index| Some((index, self.gid(port, index)?)));
        let rank = |(index, gid): &(u8, Gid)| {
            let path =
                format!("/sys/class/infiniband/{device}/ports/{port}/gid_attrs/types/{index}");
            let kind = fs::read_to_string(path).unwrap_or_default();
            gid_rank(kind.trim(), gid)
        };
        all.min_by_key(rank).ok_or_else(none)
    }
}

fn gid_rank(kind: &str, gid: &Gid) -> u8 {
    let is_ipv4 = gid[..10] == [0; 10] && gid[10..12] == [0xff; 2];
    match (kind, is_ipv4) {
        ("RoCE v2", true) => 0,
        ("RoCE v2", false) => 1,
        _ => 2,
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: opened by us, and nothing that was made on it is left, since all of that holds
        // this. That it fails can only mean a bug here, which leaks the device.
        let code = unsafe { (self.library.close_device)(self.raw.as_ptr()) };
        debug_assert_eq!(code, 0, "closing a device");
    }
}

/// The library's list of devices.
struct List {
    library: &'static Library,
    raw: NonNull<*mut ffi::DeviceHandle>,
    count: usize,
}

impl List {
    fn get() -> Result<List, VerbsError> {
        let library = library()?;
        let mut count = 0;
        // SAFETY: the library writes how many there are.
        let raw = NonNull::new(unsafe { (library.get_device_list)(&mut count) });
        let Some(raw) = raw else {
            // Without the kernel's module there is no list at all.
            return match last_os_error().raw_os_error() {
                Some(libc::ENOSYS) => Err(VerbsError::NoKernel),
                _ => Err(VerbsError::os("listing the devices")),
            };
        };
        Ok(List { library, raw, count: usize::try_from(count).unwrap_or(0) })
    }

    fn devices(&self) -> impl Iterator<Item = *mut ffi::DeviceHandle> + '_ {
        // SAFETY: the list has `count` entries, and lives as long as this.
        (0..self.count).map(|index| unsafe { *self.raw.as_ptr().add(index) })
    }

    fn name_of(&self, device: *mut ffi::DeviceHandle) -> String {
        // SAFETY: one of the list's, which is still there.
        let name = unsafe { (self.library.get_device_name)(device) };
        // SAFETY: the library answers a C string that lives as long as the list.
        unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
    }

    fn names(&self) -> Vec<String> {
        self.devices().map(|device| self.name_of(device)).collect()
    }
}

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: the list is ours; open devices do not need it.
        unsafe { (self.library.free_device_list)(self.raw.as_ptr()) };
    }
}

/// A protection domain: queue pairs reach only the memory that was registered in theirs.
#[derive(Clone)]
pub struct Domain(pub(super) Arc<RawDomain>);

pub(super) struct RawDomain {
    pub(super) raw: NonNull<ffi::Pd>,
    pub(super) context: Arc<Context>,
}

// SAFETY: as for `Context`.
unsafe impl Send for RawDomain {}
// SAFETY: as for `Context`.
unsafe impl Sync for RawDomain {}

impl Domain {
    /// A new one. Errors: `Os`, such as too many of them.
    pub fn new(device: &Device) -> Result<Domain, VerbsError> {
        let context = Arc::clone(&device.context);
        // SAFETY: the device is open.
        let raw = NonNull::new(unsafe { (context.library.alloc_pd)(context.raw.as_ptr()) });
        let raw = raw.ok_or_else(|| VerbsError::os("making a protection domain"))?;
        Ok(Domain(Arc::new(RawDomain { raw, context })))
    }
}

impl Drop for RawDomain {
    fn drop(&mut self) {
        // SAFETY: made by us; regions and queue pairs in it hold it, so none is left.
        let code = unsafe { (self.context.library.dealloc_pd)(self.raw.as_ptr()) };
        debug_assert_eq!(code, 0, "ending a protection domain");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_names_device_port_and_address() {
        let choice = |text: &str| text.parse::<DeviceChoice>();
        assert_eq!(choice("").unwrap(), DeviceChoice::default());
        let all = choice("rxe0:2/7").unwrap();
        assert_eq!(
            (all.name.as_deref(), all.port, all.gid_index),
            (Some("rxe0"), Some(2), Some(7))
        );
        assert_eq!(choice("mlx5_0/3").unwrap().gid_index, Some(3));
        assert_eq!(choice(":2").unwrap().port, Some(2));
        for bad in ["rxe0:0", "rxe0:x", "rxe0/256", "rxe0/"] {
            assert!(choice(bad).unwrap_err().to_string().contains(bad), "{bad}");
        }
    }

    #[test]
    fn version_2_on_ipv4_is_the_best_address() {
        let mut ipv4 = Gid::default();
        ipv4[10..].copy_from_slice(&[0xff, 0xff, 10, 0, 0, 1]);
        let local = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];
        assert!(gid_rank("RoCE v2", &ipv4) < gid_rank("RoCE v2", &local));
        assert!(gid_rank("RoCE v2", &local) < gid_rank("IB/RoCE v1", &ipv4));
    }

    #[test]
    fn a_machine_without_devices_says_what_is_missing() {
        let choice = DeviceChoice { name: Some("no-such-device".into()), ..Default::default() };
        let Err(error) = Device::open(&choice) else { panic!("there is no such device") };
        let said = error.to_string();
        assert!(
            said.contains("install")
                || said.contains("no-such-device")
                || said.contains("modprobe"),
            "{said}"
        );
    }
}
