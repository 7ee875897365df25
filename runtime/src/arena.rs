//! The one allocation that a session makes.

use crate::RuntimeError;
use ops::cpu::Buffer;

/// Anonymous memory, page aligned, zero at first, given back whole.
pub(crate) struct Arena {
    base: *mut u8,
    bytes: usize,
}

// SAFETY: the arena is plain memory; access is governed by the session that owns it.
unsafe impl Send for Arena {}
// SAFETY: as above; shared access only hands out addresses.
unsafe impl Sync for Arena {}

impl Arena {
    pub(crate) fn new(bytes: u64) -> Result<Arena, RuntimeError> {
        let refuse = |error| RuntimeError::Allocate { bytes, error };
        let len = usize::try_from(bytes.max(1))
            .map_err(|_| refuse(std::io::Error::from(std::io::ErrorKind::OutOfMemory)))?;
        // SAFETY: a fresh private anonymous mapping; the result is checked.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(refuse(std::io::Error::last_os_error()));
        }
        #[cfg(target_os = "linux")]
        // SAFETY: advice on the mapping just made; failure only costs speed.
        unsafe {
            libc::madvise(base, len, libc::MADV_HUGEPAGE);
        }
        Ok(Arena { base: base.cast(), bytes: len })
    }

    /// Bytes of the whole.
    pub(crate) fn bytes_in_all(&self) -> u64 {
        self.bytes as u64
    }

    /// The part `[offset, offset + len)`.
    ///
    /// # Panics
    ///
    /// If it reaches beyond the arena: plans are validated before.
    pub(crate) fn buffer(&self, offset: u64, len: u64) -> Buffer {
        let (offset, len) = (offset as usize, len as usize);
        assert!(offset.checked_add(len).is_some_and(|e| e <= self.bytes), "a tensor outside of the arena");
        // SAFETY: inside the mapping, checked above.
        Buffer { ptr: unsafe { self.base.add(offset) }, len }
    }

    /// The part as bytes.
    pub(crate) fn bytes(&self, offset: u64, len: u64) -> &[u8] {
        let b = self.buffer(offset, len);
        // SAFETY: initialised (zero pages) and inside the mapping; no kernel runs while the session lends it.
        unsafe { std::slice::from_raw_parts(b.ptr, b.len) }
    }

    /// The part as bytes, to write.
    pub(crate) fn bytes_mut(&mut self, offset: u64, len: u64) -> &mut [u8] {
        let b = self.buffer(offset, len);
        // SAFETY: inside the mapping; exclusive through `&mut self`.
        unsafe { std::slice::from_raw_parts_mut(b.ptr, b.len) }
    }
}

impl Arena {
    /// Gives whole pages between bytes `from` and `to` back to the system; they are zero when they are touched again.
    pub(crate) fn release(&mut self, from: u64, to: u64) -> Result<(), RuntimeError> {
        // SAFETY: asks for a constant of the system.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        let page = usize::try_from(page).unwrap_or(0).max(1);
        let from = usize::try_from(from).unwrap_or(usize::MAX).checked_next_multiple_of(page);
        // The last page of the mapping is whole, whatever the arena has of it.
        let to = usize::try_from(to).unwrap_or(usize::MAX);
        let to = if to < self.bytes { to - to % page } else { self.bytes };
        let Some(from) = from.filter(|f| *f < to) else { return Ok(()) };
        // SAFETY: within the mapping and page aligned; `&mut self` says that nobody reads there.
        let done = unsafe { libc::madvise(self.base.add(from).cast(), to - from, libc::MADV_DONTNEED) };
        if done != 0 {
            let error = std::io::Error::last_os_error();
            return Err(RuntimeError::Allocate { bytes: (to - from) as u64, error });
        }
        Ok(())
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `new`, unmapped once.
        unsafe { libc::munmap(self.base.cast(), self.bytes) };
    }
}
