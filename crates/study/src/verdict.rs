//! Which placement wins, and the measured reason why.

use std::ops::RangeInclusive;

use remora_lab::stats::is_level;
use serde::{Deserialize, Serialize};

use crate::format::{per_op, plural, rate, time};
use crate::measure::{Load, Row};
use crate::operations::Operation;
use remora_kernel::Placement;
use remora_real::LinkKind;

/// The outcome for one operation over one link.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// What was done.
    pub operation: Operation,
    /// List elements, or bytes of the value.
    pub parameter: Option<u64>,
    /// The way that packets took.
    pub link: LinkKind,
    /// The placement with the lowest median latency with 1 in flight.
    pub winner: Placement,
    /// Whether the second is within 5 %.
    pub level: bool,
    /// The placement with the second lowest median latency, if there is one.
    pub second: Option<Placement>,
    /// The placement with most operations a second with 64 in flight.
    pub most_ops: Placement,
    /// The reason, with the figures.
    pub reason: String,
    /// The outcome and the reason as a sentence.
    pub line: String,
}

/// Judges rows of one operation, parameter and link: one for each placement measured. `None` if there are none.
pub fn judge(rows: &[&Row]) -> Option<Verdict> {
    let mut ranked = rows.to_vec();
    ranked.sort_by_key(|row| row.in_flight_1.p50_ns);
    let best = *ranked.first()?;
    let most = rows.iter().max_by(|a, b| a.in_flight_64.ops_per_s.total_cmp(&b.in_flight_64.ops_per_s))?;
    let ns = |row: &Row| row.in_flight_1.p50_ns as f64;
    let level = ranked.get(1).is_some_and(|second| is_level(ns(best), ns(second)));
    let reason = figures(&ranked, level, most);
    let outcome = match ranked.get(1) {
        None => "is the only place measured".to_string(),
        Some(second) if level => format!("and {} are level", second.placement),
        Some(_) => "wins".to_string(),
    };
    Some(Verdict {
        operation: best.operation,
        parameter: best.parameter,
        link: best.link,
        winner: best.placement,
        level,
        second: ranked.get(1).map(|second| second.placement),
        most_ops: most.placement,
        line: format!("{} {outcome} over {}: {reason}", best.placement, best.link),
        reason,
    })
}

/// `1 round trip instead of 9; 7.12 µs against 52.0 µs at the client, 8.30 µs at the host`.
fn figures(ranked: &[&Row], level: bool, most: &Row) -> String {
    let (best, rest) = (ranked[0], &ranked[1..]);
    let took = time(best.in_flight_1.p50_ns as f64);
    // The client is the placement to be better than; if it is the best, the runner-up is.
    let Some(other) = rest.iter().find(|row| row.placement == Placement::Client).or(rest.first()) else { return took };
    let mut text = format!("{}; {took}", difference(best, other, level));
    let others = std::iter::once(other).chain(rest.iter().filter(|row| row.placement != other.placement));
    for (row, joint) in others.zip([" against", ","]) {
        text += &format!("{joint} {} at the {}", time(row.in_flight_1.p50_ns as f64), row.placement);
    }
    if most.placement != best.placement {
        let (first, ours) = (rate(most.in_flight_64.ops_per_s), rate(best.in_flight_64.ops_per_s));
        text += &format!("; with 64 in flight {} does most, {first} ops/s against {ours}", most.placement);
    }
    text
}

/// What differs most plainly between the best and the other.
fn difference(best: &Row, other: &Row, level: bool) -> String {
    let (ours, theirs) = (&best.in_flight_1, &other.in_flight_1);
    let trips = |load: &Load| load.round_trips_per_op;
    if trips(ours) < trips(theirs) * 0.95 {
        return format!("{} instead of {}", plural(trips(ours), "round trip"), per_op(trips(theirs)));
    }
    if trips(theirs) < trips(ours) * 0.95 {
        let each = time(ours.p50_ns as f64 / trips(ours));
        let call = time(theirs.p50_ns as f64 / trips(theirs).max(1.0));
        let verb = if level { "against" } else { "each beat" };
        return format!("{} of {each} {verb} {} of {call}", plural(trips(ours), "round trip"), per_op(trips(theirs)));
    }
    let both = plural(trips(ours), "round trip");
    if ours.node_cpu_ns_per_op < theirs.node_cpu_ns_per_op * 0.9 {
        let (ours, theirs) = (time(ours.node_cpu_ns_per_op), time(theirs.node_cpu_ns_per_op));
        return format!("{both} for both, but less work at the node ({ours} of CPU against {theirs})");
    }
    if ours.wire_bytes_per_op < theirs.wire_bytes_per_op * 0.9 {
        let (ours, theirs) = (per_op(ours.wire_bytes_per_op.round()), per_op(theirs.wire_bytes_per_op.round()));
        return format!("{both} for both, but {ours} bytes on the wire instead of {theirs}");
    }
    format!("{both} for both, and neither bytes nor CPU at the node set them apart")
}

