//! To whom clients and nodes of a cluster open, and who is let in. What they say then is
//! [`remora_replica::frames`].

use remora_replica::bounds::Bounds;
use remora_replica::chain::{ChainReply, ChainRequest};
use remora_replica::ddp::{Reply, Request};
use remora_replica::frames::{Answered, Asked, decode_packet, encode_packet};
use remora_replica::stream::Inbound;

use super::hello::{ClientHello, Hello, WindowHello};

/// Ports in `rdma_cm`'s TCP port space: clients call one, the other nodes another, and clients that READ the third.
pub(super) const CLIENT_PORT: u16 = 7421;
/// See [`CLIENT_PORT`].
pub(super) const PEER_PORT: u16 = 7422;
/// See [`CLIENT_PORT`].
pub(super) const WINDOW_PORT: u16 = 7423;

/// The cluster's secret: who has it belongs to it.
pub type Secret = [u8; 32];

/// Reads a secret as files have it: 64 hexadecimal digits.
pub fn parse_secret(digits: &str) -> Option<Secret> {
    let mut secret = Secret::default();
    if digits.len() != 64 || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    for (index, byte) in secret.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&digits[2 * index..2 * index + 2], 16).ok()?;
    }
    Some(secret)
}

/// The service that a node calls another by, and what it says then as far as everybody may know: for experiments with
/// those that have no secret.
#[doc(hidden)]
pub fn public_hello(node: u8) -> (u64, Vec<u8>) {
    let config = super::ClusterNodeConfig::new(node, Vec::new(), std::path::PathBuf::new(), [0; 32]);
    let hello = Hello::new(&config).map(|hello| hello.encode().to_vec()).unwrap_or_default();
    (remora_nic::cm::service_id(PEER_PORT), hello)
}

/// Reads bytes as nodes and clients read what they are sent, frame by frame; for fuzzing.
///
/// # Panics
///
/// If something that was understood, written again, is not understood as the same.
#[doc(hidden)]
pub fn fuzz(bytes: &[u8]) {
    fn again<T: PartialEq>(read: Option<&T>, write: impl Fn(&T, &mut Vec<u8>), decode: impl Fn(&[u8]) -> Option<T>) {
        let Some(read) = read else { return };
        let mut written = Vec::new();
        write(read, &mut written);
        assert!(decode(&written).as_ref() == Some(read), "read as something else the second time");
    }
    let hello = Hello::decode(bytes);
    again(hello.as_ref(), |hello, out| out.extend_from_slice(&hello.encode()), Hello::decode);
    let client = ClientHello::decode(bytes);
    again(client.as_ref(), |client, out| out.extend_from_slice(&client.encode()), ClientHello::decode);
    let window = WindowHello::decode(bytes);
    again(window.as_ref(), |window, out| out.extend_from_slice(&window.encode()), WindowHello::decode);
    let mut inbound = Inbound::new(bytes.to_vec(), Bounds::SHIPPED.client_frame);
    while let Ok(Some(frame)) = inbound.next_frame() {
        let frame = inbound.bytes(frame);
        let batch = Bounds::SHIPPED.batch;
        let asked = Asked::<Request>::decode(frame, batch).filter(|asked| !matches!(asked, Asked::TooMany(_)));
        again(asked.as_ref(), Asked::encode, |bytes| Asked::decode(bytes, batch));
        let answered = |bytes: &[u8]| Answered::<Reply>::decode(bytes, batch);
        again(answered(frame).as_ref(), Answered::encode, answered);
        let asked = |bytes: &[u8]| Asked::<ChainRequest>::decode(bytes, batch);
        again(asked(frame).as_ref(), Asked::encode, asked);
        let answered = |bytes: &[u8]| Answered::<ChainReply>::decode(bytes, batch);
        again(answered(frame).as_ref(), Answered::encode, answered);
        let packet = decode_packet(frame);
        again(packet.as_ref(), |(packet, held), out| encode_packet(packet, *held, out), decode_packet);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_bytes_are_read(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let framed = [(bytes.len() as u32).to_le_bytes().as_slice(), &bytes].concat();
            fuzz(&framed);
            fuzz(&bytes);
        }
    }
}
