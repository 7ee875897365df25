//! What a kernel that refuses its data leaves behind: a word that commits read on the device, and the host after the step.

use std::fmt;

/// The first failure of a step; the layout is that of `dtrc_device.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// What is wrong; see [`ops::cuda::failure`].
    pub code: u32,
    /// Number of the call.
    pub call: u32,
    /// Position in the tensor that is looked at.
    pub row: i64,
    /// The element there.
    pub value: i64,
}

impl Status {
    /// Its size on the device.
    pub const BYTES: usize = 24;

    /// From the device's bytes; `None` if nothing has failed.
    pub fn read(bytes: &[u8; Status::BYTES]) -> Option<Status> {
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let long = |at: usize| i64::from(word(at)) | i64::from(word(at + 4)) << 32;
        let s = Status { code: word(0), call: word(4), row: long(8), value: long(16) };
        (s.code != 0).then_some(s)
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&ops::cuda::failure(self.code, self.row, self.value))
    }
}
