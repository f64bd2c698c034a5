//! `Pool`: what a program connects to.

use crate::failure::{exception, invalid};
use crate::lock::Lock;
use crate::memory::{Memory, addresses, filled};
use crate::objects::Objects;
use crate::queue::Queue;
use crate::region::Region;
use crate::session::{Sessions, detached};
use crate::table::PyTable;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyTuple};
use rackpool::{CasOutcome, GAddr, Options, Placement, Pool, RackId, Tier};
use rackpool_bindings::{Failure, Outcome, fork};
use std::path::PathBuf;
use std::sync::Arc;

/// Joins a pool: `rackpool.connect` in Python.
#[pyfunction]
#[pyo3(signature = (
    master = "127.0.0.1:7400", rack = 0, *, shard = None, fabric = None, secret_file = None,
    timeout_ms = None, read_only = false
))]
#[expect(clippy::too_many_arguments, reason = "they are named in Python")]
pub fn connect(
    py: Python<'_>,
    master: &str,
    rack: u16,
    shard: Option<u16>,
    fabric: Option<&str>,
    secret_file: Option<PathBuf>,
    timeout_ms: Option<u64>,
    read_only: bool,
) -> PyResult<PyPool> {
    let mut options = Options::new(master, rack).read_only(read_only);
    options.shard = shard;
    options.secret_file = secret_file;
    if let Some(timeout_ms) = timeout_ms {
        options.request_timeout_ms = timeout_ms;
    }
    if let Some(fabric) = fabric {
        options.fabric = fabric.parse().map_err(|error| exception(py, &Failure::Pool(error)))?;
    }
    join(py, move || Ok(Pool::open(options)?))
}

/// A pool of Python's, of one that is opened.
pub fn join(py: Python<'_>, open: impl FnOnce() -> Outcome<Pool> + Send) -> PyResult<PyPool> {
    fork::watch();
    let pool = detached(py, open)?;
    Ok(PyPool { sessions: Arc::new(Sessions::new(pool)) })
}

/// A pool, used by any thread.
#[pyclass(frozen, name = "Pool", module = "rackpool")]
pub struct PyPool {
    sessions: Arc<Sessions>,
}

pub fn placement(py: Python<'_>, text: &str) -> PyResult<Placement> {
    let number = |prefix| text.strip_prefix(prefix).map(str::parse::<u16>);
    match text {
        "auto" => return Ok(Placement::Auto),
        "local" => return Ok(Placement::Local),
        "spread" => return Ok(Placement::Spread),
        _ => {}
    }
    if let Some(Ok(rack)) = number("rack:") {
        return Ok(Placement::Rack(RackId(rack)));
    }
    let tier = text.strip_prefix("tier:").map(str::parse::<Tier>);
    if let Some(Ok(tier)) = tier {
        return Ok(Placement::Tier(tier));
    }
    Err(invalid(py, "a placement is auto, local, spread, rack:N or tier:N"))
}

