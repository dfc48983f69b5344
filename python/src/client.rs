//! Nodes, clients, and what a client has at a node.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use pyo3::buffer::PyBuffer;
use pyo3::conversion::FromPyObjectOwned;
use pyo3::exceptions::{PyIndexError, PyTypeError};
use pyo3::prelude::*;
use pyo3::pybacked::{PyBackedBytes, PyBackedStr};
use pyo3::types::{PyBytes, PySlice, PyString};
use remora::{Error, Get, LinkKind, ModuleLimits, Placement, RemoteRegion, Status, TypedCall};

use crate::error;
use crate::owned::Owned;

/// Bytes, or text as UTF-8: keys and values.
pub enum Bytes {
    /// Text.
    Text(PyBackedStr),
    /// Bytes.
    Bytes(PyBackedBytes),
}

/// By its type and not by trials: a kind that is refused costs an exception, which is dearer than a look-up.
impl<'py> FromPyObject<'_, 'py> for Bytes {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        if object.is_instance_of::<PyString>() {
            return Ok(Self::Text(object.extract()?));
        }
        let bytes = object.extract().map(Self::Bytes);
        bytes.map_err(|_| match object.get_type().name() {
            Ok(name) => PyTypeError::new_err(format!("keys and values are bytes or str, not {name}")),
            Err(error) => error,
        })
    }
}

impl AsRef<[u8]> for Bytes {
    fn as_ref(&self) -> &[u8] {
        match self {
            Self::Text(text) => text.as_bytes(),
            Self::Bytes(bytes) => bytes,
        }
    }
}

/// A place by its name.
pub fn place(name: &str) -> PyResult<Placement> {
    name.parse().map_err(error::invalid)
}

/// Pairs of a mapping, or of anything that yields pairs.
pub fn pairs<'py, K: FromPyObjectOwned<'py>>(records: &Bound<'py, PyAny>) -> PyResult<Vec<(K, Bytes)>> {
    let items = match records.hasattr("items")? {
        true => records.call_method0("items")?,
        false => records.clone(),
    };
    let mut pairs = Vec::new();
    for item in items.try_iter()? {
        let (key, value): (Bound<'py, PyAny>, Bound<'py, PyAny>) = item?.extract()?;
        pairs.push((key.extract::<K>().map_err(Into::<PyErr>::into)?, value.extract::<Bytes>()?));
    }
    Ok(pairs)
}

/// The bytes of anything that has a buffer.
pub fn bytes_of(data: &Bound<'_, PyAny>) -> PyResult<Vec<u8>> {
    if let Ok(bytes) = data.cast::<PyBytes>() {
        return Ok(bytes.as_bytes().to_vec());
    }
    let view = data.py().import("builtins")?.getattr("memoryview")?.call1((data,))?.call_method1("cast", ("B",))?;
    PyBuffer::<u8>::get(&view)?.to_vec(data.py())
}

/// A memory node in this process, until it is closed or forgotten. `memory` is how many bytes clients may allocate, all
/// together.
#[pyclass(frozen, module = "remora")]
pub struct Node {
    node: Owned<remora::Node>,
    address: String,
}

#[pymethods]
impl Node {
    #[new]
    #[pyo3(signature = (listen=None, *, memory=None))]
    fn new(py: Python<'_>, listen: Option<String>, memory: Option<u64>) -> PyResult<Self> {
        let node = py.detach(|| {
            let builder = remora::Node::builder();
            let builder = memory.map_or(builder.clone(), |bytes| builder.memory_limit(bytes));
            match listen {
                Some(address) => builder.bind(address.as_str()),
                None => builder.bind_local(),
            }
        });
        let node = node.map_err(error::of)?;
        Ok(Self { address: node.address().to_string(), node: Owned::new(node) })
    }

    /// The address that clients connect to.
    #[getter]
    fn address(&self) -> &str {
        &self.address
    }

    /// Finishes calls under way, and stops.
    fn close(&self, py: Python<'_>) {
        self.node.close(py);
    }

    fn __enter__(this: Py<Self>) -> Py<Self> {
        this
    }

    fn __exit__(&self, py: Python<'_>, _kind: Py<PyAny>, _error: Py<PyAny>, _trace: Py<PyAny>) {
        self.close(py);
    }
}

/// A connection to a memory node. Threads may share it: they take turns. A call takes at most `timeout` seconds, or else as
/// long as the connection stands; `token` is the file of what the node asks of who deploys kernels.
#[pyclass(frozen, module = "remora")]
pub struct Client(Owned<remora::Client>);

