//! The bytes of a plan file.
//!
//! `DTRCPLAN`, the version (u32), the length of the body (u64), BLAKE3 of the body (32 bytes), the body (postcard); all little endian.

use crate::Plan;

/// First bytes of every plan file.
pub const MAGIC: &[u8; 8] = b"DTRCPLAN";
/// Version of the body that this crate reads and writes.
pub const VERSION: u32 = 5;
const HEADER: usize = 8 + 4 + 8 + 32;

/// A file that is no plan, or not one that can be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// Does not start like a plan.
    #[error("not a plan file: it does not start with DTRCPLAN")]
    NotAPlan,
    /// Another version.
    #[error("plan version {found}, but this dtrc reads version {VERSION}: compile the model again")]
    Version {
        /// Version in the file.
        found: u32,
    },
    /// Shorter or longer than its header says.
    #[error("the plan file has {found} bytes, its header says {expected}: it is truncated or not one file")]
    Length {
        /// Bytes that the header announces.
        expected: u64,
        /// Bytes there are.
        found: u64,
    },
    /// The checksum differs.
    #[error("the plan file is damaged: its checksum differs")]
    Checksum,
    /// The checksum is right, but the body is not a plan.
    #[error("the plan file cannot be decoded: {0}")]
    Decode(String),
}

/// A plan as bytes. Equal plans give equal bytes.
pub fn to_bytes(plan: &Plan) -> Result<Vec<u8>, WireError> {
    let body = postcard::to_stdvec(plan).map_err(|e| WireError::Decode(e.to_string()))?;
    let mut out = Vec::with_capacity(HEADER + body.len());
    out.extend_from_slice(MAGIC);
    out.extend_from_slice(&VERSION.to_le_bytes());
    out.extend_from_slice(&(body.len() as u64).to_le_bytes());
    out.extend_from_slice(blake3::hash(&body).as_bytes());
    out.extend_from_slice(&body);
    Ok(out)
}

/// A plan from bytes. It is well-formed then, but not yet valid: see [`crate::validate`].
pub fn from_bytes(bytes: &[u8]) -> Result<Plan, WireError> {
    if bytes.len() < MAGIC.len() || &bytes[..8] != MAGIC {
        return Err(WireError::NotAPlan);
    }
    if bytes.len() < HEADER {
        return Err(WireError::Length { expected: HEADER as u64, found: bytes.len() as u64 });
    }
    let (header, body) = bytes.split_at(HEADER);
    let version = u32::from_le_bytes([header[8], header[9], header[10], header[11]]);
    if version != VERSION {
        return Err(WireError::Version { found: version });
    }
    let mut length = [0; 8];
    length.copy_from_slice(&header[12..20]);
    let expected = u64::from_le_bytes(length).saturating_add(HEADER as u64);
    if expected != bytes.len() as u64 {
        return Err(WireError::Length { expected, found: bytes.len() as u64 });
    }
    if blake3::hash(body).as_bytes() != &header[20..HEADER] {
        return Err(WireError::Checksum);
    }
    let (plan, rest) = postcard::take_from_bytes(body).map_err(|e| WireError::Decode(e.to_string()))?;
    if !rest.is_empty() {
        return Err(WireError::Decode(format!("{} bytes are left over", rest.len())));
    }
    Ok(plan)
}
