//! What the paper's text leaves open: named switches, each with the sentence that it hangs on or that there is none, one at a
//! time and together over all figures.

use std::fmt::Write;

use remora_model::cluster::Readings;
use serde::Serialize;

use super::Minos;
use crate::reproduce::{Judged, ReproduceError, ReproduceOptions, ReproduceProgress, fit_and_judge};

/// What the text says of a reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Text {
    /// It is for this reading.
    Supported,
    /// It says neither this nor the usual.
    Open,
    /// It is for the usual reading.
    Against,
}

impl Text {
    fn name(self) -> &'static str {
        match self {
            Self::Supported => "supported",
            Self::Open => "open",
            Self::Against => "against",
        }
    }
}

/// A reading of the text other than the usual one.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Reading {
    /// Its name.
    pub name: &'static str,
    /// What it says.
    pub what: &'static str,
    /// What is usual instead.
    pub usual: &'static str,
    /// The section and what it says that bears on this; or that nothing does.
    pub source: &'static str,
    /// What the text says of it.
    pub text: Text,
    #[serde(skip)]
    set: fn(&mut Chosen),
}

/// Readings together: those of the modelled cluster, and those of how it is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Chosen {
    /// Of the cluster.
    pub cluster: Readings,
    /// Clients of a node are one a core, not as many as make communication the part that the text gives it.
    pub five_clients: bool,
    /// The sweep of persists is one of the hosts' memory alone.
    pub host_sweep: bool,
    /// What a NIC's core takes is fitted to the paper's headline, not derived from its Table III.
    pub fitted_to_headline: bool,
}

/// All of them.
pub const READINGS: [Reading; 11] = [
    Reading {
        name: "five-clients",
        what: "five clients a node, one a core",
        usual: "as many as make communication 51 to 73 % of a write",
        source: "IV: \"keep 5 cores busy per node\", which a client a core does; the usual is fitted to what IV measured (MI-006)",
        text: Text::Supported,
        set: |chosen| chosen.five_clients = true,
    },
    Reading {
        name: "spin-on-acks",
        what: "a host's thread whose write waits takes no other work, unless all threads of the host wait so",
        usual: "it takes what else comes",
        source: "III-B: \"the thread spins until all ACKs are received\"; who takes a peer's INV meanwhile is not said",
        text: Text::Supported,
        set: |chosen| chosen.cluster.spin_on_acks = true,
    },
    Reading {
        name: "fitted-to-headline",
        what: "a NIC's dispatch and speed and a coherent access are fitted to B/O of 2.1 (MI-046)",
        usual: "a NIC's core takes 105/42 of what a host's takes, and a coherent access the estimate",
        source: "Table III: synchronization of 42 ns on the host and 105 on the NIC; the fit ends at the ends of its ranges",
        text: Text::Against,
        set: |chosen| chosen.fitted_to_headline = true,
    },
    Reading {
        name: "atomic-entries",
        what: "a FIFO's entry is taken once its write is done",
        usual: "from when its write begins",
        source: "V-B.4: it \"writes to the vFIFO queue atomically\"; Table III gives that write 465 ns",
        text: Text::Open,
        set: |chosen| chosen.cluster.atomic_entries = true,
    },
    Reading {
        name: "volatile-apart",
        what: "what leaves the vFIFO takes no PCIe bandwidth of messages",
        usual: "it shares PCIe with them",
        source: "V-B.4: dequeued \"in the background\", and \"a DMA operation pushes the update\"; whether that delays messages is not said",
        text: Text::Open,
        set: |chosen| chosen.cluster.volatile_apart = true,
    },
    Reading {
        name: "durable-apart",
        what: "what leaves the dFIFO takes no PCIe bandwidth of messages",
        usual: "it shares PCIe with them",
        source: "V-B.4: \"it pushes it to the host NVM log\"; whether that delays messages is not said",
        text: Text::Open,
        set: |chosen| chosen.cluster.durable_apart = true,
    },
    Reading {
        name: "persist-aside",
        what: "a core that persists does other things meanwhile",
        usual: "it waits",
        source: "Table II: \"Emulated NVM\"; how is not said, and in the list of steps the persist is one of the thread's",
        text: Text::Open,
        set: |chosen| chosen.cluster.persist_aside = true,
    },
    Reading {
        name: "one-device",
        what: "persists of a host follow each other, and so do those of a NIC",
        usual: "they do not wait for each other",
        source: "absent: the time of one persist is given, not how many go on at once",
        text: Text::Open,
        set: |chosen| chosen.cluster.one_device = true,
    },
    Reading {
        name: "free-receive",
        what: "taking a message costs no dispatch",
        usual: "as eRPC costs a core",
        source: "absent: Table III gives what sending takes; VII has eRPC for messages",
        text: Text::Open,
        set: |chosen| chosen.cluster.free_receive = true,
    },
    Reading {
        name: "waits-communicate",
        what: "a message's wait for a core is communication",
        usual: "it is computation",
        source: "absent: how the two were told apart on the real machine is not said",
        text: Text::Open,
        set: |chosen| chosen.cluster.waits_communicate = true,
    },
    Reading {
        name: "host-sweep",
        what: "the sweep of persists leaves the dFIFO as it is",
        usual: "it is of the same medium",
        source: "VIII-E: the time to persist a record of 1 KB is varied; where is not said",
        text: Text::Open,
        set: |chosen| chosen.host_sweep = true,
    },
];

