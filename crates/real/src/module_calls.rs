//! What the node's own calls about modules look like.

use remora_kernel::Limits;
use remora_service::MAX_REPLY;
use remora_service::control::{u32_at, u64_at};
use remora_wasm::{DeployedModule, Isolation, MAX_NAME, ModuleLimits, USER_OPS};

use crate::deployers::PROOF_LEN;

/// Parameters of [`remora_service::control::op::KERNEL_DEPLOY`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DeployParams {
    /// Where the binary module lies.
    pub key: u32,
    pub va: u64,
    pub len: u32,
    pub limits: ModuleLimits,
    pub isolation: Isolation,
    /// Deploy it again when the node starts again.
    pub keep: bool,
    /// Of the node's token.
    pub proof: Option<[u8; PROOF_LEN]>,
    pub name: String,
}

impl DeployParams {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(64 + self.name.len());
        out.extend(self.key.to_le_bytes());
        out.extend(self.va.to_le_bytes());
        out.extend(self.len.to_le_bytes());
        encode_limits(&mut out, &self.limits, self.isolation);
        out.push(self.keep.into());
        encode_proof(&mut out, self.proof);
        out.extend(self.name.as_bytes());
        out
    }

    /// What a proof is a proof for: the module and all that is said of it.
    pub fn proven<'a>(&'a self, limits: &'a [u8], module: &'a [u8]) -> [&'a [u8]; 4] {
        [b"deploy", self.name.as_bytes(), limits, module]
    }

    /// The limits and whether to keep it, as bytes.
    pub fn limits(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(LIMITS_LEN + 1);
        encode_limits(&mut out, &self.limits, self.isolation);
        out.push(self.keep.into());
        out
    }

    pub fn decode(params: &[u8]) -> Option<Self> {
        let (limits, isolation) = decode_limits(params.get(16..)?)?;
        let (proof, name) = decode_proof(params.get(17 + LIMITS_LEN..)?)?;
        Some(DeployParams {
            key: u32_at(params, 0)?,
            va: u64_at(params, 4)?,
            len: u32_at(params, 12)?,
            limits,
            isolation,
            keep: *params.get(16 + LIMITS_LEN)? != 0,
            proof,
            name: std::str::from_utf8(name).ok()?.into(),
        })
    }
}

/// Parameters of [`remora_service::control::op::KERNEL_REMOVE`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RemoveParams {
    /// Of the node's token.
    pub proof: Option<[u8; PROOF_LEN]>,
    pub name: String,
}

impl RemoveParams {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        encode_proof(&mut out, self.proof);
        out.extend(self.name.as_bytes());
        out
    }

    pub fn decode(params: &[u8]) -> Option<Self> {
        let (proof, name) = decode_proof(params)?;
        Some(RemoveParams { proof, name: std::str::from_utf8(name).ok()?.into() })
    }

    /// What a proof is a proof for.
    pub fn proven(&self) -> [&[u8]; 2] {
        [b"remove", self.name.as_bytes()]
    }
}

fn encode_proof(out: &mut Vec<u8>, proof: Option<[u8; PROOF_LEN]>) {
    out.push(proof.is_some().into());
    out.extend(proof.into_iter().flatten());
}

/// A proof, and what comes after it.
fn decode_proof(bytes: &[u8]) -> Option<(Option<[u8; PROOF_LEN]>, &[u8])> {
    match bytes.split_first()? {
        (0, rest) => Some((None, rest)),
        (_, rest) => rest.split_first_chunk().map(|(proof, rest)| (Some(*proof), rest)),
    }
}

/// Bytes of encoded limits.
pub(crate) const LIMITS_LEN: usize = 29;

pub(crate) fn encode_limits(out: &mut Vec<u8>, limits: &ModuleLimits, isolation: Isolation) {
    out.extend(limits.fuel.to_le_bytes());
    out.extend((limits.memory as u64).to_le_bytes());
    out.extend(limits.access.steps.to_le_bytes());
    out.extend(limits.access.bytes.to_le_bytes());
    out.push((isolation == Isolation::Fresh).into());
}

pub(crate) fn decode_limits(bytes: &[u8]) -> Option<(ModuleLimits, Isolation)> {
    let access = Limits { steps: u32_at(bytes, 16)?, bytes: u64_at(bytes, 20)? };
    let limits = ModuleLimits { fuel: u64_at(bytes, 0)?, memory: usize::try_from(u64_at(bytes, 8)?).ok()?, access };
    let isolation = if *bytes.get(28)? == 0 { Isolation::Reused } else { Isolation::Fresh };
    Some((limits, isolation))
}

// All modules that there may be fit into one answer.
const _: () = assert!((USER_OPS.end - USER_OPS.start) as usize * (17 + LIMITS_LEN + MAX_NAME) <= MAX_REPLY);

/// One entry of the answer to [`remora_service::control::op::KERNEL_LIST`].
pub(crate) fn encode_entry(out: &mut Vec<u8>, entry: &DeployedModule) {
    out.extend(entry.op.to_le_bytes());
    out.extend(entry.version.to_le_bytes());
    out.extend((entry.bytes as u32).to_le_bytes());
    encode_limits(out, &entry.limits, entry.isolation);
    out.push(entry.name.len() as u8);
    out.extend(entry.name.as_bytes());
}

/// All entries; `None` if they are cut short.
pub(crate) fn decode_entries(mut bytes: &[u8]) -> Option<Vec<DeployedModule>> {
    let mut entries = Vec::new();
    while !bytes.is_empty() {
        let (limits, isolation) = decode_limits(bytes.get(16..)?)?;
        let name_at = 17 + LIMITS_LEN;
        let end = name_at + usize::from(*bytes.get(name_at - 1)?);
        entries.push(DeployedModule {
            op: u64_at(bytes, 0)?,
            version: u32_at(bytes, 8)?,
            bytes: u32_at(bytes, 12)? as usize,
            limits,
            isolation,
            name: std::str::from_utf8(bytes.get(name_at..end)?).ok()?.into(),
        });
        bytes = &bytes[end..];
    }
    Some(entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deployments_and_lists_are_read_as_written() {
        let limits = ModuleLimits { fuel: 5, memory: 1 << 20, access: Limits { steps: 7, bytes: 1 << 40 } };
        let deploy = DeployParams {
            key: 9,
            va: 1 << 50,
            len: 77,
            limits,
            isolation: Isolation::Fresh,
            keep: true,
            proof: None,
            name: "top-k".into(),
        };
        for proof in [None, Some([7; PROOF_LEN])] {
            let deploy = DeployParams { proof, ..deploy.clone() };
            let bytes = deploy.encode();
            assert_eq!(DeployParams::decode(&bytes), Some(deploy));
            assert_eq!(DeployParams::decode(&bytes[..40]), None);
            let remove = RemoveParams { proof, name: "top-k".into() };
            assert_eq!(RemoveParams::decode(&remove.encode()), Some(remove));
        }
        assert_eq!(RemoveParams::decode(&[1; 9]), None);

        let entry = |name: &str| DeployedModule {
            op: 0x100,
            name: name.into(),
            version: 3,
            bytes: 4096,
            limits,
            isolation: Isolation::Reused,
        };
        let mut bytes = Vec::new();
        encode_entry(&mut bytes, &entry("a"));
        encode_entry(&mut bytes, &entry("bb"));
        assert_eq!(decode_entries(&bytes), Some(vec![entry("a"), entry("bb")]));
        assert_eq!(decode_entries(&bytes[..bytes.len() - 1]), None);
    }
}
