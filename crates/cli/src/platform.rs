//! `remora platform`.

use std::fmt::Write;
use std::path::Path;

use remora_model::platform::{AccelDevice, NicDevice, Platform, PlatformError};

use remora_study::format::{folded, wrap};

use crate::Failure;
use crate::output::{Json, print};

const EXAMPLES: &str = "\
Examples:
  remora platform list              the platforms that come with the program
  remora platform show strom-10g    its values, with where each comes from
  remora platform export strom-10g --name mine > mine.toml
  remora platform new mine --nic cores > mine.toml
  remora platform diff strom-10g mine.toml
  remora platform show here.toml    the same of your own file, once it has no mistakes";

const SHOW_EXAMPLES: &str = "\
Examples:
  remora platform show strom-10g
  remora platform show here.toml     of your own file, once it has no mistakes";

/// What to show.
#[derive(Debug, clap::Subcommand)]
#[command(after_help = EXAMPLES)]
pub enum PlatformCommand {
    /// The platforms that come with the program, and the placements that each has
    #[command(after_help = "Example: remora platform list --json")]
    List {
        /// Figures for programs.
        #[command(flatten)]
        json: Json,
    },
    /// The values of a platform: value, range, status and source
    #[command(after_help = SHOW_EXAMPLES)]
    Show {
        /// A built-in platform, or a platform file
        #[arg(value_name = "PLATFORM")]
        platform: String,
    },
    /// Print the file of a built-in platform, to start your own from
    #[command(after_help = "Example: remora platform export strom-10g --name mine > mine.toml")]
    Export {
        /// A built-in platform
        #[arg(value_name = "PLATFORM")]
        platform: String,
        /// The name that the copy gets
        #[arg(long, value_name = "NAME")]
        name: Option<String>,
    },
    /// Print a file for hardware of your own: the values of a platform of its kind, each marked as one to replace
    #[command(after_help = "Example: remora platform new mine --nic cores > mine.toml")]
    New {
        /// Its name
        #[arg(value_name = "NAME")]
        name: String,
        /// What runs kernels on its NIC or beside it
        #[arg(long, value_enum, default_value = "pipeline")]
        nic: NicKind,
    },
    /// The values in which two platforms differ
    #[command(after_help = "Example: remora platform diff strom-10g mine.toml")]
    Diff {
        /// A built-in platform, or a platform file
        #[arg(value_name = "PLATFORM")]
        one: String,
        /// Another one
        #[arg(value_name = "OTHER")]
        other: String,
    },
}

/// Hardware that a platform may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum NicKind {
    /// Logic in the NIC's data path, as in StRoM.
    Pipeline,
    /// Cores on the NIC, as in a BlueField.
    Cores,
    /// An accelerator that reaches the node's memory coherently, as in RAMBDA.
    Accelerator,
}

impl NicKind {
    /// The platform of this kind that comes with the program.
    fn example(self) -> &'static str {
        match self {
            Self::Pipeline => "strom-100g",
            Self::Cores => "bluefield2",
            Self::Accelerator => "rambda",
        }
    }
}

impl From<PlatformError> for Failure {
    fn from(error: PlatformError) -> Self {
        match error {
            PlatformError::Read { .. } => Self::Failed(error.to_string()),
            _ => Self::Usage(error.to_string()),
        }
    }
}

/// Shows platforms.
pub fn run(what: &PlatformCommand) -> Result<(), Failure> {
    let text = match what {
        PlatformCommand::List { json } => return json.show(&list()?, || list_json().unwrap_or_default()),
        PlatformCommand::New { name, nic } => new(name, *nic)?,
        PlatformCommand::Show { platform } => folded(&show(&Platform::load(platform)?)),
        PlatformCommand::Export { platform, name } => export(platform, name.as_deref())?,
        PlatformCommand::Diff { one, other } => {
            folded(&diff(&Platform::load(one)?, &Platform::load(other)?, heads([one, other])))
        }
    };
    print(&text)
}

/// A built-in platform's file, under another name if there is one.
fn export(platform: &str, name: Option<&str>) -> Result<String, Failure> {
    let known = || Platform::built_in().collect::<Vec<_>>().join(", ");
    let text = Platform::built_in_text(platform)
        .ok_or_else(|| Failure::Usage(format!("no platform {platform:?} comes with the program: {}", known())))?;
    let Some(name) = name else { return Ok(text) };
    let line = |line: &str| match line.starts_with("name = ") {
        true => format!("name = {name:?}\n"),
        false => format!("{line}\n"),
    };
    let text: String = text.lines().map(line).collect();
    // What is printed can be read.
    Platform::parse("the platform under its new name", &text)?;
    Ok(text)
}

