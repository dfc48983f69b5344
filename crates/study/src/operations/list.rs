//! Walks along linked lists.

use rand_chacha::ChaCha8Rng;
use rand_core::SeedableRng;
use remora_kernel::{Status, TraversalParams, op};
use remora_store::{Arena, Place};

use super::{Common, Loaded, Operation, Parameters, Workload, difference};
use crate::StudyError;
use crate::calling::{Calls, Checked};
use crate::records::Records;
use crate::report::Report;
use crate::store::Loader;
use crate::validate::Prediction;
use crate::where_::SoftwareTimes;
use crate::workload::below;

/// Walk a linked list to its end and read the value there. Parameter: elements.
pub const LIST: Operation = Operation(&List);

/// Elements that a traversal visits, for a plot as in StRoM's figure 7.
const LENGTHS: [u64; 6] = [1, 2, 4, 8, 16, 32];
/// The longest of them.
const LONGEST: u64 = LENGTHS[LENGTHS.len() - 1];
/// Lists that traversals choose from.
const LISTS: u64 = 2048;

struct List;

impl Workload for List {
    fn name(&self) -> &'static str {
        "list"
    }

    fn title(&self) -> &'static str {
        "Linked-list traversal"
    }

    fn parameters(&self) -> Option<Parameters> {
        Some(Parameters { unit: "elements", axis: "list elements visited", values: &LENGTHS })
    }

    fn caption(&self, _: &Report) -> String {
        "Median latency of finding the last element of a list and reading its value of 64 bytes, by the list's \
         length, as in figure 7 of StRoM (EuroSys 2020)."
            .into()
    }

    fn bytes(&self, _: &Records) -> u64 {
        2 * Lists::bytes(LISTS, LONGEST)
    }

    fn load(&self, loader: &mut Loader<'_>, _: &Records) -> Result<Box<dyn Loaded>, StudyError> {
        let bytes = Lists::bytes(LISTS, LONGEST);
        let (elements, values) = (loader.alloc(bytes)?, loader.alloc(bytes)?);
        let lists = Lists::new(elements, values, LISTS, LONGEST, loader.seed());
        let (element_bytes, value_bytes) = lists.images();
        loader.write(elements, &element_bytes)?;
        loader.write(values, &value_bytes)?;
        Ok(Box::new(lists))
    }

    /// A call, the elements, and the value.
    fn predict(&self, prediction: &Prediction<'_>, elements: f64) -> Option<(SoftwareTimes, f64)> {
        let state = 2.0 * (LISTS * LONGEST * LINE as u64) as f64;
        Some((prediction.chain((elements + 1.0, 64.0), 64.0, state)?, 0.0))
    }
}

impl Loaded for Lists {
    fn calls<'a>(&'a self, _: &'a Common<'_>, elements: u64, seed: u64) -> Option<Box<dyn Calls + 'a>> {
        Some(Box::new(self.walks(elements, seed)))
    }
}

/// Bytes of an element of [`Lists`], and of a value.
const LINE: usize = 64;

/// Linked lists in remote memory as in StRoM's figure 6, with their elements scattered over it as after many inserts.
pub struct Lists {
    elements: Place,
    values: Place,
    lists: u64,
    longest: u64,
    seed: u64,
}

impl Lists {
    /// `lists` lists of `longest` elements each. Elements and values each take [`Lists::bytes`].
    pub fn new(elements: Place, values: Place, lists: u64, longest: u64, seed: u64) -> Self {
        Self { elements, values, lists, longest, seed }
    }

    /// Bytes of the elements of so many lists, and of their values.
    pub fn bytes(lists: u64, longest: u64) -> u64 {
        lists * longest * LINE as u64
    }

    /// The images of elements and values.
    ///
    /// An element is its key, the next element's address (0 at the end) and its value's, 8 bytes each.
    pub fn images(&self) -> (Vec<u8>, Vec<u8>) {
        let len = Self::bytes(self.lists, self.longest) as usize;
        let (mut elements, mut values) = (vec![0; len], vec![0; len]);
        let slots = self.slots();
        for (list, slots) in (0u64..).zip(slots.chunks(self.longest as usize)) {
            for (n, &slot) in slots.iter().enumerate() {
                let next = slots.get(n + 1).map_or(0, |&next| self.elements.va + next * LINE as u64);
                let offset = slot as usize * LINE;
                let fields = [self.key(list, n as u64), next, self.values.va + slot * LINE as u64];
                for (word, field) in elements[offset..].chunks_exact_mut(8).zip(fields) {
                    word.copy_from_slice(&field.to_le_bytes());
                }
                values[offset..offset + LINE].copy_from_slice(&self.value(list, n as u64));
            }
        }
        (elements, values)
    }

    /// Where each element lies, list by list: a permutation.
    fn slots(&self) -> Vec<u64> {
        let mut slots: Vec<u64> = (0..self.lists * self.longest).collect();
        let mut rng = ChaCha8Rng::seed_from_u64(self.seed);
        for i in (1..slots.len()).rev() {
            slots.swap(i, below(&mut rng, i as u64 + 1) as usize);
        }
        slots
    }

    fn key(&self, list: u64, element: u64) -> u64 {
        list * self.longest + element + 1
    }

    fn value(&self, list: u64, element: u64) -> [u8; LINE] {
        let mut value = [0; LINE];
        for (n, word) in (0u64..).zip(value.chunks_exact_mut(8)) {
            let mixed = remora_store::hash::mix(self.key(list, element) ^ self.seed.rotate_left(32) ^ n << 56);
            word.copy_from_slice(&mixed.to_le_bytes());
        }
        value
    }

    /// Calls that walk `length` elements of lists at random and read the last one's value.
    pub fn walks(&self, length: u64, seed: u64) -> Walks<'_> {
        let heads = self.slots().chunks(self.longest as usize).map(|slots| slots[0]).collect();
        Walks { lists: self, heads, length, rng: ChaCha8Rng::seed_from_u64(seed) }
    }
}

/// Calls that walk lists.
pub struct Walks<'a> {
    lists: &'a Lists,
    heads: Vec<u64>,
    length: u64,
    rng: ChaCha8Rng,
}

impl Calls for Walks<'_> {
    fn op(&self) -> u64 {
        op::TRAVERSAL
    }

    fn next(&mut self) -> u64 {
        below(&mut self.rng, self.lists.lists)
    }

    fn params(&self, list: u64, params: &mut Vec<u8>) {
        let Lists { elements, values, .. } = *self.lists;
        let head = elements.va + self.heads[list as usize] * LINE as u64;
        let key = self.lists.key(list, self.length - 1);
        params.extend_from_slice(&TraversalParams::list(head, key, LINE as u32, elements.key, values.key).encode());
    }

    fn check(&self, id: u64, status: Status, reply: &[u8]) -> Result<Checked, String> {
        let length = self.length;
        if status != Status::Ok {
            return Err(format!("walking {length} elements of list {id} ended with {status:?}"));
        }
        let expected = self.lists.value(id, length - 1);
        if reply == expected {
            return Ok(Checked::RIGHT);
        }
        Err(format!("walking {length} elements of list {id}: {}", difference(reply, &expected)))
    }
}
