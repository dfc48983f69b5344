//! Whether the dynamic linker will put the verbs library before a program, and which one: it does so for dynamically linked
//! programs of this machine's architecture, unless they run with more rights than their user has.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Scripts name a program, which may be a script again: kernels follow four, each perhaps by way of `env`.
const STEPS: usize = 8;
/// Of an ELF file: this many bytes of headers are looked at. Linkers put the program headers right behind the file's.
const HEADERS: u64 = 4096;
/// Program header: the path of the dynamic linker.
const PT_INTERP: u32 = 3;

/// A C library. A dynamic linker loads libraries that were built for its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CLibrary {
    Glibc,
    Musl,
}

impl CLibrary {
    /// That of a dynamic linker.
    fn of(linker: &[u8]) -> Self {
        if linker.windows(7).any(|part| part == b"ld-musl") { Self::Musl } else { Self::Glibc }
    }
}

/// What a file is that may be run.
enum Executable {
    /// It names this program, with these words behind it.
    Script(PathBuf, Vec<OsString>),
    /// It can run itself, with this C library if that is known.
    Program(Option<CLibrary>),
}

/// Finds the program of a command as execvp(3) does, and says what its C library is, if that can be known. An error says why
/// it cannot run on Remora, in a line.
pub fn check(command: &[OsString]) -> Result<Option<CLibrary>, String> {
    let Some((name, rest)) = command.split_first() else { return Ok(None) };
    let (mut path, mut words) = (find(name)?, rest.to_vec());
    for _ in 0..STEPS {
        match look(&path)? {
            Executable::Script(program, line) => (path, words) = (program, line),
            Executable::Program(library) if path.file_name() == Some(OsStr::new("env")) => {
                // What env does not find, or finds elsewhere, it says itself.
                match named_by_env(&words).and_then(|at| Some((find(&words[at]).ok()?, at))) {
                    Some((program, at)) => (path, words) = (program, words.split_off(at + 1)),
                    None => return Ok(library),
                }
            }
            Executable::Program(library) => return Ok(library),
        }
    }
    Ok(None)
}

/// Which of `env`'s words is the program. `None` if there is none, or options stand before it that take words.
fn named_by_env(words: &[OsString]) -> Option<usize> {
    let program = words.iter().position(|word| {
        let word = word.as_bytes();
        !matches!(word, b"-i" | b"-S" | b"-") && !word.contains(&b'=')
    })?;
    (!words[program].as_bytes().starts_with(b"-")).then_some(program)
}

/// Whether that error is of a program that cannot be run at all.
pub fn is_missing(why: &str) -> bool {
    why.starts_with(NOT_THERE)
}

/// Beginning of such errors.
const NOT_THERE: &str = "cannot run ";

fn find(name: &OsStr) -> Result<PathBuf, String> {
    let shown = name.to_string_lossy();
    if name.as_bytes().contains(&b'/') {
        return match fs::metadata(name) {
            Ok(found) if found.is_dir() => Err(format!("cannot run {shown}: it is a directory")),
            Ok(_) => Ok(name.into()),
            Err(e) => Err(format!("cannot run {shown}: {e}")),
        };
    }
    let places = env::var_os("PATH").unwrap_or_else(|| OsString::from("/usr/bin:/bin"));
    let runs = |path: &PathBuf| fs::metadata(path).is_ok_and(|found| found.is_file() && found.mode() & 0o111 != 0);
    env::split_paths(&places)
        .map(|place| place.join(name))
        .find(runs)
        .ok_or_else(|| format!("cannot run {shown}: no directory in PATH has it"))
}

