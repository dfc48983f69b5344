//! Who has allocated which memory of a node, and how much is left.

use std::collections::BTreeMap;
use std::sync::Arc;

use remora_memory::{Access, Buffer, Pd, Region, RegisterError, Registry};
use remora_nic::{ALL_REMOTE, Qpn};

#[cfg(doc)]
use crate::share::Shares;
use crate::turns::Turns;

/// Memory is handed out in units of this, in bytes.
const PAGE: u64 = 4096;
/// What a region is charged beside its pages, in bytes: it takes entries in tables here and in the system.
const REGION: u64 = 4096;
/// Regions that there may be. A system maps 65,530 areas for a process, if nobody has said otherwise.
const REGIONS: u32 = 32_768;
/// Bytes that are given back to the system in one step: about 0.1 ms.
const STEP: usize = 2 << 20;

/// The memory that a node lends to its clients.
///
/// A client may have as much as is left to all, in bytes and in regions, as [`Shares`] has it for calls: one alone has
/// half at most. What is given back, or left behind, goes back to the system step by step, by [`reclaim`](Self::reclaim),
/// and counts as lent until then.
pub struct Ledger {
    registry: Arc<Registry>,
    pd: Pd,
    left: Lent,
    /// By client: what it has.
    lent: BTreeMap<u32, Lent>,
    /// By connection: whose it is, and its regions.
    connections: BTreeMap<u32, (u32, Vec<Owned>)>,
    /// What is to go back to the system.
    retired: Turns<Retired>,
}

/// An amount of memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Lent {
    bytes: u64,
    regions: u32,
}

/// A region that a client has allocated. Its buffer is held here, so that whoever lets go of the region last has little
/// to do.
struct Owned {
    key: u32,
    bytes: u64,
    buffer: Buffer,
}

struct Retired {
    owned: Owned,
    /// Its key is still good.
    valid: bool,
    /// Bytes at the front that the system has back.
    done: usize,
}

/// A step of giving memory back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reclaimed {
    /// The region's key.
    pub key: u32,
    /// From this step on the key is no good: tell whoever looks at the region.
    pub revoked: bool,
    /// The region is gone, and its memory may be lent again.
    pub gone: bool,
}

