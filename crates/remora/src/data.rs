//! Structures that a client loads into a node's memory, for kernels to look things up in.

use remora_real::{Error, RemoteRegion};
use remora_store::hash::Table;
use remora_store::list::List;
use remora_store::{Arena, Place, checked, text};

use crate::{Client, Result};

/// An object that carries the checksum of its payload, so that [`At::read_consistent`](crate::At::read_consistent)
/// notices when it reads one that is being rewritten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckedObject {
    region: RemoteRegion,
}

impl CheckedObject {
    /// Bytes of the payload.
    pub fn len(&self) -> u64 {
        self.region.len - checked::CRC_BYTES as u64
    }

    /// Whether the payload has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn params(&self, max_tries: u32) -> remora_kernel::ConsistencyParams {
        checked::params(Place { va: self.region.va, key: self.region.key }, self.region.len as u32, max_tries)
    }
}

impl Client {
    /// Loads a hash table into memory of the node. Keys are byte strings; the same one twice is an error, and so is a
    /// record too long for a reply ([`MAX_REPLY`](crate::MAX_REPLY)).
    ///
    /// ```
    /// # use remora::{Client, Node, Placement};
    /// # fn main() -> remora::Result<()> {
    /// # let node = Node::local()?;
    /// # let mut client = Client::connect(node.address())?;
    /// let table = client.load_table([("one", [1u8]), ("two", [2])])?;
    /// assert_eq!(client.at(Placement::Host).get(&table, "two")?, Some(vec![2]));
    ///
    /// let error = client.load_table([("one", "x"), ("one", "y")]).unwrap_err();
    /// assert_eq!(error.to_string(), r#"key "one" occurs twice"#);
    /// # Ok(())
    /// # }
    /// ```
    pub fn load_table<K, V>(&mut self, records: impl IntoIterator<Item = (K, V)>) -> Result<Table>
    where
        K: AsRef<[u8]>,
        V: AsRef<[u8]>,
    {
        layout(records)?.load(self)
    }

    /// Loads a linked list into memory of the node. Its values all have the size of the longest, with zeros behind.
    ///
    /// ```
    /// # use remora::{Client, Node, Placement};
    /// # fn main() -> remora::Result<()> {
    /// # let node = Node::local()?;
    /// # let mut client = Client::connect(node.address())?;
    /// let list = client.load_list([(10, "ten"), (20, "two")])?;
    /// assert_eq!(client.at(Placement::Nic).traverse(&list, 20)?.as_deref(), Some(&b"two"[..]));
    /// assert_eq!(client.at(Placement::Nic).traverse(&list, 30)?, None);
    /// # Ok(())
    /// # }
    /// ```
    pub fn load_list<V: AsRef<[u8]>>(&mut self, records: impl IntoIterator<Item = (u64, V)>) -> Result<List> {
        load_list(self, records)
    }

    /// Puts an object into memory of the node; [`rewrite`](Self::rewrite) changes it.
    ///
    /// ```
    /// # use remora::{Client, Node, Placement};
    /// # fn main() -> remora::Result<()> {
    /// # let node = Node::local()?;
    /// # let mut client = Client::connect(node.address())?;
    /// let object = client.load_object(b"draft")?;
    /// client.rewrite(&object, b"final")?;
    /// let read = client.at(Placement::Nic).read_consistent(&object)?;
    /// assert_eq!((&read.payload[..], read.tries), (&b"final"[..], 1));
    /// # Ok(())
    /// # }
    /// ```
    pub fn load_object(&mut self, payload: &[u8]) -> Result<CheckedObject> {
        let region = self.alloc((payload.len() + checked::CRC_BYTES) as u64)?;
        let object = CheckedObject { region };
        self.rewrite(&object, payload)?;
        Ok(object)
    }

    /// Rewrites an object in place, with a payload of the same length. Readers need no lock.
    pub fn rewrite(&mut self, object: &CheckedObject, payload: &[u8]) -> Result<()> {
        if payload.len() as u64 != object.len() {
            let (new, old) = (payload.len(), object.len());
            return Err(Error::Argument(format!("{new} bytes for an object of {old}: load another object")));
        }
        let mut bytes = [payload, &[0; checked::CRC_BYTES]].concat();
        checked::seal(&mut bytes);
        self.write(&object.region, 0, &bytes)
    }
}

impl Arena for Client {
    type Error = Error;

    fn alloc(&mut self, len: u64) -> Result<Place> {
        let region = Client::alloc(self, len)?;
        Ok(Place { va: region.va, key: region.key })
    }

    fn alloc_growing(&mut self, len: u64) -> Result<Place> {
        let region = self.real()?.alloc_growing(len)?;
        Ok(Place { va: region.va, key: region.key })
    }

    fn write(&mut self, at: Place, bytes: &[u8]) -> Result<()> {
        let region = RemoteRegion { va: at.va, key: at.key, len: bytes.len() as u64 };
        Client::write(self, &region, 0, bytes)
    }
}

/// A table of these records, in want of addresses.
pub(crate) fn layout<K, V>(records: impl IntoIterator<Item = (K, V)>) -> Result<remora_store::hash::Layout>
where
    K: AsRef<[u8]>,
    V: AsRef<[u8]>,
{
    let mut builder = text::RecordsBuilder::new(SEED);
    for (key, value) in records {
        let (key, value) = (key.as_ref(), value.as_ref());
        let len = text::LEN_BYTES + key.len() + value.len();
        if len > crate::MAX_REPLY {
            let (key, most) = (String::from_utf8_lossy(key), crate::MAX_REPLY);
            return Err(Error::Argument(format!(
                "the record of key {key:?} has {len} bytes, a reply has at most {most}"
            )));
        }
        builder.insert(key, value).map_err(refused)?;
    }
    builder.build().map_err(refused)
}

/// A list of these records in some memory.
pub(crate) fn load_list<A: Arena, V: AsRef<[u8]>>(
    arena: &mut A,
    records: impl IntoIterator<Item = (u64, V)>,
) -> std::result::Result<List, A::Error> {
    let records: Vec<(u64, V)> = records.into_iter().collect();
    let records: Vec<(u64, &[u8])> = records.iter().map(|(key, value)| (*key, value.as_ref())).collect();
    let longest = records.iter().map(|(_, value)| value.len()).max().unwrap_or(0);
    List::load(&records, longest as u32, arena)
}

fn refused(error: text::RecordsError) -> Error {
    Error::Argument(error.to_string())
}

/// Of the hashes of tables' keys.
const SEED: u64 = 42;
