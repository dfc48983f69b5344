//! RESP2, what Redis speaks: commands as arrays of bulk strings, and the replies to them.
//!
//! Source: the Redis serialization protocol specification, version 2.

/// A reply; of an array its beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RespReply<'a> {
    /// `+OK`
    Simple(&'a [u8]),
    /// `-ERR what is wrong`
    Error(&'a [u8]),
    /// `:1`
    Integer(i64),
    /// `$3`, or `$-1` for none.
    Bulk(Option<&'a [u8]>),
    /// `*2`: so many replies follow, or `None` at all.
    Array(Option<usize>),
}

/// Longest bulk string that is believed (the server's own limit).
const LONGEST: usize = 512 << 20;

/// These bytes are no reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bad;

/// Appends a command.
pub fn command(out: &mut Vec<u8>, words: &[&[u8]]) {
    line(out, b'*', words.len());
    for word in words {
        line(out, b'$', word.len());
        out.extend_from_slice(word);
        out.extend_from_slice(b"\r\n");
    }
}

fn line(out: &mut Vec<u8>, kind: u8, number: usize) {
    out.push(kind);
    out.extend_from_slice(number.to_string().as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// The reply at the front and its length; `None` if there is not all of it yet.
pub fn reply(bytes: &[u8]) -> Result<Option<(RespReply<'_>, usize)>, Bad> {
    let Some(end) = bytes.windows(2).position(|pair| pair == b"\r\n") else { return Ok(None) };
    let Some((kind, text)) = bytes[..end].split_first() else { return Err(Bad) };
    let number = || std::str::from_utf8(text).ok().and_then(|text| text.parse::<i64>().ok()).ok_or(Bad);
    let next = end + 2;
    let reply = match kind {
        b'+' => RespReply::Simple(text),
        b'-' => RespReply::Error(text),
        b':' => RespReply::Integer(number()?),
        b'*' if number()? == -1 => RespReply::Array(None),
        b'*' => RespReply::Array(Some(usize::try_from(number()?).map_err(|_| Bad)?)),
        b'$' if number()? == -1 => RespReply::Bulk(None),
        b'$' => {
            let length = usize::try_from(number()?).ok().filter(|&length| length <= LONGEST).ok_or(Bad)?;
            let Some(content) = bytes.get(next..next + length + 2) else { return Ok(None) };
            let (content, ending) = content.split_at(length);
            if ending != b"\r\n" {
                return Err(Bad);
            }
            return Ok(Some((RespReply::Bulk(Some(content)), next + length + 2)));
        }
        _ => return Err(Bad),
    };
    Ok(Some((reply, next)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_arrays_of_bulk_strings() {
        let mut out = Vec::new();
        command(&mut out, &[b"SET", b"a\r\n", b""]);
        assert_eq!(out, b"*3\r\n$3\r\nSET\r\n$3\r\na\r\n\r\n$0\r\n\r\n");
    }

    #[test]
    fn replies_come_whole_or_not_at_all() {
        let all: [(&[u8], RespReply<'_>); 7] = [
            (b"+OK\r\n", RespReply::Simple(b"OK")),
            (b"-ERR no\r\n", RespReply::Error(b"ERR no")),
            (b":2\r\n", RespReply::Integer(2)),
            (b":-7\r\n", RespReply::Integer(-7)),
            (b"$-1\r\n", RespReply::Bulk(None)),
            (b"$0\r\n\r\n", RespReply::Bulk(Some(b""))),
            (b"$4\r\na\r\nb\r\n", RespReply::Bulk(Some(b"a\r\nb"))),
        ];
        for (bytes, expected) in all {
            assert_eq!(reply(bytes), Ok(Some((expected, bytes.len()))));
            for cut in 0..bytes.len() {
                assert_eq!(reply(&bytes[..cut]), Ok(None), "{cut} bytes of {expected:?}");
            }
            let followed = [bytes, b"+more\r\n"].concat();
            assert_eq!(reply(&followed), Ok(Some((expected, bytes.len()))));
        }
    }

    #[test]
    fn what_is_no_reply_is_refused() {
        for bytes in [&b"\r\n"[..], b"?\r\n", b":x\r\n", b"$-2\r\n", b"$1\r\nabc", b"$99999999999999\r\n", b"*x\r\n"] {
            assert_eq!(reply(bytes), Err(Bad), "{bytes:?}");
        }
    }
}
