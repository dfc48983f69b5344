//! `remora reproduce` and `remora compare --on` as a user meets them.

use std::process::{Command, Output};

fn remora(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_remora")).args(args).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn a_figure_comes_as_table_csv_and_page() {
    let directory = tempfile::tempdir().unwrap();
    let [csv, page, cache] = ["csv", "page.html", "cache"].map(|name| directory.path().join(name));
    let paths = [&csv, &page, &cache].map(|path| path.to_str().unwrap());
    let args = ["reproduce", "strom", "--figure", "5a", "--csv", paths[0], "--report", paths[1], "--cache", paths[2]];
    let first = remora(&args);
    assert!(first.status.success(), "{}", text(&first.stderr));
    let table = text(&first.stdout);
    assert!(table.starts_with("Figure 5a: ") && table.contains("tx_depth") && table.contains("ST-014"), "{table}");
    let lines = std::fs::read_to_string(csv.join("fig5a.csv")).unwrap();
    assert!(lines.starts_with("figure,series,x,x_unit,y,y_unit\n5a,WRITE,64,B,"), "{lines}");
    assert_eq!(lines.lines().count(), 1 + 2 * 5);
    assert!(std::fs::read_to_string(&page).unwrap().contains("<svg"));
    let again = text(&remora(&args).stdout);
    assert!(again.contains("10 points, all from the cache"), "{again}");
}

#[test]
fn the_cluster_of_minos_comes_as_table_csv_and_page_and_twice_alike() {
    let directory = tempfile::tempdir().unwrap();
    let [csv, page] = ["csv", "page.html"].map(|name| directory.path().join(name));
    let paths = [&csv, &page].map(|path| path.to_str().unwrap());
    let what = ["reproduce", "minos", "--figure", "10", "--requests", "20", "--no-cache"];
    let args = [&what[..], &["--csv", paths[0], "--report", paths[1]]].concat();
    let first = remora(&args);
    assert!(first.status.success(), "{}", text(&first.stderr));
    let table = text(&first.stdout);
    assert!(table.starts_with("Figure 10a: ") && table.contains("MI-046") && table.contains("seed 42"), "{table}");
    let lines = std::fs::read_to_string(csv.join("fig10b.csv")).unwrap();
    assert!(lines.starts_with("figure,series,x,x_unit,y,y_unit\n10b,B,2,nodes,"), "{lines}");
    assert_eq!(lines.lines().count(), 1 + 2 * 6);
    assert!(std::fs::read_to_string(&page).unwrap().contains("<svg"));
    // All but what it took.
    let figures =
        |table: &str| table.lines().filter(|line| !line.contains("events")).map(String::from).collect::<Vec<_>>();
    assert_eq!(figures(&text(&remora(&args).stdout)), figures(&table));
}

#[test]
fn the_racks_of_dfabric_come_as_table_and_csv() {
    let directory = tempfile::tempdir().unwrap();
    let csv = directory.path().join("csv");
    let args = ["reproduce", "dfabric", "--figure", "2", "--no-cache", "--csv", csv.to_str().unwrap()];
    let output = remora(&args);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let table = text(&output.stdout);
    assert!(table.starts_with("Figure 2: ") && table.contains("DF-C2") && table.contains("rack.completion"), "{table}");
    let lines = std::fs::read_to_string(csv.join("fig2.csv")).unwrap();
    assert!(lines.starts_with("figure,series,x,x_unit,y,y_unit\n2,ToR,1,NICs,"), "{lines}");
    assert_eq!(lines.lines().count(), 1 + 6 * 6);
}

#[test]
fn queues_out_of_turn_are_mutants_of_a_kind_of_their_own() {
    let args = ["reproduce", "strom", "--figure", "5a", "--mutate=order", "--no-cache"];
    let output = remora(&[&args[..], &["--json"]].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let mutants = json["mutants"].as_array().unwrap();
    assert!(mutants.iter().all(|mutant| mutant["change"] == "order"), "{json}");
    for section in ["host.pcie", "nic.pipeline", "ethernet", "client.core"] {
        assert!(mutants.iter().any(|mutant| mutant["what"] == section), "{section}: {json}");
    }
    let table = text(&remora(&args).stdout);
    assert!(table.contains("\nout of turn ") && !table.contains("x 0.5"), "{table}");
}

#[test]
fn what_makes_no_sense_is_one_line() {
    for (args, expected) in [
        (&["reproduce", "strom", "--figure", "6", "--no-cache"][..], "there is no figure 6"),
        (&["reproduce", "minos", "--figure", "5"], "there is no figure 5"),
        (&["reproduce", "bluefield", "--figure", "1"], "there is no figure 1"),
        (&["reproduce", "dfabric", "--figure", "3"], "there is no figure 3"),
        (&["compare", "--on", "nowhere"], "nowhere"),
        (&["compare", "--both"], "--on"),
    ] {
        let output = remora(args);
        let message = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {message}");
        assert!(message.starts_with("remora: ") && message.contains(expected), "{message}");
        assert_eq!(message.lines().count(), 1, "{message}");
    }
}
