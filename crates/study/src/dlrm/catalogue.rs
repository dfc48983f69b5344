//! A catalogue that is larger than the caches: the items of the data many times over, with rows whose sums are known.

use remora_kernel::embed::{Element, Reduction};
use remora_store::Arena;
use remora_store::embedding::{Embedding, EmbeddingError, EmbeddingShape, numbers};
use remora_store::hash::mix;
use remora_store::memo::{Memo, Rewriter};

use super::data::Interactions;
use crate::StudyError;

/// The part of the table's rows that sums of groups may take.
const BUDGET: f64 = 0.25;

/// Numbers of a row.
#[derive(Clone, Copy, Debug)]
pub struct Rows {
    /// Items of one copy.
    pub items: u32,
    /// How many, one behind the other.
    pub copies: u32,
    /// Numbers of a row.
    pub dim: u16,
    /// How they are kept.
    pub element: Element,
}

impl Rows {
    /// What an item of any copy adds to each column.
    fn own(&self, item: u32) -> f32 {
        let (copy, item) = (item / self.items, item % self.items);
        (mix(item.into()) % 17) as f32 - 8.0 + (copy % 5) as f32
    }

    /// What a column adds for each item.
    fn column(at: usize) -> f32 {
        (at % 7) as f32
    }

    /// An item's numbers: small integers, of which sums are exact.
    pub fn row(&self, item: u32, numbers: &mut [f32]) {
        let own = self.own(item);
        numbers.iter_mut().enumerate().for_each(|(at, number)| *number = own + Self::column(at));
    }

    fn shape(&self) -> EmbeddingShape {
        EmbeddingShape { items: self.items * self.copies, dim: self.dim, element: self.element }
    }
}

/// A request, ready to be asked.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// As people write it.
    pub text: String,
    /// Parameters that name each item's row, and those that name sums of groups where they can.
    pub params: [Vec<u8>; 2],
    /// Rows that each of them names.
    pub rows: [usize; 2],
    /// Items.
    items: usize,
    /// What each column has of the items themselves.
    own: f32,
}

/// A table of the catalogue's items, and requests of users that nothing was learnt from.
pub struct Catalogue {
    /// What rows hold.
    pub rows: Rows,
    /// The table, with sums.
    pub table: Embedding,
    /// Requests, each of some copy.
    pub requests: Vec<Request>,
}

/// Requests that are prepared.
const REQUESTS: usize = 4096;

fn no_table(error: EmbeddingError) -> StudyError {
    StudyError::Usage(error.to_string())
}

/// Groups of items that half of the users ask for together.
pub fn learn(data: &Interactions) -> Memo {
    let [learnt, _] = data.halves();
    Memo::of(data.items, learnt, (f64::from(data.items) * BUDGET) as u32)
}

impl Catalogue {
    /// Loads the table into memory that it allocates, and prepares requests. `memo` is that of one copy.
    pub fn load<A: Arena<Error = StudyError>>(
        rows: Rows,
        memo: &Memo,
        data: &Interactions,
        seed: u64,
        arena: &mut A,
    ) -> Result<Self, StudyError> {
        let memo = memo.repeated(rows.copies);
        let table = Embedding::load(&rows.shape(), Some(memo), |item, numbers| rows.row(item, numbers), arena)?;
        let mut catalogue = Self { rows, table: table.map_err(no_table)?, requests: Vec::new() };
        let [learnt, asked] = data.halves();
        let asked = if asked.is_empty() { learnt } else { asked };
        let mut rewriter = Rewriter::default();
        for n in 0..REQUESTS as u64 {
            let pick =
                |stream: u64, of: u64| ((u128::from(mix(seed ^ stream << 48 ^ n)) * u128::from(of)) >> 64) as u64;
            let (user, copy) = (pick(1, asked.len() as u64) as usize, pick(2, rows.copies.into()) as u32);
            let items: Vec<u32> = asked[user].iter().map(|item| copy * data.items + item).collect();
            let request = catalogue.request(&items, &mut rewriter)?;
            catalogue.requests.push(request);
        }
        Ok(catalogue)
    }

    fn request(&self, items: &[u32], rewriter: &mut Rewriter) -> Result<Request, StudyError> {
        let text: Vec<String> = items.iter().map(u32::to_string).collect();
        let mut request = Request { text: text.join(" "), items: items.len(), ..Request::default() };
        request.own = items.iter().map(|item| self.rows.own(*item)).sum();
        let memo = self.table.memo().ok_or_else(|| StudyError::Failed("a catalogue has sums".into()))?;
        request.rows = [items.len(), memo.rewrite(items, rewriter).len()];
        let [plain, summed] = &mut request.params;
        let of = remora_kernel::embed::EmbedRequest {
            table: self.table.table(),
            reduction: Reduction::Sum,
            rows: items,
            numbers: &[],
            items: items.len() as u32,
        };
        of.encode(plain);
        self.table.params(Reduction::Sum, items, &[], rewriter, summed).map_err(no_table)?;
        Ok(request)
    }

    /// Whether a reply is the sum of a request's items.
    pub fn check(&self, request: &Request, reply: &[u8]) -> bool {
        let items = request.items as f32;
        // Of bytes with a scale each row is rounded, and each sum once more.
        let most = if self.rows.element == Element::I8 { items * 0.16 } else { 0.0 };
        let sums = numbers(reply).enumerate();
        let right = |(at, sum): (usize, f32)| (sum - (request.own + items * Rows::column(at))).abs() <= most;
        reply.len() == 4 * usize::from(self.rows.dim) && sums.map(right).fold(true, |all, one| all & one)
    }
}
