//! The native part of the Python package: what `_core.pyi` declares. Everything that may wait runs
//! detached from the interpreter, with a session that no other thread has; Ctrl-C ends it.
//!
//! `session` lends sessions and turns failures into exceptions, `memory` looks at what Python hands
//! over; the rest are the classes.

mod cluster;
mod failure;
mod lock;
mod memory;
mod objects;
mod pool;
mod queue;
mod region;
mod session;
mod table;

use pyo3::prelude::*;

#[pymodule]
fn _core(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_function(wrap_pyfunction!(pool::connect, module)?)?;
    module.add_class::<cluster::PyCluster>()?;
    module.add_class::<lock::Lock>()?;
    module.add_class::<objects::Objects>()?;
    module.add_class::<pool::PyPool>()?;
    module.add_class::<queue::Queue>()?;
    module.add_class::<region::Region>()?;
    module.add_class::<table::PyTable>()
}