impl Client {
    /// Does something with the client, while other threads of Python go on.
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        run: impl FnOnce(&mut remora::Client) -> remora::Result<T> + Send,
    ) -> PyResult<T> {
        self.0.with(py, run)?.unwrap_or(Err(Error::Closed)).map_err(error::of)
    }
}

/// Looks keys up, all calls under way together.
fn many(
    client: &mut remora::Client,
    table: &remora::Table,
    keys: &[Bytes],
    place: Placement,
) -> remora::Result<Vec<Option<Vec<u8>>>> {
    let calls: Vec<_> = keys.iter().map(|key| client.at(place).submit(Get::new(table, key.as_ref()))).collect();
    calls.into_iter().map(|call| client.wait(call)).collect()
}

/// What both kinds of client are made by.
pub fn builder(link: Option<&str>, timeout: Option<f64>, token: Option<&str>) -> PyResult<remora::ClientBuilder> {
    let mut builder = remora::Client::builder();
    if let Some(link) = link {
        builder = builder.link(link.parse::<LinkKind>().map_err(error::invalid)?);
    }
    if let Some(seconds) = timeout {
        builder = builder.timeout(Duration::try_from_secs_f64(seconds).map_err(error::invalid)?);
    }
    if let Some(file) = token {
        builder = builder.deploy_token(remora::DeployToken::read(file.as_ref()).map_err(error::of)?);
    }
    Ok(builder)
}

#[pymethods]
impl Client {
    #[new]
    #[pyo3(signature = (node, *, link=None, timeout=None, token=None))]
    fn new(
        py: Python<'_>,
        node: String,
        link: Option<&str>,
        timeout: Option<f64>,
        token: Option<&str>,
    ) -> PyResult<Self> {
        let builder = builder(link, timeout, token)?;
        let client = py.detach(|| builder.connect(node.as_str())).map_err(error::of)?;
        Ok(Self(Owned::new(client)))
    }

    /// The link in use: `shm` or `udp`.
    #[getter]
    fn link(&self, py: Python<'_>) -> PyResult<String> {
        self.with(py, |client| Ok(client.link().to_string()))
    }

    /// Leaves the node, which takes back all memory of this client.
    fn close(&self, py: Python<'_>) {
        self.0.close(py);
    }

    fn __enter__(this: Py<Self>) -> Py<Self> {
        this
    }

    fn __exit__(&self, py: Python<'_>, _kind: Py<PyAny>, _error: Py<PyAny>, _trace: Py<PyAny>) {
        self.close(py);
    }

    /// Zeroed memory on the node.
    fn alloc(this: Bound<'_, Self>, len: u64) -> PyResult<Region> {
        let region = this.get().with(this.py(), |client| client.alloc(len))?;
        Ok(Region { region, client: Some(this.unbind()) })
    }

    /// Loads a hash table.
    fn load_table(&self, py: Python<'_>, records: &Bound<'_, PyAny>) -> PyResult<Table> {
        let records: Vec<(Bytes, Bytes)> = pairs(records)?;
        let len = records.len();
        Ok(Table { table: self.with(py, |client| client.load_table(records))?, len })
    }

    /// Loads a linked list.
    fn load_list(&self, py: Python<'_>, records: &Bound<'_, PyAny>) -> PyResult<List> {
        let records: Vec<(u64, Bytes)> = pairs(records)?;
        Ok(List(self.with(py, |client| client.load_list(records))?))
    }

    /// Loads an object that may be read while it is rewritten.
    fn load_object(&self, py: Python<'_>, payload: &Bound<'_, PyAny>) -> PyResult<CheckedObject> {
        let payload = bytes_of(payload)?;
        Ok(CheckedObject(self.with(py, |client| client.load_object(&payload))?))
    }

    /// Rewrites an object in place.
    fn rewrite(&self, py: Python<'_>, object: &CheckedObject, payload: &Bound<'_, PyAny>) -> PyResult<()> {
        let payload = bytes_of(payload)?;
        self.with(py, |client| client.rewrite(&object.0, &payload))
    }

