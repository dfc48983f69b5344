//! Sealed records: what a connection carries, encrypted and authenticated.
//!
//! Both ends of a connection share a secret and have told each other something that neither has said before (a nonce, and
//! what else they said of themselves). From these comes a traffic secret for each direction (HKDF-SHA256, RFC 5869), and
//! from a traffic secret a key and an initial vector. A record is sealed by AES-128-GCM (NIST SP 800-38D); its nonce is the
//! initial vector with the record's number exclusive-ored in, as in TLS 1.3 (RFC 8446, section 5.3). Numbers are not sent:
//! the connection delivers records once and in order, so a record that was changed, doubled, left out, moved, turned around
//! or taken from another connection does not open, and the connection is over.
//!
//! After [`RECORDS`] records a direction's traffic secret is replaced by one that follows from it, at both ends alike. Who
//! learns the present one cannot open what came before it. Who learns the shared secret can: there is no ephemeral
//! Diffie-Hellman exchange here.

use ring::aead::{AES_128_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::hkdf::{HKDF_SHA256, KeyType, Prk, Salt};

/// Bytes that sealing adds to a record.
pub const TAG: usize = 16;
/// Records of a direction under one key: with records of 16 KiB, as RFC 8446 (section 5.5) advises for AES-GCM.
const RECORDS: u64 = 1 << 24;

/// Which end of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// Who called.
    Caller,
    /// Who answered.
    Answerer,
}

/// One end's keys, and how many records it has sealed and opened.
pub struct Seal {
    out: Direction,
    into: Direction,
    /// Something did not open.
    broken: bool,
}

/// This record was not sealed as the next one by the other end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a record that the other end has not sealed, or not as the next one")]
pub struct BadSeal;

impl Seal {
    /// For `end` of the connection on which the caller said `caller` and was answered `answerer`. Each holds a nonce.
    pub fn new(secret: &[u8], end: End, caller: &[u8], answerer: &[u8]) -> Self {
        let prk = Salt::new(HKDF_SHA256, b"remora cluster connection").extract(secret);
        let said = [&(caller.len() as u32).to_le_bytes(), caller, answerer].concat();
        let direction = |from: &[u8]| Direction::new(expand(&prk, &[from, &said]));
        let (called, answered) = (direction(b"caller"), direction(b"answerer"));
        match end {
            End::Caller => Self { out: called, into: answered, broken: false },
            End::Answerer => Self { out: answered, into: called, broken: false },
        }
    }

    /// Seals the next record, in place. The tag is to follow it.
    #[inline]
    pub fn seal(&mut self, record: &mut [u8]) -> [u8; TAG] {
        let nonce = self.out.nonce();
        let sealed = self.out.key.seal_in_place_separate_tag(nonce, Aad::empty(), record);
        // It fails for records of 64 GiB alone.
        let tag = sealed.unwrap_or_else(|_| unreachable!("a record of {} bytes", record.len()));
        let mut bytes = [0; TAG];
        bytes.copy_from_slice(tag.as_ref());
        bytes
    }

    /// Opens the next record, in place: all but its last [`TAG`] bytes. After an error nothing more opens.
    ///
    /// # Errors
    ///
    /// [`BadSeal`] if the other end has not sealed these bytes as its next record.
    #[inline]
    pub fn open(&mut self, record: &mut [u8]) -> Result<(), BadSeal> {
        let nonce = self.into.nonce();
        self.broken |= self.into.key.open_in_place(nonce, Aad::empty(), record).is_err();
        if self.broken { Err(BadSeal) } else { Ok(()) }
    }
}

/// Records from one end to the other.
struct Direction {
    key: LessSafeKey,
    iv: [u8; NONCE_LEN],
    /// Follows this one.
    then: [u8; 32],
    /// Records under this key.
    records: u64,
}

impl Direction {
    fn new(secret: [u8; 32]) -> Self {
        let prk = Prk::new_less_safe(HKDF_SHA256, &secret);
        let key: [u8; 16] = expand(&prk, &[b"key"]);
        // The length is this algorithm's.
        let key = UnboundKey::new(&AES_128_GCM, &key).unwrap_or_else(|_| unreachable!("a key of 16 bytes"));
        let (iv, then) = (expand(&prk, &[b"iv"]), expand(&prk, &[b"then"]));
        Self { key: LessSafeKey::new(key), iv, then, records: 0 }
    }

    /// The next record's nonce. No two records under one key have the same.
    #[inline]
    fn nonce(&mut self) -> Nonce {
        if self.records == RECORDS {
            *self = Self::new(self.then);
        }
        let mut nonce = self.iv;
        for (byte, number) in nonce[NONCE_LEN - 8..].iter_mut().zip(self.records.to_be_bytes()) {
            *byte ^= number;
        }
        self.records += 1;
        Nonce::assume_unique_for_key(nonce)
    }
}

struct Bytes(usize);

impl KeyType for Bytes {
    fn len(&self) -> usize {
        self.0
    }
}

fn expand<const N: usize>(prk: &Prk, info: &[&[u8]]) -> [u8; N] {
    let mut out = [0; N];
    // HKDF-SHA256 gives up to 8,160 bytes.
    let filled = prk.expand(info, Bytes(N)).and_then(|okm| okm.fill(&mut out));
    filled.unwrap_or_else(|_| unreachable!("{N} bytes of a key"));
    out
}

