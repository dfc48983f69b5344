//! A client for asyncio.

use std::collections::HashMap;

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use pyo3_async_runtimes::tokio::future_into_py;

use crate::client::{Bytes, Region, Started, Table, builder, bytes_of, pairs, place};
use crate::error;
use crate::owned::Owned;

/// A connection to a memory node, whose calls are awaited. A thread of its own drives it. How long a call may take is for
/// `asyncio.timeout` to say: one that is given up goes on at the node, and its reply is thrown away.
#[pyclass(frozen, module = "remora")]
pub struct AsyncClient(Owned<remora::AsyncClient>);

impl AsyncClient {
    /// Another handle to it.
    fn handle(&self, py: Python<'_>) -> PyResult<remora::AsyncClient> {
        self.0.with(py, |client| client.clone())?.ok_or_else(|| error::of(remora::Error::Closed))
    }
}

fn value(reply: Option<Vec<u8>>) -> PyResult<Option<Py<PyBytes>>> {
    Ok(reply.map(|reply| Python::attach(|py| PyBytes::new(py, &reply).unbind())))
}

#[pymethods]
impl AsyncClient {
    /// Connects.
    #[staticmethod]
    #[pyo3(signature = (node, *, link=None, token=None))]
    fn connect<'py>(
        py: Python<'py>,
        node: String,
        link: Option<&str>,
        token: Option<&str>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let builder = builder(link, None, token)?;
        future_into_py(
            py,
            async move { Ok(AsyncClient(Owned::new(builder.connect_async(node).await.map_err(error::of)?))) },
        )
    }

    /// Leaves the node, which takes back all memory of this client. Calls under way end with an error.
    fn close(&self, py: Python<'_>) {
        self.0.close(py);
    }

    fn __aenter__<'py>(this: Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let (py, this) = (this.py(), this.unbind());
        future_into_py(py, async move { Ok(this) })
    }

    fn __aexit__<'py>(
        &self,
        py: Python<'py>,
        _kind: Py<PyAny>,
        _error: Py<PyAny>,
        _trace: Py<PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.close(py);
        future_into_py(py, async { Ok(()) })
    }

    /// Zeroed memory on the node.
    fn alloc<'py>(&self, py: Python<'py>, len: u64) -> PyResult<Bound<'py, PyAny>> {
        let client = self.handle(py)?;
        future_into_py(
            py,
            async move { Ok(Region { region: client.alloc(len).await.map_err(error::of)?, client: None }) },
        )
    }

    /// Copies a part of a region.
    #[pyo3(signature = (region, offset=0, len=None))]
    fn read<'py>(
        &self,
        py: Python<'py>,
        region: &Region,
        offset: u64,
        len: Option<usize>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (client, region) = (self.handle(py)?, region.region);
        let len = len.unwrap_or(region.len.saturating_sub(offset) as usize);
        future_into_py(py, async move { value(Some(client.read(&region, offset, len).await.map_err(error::of)?)) })
    }

    /// Copies bytes into a region.
    #[pyo3(signature = (region, data, offset=0))]
    fn write<'py>(
        &self,
        py: Python<'py>,
        region: &Region,
        data: &Bound<'py, PyAny>,
        offset: u64,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (client, region, data) = (self.handle(py)?, region.region, bytes_of(data)?);
        future_into_py(py, async move { client.write(&region, offset, data).await.map_err(error::of) })
    }

    /// Adds to the word of 8 bytes at `offset`, a multiple of 8; what it was.
    fn fetch_add<'py>(&self, py: Python<'py>, region: &Region, offset: u64, add: u64) -> PyResult<Bound<'py, PyAny>> {
        let (client, region) = (self.handle(py)?, region.region);
        future_into_py(py, async move { client.fetch_add(&region, offset, add).await.map_err(error::of) })
    }

    /// Sets the word of 8 bytes at `offset`, a multiple of 8, if it is `expected`; what it was.
    fn compare_swap<'py>(
        &self,
        py: Python<'py>,
        region: &Region,
        offset: u64,
        expected: u64,
        new: u64,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (client, region) = (self.handle(py)?, region.region);
        future_into_py(py, async move { client.compare_swap(&region, offset, expected, new).await.map_err(error::of) })
    }

    /// Gives the memory back.
    fn free<'py>(&self, py: Python<'py>, region: &Region) -> PyResult<Bound<'py, PyAny>> {
        let (client, region) = (self.handle(py)?, region.region);
        future_into_py(py, async move { client.free(region).await.map_err(error::of) })
    }

    /// The names of the kernels that are deployed at the node, with their op-codes.
    fn kernels<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let client = self.handle(py)?;
        future_into_py(py, async move {
            let found = client.with(|client| client.kernels()).await.map_err(error::of)?;
            Ok(found.into_iter().map(|module| (module.name, module.op)).collect::<HashMap<_, _>>())
        })
    }

    /// Loads a hash table.
    fn load_table<'py>(&self, py: Python<'py>, records: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let records: Vec<(Bytes, Bytes)> = pairs(records)?;
        let (client, len) = (self.handle(py)?, records.len());
        future_into_py(
            py,
            async move { Ok(Table { table: client.load_table(records).await.map_err(error::of)?, len }) },
        )
    }

    /// The value of a key in a hash table. The call is under way from here on.
    #[pyo3(signature = (table, key, place="nic"))]
    fn get<'py>(&self, py: Python<'py>, table: &Table, key: Bytes, place: &str) -> PyResult<Bound<'py, PyAny>> {
        let call = Started::Get(table.table, key.as_ref().to_vec());
        let under_way = self.handle(py)?.at(self::place(place)?).call(call);
        future_into_py(py, async move { value(under_way.await.map_err(error::of)?.1) })
    }

    /// Calls a kernel by its op-code, as `kernels` gives it.
    #[pyo3(signature = (op, params, place="nic", *, payload=None))]
    fn call<'py>(
        &self,
        py: Python<'py>,
        op: u64,
        params: &Bound<'py, PyAny>,
        place: &str,
        payload: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let call = Started::Deployed(op, bytes_of(params)?, payload.map(bytes_of).transpose()?);
        let under_way = self.handle(py)?.at(self::place(place)?).call(call);
        future_into_py(py, async move { value(under_way.await.map_err(error::of)?.1) })
    }
}
