//! `--pcap FILE`: what links carry goes into a file too.

use std::io::{self, Write};
use std::path::Path;

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_cannot_be_made_is_one_line() {
        let Err(Failure::Failed(why)) = Capture::open(Some("/nowhere/a.pcap".as_ref())) else {
            panic!("it cannot be made");
        };
        assert_eq!(why, "cannot write /nowhere/a.pcap: No such file or directory (os error 2)");
        assert!(Capture::open(None).is_ok_and(|capture| capture.layers().pcap.is_none()));
    }
}