    /// The value of a key in a hash table.
    #[pyo3(signature = (table, key, place="nic"))]
    fn get<'py>(
        &self,
        py: Python<'py>,
        table: &Table,
        key: Bytes,
        place: &str,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let place = self::place(place)?;
        let value = self.with(py, |client| client.at(place).get(&table.table, key.as_ref()))?;
        Ok(value.map(|value| PyBytes::new(py, &value)))
    }

    /// The values of many keys, whose calls are under way together.
    #[pyo3(signature = (table, keys, place="nic"))]
    fn get_many<'py>(
        &self,
        py: Python<'py>,
        table: &Table,
        keys: Vec<Bytes>,
        place: &str,
    ) -> PyResult<Vec<Option<Bound<'py, PyBytes>>>> {
        let place = self::place(place)?;
        let values = self.with(py, |client| many(client, &table.table, &keys, place))?;
        Ok(values.into_iter().map(|value| value.map(|value| PyBytes::new(py, &value))).collect())
    }

    /// Seconds that looking these keys up takes from Rust, one after the other or all at once: what `python/speed.py` holds
    /// Python's beside.
    fn _time_gets(&self, py: Python<'_>, table: &Table, keys: Vec<Bytes>, place: &str, at_once: bool) -> PyResult<f64> {
        let place = self::place(place)?;
        self.with(py, |client| {
            let start = Instant::now();
            let found = match at_once {
                true => many(client, &table.table, &keys, place)?,
                false => keys
                    .iter()
                    .map(|key| client.at(place).get(&table.table, key.as_ref()))
                    .collect::<remora::Result<Vec<_>>>()?,
            };
            let seconds = start.elapsed().as_secs_f64();
            drop(found);
            Ok(seconds)
        })
    }

    /// Starts a look-up; its result is had later.
    #[pyo3(signature = (table, key, place="nic"))]
    fn submit_get(this: Bound<'_, Self>, table: &Table, key: Bytes, place: &str) -> PyResult<Pending> {
        let place = self::place(place)?;
        let call = Started::Get(table.table, key.as_ref().to_vec());
        let pending = this.get().with(this.py(), |client| Ok(client.at(place).submit(call)))?;
        Ok(Pending { pending: Mutex::new(Some(pending)), place, client: this.unbind() })
    }

    /// The value of a key in a linked list.
    #[pyo3(signature = (list, key, place="nic"))]
    fn traverse<'py>(
        &self,
        py: Python<'py>,
        list: &List,
        key: u64,
        place: &str,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let place = self::place(place)?;
        let value = self.with(py, |client| client.at(place).traverse(&list.0, key))?;
        Ok(value.map(|value| PyBytes::new(py, &value)))
    }

    /// An object as one of its writers wrote it.
    #[pyo3(signature = (object, place="nic"))]
    fn read_consistent<'py>(
        &self,
        py: Python<'py>,
        object: &CheckedObject,
        place: &str,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let place = self::place(place)?;
        let read = self.with(py, |client| client.at(place).read_consistent(&object.0))?;
        Ok(PyBytes::new(py, &read.payload))
    }

    /// Deploys a WebAssembly module, binary or text, at the node and at this client.
    #[pyo3(signature = (name, module, *, fuel=None))]
    fn deploy(this: Bound<'_, Self>, name: String, module: Bytes, fuel: Option<u64>) -> PyResult<Kernel> {
        let limits = ModuleLimits { fuel: fuel.unwrap_or(ModuleLimits::default().fuel), ..ModuleLimits::default() };
        let op = this
            .get()
            .with(this.py(), |client| Ok(client.deploy::<(), Vec<u8>>(&name, module.as_ref(), limits)?.module().op))?;
        Ok(Kernel { name, op, client: this.unbind() })
    }

    /// A kernel that somebody has deployed at the node.
    fn kernel(this: Bound<'_, Self>, name: String) -> PyResult<Kernel> {
        let op = this.get().with(this.py(), |client| Ok(client.kernel::<(), Vec<u8>>(&name)?.module().op))?;
        Ok(Kernel { name, op, client: this.unbind() })
    }

    /// The names of the kernels that are deployed at the node, with their op-codes.
    fn kernels(&self, py: Python<'_>) -> PyResult<HashMap<String, u64>> {
        let found = self.with(py, |client| client.kernels())?;
        Ok(found.into_iter().map(|module| (module.name, module.op)).collect())
    }

    /// Removes a kernel from the node.
    fn remove_kernel(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        self.with(py, |client| client.remove_kernel(name))
    }
}

/// Memory of a node: read and written like a bytearray, each time over the network. It stays until it is freed or its client
/// is closed, whether anybody holds this or not, as others may know its key.
#[pyclass(frozen, module = "remora")]
pub struct Region {
    pub region: RemoteRegion,
    /// Whose it is; none for an asynchronous client's.
    pub client: Option<Py<Client>>,
}

