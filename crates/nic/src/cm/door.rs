//! Who is let in of those that call: a REQ takes a place in the table and memory of the user's, and whoever sends it may
//! have forged where it comes from.
//!
//! As long as there is room, every caller gets a place. When strangers have half of all places, or one address has half
//! of those, the others get a REJ with a cookie: a keyed hash of where the REQ came from and what it names. Who calls
//! again with the cookie as transaction id has heard the REJ, so that the address is his; nothing is remembered of him
//! meanwhile (D. J. Bernstein, SYN cookies, 1996). The REJ is as long as the REQ, so that nobody is flooded by way of
//! this side.

use std::net::IpAddr;

use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};
use remora_wire::cm::Req;

use super::handle::Origin;
use super::message;
use super::*;

/// What cookies are made with.
pub(super) struct Door {
    secret: [u8; 16],
}

/// What becomes of a REQ that asks for nothing impossible.
pub(super) enum Entry {
    /// There is room, for one who has proved that he hears or a stranger.
    Open { stranger: bool },
    /// There may be if the caller proves that he hears.
    Knock(u64),
    /// He has, and there is no room. He tries again by himself.
    Wait,
}

impl Door {
    pub fn new(rng: &mut ChaCha8Rng) -> Self {
        let mut secret = [0; 16];
        rng.fill_bytes(&mut secret);
        Self { secret }
    }

    /// One block of ChaCha8 whose key is the secret and the address, and whose nonce is what the REQ names.
    fn cookie(&self, from: IpAddr, req: &Req) -> u64 {
        let mut key = [0; 32];
        key[..16].copy_from_slice(&self.secret);
        key[16..].copy_from_slice(&message::gid(from));
        let mut hash = ChaCha8Rng::from_seed(key);
        hash.set_stream(u64::from(req.local_comm_id) << 32 | u64::from(req.local_qpn));
        hash.next_u64()
    }
}

impl Cm {
    /// Whether there is room for another half-open connection with this caller.
    pub(super) fn entry(&mut self, origin: Origin, req: &Req) -> Entry {
        self.table.thaw(origin.now);
        let cookie = self.door.cookie(origin.from, req);
        let proven = cookie == origin.tid;
        let places = if proven { self.config.max_half_open } else { self.config.max_half_open.div_ceil(2) };
        let room = self.table.half_open() < places && self.table.half_open_of(origin.from) < places.div_ceil(2);
        match (room, proven) {
            (true, _) => Entry::Open { stranger: !proven },
            (false, false) => Entry::Knock(cookie),
            (false, true) => Entry::Wait,
        }
    }

    /// The peer wants the REQ again with its cookie, which shows that this side hears it. That costs a retry, so that a
    /// peer cannot ask for ever. False if it asks for nothing.
    pub(super) fn knock(&mut self, origin: Origin, id: ConnId, rej: &remora_wire::cm::Rej) -> bool {
        let (Some(cookie), Some(conn)) = (message::cookie_of(rej), self.table.get_mut(id)) else { return false };
        if conn.retries == 0 || conn.cookie == Some(cookie) {
            return false;
        }
        conn.retries -= 1;
        conn.cookie = Some(cookie);
        message::set_transaction(&mut conn.bytes, cookie);
        self.resend(id);
        self.table.arm(id, Some(origin.now.saturating_add(self.config.response_timeout)));
        true
    }
}
