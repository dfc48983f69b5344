//! The operations' calls: what each asks for, and what must come back.

use remora_kernel::{Status, TraversalParams, op};
use remora_lab::writer::fill_object;
use remora_store::hash::Table;
use remora_store::{Place, checked, text};

use rand_chacha::ChaCha8Rng;
use rand_core::SeedableRng;

use crate::calling::{Calls, Checked};
use crate::records::{Records, quote};
use crate::trace::{Pick, Trace};
use crate::workload::below;

/// Reads of a changing object before the kernel gives up: a writer that was interrupted half-way needs a core to go on.
const MAX_TRIES: u32 = 256;

/// GETs of a trace's keys.
pub struct Gets<'a> {
    table: Table,
    records: &'a Records,
    trace: &'a Trace,
    at: usize,
}

impl<'a> Gets<'a> {
    /// From the trace's start. The table holds the records.
    pub fn new(table: Table, records: &'a Records, trace: &'a Trace) -> Self {
        Self { table, records, trace, at: 0 }
    }

    fn key(&self, at: u64) -> (&'a [u8], Option<&'a [u8]>) {
        match self.trace.pick(at as usize) {
            Pick::Record(record) => (self.records.key(record as usize), Some(self.records.value(record as usize))),
            Pick::Missing(number) => (self.trace.missing_key(number), None),
        }
    }
}

impl Calls for Gets<'_> {
    fn op(&self) -> u64 {
        op::GET
    }

    fn next(&mut self) -> u64 {
        self.at += 1;
        self.at as u64 - 1
    }

    fn params(&self, id: u64, params: &mut Vec<u8>) {
        params.extend_from_slice(&text::get_params(&self.table, self.key(id).0).encode());
    }

    fn check(&self, id: u64, status: Status, reply: &[u8]) -> Result<Checked, String> {
        let (key, expected) = self.key(id);
        let found = match status {
            Status::Ok => text::value(reply, key),
            Status::NotFound => None,
            _ => return Err(format!("GET of key {} ended with {status:?}", quote(key))),
        };
        if found == expected {
            return Ok(Checked::RIGHT);
        }
        Err(match (found, expected) {
            (None, Some(_)) => format!("GET of key {} found nothing, though it was loaded", quote(key)),
            (Some(_), None) => format!("GET of key {} found a value, though it was never loaded", quote(key)),
            (found, expected) => {
                format!("GET of key {}: {}", quote(key), difference(found.unwrap_or(&[]), expected.unwrap_or(&[])))
            }
        })
    }
}

/// Where two values part.
fn difference(found: &[u8], expected: &[u8]) -> String {
    match found.iter().zip(expected).position(|(a, b)| a != b) {
        Some(at) => format!("byte {at} of the value is {:#04x} instead of {:#04x}", found[at], expected[at]),
        None => format!("{} bytes came instead of {}", found.len(), expected.len()),
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

/// Objects that the node's writer keeps changing.
pub struct Objects {
    /// Where the first one lies.
    pub place: Place,
    /// How many there are, one after the other.
    pub count: u32,
    /// Bytes of a payload.
    pub payload: u32,
}

impl Objects {
    /// Bytes of one with its checksum.
    pub fn object_size(&self) -> u32 {
        self.payload + checked::CRC_BYTES as u32
    }

    /// Their first version.
    pub fn image(&self) -> Vec<u8> {
        let size = self.object_size() as usize;
        let mut image = vec![0; size * self.count as usize];
        for (index, object) in (0..).zip(image.chunks_mut(size)) {
            fill_object(index, 0, object);
        }
        image
    }

    /// Calls that read objects at random until their checksums hold.
    pub fn reads(&self, seed: u64) -> Reads<'_> {
        Reads { objects: self, rng: ChaCha8Rng::seed_from_u64(seed) }
    }
}

/// Calls that read changing objects.
pub struct Reads<'a> {
    objects: &'a Objects,
    rng: ChaCha8Rng,
}

impl Calls for Reads<'_> {
    fn op(&self) -> u64 {
        op::CONSISTENCY
    }

    fn next(&mut self) -> u64 {
        below(&mut self.rng, self.objects.count.into())
    }

    fn params(&self, index: u64, params: &mut Vec<u8>) {
        let Place { va, key } = self.objects.place;
        let size = self.objects.object_size();
        let place = Place { va: va + u64::from(size) * index, key };
        params.extend_from_slice(&checked::params(place, size, MAX_TRIES).encode());
    }

    /// The payload must be one that the writer stores: the version is in it, and decides every byte.
    fn check(&self, id: u64, status: Status, reply: &[u8]) -> Result<Checked, String> {
        // The kernel's own limit, or those of the place that it ran in.
        if matches!(status, Status::Inconsistent | Status::StepLimit | Status::ByteLimit) {
            return Ok(Checked::GaveUp);
        }
        let Some((payload, tries)) = (status == Status::Ok).then(|| checked::split_reply(reply)).flatten() else {
            return Err(format!("reading object {id} ended with {status:?}"));
        };
        let word = payload.first_chunk().map_or(0, |word| u32::from_le_bytes(*word));
        let mut expected = [0; 8 << 10];
        let Some(expected) = expected.get_mut(..self.objects.object_size() as usize) else {
            return Err(format!("objects of {} bytes are too long to check", self.objects.payload));
        };
        fill_object(id, word.into(), expected);
        if payload == &expected[..self.objects.payload as usize] {
            return Ok(Checked::Verified { rereads: u64::from(tries.saturating_sub(1)) });
        }
        Err(format!("object {id}: {}", difference(payload, expected)))
    }
}
