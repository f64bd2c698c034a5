//! `Objects`: bytes under names, those of the command's shell.

use crate::failure::{exception, invalid};
use crate::memory::Memory;
use crate::session::Sessions;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use rackpool_bindings::{Failure, Outcome, PutMode, Session};
use std::sync::Arc;

#[pyclass(frozen, module = "rackpool")]
pub struct Objects {
    sessions: Arc<Sessions>,
}

impl Objects {
    pub fn new(sessions: Arc<Sessions>) -> Self {
        Self { sessions }
    }

    /// Works with the objects' table in a session.
    fn with<R: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut Session, usize) -> Outcome<R> + Send,
    ) -> PyResult<R> {
        self.sessions.with(py, |session| {
            let objects = session.objects()?;
            work(session, objects)
        })
    }

    fn value(&self, py: Python<'_>, name: &str) -> PyResult<Vec<u8>> {
        self.with(py, |session, objects| {
            let mut value = Vec::new();
            let is_there = session.get(objects, name.as_bytes(), &mut value)?;
            is_there.then_some(value).ok_or_else(Failure::absent)
        })
    }
}

#[pymethods]
impl Objects {
    fn put(&self, py: Python<'_>, name: &str, buf: &Bound<'_, PyAny>) -> PyResult<()> {
        let memory = Memory::of(buf)?;
        let data = memory.bytes();
        self.with(py, |session, objects| {
            session.put(objects, name.as_bytes(), data, PutMode::Always).map(drop)
        })
    }

    fn get<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyBytes>> {
        Ok(PyBytes::new(py, &self.value(py, name)?))
    }

    /// Its length; `buf` may be longer.
    fn get_into(&self, py: Python<'_>, name: &str, buf: &Bound<'_, PyAny>) -> PyResult<usize> {
        let mut memory = Memory::writable(buf)?;
        let value = self.value(py, name)?;
        let Some(to) = memory.bytes_mut().get_mut(..value.len()) else {
            return Err(invalid(py, "the object is longer than the buffer"));
        };
        to.copy_from_slice(&value);
        Ok(value.len())
    }

    /// The length of an object.
    fn size(&self, py: Python<'_>, name: &str) -> PyResult<u64> {
        let bytes =
            self.with(py, |session, objects| session.value_bytes(objects, name.as_bytes()))?;
        bytes.ok_or_else(|| exception(py, &Failure::absent()))
    }

    fn exists(&self, py: Python<'_>, names: Vec<String>) -> PyResult<Vec<bool>> {
        self.with(py, |session, objects| {
            let bytes = |name: &String| session.value_bytes(objects, name.as_bytes());
            names.iter().map(bytes).map(|found| Ok(found?.is_some())).collect()
        })
    }

    /// Names that begin with the prefix, sorted.
    #[pyo3(signature = (prefix = ""))]
    fn list(&self, py: Python<'_>, prefix: &str) -> PyResult<Vec<String>> {
        let names = self.with(py, |session, objects| session.list(objects, prefix.as_bytes()))?;
        Ok(names.iter().map(|(name, _)| String::from_utf8_lossy(name).into_owned()).collect())
    }

    /// As `list`, with their lengths.
    #[pyo3(signature = (prefix = ""))]
    fn sizes(&self, py: Python<'_>, prefix: &str) -> PyResult<Vec<(String, u64)>> {
        let names = self.with(py, |session, objects| session.list(objects, prefix.as_bytes()))?;
        let named =
            |(name, bytes): &(Vec<u8>, u64)| (String::from_utf8_lossy(name).into_owned(), *bytes);
        Ok(names.iter().map(named).collect())
    }

    fn delete(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        let was_there =
            self.with(py, |session, objects| session.delete(objects, name.as_bytes()))?;
        was_there.then_some(()).ok_or_else(|| exception(py, &Failure::absent()))
    }
}
