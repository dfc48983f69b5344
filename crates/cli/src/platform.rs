//! `remora platform`.

use std::fmt::Write;

use remora_model::platform::{AccelDevice, NicDevice, Platform, PlatformError};

use crate::{Failure, print};

const EXAMPLES: &str = "\
Examples:
  remora platform list              the platforms that come with the program
  remora platform show strom-10g    its values, with where each comes from
  remora platform show here.toml    the same of your own file, once it has no mistakes";

/// What to show.
#[derive(Debug, clap::Subcommand)]
#[command(after_help = EXAMPLES)]
pub enum PlatformCommand {
    /// The platforms that come with the program, and the placements that each has
    List,
    /// The values of a platform: value, range, status and source
    Show {
        /// A built-in platform, or a platform file
        #[arg(value_name = "PLATFORM")]
        platform: String,
    },
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
        PlatformCommand::List => list()?,
        PlatformCommand::Show { platform } => show(&Platform::load(platform)?),
    };
    print(&text, &text);
    Ok(())
}

fn list() -> Result<String, Failure> {
    let mut out = String::new();
    for name in Platform::built_in() {
        let platform = Platform::load(name)?;
        let _ = writeln!(out, "{name:<12} {}", platform.title);
        let _ = writeln!(out, "{:<12} kernels on {}; {}", "", devices(&platform), platform.params.shares_text());
    }
    Ok(out)
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
        let _ = writeln!(out, "{:<30} {value:>14} {range:>16}  {:<10} {}", param.path, param.status, param.source);
    }
    let _ = writeln!(out, "{}", platform.params.shares_text());
    out
}
