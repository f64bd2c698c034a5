//! The same blocks from an arena, from mimalloc as it is, from an arena of jemalloc and from
//! memkind, for measurements. A [`Table`] owns blocks of one [`Source`]; its loops are compiled for
//! each source by itself, so that none pays for the choice. Called by `rackpool bench tiers`.

use crate::arena::{Arena, free};
use libmimalloc_sys::{mi_free, mi_malloc, mi_realloc, mi_version};
use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::mem;
use std::ptr;

const SIZES: usize = 4096;
const JEMALLOC: Library =
    Library { name: "jemalloc", file: c"libjemalloc.so.2", package: "libjemalloc2" };
const MEMKIND: Library =
    Library { name: "memkind", file: c"libmemkind.so.0", package: "libmemkind0" };

/// Why there is no measurement.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// Retry when it is installed.
    #[error("{library} is not installed (Debian: {package}): {reason}")]
    Absent { library: &'static str, package: &'static str, reason: String },
    /// Do not retry.
    #[error("{library} refuses {name} (error {code})")]
    Refused { library: &'static str, name: String, code: i32 },
    /// Retry with more.
    #[error("no memory for a block")]
    NoMemory,
}

/// Where blocks come from.
#[derive(Clone, Copy)]
pub enum Source {
    Arena(Arena),
    Mimalloc,
    /// Each thread on one arena, by its cache: the quickest that it has. The cache keeps blocks of
    /// all arenas, so that a thread cannot use two that lie in unlike memories.
    Jemalloc(Jemalloc),
    /// By an arena and a cache that are named at each call: what keeps blocks where they belong.
    JemallocArena(Jemalloc),
    Memkind(Memkind),
}

impl Source {
    /// What a thread calls before its first block.
    ///
    /// # Errors
    /// [`LoadError::Refused`].
    pub fn enter(self) -> Result<(), LoadError> {
        match self {
            Source::Arena(_) | Source::Mimalloc | Source::Memkind(_) => Ok(()),
            Source::Jemalloc(jemalloc) => jemalloc.enter(),
            Source::JemallocArena(jemalloc) => jemalloc.enter_arena(),
        }
    }

    /// Its name and version.
    pub fn name(self) -> String {
        match self {
            Source::Arena(_) => "rackpool".into(),
            Source::Mimalloc => {
                // SAFETY: takes nothing.
                let version = unsafe { mi_version() };
                format!("mimalloc {}.{}.{}", version / 10_000, version / 100 % 100, version % 100)
            }
            Source::Jemalloc(jemalloc) | Source::JemallocArena(jemalloc) => {
                let version = jemalloc.version.split('-').next().unwrap_or_default();
                format!("jemalloc {version}")
            }
            Source::Memkind(Memkind { version, .. }) => {
                let (major, minor) = (version / 1_000_000, version / 1000 % 1000);
                format!("memkind {major}.{minor}.{}", version % 1000)
            }
        }
    }
}

/// The calls that are measured.
trait Family: Copy {
    fn take(self, bytes: usize) -> *mut u8;

    /// # Safety
    /// `block` is null or a block of this family, and no longer used.
    unsafe fn give(self, block: *mut u8);

    /// # Safety
    /// As of [`Family::give`], if the answer is a block.
    unsafe fn resize(self, block: *mut u8, bytes: usize) -> *mut u8;
}

impl Family for Arena {
    #[inline(always)]
    fn take(self, bytes: usize) -> *mut u8 {
        self.malloc(bytes)
    }

    #[inline(always)]
    unsafe fn give(self, block: *mut u8) {
        // SAFETY: as the caller promises.
        unsafe { free(block) }
    }

    #[inline(always)]
    unsafe fn resize(self, block: *mut u8, bytes: usize) -> *mut u8 {
        // SAFETY: as the caller promises.
        unsafe { self.realloc(block, bytes) }
    }
}

#[derive(Clone, Copy)]
struct Mimalloc;

impl Family for Mimalloc {
    #[inline(always)]
    fn take(self, bytes: usize) -> *mut u8 {
        // SAFETY: any size will do.
        unsafe { mi_malloc(bytes) }.cast()
    }

    #[inline(always)]
    unsafe fn give(self, block: *mut u8) {
        // SAFETY: as the caller promises.
        unsafe { mi_free(block.cast()) }
    }

    #[inline(always)]
    unsafe fn resize(self, block: *mut u8, bytes: usize) -> *mut u8 {
        // SAFETY: as the caller promises.
        unsafe { mi_realloc(block.cast(), bytes) }.cast()
    }
}

