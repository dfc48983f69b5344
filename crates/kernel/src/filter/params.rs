//! What a filter is told, and what it answers, as bytes and as types.

use std::ops::RangeInclusive;

use crate::call::Status;

/// How the bytes of a column are read; little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ColumnType {
    /// 4 bytes, unsigned.
    U32 = 0,
    /// 8 bytes, unsigned.
    U64 = 1,
    /// 4 bytes, signed.
    I32 = 2,
    /// 8 bytes, signed.
    I64 = 3,
    /// 8 bytes, IEEE 754, ordered as by `f64::total_cmp`.
    F64 = 4,
}

const SIGN: u64 = 1 << 63;

impl ColumnType {
    fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            0 => Self::U32,
            1 => Self::U64,
            2 => Self::I32,
            3 => Self::I64,
            4 => Self::F64,
            _ => return None,
        })
    }

    /// Bytes of a value.
    pub fn width(self) -> usize {
        if matches!(self, Self::U32 | Self::I32) { 4 } else { 8 }
    }

    /// A value's 64 bits (sign-extended) as an unsigned number of the same order.
    #[inline(always)]
    pub(super) fn to_ordered(self, bits: u64) -> u64 {
        match self {
            Self::U32 | Self::U64 => bits,
            Self::I32 | Self::I64 => bits ^ SIGN,
            Self::F64 => bits ^ ((bits as i64 >> 63) as u64 | SIGN),
        }
    }

    /// The other way round.
    #[inline(always)]
    pub(super) fn bits_of(self, ordered: u64) -> u64 {
        match self {
            Self::U32 | Self::U64 => ordered,
            Self::I32 | Self::I64 => ordered ^ SIGN,
            Self::F64 => ordered ^ (!(ordered as i64 >> 63) as u64 | SIGN),
        }
    }
}

/// A column of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Column {
    /// Bytes in front of it in the row.
    pub offset: u16,
    /// How it is read.
    pub kind: ColumnType,
}

impl Column {
    /// The value's 64 bits: integers are extended with their sign.
    #[inline(always)]
    pub(super) fn bits(self, row: &[u8]) -> u64 {
        let bytes = &row[self.offset.into()..];
        let long = || u64::from_le_bytes(*bytes.first_chunk().unwrap_or(&[0; 8]));
        let short = || *bytes.first_chunk().unwrap_or(&[0; 4]);
        match self.kind {
            ColumnType::U32 => u32::from_le_bytes(short()).into(),
            ColumnType::I32 => i64::from(i32::from_le_bytes(short())) as u64,
            _ => long(),
        }
    }

    /// The value as an unsigned number of the same order.
    #[inline(always)]
    pub(super) fn ordered(self, row: &[u8]) -> u64 {
        self.kind.to_ordered(self.bits(row))
    }

    fn fits(self, row_len: u16) -> bool {
        usize::from(self.offset) + self.kind.width() <= row_len.into()
    }
}

/// Which rows match. Operands are a value's 64 bits: integers extended with their sign, floats as they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowPredicate {
    /// Every row.
    All,
    /// Equal to the operand.
    Equal(u64),
    /// Less than the operand.
    Less(u64),
    /// Greater than the operand.
    Greater(u64),
    /// From the first operand to the second, both included.
    Between(u64, u64),
}

impl RowPredicate {
    fn code(self) -> (u8, u64, u64) {
        match self {
            Self::All => (0, 0, 0),
            Self::Equal(a) => (1, a, 0),
            Self::Less(a) => (2, a, 0),
            Self::Greater(a) => (3, a, 0),
            Self::Between(a, b) => (4, a, b),
        }
    }

    fn from_code(code: u8, a: u64, b: u64) -> Option<Self> {
        Some(match code {
            0 => Self::All,
            1 => Self::Equal(a),
            2 => Self::Less(a),
            3 => Self::Greater(a),
            4 => Self::Between(a, b),
            _ => return None,
        })
    }
}

/// Where rows come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// A table in the node's memory.
    Memory {
        /// Key of its region.
        key: u32,
        /// Address of the first row.
        va: u64,
        /// Number of rows.
        rows: u64,
    },
    /// The call's payload.
    Payload,
}

/// What becomes of the rows that match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FilterOutput {
    /// They are the reply.
    Reply,
    /// They are written to the node's memory; the reply is how many matched and how many there were, `u64` each.
    Memory {
        /// Key of the region.
        key: u32,
        /// Address of the first row.
        va: u64,
        /// Bytes that there is room for.
        len: u64,
    },
    /// A column is counted, summed, and its least and greatest value found; the reply is one [`Group`] for each value
    /// of the group column in ascending order, or one in all without a group column.
    Aggregate {
        /// What is aggregated.
        column: Column,
        /// What is grouped by.
        group: Option<Column>,
    },
}

/// Parameters of the filter kernel: 72 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FilterParams {
    /// Bytes of a row, not 0.
    pub row_len: u16,
    /// What the predicate looks at.
    pub column: Column,
    /// Which rows match.
    pub predicate: RowPredicate,
    /// Where rows come from.
    pub source: Source,
    /// What becomes of those that match.
    pub output: FilterOutput,
}

/// No group column.
const NO_GROUP: u8 = 0xff;

impl FilterParams {
    /// Bytes of the parameters.
    pub const LEN: usize = 72;

