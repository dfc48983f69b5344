use std::path::Path;

use super::*;
use crate::dfabric::{Run, Setup};

/// Streams over NICs of an eighth of the interconnect's bandwidth, and what is to be known of pools of up to so many.
fn streams(size: u64, nics: u16, device_bandwidth: Option<f64>) -> RackAnswer {
    let mut workload = Workload::load(Path::new("stream")).unwrap();
    (workload.size, workload.ratio) = (Some(size), Some(8.0));
    let options = RackOptions { nics, device_bandwidth, jobs: 2, ..RackOptions::default() };
    answer(&workload, &options)
}

fn answer(workload: &Workload, options: &RackOptions) -> RackAnswer {
    let platform = Platform::load("dfabric").unwrap();
    assert_eq!(missing(&platform, workload, options), None);
    pool(&platform, workload, options, &AtomicBool::new(false), &mut |_, _| ()).unwrap()
}

/// Bytes a second of such a NIC.
const NIC: f64 = 125e6 / 8.0;

#[test]
fn figure_12s_slow_memory_binds_and_fast_memory_leaves_it_to_the_nics() {
    let (slow, fast) = (streams(16 << 20, 8, Some(31.25e6)), streams(16 << 20, 8, None));
    for (mbps, answer) in [(250, &slow), (0, &fast)] {
        for added in [2, 6] {
            let setup = Setup { run: Run::Streams, theta: 8, streams: 2, device_mbps: mbps, added, ..Setup::default() };
            let figure = setup.run(&Platform::load("dfabric").unwrap(), 42).unwrap();
            assert_eq!(answer.rows[2 + added as usize].seconds, figure.seconds, "{mbps} {added}");
        }
    }
    // Three devices of 250 Mb/s take each byte twice: as much as three NICs of 125 Mb/s bring.
    assert_eq!((slow.knee, slow.more), (Some(3), false), "{}", slow.line);
    for row in &slow.rows[4..] {
        assert!(row.binding == MEMORY_DEVICE && row.utilisation > 0.9, "{row:?}");
        assert!(row.seconds > 0.93 * slow.rows[4].seconds, "{row:?}");
    }
    assert!(slow.memory_line.contains("with 3 NICs the pool's memory binds"), "{}", slow.memory_line);
    assert_eq!((fast.knee, fast.more), (Some(8), true), "{}", fast.line);
    assert!(fast.rows[1..].iter().all(|row| row.binding == "a NIC of the pool" && row.utilisation > 0.9));
    assert!(fast.line.starts_with("pool 8 NICs a rack") && fast.line.contains("--nics"), "{}", fast.line);
}

#[test]
fn the_memory_binds_where_it_carries_less_than_twice_what_the_nics_bring() {
    let all = streams(8 << 20, 4, None);
    assert_eq!(all.rows[0].memory_binds_below, None, "there is no pool");
    for row in &all.rows[1..] {
        let (least, brought) = (row.memory_binds_below.unwrap(), 2.0 * NIC * f64::from(row.nics));
        assert!((least / brought - 1.0).abs() < 0.25, "{row:?}: {brought}");
        // On both sides of it the engine says the same.
        for (part, binds) in [(0.9, true), (1.1, false)] {
            let other = streams(8 << 20, row.nics, Some(part * least / 3.0));
            assert_eq!(other.rows.last().unwrap().binding == MEMORY_DEVICE, binds, "{row:?} {part}");
        }
    }
}

#[test]
fn the_knee_grows_with_the_memorys_bandwidth_and_is_never_beyond_what_was_tried() {
    let knees: Vec<u16> =
        [8e6, 16e6, 32e6, 64e6, 1e9].iter().map(|each| streams(4 << 20, 6, Some(*each)).knee.unwrap()).collect();
    assert!(knees.is_sorted() && knees[0] < knees[2] && knees[2] < knees[4] && knees[4] == 6, "{knees:?}");
}

#[test]
fn a_knee_is_where_one_more_brings_too_little() {
    let rows = |seconds: &[f64]| -> Vec<RackRow> {
        let row = |(nics, seconds): (usize, &f64)| RackRow {
            nics: nics as u16,
            seconds: *seconds,
            bytes_per_s: 1.0,
            speedup: 1.0,
            binding: String::new(),
            utilisation: 1.0,
            busy: Vec::new(),
            memory_binds_below: None,
            dropped: 0,
            timeouts: 0,
            events: 0,
        };
        seconds.iter().enumerate().map(row).collect()
    };
    for (seconds, gain, expected) in [
        (&[9.0, 8.0, 4.0, 3.0, 2.9, 1.0][..], 0.05, (Some(3), false)),
        (&[9.0, 8.0, 4.0, 3.0, 2.9, 1.0], 0.5, (Some(2), false)),
        (&[9.0, 8.0, 4.0, 3.0], 0.05, (Some(3), true)),
        (&[9.0, 8.0, 8.0], 0.0, (Some(1), false)),
        (&[9.0, 8.0], 0.05, (Some(1), false)),
        (&[9.0], 0.05, (None, false)),
    ] {
        assert_eq!(knee(&rows(seconds), gain), expected, "{seconds:?} {gain}");
    }
}

