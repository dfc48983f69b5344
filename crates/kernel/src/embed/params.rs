//! What an embedding reduction is told, as bytes and as types.

use crate::call::Status;

/// Numbers of a row at least, and at most. A multiple of 8, so that rows are whole words.
pub const DIMS: std::ops::RangeInclusive<u16> = 16..=256;
/// Bytes in front of the rows' numbers.
const FRONT: usize = 32;
/// Rows that one call reduces at most.
pub const MOST_ROWS: usize = 4096;

/// How the numbers of a row are kept, little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Element {
    /// IEEE 754, 4 bytes.
    F32 = 0,
    /// IEEE 754, 2 bytes.
    F16 = 1,
    /// Signed bytes behind a scale, an `f32` in 8 bytes, by which each is multiplied.
    I8 = 2,
}

impl Element {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::F32, Self::F16, Self::I8];
    /// Bytes in front of the signed bytes of a row: their scale.
    pub const SCALE: usize = 8;

    /// As options and reports spell it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::I8 => "int8",
        }
    }

    /// Bytes of a row of `dim` numbers.
    pub const fn row_bytes(self, dim: u16) -> usize {
        match self {
            Self::F32 => 4 * dim as usize,
            Self::F16 => 2 * dim as usize,
            Self::I8 => Self::SCALE + dim as usize,
        }
    }

    fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|element| *element as u8 == code)
    }
}

/// No element has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no element {0:?}: use f32, f16 or int8")]
pub struct UnknownElement(pub String);

impl std::str::FromStr for Element {
    type Err = UnknownElement;

    fn from_str(text: &str) -> Result<Self, UnknownElement> {
        Self::ALL.into_iter().find(|element| element.name() == text).ok_or_else(|| UnknownElement(text.into()))
    }
}

/// What becomes of the rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Reduction {
    /// Their sum.
    Sum = 0,
    /// Their sum, divided by the number of items.
    Mean = 1,
    /// The greatest of each column. Numbers that are none are left out.
    Max = 2,
    /// The sum of each times its weight.
    Weighted = 3,
    /// The inner product of each with a vector: one number for each row.
    InnerProduct = 4,
}

impl Reduction {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Sum, Self::Mean, Self::Max, Self::Weighted, Self::InnerProduct];

    /// As options and reports spell it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sum => "sum",
            Self::Mean => "mean",
            Self::Max => "max",
            Self::Weighted => "weighted",
            Self::InnerProduct => "inner-product",
        }
    }

    /// Numbers behind the rows: a weight for each, or a vector.
    const fn numbers(self, rows: usize, dim: u16) -> usize {
        match self {
            Self::Sum | Self::Mean | Self::Max => 0,
            Self::Weighted => rows,
            Self::InnerProduct => dim as usize,
        }
    }

    fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|reduction| *reduction as u8 == code)
    }
}

/// Where a table is, and what its rows are. It lies within its region, from a multiple of 8 on, rows back to back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EmbedTable {
    /// Address of the first row.
    pub base: u64,
    /// Key of the region.
    pub key: u32,
    /// How many rows.
    pub rows: u32,
    /// Numbers of a row: a multiple of 8 within [`DIMS`].
    pub dim: u16,
    /// How they are kept.
    pub element: Element,
}

impl EmbedTable {
    /// Bytes of a row.
    pub const fn row_bytes(&self) -> usize {
        self.element.row_bytes(self.dim)
    }

    /// Bytes of all rows.
    pub const fn bytes(&self) -> u64 {
        self.rows as u64 * self.row_bytes() as u64
    }

    /// Whether there may be such a table.
    fn is_sound(&self) -> bool {
        let dim = DIMS.contains(&self.dim) && self.dim.is_multiple_of(8);
        dim && self.base.is_multiple_of(8) && self.base.checked_add(self.bytes()).is_some()
    }
}

/// A reduction, as who asks for it writes it down.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EmbedRequest<'a> {
    /// The table.
    pub table: EmbedTable,
    /// What becomes of the rows.
    pub reduction: Reduction,
    /// Which rows, at most [`MOST_ROWS`].
    pub rows: &'a [u32],
    /// For [`Reduction::Weighted`] a weight for each row, for [`Reduction::InnerProduct`] the vector, else nothing.
    pub numbers: &'a [f32],
    /// What a [`Reduction::Mean`] divides by: as many as rows, unless rows are sums of several items.
    pub items: u32,
}

