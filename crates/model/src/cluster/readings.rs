//! What MINOS's text leaves open, as switches of the modelled cluster.

/// Readings of the text beside the usual ones; by default none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Readings {
    /// An entry of a FIFO is taken once its write is done; usually from when it begins.
    pub atomic_entries: bool,
    /// What leaves the vFIFO has PCIe for itself; usually it shares it with messages.
    pub volatile_apart: bool,
    /// What leaves the dFIFO has PCIe for itself; usually it shares it with messages.
    pub durable_apart: bool,
    /// A core that persists does other things meanwhile; usually it waits.
    pub persist_aside: bool,
    /// A host's thread whose write waits for answers takes no other work meanwhile, unless all threads of the host wait so;
    /// usually it takes what else comes.
    pub spin_on_acks: bool,
    /// What a node persists goes to one device, one after the other; usually all at once.
    pub one_device: bool,
    /// Taking a message takes no time of a core beyond what it does; usually a dispatch.
    pub free_receive: bool,
    /// Communication has the time in it for which a message waits for a core; usually that is computation.
    pub waits_communicate: bool,
}
