//! What the numbers name that a client gives its work requests.

/// What a work request id names. The upper 32 bits say which kind it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkId {
    /// The verb that carries the call in this slot.
    Call(u32),
    /// The verb of this staging slot.
    Staging(u32),
    /// The payload stream of the call in this slot.
    Stream(u32),
    /// A verb of the world's own under this number.
    Verb(u32),
    /// Nothing that anybody waits for.
    Unnamed,
}

impl WorkId {
    /// The number.
    #[inline]
    pub const fn encode(self) -> u64 {
        match self {
            Self::Call(slot) => slot as u64,
            Self::Staging(slot) => 1 << 32 | slot as u64,
            Self::Stream(slot) => 2 << 32 | slot as u64,
            Self::Verb(number) => 3 << 32 | number as u64,
            Self::Unnamed => u64::MAX,
        }
    }

    /// What a number names.
    #[inline]
    pub const fn decode(id: u64) -> Self {
        let number = id as u32;
        match id >> 32 {
            0 => Self::Call(number),
            1 => Self::Staging(number),
            2 => Self::Stream(number),
            3 => Self::Verb(number),
            _ => Self::Unnamed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_told_apart() {
        for number in [0, 1, u32::MAX] {
            for id in [WorkId::Call(number), WorkId::Staging(number), WorkId::Stream(number), WorkId::Verb(number)] {
                assert_eq!(WorkId::decode(id.encode()), id);
            }
        }
        assert_eq!(WorkId::decode(WorkId::Unnamed.encode()), WorkId::Unnamed);
        assert_eq!(WorkId::decode(77 << 32), WorkId::Unnamed);
    }
}