#[pymethods]
impl PyPool {
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.sessions.close(py)
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) -> PyResult<()> {
        self.close(py)
    }

    #[pyo3(signature = (n, placement = "auto"))]
    fn alloc(&self, py: Python<'_>, n: u64, placement: &str) -> PyResult<Region> {
        let place = self::placement(py, placement)?;
        let address = self.sessions.with(py, |session| Ok(session.handle.alloc(n, place)?))?;
        Ok(Region::new(Arc::clone(&self.sessions), address, n))
    }

    /// A region that was allocated before, by whatever process.
    fn region(&self, address: u64, n: u64) -> Region {
        Region::new(Arc::clone(&self.sessions), GAddr(address), n)
    }

    fn read<'py>(&self, py: Python<'py>, address: u64, n: usize) -> PyResult<Bound<'py, PyBytes>> {
        filled(py, n, |to| {
            self.sessions.with(py, |session| Ok(session.handle.read(GAddr(address), to)?))
        })
    }

    fn readinto(&self, py: Python<'_>, address: u64, buf: &Bound<'_, PyAny>) -> PyResult<usize> {
        let mut memory = Memory::writable(buf)?;
        let to = memory.bytes_mut();
        let bytes = to.len();
        self.sessions.with(py, |session| Ok(session.handle.read(GAddr(address), to)?))?;
        Ok(bytes)
    }

    fn write(&self, py: Python<'_>, address: u64, buf: &Bound<'_, PyAny>) -> PyResult<usize> {
        let memory = Memory::of(buf)?;
        let from = memory.bytes();
        self.sessions.with(py, |session| Ok(session.handle.write(GAddr(address), from)?))?;
        Ok(from.len())
    }

    fn cas(&self, py: Python<'_>, address: u64, old: u64, new: u64) -> PyResult<(bool, u64)> {
        let outcome = self
            .sessions
            .with(py, |session| Ok(session.handle.cas(GAddr(address), old, new)?))?;
        Ok(match outcome {
            CasOutcome::Swapped => (true, old),
            CasOutcome::Found(found) => (false, found),
        })
    }

    fn add(&self, py: Python<'_>, address: u64, n: i64) -> PyResult<u64> {
        // Wrapping, as the word.
        let n = n as u64;
        self.sessions.with(py, |session| Ok(session.handle.fetch_add(GAddr(address), n)?))
    }

    fn free(&self, py: Python<'_>, address: u64, n: u64) -> PyResult<()> {
        self.sessions.with(py, |session| Ok(session.handle.free(GAddr(address), n)?))
    }

    fn persist(&self, py: Python<'_>, address: u64, n: u64) -> PyResult<()> {
        self.sessions.with(py, |session| Ok(session.handle.persist(GAddr(address), n)?))
    }

    /// `n` bytes at each address into one buffer, in order, under one wait.
    fn gather(
        &self,
        py: Python<'_>,
        addresses: &Bound<'_, PyAny>,
        n: usize,
        into: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let addresses = self::addresses(addresses)?;
        let mut memory = Memory::writable(into)?;
        let to = memory.bytes_mut();
        check_pieces(py, &addresses, n, to.len())?;
        self.sessions.with(py, |session| {
            let addresses = addresses.iter().map(|addr| GAddr(*addr));
            let mut ops: Vec<_> = addresses.zip(to.chunks_exact_mut(n)).collect();
            Ok(session.handle.read_batch(&mut ops)?)
        })
    }

    /// `n` bytes of a buffer to each address, in order, under one wait.
    fn scatter(
        &self,
        py: Python<'_>,
        addresses: &Bound<'_, PyAny>,
        n: usize,
        data: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let addresses = self::addresses(addresses)?;
        let memory = Memory::of(data)?;
        let from = memory.bytes();
        check_pieces(py, &addresses, n, from.len())?;
        self.sessions.with(py, |session| {
            let addresses = addresses.iter().map(|addr| GAddr(*addr));
            let mut ops: Vec<_> = addresses.zip(from.chunks_exact(n)).collect();
            Ok(session.handle.write_batch(&mut ops)?)
        })
    }

    fn root(&self, py: Python<'_>, name: &str) -> PyResult<Option<u64>> {
        let root = self.sessions.with(py, |session| Ok(session.handle.root(name)?))?;
        Ok(root.map(|addr| addr.0))
    }

    /// The address under the name afterwards; `None` of `expected` or `address` is none.
    #[pyo3(signature = (name, address, expected = None))]
    fn set_root(
        &self,
        py: Python<'_>,
        name: &str,
        address: Option<u64>,
        expected: Option<u64>,
    ) -> PyResult<Option<u64>> {
        let (expected, address) = (GAddr(expected.unwrap_or(0)), GAddr(address.unwrap_or(0)));
        let now = self
            .sessions
            .with(py, |session| Ok(session.handle.set_root(name, expected, address)?))?;
        Ok((!now.is_null()).then_some(now.0))
    }

    #[pyo3(signature = (name, *, create = true))]
    fn table(&self, py: Python<'_>, name: &str, create: bool) -> PyResult<PyTable> {
        self.sessions.with(py, |session| session.open_table(name, create))?;
        Ok(PyTable::new(Arc::clone(&self.sessions), name))
    }

    #[getter]
    fn objects(&self) -> Objects {
        Objects::new(Arc::clone(&self.sessions))
    }

    /// Locks `n` bytes within one page, or the line of 64 bytes; `timeout_ms` 0 tries.
    #[pyo3(signature = (address, n = 0, *, write = true, timeout_ms = None))]
    fn lock(
        &self,
        py: Python<'_>,
        address: u64,
        n: u64,
        write: bool,
        timeout_ms: Option<u64>,
    ) -> PyResult<Lock> {
        Lock::take(py, Arc::clone(&self.sessions), GAddr(address), n, write, timeout_ms)
    }

    /// Reads and writes that run beside the program: what `rackpool.aio` is made of.
    fn queue(&self, py: Python<'_>) -> PyResult<Queue> {
        Queue::open(py, Arc::clone(&self.sessions))
    }

    fn explain<'py>(&self, py: Python<'py>, address: u64) -> PyResult<Bound<'py, PyAny>> {
        let told = self.sessions.with(py, |session| {
            let told = session.handle.explain(GAddr(address))?;
            json(&told)
        })?;
        parsed(py, &told)
    }

    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let told = self.sessions.with(py, |session| {
            let told = session.handle.admin().pool_stats()?;
            json(&told)
        })?;
        parsed(py, &told)
    }

    #[getter]
    fn page_bytes(&self, py: Python<'_>) -> PyResult<u64> {
        self.sessions.with(py, |session| Ok(session.handle.page_bytes()))
    }

    /// Racks and whether each is there.
    fn racks<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let racks = self.sessions.with(py, |session| Ok(session.handle.admin().racks()?))?;
        PyList::new(py, racks.into_iter().map(|(rack, is_alive)| (rack.to_string(), is_alive)))
    }
}

fn check_pieces(py: Python<'_>, addresses: &[u64], n: usize, bytes: usize) -> PyResult<()> {
    if n > 0 && addresses.len().checked_mul(n) == Some(bytes) {
        return Ok(());
    }
    Err(invalid(py, "the buffer has to have n bytes for each address"))
}

fn json(told: &impl serde::Serialize) -> Outcome<String> {
    serde_json::to_string(told).map_err(|_| Failure::invalid("what was told is no JSON"))
}

fn parsed<'py>(py: Python<'py>, text: &str) -> PyResult<Bound<'py, PyAny>> {
    py.import("json")?.call_method1("loads", (text,))
}
