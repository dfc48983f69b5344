//! A call of each built-in kernel whose answer is known, for the tests of every world. A kernel without one fails them.

use remora_kernel::btree::{BuildError, Directory, MoveParams, Part, Shape, TreeParams, TreeRef};
use remora_kernel::compress::CompressParams;
use remora_kernel::embed::{Element, EmbedRequest, EmbedTable, Reduction};
use remora_kernel::filter::{Column, ColumnType, FilterOutput, FilterParams, RowPredicate, Source};
use remora_kernel::hll::HllParams;
use remora_kernel::kv;
use remora_kernel::shuffle::{Partition, ShuffleParams};
use remora_kernel::{Bucket, ConsistencyParams, GetParams, Placement, SequencerParams, Status, TableEntry};
use remora_kernel::{TraversalParams, crc64, op};

/// Bytes of memory that an example needs.
pub const ROOM: usize = 8192;

/// A call.
pub struct Example {
    /// What memory holds at first.
    pub memory: Vec<u8>,
    /// Parameters.
    pub params: Vec<u8>,
    /// The payload stream, if the kernel reads one.
    pub payload: Option<Vec<u8>>,
    /// The reply.
    pub reply: Vec<u8>,
    /// What memory holds afterwards, and from where on.
    pub written: (usize, Vec<u8>),
}

/// A value of an object, and of what a look-up finds.
const VALUE: [u8; 64] = *b"sixty-four bytes that are the value of whatever is looked for...";