type MallocFn = unsafe extern "C" fn(usize) -> *mut c_void;
type FreeFn = unsafe extern "C" fn(*mut c_void);
type ReallocFn = unsafe extern "C" fn(*mut c_void, usize) -> *mut c_void;
type MallocxFn = unsafe extern "C" fn(usize, c_int) -> *mut c_void;
type DallocxFn = unsafe extern "C" fn(*mut c_void, c_int);
type RallocxFn = unsafe extern "C" fn(*mut c_void, usize, c_int) -> *mut c_void;
type ControlFn =
    unsafe extern "C" fn(*const c_char, *mut c_void, *mut usize, *mut c_void, usize) -> c_int;

/// jemalloc beside the process's own allocator, with an arena that was made for the measurement:
/// threads that [`Source::enter`] take their blocks from it, through jemalloc's own thread caches.
#[derive(Clone, Copy)]
pub struct Jemalloc {
    malloc: MallocFn,
    free: FreeFn,
    realloc: ReallocFn,
    mallocx: MallocxFn,
    dallocx: DallocxFn,
    rallocx: RallocxFn,
    control: ControlFn,
    arena: c_uint,
    version: &'static str,
}

impl Jemalloc {
    /// Loads it, for ever.
    ///
    /// # Errors
    /// [`LoadError::Absent`], also where glibc has no room for its thread-local variables
    /// (`GLIBC_TUNABLES=glibc.rtld.optional_static_tls=16384`), and [`LoadError::Refused`].
    pub fn load() -> Result<Jemalloc, LoadError> {
        let symbol = JEMALLOC.load()?;
        let mut jemalloc = Jemalloc {
            // SAFETY: C's function of that name.
            malloc: unsafe { mem::transmute::<*mut c_void, MallocFn>(symbol(c"malloc")?) },
            // SAFETY: C's function of that name.
            free: unsafe { mem::transmute::<*mut c_void, FreeFn>(symbol(c"free")?) },
            // SAFETY: C's function of that name.
            realloc: unsafe { mem::transmute::<*mut c_void, ReallocFn>(symbol(c"realloc")?) },
            // SAFETY: jemalloc's function of that name.
            mallocx: unsafe { mem::transmute::<*mut c_void, MallocxFn>(symbol(c"mallocx")?) },
            // SAFETY: jemalloc's function of that name.
            dallocx: unsafe { mem::transmute::<*mut c_void, DallocxFn>(symbol(c"dallocx")?) },
            // SAFETY: jemalloc's function of that name.
            rallocx: unsafe { mem::transmute::<*mut c_void, RallocxFn>(symbol(c"rallocx")?) },
            // SAFETY: jemalloc's function of that name.
            control: unsafe { mem::transmute::<*mut c_void, ControlFn>(symbol(c"mallctl")?) },
            arena: 0,
            version: "",
        };
        let mut version: *const c_char = ptr::null();
        jemalloc.control(c"version", Some(&mut version), None)?;
        if !version.is_null() {
            // SAFETY: a text of the library, which stays.
            let text = unsafe { CStr::from_ptr(version) };
            jemalloc.version = text.to_str().unwrap_or_default();
        }
        let mut arena: c_uint = 0;
        jemalloc.control(c"arenas.create", Some(&mut arena), None)?;
        jemalloc.arena = arena;
        Ok(jemalloc)
    }

    fn enter(self) -> Result<(), LoadError> {
        let mut arena = self.arena;
        self.control(c"thread.arena", None, Some(&mut arena))
    }

    /// Makes a cache for this thread, which stays.
    fn enter_arena(self) -> Result<(), LoadError> {
        if CACHE.get() == NO_CACHE {
            let mut cache: c_uint = 0;
            self.control(c"tcache.create", Some(&mut cache), None)?;
            CACHE.set(cache);
        }
        Ok(())
    }

    /// Reads or writes one of jemalloc's settings, whose type is the caller's to know.
    fn control<T>(
        self,
        name: &CStr,
        read: Option<&mut T>,
        written: Option<&mut T>,
    ) -> Result<(), LoadError> {
        let mut bytes = size_of::<T>();
        let read = read.map_or(ptr::null_mut(), ptr::from_mut).cast();
        let length = if written.is_some() { size_of::<T>() } else { 0 };
        let written = written.map_or(ptr::null_mut(), ptr::from_mut).cast();
        // SAFETY: jemalloc compares the lengths of both values with what the name has.
        let code = unsafe { (self.control)(name.as_ptr(), read, &raw mut bytes, written, length) };
        match code {
            0 => Ok(()),
            code => Err(JEMALLOC.refused(name, code)),
        }
    }
}