/// What a reading makes of the paper's figures.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// The reading's name; `usual` without any, `all supported` with all that the text is for, and `all open` with all that
    /// it leaves open.
    pub name: String,
    /// The least and the largest share of communication of a write, in per cent (MI-006).
    pub communication: Vec<f64>,
    /// MINOS-B over MINOS-O, the mean over models and workloads (MI-046).
    pub ratio: Vec<f64>,
    /// Of each figure the mean change of its points, in per cent, and which figure it is.
    pub moved: Vec<(String, f64)>,
    /// Trends that hold, of how many.
    pub trends: (usize, usize),
}

/// The table over all readings.
#[derive(Clone, Debug, Serialize)]
pub struct ReadingsTable {
    /// The readings.
    pub readings: Vec<Reading>,
    /// What they make of the figures: the usual one first, all supported and all open ones together last.
    pub outcomes: Vec<Outcome>,
    /// The seed.
    pub seed: u64,
    /// What is missing, if the user wanted no more.
    pub incomplete: Option<String>,
}

/// Runs all figures with each reading alone, with all that the text is for, and with all that it leaves open.
pub fn readings(
    paper: &Minos,
    options: &ReproduceOptions,
    progress: &mut dyn FnMut(ReproduceProgress) -> bool,
) -> Result<ReadingsTable, ReproduceError> {
    let mut runs = vec![("usual".to_string(), Chosen::default())];
    let (mut supported, mut open) = (Chosen::default(), Chosen::default());
    for reading in READINGS {
        let mut chosen = Chosen::default();
        (reading.set)(&mut chosen);
        runs.push((reading.name.into(), chosen));
        match reading.text {
            Text::Supported => (reading.set)(&mut supported),
            Text::Open => (reading.set)(&mut open),
            Text::Against => {}
        }
    }
    runs.extend([("all supported".into(), supported), ("all open".into(), open)]);
    let (turns, mut before) = (runs.len(), (0, 0.0));
    let mut last = before;
    let mut table =
        ReadingsTable { readings: READINGS.into(), outcomes: Vec::new(), seed: options.seed, incomplete: None };
    let mut base: Option<Judged> = None;
    for (turn, (name, chosen)) in runs.into_iter().enumerate() {
        let mut hear = |p: ReproduceProgress| {
            last = (before.0 + p.events, before.1 + p.seconds);
            let (done, total) = (turn * p.total + p.done, turns * p.total);
            progress(ReproduceProgress { done, total, events: last.0, seconds: last.1 })
        };
        match fit_and_judge(&Minos { readings: chosen, ..*paper }, options, &mut hear) {
            Ok((judged, ..)) if judged.incomplete.is_none() => {
                table.outcomes.push(outcome(name, &judged, base.as_ref().unwrap_or(&judged)));
                base.get_or_insert(judged);
            }
            Ok(_) | Err(ReproduceError::Interrupted) if turn > 0 => {
                table.incomplete = Some(format!("interrupted; {turn} of {turns} readings are here"));
                return Ok(table);
            }
            Ok(_) => return Err(ReproduceError::Interrupted),
            Err(e) => return Err(e),
        }
        before = last;
    }
    Ok(table)
}

