//! A client of a memory node.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use remora_kernel::{Placement, Places, Status};
use remora_real::link::Layers;
use remora_real::{ClientConfig, DeployToken, Error, LinkKind, RemoteRegion, RingConfig, UdpPort, at_local};
use remora_ring::RingShape;

use remora_service::{CallKind, Placer};

use crate::oneshot::oneshot;
use crate::pending::{Answer, Asker, Pending};
use crate::{At, Result, ToAddress, TypedCall};

/// A connection to a memory node.
///
/// ```
/// use remora::{Client, Node, Placement};
///
/// # fn main() -> remora::Result<()> {
/// let node = Node::local()?;
/// let mut client = Client::connect(node.address())?;
/// let table = client.load_table([("apple", "red"), ("pear", "green")])?;
/// for place in Placement::REAL {
///     assert_eq!(client.at(place).get(&table, "pear")?.as_deref(), Some(&b"green"[..]));
///     assert_eq!(client.at(place).get(&table, "plum")?, None);
/// }
/// # Ok(())
/// # }
/// ```
///
/// Memory on the node belongs to the client that allocated it, until it disconnects. Whoever is told a region's address
/// and key can use it too.
pub struct Client {
    /// Unlike any other's in this process.
    id: u64,
    inner: remora_real::Client,
    timeout: Option<Duration>,
    /// The shape of rings that it opens.
    rings: RingShape,
    /// Who waits for the call with this tag.
    askers: Vec<Option<(Placement, Asker)>>,
    free: Vec<u32>,
    params: Vec<u8>,
}

/// Clients so far.
static CLIENTS: AtomicU64 = AtomicU64::new(0);

/// How to connect: see [`Client::builder`].
///
/// ```
/// use std::time::Duration;
/// use remora::{Client, LinkKind, Node};
///
/// # fn main() -> remora::Result<()> {
/// let node = Node::local()?;
/// let client = Client::builder().link(LinkKind::Udp).timeout(Duration::from_secs(1)).connect(node.address())?;
/// assert_eq!(client.link(), LinkKind::Udp);
/// # Ok(())
/// # }
/// ```
#[must_use = "a builder does nothing until it connects"]
#[derive(Clone, Debug, Default)]
pub struct ClientBuilder {
    link: Option<LinkKind>,
    layers: Layers,
    local: Option<IpAddr>,
    port: Option<UdpPort>,
    connect_timeout: Option<Duration>,
    timeout: Option<Duration>,
    deploy_token: Option<DeployToken>,
    rings: RingShape,
}

impl ClientBuilder {
    /// How packets travel. By default over shared memory if the node is on this host and of this user, else over UDP.
    pub fn link(mut self, link: LinkKind) -> Self {
        self.link = Some(link);
        self
    }

    /// What lies between the client and its link: a trace, a packet capture, faults, as `remora_real::link` has them. By default
    /// nothing.
    pub fn layers(mut self, layers: Layers) -> Self {
        self.layers = layers;
        self
    }

    /// The client's own address. By default what routing chooses; for a node on loopback, a free one of 127.0.0.0/8.
    pub fn local(mut self, address: IpAddr) -> Self {
        self.local = Some(address);
        self
    }

    /// One of several sockets of the client's own address, each for a thread that has a client of its own: see
    /// [`UdpPort::bind`]. The link is UDP then, and the address the port's.
    pub fn port(mut self, port: UdpPort) -> Self {
        self.local = Some(port.ip());
        self.port = Some(port);
        self
    }

