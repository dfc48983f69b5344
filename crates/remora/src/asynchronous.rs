//! A client for programs with an executor, whichever that is.
//!
//! A thread owns the [`Client`] and drives it; futures hand it calls and are woken by it. Nothing here knows a runtime.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::task::{Context, Poll};
use std::thread::Thread;
use std::time::{Duration, Instant};

use remora_kernel::Placement;
use remora_real::{Error, RemoteRegion, start_thread};
use remora_store::hash::Table;

use crate::at::{Caller, sealed};
use crate::numbers::{Desk, shared};
use crate::oneshot::{self, oneshot};
use crate::pending::{Asker, Pending};
use crate::{At, Client, ClientBuilder, Result, Sequencer, ToAddress, TypedCall};

/// How long the driver polls without an answer before it sleeps.
const SPIN: Duration = Duration::from_micros(50);
/// How long it sleeps at a time: what ends no sleep, such as a lost connection, is noticed by then.
const NAP: Duration = Duration::from_millis(20);

/// A connection to a memory node for asynchronous programs. Clones are handles to the same one, and any thread may use
/// them; with the last of them the connection ends.
///
/// It needs no runtime in particular: a thread of its own drives it, and wakes whoever awaits.
///
/// ```
/// use remora::{AsyncClient, Node, Placement};
///
/// # async fn example() -> remora::Result<()> {
/// let node = Node::local()?;
/// let client = AsyncClient::connect(node.address()).await?;
/// let table = client.load_table([("apple", "red"), ("pear", "green")]).await?;
/// let at_the_nic = client.at(Placement::Nic).get(&table, "pear"); // under way from here on
/// let here = client.at(Placement::Client).get(&table, "pear");
/// assert_eq!(at_the_nic.await?, here.await?);
/// # Ok(())
/// # }
/// # fn main() -> remora::Result<()> {
/// #     tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(example())
/// # }
/// ```
#[derive(Clone)]
pub struct AsyncClient {
    commands: Sender<Command>,
    driver: Thread,
}

/// What the driver is asked to do.
enum Command {
    Call { placement: Option<Placement>, op: u64, params: Vec<u8>, payload: Option<Vec<u8>>, asker: Asker },
    Number { sequencer: Sequencer, asker: oneshot::Sender<Result<u64>> },
    Run(Box<dyn FnOnce(&mut Client) + Send>),
}

/// A call under way, and the future of its reply. It was sent when it was made; dropped, it goes on at the node and its
/// reply is thrown away.
#[must_use = "the reply is had by awaiting it"]
pub struct InFlight<C>(Pending<C>);

/// The call is never pinned: only its answer is awaited.
impl<C> Unpin for InFlight<C> {}

impl<C: TypedCall> Future for InFlight<C> {
    type Output = Result<C::Reply>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.poll_finish(context)
    }
}

impl ClientBuilder {
    /// Connects to a node, with a thread of its own that drives the connection.
    pub async fn connect_async(self, node: impl ToAddress + Send + 'static) -> Result<AsyncClient> {
        let (commands, received) = channel();
        let (connected, is_connected) = oneshot();
        let driver = start_thread("remora-client", move || match self.connect(node) {
            Ok(client) => {
                connected.send(Ok(()));
                drive(client, &received);
            }
            Err(e) => connected.send(Err(e)),
        });
        let driver = driver.map_err(|source| Error::System { what: "starting the client's thread", source })?;
        let driver = driver.thread().clone();
        is_connected.await.unwrap_or(Err(Error::Closed))?;
        Ok(AsyncClient { commands, driver })
    }
}

impl AsyncClient {
    /// Connects to the node at an address, as [`ClientBuilder`] does by default. A host's name is looked up off the
    /// caller's thread.
    pub async fn connect(node: impl ToAddress + Send + 'static) -> Result<Self> {
        Client::builder().connect_async(node).await
    }

    /// Kernels at one place: the choice is made for each call. A call is sent at once, and its reply is a future.
    pub fn at(&self, placement: Placement) -> At<&Self> {
        At::new(self, Some(placement))
    }

    /// Kernels where they are answered quickest: see [`Client::auto`].
    pub fn auto(&self) -> At<&Self> {
        At::new(self, None)
    }

