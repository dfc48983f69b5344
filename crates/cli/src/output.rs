//! What goes to the screen, and what to files: text for people first, then figures for programs.

use std::fmt::Display;
use std::fs::{File, Permissions};
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use clap::builder::{PathBufValueParser, TypedValueParser};
use remora_lab::MeasuredRows;
use remora_study::format::folded;
use serde_json::Value;
use tempfile::Builder;

use crate::Failure;

/// Prints text. Whoever reads may have gone away; a full disk is a failure.
pub fn print(text: &str) -> Result<(), Failure> {
    to_stdout(text.as_bytes())
}

/// Prints bytes as they are.
pub fn to_stdout(bytes: &[u8]) -> Result<(), Failure> {
    to_reader(bytes).map(|_| ())
}

/// Prints bytes for as long as somebody reads them: false if nobody does any more.
pub fn to_reader(bytes: &[u8]) -> Result<bool, Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(e) => Err(Failure::Failed(format!("cannot write to standard output: {e}"))),
    }
}

/// Help and the like: to a terminal with colours, to anything else plain.
pub fn print_help(coloured: &str, plain: &str) -> Result<(), Failure> {
    print(if io::stdout().is_terminal() { coloured } else { plain })
}

/// Whether there were figures to write.
static WERE_THERE: AtomicBool = AtomicBool::new(false);

/// Whether there were figures to write: else a file for them is what it was.
pub fn figures_were_there() -> bool {
    WERE_THERE.load(Ordering::Relaxed)
}

/// Where figures go for programs, beside the text for people.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Json {
    /// Also write all figures as JSON; without a file, or with -, to standard output, and the text to standard error
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-", value_parser = file())]
    json: Option<PathBuf>,
}

impl Json {
    /// The file; none for standard output.
    pub fn file(&self) -> Option<&Path> {
        self.json.as_deref().filter(|_| !self.on_stdout())
    }

    /// Whether figures are wanted on standard output.
    pub fn on_stdout(&self) -> bool {
        self.json.as_deref() == Some(Path::new("-"))
    }

    /// Prints text that fits a terminal: to standard output, unless figures go there.
    pub fn print(&self, text: &str) -> Result<(), Failure> {
        let text = folded(text);
        if !self.on_stdout() {
            return print(&text);
        }
        // Nobody need read it.
        let _ = io::stderr().write_all(text.as_bytes());
        Ok(())
    }

    /// Writes the figures, if they are wanted.
    pub fn write(&self, figures: impl FnOnce() -> Value) -> Result<(), Failure> {
        WERE_THERE.store(true, Ordering::Relaxed);
        match &self.json {
            None => Ok(()),
            Some(path) => write(path, format!("{:#}\n", figures()).as_bytes()),
        }
    }

    /// Writes the figures, if they are wanted; in a line, if they go to a file.
    pub fn write_line(&self, figures: Value) -> Result<(), Failure> {
        let Some(path) = self.file() else { return self.write(|| figures) };
        WERE_THERE.store(true, Ordering::Relaxed);
        write(path, format!("{figures}\n").as_bytes())
    }

    /// The text, then the figures.
    pub fn show(&self, text: &str, figures: impl FnOnce() -> Value) -> Result<(), Failure> {
        self.print(text)?;
        self.write(figures)
    }
}

impl Json {
    /// The text and the figures of what was measured. What ended it early stands before both, and is how the command ends;
    /// `what` is what rows are, in the plural. Without any there is nothing to show.
    pub fn show_measured<R, E: Display + Into<Failure>>(
        &self,
        measured: MeasuredRows<R, E>,
        what: &str,
        text: impl FnOnce(&[R]) -> String,
        figures: impl FnOnce(&[R]) -> Value,
    ) -> Result<(), Failure> {
        let measured = measured.or_nothing().map_err(Into::into)?;
        let missing = measured.missing(what);
        let head = not_complete(missing.as_deref());
        self.show(&(head + &text(&measured.rows)), || {
            let mut figures = figures(&measured.rows);
            figures["incomplete"] = missing.into();
            figures
        })?;
        measured.cut.map_or(Ok(()), |error| Err(error.into()))
    }
}

