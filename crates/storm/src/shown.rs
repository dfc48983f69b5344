//! A chain's window in a world without memory that peers reach: what a one-sided READ finds there, and whether it does.

use remora_replica::chain::{Chain, Lines};

use crate::events::Time;

/// What a node shows.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Shown {
    lines: Lines,
    bytes: Vec<u8>,
}

impl Shown {
    /// What a node shows that starts with this.
    pub fn new(chain: &Chain) -> Self {
        let lines = chain.lines().expect("keys have bytes");
        let mut bytes = vec![0; lines.bytes() as usize];
        let data = &chain.data()[..lines.data() as usize];
        lines.fill(chain.log_ends().1, data, |at, some| put(&mut bytes, at, some));
        Self { lines, bytes }
    }

    /// The replica writes this to persistent memory.
    pub fn write(&mut self, chain: &Chain, at: u64, bytes: &[u8]) {
        if let Some(offset) = chain.data_offset(at) {
            self.write_data(chain, offset, bytes);
        }
    }

    /// The replica's data has these bytes now.
    pub fn write_data(&mut self, chain: &Chain, offset: u64, bytes: &[u8]) {
        self.lines.write(chain.log_ends().1, offset, bytes, |at, some| put(&mut self.bytes, at, some));
    }

    /// How it is laid out.
    pub fn lines(&self) -> Lines {
        self.lines
    }

    /// What a READ finds that came before `now`, with the key of the view `epoch`. `None`: the NIC refuses it.
    pub fn read(&self, chain: &Chain, now: Time, epoch: u64, (at, length): (u64, u32)) -> Option<&[u8]> {
        let open = chain.window().is_some_and(|until| now < until) && chain.view().epoch == epoch;
        self.bytes.get(at as usize..)?.get(..length as usize).filter(|_| open)
    }
}

fn put(window: &mut [u8], at: u64, bytes: &[u8]) {
    window[at as usize..][..bytes.len()].copy_from_slice(bytes);
}