impl Region {
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        run: impl FnOnce(&mut remora::Client) -> remora::Result<T> + Send,
    ) -> PyResult<T> {
        match &self.client {
            Some(client) => client.get().with(py, run),
            None => Err(error::invalid("this region is of an AsyncClient: use its read and write")),
        }
    }

    /// Where a part lies, and how long it is.
    fn part(&self, part: &Bound<'_, PySlice>) -> PyResult<(u64, usize)> {
        let all = isize::try_from(self.region.len).map_err(error::invalid)?;
        let indices = part.indices(all)?;
        if indices.step != 1 {
            return Err(error::invalid("a part of a region has step 1"));
        }
        Ok((indices.start as u64, indices.slicelength))
    }

    /// Where a byte lies; below 0 it is counted from the end.
    fn byte(&self, at: &Bound<'_, PyAny>) -> PyResult<u64> {
        let (at, len) = (at.extract::<i128>()?, i128::from(self.region.len));
        let offset = if at < 0 { at + len } else { at };
        match (0..len).contains(&offset) {
            true => Ok(offset as u64),
            false => Err(PyIndexError::new_err(format!("byte {at} of a region of {len}"))),
        }
    }
}

#[pymethods]
impl Region {
    /// Its key, for kernels.
    #[getter]
    fn key(&self) -> u32 {
        self.region.key
    }

    /// Its address at the node, for kernels.
    #[getter]
    fn va(&self) -> u64 {
        self.region.va
    }

    fn __len__(&self) -> usize {
        self.region.len as usize
    }

    /// Copies a part, by READs.
    #[pyo3(signature = (offset=0, len=None))]
    fn read<'py>(&self, py: Python<'py>, offset: u64, len: Option<usize>) -> PyResult<Bound<'py, PyBytes>> {
        let len = len.unwrap_or(self.region.len.saturating_sub(offset) as usize);
        if len as u64 > self.region.len {
            return Err(error::invalid(format!("{len} bytes of a region of {}", self.region.len)));
        }
        PyBytes::new_with(py, len, |bytes| self.with(py, |client| client.read(&self.region, offset, bytes)))
    }

    /// Copies a part into a buffer, which it fills.
    #[pyo3(signature = (buffer, offset=0))]
    fn readinto(&self, py: Python<'_>, buffer: &Bound<'_, PyAny>, offset: u64) -> PyResult<usize> {
        let view = py.import("builtins")?.getattr("memoryview")?.call1((buffer,))?.call_method1("cast", ("B",))?;
        let view = PyBuffer::<u8>::get(&view)?;
        let mut bytes = vec![0; view.len_bytes()];
        self.with(py, |client| client.read(&self.region, offset, &mut bytes))?;
        view.copy_from_slice(py, &bytes)?;
        Ok(bytes.len())
    }

    /// Copies bytes into it, by WRITEs.
    #[pyo3(signature = (data, offset=0))]
    fn write(&self, py: Python<'_>, data: &Bound<'_, PyAny>, offset: u64) -> PyResult<()> {
        let data = bytes_of(data)?;
        self.with(py, |client| client.write(&self.region, offset, &data))
    }

    fn __getitem__<'py>(&self, py: Python<'py>, at: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        if let Ok(part) = at.cast::<PySlice>() {
            let (offset, len) = self.part(part)?;
            return Ok(self.read(py, offset, Some(len))?.into_any());
        }
        self.read(py, self.byte(at)?, Some(1))?.get_item(0)
    }

    /// All of it by one READ; without this, Python would ask for byte after byte.
    fn __bytes__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        self.read(py, 0, None)
    }

    fn __setitem__(&self, py: Python<'_>, at: &Bound<'_, PyAny>, data: &Bound<'_, PyAny>) -> PyResult<()> {
        let ((offset, len), data) = match at.cast::<PySlice>() {
            Ok(part) => (self.part(part)?, bytes_of(data)?),
            Err(_) => {
                let byte = data.extract::<u8>().map_err(|_| error::invalid("a byte is a number from 0 to 255"))?;
                ((self.byte(at)?, 1), vec![byte])
            }
        };
        if data.len() != len {
            return Err(error::invalid(format!("{} bytes for a part of {len}: a region does not grow", data.len())));
        }
        self.with(py, |client| client.write(&self.region, offset, &data))
    }

    /// Adds to the word at `offset`; returns what it was.
    fn fetch_add(&self, py: Python<'_>, offset: u64, add: u64) -> PyResult<u64> {
        self.with(py, |client| client.fetch_add(&self.region, offset, add))
    }

    /// Sets the word at `offset` if it is `expected`; returns what it was.
    fn compare_swap(&self, py: Python<'_>, offset: u64, expected: u64, new: u64) -> PyResult<u64> {
        self.with(py, |client| client.compare_swap(&self.region, offset, expected, new))
    }

    /// Gives the memory back.
    fn free(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, |client| client.free(self.region))
    }
}

