//! A place to run kernels at, or a choice among them, and what a typed call is.

use std::borrow::Cow;

use remora_kernel::filter::FilterParams;
use remora_kernel::{Placement, Status};

use crate::builtin::{Checksum, Distinct, Filter, Get, ReadConsistent, Shuffle, Traverse};
use crate::pending::Pending;
use crate::{CheckedObject, Client, List, Result, Table};

/// A call of a kernel whose reply has a type: what [`At::call`] takes, in every world.
///
/// The built-in kernels have theirs ([`Get`](crate::Get) and others), and so has every kernel that
/// [`Client::deploy`] deploys. Implement it for what those do not express:
///
/// ```
/// use remora::{TypedCall, Status};
///
/// /// Kernel 0x100: adds 1 to a number.
/// struct Increment(u64);
///
/// impl TypedCall for Increment {
///     type Reply = u64;
///
///     fn op(&self) -> u64 {
///         0x100
///     }
///
///     fn encode(&self, params: &mut Vec<u8>) {
///         params.extend(self.0.to_le_bytes());
///     }
///
///     fn decode(&self, status: Status, reply: &[u8]) -> Option<u64> {
///         (status == Status::Ok).then(|| reply.try_into().ok().map(u64::from_le_bytes))?
///     }
/// }
/// ```
pub trait TypedCall {
    /// What comes back.
    type Reply;

    /// The kernel's op-code.
    fn op(&self) -> u64;

    /// Appends the kernel's parameters.
    fn encode(&self, params: &mut Vec<u8>);

    /// The payload stream behind the parameters, for kernels that work on one: such calls run on the NIC.
    fn payload(&self) -> Option<Cow<'_, [u8]>> {
        None
    }

    /// The reply. `None` makes the call an error: its status is a failure, or the bytes are no reply of the kernel.
    fn decode(&self, status: Status, reply: &[u8]) -> Option<Self::Reply>;
}

/// Who calls kernels: a [`Client`], an [`AsyncClient`](crate::AsyncClient) or a
/// [`ModelledClient`](crate::model::ModelledClient).
pub trait Caller: sealed::Sealed + Sized {
    /// What becomes of a call.
    type Outcome<C: TypedCall>;

    /// Runs a call at a place, or where it is answered quickest.
    fn call_at<C: TypedCall>(self, placement: impl Into<Option<Placement>>, call: C) -> Self::Outcome<C>;
}

pub(crate) mod sealed {
    /// Worlds are made here.
    pub trait Sealed {}
}

/// Runs kernels at one place, or where they are answered quickest: what [`Client::at`] and [`Client::auto`] give, and their
/// like of the other clients.
///
/// Every method sends one call. What comes of it is up to the client: `Result<Reply>` for a [`Client`], which waits; a
/// future of that for an [`AsyncClient`](crate::AsyncClient); the reply and its time for a
/// [`ModelledClient`](crate::model::ModelledClient).
#[must_use = "it runs nothing until a kernel is called"]
pub struct At<K> {
    caller: K,
    /// Without one it is chosen for each call.
    placement: Option<Placement>,
}

impl<K: Caller> At<K> {
    pub(crate) fn new(caller: K, placement: Option<Placement>) -> Self {
        Self { caller, placement }
    }

    /// Runs a call of any kernel.
    pub fn call<C: TypedCall>(self, call: C) -> K::Outcome<C> {
        self.caller.call_at(self.placement, call)
    }

    /// The value of a key in a hash table; `None` if the table has no such key.
    pub fn get<'k, Q: AsRef<[u8]> + ?Sized>(self, table: &Table, key: &'k Q) -> K::Outcome<Get<'k>> {
        self.call(Get::new(table, key))
    }

    /// The value of a key in a linked list; `None` if the list has no such key.
    pub fn traverse(self, list: &List, key: u64) -> K::Outcome<Traverse> {
        self.call(Traverse::new(list, key))
    }

    /// The payload of an object that others may be rewriting: as one of them wrote it, never a part of two.
    pub fn read_consistent(self, object: &CheckedObject) -> K::Outcome<ReadConsistent> {
        self.call(ReadConsistent::new(object))
    }

    /// Length and CRC-64/XZ of a payload stream.
    pub fn checksum(self, data: &[u8]) -> K::Outcome<Checksum<'_>> {
        self.call(Checksum(data))
    }

    /// How many distinct values of 8 bytes a payload stream holds, about: HyperLogLog with 2^`lg_k` registers, 4 to 18.
    pub fn distinct(self, values: &[u8], lg_k: u8) -> K::Outcome<Distinct<'_>> {
        self.call(Distinct { values, lg_k })
    }

    /// Filters rows in the node's memory, and returns those that match, or counts or sums them.
    pub fn filter(self, params: FilterParams) -> K::Outcome<Filter<'static>> {
        self.call(Filter { params, rows: None })
    }

    /// Partitions a payload stream of 8-byte values into the node's memory; returns how many there were.
    pub fn shuffle(self, shuffle: Shuffle<'_>) -> K::Outcome<Shuffle<'_>> {
        self.call(shuffle)
    }
}

impl sealed::Sealed for &mut Client {}

impl Caller for &mut Client {
    type Outcome<C: TypedCall> = Result<C::Reply>;

    fn call_at<C: TypedCall>(self, placement: impl Into<Option<Placement>>, call: C) -> Result<C::Reply> {
        let pending = self.start(placement.into(), call);
        self.wait(pending)
    }
}

impl At<&mut Client> {
    /// Starts a call, which [`Client::wait`] ends: so many calls are under way at once. If as many are as may be
    /// ([`MAX_CALLS`](crate::MAX_CALLS)), it waits for one of them to end first. A call with a payload stream runs to
    /// its end at once.
    ///
    /// ```
    /// # use remora::{Client, Get, Node, Placement};
    /// # fn main() -> remora::Result<()> {
    /// # let node = Node::local()?;
    /// # let mut client = Client::connect(node.address())?;
    /// let table = client.load_table((0..100u64).map(|n| (n.to_string(), n.to_le_bytes())))?;
    /// let keys: Vec<String> = (0..100).map(|n| n.to_string()).collect();
    /// let calls: Vec<_> = keys.iter().map(|key| client.at(Placement::Nic).submit(Get::new(&table, key))).collect();
    /// for (call, n) in calls.into_iter().zip(0u64..) {
    ///     assert_eq!(client.wait(call)?.as_deref(), Some(&n.to_le_bytes()[..]));
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn submit<C: TypedCall>(self, call: C) -> Pending<C> {
        self.caller.start(self.placement, call)
    }
}