impl Family for Jemalloc {
    #[inline(always)]
    fn take(self, bytes: usize) -> *mut u8 {
        // SAFETY: any size will do.
        unsafe { (self.malloc)(bytes) }.cast()
    }

    #[inline(always)]
    unsafe fn give(self, block: *mut u8) {
        // SAFETY: as the caller promises.
        unsafe { (self.free)(block.cast()) }
    }

    #[inline(always)]
    unsafe fn resize(self, block: *mut u8, bytes: usize) -> *mut u8 {
        // SAFETY: as the caller promises.
        unsafe { (self.realloc)(block.cast(), bytes) }.cast()
    }
}

const NO_CACHE: c_uint = c_uint::MAX;

thread_local! {
    /// Of jemalloc, for the calls that name it.
    static CACHE: Cell<c_uint> = const { Cell::new(NO_CACHE) };
}

#[derive(Clone, Copy)]
struct OfArena {
    jemalloc: Jemalloc,
    /// `MALLOCX_ARENA` and `MALLOCX_TCACHE`, which are macros.
    arena_flag: c_int,
    cache_flag: c_int,
}

impl OfArena {
    fn new(jemalloc: Jemalloc) -> OfArena {
        let cache_flag = match CACHE.get() {
            // None: this thread did not enter.
            NO_CACHE => 1 << 8,
            cache => (cache as c_int + 2) << 8,
        };
        OfArena { jemalloc, arena_flag: (jemalloc.arena as c_int + 1) << 20, cache_flag }
    }
}

impl Family for OfArena {
    #[inline(always)]
    fn take(self, bytes: usize) -> *mut u8 {
        // SAFETY: any size but none will do, and an arena and a cache that were made.
        unsafe { (self.jemalloc.mallocx)(bytes, self.arena_flag | self.cache_flag) }.cast()
    }

    #[inline(always)]
    unsafe fn give(self, block: *mut u8) {
        if !block.is_null() {
            // SAFETY: as the caller promises.
            unsafe { (self.jemalloc.dallocx)(block.cast(), self.cache_flag) }
        }
    }

    #[inline(always)]
    unsafe fn resize(self, block: *mut u8, bytes: usize) -> *mut u8 {
        if block.is_null() {
            return self.take(bytes);
        }
        let flags = self.arena_flag | self.cache_flag;
        // SAFETY: as the caller promises.
        unsafe { (self.jemalloc.rallocx)(block.cast(), bytes, flags) }.cast()
    }
}

type KindMallocFn = unsafe extern "C" fn(*mut c_void, usize) -> *mut c_void;
type KindFreeFn = unsafe extern "C" fn(*mut c_void, *mut c_void);
type KindReallocFn = unsafe extern "C" fn(*mut c_void, *mut c_void, usize) -> *mut c_void;
type KindFn = unsafe extern "C" fn(*mut c_void) -> c_int;
type VersionFn = unsafe extern "C" fn() -> c_int;

/// memkind's `MEMKIND_REGULAR`: memory of the nodes that have CPUs, placed by `mbind`.
#[derive(Clone, Copy)]
pub struct Memkind {
    malloc: KindMallocFn,
    free: KindFreeFn,
    realloc: KindReallocFn,
    kind: *mut c_void,
    version: c_int,
}

// SAFETY: a kind is for all threads.
unsafe impl Send for Memkind {}
// SAFETY: as above.
unsafe impl Sync for Memkind {}

