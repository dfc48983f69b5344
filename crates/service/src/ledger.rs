//! Who has allocated which memory of a node, and how much is left.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use remora_memory::{Access, Buffer, Pd, Region, RegisterError, Registry};
use remora_nic::{ALL_REMOTE, Qpn};

#[cfg(doc)]
use crate::share::Shares;
use crate::turns::Turns;

/// Memory is handed out in units of this, in bytes.
const PAGE: u64 = 4096;
/// Regions that grow are, in bytes: they lie in so much room that the system puts huge pages there, for a byte already.
const HUGE_PAGE: u64 = remora_memory::PAGE_BYTES as u64;
/// What a region is charged beside its pages, in bytes: it takes entries in tables here and in the system.
const REGION: u64 = 4096;
/// Regions that there may be. A system maps 65,530 areas for a process, if nobody has said otherwise.
const REGIONS: u32 = 32_768;
/// Bytes of addresses that there may be for regions that grow: a quarter of what a process has.
const ROOM: u64 = 1 << 45;
/// Bytes that are given back to the system in one step: about 0.1 ms.
const STEP: usize = 2 << 20;

/// The memory that a node lends to its clients.
///
/// A client may have as much as is left to all, in bytes and in regions, as [`Shares`] has it for calls: one alone has
/// half at most. What is given back, or left behind, goes back to the system step by step, by [`reclaim`](Self::reclaim),
/// and counts as lent until then.
///
/// A region that [grows](Self::alloc_growing) does so where a kernel runs that needs it, within the same share.
pub struct Ledger {
    registry: Arc<Registry>,
    pd: Pd,
    limit: u64,
    accounts: Arc<Mutex<Accounts>>,
    /// By connection: whose it is, and its regions.
    connections: BTreeMap<u32, (u32, Vec<Owned>)>,
    /// What is to go back to the system.
    retired: Turns<Retired>,
}

/// Who has how much. Held for a moment at a time: kernels come here when regions grow.
#[derive(Debug)]
struct Accounts {
    left: Lent,
    /// By client: what it has.
    lent: BTreeMap<u32, Lent>,
    /// By key: whose a region is, and what it is charged.
    regions: BTreeMap<u32, (u32, Lent)>,
}

/// An amount of memory: bytes, regions, and bytes of addresses that they may grow into.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Lent {
    bytes: u64,
    regions: u32,
    room: u64,
}

impl Accounts {
    fn of(&self, client: u32) -> Lent {
        self.lent.get(&client).copied().unwrap_or_default()
    }

    /// Charges a region with more.
    fn charge(&mut self, client: u32, key: u32, more: Lent) {
        let region = self.regions.entry(key).or_insert((client, Lent::default()));
        for lent in [self.lent.entry(client).or_default(), &mut region.1] {
            lent.bytes += more.bytes;
            lent.regions += more.regions;
            lent.room += more.room;
        }
        self.left.bytes -= more.bytes;
        self.left.regions -= more.regions;
        self.left.room -= more.room;
    }

    /// A region is gone.
    fn refund(&mut self, key: u32) {
        let Some((client, had)) = self.regions.remove(&key) else { return };
        self.left.bytes += had.bytes;
        self.left.regions += had.regions;
        self.left.room += had.room;
        if let Some(has) = self.lent.get_mut(&client) {
            has.bytes -= had.bytes;
            has.regions -= had.regions;
            has.room -= had.room;
            if has.regions == 0 {
                self.lent.remove(&client);
            }
        }
    }

    /// Whether a region may be so long, which it is charged from now on.
    fn grow(&mut self, key: u32, len: u64) -> bool {
        let Some(&(client, had)) = self.regions.get(&key) else { return false };
        let Some(more) = charged(len, HUGE_PAGE).map(|bytes| bytes.saturating_sub(had.bytes)) else { return false };
        let may = fits(more, self.of(client).bytes, self.left.bytes);
        if may {
            self.charge(client, key, Lent { bytes: more, ..Lent::default() });
        }
        may
    }
}