/// A hash table in a node's memory.
#[pyclass(frozen, module = "remora")]
pub struct Table {
    pub table: remora::Table,
    pub len: usize,
}

#[pymethods]
impl Table {
    fn __len__(&self) -> usize {
        self.len
    }
}

/// A linked list in a node's memory.
#[pyclass(frozen, module = "remora")]
pub struct List(remora::List);

/// An object in a node's memory that carries its checksum.
#[pyclass(frozen, module = "remora")]
pub struct CheckedObject(remora::CheckedObject);

#[pymethods]
impl CheckedObject {
    fn __len__(&self) -> usize {
        self.0.len() as usize
    }
}

/// A call that has begun.
pub enum Started {
    /// A look-up.
    Get(remora::Table, Vec<u8>),
    /// A deployed kernel: op-code, parameters, payload.
    Deployed(u64, Vec<u8>, Option<Vec<u8>>),
}

impl TypedCall for Started {
    /// None if what was asked for is not there.
    type Reply = (Status, Option<Vec<u8>>);

    fn op(&self) -> u64 {
        match self {
            Self::Get(table, key) => Get::new(table, key).op(),
            Self::Deployed(op, ..) => *op,
        }
    }

    fn encode(&self, params: &mut Vec<u8>) {
        match self {
            Self::Get(table, key) => Get::new(table, key).encode(params),
            Self::Deployed(_, bytes, _) => params.extend(bytes),
        }
    }

    fn payload(&self) -> Option<std::borrow::Cow<'_, [u8]>> {
        match self {
            Self::Deployed(_, _, Some(payload)) => Some(payload.into()),
            _ => None,
        }
    }

    fn decode(&self, status: Status, reply: &[u8]) -> Option<Self::Reply> {
        match (self, status) {
            (Self::Get(table, key), _) => Get::new(table, key).decode(status, reply).map(|value| (status, value)),
            (_, Status::Ok) => Some((status, Some(reply.to_vec()))),
            (_, Status::NotFound) => Some((status, None)),
            _ => None,
        }
    }
}

/// A kernel that is deployed at a node.
#[pyclass(frozen, module = "remora")]
pub struct Kernel {
    name: String,
    op: u64,
    client: Py<Client>,
}

impl Kernel {
    fn start(&self, params: &Bound<'_, PyAny>, payload: Option<&Bound<'_, PyAny>>) -> PyResult<Started> {
        Ok(Started::Deployed(self.op, bytes_of(params)?, payload.map(bytes_of).transpose()?))
    }
}

#[pymethods]
impl Kernel {
    #[getter]
    fn name(&self) -> &str {
        &self.name
    }

    #[getter]
    fn op(&self) -> u64 {
        self.op
    }

    /// Calls it; None if it says that what was asked for is not there.
    #[pyo3(signature = (params, place="nic", *, payload=None))]
    fn __call__<'py>(
        &self,
        py: Python<'py>,
        params: &Bound<'py, PyAny>,
        place: &str,
        payload: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let (call, place) = (self.start(params, payload)?, self::place(place)?);
        let (_, reply) = self.client.get().with(py, |client| client.at(place).call(call))?;
        Ok(reply.map(|reply| PyBytes::new(py, &reply)))
    }

    /// Starts a call; its result is had later.
    #[pyo3(signature = (params, place="nic", *, payload=None))]
    fn submit(
        &self,
        py: Python<'_>,
        params: &Bound<'_, PyAny>,
        place: &str,
        payload: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Pending> {
        let (call, place) = (self.start(params, payload)?, self::place(place)?);
        let pending = self.client.get().with(py, |client| Ok(client.at(place).submit(call)))?;
        Ok(Pending { pending: Mutex::new(Some(pending)), place, client: self.client.clone_ref(py) })
    }
}

/// A call under way.
#[pyclass(frozen, module = "remora")]
pub struct Pending {
    pending: Mutex<Option<remora::Pending<Started>>>,
    place: Placement,
    client: Py<Client>,
}

#[pymethods]
impl Pending {
    /// Where it runs.
    #[getter]
    fn place(&self) -> &'static str {
        self.place.name()
    }

    /// Waits for its end; to be asked once.
    fn result<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner).take();
        let pending = pending.ok_or_else(|| error::invalid("the result of this call has been taken already"))?;
        let (_, reply) = self.client.get().with(py, |client| client.wait(pending))?;
        Ok(reply.map(|reply| PyBytes::new(py, &reply)))
    }
}
