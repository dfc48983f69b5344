//! Parameters of a user's kernel as the command line writes them.

use remora_study::kernel_calls::KernelData;

use std::str::FromStr;

/// One piece of the parameters; numbers are little-endian.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// These bytes.
    Bytes(Vec<u8>),
    /// The key of the region that holds the data, u32.
    Key,
    /// The data's address plus so much, u64.
    Address(u64),
    /// The data's length, u64.
    Length,
    /// A random number below this, u64; another one for each call.
    Random(u64),
}

/// How `--args` is written, for `--help`.
pub const HELP: &str = "\
Parameters are a list such as key,u32:10,va,u64:1000; numbers are little-endian:
  u8:N u16:N u32:N u64:N i64:N f64:X   a number        hex:00ff   bytes        text:abc   bytes of a text
  key        the data's key, u32       va or va+N      the data's address plus N, u64
  len        the data's length, u64    random:N        a number below N, u64, another one for each call";

impl FromStr for Piece {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = |why: &str| format!("{text:?} in the kernel's parameters: {why}");
        let forms = "give key, len, va, va+N, or one of u8: u16: u32: u64: i64: f64: text: hex: random: and a value";
        if let Some(rest) = text.strip_prefix("va") {
            let offset = match rest.strip_prefix('+') {
                Some(offset) => offset.parse().map_err(|_| bad("a number must follow va+"))?,
                None if rest.is_empty() => 0,
                None => return Err(bad(forms)),
            };
            return Ok(Piece::Address(offset));
        }
        match text {
            "key" => return Ok(Piece::Key),
            "len" => return Ok(Piece::Length),
            _ => {}
        }
        let (kind, value) = text.split_once(':').ok_or_else(|| bad(forms))?;
        let number = |bits: u32| {
            let value = match value.strip_prefix("0x") {
                Some(hex) => u64::from_str_radix(hex, 16),
                None => value.parse(),
            };
            value
                .ok()
                .filter(|&value| bits == 64 || value >> bits == 0)
                .ok_or_else(|| bad(&format!("not a number of {bits} bits")))
        };
        Ok(Piece::Bytes(match kind {
            "u8" => vec![number(8)? as u8],
            "u16" => (number(16)? as u16).to_le_bytes().into(),
            "u32" => (number(32)? as u32).to_le_bytes().into(),
            "u64" => number(64)?.to_le_bytes().into(),
            "i64" => value.parse::<i64>().map_err(|_| bad("not a number of 64 bits"))?.to_le_bytes().into(),
            "f64" => value.parse::<f64>().map_err(|_| bad("not a number"))?.to_le_bytes().into(),
            "text" => value.as_bytes().into(),
            "hex" => hex(value).ok_or_else(|| bad("not pairs of hexadecimal digits"))?,
            "random" => match number(64)? {
                0 => return Err(bad("no number is below 0")),
                below => return Ok(Piece::Random(below)),
            },
            _ => return Err(bad(forms)),
        }))
    }
}

fn hex(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes();
    let pairs = digits.len().is_multiple_of(2).then(|| digits.chunks(2))?;
    pairs.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()).collect()
}

/// The parameters of call number `call`: the same ones for the same number.
pub fn encode(pieces: &[Piece], place: KernelData, call: u64, out: &mut Vec<u8>) {
    for (at, piece) in pieces.iter().enumerate() {
        match piece {
            Piece::Bytes(bytes) => out.extend_from_slice(bytes),
            Piece::Key => out.extend_from_slice(&place.key.to_le_bytes()),
            Piece::Address(offset) => out.extend_from_slice(&place.va.wrapping_add(*offset).to_le_bytes()),
            Piece::Length => out.extend_from_slice(&place.len.to_le_bytes()),
            Piece::Random(below) => {
                let random = remora_kernel::shuffle::hash(call.wrapping_mul(61) + at as u64 + 1);
                let scaled = (u128::from(random) * u128::from(*below)) >> 64;
                out.extend_from_slice(&(scaled as u64).to_le_bytes());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(text: &str, call: u64) -> Result<Vec<u8>, String> {
        let pieces = text.split(',').map(str::parse).collect::<Result<Vec<Piece>, _>>()?;
        let mut out = Vec::new();
        encode(&pieces, KernelData { key: 7, va: 0x1000, len: 64 }, call, &mut out);
        Ok(out)
    }

    #[test]
    fn pieces_are_bytes() {
        assert_eq!(bytes("u8:1,u16:0x203,u32:4", 0).unwrap(), [1, 3, 2, 4, 0, 0, 0]);
        assert_eq!(
            bytes("key,va+8,len", 0).unwrap(),
            [&7u32.to_le_bytes()[..], &0x1008u64.to_le_bytes(), &64u64.to_le_bytes()].concat()
        );
        assert_eq!(bytes("i64:-1", 0).unwrap(), [0xff; 8]);
        assert_eq!(bytes("hex:00fF,text:ab", 0).unwrap(), [0, 255, b'a', b'b']);
        assert_eq!(bytes("f64:1.5", 0).unwrap(), 1.5f64.to_le_bytes());
        let random = |call| u64::from_le_bytes(bytes("random:10", call).unwrap().try_into().unwrap());
        assert!((0..100).map(random).all(|number| number < 10));
        assert!((0..100).any(|call| random(call) != random(call + 1)) && random(5) == random(5));
    }

    #[test]
    fn nonsense_is_named() {
        for text in ["u8:256", "u32:x", "hex:0", "hex:zz", "what:1", "key:1", "va-1", "random:0", "u64", ""] {
            let why = bytes(text, 0).unwrap_err();
            assert!(why.contains(&format!("{text:?}")), "{why}");
            assert!(!["what:1", "va-1", "u64"].contains(&text) || why.contains("va+N, or one of u8: u16:"), "{why}");
        }
    }
}
