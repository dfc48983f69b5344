//! One call of a built-in kernel, as bytes say, over registered memory: whatever they are, the call ends, and nothing
//! changes but what its caller may write.

use remora_kernel::{Call, Limits, Status, host_runner, op};
use remora_memory::{Access, Buffer, Pd, Region, Registry};
use std::sync::Arc;

/// Bytes of all memory, of which regions are parts.
const LEN: usize = 64 << 10;
/// Where the caller's region begins and how long it is; around it is what no kernel may change.
const MINE: std::ops::Range<usize> = 16 << 10..32 << 10;
/// Names of regions, in parameters and in memory: the caller's own, one that it may only read, and a foreign one.
/// Each becomes that region's key.
pub const NAMES: [[u8; 4]; 3] = [*b"MINE", *b"READ", *b"ELSE"];
/// Addresses of the three regions.
pub const ADDRESSES: [u64; 3] = [0x10000, 0x20000, 0x30000];

struct World {
    registry: Arc<Registry>,
    buffer: Buffer,
    pd: Pd,
    regions: [Arc<Region>; 3],
}

impl World {
    fn new(contents: &[u8]) -> World {
        let registry = Arc::new(Registry::new([7; 32]));
        let buffer = Buffer::from_boxed(vec![0xa5; LEN].into());
        let [pd, other] = [registry.alloc_pd(), registry.alloc_pd()];
        let all = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC | Access::LOCAL_WRITE;
        let places = [
            (pd, MINE.start, 16 << 10, all),
            (pd, 36 << 10, 8 << 10, Access::REMOTE_READ),
            (other, 48 << 10, 8 << 10, all),
        ];
        let mut addresses = ADDRESSES.into_iter();
        let regions = places.map(|(pd, at, len, access)| {
            registry.register(pd, &buffer, at, len, addresses.next(), access).expect("a region")
        });
        let world = World { registry, buffer, pd, regions };
        let contents = world.named(contents);
        for (_, at, len, _) in places {
            for (i, run) in contents.chunks(len).take(1).cycle().take(len / contents.len().max(1)).enumerate() {
                world.buffer.write(at + i * run.len(), run).expect("within the buffer");
            }
        }
        world
    }

    /// The bytes with keys in place of regions' names.
    fn named(&self, bytes: &[u8]) -> Vec<u8> {
        let mut bytes = bytes.to_vec();
        for at in 0..bytes.len().saturating_sub(3) {
            if let Some(which) = NAMES.iter().position(|name| bytes[at..].starts_with(name)) {
                bytes[at..at + 4].copy_from_slice(&self.regions[which].key().to_le_bytes());
            }
        }
        bytes
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; LEN];
        self.buffer.read(0, &mut bytes).expect("within the buffer");
        bytes
    }

    /// Runs one call, whose payload comes in pieces.
    fn call(&self, op: u64, params: &[u8], payload: &[u8], piece: usize, prefetching: bool) -> (Status, Vec<u8>) {
        let limits = Limits { steps: 2000, bytes: 1 << 20 };
        let mut runner = host_runner(self.registry.clone(), prefetching, 1, limits);
        let mut call = Call::new(op, &self.named(params), 1 << 16);
        call.pd = Some(self.pd);
        let mut feed = (!payload.is_empty()).then(|| call.open_stream(piece));
        let mut pieces = payload.chunks(piece).peekable();
        assert!(runner.start(call).is_ok(), "the only call");
        let mut outcome = None;
        for _ in 0..1_000_000 {
            if let (Some(feed), Some(&bytes)) = (&mut feed, pieces.peek())
                && feed.push(bytes, pieces.len() == 1)
            {
                pieces.next();
            }
            runner.poll(&mut |mut call, status| outcome = Some((status, std::mem::take(&mut call.reply))));
            if let Some(outcome) = outcome {
                return outcome;
            }
        }
        panic!("op-code {op} does not end")
    }
}

/// What to call, from bytes: op-code, bytes a piece, length of the parameters, parameters, payload.
pub fn drive(bytes: &[u8]) {
    let &[which, piece, len, ref rest @ ..] = bytes else { return };
    let op = op::BUILTINS[usize::from(which) % op::BUILTINS.len()];
    let (params, payload) = rest.split_at(usize::from(len).min(rest.len()));
    // What memory holds at first: the payload too, so that elements and entries can be written down there.
    let outcomes = [(usize::from(piece) + 1, false), (payload.len().max(1), true)].map(|(piece, prefetching)| {
        let world = World::new(payload);
        let before = world.bytes();
        let (status, reply) = world.call(op, params, payload, piece, prefetching);
        let after = world.bytes();
        assert!(before[..MINE.start] == after[..MINE.start], "op-code {op} wrote before its caller's region");
        assert!(before[MINE.end..] == after[MINE.end..], "op-code {op} wrote behind its caller's region");
        (status, reply, after)
    });
    let [one, other] = &outcomes;
    if one.0 == Status::Ok {
        assert!(one == other, "op-code {op} depends on the pieces");
    }
}