/// Why a client is refused memory, or what it says of a region.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    /// The region is another client's, or there is none.
    #[error("this client has no region with that key")]
    Foreign,
    /// The call arrived just before its connection ended.
    #[error("the connection is closing")]
    Closing,
    /// Nothing was asked for.
    #[error("a region has at least one byte")]
    Empty,
    /// The client's share is used up.
    #[error(
        "{len} bytes asked for beside {has} that this client has: of {left} that are left to all, it may have a little less than {most} \
         more, as nobody is to have more than is left to others; ask for less, or start the node with a larger --memory",
        most = left.saturating_sub(*has) / 2
    )]
    TooMuch {
        /// Bytes asked for.
        len: u64,
        /// Bytes that this client has.
        has: u64,
        /// Bytes left to all.
        left: u64,
    },
    /// The client's share of regions is used up.
    #[error("this client has {has} regions, and no more than {left} are left to all: use fewer and larger ones")]
    TooMany {
        /// Regions that this client has.
        has: u32,
        /// Regions left to all.
        left: u32,
    },
    /// The system gives no memory.
    #[error("{0}")]
    Memory(#[from] std::io::Error),
    /// There are as many regions as there may be.
    #[error("{0}")]
    Register(#[from] RegisterError),
}

impl Ledger {
    /// Lends at most `limit` bytes, registered in `pd`.
    pub fn new(registry: Arc<Registry>, pd: Pd, limit: u64) -> Self {
        Self {
            registry,
            pd,
            left: Lent { bytes: limit, regions: REGIONS },
            lent: BTreeMap::new(),
            connections: BTreeMap::new(),
            retired: Turns::default(),
        }
    }

    /// The regions of the node.
    pub fn registry(&self) -> &Arc<Registry> {
        &self.registry
    }

    /// The protection domain that all of its regions are in.
    pub fn pd(&self) -> Pd {
        self.pd
    }

    /// The client with this [number](Shares::client_of) has connected.
    pub fn open(&mut self, connection: Qpn, client: u32) {
        self.connections.insert(connection.0, (client, Vec::new()));
    }

    /// Whether this connection stands.
    pub fn is_open(&self, connection: Qpn) -> bool {
        self.connections.contains_key(&connection.0)
    }

    /// Zeroed memory for a client. Whoever is told its key and address reaches it: a secret of 64 bits and more, less the
    /// logarithm of all that is lent.
    pub fn alloc(&mut self, connection: Qpn, len: u64) -> Result<Arc<Region>, LedgerError> {
        // Before anything is made for a client that has gone since it called.
        let (client, owned) = self.connections.get_mut(&connection.0).ok_or(LedgerError::Closing)?;
        let has = self.lent.get(client).copied().unwrap_or_default();
        let left = self.left;
        if len == 0 {
            return Err(LedgerError::Empty);
        }
        let fits = |&bytes: &u64| bytes <= left.bytes && has.bytes + bytes <= left.bytes - bytes;
        let bytes = len.checked_next_multiple_of(PAGE).and_then(|bytes| bytes.checked_add(REGION)).filter(fits);
        let bytes = bytes.ok_or(LedgerError::TooMuch { len, has: has.bytes, left: left.bytes })?;
        if has.regions >= left.regions {
            return Err(LedgerError::TooMany { has: has.regions, left: left.regions });
        }
        let buffer = Buffer::anonymous(len as usize)?;
        let access = Access::LOCAL_WRITE | ALL_REMOTE;
        let region = self.registry.register_hidden(self.pd, &buffer, len as usize, access)?;
        owned.push(Owned { key: region.key(), bytes, buffer });
        let has = self.lent.entry(*client).or_default();
        *has = Lent { bytes: has.bytes + bytes, regions: has.regions + 1 };
        self.left = Lent { bytes: left.bytes - bytes, regions: left.regions - 1 };
        Ok(region)
    }

    /// A region that this client has allocated by this connection.
    pub fn region(&self, connection: Qpn, key: u32) -> Result<Arc<Region>, LedgerError> {
        let (_, owned) = self.connections.get(&connection.0).ok_or(LedgerError::Closing)?;
        let is_its_own = owned.iter().any(|owned| owned.key == key);
        is_its_own.then(|| self.registry.lookup(key)).flatten().ok_or(LedgerError::Foreign)
    }

    /// The memory of a region that this client has allocated by this connection.
    pub fn buffer(&self, connection: Qpn, key: u32) -> Result<Buffer, LedgerError> {
        let (_, owned) = self.connections.get(&connection.0).ok_or(LedgerError::Closing)?;
        owned.iter().find(|owned| owned.key == key).map(|owned| owned.buffer.clone()).ok_or(LedgerError::Foreign)
    }

    /// Takes memory back that a client has allocated. Its key is no good from now on.
    pub fn free(&mut self, connection: Qpn, key: u32) -> Result<(), LedgerError> {
        let (client, owned) = self.connections.get_mut(&connection.0).ok_or(LedgerError::Closing)?;
        let at = owned.iter().position(|owned| owned.key == key).ok_or(LedgerError::Foreign)?;
        let owned = owned.swap_remove(at);
        // The client may have invalidated its key by itself.
        let _ = self.registry.deregister(key);
        self.retired.push(*client, Retired { owned, valid: false, done: 0 });
        Ok(())
    }

    /// A client is gone: all that it has allocated by this connection will be taken back.
    pub fn close(&mut self, connection: Qpn) {
        let Some((client, owned)) = self.connections.remove(&connection.0) else { return };
        for owned in owned {
            self.retired.push(client, Retired { owned, valid: true, done: 0 });
        }
    }

    /// Gives a piece of the memory that was taken back to the system, of one client after the other. `None` if there is
    /// nothing to give back.
    pub fn reclaim(&mut self) -> Option<Reclaimed> {
        let (client, mut retired) = self.retired.pop(|_| true)?;
        let key = retired.owned.key;
        let revoked = std::mem::replace(&mut retired.valid, false);
        if revoked {
            let _ = self.registry.deregister(key);
        }
        let len = retired.owned.buffer.len();
        // Whoever still looks at the region holds no more than addresses.
        retired.owned.buffer.discard(retired.done, STEP);
        retired.done += STEP;
        let gone = retired.done >= len;
        if gone {
            let bytes = retired.owned.bytes;
            self.left = Lent { bytes: self.left.bytes + bytes, regions: self.left.regions + 1 };
            if let Some(has) = self.lent.get_mut(&client) {
                *has = Lent { bytes: has.bytes - bytes, regions: has.regions - 1 };
                if has.regions == 0 {
                    self.lent.remove(&client);
                }
            }
        } else {
            self.retired.put_back(client, retired);
        }
        Some(Reclaimed { key, revoked, gone })
    }

    /// Bytes that a client has, or that are on their way back from it to the system.
    pub fn lent_to(&self, client: u32) -> u64 {
        self.lent.get(&client).map_or(0, |lent| lent.bytes)
    }

    /// Bytes that all clients have, those included that are on their way back.
    pub fn lent(&self) -> u64 {
        self.lent.values().map(|lent| lent.bytes).sum()
    }

    /// Whether nothing is to be given back.
    pub fn is_settled(&self) -> bool {
        self.retired.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ledger(pages: u64) -> Ledger {
        let registry = Arc::new(Registry::new([1; 32]));
        let pd = registry.alloc_pd();
        Ledger::new(registry, pd, pages * PAGE)
    }

    fn settle(ledger: &mut Ledger) -> Vec<u32> {
        let steps = std::iter::from_fn(|| ledger.reclaim());
        steps.filter(|step| step.gone).map(|step| step.key).collect()
    }

    #[test]
    fn memory_is_its_clients_and_comes_back() {
        let mut ledger = ledger(12);
        let (one, two) = (Qpn(1), Qpn(2));
        assert!(matches!(ledger.alloc(one, 1), Err(LedgerError::Closing)));
        ledger.open(one, 7);
        ledger.open(two, 8);
        assert!(matches!(ledger.alloc(one, 0), Err(LedgerError::Empty)));
        for len in [u64::MAX, 6 * PAGE] {
            assert!(
                matches!(ledger.alloc(one, len), Err(LedgerError::TooMuch { .. })),
                "{len}: half, and its own page"
            );
        }
        let mine = ledger.alloc(one, 4 * PAGE + 1).unwrap().key();
        assert!(matches!(ledger.alloc(one, 1), Err(LedgerError::TooMuch { .. })));
        let other = ledger.alloc(two, 1).unwrap().key();
        assert_eq!(ledger.region(one, mine).unwrap().key(), mine);
        assert!(matches!(ledger.region(one, other), Err(LedgerError::Foreign)));
        assert!(matches!(ledger.free(one, other), Err(LedgerError::Foreign)));
        assert!(ledger.free(one, mine).is_ok());
        assert!(ledger.registry().lookup(mine).is_none(), "at once");
        assert!(matches!(ledger.free(one, mine), Err(LedgerError::Foreign)), "only once");
        assert!(matches!(ledger.alloc(one, 4 * PAGE), Err(LedgerError::TooMuch { .. })), "not before it is given back");
        assert_eq!(settle(&mut ledger), [mine]);
        assert!(ledger.alloc(one, 3 * PAGE).is_ok());
        ledger.close(two);
        assert!(!ledger.is_open(two));
        assert_eq!(ledger.reclaim(), Some(Reclaimed { key: other, revoked: true, gone: true }));
        assert!(ledger.registry().lookup(other).is_none());
        ledger.close(one);
        settle(&mut ledger);
        assert!(ledger.is_settled() && ledger.lent.is_empty());
        assert_eq!(ledger.left, Lent { bytes: 12 * PAGE, regions: REGIONS });
    }

    #[test]
    fn connections_of_one_client_have_one_share_and_what_is_large_goes_in_steps() {
        let mut ledger = ledger(8192);
        for connection in 1..=3 {
            ledger.open(Qpn(connection), 5);
        }
        ledger.open(Qpn(4), 6);
        let large = ledger.alloc(Qpn(1), 15 << 20).unwrap().key();
        assert!(ledger.alloc(Qpn(2), 1 << 20).is_err() && ledger.alloc(Qpn(3), 1 << 20).is_err());
        let small = ledger.alloc(Qpn(4), 4 << 20).unwrap().key();
        ledger.close(Qpn(1));
        ledger.free(Qpn(4), small).unwrap();
        let steps: Vec<_> = std::iter::from_fn(|| ledger.reclaim()).collect();
        assert_eq!(steps.iter().filter(|step| step.key == large).count(), 8);
        assert_eq!(steps.iter().position(|step| step.key == small && step.gone), Some(3), "clients take turns");
        assert!(steps[0].revoked && steps[1..].iter().all(|step| !step.revoked));
    }

    proptest! {
        /// Whatever clients do, one that has nothing gets a page, and nothing is lost.
        #[test]
        fn a_newcomer_finds_memory(steps in prop::collection::vec((0..4u32, 0..3u8, 1..40 * PAGE), 0..60)) {
            let mut ledger = ledger(4096);
            (0..5).for_each(|client| ledger.open(Qpn(client), client));
            let mut keys: Vec<(u32, u32)> = Vec::new();
            for (client, what, len) in steps {
                match what {
                    0 => while let Ok(region) = ledger.alloc(Qpn(client), len) {
                        keys.push((client, region.key()));
                    },
                    1 => if let Some((client, key)) = keys.pop() {
                        let _ = ledger.free(Qpn(client), key);
                    },
                    _ => {
                        ledger.close(Qpn(client));
                        ledger.open(Qpn(client), client);
                    }
                }
                let newcomer = ledger.alloc(Qpn(4), 1);
                prop_assert!(newcomer.is_ok(), "{newcomer:?}");
                ledger.free(Qpn(4), newcomer.unwrap().key()).unwrap();
                ledger.reclaim();
            }
            (0..5).for_each(|client| ledger.close(Qpn(client)));
            settle(&mut ledger);
            prop_assert_eq!(ledger.left, Lent { bytes: 4096 * PAGE, regions: REGIONS });
        }
    }
}