/// A secret for another purpose than this one's, from which this one does not follow.
pub fn derive(secret: &[u8; 32], purpose: &str) -> [u8; 32] {
    expand(&Salt::new(HKDF_SHA256, b"remora cluster secret").extract(secret), &[purpose.as_bytes()])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ends() -> [Seal; 2] {
        [End::Caller, End::Answerer].map(|end| Seal::new(&[7; 32], end, b"caller's nonce", b"answerer's nonce"))
    }

    fn sealed(seal: &mut Seal, record: &[u8]) -> Vec<u8> {
        let mut bytes = record.to_vec();
        let tag = seal.seal(&mut bytes);
        bytes.extend_from_slice(&tag);
        bytes
    }

    /// What is done to records on their way.
    #[derive(Clone, Copy, Debug)]
    enum Meddling {
        Pass,
        Flip(usize, u8),
        Drop,
        Double,
        Cut(usize),
        TurnAround,
        Older,
        Other,
    }

    fn meddling() -> impl Strategy<Value = Meddling> {
        prop_oneof![
            6 => Just(Meddling::Pass),
            1 => (any::<usize>(), 0u8..8).prop_map(|(at, bit)| Meddling::Flip(at, bit)),
            1 => Just(Meddling::Drop),
            1 => Just(Meddling::Double),
            1 => any::<usize>().prop_map(Meddling::Cut),
            1 => Just(Meddling::TurnAround),
            1 => Just(Meddling::Older),
            1 => Just(Meddling::Other),
        ]
    }

    proptest! {
        /// Whatever is done on the way, what opens is what was sealed, each once and in order, and nothing after the first
        /// that did not.
        #[test]
        fn nothing_opens_but_what_was_sealed_in_its_order(steps in proptest::collection::vec(meddling(), 1..20)) {
            let [mut caller, mut answerer] = ends();
            let mut elsewhere = Seal::new(&[7; 32], End::Caller, b"another nonce", b"answerer's nonce");
            let (mut before, mut expected, mut intact) = (Vec::new(), 0, true);
            for (number, step) in (0u8..).zip(steps) {
                let record = vec![number; usize::from(number) + 1];
                let good = sealed(&mut caller, &record);
                before.push(good.clone());
                // What arrives, and the number of what was sealed, if it is that.
                let genuine = (good.clone(), Some(number));
                let mut arrive = match step {
                    Meddling::Pass => vec![genuine],
                    Meddling::Flip(at, bit) => {
                        let mut bad = good.clone();
                        bad[at % good.len()] ^= 1 << bit;
                        vec![(bad, None)]
                    }
                    Meddling::Drop => vec![],
                    Meddling::Double => vec![genuine.clone(), genuine],
                    Meddling::Cut(to) => vec![(good[..to % good.len()].to_vec(), None)],
                    Meddling::TurnAround => vec![(sealed(&mut answerer, &record), None)],
                    Meddling::Older => vec![(before[0].clone(), Some(0))],
                    Meddling::Other => vec![(sealed(&mut elsewhere, &record), None)],
                };
                for (bytes, number) in &mut arrive {
                    let opens = answerer.open(bytes).is_ok();
                    intact &= *number == Some(expected);
                    prop_assert_eq!(opens, intact, "{:?}", step);
                    if opens {
                        prop_assert_eq!(&bytes[..=usize::from(expected)], vec![expected; usize::from(expected) + 1]);
                        expected += 1;
                    }
                }
            }
        }
    }

    #[test]
    fn ends_with_another_secret_or_other_words_understand_nothing() {
        let [mut caller, _] = ends();
        let record = sealed(&mut caller, b"a record");
        let others: [(&[u8], &[u8], &[u8]); 4] = [
            (&[8; 32], b"caller's nonce", b"answerer's nonce"),
            (&[7; 32], b"caller's nonce ", b"answerer's nonce"),
            (&[7; 32], b"caller's nonce", b"answerer's nonc"),
            (&[7; 32], b"caller's nonc", b"eanswerer's nonce"),
        ];
        for (secret, called, answered) in others {
            let mut other = Seal::new(secret, End::Answerer, called, answered);
            assert_eq!(other.open(&mut record.clone()), Err(BadSeal));
        }
        assert!(!record.windows(4).any(|bytes| b"a record".windows(4).any(|plain| plain == bytes)));
    }

    #[test]
    fn equal_records_look_different_and_keys_are_replaced_at_both_ends_alike() {
        let [mut caller, mut answerer] = ends();
        let first = sealed(&mut caller, &[1; 64]);
        assert!(answerer.open(&mut first.clone()).is_ok());
        let second = sealed(&mut caller, &[1; 64]);
        assert_ne!(first, second);
        assert!(answerer.open(&mut second.clone()).is_ok());
        (caller.out.records, answerer.into.records) = (RECORDS - 1, RECORDS - 1);
        let then = caller.out.then;
        for _ in 0..3 {
            let mut record = sealed(&mut caller, &[1; 64]);
            assert_eq!(answerer.open(&mut record), Ok(()));
            assert_eq!(record[..64], [1; 64]);
        }
        assert_ne!(caller.out.then, then);
        assert_eq!(caller.out.records, 2);
    }

    #[test]
    fn secrets_for_other_purposes_differ() {
        let [a, b] = ["clients", "nodes"].map(|purpose| derive(&[7; 32], purpose));
        assert!(a != b && a != [7; 32] && derive(&[8; 32], "clients") != a);
    }
}