impl Memkind {
    /// Loads it, for ever.
    ///
    /// # Errors
    /// [`LoadError::Absent`], and [`LoadError::Refused`] where it places no memory.
    pub fn load() -> Result<Memkind, LoadError> {
        let symbol = MEMKIND.load()?;
        // SAFETY: memkind's function of that name.
        let check =
            unsafe { mem::transmute::<*mut c_void, KindFn>(symbol(c"memkind_check_available")?) };
        // SAFETY: memkind's function of that name.
        let version =
            unsafe { mem::transmute::<*mut c_void, VersionFn>(symbol(c"memkind_get_version")?) };
        // SAFETY: a variable of memkind's, set when it was loaded.
        let kind = unsafe { symbol(c"MEMKIND_REGULAR")?.cast::<*mut c_void>().read() };
        let memkind = Memkind {
            // SAFETY: memkind's function of that name.
            malloc: unsafe {
                mem::transmute::<*mut c_void, KindMallocFn>(symbol(c"memkind_malloc")?)
            },
            // SAFETY: memkind's function of that name.
            free: unsafe { mem::transmute::<*mut c_void, KindFreeFn>(symbol(c"memkind_free")?) },
            // SAFETY: memkind's function of that name.
            realloc: unsafe {
                mem::transmute::<*mut c_void, KindReallocFn>(symbol(c"memkind_realloc")?)
            },
            kind,
            // SAFETY: takes nothing.
            version: unsafe { version() },
        };
        // SAFETY: one of its kinds.
        let code = unsafe { check(kind) };
        let trial = if code == 0 { memkind.take(1) } else { ptr::null_mut() };
        if trial.is_null() {
            return Err(MEMKIND.refused(c"MEMKIND_REGULAR", code));
        }
        // SAFETY: taken above.
        unsafe { memkind.give(trial) };
        Ok(memkind)
    }
}

impl Family for Memkind {
    #[inline(always)]
    fn take(self, bytes: usize) -> *mut u8 {
        // SAFETY: any size but none will do.
        unsafe { (self.malloc)(self.kind, bytes) }.cast()
    }

    #[inline(always)]
    unsafe fn give(self, block: *mut u8) {
        // SAFETY: as the caller promises.
        unsafe { (self.free)(self.kind, block.cast()) }
    }

    #[inline(always)]
    unsafe fn resize(self, block: *mut u8, bytes: usize) -> *mut u8 {
        // SAFETY: as the caller promises.
        unsafe { (self.realloc)(self.kind, block.cast(), bytes) }.cast()
    }
}

/// What is measured beside where it is installed.
#[derive(Clone, Copy)]
struct Library {
    name: &'static str,
    file: &'static CStr,
    /// Debian's.
    package: &'static str,
}

impl Library {
    /// For ever; the answer finds its symbols.
    fn load(self) -> Result<impl Fn(&CStr) -> Result<*mut c_void, LoadError>, LoadError> {
        let mode = libc::RTLD_NOW | libc::RTLD_LOCAL;
        // SAFETY: a library that may be loaded into any process.
        let library = unsafe { libc::dlopen(self.file.as_ptr(), mode) };
        if library.is_null() {
            return Err(self.absent());
        }
        Ok(move |name: &CStr| {
            // SAFETY: a library that was loaded, and a C string.
            let found = unsafe { libc::dlsym(library, name.as_ptr()) };
            if found.is_null() { Err(self.absent()) } else { Ok(found) }
        })
    }

    /// What the loader says of its last failure.
    fn absent(self) -> LoadError {
        let Library { name: library, package, .. } = self;
        // SAFETY: takes nothing.
        let text = unsafe { libc::dlerror() };
        if text.is_null() {
            let reason = "the loader does not say why".into();
            return LoadError::Absent { library, package, reason };
        }
        // SAFETY: a C string until this thread's next failure.
        let text = unsafe { CStr::from_ptr(text) };
        LoadError::Absent { library, package, reason: text.to_string_lossy().into_owned() }
    }

    fn refused(self, name: &CStr, code: c_int) -> LoadError {
        let name = name.to_string_lossy().into_owned();
        LoadError::Refused { library: self.name, name, code }
    }
}

/// Blocks of one source, of 16 to 2047 bytes and each 64th up to 64 KiB, drawn by a seed. The first
/// byte of each is written.
pub struct Table {
    source: Source,
    /// Null where there is none.
    blocks: Vec<*mut u8>,
    sizes: Vec<u32>,
    random: u64,
}

// SAFETY: blocks are given back by any thread.
unsafe impl Send for Table {}

impl Table {
    /// Room for so many blocks, a power of two.
    ///
    /// # Panics
    /// If it is none.
    pub fn new(source: Source, blocks: usize, seed: u64) -> Table {
        assert!(blocks.is_power_of_two(), "indices are drawn by a mask");
        let mut table = Table {
            source,
            blocks: vec![ptr::null_mut(); blocks],
            sizes: Vec::new(),
            random: seed,
        };
        table.sizes = (0..SIZES).map(|index| size(index, table.draw())).collect();
        table
    }

    /// A block in each place, which had none.
    ///
    /// # Errors
    /// [`LoadError::NoMemory`].
    pub fn fill(&mut self) -> Result<(), LoadError> {
        match self.source {
            Source::Arena(arena) => self.fill_from(arena),
            Source::Mimalloc => self.fill_from(Mimalloc),
            Source::Jemalloc(jemalloc) => self.fill_from(jemalloc),
            Source::JemallocArena(jemalloc) => self.fill_from(OfArena::new(jemalloc)),
            Source::Memkind(memkind) => self.fill_from(memkind),
        }
    }

