//! What connections and nodes print as: programs keep them in types of their own, and tests unwrap errors beside them.

use std::fmt::{Debug, Formatter, Result};

use crate::model::ModelledClient;
use crate::store::{LocalCluster, Scope, Store};
use crate::{AsyncClient, At, Client, InFlight, Node, Numbers, Pending, Shared};

macro_rules! by_name {
    ($($kind:ident $(<$of:tt>)?),*) => {
        $(impl $(<$of>)? Debug for $kind $(<$of>)? {
            fn fmt(&self, f: &mut Formatter<'_>) -> Result {
                f.debug_struct(stringify!($kind)).finish_non_exhaustive()
            }
        })*
    };
}

by_name!(AsyncClient, At<K>, InFlight<C>, ModelledClient, Numbers, Pending<C>, Scope<'s>, Shared, Store);

impl Debug for Client {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let (link, in_flight) = (self.link(), self.in_flight());
        f.debug_struct("Client").field("link", &link).field("in_flight", &in_flight).finish_non_exhaustive()
    }
}

impl Debug for Node {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.debug_struct("Node").field("address", &self.address()).finish_non_exhaustive()
    }
}

impl Debug for LocalCluster {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.debug_struct("LocalCluster").field("addresses", &self.addresses()).finish_non_exhaustive()
    }
}