impl EmbedRequest<'_> {
    /// Appends the parameters: base u64, key u32, rows of the table u32, dim u16, element u8, reduction u8, rows to reduce
    /// u32, items u32, 4 bytes of zeros; then the number of each row u32, and the numbers f32.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let EmbedTable { base, key, rows, dim, element } = self.table;
        out.extend_from_slice(&base.to_le_bytes());
        out.extend_from_slice(&key.to_le_bytes());
        out.extend_from_slice(&rows.to_le_bytes());
        out.extend_from_slice(&dim.to_le_bytes());
        out.extend_from_slice(&[element as u8, self.reduction as u8]);
        out.extend_from_slice(&(self.rows.len() as u32).to_le_bytes());
        out.extend_from_slice(&self.items.to_le_bytes());
        out.extend_from_slice(&[0; 4]);
        out.extend(self.rows.iter().flat_map(|row| row.to_le_bytes()));
        out.extend(self.numbers.iter().flat_map(|number| number.to_le_bytes()));
    }
}

/// Parameters: what [`EmbedRequest::encode`] wrote, checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EmbedParams<'a> {
    /// The table.
    pub table: EmbedTable,
    /// What becomes of the rows.
    pub reduction: Reduction,
    /// What a mean divides by.
    pub items: u32,
    rows: &'a [[u8; 4]],
    pub(super) numbers: &'a [u8],
}

impl<'a> EmbedParams<'a> {
    /// Bytes in front of the rows' numbers.
    pub const LEN: usize = FRONT;

    /// From bytes, if they make sense: all rows are the table's.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, Status> {
        Self::parse(bytes).ok_or(Status::BadParams)
    }

    fn parse(bytes: &'a [u8]) -> Option<Self> {
        let (front, rest) = bytes.split_first_chunk::<FRONT>()?;
        let u32_at = |at: usize| Some(u32::from_le_bytes(front[at..at + 4].try_into().ok()?));
        let table = EmbedTable {
            base: u64::from_le_bytes(front[..8].try_into().ok()?),
            key: u32_at(8)?,
            rows: u32_at(12)?,
            dim: u16::from_le_bytes([front[16], front[17]]),
            element: Element::from_code(front[18])?,
        };
        let (reduction, count) = (Reduction::from_code(front[19])?, u32_at(20)? as usize);
        if !table.is_sound() || count > MOST_ROWS || front[28..] != [0; 4] {
            return None;
        }
        let (rows, numbers) = rest.split_at_checked(4 * count)?;
        let rows = rows.as_chunks().0;
        // The greatest of all, so that the processor looks at several at a time.
        let greatest = rows.iter().map(|row| u32::from_le_bytes(*row)).max();
        let inside = greatest.is_none_or(|row| row < table.rows);
        let fits = numbers.len() == 4 * reduction.numbers(count, table.dim);
        (inside && fits).then_some(Self { table, reduction, items: u32_at(24)?, rows, numbers })
    }

    /// How many rows.
    #[inline]
    pub fn count(&self) -> usize {
        self.rows.len()
    }

    /// The number of a row, of those there are.
    #[inline]
    pub fn row(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.rows[at])
    }

    /// The numbers of these rows, of those there are.
    #[inline]
    pub(super) fn rows(&self, which: std::ops::Range<usize>) -> &'a [[u8; 4]] {
        self.rows.get(which).unwrap_or(&[])
    }

    /// Whether the rows' `f32` are added as they are.
    pub(super) fn adds_up(&self) -> bool {
        self.table.element == Element::F32 && matches!(self.reduction, Reduction::Sum | Reduction::Mean)
    }

    /// Bytes of the reply.
    pub fn reply_len(&self) -> usize {
        match self.reduction {
            Reduction::InnerProduct => 4 * self.count(),
            _ => 4 * usize::from(self.table.dim),
        }
    }
}
