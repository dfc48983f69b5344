//! RAMBDA's text beside the model.

use remora_model::platform::Platform;

use crate::reproduce::{Claim, Figure, Lines, Trend};

/// The rows.
const CLAIMS: &str = include_str!("../../../../studies/rambda/claims.csv");

/// Workloads of the store, as figures number them.
const GET_UNIFORM: u64 = 1;
const GET_ZIPFIAN: u64 = 2;

/// The rows with the model's figures.
pub fn claims(figures: &[Figure], platform: &Platform) -> Vec<Claim> {
    let lines = Lines(figures);
    Claim::all(CLAIMS, |claim| {
        match value_of(&claim.id, &lines, platform) {
            Some(model) => claim.model = model,
            None if claim.id == "RB-027" => claim.missing = "what parsing a query costs is published by nobody",
            None => {}
        }
        claim.remark = match claim.id.as_str() {
            "RB-075" => {
                "what a request costs such a core is derived from this row; both are measured at a peak that the wire may bound"
            }
            "RB-095" => "stalls of the operating system, an estimate, make the CPU's tail",
            "RB-096" => "a client has one batch under way, so that its round trip bounds small batches",
            "RB-103" | "RB-107" => "arithmetic on Watts that went in",
            "RB-113" => "of the six parts of a hop three are estimates that differ between the two",
            "RB-118" => "lines that a core has under way are derived from this row",
            "RB-119" => {
                "it would take a controller that issues a line in about ten cycles, or a tenth of the link: not what \
                         the list's rate (RB-066) leaves"
            }
            _ => "",
        };
    })
}

fn value_of(id: &str, lines: &Lines<'_>, platform: &Platform) -> Option<Vec<f64>> {
    let (power, costs) = (platform.power.as_ref()?, platform.ring_server.as_ref()?);
    let percent = |part: f64| part * 100.0;
    let at = |figure, line, x| lines.at(figure, line, x);
    Some(match id {
        "RB-019" => vec![(at("5", "DDIO off, reads", 1)? + at("5", "DDIO off, writes", 1)?) / 2.0],
        "RB-023" => vec![1.0],
        "RB-024" => vec![3.0],
        "RB-025" => vec![4.0],
        "RB-064" => vec![16.0],
        "RB-065" => vec![(at("7", "CPU 16", 1)? / at("7", "CPU 1", 1)?).ln() / 16f64.ln()],
        "RB-066" => vec![8.0 * at("7", "RAMBDA-polling", 1)? / at("7", "CPU 8", 1)?],
        "RB-075" => vec![10.0 * at("8", "Smart NIC on board", GET_UNIFORM)? / at("8", "CPU", GET_UNIFORM)?],
        "RB-087" => vec![percent(at("8", "Smart NIC", GET_ZIPFIAN)? / at("8", "Smart NIC on board", GET_ZIPFIAN)?)],
        "RB-095" => vec![percent(1.0 - at("9", "RAMBDA p99", GET_UNIFORM)? / at("9", "CPU p99", GET_UNIFORM)?)],
        "RB-096" => {
            let gain = |line| Some(at("10", line, 32)? / at("10", line, 1)?);
            let (cpu, card) = (gain("CPU")?, gain("Smart NIC")?);
            vec![cpu.min(card), cpu.max(card)]
        }
        "RB-099" => vec![power.host_active],
        "RB-100" => vec![power.nic_active],
        "RB-101" => vec![power.accel_active],
        "RB-102" => {
            let watts = power.host_active / power.accel_active;
            vec![watts * at("8", "RAMBDA", GET_UNIFORM)? / at("8", "CPU", GET_UNIFORM)?]
        }
        "RB-103" => vec![power.accel_active / power.nic_active],
        "RB-104" => vec![at("III", "CPU", GET_UNIFORM)?],
        "RB-107" => {
            let core = power.host_active / platform.host.cores as f64;
            let (with, without) = (power.accel_active + core, power.host_active);
            vec![percent(1.0 - (with + costs.rest_power) / (without + costs.rest_power))]
        }
        "RB-108" => vec![costs.forward as f64 / 1e6],
        "RB-113" => vec![percent(at("12", "RAMBDA", 1)? / at("12", "HyperLoop", 1)? - 1.0)],
        "RB-118" => {
            let cpu = lines.get("13b", "CPU MERCI")?;
            let most = cpu.iter().map(|dot| dot.1).fold(0.0, f64::max);
            vec![cpu.iter().find(|dot| dot.1 > 0.9 * most)?.0]
        }
        "RB-119" => {
            let (ours, core) = (lines.get("13a", "RAMBDA")?, lines.get("13a", "CPU 1")?);
            let parts: Vec<f64> = ours.iter().zip(&core).map(|(ours, core)| percent(ours.1 / core.1)).collect();
            vec![parts.iter().copied().fold(f64::MAX, f64::min), parts.iter().copied().fold(0.0, f64::max)]
        }
        "RB-120" => vec![platform.dram.bandwidth / 1e9],
        "RB-121" => vec![platform.accel_ddr.as_ref()?.bandwidth / platform.dram.bandwidth],
        _ => return None,
    })
}

