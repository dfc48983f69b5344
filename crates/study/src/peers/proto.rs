//! The few protocol buffers of etcd's interface that are needed here, and how gRPC frames them.
//!
//! Sources: the encoding of protocol buffers (developer documentation); etcd's `rpc.proto` and `kv.proto`, version 3.4;
//! the gRPC over HTTP/2 protocol (length-prefixed messages).

/// Bytes before each message: whether it is compressed, and its length.
const PREFIX: usize = 5;

/// These bytes are no such message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bad;

/// `PutRequest` (fields: 1 key, 2 value), framed.
pub fn put_request(key: &[u8], value: &[u8]) -> Vec<u8> {
    framed(16 + key.len() + value.len(), |out| {
        bytes_field(out, 1, key);
        bytes_field(out, 2, value);
    })
}

/// `RangeRequest` of one key (field 1), framed. It is linearizable, as field 7 is not set.
pub fn range_request(key: &[u8]) -> Vec<u8> {
    framed(8 + key.len(), |out| bytes_field(out, 1, key))
}

/// `TxnRequest` without conditions, framed: a `RequestOp` (field 2) for each, which has a `RangeRequest` (1) or a
/// `PutRequest` (2); they are done in their order.
pub fn txn_request<'a>(
    reads: impl Iterator<Item = [u8; 8]>,
    writes: impl Iterator<Item = ([u8; 8], &'a [u8])>,
) -> Vec<u8> {
    framed(256, |out| {
        let mut op = |number: u8, request: Vec<u8>| {
            let mut inner = Vec::with_capacity(request.len() + 8);
            bytes_field(&mut inner, number, &request[PREFIX..]);
            bytes_field(out, 2, &inner);
        };
        reads.for_each(|key| op(1, range_request(&key)));
        writes.for_each(|(key, value)| op(2, put_request(&key, value)));
    })
}

/// What a transaction read, and how many puts it did.
pub type Transacted<'a> = (Vec<Option<&'a [u8]>>, usize);

/// What the ranges of a `TxnResponse` read (fields: 2 succeeded, 3 `ResponseOp`s, which have a `RangeResponse` (1) or a
/// `PutResponse` (2)), and how many puts it has; `None` if it did not succeed.
pub fn txn_response(message: &[u8]) -> Result<Option<Transacted<'_>>, Bad> {
    if last(message, 2)?.map(Field::number).transpose()? != Some(1) {
        return Ok(None);
    }
    let (mut read, mut puts) = (Vec::new(), 0);
    each(message, 3, |op| {
        match last(op.bytes()?, 1)? {
            Some(range) => read.push(range_response(range.bytes()?)?),
            None => puts += 1,
        }
        Ok(())
    })?;
    Ok(Some((read, puts)))
}

/// `StatusRequest`, framed: it has no fields.
pub fn status_request() -> Vec<u8> {
    framed(0, |_| {})
}

/// The value in a `RangeResponse` (fields: 2 kvs, of which each has 5 value), if there is one. An empty value is not
/// sent, so a record without the field has an empty one.
pub fn range_response(message: &[u8]) -> Result<Option<&[u8]>, Bad> {
    let Some(record) = last(message, 2)?.map(Field::bytes).transpose()? else { return Ok(None) };
    Ok(Some(last(record, 5)?.map_or(Ok(&[][..]), Field::bytes)?))
}

/// Whether a `PutResponse` has its header (field 1).
pub fn put_response(message: &[u8]) -> Result<bool, Bad> {
    Ok(last(message, 1)?.is_some())
}

/// Whether the member that a `StatusResponse` comes from (fields: 1 header, of which 2 is the member; 4 leader) leads.
pub fn leads(message: &[u8]) -> Result<bool, Bad> {
    let Some(header) = last(message, 1)?.map(Field::bytes).transpose()? else { return Ok(false) };
    let member = last(header, 2)?.map(Field::number).transpose()?;
    let leader = last(message, 4)?.map(Field::number).transpose()?;
    Ok(member.is_some() && member == leader)
}

/// The message in a gRPC frame, all of whose bytes are these.
pub fn unframed(frame: &[u8]) -> Result<&[u8], Bad> {
    let (prefix, message) = frame.split_first_chunk::<PREFIX>().ok_or(Bad)?;
    let [compressed, length @ ..] = *prefix;
    let whole = compressed == 0 && u32::from_be_bytes(length) as usize == message.len();
    whole.then_some(message).ok_or(Bad)
}

fn framed(room: usize, message: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::with_capacity(PREFIX + room);
    out.extend_from_slice(&[0; PREFIX]);
    message(&mut out);
    let length = (out.len() - PREFIX) as u32;
    out[1..PREFIX].copy_from_slice(&length.to_be_bytes());
    out
}

/// A field of bytes; an empty one is not sent.
fn bytes_field(out: &mut Vec<u8>, number: u8, bytes: &[u8]) {
    if !bytes.is_empty() {
        out.push(number << 3 | 2);
        varint(out, bytes.len() as u64);
        out.extend_from_slice(bytes);
    }
}

fn varint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// What a field holds.
#[derive(Clone, Copy, Debug)]
enum Field<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

impl<'a> Field<'a> {
    fn number(self) -> Result<u64, Bad> {
        if let Self::Number(number) = self { Ok(number) } else { Err(Bad) }
    }

    fn bytes(self) -> Result<&'a [u8], Bad> {
        if let Self::Bytes(bytes) = self { Ok(bytes) } else { Err(Bad) }
    }
}

