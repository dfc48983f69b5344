//! Which queue pairs are one client: those of one address, and how many of them it may have.

use std::collections::HashMap;
use std::net::IpAddr;

/// Connections that one address may have, if nobody says otherwise.
pub const CONNECTIONS: u32 = 64;

/// The clients of a node, by address, each with a small number. Who has many connections is one client still: its
/// [shares](crate::Shares) do not grow with them.
#[derive(Debug)]
pub struct Clients {
    most: u32,
    by_address: HashMap<IpAddr, Client>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct Client {
    number: u32,
    /// Connections, and those of them that stand: anybody may ask for one in the name of another.
    open: u32,
    standing: u32,
}

/// An address has as many connections as it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{address} has {most} connections, as many as an address may: close one, or start the node with --connections")]
pub struct TooManyConnections {
    /// Which.
    pub address: IpAddr,
    /// How many it may have.
    pub most: u32,
}

impl Clients {
    /// Nobody yet. Each address may have `most` connections.
    pub fn new(most: u32) -> Self {
        Self { most, by_address: HashMap::new(), free: Vec::new() }
    }

    /// A connection is wanted: the number of the client.
    pub fn open(&mut self, address: IpAddr) -> Result<u32, TooManyConnections> {
        let fresh = self.by_address.len() as u32;
        if let Some(client) = self.by_address.get_mut(&address) {
            if client.standing >= self.most {
                return Err(TooManyConnections { address, most: self.most });
            }
            client.open += 1;
            return Ok(client.number);
        }
        // Numbers are dense: as many as clients, or given back.
        let number = self.free.pop().unwrap_or(fresh);
        self.by_address.insert(address, Client { number, open: 1, standing: 0 });
        Ok(number)
    }

    /// An open connection stands: close it if the address has too many.
    pub fn establish(&mut self, address: IpAddr) -> Result<(), TooManyConnections> {
        let Some(client) = self.by_address.get_mut(&address) else { return Ok(()) };
        client.standing += 1;
        if client.standing > self.most { Err(TooManyConnections { address, most: self.most }) } else { Ok(()) }
    }

    /// An open connection is gone, which `stood` or not.
    pub fn close(&mut self, address: IpAddr, stood: bool) {
        let Some(client) = self.by_address.get_mut(&address) else { return };
        client.open -= 1;
        client.standing -= u32::from(stood);
        if client.open == 0 {
            self.free.push(client.number);
            self.by_address.remove(&address);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_address_has_one_number_and_its_connections_are_bounded() {
        let mut clients = Clients::new(2);
        let [one, two] = [1, 2].map(|last| IpAddr::from([127, 0, 0, last]));
        assert_eq!(clients.open(one), Ok(0));
        assert_eq!([clients.open(two), clients.open(one), clients.open(one)], [Ok(1), Ok(0), Ok(0)]);
        assert_eq!([clients.establish(one), clients.establish(one)], [Ok(()); 2]);
        let too_many = TooManyConnections { address: one, most: 2 };
        assert_eq!(clients.establish(one), Err(too_many), "the third was open already");
        clients.close(one, true);
        assert_eq!(clients.open(one), Err(too_many));
        clients.close(one, true);
        assert_eq!(clients.open(one), Ok(0));
    }

    proptest! {
        #[test]
        fn numbers_are_small_and_nobody_shares_one(steps in prop::collection::vec((0..6u8, any::<bool>()), 0..200)) {
            let mut clients = Clients::new(3);
            let mut numbers: HashMap<u8, (u32, u32)> = HashMap::new();
            for (who, open) in steps {
                let address = IpAddr::from([127, 0, 0, who]);
                if open {
                    let number = clients.open(address).unwrap();
                    let entry = numbers.entry(who).or_insert((number, 0));
                    prop_assert_eq!(entry.0, number);
                    entry.1 += 1;
                } else if let Some((_, open)) = numbers.get_mut(&who) {
                    clients.close(address, false);
                    *open -= 1;
                    numbers.retain(|_, (_, open)| *open > 0);
                }
                let mut all: Vec<_> = numbers.values().map(|(number, _)| *number).collect();
                all.sort_unstable();
                all.dedup();
                prop_assert_eq!(all.len(), numbers.len());
                prop_assert!(all.iter().all(|&number| number < 6));
            }
        }
    }
}