    /// How long the node may take to take the connection; by default five seconds.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = Some(timeout);
        self
    }

    /// How long a call may take before it ends with [`Error::TimedOut`]. By default as long as the connection stands:
    /// nodes end kernels by steps, not by time. Futures are for the runtime to give up.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// What the node asks of who deploys kernels there, if it asks for a token.
    pub fn deploy_token(mut self, token: DeployToken) -> Self {
        self.deploy_token = Some(token);
        self
    }

    /// How long the rings are that the client [opens](Client::open_rings): by default 1,024 entries of 128 bytes, for parameters
    /// and replies of up to 128 KB. Longer ones carry longer calls, up to [`MAX_RING_MESSAGE`](crate::MAX_RING_MESSAGE) bytes each way;
    /// twice their length counts as the client's memory at the node. Of calls by long rings fewer are under way at once, as a node
    /// counts the room that each has for its reply: some 30 by rings of 4 MB, if no other client has any. More wait in the ring.
    ///
    /// ```
    /// # use remora::{Client, KvGet, KvShape, KvWrite, Node, Placement, RingShape};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let node = Node::local()?;
    /// let mut client = Client::builder().rings(RingShape::new(1024, 4096)?).connect(node.address())?;
    /// client.open_rings(Placement::Host)?;
    /// let store = client.create_store(&KvShape { pairs: 100, key_bytes: 8, value_bytes: 1 << 20 })?;
    /// let value = vec![7; 1 << 20];
    /// assert!(client.at(Placement::Host).call(KvWrite::put(&store, "large", &value)?)?);
    /// assert_eq!(client.at(Placement::Host).call(KvGet::new(&store, "large")?)?, Some(value));
    /// # Ok(())
    /// # }
    /// ```
    pub fn rings(mut self, shape: RingShape) -> Self {
        self.rings = shape;
        self
    }

    /// Connects to a node.
    pub fn connect(self, node: impl ToAddress) -> Result<Client> {
        let node = node.to_address()?;
        let connect = |local| {
            let config = ClientConfig::new(node, local);
            let timeout = self.connect_timeout.unwrap_or(config.timeout);
            remora_real::Client::connect(ClientConfig {
                link: self.link,
                port: self.port.clone(),
                layers: self.layers.clone(),
                timeout,
                deploy_token: self.deploy_token.clone(),
                ..config
            })
        };
        let inner = match self.local {
            Some(local) => connect(local)?,
            None => at_local(node, connect)?,
        };
        let id = CLIENTS.fetch_add(1, Ordering::Relaxed);
        Ok(Client {
            id,
            inner,
            timeout: self.timeout,
            rings: self.rings,
            askers: Vec::new(),
            free: Vec::new(),
            params: Vec::new(),
        })
    }
}

impl Client {
    /// Connects to the node at an address, as [`ClientBuilder`] does by default.
    pub fn connect(node: impl ToAddress) -> Result<Self> {
        Self::builder().connect(node)
    }

    /// To choose the link, the client's own address or a timeout.
    pub fn builder() -> ClientBuilder {
        ClientBuilder::default()
    }

    /// Kernels at one place: the choice is made for each call.
    pub fn at(&mut self, placement: Placement) -> At<&mut Self> {
        At::new(self, Some(placement))
    }

    /// Kernels where they are answered quickest, under the load that this client makes: it times some calls, tries other
    /// places with less than 2 % of them, and moves within a tenth of a second when something has changed.
    ///
    /// ```
    /// # use remora::{Client, Node, Placement};
    /// # fn main() -> remora::Result<()> {
    /// # let node = Node::local()?;
    /// # let mut client = Client::connect(node.address())?;
    /// let table = client.load_table([("apple", "red"), ("pear", "green")])?;
    /// for _ in 0..1000 {
    ///     assert_eq!(client.auto().get(&table, "pear")?.as_deref(), Some(&b"green"[..]));
    /// }
    /// println!("{:?}", client.placer().counts());
    /// client.placer().pin(Some(Placement::Nic)); // no more of it
    /// # Ok(())
    /// # }
    /// ```
    pub fn auto(&mut self) -> At<&mut Self> {
        At::new(self, None)
    }

    /// What decides where calls of [`auto`](Self::auto) run: to pin them, and to ask for its counts and reasons.
    pub fn placer(&mut self) -> &mut Placer {
        self.inner.placer()
    }

    /// The link in use.
    pub fn link(&self) -> LinkKind {
        self.inner.link()
    }

    /// The client underneath, when nothing is under way: for sketches, compressed WRITEs, counters, and the device with
    /// the verbs themselves.
    pub fn real(&mut self) -> Result<&mut remora_real::Client> {
        self.idle()
    }

    /// CPU time that the node's process has used.
    pub fn node_cpu_time(&mut self) -> Result<Duration> {
        Ok(Duration::from_nanos(self.idle()?.node_cpu_ns()?))
    }

    /// Calls under way.
    pub fn in_flight(&self) -> usize {
        self.inner.in_flight()
    }

