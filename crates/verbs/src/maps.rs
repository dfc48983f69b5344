//! Which of the process's memory is there: a driver pins what it registers and so finds out; here the kernel is asked.

use std::io::{BufRead, BufReader};

use crate::cancel::Whole;

/// Whether every byte of the range is mapped and readable, and writable if need be. True if the kernel does not say.
pub fn allow(start: usize, len: usize, write: bool) -> bool {
    let _whole = Whole::new();
    // Not the process's: its first thread may have ended, whose list is empty then.
    let Ok(file) = std::fs::File::open("/proc/thread-self/maps") else { return true };
    let mut lines = BufReader::new(file);
    let mut line = String::with_capacity(256);
    let (mut at, end) = (start, start + len);
    loop {
        line.clear();
        match lines.read_line(&mut line) {
            Ok(0) => return false,
            Ok(_) => {}
            Err(_) => return true,
        }
        let Some((from, to, rights)) = mapping(&line) else { continue };
        if to <= at {
            continue;
        }
        // Lines ascend: the next mapping begins behind the byte that is looked for.
        if from > at || !rights.starts_with('r') || write && !rights[1..].starts_with('w') {
            return false;
        }
        at = to;
        if at >= end {
            return true;
        }
    }
}

/// Of a line such as `7f0c9c000000-7f0c9c021000 rw-p 00000000 00:00 0`: the range and the rights.
fn mapping(line: &str) -> Option<(usize, usize, &str)> {
    let (range, rest) = line.split_once(' ')?;
    let (from, to) = range.split_once('-')?;
    let rights = rest.get(..4)?;
    Some((usize::from_str_radix(from, 16).ok()?, usize::from_str_radix(to, 16).ok()?, rights))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mapped_memory_is_told_from_other() {
        let boxed = vec![0u8; 100_000];
        assert!(allow(boxed.as_ptr().addr(), boxed.len(), true));
        assert!(!allow(8, 8, false), "the first page");
        let constant: &'static str = "read only";
        assert!(allow(constant.as_ptr().addr(), constant.len(), false));
        assert!(!allow(constant.as_ptr().addr(), constant.len(), true));
        assert!(!allow(boxed.as_ptr().addr(), 1 << 46, false), "more than is there");
    }
}
