//! `Cluster`: a pool in this process, for tests.

use crate::pool::{PyPool, join};
use crate::session::detached;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use rackpool::cluster::{Cluster, ClusterOptions};
use rackpool_bindings::fork::{self, Owned};
use rackpool_bindings::{Failure, Outcome};
use std::sync::{Mutex, PoisonError};

#[pyclass(frozen, name = "Cluster", module = "rackpool")]
pub struct PyCluster {
    cluster: Owned<Mutex<Option<Cluster>>>,
}

impl PyCluster {
    fn with<R: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut Cluster) -> Outcome<R> + Send,
    ) -> PyResult<R> {
        detached(py, || {
            let mut cluster = self.cluster.get()?.lock().unwrap_or_else(PoisonError::into_inner);
            work(cluster.as_mut().ok_or_else(|| Failure::misuse("the cluster was stopped"))?)
        })
    }
}

#[pymethods]
impl PyCluster {
    #[new]
    #[pyo3(signature = (racks = 2, *, rack_bytes = 64 << 20, page_bytes = 64 << 10))]
    fn new(py: Python<'_>, racks: u16, rack_bytes: u64, page_bytes: u64) -> PyResult<Self> {
        fork::watch();
        let cluster = detached(py, || {
            Ok(Cluster::with(ClusterOptions {
                racks,
                memory: format!("heap?size={rack_bytes}&pages={page_bytes}"),
                ..ClusterOptions::default()
            })?)
        })?;
        Ok(Self { cluster: Owned::new(Mutex::new(Some(cluster))) })
    }

    /// The address of its master, for `connect`.
    #[getter]
    fn master(&self, py: Python<'_>) -> PyResult<String> {
        self.with(py, |cluster| Ok(cluster.master_addr()))
    }

    #[pyo3(signature = (rack = 0))]
    fn connect(&self, py: Python<'_>, rack: u16) -> PyResult<PyPool> {
        join(py, || {
            let cluster = self.cluster.get()?.lock().unwrap_or_else(PoisonError::into_inner);
            let stopped = || Failure::misuse("the cluster was stopped");
            Ok(cluster.as_ref().ok_or_else(stopped)?.pool(rack)?)
        })
    }

    /// Ends a rack as if its host had died.
    fn stop_rack(&self, py: Python<'_>, rack: u16) -> PyResult<()> {
        self.with(py, |cluster| Ok(cluster.stop_rack(rack)?))
    }

    /// Starts it with new memory: what it had is lost.
    fn start_rack(&self, py: Python<'_>, rack: u16) -> PyResult<()> {
        self.with(py, |cluster| Ok(cluster.start_rack(rack)?))
    }

    fn stop(&self, py: Python<'_>) -> PyResult<()> {
        detached(py, || {
            let mut cluster = self.cluster.get()?.lock().unwrap_or_else(PoisonError::into_inner);
            drop(cluster.take());
            Ok(())
        })
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) -> PyResult<()> {
        self.stop(py)
    }
}
