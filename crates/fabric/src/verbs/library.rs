//! libibverbs, loaded when it is first asked for: the same program runs on machines without it.
//!
//! The handle is never given back, because devices and queues refer to code in it.

use super::VerbsError;
use super::ffi::{
    Ah, AhAttr, CompChannel, Context, Cq, DeviceAttr, DeviceHandle, Gid, Mr, Pd, PortAttr, Qp,
    QpAttr, QpInitAttr,
};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

const NAME: &CStr = c"libibverbs.so.1";

/// Declares the functions that are taken from the library, and how they are found there.
macro_rules! functions {
    ($($name:ident($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// The functions of the library.
        pub struct Library {
            $(pub $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl Library {
            fn find(handle: *mut c_void) -> Result<Self, VerbsError> {
                Ok(Self {
                    $($name: {
                        let name = concat!("ibv_", stringify!($name), "\0");
                        let address = address_of(handle, name)?;
                        // SAFETY: the library exports a function of this name, and its type is
                        // declared here as its header has it.
                        unsafe { std::mem::transmute::<
                            *mut c_void,
                            unsafe extern "C" fn($($argument),*) $(-> $result)?,
                        >(address) }
                    },)*
                })
            }
        }
    };
}

functions! {
    get_device_list(*mut c_int) -> *mut *mut DeviceHandle;
    free_device_list(*mut *mut DeviceHandle);
    get_device_name(*mut DeviceHandle) -> *const c_char;
    open_device(*mut DeviceHandle) -> *mut Context;
    close_device(*mut Context) -> c_int;
    query_device(*mut Context, *mut DeviceAttr) -> c_int;
    query_port(*mut Context, u8, *mut PortAttr) -> c_int;
    query_gid(*mut Context, u8, c_int, *mut Gid) -> c_int;
    alloc_pd(*mut Context) -> *mut Pd;
    dealloc_pd(*mut Pd) -> c_int;
    reg_mr_iova2(*mut Pd, *mut c_void, usize, u64, c_uint) -> *mut Mr;
    dereg_mr(*mut Mr) -> c_int;
    create_comp_channel(*mut Context) -> *mut CompChannel;
    destroy_comp_channel(*mut CompChannel) -> c_int;
    create_cq(*mut Context, c_int, *mut c_void, *mut CompChannel, c_int) -> *mut Cq;
    destroy_cq(*mut Cq) -> c_int;
    get_cq_event(*mut CompChannel, *mut *mut Cq, *mut *mut c_void) -> c_int;
    ack_cq_events(*mut Cq, c_uint);
    create_qp(*mut Pd, *mut QpInitAttr) -> *mut Qp;
    modify_qp(*mut Qp, *mut QpAttr, c_int) -> c_int;
    destroy_qp(*mut Qp) -> c_int;
    create_ah(*mut Pd, *mut AhAttr) -> *mut Ah;
    destroy_ah(*mut Ah) -> c_int;
}

/// The library. Errors: `NoLibrary`, with what to install; `OldLibrary`.
pub fn library() -> Result<&'static Library, VerbsError> {
    static LIBRARY: OnceLock<Result<Library, VerbsError>> = OnceLock::new();
    LIBRARY.get_or_init(load).as_ref().map_err(Clone::clone)
}

fn load() -> Result<Library, VerbsError> {
    // SAFETY: the name is a C string; the library's initialisers only register its own tables.
    let handle = unsafe { libc::dlopen(NAME.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if handle.is_null() {
        return Err(VerbsError::NoLibrary { why: last_error() });
    }
    Library::find(handle)
}

/// `name` ends with a zero byte.
fn address_of(handle: *mut c_void, name: &'static str) -> Result<*mut c_void, VerbsError> {
    let symbol = CStr::from_bytes_with_nul(name.as_bytes()).expect("the macro ends it with zero");
    // SAFETY: the handle is open and the name a C string. Without a version glibc answers the
    // newest one, which is 1.1 for the functions that have two.
    let address = unsafe { libc::dlsym(handle, symbol.as_ptr()) };
    if address.is_null() {
        return Err(VerbsError::OldLibrary { function: name.trim_end_matches('\0') });
    }
    Ok(address)
}

fn last_error() -> String {
    // SAFETY: answers null or a C string that stays until the next call of this thread.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "the loader does not say why".into();
    }
    // SAFETY: as above, and it is copied at once.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}
