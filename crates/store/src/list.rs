//! A linked list: elements and values apart, as in StRoM's figure 6.

use crate::Place;
use remora_kernel::{ELEMENT_BYTES, TraversalParams};

/// What a client must know of a list to look a key up in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct List {
    elements: Place,
    values: Place,
    value_size: u32,
}

/// The bytes of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListImage {
    /// The elements, 64 bytes each: key in bytes 0 to 7, next pointer 8 to 15, value pointer 16 to
    /// 23, little-endian. The next pointer of the last one is 0.
    pub elements: Vec<u8>,
    /// The values, back to back.
    pub values: Vec<u8>,
}

/// A list of `records` in their order, all values being of `value_size` bytes: longer ones are
/// cut, shorter ones filled up with zeros. It takes 64 bytes of `elements` and `value_size` bytes
/// of `values` for each record.
pub fn build<'a>(
    records: impl IntoIterator<Item = (u64, &'a [u8])>,
    value_size: u32,
    elements: Place,
    values: Place,
) -> (List, ListImage) {
    let mut image = ListImage { elements: Vec::new(), values: Vec::new() };
    let mut records = records.into_iter().peekable();
    while let Some((key, value)) = records.next() {
        let at = image.elements.len();
        let end = at + ELEMENT_BYTES;
        let next = if records.peek().is_some() { elements.va + end as u64 } else { 0 };
        let fields = [key, next, values.va + image.values.len() as u64];
        image.elements.extend(fields.iter().flat_map(|field| field.to_le_bytes()));
        image.elements.resize(end, 0);
        image.values.extend(value.iter().chain(std::iter::repeat(&0)).take(value_size as usize));
    }
    (List { elements, values, value_size }, image)
}

impl List {
    /// Parameters of the traversal kernel that look `key` up. The reply is the value.
    pub fn traversal_params(&self, key: u64) -> TraversalParams {
        TraversalParams::list(self.elements.va, key, self.value_size, self.elements.key, self.values.key)
    }
}
