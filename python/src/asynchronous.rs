//! A client for asyncio.

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use pyo3_async_runtimes::tokio::future_into_py;

use crate::client::{Bytes, Region, Started, Table, builder, bytes_of, pairs, place};
use crate::error;
use crate::owned::Owned;

/// A connection to a memory node, whose calls are awaited. A thread of its own drives it.
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
    #[pyo3(signature = (node, *, link=None, timeout=None, token=None))]
    fn connect<'py>(
        py: Python<'py>,
        node: String,
        link: Option<&str>,
        timeout: Option<f64>,
        token: Option<&str>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let builder = builder(link, timeout, token)?;
        future_into_py(
            py,
            async move { Ok(AsyncClient(Owned::new(builder.connect_async(node).await.map_err(error::of)?))) },
        )
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

    /// Calls a kernel by its op-code, as `Client.kernels` and `Kernel.op` give it.
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