    /// Runs a closure with the client, in the thread that drives it, when the calls sent before have been started.
    /// Others wait meanwhile. This is how one-sided verbs and everything else that a [`Client`] can do is had:
    ///
    /// ```
    /// # async fn example() -> remora::Result<()> {
    /// # let node = remora::Node::local()?;
    /// # let client = remora::AsyncClient::connect(node.address()).await?;
    /// let list = client.with(|client| client.load_list([(1, "one"), (2, "two")])).await?;
    /// # Ok(())
    /// # }
    /// # fn main() -> remora::Result<()> {
    /// #     tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(example())
    /// # }
    /// ```
    ///
    /// Dropped before its end, the closure still runs, once.
    pub async fn with<T: Send + 'static>(
        &self,
        run: impl FnOnce(&mut Client) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (done, is_done) = oneshot();
        self.send(Command::Run(Box::new(move |client| done.send(run(client)))));
        is_done.await.unwrap_or(Err(Error::Closed))
    }

    /// Zeroed memory on the node.
    pub async fn alloc(&self, len: u64) -> Result<RemoteRegion> {
        self.with(move |client| client.alloc(len)).await
    }

    /// Gives memory back before the client disconnects.
    pub async fn free(&self, region: RemoteRegion) -> Result<()> {
        self.with(move |client| client.free(region)).await
    }

    /// Copies bytes into a region, by WRITEs.
    pub async fn write(&self, region: &RemoteRegion, offset: u64, bytes: impl Into<Vec<u8>>) -> Result<()> {
        let (region, bytes) = (*region, bytes.into());
        self.with(move |client| client.write(&region, offset, &bytes)).await
    }

    /// Copies `len` bytes of a region, by READs.
    pub async fn read(&self, region: &RemoteRegion, offset: u64, len: usize) -> Result<Vec<u8>> {
        let region = *region;
        let read = move |client: &mut Client| {
            // No length that nobody has ends this process.
            client.idle()?.check_range(&region, offset, len)?;
            let mut bytes = vec![0; len];
            client.read(&region, offset, &mut bytes).map(|()| bytes)
        };
        self.with(read).await
    }

    /// Sets the word of 8 bytes at `offset`, a multiple of 8, to `new` if it is `expected`. Returns what it was.
    pub async fn compare_swap(&self, region: &RemoteRegion, offset: u64, expected: u64, new: u64) -> Result<u64> {
        let region = *region;
        self.with(move |client| client.compare_swap(&region, offset, expected, new)).await
    }

    /// Adds to the word of 8 bytes at `offset`, a multiple of 8. Returns what it was.
    pub async fn fetch_add(&self, region: &RemoteRegion, offset: u64, add: u64) -> Result<u64> {
        let region = *region;
        self.with(move |client| client.fetch_add(&region, offset, add)).await
    }

    /// A number of a sequencer that nobody else gets. Tasks that wait at once share an addition, which the node's NIC makes.
    ///
    /// ```
    /// # async fn example() -> remora::Result<()> {
    /// # let node = remora::Node::local()?;
    /// # let client = remora::AsyncClient::connect(node.address()).await?;
    /// let orders = client.with(|client| client.load_sequencer(1)).await?;
    /// assert_eq!(client.number(&orders).await?, 1);
    /// # Ok(())
    /// # }
    /// # fn main() -> remora::Result<()> {
    /// #     tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(example())
    /// # }
    /// ```
    pub async fn number(&self, sequencer: &Sequencer) -> Result<u64> {
        let (asker, number) = oneshot();
        self.send(Command::Number { sequencer: *sequencer, asker });
        number.await.unwrap_or(Err(Error::Closed))
    }

    /// Loads a hash table into memory of the node: see [`Client::load_table`].
    pub async fn load_table<K, V>(&self, records: impl IntoIterator<Item = (K, V)>) -> Result<Table>
    where
        K: AsRef<[u8]>,
        V: AsRef<[u8]>,
    {
        // The table is built here, so that records need not move to another thread.
        let layout = crate::data::layout(records)?;
        self.with(|client| layout.load(client)).await
    }

    /// If the driver is gone, the command is dropped, and with it whoever would answer: that ends its future.
    fn send(&self, command: Command) {
        let _ = self.commands.send(command);
        self.driver.unpark();
    }
}

impl sealed::Sealed for &AsyncClient {}

impl Caller for &AsyncClient {
    type Outcome<C: TypedCall> = InFlight<C>;

    fn call_at<C: TypedCall>(self, placement: impl Into<Option<Placement>>, call: C) -> InFlight<C> {
        let (placement, (asker, answer)) = (placement.into(), oneshot());
        let mut params = Vec::new();
        call.encode(&mut params);
        let payload = call.payload().map(Into::into);
        self.send(Command::Call { placement, op: call.op(), params, payload, asker });
        InFlight(Pending::new(call, answer, None))
    }
}

/// The thread: takes commands, and polls while calls are under way. Ends with the last handle.
fn drive(mut client: Client, commands: &Receiver<Command>) {
    let mut busy_at = Instant::now();
    let mut desks: BTreeMap<Sequencer, Desk<oneshot::Sender<Result<u64>>>> = BTreeMap::new();
    loop {
        // Who waits at a desk may have nothing under way: his addition is due, or has ended at once.
        let command = match client.in_flight() {
            0 if desks.is_empty() => commands.recv().map_err(|_| TryRecvError::Disconnected),
            _ => commands.try_recv(),
        };
        match command {
            Ok(Command::Call { placement, op, params, payload, asker }) => {
                client.start_raw(placement, op, &params, payload.as_deref(), asker);
                busy_at = Instant::now();
            }
            Ok(Command::Number { sequencer, asker }) => {
                let desk = desks.entry(sequencer).or_insert_with(|| Desk::new(sequencer, Placement::Nic));
                desk.ask(asker);
                busy_at = Instant::now();
            }
            Ok(Command::Run(run)) => run(&mut client),
            Err(TryRecvError::Empty) if busy_at.elapsed() > SPIN => client.doze(NAP),
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => return,
        }
        // A lost connection ends all calls, which are told.
        if !matches!(client.poll(), Ok(0)) {
            busy_at = Instant::now();
        }
        desks.retain(|_, desk| {
            if let Err(error) = desk.end(|_, asker, number| asker.send(Ok(number))) {
                desk.give_up().for_each(|asker| asker.send(Err(shared(&error))));
            }
            desk.post(&mut client);
            !desk.is_idle()
        });
    }
}