/// Seconds since 1970.
pub fn now_unix_s() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// What stands before all else if not all is there: a paragraph, or nothing.
pub fn not_complete(missing: Option<&str>) -> String {
    missing.map_or_else(String::new, |missing| format!("Not complete: {missing}\n\n"))
}

/// A file to be written: one that cannot be there is refused before anything is measured for it.
pub fn file() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(|path| match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() && !parent.is_dir() => Err("its directory does not exist"),
        _ if path.is_dir() => Err("it is a directory"),
        _ if path != Path::new("-") && !may_write(&path) => Err("it may not be written"),
        _ => Ok(path),
    })
}

/// A directory for files, made when there are some: one that cannot be there is refused as a file is.
pub fn directory() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(|path| match path.ancestors().find(|part| part.exists()) {
        Some(part) if !part.is_dir() => Err("it is no directory"),
        _ if !may_write(&path) => Err("it may not be written"),
        _ => Ok(path),
    })
}

/// A directory that is there, for a file that is gone again in a moment.
pub fn directory_there() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(|path| match path.is_dir() {
        false => Err("it is no directory"),
        true if !may_write(&path) => Err("it may not be written"),
        true => Ok(path),
    })
}

/// Whether we may write this, or make it where it is to be.
fn may_write(path: &Path) -> bool {
    let here = Path::new(".");
    let there = path.ancestors().find(|part| part.exists()).unwrap_or(here);
    rustix::fs::access(there, rustix::fs::Access::WRITE_OK).is_ok()
}

/// Writes a file; `-` is standard output.
pub fn write(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    if path == Path::new("-") {
        return to_stdout(bytes);
    }
    written(path, bytes).map_err(|e| cannot_write(path, &e))
}

/// Whole or not at all, as a file beside it that takes its name: whatever goes wrong, what was there stays.
fn written(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let in_place = |path: &Path| File::create(path)?.write_all(bytes);
    let there = path.metadata().ok();
    // Pipes and devices have no whole. What a process has open under these is to be written there.
    if there.as_ref().is_some_and(|there| !there.is_file()) || path.starts_with("/dev") || path.starts_with("/proc") {
        return in_place(path);
    }
    // A link stays one, to a new file.
    let path = match path.canonicalize() {
        Ok(path) => path,
        Err(_) if path.is_symlink() => return in_place(path),
        Err(_) => path.to_path_buf(),
    };
    let name = path.file_name().unwrap_or_default();
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut new = match Builder::new()
        .prefix(name)
        .suffix(".part")
        .permissions(Permissions::from_mode(0o666))
        .tempfile_in(directory)
    {
        Ok(new) => new,
        // The file may be ours to write where the directory is not.
        Err(e)
            if there.is_some() && matches!(e.kind(), ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem) =>
        {
            return in_place(&path);
        }
        Err(e) => return Err(e),
    };
    if let Some(there) = &there {
        // Whose it was matters to whoever writes as root; nobody else may give files away.
        let _ = chown(new.path(), Some(there.uid()), Some(there.gid()));
        new.as_file().set_permissions(there.permissions())?;
    }
    // Only now: who may not read the one that was there may not read this one meanwhile.
    new.write_all(bytes)?;
    // Some disks tell only now that they are full.
    new.as_file().sync_all()?;
    match new.persist(&path) {
        Ok(_) => Ok(()),
        // A file that is mounted by itself keeps its place.
        Err(e) if e.error.kind() == ErrorKind::ResourceBusy => in_place(&path),
        Err(e) => Err(e.error),
    }
}