/// What a region of so many bytes is charged, on pages of so many.
fn charged(len: u64, page: u64) -> Option<u64> {
    len.checked_next_multiple_of(page)?.checked_add(REGION)
}

/// Whether nobody has more than is left to all, once he who `has` some has `more`.
fn fits(more: u64, has: u64, left: u64) -> bool {
    more <= left && has.checked_add(more).is_some_and(|has| has <= left - more)
}

/// A region that a client has allocated. Its buffer is held here, so that whoever lets go of the region last has little
/// to do.
struct Owned {
    key: u32,
    region: Arc<Region>,
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
            limit,
            accounts: Arc::new(Mutex::new(Accounts {
                left: Lent { bytes: limit, regions: REGIONS, room: ROOM },
                lent: BTreeMap::new(),
                regions: BTreeMap::new(),
            })),
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
        self.lend(connection, len, false)
    }

    /// As [`alloc`](Self::alloc), of a region that [may grow](Region::grow) as long as its client's share allows; or of
    /// one that may not, if there are no addresses left for it, or no memory for its last huge page.
    pub fn alloc_growing(&mut self, connection: Qpn, len: u64) -> Result<Arc<Region>, LedgerError> {
        self.lend(connection, len, true)
    }

    fn lend(&mut self, connection: Qpn, len: u64, grows: bool) -> Result<Arc<Region>, LedgerError> {
        // Before anything is made for a client that has gone since it called.
        let (client, owned) = self.connections.get_mut(&connection.0).ok_or(LedgerError::Closing)?;
        let client = *client;
        let (has, left) = {
            let accounts = self.accounts.lock();
            (accounts.of(client), accounts.left)
        };
        if len == 0 {
            return Err(LedgerError::Empty);
        }
        let on = |page| charged(len, page).filter(|&bytes| fits(bytes, has.bytes, left.bytes));
        let bytes = on(PAGE).ok_or(LedgerError::TooMuch { len, has: has.bytes, left: left.bytes })?;
        if has.regions >= left.regions {
            return Err(LedgerError::TooMany { has: has.regions, left: left.regions });
        }
        // No client has more than half of all.
        let room = (self.limit / 2).next_multiple_of(PAGE).min(ROOM / 8).max(len);
        let room = Some(room).filter(|&room| grows && fits(room, has.room, left.room));
        let reserved =
            room.zip(on(HUGE_PAGE)).and_then(|(room, bytes)| Some((Buffer::reserved(room as usize).ok()?, bytes)));
        let access = Access::LOCAL_WRITE | ALL_REMOTE;
        let (region, buffer, bytes) = match reserved {
            Some((buffer, bytes)) => {
                let accounts = self.accounts.clone();
                let may = move |key, len| accounts.lock().grow(key, len);
                (self.registry.register_growing(self.pd, &buffer, len as usize, access, may)?, buffer, bytes)
            }
            None => {
                let buffer = Buffer::anonymous(len as usize)?;
                (self.registry.register_hidden(self.pd, &buffer, len as usize, access)?, buffer, bytes)
            }
        };
        // A region may have grown since its client's share was looked at, by a little more than that, or else this one
        // is too much now.
        let mut accounts = self.accounts.lock();
        if !fits(bytes, accounts.of(client).bytes, accounts.left.bytes) {
            let _ = self.registry.deregister(region.key());
            return Err(LedgerError::TooMuch { len, has: accounts.of(client).bytes, left: accounts.left.bytes });
        }
        let room = if buffer.len() as u64 > len { buffer.len() as u64 } else { 0 };
        accounts.charge(client, region.key(), Lent { bytes, regions: 1, room });
        owned.push(Owned { key: region.key(), region: region.clone(), buffer });
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
        // No longer than it had grown to when its key went.
        let len = retired.owned.region.len() as usize;
        // Whoever still looks at the region holds no more than addresses.
        retired.owned.buffer.discard(retired.done, STEP);
        retired.done += STEP;
        let gone = retired.done >= len;
        if gone {
            self.accounts.lock().refund(key);
        } else {
            self.retired.put_back(client, retired);
        }
        Some(Reclaimed { key, revoked, gone })
    }

    /// Bytes that a client has, or that are on their way back from it to the system.
    pub fn lent_to(&self, client: u32) -> u64 {
        self.accounts.lock().of(client).bytes
    }

    /// Bytes that all clients have, those included that are on their way back.
    pub fn lent(&self) -> u64 {
        self.accounts.lock().lent.values().map(|lent| lent.bytes).sum()
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
        assert!(ledger.is_settled() && ledger.lent() == 0);
        assert_eq!(ledger.accounts.lock().left, Lent { bytes: 12 * PAGE, regions: REGIONS, room: ROOM });
    }

    #[test]
    fn what_grows_has_its_clients_share_and_comes_back() {
        let mut ledger = ledger(100 * HUGE_PAGE / PAGE);
        let (one, two) = (Qpn(1), Qpn(2));
        ledger.open(one, 7);
        ledger.open(two, 8);
        let region = ledger.alloc_growing(one, 5).unwrap();
        assert_eq!((region.len(), ledger.lent_to(7)), (5, HUGE_PAGE + REGION), "a byte takes a huge page");
        assert!(region.grow(20 * HUGE_PAGE - 5) && region.len() == 20 * HUGE_PAGE - 5);
        region.write(region.va() + 19 * HUGE_PAGE, &[1; 100]).unwrap();
        assert_eq!(ledger.lent_to(7), 20 * HUGE_PAGE + REGION);
        assert!(!region.grow(50 * HUGE_PAGE) && region.len() == 20 * HUGE_PAGE - 5, "half, and its own page");
        assert!(region.grow(49 * HUGE_PAGE), "all of half");
        assert!(ledger.alloc_growing(one, HUGE_PAGE).is_err() && ledger.alloc(one, HUGE_PAGE).is_err());
        let small = ledger.alloc_growing(one, PAGE).unwrap();
        assert!(!small.grow(PAGE + 1), "there is no huge page for it");
        let others = ledger.alloc_growing(two, 10 * HUGE_PAGE).unwrap();
        assert!(others.grow(20 * HUGE_PAGE) && !others.grow(40 * HUGE_PAGE));
        ledger.free(one, region.key()).unwrap();
        assert!(!region.grow(50 * HUGE_PAGE), "its key is no good");
        assert_eq!(settle(&mut ledger), [region.key()]);
        assert!(others.grow(40 * HUGE_PAGE));
        ledger.close(one);
        ledger.close(two);
        settle(&mut ledger);
        let all = Lent { bytes: 100 * HUGE_PAGE, regions: REGIONS, room: ROOM };
        assert_eq!(ledger.accounts.lock().left, all);
    }

    /// Addresses are a share as well: who has used his up has regions that do not grow.
    #[test]
    fn a_region_for_whose_growth_there_are_no_addresses_has_its_length_for_good() {
        let mut ledger = ledger(1 << 31);
        ledger.open(Qpn(1), 1);
        let regions: Vec<_> = (0..5).map(|_| ledger.alloc_growing(Qpn(1), PAGE).unwrap()).collect();
        let grown: Vec<bool> = regions.iter().map(|region| region.grow(2 * PAGE)).collect();
        assert_eq!(grown, [true, true, true, true, false], "half of all addresses, by an eighth each");
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
                    0 => while let Ok(region) = ledger.alloc_growing(Qpn(client), len) {
                        keys.push((client, region.key()));
                        region.grow(3 * len);
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
            prop_assert_eq!(ledger.accounts.lock().left, Lent { bytes: 4096 * PAGE, regions: REGIONS, room: ROOM });
        }
    }
}