#[test]
fn every_workload_that_comes_with_the_program_has_an_answer_and_the_same_again() {
    for (name, _) in RACK_TEMPLATES {
        let mut workload = Workload::load(Path::new(name)).unwrap();
        workload.size = workload.size.map(|_| 256 << 10);
        let options = RackOptions { nics: 1, jobs: 2, ..RackOptions::default() };
        let first = answer(&workload, &options);
        assert!(first.rows.len() == 2 && first.rows.iter().all(|row| row.seconds > 0.0 && row.utilisation > 0.0));
        let again = answer(&workload, &RackOptions { jobs: 1, ..options });
        assert_eq!((first.rows, first.line), (again.rows, again.line), "{name}");
    }
}

#[test]
fn what_a_workload_says_is_done() {
    let text = |more: &str| format!("title = \"x\"\npattern = \"incast\"\nsize = \"64 KiB\"\n{more}");
    let run = |more: &str| {
        let workload = Workload::parse("x.toml", &text(more)).unwrap();
        answer(&workload, &RackOptions { nics: 1, ..RackOptions::default() })
    };
    let (plain, received) = (run(""), |answer: &RackAnswer| answer.rows[1].bytes_per_s * answer.rows[1].seconds);
    assert_eq!((plain.nodes, received(&plain).round()), (2, 131_072.0));
    assert_eq!(received(&run("senders = 1")).round(), 65_536.0);
    let more = run("nodes = 5\nrounds = 2\nratio = 4.0");
    assert_eq!((more.nodes, received(&more).round(), more.nic_bytes_per_s), (5, 655_360.0, 31.25e6));
    assert!(run("compute = \"1 s\"").rows.iter().all(|row| row.seconds > 1.0));
    // Messages of half a packet make twice as many packets, with as many headers and as much work.
    assert!(run("message = \"1 KiB\"").rows[1].seconds > plain.rows[1].seconds);
}

#[test]
fn mistakes_name_the_line_and_what_to_do() {
    const ALL: &str = "title = \"x\"\npattern = \"stream\"\nsize = \"1 MiB\"\nrounds = 1\n";
    for (from, to, expected) in [
        ("\"stream\"", "\"steam\"", "x.toml, line 2: unknown variant `steam`"),
        ("\"stream\"", "\"page-rank\"", "line 3: size is what the graph says"),
        ("\"stream\"", "\"all-to-all\"\nsenders = 1", "line 3: senders are the nodes"),
        ("size = \"1 MiB\"\n", "", "line 2: size is missing"),
        ("1 MiB", "1 MB/s", "line 3: \"1 MB/s\" is not a size: write a number and one of B, "),
        ("1 MiB", "2 GiB", "line 3: size is from 1 B to 1 GiB"),
        ("rounds = 1", "rounds = 0", "line 4: rounds are from 1 to 1000"),
        ("rounds = 1", "message = \"1 B\"", "line 4: message is from 64 B"),
        ("rounds = 1", "compute = \"1 min\"", "is not a time"),
        ("rounds = 1", "compute = \"11 s\"", "line 4: compute is 10 s at most"),
        ("rounds = 1", "nodes = 33", "line 4: nodes are those of each rack, from 1 to 32"),
        ("rounds = 1", "senders = 0", "line 4: senders are"),
        ("rounds = 1", "ratio = 0.0", "line 4: ratio is the bandwidth within a rack over a NIC's, from 0.1 to 1000"),
        ("rounds = 1", "round = 1", "line 4: unknown field `round`"),
    ] {
        let message = Workload::parse("x.toml", &ALL.replacen(from, to, 1)).unwrap_err().to_string();
        assert!(message.contains(expected), "{message}\nshould say: {expected}");
    }
    let said = |platform: &str, text: &str| {
        let workload = Workload::parse("x.toml", text).unwrap();
        missing(&Platform::load(platform).unwrap(), &workload, &RackOptions::default()).unwrap()
    };
    assert!(said("strom-10g", ALL).starts_with("strom-10g has no section [rack]"), "{}", said("strom-10g", ALL));
    assert!(said("dfabric", &format!("{ALL}senders = 3")).contains("3 senders are more than the 2 nodes"));
    let long = said("dfabric", &ALL.replace("1 MiB", "1 GiB"));
    assert!(long.contains("x is 524288 packets") && long.contains("make size, rounds or nodes smaller"), "{long}");
    assert!(said("dfabric", &format!("{ALL}message = \"64 B\"\nnodes = 32")).contains("packets or messages"));
}

#[test]
fn who_wants_no_more_gets_what_there_is() {
    let (platform, workload) = (Platform::load("dfabric").unwrap(), Workload::load(Path::new("stream")).unwrap());
    let (options, stop) = (RackOptions { nics: 6, ..RackOptions::default() }, AtomicBool::new(false));
    let some = pool(&platform, &workload, &options, &stop, &mut |done, all| {
        assert_eq!(all, 7);
        stop.store(done == 2, Ordering::Relaxed);
    });
    let some = some.unwrap();
    assert!(some.cut && some.rows.len() == 2 && some.knee == Some(1), "{some:?}");
}
