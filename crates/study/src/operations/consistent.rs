//! Reads of objects that a writer keeps changing, until their checksums hold.

use rand_chacha::ChaCha8Rng;
use rand_core::SeedableRng;
use remora_kernel::{Status, op};
use remora_lab::writer::{WriterConfig, fill_object};
use remora_real::RemoteRegion;
use remora_store::{Arena, Place, checked};

use super::{Common, Loaded, Operation, Parameters, VALUE_SIZES, Workload, difference};
use crate::StudyError;
use crate::calling::{Calls, Checked};
use crate::format::count;
use crate::records::Records;
use crate::report::Report;
use crate::store::Loader;
use crate::validate::Prediction;
use crate::where_::SoftwareTimes;
use crate::workload::below;

/// Read an object that a writer keeps changing until its checksum holds. Parameter: bytes of the payload.
pub const CONSISTENT_GET: Operation = Operation(&ConsistentGet);

/// Objects that the writer rewrites in turn.
pub(crate) const OBJECTS: u32 = 2;
/// Reads of a changing object before the kernel gives up: a writer that was interrupted half-way needs a core to go on.
const MAX_TRIES: u32 = 256;

struct ConsistentGet;

/// Objects of each size, and where they lie.
struct Changing(Vec<(Objects, RemoteRegion)>);

impl Workload for ConsistentGet {
    fn name(&self) -> &'static str {
        "consistent-get"
    }

    fn title(&self) -> &'static str {
        "Consistent GET by value size, while a writer changes the values"
    }

    fn parameters(&self) -> Option<Parameters> {
        Some(Parameters { unit: "bytes", axis: "value size in bytes", values: &VALUE_SIZES })
    }

    fn changes(&self) -> bool {
        true
    }

    fn caption(&self, report: &Report) -> String {
        format!(
            "Median latency of reading a value whole, by its size, as in figure 9 of StRoM (EuroSys 2020). A writer \
             on the node keeps rewriting the values ({}); a read that catches one half-written is repeated until the CRC64 \
             holds. {}",
            match report.setup.writer_updates_per_s {
                0 => "as fast as it can".into(),
                n => format!("{} updates a second", count(n.into())),
            },
            report.repeated_note().unwrap_or_default()
        )
    }

    fn load(&self, loader: &mut Loader<'_>, _: &Records) -> Result<Box<dyn Loaded>, StudyError> {
        let mut load = |payload: u64| {
            let mut objects = Objects { place: Place { va: 0, key: 0 }, count: OBJECTS, payload: payload as u32 };
            let len = u64::from(objects.object_size() * OBJECTS);
            let place = loader.alloc(len)?;
            objects.place = place;
            loader.write(place, &objects.image())?;
            Ok((objects, RemoteRegion { va: place.va, key: place.key, len }))
        };
        let objects = VALUE_SIZES.into_iter().map(&mut load).collect::<Result<_, StudyError>>()?;
        Ok(Box::new(Changing(objects)))
    }

    fn predict(&self, prediction: &Prediction<'_>, bytes: f64) -> Option<(SoftwareTimes, f64)> {
        Some((prediction.consistent(bytes)?, prediction.rereads(bytes)?.0))
    }
}

impl Changing {
    fn of(&self, bytes: u64) -> Option<&(Objects, RemoteRegion)> {
        self.0.iter().find(|(objects, _)| u64::from(objects.payload) == bytes)
    }
}

impl Loaded for Changing {
    fn calls<'a>(&'a self, _: &'a Common<'_>, bytes: u64, seed: u64) -> Option<Box<dyn Calls + 'a>> {
        Some(Box::new(self.of(bytes)?.0.reads(seed)))
    }

    fn writer(&self, bytes: u64, updates_per_s: u32) -> Option<(&RemoteRegion, WriterConfig)> {
        let (objects, region) = self.of(bytes)?;
        let (object_size, objects) = (objects.object_size(), objects.count);
        Some((region, WriterConfig { object_size, objects, updates_per_s }))
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
