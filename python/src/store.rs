//! The replicated store.

use std::path::PathBuf;
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use remora::ToAddress;
use remora::store::{Swap, Value};

use crate::client::Bytes;
use crate::error;
use crate::owned::Owned;

/// A connection to a replicated store: to one of its nodes, given in the order of their numbers, and to the next one when that
/// fails. `secret` is the file `clients.secret` of the cluster's directory; an answer, and a connection, may take `timeout` seconds,
/// by default 5. With `retry` a request whose outcome is unknown is sent again, and done once.
#[pyclass(frozen, module = "remora")]
pub struct Store(Owned<remora::store::Store>);

impl Store {
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        run: impl FnOnce(&mut remora::store::Store) -> remora::store::Result<T> + Send,
    ) -> PyResult<T> {
        let result = self.0.with(py, run)?;
        result.ok_or_else(|| error::of(remora::Error::Closed))?.map_err(error::of_store)
    }
}

fn value<'py>(py: Python<'py>, value: Option<Value>) -> Option<Bound<'py, PyBytes>> {
    value.map(|value| PyBytes::new(py, &value))
}

#[pymethods]
impl Store {
    #[new]
    #[pyo3(signature = (nodes, *, secret=None, link=None, timeout=None, retry=false))]
    fn new(
        py: Python<'_>,
        nodes: Vec<String>,
        secret: Option<PathBuf>,
        link: Option<&str>,
        timeout: Option<f64>,
        retry: bool,
    ) -> PyResult<Self> {
        let nodes = py.detach(|| nodes.iter().map(|node| node.to_address()).collect::<remora::Result<Vec<_>>>());
        let nodes = nodes.map_err(error::of)?;
        let mut builder = remora::store::Store::builder(&nodes).retry(retry);
        if let Some(file) = secret {
            builder = builder.secret_file(file).map_err(error::of_store)?;
        }
        if let Some(link) = link {
            builder = builder.link(link.parse().map_err(error::invalid)?);
        }
        if let Some(seconds) = timeout {
            builder = builder.timeout(Duration::try_from_secs_f64(seconds).map_err(error::invalid)?);
        }
        let store = py.detach(|| builder.connect()).map_err(error::of_store)?;
        Ok(Self(Owned::new(store)))
    }

    /// Ends the connection.
    fn close(&self, py: Python<'_>) {
        self.0.close(py);
    }

    fn __enter__(this: Py<Self>) -> Py<Self> {
        this
    }

    fn __exit__(&self, py: Python<'_>, _kind: Py<PyAny>, _error: Py<PyAny>, _trace: Py<PyAny>) {
        self.close(py);
    }

    /// Reads a record.
    fn get<'py>(&self, py: Python<'py>, key: u64) -> PyResult<Option<Bound<'py, PyBytes>>> {
        Ok(value(py, self.with(py, |store| store.get(key))?))
    }

    /// Writes a record.
    fn put(&self, py: Python<'_>, key: u64, value: Bytes) -> PyResult<()> {
        self.with(py, |store| store.put(key, value.as_ref()))
    }

    /// Removes a record.
    fn delete(&self, py: Python<'_>, key: u64) -> PyResult<()> {
        self.with(py, |store| store.delete(key))
    }

    /// Adds to a record of eight bytes; returns what it was.
    fn fetch_add(&self, py: Python<'_>, key: u64, add: u64) -> PyResult<u64> {
        self.with(py, |store| store.fetch_add(key, add))
    }

    /// Sets a record to `new` if it is `expected`. Whether it was, and what it is if not.
    fn compare_swap<'py>(
        &self,
        py: Python<'py>,
        key: u64,
        expected: Option<Bytes>,
        new: Option<Bytes>,
    ) -> PyResult<(bool, Option<Bound<'py, PyBytes>>)> {
        let swap = self.with(py, |store| {
            store.compare_swap(key, expected.as_ref().map(AsRef::as_ref), new.as_ref().map(AsRef::as_ref))
        })?;
        Ok(match swap {
            Swap::Done => (true, None),
            Swap::Differs(found) => (false, value(py, found)),
        })
    }
}

/// All nodes of a store as threads of this process.
#[pyclass(frozen, module = "remora")]
pub struct LocalCluster(Owned<remora::store::LocalCluster>);

impl LocalCluster {
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        run: impl FnOnce(&mut remora::store::LocalCluster) -> remora::store::Result<T> + Send,
    ) -> PyResult<T> {
        let result = self.0.with(py, run)?;
        result.ok_or_else(|| error::invalid("the cluster has been closed"))?.map_err(error::of_store)
    }
}

#[pymethods]
impl LocalCluster {
    #[new]
    #[pyo3(signature = (directory, nodes=3, model="synch"))]
    fn new(py: Python<'_>, directory: PathBuf, nodes: u8, model: &str) -> PyResult<Self> {
        let model = model.parse().map_err(error::invalid)?;
        let cluster = py.detach(|| remora::store::LocalCluster::start(nodes, model, directory));
        Ok(Self(Owned::new(cluster.map_err(error::of_store)?)))
    }

    /// Its nodes' addresses.
    #[getter]
    fn addresses(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        self.with(py, |cluster| Ok(cluster.addresses().iter().map(ToString::to_string).collect()))
    }

    /// A connection to it.
    #[pyo3(signature = (*, retry=false))]
    fn connect(&self, py: Python<'_>, retry: bool) -> PyResult<Store> {
        let store = self.with(py, |cluster| cluster.client().retry(retry).connect())?;
        Ok(Store(Owned::new(store)))
    }

    /// Stops a node, as if its process had ended.
    fn stop(&self, py: Python<'_>, node: u8) -> PyResult<()> {
        self.with(py, |cluster| {
            cluster.stop(node);
            Ok(())
        })
    }

    /// Starts a node again.
    fn restart(&self, py: Python<'_>, node: u8) -> PyResult<()> {
        self.with(py, |cluster| cluster.restart(node))
    }

    /// Ends all nodes.
    fn close(&self, py: Python<'_>) {
        self.0.close(py);
    }

    fn __enter__(this: Py<Self>) -> Py<Self> {
        this
    }

    fn __exit__(&self, py: Python<'_>, _kind: Py<PyAny>, _error: Py<PyAny>, _trace: Py<PyAny>) {
        self.close(py);
    }
}
