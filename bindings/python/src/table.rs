//! `Table`: a table of the pool as a mapping from bytes to bytes.

use crate::failure::exception;
use crate::memory::Memory;
use crate::session::Sessions;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyIterator, PyList};
use rackpool_bindings::{Failure, Outcome, PutMode, Session};
use std::sync::Arc;

/// How many items `items` reads at once.
const ITEMS_AT_ONCE: usize = 128;

#[pyclass(frozen, name = "Table", module = "rackpool")]
pub struct PyTable {
    sessions: Arc<Sessions>,
    name: String,
}

impl PyTable {
    pub fn new(sessions: Arc<Sessions>, name: &str) -> Self {
        Self { sessions, name: name.into() }
    }

    /// Works with the table's number in a session.
    fn with<R: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut Session, usize) -> Outcome<R> + Send,
    ) -> PyResult<R> {
        self.sessions.with(py, |session| {
            let table = session.open_table(&self.name, false)?;
            work(session, table)
        })
    }

    fn value<'py>(&self, py: Python<'py>, key: &[u8]) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let value = self.with(py, |session, table| {
            let mut value = Vec::new();
            Ok(session.get(table, key, &mut value)?.then_some(value))
        })?;
        Ok(value.map(|value| PyBytes::new(py, &value)))
    }

    fn remove(&self, py: Python<'_>, key: &[u8]) -> PyResult<bool> {
        self.with(py, |session, table| session.delete(table, key))
    }

    fn put(&self, py: Python<'_>, key: &[u8], value: &Memory, mode: PutMode) -> PyResult<bool> {
        let value = value.bytes();
        self.with(py, |session, table| session.put(table, key, value, mode))
    }
}

#[pymethods]
impl PyTable {
    #[getter]
    fn name(&self) -> &str {
        &self.name
    }

    fn __getitem__<'py>(
        &self,
        py: Python<'py>,
        key: PyBackedBytes,
    ) -> PyResult<Bound<'py, PyBytes>> {
        self.value(py, &key)?.ok_or_else(|| exception(py, &Failure::absent()))
    }

    #[pyo3(signature = (key, default = None))]
    fn get<'py>(
        &self,
        py: Python<'py>,
        key: PyBackedBytes,
        default: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        Ok(self.value(py, &key)?.map(Bound::into_any).or(default))
    }

    fn __setitem__(
        &self,
        py: Python<'_>,
        key: PyBackedBytes,
        value: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        self.put(py, &key, &Memory::of(value)?, PutMode::Always).map(drop)
    }

    /// Whether it was stored: the key was not there.
    fn insert(
        &self,
        py: Python<'_>,
        key: PyBackedBytes,
        value: &Bound<'_, PyAny>,
    ) -> PyResult<bool> {
        self.put(py, &key, &Memory::of(value)?, PutMode::Insert)
    }

    /// Whether it was stored: the key was there.
    fn replace(
        &self,
        py: Python<'_>,
        key: PyBackedBytes,
        value: &Bound<'_, PyAny>,
    ) -> PyResult<bool> {
        self.put(py, &key, &Memory::of(value)?, PutMode::Update)
    }

    fn __delitem__(&self, py: Python<'_>, key: PyBackedBytes) -> PyResult<()> {
        let is_removed = self.remove(py, &key)?;
        is_removed.then_some(()).ok_or_else(|| exception(py, &Failure::absent()))
    }

    /// Removes a key; whether it was there.
    fn discard(&self, py: Python<'_>, key: PyBackedBytes) -> PyResult<bool> {
        self.remove(py, &key)
    }

    fn __contains__(&self, py: Python<'_>, key: PyBackedBytes) -> PyResult<bool> {
        let key: &[u8] = &key;
        self.with(py, |session, table| Ok(session.value_bytes(table, key)?.is_some()))
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        let count = self.with(py, |session, table| {
            session.with_table(table, |table, handle| table.len(handle))
        })?;
        Ok(count as usize)
    }

    #[pyo3(signature = (prefix = None))]
    fn keys<'py>(
        &self,
        py: Python<'py>,
        prefix: Option<PyBackedBytes>,
    ) -> PyResult<Bound<'py, PyList>> {
        let prefix = prefix.as_deref().unwrap_or_default();
        let keys = self.with(py, |session, table| session.list(table, prefix))?;
        PyList::new(py, keys.iter().map(|(key, _)| PyBytes::new(py, key)))
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyIterator>> {
        self.keys(py, None)?.try_iter()
    }

    /// Keys and values; what is removed meanwhile is left out.
    #[pyo3(signature = (prefix = None))]
    fn items<'py>(
        &self,
        py: Python<'py>,
        prefix: Option<PyBackedBytes>,
    ) -> PyResult<Bound<'py, PyList>> {
        let prefix = prefix.as_deref().unwrap_or_default();
        let keys = self.with(py, |session, table| session.list(table, prefix))?;
        let items = PyList::empty(py);
        for keys in keys.chunks(ITEMS_AT_ONCE) {
            let values = self.with(py, |session, table| {
                many(session, table, keys.iter().map(|(key, _)| &key[..]))
            })?;
            for ((key, _), value) in keys.iter().zip(values) {
                if let Some(value) = value {
                    items.append((PyBytes::new(py, key), PyBytes::new(py, &value)))?;
                }
            }
        }
        Ok(items)
    }

    fn values<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let values = PyList::empty(py);
        for item in self.items(py, None)? {
            values.append(item.get_item(1)?)?;
        }
        Ok(values)
    }

    /// The value of each key, or None.
    fn get_many<'py>(
        &self,
        py: Python<'py>,
        keys: Vec<PyBackedBytes>,
    ) -> PyResult<Bound<'py, PyList>> {
        let values =
            self.with(py, |session, table| many(session, table, keys.iter().map(|key| &key[..])))?;
        let values = values.into_iter().map(|value| value.map(|value| PyBytes::new(py, &value)));
        PyList::new(py, values.collect::<Vec<_>>())
    }

    /// Stores items; the first failure ends it, with those before it stored.
    fn put_many(
        &self,
        py: Python<'_>,
        items: Vec<(PyBackedBytes, Bound<'_, PyAny>)>,
    ) -> PyResult<()> {
        let values = items.iter().map(|(_, value)| Memory::of(value));
        let values = values.collect::<PyResult<Vec<_>>>()?;
        let pairs: Vec<(&[u8], &[u8])> =
            items.iter().zip(&values).map(|((key, _), value)| (&key[..], value.bytes())).collect();
        self.with(py, |session, table| {
            pairs.into_iter().try_for_each(|(key, value)| {
                session.put(table, key, value, PutMode::Always).map(drop)
            })
        })
    }

    /// Whether each key was there.
    fn delete_many(&self, py: Python<'_>, keys: Vec<PyBackedBytes>) -> PyResult<Vec<bool>> {
        self.with(py, |session, table| keys.iter().map(|key| session.delete(table, key)).collect())
    }
}

fn many<'k>(
    session: &mut Session,
    table: usize,
    keys: impl Iterator<Item = &'k [u8]>,
) -> Outcome<Vec<Option<Vec<u8>>>> {
    keys.map(|key| {
        let mut value = Vec::new();
        Ok(session.get(table, key, &mut value)?.then_some(value))
    })
    .collect()
}
