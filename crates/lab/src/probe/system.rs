//! What the operating system takes: a system call, a switch between threads, a file brought to disk.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use remora_real::{on_core, pin};
use rustix::pipe::pipe;

use crate::stats::median;

/// Time of the cheapest system call, in nanoseconds.
pub fn syscall_ns(time: Duration) -> f64 {
    const CALLS: u32 = 256;
    on_core(0, || {
        let (start, mut times) = (Instant::now(), Vec::new());
        while times.is_empty() || start.elapsed() < time {
            let before = Instant::now();
            for _ in 0..CALLS {
                std::hint::black_box(rustix::process::getppid());
            }
            times.push(before.elapsed().as_nanos() as f64 / f64::from(CALLS));
        }
        median(times)
    })
}

/// Time from one thread's write to a pipe until the thread that slept on it, on core `core`, goes on, in nanoseconds:
/// half of a round trip. With `core` 0 both share a core and it is a context switch; with 1 it wakes the other core.
///
/// # Errors
///
/// What the pipes say.
pub fn wake_ns(core: usize, time: Duration) -> io::Result<f64> {
    const TRIPS: u32 = 16;
    let ((there_out, there_in), (back_out, back_in)) = (pipe()?, pipe()?);
    thread::scope(|scope| {
        scope.spawn(move || {
            pin(core);
            let mut byte = [0];
            // The other end's closing ends it.
            while matches!(rustix::io::read(&there_out, &mut byte), Ok(1)) {
                if rustix::io::write(&back_in, &byte).is_err() {
                    break;
                }
            }
        });
        let mut times = Vec::new();
        let result = on_core(0, || {
            let start = Instant::now();
            while times.is_empty() || start.elapsed() < time {
                let before = Instant::now();
                for _ in 0..TRIPS {
                    rustix::io::write(&there_in, &[1])?;
                    rustix::io::read(&back_out, &mut [0])?;
                }
                times.push(before.elapsed().as_nanos() as f64 / f64::from(2 * TRIPS));
            }
            Ok::<_, io::Error>(())
        });
        drop(there_in);
        result.map(|()| median(times))
    })
}

/// Time to write 4 KB to a new file in `directory` and bring it to the disk, in nanoseconds.
///
/// # Errors
///
/// What the file system says.
pub fn sync_ns(directory: &Path, time: Duration) -> io::Result<f64> {
    let path = directory.join(format!(".remora-probe-{}", std::process::id()));
    let mut file = OpenOptions::new().write(true).create_new(true).open(&path)?;
    let result = (|| {
        file.write_all(&[0; 4096])?;
        file.sync_all()?;
        let (start, mut times) = (Instant::now(), Vec::new());
        while times.len() < 3 || start.elapsed() < time {
            let before = Instant::now();
            file.write_all_at(&[times.len() as u8; 4096], 0)?;
            file.sync_data()?;
            times.push(before.elapsed().as_nanos() as f64);
        }
        Ok(median(times))
    })();
    // What could not be removed is a file of 4 KB with a name that says what it is.
    let _ = std::fs::remove_file(&path);
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_positive_and_the_file_goes() {
        let time = Duration::from_millis(1);
        let directory = tempfile::tempdir().unwrap();
        let figures = [
            syscall_ns(time),
            wake_ns(0, time).unwrap(),
            wake_ns(1, time).unwrap(),
            sync_ns(directory.path(), time).unwrap(),
        ];
        assert!(figures.iter().all(|figure| figure.is_finite() && *figure > 0.0), "{figures:?}");
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
        assert!(sync_ns(&directory.path().join("none"), time).is_err());
    }
}