/// A built-in platform's file under another name, in which each value says that it is not of the new hardware.
fn new(name: &str, nic: NicKind) -> Result<String, Failure> {
    let example = nic.example();
    let mut text = format!(
        "# A platform of your own. Every value is {example}'s: replace it, its range (the least and the most that it may be),\n\
         # its source, and its status: printed (in a document of the hardware), measured, derived (from others),\n\
         # literature (of like hardware) or estimate. `remora platform show FILE` checks it.\n\n"
    );
    for line in export(example, Some(name))?.lines().filter(|line| !line.starts_with('#')) {
        text += &match line.split_once(" = ") {
            Some(("title", _)) => format!("title = {name:?}"),
            Some((key, value)) if value.starts_with('{') => {
                let marked = value.replacen("source = \"", &format!("source = \"to be replaced; {example}: "), 1);
                format!("{key} = {}", with_status(&marked, "estimate"))
            }
            _ => line.to_string(),
        };
        text.push('\n');
    }
    let text = text.replace("\n\n\n", "\n\n");
    Platform::parse("the new platform", &text)?;
    Ok(text)
}

/// A value's line with another status.
fn with_status(value: &str, status: &str) -> String {
    let Some((before, rest)) = value.split_once("status = \"") else { return value.into() };
    let after = rest.split_once('"').map_or("", |(_, after)| after);
    format!("{before}status = {status:?}{after}")
}

/// What platforms are called of which one may be a copy of the other: as on the command line, files by their names if those
/// tell them apart.
fn heads(given: [&String; 2]) -> [&str; 2] {
    let names = given.map(|path| Path::new(path).file_name().and_then(|name| name.to_str()).unwrap_or(path));
    if names[0] == names[1] { given.map(String::as_str) } else { names }
}

/// Values that one has and the other has not, or has otherwise.
fn diff(one: &Platform, other: &Platform, [ours, theirs]: [&str; 2]) -> String {
    let mut out = format!("{:<34} {ours:>20} {theirs:>20}\n", "");
    let paths = one.params.iter().chain(other.params.iter()).map(|param| param.path.clone());
    let paths: std::collections::BTreeSet<String> = paths.collect();
    let value = |platform: &Platform, path: &str| {
        platform.params.get(path).map_or("-".to_string(), |param| param.text(param.value))
    };
    for path in paths {
        let [ours, theirs] = [one, other].map(|platform| value(platform, &path));
        if ours != theirs {
            let _ = writeln!(out, "{path:<34} {ours:>20} {theirs:>20}");
        }
    }
    if out.lines().count() == 1 {
        out = format!("{ours} and {theirs} have the same values.\n");
    }
    out
}

fn list() -> Result<String, Failure> {
    let mut out = String::new();
    for name in Platform::built_in() {
        let platform = Platform::load(name)?;
        wrap(&mut out, 0, &format!("{name:<12} "), &platform.title);
        wrap(&mut out, 2, "", &format!("kernels on {}; {}", devices(&platform), platform.params.shares_text()));
    }
    Ok(out)
}

fn list_json() -> Result<serde_json::Value, PlatformError> {
    let platforms = Platform::built_in().map(|name| {
        let platform = Platform::load(name)?;
        Ok(serde_json::json!({
            "name": name, "title": platform.title, "kernels_on": devices(&platform), "values": platform.params.shares(),
        }))
    });
    let platforms: Vec<_> = platforms.collect::<Result<_, PlatformError>>()?;
    Ok(
        serde_json::json!({ "format": "remora-platform-list/1", "version": env!("REMORA_VERSION"), "platforms": platforms }),
    )
}

/// Which places run kernels, and on what.
fn devices(platform: &Platform) -> String {
    let placements = &platform.placements;
    let mut places = vec!["client", "host"];
    places.extend(placements.nic.map(|device| match device {
        NicDevice::Pipeline => "nic (pipeline)",
        NicDevice::Cores => "nic (cores)",
        NicDevice::Software => "nic (software)",
    }));
    places.extend(placements.accel.map(|device| match device {
        AccelDevice::Coherent => "accel (coherent link)",
        AccelDevice::Local => "accel (memory of its own)",
    }));
    places.join(", ")
}

fn show(platform: &Platform) -> String {
    let mut out = format!("{}: {}\nkernels on {}\n", platform.name, platform.title, devices(platform));
    for param in platform.params.iter() {
        let (low, high) = param.range;
        let range = if param.is_open() {
            let bare = |value| param.text(value).split(' ').next().unwrap_or_default().to_string();
            format!("{} to {}", bare(low), bare(high))
        } else {
            String::new()
        };
        let value = param.text(param.value);
        let _ = writeln!(out, "{:<34} {value:>14} {range:>16}  {}", param.path, param.status);
        wrap(&mut out, 4, "", &param.source);
    }
    let _ = writeln!(out, "{}", platform.params.shares_text());
    out
}