/// What to say of a file that cannot be written.
pub fn cannot_write(path: &Path, error: &io::Error) -> Failure {
    let hint = match error.kind() {
        ErrorKind::NotFound => ": its directory does not exist",
        _ => "",
    };
    Failure::Failed(format!("cannot write {}: {error}{hint}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        json: Json,
        #[arg(long)]
        other: bool,
    }

    #[test]
    fn a_file_standard_output_or_neither() {
        let of = |words: &[&str]| Line::parse_from([&["x"], words].concat());
        assert!(!of(&[]).json.on_stdout() && of(&[]).json.file().is_none());
        assert_eq!(of(&["--json", "a.json"]).json.file(), Some(Path::new("a.json")));
        for words in [&["--json", "-"][..], &["--json"], &["--json", "--other"]] {
            let line = of(words);
            assert!(line.json.on_stdout() && line.json.file().is_none() && line.other == words.contains(&"--other"));
        }
    }

    #[test]
    fn what_cannot_be_written_is_refused_before_anything_else() {
        let parse = |parser: &dyn Fn(&str) -> bool, taken: &[&str], refused: &[&str]| {
            taken.iter().for_each(|path| assert!(parser(path), "{path}"));
            refused.iter().for_each(|path| assert!(!parser(path), "{path}"));
        };
        let command = |parser| clap::Command::new("x").arg(clap::Arg::new("a").value_parser(parser));
        let place = tempfile::tempdir().expect("a directory");
        let new = place.path().join("new").display().to_string();
        // Not even root may write what the kernel alone knows.
        let known = "/proc/sys/kernel/ostype";
        let is_file =
            |path: &str| command(clap::builder::ValueParser::new(file())).try_get_matches_from(["x", path]).is_ok();
        parse(&is_file, &["-", "a.json", &new, "/dev/full"], &[known, "/nowhere/a", "/proc"]);
        let is_directory = |path: &str| {
            command(clap::builder::ValueParser::new(directory())).try_get_matches_from(["x", path]).is_ok()
        };
        parse(&is_directory, &["out", "./a/b", &new], &[known, "/dev/full/a"]);
    }

    #[test]
    fn a_file_is_replaced_as_a_whole_and_stays_what_it_was() {
        let place = tempfile::tempdir().expect("a directory");
        let [file, link, loose, pipe] = ["a.json", "link", "loose", "pipe"].map(|name| place.path().join(name));
        let text = |path: &Path| std::fs::read_to_string(path).expect("readable");
        write(&file, b"old").expect("written");
        let fresh = file.metadata().expect("there").permissions().mode();
        assert_ne!(fresh & 0o044, 0, "others read what the umask lets them: {fresh:o}");
        std::fs::set_permissions(&file, Permissions::from_mode(0o640)).expect("ours");
        std::os::unix::fs::symlink("a.json", &link).expect("a link");
        std::os::unix::fs::symlink("new.json", &loose).expect("a link to nothing");
        write(&link, b"new").expect("written");
        assert!(link.is_symlink() && text(&file) == "new");
        assert_eq!(file.metadata().expect("there").permissions().mode() & 0o777, 0o640);
        write(&loose, b"there").expect("written");
        assert!(loose.is_symlink() && text(&place.path().join("new.json")) == "there");
        // A pipe stays one, and its reader gets all.
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).expect("a pipe");
        let reader = std::thread::spawn({
            let pipe = pipe.clone();
            move || std::fs::read_to_string(pipe).expect("read")
        });
        write(&pipe, b"through").expect("written");
        assert_eq!(reader.join().expect("it ends"), "through");
        // What a descriptor leads to is written where it is.
        let open = File::open(&file).expect("there");
        let descriptor = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&open));
        write(descriptor.as_ref(), b"beside").expect("written");
        assert_eq!(io::read_to_string(open).expect("read"), "beside");
        assert_eq!(std::fs::read_dir(place.path()).expect("readable").count(), 5, "nothing is left behind");
    }

    #[test]
    fn what_cannot_be_written_says_why() {
        let Err(Failure::Failed(why)) = write("/nowhere/a".as_ref(), b"") else { panic!("it cannot be written") };
        assert!(why.contains("cannot write /nowhere/a") && why.contains("its directory does not exist"), "{why}");
        let full = Json { json: Some("/dev/full".into()) };
        assert!(full.write(|| Value::Null).is_err());
    }
}