fn outcome(name: String, judged: &Judged, base: &Judged) -> Outcome {
    let row =
        |id: &str| judged.claims.iter().find(|claim| claim.id == id).map_or(Vec::new(), |claim| claim.model.clone());
    let moved = judged.figures.iter().zip(&base.figures).map(|(figure, usual)| {
        let (mut sum, mut count) = (0.0, 0u32);
        for (line, before) in figure.lines.iter().zip(&usual.lines) {
            for (dot, was) in line.dots.iter().zip(&before.dots) {
                (sum, count) = (sum + 100.0 * (dot.y / was.y - 1.0), count + 1);
            }
        }
        (figure.number.clone(), sum / f64::from(count.max(1)))
    });
    let held = judged.trends.iter().filter(|trend| trend.holds).count();
    Outcome {
        name,
        communication: row("MI-006"),
        ratio: row("MI-046"),
        moved: moved.collect(),
        trends: (held, judged.trends.len()),
    }
}

impl ReadingsTable {
    /// For programs; `version` is the program's.
    pub fn to_json(&self, version: &str) -> serde_json::Value {
        let mut json = serde_json::to_value(self).unwrap_or_default();
        json["format"] = "remora-readings/1".into();
        json["version"] = version.into();
        json
    }

    /// In columns.
    pub fn table(&self) -> String {
        let mut out = self.incomplete.as_ref().map_or_else(String::new, |why| format!("Not complete: {why}\n\n"));
        out += "What MINOS's text leaves open. Each figure: how its points move on the mean, in per cent, against the usual \
                reading.\n\n";
        let figures: Vec<&str> = self
            .outcomes
            .first()
            .map_or(Vec::new(), |usual| usual.moved.iter().map(|(figure, _)| figure.as_str()).collect());
        let _ = write!(out, "{:<19}{:<10}{:>14}{:>7}{:>8}", "reading", "text", "communication", "B/O", "trends");
        figures.iter().for_each(|figure| _ = write!(out, "{figure:>6}"));
        out.push('\n');
        for outcome in &self.outcomes {
            let text = self.readings.iter().find(|reading| reading.name == outcome.name);
            let text = text.map_or(outcome.name.strip_prefix("all ").unwrap_or("-"), |reading| reading.text.name());
            let share = match outcome.communication[..] {
                [low, high] => format!("{low:.0} to {high:.0} %"),
                _ => "-".into(),
            };
            let ratio = outcome.ratio.first().map_or("-".into(), |ratio| format!("{ratio:.2}"));
            let (held, of) = outcome.trends;
            let _ = write!(out, "{:<19}{text:<10}{share:>14}{ratio:>7}{:>8}", outcome.name, format!("{held}/{of}"));
            outcome.moved.iter().for_each(|(_, moved)| _ = write!(out, "{moved:>+6.0}"));
            out.push('\n');
        }
        out += "\nThe paper: communication 51 to 73 % (MI-006), B/O 2.1 (MI-046).\n\n";
        for Reading { name, what, usual, source, .. } in &self.readings {
            let _ = writeln!(out, "{name}: {what}; usual: {usual}.\n    {source}.");
        }
        out
    }
}
