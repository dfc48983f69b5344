//! What this machine is: its memory, its system and its software NIC, measured into a platform file.
//!
//! Every figure is measured in a few rounds that take turns. Its value is the median of the rounds, and the rounds'
//! spread is its range.

mod file;
mod hardware;
mod software;

pub use file::platform_file;
pub use hardware::Hardware;
pub use software::Software;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use remora_kernel::Placement;
use remora_lab::stats::{median, range};
use remora_real::Client;

use crate::StudyError;
use crate::compare::{Progress, Watch};
use crate::connection::{Connection, open_rings};
use crate::nodes::NodeProcess;
use crate::peers::cores::Spread;

/// Rounds in which everything is measured.
pub const ROUNDS: usize = 3;

/// One figure, in the unit that the file gives it in.
#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    /// Its dotted path in the platform file.
    pub path: String,
    /// The unit: `ns`, `GB/s`, `count`, `GHz`, `MiB`.
    pub unit: &'static str,
    /// How it was measured.
    pub how: &'static str,
    /// The median of the rounds.
    pub value: f64,
    /// The least and the largest of the rounds.
    pub range: (f64, f64),
}

/// Figures by path, as they come in, round by round.
#[derive(Default)]
pub struct Figures {
    order: Vec<String>,
    rounds: BTreeMap<String, (Vec<f64>, &'static str, &'static str)>,
}

impl Figures {
    /// Adds what a round gave.
    pub fn add(&mut self, path: impl Into<String>, unit: &'static str, how: &'static str, value: f64) {
        let path = path.into();
        if !value.is_finite() {
            return;
        }
        let entry = self.rounds.entry(path.clone()).or_insert_with(|| {
            self.order.push(path);
            (Vec::new(), unit, how)
        });
        entry.0.push(value.max(0.0));
    }

    /// What the last round gave.
    pub fn last(&self, path: &str) -> Option<f64> {
        self.rounds.get(path)?.0.last().copied()
    }

    /// All figures, in the order in which their first value came.
    pub fn finish(mut self) -> Vec<Figure> {
        let figure = |path: String| {
            let (values, unit, how) = self.rounds.remove(&path)?;
            Some(Figure { path, unit, how, value: median(values.clone()), range: range(values) })
        };
        self.order.into_iter().filter_map(figure).collect()
    }
}

/// How long one measurement of memory and system runs, and how long one of the software NIC.
const HARDWARE: Duration = Duration::from_millis(20);
const SOFTWARE: Duration = Duration::from_millis(25);

/// Everything, in rounds, and what ended it early. Calls of these clients to their node, which do not share a core
/// meanwhile; those beside a writer come in slices of the length given.
pub fn measure(
    directory: &Path,
    target: (&NodeProcess, &mut [Client]),
    slice: Duration,
    watch: &dyn Watch,
) -> (Vec<Figure>, Option<StudyError>) {
    let mut figures = Figures::default();
    let cut = measure_into(&mut figures, directory, target, slice, watch).err();
    (figures.finish(), cut)
}

fn measure_into(
    figures: &mut Figures,
    directory: &Path,
    (node, clients): (&NodeProcess, &mut [Client]),
    slice: Duration,
    watch: &dyn Watch,
) -> Result<(), StudyError> {
    let tell = |what: &str, part| watch.progress(Progress::Part { what, part });
    let hardware = Hardware { time: HARDWARE, directory: directory.into() };
    hardware.measure(figures, &|what, part| tell(what, part * 0.4), &|| watch.stop())?;
    let probes: Result<Vec<_>, _> = clients.iter_mut().map(|client| Software::new(client)).collect();
    let probes = probes?;
    let _spread = Spread::beside(node.id());
    open_rings(clients)?;
    software(clients, &probes, figures, watch)?;
    let mut targets: Vec<&mut dyn Connection> =
        clients.iter_mut().map(|client| client as &mut dyn Connection).collect();
    if let Some(probe) = probes.last() {
        let progress = |part| tell("the software NIC beside a writer", 0.8 + part * 0.2);
        probe.measure_beside(&mut targets, slice, figures, &progress, &|| watch.stop())?;
    }
    for (client, probe) in clients.iter_mut().zip(probes) {
        client.close_rings(Placement::Nic)?;
        client.close_rings(Placement::Host)?;
        probe.free(client)?;
    }
    Ok(())
}

fn software(
    clients: &mut [Client],
    probes: &[Software],
    figures: &mut Figures,
    watch: &dyn Watch,
) -> Result<(), StudyError> {
    let tell = |what: &str, part| watch.progress(Progress::Part { what, part });
    let steps = (ROUNDS * clients.len()) as f64;
    for round in 0..ROUNDS {
        for (n, (client, probe)) in clients.iter_mut().zip(probes).enumerate() {
            let done = (round * probes.len() + n) as f64 / steps;
            tell(&format!("the software NIC over {}", client.link()), 0.4 + done * 0.4);
            probe.measure(client, SOFTWARE, figures, &|| watch.stop())?;
        }
        Software::name_cores(figures);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_is_the_median_of_its_rounds() {
        let mut figures = Figures::default();
        for value in [3.0, 1.0, 2.0] {
            figures.add("a.b", "ns", "x", value);
            figures.add("a.c", "ns", "x", -value);
        }
        figures.add("a.d", "ns", "x", f64::NAN);
        let figures = figures.finish();
        assert_eq!(figures.len(), 2);
        assert_eq!((figures[0].value, figures[0].range), (2.0, (1.0, 3.0)));
        assert_eq!(figures[1].value, 0.0, "a difference below 0 is noise");
    }
}