    /// Moves what there is to move, and returns how many calls have ended by that. Calls go on while somebody polls;
    /// [`wait`](Self::wait) does.
    pub fn poll(&mut self) -> Result<usize> {
        let (askers, free) = (&mut self.askers, &mut self.free);
        let mut lost: Vec<(Placement, Asker)> = Vec::new();
        let polled = self.inner.poll(&mut |tag, status, reply| {
            let Some((placement, asker)) = askers.get_mut(tag as usize).and_then(Option::take) else { return };
            free.push(tag);
            match status {
                Status::LOST => lost.push((placement, asker)),
                _ => asker.send(Ok((placement, status, reply.to_vec()))),
            }
        });
        for (placement, asker) in lost {
            asker.send(self.lost(&polled, placement));
        }
        polled
    }

    /// What a call is told that a lost connection has ended.
    fn lost(&self, polled: &Result<usize>, placement: Placement) -> Answer {
        match polled {
            Err(Error::Lost { address, status }) => Err(Error::Lost { address: *address, status: *status }),
            _ => Ok((placement, Status::LOST, Vec::new())),
        }
    }

    /// Ends a call that was submitted to this client.
    pub fn wait<C: TypedCall>(&mut self, mut pending: Pending<C>) -> Result<C::Reply> {
        if !pending.is_of(self.id) {
            return Err(Error::Argument("a call that was submitted to another client: wait with that one".into()));
        }
        let start = Instant::now();
        loop {
            if let Some(reply) = pending.try_finish() {
                return reply;
            }
            let polled = self.poll();
            // A lost connection has ended the call, which says so itself.
            if !pending.is_done() {
                polled?;
                self.in_time(start)?;
            }
        }
    }

    /// An error once a call that began then takes longer than it may.
    pub(crate) fn in_time(&self, start: Instant) -> Result<()> {
        match self.timeout {
            Some(after) if start.elapsed() > after => Err(Error::TimedOut { after }),
            _ => Ok(()),
        }
    }

    /// Starts a call.
    pub(crate) fn start<C: TypedCall>(&mut self, placement: Option<Placement>, call: C) -> Pending<C> {
        let mut params = std::mem::take(&mut self.params);
        params.clear();
        call.encode(&mut params);
        let (asker, answer) = oneshot();
        self.start_raw(placement, call.op(), &params, call.payload().as_deref(), asker);
        self.params = params;
        Pending::new(call, answer, Some(self.id))
    }

    /// Starts a call whose answer goes to `asker`, be it that it cannot be started.
    pub(crate) fn start_raw(
        &mut self,
        placement: Option<Placement>,
        op: u64,
        params: &[u8],
        payload: Option<&[u8]>,
        asker: Asker,
    ) {
        match (placement, payload) {
            (Some(placement @ Placement::Accelerator), _) => asker.send(Err(Error::Placement(placement))),
            (_, None) => self.start_call(placement, op, params, asker),
            (None | Some(Placement::Nic), Some(payload)) => {
                let reply = self.idle().and_then(|client| client.call_stream(op, params, payload));
                asker.send(reply.map(|(status, reply)| (Placement::Nic, status, reply)));
            }
            (Some(_), Some(_)) => asker.send(Err(Error::Argument(format!(
                "kernel {op:#x} works on a payload stream, which goes to the node's NIC: call it at Placement::Nic"
            )))),
        }
    }

    fn start_call(&mut self, placement: Option<Placement>, op: u64, params: &[u8], asker: Asker) {
        let tag = self.free.pop().unwrap_or_else(|| {
            self.askers.push(None);
            self.askers.len() as u32 - 1
        });
        let fits = match placement {
            Some(place) => self.inner.check_params(op, place, true, params.len()),
            None if Places::of(op).has(Placement::Client) => Ok(()),
            // As long as one of them takes it.
            None => self
                .inner
                .check_params(op, Placement::Nic, true, params.len())
                .or_else(|_| self.inner.check_params(op, Placement::Host, true, params.len())),
        };
        if let Err(e) = fits {
            self.free.push(tag);
            return asker.send(Err(e));
        }
        let kind = CallKind::of(op, params);
        let submit = |client: &mut remora_real::Client| match placement {
            None => client.submit_auto(kind, params, true, tag),
            Some(place) if client.has_rings(place) => client.submit_by_ring(place, op, params, tag).map(|()| place),
            Some(place) => client.submit(place, op, params, tag).map(|()| place),
        };
        loop {
            match submit(&mut self.inner) {
                Ok(placement) => break self.askers[tag as usize] = Some((placement, asker)),
                Err(_) => {
                    if let Err(e) = self.poll() {
                        self.free.push(tag);
                        return asker.send(Err(e));
                    }
                }
            }
        }
    }