/// Looks at a file's first bytes, and at the rights that it runs with.
fn look(path: &Path) -> Result<Executable, String> {
    let shown = path.display();
    let mut head = Vec::new();
    // What may be run but not read is the kernel's to judge.
    let Ok(file) = File::open(path) else { return Ok(Executable::Program(None)) };
    let found = file.metadata().map_err(|e| format!("cannot run {shown}: {e}"))?;
    let _ = file.take(HEADERS).read_to_end(&mut head);
    if let Some(line) = head.strip_prefix(b"#!") {
        let line = line.split(|&b| b == b'\n').next().unwrap_or_default();
        let words = line.split(|b| b.is_ascii_whitespace()).filter(|word| !word.is_empty());
        let mut words = words.map(|word| OsStr::from_bytes(word).to_owned());
        return Ok(match words.next() {
            Some(program) => Executable::Script(program.into(), words.collect()),
            None => Executable::Program(None),
        });
    }
    let library = c_library(&head).map_err(|why| format!("{shown} cannot be run on Remora: {why}"))?;
    let (user, group) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    // A file has such rights if it has the attribute at all.
    let capable = rustix::fs::getxattr(path, "security.capability", &mut [0_u8; 64][..]).is_ok();
    if let Some(whose) = raised((found.mode(), found.uid(), found.gid(), capable), (user, group)) {
        return Err(format!(
            "{shown} cannot be run on Remora: it {whose}, and before such a program the dynamic linker puts no library; \
             run it as a user who has these rights"
        ));
    }
    Ok(Executable::Program(library))
}

/// What gives a program more rights than its user and group have, if something does: of a file its mode, owner, group, and
/// whether it has capabilities. Root has all already.
fn raised((mode, owner, of_group, capable): (u32, u32, u32, bool), (user, group): (u32, u32)) -> Option<&'static str> {
    match () {
        () if mode & 0o4000 != 0 && owner != user => Some("is a set-user-ID program"),
        () if mode & 0o2010 == 0o2010 && of_group != group => Some("is a set-group-ID program"),
        () if capable && user != 0 => Some("has capabilities"),
        () => None,
    }
}

