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

/// Has the program's own code taken out of memory, as far as nobody runs it: whatever is run next comes back from the file,
/// which the system has at hand. The start runs several times as much of it as a server that waits for calls.
pub fn give_back_code() {
    #[cfg(target_os = "linux")]
    for (begin, length) in code_of_the_program().unwrap_or_default() {
        // SAFETY: the range is a mapping of the program's own file that can be read and run and not written, so that every
        // page of it is the same as in the file, and comes back from there when it is touched.
        #[expect(unsafe_code)]
        unsafe {
            libc::madvise(begin as *mut libc::c_void, length, libc::MADV_DONTNEED);
        }
    }
}

/// Where the code of the running program stands, as begin and length.
#[cfg(target_os = "linux")]
fn code_of_the_program() -> Option<Vec<(usize, usize)>> {
    let program = std::fs::read_link("/proc/self/exe").ok()?;
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let ranges = maps.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let (range, rights) = (words.next()?, words.next()?);
        let is_code = rights == "r-xp" && line.ends_with(program.to_str()?);
        let (begin, end) = range.split_once('-').filter(|_| is_code)?;
        let (begin, end) = (usize::from_str_radix(begin, 16).ok()?, usize::from_str_radix(end, 16).ok()?);
        Some((begin, end.checked_sub(begin)?))
    });
    Some(ranges.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_goes_on_after_its_code_was_given_back() {
        let ranges = code_of_the_program().unwrap();
        assert!(!ranges.is_empty() && ranges.iter().all(|(_, length)| *length > 0));
        give_back_code();
        assert_eq!(code_of_the_program().unwrap(), ranges);
    }
}