/// The last field of this number: where one may not be repeated, the last counts. The whole message is read.
fn last(message: &[u8], wanted: u64) -> Result<Option<Field<'_>>, Bad> {
    let mut found = None;
    each(message, wanted, |field| {
        found = Some(field);
        Ok(())
    })?;
    Ok(found)
}

/// Calls `take_field` with each field of this number. The whole message is read.
fn each<'a>(
    mut message: &'a [u8],
    wanted: u64,
    mut take_field: impl FnMut(Field<'a>) -> Result<(), Bad>,
) -> Result<(), Bad> {
    while !message.is_empty() {
        let tag = take_varint(&mut message)?;
        let field = match tag & 7 {
            0 => Field::Number(take_varint(&mut message)?),
            1 => Field::Bytes(take(&mut message, 8)?),
            2 => {
                let length = take_varint(&mut message)?;
                Field::Bytes(take(&mut message, usize::try_from(length).map_err(|_| Bad)?)?)
            }
            5 => Field::Bytes(take(&mut message, 4)?),
            _ => return Err(Bad),
        };
        if tag >> 3 == wanted {
            take_field(field)?;
        }
    }
    Ok(())
}

fn take<'a>(message: &mut &'a [u8], length: usize) -> Result<&'a [u8], Bad> {
    let (bytes, rest) = message.split_at_checked(length).ok_or(Bad)?;
    *message = rest;
    Ok(bytes)
}

fn take_varint(message: &mut &[u8]) -> Result<u64, Bad> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let byte = take(message, 1)?[0];
        number |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Ok(number);
        }
    }
    Err(Bad)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_as_the_specification_has_them() {
        assert_eq!(put_request(b"ab", b"c"), b"\0\0\0\0\x07\x0a\x02ab\x12\x01c");
        assert_eq!(range_request(b"key"), b"\0\0\0\0\x05\x0a\x03key");
        assert_eq!(status_request(), [0; 5]);
        let txn = txn_request([[b'k'; 8]].into_iter(), [([b'l'; 8], &b"v"[..])].into_iter());
        let ops = *b"\x12\x0c\x0a\x0a\x0a\x08kkkkkkkk\x12\x0f\x12\x0d\x0a\x08llllllll\x12\x01v";
        assert_eq!(txn[..PREFIX], [0, 0, 0, 0, ops.len() as u8]);
        assert_eq!(txn[PREFIX..], ops);
        let long = put_request(b"k", &[7; 300]);
        assert_eq!(long[..11], *b"\0\0\0\x01\x32\x0a\x01k\x12\xac\x02", "300 is the varint ac 02");
        assert_eq!(long.len(), 5 + 3 + 3 + 300);
    }

    #[test]
    fn responses_are_read_whatever_else_is_in_them() {
        // A header with revision 5; one record with key, revisions, version and value; a count.
        let range = b"\x0a\x02\x18\x05\x12\x0d\x0a\x01k\x10\x02\x18\x03\x20\x01\x2a\x02hi\x20\x01";
        assert_eq!(range_response(range), Ok(Some(&b"hi"[..])));
        assert_eq!(range_response(b"\x0a\x02\x18\x05"), Ok(None), "no record");
        assert_eq!(range_response(b"\x12\x03\x0a\x01k"), Ok(Some(&b""[..])), "an empty value");
        // It succeeded; a range with a record, one without, a put.
        let txn = b"\x0a\x02\x18\x05\x10\x01\x1a\x08\x0a\x06\x12\x04\x2a\x02hi\x1a\x06\x0a\x04\x0a\x02\x18\x05\x1a\x04\x12\x02\x0a\x00";
        assert_eq!(txn_response(txn), Ok(Some((vec![Some(&b"hi"[..]), None], 1))));
        assert_eq!(txn_response(b"\x0a\x02\x18\x05"), Ok(None), "it did not");
        assert_eq!(put_response(b"\x0a\x02\x18\x05"), Ok(true));
        assert_eq!(put_response(b""), Ok(false));
        // Member 300 in the header, a version, then the leader.
        assert_eq!(leads(b"\x0a\x03\x10\xac\x02\x12\x013\x20\xac\x02"), Ok(true));
        assert_eq!(leads(b"\x0a\x03\x10\xac\x02\x20\x07"), Ok(false));
        assert_eq!(leads(b"\x0a\x03\x10\xac\x02"), Ok(false), "nobody leads");
    }

    #[test]
    fn what_is_no_message_is_refused() {
        for bytes in
            [&b"\x0a\x05hi"[..], b"\x0a", b"\x0b", b"\x10\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", b"\x09abc"]
        {
            assert_eq!(put_response(bytes), Err(Bad), "{bytes:?}");
        }
        assert_eq!(range_response(b"\x10\x01"), Err(Bad), "a number where a record should be");
    }

    #[test]
    fn frames_come_whole() {
        assert_eq!(unframed(b"\0\0\0\0\x02hi"), Ok(&b"hi"[..]));
        assert_eq!(unframed(b"\0\0\0\0\0"), Ok(&b""[..]));
        for bytes in [&b"\0\0\0\0"[..], b"\0\0\0\0\x02h", b"\0\0\0\0\x02hi!", b"\x01\0\0\0\x02hi"] {
            assert_eq!(unframed(bytes), Err(Bad), "{bytes:?}");
        }
    }
}