/// The C library of a file with these first bytes, `None` for one that a shell runs, or why it takes no library.
fn c_library(head: &[u8]) -> Result<Option<CLibrary>, String> {
    let short = |at: usize| Some(u16::from_le_bytes(head.get(at..at + 2)?.try_into().ok()?));
    let word = |at: usize| Some(u32::from_le_bytes(head.get(at..at + 4)?.try_into().ok()?));
    let long = |at: usize| Some(u64::from_le_bytes(head.get(at..at + 8)?.try_into().ok()?));
    if !head.starts_with(b"\x7fELF") {
        // A shell runs what is neither; an empty file, too.
        return Ok(None);
    }
    let (Some(class), Some(machine)) = (head.get(4), short(18)) else {
        // A shell would run it.
        return Err("it is cut off".into());
    };
    let own: (u8, u16) = if cfg!(target_arch = "aarch64") { (2, 183) } else { (2, 62) };
    if (*class, machine) != own {
        let bits = if *class == 1 { 32 } else { 64 };
        let arch = env::consts::ARCH;
        return Err(format!(
            "it is for another architecture ({bits} bit, ELF machine {machine}), the library for {arch}"
        ));
    }
    let (Some(table), Some(size), Some(count)) = (long(32), short(54), short(56)) else {
        return Err("it is cut off".into());
    };
    let (table, size, count) = (table as usize, usize::from(size), usize::from(count));
    let linker = (0..count).map(|index| table + index * size).find(|&at| word(at) == Some(PT_INTERP));
    let Some(header) = linker else {
        // Behind the bytes that were read there may be more headers.
        return match table + size * count <= head.len() {
            true => {
                Err("it is statically linked, so that no library can be put before it; link it with libibverbs.so.1"
                    .into())
            }
            false => Ok(None),
        };
    };
    let (from, len) = (long(header + 8).unwrap_or(0) as usize, long(header + 32).unwrap_or(0) as usize);
    Ok(from.checked_add(len).and_then(|to| head.get(from..to)).map(CLibrary::of))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const LINKER: &[u8] = b"/lib64/ld-linux-x86-64.so.2";

    /// An ELF header with one program header of this type, and a dynamic linker's path behind it.
    fn elf(class: u8, machine: u16, header: u32) -> Vec<u8> {
        let mut bytes = vec![0; 64 + 56 + LINKER.len()];
        bytes[..5].copy_from_slice(&[0x7f, b'E', b'L', b'F', class]);
        bytes[18..20].copy_from_slice(&machine.to_le_bytes());
        bytes[32] = 64;
        bytes[54] = 56;
        bytes[56] = 1;
        bytes[64..68].copy_from_slice(&header.to_le_bytes());
        bytes[72] = 64 + 56;
        bytes[96] = LINKER.len() as u8;
        bytes[64 + 56..].copy_from_slice(LINKER);
        bytes
    }

    #[test]
    fn programs_that_take_no_library_are_known() {
        let own = if cfg!(target_arch = "aarch64") { 183 } else { 62 };
        assert_eq!(c_library(&elf(2, own, PT_INTERP)), Ok(Some(CLibrary::Glibc)));
        assert!(c_library(&elf(2, own, 1)).unwrap_err().contains("statically linked"));
        let mut musl = elf(2, own, PT_INTERP);
        musl[64 + 56..][..12].copy_from_slice(b"/lib/ld-musl");
        assert_eq!(c_library(&musl), Ok(Some(CLibrary::Musl)));
        assert!(c_library(&elf(1, 3, PT_INTERP)).unwrap_err().contains("32 bit"));
        assert!(c_library(&elf(2, 243, PT_INTERP)).unwrap_err().contains("another architecture"));
        assert!(c_library(b"\x7fELF").unwrap_err().contains("cut off"));
        assert!(c_library(&elf(2, own, PT_INTERP)[..50]).unwrap_err().contains("cut off"));
        for head in [&b""[..], b"echo"] {
            assert_eq!(c_library(head), Ok(None));
        }
    }

    #[test]
    fn programs_with_more_rights_than_their_user_are_refused() {
        let (ours, root) = ((1000, 1000), (0, 0));
        for (file, user, part) in [
            ((0o104_755, 0, 0, false), ours, Some("set-user-ID")),
            ((0o104_755, 1000, 0, false), ours, None),
            ((0o104_755, 0, 0, false), root, None),
            ((0o104_755, 1000, 0, false), root, Some("set-user-ID")),
            ((0o102_755, 0, 0, false), ours, Some("set-group-ID")),
            ((0o102_755, 0, 1000, false), ours, None),
            // Without the group's right to run it the bit once meant a lock.
            ((0o102_745, 0, 0, false), ours, None),
            ((0o100_755, 0, 0, true), ours, Some("capabilities")),
            ((0o100_755, 0, 0, true), root, None),
            ((0o100_755, 0, 0, false), ours, None),
        ] {
            let whose = raised(file, user);
            assert_eq!(whose.is_some(), part.is_some(), "{file:?} by {user:?}: {whose:?}");
            assert!(whose.unwrap_or_default().contains(part.unwrap_or_default()), "{file:?} by {user:?}: {whose:?}");
        }
        // A file of somebody else's, which only root can make; others have one of root's.
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("program");
        let own = if cfg!(target_arch = "aarch64") { 183 } else { 62 };
        fs::write(&program, elf(2, own, PT_INTERP)).unwrap();
        let given = std::os::unix::fs::chown(&program, Some(1), Some(1)).is_ok();
        let program = if given { program } else { PathBuf::from("/usr/bin/passwd") };
        if given {
            fs::set_permissions(&program, fs::Permissions::from_mode(0o4755)).unwrap();
        }
        if given || fs::metadata(&program).is_ok_and(|found| found.mode() & 0o4000 != 0) {
            let why = check(&[program.into()]).unwrap_err();
            assert!(why.contains("set-user-ID") && why.contains("run it as a user"), "{why}");
        }
    }

    #[test]
    fn scripts_are_followed_to_their_program() {
        let dir = tempfile::tempdir().unwrap();
        let (script, program) = (dir.path().join("script"), dir.path().join("program"));
        fs::write(&script, format!("#! {} -x\n", program.display())).unwrap();
        fs::write(&program, elf(1, 3, 1)).unwrap();
        let why = check(&[script.clone().into()]).unwrap_err();
        assert!(why.contains("program cannot be run on Remora"), "{why}");
        assert!(check(&["sh".into()]).is_ok());
        assert!(check(&["no-such-program".into()]).unwrap_err().contains("no directory in PATH has it"));
        assert!(check(&[dir.path().into()]).unwrap_err().contains("directory"));
        // By way of env, in a script and in the command.
        fs::write(&script, format!("#!/usr/bin/env -S {} -x\n", program.display())).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        for command in [vec![script.clone().into()], vec!["env".into(), "A=b".into(), program.into()]] {
            let why = check(&command).unwrap_err();
            assert!(why.contains("program cannot be run on Remora"), "{why}");
        }
        for command in [&["env"][..], &["env", "-u", "A", "sh"], &["env", "-i", "no-such-program"], &["env", "sh"]] {
            assert!(check(&command.iter().map(OsString::from).collect::<Vec<_>>()).is_ok(), "{command:?}");
        }
    }
}
