//! Who has allocated which memory of a node, and how much is left.

use std::collections::BTreeMap;
use std::sync::Arc;

use remora_memory::{Access, Buffer, Pd, Region, RegisterError, Registry};
use remora_nic::{ALL_REMOTE, Qpn};

/// Memory is handed out in units of this, in bytes.
const PAGE: u64 = 4096;

/// The memory that a node lends to its clients.
pub struct Ledger {
    registry: Arc<Registry>,
    pd: Pd,
    /// Bytes that may still be allocated.
    left: u64,
    /// What each client has: keys, and bytes counted against the limit.
    clients: BTreeMap<u32, Vec<(u32, u64)>>,
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
    /// The node has not as much left, or nothing was asked for.
    #[error("{len} bytes asked for, {left} left: ask for less, or start the node with a larger --memory")]
    TooMuch {
        /// Bytes asked for.
        len: u64,
        /// Bytes left.
        left: u64,
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
        Self { registry, pd, left: limit, clients: BTreeMap::new() }
    }

    /// The regions of the node.
    pub fn registry(&self) -> &Arc<Registry> {
        &self.registry
    }

    /// The protection domain that all of its regions are in.
    pub fn pd(&self) -> Pd {
        self.pd
    }

    /// A client has connected.
    pub fn open(&mut self, client: Qpn) {
        self.clients.insert(client.0, Vec::new());
    }

    /// Whether this client is connected.
    pub fn is_open(&self, client: Qpn) -> bool {
        self.clients.contains_key(&client.0)
    }

    /// Zeroed memory for a client.
    pub fn alloc(&mut self, client: Qpn, len: u64) -> Result<Arc<Region>, LedgerError> {
        // Before anything is made for a client that has gone since it called.
        let owned = self.clients.get_mut(&client.0).ok_or(LedgerError::Closing)?;
        let left = self.left;
        let charge = len.checked_next_multiple_of(PAGE).filter(|&charge| len > 0 && charge <= left);
        let charge = charge.ok_or(LedgerError::TooMuch { len, left })?;
        let buffer = Buffer::anonymous(len as usize)?;
        let access = Access::LOCAL_WRITE | ALL_REMOTE;
        let region = self.registry.register(self.pd, &buffer, 0, len as usize, None, access)?;
        owned.push((region.key(), charge));
        self.left -= charge;
        Ok(region)
    }

    /// A region that this client has allocated.
    pub fn region(&self, client: Qpn, key: u32) -> Result<Arc<Region>, LedgerError> {
        let owned = self.clients.get(&client.0).ok_or(LedgerError::Closing)?;
        let is_its_own = owned.iter().any(|(other, _)| *other == key);
        is_its_own.then(|| self.registry.lookup(key)).flatten().ok_or(LedgerError::Foreign)
    }

    /// Takes memory back that a client has allocated.
    pub fn free(&mut self, client: Qpn, key: u32) -> Result<(), LedgerError> {
        let owned = self.clients.get_mut(&client.0).ok_or(LedgerError::Closing)?;
        let at = owned.iter().position(|(other, _)| *other == key).ok_or(LedgerError::Foreign)?;
        let (key, charge) = owned.swap_remove(at);
        self.release(key, charge);
        Ok(())
    }

    /// A client is gone: all of its memory is taken back. Returns the keys.
    pub fn close(&mut self, client: Qpn) -> Vec<u32> {
        let owned = self.clients.remove(&client.0).unwrap_or_default();
        owned.iter().for_each(|&(key, charge)| self.release(key, charge));
        owned.into_iter().map(|(key, _)| key).collect()
    }

    fn release(&mut self, key: u32, charge: u64) {
        // A client may have invalidated its key by itself.
        let _ = self.registry.deregister(key);
        self.left += charge;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_its_clients_and_comes_back() {
        let registry = Arc::new(Registry::new([1; 32]));
        let mut ledger = Ledger::new(registry.clone(), registry.alloc_pd(), 3 * PAGE);
        let (one, two) = (Qpn(1), Qpn(2));
        assert!(matches!(ledger.alloc(one, 1), Err(LedgerError::Closing)));
        ledger.open(one);
        ledger.open(two);
        assert!(matches!(ledger.alloc(one, 0), Err(LedgerError::TooMuch { .. })));
        assert!(matches!(ledger.alloc(one, u64::MAX), Err(LedgerError::TooMuch { .. })));
        let mine = ledger.alloc(one, 1).unwrap().key();
        let other = ledger.alloc(two, PAGE + 1).unwrap().key();
        assert!(matches!(ledger.alloc(one, 1), Err(LedgerError::TooMuch { len: 1, left: 0 })));
        assert_eq!(ledger.region(one, mine).unwrap().key(), mine);
        assert!(matches!(ledger.region(one, other), Err(LedgerError::Foreign)));
        assert!(matches!(ledger.free(one, other), Err(LedgerError::Foreign)));
        assert!(ledger.free(one, mine).is_ok());
        assert!(matches!(ledger.free(one, mine), Err(LedgerError::Foreign)), "only once");
        assert_eq!(ledger.close(two), [other]);
        assert!(registry.lookup(other).is_none());
        assert!(!ledger.is_open(two) && ledger.close(two).is_empty());
        assert!(ledger.alloc(one, 3 * PAGE).is_ok());
    }
}