    /// The client underneath, for another life; what is under way has ended.
    pub(crate) fn into_inner(mut self) -> Result<remora_real::Client> {
        self.idle()?;
        Ok(self.inner)
    }

    /// The client when nothing is under way: what it does from start to end needs that.
    pub(crate) fn idle(&mut self) -> Result<&mut remora_real::Client> {
        while self.inner.in_flight() > 0 {
            self.poll()?;
        }
        Ok(&mut self.inner)
    }

    /// Sleeps until a call may have ended, somebody unparks this thread, or `timeout` has passed.
    pub(crate) fn doze(&mut self, timeout: Duration) {
        self.inner.wait(timeout);
    }

    /// Has calls to the node's NIC or host go by rings in memory from now on (RAMBDA, HPCA 2023): a call and its reply are
    /// a WRITE each, and calls that are started together share one. Parameters and replies may then be longer than a message, as
    /// long as the [rings](ClientBuilder::rings).
    ///
    /// ```
    /// # use remora::{Client, Get, Node, Placement};
    /// # fn main() -> remora::Result<()> {
    /// # let node = Node::local()?;
    /// let mut client = Client::connect(node.address())?;
    /// let table = client.load_table([("apple", "red"), ("pear", "green")])?;
    /// client.open_rings(Placement::Nic)?;
    /// assert_eq!(client.at(Placement::Nic).get(&table, "pear")?.as_deref(), Some(&b"green"[..]));
    /// client.close_rings(Placement::Nic)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn open_rings(&mut self, placement: Placement) -> Result<()> {
        let config = self.ring_config();
        self.idle()?.open_rings(placement, config)
    }

    pub(crate) fn ring_config(&self) -> RingConfig {
        RingConfig { shape: self.rings, ..RingConfig::default() }
    }

    /// Has calls to the place go as they did before [`open_rings`](Self::open_rings), and gives the rings' memory back.
    pub fn close_rings(&mut self, placement: Placement) -> Result<()> {
        self.idle()?.close_rings(placement)
    }

    /// Zeroed memory on the node.
    ///
    /// ```
    /// # use remora::{Client, Node};
    /// # fn main() -> remora::Result<()> {
    /// # let node = Node::local()?;
    /// # let mut client = Client::connect(node.address())?;
    /// let region = client.alloc(1 << 20)?;
    /// client.write(&region, 64, b"one-sided")?;
    /// let mut bytes = [0; 9];
    /// client.read(&region, 64, &mut bytes)?;
    /// assert_eq!(&bytes, b"one-sided");
    /// assert_eq!(client.fetch_add(&region, 0, 5)?, 0);
    /// assert_eq!(client.compare_swap(&region, 0, 5, 7)?, 5);
    /// # Ok(())
    /// # }
    /// ```
    pub fn alloc(&mut self, len: u64) -> Result<RemoteRegion> {
        self.idle()?.alloc(len)
    }

    /// Gives memory back before the client disconnects.
    pub fn free(&mut self, region: RemoteRegion) -> Result<()> {
        self.idle()?.free(&region)
    }

    /// Copies bytes into a region, by WRITEs.
    pub fn write(&mut self, region: &RemoteRegion, offset: u64, bytes: &[u8]) -> Result<()> {
        self.idle()?.write(region, offset, bytes)
    }

    /// Copies a part of a region, by READs.
    pub fn read(&mut self, region: &RemoteRegion, offset: u64, bytes: &mut [u8]) -> Result<()> {
        self.idle()?.read(region, offset, bytes)
    }

    /// Sets the word of 8 bytes at `offset`, a multiple of 8, to `new` if it is `expected`. Returns what it was.
    pub fn compare_swap(&mut self, region: &RemoteRegion, offset: u64, expected: u64, new: u64) -> Result<u64> {
        self.idle()?.compare_swap(region, offset, expected, new)
    }

    /// Adds to the word of 8 bytes at `offset`, a multiple of 8. Returns what it was.
    pub fn fetch_add(&mut self, region: &RemoteRegion, offset: u64, add: u64) -> Result<u64> {
        self.idle()?.fetch_add(region, offset, add)
    }
}
