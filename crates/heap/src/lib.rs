//! What the C library's allocator gives back to the system, and when.
//!
//! Left to itself glibc takes the size of every large block that is freed for a sign that more of that size will be wanted,
//! and keeps them all: a burst of large answers leaves the process at several times its size, for good. What ten thousand
//! connections leave behind are small blocks between others, which it gives back only when it is told to. (mimalloc was
//! measured and kept more.)

/// Blocks from this size on have a mapping of their own, which is gone when they are.
const MAPPED_FROM_BYTES: libc::c_int = 256 << 10;
/// More than this at the end of a heap is given back.
const KEPT_BYTES_MAX: libc::c_int = 1 << 20;

/// Has large blocks given back to the system as soon as they are freed. To be called before other threads are started.
pub fn give_back_large_blocks() {
    #[cfg(target_env = "gnu")]
    // SAFETY: mallopt takes two numbers and no pointer; it takes the allocator's own lock.
    #[expect(unsafe_code)]
    unsafe {
        // It refuses only what is out of range, and these are not.
        libc::mallopt(libc::M_MMAP_THRESHOLD, MAPPED_FROM_BYTES);
        libc::mallopt(libc::M_TRIM_THRESHOLD, KEPT_BYTES_MAX);
    }
}

/// Has the whole heap searched for pages that nothing is in, and gives them back. Takes some milliseconds for each hundred
/// megabytes, during which other threads may have to wait for a block.
pub fn give_back_free_pages() {
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim takes a number and no pointer; it takes the allocator's own locks.
    #[expect(unsafe_code)]
    unsafe {
        libc::malloc_trim(0);
    }
}