/// The shapes that can be judged with the figures that were run.
pub fn trends(figures: &[Figure]) -> Vec<Trend> {
    let lines = Lines(figures);
    let all = [card(&lines), hints(&lines), cpoll(&lines), store(&lines), batches(&lines), chain(&lines), rows(&lines)];
    all.into_iter().flatten().collect()
}

fn card(lines: &Lines<'_>) -> Option<Trend> {
    let mean = lines.get("1", "mean")?;
    let (first, last) = (mean.first()?, mean.last()?);
    let off = mean.iter().map(|(x, y)| {
        let straight = first.1 + (last.1 - first.1) * (x - first.0) / (last.0 - first.0);
        (y / straight - 1.0).abs()
    });
    let off = off.fold(0.0, f64::max);
    Some(Trend {
        figures: "1",
        section: "II-B",
        what: "the latency rises linearly with the accesses to the host",
        holds: off < 0.02 && last.1 > 5.0 * first.1,
        evidence: format!("{:.1} to {:.1} us, at most {:.1} % off a line", first.1, last.1, off * 100.0),
    })
}

fn hints(lines: &Lines<'_>) -> Option<Trend> {
    let past = lines.at("5", "DDIO off, writes", 1)?;
    let others = [("DDIO off, writes", 2), ("DDIO on, writes", 1), ("DDIO on, writes", 2), ("DDIO on, reads", 1)];
    let most = others.iter().filter_map(|(line, x)| lines.at("5", line, *x)).fold(0.0, f64::max);
    Some(Trend {
        figures: "5",
        section: "III-D",
        what: "only with DDIO and TPH both off do a device's writes take memory bandwidth",
        holds: most < 0.1 * past,
        evidence: format!("{past:.2} GB/s against {most:.2} GB/s at most"),
    })
}

fn cpoll(lines: &Lines<'_>) -> Option<Trend> {
    let (polling, cpoll) = (lines.at("7", "RAMBDA-polling", 1)?, lines.at("7", "RAMBDA", 1)?);
    Some(Trend {
        figures: "7",
        section: "III-B, VI-A",
        what: "polling takes requests of the link that cpoll leaves to the application",
        holds: cpoll > polling,
        evidence: format!("{cpoll:.2} against {polling:.2} M/s"),
    })
}

fn store(lines: &Lines<'_>) -> Option<Trend> {
    let (get, half) = (lines.at("8", "CPU", GET_UNIFORM)?, lines.at("8", "CPU", 3)?);
    let (skewed, uniform) = (lines.at("8", "Smart NIC", GET_ZIPFIAN)?, lines.at("8", "Smart NIC", GET_UNIFORM)?);
    let near = (half / get - 1.0).abs() < 0.15;
    Some(Trend {
        figures: "8",
        section: "VI-B",
        what: "half PUTs differ little from GETs alone on the CPU, and skew helps the Smart NIC, whose cache is small",
        holds: near && skewed > 1.3 * uniform,
        evidence: format!("{get:.1} and {half:.1} M/s; {uniform:.1} M/s of uniform, {skewed:.1} M/s of zipfian keys"),
    })
}

fn batches(lines: &Lines<'_>) -> Option<Trend> {
    let ours = lines.get("10", "RAMBDA")?;
    let (one, many) = (ours.first()?.1, ours.last()?.1);
    let rises = ours.windows(2).all(|pair| pair[1].1 > 0.97 * pair[0].1);
    Some(Trend {
        figures: "10",
        section: "VI-B",
        what: "doorbells for many replies raise RAMBDA's throughput",
        holds: rises && many > 2.0 * one,
        evidence: format!("{one:.2} to {many:.2} M/s"),
    })
}

fn chain(lines: &Lines<'_>) -> Option<Trend> {
    let (verbs, ours) = (lines.get("12", "HyperLoop")?, lines.get("12", "RAMBDA")?);
    let saved: Vec<f64> = verbs.iter().zip(&ours).map(|(verbs, ours)| verbs.1 / ours.1).collect();
    let [_, short, _, long] = saved[..] else { return None };
    Some(Trend {
        figures: "12",
        section: "IV-B",
        what: "group verbs take one key after the other, the log all keys in one pass of the chain",
        holds: short > 1.5 && long > 1.5,
        evidence: format!("(4,2): {short:.2} times as fast with 64 B, {long:.2} with 1 KB"),
    })
}

fn rows(lines: &Lines<'_>) -> Option<Trend> {
    let at = |line| Some(lines.get("13a", line)?.first()?.1);
    let (upi, ddr, hbm, eight) = (at("RAMBDA")?, at("RAMBDA-LD")?, at("RAMBDA-LH")?, at("CPU 8")?);
    Some(Trend {
        figures: "13a",
        section: "VI-D",
        what: "memory of its own lifts the accelerator: DDR to about a third of what eight cores do, HBM beyond them",
        holds: ddr > upi && (0.2..0.5).contains(&(ddr / eight)) && hbm > eight,
        evidence: format!("{upi:.2}, {ddr:.2} and {hbm:.2} M/s; eight cores {eight:.2} M/s"),
    })
}
