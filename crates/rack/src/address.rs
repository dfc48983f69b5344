//! One address space for the whole rack (section 4.2): every memory device's bytes have their place there.

/// Bytes of a section, the unit that the low-power unit hands out.
pub const SECTION_BYTES: u64 = 2 << 20;
/// Sections of a region, the unit that a memory device is enumerated in.
pub const REGION_SECTIONS: u32 = 512;
/// Bytes of a region.
pub const REGION_BYTES: u64 = SECTION_BYTES * REGION_SECTIONS as u64;

/// A compute node of the rack: here a process, in the paper a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u32);

/// Where a section lies: the number of a memory device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Location(pub u16);

/// A section by its number in the address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Section(pub u32);

impl Section {
    /// Address of its first byte.
    pub fn start(self) -> FabricAddress {
        FabricAddress(u64::from(self.0) * SECTION_BYTES)
    }
}

/// An address in the rack's one address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FabricAddress(pub u64);

impl FabricAddress {
    /// The section it lies in. Addresses beyond the last section that can be give that one.
    pub fn section(self) -> Section {
        Section(u32::try_from(self.0 / SECTION_BYTES).unwrap_or(u32::MAX))
    }

    /// Bytes from the start of its section.
    pub fn offset(self) -> u64 {
        self.0 % SECTION_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_name_sections_and_offsets() {
        let at = FabricAddress(3 * SECTION_BYTES + 4096);
        assert_eq!((at.section(), at.offset()), (Section(3), 4096));
        assert_eq!(Section(3).start(), FabricAddress(6 << 20));
        assert_eq!(REGION_BYTES, 1 << 30);
        assert_eq!(FabricAddress(u64::MAX).section(), Section(u32::MAX));
    }
}