    /// Little-endian: 0 row_len u16, 2 column offset u16, 4 its type, 5 predicate, 6 source, 7 output, 8 operands 2 x
    /// u64, 24 source key u32, 28 group offset u16, 30 its type, 31 aggregate's type, 32 source address u64, 40 rows
    /// u64, 48 output key u32, 52 aggregate's offset u16, 56 output address u64, 64 its length u64.
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        let (predicate, a, b) = self.predicate.code();
        put(0, &self.row_len.to_le_bytes());
        put(2, &self.column.offset.to_le_bytes());
        put(4, &[self.column.kind as u8, predicate]);
        put(8, &a.to_le_bytes());
        put(16, &b.to_le_bytes());
        put(30, &[NO_GROUP]);
        if let Source::Memory { key, va, rows } = self.source {
            put(6, &[1]);
            put(24, &key.to_le_bytes());
            put(32, &va.to_le_bytes());
            put(40, &rows.to_le_bytes());
        }
        match self.output {
            FilterOutput::Reply => {}
            FilterOutput::Memory { key, va, len } => {
                put(7, &[1]);
                put(48, &key.to_le_bytes());
                put(56, &va.to_le_bytes());
                put(64, &len.to_le_bytes());
            }
            FilterOutput::Aggregate { column, group } => {
                put(7, &[2]);
                put(31, &[column.kind as u8]);
                put(52, &column.offset.to_le_bytes());
                if let Some(group) = group {
                    put(28, &group.offset.to_le_bytes());
                    put(30, &[group.kind as u8]);
                }
            }
        }
        bytes
    }

    /// Reads what [`encode`](Self::encode) wrote, and checks that columns lie in the row.
    pub fn decode(bytes: &[u8]) -> Result<Self, Status> {
        let bytes: &[u8; Self::LEN] = bytes.try_into().map_err(|_| Status::BadParams)?;
        let short = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let word = |at: usize| u32::from(short(at)) | u32::from(short(at + 2)) << 16;
        let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
        let column = |offset, kind| Some(Column { offset, kind: ColumnType::from_code(kind)? });
        let params = || {
            Some(FilterParams {
                row_len: short(0),
                column: column(short(2), bytes[4])?,
                predicate: RowPredicate::from_code(bytes[5], long(8), long(16))?,
                source: match bytes[6] {
                    0 => Source::Payload,
                    1 => Source::Memory { key: word(24), va: long(32), rows: long(40) },
                    _ => return None,
                },
                output: match bytes[7] {
                    0 => FilterOutput::Reply,
                    1 => FilterOutput::Memory { key: word(48), va: long(56), len: long(64) },
                    2 if bytes[30] == NO_GROUP => {
                        FilterOutput::Aggregate { column: column(short(52), bytes[31])?, group: None }
                    }
                    2 => FilterOutput::Aggregate {
                        column: column(short(52), bytes[31])?,
                        group: Some(column(short(28), bytes[30])?),
                    },
                    _ => return None,
                },
            })
        };
        params().filter(Self::is_sound).ok_or(Status::BadParams)
    }

    fn is_sound(&self) -> bool {
        let columns = match self.output {
            FilterOutput::Aggregate { column, group } => [Some(column), group],
            _ => [None; 2],
        };
        self.row_len > 0 && self.column.fits(self.row_len) && columns.iter().flatten().all(|c| c.fits(self.row_len))
    }

    /// Values that match, as ordered numbers; an empty range if none can.
    pub(super) fn range(&self) -> RangeInclusive<u64> {
        let ordered = |bits| self.column.kind.to_ordered(bits);
        #[allow(clippy::reversed_empty_ranges, reason = "nothing matches")]
        let none = 1..=0;
        match self.predicate {
            RowPredicate::All => 0..=u64::MAX,
            RowPredicate::Equal(a) => ordered(a)..=ordered(a),
            RowPredicate::Less(a) => ordered(a).checked_sub(1).map_or(none, |last| 0..=last),
            RowPredicate::Greater(a) => ordered(a).checked_add(1).map_or(none, |first| first..=u64::MAX),
            RowPredicate::Between(a, b) => ordered(a)..=ordered(b),
        }
    }
}

/// What became of one group of rows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Group {
    /// The group column's value, 64 bits; 0 without one.
    pub key: u64,
    /// Rows.
    pub count: u64,
    /// Sum of an integer column, exactly; for a float column the bits of its sum.
    pub sum: i128,
    /// Least value, 64 bits.
    pub min: u64,
    /// Greatest value, 64 bits.
    pub max: u64,
}

impl Group {
    /// Bytes in a reply.
    pub const LEN: usize = 48;

    /// Key, count `u64`, sum `i128`, min, max.
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..8].copy_from_slice(&self.key.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.count.to_le_bytes());
        bytes[16..32].copy_from_slice(&self.sum.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.min.to_le_bytes());
        bytes[40..].copy_from_slice(&self.max.to_le_bytes());
        bytes
    }

    /// The groups of a reply.
    pub fn decode_all(reply: &[u8]) -> impl Iterator<Item = Group> {
        let long = |bytes: &[u8]| u64::from_le_bytes(*bytes.first_chunk().unwrap_or(&[0; 8]));
        reply.chunks_exact(Self::LEN).map(move |bytes| Group {
            key: long(bytes),
            count: long(&bytes[8..]),
            sum: i128::from_le_bytes(*bytes[16..].first_chunk().unwrap_or(&[0; 16])),
            min: long(&bytes[32..]),
            max: long(&bytes[40..]),
        })
    }
}
