//! A client for many threads.

use remora_kernel::Placement;
use remora_real::{Error, SharedClient};

use crate::at::sealed;
use crate::pending::finish;
use crate::{At, Caller, Client, Result, TypedCall};

/// A client that many threads share: [`Client::share`] makes one. Each thread makes calls one by one; all go by one pair of
/// rings to one place of the node, those that are made at the same time together (Flock, SOSP 2021).
///
/// ```
/// # use remora::{Client, Node, Placement};
/// # fn main() -> remora::Result<()> {
/// # let node = Node::local()?;
/// let mut client = Client::connect(node.address())?;
/// let table = client.load_table((0..100u64).map(|n| (n.to_string(), n.to_le_bytes())))?;
/// let shared = client.share(Placement::Nic)?;
/// std::thread::scope(|scope| {
///     for n in 0..4u64 {
///         let (shared, table) = (&shared, &table);
///         scope.spawn(move || {
///             let value = shared.at().get(table, &n.to_string()).expect("a call");
///             assert_eq!(value.as_deref(), Some(&n.to_le_bytes()[..]));
///         });
///     }
/// });
/// # Ok(())
/// # }
/// ```
pub struct Shared {
    client: SharedClient,
    placement: Placement,
}

impl Shared {
    /// Kernels at the place that the rings lead to. A kernel that works on a payload stream is none for rings.
    pub fn at(&self) -> At<&Self> {
        At::new(self, Some(self.placement))
    }

    /// Calls that were made, and how often some of them were posted together.
    pub fn counts(&self) -> (u64, u64) {
        self.client.counts()
    }
}

impl sealed::Sealed for &Shared {}

impl Caller for &Shared {
    type Outcome<C: TypedCall> = Result<C::Reply>;

    fn call_at<C: TypedCall>(self, _: impl Into<Option<Placement>>, call: C) -> Result<C::Reply> {
        let op = call.op();
        if call.payload().is_some() {
            let why =
                format!("kernel {op:#x} works on a payload stream, which does not go by rings: call it by a client");
            return Err(Error::Argument(why));
        }
        let mut params = Vec::new();
        call.encode(&mut params);
        let (len, most) = (params.len(), self.client.most_params());
        if len > most {
            return Err(Error::TooLong { op, placement: self.placement, len, most });
        }
        let (status, reply) = self.client.call(op, &params);
        finish(&call, Ok((self.placement, status, reply)))
    }
}

impl Client {
    /// Gives this client to many threads at once, whose calls go by one pair of rings to the node's NIC or host. What is under
    /// way ends first.
    pub fn share(self, placement: Placement) -> Result<Shared> {
        let config = self.ring_config();
        let client = SharedClient::new(self.into_inner()?, placement, config)?;
        Ok(Shared { client, placement })
    }
}
