//! Tables of embeddings in a node's memory, whose rows kernels add up.

use remora_kernel::embed::{EmbedTable, Reduction};
use remora_kernel::{Status, op};
use remora_real::Error;
use remora_store::embedding::{Embedding, EmbeddingError, EmbeddingShape, numbers};
use remora_store::memo::{Memo, Rewriter};

use crate::{Client, Result, TypedCall};

/// A table of embeddings in the memory of a node: of each item a row of numbers. [`Client::load_embeddings`] makes one; it lasts
/// as long as the client that made it is connected, and any client may use a clone of it.
///
/// ```
/// # use remora::{Client, Element, Embeddings, EmbeddingShape, Memo, Node, Placement, Reduce, Reduction};
/// # fn main() -> remora::Result<()> {
/// # let node = Node::local()?;
/// let mut client = Client::connect(node.address())?;
/// let shape = EmbeddingShape { items: 1000, dim: 16, element: Element::F32 };
/// let row = |item: u32, numbers: &mut [f32]| numbers.fill(item as f32);
/// let films = client.load_embeddings(&shape, None, row)?;
/// // What a user has seen, as one row: on the node, where the rows are.
/// let sum = client.at(Placement::Nic).call(Reduce::new(&films, Reduction::Sum, &[3, 5, 7])?)?;
/// assert_eq!(sum, [15.0; 16]);
/// let mean = client.at(Placement::Client).call(Reduce::new(&films, Reduction::Mean, &[3, 5, 7])?)?;
/// assert_eq!(mean, [5.0; 16]);
/// let scores = Reduce::with(&films, Reduction::InnerProduct, &[3, 5], &[0.5; 16])?;
/// assert_eq!(client.at(Placement::Host).call(scores)?, [24.0, 40.0]);
///
/// // Sums of items that often come together, kept as rows: fewer of them are read.
/// let seen: Vec<&[u32]> = vec![&[3, 5, 7], &[3, 5, 9], &[3, 5]];
/// let memo = Memo::of(1000, seen, 250);
/// let films = client.load_embeddings(&shape, Some(memo.clone()), row)?;
/// let sum = client.at(Placement::Nic).call(Reduce::new(&films, Reduction::Sum, &[3, 5, 7])?)?;
/// assert_eq!(sum, [15.0; 16]);
///
/// // Another process, which was told where they are.
/// let mut other = Client::connect(node.address())?;
/// let theirs = Embeddings::open(films.place(), Some(memo))?;
/// let sum = other.at(Placement::Nic).call(Reduce::new(&theirs, Reduction::Sum, &[3, 5, 7])?)?;
/// assert_eq!(sum, [15.0; 16]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Embeddings(Embedding);

/// Where [`Embeddings`] are: what another process is told to open them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EmbeddingsPlace {
    /// The rows of all items, and sums behind them.
    pub table: EmbedTable,
    /// Items.
    pub items: u32,
}

impl Embeddings {
    /// Opens a table that another client has loaded. With the memo that it was loaded with, or one made of the same, sums are used.
    pub fn open(place: EmbeddingsPlace, memo: Option<Memo>) -> Result<Self> {
        Embedding::open(place.table, place.items, memo).map(Self).map_err(argument)
    }

    /// Where it is.
    pub fn place(&self) -> EmbeddingsPlace {
        EmbeddingsPlace { table: self.0.table(), items: self.0.items() }
    }

    /// Items that it has a row of.
    pub fn items(&self) -> u32 {
        self.0.items()
    }
}

/// Reduces rows of [`Embeddings`] to one row, or to a number each. Items may come several times; there may be as many as a call
/// is long: some two hundred to the NIC over packets of 1,024 bytes, a thousand to the host, by [rings](Client::open_rings) 4,096.
#[derive(Clone, Debug)]
pub struct Reduce(Vec<u8>);

impl Reduce {
    /// A sum, mean or maximum of the items' rows.
    pub fn new(table: &Embeddings, reduction: Reduction, items: &[u32]) -> Result<Self> {
        Self::with(table, reduction, items, &[])
    }

    /// With numbers: a weight for each item, or a vector for inner products.
    pub fn with(table: &Embeddings, reduction: Reduction, items: &[u32], numbers: &[f32]) -> Result<Self> {
        let mut params = Vec::new();
        let encoded = table.0.params(reduction, items, numbers, &mut Rewriter::default(), &mut params);
        encoded.map(|()| Self(params)).map_err(argument)
    }
}

impl TypedCall for Reduce {
    type Reply = Vec<f32>;

    fn op(&self) -> u64 {
        op::EMBED
    }

    fn encode(&self, params: &mut Vec<u8>) {
        params.extend_from_slice(&self.0);
    }

    fn decode(&self, status: Status, reply: &[u8]) -> Option<Vec<f32>> {
        (status == Status::Ok).then(|| numbers(reply).collect())
    }
}

fn argument(error: EmbeddingError) -> Error {
    Error::Argument(error.to_string())
}

impl Client {
    /// Loads a table of embeddings into memory of the node. `row` fills in an item's numbers; with a memo it is asked for
    /// some of them twice. What a memo knows is kept behind the rows (MERCI, ASPLOS 2021).
    pub fn load_embeddings(
        &mut self,
        shape: &EmbeddingShape,
        memo: Option<Memo>,
        row: impl FnMut(u32, &mut [f32]),
    ) -> Result<Embeddings> {
        Embedding::load(shape, memo, row, self)?.map(Embeddings).map_err(argument)
    }
}