/// Judges every group of rows with the same operation, parameter and link, in the rows' order.
pub fn judge_all(rows: &[Row]) -> Vec<Verdict> {
    groups(rows).iter().filter_map(|group| judge(group)).collect()
}

/// Rows with the same operation, parameter and link, in the rows' order.
pub fn groups(rows: &[Row]) -> Vec<Vec<&Row>> {
    let key = |row: &Row| (row.operation, row.parameter, row.link);
    let mut groups: Vec<Vec<&Row>> = Vec::new();
    for row in rows {
        match groups.iter_mut().find(|group| key(group[0]) == key(row)) {
            Some(group) => group.push(row),
            None => groups.push(vec![row]),
        }
    }
    groups
}

/// The outcome of an operation over a link for all parameters together.
#[derive(Clone, Debug, PartialEq)]
pub struct Summary {
    /// What was done.
    pub operation: Operation,
    /// The way that packets took.
    pub link: LinkKind,
    /// Who wins where, and the reason at the largest parameter.
    pub line: String,
}

/// Sums verdicts up: one line for each operation and link, in the verdicts' order.
pub fn summarise(verdicts: &[Verdict]) -> Vec<Summary> {
    let mut summaries: Vec<Summary> = Vec::new();
    for verdict in verdicts {
        let (operation, link) = (verdict.operation, verdict.link);
        if summaries.iter().any(|s| (s.operation, s.link) == (operation, link)) {
            continue;
        }
        let mut same: Vec<&Verdict> = verdicts.iter().filter(|v| (v.operation, v.link) == (operation, link)).collect();
        same.sort_by_key(|v| v.parameter);
        summaries.push(Summary { operation, link, line: summary_line(&same) });
    }
    summaries
}

fn summary_line(verdicts: &[&Verdict]) -> String {
    let [.., last] = verdicts else { return String::new() };
    let winner = |verdict: &Verdict| match verdict.second.filter(|_| verdict.level) {
        // In the same order whoever was ahead by a hair.
        Some(second) if second < verdict.winner => format!("{second} and {}", verdict.winner),
        Some(second) => format!("{} and {second}", verdict.winner),
        None => verdict.winner.to_string(),
    };
    let winners = verdicts.iter().map(|verdict| (verdict.parameter, winner(verdict))).collect();
    sum_up(winners, last.operation.unit(), &last.reason)
}

