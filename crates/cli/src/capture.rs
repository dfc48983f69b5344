//! `--pcap FILE`: what links carry goes into a file too.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use remora_real::link::Layers;
use remora_real::link::pcap::PcapFile;

use crate::Failure;

/// This process's capture, if one is asked for. At its end it says how many packets it has.
pub struct Capture(Option<PcapFile>);

impl Capture {
    /// Makes the file.
    pub fn open(path: Option<&Path>) -> Result<Self, Failure> {
        let file = path.map(|path| {
            PcapFile::create(path).map_err(|e| Failure::Failed(format!("cannot write {}: {e}", path.display())))
        });
        file.transpose().map(Self)
    }

    /// What the links of this process's devices have around them.
    pub fn layers(&self) -> Layers {
        Layers { pcap: self.0.clone(), ..Layers::default() }
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        if let Some(file) = &self.0 {
            // Whoever reads may have gone away.
            let _ = writeln!(io::stderr(), "remora: {}", file.finish());
        }
    }
}

/// The file of another process of the same command: `what` stands before the extension.
pub fn beside(path: &Path, what: &str) -> PathBuf {
    let mut name = path.file_stem().unwrap_or_default().to_os_string();
    name.push("-");
    name.push(what);
    if let Some(extension) = path.extension() {
        name.push(".");
        name.push(extension);
    }
    path.with_file_name(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_process_has_a_file_of_its_own() {
        assert_eq!(beside("/tmp/a.b.pcap".as_ref(), "node"), Path::new("/tmp/a.b-node.pcap"));
        assert_eq!(beside("a".as_ref(), "0-2"), Path::new("a-0-2"));
    }

    #[test]
    fn a_file_that_cannot_be_made_is_one_line() {
        let Err(Failure::Failed(why)) = Capture::open(Some("/nowhere/a.pcap".as_ref())) else {
            panic!("it cannot be made");
        };
        assert_eq!(why, "cannot write /nowhere/a.pcap: No such file or directory (os error 2)");
        assert!(Capture::open(None).is_ok_and(|capture| capture.layers().pcap.is_none()));
    }
}