    /// So many times gives the block of a place back and takes another.
    ///
    /// # Errors
    /// [`LoadError::NoMemory`].
    pub fn replace(&mut self, times: u64) -> Result<(), LoadError> {
        match self.source {
            Source::Arena(arena) => self.replace_from(arena, times),
            Source::Mimalloc => self.replace_from(Mimalloc, times),
            Source::Jemalloc(jemalloc) => self.replace_from(jemalloc, times),
            Source::JemallocArena(jemalloc) => self.replace_from(OfArena::new(jemalloc), times),
            Source::Memkind(memkind) => self.replace_from(memkind, times),
        }
    }

    /// So many times gives the block of a place another size.
    ///
    /// # Errors
    /// [`LoadError::NoMemory`].
    pub fn resize(&mut self, times: u64) -> Result<(), LoadError> {
        match self.source {
            Source::Arena(arena) => self.resize_from(arena, times),
            Source::Mimalloc => self.resize_from(Mimalloc, times),
            Source::Jemalloc(jemalloc) => self.resize_from(jemalloc, times),
            Source::JemallocArena(jemalloc) => self.resize_from(OfArena::new(jemalloc), times),
            Source::Memkind(memkind) => self.resize_from(memkind, times),
        }
    }

    /// Gives all blocks back.
    pub fn empty(&mut self) {
        match self.source {
            Source::Arena(arena) => self.empty_to(arena),
            Source::Mimalloc => self.empty_to(Mimalloc),
            Source::Jemalloc(jemalloc) => self.empty_to(jemalloc),
            Source::JemallocArena(jemalloc) => self.empty_to(OfArena::new(jemalloc)),
            Source::Memkind(memkind) => self.empty_to(memkind),
        }
    }

    #[inline(never)]
    fn fill_from(&mut self, family: impl Family) -> Result<(), LoadError> {
        for index in 0..self.blocks.len() {
            let bytes = self.next_size();
            self.blocks[index] = written(family.take(bytes))?;
        }
        Ok(())
    }

    #[inline(never)]
    fn replace_from(&mut self, family: impl Family, times: u64) -> Result<(), LoadError> {
        for _ in 0..times {
            let (index, bytes) = self.next_place();
            let old = mem::replace(&mut self.blocks[index], ptr::null_mut());
            // SAFETY: null or a block of the source, which the table no longer has.
            unsafe { family.give(old) };
            self.blocks[index] = written(family.take(bytes))?;
        }
        Ok(())
    }

    #[inline(never)]
    fn resize_from(&mut self, family: impl Family, times: u64) -> Result<(), LoadError> {
        for _ in 0..times {
            let (index, bytes) = self.next_place();
            let old = self.blocks[index];
            // SAFETY: null or a block of the source, which the answer replaces.
            let new = unsafe { family.resize(old, bytes) };
            self.blocks[index] = written(new)?;
        }
        Ok(())
    }

    #[inline(never)]
    fn empty_to(&mut self, family: impl Family) {
        for block in &mut self.blocks {
            let block = mem::replace(block, ptr::null_mut());
            // SAFETY: null or a block of the source, which the table no longer has.
            unsafe { family.give(block) };
        }
    }

    /// Knuth's linear congruential generator: what it costs does not hide what is measured.
    #[inline(always)]
    fn draw(&mut self) -> u64 {
        self.random = self
            .random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        self.random >> 16
    }

    #[inline(always)]
    fn next_size(&mut self) -> usize {
        self.next_place().1
    }

    #[inline(always)]
    fn next_place(&mut self) -> (usize, usize) {
        let drawn = self.draw() as usize;
        ((drawn / SIZES) & (self.blocks.len() - 1), self.sizes[drawn % SIZES] as usize)
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        self.empty();
    }
}

fn size(index: usize, drawn: u64) -> u32 {
    let log = if index.is_multiple_of(64) { 11 + drawn % 5 } else { 4 + drawn % 7 };
    ((1 << log) + (drawn >> 8) % (1 << log)) as u32
}

#[inline(always)]
fn written(block: *mut u8) -> Result<*mut u8, LoadError> {
    if block.is_null() {
        return Err(LoadError::NoMemory);
    }
    // SAFETY: a new block of at least 16 bytes.
    unsafe { block.write(1) };
    Ok(block)
}