/// Who wins where, by the parameter, and the reason at the last one.
pub(crate) fn sum_up(winners: Vec<(Option<u64>, String)>, unit: Option<&str>, reason: &str) -> String {
    let (Some((Some(parameter), _)), Some(unit)) = (winners.last(), unit) else {
        let name = winners.last().map_or("", |(_, name)| name);
        return format!("{name}: {reason}");
    };
    let parameter = *parameter;
    let mut runs: Vec<(String, RangeInclusive<u64>)> = Vec::new();
    for (at, winner) in winners {
        let at = at.unwrap_or(0);
        match runs.last_mut() {
            Some((name, range)) if *name == winner => *range = *range.start()..=at,
            _ => runs.push((winner, at..=at)),
        }
    }
    let run = |(name, range): &(String, RangeInclusive<u64>)| match (range.start(), range.end()) {
        (start, end) if start == end => format!("{name} at {start}"),
        (start, end) => format!("{name} from {start} to {end}"),
    };
    let parts: Vec<String> = runs.iter().map(run).collect();
    format!("{} {unit}; at {parameter}: {reason}", parts.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operations::LIST;

    fn row(placement: Placement, trips: f64, p50_ns: u64, ops_64: f64) -> Row {
        let load = Load { p50_ns, round_trips_per_op: trips, node_cpu_ns_per_op: 1000.0, ..Load::default() };
        Row {
            operation: LIST,
            parameter: Some(8),
            link: LinkKind::Udp,
            placement,
            in_flight_64: Load { ops_per_s: ops_64, ..load.clone() },
            by_ring: None,
            in_flight_1: load,
        }
    }

    fn line(rows: &[Row]) -> String {
        judge(&rows.iter().collect::<Vec<_>>()).unwrap().line
    }

    #[test]
    fn the_reason_is_what_was_measured() {
        use Placement::*;
        let client = row(Client, 9.0, 51_960, 4e5);
        let (nic, host) = (row(Nic, 1.0, 7_123, 2e6), row(Host, 1.0, 8_300, 1.5e6));
        assert_eq!(
            line(&[client.clone(), nic.clone(), host.clone()]),
            "nic wins over udp: 1 round trip instead of 9; 7.12 µs against 52.0 µs at the client, 8.30 µs at the host"
        );
        assert_eq!(
            line(&[client.clone(), row(Nic, 1.0, 7_123, 1e6), host.clone()]),
            "nic wins over udp: 1 round trip instead of 9; 7.12 µs against 52.0 µs at the client, 8.30 µs at the host; \
             with 64 in flight host does most, 1.50 M ops/s against 1.00 M"
        );
        assert_eq!(
            line(&[row(Client, 2.0, 6_000, 4e6), nic.clone(), host.clone()]),
            "client wins over udp: 2 round trips of 3.00 µs each beat 1 of 7.12 µs; \
             6.00 µs against 7.12 µs at the nic, 8.30 µs at the host"
        );
        assert_eq!(
            line(&[row(Nic, 1.0, 8_100, 2e6), host]),
            "nic and host are level over udp: \
             1 round trip for both, and neither bytes nor CPU at the node set them apart; \
             8.10 µs against 8.30 µs at the host"
        );
        let mut lazy = row(Host, 1.0, 9_000, 1.0);
        lazy.in_flight_1.node_cpu_ns_per_op = 3000.0;
        assert!(line(&[nic.clone(), lazy]).contains("but less work at the node (1.00 µs of CPU against 3.00 µs)"));
        assert_eq!(line(&[nic]), "nic is the only place measured over udp: 7.12 µs");
        assert_eq!(judge(&[]), None);
    }

    #[test]
    fn summaries_join_neighbouring_parameters() {
        use Placement::*;
        let rows: Vec<Row> = [1, 2, 4, 8, 16, 32]
            .into_iter()
            .flat_map(|length| {
                let client = row(Client, length as f64 + 1.0, 3_000 * (length + 1), 1e6);
                [client, row(Nic, 1.0, 7_000, 2e6)].map(|r| Row { parameter: Some(length), ..r })
            })
            .collect();
        let verdicts = judge_all(&rows);
        assert_eq!(verdicts.len(), 6);
        let [summary] = &summarise(&verdicts)[..] else { panic!("one operation over one link") };
        assert_eq!(
            summary.line,
            "client at 1, nic from 2 to 32 elements; at 32: 1 round trip instead of 33; \
             7.00 µs against 99.0 µs at the client"
        );
    }

    #[test]
    fn level_places_are_named_in_one_order() {
        let at = |parameter, placement, p50_ns| Row { parameter: Some(parameter), ..row(placement, 1.0, p50_ns, 1e5) };
        let judged: Vec<Verdict> = [(1, 7000, 7010), (2, 7010, 7000), (4, 9000, 7000)]
            .into_iter()
            .map(|(n, nic, host)| [at(n, Placement::Nic, nic), at(n, Placement::Host, host)])
            .filter_map(|rows| judge(&rows.iter().collect::<Vec<_>>()))
            .collect();
        let line = &summarise(&judged)[0].line;
        assert!(line.starts_with("nic and host from 1 to 2, host at 4 elements; at 4: "), "{line}");
    }
}