/// The example of a kernel, for [`ROOM`] bytes of memory at this address of the region with this key.
pub fn example(kernel: u64, key: u32, va: u64) -> Example {
    let mut memory = vec![0; ROOM];
    memory[4096..4160].copy_from_slice(&VALUE);
    let mut example =
        Example { memory, params: Vec::new(), payload: None, reply: VALUE.to_vec(), written: (0, Vec::new()) };
    let values: Vec<u8> = (0..64u64).flat_map(u64::to_le_bytes).collect();
    match kernel {
        op::TRAVERSAL => {
            // An element that is not it, and the one that is.
            for (at, word) in [(0, 6), (8, va + 64), (64, 7), (64 + 16, va + 4096)] {
                example.memory[at..at + 8].copy_from_slice(&u64::to_le_bytes(word));
            }
            example.params = TraversalParams::list(va, 7, 64, key, key).encode().to_vec();
        }
        op::GET => {
            let bucket = Bucket { key: 77, value: va + 4096, len: 64 };
            let entry = TableEntry { buckets: [Bucket::default(), bucket, Bucket::default()], next: 0 };
            example.memory[64..128].copy_from_slice(&entry.encode());
            let params = GetParams { entries: va, key: 77, index: 1, entries_key: key, values_key: key };
            example.params = params.encode().to_vec();
        }
        op::CONSISTENCY => {
            example.memory[4160..4168].copy_from_slice(&crc64(&VALUE).to_le_bytes());
            example.params = ConsistencyParams { address: va + 4096, key, len: 72, max_tries: 2 }.encode().to_vec();
            example.reply.extend_from_slice(&1u32.to_le_bytes());
        }
        op::CHECKSUM => {
            example.reply = [512u64.to_le_bytes(), crc64(&values).to_le_bytes()].concat();
            example.payload = Some(values);
        }
        op::HYPERLOGLOG => {
            // The registers in memory: 64 values leave more than none of 16.
            let params = HllParams { lg_k: 4, want_image: false, payload_is_image: false, registers: None };
            example.params = params.encode().to_vec();
            // The estimate is not checked here.
            example.reply = [[0; 8], 64u64.to_le_bytes()].concat();
            example.payload = Some(values);
        }
        op::SHUFFLE => {
            let to = [0, 1].map(|n| Partition { va: va + 512 * n, values: 32 });
            let params = ShuffleParams { bits: 1, hashed: false, key }.encode(&to);
            let (params, histogram) = params.split_at(ShuffleParams::LEN);
            example.params = params.to_vec();
            example.reply = 64u64.to_le_bytes().to_vec();
            example.payload = Some([histogram, &values].concat());
            let even = (0..32).flat_map(|n| u64::to_le_bytes(2 * n));
            example.written = (0, even.collect());
        }
        op::FILTER => {
            example.memory[..512].copy_from_slice(&values);
            let column = Column { offset: 0, kind: ColumnType::U64 };
            let source = Source::Memory { key, va, rows: 64 };
            let (predicate, output) = (RowPredicate::Greater(61), FilterOutput::Reply);
            example.params = FilterParams { row_len: 8, column, predicate, source, output }.encode().to_vec();
            example.reply = [62u64.to_le_bytes(), 63u64.to_le_bytes()].concat();
        }
        op::COMPRESS => {
            // Bytes that do not shrink: a block of them as they are.
            example.params = CompressParams { key, va: va + 4096, len: 64 }.encode().to_vec();
            example.reply = [&[64, 0, 0, 0, 64, 0, 0, 0], &VALUE[..]].concat();
        }
        op::DECOMPRESS => {
            example.params = CompressParams { key, va: va + 1024, len: 64 }.encode().to_vec();
            example.payload = Some([&[64, 0, 0, 0, 64, 0, 0, 0], &VALUE[..]].concat());
            example.reply = 64u64.to_le_bytes().to_vec();
            example.written = (1024, VALUE.to_vec());
        }
        op::TREE_GET | op::TREE_PUT | op::TREE_DELETE | op::TREE_SCAN | op::TREE_RECOVER => {
            // One leaf, with one key: 32 bytes of header, room for 13 keys, and the values.
            let shape = Shape { node_bytes: 256, fill: 100 };
            let write = |at: u64, node: &[u8]| {
                example.memory[at as usize..][..node.len()].copy_from_slice(node);
                Ok::<_, BuildError>(())
            };
            shape.build([(7, 99)], 1, 8, write).expect("a tree");
            let tree = TreeRef { base: va, key, slots: 12, node_bytes: 256, owners: 1, owner: 1 };
            let value = if kernel == op::TREE_PUT { 100 } else { 1 };
            example.params = TreeParams::new(tree, 7, value).encode().to_vec();
            example.reply = 99u64.to_le_bytes().to_vec();
            match kernel {
                op::TREE_PUT => example.written = (256 + 32 + 13 * 8, 100u64.to_le_bytes().to_vec()),
                op::TREE_DELETE => example.written = (256 + 24, vec![0, 0, 0, 0, 0, 0, 1, 0]),
                op::TREE_RECOVER => {
                    // The leaf is locked by an owner that has written nothing.
                    example.memory[256..264].copy_from_slice(&(1u64 << 16 | 1).to_le_bytes());
                    example.params = TreeParams::new(tree, 1, 0).encode().to_vec();
                    example.reply = 1u64.to_le_bytes().to_vec();
                    example.written = (256, vec![0; 8]);
                }
                op::TREE_SCAN => example.reply = [7u64.to_le_bytes(), 99u64.to_le_bytes()].concat(),
                _ => {}
            }
        }
        op::TREE_MOVE => {
            // The border alone: only a node moves it.
            let tree = TreeRef { base: va, key, slots: 8, node_bytes: 256, owners: 0, owner: 0 };
            let part = |place| Part { tree, place };
            let directory = Directory { split: 77, parts: [part(Placement::Host), part(Placement::Nic)] };
            example.memory[..Directory::LEN].copy_from_slice(&directory.encode());
            example.params = MoveParams { directory: va, key, leaves: 0, target: 0 }.encode().to_vec();
            example.reply = [77u64.to_le_bytes(), [0; 8]].concat();
        }
        op::SEQUENCER => {
            example.memory[64] = 41;
            example.params = SequencerParams { address: va + 64, key, count: 2 }.encode().to_vec();
            example.reply = 41u64.to_le_bytes().to_vec();
            example.written = (64, 43u64.to_le_bytes().to_vec());
        }
        op::KV_GET | op::KV_PUT | op::KV_UPDATE | op::KV_DELETE | op::KV_RESERVE | op::KV_RELEASE => {
            // One bucket, with the entry of one pair, which lies at 6144; the next block of its class is at 7168.
            let (name, short) = (b"name".as_slice(), &VALUE[..16]);
            let (hash, class) = (kv::hash(name, 1), kv::class_of(kv::item_len(4, 16)).expect("a class"));
            let header = kv::header(0, ROOM as u64, 1).expect("room");
            example.memory[..header.len()].copy_from_slice(&header);
            example.memory[4096..4160].fill(0);
            let entry = (hash >> 48 << 48) | (u64::from(class) << 42) | (6144 / 32);
            example.memory[4096..4104].copy_from_slice(&entry.to_le_bytes());
            let (mut pair, sum) = kv::pair(name, short);
            let sum_at = pair.len() - 8;
            pair[sum_at..].copy_from_slice(&sum.to_le_bytes());
            example.memory[6144..6144 + pair.len()].copy_from_slice(&pair);
            let slab = (7168u64 / 64) << 24 | 1;
            example.memory[128..136].copy_from_slice(&slab.to_le_bytes());
            let store = kv::KvRef::new(va, key, 0);
            let value: &[u8] = if matches!(kernel, op::KV_PUT | op::KV_UPDATE) { b"other" } else { b"" };
            let params = kv::KvParams::new(store, hash, name, value);
            let block = kv::KvParams { value: kv::KvValue::Block(7168, 0), value_len: 16, ..params };
            if kernel == op::KV_RELEASE { block } else { params }.encode(&mut example.params);
            example.reply.clear();
            match kernel {
                op::KV_GET => example.reply = short.to_vec(),
                op::KV_DELETE => example.written = (4096, 1u64.to_le_bytes().to_vec()),
                op::KV_RELEASE => {
                    // The first of those that were given back, in units of 32 bytes, after one change.
                    example.written = (136, ((1u64 << 42) | (7168 / 32)).to_le_bytes().to_vec());
                }
                op::KV_RESERVE => example.reply = (7168u64 + 64).to_le_bytes().to_vec(),
                _ => {
                    let (mut pair, sum) = kv::pair(name, b"other");
                    let sum_at = pair.len() - 8;
                    pair[sum_at..].copy_from_slice(&sum.to_le_bytes());
                    example.written = (6144, pair);
                }
            }
        }
        op::EMBED => {
            // Rows 1 and 3 of four of 16 numbers, in one region with what else there is: 1 and 3 in every column.
            for row in 0..4usize {
                let bytes: Vec<u8> = [row as f32; 16].iter().flat_map(|number| number.to_le_bytes()).collect();
                example.memory[64 * row..64 * (row + 1)].copy_from_slice(&bytes);
            }
            let table = EmbedTable { base: va, key, rows: 4, dim: 16, element: Element::F32 };
            let request = EmbedRequest { table, reduction: Reduction::Sum, rows: &[1, 3], numbers: &[], items: 2 };
            request.encode(&mut example.params);
            example.reply = [4.0f32; 16].iter().flat_map(|number| number.to_le_bytes()).collect();
        }
        unknown => panic!("built-in kernel {unknown} has no example: add one here"),
    }
    example
}

/// How the example ends in a place.
pub fn status_at(kernel: u64, placement: Placement) -> Status {
    match (kernel, placement) {
        (op::KV_PUT | op::KV_UPDATE | op::KV_DELETE | op::KV_RESERVE | op::KV_RELEASE, Placement::Client) => {
            kv::NOT_HERE
        }
        _ => Status::Ok,
    }
}

/// Whether a reply is the example's. Of a sketch only the count is compared: the estimate is another test's.
pub fn is_right(kernel: u64, reply: &[u8], example: &Example) -> bool {
    match kernel {
        op::HYPERLOGLOG => reply.get(8..16) == Some(&example.reply[8..]),
        _ => reply == example.reply,
    }
}
