//! Programs of the system as child processes, on ports of this machine that are free.

use std::fs::{self, File};
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::{Duration, Instant};

use remora_lab::bound;
use rustix::process::{Pid, Signal, kill_process};

use super::PeerError;

/// How long a process may take to end in order.
const END: Duration = Duration::from_secs(5);
/// Characters of a process's last words that an error tells.
const LAST_WORDS: usize = 300;

/// `N` TCP ports of the loopback interface that nobody listens at.
pub fn free_ports<const N: usize>() -> io::Result<[u16; N]> {
    let mut listeners = Vec::with_capacity(N);
    let mut ports = [0; N];
    for port in &mut ports {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        *port = listener.local_addr()?.port();
        listeners.push(listener);
    }
    Ok(ports)
}

/// A process that ends with this value.
pub struct Process {
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts `program` in `directory`, where its output goes to a file.
    pub fn start(program: &Path, arguments: &[String], directory: &Path) -> Result<Self, PeerError> {
        let failed = |error| PeerError::Start { program: program.into(), error };
        fs::create_dir_all(directory).map_err(failed)?;
        let log = directory.join("output");
        let output = File::create(&log).map_err(failed)?;
        let child = bound(program)
            .args(arguments)
            .current_dir(directory)
            // No setting but those of the command line.
            .env_clear()
            .stdout(output.try_clone().map_err(failed)?)
            .stderr(output)
            .spawn()
            .map_err(failed)?;
        Ok(Self { child, log })
    }

    /// What it said last of an error, or just last.
    pub fn last_words(&self) -> String {
        let output = fs::read(&self.log).unwrap_or_default();
        let output = String::from_utf8_lossy(&output);
        let lines = || output.lines().map(str::trim).filter(|line| !line.is_empty()).rev();
        let error = |line: &&str| ["rror", "panic", "atal"].iter().any(|word| line.contains(word));
        let line = lines().find(error).or_else(|| lines().next()).unwrap_or("it says nothing");
        line.chars().take(LAST_WORDS).collect()
    }

    /// Has it ended?
    pub fn ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // If it is gone by now, all the better.
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        let end = Instant::now() + END;
        while !self.ended() {
            if Instant::now() > end {
                let _ = self.child.kill();
                let _ = self.child.wait();
                return;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// Tries until it comes to something, one of the processes ends, or `after` has passed.
pub fn until_up<T>(
    what: &'static str,
    processes: &mut [Process],
    after: Duration,
    mut attempt: impl FnMut() -> Option<T>,
) -> Result<T, PeerError> {
    let begin = Instant::now();
    loop {
        if let Some(up) = attempt() {
            return Ok(up);
        }
        let gone = processes.iter_mut().position(Process::ended);
        if gone.is_some() || begin.elapsed() > after {
            let log = processes.get(gone.unwrap_or(0)).map(Process::last_words).unwrap_or_default();
            return Err(PeerError::NotUp { what, after: begin.elapsed(), log });
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use remora_lab::installed;

    #[test]
    fn a_process_ends_with_its_value_and_leaves_its_words() {
        let directory = tempfile::tempdir().unwrap();
        let shell = installed("sh").expect("a shell is everywhere");
        let arguments = ["-c".to_string(), "echo here I am; sleep 60".to_string()];
        let mut process = Process::start(&shell, &arguments, directory.path()).unwrap();
        while process.last_words() != "here I am" {
            assert!(!process.ended());
        }
        let id = process.child.id();
        drop(process);
        assert!(!std::path::Path::new(&format!("/proc/{id}")).exists(), "it has ended, and was waited for");
    }

    #[test]
    fn a_process_that_ends_is_not_waited_for() {
        let directory = tempfile::tempdir().unwrap();
        let shell = installed("sh").expect("a shell is everywhere");
        let arguments = ["-c".to_string(), "echo error: no such option; echo bye; exit 2".to_string()];
        let mut processes = [Process::start(&shell, &arguments, directory.path()).unwrap()];
        let error = until_up("it", &mut processes, Duration::from_secs(600), || None::<()>).unwrap_err();
        assert!(error.to_string().contains("no such option"), "{error}");
    }
}
