//! What one durable append takes: the limit of every store that makes writes durable one by one.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use super::PeerError;

/// Zeros that are written ahead.
const ROOM: usize = 8 << 20;

/// Appends `bytes` to a new file of `directory` again and again and makes each durable by fdatasync. The file has room
/// made ahead, as a log's has: appends that make it longer wait for the file system's journal too, sometimes twenty
/// times as long. Nanoseconds each, in order; as many as there are when somebody says to stop.
pub fn appends(directory: &Path, bytes: usize, time: Duration, stop: &dyn Fn() -> bool) -> Result<Vec<u64>, PeerError> {
    let path = directory.join("appends");
    let failed = |error| PeerError::File { path: path.clone(), error };
    let mut file = OpenOptions::new().write(true).create_new(true).open(&path).map_err(failed)?;
    let room = ROOM.max(bytes);
    file.write_all(&vec![0; room]).and_then(|()| file.sync_all()).map_err(failed)?;
    let (block, mut times, begin) = (vec![0x5a; bytes], Vec::new(), Instant::now());
    let mut at = 0;
    while begin.elapsed() < time && !stop() || times.len() < 3 {
        at = if at + bytes > room { 0 } else { at };
        let start = Instant::now();
        file.write_all_at(&block, at as u64).and_then(|()| file.sync_data()).map_err(failed)?;
        times.push(start.elapsed().as_nanos() as u64);
        at += bytes;
    }
    drop(file);
    std::fs::remove_file(&path).map_err(failed)?;
    times.sort_unstable();
    Ok(times)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn appends_are_timed_and_leave_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let times = appends(directory.path(), 100, Duration::ZERO, &|| false).unwrap();
        let stopped = appends(directory.path(), 100, Duration::from_hours(1), &|| true).unwrap();
        assert_eq!(stopped.len(), 3);
        assert!(times.len() == 3 && times.is_sorted());
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
        assert!(appends(Path::new("/nonexistent"), 1, Duration::ZERO, &|| false).is_err());
    }
}
